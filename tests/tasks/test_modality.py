"""What data is where nobody says it: by the names and the form of its first file."""

from __future__ import annotations

import json
import re
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import headway
from headway.data.named_data import as_files, bind_data
from headway.errors import ConfigError, DataError, UserError
from headway.settings.run import RunSettings, load_run_settings
from headway.settings.task_rows import spec_of
from headway.tasks.label import ClassifyTask
from headway.tasks.modality import decided
from headway.tasks.task import find_task
from headway.training.run import Training
from tests.facts import naming

SIDE = 8


def settings(task: str, path: Path, *words: str) -> RunSettings:
    return load_run_settings(None, list(words), {"task": task, "data.media": [str(path)]})


def image(path: Path, frames: int = 1) -> Path:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 255, (frames, SIDE, SIDE)).astype(np.uint8)
    first, *others = (Image.fromarray(one) for one in pixels)
    more = {"save_all": True, "append_images": others} if others else {}
    first.save(path, **more)
    return path


def audio(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(200))
    return path


def array(path: Path, *shape: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.zeros(shape, np.uint8))
    return path


def listed(manifest: Path, **row: object) -> Path:
    manifest.write_text(json.dumps(row) + "\n")
    return manifest


def made(folder: Path) -> dict[str, tuple[Path, str]]:
    """Files by what is about them, each with what it is."""
    inner = folder / "inner"
    image(inner / "a.png")
    audio(inner / "a.wav")
    image(inner / "a.gif", frames=3)
    array(inner / "grey.npy", 6, 4, SIDE, SIDE)
    array(inner / "colour.npy", 6, SIDE, SIDE, 3)
    return {
        "an image": (image(folder / "one" / "x" / "a.png").parents[1], "image"),
        "frames": (image(folder / "two" / "x" / "a.gif", frames=3).parents[1], "video"),
        "an array with time": (array(folder / "three" / "x" / "a.npy", 4, SIDE, SIDE).parents[1],
                               "video"),
        "an array with colours": (array(folder / "four" / "x" / "a.npy", SIDE, SIDE, 3).parents[1],
                                  "image"),
        "a recording": (audio(folder / "five" / "x" / "a.wav").parents[1], "audio"),
        "a list of images": (listed(folder / "a.jsonl", path="inner/a.png", label=1), "image"),
        "a list of frames": (listed(folder / "b.jsonl", path="inner/a.gif", label=1), "video"),
        "a list of recordings": (listed(folder / "c.jsonl", path="inner/a.wav", label=1), "audio"),
        "a list into a stack": (listed(folder / "d.jsonl", path="inner/grey.npy", index=1, label=1),
                                "video"),
        "a list into images": (
            listed(folder / "e.jsonl", path="inner/colour.npy", index=1, label=1), "image"),
        "samples": (listed(folder / "f.jsonl", path="inner/grey.npy", index=0, rate=8000, label=1),
                    "audio"),
        "what is not there": (folder / "nowhere", "image"),
    }  # fmt: skip


@pytest.mark.parametrize("task", ["classify", "fill"])
def test_the_first_file_sets_the_modality_of_all(task: str, tmp_path: Path) -> None:
    for name, (path, what) in made(tmp_path).items():
        assert spec_of(decided(settings(task, path))).modality == what, name


def values(path: Path, array: np.ndarray) -> str:
    np.save(path, array)
    return path.name


def table(path: Path, names: Sequence[str]) -> Path:
    """A list of files with two labels, in the format of its name."""
    rows = [{"path": name, "label": "ab"[i % 2]} for i, name in enumerate(names)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        between = {".tsv": "\t", ".csv": ","}[path.suffix]
        lines = [["path", "label"], *([row["path"], row["label"]] for row in rows)]
        path.write_text("".join(between.join(line) + "\n" for line in lines))
    return path


NOISE = np.random.default_rng(0).random((300, 2))


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.ones((SIDE, SIDE), np.uint8), "image"),
        (np.ones((SIDE, SIDE, 3), np.uint8), "image"),
        (NOISE[:SIDE, :1].repeat(SIDE, 1), "image"),
        (np.ones((5, SIDE, SIDE, 3), np.uint8), "video"),
        (NOISE[:, 0], "audio"),
        (NOISE - 0.5, "audio"),
        (np.zeros((300, 2), np.int16), "audio"),
    ],
    ids=lambda one: one if isinstance(one, str) else f"{one.dtype}{one.shape}",
)
def test_lists_of_arrays_are_media(tmp_path: Path, kind: str, array: np.ndarray, what: str) -> None:
    names = [values(tmp_path / f"{i}.npy", array) for i in range(6)]
    path = table(tmp_path / f"list.{kind}", names)
    assert bind_data("classify", str(path)).files == "media"
    assert spec_of(decided(settings("classify", path))).modality == what


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("what", ["image", "audio"])
def test_an_array_among_other_media_is_one_of_them(tmp_path: Path, place: int, what: str) -> None:
    array = NOISE[:, 0] if what == "audio" else np.ones((SIDE, SIDE, 3), np.uint8)
    make, end = (audio, "wav") if what == "audio" else (image, "png")
    names = [make(tmp_path / f"{i}.{end}").name for i in range(6)]
    names[place] = values(tmp_path / "a.npy", array)
    path = table(tmp_path / "list.tsv", names)
    assert bind_data("classify", str(path)).files == "media"
    assert spec_of(decided(settings("classify", path))).modality == what


