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
from headway.data import files
from headway.data.source import with_files
from headway.errors import FolderError
from headway.tasks.modality import modality_of_file
from headway.tasks.task import find_task

from .labelled import resolved, sentiments, settings_of, write_tsv

OPENED = ("open", "os.listdir", "os.scandir")
STEPS = {"train.steps": 1, "train.threads": 1, "model.n_layers": 1}
BYTES = {**STEPS, "tokenizer.kind": "bytes"}
WORDS = {**STEPS, "tokenizer.kind": "words"}
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


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all files as too large to be kept whole."""
    monkeypatch.setattr(files, "KEPT", 0)


def test_a_small_file_is_opened_for_its_format_and_for_the_scan(
    reviews: Path, tmp_path: Path
) -> None:
    assert train(reviews, tmp_path / "run", WORDS, start="none") == {"reviews.tsv": 2}
    found = train(reviews, tmp_path / "more", {"train.steps": 1}, start=tmp_path / "run")
    assert found == {"reviews.tsv": 2}
    with watched(reviews.parent) as counts:
        headway.load(tmp_path / "run").evaluate(reviews)
    assert counts == {"reviews.tsv": 2}


@pytest.mark.usefixtures("nothing_kept")
def test_a_large_file_is_opened_for_its_format_its_scan_and_its_encoding(
    reviews: Path, tmp_path: Path
) -> None:
    assert train(reviews, tmp_path / "bytes", BYTES, start="none") == {"reviews.tsv": 3}
    # A new vocabulary is learned from the training texts only, after the split.
    assert train(reviews, tmp_path / "run", WORDS, start="none") == {"reviews.tsv": 4}
    found = train(reviews, tmp_path / "more", {"train.steps": 1}, start=tmp_path / "run")
    assert found == {"reviews.tsv": 3}
    with watched(reviews.parent) as counts:
        headway.load(tmp_path / "run").evaluate(reviews)
    assert counts == {"reviews.tsv": 2}


def test_a_file_with_named_columns_and_a_table_in_memory_are_opened_as_often(
    reviews: Path, tmp_path: Path
) -> None:
    named = reviews.with_name("named.csv")
    named.write_text(reviews.read_text().replace("\t", ",").replace("text,label", "said,stars"))
    counts = train(named, tmp_path / "run", BYTES, start="none", text="said", label="stars")
    assert counts == {"named.csv": 2}
    table = {"text": [f"text {i}" for i in range(60)], "label": ["a", "b"] * 30}
    out = tmp_path / "memory"
    with watched(out / "given") as counts:
        headway.train("classify", table, out=out, settings=BYTES, device="cpu", quiet=True,
                      start="none")  # fmt: skip
    assert counts == {"rows.jsonl": 2}


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
    settings = with_files(settings_of("classify", write_tsv(tmp_path / "a.tsv", sentiments())))
    found, _ = resolved(find_task(settings), settings, tmp_path)
    assert pickle.loads(pickle.dumps(found)) == found


def counted(
    folder: Path, task: str, *data: Path, kind: str | None = "bytes", **named: str
) -> Counter[str]:
    """Count what checking data opens, which reads it as a training does."""
    with watched(folder) as counts:
        settings = {"tokenizer.kind": kind} if kind else {}
        headway.check(task, *data, settings=settings, **named)
    return counts


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    for i in range(40):
        (tmp_path / "texts" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / "ab"[i % 2] / f"{i}.txt").write_text(f"text number {i} of many")
    return tmp_path / "texts"


@pytest.fixture
def aligned(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "aligned").mkdir()
    for name in ("a.de", "a.en"):
        lines = "".join(f"{name} number {i}\n" for i in range(60))
        (tmp_path / "aligned" / name).write_text(lines)
    return {side: str(tmp_path / "aligned" / name)
            for side, name in (("source", "a.de"), ("target", "a.en"))}  # fmt: skip


def test_small_text_files_are_opened_at_most_twice(
    class_folders: Path, aligned: dict[str, str], tmp_path: Path
) -> None:
    counts = counted(class_folders, "classify", class_folders, kind="words")
    assert [counts.pop(name) for name in (".", "a", "b")] == [1, 1, 1]
    assert len(counts) == 40
    assert set(counts.values()) == {1}  # all are read as samples
    counts = counted(tmp_path / "aligned", "translate", kind="words", **aligned)
    assert counts == {"a.de": 2, "a.en": 2}
    (tmp_path / "more").mkdir()
    pairs, tags = tmp_path / "more" / "pairs.tsv", tmp_path / "more" / "a.conll"
    pairs.write_text("".join(f"hello {i}\thallo {i}\n" for i in range(60)))
    tags.write_text("".join(f"Anna B-PER\nsees O\nn{i} O\n\n" for i in range(60)))
    assert counted(pairs.parent, "translate", pairs, kind="words") == {"pairs.tsv": 2}
    assert counted(tags.parent, "tag", tags, kind="words") == {"a.conll": 2}


@pytest.mark.usefixtures("nothing_kept")
def test_large_text_files_are_opened_once_per_pass(
    class_folders: Path, aligned: dict[str, str], tmp_path: Path
) -> None:
    counts = counted(class_folders, "classify", class_folders)
    assert [counts.pop(name) for name in (".", "a", "b")] == [1, 1, 1]
    assert set(counts.values()) == {3}
    assert counted(tmp_path / "aligned", "translate", **aligned) == {"a.de": 3, "a.en": 3}


def test_a_list_of_images_is_opened_for_its_format_and_for_its_rows(tmp_path: Path) -> None:
    from PIL import Image

    names = [f"{i}.jpg" for i in range(24)]
    (tmp_path / "data").mkdir()
    for name in names:
        Image.new("RGB", (8, 8), (9 * len(name), 1, 2)).save(tmp_path / "data" / name)
    path = tmp_path / "data" / "list.csv"
    rows = [f"{name},{'ab'[i % 2]}\n" for i, name in enumerate(names)]
    path.write_text("".join(["path,label\n", *rows]))
    assert counted(path.parent, "classify", path, kind=None)["list.csv"] == 2
