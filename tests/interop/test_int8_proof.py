"""int8 is judged by all scores together and by the choices, and what is broken still fails."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.interop.int8_proof import MOST_OFF, Int8Proof, judged_as_int8
from headway.interop.proof import compared
from headway.interop.proof_inputs import ProofCase
from headway.tasks.text_items import TextItem

from ..facts import missing

Scores = NDArray[np.float32]


def scores(seed: int) -> list[Scores]:
    draw = np.random.default_rng(seed)
    return [draw.normal(3, 2, (20, 50)).astype(np.float32) for _ in range(4)]


def judged(theirs: list[Scores], what: str = "logits") -> Int8Proof:
    ours = [ProofCase(TextItem([1]), [], table, table) for table in scores(1)]
    return judged_as_int8(compared("onnx", ours, theirs, what=what), ours, theirs)


@pytest.mark.parametrize("what", ["logits", "vectors"])
def test_how_far_all_scores_are_off_is_a_share_of_their_spread(what: str) -> None:
    draw = np.random.default_rng(2)
    noise = [draw.normal(0, 0.1, table.shape).astype(np.float32) for table in scores(1)]
    proof = judged([table + off for table, off in zip(scores(1), noise, strict=True)], what)
    assert proof.passed
    assert proof.off == pytest.approx(0.05, rel=0.05)
    assert proof.equal_outputs > 0.9
    assert not missing(proof.text(), f"{proof.off:.1%}")
    far = judged([table + 4 * off for table, off in zip(scores(1), noise, strict=True)], what)
    assert not far.passed
    assert far.off == pytest.approx(0.2, rel=0.05)
    assert not missing(far.text(), f"{far.off:.1%}", "int8=True")
    assert "int8=" not in proof.text()


def test_a_single_outlying_score_does_not_fail_the_proof() -> None:
    theirs = scores(1)
    theirs[0][3, theirs[0][3].argmin()] += 4
    proof = judged(theirs)
    assert proof.passed
    assert proof.max_difference == pytest.approx(4)


def test_choices_count_where_scores_are_near() -> None:
    """Two best words in each row that are nearly equal, and change places."""
    ours, theirs = scores(1), scores(1)
    for mine, other in zip(ours, theirs, strict=True):
        first, second = np.argsort(mine, -1)[:, -1], np.argsort(mine, -1)[:, -2]
        rows = np.arange(len(mine))
        other[rows, second] = mine[rows, first] + 0.01
    proof = judged(theirs)
    assert proof.off is not None
    assert proof.off < MOST_OFF["logits"]
    assert proof.equal_outputs == 0
    assert not proof.passed


@pytest.mark.parametrize("broken", ["zeros", "another", "nan", "shape"])
def test_what_is_broken_fails(broken: str, tmp_path: Path) -> None:
    theirs = scores(7) if broken == "another" else scores(1)
    if broken == "zeros":
        theirs = [0 * table for table in theirs]
    if broken == "nan":
        theirs[2][1, 1] = np.nan
    if broken == "shape":
        theirs[2] = theirs[2][:3]
    for what in ("logits", "vectors"):
        proof = judged(theirs, what)
        assert not proof.passed
        proof.save(tmp_path)
        assert not json.loads((tmp_path / "proof.json").read_text())["passed"]
        assert "int8=" in proof.text()


def test_a_number_alone_is_compared_with_how_far_numbers_are_apart() -> None:
    ours = [ProofCase(TextItem([1]), [], table[:, :1], table[:, :1]) for table in scores(1)]
    for off, passes in ((0.1, True), (1.0, False)):
        theirs = [one.scores + np.float32(off) for one in ours]
        proof = judged_as_int8(compared("onnx", ours, theirs, what="logits"), ours, theirs)
        assert proof.passed is passes
        assert proof.off == pytest.approx(off / 2, rel=0.2)
