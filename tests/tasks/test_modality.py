"""What data is where nobody says it: by the names and the form of its first file."""

from __future__ import annotations

import json
import re
import wave
from pathlib import Path

import numpy as np
import pytest

import headway
from headway.data.named_data import as_files, bind_data
from headway.errors import ConfigError, UserError
from headway.settings.run import RunSettings, load_run_settings
from headway.settings.task_rows import spec_of
from headway.tasks.label import ClassifyTask
from headway.tasks.modality import decided
from headway.tasks.task import find_task
from headway.training.run import Training

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
