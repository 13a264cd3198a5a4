"""Lens, positions and walk in a browser: what the page shows is what the model computes."""

from __future__ import annotations

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway.inside.capture.forward import ReadingBatch, output_scores, read_out, run_reading
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.reading import DEFAULT_OPTIONS, read
from headway.inside.capture.trace import trace
from headway.inside.measure.lens import TunedLens
from headway.inside.page.look import LookInputs, LookOptions
from headway.inside.page.sections import look_data
from headway.models.parts.output_heads import HiddenStates
from headway.nn.tap import record
from headway.serve.application import create_app
from headway.serve.look import LookService, live_page
from headway.serve.server import running
from headway.tasks.loaded_run import open_plain
from headway.web.pack import PackedArray

from ..interop.padded_runs import tiny_run
from .browser import OpenPage, open_page, page

PANELS = ("walk", "lens", "positions")
TEXT = "Der Hund schläft unter dem Tisch."


@cache
def looked() -> LookInputs:
    run = open_plain("tatoeba-de-en")
    return LookInputs(run=run, trace=trace(run, TEXT))


@cache
def sections() -> dict[str, Any]:
    return look_data("final", looked(), PANELS)


@cache
def html() -> str:
    return page("a look", [sections()])


def shown(browser: Any, folder: Path, found: LookInputs, tab: str, **more: Any) -> OpenPage:
    usual = found is looked()
    made = html() if usual else page("a look", [look_data("final", found, PANELS)])
    return open_page(browser, made, folder, state=f"tab={tab}", **more)


def value(node: Any) -> float:
    return float(node.get_attribute("data-value"))


def test_a_page_computes_the_walk_again(browser: Any, tmp_path: Path) -> None:
    opened = shown(browser, tmp_path, looked(), "walk")
    assert 0 < value(opened.locator("[data-walk=worst]")) < 1e-3
    steps = opened.locator("[data-step]")
    assert steps.count() == len(sections()["sections"]["walk"]["steps"]) - 1
    assert all(value(step) < 1e-3 for step in steps.all())
    text = opened.locator(".walk").inner_text()
    assert "/ √64 = " in text
    assert "cross" in text.lower()
    opened.close()


def test_a_wrong_weight_shows(browser: Any, tmp_path: Path) -> None:
    """The difference is computed in the page: it is not a number that Python put there."""
    changed = copy.deepcopy(sections())
    step = next(s for s in changed["sections"]["walk"]["steps"] if s["out"] == "cross.q")
    step["weight"] = PackedArray(step["weight"].values * 1.01, "f16")
    opened = open_page(browser, page("a look", [changed]), tmp_path, state="tab=walk")
    assert value(opened.locator("[data-walk=worst]")) > 1e-3
    assert value(opened.locator("[data-step='cross.q']")) == pytest.approx(0.01, rel=0.1)
    opened.close()


@pytest.mark.parametrize(
    ("task", "variant"),
    [
        ("complete", "llama-like"),
        ("fill", "albert-like"),
        ("classify", "pre-learned-all-biases"),
        ("tag", "alibi-three-heads"),
        ("embed", "relative-grouped"),
        ("translate", "parallel-one-key-head"),
        ("tag", "qk-norm-scaled-rotary"),
    ],
)
def test_every_family_has_its_panels(browser: Any, tmp_path: Path, task: str, variant: str) -> None:
    run = open_plain(tiny_run(tmp_path / "run", task, variant, n_layers=2))
    text = "ba [MASK] de go" if task == "fill" else "ba de go fi ko"
    opened = shown(
        browser, tmp_path, LookInputs(run=run, trace=trace(run, text)), "walk", width=400
    )
    assert value(opened.locator("[data-walk=worst]")) < 1e-3
    opened.tab("lens")
    opened.tab("positions")
    assert not opened.locator(".failed").count()
    opened.close()


def test_the_lens_shows_what_each_layer_would_say(browser: Any, tmp_path: Path) -> None:
    run = looked().run
    assert run is not None
    reading = read(run, TEXT)
    opened = shown(browser, tmp_path, looked(), "lens")
    with record(run.model, ".stream") as got, torch.no_grad():
        printed = run_reading(run, reading)
    states = [layers[0] for name, layers in got.items() if name.startswith("decoder")]
    norm = run.model.decoder.final_norm
    for layer, x_TD in enumerate(states, 1):
        normed_TD = norm(x_TD)
        batch = ReadingBatch.of(run, [reading])
        layers_say = read_out(run, batch, HiddenStates(normed_TD, batch.layout))
        scores_RC = output_scores(run, layers_say).detach()
        if layer == len(states):
            torch.testing.assert_close(scores_RC, printed.scores_RC, rtol=1e-5, atol=1e-5)
        for number, row_C in enumerate(scores_RC.softmax(-1)):
            cell = opened.locator(f"[data-layer='{layer}'][data-output='{number}']")
            best = run.vocab.target.tokens([int(row_C.argmax())])[0].replace("▁", "")
            assert cell.get_attribute("data-word") == best
            assert value(cell) == pytest.approx(float(row_C.max()), rel=1e-3)
    opened.locator("[data-key=rank]").click()
    ranks = opened.locator("[data-layer='0']").all()
    ids = [output.id for output in reading.outputs]
    front_TD = looked().trace.states["decoder"][0]
    plain_RC = run.model.scores(norm(front_TD)).detach()
    true = [1 + int((row > row[id]).sum()) for row, id in zip(plain_RC, ids, strict=True)]
    assert [int(value(node)) for node in ranks] == true
    opened.close()


