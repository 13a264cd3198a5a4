"""CTC against all ways through the rows, written out."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import torch
from torch import Tensor

from headway.nn.ctc import CtcAlignment, PrefixScorer, align, ctc_loss
from headway.nn.layout import Layout

V, BLANK, END = 3, 3, 2
"""Symbols 0, 1 and 2, of which the decoder uses 2 for the end; then the blank."""

LENGTHS = [4, 1, 0, 5, 2]


def scores() -> tuple[Tensor, Layout]:
    noise = torch.Generator().manual_seed(5)
    return 2 * torch.randn(sum(LENGTHS), V + 1, generator=noise), Layout.of(LENGTHS)


def collapsed(way: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(symbol for symbol, _ in itertools.groupby(way) if symbol != BLANK)


def by_hand(scores_TV: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of each text: that of all ways that say it."""
    log_TV = scores_TV.double().log_softmax(-1)
    texts: dict[tuple[int, ...], float] = defaultdict(float)
    for way in itertools.product(range(V + 1), repeat=len(log_TV)):
        texts[collapsed(way)] += math.exp(sum(log_TV[t, s].item() for t, s in enumerate(way)))
    return texts


def loss_of(texts: list[list[int]], scores_MV: Tensor, rows: Layout) -> tuple[Tensor, Tensor]:
    labels_N = torch.tensor([s for text in texts for s in text], dtype=torch.long)
    return ctc_loss(scores_MV, rows, labels_N, Layout.of([len(t) for t in texts]), BLANK)


def test_the_loss_is_that_of_all_ways() -> None:
    scores_MV, rows = scores()
    texts = [[0, 0], [1], [], [0, 1, 0], []]
    nll_B, possible_B = loss_of(texts, scores_MV, rows)
    assert possible_B.tolist() == [True, True, False, True, True]
    for text, x_TV, nll in zip(texts, rows.split(scores_MV), nll_B.tolist(), strict=True):
        if len(x_TV):
            assert nll == pytest.approx(-math.log(by_hand(x_TV)[tuple(text)]), abs=1e-5)
    assert nll_B[2] == 0


def test_a_text_without_an_alignment_is_counted_and_has_no_gradient() -> None:
    scores_MV, rows = scores()
    scores_MV.requires_grad_()
    texts = [[0, 0, 0], [0, 1], [1], [0, 1, 0], [2]]
    nll_B, possible_B = loss_of(texts, scores_MV, rows)
    assert possible_B.tolist() == [False, False, False, True, True]
    nll_B.sum().backward()
    assert scores_MV.grad is not None
    assert scores_MV.grad.isfinite().all()
    moved = [bool(part.any()) for part in rows.split(scores_MV.grad)]
    assert moved == [False, False, False, True, True]


@pytest.mark.parametrize("texts", [[[], [], [], [], []], [[0], [], [], [], []]])
def test_empty_texts_have_a_loss_and_a_gradient(texts: list[list[int]]) -> None:
    scores_MV, rows = scores()
    scores_MV = scores_MV.bfloat16().requires_grad_()
    nll_B, possible_B = loss_of(texts, scores_MV, rows)
    nll_B.sum().backward()
    assert nll_B.dtype == torch.float32
    assert scores_MV.grad is not None
    assert scores_MV.grad.isfinite().all()
    assert possible_B.sum() == 4


def test_the_gradient_is_that_of_the_grid_without_the_other_sequences() -> None:
    scores_MV, rows = scores()
    texts = [[0, 0], [1], [], [0, 1, 0], [2]]
    whole_MV = scores_MV.clone().requires_grad_()
    loss_of(texts, whole_MV, rows)[0].sum().backward()
    assert whole_MV.grad is not None
    for text, x_TV, grad in zip(
        texts, rows.split(scores_MV), rows.split(whole_MV.grad), strict=True
    ):
        if not len(x_TV):
            continue
        alone_TV = x_TV.clone().requires_grad_()
        loss_of([text], alone_TV, Layout.of([len(x_TV)]))[0].sum().backward()
        torch.testing.assert_close(alone_TV.grad, grad)


