"""Sources with what is to be written of them, as batches; fixed forms as they always were."""

from __future__ import annotations

import os
from dataclasses import fields
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config.model import PictureSettings
from headway.data.batches import StepPlan, fixed_shapes
from headway.data.media.store import PictureStore
from headway.nn.devices import CPU
from headway.tasks.intake_pictures import PictureCuts
from headway.tasks.write_items import PicturePlan, WriteItems
from tests.golden import before as golden

from .written import pair_items, store, words

EXAMPLES = int(os.environ.get("BEFORE_EXAMPLES", "25"))


def former(module: str) -> ModuleType:
    """Of the code as it was."""
    try:
        return golden.before(module)
    except golden.Unavailable as error:
        pytest.skip(f"no headway_before to compare with: {error}")


@pytest.fixture
def items() -> WriteItems:
    return made()


def made(source_begin: int | None = None, target_begin: int | None = None) -> WriteItems:
    return pair_items(
        [[5, 6], [], [7, 8, 9], [5]],
        [[15], [11, 12, 13], [], [14, 15]],
        words(eos=2, begin=source_begin),
        words(eos=3, begin=target_begin),
    )


def plan(items: WriteItems, tokens: int) -> StepPlan:
    source, target = items.lengths.T
    return StepPlan.of_pairs(source, target, tokens, 0)


def test_a_batch_holds_its_pairs_with_start_and_end_tokens(items: WriteItems) -> None:
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
    assert [x.tolist() for x in target.layout.split(batch.targets.said_N)] == [
        [3],
        [15, 3],
        [11, 12, 13, 3],
    ]
    assert batch.weights_R is not None
    assert batch.weights_R.tolist() == [1.0] * 7


def test_the_fixed_form_holds_the_same_rows_and_dummies_of_weight_zero(items: WriteItems) -> None:
    rows = np.array([2, 0, 1])
    fixed = fixed_shapes(plan(items, 20), 20, 20, longest=8)
    plain, same = items.batch(rows, CPU), items.batch(rows, CPU, fixed)
    assert [stream.layout.n_rows for stream in same.streams] == [128, 128]
    assert same.streams[0].values[:8].tolist() == plain.streams[0].values.tolist()
    assert same.targets.said_N[:7].tolist() == plain.targets.said_N.tolist()
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
    assert [x.tolist() for x in target.layout.split(batch.targets.said_N)] == [
        [10, 3],
        [10, 15, 3],
        [10, 11, 12, 13, 3],
    ]


@pytest.mark.before
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 160), st.integers(0, 40)), min_size=2, max_size=60),
    st.integers(50, 900),
    st.sampled_from([1, 32]),
)
def test_fixed_forms_of_pairs_are_as_before(
    lengths: list[tuple[int, int]], micro: int, pool: int
) -> None:
    """Recorded steps and the kernels on a GPU rest on them."""
    old = former("data.batches")
    source, target = ([[5] * n for n in side] for side in zip(*lengths, strict=True))
    items = pair_items(source, target)
    made = StepPlan.of_pairs(*items.lengths.T, 600, 3, pool)
    now = items.fixed(made, micro)
    assert now is not None
    sides = [old.FlatTokens(side.tokens, side.offsets) for side in map(store, (source, target))]
    plan = old.StepPlan(**{one.name: getattr(made, one.name) for one in fields(made)})
    longest = int(max(plan.source_lengths.max(), plan.target_lengths.max()))
    then = old.fixed_shapes(plan, *plan.part_limits(micro), longest)
    assert all(getattr(now, name) == value for name, value in vars(then).items())
    assert (now.rows, now.most_rows) == (then.rows, then.most_rows)
    collator = old.Collator(source=sides[0], target=sides[1], bos=1, source_eos=2, target_eos=2)
    [rows, *_] = made.cut(made.epoch(0)[0], *made.part_limits(micro))
    one, other = items.batch(rows, CPU, now), collator.batch(rows, "cpu", then)
    for stream, values, layout in (
        (one.streams[0], other.source_M, other.source),
        (one.streams[1], other.target_N, other.target),
    ):
        assert torch.equal(stream.values, values)
        assert torch.equal(stream.layout.lengths_B, layout.lengths_B)
    assert one.weights_R is not None
    assert torch.equal(one.targets.said_N, other.labels_N)
    assert torch.equal(one.weights_R, other.weights_N)


@pytest.mark.before
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=80),
    st.integers(20, 900),
    st.integers(8, 40),
    st.sampled_from([1, 32]),
)
def test_fixed_forms_of_captions_are_as_before(
    lengths: list[int], micro: int, side: int, pool: int
) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (len(lengths), 1, 1, 8, side), np.uint8)
    form = {"height": 8, "width": side, "channels": 1, "patch": 4, "class_token": False}
    cuts = PictureCuts(PictureStore.of(list(pixels)), PictureSettings(**form))
    items = WriteItems.of(cuts, store([[5] * n for n in lengths]), words())
    made = PicturePlan.of(items.lengths, 300, 3, pool, True)
    now = items.fixed(made, micro)
    assert now is not None
    task = former("tasks.caption").CaptionTask
    before = task.__new__(task)
    texts = former("data.tokens").TokenStore(items.texts.tokens, items.texts.lengths)
    pictures = former("data.media.store").PictureStore.of(list(pixels))
    data = former("data.media.mediaset").MediaSet(pictures, np.zeros(len(lengths)), texts=texts)
    shape = former("config.model").PictureSettings(**form)
    before.train = former("tasks.caption_batches").Captions(data, shape, words())
    before.rows = max(300, before.train.pictures.longest)
    before.plan = before.train.plan(before.rows, 3, pool)
    then = before.fixed(micro)
    for name in ("target_rows", "n_sequences", "longest", "rows", "most_rows"):
        assert getattr(now, name) == getattr(then, name)
    assert now.longest_target == then.longest_caption
    steps, known = made.epoch(1), before.epoch(1)
    assert [step.tolist() for step in steps] == [step.tolist() for step in known]
    parts = made.cut(steps[0], *made.part_limits(micro))
    of_old = before.parts(known[0], micro)
    assert [part.tolist() for part in parts] == [part.rows.tolist() for part in of_old]
    assert [made.n_targets(part) for part in parts] == [part.n_tokens for part in of_old]
    rows = parts[-1]
    one, other = items.batch(rows, CPU, now), before.train.batch(rows, CPU, then).words
    assert one.weights_R is not None
    assert torch.equal(one.streams[1].values, other.read_N)
    assert torch.equal(one.streams[1].layout.lengths_B, other.layout.lengths_B)
    assert torch.equal(one.targets.said_N, other.said_N)
    assert torch.equal(one.weights_R, other.weights_N)
