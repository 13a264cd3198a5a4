"""What a proof reads, what it counts, and when it passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.interop.proof import Proof, compared
from headway.interop.proof_inputs import (
    SENTENCES,
    ProofCase,
    compute_cases,
    proof_sentences,
    proof_texts,
)
from headway.settings.run import RunSettings
from headway.tasks.loaded_run import LoadedRun, open_plain
from headway.tasks.text_items import TextItem

from ..facts import missing
from .ours import save_run, settings_of

SCORES = [[0.0, 1.0, 3.0], [2.0, 1.0, 0.0]]


def reading(scores: list[list[float]] = SCORES) -> ProofCase:
    table = np.array(scores, np.float32)
    return ProofCase(TextItem([1, 2]), [], table, table * 2)


def against(theirs: list[list[float]], **options: Any) -> Proof:
    return compared("hf", [reading(), reading()], [np.array(SCORES), np.array(theirs)], **options)


def test_equal_scores_pass_and_a_difference_is_allowed_by_their_size() -> None:
    proof = against(SCORES)
    assert proof.passed
    assert (proof.sentences, proof.tokens, proof.max_difference) == (2, 4, 0.0)
    assert proof.tolerance == pytest.approx(3e-4)
    assert against([[0.0, 1.0, 3.0002], SCORES[1]]).passed
    assert not against([[0.0, 1.0, 3.0004], SCORES[1]]).passed


def test_another_best_choice_is_another_output() -> None:
    proof = against([[0.0, 3.5, 3.0], SCORES[1]], tolerance=5.0)
    assert proof.equal_outputs == 0.5
    assert not proof.passed
    assert against([[0.0, 3.5, 3.0], SCORES[1]], tolerance=5.0, least_equal=0.5).passed


def test_where_two_are_equal_rounding_may_choose() -> None:
    tie, other = [[1.0, 1.00001]], [[1.00001, 1.0]]
    assert compared("hf", [reading(tie)], [np.array(other)]).equal_outputs == 1
    far = [[1.0, 1.01]]
    proof = compared("hf", [reading(far)], [np.array([[1.01, 1.0]])], tolerance=1.0)
    assert proof.equal_outputs == 0


@pytest.mark.parametrize("theirs", [[[0.0, 1.0]], [[0.0, np.nan, 3.0], [2.0, 1.0, 0.0]]])
def test_other_shapes_and_no_numbers_fail(theirs: list[list[float]]) -> None:
    proof = against(theirs, tolerance=1e9)
    assert proof.max_difference == np.inf
    assert proof.equal_outputs == 0.5
    assert not proof.passed


def test_vectors_have_no_choices_and_outputs_are_told_apart() -> None:
    moved = [[0.0, 1.0, 3.0], [2.0, 1.0, 0.1]]
    assert against(moved, what="vectors").equal_outputs == 0.5
    twice = [np.array(SCORES) * 2] * 2
    assert compared("hf", [reading(), reading()], twice, what="hidden states").passed
    logs = [table - np.log(np.exp(table).sum(1, keepdims=True)) for table in [np.array(SCORES)] * 2]
    assert compared("hf", [reading(), reading()], logs, what="log-probabilities").passed


def test_a_proof_is_printed_and_saved(tmp_path: Path) -> None:
    proof = against(SCORES, by="transformers 5", notes=["a remark"])
    assert not missing(proof.text().splitlines()[0], "2", "4", "transformers 5")
    assert "a remark" in proof.text()
    proof.save(tmp_path)
    facts = json.loads((tmp_path / "proof.json").read_text())
    assert facts["passed"] is True
    assert facts["max_difference"] == 0.0
    assert {"headway", "python", "torch"} <= facts["versions"].keys()
    assert facts["date"].startswith("20")


def test_a_difference_without_end_is_saved_as_json(tmp_path: Path) -> None:
    against([[0.0, 1.0]]).save(tmp_path)

    def fail(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    facts = json.loads((tmp_path / "proof.json").read_text(), parse_constant=fail)
    assert facts["passed"] is False
    assert facts["max_difference"] is None


def test_the_users_sentences_come_first() -> None:
    assert proof_sentences() == list(SENTENCES)
    assert len(SENTENCES) == 16
    assert proof_sentences(3, ["mine", "", "  "]) == ["mine", *SENTENCES[:2]]
    assert proof_sentences(1, ["one", "two"]) == ["one", "two"]


def loaded(folder: Path, settings: RunSettings) -> LoadedRun:
    return open_plain(str(save_run(folder, settings)))


LINES = ["a dog runs", "the price", "is this good ?", "or bad", "the wet grass " * 40]


class TestWhatIsRead:
    def test_a_language_model_adds_the_start_token_and_leaves_room_to_continue(
        self, tmp_path: Path
    ) -> None:
        run = loaded(tmp_path, settings_of("decoder", "complete"))
        texts, words = proof_texts(run, LINES), run.vocab.source
        ids = [text.ids for text in texts]
        assert ids[0] == [words.bos, *words.encode(LINES[0])]
        assert len(ids[4]) == 64 - 16
        found = compute_cases(run, texts)
        assert [len(reading.tokens) for reading in found][:2] == [
            len(ids[0]) + 16,
            len(ids[1]) + 16,
        ]
        for before, reading in zip(ids, found, strict=True):
            scores = reading.scores.copy()
            scores[:, words.bos] = -np.inf  # never written
            written = reading.tokens[len(before) :]
            assert written == scores.argmax(1)[len(before) - 1 : -1].tolist()

    def test_a_translator_reads_its_own_output(self, tmp_path: Path) -> None:
        run = loaded(tmp_path, settings_of("seq2seq", "translate", head_bias=True))
        texts, words = proof_texts(run, LINES), run.vocab.source
        ids = [text.ids for text in texts]
        assert ids[0] == [*words.encode(LINES[0]), words.eos]
        assert len(ids[4]) == 64 - 1
        for reading in compute_cases(run, texts):
            assert reading.target[0] == words.bos
            assert reading.scores.shape == (len(reading.target), run.shape.vocab_size)
            scores = reading.scores.copy()
            scores[:, words.bos] = -np.inf  # never written
            end = [] if len(reading.target) == 49 else [words.eos]
            expected = [*reading.target[1:], *end]
            assert scores.argmax(1).tolist()[: len(expected)] == expected

    def test_an_encoder_reads_pairs_and_gaps(self, tmp_path: Path) -> None:
        run = loaded(tmp_path, settings_of("encoder", "fill", heads=("words",)))
        texts, words = proof_texts(run, LINES), run.vocab.source
        ids = [text.ids for text in texts]
        assert ids[0][0] == words.bos
        assert ids[0][-1] == words.eos
        assert ids[0][2] == words.mask
        assert words.mask not in proof_texts(run, ["dog"])[0].ids  # its end token stays
        assert len(ids[4]) == 64
        assert ids[3].count(words.eos) == 2
        first = ids[3].index(words.eos)
        assert texts[3].segments == [0] * (first + 1) + [1] * (len(ids[3]) - first - 1)
        assert not any(texts[0].segments)
        found = compute_cases(run, texts)
        assert found[3].scores.shape == (len(ids[3]), run.shape.vocab_size)
        assert found[3].hidden_TD.shape == (len(ids[3]), 32)

    def test_classes_and_vectors_are_one_row(self, tmp_path: Path) -> None:
        heads = ("pooled", "classes")
        run = loaded(tmp_path / "a", settings_of("encoder", "classify", heads=heads))
        [found, *_] = compute_cases(run, proof_texts(run, LINES))
        assert found.scores.shape == (1, 3)
        assert words_are_whole(run, found)
        run = loaded(tmp_path / "b", settings_of("encoder", "embed", heads=(), n_segments=0))
        [found, *_] = compute_cases(run, proof_texts(run, LINES))
        assert found.scores.shape == (1, 32)
        assert np.linalg.norm(found.scores) == pytest.approx(1)


def words_are_whole(run: LoadedRun, said: ProofCase) -> bool:
    """No gap where none is filled."""
    return run.vocab.source.mask not in said.tokens
