"""Texts prepared: checked, split without leaks, tokenised once, the same after any kill."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data import encode, source
from headway.data import prepare as preparing
from headway.data.encode import Router
from headway.data.prepare import evaluation_set
from headway.data.prepare import prepare as prepare_data
from headway.data.source import Example
from headway.data.store import DATA, ImpossibleData, PreparedData, load_prepared
from headway.data.token_store import TokenStore
from headway.errors import DataError
from headway.settings.run import RunSettings, run_settings
from headway.tokens.files import load_tokenizer
from tests.facts import missing, naming

from .conftest import sentences

Write = Callable[[str, list[str]], str]

ENGLISH = [english for _, english in sentences()]


TASKS = {"documents": "complete", "fields": "complete", "labelled": "classify", "tagged": "tag",
         "texts": "embed", "pairs": "translate"}  # fmt: skip
"""A task that reads each form of data."""


def prepare(kind: str, settings: RunSettings, folder: Path, **options: Any) -> PreparedData:
    return prepare_data(replace(settings, task=TASKS[kind]), folder, **options)


def run(path: str, task: str = "complete", **sections: Any) -> RunSettings:
    data = {"text": [path], **sections.pop("data", {})}
    tokenizer = {"vocab_size": 400, **sections.pop("tokenizer", {})}
    return run_settings({"task": task, "data": data, "tokenizer": tokenizer, **sections})


def decoded(prepared: PreparedData, store: TokenStore) -> list[str]:
    return [prepared.tokenizer.decode(store[i].tolist()) for i in range(len(store))]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def labelled(write: Write, name: str = "a.tsv", lines: list[str] | None = None) -> str:
    return write(name, [f"{t}\t{'dog' if 'dog' in t else 'other'}" for t in lines or ENGLISH])


def story(write: Write, n: int = 60) -> str:
    """One document of many lines."""
    return write("story.txt", [" ".join(ENGLISH[i : i + 5]) for i in range(n)])


def names(prepared: PreparedData | ImpossibleData) -> dict[str, Any]:
    return {finding.name: finding for finding in prepared.report.findings}


def test_the_last_tenth_of_a_single_document_is_held_out(tmp_path: Path, write: Write) -> None:
    path = story(write)
    text = Path(path).read_text()
    prepared = prepare("documents", run(path), tmp_path / "run")
    cut = int(0.9 * len(text))
    assert decoded(prepared, prepared.train["text"]) == [text[:cut]]
    assert decoded(prepared, prepared.valid["text"]) == [text[cut:]]
    assert (prepared.train.n_bytes, prepared.valid.n_bytes) == (cut, len(text) - cut)
    assert prepared.valid_examples == [{"text": text[cut:]}]
    assert "label" not in prepared.train
    assert prepared.labels == ()


def test_characters_are_those_of_the_text_and_three_specials(tmp_path: Path, write: Write) -> None:
    path = story(write)
    prepared = prepare("documents", run(path, tokenizer={"kind": "characters"}), tmp_path)
    text = Path(path).read_text()
    cut = int(0.9 * len(text))
    assert prepared.tokenizer.vocab_size == 3 + len(set(text[:cut]))
    assert prepared.train["text"].lengths.tolist() == [cut]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "characters"])
def test_pieces_of_a_document_give_the_tokens_of_the_whole(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = story(write)
    settings = run(path, tokenizer={"kind": kind})
    whole = prepare("documents", settings, tmp_path / "whole")
    monkeypatch.setattr("headway.data.readers.lines.PIECE", 97)
    monkeypatch.setattr(source, "BLOCK", 3)
    tokenizer = whole.tokenizer
    pieces = prepare("documents", settings, tmp_path / "pieces", tokenizer=tokenizer)
    for split in ("train", "valid"):
        one, other = getattr(whole, split), getattr(pieces, split)
        assert np.array_equal(one["text"].tokens, other["text"].tokens)
        assert np.array_equal(one["text"].lengths, other["text"].lengths)
        assert one.n_bytes == other.n_bytes


@pytest.mark.parametrize("cut", range(1, 9))
def test_the_cut_may_fall_anywhere(cut: int) -> None:
    pieces = [("ab", False), ("cd", True), ("ef", False), ("gh", True)]
    router = Router(np.zeros(2, np.bool_), cut)
    parts = router.route([Example({"text": text}, "f:1", ends=ends) for text, ends in pieces])
    for valid, text in ((False, "abcdefgh"[:cut]), (True, "abcdefgh"[cut:])):
        mine = parts.kept(parts.valid == valid)
        assert "".join(one.text("text") for one in mine.examples) == text
        ends = [one.ends for one in mine.examples]
        assert all(ends[-1:])
        # Every part behind an end begins a document, and no other does.
        assert mine.first.tolist() == [True, *ends][: len(ends)]


def test_several_small_documents_are_cut_by_characters(tmp_path: Path, write: Write) -> None:
    path = write("a.txt", [*ENGLISH[:12], "", " "])
    prepared = prepare("documents", run(path, data={"unit": "line"}), tmp_path)
    together = "".join(ENGLISH[:12])
    train, valid = (decoded(prepared, s["text"]) for s in (prepared.train, prepared.valid))
    assert "".join(train) == together[: int(0.9 * len(together))]
    assert "".join(train + valid) == "".join(ENGLISH[:12])
    assert prepared.dropped == {"empty": 0, "validation_empty": 2}
    assert names(prepared)["empty"].count == 2


def test_a_file_of_empty_lines_has_no_text_whatever_its_size(tmp_path: Path, write: Write) -> None:
    """One document in many pieces, none of which has any."""
    path = write("a.txt", [""] * 100_000)
    with pytest.raises(ImpossibleData, match=naming(1)) as caught:
        prepare("documents", run(path), tmp_path)
    assert names(caught.value)["no-texts"].level == "error"


@pytest.mark.parametrize("n", [3, 30])  # cut by characters, and by documents
def test_a_long_document_without_text_is_left_out_whole(
    tmp_path: Path, write: Write, n: int
) -> None:
    blank = ["<|endoftext|>", *[" "] * 30_000, "<|endoftext|>"]
    documents = [line for text in ENGLISH[:n] for line in (text, "<|endoftext|>")]
    prepared = prepare("documents", run(write("a.txt", documents)), tmp_path / "without")
    path = write("b.txt", [*documents[: n // 3 * 2], *blank[1:], *documents[n // 3 * 2 :]])
    found = prepare("documents", run(path), tmp_path / "with")
    assert sum(found.dropped.values()) == names(found)["empty"].count == 1
    for one, other in ((found.train, prepared.train), (found.valid, prepared.valid)):
        assert decoded(found, one["text"]) == decoded(prepared, other["text"])


def test_duplicates_never_straddle_the_split(tmp_path: Path, write: Write) -> None:
    doubled = [*ENGLISH, *(text.upper() for text in ENGLISH), *ENGLISH]
    random.Random(0).shuffle(doubled)
    path = write("a.txt", doubled)
    prepared = prepare("documents", run(path, data={"unit": "line"}), tmp_path)
    train, valid = (decoded(prepared, s["text"]) for s in (prepared.train, prepared.valid))
    assert sorted(train + valid) == sorted(doubled)
    assert 60 < len(valid) <= 120
    assert not {text.lower() for text in train} & {text.lower() for text in valid}
    held = set(valid)
    assert train == [text for text in doubled if text not in held]
    assert [example["text"] for example in prepared.valid_examples] == valid
    assert names(prepared)["duplicates"].count == 400


def test_labels_are_names_in_order_and_examples_stay_as_they_are(
    tmp_path: Path, write: Write
) -> None:
    train = write("a.tsv", [f"{t}\t{i % 11}" for i, t in enumerate(ENGLISH[:300])])
    valid = write("v.tsv", [f"{t}\t{i % 3}" for i, t in enumerate(ENGLISH[300:])] + [" \t1"])
    prepared = prepare("labelled", run(train, data={"valid_text": [valid]}), tmp_path)
    assert prepared.labels == tuple(map(str, range(11)))  # not 0, 1, 10, 2
    assert prepared.train["label"].tolist() == [i % 11 for i in range(300)]
    assert prepared.valid["label"].tolist() == [i % 3 for i in range(100)]
    assert prepared.valid_examples[4] == {"text": ENGLISH[304], "label": "1"}
    assert decoded(prepared, prepared.valid["text"]) == ENGLISH[300:]
    assert prepared.dropped == {"empty": 0, "validation_empty": 1}
    assert prepared.report.labels["0"] == (28, 34)
    assert any(not missing(line, 11, "0 28 (9.3%)") for line in prepared.report.lines())


def test_pairs_of_texts_have_two_stores(tmp_path: Path, write: Write) -> None:
    lines = [f"{one}\t{two}\tyes" if i % 2 else f"{one}\t{two}\tno"
             for i, (two, one) in enumerate(sentences())]  # fmt: skip
    data = {"text_field": "1", "other_field": "2", "label_field": "3"}
    prepared = prepare("labelled", run(write("a.tsv", lines), "classify", data=data), tmp_path)
    example = prepared.valid_examples[0]
    assert decoded(prepared, prepared.valid["text"])[0] == example["text"]
    assert decoded(prepared, prepared.valid["other"])[0] == example["other"]
    assert prepared.train.n + prepared.valid.n == 400


def test_no_class_is_held_out_as_a_whole(tmp_path: Path, write: Write) -> None:
    lines = [f"{text}\tc{i % 200}" for i, text in enumerate(ENGLISH)]
    prepared = prepare("labelled", run(write("a.tsv", lines)), tmp_path)
    assert set(prepared.train["label"].tolist()) == set(range(200))
    assert names(prepared)["rare"].count == 200


def test_tagged_words_keep_their_pieces_and_tags(tmp_path: Path, write: Write) -> None:
    lines = []
    for text in ENGLISH:
        words = text.rstrip(".").split()
        lines += [f"en:{w} {'I-N' if w in ('dog', 'tree', 'boat') else 'O'}" for w in words] + [""]
    tag = {"prefix_strip": "en:"}
    prepared = prepare("tagged", run(write("a.conll", lines), "tag", tag=tag), tmp_path)
    assert prepared.labels == ("B-N", "O")
    one = prepared.valid
    for i, one_example in enumerate(prepared.valid_examples):
        assert [prepared.labels[t] for t in one["tags"][i]] == one_example["tags"]
        assert one["pieces"][i].sum() == one["text"].lengths[i]
        assert one["pieces"][i].min() >= 1
        assert prepared.tokenizer.decode(one["text"][i].tolist()) == " ".join(one_example["words"])


def test_fields_are_stored_one_by_one(tmp_path: Path, write: Write) -> None:
    rows = [{"title": f"T{i}", "body": text, "label": "x" if i % 2 else "y"}
            for i, text in enumerate(ENGLISH)]  # fmt: skip
    rows[0].pop("title")
    path = write("a.jsonl", [json.dumps(row) for row in rows])
    settings = run(path, data={"fields": ["title", "body"], "valid_text": [path]})
    prepared = prepare("fields", settings, tmp_path, specials=["<title>", "<body>"])
    assert list(prepared.train.fields) == ["title", "body"]
    assert prepared.train.tokens("title").lengths[0] == 0
    assert decoded(prepared, prepared.valid.tokens("title"))[1:] == [f"T{i}" for i in range(1, 400)]
    assert decoded(prepared, prepared.valid.body) == ENGLISH
    assert prepared.valid.n_bytes == sum(map(len, ENGLISH))
    assert prepared.valid["label"][:4].tolist() == [1, 0, 1, 0]
    assert prepared.valid_examples[0] == {"body": ENGLISH[0], "label": "y"}
    assert [prepared.tokenizer.special(n) for n in ("<title>", "<body>")] == [3, 4]


def test_texts_are_lines_or_pairs_of_lines(tmp_path: Path, write: Write) -> None:
    prepared = prepare("texts", run(write("a.txt", ENGLISH), "embed"), tmp_path / "one")
    assert "other" not in prepared.train
    assert prepared.train.n == 360
    pairs = write("p.tsv", [f"{a}\t{b}" for a, b in sentences()])
    settings = run_settings({"task": "embed", "data": {"pairs": [pairs]}})
    prepared = prepare("texts", settings, tmp_path / "two")
    first = prepared.valid_examples[0]
    assert (first["text"], first["other"]) in sentences()
    assert decoded(prepared, prepared.valid["other"])[0] == first["other"]


def test_a_given_tokenizer_is_used_and_completed(tmp_path: Path, write: Write) -> None:
    settings = run(story(write))
    first = prepare("documents", settings, tmp_path / "a").tokenizer
    again = prepare("documents", settings, tmp_path / "b", tokenizer=first)
    assert again.tokenizer.to_json() == first.to_json()
    masked = prepare("documents", settings, tmp_path / "b", tokenizer=first,
                          specials=["<mask>"])  # fmt: skip
    assert masked.tokenizer.mask == first.vocab_size
    assert np.array_equal(masked.train["text"].tokens, again.train["text"].tokens)
    masked.save_tokenizer(tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json").mask == first.vocab_size
    own = prepare("documents", settings, tmp_path / "b", specials=["<mask>"]).tokenizer
    assert own.mask == 3
    assert 3 not in own.encode("<mask> [MASK]")


def test_what_the_tokenizer_lacks_and_what_is_long_is_reported(
    tmp_path: Path, write: Write
) -> None:
    lines = [*ENGLISH[:-1], "日本 " + "x" * 300]
    data = {"unit": "line", "valid_text": [write("v", lines)]}
    settings = run(write("a.txt", ENGLISH), data=data, tokenizer={"kind": "characters"})
    prepared = prepare("documents", settings, tmp_path)
    assert "日 U+65E5" in names(prepared)["unknown"].text
    assert prepared.report.over_long[128] == 0
    assert prepared.report.sizes["valid_tokens"] == prepared.valid["text"].lengths.sum()
    assert names(prepared)["overlap"].count == 399
    assert prepared.valid["text"].lengths.max() == 303  # nothing is cut


def test_the_same_command_finds_the_data_and_any_change_makes_it_again(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = write("a.conll", [f"{w} O" if w else "" for t in ENGLISH for w in [*t.split(), ""]]
                      + ["x B-X"]), tmp_path / "run"  # fmt: skip
    copy = str(Path(path).with_name("copy"))
    Path(copy).write_bytes(Path(path).read_bytes())
    settings = run(path, "tag")
    first = prepare("tagged", settings, out)
    before = contents(out / DATA)
    (out / f"{DATA}.work").mkdir()  # left by a kill right behind the end
    with monkeypatch.context() as patch:
        patch.setattr(preparing, "DataBuilder", None)  # would fail
        again = prepare("tagged", settings, out)
    assert contents(out / DATA) == before
    assert [path.name for path in out.iterdir()] == [DATA]
    assert again.fingerprint == first.fingerprint == load_prepared(out).fingerprint
    assert again.report == first.report
    seen = {first.fingerprint}
    for changed in (
        run(path, "tag", tag={"scheme": "plain"}),
        run(path, "tag", tag={"prefix_strip": "T"}),
        run(path, "tag", tokenizer={"lowercase": True}),
        run(path, "tag", data={"valid_size": 10}),
        run(path, "tag", data={"valid_text": [copy]}),
    ):
        seen.add(prepare("tagged", changed, out).fingerprint)
    Path(copy).write_text(Path(copy).read_text() + "\nlast O\n")
    seen.add(prepare("tagged", changed, out).fingerprint)
    assert prepare("tagged", settings, out).fingerprint in seen
    seen.add(prepare("tagged", settings, out, specials=["<mask>"]).fingerprint)
    seen.add(prepare("documents", settings, out, specials=["<mask>"]).fingerprint)
    assert len(seen) == 9
    assert [path.name for path in out.iterdir()] == [DATA]


class Killed(BaseException):
    pass


def dying(last: int) -> Callable[..., None]:
    """What tokenises so many blocks and no more."""
    add = encode.DatasetWriter._add

    def add_or_die(self: Any, *block: Any) -> None:
        if self.count.blocks == last:
            raise Killed
        add(self, *block)

    return add_or_die


@pytest.mark.parametrize("kind", ["documents", "pairs"])
@pytest.mark.parametrize("at", [0, 1, 2, 5, 9])
def test_a_kill_while_tokenising_costs_one_block(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, at: int, kind: Any
) -> None:
    monkeypatch.setattr(source, "BLOCK", 40)
    monkeypatch.setattr(preparing, "RECORD_SECONDS", 0)
    lines = [*ENGLISH[:200], *["more of one document " * 40] * 100, *ENGLISH[200:]]
    path = write("a.txt", lines)
    settings = run(path, data={"unit": "line"}, tokenizer={"kind": "characters"})
    if kind == "pairs":
        data = {"source": [path], "target": [write("b.txt", lines[::-1])], "max_len": 2000}
        settings = run_settings({"data": data, "tokenizer": {"kind": "characters"}})
    whole = prepare(kind, settings, tmp_path / "whole")
    done: list[int] = []
    add = encode.DatasetWriter._add

    def counted(self: Any, *block: Any) -> None:
        done.append(self.count.blocks)
        add(self, *block)
        if len(done) == at + 1:
            self.files.sync()  # what came after the last record lies on the disk too
            raise Killed

    monkeypatch.setattr(encode.DatasetWriter, "_add", counted)
    out = tmp_path / "run"
    with pytest.raises(Killed):
        prepare(kind, settings, out)
    with pytest.raises(DataError, match=naming(out / DATA)):
        load_prepared(out)
    monkeypatch.setattr(preparing, "scan_examples", None)  # the check is not done again
    monkeypatch.setattr(preparing, "train_on_texts", None)
    monkeypatch.setattr(preparing, "train_vocabularies", None)
    assert prepare(kind, settings, out).fingerprint == whole.fingerprint
    assert contents(out / DATA) == contents(tmp_path / "whole" / DATA)
    assert done == [*range(at + 1), *range(at, 13)]
    assert [path.name for path in out.iterdir()] == [DATA]


def test_a_document_is_continued_after_a_kill(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.data.readers.lines.PIECE", 97)
    monkeypatch.setattr(source, "BLOCK", 10)
    settings = run(story(write))
    whole = prepare("documents", settings, tmp_path / "whole")
    for n in (3, 5):  # killed, and killed again
        with monkeypatch.context() as patch:
            patch.setattr(encode.DatasetWriter, "_add", dying(n))
            with pytest.raises(Killed):
                prepare("documents", settings, tmp_path / "run")
    assert prepare("documents", settings, tmp_path / "run").fingerprint == whole.fingerprint


def test_other_settings_after_a_kill_restart_preparation(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, other = run(story(write)), run(story(write), tokenizer={"lowercase": True})
    whole = prepare("documents", other, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(encode.DatasetWriter, "_add", dying(0))
        with pytest.raises(Killed):
            prepare("documents", settings, tmp_path / "run")
    assert prepare("documents", other, tmp_path / "run").fingerprint == whole.fingerprint


KILLED = """
import json, sys
from pathlib import Path
from headway.settings.run import run_settings
from headway.data import source, workers
from headway.data.prepare import prepare
source.BLOCK, workers.ALONE = 20, 1000
settings, out = run_settings(json.loads(sys.argv[1])), Path(sys.argv[2])
print("begin", flush=True)
while True:
    prepare(settings, out)
    Path(out, "data", "valid.jsonl").write_text("damaged")  # so that it is made again
