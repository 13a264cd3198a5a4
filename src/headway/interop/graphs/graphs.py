"""What is recorded for another runtime: modules with named inputs and outputs, and their axes.

What reads texts, images, videos or recordings is one graph. A language model is one too: it reads
new tokens behind the keys and values of earlier ones, so that it takes a whole prompt (with an
empty past) as well as single steps. What writes about a source is two: one reads the source,
whatever it is, one takes steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from headway.decode.steps import alignment_layer
from headway.interop.graphs.graph_inputs import (
    IDS,
    MASK,
    GraphInputs,
    TextInputs,
    inputs_of,
    of_one_size,
)
from headway.models.decoder import Decoder
from headway.models.encoder import Encoder
from headway.models.parts.audio import SoundFront
from headway.models.parts.output_heads import Input, States
from headway.models.parts.vision import PictureFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.attention.padded import KeysValues, PaddedCache, PaddedLayout
from headway.nn.block import Block
from headway.nn.positions import Learned, Rotary, Sinusoidal, stretch
from headway.nn.stack import Stack
from headway.nn.tap import record
from headway.settings.model import (
    ModelSettings,
    PictureEncoderSettings,
    PictureSeq2SeqSettings,
    SoundEncoderSettings,
    SoundSeq2SeqSettings,
)
from headway.settings.run import RunSettings
from headway.tasks.readout import OneVector, Readout, readout_of
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


def graphs_of(model: nn.Module, settings: RunSettings) -> list[Graph]:
    assert settings.model is not None
    stretch(model, _reach(settings.model))
    if isinstance(model, Seq2Seq):
        reader = SourceReader(model, inputs_of(model.source_front, "source"))
        return [_reading(reader, READER), _writer(TargetSteps(model), WRITER)]
    assert isinstance(model, Encoder | Decoder)
    if spec_of(settings).continues:
        assert isinstance(model, Decoder)
        return [_writer(TextSteps(model), ALONE)]
    return [_reading(Reader(model, inputs_of(model.front), settings), ALONE)]


def _reach(settings: ModelSettings) -> int:
    """Rows that tables of positions without an end are made for."""
    reach = max(FEWEST_POSITIONS, 2 * settings.max_len)
    if isinstance(settings, PictureEncoderSettings | PictureSeq2SeqSettings):
        return max(reach, settings.picture.extra + prod(settings.picture.grid))
    if isinstance(settings, SoundEncoderSettings | SoundSeq2SeqSettings):
        return max(reach, 2 * settings.sound.max_rows)
    return reach


class Reader(nn.Module):
    """Items in; a vector a row and the answers of heads out."""

    def __init__(
        self, model: Encoder | Decoder, inputs: GraphInputs, settings: RunSettings
    ) -> None:
        super().__init__()
        self.inputs, self.model = inputs, model
        assert settings.model is not None
        spec, readout = spec_of(settings), readout_of(settings)
        name = LOGITS
        if isinstance(readout, OneVector):
            name = SENTENCE if spec.modality == "text" else EMBEDDING
        self.asked: dict[str, Readout] = {REBUILT if "rebuild" in model.heads else name: readout}
        if name == LOGITS and spec.answers == "label" and spec.compares:
            self.asked[EMBEDDING] = OneVector(unit=True)
        tags = model.heads["tags"] if spec.answers == "tags" else None
        self.transitions: Tensor | None = getattr(tags, "transitions", None)
        self.with_mask = spec.writes
        more = (TRANSITIONS,) * (self.transitions is not None) + (MASK,) * self.with_mask
        self.outputs = (STATES, *self.asked, *more)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = self.inputs.batch(*inputs)
        layout = padded_layout(given)
        states = self.model.states(given)
        said = [self._said(readout, states, layout) for readout in self.asked.values()]
        more = [] if self.transitions is None else [self.transitions]
        more += [layout.real_BT] if self.with_mask else []
        return (layout.grid(states.x_ND), *said, *more)

    def _said(self, readout: Readout, states: States, layout: PaddedLayout) -> Tensor:
        found = readout.of(self.model, states).answers()
        if readout.pools:
            return found
        found = layout.grid(found)
        if REBUILT in self.asked and isinstance(self.model.front, PictureFront):
            return found[:, self.model.front.shape.extra :]  # first rows are no part of a picture
        return found


class TextSteps(nn.Module):
    """New tokens of a text behind earlier ones; scores of the next ones."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model, self.blocks = model, _blocks(model.stack)
        self.outputs = (LOGITS, *layer_names("present", len(self.blocks)))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        of_one_size(input_ids, position_ids)
        cache = PaddedCache(PaddedLayout.over(attention_mask), _pairs(past))
        layout = PaddedLayout.over(torch.ones_like(input_ids), position_ids)
        x_ND = self.model(input_ids.flatten(), layout, cache)
        return (layout.grid(self.model.scores(x_ND)), *_flat(cache.present))


