"""The overview says what the model is, what it answered and how sure it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.trace import trace
from headway.inside.page.look import LookInputs
from headway.inside.page.sections import display_piece, look_data
from headway.inside.page.sections.overview import attention_sink, evenness, loudness, section
from headway.tasks.loaded_run import open_plain
from tests.facts import figures
from tests.inside.browser import open_page, page

NAMES = ("overview", "attention")


@pytest.fixture(scope="module")
def translated() -> LookInputs:
    run = open_plain("tatoeba-de-en")
    return LookInputs(run=run, trace=trace(run, "Der alte Mann liest ein gutes Buch."))


def test_a_head_that_looks_at_one_token_is_found_with_the_token() -> None:
    weights_HTS = torch.full((2, 8, 8), 1 / 8)
    weights_HTS[1] = 0.02
    weights_HTS[1, :, 3] = 0.86
    share_H, place_H = attention_sink(weights_HTS)
    assert share_H.tolist() == pytest.approx([1 / 8, 0.86])
    assert place_H[1] == 3
    assert evenness(weights_HTS).tolist()[0] == pytest.approx(1.0)
    assert evenness(weights_HTS).tolist()[1] < 0.5


def test_a_causal_head_is_judged_by_rows_that_have_a_choice() -> None:
    """In the first rows nearly everything goes to the first token, whatever the head does."""
    even_HTS = torch.ones(1, 20, 20).tril()
    even_HTS /= even_HTS.sum(-1, keepdim=True)
    assert float(attention_sink(even_HTS)[0]) < 0.2
    assert float(evenness(even_HTS)) == pytest.approx(1.0, abs=1e-5)
    assert float(attention_sink(even_HTS[:, :4, :4])[0]) == 0.0  # too short to say


def test_a_dead_head_is_named(translated: LookInputs) -> None:
    assert translated.run is not None
    module = translated.run.model.decoder.blocks[0].cross
    width = module.d_head
    assert min(loudness(translated, "cross", 0)) > 0.05
    with torch.no_grad():
        kept = module.to_out.weight[:, width : 2 * width].clone()
        module.to_out.weight[:, width : 2 * width] = 0
        try:
            assert loudness(translated, "cross", 0)[1] == 0.0
            warnings = section(translated)["warnings"]
        finally:
            module.to_out.weight[:, width : 2 * width] = kept
    (dead,) = [warning for warning in warnings if "dead" in warning["text"]]
    assert [head for head, _, _ in dead["heads"]] == ["cross.0.1"]
    assert dead["text"].startswith("1 ")


def test_the_answer_has_the_probabilities_of_the_model(translated: LookInputs) -> None:
    answer = section(translated)["answer"]
    scores_RC = translated.trace.scores_RC
    assert scores_RC is not None
    for item, output, row_C in zip(
        answer["items"], translated.trace.reading.outputs, scores_RC.softmax(-1), strict=True
    ):
        assert item["p"] == pytest.approx(float(row_C[output.id]))
        assert item["choices"][0][1] == pytest.approx(float(row_C.max()))
        assert sum(p for _, p in item["choices"]) <= 1


def test_warnings_name_unknown_tokens_heads_off_and_hidden_tokens(translated: LookInputs) -> None:
    run = translated.run
    assert run is not None
    stream = translated.trace.reading.streams["source"]
    ids = (run.vocab.source.unk, *stream.ids[1:])
    streams = {**translated.trace.reading.streams, "source": replace(stream, ids=ids)}
    found = replace(
        translated.trace,
        reading=replace(translated.trace.reading, streams=streams, finished=False),
        meta={"off": ["cross.0.1"], "hidden": [["source", 1]]},
    )
    ended = replace(found, reading=replace(found.reading, finished=True))
    cut, *result = [
        warning["text"] for warning in section(LookInputs(run=run, trace=found))["warnings"]
    ]
    # What was cut has one warning more, which comes first.
    assert result == [one["text"] for one in section(LookInputs(run=run, trace=ended))["warnings"]]
    assert cut not in result
    assert figures(result[0]) == ["1"]
    assert "cross 1.2" in result[1]
    assert display_piece(stream.pieces[1]) in result[2]


def test_the_page_shows_them(browser: Any, translated: LookInputs, tmp_path: Path) -> None:
    html = page("one", [look_data("final", translated, NAMES)], {})
    opened = open_page(browser, html, tmp_path)
    assert "importance" in opened.locator("[data-card=notes] .note").inner_text()
    run = translated.run
    assert run is not None
    count = sum(parameter.numel() for parameter in run.model.parameters())
    number = opened.locator("[data-number=parameters]").inner_text()
    assert number == f"{count:,}"  # as a report has it
    scores_RC = translated.trace.scores_RC
    assert scores_RC is not None
    probs_RC = scores_RC.softmax(-1)
    outputs = translated.trace.reading.outputs
    pieces = opened.locator(".token").all()
    assert [piece.inner_text() for piece in pieces] == [
        display_piece(output.name) for output in outputs
    ]
    for row, (piece, output) in enumerate(zip(pieces, outputs, strict=True)):
        value = float(piece.get_attribute("data-value"))
        assert value == pytest.approx(float(probs_RC[row, output.id]), rel=1e-6)
    pieces[2].click()
    bars = [float(bar.get_attribute("data-value")) for bar in opened.locator(".bar").all()]
    assert bars == pytest.approx(probs_RC[2].topk(5).values.tolist())
    opened.locator(".thumbs button").nth(1).click()
    state = opened.state()
    place = [state[key] for key in ("tab", "kind", "layer", "map")]
    assert place == ["attention", "cross", "1", "mean"]
    opened.close()


def test_a_continued_text_shows_the_given_part_apart(browser: Any, tmp_path: Path) -> None:
    run = open_plain("stories")
    found = trace(run, "Once upon a time there was a", GenerationOptions(max_new_tokens=6))
    opened = open_page(
        browser, page("t", [look_data("final", LookInputs(run=run, trace=found), NAMES)]), tmp_path
    )
    given, written = opened.locator(".tokens").all()[:2]
    assert given.inner_text().replace("\n", "").replace(" ", "").startswith("Onceupon")
    assert written.locator(".token").count() == 6 + 1  # and what would come next
    opened.close()


def test_no_answer_is_shown_without_outputs(browser: Any, tmp_path: Path) -> None:
    found = trace(open_plain("stories"), "Once upon a time", GenerationOptions(max_new_tokens=2))
    bare = replace(found, reading=replace(found.reading, outputs=()))
    for given in (bare, replace(bare, scores_RC=None)):
        look = look_data("A", LookInputs(trace=given), NAMES)
        opened = open_page(browser, page("t", [look]), tmp_path)
        assert opened.locator("[data-card=answer]").count() == 0
        assert opened.locator("[data-card=notes]").count() == 1
        opened.close()


def test_a_trace_alone_has_an_overview_too() -> None:
    run = open_plain("stories")
    found = trace(run, "Once upon a time", GenerationOptions(max_new_tokens=2))
    made = section(LookInputs(trace=found))
    assert made is not None
    assert [number["name"] for number in made["numbers"]] == ["layers", "heads"]
    bare = SimpleNamespace(trace=found, run=None)
    assert section(bare)["answer"]["items"]
