"""One reading through the model: vectors, and scores for everything that the model answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.hidden_rows import some_hidden
from headway.inside.capture.interventions import NO_CHANGE, Change, gated, hiding
from headway.inside.capture.streams import Reading
from headway.models.parts.heads import Input
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.layout import Layout
from headway.tasks.intake import Gone
from headway.tasks.items import Batch
from headway.tasks.opened import Opened
from headway.tasks.read import OneVector, Read, asked, bernoulli, mean_square, readout_of

TOGETHER = 2048
"""Tokens that pass the model side by side where one reading passes it again and again."""

__all__ = ["NO_CHANGE", "Change", "Said", "read_out", "say", "say_each", "scores_in", "vectors"]


def log_softmax(scores_RC: Tensor) -> Tensor:
    return scores_RC.log_softmax(-1)


@dataclass(frozen=True)
class Said:
    x_ND: Tensor
    """Vectors of the last stream, behind the final norm."""

    scores_RC: Tensor
    """A row for each output of the reading: scores of words, classes or tags; or the vector of
    the text, not normalised."""

    reading: Reading
    targets_RE: Tensor | None = None
    """What stood where rows are hidden."""

    logs: Callable[[Tensor], Tensor] = log_softmax
    """Log-probabilities of all scores."""

    @property
    def log_probs_R(self) -> Tensor:
        """Of what each output chose. Of a vector: how far it goes in the direction of the reading,
        so that gradients and changes say what the vector hangs on. Of what is rebuilt: minus the
        mean squared error, which is what training lessens."""
        if self.targets_RE is not None:
            return -mean_square(self.scores_RC, self.targets_RE, 1.0)
        if self.reading.direction:
            return self.scores_RC @ self.scores_RC.new_tensor(self.reading.direction)
        ids_R1 = torch.tensor([output.id for output in self.reading.outputs])[:, None]
        return self.logs(self.scores_RC.float()).gather(1, ids_R1).squeeze(1)


def say(
    run: Opened,
    reading: Reading,
    change: Change = NO_CHANGE,
    *,
    fronts: Mapping[str, Tensor] | None = None,
) -> Said:
    """What the model says; with gradients where they are on.

    `fronts` replaces what the front of a stack hands over (a row a token), by the stack's name.
    """
    [said] = say_each(run, reading, [change], fronts=fronts)
    return said


def say_each(
    run: Opened,
    reading: Reading,
    changes: Sequence[Change],
    *,
    fronts: Mapping[str, Tensor] | None = None,
) -> list[Said]:
    """What the model says with each of these changes: copies of the reading, side by side in one
    pass. They may differ in what is hidden, not in the heads that are off.

    `fronts` has the rows of all copies, one copy behind another.
    """
    lengths = {name: len(stream.ids) for name, stream in reading.streams.items()}
    for change in changes:
        change.check(lengths)
    [off] = {change.off for change in changes}
    with gated(run.model, Change(off=off)), _given(run.model, fronts or {}):
        hidden = _hidden(run, reading, len(changes))
        x_ND, layout = vectors(run.model, reading, changes, hidden)
        read = read_out(run, reading, x_ND, layout)
        scores_RC, logs = scores_in(run, read), logs_in(read)
    each = list(zip(*(x.tensor_split(len(changes)) for x in (x_ND, scores_RC)), strict=True))
    if hidden is None:
        return [Said(x_TD, its_RC, reading, logs=logs) for x_TD, its_RC in each]
    right = hidden.targets.aims.tensor_split(len(changes))
    return [
        Said(x_TD, its_RC, reading, its_RE)
        for (x_TD, its_RC), its_RE in zip(each, right, strict=True)
    ]


def _hidden(run: Opened, reading: Reading, n: int) -> Batch[Gone] | None:
    """Copies of media that have hidden rows, as the model sees them."""
    if reading.media is None or reading.hides is None:
        return None
    return some_hidden(run, [reading.media], np.zeros(n, np.int64), reading.hides)


def vectors(
    model: nn.Module,
    reading: Reading,
    changes: Sequence[Change] = (NO_CHANGE,),
    hidden: Batch[Gone] | None = None,
) -> tuple[Tensor, Layout]:
    """Those of the last stream, a copy for each change, and where they lie."""
    n = len(changes)
    flat = {name: _input(model, reading, name, n, hidden) for name in reading.streams}
    causal = {
        part.stream: part.blocks[0].attention.scope.causal for part in Anatomy.of(model).stacks
    }
    unseen = {name: [change.places(name) for change in changes] for name in reading.streams}
    layouts = {
        name: _layout(len(stream), unseen[name], causal=causal[name])
        for name, stream in reading.streams.items()
    }
    if Anatomy.of(model).is_pair:
        model = cast(Seq2Seq, model)
        memory = model.encode(flat["source"], layouts["source"])
        n_target, n_source = (len(reading.streams[name]) for name in ("target", "source"))
        lies = replace(layouts["source"], tree=None, memo={})
        if any(unseen["source"]):
            tree = hiding(n_target, n_source, unseen["source"], causal=False, own=False)
            lies = replace(lies, tree=tree)
        x_ND = model.decode(flat["target"], layouts["target"], Memory(memory.x_MD, lies))
        return x_ND, layouts["target"]
    [(name, layout)] = layouts.items()
    segments_N = torch.tensor(reading.segments).repeat(n) if reading.segments else None
    return asked(model).states(Input(flat[name], layout, segments_N)).x_ND, layout


def _input(
    model: nn.Module, reading: Reading, stream: str, n: int, hidden: Batch[Gone] | None
) -> Any:
    """What the front of a stream takes, `n` copies: tokens, or the picture or recording."""
    if hidden is not None:
        return hidden.streams[0].values
    if reading.media is None or stream == "target":
        return torch.tensor(reading.streams[stream].ids).repeat(n)
    return Anatomy.of(model).stacks[0].front.collate([reading.media.item] * n)[0]


def read_out(run: Opened, reading: Reading, x_ND: Tensor, layout: Layout) -> Read:
    """A row for every output, from vectors of the last stream. Of several copies of the reading,
    one behind another."""
    readout, rows_R = readout_of(run.settings), None
    if not readout.pools:
        row_R = torch.tensor([output.row for output in reading.outputs])
        rows_R = (layout.starts_B[:, None] + row_R).flatten()
    return readout.of(run.model, x_ND, layout, rows_R)


def scores_in(run: Opened, read: Read) -> Tensor:
    """Those of words, classes or tags; what is rebuilt; or vectors, not normalised."""
    return read.x_RD if gives_vector(run) else read.answers()


def logs_in(read: Read) -> Callable[[Tensor], Tensor]:
    """How log-probabilities are made of scores: one of all is right, or each may be."""
    return F.logsigmoid if read.apart is bernoulli else log_softmax


def gives_vector(run: Opened) -> bool:
    """Whether the answer is one vector, which nothing is said about."""
    return isinstance(readout_of(run.settings), OneVector)


def _layout(length: int, hidden: list[list[int]], *, causal: bool) -> Layout:
    layout = Layout.of([length] * len(hidden))
    if not any(hidden):
        return layout
    return replace(layout, tree=hiding(length, length, hidden, causal=causal, own=True))


@contextmanager
def _given(model: nn.Module, fronts: Mapping[str, Tensor]) -> Iterator[None]:
    anatomy = Anatomy.of(model)
    with ExitStack() as stack:
        for name, x_ND in fronts.items():
            hook = anatomy.stack(name).front.register_forward_hook(_instead(x_ND))
            stack.callback(hook.remove)
        yield


def _instead(x_ND: Tensor) -> Any:
    return lambda module, given, out: x_ND