"""


@pytest.mark.parametrize("kind", ["documents", "pairs"])
def test_a_kill_at_any_moment_leaves_nothing_that_a_rerun_cannot_fix(
    kind: Any, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "pairs":
        path = write("a.tsv", ["\t".join(pair) for pair in sentences()])
        data: dict[str, Any] = {"task": "translate", "data": {"pairs": [path]}}
    else:
        path = write("a.txt", ENGLISH)
        data = {"task": "complete", "data": {"text": [path], "unit": "line"}}
    data["tokenizer"] = {"vocab_size": 400}
    settings, out = run_settings(data), tmp_path / "run"
    monkeypatch.setattr(source, "BLOCK", 20)
    wanted = prepare(kind, settings, tmp_path / "whole").fingerprint
    for moment in (0.1, 0.3):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, json.dumps(data), str(out)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"begin\n"
        time.sleep(moment)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert prepare(kind, settings, out).fingerprint == wanted
        assert [path.name for path in out.iterdir()] == [DATA]


@pytest.mark.parametrize(
    ("kind", "lines", "valid", "finding", "facts"),
    [
        ("documents", [], None, "no-texts", ""),
        ("documents", ["", "  "], None, "no-texts", "1"),
        ("labelled", ["good\tpos", "fine\tpos"] * 9, None, "one-class", '\'pos\' label="label"'),
        ("labelled", ["good\tpos", "bad\t"], None, "no-label", "1 'label' a:2 data.on_bad_row"),
        ("labelled", ["\tpos", " \tneg"], None, "no-texts", "2"),
        ("labelled", ["g\tpos", "b\tneg"], ["x\tbad"], "unknown-label", "1 'bad' v:1 'pos'"),
        ("labelled", ["g\tpos", "b\tneg"], ["\tneg"], "no-texts", "1"),
        ("labelled", ["good\tpos", "good\tneg"] * 9, None, "no-split", "18 valid=…"),
        ("labelled", ["a\tpos", "b\tneg"], None, "no-split", "2 valid=…"),
        ("tagged", ["a O", "b O"], None, "one-class", "'O'"),
        ("tagged", ["a B-X", "b O"], ["c B-Y"], "unknown-label", "1 'B-Y' v:1 'B-X'"),
        ("fields", ['{"body": "x"}'] * 3, None, "no-field", "'title' data.fields"),
        ("fields", ['{"title": "t", "body": "x", "label": 1}', '{"title": "t", "body": "y"}'], None,
         "no-label", "1 a:2 data.on_bad_row"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_trained_on_is_an_error_with_a_reason(
    tmp_path: Path,
    write: Write,
    kind: Any,
    lines: list[str],
    valid: list[str] | None,
    finding: str,
    facts: str,
) -> None:
    data: dict[str, Any] = {"fields": ["title", "body"]} if kind == "fields" else {}
    if valid is not None:
        data["valid_text"] = [write("v", valid)]
    with pytest.raises(ImpossibleData, match=naming(facts)) as caught:
        prepare(kind, run(write("a", lines), data=data), tmp_path / "run")
    assert caught.value.report.impossible
    first = next(one for one in caught.value.report.findings if one.level == "error")
    assert first.name == finding
    assert list((tmp_path / "run").iterdir()) == []


def test_missing_inputs_are_named(tmp_path: Path, write: Write) -> None:
    with pytest.raises(DataError, match=naming("data task")):
        prepare("documents", run_settings({"task": "complete"}), tmp_path)
    with pytest.raises(DataError, match=naming(tmp_path / "none")):
        prepare("documents", run(str(tmp_path / "none")), tmp_path)


def test_odd_texts_are_remarked_on(tmp_path: Path, write: Write) -> None:
    lines = [f"{t}\t{i % 2}" for i, t in enumerate(ENGLISH)]
    lines += ["\t1", "SchÃ¤fer\t1", "lost \ufffd\t0", f"{ENGLISH[0]}\t1", f"{ENGLISH[1]}\t1"]
    prepared = prepare("labelled", run(write("a.tsv", lines)), tmp_path)
    found = names(prepared)
    assert {name: found[name].count for name in found} == {
        "empty": 1, "garbled": 1, "replaced": 1, "duplicates": 2, "conflicts": 1
    }  # fmt: skip
    assert found["empty"].examples[0].place == "a.tsv:401"
    assert found["conflicts"].examples[0].source == ENGLISH[0]
    assert prepared.dropped["empty"] == 1


def test_files_to_score_on_are_read_with_known_labels(tmp_path: Path, write: Write) -> None:
    prepared = prepare("labelled", run(labelled(write)), tmp_path / "run")
    test = labelled(write, "test.tsv", ENGLISH[:7])
    settings = run(test, "classify")
    found, examples = evaluation_set(settings, prepared.tokenizer, prepared.labels)
    assert decoded(prepared, found["text"]) == ENGLISH[:7] == [e["text"] for e in examples]
    assert [prepared.labels[i] for i in found["label"]] == [e["label"] for e in examples]
    odd = run(write("odd.tsv", [f"{ENGLISH[0]}\tdog", f"{ENGLISH[1]}\tcat"]), "classify")
    with pytest.raises(DataError, match=naming("odd.tsv:2", "'cat' 'dog' 'other'")):
        evaluation_set(odd, prepared.tokenizer, prepared.labels)
    with pytest.raises(DataError, match=naming("e.tsv")):
        evaluation_set(run(write("e.tsv", []), "classify"), prepared.tokenizer, prepared.labels)
    document = run(story(write))
    found, _ = evaluation_set(document, prepared.tokenizer, ())
    assert found.n_bytes == len(Path(document.data.text[0]).read_text())


def test_standard_input_is_read_once(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = labelled(write)
    wanted = prepare("labelled", run(path), tmp_path / "file").fingerprint
    with Path(path).open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        prepared = prepare("labelled", run("-"), tmp_path / "run")
    assert prepared.fingerprint == wanted
