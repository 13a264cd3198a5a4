"""What a model answers to many passages, and how much worse it answers when its states change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.inside.capture.forward import Batch, gives_vector, read_out, states_behind
from headway.tasks.opened import Opened
from headway.tasks.readout import Read, bernoulli, readout_of

AT_ONCE = 512
"""Rows whose word scores are held."""


@dataclass(frozen=True)
class Answers:
    """Of one pass. Rows are tokens, or texts for classes and vectors."""

    owner_R: Tensor
    """The number of the reading in the batch that each row belongs to."""

    place_R: Tensor
    """The place in the last stream that it is read from; -1: the whole text."""

    read: Read
    target_R: Tensor | None
    """The tokens that come, where the text says it, or what is to be rebuilt (R E). None: the
    model's own answer counts."""

    is_vector: bool = False
    """Whether what is read is all there is."""


def answers(run: Opened, batch: Batch) -> Answers:
    """One pass of the batch, inside whatever is done to the model."""
    states = states_behind(run.model, batch)
    read, layout, x_ND = read_out(run, batch, states), batch.layout, states.x_ND
    lengths = torch.tensor(layout.known_lengths(), device=x_ND.device)
    each_B = torch.arange(len(lengths), device=x_ND.device)
    if readout_of(run.settings).pools:
        return Answers(each_B, torch.full_like(each_B, -1), read, None, gives_vector(run))
    rows_R = batch.rows()
    place_R, owner_R = layout.positions_N[rows_R], each_B.repeat_interleave(lengths)[rows_R]
    if batch.hidden is not None:
        return Answers(owner_R, place_R, read, batch.hidden.targets.aims)
    said_R = torch.tensor([output.id for one in batch.readings for output in one.outputs])
    known = bool((said_R >= 0).all())
    return Answers(owner_R, place_R, read, said_R.to(x_ND.device) if known else None)


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
        old_RC, new_RC = (one.only(rows).said_RC for one in (old, new))
        moved_R = old.apart(new_RC, old_RC, 1.0)
        if old.apart is bernoulli:  # its own answer: of each label whether it is right
            own_RC = (old_RC > 0).float()
            said = [F.binary_cross_entropy_with_logits(one_RC, own_RC, reduction="none").mean(-1)
                    for one_RC in (old_RC, new_RC)]  # fmt: skip
        else:
            target_R = old_RC.argmax(-1) if clean.target_R is None else clean.target_R[rows]
            said = [F.cross_entropy(x_RC, target_R, reduction="none") for x_RC in (old_RC, new_RC)]
        parts.append((*said, moved_R))
    if not parts:
        empty = old.x_RD.new_zeros(0)
        return empty, empty, empty
    before, behind, moved = (torch.cat(part) for part in zip(*parts, strict=True))
    return before, behind, moved
