"""Readout of any model: the hidden states that an output head reads, and the head that computes
logits from them.

Training, evaluation, distillation, R-Drop, inspection, proofs and exported graphs read a model
through the same `Readout`, which follows from the settings of a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from headway.models.parts.ngrams import NgramScores
from headway.models.parts.output_heads import (
    EncoderWithHeads,
    HiddenStates,
    Model,
    ModelInput,
    at_least_fp32,
)
from headway.nn.divergence import (
    Divergence,
    mean_square,
    sigmoid_divergence,
    softmax_divergence,
    square_distance,
)
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of

Scorer = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Read:
    """Outputs of a model for a batch: hidden states, and the head that computes logits from them.
    There is one output (index R) for each token, word, patch or whole sequence."""

    x_RD: Tensor
    """Hidden states that the head reads, one for each output."""

    scores: Scorer
    """Head that maps `x_RD` to logits. Over a vocabulary it is called with a chunk of outputs at a
    time, to save memory."""

    divergence: Divergence = softmax_divergence
    weights_R: Tensor | None = None
    """Weight of each output in the loss; None: all outputs have the same weight."""

    states_ND: Tensor | None = None
    """Hidden states of all positions of the last input. None if the last layer computed only some
    of them."""

    real_N: Tensor | None = None
    """Weight of each position of `states_ND`, for tasks whose distillation compares all hidden
    states instead of `x_RD`."""

    extra_heads: Mapping[str, Read] = field(default_factory=dict)
    """Outputs of other heads, by name: CTC in addition to a decoder, or the distillation token."""

    loss_weight: float = 1.0
    """Weight of the head in the loss."""

    averaged: bool = False
    """Whether predictions average this additional head with the main head. The outputs of both
    heads then belong to the same positions or sequences."""

    small_output: bool = False
    """Whether outputs are labels, not tokens of a vocabulary. All logits are then computed once and
    cached, because a label head may have dropout, so a second computation would change them."""

    ngrams: NgramScores | None = None
    """Logits of the n-gram member for the same outputs, which are averaged with those of the head;
    None for a model without n-grams."""

    cached_log_probs_RC: Tensor | None = None
    """Cached log-probabilities, for callers that need them several times; None: they are not
    cached."""

    @property
    def has_probabilities(self) -> bool:
        """Whether outputs have probabilities. Otherwise they are numbers or vectors."""
        return self.divergence in (softmax_divergence, sigmoid_divergence)

    @property
    def heads(self) -> dict[str, Read]:
        """Outputs of all heads by name; the main head has an empty name."""
        return {"": self, **self.extra_heads}

    @property
    def neural(self) -> Read:
        """Copy without the n-gram member."""
        return replace(self, ngrams=None)

    def select_rows(self, rows_R: Tensor) -> Read:
        """Return a copy with only some outputs, and without additional heads."""
        ngrams = None if self.ngrams is None else self.ngrams.rows(rows_R)
        return replace(self, x_RD=self.x_RD[rows_R], ngrams=ngrams, extra_heads={})

    @property
    def logits_RC(self) -> Tensor:
        """Logits of the head for all outputs, in fp32 or wider. If the model has n-grams, they are
        averaged with those of the n-gram member."""
        return self._cached_logits_RC if self.small_output else self._logits_RC()

    @cached_property
    def _cached_logits_RC(self) -> Tensor:
        return self._logits_RC()

    def _logits_RC(self) -> Tensor:
        scores_RC = at_least_fp32(self.scores(self.x_RD))
        return scores_RC if self.ngrams is None else self.ngrams.blend(scores_RC)

    def averaged_logits(self) -> Tensor:
        """Return the logits of all outputs, averaged over the main head and all heads with
        `averaged`, in fp32 or wider."""
        voting = [self, *(read for read in self.extra_heads.values() if read.averaged)]
        said = [read.logits_RC for read in voting]
        return said[0] if len(said) == 1 else sum(said[1:], start=said[0]) / len(said)

    def log_probs(self) -> Tensor:
        """Return the log-probabilities of this head, without additional heads."""
        if self.cached_log_probs_RC is not None:
            return self.cached_log_probs_RC
        return self.logits_RC.log_softmax(-1)

    def with_weights(self, weights_R: Tensor, real_N: Tensor | None = None) -> Read:
        """Return a copy with these weights of outputs and of hidden states. Additional heads with
        `averaged` get the same output weights."""
        more = {
            name: replace(read, weights_R=weights_R) if read.averaged else read
            for name, read in self.extra_heads.items()
        }
        return replace(self, weights_R=weights_R, real_N=real_N, extra_heads=more)

    def with_cached_log_probs(self) -> Read:
        """Return a copy that caches its log-probabilities, for callers that need them several
        times."""
        logs_RC = self.log_probs()
        more = {name: read.with_cached_log_probs() for name, read in self.extra_heads.items()}
        if self.small_output:  # its logits are cached already
            return self
        return replace(self, cached_log_probs_RC=logs_RC, extra_heads=more)


def as_model(model: nn.Module) -> Model:
    assert isinstance(model, Model), f"{type(model).__name__} is not a headway model"
    return model


def as_encoder_with_heads(model: nn.Module) -> EncoderWithHeads:
    assert isinstance(model, EncoderWithHeads), f"{type(model).__name__} has no named output heads"
    return model


class Readout(ABC):
    """Parameter-free readout, which computes the outputs of a task from a model."""

    pools: ClassVar[bool] = False
    """Whether there is one output per sequence instead of one per position."""

    def read(self, model: nn.Module, *streams: ModelInput, rows_R: Tensor | None = None) -> Read:
        """Run the model once and return its outputs. `rows_R`: positions of the last input to
        predict; None: all."""
        found = as_model(model).states(*streams, first=self.pools)
        read = self.of(model, found, rows_R)
        early = found.layout is not streams[-1].layout
        return replace(read, states_ND=None if early else found.x_ND)

    def reads_like(self, other: Readout) -> bool:
        """Return whether the outputs of two readouts can be compared, as distillation does."""
        return self == other

    @abstractmethod
    def of(self, model: nn.Module, states: HiddenStates, rows_R: Tensor | None = None) -> Read:
        """Return the outputs for hidden states of the last input, which may come from any layer."""


@dataclass(frozen=True)
class OneClass(Readout):
    """Readout of one class for each sequence."""

    pools = True
    scale: float | None = None
    """Factor of cosine logits. If set, logits are this factor times the cosines between the hidden
    state and the class vectors; None: dot products."""

    divergence: Divergence = softmax_divergence
    """Divergence for distillation and R-Drop. It is softmax KL, except for multi-label targets and
    numbers."""

    def of(self, model: nn.Module, states: HiddenStates, rows_R: Tensor | None = None) -> Read:
        model = as_encoder_with_heads(model)
        rows = model.class_rows(states.x_ND, states.layout)
        share = 1.0 / len(rows)
        heads: dict[str, Scorer] = {name: model.head_named(name) for name in rows}
        if self.scale is not None:
            heads["classes"] = model.cosine_head(self.scale)
        more = {
            name: Read(
                x_BD,
                heads[name],
                self.divergence,
                loss_weight=share,
                averaged=True,
                small_output=True,
            )
            for name, x_BD in rows.items()
            if name != "classes"
        }
        own = rows["classes"], heads["classes"], self.divergence
        return Read(
            *own, loss_weight=share, extra_heads=more, small_output=True, ngrams=states.ngrams
        )


@dataclass(frozen=True)
class OneVector(Readout):
    """Readout of one vector for each sequence."""

    pools = True
    unit: bool = False
    """Whether the output vectors are normalized to length 1. The hidden states in `x_RD` are not
    normalized."""

    def of(self, model: nn.Module, states: HiddenStates, rows_R: Tensor | None = None) -> Read:
        x_BD = as_encoder_with_heads(model).pooled(states.x_ND, states.layout)
        if self.unit:
            return Read(x_BD, at_length_one, divergence=square_distance, small_output=True)
        return Read(x_BD, identity, divergence=mean_square, small_output=True)


def at_length_one(x_RD: Tensor) -> Tensor:
    return F.normalize(at_least_fp32(x_RD), dim=-1)


def identity(x_RD: Tensor) -> Tensor:
    return x_RD


@dataclass(frozen=True)
class EachRow(Readout):
    """Readout of one output for each requested position: words, tags, CTC symbols or patches."""

    head: str
    ctc: float | None = None
    """Loss weight of a second head, CTC, on the output of the encoder; None: no second head."""

    def reads_like(self, other: Readout) -> bool:
        return isinstance(other, EachRow) and self.head == other.head

    def of(self, model: nn.Module, states: HiddenStates, rows_R: Tensor | None = None) -> Read:
        model, memory, ngrams = as_model(model), states.memory, states.ngrams
        x_RD = states.x_ND if rows_R is None else states.x_ND.index_select(0, rows_R)
        if ngrams is not None and rows_R is not None:
            ngrams = ngrams.rows(rows_R)
        apart = mean_square if self.head == "rebuild" else softmax_divergence
        if self.ctc is None or memory is None:
            few = self.head in ("tags", "rebuild")
            head = model.head_named(self.head)
            return Read(x_RD, head, divergence=apart, small_output=few, ngrams=ngrams)
        heard = Read(memory.x_MD, model.head_named("ctc"), loss_weight=self.ctc)
        head = model.head_named(self.head)
        return Read(
            x_RD, head, divergence=apart, loss_weight=1.0 - self.ctc, extra_heads={"ctc": heard}
        )


DIVERGENCES: dict[str, Divergence] = {"labels": sigmoid_divergence, "number": mean_square}
"""Divergences for outputs other than single classes, by `Spec.answers`."""


def readout_of(settings: RunSettings) -> Readout:
    """Return the readout for the settings of a run."""
    spec, has = spec_of(settings), getattr(settings.model, "heads", ())
    if spec.is_embedding:
        return OneVector(unit=settings.embed.normalise)
    if spec.heads and not set(spec.heads) & set(has):  # an imported model without heads
        return OneVector()
    if "classes" in spec.heads:
        scale = settings.identify.scale if settings.identify.margin else None
        return OneClass(scale, DIVERGENCES.get(spec.answers, softmax_divergence))
    if spec.heads:
        return EachRow(spec.heads[0])
    if "ctc" in has:
        return EachRow("ctc")
    ctc = getattr(settings.model, "ctc", False) and settings.transcribe.ctc
    return EachRow("words", ctc or None)
