"""Data in memory is written as files that hold the same; columns are bound by name."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from headway.data.bound_data import write_tables
from headway.data.media.open_item import ItemFormat
from headway.data.named_data import as_files, bind_data
from headway.data.prepare import prepare
from headway.data.source import media_examples
from headway.errors import ConfigError, DataError
from headway.settings.data import DataSettings
from headway.settings.run import load_run_settings
from headway.specs.needs import LABEL
from tests.facts import naming

ROWS: list[dict[str, Any]] = [
    {"id": i, "review": f"a {'good' if i % 2 else 'bad'} film {i}", "stars": 1 + 4 * (i % 2)}
    for i in range(40)
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
NAMES = {"text": "review", "label": "stars"}


class Series:
    """Of pandas: values of numpy's types, which `tolist` makes plain."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.listed = 0

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def head(self, n: int) -> list[Any]:
        return self.values[:n]

    def tolist(self) -> list[Any]:
        self.listed += 1
        return self.values


class Frame:
    """Of pandas, or of polars."""

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self.columns = list(columns)
        self.held = {name: Series(values) for name, values in columns.items()}

    def __getitem__(self, name: str) -> Series:
        return self.held[name]


class Chunked(list[Any]):
    def slice(self, start: int, n: int) -> list[Any]:
        return self[start : start + n]

    def to_pylist(self) -> list[Any]:
        return list(self)


class Arrow:
    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self.column_names = list(columns)
        self.columns = list(columns.values())
        self.held = columns

    def __getitem__(self, name: str) -> Any:
        return Chunked(self.held[name])


class Classes:
    def __init__(self, *names: str) -> None:
        self.names = names


class Dataset:
    """Of Hugging Face."""

    def __init__(self, rows: list[dict[str, Any]], **features: Any) -> None:
        self.rows, self.column_names = rows, list(rows[0])
        self.features = {name: features.get(name) for name in rows[0]}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]


FORMS = {
    "rows": ROWS, "columns": COLUMNS, "frame": Frame(COLUMNS), "arrow": Arrow(COLUMNS),
    "dataset": Dataset(ROWS), "arrays": {name: np.array(one) for name, one in COLUMNS.items()},
}  # fmt: skip


def written(folder: Path, task: str, data: object, **needs: Any) -> list[dict[str, Any]]:
    found = bind_data(task, data, needs)
    found.write(folder)
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("data", [*FORMS.values(), iter(ROWS)], ids=[*FORMS, "iterator"])
def test_every_form_is_the_same_file(tmp_path: Path, data: object) -> None:
    found = bind_data("classify", data, NAMES)
    found.write(tmp_path)
    lines = [json.dumps({"review": r["review"], "stars": r["stars"]}) + "\n" for r in ROWS]
    assert (tmp_path / "rows.jsonl").read_text() == "".join(lines)
    assert found.settings(tmp_path) == {
        "text": [str(tmp_path / "rows.jsonl")], "text_field": "review", "label_field": "stars",
    }  # fmt: skip


def test_data_in_memory_is_prepared_like_a_file(tmp_path: Path) -> None:
    table = "".join(f"{r['id']}\t{r['review']}\t{r['stars']}\n" for r in ROWS)
    (tmp_path / "a.tsv").write_text("id\treview\tstars\n" + table)
    made = []
    for name, data in (("file", str(tmp_path / "a.tsv")), ("memory", COLUMNS)):
        found = bind_data("classify", data, NAMES)
        found.write(tmp_path / name)
        values = {f"data.{key}": one for key, one in found.settings(tmp_path / name).items()}
        more = {"task": "classify", "data.valid_size": 4, "tokenizer.kind": "words"}
        made.append(prepare(load_run_settings(None, [], more | values), tmp_path))
    ours, theirs = made
    for one, other in ((ours.train, theirs.train), (ours.valid, theirs.valid)):
        assert np.array_equal(one["text"].tokens, other["text"].tokens)
        assert np.array_equal(one["label"], other["label"])
    assert ours.labels == theirs.labels == ("1", "5")
    assert ours.valid_examples == theirs.valid_examples


def test_columns_that_are_not_read_are_not_made_lists_of(tmp_path: Path) -> None:
    frame = Frame(COLUMNS)
    bind_data("classify", frame, NAMES).write(tmp_path)
    assert {name: one.listed for name, one in frame.held.items()} == {
        "id": 0, "review": 1, "stars": 1,
    }  # fmt: skip


