"""What a model answers to many passages, and how much worse it answers when its states change."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.inside.passes import Batch, vectors_of
from headway.models.decoder import Decoder
from headway.models.encoder import Encoder
from headway.models.seq2seq import Seq2Seq
from headway.tasks.opened import Opened

AT_ONCE = 512
"""Rows whose word scores are held."""

COSINE = "1 − cosine"
"""What loss means where it is no log-probability in nats."""


@dataclass(frozen=True)
class Answers:
    """Of one pass. Rows are tokens, or texts for classes and vectors."""

    owner_R: Tensor
    """The number of the passage in the batch that each row belongs to."""

    place_R: Tensor
    """The place in the last stream that it is read from; -1: the whole text."""

    x_RD: Tensor
    """What the head reads."""

    target_R: Tensor | None
    """The tokens that come, where the text says it. None: the model's own answer counts."""


def answers(run: Opened, batch: Batch) -> Answers:
    """One pass of the batch, inside whatever is done to the model.

    complete and translate: the next token; fill: the token itself; tag and classify: labels; embed:
    the vector of the text.
    """
    model, spec = run.model, run.spec
    x_ND = vectors_of(model, batch)
    layout, ids_N = batch.layouts[batch.last], batch.tokens[batch.last]
    lengths = torch.tensor(layout.known_lengths(), device=x_ND.device)
    owner_N = torch.arange(len(lengths), device=x_ND.device).repeat_interleave(lengths)
    if spec.answers in ("label", "vector"):
        assert isinstance(model, Encoder | Decoder)
        pooled_BD = model.pooled(x_ND, layout)
        whole_B = torch.arange(len(lengths), device=x_ND.device)
        return Answers(whole_B, torch.full_like(whole_B, -1), pooled_BD, None)
    place_N = layout.positions_N
    if spec.writes:
        ends_N = place_N + 1 == lengths[owner_N]
        next_N = ids_N.roll(-1)
        if not spec.continues:  # the end is what comes behind the last token
            next_N = torch.where(ends_N, run.vocab.target.eos, next_N)
            ends_N = torch.zeros_like(ends_N)
        rows_R = torch.nonzero(~ends_N).flatten()
        return Answers(owner_N[rows_R], place_N[rows_R], x_ND[rows_R], next_N[rows_R])
    inner_N = (place_N > 0) & (place_N + 1 < lengths[owner_N])
    rows_R = torch.nonzero(inner_N).flatten()
    if spec.answers == "gaps" and any(passage.gaps for passage in batch.passages):
        return _gaps(batch, x_ND)
    target_R = ids_N[rows_R] if spec.answers == "gaps" else None
    return Answers(owner_N[rows_R], place_N[rows_R], x_ND[rows_R], target_R)


def _gaps(batch: Batch, x_ND: Tensor) -> Answers:
    """What stood at the masked places."""
    starts = batch.layouts[batch.last].starts_B.tolist()
    asked = [
        (number, place, starts[number] + place, id)
        for number, passage in enumerate(batch.passages)
        for place, id in passage.gaps.items()
    ]
    columns = torch.tensor(asked, device=x_ND.device).reshape(-1, 4)
    return Answers(columns[:, 0], columns[:, 1], x_ND[columns[:, 2]], columns[:, 3])


def scores(run: Opened, x_RD: Tensor) -> Tensor:
    """Of words or labels, from what the head reads."""
    model, spec = run.model, run.spec
    assert isinstance(model, Seq2Seq | Encoder | Decoder)
    if isinstance(model, Encoder | Decoder) and spec.labelled:
        return model.head_named(spec.heads[0])(x_RD)
    return model.scores(x_RD)


@torch.no_grad()
def losses(run: Opened, clean: Answers, changed: Answers) -> tuple[Tensor, Tensor, Tensor]:
    """For each row the loss before, the loss behind the change, and how far the answer moved: the
    KL divergence in nats. For vectors it is 1 − cosine with the vector before, in all of them."""
    if run.spec.answers == "vector":
        away_R = 1 - F.cosine_similarity(clean.x_RD, changed.x_RD, dim=-1)
        return torch.zeros_like(away_R), away_R, away_R
    parts = []
    for rows in torch.arange(len(clean.x_RD), device=clean.x_RD.device).split(AT_ONCE):
        old_RC = scores(run, clean.x_RD[rows]).float().log_softmax(-1)
        new_RC = scores(run, changed.x_RD[rows]).float().log_softmax(-1)
        target_R = old_RC.argmax(-1) if clean.target_R is None else clean.target_R[rows]
        kl_R = (old_RC.exp() * (old_RC - new_RC)).sum(-1)
        said = [-logs.gather(1, target_R[:, None]).squeeze(1) for logs in (old_RC, new_RC)]
        parts.append((*said, kl_R))
    if not parts:
        empty = clean.x_RD.new_zeros(0)
        return empty, empty, empty
    before, behind, kl = (torch.cat(part) for part in zip(*parts, strict=True))
    return before, behind, kl
