"""A recording with its words: attention, times and CTC are what the model computed."""

from __future__ import annotations

import base64
import io
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.config.model import SoundSettings
from headway.decode.spelling import speller
from headway.inside.hearing import by_ctc, by_heads, ctc_logs, spoken_words
from headway.inside.looking import Page, facts_of, looked_at
from headway.inside.media import of_item
from headway.inside.packing import unpack
from headway.inside.reading import Ask
from headway.inside.sections import look_of
from headway.inside.sections import sound as sounds
from headway.inside.trace import Trace, trace
from headway.models.parts.sounds import SoundFront

from .browser import open_page
from .media_runs import RATE, SOUND, html, item_for, looked, media_for, media_run


def unpacked(html: str) -> dict[str, Any]:
    found: dict[str, Any] = unpack(html)["looks"][0]["sections"]["sound"]
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
    assert isinstance(front, SoundFront)
    mel_AF = front.mel(front.collate([item_for(run)])[0]).numpy()
    np.testing.assert_allclose(held["mel"], mel_AF, atol=1e-5 + np.ptp(mel_AF) / 500)
    assert abs(held["wave"]).max() == pytest.approx(1.0, abs=1e-3)
    if task != "identify":
        logs_SV = ctc_logs(run, found)
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
    long = of_item("long.wav", np.zeros(150_001, np.float32), SOUND)
    assert sounds._playable(long) is None


def test_silence_that_was_filled_in_is_not_shown() -> None:
    padded = SoundSettings(**{**vars(SOUND), "pad_s": 3.0})
    run = media_run("transcribe", sound=padded)
    media = media_for(run)
    assert (media.n_rows, media.heard_rows) == (150, 45)
    seen = looked_at(run, media, Ask(output="one two"))
    held = unpacked(Page("t", [look_of("final", seen, ["sound"])], {}, facts_of(run)).html)
    assert held["heads"][0].shape[-1] == 45
    assert held["mel"].shape[0] == 90


def test_ctc_tells_the_rows_that_the_transcriber_tells() -> None:
    run = media_run("transcribe-joint")
    found = trace(run, media_for(run), Ask(output="one two three"))
    logs_SV = ctc_logs(run, found)
    assert logs_SV is not None
    ear = speller(run.model, run.vocab.target, run.settings.decode, 0.3)
    ids = [output.id for output in found.reading.outputs[:-1]]
    [rows] = ear.rows([item_for(run)], [ids])
    assert by_ctc(logs_SV, found.reading)[:-1] == rows


def planted(times: list[tuple[float, float]], run: Any = None) -> Trace:
    """Three words, and heads 0.1 and 1.3 that look where each is said; the end looks behind. Only
    the last layer is chosen from: below it heads may look at the word before."""
    run = media_run("transcribe") if run is None else run
    found = trace(run, media_for(run), Ask(output="one two three"))
    row_s, n_rows = SOUND.row_seconds, len(found.reading.first)
    weights_TS = torch.full((4, n_rows), 1e-3)
    for t, (start, end) in enumerate([*times, (times[-1][1], 0.9)]):
        weights_TS[t, round(start / row_s) : round(end / row_s)] = 1.0
    weights_TS /= weights_TS.sum(-1, keepdim=True)
    layers = [torch.full((4, 4, n_rows), 1 / n_rows) for _ in range(2)]
    layers[0][1] = layers[1][3] = weights_TS
    return replace(found, attention={**found.attention, "cross": layers})


TIMES = [(0.0, 0.2), (0.2, 0.5), (0.5, 0.74)]


def test_heads_that_follow_the_sound_are_found_and_tell_the_times() -> None:
    found = planted(TIMES)
    aligned = by_heads(found)
    assert aligned.heads == [(1, 3)]
    assert aligned.shares[0][1] > 0.9 > aligned.shares[0][0]
    assert by_heads(found, [(0, 1)]).rows == aligned.rows
    row_s = SOUND.row_seconds
    for (first, last), (start, end) in zip(aligned.rows[:3], TIMES, strict=True):
        assert first == pytest.approx(start / row_s, abs=1)
        assert last == pytest.approx(end / row_s, abs=1)
    loud = replace(found.reading.media, item=np.random.default_rng(0).normal(
        size=len(found.reading.media.item)).astype(np.float32))  # fmt: skip
    words = spoken_words(replace(found.reading, media=loud), aligned.rows, found.scores_RC)
    assert [word.text for word in words] == ["one", "two", "three"]
    for word, (start, end) in zip(words, TIMES, strict=True):
        assert abs(word.start - start) <= row_s
        assert abs(word.end - end) <= row_s


def test_many_weights_are_cut_to_the_heads_that_align(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sounds, "MOST_CELLS", 100)
    seen = looked("transcribe")
    made = sounds.section(replace(seen, trace=planted(TIMES, seen.run)))
    assert made["heads"] is None
    assert set(made["some"]) == {"1.3"}
    assert len(made["means"]) == 2


def test_the_panel_shows_words_path_and_numbers(browser: Any, tmp_path: Path) -> None:
    run = looked("transcribe").run
    found = planted(TIMES, run)
    times = {"median_ms": {"attention": 21.4, "evenly": 240.0}, "words": 60}
    truth = {"maps": {"aligning": {"p1": 0.98, "random": 0.2, "n": 60}}, "facts": {"times": times}}
    seen = replace(looked("transcribe"), trace=found, truth=truth)
    planted_html = Page("t", [look_of("final", seen, ["sound"])], {}, facts_of(run)).html
    shown = open_page(browser, planted_html, tmp_path, state="tab=sound")
    words = shown.locator("[data-word]")
    assert words.all_inner_texts() == ["one", "two", "three"]
    held = unpacked(planted_html)["times"][0]["words"]
    assert float(words.nth(1).get_attribute("data-start")) == pytest.approx(held[1]["start"])
    points = shown.locator(".path polyline").get_attribute("points").split()
    across = [float(point.split(",")[0]) for point in points]
    assert across == sorted(across)
    assert "attention 21 ms, evenly 240 ms" in shown.locator("[data-times]").inner_text()
    assert "P@1 0.98" in shown.locator("[data-truth]").inner_text()
    box = shown.locator(".looked").bounding_box()
    shown.mouse.move(box["x"] + box["width"] * 0.35 / 0.9, box["y"] + box["height"] * 1.5 / 4)
    value = shown.locator(".says [data-value]")
    row, place = int(value.get_attribute("data-row")), int(value.get_attribute("data-place"))
    assert (row, place) == (1, int(0.35 / SOUND.row_seconds))
    true = float(found.attention["cross"][1][3, row, place])
    assert float(value.get_attribute("data-value")) == pytest.approx(true, rel=2e-3)
    shown.locator("[data-key=head]").first.click()
    shown.keyboard.press("ArrowUp")
    assert shown.state()["soundMap"] == "head"
    assert shown.locator("[data-key=play]").count() == 1
    shown.close()


@pytest.mark.parametrize("task", ["identify", "transcribe-joint"])
def test_a_narrow_screen_has_all_of_it(browser: Any, tmp_path: Path, task: str) -> None:
    shown = open_page(browser, html(task), tmp_path, width=400, dark=True,
                      state="tab=sound")  # fmt: skip
    assert shown.evaluate("document.documentElement.scrollWidth") <= 400
    for tab in ("overview", "walk", "attention", "lens", "neurons", "heads"):
        shown.tab(tab)
    shown.close()