def test_missing_values_become_empty_cells(tmp_path: Path) -> None:
    nan = [{"text": None, "label": "a"}, {"text": "b", "label": float("nan")},
           {"text": np.float32("nan"), "label": np.int64(3)}, {"label": True}]  # fmt: skip
    assert written(tmp_path, "classify", nan) == [
        {"text": "", "label": "a"}, {"text": "b", "label": ""}, {"text": "", "label": 3},
        {"text": "", "label": True},
    ]  # fmt: skip


def test_a_row_that_is_not_a_mapping_is_found_at_any_position(tmp_path: Path) -> None:
    rows: list[Any] = [*({"text": f"{i}"} for i in range(200)), "no row"]
    with pytest.raises(DataError, match=naming(201, "'no row'")):
        written(tmp_path, "complete", rows)


def test_a_missing_value_does_not_change_other_labels(tmp_path: Path) -> None:
    frame = Frame({"text": ["a", "b", "c"], "label": [1.0, float("nan"), 2.0]})
    assert [row["label"] for row in written(tmp_path, "classify", frame)] == [1, "", 2]
    halves = Frame({"text": ["a", "b", "c"], "label": [1.5, float("nan"), 2.0]})
    assert [row["label"] for row in written(tmp_path, "classify", halves)] == [1.5, "", 2.0]


def test_columns_are_bound_by_usual_names_or_because_only_one_can_be_meant() -> None:
    bound = bind_data("classify", [{"sentence": "a", "label": 1, "id": 2}])
    assert {name: one.name for name, one in bound.columns.items()} == {
        "sentence": "text", "label": "label",
    }  # fmt: skip
    assert list(bind_data("classify", [{"stars": 1, "review": "a"}]).columns) == ["review", "stars"]
    two = bind_data("classify", [{"text": "a", "b": "b", "label": 1}], {"other": "b"})
    assert two.names == {"text_field": "text", "other_field": "b", "label_field": "label"}


PIXELS = np.zeros((2, 8, 8), np.uint8)


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("text", ["a film", "a book"], "text"),
        ("review", ["a film", "a book"], "text"),
        ("path", ["a.png", "b.png"], "image"),
        ("file", ["a.wav", "b.wav"], "audio"),
        ("image", PIXELS, "image"),
        ("path", list(PIXELS), "image"),
        ("video", np.zeros((2, 4, 8, 8), np.uint8), "video"),
        ("path", list(np.zeros((2, 4, 8, 8), np.uint8)), "video"),
        ("audio", [(np.zeros(50, np.float32), 8000)] * 2, "audio"),
        ("path", [(np.zeros(50, np.float32), 8000)] * 2, "audio"),
        ("path", [{"array": np.zeros(50, np.float32), "sampling_rate": 8000}] * 2, "audio"),
    ],
)
def test_the_modality_follows_from_column_names_and_values(
    column: str, values: object, kind: str
) -> None:
    found = bind_data("classify", {column: values, "label": ["x", "y"]})
    assert {name: one.kind for name, one in found.columns.items()} == {
        column: kind,
        "label": "label",
    }
    assert found.files == ("text" if kind == "text" else "media")


def test_the_columns_of_a_run_come_before_usual_names() -> None:
    usual = DataSettings(text=("a.tsv",), text_field="review", label_field="2")
    found = bind_data("classify", [{"text": "a", "review": "b", "label": "c"}], usual=usual)
    assert list(found.columns) == ["review", "label"]


