"""Outputs of a model on many passages, and the change of its loss when its hidden states are
edited."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.inside.capture.forward import ReadingBatch, final_states, gives_vector, read_out
from headway.nn.divergence import sigmoid_divergence
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.readout import Read, readout_of

AT_ONCE = 512
"""Number of outputs whose scores are in memory at a time. Each output has one score per word of the
vocabulary."""


@dataclass(frozen=True)
class BatchOutputs:
    """Outputs of one forward pass over a batch. Each is the output at a token, or of a whole text
    for classes and embeddings."""

    owner_R: Tensor
    """For each output, the batch index of the reading it belongs to."""

    place_R: Tensor
    """Position in the last stream that each output is read from; -1 if it is read from the whole
    text."""

    readout: Read
    target_R: Tensor | None
    """Next tokens of the text, or true values of reconstructions (R E). None: the model's own
    prediction is the target."""

    is_vector: bool = False
    """Whether the outputs are embeddings, which have no scores of words or labels."""


def batch_outputs(run: LoadedRun, batch: ReadingBatch) -> BatchOutputs:
    """Run one forward pass over a batch, under any intervention that is active, and return its
    outputs."""
    states = final_states(run.model, batch)
    read, layout, x_ND = read_out(run, batch, states), batch.layout, states.x_ND
    lengths = torch.tensor(layout.known_lengths(), device=x_ND.device)
    each_B = torch.arange(len(lengths), device=x_ND.device)
    if readout_of(run.settings).pools:
        return BatchOutputs(each_B, torch.full_like(each_B, -1), read, None, gives_vector(run))
    rows_R = batch.rows()
    place_R, owner_R = layout.positions_N[rows_R], each_B.repeat_interleave(lengths)[rows_R]
    if batch.hidden is not None:
        return BatchOutputs(owner_R, place_R, read, batch.hidden.targets.targets)
    said_R = torch.tensor([output.id for one in batch.readings for output in one.outputs])
    known = bool((said_R >= 0).all())
    return BatchOutputs(owner_R, place_R, read, said_R.to(x_ND.device) if known else None)


def unit(run: LoadedRun) -> str:
    """Return the unit of the losses for display: nats, 1 − cosine (embeddings) or mean square
    (numbers and reconstructions)."""
    if gives_vector(run):
        return "1 − cosine"
    numbers = run.spec.is_regression or not run.spec.has_probabilities
    return "mean square" if numbers else "nats"


@torch.no_grad()
def losses(clean: BatchOutputs, changed: BatchOutputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return three values per output: the loss before a change, the loss after it, and the distance
    between the two outputs.

    The distance is the KL divergence in nats. For embeddings, all three values are 1 − cosine
    similarity to the embedding before the change. For reconstructions and numbers they are mean
    squares.
    """
    old, new = clean.readout, changed.readout
    if not old.has_probabilities and not clean.is_vector:
        was_RE, is_RE = old.averaged_logits(), new.averaged_logits()
        right_RE = was_RE if clean.target_R is None else clean.target_R
        pairs = ((was_RE, right_RE), (is_RE, right_RE), (is_RE, was_RE))
        errors = [old.divergence(one, other, 1.0) for one, other in pairs]
        return errors[0], errors[1], errors[2]
    if not old.has_probabilities:
        away_R = 1 - F.cosine_similarity(old.x_RD, new.x_RD, dim=-1)
        return torch.zeros_like(away_R), away_R, away_R
    parts = []
    for rows in torch.arange(len(old.x_RD), device=old.x_RD.device).split(AT_ONCE):
        old_RC, new_RC = (one.select_rows(rows).logits_RC for one in (old, new))
        moved_R = old.divergence(new_RC, old_RC, 1.0)
        if old.divergence is sigmoid_divergence:  # targets are its own predictions for each label
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
