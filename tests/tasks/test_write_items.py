"""Sources with what is to be written of them, as batches; fixed forms as they always were."""

from __future__ import annotations

import numpy as np
import pytest

from headway.data.batches import StepPlan, fixed_shapes
from headway.nn.devices import CPU
from headway.tasks.seq2seq_dataset import Seq2SeqDataset

from .written import pair_items, words


@pytest.fixture
def items() -> Seq2SeqDataset:
    return made()


def made(source_begin: int | None = None, target_begin: int | None = None) -> Seq2SeqDataset:
    return pair_items(
        [[5, 6], [], [7, 8, 9], [5]],
        [[15], [11, 12, 13], [], [14, 15]],
        words(eos=2, begin=source_begin),
        words(eos=3, begin=target_begin),
    )


def plan(items: Seq2SeqDataset, tokens: int) -> StepPlan:
    source, target = items.lengths.T
    return StepPlan.of_pairs(source, target, tokens, 0)


def test_a_batch_holds_its_pairs_with_start_and_end_tokens(items: Seq2SeqDataset) -> None:
    batch = items.batch(np.array([2, 0, 1]), CPU)
    source, target = batch.streams
    assert [x.tolist() for x in source.layout.split(source.values)] == [
        [7, 8, 9, 2],
        [5, 6, 2],
        [2],
    ]
    assert [x.tolist() for x in target.layout.split(target.values)] == [
        [1],
        [1, 15],
        [1, 11, 12, 13],
    ]
    assert [x.tolist() for x in target.layout.split(batch.targets.targets_N)] == [
        [3],
        [15, 3],
        [11, 12, 13, 3],
    ]
    assert batch.weights_R is not None
    assert batch.weights_R.tolist() == [1.0] * 7


def test_the_fixed_form_holds_the_same_rows_and_dummies_of_weight_zero(
    items: Seq2SeqDataset,
) -> None:
    rows = np.array([2, 0, 1])
    fixed = fixed_shapes(plan(items, 20), 20, 20, longest=8)
    plain, same = items.batch(rows, CPU), items.batch(rows, CPU, fixed)
    assert [stream.layout.n_rows for stream in same.streams] == [128, 128]
    assert same.streams[0].values[:8].tolist() == plain.streams[0].values.tolist()
    assert same.targets.targets_N[:7].tolist() == plain.targets.targets_N.tolist()
    assert same.weights_R is not None
    assert same.weights_R.sum() == 7
    assert same.weights_R[:7].all()
    other = items.batch(np.array([3]), CPU, fixed)
    assert other.streams[0].layout.starts_B.shape == same.streams[0].layout.starts_B.shape


def test_dummy_targets_have_dummy_sources_to_attend_to() -> None:
    """Where no source row is left over, and where target dummies are more than source dummies."""
    for lengths in ([(150, 10), (106, 10)], [(120, 5), (130, 5)], [(2, 3)], [(1, 150)]):
        sides = np.array(lengths).T - 1
        items = pair_items(*([[5] * n for n in side] for side in sides))
        fixed = fixed_shapes(plan(items, 256), 256, 256, longest=150)
        batch = items.batch(np.arange(len(lengths)), CPU, fixed)
        source, target = (stream.layout.lengths_B for stream in batch.streams)
        assert (source > 0)[target > 0].all()
        assert batch.weights_R is not None
        assert batch.weights_R.sum() == sides[1].sum() + len(lengths)


def test_sources_and_targets_may_begin_with_a_token_of_their_own() -> None:
    items = made(source_begin=4, target_begin=10)
    assert items.lengths.tolist() == [[4, 3], [2, 5], [5, 2], [3, 4]]
    batch = items.batch(np.array([2, 0, 1]), CPU)
    source, target = batch.streams
    assert [x.tolist() for x in source.layout.split(source.values)] == [
        [4, 7, 8, 9, 2],
        [4, 5, 6, 2],
        [4, 2],
    ]
    assert [x.tolist() for x in target.layout.split(target.values)] == [
        [1, 10],
        [1, 10, 15],
        [1, 10, 11, 12, 13],
    ]
    assert [x.tolist() for x in target.layout.split(batch.targets.targets_N)] == [
        [10, 3],
        [10, 15, 3],
        [10, 11, 12, 13, 3],
    ]
