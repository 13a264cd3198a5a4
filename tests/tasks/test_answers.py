"""Answers as values: what each kind has, how lists of them are kept, what is refused."""

from __future__ import annotations

import copy
import csv
import json
import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from headway.decode.speech.word_times import WordTiming
from headway.errors import UserError
from headway.tasks.answer_tables import AnswerTable
from headway.tasks.answers import (
    Answer,
    Answers,
    AnswerSegment,
    LabelAnswer,
    LabelsAnswer,
    NumberAnswer,
    TagAnswer,
    TextAnswer,
    TranscriptAnswer,
    VectorAnswer,
    mean_probability,
)

LABELS = Answers(
    [LabelAnswer.of(("bad", "good"), (0.25, 0.75)), LabelAnswer.of(("bad", "good"), (0.5, 0.5))]
)
TAGGED = TagAnswer(
    text="Ada/B-per Byron/I-per wrote",
    words=("Ada", "Byron", "wrote"),
    tags=("B-per", "I-per", "O"),
    marked=True,
)
SPOKEN = TranscriptAnswer(
    text="one two",
    segments=(AnswerSegment(0.0, 2.0, "one two"),),
    words=(WordTiming("one", 0.0, 0.5, 0.9), WordTiming("two", 1.0, 1.5, 0.9)),
)


def test_a_class_knows_the_probabilities_of_all() -> None:
    first, second = LABELS
    assert (str(first), first.text, first.label, first.score) == ("good", "good", "good", 0.75)
    assert first.probabilities == {"bad": 0.25, "good": 0.75}
    [other] = first.others
    assert (other.label, other.score) == ("bad", 0.25)
    assert second.label == "bad"  # of equal ones the first
    assert LABELS.labels == ["good", "bad"]
    assert LABELS.scores == [0.75, 0.5]


def test_a_missing_attribute_is_named_with_those_that_exist() -> None:
    with pytest.raises(AttributeError, match=r"LabelAnswer.*'vector'.*\btext\b.*\blabel\b"):
        _ = LABELS[0].vector
    with pytest.raises(AttributeError, match=r"'label'.*gone\.wav"):
        _ = Answer(error="gone.wav").label
    assert not hasattr(LABELS[0], "segments")


def test_an_answer_never_changes_and_can_be_copied_and_sent() -> None:
    with pytest.raises(FrozenInstanceError):
        LABELS[0].text = "other"  # type: ignore[misc]
    for made in (LABELS[0], TAGGED, SPOKEN):
        assert pickle.loads(pickle.dumps(made)) == made
        assert copy.deepcopy(made) == made


def test_spans_are_found_among_tags() -> None:
    [span] = TAGGED.spans
    assert span.facts() == {"type": "per", "first": 0, "last": 1, "text": "Ada Byron"}


def test_the_score_of_a_text_is_the_mean_probability_of_its_tokens() -> None:
    assert mean_probability([np.log(0.5), np.log(0.125)]) == pytest.approx(0.25)
    assert mean_probability([]) is None


def test_vectors_become_one_array() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    answers = Answers(VectorAnswer(text="3 numbers", vector=row) for row in rows)
    assert answers.vectors.dtype == np.float32
    np.testing.assert_array_equal(answers.vectors, rows)
    np.testing.assert_array_equal(np.asarray(answers), rows)
    np.testing.assert_array_equal(np.asarray(answers[1]), rows[1])
    assert np.asarray(LABELS).tolist() == ["good", "bad"]


