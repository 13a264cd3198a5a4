"""The models people would pick otherwise, in their best known configuration.

All drop where ours does: the embedding sum and each sub-layer's output, nothing in between. A mask
is given only where it changes what a real token sees: causal queries never reach the padding.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from importlib import metadata
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.sentences import PaddedBatch
from headway.nn.positions import sinusoids
from headway.settings.model import Seq2SeqSettings


class TorchTransformer(nn.Module):
    """`nn.Transformer` with what it leaves to the user: embeddings, positions, a tied softmax."""

    def __init__(self, settings: Seq2SeqSettings) -> None:
        super().__init__()
        self.scale = settings.d_model**0.5
        self.tokens = nn.Embedding(settings.vocab_size, settings.d_model)
        nn.init.normal_(self.tokens.weight, std=settings.d_model**-0.5)
        self.register_buffer("positions", sinusoids(512, settings.d_model), persistent=False)
        self.drop = nn.Dropout(settings.dropout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about nested tensors, which training does not use
            self.body = nn.Transformer(
                settings.d_model,
                settings.n_heads,
                settings.n_layers,
                settings.stack("decoder").n_layers,
                settings.d_ff,
                settings.dropout,
                batch_first=True,
            )
        for layer in self.layers:
            layer.dropout.p = layer.self_attn.dropout = 0.0
        for layer in self.body.decoder.layers:
            layer.multihead_attn.dropout = 0.0

    @property
    def layers(self) -> list[nn.Module]:
        return [*self.body.encoder.layers, *self.body.decoder.layers]

    def embed(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.tokens(tokens_BT) * self.scale + self.positions[: tokens_BT.shape[1]]
        return self.drop(x_BTD)

    def forward(self, batch: PaddedBatch) -> Tensor:
        length = batch.target_BT.shape[1]
        later_TT = torch.ones(length, length, dtype=torch.bool, device=batch.target_BT.device)
        x_BTD = self.body(
            self.embed(batch.source_BS),
            self.embed(batch.target_BT),
            tgt_mask=later_TT.triu(1),
            src_key_padding_mask=~batch.source_real_BS,
            memory_key_padding_mask=~batch.source_real_BS,
            tgt_is_causal=True,
        )
        return F.linear(x_BTD, self.tokens.weight)


class Marian(nn.Module):
    """Hugging Face's Marian with its fused attention."""

    def __init__(self, settings: Seq2SeqSettings) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        config = MarianConfig(
            vocab_size=settings.vocab_size,
            d_model=settings.d_model,
            encoder_layers=settings.n_layers,
            decoder_layers=settings.stack("decoder").n_layers,
            encoder_attention_heads=settings.n_heads,
            decoder_attention_heads=settings.n_heads,
            encoder_ffn_dim=settings.d_ff,
            decoder_ffn_dim=settings.d_ff,
            activation_function="relu",
            dropout=settings.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
            scale_embedding=True,
            max_position_embeddings=512,
            pad_token_id=0,
            eos_token_id=1,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            use_cache=False,
            attn_implementation="sdpa",
        )
        self.model = MarianMTModel(config)

    @property
    def layers(self) -> list[nn.Module]:
        return [*self.model.model.encoder.layers, *self.model.model.decoder.layers]

    def forward(self, batch: PaddedBatch) -> Tensor:
        out = self.model(
            input_ids=batch.source_BS,
            attention_mask=batch.source_real_BS,
            decoder_input_ids=batch.target_BT,
            use_cache=False,
        )
        return out.logits


