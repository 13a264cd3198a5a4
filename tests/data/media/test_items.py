"""Everything that media come in gives the same items; what is wrong with it is said at once."""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headway.data.media.open_item import ItemFormat
from headway.data.prepare import check_files_exist
from headway.data.source import Example, media_examples
from headway.errors import DataError
from headway.settings.data import DataSettings
from headway.settings.vision import ImageSettings
from headway.specs.needs import LABEL, WRITTEN
from tests.facts import missing, naming

SHAPE = ImageSettings(height=8, width=8, patch=4, channels=3, frames=4)


def items(*paths: Path, target: Any = LABEL, what: Any = "image", **fields: Any) -> list[Example]:
    data = DataSettings(**fields)
    found = list(media_examples([str(path) for path in paths], data, what, target))
    if data.on_bad_row == "error":
        check_files_exist(found)
    return found


def opened(item: Example, what: Any = "image") -> Any:
    return item.medium.read(ItemFormat.of(what, SHAPE)).values


def image(path: Path, value: int = 0, size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)
    return path


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def first_values(found: Sequence[Example], what: Any = "image") -> list[int]:
    return [int(opened(item, what)[0, 0, 0, 0]) for item in found]


def test_a_folder_per_class_gives_labels(tmp_path: Path) -> None:
    for i, name in enumerate(["dog/2.png", "dog/10.png", "cat/deep/a.jpg", "cat/.hidden.png"]):
        image(tmp_path / name, 40 * i)
    (tmp_path / "dog" / "notes.txt").write_text("x")
    found = items(tmp_path)
    assert [item.text("label") for item in found] == ["cat", "dog", "dog"]
    assert first_values(found) == [80, 0, 40]
    assert opened(found[0]).shape == (1, 3, 8, 8)
    assert [item.labels for item in items(tmp_path, target=None)] == [[]] * 3


def test_folders_without_classes_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image(tmp_path / "flat" / "a.png")
    with pytest.raises(DataError, match=naming(tmp_path / "flat", "path", "label")):
        items(tmp_path / "flat")
    image(tmp_path / "both" / "train" / "cat" / "a.png")
    image(tmp_path / "both" / "test" / "cat" / "a.png")
    with pytest.raises(DataError, match=naming("TASK both/train RUN both/test")):
        items(tmp_path / "both")
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=naming(tmp_path / "empty")):
        items(tmp_path / "empty")
    with pytest.raises(DataError, match=naming(tmp_path / "flat", "path", "text")):
        items(tmp_path / "flat", target=WRITTEN)
    with pytest.raises(DataError, match=naming(tmp_path / "gone")):
        items(tmp_path / "gone")
    image(tmp_path / "round" / "cat" / "a.png")
    (tmp_path / "round" / "cat" / "again").symlink_to(tmp_path / "round")
    assert len(items(tmp_path / "round")) == 1
    image(tmp_path / "-" / "cat" / "a.png")
    monkeypatch.chdir(tmp_path)
    assert len(items(tmp_path / "-")) == 1
    with pytest.raises(DataError):
        items(Path("-"))  # standard input, and not the folder


def test_manifests_of_all_forms_are_the_same(tmp_path: Path) -> None:
    for i in range(2):
        image(tmp_path / "in" / f"{i}.png", 100 + i)
    rows = [("in/0.png", "a cat"), ("in/1.png", "a dog, black")]
    tabs = ["\t".join(row) for row in rows]
    forms = {
        "a.tsv": ["path\ttext", *tabs],
        "bare.tsv": tabs,
        "a.csv": ["text,path", *(f'"{text}",{path}' for path, text in rows)],
        "a.jsonl": [json.dumps({"path": path, "text": text, "more": 1}) for path, text in rows],
        "theirs.csv": ["image,caption", *(f'{path},"{text}"' for path, text in rows)],
        "theirs.jsonl": [json.dumps({"file_name": path, "Caption": text}) for path, text in rows],
    }
    for name, lines in forms.items():
        found = items(written(tmp_path / name, *lines), target=WRITTEN)
        assert [item.text("text") for item in found] == [text for _, text in rows], name
        assert first_values(found) == [100, 101]
        assert len(items(tmp_path / name, target=None)) == 2
        assert found[1].place == f"{name}:{len(lines)}"
    numbers = written(tmp_path / "n.tsv", "x\tin/0.png\tcat", "y\tin/1.png\tdog")
    found = items(numbers, path_field="2", label_field="3")
    assert [item.text("label") for item in found] == ["cat", "dog"]
    named = written(tmp_path / "named.tsv", "file\tkind", "in/1.png\t7")
    assert items(named, path_field="file", label_field="kind")[0].labels == ["7"]
    (tmp_path / "packed.tsv.gz").write_bytes(gzip.compress("\n".join(forms["a.tsv"]).encode()))
    assert len(items(tmp_path / "packed.tsv.gz", target=WRITTEN)) == 2