def test_the_ending_sets_the_format_of_saved_answers(tmp_path: Path) -> None:
    LABELS.save(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "good\nbad\n"
    LABELS.save(tmp_path / "a.tsv")
    assert (tmp_path / "a.tsv").read_text() == "answer\tscore\ngood\t0.75\nbad\t0.5\n"
    Answers([Answer(text="ä", id=7, place="x.wav"), Answer(error="gone")]).save(tmp_path / "b.tsv")
    assert (
        tmp_path / "b.tsv"
    ).read_text() == "id\tplace\tanswer\terror\n7\tx.wav\tä\t\n\t\t\tgone\n"
    LABELS.save(tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == LABELS.to_dicts()
    Answers([TAGGED, TAGGED]).save(tmp_path / "a.conll")
    columns = "Ada\tB-per\nByron\tI-per\nwrote\tO\n\n"
    assert (tmp_path / "a.conll").read_text() == 2 * columns
    SPOKEN.save(tmp_path / "a.srt")
    assert (tmp_path / "a.srt").read_text().startswith("1\n00:00:00,000 --> 00:00:01,500\none two")
    SPOKEN.save(tmp_path / "a.vtt")
    assert (tmp_path / "a.vtt").read_text().startswith("WEBVTT\n")
    Answers([VectorAnswer(vector=np.ones(2, np.float32))]).save(tmp_path / "a.npy")
    assert np.load(tmp_path / "a.npy").shape == (1, 2)


@pytest.mark.parametrize(
    ("answers", "name", "why"),
    [
        (LABELS, "a.npy", r"/a\.npy.*\bembed\b.*LabelAnswer"),
        (LABELS, "a.srt", r"/a\.srt.*\btranscribe\b.*LabelAnswer"),
        (LABELS, "a.conll", r"/a\.conll.*\btag\b.*LabelAnswer"),
        (LABELS, "a.json", r"/a\.json\b.*'\.jsonl'"),
        (LABELS, "a", r"/a\b.*\.jsonl"),
        (Answers([SPOKEN, SPOKEN]), "a.srt", r"/a\.srt.*\b2\b"),
        (Answers([Answer(text="a\nb")]), "a.txt", r"/a\.txt.*\b1\b.*\.jsonl"),
        (Answers([Answer(text="a\tb")]), "a.tsv", r"/a\.tsv.*\.csv"),
        (LABELS, "none/a.txt", r"/none/a\.txt"),
    ],
)
def test_answers_that_do_not_fit_a_format_are_an_error(
    answers: Answers, name: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=why):
        answers.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_notebooks_show_text_as_text() -> None:
    written = TextAnswer(
        text="<b>a</b>", source="<script>", tokens=("<b>a", "</b>"), token_log_probs=(-0.1, -3.0)
    )
    shown = Answers([written, Answer(error="<i>")])._repr_html_()
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert "&lt;b&gt;a" in shown
    many = Answers([Answer(text=str(n)) for n in range(60)])._repr_html_()
    assert "10 more" in many


def test_parts_of_answers_are_answers() -> None:
    assert isinstance(LABELS[:1], Answers)
    assert isinstance(LABELS[0], LabelAnswer)
    assert (LABELS + LABELS[1:]).texts == [*LABELS.texts, *LABELS.texts[1:]]
    assert isinstance(LABELS.copy(), Answers)
    assert np.asarray(Answers()).dtype.kind == "U"


def test_answers_are_shown_in_short() -> None:
    many = LabelAnswer.of([str(n) for n in range(1000)], [0.001] * 1000)
    assert repr(many).startswith("LabelAnswer(text='0', score=0.001, classes=('0', ")
    assert "error" not in repr(many)
    assert len(repr(many)) < 200
    wide = VectorAnswer(text="384 numbers", vector=np.ones(384, np.float32))
    assert "\n" not in repr(wide)
    assert len(repr(wide)) < 200
    assert repr(Answers([Answer(text="a")])) == "Answers([Answer(text='a')])"
    assert "980" in repr(Answers([Answer(text="a")] * 1000))


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"), ("@SUM(A1)", "'@SUM(A1)"), ("+cmd|x", "'+cmd|x"), ("-2+3", "'-2+3"),
        ("\t=1", "'\t=1"), ("- a list", "'- a list"), ("-3", "-3"), ("+4.5", "+4.5"),
        ("-1,000.5", "-1,000.5"), ("-2e-5", "-2e-5"), ("-5 %", "-5 %"), ("-.5", "-.5"), ("-", "-"),
        ("---", "---"), ("", ""), ("a=1", "a=1"), ("'=1", "'=1"),
    ],
)  # fmt: skip
def test_what_a_spreadsheet_would_compute_is_a_text_there(
    tmp_path: Path, text: str, cell: str
) -> None:
    Answers([Answer(text=text, row={"given": text})]).save(tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["given", "answer"], [cell, cell]]
    if "\t" not in text:
        Answers([Answer(text=text)]).save(tmp_path / "a.tsv")
        assert (tmp_path / "a.tsv").read_text() == f"answer\n{cell}\n"


def test_a_table_has_the_rows_that_were_answered(tmp_path: Path) -> None:
    rows = [{"n": 1, "score": "a, b"}, {"n": -2, "score": None}]
    answers = Answers(
        [
            LabelsAnswer(text="x, y", labels=("x", "y"), classes=("x", "y"), probs=(1.0, 1.0),
                         row=rows[0]),
            NumberAnswer(text="-2.5", value=-2.5, row=rows[1]),
        ]
    )  # fmt: skip
    answers.save(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == 'n,score,answer\n1,"a, b","x,y"\n-2,,-2.5\n'
    parquet = pytest.importorskip("pyarrow.parquet")
    Answers([LABELS[0], LABELS[1]]).save(tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet").to_pydict() == {
        "answer": LABELS.texts, "score": [0.75, 0.5],
    }  # fmt: skip
    Answers([]).save(tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_text() == "answer\n"


@pytest.mark.parametrize("value", [2**64, "a\ud800b", {}, [{}], {"n": 2**64}])
def test_tables_hold_values_that_their_format_has_no_type_for(
    value: object, tmp_path: Path
) -> None:
    answers = Answers([NumberAnswer(text="1", value=1.0, row={"given": value})])
    answers.save(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8")
    with AnswerTable(tmp_path / "a.jsonl", ["given"], ["answer"]) as table:
        table.write(answers[0].row, {"answer": 1.0})
    assert json.loads((tmp_path / "a.jsonl").read_text())["given"] == value
    parquet = pytest.importorskip("pyarrow.parquet")
    answers.save(tmp_path / "a.parquet")
    [found] = parquet.read_table(tmp_path / "a.parquet").to_pydict()["given"]
    shown = value if isinstance(value, str) else json.dumps(value)
    assert found == shown.encode("utf-8", "backslashreplace").decode()
