"""Maps become alignments of words, written and read as Pharaoh's pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_grammar import copies

from headway.errors import DataError, UserError
from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.trace import trace
from headway.inside.measure import maps
from headway.inside.measure.alignments import aer, aligning_layer, alignment, pharaoh, read_pharaoh
from headway.tasks.loaded_run import open_plain

from .copier import copier


def test_pairs_go_through_text_and_back() -> None:
    pairs = [(0, 0), (2, 1), (10, 3)]
    assert pharaoh(pairs) == "0-0 2-1 10-3"
    assert read_pharaoh(pharaoh(pairs)) == pairs
    assert read_pharaoh("") == []
    with pytest.raises(DataError, match=r"(?=.*line 3)(?=.*'1-')"):
        read_pharaoh("0-0 1-", "line 3")


def test_the_error_rate_is_that_of_och_and_ney() -> None:
    sure, possible = [(0, 0), (1, 1)], [(2, 1)]
    assert aer(sure, sure) == 0.0
    assert aer([(0, 1)], sure) == 1.0
    # Two links, one sure and one possible: 1 - (1 + 2) / (2 + 2).
    assert aer([(0, 0), (2, 1)], sure, possible) == pytest.approx(0.25)
    assert aer([], []) == 0.0


def test_the_layer_that_was_measured_best_comes_first() -> None:
    scores = {"cross.0.mean": 0.8, "cross.2.mean": 0.9, "cross.1.max": 0.95, "cross.7.mean": 0.99}
    truth = {"maps": {name: {"p1": p1} for name, p1 in scores.items()}}
    layer, reason = aligning_layer(3, truth)
    assert layer == 2
    assert "3" in reason
    for unmeasured in (None, {"maps": {"rollout": {"p1": 0.9}}}):
        layer, other_reason = aligning_layer(3, unmeasured)
        assert layer == 1
        assert other_reason != reason.replace("3", "2")  # it was not measured
    assert aligning_layer(1, None)[0] == 0


def test_a_map_of_a_model_that_copies_aligns_every_word_with_itself(tmp_path: Path) -> None:
    run = copier(tmp_path)
    traced = trace(run, "bo de be do bu")
    right, wrong = maps.head_maps(run, traced)[-2:]
    assert (right.name, wrong.name) == ("cross.0.0", "cross.0.1")
    assert alignment(right, traced.reading) == [(i, i) for i in range(5)]
    # Nothing stands behind the last word but the end of the text, which is no word.
    assert alignment(wrong, traced.reading)[:4] == [(i + 1, i) for i in range(4)]
    with pytest.raises(UserError, match=r"decoder\.0\.0"):
        alignment(maps.head_maps(run, traced)[0], traced.reading)


def test_pieces_are_merged_to_words() -> None:
    run = open_plain("tatoeba-de-en")
    traced = trace(
        run,
        "Herr Schwarzenegger wohnt in Boston.",
        GenerationOptions(output="Mr. Schwarzenegger lives in Boston."),
    )
    assert len(traced.reading.first) > 8
    best = {m.name: m for m in maps.head_maps(run, traced)}["cross.1.0"]
    found = alignment(best, traced.reading)
    assert [target for _, target in found] == list(range(5))
    assert {(1, 1), (4, 4)} <= set(found)


def test_toy_alignments_say_what_was_copied() -> None:
    for pair in copies(20, turned=True):
        source, target = pair.source.split(), pair.target.split()
        assert [target[t] for _, t in pair.links] == [source[s] for s, _ in pair.links]
        assert len(pair.links) == len(target)
        assert target == [word for word in source[::-1] if word.startswith("w")]
