"""The heads on the page: true numbers, letters for roles, clicks that lead to the attention."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.trace import trace
from headway.inside.measure.heads import heads
from headway.inside.measure.pruning import removable_groups, save_pruned, select_heads
from headway.inside.measure.pruning_curve import PruningCurve, PruningPoint, save_head_analysis
from headway.inside.page.look import LookOptions, Page, look, prepare_look, run_facts
from headway.inside.page.sections import look_data
from headway.inside.page.sections.heads import section
from headway.inside.page.sections.overview import section as overview
from headway.tasks.loaded_run import LoadedRun, open_plain

from ..interop.padded_runs import RUNS, tiny_run
from .browser import browser, open_page

__all__ = ["browser"]

TEXT = {"tag": "ba de go", "fill": "ba [MASK] de go"}


def opened(tmp_path: Path, task: str, **changes: Any) -> LoadedRun:
    return open_plain(tiny_run(tmp_path / task, task, **changes))


@pytest.mark.parametrize("task", list(RUNS))
def test_every_task_has_a_section_on_one_text(task: str, tmp_path: Path) -> None:
    run = opened(tmp_path, task)
    text = TEXT.get(task, "ba de go fi")
    made = section(prepare_look(run, text))
    assert made is not None
    assert made["one_text"]
    assert re.search(rf"\b{made['n_outputs']}\b", made["scope"])
    assert made["curve"] is None
    found = heads(run, [trace(run, text).reading])
    assert [one["importance"] for one in made["heads"]] == pytest.approx(
        [one.importance for one in found.heads], rel=1e-3, abs=1e-7
    )
    kinds = Anatomy.of(run.model).kinds
    assert len(made["heads"]) == sum(layer.n_heads for kind in kinds for layer in kind.layers)


def test_each_side_shows_the_heads_that_it_has(tmp_path: Path) -> None:
    run = opened(tmp_path, "translate", variant="other-sides-relative")
    save_pruned(run, select_heads(removable_groups(run.shape), 3, run.shape), tmp_path / "small")
    small = open_plain(tmp_path / "small")
    for each, left in ((run, 16), (small, 13)):
        looked = prepare_look(each, "ba de go")
        made = section(looked)
        assert made is not None
        kinds = {kind["name"]: kind["n_heads"] for kind in made["kinds"]}
        assert kinds == {"encoder": 4, "decoder": 6, "cross": 6}
        assert len(made["heads"]) == left
        neurons = {one["name"]: one["value"] for one in overview(looked)["numbers"]}
        assert neurons["feed-forward"] == "48 + 40"
    assert run_facts(run)["facts"][1] == "1 + 1 layers × 4 + 6 heads"
    assert run_facts(small)["facts"][1] == "1 + 1 layers × 4 + 6 heads (13 of 16 left)"


def test_a_corpus_and_what_was_kept_come_before_one_text(tmp_path: Path) -> None:
    run = opened(tmp_path, "translate")
    found = heads(run, ["ba de", "go fi ko"])
    points = [
        PruningPoint("importance", "all", 0, 0, 31.0),
        PruningPoint("importance", "all", 0.5, 6, 12.5),
    ]
    random = [PruningPoint("random", "all", 0, 0, 31.0), PruningPoint("random", "all", 0.5, 6, 9.0)]
    save_head_analysis(
        run.folder, found, PruningCurve((*points, *random), "BLEU", True, 12, "test.de")
    )
    kept = section(prepare_look(run, "ba de"))
    assert kept is not None
    assert kept["n_texts"] == 2
    assert kept["curve"]["series"] == [
        {"name": "all", "points": [[0, 31.0], [6, 12.5]]},
        {"name": "all, random", "points": [[0, 31.0], [6, 9.0]]},
    ]
    lines = Corpus.of_lines(["ba de", "go", "fi ko ga"])
    given = section(prepare_look(run, "ba de", extras=LookOptions(corpus=lines)))
    assert given is not None
    assert given["n_texts"] == 3
    assert given["curve"] is not None


def test_what_was_kept_is_of_the_final_weights_with_all_heads(tmp_path: Path) -> None:
    run = opened(tmp_path, "translate")
    points = (PruningPoint("importance", "all", 0, 0, 31.0),)
    save_head_analysis(
        run.folder, heads(run, ["ba de", "go fi ko"]), PruningCurve(points, "BLEU", True, 12, "x")
    )
    (run.folder / "truth.json").write_text('{"maps": {"cross.0.mean": {"p1": 0.9, "random": 0.1}}}')
    whole = prepare_look(run, "ba de go")
    change = Intervention(
        disabled_heads=frozenset({("cross", 0, 1)}), hidden=frozenset({("source", 2)})
    )
    changed = prepare_look(run, "ba de go", change=change)
    assert (whole.truth is None, changed.truth is None) == (False, True)
    lines = Corpus.of_lines(["ba", "go fi"])  # too short to have a third token to hide
    for looked in (changed, replace(whole, final=False), replace(changed, corpus=lines)):
        made = section(looked)
        assert made is not None
        assert made["n_texts"] == (1 if looked.corpus is None else 2)
        assert made["curve"] is None
        by_name = {(h["kind"], h["layer"], h["head"]): h["importance"] for h in made["heads"]}
        assert (by_name["cross", 0, 1] == 0) == (looked.change == change)
        assert max(by_name.values()) > 0


def test_what_was_kept_of_another_model_is_not_shown(tmp_path: Path) -> None:
    run = opened(tmp_path, "translate")
    found = heads(run, ["ba de"])
    save_pruned(run, [("cross", 0, 0), ("cross", 0, 1)], tmp_path / "small")
    small = open_plain(tmp_path / "small")
    save_head_analysis(small.folder, found, None)
    made = section(prepare_look(small, "ba de"))
    assert made is not None
    assert made["one_text"]
    assert [one["number"] for one in made["heads"] if one["kind"] == "cross"] == [2, 3]


def test_the_page_shows_true_numbers_and_leads_to_the_attention(browser, tmp_path: Path) -> None:
    run = opened(tmp_path, "translate")
    found = heads(run, ["ba de", "go fi ko"])
    points = [
        PruningPoint("importance", "all", 0, 0, 31.0),
        PruningPoint("importance", "all", 0.5, 6, 12.5),
    ]
    save_head_analysis(run.folder, found, PruningCurve(tuple(points), "BLEU", True, 12, "test.de"))
    page = open_page(browser, look(run, "ba de go", checkpoints=False).html, tmp_path)
    page.tab("heads")
    for one in found.heads:
        cell = page.locator(f"[data-head='{one.name}']")
        assert float(cell.get_attribute("data-value")) == pytest.approx(one.importance, rel=1e-3)
    page.locator("[data-key=entropy]").click()
    page.wait_for_selector("[data-key=entropy][aria-pressed=true]")
    value = page.locator("[data-head='cross.0.1']").get_attribute("data-value")
    assert float(value) == pytest.approx(found["cross.0.1"].entropy, rel=1e-3)
    drawn = page.locator("[data-card=pruning] circle")
    assert [float(x.get_attribute("data-value")) for x in drawn.all()] == [31.0, 12.5]
    best = max(found.heads, key=lambda one: one.importance)
    first = page.locator("[data-card=heads-table] tbody tr").first
    assert float(first.locator("td").nth(1).get_attribute("data-value")) == pytest.approx(
        best.importance, rel=1e-3
    )
    page.locator("[data-head='cross.0.1']").click()
    page.wait_for_selector("#root[data-drawn=attention]")
    state = page.state()
    assert (state["kind"], state["layer"], state["head"]) == ("cross", "0", "1")
    page.close()


def test_a_pruned_model_shows_where_heads_were(browser, tmp_path: Path) -> None:
    run = opened(tmp_path, "complete", n_kv_heads=None)
    save_pruned(run, [("self", 0, 1)], tmp_path / "small")
    page = open_page(browser, look(tmp_path / "small", "ba de go").html, tmp_path)
    page.tab("heads")
    assert page.locator("[title=pruned]").count() == 1
    assert page.locator("[data-head]").count() == 3
    table = page.locator("[data-card=heads-table]").inner_text()
    assert re.search(r"self 1\.2 \(\D*3\)", table)
    assert page.locator("[data-scope].note").count() == 1
    page.close()


def test_on_paper_the_table_of_heads_is_whole(browser, tmp_path: Path) -> None:
    run = opened(tmp_path, "complete", n_layers=9)
    made = look_data("final", prepare_look(run, "ba de go"), ["heads"])
    html = Page("t", [made], {}, run_facts(run)).html
    page = open_page(browser, html, tmp_path, state="tab=heads")
    cut = "((node) => node.scrollHeight > node.clientHeight)(document.querySelector('.tall'))"
    assert page.evaluate(cut)
    page.emulate_media(media="print")
    page.wait_for_selector("html[data-theme=light]")
    assert not page.evaluate(cut)
    page.close()
