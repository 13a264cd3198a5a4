"""What is recorded for another runtime: modules with named inputs and outputs, and their axes.

What reads texts, images, videos or recordings is one graph. A language model is one too: it reads
new tokens behind the keys and values of earlier ones, so that it takes a whole prompt (with an
empty past) as well as single steps. What writes about a source is two: one reads the source,
whatever it is, one takes steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from headway.decode.steps import alignment_layer
from headway.interop.graphs.body import Body, KeysValues, Source, keys_of
from headway.interop.graphs.inputs import IDS, MASK, AudioRows, ImageRows, PlainFront, TextRows
from headway.interop.graphs.positions import hidden
from headway.models.decoder import Decoder
from headway.models.encoder import Encoder
from headway.models.parts.audio import SoundFront
from headway.models.parts.text import TextFront
from headway.models.parts.vision import PictureFront
from headway.models.seq2seq import Seq2Seq
from headway.settings.model import (
    ModelSettings,
    PictureEncoderSettings,
    PictureSeq2SeqSettings,
    SoundEncoderSettings,
    SoundSeq2SeqSettings,
)
from headway.settings.run import Resolved
from headway.tasks.read import OneVector, Readout, readout_of
from headway.tasks.specs import spec_of

PLACES = "position_ids"
SOURCE_MASK = "encoder_attention_mask"
STATES, LOGITS, SENTENCE = "last_hidden_state", "logits", "sentence_embedding"
EMBEDDING, REBUILT, CTC = "embeddings", "rebuilt", "ctc_logits"
TRANSITIONS, CROSS, CROSS_HEADS = "transitions", "cross_attention", "cross_attention_heads"
READER, WRITER, ALONE = "encoder", "decoder", "model"
"""Names of the graphs, and of their files."""

FEWEST_POSITIONS = 1024

PAST_AND_LENGTH = "past_and_length"
"""The one axis whose size is the sum of two others."""

ABOUT = {
    IDS: "token numbers",
    MASK: "1 for a token, 0 for padding; those of the past first",
    PLACES: "how many real tokens stand before each",
    SOURCE_MASK: "1 for a row of the source, 0 for padding",
    STATES: "a vector a row",
    LOGITS: "scores of words, classes, tags or symbols, before the softmax",
    SENTENCE: "a vector a text",
    EMBEDDING: "a vector a picture or recording; that of a speaker has length 1",
    REBUILT: "what stood in each row, with mean 0 and variance 1",
    CTC: "scores of symbols for each row, the last of them the blank",
    TRANSITIONS: "a score for each tag (column) behind each (row)",
    CROSS: "what each new token saw of each row of the source",
    CROSS_HEADS: "the same by each head of the last layer",
}
"""What inputs and outputs are, for people; those of a layer have names of their kind."""


@dataclass(frozen=True)
class Graph:
    name: str
    module: nn.Module
    """Takes the inputs in their order and gives the outputs in theirs."""

    example: dict[str, Tensor]
    """Inputs by name, in sizes that are all different."""

    axes: dict[str, dict[int, str]]
    """Which axes of each input may have any size, by name; the same name is the same size."""

    outputs: tuple[str, ...]
    reach: int | None
    """The most rows (tokens of a text) that it reads, if there is an end."""

    about: dict[str, str] = field(default_factory=dict)
    """What inputs are, where there is more to say than `ABOUT` does."""


def graphs_of(model: nn.Module, settings: Resolved) -> list[Graph]:
    reach = _reach(settings.model)
    if isinstance(model, Seq2Seq):
        reader = SourceReader(model, plain_front(model.source_front, reach, "source"), reach)
        return [_reading(reader, READER), _writer(TargetSteps(model, reach), WRITER)]
    assert isinstance(model, Encoder | Decoder)
    if spec_of(settings).continues:
        assert isinstance(model, Decoder)
        return [_writer(TextSteps(model, reach), ALONE)]
    return [_reading(Reader(model, plain_front(model.front, reach), reach, settings), ALONE)]


def _reach(settings: ModelSettings) -> int:
    """Rows that tables of positions without an end are made for."""
    reach = max(FEWEST_POSITIONS, 2 * settings.max_len)
    if isinstance(settings, PictureEncoderSettings | PictureSeq2SeqSettings):
        return max(reach, settings.picture.extra + prod(settings.picture.grid))
    if isinstance(settings, SoundEncoderSettings | SoundSeq2SeqSettings):
        return max(reach, 2 * settings.sound.max_rows)
    return reach


def plain_front(front: nn.Module, reach: int, length: str = "length") -> PlainFront:
    if isinstance(front, PictureFront):
        return ImageRows(front)
    if isinstance(front, SoundFront):
        return AudioRows(front, reach)
    assert isinstance(front, TextFront)
    return TextRows(front, reach, length)


@dataclass(frozen=True)
class PaddedPlaces:
    """Where the rows of sequences lie in a grid with padding: `Layout` of a graph."""

    real_BT: Tensor

    def pooled(self, x_ND: Tensor, pooling: str) -> Tensor:
        real_BT, whole_B1 = self.real_BT, self.real_BT.sum(1, keepdim=True)
        if pooling == "mean":
            share_BT = real_BT.float() / whole_B1.clamp(min=1)
        else:
            wanted = 1 if pooling == "first" else whole_B1
            share_BT = ((real_BT.cumsum(1) == wanted) & (real_BT > 0)).float()
        return (share_BT[:, None] @ self._grid(x_ND)).squeeze(1)

    def nth(self, x_ND: Tensor, number: int) -> Tensor:
        return self._grid(x_ND)[:, number]

    def _grid(self, x_ND: Tensor) -> Tensor:
        return x_ND.unflatten(0, self.real_BT.shape)


class Reader(nn.Module):
    """Items in; a vector a row and the answers of heads out."""

    def __init__(
        self, model: Encoder | Decoder, front: PlainFront, reach: int, settings: Resolved
    ) -> None:
        super().__init__()
        self.front, self.body = front, Body(model.stack, reach)  # type: ignore[arg-type]
        self.heads = model.heads
        # Of the model only what reads out: its front and its layers are in here in another form.
        alone = copy(model)
        alone._modules = {"heads": model.heads}
        self.model = (alone,)  # no part of this one, so that its weights have one name
        spec, readout = spec_of(settings), readout_of(settings)
        name = LOGITS
        if isinstance(readout, OneVector):
            name = SENTENCE if spec.modality == "text" else EMBEDDING
        self.asked: dict[str, Readout] = {REBUILT if "rebuild" in self.heads else name: readout}
        if name == LOGITS and spec.answers == "label" and spec.compares:
            self.asked[EMBEDDING] = OneVector(unit=True)
        tags = self.heads["tags"] if spec.answers == "tags" else None
        self.transitions: Tensor | None = getattr(tags, "transitions", None)
        self.with_mask = spec.writes
        more = (TRANSITIONS,) * (self.transitions is not None) + (MASK,) * self.with_mask
        self.outputs = (STATES, *self.asked, *more)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        rows = self.front(*inputs)
        x_ND = self.body(rows.x_BTD, rows.positions_BT, rows.real_BT).x_ND
        size = (rows.x_BTD.shape[0], rows.x_BTD.shape[1])
        said = [self._said(readout, x_ND, rows.real_BT, size) for readout in self.asked.values()]
        more = [] if self.transitions is None else [self.transitions]
        more += [rows.real_BT] if self.with_mask else []
        return (x_ND.unflatten(0, size), *said, *more)

    def _said(
        self, readout: Readout, x_ND: Tensor, real_BT: Tensor, size: tuple[int, int]
    ) -> Tensor:
        found = readout.of(self.model[0], x_ND, PaddedPlaces(real_BT)).answers()
        if readout.pools:
            return found
        found = found.unflatten(0, size)
        if REBUILT in self.asked and isinstance(self.front, ImageRows):
            return found[:, self.front.front.shape.extra :]  # first rows are no part of a picture
        return found


class TextSteps(nn.Module):
    """New tokens of a text behind earlier ones; scores of the next ones."""

    def __init__(self, model: Decoder, reach: int) -> None:
        super().__init__()
        self.front, self.body = _words(model.front, model.stack, reach)
        self.head, self.outputs = model.words, (LOGITS, *_names("present", self.body))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        x_BTD = self.front.embedded(input_ids, position_ids)
        read = self.body(x_BTD, position_ids, attention_mask, past=_pairs(past))
        logits_BTV = self.head(read.x_ND).unflatten(0, input_ids.shape)
        return (logits_BTV, *_flat(read.present))


class SourceReader(nn.Module):
    """Sources in; their vectors, and keys and values for each layer of cross attention out. Of
    images and recordings also which rows are real, and where CTC listens what it hears."""

    def __init__(self, model: Seq2Seq, front: PlainFront, reach: int) -> None:
        super().__init__()
        self.front, self.body = front, Body(model.encoder, reach)  # type: ignore[arg-type]
        self.crosses = nn.ModuleList(block.cross for block in model.decoder.blocks)  # type: ignore
        self.ctc, self.has_mask = model.ctc, not isinstance(front, TextRows)
        more = (SOURCE_MASK,) * self.has_mask + (CTC,) * (self.ctc is not None)
        self.outputs = (STATES, *more, *layer_names("cross", len(self.crosses)))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        rows = self.front(*inputs)
        x_ND = self.body(rows.x_BTD, rows.positions_BT, rows.real_BT).x_ND
        size = (rows.x_BTD.shape[0], rows.x_BTD.shape[1])
        x_BTD = x_ND.unflatten(0, size)
        more = [rows.real_BT] if self.has_mask else []
        more += [] if self.ctc is None else [self.ctc(x_ND).unflatten(0, size)]
        made = [keys_of(cross, x_ND, size) for cross in self.crosses]  # type: ignore[arg-type]
        return (x_BTD, *more, *_flat(made))


class TargetSteps(nn.Module):
    """New tokens of outputs behind earlier ones, given their sources."""

    def __init__(self, model: Seq2Seq, reach: int) -> None:
        super().__init__()
        self.front, self.body = _words(model.target_front, model.decoder, reach)
        self.head, self.aligned = model.head, alignment_layer(model)
        # When a word was said is read off single heads, where no CTC says it better.
        self.by_head = isinstance(model.source_front, SoundFront) and model.ctc is None
        self.outputs = (LOGITS, *_names("present", self.body), CROSS)
        self.outputs += (CROSS_HEADS,) * self.by_head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        encoder_attention_mask: Tensor,
        *past_and_cross: Tensor,
    ) -> tuple[Tensor, ...]:
        half = len(past_and_cross) // 2
        cross = _pairs(past_and_cross[half:])
        source = Source(cross, hidden(encoder_attention_mask[:, None].to(torch.bool)))
        x_BTD = self.front.embedded(input_ids, position_ids)
        past = _pairs(past_and_cross[:half])
        read = self.body(x_BTD, position_ids, attention_mask, past=past, source=source)
        logits_BTV = self.head(read.x_ND).unflatten(0, input_ids.shape)
        seen = [read.crossed[self.aligned].mean(1), *read.crossed[-1:] * self.by_head]
        return (logits_BTV, *_flat(read.present), *seen)


def _words(front: nn.Module, stack: nn.Module, reach: int) -> tuple[TextRows, Body]:
    return TextRows(front, reach), Body(stack, reach)  # type: ignore[arg-type]


def _reading(module: Reader | SourceReader, name: str) -> Graph:
    front = module.front
    reach = _least(front.reach, module.body.reach)
    return Graph(name, module, front.example, front.axes, module.outputs, reach, front.about)


def _writer(module: TextSteps | TargetSteps, name: str) -> Graph:
    batch, new, past, source = 2, 3, 4, 5
    example = {
        IDS: torch.ones(batch, new, dtype=torch.long),
        MASK: torch.ones(batch, past + new, dtype=torch.long),
        PLACES: torch.arange(past, past + new).expand(batch, -1).contiguous(),
    }
    axes = {
        IDS: {0: "batch", 1: "length"},
        MASK: {0: "batch", 1: PAST_AND_LENGTH},
        PLACES: {0: "batch", 1: "length"},
    }
    if isinstance(module, TargetSteps):
        example[SOURCE_MASK] = torch.ones(batch, source, dtype=torch.long)
        axes[SOURCE_MASK] = {0: "batch", 1: "source"}
    kinds = {"past": past} | ({"cross": source} if isinstance(module, TargetSteps) else {})
    for kind, length in kinds.items():
        names = iter(_names(kind, module.body))
        for block in module.body.blocks:
            attention = block.cross if kind == "cross" else block.attention
            assert attention is not None
            for layer in (next(names), next(names)):  # keys, values
                example[layer] = torch.zeros(batch, attention.n_kv_heads, length, attention.d_head)
                axes[layer] = {0: "batch", 2: "source" if kind == "cross" else "past"}
    reach = _least(module.front.reach, module.body.reach)
    return Graph(name, module, example, axes, module.outputs, reach)


def _least(*ends: int | None) -> int | None:
    return min((end for end in ends if end is not None), default=None)


def _names(kind: str, body: Body) -> list[str]:
    return layer_names(kind, len(body.blocks))


def layer_names(kind: str, n_layers: int) -> list[str]:
    return [f"{kind}.{number}.{part}" for number in range(n_layers) for part in ("key", "value")]


def _pairs(flat: Sequence[Tensor]) -> list[KeysValues]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _flat(pairs: Sequence[KeysValues]) -> list[Tensor]:
    return [tensor for pair in pairs for tensor in pair]
