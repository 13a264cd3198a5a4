"""One way to ask any model: vectors, and apart from them the head that makes answers of them.

Training, evaluation, distillation, R-Drop, looking inside, proofs and exported graphs read a model
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

from headway.models.parts.ngrams import Vote
from headway.models.parts.output_heads import Input, Model, Readable, States, wide
from headway.settings.run import RunSettings
from headway.tasks.specs import spec_of

Scorer = Callable[[Tensor], Tensor]
Apart = Callable[[Tensor, Tensor, float], Tensor]
"""How far answers (R C) are from those of a teacher (R C) at a temperature, for each row."""


def divergence(scores_RC: Tensor, aims_RC: Tensor, temperature: float) -> Tensor:
    """T² · KL(aims ‖ scores) of their probabilities at temperature T."""
    logs_RC = (scores_RC.float() / temperature).log_softmax(-1)
    aims_RC = (aims_RC.float() / temperature).log_softmax(-1)
    return (aims_RC.exp() * (aims_RC - logs_RC)).sum(-1) * temperature**2


def mean_square(values_RE: Tensor, aims_RE: Tensor, _: float) -> Tensor:
    """Of numbers, which no temperature changes."""
    return (values_RE.float() - aims_RE.float()).square().mean(-1)


def bernoulli(scores_RC: Tensor, aims_RC: Tensor, temperature: float) -> Tensor:
    """As `divergence` of labels that are right or not, each for itself: their mean."""
    x_RC, y_RC = scores_RC.float() / temperature, aims_RC.float() / temperature
    yes_RC = y_RC.sigmoid() * (F.logsigmoid(y_RC) - F.logsigmoid(x_RC))
    no_RC = (-y_RC).sigmoid() * (F.logsigmoid(-y_RC) - F.logsigmoid(-x_RC))
    return (yes_RC + no_RC).mean(-1) * temperature**2


def square_distance(values_RD: Tensor, aims_RD: Tensor, _: float) -> Tensor:
    """Of vectors of length one: twice what their cosine lacks."""
    return (values_RD.float() - aims_RD.float()).square().sum(-1)


@dataclass(frozen=True)
class Read:
    """What a model makes of a batch. Rows are tokens, words, patches, or whole sequences."""

    x_RD: Tensor
    """What the head reads."""

    scores: Scorer
    """The head itself: rows of `x_RD` to rows of answers. Where these are a vocabulary it is called
    with some rows at a time."""

    apart: Apart = divergence
    weights_R: Tensor | None = None
    """How much each row counts; None: all the same."""

    states_ND: Tensor | None = None
    """Of all rows of the last stream; None where the last layer ended early."""

    real_N: Tensor | None = None
    """How much each of these counts, where a task compares all of them and not `x_RD`."""

    more: Mapping[str, Read] = field(default_factory=dict)
    """Other heads: CTC beside a decoder, the distillation token."""

    share: float = 1.0
    """Of this head in the loss."""

    votes: bool = False
    """Of one in `more`: it answers for the same rows, and the answer is the mean."""

    few: bool = False
    """Answers are labels, not a vocabulary: all scores are made once and held. A head of labels
    may draw random numbers, so making them again would make others."""

    ngrams: Vote | None = None
    """The model's n-gram member about the same rows: answers are the mean of both."""

    held_RC: Tensor | None = None
    """The log-probabilities, where someone needs them several times and has room for all."""

    @property
    def is_likely(self) -> bool:
        """Whether answers have probabilities; else they are numbers."""
        return self.apart in (divergence, bernoulli)

    @property
    def heads(self) -> dict[str, Read]:
        """All of them, the first by no name."""
        return {"": self, **self.more}

    @property
    def neural(self) -> Read:
        """This read-out without the n-gram member."""
        return replace(self, ngrams=None)

    def only(self, rows_R: Tensor) -> Read:
        """The read-out of some rows by this head."""
        ngrams = None if self.ngrams is None else self.ngrams.rows(rows_R)
        return replace(self, x_RD=self.x_RD[rows_R], ngrams=ngrams, more={})

    @property
    def said_RC(self) -> Tensor:
        """Scores of all rows by this head, averaged with those of the n-gram member if the model
        has one; in fp32 or wider."""
        return self._held_scores_RC if self.few else self._scores_RC()

    @cached_property
    def _held_scores_RC(self) -> Tensor:
        return self._scores_RC()

    def _scores_RC(self) -> Tensor:
        scores_RC = wide(self.scores(self.x_RD))
        return scores_RC if self.ngrams is None else self.ngrams.averaged(scores_RC)

    def answers(self) -> Tensor:
        """Of all rows, in fp32."""
        voting = [self, *(read for read in self.more.values() if read.votes)]
        said = [read.said_RC for read in voting]
        return said[0] if len(said) == 1 else sum(said[1:], start=said[0]) / len(said)

    def log_probs(self) -> Tensor:
        """Of this head alone."""
        if self.held_RC is not None:
            return self.held_RC
        return self.said_RC.log_softmax(-1)

    def weighed(self, weights_R: Tensor, real_N: Tensor | None = None) -> Read:
        """With a weight for each row, of all heads that answer for them, and for each state."""
        more = {
            name: replace(read, weights_R=weights_R) if read.votes else read
            for name, read in self.more.items()
        }
        return replace(self, weights_R=weights_R, real_N=real_N, more=more)

    def held(self) -> Read:
        """The same with all log-probabilities at hand."""
        logs_RC = self.log_probs()
        more = {name: read.held() for name, read in self.more.items()}
        if self.few:  # what its head has drawn stays drawn
            return self
        return replace(self, held_RC=logs_RC, more=more)


