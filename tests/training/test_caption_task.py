"""Captions as a task: its loss against sums written out, several references, fixed shapes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.data.store import PreparedData
from headway.errors import ConfigError, DataError, Stopped
from headway.models.build import build_model
from headway.models.parts.front import set_compute_dtype
from headway.models.parts.vision import ImageBatch
from headway.models.seq2seq import Seq2Seq
from headway.progress import SILENT
from headway.settings.augment import AugmentSettings
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.load import model_settings
from headway.settings.model import ImageSettings
from headway.settings.overrides import Overrides
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.specs.task_settings import CaptionSettings
from headway.tasks.caption import CaptionTask
from headway.tasks.dataset import EvalPass
from headway.tasks.losses import plain as plain_loss
from headway.tasks.objective import EpochItems, MicroBatch
from headway.tasks.seq2seq import Seq2SeqObjective
from headway.training.distributed import Distributed
from headway.training.feed import Cursor, iter_steps, step_item
from headway.training.resolve import resolve_run
from headway.training.step import Step

from .captioned import scene, write_manifest, write_scenes

CPU = torch.device("cpu")
ASKED = {
    "model.d_model": 16, "model.n_layers": 1, "model.decoder.n_layers": 1, "model.n_heads": 2,
    "model.d_ff": 32, "model.dropout": 0.0, "model.image.patch": 4, "train.batch_tokens": 40,
}  # fmt: skip


def settings_of(media: Path, valid: Path | None = None, **more: Any) -> RunSettings:
    data = DataSettings(media=(str(media),), valid_media=(str(valid or media),))
    words = TokenizerSettings(kind="words")
    return RunSettings(task="caption", data=data, tokenizer=words, asked=Overrides(ASKED | more))


def prepared_and_task(folder: Path, settings: RunSettings) -> tuple[PreparedData, Seq2SeqObjective]:
    kind = CaptionTask(spec_of("caption"))
    prepared = kind.prepare(settings, folder, SILENT)
    settings = resolve_run(settings, prepared, CPU)
    train = replace(settings.train, batch_tokens=40, label_smoothing=0.2)
    task = kind.objective(replace(settings, train=train), prepared)
    return prepared, task


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedData, Seq2SeqObjective]:
    folder = tmp_path_factory.mktemp("captions")
    valid = write_scenes(folder, 12, seed=1, name="valid")
    return prepared_and_task(folder, settings_of(write_scenes(folder, 40), valid))


def model_of(task: Seq2SeqObjective) -> Seq2Seq:
    assert task.settings.model is not None
    model = build_model(task.settings.model, seed=1)
    assert isinstance(model, Seq2Seq)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():  # fresh ones would not look at the image at all
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=draw)
    return model


def alone(task: Seq2SeqObjective, model: Seq2Seq, row: int) -> tuple[float, float]:
    """Smoothed and plain loss of one image, by the definitions."""
    texts = task.prepared.train["text"]
    assert texts is not None
    ids = texts[row].tolist()
    image = torch.tensor(np.array(task.prepared.train.images[row]))
    given, layout = model.source_front.collate([image])
    read = torch.tensor([task.tokenizer.bos, *ids])
    x_ND = model(given, layout, read, model.target_front.collate([read.tolist()])[1])
    logs_NV = model.scores(x_ND).double().log_softmax(-1)
    found = torch.tensor([*ids, task.tokenizer.eos])
    nll = -logs_NV[torch.arange(len(found)), found].sum()
    right, wrong = task.smoothing
    return float((right - wrong) * nll - wrong * logs_NV.sum()), float(nll)


def test_the_loss_is_the_sum_over_images(made: tuple[PreparedData, Seq2SeqObjective]) -> None:
    _, task = made
    model = model_of(task)
    rows = np.array([3, 7, 1])
    batch = task.batch(MicroBatch(EpochItems(0, rows), 0), CPU, None)
    with torch.no_grad():
        loss = plain_loss(task)(model, batch)
        each = [alone(task, model, row) for row in rows]
    assert float(loss.sum) == pytest.approx(sum(one for one, _ in each), rel=1e-4)
    assert float(loss.nll) == pytest.approx(sum(one for _, one in each), rel=1e-4)


def check_fixed_changes_nothing(task: Seq2SeqObjective, micro_tokens: int, rows: list[int]) -> None:
    fixed = task.fixed(micro_tokens)
    assert fixed is not None
    found = []
    for shapes in (None, fixed):
        model = model_of(task)
        batch = task.batch(MicroBatch(EpochItems(0, np.array(rows)), 0), CPU, shapes)
        loss = plain_loss(task)(model, batch)
        loss.sum.backward()
        found.append((loss.sum.item(), [p.grad for p in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert one is not None
        assert other is not None
        assert torch.allclose(one, other, atol=1e-5)


def test_fixed_shapes_change_neither_loss_nor_gradient(
    made: tuple[PreparedData, Seq2SeqObjective],
) -> None:
    """With fewer images than there is room for: the rest is filled and weighs nothing."""
    check_fixed_changes_nothing(made[1], 40, [5, 2])


def test_every_batch_of_an_epoch_has_the_fixed_shapes(
    made: tuple[PreparedData, Seq2SeqObjective],
) -> None:
    _, task = made
    seen: list[int] = []
    shapes = set()
    for step in task.epoch(0):
        for part in task.parts(step, 16):
            batch = task.batch(part, CPU, task.fixed(16))
            images, words = batch.streams
            assert isinstance(images.values, ImageBatch)
            shapes.add((images.values.groups[0].shape, images.layout.n_sequences,
                        images.layout.n_rows, words.values.shape,
                        words.layout.n_sequences))  # fmt: skip
            assert batch.weights_R is not None
            assert int(batch.weights_R.sum()) == part.n_targets
            assert part.n_tokens == 4 * len(part.rows.rows) <= 16
            seen += part.rows.rows.tolist()
    assert len(shapes) == 1
    assert sorted(seen) == list(range(40))


def test_captions_are_augmented_in_training_alone(
    made: tuple[PreparedData, Seq2SeqObjective],
) -> None:
    prepared, task = made
    changed = replace(task.settings, augment=AugmentSettings(erase=0.99))
    noisy = CaptionTask(spec_of("caption")).objective(changed, prepared)
    model = model_of(task)
    batch = noisy.batch(MicroBatch(EpochItems(0, np.array([0, 1, 2, 3])), 0), CPU, None)
    with torch.no_grad():
        plain = float(plain_loss(task)(model.eval(), batch).sum)
        assert float(plain_loss(noisy)(model, batch).sum) == plain
        torch.manual_seed(0)
        assert float(plain_loss(noisy)(model.train(), batch).sum) != plain


def test_words_are_hidden_from_the_decoder_in_training_alone(
    made: tuple[PreparedData, Seq2SeqObjective],
) -> None:
    prepared, task = made
    blind = CaptionTask(spec_of("caption")).objective(
        replace(task.settings, caption=CaptionSettings(hide=0.5)), prepared
    )
    model = model_of(task)
    batch = blind.batch(MicroBatch(EpochItems(0, np.array([0, 1, 2, 3])), 0), CPU, None)
    read_N = batch.streams[1].values
    torch.manual_seed(0)
    hidden_N = blind._hidden(read_N)
    changed_N = hidden_N != read_N
    assert (hidden_N[changed_N] == task.tokenizer.unk).all()
    assert 0 < int(changed_N.sum()) < len(read_N) - 4
    assert not changed_N[read_N == task.tokenizer.bos].any()
    with torch.no_grad():
        plain = float(plain_loss(task)(model.eval(), batch).sum)
        assert float(plain_loss(blind)(model, batch).sum) == plain
        assert float(plain_loss(blind)(model.train(), batch).sum) != plain
    with pytest.raises(ConfigError, match=r"hide=1\.5\b"):
        CaptionSettings(hide=1.5)


def test_all_captions_of_a_image_are_right(tmp_path: Path) -> None:
    """Whether a manifest names the image twice or gives a list of texts."""
    write_scenes(tmp_path, 6, name="more")
    more = [json.loads(line) for line in (tmp_path / "more.jsonl").read_text().splitlines()]
    images = [scene("red", "blue")[0], scene("green", "blue")[0]]
    np.save(tmp_path / "two.npy", np.stack(images))
    lines = [
        {"path": "two.npy", "index": 0, "text": "red left of blue"},
        {"path": "two.npy", "index": 1, "text": ["green left of blue", "blue right of green"]},
        {"path": "two.npy", "index": 0, "text": "blue right of red"},
    ]
    valid = write_manifest(tmp_path / "two.jsonl", lines)
    media = write_manifest(tmp_path / "all.jsonl", [*more, *lines])
    _, task = prepared_and_task(tmp_path / "run", settings_of(media, valid))
    rows, references = task.valid_set.sources.rows, task.valid_set.references
    assert task.prepared.valid.n == 4
    seen = [task.prepared.valid.images[row][0].transpose(1, 2, 0) for row in rows]
    which = [next(i for i, one in enumerate(images) if (one == x).all()) for x in seen]
    texts = [
        {"red left of blue", "blue right of red"},
        {"green left of blue", "blue right of green"},
    ]
    assert sorted(which) == [0, 1]
    assert [set(several) for several in references] == [texts[i] for i in which]


def test_an_evaluation_scores_writes_samples_and_can_be_stopped(
    made: tuple[PreparedData, Seq2SeqObjective],
) -> None:
    _, task = made
    model = model_of(task).eval()
    with torch.no_grad():
        quick = task.evaluate(EvalPass(model, CPU, full=False))
        full = task.evaluate(EvalPass(model, CPU))
        assert set(spec_of("caption").scores) == set(full)
        assert quick["loss"] == pytest.approx(full["loss"])
        assert 0 <= full["exact_match"] <= 100
        assert len(full.samples) == 12
        written = {one["place"]: one["text"] for one in task.prepared.valid_examples}
        assert [written[one["source"]] for one in full.samples] == [
            one["target"] for one in full.samples
        ]
        assert " left of " in full.samples[0]["target"]
        assert full.figures["described"][0]["image"].startswith("data:image/png;base64,")
        with pytest.raises(Stopped):
            task.evaluate(EvalPass(model, CPU, full=False, should_stop=lambda: True))
        few = task.evaluate(EvalPass(model, CPU, max_examples=3))
        assert len(few.samples) == 3


def test_invalid_caption_settings_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?=.*\bpath\b)(?=.*\btext\b)"):
        CaptionTask(spec_of("caption")).prepare(RunSettings(task="caption"), tmp_path, SILENT)
    settings = settings_of(write_scenes(tmp_path, 30))
    prepared = CaptionTask(spec_of("caption")).prepare(settings, tmp_path / "run", SILENT)
    mixing = replace(settings, augment=AugmentSettings(mixup=0.2))
    with pytest.raises(ConfigError, match=r"augment\.mixup"):
        resolve_run(mixing, prepared, CPU)
    other = replace(settings, train=replace(settings.train, metric="accuracy"))
    with pytest.raises(ConfigError, match=r"(?=.*train\.metric='accuracy')(?=.*\bcider\b)"):
        resolve_run(other, prepared, CPU)


def write_texts(folder: Path, texts: list[str], size: int) -> Path:
    """A manifest of these captions of noise."""
    draw = np.random.default_rng(0)
    np.save(folder / "noise.npy", draw.integers(0, 255, (len(texts), size, size, 3), np.uint8))
    lines = [{"path": "noise.npy", "index": i, "text": text} for i, text in enumerate(texts)]
    return write_manifest(folder / "noise.jsonl", lines)


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedData, RunSettings]:
    """Images of 256 rows each: more than the kernel of short sequences takes in one tile."""
    folder = tmp_path_factory.mktemp("fine")
    texts = ["red", "red left of blue", "green and blue left of red and green", "blue left"]
    media = write_texts(folder, texts * 24, 32)
    settings = settings_of(media, **{"model.image.patch": 2, "model.d_model": 32})
    return CaptionTask(spec_of("caption")).prepare(settings, folder, SILENT), settings


def fine_task(made: tuple[PreparedData, RunSettings], device: torch.device) -> Seq2SeqObjective:
    prepared, settings = made
    settings = resolve_run(settings, prepared, device)
    train = replace(settings.train, batch_tokens=16 * 256, micro_tokens=16 * 256, bucket_steps=1)
    return CaptionTask(spec_of("caption")).objective(replace(settings, train=train), prepared)


def test_words_that_fill_a_batch_up_have_a_image_to_look_at(
    fine: tuple[PreparedData, RunSettings],
) -> None:
    task = fine_task(fine, CPU)
    fixed = task.fixed(16 * 256)
    assert fixed is not None
    for epoch in range(3):
        for step in task.epoch(epoch):
            for part in task.parts(step, 16 * 256):
                batch = task.batch(part, CPU, fixed)
                seen, words = (stream.layout.lengths_B for stream in batch.streams)
                assert (seen > 0)[words > 0].all()
                assert batch.weights_R is not None
                assert batch.weights_R.sum() == part.n_targets


def test_dummy_words_after_real_captions_change_neither_loss_nor_gradient(
    tmp_path: Path,
) -> None:
    """With as many images as there is room for, so that no dummy has one of its own."""
    media = write_texts(tmp_path, ["red", "red left of blue", "green and blue left of red"] * 10, 8)
    _, task = prepared_and_task(tmp_path / "run", settings_of(media))
    fixed = task.fixed(40)
    assert fixed is not None
    assert fixed.n_sequences == 10
    batch = task.batch(MicroBatch(EpochItems(0, np.arange(10)), 0), CPU, fixed)
    words, lengths = batch.streams[1].layout, task.train_dataset.lengths[:, 1]
    assert (words.lengths_B > 0).all()
    assert batch.weights_R is not None
    assert batch.weights_R.sum() == lengths[:10].sum() < fixed.target_rows
    assert words.lengths_B.max() == lengths.max()
    check_fixed_changes_nothing(task, 40, list(range(10)))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedData, RunSettings]:
    """3,600 images and captions of lengths like those of made scenes."""
    folder = tmp_path_factory.mktemp("many")
    n_words = np.random.default_rng(0).normal(7.8, 2.6, 3600).round().astype(int).clip(3, 14)
    media = write_texts(folder, [" ".join(["red"] * n) for n in n_words], 16)
    settings = settings_of(media, write_scenes(folder, 2))
    return CaptionTask(spec_of("caption")).prepare(settings, folder / "run", SILENT), settings


@pytest.mark.parametrize("n_parts", [1, 2])
@pytest.mark.parametrize(("patch", "batch_tokens"), [(2, 16_384), (4, 16_384), (1, 65_536)])
def test_mixed_steps_of_captions_are_even_and_fill_one_form_but_for_a_twentieth(
    many: tuple[PreparedData, RunSettings], patch: int, batch_tokens: int, n_parts: int
) -> None:
    prepared, settings = many
    front = ImageSettings(height=16, width=16, patch=patch)

    def new_task() -> Seq2SeqObjective:
        model = model_settings({"family": "image-seq2seq", "image": asdict(front)})
        train = replace(settings.train, batch_tokens=batch_tokens, bucket_steps=1)
        return CaptionTask(spec_of("caption")).objective(
            replace(settings, model=model, train=train), prepared
        )

    task, micro = new_task(), batch_tokens // n_parts
    fixed = task.fixed(micro)
    assert fixed is not None
    room = np.array([fixed.rows, fixed.target_rows])
    for epoch in range(3):
        steps = task.epoch(epoch)
        sizes = [len(step.rows) for step in steps]
        assert sorted(np.concatenate([s.rows for s in steps]).tolist()) == list(range(3600))
        assert min(sizes) > 0.95 * max(sizes)
        parts = [part for step in steps for part in task.parts(step, micro)]
        used = np.array([[part.n_tokens, part.n_targets] for part in parts])
        assert len(parts) == n_parts * len(steps)
        assert (used <= room).all()
        assert used.sum() / (len(parts) * room.sum()) > 0.95
        assert (used.sum(1) / room.sum()).min() > 0.9
    resumed = islice(iter_steps(new_task(), Cursor(0, 2)), len(task.epoch(0)))
    expected = [*task.epoch(0)[2:], *task.epoch(1)]
    for (rows, _), others in zip(resumed, expected, strict=False):
        assert rows.rows.tolist() == others.rows.tolist()


@pytest.mark.gpu
def test_recorded_steps_of_large_images_follow_plain_ones(
    fine: tuple[PreparedData, RunSettings],
) -> None:
    device = torch.device("cuda")
    task = fine_task(fine, device)
    assert task.settings.model is not None
    logged = []
    for recorded in (False, True):
        model = build_model(task.settings.model, device=device, seed=1)
        set_compute_dtype(model, torch.bfloat16)
        adam = torch.optim.AdamW(model.parameters(), fused=True, capturable=recorded)
        ranks = Distributed(device=device)
        step = Step(model, plain_loss(task), adam, ranks, use_cuda_graph=recorded)
        losses = []
        for rows, after in islice(iter_steps(task, Cursor()), 20):
            micro = 16 * 256
            item = step_item(task, rows, after, micro, ranks, task.fixed(micro))
            for batch in item.batches:
                step.add(batch, item.n_targets)
            step.finish(1e-3)
            losses.append(step.logged[0].item())
        logged.append(losses)
    torch.testing.assert_close(*map(torch.tensor, logged), rtol=2e-2, atol=2e-2)