def test_a_cell_of_the_lens_can_be_picked(browser: Any, tmp_path: Path) -> None:
    opened = shown(browser, tmp_path, looked(), "lens")
    opened.locator("[data-layer='1'][data-output='2']").click()
    assert opened.state()["row"] == "2"
    assert opened.locator("td.picked").get_attribute("data-output") == "2"
    assert opened.locator("td.picked").get_attribute("data-layer") == "1"
    decided = opened.locator("[data-decided='2']").get_attribute("data-value")
    top = opened.locator("[data-output='2']").all()
    last = len(top) - 1
    final = top[last].get_attribute("data-word")
    assert all(cell.get_attribute("data-word") == final for cell in top[int(decided) :])
    opened.locator("td.picked").hover()
    assert "rank" in opened.locator(".tip").inner_text()
    opened.close()


def test_a_tuned_lens_has_a_switch(browser: Any, tmp_path: Path) -> None:
    width = looked().trace.states["decoder"][0].shape[1]
    half = TunedLens(
        torch.zeros(2, width, width), torch.randn(2, width), torch.ones(2), torch.zeros(2), 40, 4
    )
    half.save(tmp_path / "lens.safetensors")
    found = LookInputs(run=looked().run, trace=looked().trace, tuned=tmp_path / "lens.safetensors")
    opened = shown(browser, tmp_path, found, "lens")
    cell = opened.locator("[data-layer='1'][data-output='1']")
    with_map = value(cell)
    opened.locator("[data-key=plain]").click()
    assert value(cell) != with_map
    assert re.search(r"\b40 lines", opened.locator("[data-card=lens-curves]").inner_text())
    opened.close()


def test_positions_show_the_known_numbers(browser: Any, tmp_path: Path) -> None:
    opened = shown(browser, tmp_path, looked(), "positions")
    assert opened.locator("[data-fact=spearman]").count() == 1
    assert value(opened.locator("[data-fact=twin]")) == pytest.approx(0.236, abs=1e-3)
    assert opened.locator("[data-fact=slow]").inner_text() == "40 %"
    turned = opened.locator("tbody tr").first.locator("td").nth(1)
    assert value(turned) < 2.5e-7
    opened.close()


def test_an_output_is_picked_by_the_row_that_it_is_read_from(browser: Any, tmp_path: Path) -> None:
    """Other panels know the row of a token, not the number of an output."""
    run = open_plain(tiny_run(tmp_path / "run", "tag", n_layers=2))
    opened = shown(browser, tmp_path, LookInputs(run=run, trace=trace(run, "ba de go fi")), "lens")
    opened.locator("[data-layer='2'][data-output='2']").click()
    assert opened.state()["row"] == "3"
    assert opened.locator("td.picked").get_attribute("data-output") == "2"
    opened.page.keyboard.press("ArrowRight")
    assert opened.locator("td.picked").get_attribute("data-output") == "3"
    opened.close()


def test_a_served_page_follows_another_token(browser: Any) -> None:
    run = looked().run
    assert run is not None
    held = headway.load(run.folder, device="cpu")
    html, live = live_page(
        held, "Der Hund schläft.", DEFAULT_OPTIONS, Intervention(), LookOptions()
    )
    app = create_app([held], home=html, looks=LookService(4, {held.name: live}))
    with running(app) as url:
        opened = browser.new_page()
        opened.goto(f"{url}/#tab=walk")
        opened.wait_for_selector("#root[data-drawn=walk]")
        opened.select_option("[data-walk=row]", "1")
        opened.get_by_text(re.compile(r"\bposition 2\b")).first.wait_for()
        opened.select_option("[data-walk=kind]", "encoder")
        opened.get_by_text(re.compile(r"\bHund\b.*\bposition 2\b")).first.wait_for()
        assert float(opened.get_attribute("[data-walk=worst]", "data-value")) < 1e-3
        opened.close()
