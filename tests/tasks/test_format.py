"""One format for all answers: the same keys for the same things, and the lines for people."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from headway.decode.output import AttendedRegion
from headway.tasks.answers import (
    Answer,
    AnswerSegment,
    ContinuationAnswer,
    FieldAnswer,
    GapAnswer,
    LabelAnswer,
    NearestAnswer,
    NumberAnswer,
    SpeakerAnswer,
    TagAnswer,
    TextAnswer,
    TokenGuess,
    TranscriptAnswer,
    VectorAnswer,
    WordAnswer,
)
from headway.tasks.format import PrintOptions, confusion_rows, to_cells, to_json, to_lines
from headway.tasks.scores import Scores

TEXT = TextAnswer(
    text="a dog",
    source="ein Hund",
    score=0.5,
    tokens=("▁a", "▁dog"),
    token_log_probs=(-0.1, -0.2, -0.3),
    log_prob=-0.6,
    ranking_score=-0.4,
    alignment=((0, 0), (1, 1)),
)
VECTOR = np.array([0.6, -0.8], np.float32)
ANSWERS = (
    TEXT,
    ContinuationAnswer(text=" time", source="Once"),
    GapAnswer(text="a dog", source="a [MASK]", gaps=((TokenGuess("dog", 0.5),),)),
    VectorAnswer(text="2 numbers", source="a dog", vector=VECTOR),
    NearestAnswer(text="x", source="a dog", vector=VECTOR, cosine=0.5, near=(("x", 0.5),)),
    TagAnswer(text="a/DT", source="a", words=("a",), tags=("DT",), offsets=((0, 1),)),
    LabelAnswer.of(("down", "up"), (0.25, 0.75), source="good", log_probs=(-2.0, -1.0)),
)


def shown(answer: Answer, number: int = 1, **options: bool | int | str) -> str:
    return to_lines(answer, PrintOptions(**options), number)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_the_input_has_one_key_for_all_tasks(answer: Answer) -> None:
    assert to_json(answer)["source"] == answer.source
    of_file = to_json(replace(answer, place="a.wav", source=None))
    assert next(iter(of_file)) == "file"
    assert of_file["file"] == "a.wav"
    assert "source" not in of_file
    assert to_json(replace(answer, silent=True))["silent"] is True
    failed = replace(answer, place="a.wav", error="gone")
    assert to_json(failed) == {"error": "gone", "file": "a.wav"}
    assert shown(failed) == ""
    assert to_cells(failed) == {"answer": None, "error": "gone"}
    json.dumps(to_json(answer), allow_nan=False)


def test_generated_text_has_its_outputs_in_json() -> None:
    best = replace(TEXT, rest=(replace(TEXT, text="a cat", ranking_score=-2.0),), parts=2)
    found = to_json(best)
    assert [one["text"] for one in found["outputs"]] == ["a dog", "a cat"]
    assert found["outputs"][0] == {
        "text": "a dog", "score": -0.4, "log_prob": -0.6, "tokens": ["▁a", "▁dog"],
        "token_log_probs": [-0.1, -0.2, -0.3], "finished": True, "alignment": [[0, 0], [1, 1]],
    }  # fmt: skip
    assert (found["text"], found["parts"], found["cut"]) == ("a dog", 2, False)
    assert to_json(replace(TEXT, stopped_by="."))["outputs"][0]["stopped_by"] == "."


def test_lines_of_generated_text() -> None:
    best = replace(TEXT, rest=(replace(TEXT, text="a\tcat", ranking_score=-2.0),))
    assert shown(TEXT) == "a dog"
    assert shown(best, 7, numbered=True, scores=True).split("\n") == [
        "7\t-0.4000\ta dog",
        "7\t-2.0000\ta cat",
    ]
    assert shown(TEXT, alignments=True) == "a dog\t0-0 1-1"
    region = AttendedRegion("dog", (8, 16, 16, 24), (0, 1), 0.25, np.ones((1, 1, 1), np.float32))
    image = replace(TEXT, source=None, place="a.png", size=(32, 32), alignment=(region,))
    assert shown(image) == "a dog\tdog:8,16,16,24"
    [look] = to_json(image)["outputs"][0]["looks"]
    assert look == {
        "word": "dog", "box": [8, 16, 16, 24], "frames": [0, 1], "share": 0.25, "grid": [[[1.0]]]
    }  # fmt: skip
    assert to_json(image)["size"] == [32, 32]


def test_a_continuation_is_printed_after_its_prompt_unless_it_was_streamed() -> None:
    answer = ContinuationAnswer(text=" time", source="Once", log_prob=-1.5)
    assert shown(answer) == "Once time"
    assert shown(answer, scores=True) == "-1.5000\tOnce time"
    assert shown(replace(answer, prompted=False)) == " time"
    assert shown(answer, streamed=True) == ""
    written = FieldAnswer(text="cat", prompted=False, field="name", document={"name": "cat"})
    assert shown(written) == "cat"
    assert (to_json(written)["document"], to_json(written)["field"]) == ({"name": "cat"}, "name")


def test_classes_are_ranked() -> None:
    answer = LabelAnswer.of(("a", "b", "c"), (0.25, 0.625, 0.125), place="x.png", top=2)
    assert shown(answer) == "b"
    assert shown(answer, scores=True) == "b\t0.6250"
    assert shown(answer, top=2) == "b\t0.6250\ta\t0.2500"
    assert [one["label"] for one in to_json(answer)["top"]] == ["b", "a"]
    many = LabelAnswer.of([str(i) for i in range(60)], np.full(60, 1 / 60), place="x.png")
    assert "probabilities" not in to_json(many)
    assert len(to_json(many)["top"]) == 5
    assert len(to_json(replace(many, place=""))["probabilities"]) == 60


def test_the_other_kinds() -> None:
    assert to_json(NumberAnswer(text="12", value=1234567.89)) == {"value": 1234568.0}
    assert shown(WordAnswer(word="Ada", text="B-per")) == "Ada\tB-per"
    assert to_json(WordAnswer(text="-DOCSTART-")) == {}
    assert shown(WordAnswer(text="-DOCSTART-")) == "-DOCSTART-"
    guesses = (TokenGuess("dog", 0.5), TokenGuess("cat", 0.25))
    assert shown(GapAnswer(text="a dog", gaps=(guesses,))) == "dog\t0.5000\ncat\t0.2500"
    two = GapAnswer(text="a dog", gaps=(guesses, guesses))
    assert shown(two).split("\n")[2] == "2\tdog\t0.5000"
    assert shown(VectorAnswer(vector=VECTOR)) == "[0.6, -0.8]"
    near = {"vector": VECTOR, "cosine": 0.5, "near": (("ada", 0.5), ("cy", 0.25))}
    assert shown(NearestAnswer(**near)) == "0.5000\tada\n0.2500\tcy"
    assert shown(SpeakerAnswer(**near)) == "ada\t0.5000\tcy\t0.2500"
    same = SpeakerAnswer(text="same", against="b.wav", threshold=0.4, **near)
    assert shown(same) == "same\t0.5000"
    assert to_json(same) == {"against": "b.wav", "cosine": 0.5, "same": True, "threshold": 0.4}
    part = AnswerSegment(0.0, 1.23456, "one", log_prob=-0.5, compression_ratio=0.5, tries=2)
    spoken = TranscriptAnswer(text="one", segments=(part,), log_prob=-0.5, seconds=1.23456)
    assert shown(spoken, scores=True) == "-0.5000\tone"
    assert to_json(spoken)["segments"] == [
        {"start": 0.0, "end": 1.235, "text": "one", "log_prob": -0.5, "compression_ratio": 0.5,
         "tries": 2}
    ]  # fmt: skip


def test_the_confusion_matrix_is_a_table_with_a_head() -> None:
    figures = {"confusion": {"labels": ["a", "b"], "counts": [[3, 1], [0, 2]]}}
    head, *rows = confusion_rows(Scores({"accuracy": 83.3}, figures=figures))
    assert head[1:] == ["a", "b"]
    assert rows == [["a", "3", "1"], ["b", "0", "2"]]
    assert confusion_rows(Scores({"accuracy": 83.3})) == []
