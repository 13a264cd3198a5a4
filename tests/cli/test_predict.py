"""`headway predict` and `headway score` from files and pipes, and mistakes."""

from __future__ import annotations

import csv
import io
import json
import os
import select
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.settings.folder import load_run
from headway.settings.run import resolved_toml
from tests.decode.test_writer import save_run
from tests.facts import figures, missing
from tests.interop.padded_runs import media_lines, media_run, tiny_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("runs") / "copy")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("ba de\n\nfi ko ga\n")
    return path


Output = pytest.CaptureFixture[str]


def test_translates_a_file_line_by_line(run: Path, text: Path, capsys: Output) -> None:
    assert main(["predict", str(run), str(text)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "ba de\n\nfi ko ga\n"
    lines, tokens, _, empty = figures(printed.err)
    assert (lines, tokens, empty) == ("3", "7", "1")


def test_translates_standard_input(
    run: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"go\nfi"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["predict", str(run), "--beam", "1"]) == 0
    assert capsys.readouterr().out == "go\nfi\n"


def test_progress_over_many_lines_is_shown(
    run: Path, text: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, slow: Any
) -> None:
    monkeypatch.setattr("headway.cli.predict.Progress", lambda: slow)
    assert main(["predict", str(run), str(text)]) == 0
    printed = slow.stream.getvalue().splitlines()
    assert [figures(line)[0] for line in printed] == ["1/3", "2/3", "3/3"]
    assert capsys.readouterr().out == "ba de\n\nfi ko ga\n"


def test_writes_a_file(run: Path, text: Path, tmp_path: Path, capsys: Output) -> None:
    out = tmp_path / "out.txt"
    assert main(["predict", str(run), str(text), "--out", str(out)]) == 0
    assert out.read_text() == "ba de\n\nfi ko ga\n"
    assert capsys.readouterr().out == ""
    nowhere = tmp_path / "no" / "out"
    assert main(["predict", str(run), str(text), "--out", str(nowhere)]) == 2
    assert str(nowhere) in capsys.readouterr().err


def test_shows_n_best_outputs_scores_and_alignments(run: Path, text: Path, capsys: Output) -> None:
    words = ["predict", str(run), str(text), "--beam", "4", "--n-best", "2", "--scores"]
    assert main([*words, "--alignments"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"]
    assert rows[0][2:] == ["ba de", "0-0 1-1"]
    assert float(rows[0][1]) > float(rows[1][1])


def test_json_tells_everything(run: Path, text: Path, capsys: Output) -> None:
    assert main(["predict", str(run), str(text), "--json", "--alignments"]) == 0
    first, empty, _ = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    [output] = first["outputs"]
    assert first["source"] == "ba de"
    assert output["text"] == "ba de"
    assert output["alignment"] == [[0, 0], [1, 1]]
    assert len(output["token_log_probs"]) == len(output["tokens"]) + 1 == 3
    assert empty["outputs"][0]["text"] == ""


def test_prefixes_and_constraints_come_from_files(
    run: Path, text: Path, tmp_path: Path, capsys: Output
) -> None:
    prefix, asked = tmp_path / "prefix", tmp_path / "asked.jsonl"
    prefix.write_text("ga\n\n\n")
    asked.write_text('\n\n{"required": ["ke ki"], "banned": ["ko"]}\n')
    words = ["predict", str(run), str(text), "--prefix", str(prefix), "--constraints", str(asked)]
    assert main(words) == 0
    first, empty, third = capsys.readouterr().out.splitlines()
    assert first.startswith("ga")
    assert empty == ""
    assert "ke ki" in third
    assert "ko" not in third.split()


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("nonsense", "/asked.jsonl 1 JSON char"),
        ("[1]", '/asked.jsonl 1 {"required":'),
        ('{"require": []}', "/asked.jsonl 1 'require' required"),
        ('{"banned": "ko"}', '/asked.jsonl 1 banned "ko"'),
        ('{"required": [3]}', "/asked.jsonl 1 required [3]"),
    ],
)
def test_a_bad_constraint_is_named(
    run: Path, text: Path, tmp_path: Path, capsys: Output, line: str, facts: str
) -> None:
    asked = tmp_path / "asked.jsonl"
    asked.write_text(line + "\n")
    assert main(["predict", str(run), str(text), "--constraints", str(asked)]) == 2
    assert not missing(capsys.readouterr().err, facts)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["{run}", "nowhere.txt"], "nowhere.txt"),
        (["{run}", "{text}", "--on-long", "spilt"], "--on-long spilt split"),
        (["{run}", "{text}", "--engine", "ct2"], "--engine 'ct2' ctranslate2 onnx"),
        (["{run}", "{text}", "--beam", "0"], "--beam 0 1"),
        (["{run}", "{text}", "--n-best", "9"], "--n-best 9 beam=2 beam=9"),
        (["{run}", "{text}", "decode.beem=3"], "decode.beem beam"),
        (["{run}", "{text}", "train.lr=3"], "train.lr=3 decode.*"),
        (["{run}", "{text}", "-"], "(-)"),
        (["{run}", "{text}", "--device", "gpuu"], "gpuu cpu cuda"),
        (["{run},nosuch", "{text}"], "nosuch tatoeba-de-en"),
        (["no-such-model", "{text}"], "no-such-model tatoeba-de-en"),
        (["{run}", "nowhere*.txt"], "nowhere*.txt"),
        (["{run}", "{text}", "--text", "ba"], "/in.txt `--source ba` --text"),
        (["{run}", "-", "--text", "ba"], "--text"),
        (["shapes", "--text", "a circle"], "--text caption `headway predict RUN FILE`"),
    ],
)
def test_mistakes_are_named(
    run: Path, text: Path, capsys: Output, words: list[str], facts: str
) -> None:
    given = [word.format(run=run, text=text) for word in words]
    assert main(["predict", *given]) == 2
    assert not missing(capsys.readouterr().err, facts)


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (["Ein Satz = zwei."], "'Ein Satz = zwei.'"),
        (["Ein", "Satz."], "'Ein Satz.'"),
        (["Hallo"], "Hallo"),
        (["Wie geht es?"], "'Wie geht es?'"),
    ],
)
def test_the_error_of_a_text_in_place_of_a_file_names_the_option(
    run: Path, capsys: Output, words: list[str], typed: str
) -> None:
    assert main(["predict", str(run), *words]) == 2
    assert f"--text {typed}" in capsys.readouterr().err


