"""How often a training opens its data files and lists its folders."""

from __future__ import annotations

import os
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway.data.source import with_files
from headway.errors import FolderError
from headway.tasks.modality import modality_of_file
from headway.tasks.task import find_task

from .labelled import asked, resolved, sentiments, write_tsv

OPENED = ("open", "os.listdir", "os.scandir")
STEPS = {"train.steps": 1, "train.threads": 1, "model.n_layers": 1}
BYTES = {**STEPS, "tokenizer.kind": "bytes"}
_watched: list[tuple[Path, Counter[str]]] = []


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _watched and event in OPENED and isinstance(arguments[0], str | os.PathLike):
        path = Path(arguments[0]).absolute()
        for folder, counts in _watched:
            if path.is_relative_to(folder):
                counts[str(path.relative_to(folder))] += 1


sys.addaudithook(_note)  # cannot be removed, but costs nothing while nothing is watched


@contextmanager
def watched(folder: Path) -> Iterator[Counter[str]]:
    """Count how often each file is opened and each folder is listed below a folder."""
    counts: Counter[str] = Counter()
    _watched.append((folder, counts))
    try:
        yield counts
    finally:
        _watched.pop()


def train(data: Path, out: Path, settings: dict[str, Any], **more: Any) -> Counter[str]:
    with watched(data if data.is_dir() else data.parent) as counts:
        headway.train(
            "classify", data, out=out, settings=settings, device="cpu", quiet=True, **more
        )
    return counts


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    rows = [f"text number {i} of many\t{'ab'[i % 2]}" for i in range(60)]
    path = tmp_path / "data" / "reviews.tsv"
    path.write_text("\n".join(["text\tlabel", *rows, ""]))
    return path


def test_a_file_is_opened_for_its_format_and_for_each_pass(reviews: Path, tmp_path: Path) -> None:
    # The scan, a new tokenizer and the encoding each read the whole file.
    assert train(reviews, tmp_path / "run", BYTES, start="none") == {"reviews.tsv": 4}
    # The tokenizer of the start run is not trained.
    found = train(reviews, tmp_path / "more", {"train.steps": 1}, start=tmp_path / "run")
    assert found == {"reviews.tsv": 3}
    with watched(reviews.parent) as counts:
        headway.load(tmp_path / "run").evaluate(reviews)
    assert counts == {"reviews.tsv": 2}


def test_a_changed_file_is_noticed_when_a_run_is_resumed(reviews: Path, tmp_path: Path) -> None:
    train(reviews, tmp_path / "run", BYTES, start="none")
    state = reviews.stat()
    reviews.write_text(reviews.read_text().replace("number 1 ", "number X "))
    os.utime(reviews, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert reviews.stat().st_size == state.st_size
    with pytest.raises(FolderError):
        train(reviews, tmp_path / "run", BYTES, start="none")


def test_a_folder_of_images_is_listed_once_and_its_task_decided_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    decided: list[Path] = []

    def decide(path: Path, *more: Any) -> str:
        decided.append(path)
        return modality_of_file(path, *more)

    monkeypatch.setattr("headway.tasks.modality.modality_of_file", decide)
    pixels = np.random.default_rng(0).integers(0, 255, (2, 12, 8, 8), np.uint8)
    for name, images in zip(("cat", "dog"), pixels, strict=True):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / "data" / name / f"{i}.jpg")
    counts = train(tmp_path / "data", tmp_path / "run", STEPS)
    assert decided == [tmp_path / "data"]
    assert {name: counts.pop(name) for name in (".", "cat", "dog")} == {".": 1, "cat": 1, "dog": 1}
    # Each image is opened for the size to store, for its checksum and for its pixels.
    assert sorted(counts.values()) == [3] * 24


def test_the_settings_of_a_run_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    settings = with_files(asked("classify", write_tsv(tmp_path / "a.tsv", sentiments())))
    found, _ = resolved(find_task(settings), settings, tmp_path)
    assert pickle.loads(pickle.dumps(found)) == found


def counted(folder: Path, task: str, *data: Path, **files: str) -> Counter[str]:
    """Count what checking data opens, which reads it as a training does."""
    with watched(folder) as counts:
        headway.check(task, *data, settings={"tokenizer.kind": "bytes"}, **files)
    return counts


def test_text_files_of_classes_and_aligned_files_are_opened_once_per_pass(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    for i in range(40):
        (texts / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (texts / "ab"[i % 2] / f"{i}.txt").write_text(f"text number {i} of many")
    counts = counted(texts, "classify", texts)
    assert [counts.pop(name) for name in (".", "a", "b")] == [1, 1, 1]
    assert set(counts.values()) == {4}
    aligned = tmp_path / "aligned"
    aligned.mkdir()
    for name in ("a.de", "a.en"):
        (aligned / name).write_text("".join(f"{name} number {i}\n" for i in range(60)))
    files = {"source": str(aligned / "a.de"), "target": str(aligned / "a.en")}
    assert counted(aligned, "translate", **files) == {"a.de": 4, "a.en": 4}
