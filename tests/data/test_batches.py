from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.batches import StepPlan, fixed_shapes
from headway.data.token_store import TokenStore

LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=200)


def plan(lengths: list[tuple[int, int]], tokens: int = 64, seed: int = 1) -> StepPlan:
    source, target = (np.array(side, dtype=np.int64) for side in zip(*lengths, strict=True))
    return StepPlan(
        source_lengths=source,
        target_lengths=target,
        source_tokens=tokens,
        target_tokens=tokens,
        seed=seed,
    )


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.integers(0, 5))
def test_an_epoch_has_every_pair_once_and_no_step_over_its_budget(
    lengths: list[tuple[int, int]], epoch: int
) -> None:
    made = plan(lengths)
    steps = made.epoch(epoch)
    assert sorted(np.concatenate(steps).tolist()) == list(range(len(lengths)))
    for rows in steps:
        assert made.source_lengths[rows].sum() <= 64 or len(rows) == 1
        assert made.n_targets(rows) <= 64 or len(rows) == 1
        assert len(rows) <= made.most_pairs(64)


def test_the_order_is_a_pure_function_of_seed_and_epoch() -> None:
    lengths = [(n % 13 + 1, n % 7 + 1) for n in range(500)]

    def order(epoch: int, seed: int = 1) -> list[list[int]]:
        return [rows.tolist() for rows in plan(lengths, seed=seed).epoch(epoch)]

    assert order(0) == order(0)
    assert order(0) != order(1)
    assert order(0) != order(0, seed=2)


def test_pairs_of_a_step_are_of_like_length_but_steps_come_in_any_order() -> None:
    draw = np.random.default_rng(0)
    lengths = [(int(n), int(n)) for n in draw.integers(1, 30, 4000)]
    made = plan(lengths, tokens=128)
    steps = made.epoch(0)
    inside = np.mean([made.target_lengths[rows].std() for rows in steps if len(rows) > 1])
    assert inside < 0.25 * made.target_lengths.std()
    means = np.array([made.target_lengths[rows].mean() for rows in steps])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3


def sentences(n: int, longest: int) -> list[tuple[int, int]]:
    """Lengths as translations have them: many short ones, a few that are long."""
    draw = np.random.default_rng(0)
    source = np.clip(draw.lognormal(2.8, 0.7, n), 1, longest).astype(int)
    target = np.clip(source * draw.normal(1.1, 0.15, n), 1, longest).astype(int)
    return list(zip(source.tolist(), target.tolist(), strict=True))


@pytest.mark.parametrize("n_pairs", [9_000, 30_000], ids=["few steps", "many steps"])
@pytest.mark.parametrize("micro_tokens", [25_000, 12_500])
def test_mixed_steps_fill_one_fixed_form_but_for_a_twentieth(
    n_pairs: int, micro_tokens: int
) -> None:
    made = replace(plan(sentences(n_pairs, 300), tokens=25_000), bucket_steps=1)
    made = replace(made, source_tokens=made.source_limit(made.step_limit))
    source, target = made.part_limits(micro_tokens)
    fixed = fixed_shapes(made, source, target, 300)
    steps = made.epoch(0)
    assert sorted(np.concatenate(steps).tolist()) == list(range(n_pairs))
    parts = [part for rows in steps for part in made.cut(rows, source, target)]
    assert len(parts) <= len(steps) * -(-made.step_limit // micro_tokens)
    sides = np.stack([made.source_lengths, made.target_lengths])
    used = np.array([sides[:, part].sum(1) for part in parts])
    room = np.array([fixed.source_rows, fixed.target_rows])
    assert (used <= room).all()
    assert used.sum() / (len(parts) * room.sum()) > 0.95
    assert (used.sum(1) / room.sum()).min() > 0.9


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.integers(31, 90), st.sampled_from([1, 32]))
def test_fixed_shapes_hold_every_part_of_every_step(
    lengths: list[tuple[int, int]], tokens: int, pool: int
) -> None:
    made = replace(plan(lengths, tokens=90), bucket_steps=pool)
    fixed = fixed_shapes(made, tokens, tokens, longest=31)
    for rows in made.epoch(3):
        for part in made.cut(rows, tokens, tokens):
            used = [made.source_lengths[part], made.target_lengths[part]]
            for side, n_rows in zip(used, (fixed.source_rows, fixed.target_rows), strict=True):
                left = n_rows - int(side.sum())
                assert left >= 0
                assert len(part) + -(-left // fixed.longest) <= fixed.n_sequences


def test_a_pair_longer_than_the_budget_is_a_step_of_its_own() -> None:
    made = replace(plan([(50, 3), (3, 50), (3, 3)]), source_tokens=10, target_tokens=10)
    assert sorted(len(rows) for rows in made.epoch(0)) == [1, 1, 1]


def test_sequences_are_gathered_side_by_side() -> None:
    tokens = TokenStore.of([[1, 2, 3], [4], [5, 6]])
    got, lengths = tokens.gather(np.array([2, 0]))
    assert got.tolist() == [5, 6, 1, 2, 3]
    assert lengths.tolist() == [2, 3]
    assert torch.from_numpy(got).dtype == torch.int64
