"""What a model answers to many passages, and how much worse it answers when its states change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.inside.capture.forward import gives_vector
from headway.inside.capture.states import Batch, vectors_of
from headway.tasks.opened import Opened
from headway.tasks.read import Read, Readout, readout_of

AT_ONCE = 512
"""Rows whose word scores are held."""


@dataclass(frozen=True)
class Answers:
    """Of one pass. Rows are tokens, or texts for classes and vectors."""

    owner_R: Tensor
    """The number of the passage in the batch that each row belongs to."""

    place_R: Tensor
    """The place in the last stream that it is read from; -1: the whole text."""

    read: Read
    target_R: Tensor | None
    """The tokens that come, where the text says it, or what is to be rebuilt (R E). None: the
    model's own answer counts."""

    is_vector: bool = False
    """Whether what is read is all there is."""


def answers(run: Opened, batch: Batch) -> Answers:
    """One pass of the batch, inside whatever is done to the model.

    Who writes says the next token, who fills gaps the token itself; others say labels, or give the
    vector of the text.
    """
    model, readout, spec = run.model, readout_of(run.settings), run.spec
    x_ND = vectors_of(model, batch)
    layout = batch.streams[batch.last].layout
    lengths = torch.tensor(layout.known_lengths(), device=x_ND.device)
    owner_N = torch.arange(len(lengths), device=x_ND.device).repeat_interleave(lengths)
    if readout.pools:
        whole_B = torch.arange(len(lengths), device=x_ND.device)
        read = readout.of(model, x_ND, layout)
        whole = torch.full_like(whole_B, -1)
        return Answers(whole_B, whole, read, None, gives_vector(run))
    place_N = layout.positions_N
    if batch.hidden is not None:
        rows_R = batch.hidden.rows_R
        assert rows_R is not None
        read = readout.of(model, x_ND, layout, rows_R)
        return Answers(owner_N[rows_R], place_N[rows_R], read, batch.hidden.targets.aims)
    if spec.answers == "gaps" and any(passage.gaps for passage in batch.passages):
        return _gaps(readout, model, batch, x_ND)
    target_N: Tensor | None = None
    ids_N = batch.ids(batch.last)
    if batch.passages[0].is_media(batch.last):  # every row says something, and nobody said what
        asked_N = batch.ordinary(run, batch.last)
    elif spec.writes:
        asked_N = torch.ones_like(place_N, dtype=torch.bool)
        goes_on_N = place_N + 1 < lengths[owner_N]
        target_N = ids_N.roll(-1)
        if spec.continues:
            asked_N = goes_on_N
        else:  # the end is what comes behind the last token
            target_N = torch.where(goes_on_N, target_N, run.vocab.target.eos)
    else:
        asked_N = (place_N > 0) & (place_N + 1 < lengths[owner_N])
        target_N = ids_N if spec.answers == "gaps" else None
    rows_R = torch.nonzero(asked_N).flatten()
    read = readout.of(model, x_ND, layout, rows_R)
    target_R = None if target_N is None else target_N[rows_R]
    return Answers(owner_N[rows_R], place_N[rows_R], read, target_R)


def _gaps(readout: Readout, model: nn.Module, batch: Batch, x_ND: Tensor) -> Answers:
    """What stood at the masked places."""
    layout = batch.streams[batch.last].layout
    starts = layout.starts_B.tolist()
    asked = [
        (number, place, starts[number] + place, id)
        for number, passage in enumerate(batch.passages)
        for place, id in passage.gaps.items()
    ]
    columns = torch.tensor(asked, device=x_ND.device).reshape(-1, 4)
    read = readout.of(model, x_ND, layout, columns[:, 2])
    return Answers(columns[:, 0], columns[:, 1], read, columns[:, 3])


def unit(run: Opened) -> str:
    """Of losses: log-probabilities, angles between vectors, errors of what is rebuilt."""
    if gives_vector(run):
        return "1 − cosine"
    numbers = run.spec.answers == "number" or not run.spec.is_likely
    return "mean square" if numbers else "nats"


@torch.no_grad()
def losses(clean: Answers, changed: Answers) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the loss before, the loss behind the change, and how far the answer moved: the
    KL divergence in nats. For vectors it is 1 − cosine with the vector before, in all of them; for
    what is rebuilt and for numbers, mean squares."""
    old, new = clean.read, changed.read
    if not old.is_likely and not clean.is_vector:
        was_RE, is_RE = old.answers(), new.answers()
        right_RE = was_RE if clean.target_R is None else clean.target_R
        pairs = ((was_RE, right_RE), (is_RE, right_RE), (is_RE, was_RE))
        errors = [old.apart(one, other, 1.0) for one, other in pairs]
        return errors[0], errors[1], errors[2]
    if not old.is_likely:
        away_R = 1 - F.cosine_similarity(old.x_RD, new.x_RD, dim=-1)
        return torch.zeros_like(away_R), away_R, away_R
    parts = []
    for rows in torch.arange(len(old.x_RD), device=old.x_RD.device).split(AT_ONCE):
        old_RC = old.scores(old.x_RD[rows]).float().log_softmax(-1)
        new_RC = new.scores(new.x_RD[rows]).float().log_softmax(-1)
        target_R = old_RC.argmax(-1) if clean.target_R is None else clean.target_R[rows]
        kl_R = (old_RC.exp() * (old_RC - new_RC)).sum(-1)
        said = [-logs.gather(1, target_R[:, None]).squeeze(1) for logs in (old_RC, new_RC)]
        parts.append((*said, kl_R))
    if not parts:
        empty = old.x_RD.new_zeros(0)
        return empty, empty, empty
    before, behind, kl = (torch.cat(part) for part in zip(*parts, strict=True))
    return before, behind, kl
