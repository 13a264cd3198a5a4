"""Taggers whose tokens have no case are given the kind of each word in training and prediction."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.errors import ConfigError, UserError
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import passages
from headway.inside.capture.forward import ReadingBatch
from headway.inside.capture.reading import read
from headway.interop.graphs.graph_inputs import SEGMENTS, TextInputs
from headway.interop.hf.export import describe_run
from headway.interop.proof_inputs import proof_texts
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.nn.layout import Layout
from headway.settings.ensemble import check_ensemble
from headway.settings.folder import load_run
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings, resolved_toml
from headway.settings.task_rows import spec_of
from headway.tasks.loaded_run import open_run
from headway.tasks.mask import MaskedLMTask
from headway.tasks.tags import TaggingObjective, TaggingTask
from headway.tasks.task import InferenceRequest
from headway.tokens.tokenizer import Tokenizer
from headway.training.initial_weights import initialize_weights
from headway.training.run import Training
from tests.training.labelled import CPU, entries, resolved, settings_of, write_conll

TAG = {"Capitalised": "B-cap", "CAPITALS": "B-all", "lower": "O"}
WORDS = ["river", "slowly", "going", "paris", "seen"]


def sentences(n: int = 80) -> list[list[tuple[str, str]]]:
    """Any word may have any tag: capitals alone say which."""
    random = np.random.default_rng(4)
    forms = {"Capitalised": str.capitalize, "CAPITALS": str.upper, "lower": str.lower}
    kinds = [random.choice([*forms], random.integers(2, 8)) for _ in range(n)]
    return [[(forms[k](str(random.choice(WORDS))), TAG[k]) for k in some] for some in kinds]


def lower(text: str, **changes: Any) -> RunSettings:
    given = {"tokenizer__lowercase": True, "tokenizer__vocab_size": 60, "model__dropout": 0.0}
    return settings_of("tag", text, **given | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained tagger; n-grams would do without its layers."""
    folder = tmp_path_factory.mktemp("shapes")
    text = write_conll(folder / "train.conll", sentences())
    changes = {"train__steps": 30, "train__eval_every": 15, "train__lr": 8e-3, "model__ngrams": 0}
    settings, out = lower(text, **changes), folder / "run"
    assert Training(settings=settings, out=out, device="cpu").train() == []
    assert max(e["f1"] for e in entries(out) if e["kind"] == "valid") > 99
    return out


def test_capitals_alone_are_learned_and_answered(run: Path) -> None:
    settings = load_run(run)
    assert isinstance(settings.model, EncoderSettings)
    assert settings.model.reads_shapes
    assert "\nn_segments = 8  # chosen: " in (run / "config.toml").read_text()
    tagger: Any = TaggingTask(spec_of("tag")).predictor(
        InferenceRequest(open_run(run, device="cpu"), settings)
    )
    lines = ["river Paris SEEN", "Slowly", "PARIS paris Paris going GOING"]
    expected = ["river Paris/B-cap SEEN/B-all", "Slowly/B-cap",
                "PARIS/B-all paris Paris/B-cap going GOING/B-all"]  # fmt: skip
    assert [one.text for one in tagger.answers(lines)] == expected
    assert [one.text for line in lines for one in tagger.answers([line])] == expected
    narrow = replace(settings, model=replace(settings.model, max_len=12))
    tagger = TaggingTask(spec_of("tag")).predictor(
        InferenceRequest(open_run(run, device="cpu"), narrow)
    )
    long = [pair for one in sentences(10) for pair in one]
    assert tagger.tags([[word for word, _ in long]]) == [[tag for _, tag in long]]
    test = write_conll(run.parent / "test.conll", sentences(9))
    files = replace(settings.data, text=(test,))
    found = TaggingTask(spec_of("tag")).evaluation(
        InferenceRequest(open_run(run, device="cpu"), settings), files
    )
    assert found["f1"] == 100


def test_looks_and_studies_and_proofs_read_the_same(run: Path) -> None:
    opened, line = open_run(run, device="cpu"), "river Paris SEEN"
    reading = read(opened, line)
    assert [one.name for one in reading.outputs] == ["O", "B-cap", "B-all"]
    assert set(reading.segments) == {0, 1, 2}
    assert reading.segments[0] == reading.segments[-1] == 0
    [passage] = passages(opened, Corpus.of_lines([line]), 100)
    assert (passage.segments, passage.last.ids) == (reading.segments, reading.last.ids)
    [item] = proof_texts(opened, [line])
    assert (tuple(item.segments), tuple(item.ids)) == (reading.segments, reading.last.ids)
    many = passages(opened, Corpus.of_lines([" ".join(["Paris river"] * 90)]), 9999)
    assert len(many) > 1
    assert len(ReadingBatch.of(opened, many).streams["text"].segments_N) == sum(  # type: ignore[arg-type]
        len(one.last.ids) for one in many
    )
    words = opened.vocab.source.encode_words([["Paris", "river"] * 90])
    shapes = np.repeat([1, 0] * 90, words.pieces.ids)
    assert [kind for one in many for kind in one.segments[1:-1]] == shapes.tolist()


