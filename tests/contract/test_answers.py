"""Answers are the same however they are asked for, and can be kept."""

from __future__ import annotations

import json
import math
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.errors import UserError
from headway.tasks.answers import Answer
from tests.facts import naming

from .tiny import ANSWERING, Tiny, assert_same, command, printed


def test_alone_is_as_in_a_batch(asked: Tiny) -> None:
    alone = [asked.run(one) for one in asked.questions]
    assert all(isinstance(one, Answer) for one in alone)
    assert_same([one.to_dict() for one in alone], asked.answers.to_dicts())


def test_a_list_a_stream_and_the_command_line_agree(asked: Tiny, tmp_path: Path) -> None:
    wanted = asked.answers.to_dicts()
    streamed = asked.run.stream(one for one in asked.questions)
    assert_same([one.to_dict() for one in streamed], wanted)
    file = asked.asked_in_a_file(tmp_path)
    lines = printed("predict", str(asked.folder), file, "--json", "--device", "cpu")
    assert_same(without_places(lines), without_places(wanted))


def without_places(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A file has a place, which what is in memory has not."""
    return [{k: v for k, v in one.items() if k not in ("place", "file")} for one in answers]


def test_answers_survive_json_and_pickle(asked: Tiny) -> None:
    for answer in asked.answers:
        kept = answer.to_dict()
        assert json.loads(json.dumps(kept, allow_nan=False)) == kept
        assert_same(pickle.loads(pickle.dumps(answer)).to_dict(), kept, tolerance=0.0)
        assert str(answer) == answer.text


def test_a_score_is_a_probability(asked: Tiny) -> None:
    for answer in asked.answers:
        assert not answer.error
        assert answer.score is None or 0.0 < answer.score <= 1.0 + 1e-6
        assert answer.score is None or math.isfinite(answer.score)


def test_a_moved_run_gives_the_same_answers(asked: Tiny, tmp_path: Path) -> None:
    """From its files alone: nothing is needed of where it was trained."""
    names = ("config.toml", "model.safetensors", "tokenizer.json")
    for name in names:
        if (asked.folder / name).exists():
            shutil.copy(asked.folder / name, tmp_path / name)
    moved = headway.load(tmp_path, device="cpu")(asked.questions)
    assert isinstance(moved, headway.Answers)
    assert_same(moved.to_dicts(), asked.answers.to_dicts(), tolerance=0.0)


def test_a_run_without_answers_is_an_error(tiny: Tiny, tmp_path: Path) -> None:
    if tiny.row in ANSWERING:
        return
    facts = naming(tiny.folder, "--from")
    with pytest.raises(UserError, match=facts):
        tiny.run(tiny.questions)
    code, out, found = command("predict", str(tiny.folder), tiny.asked_in_a_file(tmp_path))
    assert (code, out) == (2, "")
    assert re.search(facts, found)