def test_bad_lines_are_items_that_cannot_be_read_where_they_are_left_out(tmp_path: Path) -> None:
    image(tmp_path / "a.png", 7)
    rows = [
        "path\tlabel\tbox",
        "a.png\tcat\t",
        "a.png\tcat\t",
        "a.png",
        "a.png\tdog\t1,2",
        "\tcow\t",
        "b.png\tcow\t",
    ]
    path = written(tmp_path / "m.tsv", *rows)
    with pytest.raises(
        DataError, match=naming("m.tsv", 4, 1, 3, "'a.png'", "data.on_bad_row=skip")
    ):
        items(path)
    found = items(path, on_bad_row="skip")
    assert [item.place for item in found] == [f"m.tsv:{i}" for i in range(2, 8)]
    assert first_values([found[0]]) == [7]
    reasons = ["m.tsv 4 1 3", "m.tsv 5 'box' '1,2'", "m.tsv 6 'path'", "b.png"]
    for item, facts in zip(list(found)[2:], reasons, strict=True):
        with pytest.raises(DataError, match=naming(facts)):
            opened(item)


def test_a_pattern_expands_to_its_files(tmp_path: Path) -> None:
    for i in (10, 9):
        image(tmp_path / f"{i}.png", i)
    assert first_values(items(tmp_path / "*.png", target=None)) == [9, 10]


LABELS = ["a\nb", "a\tb", "a\x00b", "a\u2028b", "a\x85b"]
"""Each would break a line or a column of the answers."""


@pytest.mark.parametrize("label", LABELS)
def test_a_label_with_a_line_break_is_an_error_with_its_place(tmp_path: Path, label: str) -> None:
    image(tmp_path / "a.png")
    line = json.dumps({"path": "a.png", "label": label})
    with pytest.raises(DataError, match=naming("m.jsonl", 1, repr(label))):
        items(written(tmp_path / "m.jsonl", line))


def test_a_folder_name_with_a_line_break_is_not_a_class(tmp_path: Path) -> None:
    image(tmp_path / "media" / "ca\nt" / "a.png")
    with pytest.raises(DataError, match=naming(tmp_path / "media", repr("ca\nt"))):
        items(tmp_path / "media")
    (tmp_path / "media" / "ca\nt").rename(os.fsdecode(os.fsencode(tmp_path / "media") + b"/\xff"))
    with pytest.raises(DataError, match=naming(tmp_path / "media", repr("\udcff"), "UTF-8")):
        items(tmp_path / "media")


def test_broken_links_are_named_when_they_are_read(tmp_path: Path) -> None:
    image(tmp_path / "media" / "cat" / "a.png")
    for name, where in {"gone.png": "/no/such.png", "round.png": "round.png"}.items():
        (tmp_path / "media" / "cat" / name).symlink_to(where)
    found = items(tmp_path / "media")
    assert [Path(item.place).name for item in found] == ["a.png", "gone.png", "round.png"]
    with pytest.raises(DataError, match=naming("cat/gone.png", "/no/such.png")):
        opened(found[1])
    with pytest.raises(DataError, match=naming("cat/round.png")):
        opened(found[2])
    (tmp_path / "media" / "dog").symlink_to("/no/such/folder")
    with pytest.raises(DataError, match=naming("media/dog", "/no/such/folder")):
        items(tmp_path / "media")


def test_all_missing_files_are_listed_at_once(tmp_path: Path) -> None:
    image(tmp_path / "there.png")
    lines = ["there.png\tcat", *(f"gone{i}.png\tcat" for i in range(25)), "/dev/zero\tcat"]
    with pytest.raises(DataError) as error:
        items(written(tmp_path / "m.tsv", *lines))
    message = str(error.value)
    assert not missing(message, 26, 6)
    assert "there.png" not in message
    assert "gone0.png (m.tsv:2)" in message
    assert "gone19.png (m.tsv:21)" in message
    assert "gone20.png" not in message


