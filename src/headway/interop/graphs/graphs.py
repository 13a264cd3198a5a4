"""Graphs for other runtimes: modules with named inputs and outputs and dynamic axes.

An encoder of texts, images, videos or audio is one graph. A language model is also one graph: it
reads new tokens after cached keys and values, so the same graph processes a whole prompt (with an
empty cache) and single steps. An encoder-decoder is two graphs: one encodes the source, and one
computes decoding steps.
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
    check_equal_sizes,
    inputs_for,
)
from headway.models.decoder import Decoder
from headway.models.encoder import Encoder
from headway.models.parts.audio import AudioFront
from headway.models.parts.output_heads import HiddenStates, ModelInput
from headway.models.parts.vision import ImageFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.attention.padded import KeysValues, PaddedCache, PaddedLayout
from headway.nn.block import Block
from headway.nn.positions import Learned, Rotary, Sinusoidal, extend_positions
from headway.nn.stack import Stack
from headway.nn.tap import record
from headway.settings.model import (
    AudioEncoderSettings,
    AudioSeq2SeqSettings,
    ImageEncoderSettings,
    ImageSeq2SeqSettings,
    ModelSettings,
)
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.tasks.readout import OneVector, Readout, readout_of

POSITION_IDS = "position_ids"
SOURCE_MASK = "encoder_attention_mask"
STATES, LOGITS, SENTENCE = "last_hidden_state", "logits", "sentence_embedding"
EMBEDDING, REBUILT, CTC = "embeddings", "rebuilt", "ctc_logits"
TRANSITIONS, CROSS, CROSS_HEADS = "transitions", "cross_attention", "cross_attention_heads"
ENCODER, DECODER, MODEL = "encoder", "decoder", "model"
"""Names of the graphs, which are also their file names without the extension."""

FEWEST_POSITIONS = 1024
"""Minimum number of positions in computed tables. headway computes positions for any length, but a
graph needs tables of fixed size."""

PAST_AND_LENGTH = "past_and_length"
"""Name of the axis of cached and new tokens. Its size is the sum of the sizes of two other axes."""

ABOUT = {
    IDS: "token ids",
    MASK: "1 for a token, 0 for padding; past tokens come first",
    POSITION_IDS: "number of tokens without padding before each token",
    SOURCE_MASK: "1 for a position of the source, 0 for padding",
    STATES: "one vector per position",
    LOGITS: "logits (before the softmax) of tokens, classes, tags or symbols",
    SENTENCE: "one vector per text",
    EMBEDDING: "one vector per image or recording; speaker vectors have length 1",
    REBUILT: "reconstructed content of each patch or frame, with mean 0 and variance 1",
    CTC: "logits of symbols for each frame; the last symbol is the blank",
    TRANSITIONS: "score of each tag (column) after each previous tag (row)",
    CROSS: "attention weights of each new token over the source positions",
    CROSS_HEADS: "attention weights of each new token over the source positions, for each head "
    "of the last layer",
}
"""Descriptions of inputs and outputs for `graphs.json`. The keys and values of each layer are
described by `record.OF_LAYERS`."""


@dataclass(frozen=True)
class Graph:
    name: str
    module: nn.Module
    """Module that maps the inputs to the outputs, each in the order of their names."""

    example: dict[str, Tensor]
    """Example inputs by name. Different axes have different sizes, so that `torch.export` can tell
    them apart."""

    axes: dict[str, dict[int, str]]
    """Names of the dynamic axes of each input. Axes with the same name have the same size."""

    outputs: tuple[str, ...]
    max_positions: int | None
    """Maximum number of positions; None means no limit."""

    about: dict[str, str] = field(default_factory=dict)
    """Descriptions by name that replace the general ones in `ABOUT`."""


def graphs_of(model: nn.Module, settings: RunSettings) -> list[Graph]:
    assert settings.model is not None
    extend_positions(model, _table_rows(settings.model))
    if isinstance(model, Seq2Seq):
        reader = SourceGraph(model, inputs_for(model.source_front, "source"))
        return [_reader_graph(reader, ENCODER), _step_graph(TargetStepGraph(model), DECODER)]
    assert isinstance(model, Encoder | Decoder)
    if spec_of(settings).continues:
        assert isinstance(model, Decoder)
        return [_step_graph(TextStepGraph(model), MODEL)]
    return [_reader_graph(ReadoutGraph(model, inputs_for(model.front), settings), MODEL)]


def _table_rows(settings: ModelSettings) -> int:
    """Return the number of rows of computed position tables, which have no natural limit."""
    reach = max(FEWEST_POSITIONS, 2 * settings.max_len)
    if isinstance(settings, ImageEncoderSettings | ImageSeq2SeqSettings):
        return max(reach, settings.image.extra + prod(settings.image.grid))
    if isinstance(settings, AudioEncoderSettings | AudioSeq2SeqSettings):
        return max(reach, 2 * settings.audio.max_rows)
    return reach


class ReadoutGraph(nn.Module):
    """Graph of an encoder. It maps texts or media to hidden states and the outputs of the heads."""

    def __init__(
        self, model: Encoder | Decoder, inputs: GraphInputs, settings: RunSettings
    ) -> None:
        super().__init__()
        self.inputs, self.model = inputs, model
        assert settings.model is not None
        spec, readout = spec_of(settings), readout_of(settings)
        name = LOGITS
        if isinstance(readout, OneVector):
            name = SENTENCE if spec.is_text else EMBEDDING
        self.readouts: dict[str, Readout] = {REBUILT if "rebuild" in model.heads else name: readout}
        if name == LOGITS and spec.is_single_label and spec.compares:
            self.readouts[EMBEDDING] = OneVector(unit=True)
        tags = model.heads["tags"] if spec.is_tagging else None
        self.transitions: Tensor | None = getattr(tags, "transitions", None)
        self.with_mask = spec.writes
        more = (TRANSITIONS,) * (self.transitions is not None) + (MASK,) * self.with_mask
        self.outputs = (STATES, *self.readouts, *more)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        given = self.inputs.batch(*inputs)
        layout = padded_layout(given)
        states = self.model.states(given)
        said = [self._output(readout, states, layout) for readout in self.readouts.values()]
        more = [] if self.transitions is None else [self.transitions]
        more += [layout.real_BT] if self.with_mask else []
        return (layout.grid(states.x_ND), *said, *more)

    def _output(self, readout: Readout, states: HiddenStates, layout: PaddedLayout) -> Tensor:
        found = readout.of(self.model, states).averaged_logits()
        if readout.pools:
            return found
        found = layout.grid(found)
        if REBUILT in self.readouts and isinstance(self.model.front, ImageFront):
            return found[
                :, self.model.front.shape.extra :
            ]  # the first rows are class tokens, not patches
        return found


class TextStepGraph(nn.Module):
    """Graph of a language model. It reads new tokens after cached ones, and returns the logits of
    the next token."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model, self.blocks = model, _blocks(model.stack)
        self.outputs = (LOGITS, *layer_names("present", len(self.blocks)))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        check_equal_sizes(input_ids, position_ids)
        cache = PaddedCache(PaddedLayout.over(attention_mask), _pairs(past))
        layout = PaddedLayout.over(torch.ones_like(input_ids), position_ids)
        x_ND = self.model(input_ids.flatten(), layout, cache)
        return (layout.grid(self.model.scores(x_ND)), *_flat(cache.present))


