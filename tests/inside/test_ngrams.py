"""Every number of a look is about the whole model, its n-gram member included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import headway
from headway.inside.capture.forward import run_reading
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.ngrams import ngram_occurrences, ngram_table, token_contributions
from headway.inside.capture.trace import trace
from headway.inside.measure import maps
from headway.inside.measure.lens import WITH_NGRAMS, lens
from headway.inside.measure.ngrams import ngram_effects
from headway.inside.page.look import prepare_look
from headway.inside.page.sections import sections
from headway.inside.page.terminal import format_trace
from headway.nn.layout import Layout
from headway.tasks.loaded_run import LoadedRun, open_plain
from headway.tasks.scores import MODEL, NEURAL, NGRAMS

from .ngram_runs import SHARE, ngram_run

WORDS = ["ba", "de", "go", "fi", "ko", "ba", "mu"]
TEXT = " ".join(WORDS)


@pytest.fixture(params=["classify", "tag"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> LoadedRun:
    return open_plain(ngram_run(tmp_path / "run", request.param))


@pytest.fixture
def classifier(tmp_path: Path) -> LoadedRun:
    return open_plain(ngram_run(tmp_path / "run", "classify"))


def places_of_words(run: LoadedRun) -> list[int]:
    stream = trace(run, TEXT).reading.last
    return [place for place, special in enumerate(stream.special) if not special]


def without(number: int) -> str:
    return " ".join(WORDS[:number] + WORDS[number + 1 :])


@pytest.mark.parametrize("hidden", [[], [1], [2, 3]])
def test_the_last_step_of_the_lens_is_the_answer(run: LoadedRun, hidden: list[int]) -> None:
    change = Intervention(hidden=frozenset(("text", place) for place in hidden))
    found = trace(run, TEXT, change=change)
    seen = lens(run, found)
    assert found.scores_RC is not None
    assert seen.layers == ("input", "layer 1", "layer 2", WITH_NGRAMS)
    assert len(seen.rank_LR) == len(seen.layers)
    assert torch.equal(seen.scores_RC, found.scores_RC)
    probs_RC = found.scores_RC.double().softmax(-1)
    torch.testing.assert_close(seen.probability_LRK[-1, :, 0], probs_RC.amax(-1))
    assert (seen.rank_LR[-1] == 1).all()
    assert seen.kl_LR[-1].abs().max() == 0
    assert seen.kl_LR[-2].abs().max() > 0.01, "the layers alone say something else"


def test_the_answer_is_what_predict_answers(classifier: LoadedRun) -> None:
    found = trace(classifier, TEXT)
    assert found.scores_RC is not None
    [answer] = headway.load(classifier.folder, device="cpu")([TEXT])
    assert answer.score == pytest.approx(float(found.scores_RC.softmax(-1).max()), abs=1e-5)


def test_hiding_a_word_of_a_text_is_removing_it(classifier: LoadedRun) -> None:
    """In a model without positions whose classes are read from the mean over the text."""
    for number, place in enumerate(places_of_words(classifier)):
        hidden = trace(classifier, TEXT, change=Intervention(hidden=frozenset({("text", place)})))
        gone = trace(classifier, without(number))
        torch.testing.assert_close(hidden.scores_RC, gone.scores_RC)
        assert hidden.reading.outputs[0].id == gone.reading.outputs[0].id


def test_occlusion_is_what_removing_each_word_costs(classifier: LoadedRun) -> None:
    found = trace(classifier, TEXT)
    [label] = [output.id for output in found.reading.outputs]
    weights_S = maps.occlusion(classifier, found).weights_RS[0]

    def log_p(text: str) -> float:
        scores_RC = trace(classifier, text).scores_RC
        assert scores_RC is not None
        return float(scores_RC.log_softmax(-1)[0, label])

    for number, place in enumerate(places_of_words(classifier)):
        lost = log_p(TEXT) - log_p(without(number))
        assert float(weights_S[place]) == pytest.approx(lost, abs=1e-5)


def test_occlusion_of_tags_is_what_removing_each_word_costs(tmp_path: Path) -> None:
    """Where the n-grams alone speak; a word is hidden from the others, not from itself."""
    run = open_plain(ngram_run(tmp_path / "run", "tag", mute=True))
    found = trace(run, TEXT)
    occluded = maps.occlusion(run, found).weights_RS
    own = run_reading(run, found.reading).log_probs_R.detach()
    for number, place in enumerate(places_of_words(run)):
        gone = trace(run, without(number)).scores_RC
        assert gone is not None
        logs_RC = iter(gone.log_softmax(-1))
        for row, output in enumerate(found.reading.outputs):
            if row == number:
                assert float(occluded[row, place]) == pytest.approx(0.0, abs=1e-6)
                continue
            lost = float(own[row] - next(logs_RC)[output.id])
            assert float(occluded[row, place]) == pytest.approx(lost, abs=1e-5)


def test_integrated_gradients_add_up_to_what_the_text_changes(run: LoadedRun) -> None:
    """The path from a baseline without n-grams to this text."""
    found = trace(run, TEXT)
    map_ = maps.integrated_gradients(run, found)
    assert map_.streams == ("text",)
    assert map_.facts["error"] < 0.02
    table, part = ngram_table(run.model), run.model.front
    assert table is not None
    fronts = {"self": maps.baseline_TD(run, found.reading, "self", "mean")}
    fronts["ngrams"] = torch.zeros_like(token_contributions(table, found.reading).flatten(1))
    assert part is not None
    nothing = run_reading(run, found.reading, fronts=fronts).log_probs_R
    changed_R = (run_reading(run, found.reading).log_probs_R - nothing).detach()
    torch.testing.assert_close(map_.weights_RS.sum(1), changed_R, rtol=0.02, atol=0.01)


def test_gradients_see_the_n_grams(tmp_path: Path) -> None:
    run = open_plain(ngram_run(tmp_path / "run", "classify", mute=True))
    found = trace(run, TEXT)
    by_name = {one.name: one for one in maps.gradient_maps(run, found)}
    table, [output] = ngram_table(run.model), found.reading.outputs
    assert table is not None
    assert found.scores_RC is not None
    slope_C = -found.scores_RC[0].softmax(-1)
    slope_C[output.id] += 1
    wanted_T = SHARE * token_contributions(table, found.reading)[:, 0] @ slope_C
    torch.testing.assert_close(by_name["gradxinput"].weights_RS[0], wanted_T)


def test_what_tokens_add_is_all_that_n_grams_say(run: LoadedRun) -> None:
    table, reading = ngram_table(run.model), trace(run, TEXT).reading
    assert table is not None
    ids_T = torch.tensor(reading.last.ids)
    said_RC = table(ids_T, Layout.of([len(ids_T)]))
    rows = [output.row for output in reading.outputs if output.row is not None]
    said_RC = said_RC[rows] if rows else said_RC
    torch.testing.assert_close(token_contributions(table, reading).sum(0) + table.bias_C, said_RC)
    for grams, said_C in zip(ngram_occurrences(table, reading), said_RC, strict=True):
        total_C = torch.stack([gram.scores_C for gram in grams]).sum(0)
        torch.testing.assert_close(total_C + table.bias_C, said_C)


def test_heads_that_are_off_leave_the_n_grams_their_share(classifier: LoadedRun) -> None:
    change = Intervention(
        disabled_heads=frozenset(("self", layer, head) for layer in (0, 1) for head in range(4))
    )
    whole, less = trace(classifier, TEXT), trace(classifier, TEXT, change=change)
    assert whole.scores_RC is not None
    assert less.scores_RC is not None
    assert not torch.allclose(whole.scores_RC, less.scores_RC)
    torch.testing.assert_close(lens(classifier, less).scores_RC, less.scores_RC)
    with torch.no_grad():
        for weight in classifier.model.heads["classes"].parameters():  # type: ignore[union-attr,operator]
            weight.zero_()
    assert torch.equal(
        run_reading(classifier, whole.reading).scores_RC,
        run_reading(classifier, whole.reading, change).scores_RC,
    )


def test_votes_add_up_to_the_margin_of_the_answer(run: LoadedRun) -> None:
    for hidden in (frozenset[tuple[str, int]](), frozenset({("text", 3)})):
        found = trace(run, TEXT, change=Intervention(hidden=hidden))
        assert found.scores_RC is not None
        every = ngram_effects(run, found)
        assert len(every) == len(found.reading.outputs)
        for one, output, scores_C in zip(
            every, found.reading.outputs, found.scores_RC, strict=True
        ):
            others = [float(x) for label, x in enumerate(scores_C) if label != output.id]
            margin = float(scores_C[output.id]) - sum(others) / len(others)
            by_grams = sum(effect for _, effect in one.grams)
            assert by_grams + one.bias + one.layers == pytest.approx(margin, abs=1e-5)
            assert float(one.tokens_T.sum()) == pytest.approx(by_grams, abs=1e-5)
            assert list(one.probs) == [NEURAL, NGRAMS, MODEL]
            torch.testing.assert_close(one.probs[MODEL], scores_C.double().softmax(-1))


@pytest.mark.parametrize("answer", ["labels", "number"])
def test_votes_of_several_labels_and_of_a_number_add_up_to_the_answer(
    answer: str, tmp_path: Path
) -> None:
    run = open_plain(ngram_run(tmp_path / "run", "classify", answer=answer))
    found = trace(run, TEXT)
    [one], [output] = ngram_effects(run, found), found.reading.outputs
    total = sum(effect for _, effect in one.grams) + one.bias + one.layers
    shown = sections(prepare_look(run, TEXT), ("ngrams",))["ngrams"]["outputs"][0]
    answered = headway.load(tmp_path / "run")(TEXT)
    if answer == "number":
        assert 5.0 + total == pytest.approx(answered.value, abs=1e-4)
        assert float(one.probs[MODEL]) == pytest.approx(answered.value, abs=1e-4)
    else:
        p = torch.tensor(total).sigmoid().item()
        assert p == pytest.approx(float(one.probs[MODEL][output.id]), abs=1e-5)
        assert p == pytest.approx(
            dict(zip(answered.classes, answered.probs, strict=True))[shown["label"]], abs=1e-4
        )
    assert "n-grams" in format_trace(prepare_look(run, TEXT))


def test_n_grams_are_named_by_their_words(classifier: LoadedRun) -> None:
    [one] = ngram_effects(classifier, trace(classifier, TEXT))
    assert {"de", "go", "de go", "go fi"} <= {name for name, _ in one.grams}


def test_every_panel_of_a_page_ends_with_the_answer(run: LoadedRun) -> None:
    """The numbers of a page, with heads switched off as well."""
    off = frozenset({("self", 0, 1), ("self", 1, 2)})
    for change in (
        Intervention(),
        Intervention(hidden=frozenset({("text", 2)}), disabled_heads=off),
    ):
        looked = prepare_look(run, TEXT, change=change)
        seen = sections(looked, ("overview", "saliency", "lens", "ngrams"))
        scores_RC = run_reading(run, looked.trace.reading, change).scores_RC.detach()
        for row, output in enumerate(looked.trace.reading.outputs):
            p = float(scores_RC[row].softmax(-1)[output.id])
            item = seen["overview"]["answer"]["items"][row]  # type: ignore[index]
            assert item["p"] == pytest.approx(p, abs=1e-5)
            view = seen["lens"]["views"][0]  # type: ignore[index]
            assert float(view["chosen"].values[-1, row]) == pytest.approx(p, abs=1e-5)
            members = seen["ngrams"]["outputs"][row]["members"]  # type: ignore[index]
            assert members[-1][0] == MODEL
            assert members[-1][3] == pytest.approx(p, abs=1e-5)


def test_the_terminal_shows_both_members(run: LoadedRun) -> None:
    found = prepare_look(run, TEXT)
    text = format_trace(found, width=90, ink="ascii")
    for name in (NEURAL, NGRAMS, WITH_NGRAMS):
        assert name in text