@pytest.mark.parametrize(
    ("task", "data", "needs", "message"),
    [
        ("classify", COLUMNS, {"text": "reviews"},
         naming('text="reviews"', "'review'", "'id'", "'stars'", "'a bad film 0'",
                "'a good film 1'")),
        ("classify", {**COLUMNS, "sort": [1, 2] * 20}, {},
         naming("label=", "'id'", "'review'", "'stars'", "'sort'")),
        ("classify", COLUMNS, {"txt": "review"}, naming("txt=", "'text'")),
        ("classify", {"text": ["a"], "label": [1, 2]}, {}, r"'text'\D+1\b.*'label'\D+2\b"),
        ("classify", [{"text": "a", "label": 1}, "b"], {}, naming(2, "'b'")),
        ("classify", ["a good film", "a bad film"], {}, naming("'a good film'", '{"text":')),
        ("classify", {"train": Dataset(ROWS), "valid": Dataset(ROWS)}, {},
         naming("data['train']", "valid=data['valid']")),
        ("classify", 5, {}, naming("int")),
        ("fill", {"text": "abc"}, {}, naming("'text'", "'abc'")),
    ],
)  # fmt: skip
def test_data_that_cannot_be_bound_is_an_error(
    task: str, data: object, needs: dict[str, str], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        bind_data(task, data, needs)


def test_data_without_rows_is_an_error() -> None:
    with pytest.raises(DataError) as caught:
        bind_data("classify", [], {})
    assert not isinstance(caught.value, ConfigError)  # no column is missing


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        ("complete", {"text": 5}, naming(1, "'text'", 5)),
        ("classify", {"text": "a", "label": b"x"}, naming(1, "'label'", "b'x'")),
        ("tag", {"words": "a b", "tags": ["A", "B"]}, naming(1, "'words'", "'a b'")),
        ("classify", {"image": None, "label": 1}, naming(1, "'image'")),
        ("identify", {"audio": np.zeros(9), "label": 1}, naming(1, "'audio'", "(9,)", 16000)),
        ("complete", {"text": "\ud800"}, naming(1, "surrogate")),
    ],
)
def test_a_value_of_another_kind_is_named(
    tmp_path: Path, task: str, row: dict[str, Any], message: str
) -> None:
    columns = [name for name in ("text", "label", "image", "audio") if name in row]
    with pytest.raises(DataError, match=message):
        written(tmp_path, task, [row], **{name: name for name in columns})


def test_words_and_tags_pairs_and_fields(tmp_path: Path) -> None:
    tags = Dataset([{"tokens": ["Ada", "sleeps"], "ner_tags": [1, 0]}],
                   ner_tags=type("Sequence", (), {"feature": Classes("O", "B-per")})())  # fmt: skip
    assert written(tmp_path / "a", "tag", tags) == [
        {"tokens": ["Ada", "sleeps"], "ner_tags": ["B-per", "O"]}
    ]
    assert bind_data("tag", tags).names == {"words_field": "tokens", "tags_field": "ner_tags"}
    labels = Dataset([{"text": "a", "label": 1}, {"text": "b", "label": -1}],
                     label=Classes("neg", "pos"))  # fmt: skip
    assert [one["label"] for one in written(tmp_path / "b", "classify", labels)] == ["pos", ""]
    pairs = [{"translation": {"de": "Ja", "en": "Yes"}}]
    names = {"source": "translation.de", "target": "translation.en"}
    assert written(tmp_path / "c", "translate", pairs, **names) == pairs
    assert bind_data("embed", [{"source": "a", "target": "b"}]).files == "pairs"
    documents = [{"title": "a", "body": "b", "date": "c"}]
    found = bind_data("complete", documents, {"fields": ["title", "body"]})
    found.write(tmp_path / "d")
    assert found.names == {"fields": ("title", "body")}
    assert json.loads((tmp_path / "d" / "rows.jsonl").read_text()) == {"title": "a", "body": "b"}


def test_paths_are_kept_with_their_column_names(tmp_path: Path) -> None:
    found = bind_data("classify", tmp_path / "a.tsv", NAMES)
    assert found.settings(tmp_path) == {
        "text": [str(tmp_path / "a.tsv")], "text_field": "review", "label_field": "stars",
    }  # fmt: skip
    assert bind_data("translate", ["a.tsv", "b.tsv"]).settings(tmp_path, "valid") == {
        "valid_pairs": ["a.tsv", "b.tsv"]
    }
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "a.png").touch()
    assert bind_data("fill", str(tmp_path / "image")).files == "media"
    assert bind_data("fill", "a.txt").files == "text"
    with as_files("complete", [{"text": "a"}]) as settings:
        path = Path(str(settings["text"][0]))  # type: ignore[index]
        assert path.exists()
    assert not path.exists()


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_images_come_back_as_they_were(tmp_path: Path) -> None:
    pixels_NYXC = np.random.default_rng(1).integers(0, 255, (5, 6, 8, 3), np.uint8)
    Image.fromarray(pixels_NYXC[0]).save(tmp_path / "a.png")
    forms = [tmp_path / "a.png", png(pixels_NYXC[1]), Image.fromarray(pixels_NYXC[2]),
             pixels_NYXC[3], {"bytes": png(pixels_NYXC[4]), "path": None}]  # fmt: skip
    found = bind_data("classify", {"image": forms, "label": list("abcde")})
    found.write(tmp_path)
    path, data = str(tmp_path / "rows.jsonl"), DataSettings(path_field="image")
    items = list(media_examples([path], data, "image", LABEL))
    assert [item.text("label") for item in items] == list("abcde")
    for item, pixels_YXC in zip(items, pixels_NYXC, strict=True):
        assert np.array_equal(
            item.medium.read(ItemFormat("image")).values[0].transpose(1, 2, 0), pixels_YXC
        )
    # Arrays of one shape are one file.
    assert len(list((tmp_path / "rows").glob("*.npy"))) == 1


