"""A recording with its words: attention, times and CTC are what the model computed."""

from __future__ import annotations

import base64
import io
import re
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.decode.speech.recognizer import recognizer_of
from headway.inside.capture.media import MediaInput
from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.audio_alignment import (
    by_ctc,
    by_heads,
    ctc_log_probs,
    find_word_timings,
)
from headway.inside.page.look import Page, prepare_look, run_facts
from headway.inside.page.sections import audio as audio
from headway.inside.page.sections import look_data
from headway.models.parts.audio import AudioFront
from headway.settings.model import AudioSettings
from headway.web.pack import unpack

from .browser import open_page
from .media_runs import AUDIO, RATE, html, item_for, looked, media_for, media_run


def unpacked(html: str) -> dict[str, Any]:
    found: dict[str, Any] = unpack(html)["looks"][0]["sections"]["audio"]
    return found


@pytest.mark.parametrize("task", ["transcribe-joint", "identify", "transcribe-ctc"])
def test_the_page_holds_the_numbers_of_the_trace(task: str) -> None:
    run = looked(task).run
    held = unpacked(html(task))
    found, kind = looked(task).trace, "cross" if task == "transcribe-joint" else "self"
    rows = [output.row for output in found.reading.outputs]
    for layer, weights_HRS in enumerate(held["heads"]):
        true_HTS = found.attention[kind][layer]
        true_HRS = true_HTS.mean(1, keepdim=True) if task == "identify" else true_HTS[:, rows]
        np.testing.assert_allclose(weights_HRS, true_HRS.numpy(), rtol=1e-3, atol=1e-6)
    front = run.model.source_front if kind == "cross" else run.model.front
    assert isinstance(front, AudioFront)
    mel_AF = front.mel(front.collate([item_for(run)])[0]).numpy()
    np.testing.assert_allclose(held["mel"], mel_AF, atol=1e-5 + np.ptp(mel_AF) / 500)
    assert abs(held["wave"]).max() == pytest.approx(1.0, abs=1e-3)
    if task != "identify":
        logs_SV = ctc_log_probs(run, found)
        shown = held["ctc"]["probabilities"]
        np.testing.assert_allclose(shown[-1], logs_SV[:, -1].exp().numpy(), rtol=1e-3, atol=1e-5)
        assert held["ctc"]["names"][-1] == "∅"


def test_a_recording_can_be_played_if_it_is_short() -> None:
    run = media_run("identify")
    held = unpacked(html("identify"))
    kind, _, code = held["audio"].partition(",")
    assert kind == "data:audio/wav;base64"
    with wave.open(io.BytesIO(base64.b64decode(code))) as file:
        assert (file.getframerate(), file.getnframes()) == (RATE, len(item_for(run)))
        samples = np.frombuffer(file.readframes(10**6), "<i2") / 32767
    assert np.abs(samples - item_for(run)).max() < 1e-4
    long = MediaInput.of("long.wav", np.zeros(150_001, np.float32), AUDIO)
    assert audio._playable(long) is None


def test_silence_that_was_filled_in_is_not_shown() -> None:
    padded = AudioSettings(**{**vars(AUDIO), "pad_s": 3.0})
    run = media_run("transcribe", audio=padded)
    media = media_for(run)
    assert (media.n_rows, media.n_unpadded_rows) == (150, 45)
    seen = prepare_look(run, media, GenerationOptions(output="one two"))
    held = unpacked(Page("t", [look_data("final", seen, ["audio"])], {}, run_facts(run)).html)
    assert held["heads"][0].shape[-1] == 45
    assert held["mel"].shape[0] == 90


def test_ctc_tells_the_rows_that_the_transcriber_tells() -> None:
    run = media_run("transcribe-joint")
    found = trace(run, media_for(run), GenerationOptions(output="one two three"))
    logs_SV = ctc_log_probs(run, found)
    assert logs_SV is not None
    ear = recognizer_of(run.model, run.vocab.target, run.settings.decode, 0.3)
    ids = [output.id for output in found.reading.outputs[:-1]]
    [again] = ear.align([item_for(run)], [ids])
    assert by_ctc(logs_SV, found.reading)[:-1] == again.rows


def planted(times: list[tuple[float, float]], run: Any = None) -> Trace:
    """Three words, and heads 0.1 and 1.3 that look where each is said; the end looks behind. Only
    the last layer is chosen from: below it heads may look at the word before."""
    run = media_run("transcribe") if run is None else run
    found = trace(run, media_for(run), GenerationOptions(output="one two three"))
    row_s, n_rows = AUDIO.row_seconds, len(found.reading.first)
    weights_TS = torch.full((4, n_rows), 1e-3)
    for t, (start, end) in enumerate([*times, (times[-1][1], 0.9)]):
        weights_TS[t, round(start / row_s) : round(end / row_s)] = 1.0
    weights_TS /= weights_TS.sum(-1, keepdim=True)
    layers = [torch.full((4, 4, n_rows), 1 / n_rows) for _ in range(2)]
    layers[0][1] = layers[1][3] = weights_TS
    return replace(found, attention={**found.attention, "cross": layers})


