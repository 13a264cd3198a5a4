"""Image model families: patch encoders (ViT, DeiT), and encoder-decoders for captioning."""

from __future__ import annotations

from torch import Tensor, nn

from headway.models.encoder import Encoder
from headway.models.parts.body import stack
from headway.models.parts.output_heads import LabelHead, Pooler, ReconstructionHead
from headway.models.parts.vision import ImageFront
from headway.models.seq2seq import Seq2Seq, compose_seq2seq
from headway.nn.embedding import Embedding
from headway.nn.layout import Layout
from headway.settings.model import ImageEncoderSettings, ImageSeq2SeqSettings


class ImageEncoder(Encoder):
    """Image encoder. `forward` returns one vector per position: class tokens if there are any, then
    patches."""

    def class_rows(self, x_ND: Tensor, layout: Layout) -> dict[str, Tensor]:
        """Return the input of each classification head.

        ViT's head reads the class token, without a pooler. DeiT has a second head, distilled from a
        teacher, which reads the token after the class token.
        """
        rows = {"classes": layout.pooled(x_ND, self.pooling)}
        if "distilled" in self.heads:
            rows["distilled"] = layout.nth(x_ND, 1)
        return rows

    @property
    def n_first(self) -> int | None:
        n_first = super().n_first
        return 2 if n_first and "distilled" in self.heads else n_first


def image_encoder(settings: ImageEncoderSettings) -> ImageEncoder:
    return ImageEncoder(
        ImageFront(
            settings.image,
            settings.d_model,
            dropout=settings.dropout,
            masks="rebuild" in settings.heads,
        ),
        stack(settings, causal=False),
        nn.ModuleDict({name: _head(settings, name) for name in settings.heads}),
        settings.pooling,
    )


def _head(settings: ImageEncoderSettings, name: str) -> nn.Module:
    if name == "rebuild":
        image = settings.image
        return ReconstructionHead(settings.d_model, image.channels * image.tubelet * image.patch**2)
    if name == "pooled":
        return Pooler(settings.d_model, settings.pooling)
    return LabelHead(settings.d_model, settings.n_labels, settings.dropout)


def image_seq2seq(settings: ImageSeq2SeqSettings) -> Seq2Seq:
    target = Embedding(settings.vocab_size, settings.d_model)
    front = ImageFront(settings.image, settings.d_model, dropout=settings.dropout)
    return compose_seq2seq(settings, front, target)
