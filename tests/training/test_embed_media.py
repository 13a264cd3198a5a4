"""Vectors of images and recordings: one that is read twice is a pair, and changes each time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import headway
from headway.data.media.store import AudioStore, ImageStore
from headway.data.store import Columns, PreparedData, load_prepared
from headway.errors import ConfigError, DataError
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.progress import SILENT
from headway.settings.audio import AudioSettings
from headway.settings.augment import AugmentSettings
from headway.settings.folder import CONFIG
from headway.settings.model import AudioEncoderSettings, ImageEncoderSettings, ImageSettings
from headway.settings.run import RunSettings, load_run_settings, resolved_toml
from headway.settings.train import TrainSettings
from headway.specs.task_settings import EmbedSettings
from headway.specs.tasks import SPECS
from headway.storage import replace_text
from headway.tasks.contrast import ContrastiveObjective, ContrastiveTask, PairDataset
from headway.tasks.dataset import EvalPass
from headway.tasks.losses import plain
from headway.training.distributed import Distributed
from headway.training.optim import build_optimizer
from headway.training.step import Step

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 32, "dropout": 0.0}
IMAGE = ImageSettings(height=16, width=16, patch=4)
SEES = ImageEncoderSettings(image=IMAGE, heads=(), pooling="mean", **SMALL)
HEARS = AudioEncoderSettings(
    audio=AudioSettings(rate=1000, n_fft=50, hop=20, bands=8), heads=(), pooling="mean", **SMALL
)


def images(n: int = 24, seed: int = 0) -> ImageStore:
    """Each of a few blocks of colour, so that moving it leaves it what it is."""
    blocks = np.random.default_rng(seed).integers(0, 256, (n, 1, 3, 2, 2), np.uint8)
    return ImageStore.of(list(blocks.repeat(8, -1).repeat(8, -2)))


def recordings(n: int = 6) -> AudioStore:
    draw = np.random.default_rng(0)
    waves = [draw.integers(-3000, 3000, 300 + 40 * i).astype(np.int16) for i in range(n)]
    return AudioStore.of(waves, 1000)


def task_of(model: Any, columns: Columns, valid: Columns | None = None, **augment: Any) -> Any:
    train = TrainSettings(batch_tokens=4096, micro_tokens=4096, label_smoothing=0.0)
    changes = AugmentSettings(**augment)
    settings = RunSettings(task="embed", model=model, train=train, augment=changes)
    prepared = PreparedData(train=columns, valid=valid or columns)
    return ContrastiveObjective(settings, prepared)  # type: ignore[arg-type]


def first_batch(task: ContrastiveObjective) -> Any:
    [part] = task.parts(task.epoch(0)[0], 1)
    return task.batch(part, CPU, None)


def test_an_image_is_read_twice_and_changed_each_time() -> None:
    task = task_of(SEES, Columns({"image": images()}), crop=4)
    model, batch = build_model(SEES, seed=1), first_batch(task)
    one, two = (stream.values.groups[0] for stream in batch.streams)
    assert torch.equal(one, two)
    torch.manual_seed(0)
    one, two = (stream.values.groups[0] for stream in task.augment(model, batch).streams)
    assert not torch.equal(one, two)
    still = task.augment(model.eval(), batch)
    assert all(torch.equal(s.values.groups[0], batch.streams[0].values.groups[0])
               for s in still.streams)  # fmt: skip


def test_a_recording_is_heard_at_two_speeds() -> None:
    task = task_of(HEARS, Columns({"audio": recordings()}), speed=0.3)
    one, two = first_batch(task).streams
    assert torch.equal(one.values.samples_S, two.values.samples_S)
    assert not torch.equal(one.values.speed_A[:1], two.values.speed_A[:1])
    again, _ = first_batch(task).streams
    assert torch.equal(one.values.speed_A, again.values.speed_A)


@pytest.mark.parametrize("pairs", [False, True])
def test_the_loss_makes_every_image_choose_its_partner(pairs: bool) -> None:
    first, second = images(9), images(9, seed=1)
    columns = Columns({"image": first, "other": second} if pairs else {"image": first})
    task = task_of(SEES, columns)
    model, batch = build_model(SEES, seed=1).eval(), first_batch(task)
    rows = task.epoch(0)[0].rows
    x_BD, y_BD = (
        F.normalize(
            torch.stack([_vector(model, store[row]) for row in rows.tolist()]), dim=-1
        )
        for store in (first, second if pairs else first)
    )  # fmt: skip
    like_BB = x_BD @ y_BD.T / task.settings.embed.temperature
    own = torch.arange(len(rows))
    by_hand = (F.cross_entropy(like_BB, own, reduction="sum")
               + F.cross_entropy(like_BB.T, own, reduction="sum")) / 2  # fmt: skip
    torch.testing.assert_close(plain(task)(model, batch).sum, by_hand, rtol=1e-4, atol=1e-4)
    twice = task.train_dataset.batch(np.array([3, 5, 3]), CPU)
    assert not twice.targets.negatives_BB[0, 2]  # copies are no rivals
    assert twice.targets.negatives_BB[0, 1]


def _vector(model: Any, pixels: Any) -> torch.Tensor:
    given, layout = model.front.collate([pixels])
    with torch.no_grad():
        return model.pooled(model(given, layout), layout)[0]


def test_trained_on_images_alone_it_finds_the_same_image_elsewhere() -> None:
    task = task_of(SEES, Columns({"image": images(40)}), Columns({"image": images(20, 7)}),
                   crop=5)  # fmt: skip
    model = build_model(SEES, seed=1)
    before = task.evaluate(EvalPass(model.eval(), CPU))
    assert before == task.evaluate(EvalPass(model, CPU))  # always the same changes
    assert before.baselines["chance"]["accuracy"] == pytest.approx(5.0)
    model.train()
    optimizer = build_optimizer(model, TrainSettings(optimizer="muon"), device="cpu")
    step = Step(model, plain(task), optimizer, Distributed())
    torch.manual_seed(0)
    for epoch in range(30):
        for examples in task.epoch(epoch):
            [part] = task.parts(examples, 1)
            step.add(task.batch(part, CPU, None), part.n_targets)
            step.finish(4e-3)
    after = task.evaluate(EvalPass(model.eval(), CPU))
    assert after["loss"] < 0.6 * before["loss"]
    assert after["accuracy"] > before["accuracy"]


def test_a_run_finds_the_nearest_images_of_a_list(tmp_path: Path) -> None:
    settings = RunSettings(
        task="embed", model=SEES, train=TrainSettings(), embed=EmbedSettings(modality="image")
    )
    replace_text(tmp_path / CONFIG, resolved_toml(settings))  # type: ignore[arg-type]
    save_weights(tmp_path, model_weights(build_model(SEES, seed=1)))
    known = np.stack([np.moveaxis(images(5)[i][0], 0, -1) for i in range(5)])
    np.save(tmp_path / "known.npy", known)
    run = headway.load(tmp_path, device="cpu")
    answers = run([known[3], known[1]])
    assert answers[0].vector.shape == (16,)
    assert np.linalg.norm(answers[0].vector) == pytest.approx(1.0, abs=1e-4)
    near = run(known[3], nearest=str(tmp_path / "known.npy"), top=2)
    assert near.text == "known.npy:3"
    assert near.cosine == pytest.approx(1.0, abs=1e-4)
    assert near.near[0][0] == near.text
    assert len(near.near) == 2
    scores = run.evaluate(media=str(tmp_path / "known.npy"))
    assert 0 <= scores["accuracy"] <= 100


def kind(what: str = "image") -> ContrastiveTask:
    return ContrastiveTask(next(row for row in SPECS["embed"].rows if row.modality == what))


def test_settings_that_leave_nothing_to_learn_are_an_error(tmp_path: Path) -> None:
    task = task_of(SEES, Columns({"image": images()}))
    with pytest.raises(ConfigError, match=r"(?=.*augment)(?=.*model\.dropout=0\b)"):
        kind().check(task.settings, task.prepared)
    changed = replace(task.settings, augment=AugmentSettings(crop=2))
    kind().check(changed, task.prepared)  # type: ignore[arg-type]
    given = {"task": "embed", "data.media": [str(tmp_path)], "embed.modality": "image"}
    for key in ("augment.mixup", "embed.drop_words"):
        with pytest.raises(ConfigError, match=rf"{re.escape(key)}\b"):
            load_run_settings(None, [], {**given, key: 0.2})


def test_items_describe_their_rows() -> None:
    task = task_of(SEES, Columns({"image": images(3)}))
    items = task.train_dataset
    assert isinstance(items, PairDataset)
    one, two = items.describe_positions(1)
    assert len(one) + len(two) == int(items.lengths[1, 0])
    assert one[-1].box == (12, 12, 16, 16)


def write_pairs(folder: Path, n: int = 30) -> Path:
    """An image and its negative on each line; two lines share their first image."""
    rows = ["first\tid\tsecond"]
    for number in range(n):
        pixels = np.moveaxis(images(n)[max(1, number)][0], 0, -1)
        Image.fromarray(pixels).save(folder / f"a{number}.png")
        Image.fromarray(255 - pixels).save(folder / f"b{number}.png")
        rows.append(f"a{number}.png\t{number}\tb{number}.png")
    path = folder / "pairs.tsv"
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return path


def pair_settings(path: Path) -> RunSettings:
    given = {
        "task": "embed", "data.media": [str(path)], "data.path_field": "first",
        "data.other_field": "second", "data.valid_size": 5, "embed.modality": "image",
    }  # fmt: skip
    return load_run_settings(None, [], given)


def test_pairs_of_images_are_read_from_the_lines_of_a_list(tmp_path: Path) -> None:
    path = write_pairs(tmp_path)
    prepared = kind().prepare(pair_settings(path), tmp_path / "run", SILENT)
    assert kind().describe(prepared) == f"{prepared.train.n} pairs"
    assert prepared.train.n + prepared.valid.n == 30
    assert prepared.report.n_pairs == 30
    seen = []
    for part in (prepared.train, prepared.valid):
        for number in range(part.n):
            one, other = part["image"][number], part["other"][number]
            assert (np.asarray(one) == 255 - np.asarray(other)).all()
        seen.append({np.asarray(part["image"][number]).tobytes() for number in range(part.n)})
    assert not seen[0] & seen[1]  # the image that comes twice is on one side
    again = load_prepared(tmp_path / "run")
    assert again.train.n == prepared.train.n
    task = task_of(SEES, prepared.train, prepared.valid)
    assert len(task.train_dataset.sides) == 2
    scores = task.evaluate(EvalPass(build_model(SEES, seed=1).eval(), CPU))
    assert 0 <= scores["accuracy"] <= 100


def test_pairs_that_are_none_are_named(tmp_path: Path) -> None:
    path = write_pairs(tmp_path, 12)
    with pytest.raises(DataError, match=r"(?=.*\bfirst\b)(?=.*\bsecond\b)"):
        kind().prepare(pair_settings(tmp_path), tmp_path / "run", SILENT)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("b3.png", ""), encoding="utf-8")
    with pytest.raises(DataError, match=r"line 5\b.*'second'"):
        kind().prepare(pair_settings(path), tmp_path / "run", SILENT)
    path.write_text(text.replace("b3.png", "gone.png"), encoding="utf-8")
    with pytest.raises(DataError, match=r"gone\.png"):
        kind().prepare(pair_settings(path), tmp_path / "run", SILENT)