def as_model(model: nn.Module) -> Model:
    assert isinstance(model, Model), f"{type(model).__name__} is not a headway model"
    return model


def readable(model: nn.Module) -> Readable:
    assert isinstance(model, Readable), f"{type(model).__name__} has no named output heads"
    return model


class Readout(ABC):
    """How the answers of a task are read out of a model. It holds no model."""

    pools: ClassVar[bool] = False
    """Whether there is one answer for each sequence, not one for each row."""

    def read(self, model: nn.Module, *streams: Input, rows_R: Tensor | None = None) -> Read:
        """One pass. `rows_R`: those that are asked, of the last stream; None: all."""
        found = as_model(model).states(*streams, first=self.pools)
        read = self.of(model, found, rows_R)
        early = found.layout is not streams[-1].layout
        return replace(read, states_ND=None if early else found.x_ND)

    def reads_like(self, other: Readout) -> bool:
        """Whether answers of both can be compared."""
        return self == other

    @abstractmethod
    def of(self, model: nn.Module, states: States, rows_R: Tensor | None = None) -> Read:
        """Read answers from hidden states of the last stream, whichever layer made them."""


@dataclass(frozen=True)
class OneClass(Readout):
    """One class for each sequence."""

    pools = True
    scale: float | None = None
    """Classes are told apart by direction alone, and cosines are multiplied by this."""

    apart: Apart = divergence
    """Of several labels, or of a number, another."""

    def of(self, model: nn.Module, states: States, rows_R: Tensor | None = None) -> Read:
        model = readable(model)
        rows = model.class_rows(states.x_ND, states.layout)
        share = 1.0 / len(rows)
        heads: dict[str, Scorer] = {name: model.head_named(name) for name in rows}
        if self.scale is not None:
            heads["classes"] = model.angles(self.scale)
        more = {
            name: Read(x_BD, heads[name], self.apart, share=share, votes=True, few=True)
            for name, x_BD in rows.items()
            if name != "classes"
        }
        own = rows["classes"], heads["classes"], self.apart
        return Read(*own, share=share, more=more, few=True, ngrams=states.ngrams)


@dataclass(frozen=True)
class OneVector(Readout):
    """One vector for each sequence."""

    pools = True
    unit: bool = False
    """Answers are made as long as one; what they are made of, `x_RD`, is not."""

    def of(self, model: nn.Module, states: States, rows_R: Tensor | None = None) -> Read:
        x_BD = readable(model).pooled(states.x_ND, states.layout)
        if self.unit:
            return Read(x_BD, at_length_one, apart=square_distance, few=True)
        return Read(x_BD, as_they_are, apart=mean_square, few=True)


def at_length_one(x_RD: Tensor) -> Tensor:
    return F.normalize(wide(x_RD), dim=-1)


def as_they_are(x_RD: Tensor) -> Tensor:
    return x_RD


@dataclass(frozen=True)
class EachRow(Readout):
    """An answer for each row that is asked: words, tags, symbols of CTC, patches."""

    head: str
    ctc: float | None = None
    """The share in the loss of a second head, which hears symbols in the rows of the memory."""

    def reads_like(self, other: Readout) -> bool:
        return isinstance(other, EachRow) and self.head == other.head

    def of(self, model: nn.Module, states: States, rows_R: Tensor | None = None) -> Read:
        model, memory, ngrams = as_model(model), states.memory, states.ngrams
        x_RD = states.x_ND if rows_R is None else states.x_ND.index_select(0, rows_R)
        if ngrams is not None and rows_R is not None:
            ngrams = ngrams.rows(rows_R)
        apart = mean_square if self.head == "rebuild" else divergence
        if self.ctc is None or memory is None:
            few = self.head in ("tags", "rebuild")
            head = model.head_named(self.head)
            return Read(x_RD, head, apart=apart, few=few, ngrams=ngrams)
        heard = Read(memory.x_MD, model.head_named("ctc"), share=self.ctc)
        head = model.head_named(self.head)
        return Read(x_RD, head, apart=apart, share=1.0 - self.ctc, more={"ctc": heard})


APART: dict[str, Apart] = {"labels": bernoulli, "number": mean_square}
"""Of answers that are no class."""


def readout_of(settings: RunSettings) -> Readout:
    """How the model of a run is asked."""
    spec, has = spec_of(settings), getattr(settings.model, "heads", ())
    if spec.answers == "vector":
        return OneVector(unit=settings.embed.normalise)
    if spec.heads and not set(spec.heads) & set(has):  # a body alone, of an import
        return OneVector()
    if "classes" in spec.heads:
        scale = settings.identify.scale if settings.identify.margin else None
        return OneClass(scale, APART.get(spec.answers, divergence))
    if spec.heads:
        return EachRow(spec.heads[0])
    if "ctc" in has:
        return EachRow("ctc")
    ctc = getattr(settings.model, "ctc", False) and settings.transcribe.ctc
    return EachRow("words", ctc or None)
