"""The beam panel: its data, and what a browser makes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.inside.capture.beam import cross_rows, rerun
from headway.inside.capture.forward import run_reading
from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.trace import trace
from headway.inside.page.look import LookInputs
from headway.inside.page.sections import look_data
from headway.inside.page.sections.beam import section
from headway.settings.decode import DecodeSettings
from headway.tasks.loaded_run import open_plain
from headway.web.pack import pack, unpack

from .browser import browser, open_page, page  # noqa: F401

TEXT = "Ein Mann fährt mit dem Fahrrad durch die Stadt, obwohl es regnet."


@cache
def looked(name: str = "tatoeba-de-en", text: str = TEXT, beam: int = 4) -> LookInputs:
    run = open_plain(name)
    ask = GenerationOptions(decode=DecodeSettings(beam=beam), max_new_tokens=8)
    return LookInputs(run=run, trace=trace(run, text, ask, beam=True), ask=ask)


def html(found: LookInputs) -> str:
    return page("a search", [look_data("final", found, ["beam"])])


def test_the_page_holds_the_tree_as_it_was_recorded() -> None:
    tree = looked().trace.beam
    assert tree is not None
    found = unpack(html(looked()))["looks"][0]["sections"]["beam"]
    for name in ("parent", "log_prob", "score", "token_log_prob", "rank", "step", "group"):
        expected = [getattr(node, name) for node in tree.nodes]
        assert np.array_equal(found[name], np.array(expected, found[name].dtype))
    assert found["piece"] == [node.piece for node in tree.nodes]
    assert found["why"] == [node.why for node in tree.nodes]
    assert found["summary"] == tree.summary
    totals = found["totals"]
    assert totals["scored"] == sum(totals[name] for name in ("expanded", "ruled_out", "rest"))
    assert len(pack(section(looked()))) < 20_000


def test_attention_of_every_node_is_that_of_a_second_pass() -> None:
    """The rows are shared between hypotheses; each must be what `trace` shows of it alone."""
    run, found = looked().run, looked().trace
    assert run is not None
    assert found.beam is not None
    tree, rows = found.beam, cross_rows(run, found.beam)
    packed = unpack(pack(section(looked())))["attention"]
    for node in tree.nodes[1::9]:
        alone = trace(run, rerun(run, found.reading, tree, node))
        layers = alone.attention["cross"]
        expected_TS = layers[max(0, len(layers) - 2)].mean(0)
        path = tree.path(node)
        shown_TS = torch.stack([rows[one.parent] for one in path])
        assert torch.allclose(shown_TS, expected_TS, atol=1e-5)
        places = [packed["row"][one.parent] for one in path]
        assert np.abs(packed["rows"][places] - expected_TS.numpy()).max() < 1 / 255
    assert {node.id for node in tree.nodes if node.next} == rows.keys()


@pytest.mark.parametrize("best", [0, 1])
def test_attention_is_that_of_the_layer_that_was_measured_best(best: int) -> None:
    scores = {f"cross.{layer}.mean": {"p1": 0.9 - 0.1 * abs(layer - best)} for layer in (0, 1)}
    measured = replace(looked(), truth={"maps": scores})
    tree, run = measured.trace.beam, measured.run
    assert tree is not None
    assert run is not None
    found = unpack(pack(section(measured)))
    assert re.search(rf"\b{best + 1}\b", found["seen"])
    alone = trace(run, rerun(run, measured.trace.reading, tree, tree.best))
    places = [found["attention"]["row"][one.parent] for one in tree.path(tree.best)]
    expected_TS = alone.attention["cross"][best].mean(0).numpy()
    assert np.abs(found["attention"]["rows"][places] - expected_TS).max() < 1 / 255
    assert not re.search(r"\d", section(looked())["seen"])  # no layer was measured


def test_a_large_tree_has_attention_only_on_paths_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = unpack(pack(section(looked())))["attention"]
    monkeypatch.setattr("headway.inside.page.sections.beam.MOST_CELLS", 100)
    some = unpack(pack(section(looked())))["attention"]
    tree = looked().trace.beam
    assert tree is not None
    assert len(some["rows"]) < len(whole["rows"])
    ended = [node for node in tree.nodes if node.fate == "ended"]
    for node in (one for end in ended for one in tree.path(end)):
        rows = [found["rows"][found["row"][node.parent]] for found in (whole, some)]
        assert np.abs(rows[0] - rows[1]).max() < 1 / 255


def test_rows_of_the_drawing_never_collide_and_the_best_is_on_top() -> None:
    for found in (looked(), looked(beam=2), looked("stories", "Once upon a time", 4)):
        tree = found.trace.beam
        assert tree is not None
        rows = unpack(pack(section(found)))["row"]
        places = [(int(row), node.step) for row, node in zip(rows, tree.nodes, strict=True)]
        assert len(set(places)) == len(places)
        assert all(rows[node.id] == 0 for node in tree.path(tree.best))


def test_no_search_no_panel() -> None:
    run = looked().run
    assert run is not None
    assert section(LookInputs(run=run, trace=trace(run, TEXT))) is None
    # A trace from elsewhere has no model to ask for attention.
    alone = section(LookInputs(trace=looked().trace))
    assert alone is not None
    assert alone["attention"] is None


def test_a_note_names_an_output_that_is_not_the_best() -> None:
    assert section(looked())["note"] == ""  # type: ignore[index]
    run, tree = looked().run, looked().trace.beam
    assert run is not None
    assert tree is not None
    greedy = trace(run, TEXT, GenerationOptions(decode=DecodeSettings(beam=1)), beam=True)
    assert section(LookInputs(run=run, trace=greedy))["note"] == ""  # type: ignore[index]
    mixed = replace(greedy, beam=tree)
    same = greedy.reading.outputs == looked().trace.reading.outputs
    assert (section(LookInputs(run=run, trace=mixed))["note"] == "") == same  # type: ignore[index]


def number(page: Any, name: str) -> float:
    """A fact of the picked hypothesis at full precision."""
    return float(page.locator(f"dt:text-is('{name}') + dd").get_attribute("data-value"))


@pytest.mark.parametrize("name", ["tatoeba-de-en", "stories"])
def test_the_browser_shows_the_numbers_of_the_model(
    browser: Any,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    found = looked() if name != "stories" else looked(name, "Once upon a time", 4)
    run, tree = found.run, found.trace.beam
    assert run is not None
    assert tree is not None
    shown = open_page(browser, html(found), tmp_path, state="tab=beam&beamShow=all")
    nodes = shown.locator("svg.beam g[data-node]")
    assert nodes.count() == len(tree.nodes)
    values = nodes.evaluate_all("found => found.map(n => [+n.dataset.node, +n.dataset.value])")
    for id, value in values:
        assert value == pytest.approx(tree.nodes[id].log_prob, abs=1e-5)
    assert shown.locator("[data-summary]").inner_text() == tree.summary
    # A pruned node: its numbers come from an independent forward pass.
    cut = next(node for node in tree.nodes if node.fate == "cut" and node.step == 4)
    shown.locator(f"[data-node='{cut.id}']").click()
    again = rerun(run, found.trace.reading, tree, cut)
    with torch.no_grad():
        logs_R = run_reading(run, again).log_probs_R[-4:]
    assert number(shown, "log P") == pytest.approx(float(logs_R.sum()), abs=1e-4)
    assert cut.why in shown.locator("[data-card=hypothesis]").inner_text()
    probabilities = shown.locator("[data-card=hypothesis] .token").evaluate_all(
        "found => found.map(n => +n.dataset.value)"
    )
    assert probabilities == pytest.approx(logs_R.exp().tolist(), abs=1e-4)
    picked = shown.locator(".bar.picked").first
    assert float(picked.get_attribute("data-value")) == pytest.approx(
        float(logs_R[-1].exp()), abs=1e-4
    )
    assert shown.locator("canvas.heatmap").count() == (name != "stories")
    shown.close()


def test_nodes_fold_are_picked_and_walked(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    tree = looked().trace.beam
    assert tree is not None
    shown = open_page(browser, html(looked()), tmp_path, state="tab=beam")
    drawn = shown.locator("svg.beam g[data-node]")
    near = drawn.count()
    shown.locator("[data-key=kept]").click()
    assert drawn.count() < near
    assert shown.locator("svg.beam g.dead").count() == 0
    folded = shown.locator("svg.beam g:has(.fold)").first
    before, more = drawn.count(), int(folded.locator(".fold").text_content()[1:])
    folded.click()
    assert drawn.count() >= before + more  # and what was cut behind it
    # Reasons are told on hover.
    cut = next(node for node in tree.nodes if node.fate == "cut" and node.step == 1)
    shown.locator("[data-key=all]").click()
    shown.locator(f"[data-node='{cut.id}']").hover()
    assert cut.why in shown.locator(".tip").inner_text()
    # The keyboard: to a parent, a child, and across the step.
    shown.locator(f"[data-node='{tree.best.id}']").click()
    shown.locator("svg.beam").focus()
    shown.page.keyboard.press("ArrowLeft")
    assert shown.state()["beamNode"] == str(tree.best.parent)
    shown.page.keyboard.press("ArrowDown")
    below = tree.nodes[int(shown.state()["beamNode"])]
    assert below.step == tree.best.step - 1
    assert below.id != tree.best.parent
    shown.page.keyboard.press("ArrowUp")
    shown.page.keyboard.press("ArrowRight")
    assert shown.state()["beamNode"] == str(tree.best.id)
    shown.close()


def test_a_phone_can_show_it(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    shown = open_page(browser, html(looked()), tmp_path, width=400, state="tab=beam", dark=True)
    assert shown.evaluate("document.documentElement.scrollWidth") <= 400
    last = looked().trace.beam.outputs[0]  # type: ignore[union-attr]
    shown.locator(f"[data-node='{last}']").click()
    box = shown.locator(f"[data-node='{last}']").bounding_box()
    assert 0 <= box["x"] <= 400
    shown.close()
