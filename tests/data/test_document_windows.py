"""Documents in windows: nothing is lost, nothing twice, and chance is a function of the epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.batches import StepPlan
from headway.data.document_windows import (
    DocumentWindows,
    cut_documents,
    fixed_windows,
    random_windows,
    window_limit,
    window_shapes,
)
from headway.nn.layout import Layout

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=30)


def cut_of(lengths: list[int], epoch: int, context: int = 8, seed: int = 3) -> DocumentWindows:
    return random_windows(np.array(lengths), context, seed, epoch)


def plan_of(cut: DocumentWindows, step: int) -> StepPlan:
    return StepPlan.of_lengths(cut.length, step, seed=3)


def covered(cut: DocumentWindows, n_documents: int) -> list[list[int]]:
    """The tokens of each document in the order of its windows."""
    found: list[list[int]] = [[] for _ in range(n_documents)]
    for document, start, length in zip(cut.document, cut.start, cut.length, strict=True):
        found[document] += range(start, start + length)
    return found


@given(LENGTHS, st.integers(1, 20), st.randoms(use_true_random=False))
def test_every_token_is_in_one_window_and_no_window_over_the_context(
    lengths: list[int], context: int, random: object
) -> None:
    phase = np.array([random.randrange(context) for _ in lengths])  # type: ignore[attr-defined]
    for cut in (cut_documents(np.array(lengths), context, phase),
                fixed_windows(np.array(lengths), context)):  # fmt: skip
        assert covered(cut, len(lengths)) == [list(range(n)) for n in lengths]
        assert cut.length.min() >= 1
        assert cut.length.max() <= context


@given(LENGTHS, st.integers(1, 20))
def test_documents_that_fit_stay_whole(lengths: list[int], context: int) -> None:
    cut = cut_of(lengths, 5, context)
    for document, n in enumerate(lengths):
        if n <= context:
            assert cut.length[cut.document == document].tolist() == [n]


def test_long_documents_are_cut_at_the_phase_and_then_every_context() -> None:
    cut = cut_documents(np.array([10, 3, 10]), 4, np.array([3, 3, 0]))
    assert cut.document.tolist() == [0, 0, 0, 1, 2, 2, 2]
    assert cut.start.tolist() == [0, 3, 7, 0, 0, 4, 8]
    assert cut.length.tolist() == [3, 4, 3, 3, 4, 4, 2]


def test_cuts_change_with_the_epoch_and_the_seed_and_with_nothing_else() -> None:
    lengths = [100] * 20
    starts = [cut_of(lengths, epoch).start.tolist() for epoch in range(6)]
    assert len(set(map(tuple, starts))) == 6
    assert cut_of(lengths, 0, seed=4).start.tolist() != starts[0]
    for epoch in (5, 0, 3, 1, 0):  # in any order, as after a resume
        assert cut_of(lengths, epoch).start.tolist() == starts[epoch]


def test_over_the_epochs_a_token_comes_at_every_place_of_a_window() -> None:
    places = set()
    for epoch in range(100):
        start = cut_of([100], epoch).start
        places.add(int(50 - start[start <= 50].max()))
    assert places == set(range(8))


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 60) | st.just(1) | st.just(16), min_size=1, max_size=80),
    st.sampled_from([2, 8, 16]),
    st.sampled_from([16, 64, 300]),
)
def test_the_fixed_shapes_hold_every_part_of_any_epoch(
    lengths: list[int], context: int, micro: int
) -> None:
    first = plan_of(cut_of(lengths, 0, context), 200)
    tokens = window_limit(first, micro, context)
    fixed = window_shapes(first, tokens, context)
    for epoch in range(8):
        cut = cut_of(lengths, epoch, context)
        plan = plan_of(cut, 200)
        for step in plan.epoch(epoch):
            for rows in plan.cut(step, tokens, tokens):
                held = cut.length[rows].tolist()
                layout = Layout.fixed(
                    held,
                    n_rows=fixed.target_rows,
                    n_sequences=fixed.n_sequences,
                    longest=fixed.longest,
                )
                assert layout.n_rows == fixed.target_rows
                assert max(held) <= fixed.longest == context


@pytest.mark.parametrize(("micro", "tokens"), [(1, 8), (20, 20), (100, 32)])
def test_a_part_holds_a_window_and_at_most_a_step(micro: int, tokens: int) -> None:
    assert window_limit(plan_of(cut_of([50], 0), 32), micro, 8) == tokens
