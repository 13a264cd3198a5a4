"""A linear-chain CRF: the score of a sequence of labels is that of its labels and of their order.

`transitions_PC` has a row for each label that comes before, one for the start of a sequence, and
one of scores for ending with each label: C + 2 rows. Sequences stand side by side in a flat batch,
as a `Layout` says, and are read here as a grid, a place at a time. All in fp32 or wider: sums of
many exponentials do not survive less.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.nn.layout import Layout

FORBIDDEN = -1e4
"""Worse than any score a model gives, and small enough to be summed over a sequence in fp32."""


def log_likelihood(
    scores_NC: Tensor, labels_N: Tensor, transitions_PC: Tensor, layout: Layout
) -> Tensor:
    """Of each sequence of labels among all that could be; of an empty sequence 0.

    Shapes alone decide what is computed, so that it can be recorded.
    """
    scores_NC, transitions_PC = _wide(scores_NC), _wide(transitions_PC)
    return _score(scores_NC, labels_N, transitions_PC, layout) - _log_total(
        scores_NC, transitions_PC, layout
    )


def viterbi(scores_NC: Tensor, transitions_PC: Tensor, layout: Layout) -> Tensor:
    """The best label of each row: those of the best sequence. Rows of no sequence get label 0."""
    scores_NC, transitions_PC = _wide(scores_NC), _wide(transitions_PC)
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
        # Behind its end a sequence keeps its label, so that the way back finds it.
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
    """Zero where a tag may follow another, `FORBIDDEN` where no BIO or BIOES text has it.

    I-x and E-x go on with a span of type x, which B-x or I-x has begun; in BIOES, which is known
    by its E and S tags, a begun span must also go on. Plain tags have no such rules: all zeros.
    """
    rules_PC = torch.zeros(len(labels) + 2, len(labels), device=device)
    parts = [_parts(label) for label in labels]
    if not is_scheme(labels):
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


def is_scheme(labels: tuple[str, ...]) -> bool:
    """Whether the labels mark spans: O, and letters B, I, E, S before a dash and a type."""
    return all(label == "O" or (label[:1] in "BIES" and label[1:2] == "-") for label in labels)


def _parts(label: str) -> tuple[str, str]:
    letter, _, kind = label.partition("-")
    return letter, kind


def _score(scores_NC: Tensor, labels_N: Tensor, transitions_PC: Tensor, layout: Layout) -> Tensor:
    """Of the given labels: their own scores, each after the one before it, and the end."""
    n_labels = scores_NC.shape[1]
    rows_BT, real_BT = _grid(layout, len(scores_NC))
    labels_BT = labels_N[rows_BT]
    own_BT = scores_NC.gather(1, labels_N[:, None])[:, 0][rows_BT]
    before_BT = torch.cat([torch.full_like(labels_BT[:, :1], n_labels), labels_BT[:, :-1]], 1)
    sum_B = ((own_BT + transitions_PC[before_BT, labels_BT]) * real_BT).sum(1)
    last_B = labels_N[layout.last_N().long().clamp(0, len(labels_N) - 1)]
    return sum_B + transitions_PC[n_labels + 1, last_B] * (layout.lengths_B > 0)


def _log_total(scores_NC: Tensor, transitions_PC: Tensor, layout: Layout) -> Tensor:
    """The log of the summed exponentials over all sequences of labels (the forward algorithm)."""
    n_labels = scores_NC.shape[1]
    rows_BT, real_BT = _grid(layout, len(scores_NC))
    between_CC, end_C = transitions_PC[:n_labels], transitions_PC[n_labels + 1]
    sum_BC = transitions_PC[n_labels] + scores_NC[rows_BT[:, 0]]
    for place in range(1, layout.longest):
        more_BC = (sum_BC[:, :, None] + between_CC).logsumexp(1) + scores_NC[rows_BT[:, place]]
        sum_BC = torch.where(real_BT[:, place, None], more_BC, sum_BC)
    return (sum_BC + end_C).logsumexp(1) * (layout.lengths_B > 0)


def _grid(layout: Layout, n_rows: int) -> tuple[Tensor, Tensor]:
    """The row of each place of each sequence, and which places are real."""
    places_T = torch.arange(max(1, layout.longest), device=layout.starts_B.device)
    rows_BT = (layout.starts_B[:, None] + places_T).long().clamp(0, n_rows - 1)
    return rows_BT, places_T < layout.lengths_B[:, None]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
