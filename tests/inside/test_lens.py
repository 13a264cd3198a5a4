"""The lens ends in what the model really says; tuned, it is nowhere further from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from headway.errors import DataError, FolderError, UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.forward import ReadingBatch, read_out
from headway.inside.capture.reading import TracedOutput, read
from headway.inside.capture.trace import trace
from headway.inside.measure.lens import LogitLens, TunedLens, lens, tune
from headway.models.encoder import Encoder
from headway.models.parts.output_heads import HiddenStates
from headway.models.seq2seq import Seq2Seq
from headway.tasks.loaded_run import LoadedRun, open_plain

from ..interop.padded_runs import RUNS, WORDS, tiny_run

CASES = [
    *((task, None) for task in RUNS),
    ("translate", "as-published"),
    ("complete", "parallel-one-key-head"),
]
TEXT = {"fill": "ba [MASK] de go fi"}

Give = Callable[..., LoadedRun]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Give:
    known: dict[tuple[str, str | None], LoadedRun] = {}

    def give(task: str, variant: str | None = None) -> LoadedRun:
        if (task, variant) not in known:
            folder = tiny_run(tmp_path_factory.mktemp(task) / "run", task, variant, n_layers=3)
            known[task, variant] = open_plain(folder)
        return known[task, variant]

    return give


def text_for(task: str) -> str:
    return TEXT.get(task, "ba de go fi ko")


@pytest.mark.parametrize(("task", "variant"), CASES)
def test_the_last_layer_equals_the_model_output_bit_for_bit(
    opened: Give, task: str, variant: str | None
) -> None:
    run = opened(task, variant)
    found = trace(run, text_for(task))
    seen = lens(run, found)
    assert found.scores_RC is not None
    assert torch.equal(seen.scores_RC, found.scores_RC)
    assert len(seen.rank_LR) == 4
    assert torch.equal(seen.kl_LR[-1], torch.zeros_like(seen.kl_LR[-1]))
    if task == "embed":
        assert seen.is_vector
        assert seen.chosen_LR[-1].item() == pytest.approx(1, abs=1e-6)
        assert seen.chosen_LR[0].item() < 0.99
        return
    ids = torch.tensor([output.id for output in found.reading.outputs])
    real_R = found.scores_RC.double().softmax(-1)[torch.arange(len(ids)), ids]
    torch.testing.assert_close(seen.chosen_LR[-1], real_R)


@pytest.mark.parametrize("task", ["translate", "complete", "fill"])
def test_a_layer_in_between_goes_through_norm_and_head(opened: Give, task: str) -> None:
    run = opened(task)
    found = trace(run, text_for(task))
    seen = lens(run, found)
    model, part = run.model, Anatomy.of(run.model).stacks[-1]
    assert isinstance(model, Seq2Seq | Encoder) or task == "complete"
    for layer, x_TD in enumerate(found.states[part.name]):
        normed_TD = x_TD if part.stack.final_norm is None else part.stack.final_norm(x_TD)
        scores_TC = model.scores(normed_TD).detach()
        for number, output in enumerate(found.reading.outputs):
            assert output.row is not None
            order = scores_TC[output.row].argsort(descending=True)
            place = 1 + order.tolist().index(output.id)
            assert seen.rank_LR[layer, number] == place
            assert seen.top_LRK[layer, number].tolist() == order[:5].tolist()
            share = F.softmax(scores_TC[output.row].double(), -1)
            torch.testing.assert_close(
                seen.probability_LRK[layer, number], share[order[:5]], rtol=1e-4, atol=1e-7
            )


@torch.no_grad()
def test_of_several_labels_each_is_judged_for_itself(opened: Give) -> None:
    """As `headway predict` says them: yes or no for each, not one of all."""
    one = opened("classify")
    settings = replace(one.settings, classify=replace(one.settings.classify, answer="labels"))
    run = one.with_model(one.model, settings)
    found = trace(run, text_for("classify"))
    seen = lens(run, found)
    assert found.scores_RC is not None
    shares_C = found.scores_RC[0].double().sigmoid()
    torch.testing.assert_close(seen.probability_LRK[-1, 0], shares_C.sort(descending=True).values)
    states = found.states["self"][1]
    batch = ReadingBatch.of(run, [found.reading])
    first = read_out(run, batch, HiddenStates(states, batch.layout)).averaged_logits()
    p_C, q_C = shares_C, first[0].double().sigmoid()
    apart = p_C * (p_C / q_C).log() + (1 - p_C) * ((1 - p_C) / (1 - q_C)).log()
    assert float(seen.kl_LR[1, 0]) == pytest.approx(float(apart.mean()), rel=1e-4)
    assert float(seen.kl_LR[-1, 0]) == 0


def test_decided_is_the_first_layer_from_which_it_stays_on_top() -> None:
    rank_LR = torch.tensor([[1, 4, 1, 9], [2, 1, 1, 3], [1, 1, 1, 2]])
    none = torch.zeros(3, 4, 0)
    seen = LogitLens(
        (TracedOutput(0, 1, "a"),) * 4,
        ("input", "layer 1", "layer 2"),
        "",
        none[0],
        none,
        none,
        rank_LR,
        rank_LR * 0.1,
        rank_LR * 0.1,
    )
    assert seen.decided == (2, 1, 0, None)


def test_the_note_depends_on_where_the_model_has_norms(opened: Give) -> None:
    runs = opened("complete"), opened("translate", "as-published"), opened("classify")
    notes = [lens(run, "ba de").how for run in runs]
    assert all("norm" in note for note in notes)
    assert len(set(notes)) == 3


def lines(n: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 8)) for _ in range(n)]


def mean_kl(run: LoadedRun, texts: list[str], tuned: TunedLens | None) -> torch.Tensor:
    seen = [lens(run, replace(read(run, text), text=text), tuned).kl_LR for text in texts]
    return torch.cat(seen, dim=1).mean(1)


def test_a_tuned_lens_is_nowhere_worse_on_text_that_it_has_not_seen(
    opened: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.inside.measure.lens.STEPS", 160)
    run = opened("complete")
    tuned = tune(run, lines(100, 0))
    assert (tuned.tuned_L <= tuned.plain_L).all()
    assert tuned.tuned_L[0] < 0.5 * tuned.plain_L[0]
    fresh = lines(6, 1)
    plain_L, tuned_L = mean_kl(run, fresh, None), mean_kl(run, fresh, tuned)
    assert (tuned_L <= plain_L).all()
    assert tuned_L[0] < 0.6 * plain_L[0]
    assert tuned_L[-1] == 0


@pytest.mark.parametrize("task", ["translate", "fill", "classify", "tag"])
def test_every_task_that_chooses_can_be_tuned(
    opened: Give, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.inside.measure.lens.STEPS", 32)
    run = opened(task)
    tuned = tune(run, lines(20, 0), seed=3)
    assert (tuned.tuned_L <= tuned.plain_L).all()
    assert tuned.matrix_LDD.abs().max() > 0
    if task == "classify":
        again = tune(run, lines(20, 0), seed=3)
        assert torch.equal(tuned.matrix_LDD, again.matrix_LDD)
    found = trace(run, text_for(task))
    assert found.scores_RC is not None
    assert torch.equal(lens(run, found, tuned).scores_RC, found.scores_RC)


def test_a_map_that_does_not_help_is_none(opened: Give, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.inside.measure.lens.STEPS", 16)
    monkeypatch.setattr(
        "headway.inside.measure.lens.RATE", 50.0
    )  # so that each step makes it worse
    tuned = tune(opened("complete"), lines(20, 0))
    # Layer 0 is so far off that anything helps.
    assert torch.equal(tuned.tuned_L[1:], tuned.plain_L[1:])
    assert tuned.matrix_LDD[1:].abs().max() == tuned.shift_LD[1:].abs().max() == 0


def test_the_lines_that_measure_choose_nothing(
    opened: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps that are bad there stay, and are said to be bad."""
    from headway.inside.measure import lens as module

    def bad(run: LoadedRun, fit: list[object], choose: object, rng: object) -> object:
        return torch.ones(3, 32, 32), torch.ones(3, 32)

    monkeypatch.setattr(module, "_fit", bad)
    tuned = tune(opened("complete"), lines(20, 0))
    assert tuned.tuned_L[2] > tuned.plain_L[2]
    assert (tuned.matrix_LDD == 1).all()