class OpenNMT(nn.Module):
    """OpenNMT-py's model. Its layers normalise before, as they only can."""

    def __init__(self, settings: Seq2SeqSettings) -> None:
        super().__init__()
        from onmt.decoders.transformer import TransformerDecoder
        from onmt.encoders.transformer import TransformerEncoder
        from onmt.models.model import NMTModel
        from onmt.modules import Embeddings

        def embeddings() -> nn.Module:
            return Embeddings(
                settings.d_model,
                settings.vocab_size,
                word_padding_idx=0,
                position_encoding=True,
                dropout=settings.dropout,
            )

        sizes = (settings.d_model, settings.n_heads, settings.d_ff)
        encoder = TransformerEncoder(
            settings.n_layers, *sizes, settings.dropout, 0.0, embeddings(), 0, 0
        )
        decoder = TransformerDecoder(
            settings.stack("decoder").n_layers, *sizes, False, "scaled-dot-flash", settings.dropout,
            0.0, embeddings(), 0, 0, False, False, 0, 0,
        )  # fmt: skip
        decoder.embeddings.word_lut.weight = encoder.embeddings.word_lut.weight
        self.model = NMTModel(encoder, decoder)
        for layer in self.layers:
            layer.feed_forward.dropout_1.p = 0.0
        self.words = nn.Linear(settings.d_model, settings.vocab_size)
        self.words.weight = encoder.embeddings.word_lut.weight
        draw_weights(self)

    @property
    def layers(self) -> list[nn.Module]:
        return [*self.model.encoder.transformer, *self.model.decoder.transformer_layers]

    def forward(self, batch: PaddedBatch) -> Tensor:
        # It leaves out the last target token, which here has been left out already.
        target_BT1 = F.pad(batch.target_BT, (0, 1))[:, :, None]
        lengths_B = batch.source_real_BS.sum(1)
        return self.words(self.model(batch.source_BS[:, :, None], target_BT1, lengths_B)[0])


class Eole(nn.Module):
    """eole's model, with the shape its configuration has for a Transformer of 2017."""

    def __init__(self, settings: Seq2SeqSettings) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about kernels for GPUs that are not installed
            from eole.config.models import TransformerModelConfig
            from eole.models.model import EncoderDecoderModel

        config = TransformerModelConfig(
            hidden_size=settings.d_model,
            encoder={"layers": settings.n_layers},
            decoder={"layers": settings.stack("decoder").n_layers},
            heads=settings.n_heads,
            transformer_ff=settings.d_ff,
            add_ffnbias=True,
            embeddings={
                "word_vec_size": settings.d_model,
                "position_encoding_type": "SinusoidalInterleaved",
            },
            share_embeddings=True,
            share_decoder_embeddings=True,
        )
        words = {"<blank>": 0, **{str(i): i for i in range(1, settings.vocab_size)}}
        vocabs = {"src": words, "tgt": words, "specials": {"pad_token": "<blank>"}}
        running = SimpleNamespace(dropout=[settings.dropout], attention_dropout=[0.0])
        self.model = EncoderDecoderModel.build_blocks(config, vocabs, running)
        self.model.build_generator(config, running, vocabs)
        for layer in self.layers:
            layer.mlp.dropout_1.p = 0.0
        draw_weights(self)

    @property
    def layers(self) -> list[nn.Module]:
        stacks = (self.model.encoder, self.model.decoder)
        return [layer for stack in stacks for layer in stack.transformer_layers]

    def forward(self, batch: PaddedBatch) -> Tensor:
        # It leaves out the last target token, which here has been left out already.
        out = self.model(batch.source_BS, F.pad(batch.target_BT, (0, 1)), None)
        return self.model.generator(out.dec_out)


def draw_weights(model: nn.Module) -> None:
    """As both toolkits start: they build their parts without."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    for part in model.modules():
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


@dataclass(frozen=True)
class Peer:
    build: Callable[[Seq2SeqSettings], nn.Module]
    module: str
    """What is imported for it."""

    package: str
    """What is installed for it."""


PEERS = {
    "nn.Transformer": Peer(TorchTransformer, "torch", "torch"),
    "HF Marian": Peer(Marian, "transformers", "transformers"),
    "OpenNMT-py": Peer(OpenNMT, "onmt", "OpenNMT-py"),
    "eole": Peer(Eole, "eole", "eole"),
}


def installed() -> dict[str, Peer]:
    """The peers that can be measured here; says which are left out."""
    found = {}
    for name, peer in PEERS.items():
        if importlib.util.find_spec(peer.module) is None:
            print(f"{name}: left out, {peer.package} is not installed", flush=True)
        else:
            found[name] = peer
    return found


def peer_versions(names: Collection[str]) -> dict[str, str]:
    """Of the packages behind systems of these names."""
    used = [peer for name, peer in PEERS.items() if any(name in system for system in names)]
    return {peer.package: metadata.version(peer.package) for peer in used}


def padded_loss(logits_BTV: Tensor, batch: PaddedBatch) -> Tensor:
    return F.cross_entropy(
        logits_BTV.flatten(0, 1), batch.labels_BT.flatten(), ignore_index=-100, label_smoothing=0.1
    )
