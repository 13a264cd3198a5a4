"""ONNX graphs in place of encoders, with the interface of our models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from headway.decode.batching import batches
from headway.decode.engine import TokenLists
from headway.errors import DataError, Option
from headway.interop.graphs.graph_inputs import MASK
from headway.interop.graphs.graphs import EMBEDDING, LOGITS, SENTENCE, TRANSITIONS
from headway.interop.graphs.padded_batches import GraphArray, media_inputs, text_inputs
from headway.interop.onnx.session import Session
from headway.models.audio import AudioEncoder
from headway.models.encoder import Encoder
from headway.models.parts.audio import AudioBatch, AudioFront
from headway.models.parts.front import Front
from headway.models.parts.output_heads import LMHead
from headway.models.parts.vision import ImageBatch, ImageFront
from headway.nn.layout import Layout
from headway.settings.model import AudioSettings, ImageSettings
from headway.settings.run import RunSettings, media_settings
from headway.tasks.readout import OneVector, readout_of

TOKENS_AT_ONCE = 4096
"""Maximum number of tokens (or rows of media) per batch."""


class PassThroughHead(nn.Module):
    """Head that returns its input: the graph has already computed the output."""

    def __init__(self, transitions: Tensor | None = None) -> None:
        """`transitions`: transition scores of a CRF, for tagging tasks."""
        super().__init__()
        self.transitions = transitions

    def forward(self, x_RD: Tensor) -> Tensor:
        return x_RD


class GraphTextEncoder(Encoder):
    """Text encoder whose output is already that of the head, computed by a graph."""

    def __init__(self, graph: Session, settings: RunSettings) -> None:
        super().__init__(nn.Identity(), nn.Identity(), nn.ModuleDict(), "mean")
        self.graph, readout = graph, readout_of(settings)
        self.pools = readout.pools
        self.name = SENTENCE if isinstance(readout, OneVector) else LOGITS
        learned = None
        if TRANSITIONS in graph.outputs:  # a constant of the graph, so any input will do
            learned = torch.from_numpy(self._read([[0]], [[0]])[TRANSITIONS])
        self.heads["tags"] = PassThroughHead(learned)
        self.heads["words"] = self.heads["classes"] = PassThroughHead()

    def forward(self, tokens_N: Tensor, layout: Layout, segments_N: Tensor | None = None) -> Tensor:
        """Output of the graph: a row for each token (words, tags) or for each text (classes,
        vectors)."""
        lengths = list(layout.known_lengths())
        numbers_N = torch.zeros_like(tokens_N) if segments_N is None else segments_N
        texts = [part.tolist() for part in tokens_N.split(lengths)]
        segments = [part.tolist() for part in numbers_N.split(lengths)]
        found: dict[int, GraphArray] = {}
        for group in batches(lengths, TOKENS_AT_ONCE):
            read = self._read([texts[i] for i in group], [segments[i] for i in group])
            found |= dict(zip(group, read[self.name], strict=True))
        if self.pools:
            return torch.from_numpy(np.stack([found[i] for i in range(len(texts))]))
        tables = [found[i][: lengths[i]] for i in range(len(texts))]
        return torch.from_numpy(np.concatenate(tables))

    def _read(self, texts: TokenLists, segments: TokenLists) -> dict[str, GraphArray]:
        return self.graph.call(text_inputs(texts, segments))

    def pooled(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return x_ND


class ImageCollator(ImageFront):
    """Front that only collates images; the graph embeds them."""

    def __init__(self, shape: ImageSettings) -> None:
        Front.__init__(self)
        self.shape = shape


class AudioCollator(AudioFront):
    """Front that only collates recordings; the graph embeds them."""

    def __init__(self, shape: AudioSettings) -> None:
        Front.__init__(self)
        self.shape = shape


class GraphMediaEncoder(Encoder):
    """Encoder of images, videos or recordings whose output is that of the heads: classes, and a
    vector if the graph has one."""

    def __init__(self, graph: Session, settings: RunSettings) -> None:
        shape = media_settings(settings)
        assert shape is not None
        front: Front
        if isinstance(shape, AudioSettings):
            front = AudioCollator(shape)
        else:
            front = ImageCollator(shape)
        super().__init__(front, nn.Identity(), nn.ModuleDict(), "mean")
        self.graph, self.names = graph, [n for n in (LOGITS, EMBEDDING) if n in graph.outputs]
        self.heads["classes"] = self.heads["ctc"] = PassThroughHead()
        self.anchor = nn.Parameter(torch.zeros(0))
        """Empty parameter that gives the model a device."""

    def forward(
        self, given: ImageBatch | AudioBatch, layout: Layout, segments_N: Tensor | None = None
    ) -> Tensor:
        """One row per item: its class logits, then its vector."""
        found = [self._read(items) for items in graph_batches(given, layout)]
        numbers = np.concatenate([places for places, _ in found])
        rows = np.concatenate([np.concatenate([x[n] for n in self.names], 1) for _, x in found])
        return torch.from_numpy(rows[np.argsort(numbers)])

    def _read(
        self, items: tuple[list[int], list[GraphArray]]
    ) -> tuple[list[int], dict[str, GraphArray]]:
        places, values = items
        if isinstance(self.front, AudioCollator) and self.graph.n_positions is not None:
            shape, most = self.front.shape, self.graph.n_positions
            if max(shape.rows_of(len(one)) for one in values) > most:
                raise DataError(
                    f"a recording lasts {max(map(len, values)) / shape.rate:,.0f} s, but the "
                    f"exported model reads at most {most * shape.row_seconds:,.0f} s. Split the "
                    f"recording, or use the original run with {Option('engine', 'torch')}."
                )
        return places, self.graph.call(media_inputs(values))

    @property
    def n_classes(self) -> int:
        return int(self.graph.outputs[LOGITS][-1]) if LOGITS in self.names else 0

    def class_rows(self, x_ND: Tensor, layout: Layout) -> dict[str, Tensor]:
        return {"classes": x_ND[:, : self.n_classes]}

    def cosine_head(self, scale: float) -> Callable[[Tensor], Tensor]:
        """Return the head unchanged: the graph has already applied the scale."""
        return self.heads["classes"]

    def pooled(self, x_ND: Tensor, layout: Layout) -> Tensor:
        return x_ND[:, self.n_classes :]


class GraphCtcEncoder(GraphMediaEncoder, AudioEncoder):
    """Speech encoder whose output is that of the CTC head: one row of logits per frame."""

    def forward(
        self, given: ImageBatch | AudioBatch, layout: Layout, segments_N: Tensor | None = None
    ) -> Tensor:
        found: dict[int, GraphArray] = {}
        for items in graph_batches(given, layout):
            places, read = self._read(items)
            rows = zip(read[LOGITS], read[MASK], strict=True)
            found |= dict(zip(places, (x_TV[real_T > 0] for x_TV, real_T in rows), strict=True))
        return torch.from_numpy(np.concatenate([found[i] for i in range(layout.n_sequences)]))

    @property
    def ctc(self) -> LMHead:
        return self.heads["ctc"]  # type: ignore[return-value]


def graph_batches(
    given: ImageBatch | AudioBatch, layout: Layout
) -> Iterator[tuple[list[int], list[GraphArray]]]:
    """Split a flat batch into batches for the graph; yield the indices and items of each."""
    if isinstance(given, ImageBatch):
        assert given.order_N is None, "images of one size"
        (group,) = given.groups
        yield list(range(len(group))), list(group.numpy())
        return
    first_B = np.searchsorted(given.number_A.numpy(), np.arange(given.n_recordings))
    low_B, high_B = given.low_A.numpy()[first_B], given.high_A.numpy()[first_B]
    samples_S = given.samples_S.numpy()
    for places in batches(list(layout.known_lengths()), TOKENS_AT_ONCE):
        yield list(places), [samples_S[low_B[i] : high_B[i]] for i in places]
