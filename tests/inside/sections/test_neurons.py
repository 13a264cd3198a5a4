"""The neurons panel: true factors of the traced activations, and clicks that choose among them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.trace import trace
from headway.inside.measure.nmf import nmf
from headway.inside.page.look import LookInputs
from headway.inside.page.sections import look_data
from headway.inside.page.sections.neurons import section
from headway.tasks.loaded_run import open_plain
from headway.web.pack import pack, unpack

from ..browser import open_page, page

TEXT = "One day, a little girl named Lily found a needle in her room."


@cache
def looked(name: str = "stories", text: str = TEXT) -> LookInputs:
    run = open_plain(name)
    return LookInputs(run=run, trace=trace(run, text, GenerationOptions(max_new_tokens=4)))


def html(name: str = "stories", text: str = TEXT) -> str:
    return page("neurons", [look_data("final", looked(name, text), ["neurons"])])


def unpacked(name: str = "stories", text: str = TEXT) -> Any:
    return unpack(html(name, text))["looks"][0]["sections"]["neurons"]["stacks"]


def test_the_page_holds_the_factors_of_the_traced_activations() -> None:
    stack = unpacked()["self"]
    hidden = looked().trace.hidden["self"]
    x_TF = torch.cat(hidden, 1)
    assert (stack["layers"], stack["neurons"], stack["stream"]) == (5, 1024, "text")
    assert stack["usual"] == min(6, len(x_TF) // 3)
    for n, found in stack["choices"].items():
        expected = nmf(x_TF, int(n))
        np.testing.assert_allclose(found["weights"], expected.weights_TK.T, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(found["layers"].sum(1), 1.0, atol=2e-3)
        assert found["explained"] == pytest.approx(expected.explained, abs=1e-4)
    below = float(x_TF.clamp(max=0).square().sum() / x_TF.square().sum())
    assert stack["clipped"] == pytest.approx(below, abs=1e-4)


def test_the_strongest_neurons_are_named_by_layer_and_number() -> None:
    stack = unpacked()["self"]
    expected = nmf(torch.cat(looked().trace.hidden["self"], 1), stack["usual"])
    layer, number, loading = stack["choices"][str(stack["usual"])]["top"][0][0]
    assert loading == pytest.approx(float(expected.parts_KF[0].max()), abs=1e-3)
    assert layer * 1024 + number == int(expected.parts_KF[0].argmax())


def test_a_translator_has_two_stacks() -> None:
    stacks = unpacked("tatoeba-de-en", "Ich habe einen kleinen Hund.")
    assert {name: stack["stream"] for name, stack in stacks.items()} == {
        "encoder": "source",
        "decoder": "target",
    }


def test_it_is_small() -> None:
    made = section(looked())
    assert made is not None
    assert len(pack(made)) < 20_000


def test_a_single_token_has_no_factors() -> None:
    found = looked().trace
    first = found.reading.last
    one = replace(first, ids=first.ids[:1], pieces=first.pieces[:1], words=(-1,), special=(True,))
    reading = replace(found.reading, streams={"text": one})
    hidden = {"self": [x_TF[:1] for x_TF in found.hidden["self"]]}
    assert section(LookInputs(trace=replace(found, reading=reading, hidden=hidden))) is None


def test_clicks_choose_a_factor_and_their_number(browser: Any, tmp_path: Path) -> None:
    stack = unpacked()["self"]
    usual = str(stack["usual"])
    shown = open_page(browser, html(), tmp_path, state="tab=neurons")
    card = "[data-card=neurons]"
    assert shown.locator(f"{card} .sparkrow").count() == stack["usual"]

    def colours() -> list[float]:
        nodes = shown.locator(f"{card} .token").all()
        return [float(node.get_attribute("data-value")) for node in nodes]

    np.testing.assert_allclose(colours(), stack["choices"][usual]["weights"][0], rtol=1e-5)
    shown.locator(f"{card} .sparkrow").nth(2).click()
    np.testing.assert_allclose(colours(), stack["choices"][usual]["weights"][2], rtol=1e-5)
    layers = shown.locator("[data-card=neurons-factor] .bars").first.locator(".bar").all()
    shares = [float(bar.get_attribute("data-value")) for bar in layers]
    np.testing.assert_allclose(shares, stack["choices"][usual]["layers"][2], rtol=1e-5)
    shown.locator(f"{card} .chip[data-key='3']").click()
    assert shown.locator(f"{card} .sparkrow").count() == 3
    explained = shown.locator("[data-explained]").get_attribute("data-value")
    assert float(explained) == pytest.approx(stack["choices"]["3"]["explained"])
    shown.close()
