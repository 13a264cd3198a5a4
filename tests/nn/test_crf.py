"""The CRF against all sequences of labels, written out."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from headway.nn.crf import FORBIDDEN, allowed_transitions, has_span_tags, log_likelihood, viterbi
from headway.nn.layout import Layout

C = 3
LENGTHS = [4, 1, 3, 2]


def case(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Layout]:
    noise = torch.Generator().manual_seed(3)
    n = sum(LENGTHS)
    scores_NC = torch.randn(n, C, generator=noise, dtype=dtype)
    transitions_PC = torch.randn(C + 2, C, generator=noise, dtype=dtype)
    labels_N = torch.randint(C, (n,), generator=noise)
    return scores_NC, labels_N, transitions_PC, Layout.of(LENGTHS)


def score(scores_TC: Tensor, way: tuple[int, ...], transitions_PC: Tensor) -> Tensor:
    total = transitions_PC[C, way[0]] + transitions_PC[C + 1, way[-1]]
    total = total + sum(scores_TC[t, label] for t, label in enumerate(way))
    return total + sum(transitions_PC[a, b] for a, b in itertools.pairwise(way))


def by_hand(scores_TC: Tensor, transitions_PC: Tensor) -> dict[tuple[int, ...], Tensor]:
    ways = itertools.product(range(C), repeat=len(scores_TC))
    return {way: score(scores_TC, way, transitions_PC) for way in ways}


def test_the_likelihood_is_that_among_all_sequences() -> None:
    scores_NC, labels_N, transitions_PC, layout = case()
    found_B = log_likelihood(scores_NC, labels_N, transitions_PC, layout)
    for number, (x_TC, y_T) in enumerate(
        zip(layout.split(scores_NC), layout.split(labels_N), strict=True)
    ):
        ways = by_hand(x_TC, transitions_PC)
        total = torch.stack(list(ways.values())).logsumexp(0)
        torch.testing.assert_close(found_B[number], ways[tuple(y_T.tolist())] - total)


def test_viterbi_finds_the_best_of_all_sequences() -> None:
    scores_NC, _, transitions_PC, layout = case()
    found = layout.split(viterbi(scores_NC, transitions_PC, layout))
    for x_TC, y_T in zip(layout.split(scores_NC), found, strict=True):
        ways = by_hand(x_TC, transitions_PC)
        assert tuple(y_T.tolist()) == max(ways, key=lambda way: ways[way].item())


def test_dummy_and_empty_sequences_change_nothing() -> None:
    scores_NC, labels_N, transitions_PC, layout = case()
    fixed = Layout.fixed(LENGTHS, n_rows=16, n_sequences=9, longest=6)
    more = 16 - len(labels_N)
    wide_NC = torch.cat([scores_NC, torch.randn(more, C, dtype=torch.float64)])
    wide_N = torch.cat([labels_N, torch.zeros(more, dtype=torch.long)])
    plain_B = log_likelihood(scores_NC, labels_N, transitions_PC, layout)
    found_B = log_likelihood(wide_NC, wide_N, transitions_PC, fixed)
    torch.testing.assert_close(found_B[: len(LENGTHS)], plain_B)
    assert (found_B[6:] == 0).all()  # the empty ones
    best = viterbi(wide_NC, transitions_PC, fixed)
    assert best[: len(labels_N)].equal(viterbi(scores_NC, transitions_PC, layout))


def test_gradients_are_finite_and_low_precision_is_computed_in_fp32() -> None:
    scores_NC, labels_N, transitions_PC, _ = case(torch.float32)
    low = scores_NC.bfloat16().requires_grad_()
    rules = transitions_PC.clone().requires_grad_()
    fixed = Layout.fixed(LENGTHS, n_rows=10, n_sequences=6, longest=5)
    found_B = log_likelihood(low, labels_N, rules, fixed)
    assert found_B.dtype == torch.float32
    found_B.sum().backward()
    assert rules.grad is not None
    assert rules.grad.isfinite().all()
    assert low.grad is not None
    assert low.grad.isfinite().all()


BIO = ("O", "B-per", "I-per", "B-loc", "I-loc")
BIOES = ("O", "B-x", "I-x", "E-x", "S-x", "E-y", "B-y")


def is_bio(tags: list[str]) -> bool:
    pairs = itertools.pairwise(["O", *tags])
    return all(b[0] != "I" or (a[0] in "BI" and a[2:] == b[2:]) for a, b in pairs)


def test_no_impossible_bio_sequence_comes_out() -> None:
    rules = allowed_transitions(BIO)
    noise = torch.Generator().manual_seed(1)
    lengths = [7] * 50
    scores_NC = 3 * torch.randn(350, len(BIO), generator=noise)
    layout = Layout.of(lengths)
    raw = [[BIO[i] for i in y.tolist()] for y in layout.split(scores_NC.argmax(1))]
    assert not all(map(is_bio, raw))
    best = [[BIO[i] for i in y.tolist()] for y in layout.split(viterbi(scores_NC, rules, layout))]
    assert all(map(is_bio, best))
    kept = [a == b for a, b in zip(raw, best, strict=True) if is_bio(a)]
    assert kept
    assert all(kept)  # what was possible stays


def test_the_rules_of_bioes() -> None:
    rules = allowed_transitions(BIOES)
    place = {tag: i for i, tag in enumerate(BIOES)} | {"start": 7, "end": 8}

    def may(before: str, after: str) -> bool:
        if after == "end":
            return bool(rules[place["end"], place[before]] == 0)
        return bool(rules[place[before], place[after]] == 0)

    possible = [("start", "O"), ("start", "B-x"), ("B-x", "I-x"), ("B-x", "E-x"), ("I-x", "E-x"),
                ("E-x", "B-x"), ("S-x", "S-x"), ("O", "S-x"), ("E-x", "end")]  # fmt: skip
    broken = [("start", "I-x"), ("start", "E-x"), ("O", "E-x"), ("B-x", "O"), ("B-x", "B-x"),
              ("I-x", "S-x"), ("B-x", "E-y"), ("B-x", "end"), ("E-x", "I-x")]  # fmt: skip
    assert all(may(*pair) for pair in possible)
    assert not any(may(*pair) for pair in broken)


def test_plain_tags_may_follow_each_other_in_any_order() -> None:
    assert not allowed_transitions(("NOUN", "VERB", "O")).any()
    assert has_span_tags(BIO)
    assert not has_span_tags(("NOUN", "IN"))


@pytest.mark.parametrize("n", [1, 300])
def test_forbidden_transitions_survive_long_sequences(n: int) -> None:
    """Where every row wants the impossible, what is left is still possible."""
    scores_NC = torch.zeros(n, len(BIO))
    scores_NC[:, 2] = 50.0
    best = viterbi(scores_NC, allowed_transitions(BIO), Layout.of([n]))
    assert is_bio([BIO[i] for i in best.tolist()])
    assert FORBIDDEN * n > torch.finfo(torch.float32).min
