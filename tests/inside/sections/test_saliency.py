"""The saliency panel shows what the maps are, and says how far they can be trusted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.inside.capture.forward import run_reading
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.trace import trace
from headway.inside.measure import maps
from headway.inside.measure.maps.map import CAUTION
from headway.inside.page.look import LookInputs
from headway.inside.page.sections import look_data
from headway.inside.page.sections.saliency import METHODS, section
from headway.tasks.loaded_run import open_plain
from headway.web.pack import pack, unpack
from tests.inside.browser import VALUES, open_page, page

from ...interop.padded_runs import RUNS, tiny_run

TEXT = "Tom wohnt in Boston."
NAMES = ("overview", "attention", "saliency")
TRUTH = {
    "task": "words",
    "n": 182,
    "unit": "words",
    "maps": {"occlusion": {"p1": 0.975, "aer": 0.025, "n": 40, "random": 0.16}},
    "best": {"name": "cross.1.0", "p1_chosen": 0.9, "p1": 0.9, "aer": 0.1, "n": 9},
}


@pytest.fixture(scope="module")
def looked() -> LookInputs:
    run = open_plain("tatoeba-de-en")
    return LookInputs(
        run=run, trace=trace(run, TEXT, GenerationOptions(output="Tom lives in Boston."))
    )


@pytest.fixture(scope="module")
def look(looked: LookInputs) -> dict[str, Any]:
    return look_data("final", looked, NAMES)


@pytest.fixture
def shown(browser: Any, look: dict[str, Any], tmp_path: Path) -> Any:
    opened = open_page(browser, page("one", [look], {"truth": TRUTH}), tmp_path)
    opened.tab("saliency")
    yield opened
    opened.close()


def weights(shown: Any, stream: str) -> list[float]:
    return shown.values(f"[data-stream={stream}] [data-value]")


def test_what_is_sent_is_what_the_maps_are(looked: LookInputs, look: dict[str, Any]) -> None:
    back = unpack(page("one", [look], {}))["looks"][0]["sections"]["saliency"]
    sent = {one["key"]: one for one in back["methods"]}
    assert list(sent) == list(METHODS)
    made = {
        m.name: m for m in maps.make(looked.run, looked.trace, ["rollout", "flow", "gradients"])
    }
    made |= {m.name: m for m in maps.layer_maps(looked.run, looked.trace, "mean")}
    for name in ("rollout", "flow", "gradxattention", "gradxinput"):
        wanted = made[name].weights_RS.numpy()
        np.testing.assert_allclose(sent[name]["weights"][0], wanted, rtol=1e-3, atol=1e-6)
    assert sent["mean"]["names"] == ["cross.0.mean", "cross.1.mean"]
    both = [made["cross.1.mean"].weights_RS, made["decoder.1.mean"].weights_RS]
    assert np.abs(sent["mean"]["weights"][1] - torch.cat(both, 1).numpy()).max() < 1 / 500
    share_R = made["gradxinput"].share_R("source")
    assert share_R is not None
    np.testing.assert_allclose(sent["gradxinput"]["shares"][0], share_R.numpy(), atol=1e-4)


def test_the_section_is_small(look: dict[str, Any]) -> None:
    assert len(pack(look["sections"]["saliency"])) < 250_000


def test_hidden_tokens_and_heads_that_are_off_stay_so(looked: LookInputs) -> None:
    change = Intervention(
        disabled_heads=frozenset({("cross", 1, 0)}), hidden=frozenset({("source", 0)})
    )
    assert looked.run is not None
    changed = LookInputs(run=looked.run, trace=trace(looked.run, looked.trace.reading,
    change=change),
                     change=change)  # fmt: skip
    found = section(changed)
    assert found is not None
    sent = {one["key"]: one for one in found["methods"]}["occlusion"]["weights"].numpy()[0]
    with torch.no_grad():
        both = Intervention(
            disabled_heads=change.disabled_heads, hidden=change.hidden | {("source", 3)}
        )
        before = run_reading(looked.run, looked.trace.reading, change).log_probs_R
        fall = before - run_reading(looked.run, looked.trace.reading, both).log_probs_R
    np.testing.assert_allclose(sent[:, 3], fall.numpy(), atol=1e-5)
    assert np.abs(sent[:, 0]).max() < 1e-6


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_units_are_those_of_the_task(task: str, tmp_path: Path) -> None:
    run = open_plain(tiny_run(tmp_path / "run", task))
    found = section(LookInputs(run=run, trace=trace(run, "ba de go")))
    assert found is not None
    sent = {one["key"]: one for one in found["methods"]}
    texts = [f"{one['how']} {one['unit']}" for one in sent.values()]
    is_vector = task == "embed"
    unit = "in length along its own direction" if is_vector else "in nats"
    assert any("log-probability" in text or "nats" in text for text in texts) != is_vector
    assert sent["integrated"]["unit"] == sent["occlusion"]["unit"] == unit


@pytest.mark.parametrize("task", list(RUNS))
def test_every_task_has_the_panel(task: str, browser: Any, tmp_path: Path) -> None:
    run = open_plain(tiny_run(tmp_path / "run", task, n_layers=2))
    look = look_data("final", LookInputs(run=run, trace=trace(run, "ba de go [MASK] fi",
    GenerationOptions(max_new_tokens=3))),
                   NAMES)  # fmt: skip
    opened = open_page(browser, page("one", [look], {}), tmp_path)
    opened.tab("saliency")
    keys = ["head", *METHODS]
    for key in keys:
        opened.locator(f".chip[data-key={key}]").click()
        values = [w for name in look["streams"] for w in weights(opened, name)]
        assert values
        assert "P@1" not in opened.locator("[data-truth]").inner_text()
    opened.close()


def test_long_texts_skip_slow_maps_and_name_the_option(tmp_path: Path) -> None:
    run = open_plain("stories")
    text = "The cat sat on the mat and looked at the dog. " * 7
    found = section(
        LookInputs(run=run, trace=trace(run, text, GenerationOptions(max_new_tokens=2)))
    )
    assert found is not None
    assert {one["key"] for one in found["methods"]} == {"mean", "max", "norm", "rollout"}
    assert [label for label, _ in found["skipped"]] == [
        "Flow", "Gradient × input", "Integrated gradients", "Occlusion",
    ]  # fmt: skip
    assert all("slow=True" in why for _, why in found["skipped"])
    assert len(pack(found)) < 250_000
    assert (
        section(
            LookInputs(run=run, trace=trace(run, text * 4, GenerationOptions(max_new_tokens=2)))
        )
        is None
    )


def test_a_trace_from_elsewhere_has_the_maps_that_need_no_model(looked: LookInputs) -> None:
    found = section(LookInputs(trace=looked.trace))
    assert found is not None
    assert {one["key"] for one in found["methods"]} == {"mean", "max", "rollout", "flow"}
    assert "--slow" not in dict(found["skipped"])["Occlusion"]


def test_the_page_shows_the_numbers_of_an_output(shown: Any, looked: LookInputs) -> None:
    assert looked.run is not None
    found = maps.occlusion(looked.run, looked.trace).parts()
    middle = len(looked.trace.reading.outputs) // 2
    np.testing.assert_allclose(weights(shown, "source"), found["source"][middle].numpy(), atol=5e-3)
    assert middle != 2
    shown.locator("[data-outputs] .token").nth(2).click()
    np.testing.assert_allclose(weights(shown, "source"), found["source"][2].numpy(), atol=5e-3)
    # What comes after a word cannot have made it, so it has no value.
    np.testing.assert_allclose(weights(shown, "target"), found["target"][2, :3].numpy(), atol=5e-3)
    most = shown.locator(".bar").first
    assert float(most.get_attribute("data-value")) == pytest.approx(
        float(max(found["source"][2].abs().max(), found["target"][2].abs().max())), abs=5e-3
    )
    assert "row=2" in shown.url


def test_pointing_at_an_output_shows_it_until_the_pointer_leaves(shown: Any) -> None:
    before = weights(shown, "source")
    shown.locator("[data-outputs] .token").nth(2).hover()
    assert weights(shown, "source") != before
    shown.locator("h1, header").first.hover()
    assert weights(shown, "source") == before


def test_a_head_is_shown_and_the_keys_change_it(shown: Any, looked: LookInputs) -> None:
    shown.locator(".chip[data-key=head]").click()
    assert shown.locator(".chip[data-key=head]").inner_text().endswith("cross 2.1")
    for key, head in ((None, 0), ("3", 2)):
        if key is not None:
            shown.keyboard.press(key)
        middle = len(looked.trace.reading.outputs) // 2
        wanted = looked.trace.attention["cross"][1][head, middle].numpy()
        np.testing.assert_allclose(weights(shown, "source"), wanted, atol=1 / 255)
    shown.keyboard.press("ArrowUp")
    assert shown.locator("[data-truth]").get_attribute("data-truth") == "cross.0.2"


def test_every_map_shows_its_measured_truth_if_it_has_one(shown: Any) -> None:
    measured = shown.locator("[data-truth]")
    assert re.search(r"P@1 0\.97\D*0\.16\D*40 words", measured.inner_text())
    shown.locator(".chip[data-key=rollout]").click()
    assert "P@1" not in measured.inner_text()
    assert CAUTION in shown.locator("#root").inner_text()


def test_shares_and_agreement_are_shown(shown: Any, looked: LookInputs) -> None:
    assert looked.run is not None
    shown.locator(".chip[data-key=gradxinput]").click()
    share_R = maps.gradient_maps(looked.run, looked.trace)[1].share_R("source")
    assert share_R is not None
    card = shown.locator("[data-card=shares]")
    values = card.locator(".bar").evaluate_all(VALUES)
    np.testing.assert_allclose(values, share_R.numpy(), atol=1e-3)
    judge = maps.occlusion(looked.run, looked.trace)
    wanted = maps.agreement(maps.rollout(looked.run, looked.trace), judge, looked.trace.reading)
    row = shown.locator("tr", has_text="Rollout")
    assert float(row.locator("td").nth(1).inner_text().replace("−", "-")) == pytest.approx(
        wanted, abs=6e-3
    )
    row.click()
    assert shown.locator(".chip[data-key=rollout]").get_attribute("aria-pressed") == "true"