def test_word_shapes_without_support_are_an_error_or_described(run: Path, tmp_path: Path) -> None:
    opened: Any = open_run(run, device="cpu")
    with pytest.raises(UserError, match=r"model\.n_segments=0\b"):
        describe_run(opened)
    about = TextInputs(opened.model.front).about[SEGMENTS]
    assert re.search(r"\b1\b.*\b2\b", about)
    text = str(run.parent / "train.conll")
    plain = lower(text, model__n_segments=0, model__ngrams=0, train__steps=1)
    assert Training(settings=plain, out=tmp_path / "plain", device="cpu").train() == []
    assert not load_run(tmp_path / "plain").model.reads_shapes  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"/plain\b.*model\.n_segments\b"):
        open_run(run, tmp_path / "plain", device="cpu")


def test_ngrams_see_shapes(tmp_path: Path) -> None:
    text = write_conll(tmp_path / "train.conll", sentences())
    settings, prepared = resolved(TaggingTask(spec_of("tag")), lower(text), tmp_path)
    model: Any = build_model(settings.model, seed=1).eval()
    task = TaggingObjective(settings, prepared)
    task.begin(model, lambda text: None)
    batch = task.valid_dataset.batch(np.arange(prepared.valid.n), CPU)
    [stream], ngrams = batch.streams, model.ngrams
    given = stream.values, stream.layout
    shares = [
        (ngrams(*given, segments_N)[batch.rows_R].argmax(-1) == batch.targets.labels_W).double()
        for segments_N in (stream.segments_N, None)
    ]
    assert shares[0].mean() > 0.9 > 0.6 > shares[1].mean()
    none = ngrams(*given, torch.zeros_like(stream.values))
    assert torch.equal(none, ngrams(*given)), "segment 0 is as none"


def test_what_was_prepared_before_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_conll(tmp_path / "train.conll", sentences())
    task, settings = TaggingTask(spec_of("tag")), lower(text)
    with monkeypatch.context() as before:
        before.setattr(Tokenizer, "is_cased", True)
        old = resolved(task, settings, tmp_path)[1]
    made = (tmp_path / "data").stat().st_mtime_ns
    found, prepared = resolved(task, settings, tmp_path)
    assert (tmp_path / "data").stat().st_mtime_ns == made
    assert prepared.fingerprint == old.fingerprint
    assert "shapes" not in prepared.train
    assert found.model.n_segments == 0  # type: ignore[union-attr]
    asked_for = resolved(task, lower(text, model__n_segments=8), tmp_path)[0]
    for one in (found, asked_for):
        batch = TaggingObjective(one, prepared).train_dataset.batch(np.arange(3), CPU)
        assert batch.streams[0].segments_N is None


def test_taggers_answer_together_only_if_both_read_shapes(run: Path) -> None:
    settings = load_run(run)
    assert isinstance(settings.model, EncoderSettings)
    without = replace(settings, model=replace(settings.model, n_segments=0))
    check_ensemble([run, run], [settings, settings])
    with pytest.raises(ConfigError, match=r"model\.n_segments\b"):
        check_ensemble([run, run], [settings, without])


@pytest.mark.parametrize("n_segments", [0, 2])
def test_a_tagger_begins_as_the_encoder_that_it_starts_from(
    tmp_path: Path, n_segments: int
) -> None:
    lines = [" ".join(word for word, _ in one) + "\n" for one in sentences()]
    (tmp_path / "text").write_text("".join(lines), encoding="utf-8")
    given = {"tokenizer__lowercase": True, "tokenizer__vocab_size": 40, "data__unit": "line"}
    before = settings_of("fill", str(tmp_path / "text"), model__n_segments=n_segments, **given)
    folder = tmp_path / "fill"
    filling, words = resolved(MaskedLMTask(spec_of("fill")), before, folder)
    old: Any = build_model(filling.model, seed=5).eval()
    (folder / "config.toml").write_text(resolved_toml(filling), encoding="utf-8")
    words.save_tokenizer(folder / "tokenizer.json")
    save_weights(folder, model_weights(old))
    text = write_conll(tmp_path / "train.conll", sentences())
    wanted = settings_of("tag", text, start__run=str(folder))
    settings, prepared = resolved(TaggingTask(spec_of("tag")), wanted, tmp_path)
    new: Any = build_model(settings.model, seed=6).eval()
    initialize_weights(new, settings, prepared, lambda text: None)
    assert new.front.segments.num_embeddings == 8
    tokens_N, layout = torch.arange(5, 13), Layout.of([8])
    with torch.no_grad():
        theirs = old(tokens_N, layout, None)
        torch.testing.assert_close(new(tokens_N, layout, torch.arange(8)), theirs)
