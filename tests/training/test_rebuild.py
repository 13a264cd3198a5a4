"""Learning without labels: what is hidden is hidden, and what is rebuilt is what stood there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_digits import DigitsSettings, make_digits
from make_shapes import ShapesSettings, make_shapes
from PIL import Image
from torch import Tensor

from benchmarks.few_labels import as_list, few_of
from headway.cli.main import main
from headway.data.batches import FixedShapes, StepPlan
from headway.data.masking import CounterRandom, PatchMasker
from headway.data.media.store import AudioStore, ImageStore
from headway.data.store import Columns
from headway.models.build import build_model
from headway.models.encoder import Encoder
from headway.models.parts.audio import AudioFront
from headway.settings.augment import AugmentSettings
from headway.settings.folder import load_run
from headway.settings.model import (
    AudioEncoderSettings,
    AudioSettings,
    ImageEncoderSettings,
    ImageSettings,
)
from headway.specs.task_settings import FillSettings
from headway.tasks.dataset import Batch, EpochSeed, EvalPass, batches_of
from headway.tasks.mask import MEAN, MaskedMediaHead, masked_outputs, read_masked
from headway.tasks.masked_media import MaskedMediaDataset, mask_frames
from headway.tasks.preprocess.audio import AudioPreprocessor
from headway.tasks.preprocess.image import ImagePreprocessor
from headway.tasks.preprocess.preprocessor import MaskTargets

CPU = torch.device("cpu")
SMALL = {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16, "dropout": 0.0}
IMAGE = ImageSettings(height=12, width=16, patch=4)
AUDIO = AudioSettings(rate=1000, n_fft=50, hop=20, bands=8)


def seeing(image: ImageSettings) -> Encoder:
    settings = ImageEncoderSettings(image=image, heads=("rebuild",), **SMALL)  # type: ignore[arg-type]
    model = build_model(settings, seed=1).eval()
    assert isinstance(model, Encoder)
    return model


def hearing() -> Encoder:
    model = build_model(AudioEncoderSettings(audio=AUDIO, heads=("rebuild",), **SMALL)).eval()  # type: ignore[arg-type]
    assert isinstance(model, Encoder)
    return model


def hidden_of(
    intake: ImagePreprocessor | AudioPreprocessor, columns: Columns, epoch: int = 0, **how: Any
) -> MaskedMediaDataset:
    return intake.masked_dataset(columns, FillSettings(**how)).for_epoch(EpochSeed(0, epoch))


def images(n: int, shape: ImageSettings = IMAGE, **how: Any) -> MaskedMediaDataset:
    rng = np.random.default_rng(0)
    size = (n, shape.frames, shape.channels, shape.height, shape.width)
    store = ImageStore.of(list(rng.integers(0, 256, size, np.uint8)))
    intake = ImagePreprocessor(shape, AugmentSettings())
    return hidden_of(intake, Columns({"image": store}), **({"mask": 0.5} | how))


def recordings(*lengths: int, **how: Any) -> MaskedMediaDataset:
    rng = np.random.default_rng(0)
    waves = [rng.integers(-3000, 3000, n).astype(np.int16) for n in lengths]
    columns = Columns({"audio": AudioStore.of(waves, AUDIO.rate)})
    return hidden_of(AudioPreprocessor(AUDIO, AugmentSettings()), columns, **how)


def test_what_is_hidden_follows_from_seed_epoch_and_item_alone() -> None:
    hider, draws = PatchMasker(mask=0.6, span=1), CounterRandom(3, 2)
    items = np.arange(7)
    whole = hider.mask_images(items, (1, 3, 4), draws)
    assert whole.shape == (7, 7)
    some = hider.mask_images(items[[5, 2]], (1, 3, 4), draws)
    assert (some == whole[[5, 2]]).all()
    assert (hider.mask_images(items, (1, 3, 4), replace(draws, epoch=3)) != whole).any()
    assert (hider.mask_images(items, (1, 3, 4), replace(draws, seed=4)) != whole).any()
    assert len({tuple(row) for row in whole.tolist()}) > 1


def test_every_position_is_masked_at_the_set_rate() -> None:
    hider = PatchMasker(mask=0.25, span=1)
    hidden = hider.mask_images(np.arange(4000), (1, 2, 4), CounterRandom(0, 0))
    shares = np.bincount(hidden.ravel(), minlength=8) / 4000
    assert np.abs(shares - 0.25).max() < 0.03


def test_spans_are_hidden_together_and_videos_at_all_times() -> None:
    hider, draws = PatchMasker(mask=0.5, span=2), CounterRandom(0, 0)
    for row in hider.mask_images(np.arange(10), (1, 4, 4), draws):
        blocks = {(place // 4 // 2, place % 4 // 2) for place in row.tolist()}
        assert len(row) == 8
        assert len(blocks) == 2
    tubes = hider.mask_images(np.arange(3), (5, 4, 4), draws)
    places = tubes.reshape(3, 5, 8) % 16
    assert (places == places[:, :1]).all()
    hidden = PatchMasker(mask=0.4, span=10).mask_audio(8, 200, draws)
    assert len(hidden) == 80
    runs = np.split(hidden, np.flatnonzero(np.diff(hidden) > 1) + 1)
    assert np.mean([len(run) for run in runs]) >= 7  # whole spans, but for the rims and the last
    assert hider.mask_audio(0, 1, draws).tolist() == [0]


def given_to(
    model: Encoder, items: MaskedMediaDataset, batch: Batch[MaskTargets]
) -> tuple[Tensor, Tensor]:
    """What the model makes of what it may see, and what it is to rebuild."""
    given = items.apply_mask(model, batch, training=False)
    [stream] = given.streams
    return model(stream.values, stream.layout), given.targets.targets


@pytest.mark.parametrize("stem", ["patches", "conv"])
@pytest.mark.parametrize("frames", [1, 4])
def test_masked_patches_do_not_change_the_output(stem: Any, frames: int) -> None:
    shape = replace(IMAGE, stem=stem, stem_width=8, frames=frames, tubelet=min(2, frames))
    model, items = seeing(shape), images(3, shape)
    batch = items.batch(np.arange(3), CPU)
    before, targets = given_to(model, items, batch)
    assert batch.targets.masked_N is not None
    hidden = batch.targets.masked_N.view(3, -1)[:, 1:]  # behind the class token
    pixels = hidden.view(3, -1, 3, 4)
    for axis, size in ((1, shape.tubelet), (2, 4), (3, 4)):
        pixels = pixels.repeat_interleave(size, axis)
    (group,) = batch.streams[0].values.groups
    noise = torch.randint_like(group, 256)
    group.copy_(torch.where(pixels[:, :, None], noise, group))
    then, targets_then = given_to(model, items, batch)
    torch.testing.assert_close(then, before)
    assert not torch.allclose(targets_then, targets)
    group.copy_(torch.where(pixels[:, :, None], group, noise))  # and what is seen does matter
    assert not torch.allclose(given_to(model, items, batch)[0], before)


def test_targets_are_the_pixels_of_hidden_patches_with_mean_0_and_variance_1() -> None:
    model, items = seeing(IMAGE), images(2)
    batch = items.batch(np.array([1]), CPU)
    _, targets = given_to(model, items, batch)
    (group,) = batch.streams[0].values.groups
    assert batch.rows_R is not None
    for row, target in zip(batch.rows_R.tolist(), targets, strict=True):
        line, column = divmod(row - 1, 4)
        patch = group[0, 0, :, 4 * line : 4 * line + 4, 4 * column : 4 * column + 4].numpy()
        even = (patch - patch.mean()) / patch.std()
        torch.testing.assert_close(
            target, torch.from_numpy(even.ravel()).float(), rtol=0, atol=5e-3
        )


def test_masked_frames_do_not_change_the_output() -> None:
    model, items = hearing(), recordings(600, 350, mask=0.5, span=3)
    batch = items.batch(np.arange(2), CPU)
    [stream], gone, front = batch.streams, batch.targets, model.front
    assert isinstance(front, AudioFront)
    mel = front.mel(stream.values)
    assert gone.masked_A is not None
    noise = torch.where(gone.masked_A[:, None], torch.randn_like(mel), mel)

    def output(mel_AF: Tensor) -> tuple[Tensor, Tensor]:
        seen, targets = mask_frames(front, replace(stream.values, mel_AF=mel_AF), gone)
        return model(seen, stream.layout), targets

    (before, targets), (after, others) = output(mel), output(noise)
    torch.testing.assert_close(after, before)
    assert not torch.allclose(targets, others)
    assert not torch.allclose(output(mel + torch.randn_like(mel))[0], before)


def test_targets_of_recordings_are_the_frames_of_each_hidden_row() -> None:
    """30 and 17 frames, two a row: the last row of the second has one frame, twice."""
    model, items = hearing(), recordings(600, 350, epoch=1, mask=1.0, span=1)
    batch = items.batch(np.arange(2), CPU)
    rows = batch.rows_R
    assert rows is not None
    assert 23 in rows
    _, targets = given_to(model, items, batch)
    assert isinstance(model.front, AudioFront)
    parts = model.front.mel(batch.streams[0].values).split([30, 17])
    even = torch.cat([(part - part.mean()) / part.std(correction=0) for part in parts])
    first = [2 * i for i in range(15)] + [30 + 2 * i for i in range(9)]
    last = [i + 1 if i != 46 else i for i in first]
    expected = torch.cat([even[first], even[last]], dim=1)[rows]
    torch.testing.assert_close(targets, expected, rtol=1e-4, atol=1e-4)
    assert items.n_targets(np.arange(2)) == len(rows) == 14 + 8  # one row stays


def test_the_fixed_size_form_costs_what_the_plain_one_does() -> None:
    model, items = seeing(IMAGE), images(5, epoch=1)
    rows = np.array([3, 0, 4])
    plan = StepPlan.of_lengths(items.lengths[:, 0], 6 * 13, 0)
    fixed = items.fixed(plan, 6 * 13)
    assert isinstance(fixed, FixedShapes)
    plain, filled = (
        items.apply_mask(model, items.batch(rows, CPU, form), training=False)
        for form in (None, fixed)
    )
    error, errors = (
        MaskedMediaHead().errors(read_masked("rebuild", model, one), one.targets.targets)
        for one in (plain, filled)
    )
    assert len(errors) == 2 * len(error)
    assert filled.weights_R is not None
    torch.testing.assert_close((errors * filled.weights_R).sum(), error.sum())
    assert float(filled.weights_R.sum()) == items.n_targets(rows)


def test_predicting_the_mean_explains_no_variance() -> None:
    model, items = seeing(IMAGE), images(40)
    head = model.head_named("rebuild").linear
    with torch.no_grad():
        head.weight.zero_()
        targets = torch.cat(
            [given_to(model, items, batch)[1] for _, batch in batches_of(items, np.arange(40), CPU)]
        )
        head.bias.copy_(targets.mean(0))
    outputs = masked_outputs(EvalPass(model, CPU), "rebuild", items)
    found = MaskedMediaHead().predictions(outputs)
    values, [one] = found.values, found.find_baselines().values()
    baseline = one.values
    assert values["variance_explained"] == pytest.approx(0.0, abs=1e-3)
    assert values["loss"] == pytest.approx(baseline["loss"], rel=1e-5)
    assert baseline["loss"] == pytest.approx(float(targets.var(0, correction=0).mean()), rel=1e-4)


QUICK = ["model.d_model=16", "model.n_heads=2", "model.n_layers=1", "model.d_ff=16"]
STEPS = ["train.steps=2", "train.eval_every=2", "train.batch_tokens=200"]


def run(*words: str) -> int:
    return main([*words, "--device", "cpu"] if words[0] != "make" else [*words])


def test_images_without_labels_begin_a_run_with_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_shapes(tmp_path / "s", ShapesSettings(n=24, valid=6, test=4, size=24))
    media = ["--media", "s/train.jsonl", "--valid-media", "s/valid.jsonl"]
    assert run("train", "fill", *media, "--out", "filled", *QUICK, *STEPS) == 0
    old = load_run(Path("filled"))
    assert (old.fill.modality, old.fill.mask) == ("image", 0.6)
    assert old.model is not None
    assert old.model.heads == ("rebuild",)  # type: ignore[union-attr]
    capsys.readouterr()
    assert run("evaluate", "filled", "--media", "s/test.jsonl") == 0
    assert MEAN in capsys.readouterr().out
    labelled = ["--media", "s/train.jsonl", "--valid-media", "s/train.jsonl"]
    assert run("train", "classify", "--from", "filled", *labelled, "--out", "seen", *STEPS) == 0
    printed = capsys.readouterr().err
    assert re.search(r"\bfilled\b.*\btensors\b.*\bclasses\b", printed)
    assert re.search(r"^(?!.*\bfilled\b).*\bmask\b.*\brebuild\b", printed, re.MULTILINE)  # not used
    assert run("train", "fill", "--from", "seen", *media, "--out", "again", *STEPS) == 0
    printed = capsys.readouterr().err
    assert re.search(r"\bseen\b.*\btensors\b.*\bmask\b.*\brebuild\b", printed)
    assert run("predict", "filled", "s/images.npy") == 2
    assert "--from filled" in capsys.readouterr().err


def test_recordings_without_labels_begin_a_run_with_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    index = [(s, d, t, 800 + 100 * t) for s in range(1, 6) for d in range(4) for t in range(3)]
    np.save("index.npy", np.array(index, np.int32))
    total = sum(row[3] for row in index)
    np.save("all.npy", rng.integers(-2000, 2000, total).astype(np.int16))
    make_digits(
        tmp_path / "d",
        DigitsSettings(recordings="all.npy", index="index.npy", rate=8000, n=6, valid=2, test=2),
    )
    media = ["--media", "d/digits-train.jsonl", "--valid-media", "d/digits-valid.jsonl"]
    rate = ["model.audio.rate=8000", "model.audio.bands=16"]
    assert run("train", "fill", *media, "--out", "filled", "augment.noise=0.1") == 2
    assert "augment.noise" in capsys.readouterr().err
    assert run("train", "fill", *media, "--out", "filled", *QUICK, *STEPS, *rate) == 0
    old = load_run(Path("filled"))
    assert (old.fill.modality, old.fill.span) == ("audio", 10)
    speakers = ["--media", "d/speakers-train.jsonl", "--valid-media", "d/speakers-valid.jsonl"]
    assert run("train", "identify", "--from", "filled", *speakers, "--out", "who", *STEPS) == 0
    assert re.search(r"\bfilled\b.*\btensors\b.*\bclasses\b", capsys.readouterr().err)
    words = ["--media", "d/train.jsonl", "--valid-media", "d/valid.jsonl", "transcribe.ctc=1"]
    assert run("train", "transcribe", "--from", "filled", *words, "--out", "heard", *STEPS) == 0
    assert re.search(r"\bfilled\b.*\btensors\b.*\bctc\b", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("augment.mixup=0.2", "augment.mixup"),
        ("augment.noise=0.1", "augment.noise"),
        ("fill.whole_words=true", "fill.whole_words"),
        ("model.image.stem=grid", "image.stem=grid"),
        ("model.image.stride=2", "image.stride=2"),
    ],
)
def test_settings_that_fill_cannot_use_are_an_error(
    word: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_shapes(tmp_path / "s", ShapesSettings(n=12, valid=2, test=1, size=24))
    media = ["--media", str(tmp_path / "s/train.jsonl")]
    assert run("train", "fill", *media, "--out", str(tmp_path / "o"), *STEPS, word) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_media_settings_with_text_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three\n" * 50)
    out = ["--out", str(tmp_path / "o"), "fill.span=3"]
    assert run("train", "fill", "--text", str(text), *out) == 2
    assert "fill.span" in capsys.readouterr().err


def test_few_labels_are_as_many_of_each_class_and_choosing_takes_others(tmp_path: Path) -> None:
    folders = [tmp_path / "all" / name for name in ("one", "two")]
    for bright, folder in enumerate(folders):
        folder.mkdir(parents=True)
        for number in range(8):
            pixels = np.full((6, 6, 3), 100 * bright + number, np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    work = tmp_path / "work"
    work.mkdir()
    everything = as_list([str(tmp_path / "all")], work, "all")
    stack = np.load(work / "all.npy")
    few, valid = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in few_of(everything, 3, seed=1)
    )
    for rows in (few, valid):
        assert sorted(row["label"] for row in rows) == ["one"] * 3 + ["two"] * 3
        assert all((stack[row["index"]].max() >= 100) == (row["label"] == "two") for row in rows)
    assert not {row["index"] for row in few} & {row["index"] for row in valid}
