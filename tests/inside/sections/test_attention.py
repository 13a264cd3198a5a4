"""The attention panel shows the weights of the model, for all heads and for one."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headway.decode.align import align_words, cross_attention, pharaoh
from headway.inside.capture.streams import Reading, TokenStream
from headway.inside.capture.trace import Trace, trace
from headway.inside.page.look import LookInputs
from headway.inside.page.sections import look_data
from headway.inside.page.sections.attention import block_max, section
from headway.tasks.loaded_run import open_plain
from headway.web.pack import unpack
from tests.inside.browser import open_page, page

NAMES = ("overview", "attention")
TEXT = "Ein kleiner Mann fährt mit dem Fahrrad durch die unglaublich alte Stadt."


@pytest.fixture(scope="module")
def looked() -> LookInputs:
    run = open_plain("tatoeba-de-en")
    return LookInputs(run=run, trace=trace(run, TEXT))


@pytest.fixture(scope="module")
def html(looked: LookInputs) -> str:
    maps = {"cross.1.2": {"p1": 0.94, "random": 0.14, "n": 212}}
    truth = {"task": "toy", "n": 9, "unit": "words", "maps": maps}
    return page("one", [look_data("final", looked, NAMES)], {"truth": truth})


def invented(tokens: int, heads: int = 2, seed: int = 0) -> Trace:
    """A trace from elsewhere, of one layer."""
    torch.manual_seed(seed)
    weights_HTS = (2 * torch.randn(heads, tokens, tokens)).softmax(-1)
    places = tuple(range(tokens))
    stream = TokenStream("text", places, tuple(f"w{i}" for i in places), places, (False,) * tokens)
    reading = Reading("w", "complete", {"text": stream}, ())
    return Trace(reading, {"self": [weights_HTS]})


def values(shown: Any, selector: str) -> dict[int, float]:
    pairs = "(nodes) => nodes.map((node) => [node.dataset.column, node.dataset.value])"
    found = shown.locator(f"{selector}[data-column]").evaluate_all(pairs)
    return {int(column): float(value) for column, value in found}


def test_what_is_sent_is_the_trace_to_the_eighth_bit(looked: LookInputs, html: str) -> None:
    back = unpack(html)["looks"][0]["sections"]["attention"]["kinds"]
    assert [kind["name"] for kind in back] == ["cross", "decoder", "encoder"]
    for kind in back:
        for sent, traced in zip(kind["layers"], looked.trace.attention[kind["name"]], strict=True):
            assert np.abs(sent - traced.numpy()).max() <= 1 / 510 + 1e-6


def test_a_long_text_keeps_the_largest_weight_of_every_block_and_pinned_rows_exactly() -> None:
    found = invented(600)
    (kind,) = section(SimpleNamespace(trace=found, pins=(7, 599, 1000)))["kinds"]
    weights_HTS = found.attention["self"][0]
    assert kind["block"] == 3
    blocks = kind["layers"][0].values
    assert blocks.shape == (2, 200, 200)
    assert blocks[1, 5, 9] == weights_HTS[1, 15:18, 27:30].max()
    assert kind["pinned"] == [7, 599]
    assert torch.equal(kind["exact"][0].values, weights_HTS[:, [7, 599]])


def test_blocks_at_the_end_may_be_smaller() -> None:
    weights_HTS = torch.rand(1, 5, 7)
    small = block_max(weights_HTS, 3)
    assert small.shape == (1, 2, 3)
    assert small[0, 1, 2] == weights_HTS[0, 3:, 6:].max()


def test_a_model_without_attention_has_no_panel() -> None:
    assert section(SimpleNamespace(trace=SimpleNamespace(attention={}), pins=())) is None


def test_the_row_that_is_read_out_is_that_of_another_pass_of_the_model(
    browser: Any, looked: LookInputs, html: str, tmp_path: Path
) -> None:
    """The mean over heads of the last cross layer, against the code that aligns words."""
    assert looked.run is not None
    reading, model = looked.trace.reading, looked.run.model
    source, target = (list(stream.ids) for stream in reading.streams.values())
    (expected_TS,) = cross_attention(model, [source], [target[1:]], target[0], layer=1)
    state = "tab=attention&kind=cross&layer=1&map=mean"
    shown = open_page(browser, html, tmp_path, state=state + "&row=2")
    for column, value in values(shown, ".says [data-value]").items():
        assert value == pytest.approx(float(expected_TS[2, column]), abs=1 / 400)
    assert "P@1" not in shown.locator("[data-truth]").inner_text()
    numbers = [
        [stream.words[place] for place in range(len(stream.ids)) if stream.words[place] >= 0]
        for stream in reading.streams.values()
    ]
    pairs = align_words(expected_TS, *numbers)
    assert shown.locator("[data-pharaoh]").inner_text() == pharaoh(pairs)
    shown.close()


def test_a_tile_opens_its_head_with_its_truth(browser: Any, html: str, tmp_path: Path) -> None:
    shown = open_page(browser, html, tmp_path, state="tab=attention")
    shown.locator("[data-head='cross.1.2']").click()
    assert shown.state() == {"tab": "attention", "kind": "cross", "layer": "1", "head": "2"}
    assert shown.locator("h2").nth(1).inner_text() == "cross 2.3"
    truth = shown.locator("[data-truth]").inner_text()
    assert re.search(r"P@1 0\.94\D*0\.14\D*212 words", truth)
    above, below = (shown.locator(f"[data-head='encoder.{n}.1']").bounding_box() for n in (3, 0))
    assert above["y"] < below["y"]  # layers go up
    shown.locator("[data-head='encoder.0.1']").click()
    assert shown.locator("h2").nth(1).inner_text() == "encoder 1.2"
    shown.keyboard.press("ArrowUp")
    shown.keyboard.press("4")
    assert shown.locator("h2").nth(1).inner_text() == "encoder 2.4"
    shown.locator("[data-key=layer]").select_option("0")
    assert shown.locator("h2").nth(1).inner_text() == "encoder 1.4"
    shown.close()


def test_a_hovered_row_draws_its_strong_lines_and_no_others(
    browser: Any, looked: LookInputs, html: str, tmp_path: Path
) -> None:
    shown = open_page(browser, html, tmp_path, state="tab=attention&kind=encoder&layer=0&head=0")
    weights_TS = looked.trace.attention["encoder"][0][0]
    canvas = shown.locator(".map canvas")
    left, top, cell = (float(canvas.get_attribute(f"data-{n}")) for n in ("left", "top", "cell"))
    for row in (4, 9):
        canvas.hover(position={"x": left + 2.5 * cell, "y": top + (row + 0.5) * cell})
        lines = values(shown, "line")
        strong = {int(c) for c in torch.nonzero(weights_TS[row] >= 0.05 + 1 / 510).flatten()}
        assert strong <= set(lines)
        assert len(lines) <= max(5, len(torch.nonzero(weights_TS[row] >= 0.05 - 1 / 510)))
        for column, value in lines.items():
            assert value == pytest.approx(float(weights_TS[row, column]), abs=1 / 500)
        assert "→" in shown.locator(".tip").inner_text()
    shown.close()


def test_the_numbers_can_be_saved(
    browser: Any, looked: LookInputs, html: str, tmp_path: Path
) -> None:
    shown = open_page(browser, html, tmp_path, state="tab=attention&kind=decoder&layer=1&head=3")
    shown.locator("summary").nth(1).click()
    with shown.expect_download() as found:
        shown.locator("[data-export=csv]").last.click()
    rows = list(csv.reader(Path(found.value.path()).read_text(encoding="utf-8").splitlines()))
    got = np.array([[float(cell) for cell in row[1:]] for row in rows[1:]])
    assert np.abs(got - looked.trace.attention["decoder"][1][3].numpy()).max() < 1 / 500
    shown.close()


def test_the_difference_of_equal_maps_is_zero_and_of_others_theirs(
    browser: Any, tmp_path: Path
) -> None:
    one, other = invented(9), invented(9, seed=1)
    looks = {
        name: look_data(name, LookInputs(trace=t), NAMES[1:])
        for name, t in (("A", one), ("B", other))
    }
    state = "tab=attention&attention_view=difference&layer=0&head=1&row=4"
    same = open_page(browser, page("t", [looks["A"], looks["A"]]), tmp_path, state=state)
    assert same.locator(".says").inner_text().startswith("w4")
    assert values(same, ".says [data-value]") == {}
    assert same.locator(".noexport span.soft").count() == 0
    same.close()
    shown = open_page(browser, page("t", [looks["A"], looks["B"]]), tmp_path, state=state)
    expected = one.attention["self"][0][1, 4] - other.attention["self"][0][1, 4]
    got = values(shown, ".says [data-value]")
    for column, value in got.items():
        assert value == pytest.approx(float(expected[column]), abs=1 / 250)
    assert min(got.values()) < 0 < max(got.values())
    shown.locator(".noexport .chip:text-is('A')").click()
    assert min(values(shown, ".says [data-value]").values()) >= 0
    shown.close()
    shorter = look_data("C", LookInputs(trace=invented(8)), NAMES[1:])
    apart = open_page(browser, page("t", [looks["A"], shorter]), tmp_path, state=state)
    assert apart.locator(".noexport .chip:text-is('A')").count() == 0
    assert apart.locator(".noexport span.soft").count() == 1
    assert min(values(apart, ".says [data-value]").values()) >= 0
    apart.close()


def test_a_long_text_and_a_layer_without_heads_are_drawn(browser: Any, tmp_path: Path) -> None:
    long = invented(520)
    gone = dataclasses.replace(long, attention={"self": [long.attention["self"][0][:0]]})
    first = look_data("A", LookInputs(trace=long, pins=(3,)), NAMES[1:])
    shown = open_page(browser, page("t", [first]), tmp_path, state="tab=attention")
    assert "3 × 3" in shown.locator("main").inner_text()
    assert [one for one in shown.locator("h3").all_inner_texts() if one.endswith("w3")]
    exact = [float(n.get_attribute("data-value")) for n in shown.locator(".token").all()]
    assert np.allclose(exact, long.attention["self"][0][0, 3].numpy(), rtol=1e-3, atol=1e-7)
    shown.close()
    none = open_page(
        browser, page("t", [look_data("A", LookInputs(trace=gone), NAMES[1:])]), tmp_path
    )
    assert none.locator(".failed").count() == 0
    none.close()


def test_a_block_is_named_by_its_positions_and_lists_only_visible_ones(
    browser: Any, tmp_path: Path
) -> None:
    found = invented(301)
    weights_HTS = found.attention["self"][0].tril()
    weights_HTS /= weights_HTS.sum(-1, keepdim=True)
    causal = dataclasses.replace(found, attention={"self": [weights_HTS]})
    look = look_data("A", LookInputs(trace=causal), NAMES[1:])
    shown = open_page(browser, page("t", [look]), tmp_path, state="tab=attention&row=1")
    printed = shown.locator(".says")
    assert re.match("3–4.*w2 w3", printed.inner_text())
    assert set(values(shown, ".says [data-value]")) <= {0, 1}
    assert shown.locator(".token").count() == 0
    assert "2 × 2" in shown.locator("main").inner_text()
    shown.keyboard.press("ArrowLeft")
    assert set(values(shown, ".says [data-value]")) == {0}
    assert re.match("1–2.*w0 w1.*1–2 ", printed.inner_text())
    shown.evaluate("location.hash = '#tab=attention&row=150'")
    printed.locator("b:text-is('301')").wait_for()  # the last one is alone
    shown.close()
