"""What is recorded for another runtime: modules with named inputs and outputs, and their axes.

An encoder is one graph. A language model is one too: it reads new tokens behind the keys and values
of earlier ones, so that it takes a whole prompt (with an empty past) as well as single steps. A
translator is two: one reads the source, one takes steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config.run import RunSettings
from headway.decode.steps import alignment_layer
from headway.interop.plain.body import Body, KeysValues, Source, keys_of
from headway.interop.plain.positions import hidden
from headway.models.decoder import Decoder
from headway.models.encoder import Encoder
from headway.models.parts.heads import LabelHead, Pooler
from headway.models.seq2seq import Seq2Seq

IDS, MASK, PLACES, SEGMENTS = "input_ids", "attention_mask", "position_ids", "token_type_ids"
SOURCE_MASK = "encoder_attention_mask"
STATES, LOGITS, SENTENCE = "last_hidden_state", "logits", "sentence_embedding"
TRANSITIONS, CROSS = "transitions", "cross_attention"
READER, WRITER, ALONE = "encoder", "decoder", "model"
"""Names of the graphs, and of their files."""

FEWEST_POSITIONS = 1024

PAST_AND_LENGTH = "past_and_length"
"""The one axis whose size is the sum of two others."""


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
    """The most tokens of a text that it reads, if there is an end."""

    def facts(self) -> dict[str, Any]:
        """For people who call it by themselves: what goes in, what comes out."""
        inputs = [
            {
                "name": name,
                "type": str(x.dtype).removeprefix("torch."),
                "shape": [self.axes[name].get(axis, size) for axis, size in enumerate(x.shape)],
            }
            for name, x in self.example.items()
        ]
        facts = {"graph": self.name, "inputs": inputs, "outputs": list(self.outputs)}
        return facts | {"max_positions": self.reach}


def graphs_of(model: nn.Module, settings: RunSettings) -> list[Graph]:
    assert settings.model is not None
    reach = max(FEWEST_POSITIONS, 2 * settings.model.max_len)
    if isinstance(model, Seq2Seq):
        source = SourceReader(model, reach)
        return [_reader(source), _writer(TargetSteps(model, reach), WRITER)]
    assert isinstance(model, Encoder | Decoder)
    if settings.task == "complete":
        assert isinstance(model, Decoder)
        return [_writer(TextSteps(model, reach), ALONE)]
    return [_encoder(TextReader(model, reach, settings.task, settings.embed.normalise))]


class TextReader(nn.Module):
    """Texts in; a vector a token and the answer of a head out."""

    def __init__(self, model: Encoder | Decoder, reach: int, task: str, normalise: bool) -> None:
        super().__init__()
        self.body = Body(model.front, model.stack, reach)  # type: ignore[arg-type]
        self.model, self.task, self.normalise = model, task, normalise
        tags = model.head_named("tags") if task == "tag" else None
        self.transitions = tags.transitions if isinstance(tags, LabelHead) else None

    @property
    def outputs(self) -> tuple[str, ...]:
        more = () if self.transitions is None else (TRANSITIONS,)
        return (STATES, SENTENCE if self.task == "embed" else LOGITS, *more)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        positions_BT = (attention_mask.cumsum(1) - 1).clamp(min=0)
        read = self.body(input_ids, positions_BT, attention_mask, segments_BT=token_type_ids)
        x_BTD = read.x_ND.unflatten(0, input_ids.shape)
        answer = self._answer(read.x_ND, x_BTD, attention_mask)
        more = () if self.transitions is None else (self.transitions,)
        return (x_BTD, answer, *more)

    def _answer(self, x_ND: Tensor, x_BTD: Tensor, real_BT: Tensor) -> Tensor:
        if self.task == "fill":
            return self.model.scores(x_ND).unflatten(0, real_BT.shape)
        if self.task == "tag":
            return self.model.tags(x_ND).unflatten(0, real_BT.shape)
        pooled_BD = self._pooled(x_BTD, real_BT)
        if self.task == "classify":
            return self.model.head_named("classes")(pooled_BD)
        return F.normalize(pooled_BD, dim=-1) if self.normalise else pooled_BD

    def _pooled(self, x_BTD: Tensor, real_BT: Tensor) -> Tensor:
        """As the models' own `pooled`."""
        count_BT, whole_B1 = real_BT.cumsum(1), real_BT.sum(1, keepdim=True)
        if self.model.pooling == "mean":
            share_BT = real_BT.float() / whole_B1.clamp(min=1)
        else:
            wanted = 1 if self.model.pooling == "first" else whole_B1
            share_BT = ((count_BT == wanted) & (real_BT > 0)).float()
        pooled_BD = (share_BT[:, None] @ x_BTD).squeeze(1)
        if "pooled" not in self.model.heads or self.model.pooling != "first":
            return pooled_BD
        pooler = self.model.heads["pooled"]
        assert isinstance(pooler, Pooler)
        return pooler.activation(pooler.dense(pooled_BD))


