"""The dictionary panel: true activations on the text, and a browser of what was learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.errors import FolderError
from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.trace import trace
from headway.inside.measure.features.dictionary import FeatureDictionary, factors
from headway.inside.page.look import LookInputs
from headway.inside.page.sections import look_data
from headway.inside.page.sections.features import section
from headway.tasks.loaded_run import LoadedRun, open_plain
from headway.web.pack import PackedArray, pack, unpack

from ..browser import open_page, page

TEXT = "The little dog had a red ball. <b>It</b> ran."
THINGS = ("dog", "cat", "ball", "bird", "boy", "tree", "box", "fish", "hat")
LINES = [
    f"The {a} saw a {b} and said, \"Hello, {b}!\" in the park."
    for a in THINGS for b in THINGS if a < b
]  # fmt: skip


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return open_plain("stories")


@pytest.fixture(scope="module")
def folder(run: LoadedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = factors(run, LINES, method="topk", n=24, k=4, steps=40, browse=900, layers="0,2,5")
    place = tmp_path_factory.mktemp("learned") / "factors"
    made.save(place)
    return place


@pytest.fixture(scope="module")
def looked(run: LoadedRun, folder: Path) -> LookInputs:
    return LookInputs(
        run=run, trace=trace(run, TEXT, GenerationOptions(max_new_tokens=2)), factors=folder
    )


@pytest.fixture(scope="module")
def html(looked: LookInputs) -> str:
    return page("features", [look_data("final", looked, ["features"])])


@pytest.fixture(scope="module")
def data(html: str) -> Any:
    return unpack(html)["looks"][0]["sections"]["features"]


def codes_of(looked: LookInputs, found: FeatureDictionary, factor: int) -> np.ndarray:
    """By hand: states from the trace, the largest code over the layers."""
    best: np.ndarray | None = None
    for site in found.sites:
        with torch.no_grad():
            code_T = found.codes(looked.trace.states[site[0]][site[1]], site)[:, factor].numpy()
        best = code_T if best is None else np.maximum(best, code_T)
    assert best is not None
    best[np.array(looked.trace.reading.last.special)] = 0.0
    return best


def test_activations_on_the_text_are_those_of_its_states(
    looked: LookInputs, folder: Path, data: Any
) -> None:
    found = FeatureDictionary.load(folder)
    for row, number in enumerate(data["numbers"]):
        expected = codes_of(looked, found, number)
        np.testing.assert_allclose(data["here"]["text"][row], expected, rtol=1e-3, atol=1e-3)


def test_those_that_fire_here_come_first_and_contexts_are_as_they_were_learned(
    folder: Path, data: Any
) -> None:
    entries = FeatureDictionary.load(folder).entries
    peaks = data["here"]["text"].max(1)
    assert (np.diff(peaks) <= 1e-3).all()
    first, entry = data["factors"][0], entries[data["numbers"][0]]
    assert first["contexts"][0][2] == entry["contexts"][0]["pieces"]
    values = data["values"][0, 0, : len(entry["contexts"][0]["values"])]
    np.testing.assert_allclose(values, entry["contexts"][0]["values"], atol=1e-3)
    assert first["effect"] == entry["effect"]


def test_no_folder_means_no_panel_and_another_model_is_an_error(
    looked: LookInputs, folder: Path
) -> None:
    assert section(LookInputs(run=looked.run, trace=looked.trace)) is None
    other = open_plain("tatoeba-de-en")
    with pytest.raises(FolderError, match=r"(?=.*stories)(?=.*tatoeba-de-en)"):
        section(LookInputs(run=other, trace=trace(other, "Hallo."), factors=folder))


def test_256_factors_stay_within_250_kB(looked: LookInputs, folder: Path) -> None:
    """As many contexts as a factor can have, each as long as it can be, all different."""
    made = section(looked)
    assert made is not None
    random = np.random.default_rng(0)
    words = [f" w{i}" for i in range(4000)]
    made["factors"] = [
        made["factors"][i % 24]
        | {"contexts": [["text", 10, random.choice(words, 17).tolist()] for _ in range(5)]}
        for i in range(256)
    ]
    made["numbers"] = list(range(256))
    made["values"] = PackedArray(
        random.random((256, 5, 17)) * (random.random((256, 5, 17)) < 0.4), "f16"
    )
    made["here"] = {
        "text": PackedArray(random.random((256, 60)) * (random.random((256, 60)) < 0.1), "f16")
    }
    assert len(pack(made)) < 250_000


def test_the_browser_lists_sorts_searches_and_shows_factors(
    browser: Any, tmp_path: Path, html: str, data: Any, looked: LookInputs, folder: Path
) -> None:
    shown = open_page(browser, html, tmp_path, state="tab=features")
    # By layer, and the words that it raises and lowers.
    assert shown.locator("[data-card=factor] .bars").count() == 3
    rows = "[data-card=features] tbody tr"
    listed = lambda: [  # noqa: E731
        int(node.get_attribute("data-factor"))
        for node in shown.locator(f"{rows} [data-factor]").all()
    ]
    assert listed() == data["numbers"]
    texts = shown.locator("[data-card=features-text] .token").all()
    expected = codes_of(looked, FeatureDictionary.load(folder), data["numbers"][0])
    values = [float(node.get_attribute("data-value")) for node in texts]
    np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-3)

    shown.locator(".chip[data-key=fires]").click()
    fires = {n: f["fires"] for n, f in zip(data["numbers"], data["factors"], strict=True)}
    order = [fires[n] for n in listed()]
    assert order == sorted(order, reverse=True)

    shown.locator(rows).nth(3).click()
    number = listed()[3]
    entry = data["factors"][data["numbers"].index(number)]
    assert shown.locator("[data-card=factor] h2").inner_text().endswith(f" {number}")
    effect = shown.locator("[data-effect] [data-value]").first.get_attribute("data-value")
    assert float(effect) == pytest.approx(entry["effect"]["nats"])
    profile = shown.locator("[data-card=factor] .bars").first.locator(".bar").all()
    assert [float(bar.get_attribute("data-value")) for bar in profile] == entry["profile"]

    at = data["numbers"].index(number)
    for place, (_, strongest, pieces) in enumerate(entry["contexts"]):
        spans = shown.locator(f"[data-context='{place}'] span").all()
        assert [span.inner_text() for span in spans] == [piece.strip() for piece in pieces]
        values = [float(span.get_attribute("data-value")) for span in spans]
        np.testing.assert_allclose(values, data["values"][at, place, : len(pieces)], rtol=1e-5)
        assert int(np.argmax(values)) == strongest

    search = shown.locator("input[data-search]")
    search.fill("zebra")
    search.press("Enter")
    assert shown.locator("[data-card=features] .empty").count() == 1
    shown.locator("input[data-search]").fill("ball")
    shown.locator("input[data-search]").press("Enter")
    assert 0 < len(listed()) <= 24
    shown.close()


def test_a_token_shows_which_factors_fire_there(
    browser: Any, tmp_path: Path, html: str, data: Any
) -> None:
    shown = open_page(browser, html, tmp_path, state="tab=features")
    shown.locator("[data-card=features-text] .token").nth(3).click()
    bars = shown.locator("[data-card=features-text] .bar").all()
    values = [float(bar.get_attribute("data-value")) for bar in bars]
    column = np.sort(data["here"]["text"][:, 3])[::-1]
    np.testing.assert_allclose(values, column[column > 0][:10], rtol=1e-5)
    assert shown.locator("b").filter(has_text="It").count() == 0  # text of a model stays text
    shown.close()


def test_an_order_or_a_place_that_does_not_exist_is_passed_over(
    browser: Any, tmp_path: Path, html: str
) -> None:
    state = "tab=features&featuresSort=size&featuresToken=-1&featuresStream=valueOf"
    shown = open_page(browser, html, tmp_path, state=state)
    assert shown.locator("[data-key=here][aria-pressed=true]").count() == 1
    assert "undefined" not in shown.locator("main").inner_text()
    shown.close()
