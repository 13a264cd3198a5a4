"""The search panel: the hits on the page are those of the index."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.inside.capture.corpus import Corpus
from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.trace import trace
from headway.inside.measure.nearest_tokens import TokenIndex
from headway.inside.page.look import LookInputs
from headway.inside.page.sections import look_data
from headway.inside.page.sections.neighbours import BUDGET, chosen, section
from headway.tasks.loaded_run import open_plain
from headway.web.pack import pack, unpack

from ...interop.padded_runs import tiny_run
from ..browser import open_page, page

TEXT = "The little dog ran to the park."
LINES = ["The little dog ran to the park.", "A cat sat on a mat.", "Tom went to the big park.",
         "The sun was hot.", "She had a red ball and a small dog."]  # fmt: skip


@cache
def looked() -> LookInputs:
    run = open_plain("stories")
    corpus = Corpus.of_lines(LINES)
    return LookInputs(run=run, trace=trace(run, TEXT, GenerationOptions(output="")), corpus=corpus)


def html() -> str:
    return page("neighbours", [look_data("final", looked(), ["neighbours"])])


def data() -> Any:
    return unpack(html())["looks"][0]["sections"]["neighbours"]


def test_the_page_has_the_hits_of_the_index_for_all_layers() -> None:
    found, here = data(), looked()
    assert [layer["layer"] for layer in found["layers"]] == [0, 1, 2, 3, 4, 5]
    for layer in found["layers"]:
        index = TokenIndex.of(here.run, LINES, layer["layer"])  # type: ignore[arg-type]
        for row, place in enumerate(layer["places"]):
            hits = index.nearest(here.trace, "text", place, 6)
            np.testing.assert_allclose(
                layer["cosines"][row], [hit.cosine for hit in hits], atol=2e-3
            )
            shown = [found["texts"][number] for number in layer["hits"][row]]
            expected = [index.token_context(hit.passage, hit.place) for hit in hits]
            assert shown == [[one["at"], one["pieces"]] for one in expected]


def test_of_many_layers_six_are_searched_the_first_and_the_last_among_them(
    tmp_path: Path,
) -> None:
    corpus = Corpus.of_lines(["ba de"])
    for n_layers, layers in ((6, [0, 1, 2, 3, 4, 5, 6]), (12, [0, 1, 3, 5, 8, 10, 12])):
        run = open_plain(tiny_run(tmp_path / f"{n_layers}", "classify", n_layers=n_layers))
        assert chosen(run, corpus) == [("self", layer) for layer in layers]


def test_the_panel_needs_a_corpus() -> None:
    assert section(LookInputs(run=looked().run, trace=looked().trace)) is None


def test_it_stays_within_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(pack(section(looked()))) < BUDGET / 10
    monkeypatch.setattr("headway.inside.page.sections.neighbours.BUDGET", 2_000)
    made = section(looked())
    assert made is None or len(pack(made)) <= 2_000


def test_a_translator_without_targets_searches_its_source() -> None:
    run = open_plain("tatoeba-de-en")
    corpus = Corpus.of_lines(["Guten Morgen.", "Ich habe einen Hund."])
    made = section(LookInputs(run=run, trace=trace(run, "Mein Hund."), corpus=corpus))
    assert made is not None
    assert {layer["stream"] for layer in made["layers"]} == {"source"}
    both = Corpus.of_lines(["Ich habe einen Hund."], ["I have a dog."])
    made = section(LookInputs(run=run, trace=trace(run, "Mein Hund."), corpus=both))
    assert made is not None
    assert {layer["stream"] for layer in made["layers"]} == {"source", "target"}


def test_a_click_on_a_token_shows_its_neighbours(browser: Any, tmp_path: Path) -> None:
    found = data()
    shown = open_page(browser, html(), tmp_path, state="tab=neighbours")
    for place in (3, 5):
        shown.locator("[data-card=neighbours] .token").nth(place).click()
        for layer in found["layers"]:
            row = layer["places"].index(place)
            column = shown.locator(f"[data-layer='{layer['layer']}']")
            values = [
                float(n.get_attribute("data-value")) for n in column.locator("[data-value]").all()
            ]
            np.testing.assert_allclose(values, layer["cosines"][row], rtol=1e-5)
            words = [n.get_attribute("data-found") for n in column.locator("[data-found]").all()]
            texts = [found["texts"][number] for number in layer["hits"][row]]
            assert words == [pieces[at].strip() for at, pieces in texts]
    shown.close()


def test_a_stream_has_its_own_limits_and_may_have_no_words(browser: Any, tmp_path: Path) -> None:
    run = open_plain("tatoeba-de-en")
    both = Corpus.of_lines(["Ich habe einen Hund."], ["I have a dog."])
    for output, rows in (("I have a very small dog.", 7), ("", None)):
        found = trace(run, "Hund.", GenerationOptions(output=output))
        made = look_data("final", LookInputs(run=run, trace=found, corpus=both), ["neighbours"])
        shown = open_page(browser, page("neighbours", [made]), tmp_path)
        shown.locator(".chip[data-key=target]").click()
        assert shown.locator(".failed").count() == 0
        if rows is None:
            assert shown.locator("[data-hit]").count() == 0
        else:
            for _ in range(12):
                shown.keyboard.press("ArrowRight")
            assert shown.state()["row"] == str(rows)
        shown.close()
