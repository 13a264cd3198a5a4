"""A corpus: lines of files as a run reads them, bounded; tables where text belongs are refused."""

from __future__ import annotations

import json
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from headway.errors import DataError
from headway.inside.capture import corpus as module
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import LONGEST, display_tokens, passages
from headway.inside.capture.streams import TokenStream
from headway.tasks.loaded_run import LoadedRun, open_plain


@pytest.fixture(scope="module")
def writer() -> LoadedRun:
    return open_plain("stories")


@pytest.fixture(scope="module")
def translator() -> LoadedRun:
    return open_plain("tatoeba-de-en")


def file(folder: Path, text: str, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_come_in_order_and_blank_ones_are_left_out(tmp_path: Path, writer: LoadedRun) -> None:
    found = Corpus.of(file(tmp_path, "A cat.\n\n  \nA dog.\n"), writer)
    assert found.examples == ("A cat.", "A dog.")
    assert found.targets is None
    assert not found.cut


def test_several_files_are_one_corpus(tmp_path: Path, writer: LoadedRun) -> None:
    paths = [file(tmp_path, "one\n", "1.txt"), file(tmp_path, "two\n", "2.txt")]
    assert Corpus.of(paths, writer).examples == ("one", "two")


def test_a_corpus_is_bounded(
    tmp_path: Path, writer: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CHARACTERS", 20)
    found = Corpus.of(file(tmp_path, "0123456789\n" * 5), writer)
    assert found.examples == ("0123456789",) * 2
    assert found.cut


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_corpus_is_an_error(tmp_path: Path, writer: LoadedRun, text: str) -> None:
    with pytest.raises(DataError, match=r"/a\.txt"):
        Corpus.of(file(tmp_path, text), writer)


def test_standard_input_is_read_once(writer: LoadedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(b"one\ntwo\n" * 20)))
    found = Corpus.of("-", writer)
    assert found.examples == ("one", "two") * 20
    assert found.name == "standard input"


def test_a_missing_file_is_named(writer: LoadedRun) -> None:
    with pytest.raises(DataError, match=r"nowhere\.txt"):
        Corpus.of("nowhere.txt", writer)


def test_a_table_is_not_read_as_text(tmp_path: Path, writer: LoadedRun) -> None:
    with pytest.raises(DataError, match=r"(?=.*/a\.txt)(?=.*\btab\b)"):
        Corpus.of(file(tmp_path, "a cat\t1\na dog\t0\n"), writer)


def test_json_lines_give_their_text(tmp_path: Path, writer: LoadedRun) -> None:
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("A  cat.", "A\ndog."))
    assert Corpus.of(file(tmp_path, lines, "a.jsonl"), writer).examples == ("A cat.", "A dog.")


def test_a_translator_takes_pairs(tmp_path: Path, translator: LoadedRun) -> None:
    found = Corpus.of(file(tmp_path, "Hallo.\tHello.\nJa.\tYes.\n"), translator)
    assert found.examples == ("Hallo.", "Ja.")
    assert found.targets == ("Hello.", "Yes.")
    with pytest.raises(DataError, match=r"/a\.txt.*\b2\b"):
        Corpus.of(file(tmp_path, "Hallo.\tHello.\nJa.\n"), translator)


def test_passages_are_what_the_model_reads(writer: LoadedRun) -> None:
    tokenizer = writer.vocab.target
    [passage] = passages(writer, Corpus.of_lines(["A cat sat."]), 100)
    assert list(passage.last.ids) == tokenizer.as_prompt(tokenizer.encode("A cat sat."))


def test_long_lines_are_cut_without_loss(writer: LoadedRun) -> None:
    line = "The catalogues were unbuttoned. " * 60
    found = passages(writer, Corpus.of_lines([line]), 10_000)
    assert len(found) > 1
    assert max(passage.n_tokens for passage in found) <= LONGEST
    joined = [i for passage in found for i in passage.last.ids[1:]]
    assert joined == writer.vocab.target.encode(line.strip())
    for passage in found:
        assert display_tokens(passage.last)[1].strip() in (
            "The", "c", "cat", "were", "un", "."
        )  # fmt: skip


def test_reading_ends_at_the_most_tokens(writer: LoadedRun) -> None:
    found = passages(writer, Corpus.of_lines(["A cat sat."] * 500), 60)
    assert 60 <= sum(passage.n_tokens for passage in found) < 80


def test_a_translator_reads_pairs_or_its_own_translations(translator: LoadedRun) -> None:
    lines = ["Guten Morgen.", "Ich habe Hunger."]
    given = passages(translator, Corpus.of_lines(lines, ["Good morning.", "I am hungry."]), 1000)
    own = passages(translator, Corpus.of_lines(lines), 1000)
    alone = passages(translator, Corpus.of_lines(lines), 1000, write=False)
    target = translator.vocab.target
    assert list(given[0].last.ids) == [target.bos, *target.encode("Good morning.")]
    assert target.decode(own[1].last.ids) in ("I'm hungry.", "I am hungry.")
    assert [list(passage.streams) for passage in alone] == [["source"], ["source"]]
    assert alone[0].first == given[0].first == own[0].first


def test_tokens_are_spelled_so_that_they_can_be_joined(writer: LoadedRun) -> None:
    text = "Tim unbuttoned his coat."
    pieces = display_tokens(
        TokenStream.of("text", writer.vocab.target.encode(text), writer.vocab.target)
    )
    assert "".join(pieces).split() == text.split()
    assert len(pieces) > 6