@pytest.mark.parametrize(
    ("name", "line", "facts"),
    [
        ("m.tsv", "path\tkind\tmore", "data.label_field 'kind' 'more'"),
        ("m.tsv", "path\tlabel" + 2 * "\na.png\tcat" + "\na.png\tcat\tdog",
         r"4 3 2 'a.png\tcat\tdog'"),
        ("m.csv", 'path,label\n"a.png,cat', "2 unexpected"),
        ("m.jsonl", '{"path": "a.png"}', "data.label_field 'path' 'a.png'"),
        ("m.jsonl", "[1]", "1 '[1]'"),
        ("m.jsonl", '{"path": ', "1 JSON Expecting"),
        ("m.tsv", "path\tlabel\n\tcat", "2 'path'"),
        ("m.jsonl", '{"path": "a.png", "label": "x", "box": [1, 2]}', "1 'box' [1, 2]"),
        ("m.jsonl", '{"path": "a.png", "label": "x", "start": -1}', "1 'start' -1"),
        ("m.jsonl", '{"path": "a.npy", "label": "x", "index": 1.5}', "1 'index' 1.5"),
    ],
)  # fmt: skip
def test_bad_manifests_are_named(tmp_path: Path, name: str, line: str, facts: str) -> None:
    image(tmp_path / "a.png")
    path = written(tmp_path / name, line)
    with pytest.raises(DataError, match=naming(name, facts)):
        items(path)


def test_parts_of_sheets_are_items(tmp_path: Path) -> None:
    sheet = np.zeros((16, 24), np.uint8)
    sheet[8:16, 16:24] = 200
    Image.fromarray(sheet).save(tmp_path / "sheet.png")
    rows = ["path\tlabel\tbox", "sheet.png\ta\t16,8,24,16", "sheet.png\tb\t0 0 8 8",
            "sheet.png\tc\t16,8,25,16"]  # fmt: skip
    found = items(written(tmp_path / "m.tsv", *rows))
    assert first_values([found[0], found[1]]) == [200, 0]
    with pytest.raises(DataError, match=naming("sheet.png", "24 × 16", "[16, 8, 25, 16]")):
        opened(found[2])


def test_items_of_stacks(tmp_path: Path) -> None:
    stack = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8)
    np.save(tmp_path / "s.npy", stack)
    lines = [json.dumps({"path": "s.npy", "index": i, "label": "x"}) for i in (2, 0, 3)]
    found = items(written(tmp_path / "m.jsonl", *lines))
    assert first_values([found[0], found[1]]) == [128, 0]
    with pytest.raises(DataError, match=naming("s.npy", 3)):
        opened(found[2])
    assert first_values(items(tmp_path / "s.npy", target=None)) == [0, 64, 128]
    videos = np.zeros((2, 8, 8, 8, 3), np.uint8)
    videos[1] += np.arange(8, dtype=np.uint8)[:, None, None, None]
    np.save(tmp_path / "v.npy", videos)
    lines = [json.dumps({"path": "v.npy", "index": 1, "label": "x"})]
    video = items(written(tmp_path / "v.jsonl", *lines), what="video")[0]
    video = opened(video, "video")
    assert video.shape == (4, 3, 8, 8)
    assert video[:, 0, 0, 0].tolist() == [1, 3, 5, 7]
    assert len(items(tmp_path / "v.npy", what="video", target=None)) == 2


def test_bad_arrays_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    whole = tmp_path / "cut.npy"
    np.save(whole, np.zeros((50, 8, 8), np.uint8))
    whole.write_bytes(whole.read_bytes()[:500])
    np.save(tmp_path / "none.npy", np.zeros((0, 8, 8), np.uint8))
    (tmp_path / "text.npy").write_text("no array")
    for name in ("objects", "cut", "none", "text"):
        with pytest.raises(DataError, match=rf"{name}\.npy"):
            items(tmp_path / f"{name}.npy", target=None)
    np.save(tmp_path / "odd.npy", np.zeros((2, 8, 8, 2), np.uint8))
    with pytest.raises(DataError, match=naming("odd.npy", 0, 2)):
        opened(items(tmp_path / "odd.npy", target=None)[0])


