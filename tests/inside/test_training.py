"""The same text through all checkpoints: what is measured, what is left out, what it costs."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.errors import UserError
from headway.inside.capture.reading import GenerationOptions, read
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.checkpoints import (
    checkpoints_of,
    diagonal_H,
    entropy,
    linear_cka,
    previous_H,
    rank_residual,
    stage_at,
    stages,
    trace_stages,
)
from headway.inside.page.look import look
from headway.inside.page.sections import SECTIONS
from headway.inside.page.sections.training import training_curves
from headway.tasks.loaded_run import open_plain
from headway.training.checkpoint import Checkpoints
from headway.web.html import page_data
from headway.web.pack import pack, unpack

from .kept_runs import KEPT, STEPS, kept_run

TEXT = "ba de fi ko ga mo"
ASK = GenerationOptions(output="go ba de fi")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept_run(tmp_path_factory.mktemp("runs") / "kept")


def test_every_stage_reads_what_the_final_model_wrote(run_folder: Path) -> None:
    run = open_plain(run_folder)
    reading = read(run, TEXT, ASK)
    found = trace_stages(run, reading)
    assert [(label, step) for label, step, _ in found] == [
        *((f"step {step}", step) for step in STEPS),
        ("final", STEPS[-1]),
    ]
    assert all(each.reading == reading for _, _, each in found)
    for step, (_, _, each) in zip(STEPS, found, strict=False):
        alone = open_plain(run_folder)
        weights = Checkpoints.weights(run_folder / "checkpoints" / f"step-{step}")
        alone.model.load_state_dict(weights, strict=False)
        _assert_same(each, trace(alone, reading))
    _assert_same(found[-1][2], trace(run, reading))


def _assert_same(one: Trace, other: Trace) -> None:
    assert one.scores_RC is not None
    assert other.scores_RC is not None
    assert torch.equal(one.scores_RC, other.scores_RC)
    for kind, layers in one.attention.items():
        assert all(map(torch.equal, layers, other.attention[kind]))


def test_the_final_weights_have_the_step_that_they_come_from(
    run_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "best")
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace(KEPT, "best checkpoint (step-20)"))
    assert [stage.step for stage in stages(open_plain(folder))] == [*STEPS, 20]
    path.unlink()
    assert [stage.step for stage in stages(open_plain(folder))] == [*STEPS, STEPS[-1]]


def test_looking_at_a_checkpoint_leaves_the_run_as_it_is(run_folder: Path) -> None:
    run = open_plain(run_folder)
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    first = checkpoints_of(run)[0]
    stage = stage_at(run, first)
    assert stage.run.model is not run.model
    after = run.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_damaged_checkpoint_is_left_out_with_a_line(run_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "damaged")
    with (folder / "checkpoints/step-20/model.safetensors").open("r+b") as file:
        file.seek(-5, 2)
        file.write(b"XXXXX")
    found: list[str] = []
    run = open_plain(folder)
    assert [stage.label for stage in stages(run, found.append)] == ["step 10", "step 30", "final"]
    assert len(found) == 1
    assert "step-20" in found[0]
    assert "model.safetensors" in found[0]


def test_a_run_without_checkpoints_has_no_slider_and_the_option_is_an_error(
    run_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(run_folder, tmp_path / "bare")
    shutil.rmtree(folder / "checkpoints")
    shown = unpack(look(folder, TEXT, ASK).html)
    assert [each["label"] for each in shown["looks"]] == ["final"]
    assert "step" not in shown["looks"][0]
    assert "training" not in shown["shared"]
    with pytest.raises(UserError, match=r"(?=.*/bare)(?=.*checkpoints=)"):
        look(folder, TEXT, ASK, checkpoints=True)


def test_the_slider_at_its_end_is_the_normal_report(run_folder: Path) -> None:
    slider = unpack(look(run_folder, TEXT, ASK).html)
    alone = unpack(look(run_folder, TEXT, ASK, checkpoints=False).html)
    assert [each["step"] for each in slider["looks"]] == [*STEPS, STEPS[-1]]
    last = {name: value for name, value in slider["looks"][-1].items() if name != "step"}
    _assert_equal(last, alone["looks"][0])


def _assert_equal(one: object, other: object) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for key in one:
            _assert_equal(one[key], other[key])
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            _assert_equal(left, right)
    else:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_n_checkpoints_cost_at_most_n_times_one(run_folder: Path) -> None:
    slider, alone = look(run_folder, TEXT, ASK), look(run_folder, TEXT, ASK, checkpoints=False)
    looks = pack(page_data(slider.title, slider.looks, {}, slider.run, SECTIONS))
    assert len(looks) <= len(slider.looks) * len(alone.packed)
    assert len(slider.packed) <= len(slider.looks) * len(alone.packed)


def test_curves_match_the_traces(run_folder: Path) -> None:
    run = open_plain(run_folder)
    found = [(stage, trace(stage.run, read(run, TEXT, ASK))) for stage in stages(run)]
    section = training_curves(run, found)
    figures = {figure["name"]: figure for figure in section["figures"]}
    assert section["labels"] == ["step 10", "step 20", "step 30", "final"]
    assert section["kept"] == KEPT
    assert figures["own"]["series"] == [
        {"name": "training", "points": [[step, 9.0 / step] for step in STEPS]},
        {"name": "validation", "points": [[STEPS[-1], 0.5]]},
    ]
    for number, (_, each) in enumerate(found):
        assert each.scores_RC is not None
        chosen = [output.id for output in each.reading.outputs]
        loss = torch.nn.functional.cross_entropy(each.scores_RC, torch.tensor(chosen))
        shown = figures["loss"]["series"][0]["values"][number]
        assert math.isclose(shown, float(loss), rel_tol=1e-5)
    for stack in ("encoder", "decoder"):
        final = [line["values"][-1] for line in figures[f"cka.{stack}"]["series"]]
        np.testing.assert_allclose(final, 1.0, rtol=1e-9)
        assert len(final) == 3  # what comes in, and two layers
    losses = figures["loss"]["series"][0]["values"]
    assert len(set(losses)) == len(losses)
    depth = figures["decided"]["series"][0]["values"][-1]
    assert 0 <= depth <= 2


@pytest.mark.parametrize("task", ["complete", "fill", "classify", "tag", "embed"])
def test_every_task_has_curves(tmp_path: Path, task: str) -> None:
    run = open_plain(kept_run(tmp_path / task, task, steps=(5,)))
    reading = read(run, "ba [MASK] de" if task == "fill" else TEXT)
    found = [(stage, trace(stage.run, reading)) for stage in stages(run)]
    section = training_curves(run, found)
    names = {figure["name"] for figure in section["figures"]}
    assert {"own", "entropy", "pattern", "residual.self", "cka.self"} <= names
    assert ("turned" if task == "embed" else "loss") in names
    for figure in section["figures"]:
        for line in figure["series"]:
            values = line.get("values") or [y for _, y in line["points"]]
            assert all(math.isfinite(value) for value in values), figure["name"]


def test_entropy_of_known_weights() -> None:
    even_1TS = torch.full((1, 3, 8), 1 / 8)
    assert math.isclose(entropy(even_1TS), math.log(8), rel_tol=1e-6)
    assert entropy(torch.eye(8)[None]) == 0.0


def test_scores_of_known_patterns() -> None:
    shifted_TT = torch.eye(6).roll(1, dims=0)  # row t looks at t - 1, the first at the last
    weights_HTS = torch.stack([shifted_TT, torch.eye(6)])
    assert previous_H(weights_HTS).tolist() == [1.0, 0.0]
    assert previous_H(torch.ones(1, 1, 1)).tolist() == [0.0]
    stretched_TS = torch.zeros(3, 9)
    stretched_TS[[0, 1, 2], [0, 4, 8]] = 1.0
    assert diagonal_H(torch.stack([stretched_TS, stretched_TS.flip(1)])).tolist() == [
        1.0,
        pytest.approx(1 / 3),
    ]
    # Within one token of columns 0, 4 and 8 are 2, 3 and 2 of nine.
    assert diagonal_H(torch.full((1, 3, 9), 1 / 9)).tolist() == [pytest.approx(7 / 27)]


def test_rank_residual_is_zero_for_equal_rows_and_one_without_a_mean() -> None:
    assert rank_residual(torch.ones(5, 4)) == 0.0
    assert rank_residual(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])) == 1.0


def test_cka_ignores_rotation_and_scale_and_nothing_else() -> None:
    torch.manual_seed(0)
    x_TD = torch.randn(40, 6)
    turn_DD, _ = torch.linalg.qr(torch.randn(6, 6))
    assert math.isclose(linear_cka(x_TD, 3.0 * x_TD @ turn_DD + 5.0), 1.0, rel_tol=1e-6)
    y_TD = torch.randn(40, 6)
    x, y = (each - each.mean(0) for each in (x_TD, y_TD))
    cross = (y.T @ x).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())
    assert math.isclose(linear_cka(x_TD, y_TD), float(cross), rel_tol=1e-5)
    assert linear_cka(x_TD, y_TD) < 0.5
