"""Pruning, factors, tuned lens, head studies and search on runs of images and recordings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.errors import DataError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import examples, passages
from headway.inside.capture.forward import ReadingBatch, run_reading
from headway.inside.capture.states import edit_states, sites_of
from headway.inside.capture.trace import trace
from headway.inside.measure.ablation import batch_outputs, losses
from headway.inside.measure.features.dictionary import factors
from headway.inside.measure.heads import heads
from headway.inside.measure.lens import lens, tune
from headway.inside.measure.nearest_tokens import TokenIndex
from headway.inside.measure.pruning import prune_heads
from headway.inside.page import terminal
from headway.inside.page.look import prepare_look
from headway.inside.page.sections import overview
from headway.models.build import build_model
from headway.tasks.loaded_run import LoadedRun, open_plain

from ..interop.padded_runs import LABELS, MEDIA, tiny_run
from ..interop.padded_runs import media_run as padded_run
from .media_runs import AUDIO, media_for, media_run

N = 24


@pytest.fixture(scope="module", params=list(MEDIA))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    folder = tmp_path_factory.mktemp("studied") / "run"
    return open_plain(padded_run(folder, request.param, n_layers=2))


def corpus_for(run: LoadedRun, n: int = N, *, right: bool = True) -> Corpus:
    found = tuple(media_for(run, seed) for seed in range(n))
    words = [] if run.words is None else run.vocab.target.tokens([8, 9, 10])
    words = [word.strip("▁") for word in words]
    texts = tuple(" ".join(words[: 1 + i % 3]) for i in range(n))
    labels = tuple(i % len(LABELS) for i in range(n))
    return Corpus(
        "examples",
        found,
        texts if right and run.spec.writes else None,
        labels if right and run.spec.labelled else None,
    )


def test_heads_are_judged_by_what_is_right(run: LoadedRun) -> None:
    corpus = corpus_for(run, 4)
    readings = examples(run, corpus)
    found = heads(run, readings)
    worth: dict[str, float] = {}
    places = [
        (f"{kind.name}.{layer}", attention)
        for kind in Anatomy.of(run.model).kinds
        for layer, attention in enumerate(kind.layers)
    ]
    for reading in readings:
        for _, attention in places:
            attention.gate_H = torch.ones(attention.n_heads, requires_grad=True)
        (-run_reading(run, reading).log_probs_R.mean()).backward()
        for name, attention in places:
            for head, slope in enumerate(attention.gate_H.grad.abs().tolist()):
                worth[f"{name}.{head}"] = worth.get(f"{name}.{head}", 0.0) + slope / len(readings)
    for _, attention in places:
        attention.gate_H = None
    assert {one.name for one in found.heads} == worth.keys()
    for one in found.heads:
        assert one.importance == pytest.approx(worth[one.name], rel=1e-3, abs=1e-6)
    assert max(worth.values()) > 1e-4


def test_targets_come_from_the_corpus() -> None:
    seen, written = media_run("see"), media_run("caption")
    labels = [one.outputs[0].id for one in examples(seen, corpus_for(seen, 3))]
    assert labels == [0, 1, 2]
    own = [one.outputs[0].id for one in examples(seen, corpus_for(seen, 3, right=False))]
    assert own == [int(run_reading(seen, one).scores_RC.argmax())
                   for one in examples(seen, corpus_for(seen, 3))]  # fmt: skip
    found = [
        [output.name for output in reading.outputs]
        for reading in examples(written, corpus_for(written, 2))
    ]
    assert [len(names) for names in found] == [2, 3]  # the end, too
    spelled = media_run("transcribe-ctc")
    corpus = corpus_for(spelled, 2)
    assert corpus.targets is not None
    tokens = spelled.vocab.target.encode(corpus.targets[1])
    reading = examples(spelled, corpus)[1]
    assert [output.id for output in reading.outputs] == tokens
    assert [output.row for output in reading.outputs] == sorted(
        output.row for output in reading.outputs
    )


def test_hidden_patches_are_the_targets(tmp_path: Path) -> None:
    for task in ("fill images", "fill audio"):
        run = open_plain(padded_run(tmp_path / task, task))
        one, *others = examples(run, corpus_for(run, 6))
        rows = [output.row for output in one.outputs]
        assert 0.3 * len(one.last) < len(rows) <= 0.5 * len(one.last)
        if task == "fill audio":  # there is but one square of patches
            assert any(rows != [output.row for output in other.outputs] for other in others)
        printed = run_reading(run, one)
        assert printed.targets_RE is not None
        want = (printed.scores_RC - printed.targets_RE).square().mean(-1)
        torch.testing.assert_close(-printed.log_probs_R, want)


def test_what_rebuilds_hidden_parts_can_be_looked_into(tmp_path: Path) -> None:
    for task in ("fill images", "fill audio"):
        run = open_plain(padded_run(tmp_path / task, task))
        looked = prepare_look(run, media_for(run, 1))
        found = looked.trace
        [studied] = examples(run, Corpus("one", (media_for(run, 1),)))
        assert found.reading.outputs == studied.outputs
        error = -float(run_reading(run, studied).log_probs_R.mean().detach())
        assert found.meta["error"] == pytest.approx(error, rel=1e-4)
        answer = overview.section(looked)["answer"]
        assert answer["said"].startswith(f"{len(studied.outputs)} of {len(studied.last)} ")
        seen = lens(run, found)
        torch.testing.assert_close(seen.chosen_LR[-1], torch.ones_like(seen.chosen_LR[-1]))
        assert "cosine  1.00" in terminal.format_trace(looked, ink="ascii", width=100)


@torch.no_grad()
def test_states_of_a_batch_are_those_of_each_alone(run: LoadedRun) -> None:
    texts = passages(run, corpus_for(run, 3), 10_000)
    batch = ReadingBatch.of(run, texts)
    found = batch_outputs(run, batch)
    first = batch_outputs(run, ReadingBatch.of(run, texts[:1]))
    n = len(first.owner_R)
    torch.testing.assert_close(found.readout.x_RD[:n], first.readout.x_RD, atol=1e-4, rtol=1e-4)
    ordinary_N = batch.ordinary(run, next(iter(batch.streams)))
    n_first = getattr(run.shape, "image", None) and run.shape.image.extra
    if n_first is not None:
        assert int((~ordinary_N).sum()) == 3 * n_first


@torch.no_grad()
def test_nothing_is_lost_where_nothing_changes_and_something_where_it_does(run: LoadedRun) -> None:
    texts = passages(run, corpus_for(run, 3), 10_000)
    seed = 0 if run.spec.answers == "gaps" else None
    batch = ReadingBatch.of(run, [replace(one, hides=seed) for one in texts])
    clean = batch_outputs(run, batch)
    before_R, behind_R, moved_R = losses(clean, batch_outputs(run, batch))
    torch.testing.assert_close(before_R, behind_R, atol=1e-6, rtol=0)
    assert float(moved_R.abs().max()) < 1e-6
    site = sites_of(run.model)[1]
    ramp_D = torch.linspace(-2, 2, run.shape.d_model)
    with edit_states(run.model, lambda at, x_ND: x_ND + ramp_D if at == site else None):
        *_, moved_R = losses(clean, batch_outputs(run, batch))
    assert float(moved_R.max()) > 1e-4


def test_there_are_factors(run: LoadedRun) -> None:
    found = factors(run, corpus_for(run), method="topk", n=8, k=2, steps=10, browse=200)
    assert len(found.entries) == 8
    rebuilds = "rebuild" in getattr(run.shape, "heads", ())
    assert (found.figures["unit"] == "mean square") == rebuilds
    assert all(layer["loss"] >= 0 for layer in found.figures["layers"])
    alive = [entry for entry in found.entries if entry["effect"] is not None]
    assert alive
    context = alive[0]["contexts"][0]
    assert len(context["pieces"]) == len(context["values"])
    assert ("promotes" in found.entries[0]) == (found.figures["unit"] == "nats")


@pytest.mark.parametrize("name", ["see distilled", "hear", "transcribe ctc", "fill audio"])
def test_a_lens_is_tuned(name: str, tmp_path: Path) -> None:
    run = open_plain(padded_run(tmp_path / "run", name, n_layers=2))
    tuned = tune(run, corpus_for(run))
    assert tuned.n_lines == N
    assert (tuned.plain_L > 0).all()
    assert tuned.tuned_L.mean() < tuned.plain_L.mean()


@pytest.mark.parametrize("task", ["see", "transcribe"])
def test_a_corpus_token_is_its_own_nearest_neighbour(task: str) -> None:
    run = media_run(task)
    corpus = corpus_for(run, 4)
    index = TokenIndex.of(run, corpus, 2, stack=Anatomy.of(run.model).stacks[0].name)
    found = trace(run, examples(run, corpus)[2])
    [hit] = index.nearest(found, index.stream, 5, top=1)
    assert (hit.passage, hit.place) == (2, 5)
    assert hit.cosine == pytest.approx(1, abs=1e-2)
    shown = index.token_context(2, 5)
    assert shown["pieces"] == ["row 2, column 1" if task == "see" else "0.10 s", " example"]
    assert ("image" in shown) == (task == "see")


def test_a_patch_is_shown_with_its_neighbours() -> None:
    media = media_for(media_run("see"))  # 3 × 4 patches of 8 pixels, and a class token
    assert media.patch_surroundings(0) is None
    corner, middle = media.patch_surroundings(1), media.patch_surroundings(6)
    assert corner is not None
    assert middle is not None
    assert (corner == media.item[:, :, :16, :16]).all()
    assert (middle == media.item[:, :, :24, :24]).all()


def test_a_pruned_model_equals_the_whole_one_without_the_head(run: LoadedRun) -> None:
    kind = Anatomy.of(run.model).kinds[0]
    small = run.with_model(prune_heads(run.model, run.shape, [(kind.name, 0, 1)]))
    [reading] = examples(run, corpus_for(run, 1))
    gate_H = torch.ones(kind.layers[0].n_heads)
    gate_H[1] = 0
    kind.layers[0].gate_H = gate_H
    want = run_reading(run, reading).scores_RC.detach()
    kind.layers[0].gate_H = None
    torch.testing.assert_close(
        run_reading(small, reading).scores_RC.detach(), want, atol=1e-4, rtol=1e-4
    )


def test_recordings_too_long_for_the_model_are_left_out() -> None:
    audio = replace(AUDIO, positions="learned", max_rows=10)
    run = media_run("transcribe", audio=audio)
    assert np.all([one.n_rows > 10 for one in corpus_for(run, 2).examples])
    with pytest.raises(DataError, match="examples"):
        examples(run, corpus_for(run, 2))


@pytest.fixture(params=["text", "image"])
def several(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LoadedRun, Corpus]:
    """A run that answers with any number of labels."""
    if request.param == "image":
        run = media_run("see")
        corpus = corpus_for(run, N, right=False)
    else:
        run = open_plain(tiny_run(tmp_path / "run", "classify"))
        corpus = Corpus.of_lines(["ba de go", "fi ko ga mo pu ba"] * (N // 2))
    settings = run.settings
    classify = replace(settings.classify, answer="labels")
    return run.with_model(run.model, replace(settings, classify=classify)), corpus


def test_each_of_several_labels_has_its_own_probability(several: tuple[LoadedRun, Corpus]) -> None:
    run, corpus = several
    reading = examples(run, corpus, 1)[0]
    with torch.no_grad():
        printed = run_reading(run, reading)
    best = int(printed.scores_RC.argmax())
    assert float(printed.log_probs_R.exp()) == pytest.approx(
        float(printed.scores_RC[0, best].sigmoid())
    )
    assert float(lens(run, reading).chosen_LR[-1]) == pytest.approx(
        float(printed.log_probs_R.exp())
    )
    shown = overview.section(prepare_look(run, corpus.examples[0]))
    assert shown is not None
    assert shown["answer"]["items"][0]["p"] == pytest.approx(float(printed.log_probs_R.exp()))
    assert max(head.importance for head in heads(run, corpus, n=2).heads) > 1e-4
    batch = ReadingBatch.of(run, passages(run, corpus, 40))
    *_, moved_R = losses(batch_outputs(run, batch), batch_outputs(run, batch))
    assert float(moved_R.abs().max()) < 1e-6


def test_a_number_is_answered_and_its_heads_move_it() -> None:
    shown = media_run("see")
    settings = replace(
        shown.settings,
        labels=(),
        model=replace(shown.shape, n_labels=1),
        classify=replace(shown.settings.classify, answer="number", mean=10.0, std=2.0),
    )
    model = build_model(settings.model, seed=1).eval()
    run = shown.with_model(model, settings)
    corpus = corpus_for(run, 4, right=False)
    reading = examples(run, corpus, 1)[0]
    score = float(run_reading(run, reading).scores_RC[0, 0].detach())
    assert float(reading.outputs[0].name) == pytest.approx(10 + 2 * score, rel=1e-5)
    assert max(head.importance for head in heads(run, corpus, n=2).heads) > 1e-5
    found = factors(run, corpus_for(run, right=False), method="topk", n=8, k=2, steps=5, browse=100)
    assert found.figures["unit"] == "mean square"
    looked = prepare_look(run, corpus.examples[0])
    assert looked.trace.reading.outputs == reading.outputs
    shown_there = overview.section(looked)
    assert shown_there is not None
    assert shown_there["answer"]["said"] == reading.outputs[0].name