def test_long_lines_are_split_cut_or_rejected(run: Path, tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "long.txt"
    path.write_text("ba\n" + "ba de fi " * 5 + "\n")
    for way, counted in (("split", ["1"]), ("cut", ["1", "2"])):  # of lines, and which
        assert main(["predict", str(run), str(path), "--on-long", way]) == 0
        printed = capsys.readouterr()
        assert printed.out.count("\n") == 2
        assert figures(printed.err)[3:] == counted
    assert main(["predict", str(run), str(path), "--on-long", "error"]) == 2
    assert not missing(capsys.readouterr().err, "2 16 8 --on-long")


def test_several_runs_are_an_ensemble(run: Path, text: Path, capsys: Output) -> None:
    assert main(["predict", f"{run},{run}", str(text), "--with", str(run)]) == 0
    assert capsys.readouterr().out == "ba de\n\nfi ko ga\n"


def test_scores_pairs(run: Path, text: Path, tmp_path: Path, capsys: Output) -> None:
    other = tmp_path / "other.txt"
    other.write_text("ba de\nba\nko ko ko\n")
    words = ["score", str(run), "--source", str(text), "--target", str(other)]
    assert main(words) == 0
    printed = capsys.readouterr()
    rows = [[float(x) for x in line.split("\t")] for line in printed.out.splitlines()]
    assert [row[2] for row in rows] == [3, 2, 4]
    assert rows[0][0] > rows[2][0]
    assert all(row[0] / row[2] == pytest.approx(row[1], abs=1e-3) for row in rows)
    assert figures(printed.err)[0] == "3"
    assert main([*words, "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["log_prob"] == pytest.approx(rows[0][0], abs=1e-3)
    other.write_text("ba\n")
    assert main(words) == 2
    assert not missing(capsys.readouterr().err, text, other, 3, 1)


def test_a_text_may_be_typed(run: Path, capsys: Output) -> None:
    assert main(["predict", str(run), "--text", "ba de", "--text", "fi", "decode.beam=1"]) == 0
    assert capsys.readouterr().out == "ba de\nfi\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every task that reads texts."""
    folder = tmp_path_factory.mktemp("tasks")
    for task in ("translate", "complete", "classify", "tag", "embed", "fill"):
        tiny_run(folder / task, task)
    two = tiny_run(folder / "two", "classify")
    settings = load_run(two)
    changed = replace(settings.data, text_field="a", other_field="b")
    (two / "config.toml").write_text(resolved_toml(replace(settings, data=changed)))
    return folder


@pytest.mark.parametrize(
    ("name", "table", "lines", "column"),
    [
        ("classify", "t.tsv:ba de\tpos||fi ko\tneg", "ba de||fi ko", "1"),
        ("classify", "t.csv:text,label|ba de,1|fi ko,0", "ba de|fi ko", "'text'"),
        ("two", "t.csv:b,a,label|fi ko,ba,1", "ba\tfi ko", "'b'"),
        ("translate", "t.tsv:ba de\tgo|fi\tpu", "ba de|fi", "1"),
        ("embed", 't.jsonl:{"id": 1, "text": "ba"}', "ba", "'text'"),
        ("complete", 't.jsonl:{"text": "ba de"}|{"text": "fi"}', "ba de|fi", "'text'"),
        ("fill", "t.csv:n,text|1,ba [MASK]", "ba [MASK]", "'text'"),
        ("tag", "t.txt:|-DOCSTART- X O||ba N B-x|go N O||pu N O",
         "|-DOCSTART- X O||ba\tx|go\tx||pu\tx", "1"),
    ],
)  # fmt: skip
def test_a_table_is_answered_as_its_texts_are(
    runs: Path, tmp_path: Path, capsys: Output, name: str, table: str, lines: str, column: str
) -> None:
    """Labels and headers change nothing: one answer to each text, in order."""
    words = ["predict", str(runs / name), "--json", "--device", "cpu"]
    (tmp_path / "plain.txt").write_text(lines.replace("|", "\n") + "\n")
    assert main([*words, str(tmp_path / "plain.txt")]) == 0
    plain = capsys.readouterr()
    file, _, content = table.partition(":")
    (tmp_path / file).write_text(content.replace("|", "\n") + "\n")
    assert main([*words, str(tmp_path / file)]) == 0
    found = capsys.readouterr()
    assert found.out == plain.out
    assert found.out.count("\n") == lines.count("|") + 1
    assert not missing(found.err, f"/{file}", column)
    assert name == "tag" or "plain.txt" not in plain.err


def test_columns_may_be_called_otherwise_than_in_training(
    runs: Path, tmp_path: Path, capsys: Output
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("opinion,stars\nba de,3\n")
    words = ["predict", str(runs / "classify"), str(path), "--device", "cpu"]
    assert main(words) == 2
    assert "--text NAME" in capsys.readouterr().err
    assert main([*words, "data.text_field=opinion"]) == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_each_line_of_a_pipe_is_answered_before_the_next(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (given, type_to), (shown, answer_to) = os.pipe(), os.pipe()
    lines, answers = [b"ba de\n", b"fi ko ga\n"], []

    def person() -> None:
        for line in lines:
            os.write(type_to, line)
            ready, _, _ = select.select([shown], [], [], 60)
            answers.append(os.read(shown, 4096) if ready else b"")
        os.close(type_to)

    sitting = threading.Thread(target=person)
    sitting.start()
    with os.fdopen(given) as typed, os.fdopen(answer_to, "w") as found, monkeypatch.context() as at:
        at.setattr(sys, "stdin", typed)
        at.setattr(sys, "stdout", found)
        code = main(["predict", str(run), "--beam", "1"])
    sitting.join(300)
    os.close(shown)
    assert (code, answers) == (0, lines)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("runs") / "classify", "classify")


ROWS = 'id,text,n,note\n1,"ba, ""de""\nfi",-3.5,=cmd|x\n2,go,+4,@here now\n3,,-, - a list\n'


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicted(run: Path, *words: str | Path) -> int:
    return main(["predict", str(run), *map(str, words), "--device", "cpu"])


def test_a_table_comes_out_with_its_columns_and_the_answers(
    classifier: Path, tmp_path: Path, capsys: Output
) -> None:
    given = tmp_path / "in.csv"
    given.write_text(ROWS)
    assert predicted(classifier, given, "--out", tmp_path / "out.csv") == 0
    rows = rows_of(tmp_path / "out.csv")
    assert list(rows[0]) == ["id", "text", "n", "note", "answer", "score"]
    assert rows[0]["text"] == 'ba, "de"\nfi'
    assert [row["n"] for row in rows] == ["-3.5", "+4", "-"]  # numbers stay numbers
    assert [row["note"] for row in rows] == ["'=cmd|x", "'@here now", " - a list"]
    answers = [row["answer"] for row in rows]
    assert predicted(classifier, given, "--out", tmp_path / "out.jsonl", "--top", "2") == 0
    facts = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    names = ["id", "text", "n", "note", "answer", "score", "answer_2", "score_2"]
    assert [list(one) for one in facts] == [names] * 3
    assert [one["answer"] for one in facts] == answers
    assert facts[0]["note"] == "=cmd|x"
    assert facts[0]["score"] >= facts[0]["score_2"]
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    assert predicted(classifier, given, "--out", tmp_path / "out.parquet") == 0
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert table["answer"] == answers
    assert table["note"][0] == "=cmd|x"
    assert predicted(classifier, tmp_path / "out.parquet", "--out", tmp_path / "again.tsv") == 2
    assert "out.csv" not in capsys.readouterr().out


def test_a_column_of_the_input_is_never_replaced(classifier: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text('{"text": "ba", "answer": "mine", "deep": {"a": [1]}}\n')
    assert predicted(classifier, given, "--out", out) == 0
    row = json.loads(out.read_text())
    assert row["answer"] == "mine"
    assert row["deep"] == {"a": [1]}
    assert row["predicted_answer"] in ("O", "B-x", "I-x")
    before = given.read_text()
    assert predicted(classifier, given, "--out", given) == 2
    assert given.read_text() == before


def test_columns_can_be_named(classifier: Path, tmp_path: Path, capsys: Output) -> None:
    given, out = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text("body,more\nba de,x y\nfi ko,z\n")
    assert predicted(classifier, given, "--out", out) == 2
    assert "--text NAME" in capsys.readouterr().err
    assert not out.exists()
    assert predicted(classifier, given, "--text", "body", "--out", out) == 0
    assert out.read_text().splitlines()[1].startswith("ba de,x y,")
    assert predicted(classifier, given, "--text", "nothing") == 2
    assert predicted(classifier, given, "--text", "body", "--text", "more") == 2
    assert predicted(classifier, given, "--other", "more") == 2
    assert predicted(classifier, "--text", "ba de") == 0


@pytest.mark.parametrize("name", ["out.csv", "out.txt", "out.jsonl", "out.parquet"])
def test_a_failed_command_leaves_no_file(classifier: Path, tmp_path: Path, name: str) -> None:
    given, out = tmp_path / "in.csv", tmp_path / name
    given.write_text("n,m\n1,2\n")
    assert predicted(classifier, given, "--out", out) == 2
    assert not out.exists()
    out.write_text("old")
    assert predicted(classifier, given, "--out", out) == 2
    assert out.read_text() == "old"


def test_several_files_and_patterns_are_answered_in_order(
    classifier: Path, tmp_path: Path, capsys: Output
) -> None:
    for number, text in ((2, "fi"), (10, "ko"), (1, "ba")):
        (tmp_path / f"part{number}.csv").write_text(f"text,n\n{text},{number}\n")
    (tmp_path / "more.csv").write_text("id,text\n7,go\n")
    out = tmp_path / "out.csv"
    pattern = tmp_path / "part*.csv"
    assert predicted(classifier, pattern, tmp_path / "more.csv", "--out", out) == 0
    rows = rows_of(out)
    assert [row["text"] for row in rows] == ["ba", "fi", "ko", "go"]
    assert [row["n"] for row in rows] == ["1", "2", "10", ""]
    assert rows[3]["id"] == "7"
    capsys.readouterr()
    assert predicted(classifier, pattern) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert predicted(classifier, tmp_path / "none*.csv") == 2
    assert predicted(classifier, tmp_path / "more.csv", "-") == 2


def test_lines_of_text_become_a_table_too(classifier: Path, run: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "in.txt", tmp_path / "out.csv"
    given.write_text("ba de\nfi, ko\n")
    assert predicted(classifier, given, "--out", out) == 0
    assert [row["text"] for row in rows_of(out)] == ["ba de", "fi, ko"]
    assert predicted(run, given, "--out", out) == 0
    assert [row["source"] for row in rows_of(out)] == ["ba de", "fi, ko"]


def test_a_list_of_media_comes_out_with_its_columns(tmp_path: Path) -> None:
    folder = media_run(tmp_path / "see", "see")
    lines = media_lines(tmp_path / "media", "see")
    given, out = tmp_path / "list.csv", tmp_path / "out.csv"
    given.write_text("n,path\n" + "".join(f"{n},{path}\n" for n, path in enumerate(lines)))
    with given.open("a") as file:
        file.write("9,nowhere.png\n")
    assert predicted(folder, given, "--out", out) == 2
    rows = rows_of(out)
    assert [row["n"] for row in rows] == [*map(str, range(len(lines))), "9"]
    assert [bool(row["answer"]) for row in rows] == [True] * len(lines) + [False]
    assert "nowhere.png" in rows[-1]["error"]


def test_an_empty_table_comes_out_with_its_header(classifier: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text("")
    assert predicted(classifier, given, "--out", out) == 0
    assert out.read_text().splitlines() == ["text,answer,score"]


@pytest.mark.parametrize("name", ["out.xlsx", "out.ODS"])
def test_spreadsheet_outputs_are_rejected(classifier: Path, tmp_path: Path, name: str) -> None:
    assert predicted(classifier, "--text", "ba de", "--out", tmp_path / name) == 2
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["a.wav", "a.png", "folder/b/a.ppm"])
def test_media_given_to_a_text_run_is_named(
    classifier: Path, tmp_path: Path, capsys: Output, name: str
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"RIFF\x80\n")
    assert predicted(classifier, tmp_path / name.split("/")[0]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / name) in error
    assert "--encoding" not in error  # another encoding would read samples as text
