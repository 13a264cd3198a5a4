"""Linear-chain CRF, which scores label sequences by emission scores and transition scores.

`transitions_PC` has C + 2 rows: one for each previous label, one for the start of a sequence, and
one for ending with each label.

Sequences are contiguous in a flat batch, which a `Layout` describes. They are padded and processed
one position at a time. All sums are in fp32 or wider, because log-sum-exp loses too much precision
in 16 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.nn.layout import Layout
from headway.specs.metrics import has_span_tags

FORBIDDEN = -1e4
"""Score of forbidden transitions. It is lower than any score of a model, but can be summed over a
sequence in fp32 without loss of precision."""


def log_likelihood(
    scores_NC: Tensor, labels_N: Tensor, transitions_PC: Tensor, layout: Layout
) -> Tensor:
    """Return the log-probability of each label sequence, normalized over all possible sequences. It
    is 0 for an empty sequence.

    The computation depends only on shapes, so a CUDA graph can capture it.
    """
    scores_NC, transitions_PC = _at_least_fp32(scores_NC), _at_least_fp32(transitions_PC)
    return _score(scores_NC, labels_N, transitions_PC, layout) - _log_total(
        scores_NC, transitions_PC, layout
    )


def viterbi(scores_NC: Tensor, transitions_PC: Tensor, layout: Layout) -> Tensor:
    """Return the labels of the highest-scoring sequences. Positions outside all sequences get label
    0."""
    scores_NC, transitions_PC = _at_least_fp32(scores_NC), _at_least_fp32(transitions_PC)
    rows_BT, real_BT = _grid(layout, len(scores_NC))
    n_labels = scores_NC.shape[1]
    between_CC, end_C = transitions_PC[:n_labels], transitions_PC[n_labels + 1]
    best_BC = transitions_PC[n_labels] + scores_NC[rows_BT[:, 0]]
    before: list[Tensor] = []
    stay_C = torch.arange(n_labels, device=scores_NC.device)
    for place in range(1, layout.longest):
        on_B1 = real_BT[:, place, None]
        top = (best_BC[:, :, None] + between_CC).max(1)
        best_BC = torch.where(on_B1, top.values + scores_NC[rows_BT[:, place]], best_BC)
        # Positions after the end of a sequence repeat its last label, so that backtracking can
        # start at the last position for all sequences.
        before.append(torch.where(on_B1, top.indices, stay_C))
    label_B = (best_BC + end_C).argmax(1)
    way = [label_B]
    for before_BC in reversed(before):
        label_B = before_BC.gather(1, label_B[:, None])[:, 0]
        way.append(label_B)
    labels_BT = torch.stack(way[::-1], 1)
    found_N = torch.zeros(len(scores_NC), dtype=torch.long, device=scores_NC.device)
    found_N[rows_BT[real_BT]] = labels_BT[real_BT]
    return found_N


def allowed_transitions(labels: tuple[str, ...], device: torch.device | str = "cpu") -> Tensor:
    """Return transition scores: 0 for transitions that are valid in BIO or BIOES, `FORBIDDEN` for
    others.

    I-x and E-x continue a span of type x that B-x or I-x has begun. In BIOES, which is recognized
    by its E and S tags, an open span must be continued. Plain tags have no such rules, so all
    transitions are allowed.
    """
    rules_PC = torch.zeros(len(labels) + 2, len(labels), device=device)
    parts = [_parts(label) for label in labels]
    if not has_span_tags(labels):
        return rules_PC
    closes = any(letter in "ES" for letter, _ in parts)
    for column, (letter, kind) in enumerate(parts):
        goes_on = letter in "IE"
        for row, (before, before_kind) in enumerate([*parts, ("O", "")]):
            fits = before in "BI" and before_kind == kind
            broken = goes_on and not fits
            broken |= closes and before in "BI" and not (goes_on and fits)
            if broken:
                rules_PC[row, column] = FORBIDDEN
        if closes and letter in "BI":
            rules_PC[len(labels) + 1, column] = FORBIDDEN
    return rules_PC


def _parts(label: str) -> tuple[str, str]:
    letter, _, kind = label.partition("-")
    return letter, kind


def _score(scores_NC: Tensor, labels_N: Tensor, transitions_PC: Tensor, layout: Layout) -> Tensor:
    """Return the score of the given labels: the sum of their emissions, their transitions and the
    final transition."""
    n_labels = scores_NC.shape[1]
    rows_BT, real_BT = _grid(layout, len(scores_NC))
    labels_BT = labels_N[rows_BT]
    own_BT = scores_NC.gather(1, labels_N[:, None])[:, 0][rows_BT]
    before_BT = torch.cat([torch.full_like(labels_BT[:, :1], n_labels), labels_BT[:, :-1]], 1)
    sum_B = ((own_BT + transitions_PC[before_BT, labels_BT]) * real_BT).sum(1)
    last_B = labels_N[layout.last_N().long().clamp(0, len(labels_N) - 1)]
    return sum_B + transitions_PC[n_labels + 1, last_B] * (layout.lengths_B > 0)


def _log_total(scores_NC: Tensor, transitions_PC: Tensor, layout: Layout) -> Tensor:
    """Return the log-sum-exp of the scores of all label sequences (the forward algorithm)."""
    n_labels = scores_NC.shape[1]
    rows_BT, real_BT = _grid(layout, len(scores_NC))
    between_CC, end_C = transitions_PC[:n_labels], transitions_PC[n_labels + 1]
    sum_BC = transitions_PC[n_labels] + scores_NC[rows_BT[:, 0]]
    for place in range(1, layout.longest):
        more_BC = (sum_BC[:, :, None] + between_CC).logsumexp(1) + scores_NC[rows_BT[:, place]]
        sum_BC = torch.where(real_BT[:, place, None], more_BC, sum_BC)
    return (sum_BC + end_C).logsumexp(1) * (layout.lengths_B > 0)


def _grid(layout: Layout, n_rows: int) -> tuple[Tensor, Tensor]:
    """Return the index in the flat batch of each position of each sequence (B T), and a mask of
    positions that are not padding."""
    places_T = torch.arange(max(1, layout.longest), device=layout.starts_B.device)
    rows_BT = (layout.starts_B[:, None] + places_T).long().clamp(0, n_rows - 1)
    return rows_BT, places_T < layout.lengths_B[:, None]


def _at_least_fp32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
