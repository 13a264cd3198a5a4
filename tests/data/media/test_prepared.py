"""Media are prepared once, whatever happens on the way, and the check says what is odd."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from headway.data import prepare as preparing
from headway.data import workers
from headway.data.media import decoding, open_item
from headway.data.media.store import AudioStore, ImageStore
from headway.data.prepare import EvaluationMedia, evaluation_media, prepare
from headway.data.schema import MediaSpec
from headway.data.source import Example
from headway.data.split import choose_by_label
from headway.data.store import ImpossibleData, PreparedData, load_prepared
from headway.errors import DataError
from headway.settings.audio import AudioSettings
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.run import RunSettings
from headway.settings.vision import ImageSettings
from headway.specs.needs import LABEL, WRITTEN
from tests.facts import missing, naming

SHAPE = ImageSettings(height=8, width=8, patch=4)
Make = Callable[..., Path]


@pytest.fixture
def images(tmp_path: Path) -> Make:
    """Images of noise in two classes, all different."""

    def make(name: str = "media", n: int = 12, seed: int = 0) -> Path:
        draw = np.random.default_rng(seed)
        for i in range(n):
            path = tmp_path / name / ("cat", "dog")[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 255, (10, 8, 3), np.uint8)).save(path)
        return tmp_path / name

    return make


def run(media: Path, valid: Path | None = None, **fields: Any) -> RunSettings:
    others = () if valid is None else (str(valid),)
    data = DataSettings(media=(str(media),), valid_media=others, **fields)
    return RunSettings(task="classify", data=data, tokenizer=TokenizerSettings(kind="characters"))


def prepared(settings: RunSettings, folder: Path, **options: Any) -> PreparedData:
    asked = {"modality": "image", "shape": SHAPE, "target": LABEL}
    media = MediaSpec.of(*(options.pop(name, usual) for name, usual in asked.items()))
    return prepare(settings, folder, media=media, **options)


def scored(settings: RunSettings, target: Any = LABEL, **options: Any) -> EvaluationMedia:
    return evaluation_media(MediaSpec.of("image", SHAPE, target), settings, **options)


def findings(made: PreparedData) -> dict[str, int]:
    return {one.name: one.count for one in made.report.findings}


def test_bad_lines_and_missing_files_are_left_out_and_listed(images: Make, tmp_path: Path) -> None:
    files = sorted(images(n=40).rglob("*.png"))
    lines = [f"{path}\t{path.parent.name}" for path in files]
    path = tmp_path / "m.tsv"
    path.write_text("\n".join(["path\tlabel", *lines, "gone.png\tcat", "one cell"]))
    with pytest.raises(DataError, match=naming("m.tsv", 43, 1, 2, "data.on_bad_row=skip")):
        prepared(run(path), tmp_path / "run")
    made = prepared(run(path, on_bad_row="skip"), tmp_path / "run")
    assert made.train.n + made.valid.n == 40
    assert findings(made)["unreadable"] == 2
    listed = (tmp_path / "run" / "data" / "problems.jsonl").read_text().splitlines()
    assert [json.loads(line)["place"] for line in listed] == ["m.tsv:42", "m.tsv:43"]
    reasons = [json.loads(line)["why"] for line in listed]
    assert not missing(reasons[0], tmp_path / "gone.png")
    assert not missing(reasons[1], 43, 1, 2)


def test_lists_that_match_a_pattern_are_recognised_by_their_contents(
    images: Make, tmp_path: Path
) -> None:
    files = sorted(images(n=40).rglob("*.png"))
    for names in (("cat", "dog"), ("one", "two")):
        lines = [f"{path}\t{names[i % 2]}" for i, path in enumerate(files)]
        (tmp_path / "m.tsv").write_text("\n".join(["path\tlabel", *lines]))
        assert prepared(run(tmp_path / "*.tsv"), tmp_path / "run").labels == names


def test_stored_media_equal_the_files(images: Make, tmp_path: Path) -> None:
    made = prepared(run(images()), tmp_path / "run")
    assert made.labels == ("cat", "dog")
    assert made.modality == "image"
    assert made.vocab is None
    assert made.train.n + made.valid.n == 12
    assert made.valid.n == 1
    [example] = made.valid_examples
    with Image.open(example["place"]) as image:
        whole = np.asarray(image).transpose(2, 0, 1)
    np.testing.assert_array_equal(made.valid.media[0][0], whole[:, 1:9])
    assert made.valid["label"] is not None
    assert example["label"] == Path(example["place"]).parent.name
    assert made.labels[made.valid["label"][0]] == example["label"]
    assert made.train.images.equal == (1, 3, 8, 8)
    assert made.report.n_pairs == 12
    assert made.report.unit == "images"
    assert made.report.labels == {"cat": (6, 0), "dog": (6, 0)}


def test_nothing_is_read_twice(
    images: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = run(images())
    made = prepared(settings, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(decoding.MediaDecoder, "run", None)
        again = prepared(settings, tmp_path / "run")
        assert again.fingerprint == made.fingerprint
        assert load_prepared(tmp_path / "run").fingerprint == made.fingerprint
    moved = tmp_path / "elsewhere" / "media"
    shutil.copytree(tmp_path / "media", moved)
    assert prepared(run(moved), tmp_path / "moved").fingerprint == made.fingerprint
    one = next((tmp_path / "media" / "cat").iterdir())
    Image.new("RGB", (8, 8), "red").save(one)
    assert prepared(settings, tmp_path / "run").fingerprint != made.fingerprint
    other = ImageSettings(height=4, width=4, patch=4)
    assert prepared(settings, tmp_path / "run", shape=other).train.images.equal == (1, 3, 4, 4)


def test_prepared_media_depend_on_contents_not_paths(
    images: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    media = images()
    made = prepared(run(media), tmp_path / "run")
    files = sorted(media.rglob("*.png"))
    media.rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    listed = tmp_path / "elsewhere.tsv"
    rows = [f"{moved / path.relative_to(media)}\t{path.parent.name}\n" for path in files]
    rows.sort(key=lambda row: (row.split("\t")[1], int(Path(row.split("\t")[0]).stem)))
    listed.write_text("".join(rows))
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "DataBuilder", None)  # would fail
        for path in (moved, listed):
            assert prepared(run(path), tmp_path / "run").fingerprint == made.fingerprint
    listed.write_text("".join(rows).replace("\tdog", "\tcow"))
    assert prepared(run(listed), tmp_path / "run").labels == ("cat", "cow")


def test_unchanged_files_are_not_read_again(
    images: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = run(images())
    prepared(settings, tmp_path / "run")
    monkeypatch.setattr(preparing, "content_checksums", None)  # would fail
    prepared(settings, tmp_path / "run")


def test_a_kill_loses_nothing_and_changes_nothing(
    images: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = run(images(n=40))
    monkeypatch.setattr(decoding, "MOST_ITEMS", 2)
    monkeypatch.setattr(decoding, "RECORD_SECONDS", -1)
    expected = prepared(settings, tmp_path / "whole")
    opened: list[str] = []
    real = decoding.MediaDecoder._outcome

    def counted(self: decoding.MediaDecoder, one: Example, name: str) -> decoding.DecodeResult:
        opened.append(one.place)
        if len(opened) == 30:
            raise KeyboardInterrupt
        return real(self, one, name)

    monkeypatch.setattr(decoding.MediaDecoder, "_outcome", counted)
    with pytest.raises(KeyboardInterrupt):
        prepared(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()
    with (tmp_path / "run" / "data.tmp" / decoding.VALUES).open("ab") as file:
        file.write(b"written, but not recorded")
    before = len(opened)
    made = prepared(settings, tmp_path / "run")
    assert 0 < len(opened) - before < 40
    assert made.fingerprint == expected.fingerprint
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["data"]


def test_the_number_of_threads_does_not_matter(
    images: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = run(images(n=30))
    monkeypatch.setattr(decoding, "MOST_ITEMS", 1)
    prints = []
    monkeypatch.setattr(workers, "ALONE", 0)
    for threads in (1, 4):
        monkeypatch.setattr(workers, "cores", lambda threads=threads: threads)
        prints.append(prepared(settings, tmp_path / f"run{threads}").fingerprint)
    assert prints[0] == prints[1]


def test_rows_of_an_array_are_the_same_alone_and_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    arrays = {
        "image": draw.integers(0, 255, (70, 11, 14, 3), np.uint8),
        "same": draw.integers(0, 255, (70, 8, 8), np.uint8),
        "video": draw.integers(0, 255, (70, 5, 9, 12), np.uint8),
    }
    shape = replace(SHAPE, frames=2)
    for name, values in arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
        what = "video" if name == "video" else "image"
        settings = run(tmp_path / f"{name}.npy")
        prints = []
        for most in (1, 7, 64):
            monkeypatch.setattr(decoding, "MOST_ITEMS", most)
            monkeypatch.setattr(open_item, "ROWS_BYTES", 1000 * most)
            folder = tmp_path / f"{name}{most}"
            made = prepared(settings, folder, modality=what, shape=shape, target=None)
            prints.append(made.fingerprint)
        assert len(set(prints)) == 1


def test_an_unreadable_row_of_a_block_is_named(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((40, 8, 8))
    values[7] = np.nan
    np.save(tmp_path / "s.npy", values)
    made = prepared(run(tmp_path / "s.npy"), tmp_path / "run", target=None)
    [finding] = [one for one in made.report.findings if one.name == "unreadable"]
    assert finding.count == 1
    assert not missing(finding.examples[0].source, "s.npy", 7)
    assert made.train.n + made.valid.n == 39


def test_labels_alone_need_no_worker_processes(
    images: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ALONE", 0)
    monkeypatch.setattr(workers, "Workers", None)
    assert prepared(run(images(n=30)), tmp_path / "run").train.n


def test_unreadable_files_are_left_out_and_listed(images: Make, tmp_path: Path) -> None:
    media = images(n=30)
    (media / "cat" / "broken.png").write_bytes(b"")
    made = prepared(run(media), tmp_path / "run")
    [finding] = [one for one in made.report.findings if one.name == "unreadable"]
    assert finding.level == "warning"
    assert finding.count == 1
    assert finding.examples[0].place.endswith("broken.png")
    assert not missing(finding.examples[0].source, "broken.png", 0)
    assert made.train.n + made.valid.n == 30
    for i in range(4):
        (media / "cat" / f"broken{i}.png").write_bytes(b"no image")
    with pytest.raises(ImpossibleData, match=naming(5, 35)) as caught:
        prepared(run(media), tmp_path / "run")
    errors = [one.name for one in caught.value.report.findings if one.level == "error"]
    assert errors == ["unreadable"]
    with pytest.raises(DataError, match=naming(5, 35, "broken.png", "broken0.png")):
        scored(run(media), labels=made.labels)


def test_labels_that_differ_between_splits_are_named(images: Make, tmp_path: Path) -> None:
    media, valid = images(), images("valid", 2, seed=1)
    shutil.copytree(valid / "dog", valid / "fox")
    with pytest.raises(ImpossibleData, match=naming(1, "'fox'", "'cat'", "'dog'")):
        prepared(run(media, valid), tmp_path / "run")
    shutil.rmtree(valid / "fox")
    shutil.rmtree(valid / "dog")
    made = prepared(run(media, valid), tmp_path / "run")
    assert findings(made)["absent-label"] == 1


def test_the_same_image_in_both_splits_is_a_warning(images: Make, tmp_path: Path) -> None:
    media, valid = images(), images("valid", 2, seed=1)
    shutil.copy(next((media / "cat").iterdir()), valid / "cat" / "again.png")
    made = prepared(run(media, valid), tmp_path / "run")
    assert findings(made)["overlap"] == 1
    assert made.valid.n == 3
    assert made.train.n == 12


def test_equal_images_are_split_together_and_no_class_goes_away(
    images: Make, tmp_path: Path
) -> None:
    media = images(n=40)
    for path in list((media / "cat").iterdir()):
        shutil.copy(path, path.with_name(f"copy-{path.name}"))
    shutil.copytree(media / "dog", media / "one")
    for path in sorted((media / "one").iterdir())[1:]:
        path.unlink()
    made = prepared(run(media, valid_size=6), tmp_path / "run")
    assert not np.isin(made.valid.hashes, made.train.hashes).any()
    assert set(made.train["label"]) == {0, 1, 2}
    assert made.valid.n > 1
    assert findings(made)["duplicates"] == 21
    assert findings(made)["conflicts"] == 1


def test_no_class_goes_to_validation_as_a_whole(images: Make, tmp_path: Path) -> None:
    paths = sorted(images(n=40).rglob("*.png"))
    manifest = tmp_path / "m.tsv"

    def made(alone: set[Path]) -> PreparedData:
        rows = [f"{p}\t{p.stem if p in alone else p.parent.name}\n" for p in paths]
        manifest.write_text("".join(rows))
        return prepared(run(manifest, valid_size=4), tmp_path / "run")

    other = made(set(paths[:3]))
    assert {one["label"] for one in other.valid_examples} == {"cat", "dog"}
    assert other.valid.n == 4
    assert findings(other)["absent-label"] == 3
    with pytest.raises(ImpossibleData, match=naming(40, "valid=…")):
        made(set(paths))


def test_every_class_that_can_spare_one_is_held_out(images: Make, tmp_path: Path) -> None:
    media = images(n=72)
    for i, path in enumerate(sorted(media.rglob("*.png"))):
        (media / "abc"[i % 3]).mkdir(exist_ok=True)
        path.rename(media / "abc"[i % 3] / path.name)
    shutil.rmtree(media / "cat")
    shutil.rmtree(media / "dog")
    made = prepared(run(media), tmp_path / "run")
    assert made.valid["label"] is not None
    assert sorted(np.bincount(made.valid["label"]).tolist()) == [2, 2, 3]
    assert "absent-label" not in findings(made)
    few = prepared(run(media, valid_size=2), tmp_path / "few")
    assert findings(few)["absent-label"] == 1
    [absent] = [one for one in few.report.findings if one.name == "absent-label"]
    assert not missing(absent.text, 1, 3)
    assert any(absent.text in line for line in few.report.lines())


def test_equal_ones_with_other_labels_are_held_out_together_or_not_at_all() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        keys = draw.integers(0, 12, 40).astype(np.uint64)
        labels = [f"{n}" for n in draw.integers(0, 5, 40)]
        held_out = choose_by_label(keys, labels, 8)
        assert 0 < held_out.sum() <= 8
        assert not np.isin(keys[held_out], keys[~held_out]).any()
        assert {labels[i] for i in np.flatnonzero(~held_out)} == set(labels)


def test_two_of_a_voice_come_before_one_of_another() -> None:
    keys, labels = np.arange(40, dtype=np.uint64), [f"{i % 4}" for i in range(40)]
    for each, counts in ((1, [1, 1, 1, 1]), (2, [2, 2])):
        held_out = choose_by_label(keys, labels, 4, each)
        found = [labels[i] for i in np.flatnonzero(held_out)]
        assert sorted(found.count(name) for name in set(found)) == counts
    rare = choose_by_label(keys, ["a"] * 38 + ["b"] * 2, 4)
    assert (rare[:38].sum(), rare[38:].sum()) == (3, 1)


@pytest.mark.parametrize("given", [True, False])
def test_the_first_validation_items_are_a_fair_sample(
    images: Make, tmp_path: Path, given: bool
) -> None:
    media, valid = images(n=200), images("valid", 40, seed=1)
    made = prepared(run(media, valid if given else None), tmp_path / "run")
    assert made.valid["label"] is not None
    n = made.valid.n
    assert n == (40 if given else 20)
    assert set(made.valid["label"][: n // 4].tolist()) == {0, 1}
    assert made.train["label"] is not None
    assert (np.diff(made.train["label"]) >= 0).all()
    assert len({one["place"] for one in made.valid_examples}) == n
    for i, one in enumerate(made.valid_examples):  # all that is known of an item is still its own
        assert made.labels[made.valid["label"][i]] == Path(one["place"]).parent.name == one["label"]
        with Image.open(one["place"]) as image:
            whole = np.asarray(image).transpose(2, 0, 1)
        np.testing.assert_array_equal(made.valid.media[i][0], whole[:, 1:9])


def test_texts_and_several_references_follow_the_mixed_order(images: Make, tmp_path: Path) -> None:
    media, valid = captions(images()), images("valid", 12, seed=1)
    paths = sorted(valid.rglob("*.png"))
    rows = [{"path": str(p), "text": [f"a {p.stem}", f"{p.stem} a"]} for p in paths]
    manifest = tmp_path / "valid.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = prepared(run(media, manifest), tmp_path / "run", target=WRITTEN)
    assert made.tokenizer is not None
    assert made.valid["text"] is not None
    texts = [made.tokenizer.decode(made.valid["text"][i].tolist()) for i in range(24)]
    assert texts == [one["text"] for one in made.valid_examples]
    numbers = [text.strip("a ") for text in texts]
    assert len({*zip(numbers, made.valid.hashes.tolist(), strict=True)}) == 12
    assert numbers != [path.stem for path in paths for _ in range(2)]


def test_the_check_reports_oddities(images: Make, tmp_path: Path) -> None:
    media = images(n=30)
    Image.new("RGB", (8, 8), "blue").save(media / "cat" / "blue.png")
    Image.fromarray(np.arange(3, dtype=np.uint8)[None]).save(media / "cat" / "tiny.png")
    Image.fromarray(np.arange(90, dtype=np.uint8)[None].repeat(9, 0)).save(
        media / "cat" / "long.png"
    )
    made = prepared(run(media), tmp_path / "run")
    found = findings(made)
    assert (found["flat"], found["small"], found["narrow"]) == (2, 1, 2)
    lines = made.report.lines()
    assert not missing(lines[0], 33)
    assert any(not missing(line, 2, "cat 18") for line in lines)
    assert any(not missing(line, "3 × 1", "90 × 9") for line in lines)


def test_validation_items_are_checked_alike(images: Make, tmp_path: Path) -> None:
    media, valid = images(), images("valid", 4, seed=1)
    Image.new("RGB", (8, 8), "blue").save(valid / "cat" / "blue.png")
    Image.fromarray(np.arange(3, dtype=np.uint8)[None]).save(valid / "cat" / "tiny.png")
    made = prepared(run(media, valid), tmp_path / "run")
    found = {one.name: one.text for one in made.report.findings}
    assert not missing(found["flat"], 2, 6)
    assert not missing(found["small"], 1, 6)
    assert not missing(found["sizes"], "3 × 1", "8 × 10")


def test_one_of_a_kind_is_singular(images: Make, tmp_path: Path, slow: Any) -> None:
    media = images(n=1)
    with pytest.raises(ImpossibleData) as caught:
        prepared(run(media), tmp_path / "run", progress=slow)
    assert "1/1" in slow.stream.getvalue()
    [line] = [one for one in caught.value.report.lines() if "cat 1 (100.0%)" in one]
    assert not missing(line, "1", "label:")


def test_one_class_or_no_media_cannot_be_learned(images: Make, tmp_path: Path) -> None:
    media = images()
    shutil.rmtree(media / "dog")
    with pytest.raises(ImpossibleData, match=naming("'cat'")):
        prepared(run(media), tmp_path / "run")
    with pytest.raises(DataError, match=naming("data task")):
        prepared(RunSettings(task="classify"), tmp_path / "run")
    manifest = tmp_path / "none.tsv"
    manifest.write_text("path\tlabel\n")
    with pytest.raises(ImpossibleData) as caught:
        prepared(run(manifest), tmp_path / "run")
    assert [one.name for one in caught.value.report.findings] == ["no-media"]


def test_a_broken_link_is_named_and_left_out(images: Make, tmp_path: Path) -> None:
    media = images(n=20)
    (media / "cat" / "gone.png").symlink_to("/no/such.png")
    made = prepared(run(media), tmp_path / "run")
    lines = "\n".join(made.report.lines())
    [finding] = [one for one in made.report.findings if one.name == "unreadable"]
    assert not missing(finding.text, 1, 21)
    assert not missing(lines, finding.text, "cat/gone.png", "/no/such.png")
    assert made.train.n + made.valid.n == 20


def test_missing_files_of_both_splits_are_one_error(images: Make, tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / f"{name}.tsv").write_text(f"{name}1.png\tcat\n{name}2.png\tdog\n")
    with pytest.raises(DataError, match=naming(4, "train2.png", "valid1.png")):
        prepared(run(tmp_path / "train.tsv", tmp_path / "valid.tsv"), tmp_path / "run")


def test_a_full_disk_is_reported_before_decoding(
    images: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = run(images())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=12 * 192 - 1))
    with pytest.raises(DataError, match=naming(12, "8 × 8", "GB")):
        prepared(settings, tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


def captions(media: Path) -> Path:
    rows = [f"{p}\ta {p.parent.name} {p.stem}" for p in sorted(media.rglob("*.png"))]
    path = media.parent / "captions.tsv"
    path.write_text("path\ttext\n" + "\n".join([*rows, rows[0], f"{rows[1]} again"]) + "\n")
    return path


def test_texts_become_tokens(images: Make, tmp_path: Path) -> None:
    settings = run(captions(images()))
    made = prepared(settings, tmp_path / "run", target=WRITTEN)
    assert made.tokenizer is not None
    assert made.train["text"] is not None
    texts = [made.tokenizer.decode(made.train["text"][i].tolist()) for i in range(made.train.n)]
    assert len(texts) == made.train.n
    assert all(text.startswith("a ") for text in texts)
    assert findings(made)["duplicates"] == 1  # the same image with another caption is none
    made.save_tokenizer(tmp_path / "tokenizer.json")
    other = prepared(settings, tmp_path / "other", target=WRITTEN, tokenizer=made.tokenizer)
    assert other.tokenizer is not None
    assert other.tokenizer.to_json() == made.tokenizer.to_json()


def test_a_test_set_is_read_for_scoring(images: Make, tmp_path: Path) -> None:
    media = images()
    found = scored(run(media), labels=("dog", "cat"))
    assert found.items["label"].tolist() == [1] * 6 + [0] * 6
    assert found.targets == ["cat"] * 6 + ["dog"] * 6
    assert found.places[0].endswith("0.png")
    assert found.items.images.gather(np.array([0, 11])).shape == (2, 1, 3, 8, 8)
    with pytest.raises(DataError, match=naming("cat/0.png", "'cat'", "'dog'")):
        scored(run(media), labels=("dog",))
    texts = scored(run(captions(media)), WRITTEN)
    assert texts.targets[0].startswith("a cat")
    assert "text" not in texts.items
    hashes = texts.items.hashes
    assert hashes[0] == hashes[-2]
    assert len(set(hashes.tolist())) == 12


def audio(path: Path, samples: Any, rate: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.asarray(samples, np.float32), rate)


def test_recordings_of_any_length(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for i in range(12):
        wave = draw.uniform(-0.5, 0.5, 1000 + 100 * i)
        audio(tmp_path / "media" / ("anna", "ben")[i % 2] / f"{i}.wav", wave)
    audio(tmp_path / "media" / "anna" / "silent.wav", np.zeros(2000))
    audio(tmp_path / "media" / "anna" / "empty.wav", [])
    shape = AudioSettings(rate=8000)
    made = prepared(run(tmp_path / "media"), tmp_path / "run", modality="audio", shape=shape)
    store = made.train.audio
    assert store.rate == 8000
    assert store[0].dtype == np.int16
    assert sorted({*store.lengths, *made.valid.audio.lengths}) == sorted(
        {*range(1000, 2200, 100), 2000}
    )
    found = findings(made)
    assert found["unreadable"] == 1
    assert found["flat"] == 1
    lines = made.report.lines()
    assert not missing(lines[0], 14)
    assert not missing("\n".join(lines), "silent.wav", "empty.wav", "0 s")
    [example] = made.valid_examples
    samples, _ = soundfile.read(example["place"], dtype="int16")
    np.testing.assert_array_equal(made.valid.media[0], samples)


def test_a_copy_on_the_device_gives_the_same(device: torch.device) -> None:
    items = np.random.default_rng(0).integers(0, 255, (6, 1, 3, 4, 4), np.uint8)
    store = ImageStore.of(list(items)).rows(np.array([5, 3, 1])).on(device)
    assert (store.copy is not None) == (device.type == "cuda")
    assert torch.equal(store.gather(np.array([2, 0])).cpu(), torch.from_numpy(items[[1, 5]]))
    assert store.on(device, most=10).copy is None


def test_stores_give_what_was_put_in() -> None:
    draw = np.random.default_rng(0)
    items = [draw.integers(0, 255, (1, 3, 4, 4), np.uint8) for _ in range(5)]
    store = ImageStore.of(items)
    rows = np.array([4, 0, 4])
    assert torch.equal(store.gather(rows), torch.from_numpy(np.stack([items[i] for i in rows])))
    part = store.rows(np.array([3, 1]))
    np.testing.assert_array_equal(part[1], items[1])
    assert torch.equal(part.gather(np.array([1])), torch.from_numpy(items[1][None]))
    mixed = ImageStore.of([items[0], draw.integers(0, 255, (2, 3, 4, 6), np.uint8), items[1]])
    assert mixed.equal is None
    assert mixed[1].shape == (2, 3, 4, 6)
    assert torch.equal(mixed.gather(np.array([2])), torch.from_numpy(items[1][None]))
    assert mixed.on("cpu") is mixed
    audio = AudioStore.of([np.arange(5, dtype=np.int16), np.arange(3, dtype=np.int16)], 8000)
    assert audio.rows(np.array([1]))[0].tolist() == [0, 1, 2]
    assert audio.seconds == 0.001