class SourceGraph(nn.Module):
    """Source graph of an encoder-decoder. It maps sources to hidden states, and to the keys and
    values of each cross-attention layer.

    For media it also returns the mask that separates positions from padding. If the model has a CTC
    head, its logits are returned too.
    """

    def __init__(self, model: Seq2Seq, inputs: GraphInputs) -> None:
        super().__init__()
        self.inputs, self.model = inputs, (model,)  # a tuple: only these are submodules:
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


class TargetStepGraph(nn.Module):
    """Target graph of an encoder-decoder. It reads new output tokens after cached ones."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.model = (model,)  # a tuple: only these are submodules:
        self.parts = nn.ModuleList([model.target_front, model.decoder, model.head])
        self.blocks = _blocks(model.decoder)
        names = [f"decoder.blocks.{n}.cross.weights" for n in range(len(self.blocks))]
        self.aligned, self.last = names[alignment_layer(model)], names[-1]
        # Word timestamps use the CTC head, which is more precise. Without one they need the
        # attention weights of single heads.
        self.by_head = isinstance(model.source_front, AudioFront) and model.ctc is None
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
        check_equal_sizes(input_ids, position_ids)
        cache = PaddedCache(PaddedLayout.over(attention_mask), past, cross)
        layout = PaddedLayout.over(torch.ones_like(input_ids), position_ids)
        # Keys and values of the source are cached, so its hidden states are not needed.
        memory = Memory(torch.empty(0), PaddedLayout.over(encoder_attention_mask))
        with record(model, self.aligned, self.last) as seen:
            x_ND = model.decode(input_ids.flatten(), layout, memory, cache)
        found = [seen[self.aligned][0].mean(1), *seen[self.last] * self.by_head]
        return (layout.grid(model.scores(x_ND)), *_flat(cache.present), *found)


def padded_layout(given: ModelInput) -> PaddedLayout:
    assert isinstance(given.layout, PaddedLayout)
    return given.layout


def _reader_graph(module: ReadoutGraph | SourceGraph, name: str) -> Graph:
    given = module.inputs
    return Graph(
        name, module, given.example, given.axes, module.outputs, _max_positions(module), given.about
    )


def _step_graph(module: TextStepGraph | TargetStepGraph, name: str) -> Graph:
    batch, new, past, source = 2, 3, 4, 5
    example = {
        IDS: torch.ones(batch, new, dtype=torch.long),
        MASK: torch.ones(batch, past + new, dtype=torch.long),
        POSITION_IDS: torch.arange(past, past + new).expand(batch, -1).contiguous(),
    }
    axes = {
        IDS: {0: "batch", 1: "length"},
        MASK: {0: "batch", 1: PAST_AND_LENGTH},
        POSITION_IDS: {0: "batch", 1: "length"},
    }
    if isinstance(module, TargetStepGraph):
        example[SOURCE_MASK] = torch.ones(batch, source, dtype=torch.long)
        axes[SOURCE_MASK] = {0: "batch", 1: "source"}
    kinds = {"past": past} | ({"cross": source} if isinstance(module, TargetStepGraph) else {})
    for kind, length in kinds.items():
        names = iter(layer_names(kind, len(module.blocks)))
        for block in module.blocks:
            attention = block.cross if kind == "cross" else block.attention
            assert attention is not None
            for layer in (next(names), next(names)):  # keys, values
                example[layer] = torch.zeros(batch, attention.n_kv_heads, length, attention.d_head)
                axes[layer] = {0: "batch", 2: "source" if kind == "cross" else "past"}
    return Graph(name, module, example, axes, module.outputs, _max_positions(module))


def _max_positions(module: nn.Module) -> int | None:
    """Return the number of positions in the smallest position table, or None if there is no
    table."""
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
