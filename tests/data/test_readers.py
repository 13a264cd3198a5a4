"""Files of every format are tables: packed or not, one or in parts, with a header or without."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headway.data.columns.column import class_of
from headway.data.files import open_lines, parts
from headway.data.fingerprint import data_inputs
from headway.data.pairs import read_pairs
from headway.data.prepare import prepare
from headway.data.readers.open import open_table
from headway.data.schema import schema_of
from headway.data.sniff import is_header_for
from headway.data.source import DataSource, sources
from headway.errors import ConfigError, DataError, UserError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings, run_settings
from tests.facts import naming

Write = Callable[[str, list[str]], str]


def texts(*paths: object, **changes: Any) -> list[tuple[str, str]]:
    run = RunSettings(task="classify", data=DataSettings(**changes))
    source = DataSource(schema_of(run), run, tuple(map(str, paths)))
    return [(one.text("text"), one.text("label")) for one in source]


ROWS = [("a good one", "pos"), ("a bad one", "neg")]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.tsv", ["text\tlabel", *("\t".join(row) for row in ROWS)]),
        ("a.tsv", ["\t".join(row) for row in ROWS]),
        ("a.tsv", ["id\tcategory\tsentence", "1\tpos\ta good one", "2\tneg\ta bad one"]),
        ("a.tsv", ["Text\tID\tClass", "a good one\t1\tpos", "a bad one\t2\tneg"]),
        ("a.csv", ["text,label", *(f'"{text}",{label}' for text, label in ROWS)]),
        ("a.csv", ["label;text;id", "pos;a good one;1", "neg;a bad one;2"]),
        ("a.csv", ["text\tlabel", *("\t".join(row) for row in ROWS)]),
        ("a.jsonl", [json.dumps({"label": label, "text": text}) for text, label in ROWS]),
        ("a.txt", [f"__label__{label} {text}" for text, label in ROWS]),
    ],
)
def test_every_form_gives_the_same_examples(write: Write, name: str, lines: list[str]) -> None:
    path = Path(write(name, lines))
    assert texts(path) == ROWS
    for ending, pack in ((".gz", gzip.compress), (".xz", lzma.compress)):
        packed = path.with_name(path.name + ending)
        packed.write_bytes(pack(path.read_bytes()))
        assert texts(packed) == ROWS


def test_a_line_over_numbers_names_columns(write: Write) -> None:
    rows = [f"text {i}\t{i % 2}" for i in range(6)]
    assert texts(write("a.tsv", ["opinion\tstars", *rows])) == [(f"text {i}", f"{i % 2}")
                                                            for i in range(6)]  # fmt: skip
    assert texts(write("b.tsv", ["first\tone", "second\ttwo"]))[0] == ("first", "one")


def test_a_line_over_names_of_media_files_names_columns() -> None:
    is_header = is_header_for([class_of("image")("path", "path_field")], commas=False)
    rows = [[f"{i}.png", f"{i}.jpg"] for i in range(6)]
    assert is_header(["left", "right"], rows)
    assert not is_header(["x.png", "y.png"], rows)


def test_a_first_line_of_commas_that_is_like_the_others_names_nothing(write: Write) -> None:
    assert texts(write("a.csv", ["a good one,pos", "a bad one,neg", "a fine one,pos"])) == [
        *ROWS, ("a fine one", "pos")
    ]  # fmt: skip
    with pytest.raises(
        ConfigError, match=naming("data.text_field data.label_field", "'said' 'spam' 'pos'")
    ):
        texts(write("b.csv", ["said,spam", "a good one,pos", "a bad one,neg"]))
    assert texts(write("c.csv", ["text,pos", "a good one,pos", "a bad one,neg"])) == ROWS


def test_row_numbers_are_not_labels(write: Write) -> None:
    rows = [{"text": f"text {i}", "id": i, "score": i / 8} for i in range(20)]
    path = write("a.jsonl", list(map(json.dumps, rows)))
    with pytest.raises(
        ConfigError, match=naming("data.label_field", "classify.answer=number", "'id' 'score' 0.0")
    ):
        texts(path)


def test_values_that_are_listed_end_as_they_begin(write: Write) -> None:
    path = write("a.tsv", ["a\tb\tc", *3 * ["\t".join(3 * ["long " * 20])]])
    with pytest.raises(ConfigError, match=naming("'2'", "lon…'")):
        texts(path)


def test_columns_that_only_one_can_be_meant_by_are_taken(write: Write) -> None:
    assert texts(write("a.csv", ["opinion,stars", "fine,5", "poor,1"])) == [
        ("fine", "5"),
        ("poor", "1"),
    ]
    with pytest.raises(DataError, match=naming("data.label_field", "'id' '1' '2' 'review'")):
        texts(write("a.csv", ["id,review,stars", "1,fine,5", "2,poor,1"]))


def test_empty_lines_may_come_before_a_header(write: Write) -> None:
    assert texts(write("a.tsv", ["", "label\ttext", "", "x\ta"])) == [("a", "x")]
    assert texts(write("b.tsv", [""])) == []


def test_a_name_that_comes_twice_is_that_of_the_first(write: Write) -> None:
    assert texts(write("a.tsv", ["text\tlabel\ttext", "a\tx\tb"])) == [("a", "x")]


def test_a_pattern_and_a_folder_expand_to_their_files(tmp_path: Path, write: Write) -> None:
    for i in (10, 2, 1):
        write(f"part-{i}.tsv", [f"text {i}\tx"])
    write("_SUCCESS", [])
    names = [f"text {i}" for i in (1, 2, 10)]
    assert [text for text, _ in texts(tmp_path / "part-*.tsv")] == names
    assert [text for text, _ in texts(tmp_path)] == names
    with pytest.raises(DataError, match=naming(tmp_path / "none-*")):
        parts([str(tmp_path / "none-*")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=naming(tmp_path / "empty")):
        parts([str(tmp_path / "empty")])
    assert parts(["-", "a.txt"]) == ["-", "a.txt"]


def test_parts_are_prepared_like_one_file(tmp_path: Path, write: Write) -> None:
    lines = [f"text number {i} of many\tc{i % 2}" for i in range(60)]
    (tmp_path / "parts").mkdir()
    for i in range(2):
        rows = "".join(f"{line}\n" for line in lines[30 * i : 30 * i + 30])
        (tmp_path / "parts" / f"{i}.tsv").write_text(rows)
    made = []
    for number, name in enumerate(["parts/*.tsv", "parts", write("all.tsv", lines)]):
        data = {"text": [str(tmp_path / name)], "valid_size": 6}
        settings = run_settings({"task": "classify", "data": data, "tokenizer": {"kind": "words"}})
        made.append(prepare(settings, tmp_path / f"run{number}"))
    for one in made[1:]:
        assert one.train["text"].tokens.tolist() == made[0].train["text"].tokens.tolist()
        assert one.valid_examples == made[0].valid_examples


def test_aligned_files_may_be_in_parts(tmp_path: Path, write: Write) -> None:
    for i in range(2):
        write(f"{i}.de", [f"de {i}"])
        write(f"{i}.en", [f"en {i}"])
    both = (str(tmp_path / "*.de"),), (str(tmp_path / "*.en"),)
    assert list(read_pairs(*both, (), DataSettings())) == [("de 0", "en 0"), ("de 1", "en 1")]
    (tmp_path / "1.en").unlink()
    with pytest.raises(ConfigError, match=naming(2, 1)):
        list(read_pairs(*both, (), DataSettings()))


def test_a_compressed_file_without_its_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "a.tsv.zst").write_bytes(b"\x28\xb5\x2f\xfd\x00")
    with pytest.raises(UserError, match=naming("headway[zstd]")):
        list(open_lines(str(tmp_path / "a.tsv.zst")))
    (tmp_path / "a.parquet").write_bytes(b"PAR1\x15\x04")
    with pytest.raises(UserError, match=naming("headway[parquet]")):
        texts(tmp_path / "a.parquet")


def test_zstd_is_unpacked(tmp_path: Path) -> None:
    zstandard = import_module("zstandard")
    (tmp_path / "a.txt.zst").write_bytes(zstandard.compress(b"one\ntwo\n"))
    assert list(open_lines(str(tmp_path / "a.txt.zst"))) == ["one", "two"]


def test_parquet_is_a_table(tmp_path: Path) -> None:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    columns = {
        "id": [1, 2],
        "text": [text for text, _ in ROWS],
        "label": [label for _, label in ROWS],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == ROWS


def test_only_the_columns_that_are_needed_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    columns = {"id": [1, 2], "text": ["a", None], "label": [3, 4]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    iter_batches, asked = parquet.ParquetFile.iter_batches, []

    def spy(self: Any, batch_size: int, columns: list[str]) -> Iterator[Any]:
        asked.append(columns)
        yield from iter_batches(self, batch_size=batch_size, columns=columns)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", spy)
    assert texts(tmp_path / "a.parquet") == [("a", "3"), ("", "4")]
    assert asked[-1] == ["text", "label"]


@pytest.mark.parametrize(
    ("lines", "columns", "labels"),
    [
        (["DESC:manner How did it , end ?", "ENTY:cremat What , films ?", "DESC:def Who ?"],
         ("label", "fine", "text"), ["DESC", "ENTY", "DESC"]),
        (["0 bad film", "1 good film", "1 fine", "0 no"], ("label", "text"), ["0", "1", "1", "0"]),
        (["__label__a__x t", "__label__b u"], ("label", "text"), ["a__x", "b"]),
    ],
)  # fmt: skip
def test_labels_before_texts_are_recognised(
    tmp_path: Path, lines: list[str], columns: tuple[str, ...], labels: list[str]
) -> None:
    path = tmp_path / "train.label"
    path.write_text("\n".join(lines) + "\n")
    settings = RunSettings(task="classify", data=DataSettings(text=(str(path),)))
    found = list(sources(settings)[0])
    assert [one.text("label") for one in found] == labels
    assert [one.text("text") for one in found] == [line.split(" ", 1)[1] for line in lines]
    assert open_table(str(path), settings.data, schema_of(settings).columns).columns == columns


def test_numbers_at_the_start_of_texts_are_not_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("3 eggs\n12 apples\n7 pears\n")
    settings = RunSettings(task="classify", data=DataSettings(text=(str(path),)))
    with pytest.raises(ConfigError, match=naming("data.label_field", "__label__x", "'3 eggs'")):
        list(sources(settings)[0])


def test_texts_in_a_folder_for_each_class_are_read(tmp_path: Path) -> None:
    for name, text in (("pos/1.txt", "good\nfilm\n"), ("pos/10.txt", "fine"), ("neg/2.txt", "bad")):
        (tmp_path / "train" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / name).write_text(text)
    (tmp_path / "train" / "urls.txt").write_text("lists may be beside them")
    settings = RunSettings(task="classify", data=DataSettings(text=(str(tmp_path / "train"),)))
    found = [(one.text("label"), one.text("text")) for one in sources(settings)[0]]
    assert found == [("neg", "bad"), ("pos", "good\nfilm"), ("pos", "fine")]
    paths = parts(settings.data.text)
    assert paths == list(settings.data.text)
    before = data_inputs(settings)
    for name in (".DS_Store", "pos/.DS_Store", "pos/_notes", "urls.txt"):
        (tmp_path / "train" / name).write_text("not read")
    assert data_inputs(settings) == before
    (tmp_path / "train" / "pos" / "1.txt").write_text("other")
    assert data_inputs(settings) != before
    documents = RunSettings(task="complete", data=settings.data)
    with pytest.raises(DataError, match=naming("train/*/*.txt")):
        list(sources(documents)[0])
    both = RunSettings(task="classify", data=DataSettings(text=(str(tmp_path / "all"),)))
    for split in ("train", "test"):
        (tmp_path / "all" / split).mkdir(parents=True)
        (tmp_path / "all" / split / "a.txt").write_text("x")
    with pytest.raises(DataError, match=naming("all/train", "all/test")):
        list(sources(both)[0])