def test_a_silent_array_that_may_be_an_image_needs_a_modality(tmp_path: Path) -> None:
    names = [values(tmp_path / f"{i}.npy", np.zeros((300, 2))) for i in range(6)]
    path = table(tmp_path / "list.tsv", names)
    with pytest.raises(DataError, match=naming("0.npy", "classify.modality=audio")):
        decided(settings("classify", path))
    chosen = decided(settings("classify", path, "classify.modality=audio"))
    assert spec_of(chosen).modality == "audio"


def test_the_kind_of_data_picks_what_does_the_task(tmp_path: Path) -> None:
    path = image(tmp_path / "x" / "a.png").parents[1]
    for words, what in (
        (("classify", path), "image"),
        (("classify", path, "classify.modality=video"), "video"),
        (("classify", path, "model.audio.bands=20"), "audio"),
    ):
        kind = find_task(settings(*words))
        assert isinstance(kind, ClassifyTask)
        assert kind.row.modality == what


def test_data_in_memory_is_inspected_if_it_is_in_files(tmp_path: Path) -> None:
    manifest = tmp_path / "rows.jsonl"
    training = Training(settings=settings("classify", manifest), out=tmp_path, device="cpu")
    listed(manifest, path=str(audio(tmp_path / "a.wav")), label=1)
    training.decide()
    assert isinstance(training.task, ClassifyTask)
    assert training.task.row.modality == "audio"
    noise = np.random.default_rng(0).standard_normal((12, 200)).astype(np.float32)
    data = {"audio": [(0.1 * one, 8000) for one in noise], "label": list("ab") * 6}
    assert "12 " in str(headway.check("classify", data))


def test_a_run_sets_the_modality_of_its_test_data(tmp_path: Path) -> None:
    """An imported one has no data of its own to tell it by."""
    folder = str(image(tmp_path / "x" / "a.png").parents[1])
    with as_files("classify", folder, what="image") as found:
        assert found == {"media": [folder]}
    names = {"path": ["a.png"], "label": ["x"]}
    assert bind_data("classify", names, what="image").files == "media"
    with pytest.raises(ConfigError, match=r"text=.*'path'"):
        bind_data("classify", names, what="text")
    assert bind_data("classify", names, {"text": "path"}, what="text").files == "text"


@pytest.mark.parametrize(
    ("key", "value", "files"),
    [
        ("augment.flip", True, "audio"), ("augment.speed", 0.1, "image"),
        ("classify.teacher", "x", "audio"),
    ],
)  # fmt: skip
def test_settings_without_effect_on_the_files_are_an_error_once_their_modality_is_known(
    tmp_path: Path, key: str, value: object, files: str
) -> None:
    media = audio(tmp_path / "a" / "1.wav") if files == "audio" else image(tmp_path / "1.png")
    given = {"task": "classify", "data.media": [str(media.parent)], key: value}
    run = Training(settings=load_run_settings(None, [], given), out=tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match=re.escape(key)):
        run.train()


def test_a_setting_without_effect_is_reported_with_its_line(tmp_path: Path) -> None:
    media, recipe = audio(tmp_path / "a" / "1.wav").parent, tmp_path / "r.toml"
    recipe.write_text(f'task = "classify"\ndata.media = ["{media}"]\n[augment]\nflip = true\n')
    settings = load_run_settings(recipe, [], is_recipe=True)
    with pytest.raises(UserError, match=r"r\.toml.*\b4\b.*augment\.flip"):
        Training(settings=settings, out=tmp_path / "run", device="cpu").train()