def test_recordings_and_videos_come_back_as_they_were(tmp_path: Path) -> None:
    samples = np.linspace(-0.5, 0.5, 1600, dtype=np.float32)
    decoder = type("Samples", (), {"data": np.stack([samples, samples]), "sample_rate": 16000})
    forms = [(samples, 16000), {"array": samples, "sampling_rate": 16000},
             ((samples * 32768).astype(np.int16), 16000),
             type("Decoder", (), {"get_all_samples": lambda _: decoder})()]  # fmt: skip
    bind_data("identify", {"audio": forms, "label": [1] * 4}).write(tmp_path)
    data = DataSettings(path_field="audio")
    for item in media_examples([str(tmp_path / "rows.jsonl")], data, "audio"):
        assert np.abs(item.medium.read(ItemFormat("audio")).values - samples).max() < 1e-4
    frames = [np.full((4, 4), 50 * i, np.uint8) for i in range(4)]
    videos = [np.stack(frames), [Image.fromarray(frame) for frame in frames]]
    bind_data("classify", {"video": videos, "label": [1, 2]}).write(tmp_path, "valid")
    listed, form = str(tmp_path / "valid.jsonl"), ItemFormat("video", channels=1, frames=4)
    for item in media_examples([listed], DataSettings(path_field="video"), "video"):
        values = item.medium.read(form).values
        assert [int(frame[0, 0, 0]) for frame in values] == [0, 50, 100, 150]


def test_existing_files_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "given"
    images = {"image": [np.zeros((4, 4), np.uint8)] * 2, "label": [1, 2]}
    assert write_tables(folder, {"rows": bind_data("classify", images)})
    times = [path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))]
    assert write_tables(folder, {"rows": bind_data("classify", images)}, replace=False)
    assert [path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))] == times
    images["label"] = [1, 3]
    assert not write_tables(folder, {"rows": bind_data("classify", images)}, replace=False)
    assert [path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))] == times
    assert write_tables(folder, {"rows": bind_data("classify", images)})
    broken = {"image": [np.zeros((4, 4), np.uint8), None], "label": [1, 2]}
    before = (folder / "rows.jsonl").read_text()
    with pytest.raises(DataError, match=naming(2, "'image'")):
        write_tables(folder, {"rows": bind_data("classify", broken)})
    assert (folder / "rows.jsonl").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given"]


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-images-idx3-ubyte.gz", "."])
def test_mnist_files_are_recognised_as_images(tmp_path: Path, name: str) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").touch()
    assert bind_data("classify", str(tmp_path / name), {}).files == "media"
    assert bind_data("classify", str(tmp_path / "texts.tsv"), {}).files == "text"


@pytest.mark.parametrize("ending", [".pgm", ".ppm", ".pbm", ".tif", ".au", ".aif", ".oga", ".PPM"])
def test_folders_of_every_ending_that_is_read_are_media(tmp_path: Path, ending: str) -> None:
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / f"a{ending}").touch()
    assert bind_data("classify", str(tmp_path)).files == "media"


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        ("clip,kind\na.wav,dog\nb.wav,cat\n", "media"),
        ("path,label\nx/a.aif,dog\nx/b.aif,cat\n", "media"),
        ("a.ppm,dog\nb.ppm,cat\n", "media"),
        ("scan;label\na.pgm;dog\nb.pgm;cat\n", "media"),
        ("text,image,label\nhello,a.png,x\nworld,b.png,y\n", "text"),
        ("text,label\na.png,x\nb.png,y\n", "text"),
        ("note,label\nsee a.png,x\nnothing,y\n", "text"),
    ],
)
def test_a_table_of_file_names_is_a_list_of_media(tmp_path: Path, lines: str, files: str) -> None:
    path = tmp_path / "list.csv"
    path.write_text(lines)
    assert bind_data("classify", str(path)).files == files
    assert bind_data("classify", str(path), {"label": "label"}).files == files


def test_a_column_of_file_names_in_memory_is_a_column_of_media() -> None:
    found = bind_data("classify", {"clip": ["a.wav", "b.wav"], "kind": ["x", "y"]})
    assert {name: one.kind for name, one in found.columns.items()} == {
        "clip": "audio", "kind": "label",
    }  # fmt: skip