TIMES = [(0.0, 0.2), (0.2, 0.5), (0.5, 0.74)]


def test_heads_that_follow_the_audio_are_found_and_tell_the_times() -> None:
    found = planted(TIMES)
    aligned = by_heads(found)
    assert aligned.heads == [(1, 3)]
    assert aligned.shares[0][1] > 0.9 > aligned.shares[0][0]
    assert by_heads(found, [(0, 1)]).rows == aligned.rows
    row_s = AUDIO.row_seconds
    for (first, last), (start, end) in zip(aligned.rows[:3], TIMES, strict=True):
        assert first == pytest.approx(start / row_s, abs=1)
        assert last == pytest.approx(end / row_s, abs=1)
    words = find_word_timings(found.reading, aligned.rows, found.scores_RC)
    assert [word.text for word in words] == ["one", "two", "three"]
    for word, (start, end) in zip(words, TIMES, strict=True):
        assert abs(word.start - start) <= row_s
        assert abs(word.end - end) <= row_s


def test_the_sentence_on_the_line_has_the_share_that_it_holds() -> None:
    aligned = by_heads(planted(TIMES))
    assert aligned.coverage.follows_audio
    assert aligned.coverage.on_path > 0.9
    assert f"{aligned.coverage.on_path:.0%}" in aligned.describe()


def test_heads_that_look_anywhere_do_not_follow_the_audio() -> None:
    """One head that looks behind for the first word and ahead for the last: some path is the best
    through it, and holds little."""
    found = planted(TIMES)
    backwards = {**found.attention}
    backwards["cross"] = [x_HTS.flip(1) for x_HTS in found.attention["cross"]]
    seen = replace(looked("transcribe"), trace=replace(found, attention=backwards))
    aligned = by_heads(seen.trace)
    assert not aligned.coverage.follows_audio
    made = audio.section(seen)
    assert not made["follows"]
    assert f"{aligned.coverage.on_path:.0%}" in made["says"]
    followed = audio.section(replace(looked("transcribe"), trace=found))
    assert followed["follows"]
    # The sentences differ in more than their numbers.
    assert re.sub(r"\d+", "", made["says"]) != re.sub(r"\d+", "", followed["says"])
    assert made["times"][0]["how"] != followed["times"][0]["how"]


def pausing(run: Any) -> Any:
    """Three bursts of audio with clear pauses between them."""
    samples = np.random.default_rng(0).normal(size=len(item_for(run))).astype(np.float32)
    time = np.arange(len(samples)) / RATE
    for start, end in ((0.0, 0.04), (0.24, 0.32), (0.52, 0.6), (0.84, 9.0)):
        samples[(time >= start) & (time < end)] = 0.0
    return samples / np.abs(samples).max()


def test_the_page_has_the_times_of_each_way_before_and_after_the_pauses() -> None:
    """CTC hears the words elsewhere than the heads: the pauses make both the same, and the page
    still has what each heard."""
    run = media_run("transcribe-joint")
    found = planted(TIMES, run)
    media = replace(found.reading.media, item=pausing(run))
    found = replace(found, reading=replace(found.reading, media=media))
    facts = {"own_ms": {"CTC": 90.0}, "median_ms": {"CTC": 6.0}, "words": 3}
    seen = replace(looked("transcribe-joint"), run=run, trace=found,
                   truth={"maps": {}, "facts": {"times": facts}})  # fmt: skip
    ctc, attention = audio.section(seen)["times"]
    assert [ctc["key"], attention["key"]] == ["CTC", "attention"]
    assert [word["moved"] for word in ctc["words"]] == [
        word["moved"] for word in attention["words"]
    ]
    assert ctc["words"][1]["moved"] == pytest.approx([0.32, 0.52])
    own = [[(word["start"], word["end"]) for word in way["words"]] for way in (ctc, attention)]
    assert own[0] != own[1]
    rows = by_heads(found).rows[1]
    assert own[1][1] == pytest.approx([row * AUDIO.row_seconds for row in rows])
    assert (ctc["own_ms"], ctc["median_ms"], attention["own_ms"]) == (90.0, 6.0, None)


@pytest.mark.parametrize(("aligning", "first"), [(0.4, "norm"), (0.95, "aligning")])
def test_the_map_that_was_measured_to_point_best_is_shown_first(
    aligning: float, first: str
) -> None:
    maps = {"aligning": {"p1": aligning}, "norm": {"p1": 0.9}, "cross.0.max": {"p1": 1.0}}
    made = audio.section(replace(looked("transcribe"), truth={"maps": maps}))
    assert (made["first"]["map"], made["first"]["measured"]) == (first, True)
    assert not audio.section(looked("transcribe"))["first"]["measured"]


def boxes(shown: Any, selector: str) -> list[dict[str, float]]:
    found = [node.bounding_box() for node in shown.locator(selector).all()]
    return [box for box in found if box]


