"""The image with what each word looked at: the numbers are the trace's, in the page, too."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.streams import Reading, TokenStream, TracedOutput
from headway.inside.measure.maps.rollout import rollout
from headway.inside.measure.media_maps import word_groups
from headway.inside.page.look import LookInputs, Page, prepare_look, run_facts
from headway.inside.page.sections import look_data
from headway.inside.page.sections.image import frames, section
from headway.web.pack import unpack

from .browser import open_page
from .media_runs import html, item_for, looked, media_for, media_run


def unpacked(html: str) -> dict[str, Any]:
    found: dict[str, Any] = unpack(html)["looks"][0]["sections"]["image"]
    return found


@pytest.mark.parametrize("task", ["caption", "captioned-video", "see", "watch"])
def test_the_page_holds_the_weights_of_the_trace(task: str) -> None:
    run = looked(task).run
    held = unpacked(html(task))
    trace, writes = looked(task).trace, task.startswith("caption")
    for layer, weights_HRS in enumerate(held["heads"]):
        true = trace.attention["cross" if writes else "self"][layer]
        true = true if writes else true[:, :1]  # a class is read from the class token
        np.testing.assert_allclose(weights_HRS, true.numpy(), rtol=1e-3, atol=1e-6)
    whole = {map_["key"]: map_["weights"] for map_ in held["maps"]}
    usual = ["rollout", "norm", "gradxattention", "gradxinput", "integrated", "occlusion"]
    assert list(whole) == usual
    source = "source" if writes else "image"
    np.testing.assert_allclose(
        whole["rollout"], rollout(run, trace).parts()[source].numpy(), rtol=1e-3, atol=1e-6
    )
    pixels = np.moveaxis(item_for(run), 1, -1)[(1, 3),] if len(item_for(run)) > 1 else None
    pixels = np.moveaxis(item_for(run), 1, -1) if pixels is None else pixels
    assert (held["frames"] == pixels).all()
    assert held["grid"] == list(media_for(run).grid)


def test_a_class_that_is_read_from_all_rows_is_their_mean() -> None:
    run = media_run("see", pooling="mean")
    seen = prepare_look(run, media_for(run))
    held = unpacked(Page("t", [look_data("final", seen, ["image"])], {}, run_facts(run)).html)
    mean_HS = seen.trace.attention["self"][1].mean(1)
    np.testing.assert_allclose(held["heads"][1][:, 0], mean_HS.numpy(), rtol=1e-3, atol=1e-6)


def test_a_distillation_token_is_half_of_the_answer() -> None:
    from headway.settings.model import ImageSettings

    from .media_runs import IMAGE

    image = ImageSettings(**{**vars(IMAGE), "distil_token": True})
    run = media_run("see", image=image, heads=("classes", "distilled"))
    seen = prepare_look(run, media_for(run))
    made = section(seen)
    assert made is not None
    half_HS = seen.trace.attention["self"][0][:, :2].mean(1)
    assert torch.allclose(made["heads"][0].values[:, 0], half_HS, atol=1e-6)
    assert made["extra"] == 2


def test_pieces_of_a_word_are_one_word() -> None:
    names = ["▁re", "d", "▁circle", "</s>"]
    stream = TokenStream(
        "target", (0, 1, 2, 3), ("<s>", *names[:3]), (-1, 0, 0, 1), (True,) + (False,) * 3
    )
    source = TokenStream("source", (-1,), ("row 1, column 1",), (0,), (False,))
    outputs = tuple(TracedOutput(row, row, name) for row, name in enumerate(names))
    reading = Reading("", "caption", {"source": source, "target": stream}, outputs)
    assert [(group["name"], group["rows"]) for group in word_groups(reading)] == [
        ("▁red", [0, 1]),
        ("▁circle", [2]),
        ("</s>", [3]),
    ]


def test_large_images_become_small_and_videos_show_the_middle_of_each_stretch() -> None:
    run = media_run("caption")
    media = replace(media_for(run), item=np.full((1, 3, 600, 900), 9, np.uint8))
    assert frames(media).shape == (1, 171, 256, 3)
    assert float(frames(media).max()) == 9
    video = media_for(media_run("watch"))
    assert (frames(video).numpy() == np.moveaxis(video.item, 1, -1)[[1, 3]]).all()


def first_of(maps: dict[str, float], best: float) -> tuple[Any, ...]:
    """What is shown first where these were measured, and one head that was judged apart."""
    measured = {name: {"p1": p1, "random": 0.1, "n": 40} for name, p1 in maps.items()}
    truth = {"maps": measured, "best": {"name": "cross.1.2", "p1": best}, "unit": "words"}
    first = section(replace(looked("caption"), truth=truth))["first"]
    assert first["measured"]
    return first["map"], first["layer"], first["head"]


def test_the_map_that_pointed_best_is_shown_first() -> None:
    maps = {"norm": 0.91, "rollout": 0.83, "cross.1.mean": 0.88, "cross.1.2": 0.99, "random": 0.1}
    assert first_of(maps, 0.76) == ("norm", 0, 0)
    assert first_of(maps | {"cross.1.max": 0.95}, 0.76) == ("max", 1, 0)
    assert first_of(maps, 0.97) == ("head", 1, 2)
    # What was measured, too, but is not on the page.
    assert first_of(maps | {"cross.0.norm": 1.0, "flow": 1.0}, 0.76) == ("norm", 0, 0)


def test_without_measurements_the_first_map_is_marked_unmeasured() -> None:
    first = section(looked("caption"))["first"]
    assert first == {"map": "mean", "layer": 0, "head": 0, "measured": False}
    assert section(looked("see"))["first"]["map"] == "rollout"


def planted(grey_value: int = 200) -> tuple[LookInputs, torch.Tensor]:
    """A captioner whose one head looks at one patch for every word."""
    run = media_run("caption")
    grey = replace(media_for(run), item=np.full((1, 3, 24, 32), grey_value, np.uint8))
    seen = prepare_look(run, grey, GenerationOptions(output="a red circle"))
    weights_HTS = torch.zeros_like(seen.trace.attention["cross"][1])
    for t in range(weights_HTS.shape[1]):
        weights_HTS[:, t, 2 * t + 1] = 1.0
    attention = {**seen.trace.attention}
    attention["cross"] = [attention["cross"][0], weights_HTS]
    truth = {"maps": {"cross.1.0": {"p1": 0.9, "random": 0.1, "n": 40}}, "unit": "words"}
    return replace(seen, trace=replace(seen.trace, attention=attention), truth=truth), weights_HTS


LIGHT = """(places) => { const c = document.querySelector("[data-frame]");
  const size = [c.width, c.height];
  const b = new OffscreenCanvas(...size).getContext("2d", { willReadFrequently: true });
  b.drawImage(c, 0, 0);
  return places.map((at) => [...b.getImageData(at[0] * c.width, at[1] * c.height, 1, 1).data]
    .slice(0, 3).reduce((a, x) => a + x, 0)); }"""
"""How light (0 to 765) the image is at places, in shares of its width and height."""


@pytest.mark.parametrize("grey", [0, 30, 128, 255])
def test_a_map_is_seen_on_images_of_any_brightness(browser: Any, tmp_path: Path, grey: int) -> None:
    seen, _ = planted(grey)
    made = Page("t", [look_data("final", seen, ["image"])], {}, run_facts(seen.run)).html
    shown = open_page(browser, made, tmp_path, state="tab=image&layer=1&head=0&row=2")
    looked_at, beside = (1.5 / 4, 1.5 / 3), (3.5 / 4, 2.5 / 3)
    there, elsewhere = shown.evaluate(LIGHT, [looked_at, beside])
    assert abs(there - elsewhere) > 200
    # On the way from the one to the other comes the line, dark and light, in every style.
    for style in ("light", "fog", "heat"):
        shown.locator(f"[data-key={style}]").click()
        row = shown.evaluate(LIGHT, [(x / 400, 1.5 / 3) for x in range(150, 260)])
        assert max(row) > 600
        assert min(row) < 300
    shown.close()


@pytest.mark.parametrize(("task", "parts"), [("see", 1), ("captioned-video", 2)])
def test_the_overview_shows_what_was_looked_at(
    browser: Any, tmp_path: Path, task: str, parts: int
) -> None:
    shown = open_page(browser, html(task), tmp_path, state="tab=overview")
    seen = shown.locator("[data-card=seen] canvas")
    assert seen.count() == parts
    light = "(c) => Math.max(...c.getContext('2d').getImageData(0, 0, c.width, c.height).data)"
    assert all(one.evaluate(light) > 0 for one in seen.all())
    shown.close()


def test_the_panel_shows_each_word_its_patch(browser: Any, tmp_path: Path) -> None:
    seen, _ = planted()
    made = look_data("final", seen, ["image"])  # the other panels know that it is planted
    planted_html = Page("t", [made], {}, run_facts(seen.run)).html
    shown = open_page(browser, planted_html, tmp_path, state="tab=image&layer=1&head=0&row=2")
    assert "“circle”" in shown.locator("[data-card=image] h2").inner_text()
    value = shown.locator(".says [data-value]")
    assert float(value.get_attribute("data-value")) == 1.0
    assert value.get_attribute("data-place") == "5"
    truth = shown.locator("[data-truth]").inner_text()
    assert re.search(r"P@1 0\.90\D*0\.10\D*40 words", truth)
    # The middle of row 2, column 2 of 3 by 4 patches is light, what was not looked at is dark.
    there, elsewhere = shown.evaluate(LIGHT, [(1.5 / 4, 1.5 / 3), (3.5 / 4, 2.5 / 3)])
    assert there > 3 * elsewhere
    box = shown.locator("[data-frame]").bounding_box()
    shown.mouse.move(box["x"] + box["width"] * 3.5 / 4, box["y"] + box["height"] * 0.5 / 3)
    assert value.get_attribute("data-place") == "3"
    assert float(value.get_attribute("data-value")) == 0.0
    assert re.search(r"row 1\b.*column 4\b", shown.locator(".tip").inner_text())
    shown.locator(".seengrid").first.locator("button").nth(1).click()
    assert shown.state()["row"] == "1"
    assert shown.locator(".says [data-value]").get_attribute("data-place") == "3"
    shown.close()


def test_maps_styles_and_heads_can_be_chosen_and_keys_work(browser: Any, tmp_path: Path) -> None:
    shown = open_page(browser, html("captioned-video"), tmp_path, state="tab=image")
    assert shown.locator("[data-frame]").count() == 2
    for key in ("rollout", "occlusion", "max", "head"):
        shown.locator(f"[data-key={key}]").first.click()
        assert shown.state()["imageMap"] == key
    shown.locator("[data-key=heat]").click()
    assert shown.state()["imageStyle"] == "heat"
    shown.locator("[data-key=opacity]").press("Home")
    assert shown.state()["imageOpacity"] == "0"
    shown.evaluate("document.activeElement.blur()")
    shown.keyboard.press("ArrowUp")
    shown.keyboard.press("3")
    assert (shown.state()["layer"], shown.state()["head"]) == ("1", "2")
    shown.close()


@pytest.mark.parametrize("task", ["see", "captioned-video"])
def test_a_narrow_screen_has_all_of_it(browser: Any, tmp_path: Path, task: str) -> None:
    shown = open_page(browser, html(task), tmp_path, width=400, dark=True,
                      state="tab=image")  # fmt: skip
    assert shown.evaluate("document.documentElement.scrollWidth") <= 400
    nameless = shown.evaluate(
        "[...document.querySelectorAll('button, canvas:not([aria-hidden])')].filter((n) => "
        "!n.textContent.trim() && !n.getAttribute('aria-label')).length"
    )
    assert nameless == 0
    for tab in ("overview", "walk", "attention", "lens", "neurons", "heads"):
        shown.tab(tab)
    shown.close()
