"""A flat batch is rows and where each sequence lies, in each of its forms."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.nn.layout import Layout, loss_weights

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=6)
FEW = settings(max_examples=50, deadline=None, derandomize=True)


@FEW
@given(LENGTHS)
def test_splitting_and_joining_gives_the_batch_back(lengths: list[int]) -> None:
    layout = Layout.of(lengths)
    x_N = torch.arange(sum(lengths))
    parts = layout.split(x_N)
    assert [len(part) for part in parts] == lengths
    assert torch.equal(torch.cat(parts), x_N)
    assert layout.n_rows == len(x_N)
    assert layout.n_sequences == len(lengths)


@FEW
@given(LENGTHS)
def test_positions_count_from_the_first_token_of_each_sequence(lengths: list[int]) -> None:
    layout = Layout.of(lengths)
    assert layout.positions_N.tolist() == [p for length in lengths for p in range(length)]
    assert layout.reach == layout.longest == max(lengths)
    assert layout.bounds is not None
    assert layout.bounds.tolist() == [sum(lengths[:i]) for i in range(len(lengths) + 1)]


@FEW
@given(LENGTHS, st.integers(0, 20), st.integers(0, 4))
def test_the_fixed_form_has_every_row_in_one_sequence_within_the_limit(
    lengths: list[int], free: int, spare: int
) -> None:
    n_rows, limit = sum(lengths) + free, 6
    n_sequences = len(lengths) + -(-free // limit) + spare
    layout = Layout.fixed(lengths, n_rows=n_rows, n_sequences=n_sequences, longest=limit)
    owners_N = torch.zeros(n_rows, dtype=torch.long)
    for rows_T in layout.split(torch.arange(n_rows)):
        assert len(rows_T) <= limit
        owners_N[rows_T] += 1
    assert owners_N.tolist() == [1] * n_rows
    real = layout.split(torch.arange(n_rows))[: len(lengths)]
    assert [len(rows_T) for rows_T in real] == lengths


def test_the_fixed_form_has_one_shape_whatever_the_lengths() -> None:
    def shapes(lengths: list[int]) -> dict[str, object]:
        layout = Layout.fixed(lengths, n_rows=20, n_sequences=9, longest=5)
        return {
            name: tuple(value.shape) if isinstance(value, torch.Tensor) else value
            for name, value in vars(layout).items()
            if name != "memo"
        }

    assert shapes([5, 5, 5, 5]) == shapes([1, 2]) == shapes([3])


@pytest.mark.parametrize(
    ("lengths", "n_rows", "n_sequences", "message"),
    [
        ([3, 3], 5, 9, r"\[3, 3\].*\b5\b"),
        ([7], 10, 9, r"\[7\].*\b5\b"),
        ([2], 20, 3, r"\b5\b.*\b3\b"),
    ],
)
def test_lengths_that_do_not_fit_the_fixed_form_are_an_error(
    lengths: list[int], n_rows: int, n_sequences: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.fixed(lengths, n_rows=n_rows, n_sequences=n_sequences, longest=5)


@pytest.mark.parametrize("offsets", [[0, 0, 0], [4, 4, 4], [3, 0, 7]])
def test_steps_are_equal_sequences_shifted_by_the_cached_ones(offsets: list[int]) -> None:
    steps = Layout.steps(torch.tensor(offsets), 2, reach=max(offsets) + 2)
    shifted = Layout.of([2, 2, 2]).shifted(offsets)
    assert steps.positions_N.tolist() == shifted.positions_N.tolist()
    assert steps.reach == shifted.reach == max(offsets) + 2
    assert steps.is_full_grid
    for name in ("starts_B", "lengths_B", "bounds"):
        assert torch.equal(getattr(steps, name), getattr(shifted, name)), name
    for name in ("n_rows", "longest", "stride", "lengths"):
        assert getattr(steps, name) == getattr(shifted, name), name


def test_a_shift_reaches_as_far_as_its_furthest_token() -> None:
    layout = Layout.of([5, 1]).shifted([0, 3])
    assert layout.positions_N.tolist() == [0, 1, 2, 3, 4, 3]
    assert layout.reach == 5


def test_a_cache_lays_its_sequences_a_capacity_apart() -> None:
    x_N = torch.arange(12)
    parts = Layout.in_cache([1, 4, 0], capacity=4).split(x_N)
    assert [part.tolist() for part in parts] == [[0], [4, 5, 6, 7], []]


def test_picked_sequences_stay_where_their_rows_are() -> None:
    layout = Layout.of([3, 1, 2])
    x_N = torch.arange(6)
    wanted = layout.split(x_N)
    picked = layout.pick([2, 0, 0])
    for part, origin in zip(picked.split(x_N), (2, 0, 0), strict=True):
        assert torch.equal(part, wanted[origin])
    assert picked.longest == 3
    assert picked.bounds is None  # they no longer stand side by side
    assert not picked.is_full_grid


def test_only_equal_lengths_side_by_side_are_a_full_grid() -> None:
    assert Layout.of([3, 3]).is_full_grid
    assert not Layout.of([3, 2]).is_full_grid
    assert not Layout.of([0, 0]).is_full_grid
    assert not Layout.in_cache([3, 3], capacity=4).is_full_grid
    assert not Layout.fixed([3, 3], n_rows=6, n_sequences=2, longest=3).is_full_grid


def test_a_cache_with_one_full_sequence_is_not_a_full_grid() -> None:
    assert not Layout.in_cache([3, 5], capacity=5).is_full_grid


def test_the_last_row_of_each_sequence_is_found() -> None:
    assert Layout.of([3, 1, 2]).last_N().tolist() == [2, 3, 5]
    assert Layout.in_cache([3, 1], capacity=4).last_N().tolist() == [2, 4]


def test_loss_weights_are_one_for_real_rows_and_zero_for_dummies() -> None:
    weights_N = loss_weights([2, 3], n_rows=8)
    assert weights_N.tolist() == [1.0] * 5 + [0.0] * 3


def test_a_layout_moves_whole_and_forgets_what_was_worked_out_elsewhere(
    device: torch.device,
) -> None:
    layout = Layout.of([3, 1])
    layout.memo["old"] = 1
    moved = layout.to(device)
    for name in ("starts_B", "lengths_B", "positions_N", "bounds"):
        assert getattr(moved, name).device.type == device.type
        assert torch.equal(getattr(moved, name).cpu(), getattr(layout, name))
    assert moved.memo == {}
    assert moved.lengths == layout.lengths


def test_lengths_are_known_to_the_host_or_fetched() -> None:
    assert Layout.of([3, 1]).known_lengths() == (3, 1)
    fixed = Layout.fixed([3, 1], n_rows=5, n_sequences=4, longest=3)
    assert fixed.lengths is None
    assert fixed.known_lengths() == (3, 1, 1, 0)