class SourceReader(nn.Module):
    """Sources in; their vectors, and keys and values for each layer of cross attention out. Of
    images and recordings also which rows are real, and where CTC listens what it hears."""

    def __init__(self, model: Seq2Seq, inputs: GraphInputs) -> None:
        super().__init__()
        self.inputs, self.model = inputs, (model,)  # of which only these are parts of this one:
        self.crosses = [block.cross for block in _blocks(model.decoder) if block.cross is not None]
        self.parts = nn.ModuleList([model.source_front, model.encoder, *self.crosses])
        self.ctc, self.has_mask = model.ctc, not isinstance(inputs, TextInputs)
        more = (SOURCE_MASK,) * self.has_mask + (CTC,) * (self.ctc is not None)
        self.outputs = (STATES, *more, *layer_names("cross", len(self.crosses)))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given, (model,) = self.inputs.batch(*inputs), self.model
        layout = padded_layout(given)
        memory = model.encode(given.values, layout)
        more = [layout.real_BT] if self.has_mask else []
        more += [] if self.ctc is None else [layout.grid(self.ctc(memory.x_MD))]
        made = [x_MGK for cross in self.crosses for x_MGK in cross.keys_of(memory)]
        grids = [layout.grid(x_MGK).transpose(1, 2) for x_MGK in made]
        return (layout.grid(memory.x_MD), *more, *grids)


class TargetSteps(nn.Module):
    """New tokens of outputs behind earlier ones, given their sources."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = (model,)  # of which only these are parts of this one:
        self.parts = nn.ModuleList([model.target_front, model.decoder, model.head])
        self.blocks = _blocks(model.decoder)
        names = [f"decoder.blocks.{n}.cross.weights" for n in range(len(self.blocks))]
        self.aligned, self.last = names[alignment_layer(model)], names[-1]
        # When a word was said is read off single heads, where no CTC says it better.
        self.by_head = isinstance(model.source_front, SoundFront) and model.ctc is None
        self.outputs = (LOGITS, *layer_names("present", len(self.blocks)), CROSS)
        self.outputs += (CROSS_HEADS,) * self.by_head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        encoder_attention_mask: Tensor,
        *past_and_cross: Tensor,
    ) -> tuple[Tensor, ...]:
        (model,), half = self.model, len(past_and_cross) // 2
        past, cross = _pairs(past_and_cross[:half]), _pairs(past_and_cross[half:])
        of_one_size(input_ids, position_ids)
        cache = PaddedCache(PaddedLayout.over(attention_mask), past, cross)
        layout = PaddedLayout.over(torch.ones_like(input_ids), position_ids)
        # Keys and values of the source are in the cache, and its vectors are not asked for.
        memory = Memory(torch.empty(0), PaddedLayout.over(encoder_attention_mask))
        with record(model, self.aligned, self.last) as seen:
            x_ND = model.decode(input_ids.flatten(), layout, memory, cache)
        found = [seen[self.aligned][0].mean(1), *seen[self.last] * self.by_head]
        return (layout.grid(model.scores(x_ND)), *_flat(cache.present), *found)


def padded_layout(given: Input) -> PaddedLayout:
    assert isinstance(given.layout, PaddedLayout)
    return given.layout


def _reading(module: Reader | SourceReader, name: str) -> Graph:
    given = module.inputs
    return Graph(name, module, given.example, given.axes, module.outputs, _end(module), given.about)


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
        names = iter(layer_names(kind, len(module.blocks)))
        for block in module.blocks:
            attention = block.cross if kind == "cross" else block.attention
            assert attention is not None
            for layer in (next(names), next(names)):  # keys, values
                example[layer] = torch.zeros(batch, attention.n_kv_heads, length, attention.d_head)
                axes[layer] = {0: "batch", 2: "source" if kind == "cross" else "past"}
    return Graph(name, module, example, axes, module.outputs, _end(module))


def _end(module: nn.Module) -> int | None:
    """The most rows that its tables of positions know, if it has any."""
    ends = []
    for part in module.modules():
        if isinstance(part, Learned):
            ends.append(part.table.num_embeddings)
        elif isinstance(part, Sinusoidal):
            ends.append(len(part.table_PD))
        elif isinstance(part, Rotary):
            ends.append(len(part.cos_PI))
    return min(ends, default=None)


def _blocks(stack: nn.Module) -> list[Block]:
    assert isinstance(stack, Stack)
    return list(stack.blocks)  # type: ignore[arg-type]


def layer_names(kind: str, n_layers: int) -> list[str]:
    return [f"{kind}.{number}.{part}" for number in range(n_layers) for part in ("key", "value")]


def _pairs(flat: Sequence[Tensor]) -> list[KeysValues]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _flat(pairs: Sequence[KeysValues]) -> list[Tensor]:
    return [tensor for pair in pairs for tensor in pair]