class TextSteps(nn.Module):
    """New tokens of a text behind earlier ones; scores of the next ones."""

    def __init__(self, model: Decoder, reach: int) -> None:
        super().__init__()
        self.body = Body(model.front, model.stack, reach)  # type: ignore[arg-type]
        self.head, self.outputs = model.words, (LOGITS, *_names("present", self.body))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        read = self.body(input_ids, position_ids, attention_mask, past=_pairs(past))
        logits_BTV = self.head(read.x_ND).unflatten(0, input_ids.shape)
        return (logits_BTV, *_flat(read.present))


class SourceReader(nn.Module):
    """Sources in; their vectors, and keys and values for each layer of cross attention out."""

    def __init__(self, model: Seq2Seq, reach: int) -> None:
        super().__init__()
        self.body = Body(model.source_front, model.encoder, reach)  # type: ignore[arg-type]
        self.crosses = nn.ModuleList(block.cross for block in model.decoder.blocks)  # type: ignore
        self.outputs = (STATES, *layer_names("cross", len(self.crosses)))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        positions_BT = (attention_mask.cumsum(1) - 1).clamp(min=0)
        x_ND = self.body(input_ids, positions_BT, attention_mask).x_ND
        size = (input_ids.shape[0], input_ids.shape[1])
        made = [keys_of(cross, x_ND, size) for cross in self.crosses]  # type: ignore[arg-type]
        return (x_ND.unflatten(0, size), *_flat(made))


class TargetSteps(nn.Module):
    """New tokens of outputs behind earlier ones, given their sources."""

    def __init__(self, model: Seq2Seq, reach: int) -> None:
        super().__init__()
        self.body = Body(model.target_front, model.decoder, reach)  # type: ignore[arg-type]
        self.head, self.aligned = model.head, alignment_layer(model)
        self.outputs = (LOGITS, *_names("present", self.body), CROSS)

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
        read = self.body(
            input_ids,
            position_ids,
            attention_mask,
            past=_pairs(past_and_cross[:half]),
            source=source,
        )
        logits_BTV = self.head(read.x_ND).unflatten(0, input_ids.shape)
        return (logits_BTV, *_flat(read.present), read.crossed[self.aligned].mean(1))


def _encoder(module: TextReader) -> Graph:
    names = [IDS, MASK]
    if module.body.front.segments is not None:
        names.append(SEGMENTS)
    example = {name: torch.full((2, 3), int(name == MASK)) for name in names}
    axes = {name: {0: "batch", 1: "length"} for name in names}
    return Graph(ALONE, module, example, axes, module.outputs, module.body.reach)


def _reader(module: SourceReader) -> Graph:
    example = {name: torch.ones(2, 5, dtype=torch.long) for name in (IDS, MASK)}
    axes = {name: {0: "batch", 1: "source"} for name in (IDS, MASK)}
    return Graph(READER, module, example, axes, module.outputs, module.body.reach)


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
    return Graph(name, module, example, axes, module.outputs, module.body.reach)


def _names(kind: str, body: Body) -> list[str]:
    return layer_names(kind, len(body.blocks))


def layer_names(kind: str, n_layers: int) -> list[str]:
    return [f"{kind}.{number}.{part}" for number in range(n_layers) for part in ("key", "value")]


def _pairs(flat: Sequence[Tensor]) -> list[KeysValues]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _flat(pairs: Sequence[KeysValues]) -> list[Tensor]:
    return [tensor for pair in pairs for tensor in pair]