def test_a_tuned_lens_is_saved_and_loaded(
    opened: Give, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.inside.measure.lens.STEPS", 16)
    run = opened("complete")
    made = tune(run, lines(20, 0))
    made.save(tmp_path / "deep" / "lens.safetensors")
    back = TunedLens.load(tmp_path / "deep" / "lens.safetensors")
    assert torch.equal(lens(run, "ba de", made).kl_LR, lens(run, "ba de", back).kl_LR)
    assert (back.n_lines, back.n_held_out) == (20, 2)


def test_unusable_texts_models_and_files_are_an_error(opened: Give, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"\b3\b.*\b20\b"):
        tune(opened("complete"), ["ba"] * 3)
    with pytest.raises(UserError, match="vector"):
        tune(opened("embed"), ["ba"] * 30)
    other = TunedLens(
        torch.zeros(9, 8, 8), torch.zeros(9, 8), torch.zeros(9), torch.zeros(9), 20, 2
    )
    with pytest.raises(UserError, match=r"9 × 8.*3 × 32"):
        lens(opened("complete"), "ba de", other)
    (tmp_path / "bad").write_bytes(b"no such thing")
    with pytest.raises(FolderError, match=r"/bad.*SafetensorError"):
        TunedLens.load(tmp_path / "bad")
    with pytest.raises(FolderError, match=r"/missing.*FileNotFoundError"):
        TunedLens.load(tmp_path / "missing")