def test_prefixes_have_the_probability_of_all_texts_that_begin_so() -> None:
    scores_MV, rows = scores()
    scorer = PrefixScorer(scores_MV, rows, BLANK, END)
    texts = [by_hand(x_TV) for x_TV in rows.split(scores_MV)]
    state = scorer.start(torch.arange(len(LENGTHS)))
    prefixes: list[tuple[int, ...]] = [()] * len(LENGTHS)
    for _ in range(4):
        found_HC = scorer.scores(state, torch.tensor([[0, 1, END]]).expand(len(prefixes), -1))
        for number, prefix, found in zip(
            state.number_H.tolist(), prefixes, found_HC.exp().tolist(), strict=True
        ):
            known = texts[number]
            begins = [
                sum(p for text, p in known.items() if text[: len(prefix) + 1] == (*prefix, s))
                for s in (0, 1)
            ]
            assert found == pytest.approx([*begins, known.get(prefix, 0.0)], abs=2e-6)
        parent_H = torch.arange(len(prefixes)).repeat_interleave(2)
        symbol_H = torch.tensor([0, 1]).repeat(len(prefixes))
        state = scorer.advance(state, parent_H, symbol_H)
        torch.testing.assert_close(state.score_H.float(), found_HC[:, :2].flatten())
        prefixes = [(*prefix, s) for prefix in prefixes for s in (0, 1)]


def test_without_rows_only_the_end_is_possible() -> None:
    scores_MV, rows = scores()
    scorer = PrefixScorer(scores_MV, rows, BLANK, END)
    found_HC = scorer.scores(scorer.start(torch.tensor([2])), torch.tensor([[0, 1, END]]))
    assert found_HC.tolist() == [[-math.inf, -math.inf, 0.0]]


def test_prefix_scores_of_long_recordings_stay_exact() -> None:
    """Thousands of rows: against the recursion, a row after the other."""
    noise = torch.Generator().manual_seed(1)
    scores_MV = 6 * torch.randn(2000, 5, generator=noise)
    text = torch.randint(4, (300,), generator=noise).tolist()
    scorer = PrefixScorer(scores_MV.double(), Layout.of([2000]), 4, 99)
    state = scorer.start(torch.tensor([0]))
    for symbol in text:
        state = scorer.advance(state, torch.tensor([0]), torch.tensor([symbol]))
    expected = -ctc_loss(
        scores_MV.double(), Layout.of([2000]), torch.tensor(text), Layout.of([len(text)]), 4
    ).nll_B
    assert scorer.final_scores(state).item() == pytest.approx(expected.item(), rel=1e-9)


def ways_of(text: tuple[int, ...], n_rows: int) -> list[tuple[int, ...]]:
    every = itertools.product(range(V + 1), repeat=n_rows)
    return [way for way in every if collapsed(way) == text]


def runs(way: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """First and last row of each symbol."""
    first, last, row = [], [], 0
    for symbol, group in itertools.groupby(way):
        size = len(list(group))
        if symbol != BLANK:
            first.append(row)
            last.append(row + size - 1)
        row += size
    return first, last


@pytest.mark.parametrize("text", [(), (0,), (0, 0), (0, 1, 0), (1, 1, 2), (0, 1, 2, 0, 1)])
def test_the_best_way_is_the_best_of_all(text: tuple[int, ...]) -> None:
    for seed in range(5):
        noise = torch.Generator().manual_seed(seed)
        log_AV = torch.randn(6, V + 1, generator=noise, dtype=torch.float64).log_softmax(-1)
        score = {w: sum(log_AV[t, s].item() for t, s in enumerate(w)) for w in ways_of(text, 6)}
        best = max(score, key=lambda way: score[way])
        found = align(log_AV, text, BLANK)
        assert found == CtcAlignment(*runs(best), pytest.approx(score[best]))


def test_a_text_longer_than_the_rows_has_no_way() -> None:
    log_AV = torch.zeros(3, V + 1).log_softmax(-1)
    assert align(log_AV, [0, 0, 1], BLANK) is None
    assert align(log_AV[:0], [], BLANK) is None
    assert align(log_AV, [0, 1, 0], BLANK) is not None