def test_videos_in_folders(tmp_path: Path) -> None:
    for clip, value in (("a", 10), ("b", 20)):
        for i in range(5):
            image(tmp_path / "walk" / clip / f"{i}.png", value + i)
    frames = [Image.new("L", (8, 8), 9) for _ in range(3)]
    (tmp_path / "run").mkdir()
    frames[0].save(tmp_path / "run" / "c.gif", save_all=True, append_images=frames[1:])
    found = items(tmp_path, what="video")
    assert [item.text("label") for item in found] == ["run", "walk", "walk"]
    assert first_values(found, "video") == [9, 10, 20]
    assert opened(found[1], "video").shape == (4, 3, 8, 8)
    assert len(items(tmp_path / "walk" / "a", what="video", target=None)) == 1


def idx(path: Path, array: np.ndarray, shape: tuple[int, ...] | None = None) -> Path:
    shape = shape or array.shape
    data = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files_find_their_labels(tmp_path: Path, end: str) -> None:
    images = np.arange(3, dtype=np.uint8).repeat(64).reshape(3, 8, 8)
    path = idx(tmp_path / f"train-images-idx3-ubyte{end}", images)
    with pytest.raises(DataError, match=naming(path, "train-labels-idx1-ubyte.gz")):
        items(path)
    idx(tmp_path / f"train-labels-idx1-ubyte{end}", np.array([7, 0, 7], np.uint8))
    idx(tmp_path / f"t10k-images-idx3-ubyte{end}", images[:1])
    for one in (path, tmp_path):
        found = items(one)
        assert [item.text("label") for item in found] == ["7", "0", "7"]
        assert first_values(found) == [0, 1, 2]
    idx(tmp_path / f"train-labels-idx1-ubyte{end}", np.array([7, 0], np.uint8))
    with pytest.raises(DataError, match=naming(path, 3, f"train-labels-idx1-ubyte{end}", 2)):
        items(path)


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files_with_false_headers_are_named(tmp_path: Path, end: str) -> None:
    pixels = np.zeros(64, np.uint8)
    name = tmp_path / f"train-images-idx3-ubyte{end}"
    huge = "2,305,843,009,213,693,952" if end else "2147483648 × 32768 × 32768"
    for shape, facts in {(2, 8, 8): "2 × 8 × 8 64", (1, 4, 4): "1 × 4 × 4",
                         (1 << 31, 1 << 15, 1 << 15): huge, (64,): "1 N Y X"}.items():  # fmt: skip
        with pytest.raises(DataError, match=naming(name, facts)):
            items(idx(name, pixels, shape))
    whole = idx(name, pixels.reshape(1, 8, 8)).read_bytes()
    name.write_bytes(whole[: len(whole) - 9])
    with pytest.raises(DataError, match=naming(name, "" if end else "1 × 8 × 8 55")) as caught:
        items(name)
    assert isinstance(caught.value.__cause__, EOFError if end else type(None))
    name.write_bytes(b"\x89PNG something else")
    with pytest.raises(DataError, match=naming(name, "IDX")):
        items(name)


def test_single_files_are_read_only_without_labels(tmp_path: Path) -> None:
    path = image(tmp_path / "a.png", 5)
    assert first_values(items(path, target=None)) == [5]
    with pytest.raises(DataError, match=naming(path, "path", "label")) as caught:
        items(path)
    assert missing(str(caught.value), "index")
    np.save(tmp_path / "a.npy", np.zeros((2, 4, 4), np.uint8))
    with pytest.raises(DataError, match=naming("a.npy", "path", "label", "index")):
        items(tmp_path / "a.npy")
    other = written(tmp_path / "a.xyz", "x")
    with pytest.raises(DataError, match=naming("a.xyz", ".tsv", ".npy", ".webp")):
        items(other, target=None)


def test_images_inside_a_parquet_file_are_an_error_with_an_alternative(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = {"image": [{"bytes": b"\x89PNG", "path": None}], "label": ["cat"]}
    parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=naming("a.parquet", 1, "'image'", "pandas.read_parquet")):
        items(tmp_path / "a.parquet")