def overlap(a: dict[str, float], b: dict[str, float]) -> bool:
    return all(
        a[at] + a[size] > b[at] + 1 and b[at] + b[size] > a[at] + 1
        for at, size in (("x", "width"), ("y", "height"))
    )


@pytest.mark.parametrize("width", [390, 1200])
def test_labels_of_words_never_lie_on_each_other(browser: Any, tmp_path: Path, width: int) -> None:
    seen = replace(looked("transcribe"), trace=planted([(0.0, 0.04), (0.04, 0.06), (0.06, 0.1)]))
    look = look_data("final", seen, ["audio"])
    [way] = look["sections"]["audio"]["times"]
    short = [
        {"text": "eight", "start": 0.02 * n, "end": 0.02 * n + 0.01, "confidence": 1.0,
         "moved": [0.1 * n, 0.1 * n + 0.05]}
        for n in range(9)
    ]  # fmt: skip
    way["words"] = [*short, {**short[0], "text": "a", "start": 0.89, "end": 0.9}]
    page = Page("t", [look], {}, run_facts(seen.run)).html
    shown = open_page(browser, page, tmp_path, width=width, state="tab=audio")
    for selector in ("[data-word]", "[data-moved]", ".names button"):
        found = boxes(shown, selector)
        assert len(found) == (4 if selector == ".names button" else 10)
        assert not [(a, b) for n, a in enumerate(found) for b in found[:n] if overlap(a, b)]
    labels = shown.locator("[data-word] span").all()
    assert len(labels) >= 4
    for label in labels:  # no text is cut
        assert label.evaluate("n => n.getBoundingClientRect().right <= "
                              "n.parentNode.getBoundingClientRect().right + 1")  # fmt: skip
    ticks = shown.locator("[data-word].tick")
    assert len(labels) + ticks.count() == 10
    if ticks.count():
        assert ticks.first.get_attribute("title").startswith("eight: ")
    shown.close()


def test_many_weights_are_cut_to_the_heads_that_align(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MOST_CELLS", 100)
    seen = looked("transcribe")
    made = audio.section(replace(seen, trace=planted(TIMES, seen.run)))
    assert made["heads"] is None
    assert set(made["some"]) == {"1.3"}
    assert len(made["means"]) == 2


def test_the_panel_shows_words_path_and_numbers(browser: Any, tmp_path: Path) -> None:
    run = looked("transcribe").run
    found = planted(TIMES, run)
    own = {"attention": 61.0, "evenly": 310.0}
    times = {"own_ms": own, "median_ms": {"attention": 21.4, "evenly": 240.0}, "words": 60}
    truth = {"maps": {"aligning": {"p1": 0.98, "random": 0.2, "n": 60}}, "facts": {"times": times}}
    seen = replace(looked("transcribe"), trace=found, truth=truth)
    planted_html = Page("t", [look_data("final", seen, ["audio"])], {}, run_facts(run)).html
    shown = open_page(browser, planted_html, tmp_path, state="tab=audio")
    words = shown.locator("[data-word]")
    assert words.all_inner_texts() == ["one", "two", "three"]
    held = unpacked(planted_html)["times"][0]["words"]
    assert float(words.nth(1).get_attribute("data-start")) == pytest.approx(held[1]["start"])
    points = shown.locator(".path polyline").get_attribute("points").split()
    across = [float(point.split(",")[0]) for point in points]
    assert across == sorted(across)
    printed = shown.locator("[data-times]").inner_text()
    assert re.search(r"attention 61 ms, evenly 310 ms\D*attention 21 ms, evenly 240 ms", printed)
    heads = shown.locator("[data-card=times] thead").inner_text()
    assert re.search(r"attention\D*61 ms", heads)
    assert shown.locator("[data-says]").inner_text() == by_heads(found).describe()
    assert "P@1 0.98" in shown.locator("[data-truth]").inner_text()
    box = shown.locator(".looked").bounding_box()
    shown.mouse.move(box["x"] + box["width"] * 0.35 / 0.9, box["y"] + box["height"] * 1.5 / 4)
    value = shown.locator(".says [data-value]")
    row, place = int(value.get_attribute("data-row")), int(value.get_attribute("data-place"))
    assert (row, place) == (1, int(0.35 / AUDIO.row_seconds))
    true = float(found.attention["cross"][1][3, row, place])
    assert float(value.get_attribute("data-value")) == pytest.approx(true, rel=2e-3)
    shown.locator("[data-key=head]").first.click()
    shown.keyboard.press("ArrowUp")
    assert shown.state()["audioMap"] == "head"
    assert shown.locator("[data-key=play]").count() == 1
    shown.close()


@pytest.mark.parametrize("task", ["identify", "transcribe-joint"])
def test_a_narrow_screen_has_all_of_it(browser: Any, tmp_path: Path, task: str) -> None:
    shown = open_page(browser, html(task), tmp_path, width=400, dark=True,
                      state="tab=audio")  # fmt: skip
    assert shown.evaluate("document.documentElement.scrollWidth") <= 400
    for tab in ("overview", "walk", "attention", "lens", "neurons", "heads"):
        shown.tab(tab)
    shown.close()
