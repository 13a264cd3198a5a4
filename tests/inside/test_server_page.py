"""A served page answers with what Python gives for the same change, and says so in a browser."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway.errors import UserError
from headway.inside.capture.interventions import NO_INTERVENTION, Intervention
from headway.inside.capture.reading import DEFAULT_OPTIONS, GenerationOptions
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.checkpoints import stage_at
from headway.inside.measure.heads import heads
from headway.inside.measure.pruning_curve import save_head_analysis
from headway.inside.page.live import LivePage, LookRequest, initial_request
from headway.inside.page.look import LookOptions
from headway.serve.application import create_app
from headway.serve.look import LookService, live_page
from headway.serve.server import running
from headway.settings.decode import DecodeSettings
from headway.settings.folder import SHIPPED
from headway.tasks.loaded_run import LoadedRun, open_plain
from headway.web.pack import unpack

from ..interop.padded_runs import tiny_run
from .browser import browser as browser
from .kept_runs import kept_run

TEXT = "Ich gehe heute nach Hause."


@pytest.fixture(scope="module")
def translator() -> LoadedRun:
    return open_plain(SHIPPED / "tatoeba-de-en")


@contextmanager
def served(run: LoadedRun, text: str = TEXT) -> Iterator[str]:
    held = headway.load(run.folder, device="cpu")
    html, live = live_page(held, text, DEFAULT_OPTIONS, Intervention(), LookOptions())
    app = create_app([held], home=html, looks=LookService(4, {held.name: live}))
    with running(app) as url:
        yield url


def post(url: str, **keys: Any) -> dict[str, Any]:
    body = json.dumps(keys).encode()
    kind = {"Content-Type": "application/json", "Accept": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/look", body, kind)
    with urllib.request.urlopen(asked, timeout=120) as answer:
        found = json.loads(answer.read())
    shown = unpack(found["packed"])
    assert len(shown["looks"]) == 1
    return shown


def assert_shows(shown: dict[str, Any], found: Trace) -> None:
    """The page's data are the trace's: tokens, outputs and every weight of attention."""
    seen = shown["looks"][0]
    assert [output["id"] for output in seen["outputs"]] == [
        output.id for output in found.reading.outputs
    ]
    kinds = {kind["name"]: kind for kind in seen["sections"]["attention"]["kinds"]}
    assert kinds.keys() == found.attention.keys()
    for name, layers in found.attention.items():
        for array, weights_HTS in zip(kinds[name]["layers"], layers, strict=True):
            np.testing.assert_allclose(array, weights_HTS.numpy(), atol=1 / 255)


REQUESTS: dict[str, tuple[dict[str, Any], GenerationOptions, Intervention]] = {
    "plain": ({}, DEFAULT_OPTIONS, Intervention()),
    "a hidden token": (
        {"hidden": [["source", 2]]},
        DEFAULT_OPTIONS,
        Intervention(hidden=frozenset({("source", 2)})),
    ),
    "heads off": (
        {"off": ["cross.0.1", "encoder.1.2"]},
        DEFAULT_OPTIONS,
        Intervention(disabled_heads=frozenset({("cross", 0, 1), ("encoder", 1, 2)})),
    ),
    "a forced beginning": ({"force": "go ba"}, GenerationOptions(prefix="go ba"), Intervention()),
    "an output given": ({"output": "fi ko"}, GenerationOptions(output="fi ko"), Intervention()),
    "another beam": (
        {"beam": 1, "length_penalty_alpha": 0.0},
        GenerationOptions(decode=DecodeSettings(beam=1, length_penalty_alpha=0.0, max_len=12)),
        Intervention(),
    ),
    "drawn": (
        {"temperature": 1.5, "seed": 7},
        GenerationOptions(
            decode=DecodeSettings(beam=2, sample=True, temperature=1.5, seed=7, max_len=12)
        ),
        Intervention(),
    ),
}


def test_the_server_answers_with_what_python_gives(tmp_path: Path) -> None:
    run, text = open_plain(kept_run(tmp_path / "tiny")), "ba de fi ko"
    seen = set()
    with served(run, text) as server:
        for name, (keys, ask, change) in REQUESTS.items():
            found = trace(run, text, ask, change)
            shown = post(server, text=text, **keys)
            assert_shows(shown, found)
            assert shown["shared"]["live"]["request"]["text"] == text, name
            seen.add(float(found.states["decoder"][-1].norm()))
    assert len(seen) >= 6  # a beam of 1 may find what one of 2 finds; all others are changes


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"text": " "}, "text="),
        ({"text": "a", "hidden": [["source", 99]]}, r"\b100\b.*\bsource\b.*\b2\b"),
        ({"text": "a", "hidden": [["sauce", 0]]}, "'sauce'"),
        ({"text": "a", "off": ["cross.9.0"]}, r"\bcross\b.*\b2\b.*\b10\b"),
        ({"text": "a", "off": ["self.0.0"]}, "'self'"),
        ({"text": "a", "checkpoint": "step 7"}, "'step 7'"),
        ({"text": "a", "temperature": -1}, "temperature=-1"),
        ({"text": "a", "length_penalty_alpha": -1}, "alpha=-1"),
        ({"text": "ja " * 400}, r"\b402\b.*\b128\b"),
        ({"text": "a", "output": "yes " * 4900}, r"\b9,8\d\d\b.*\b178\b"),
        ({"text": "a", "force": "yes " * 4900}, r"\b9,8\d\d\b.*\b178\b"),
        (
            {"text": "a", "force": "yes " * 4900, "hidden": [["source", 0]]},
            r"\b9,8\d\d\b.*\b178\b",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_requests_are_an_error(
    translator: LoadedRun, keys: dict[str, Any], message: str
) -> None:
    request = LookRequest(**{**keys, "hidden": tuple(map(tuple, keys.get("hidden", [])))})
    with pytest.raises(UserError, match=message):
        LivePage.of(translator, DEFAULT_OPTIONS, LookOptions()).page(request)


def test_too_many_weights_are_an_error_before_they_are_computed(
    translator: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["headway.inside.capture.trace"]  # the function has its name
    monkeypatch.setattr(module, "MOST_WEIGHTS", 1000)
    trace(translator, "ja", GenerationOptions(output="yes"))
    with pytest.raises(UserError, match=r"\b5\b.*\b42\b.*\b1,000\b"):
        trace(translator, "ja ja ja ja", GenerationOptions(output="yes " * 20))


@pytest.mark.parametrize("id", [2**31, 2**63, -1])
def test_an_output_with_unknown_token_ids_is_an_error(translator: LoadedRun, id: int) -> None:
    with pytest.raises(UserError, match=rf"(?<!\d){id}\b"):
        trace(translator, "ja", GenerationOptions(output=[5, id]))


@pytest.mark.parametrize("task", ["complete", "fill", "classify", "tag", "embed"])
def test_every_task_can_be_served(tmp_path: Path, task: str) -> None:
    folder = kept_run(tmp_path / task, task, steps=(5,))
    run = open_plain(folder)
    live = LivePage.of(run, DEFAULT_OPTIONS, LookOptions())
    text = "ba [MASK] de ko" if task == "fill" else "ba de fi ko"
    shown = unpack(live.page(LookRequest(text=text, hidden=(("text", 1),))).packed)
    assert_shows(shown, trace(run, text, change=Intervention(hidden=frozenset({("text", 1)}))))
    strip = shown["shared"]["live"]
    assert strip["checkpoints"] == ["step 5", "final"]
    assert strip["writes"] == (task == "complete")
    early = unpack(live.page(LookRequest(text=text, checkpoint="step 5")).packed)
    assert_shows(early, trace(stage_at(run, folder / "checkpoints/step-5").run, text))
    if task != "complete":
        with pytest.raises(UserError, match=rf"\b{task}\b"):
            live.page(LookRequest(text=text, force="ba"))


def test_heads_of_a_checkpoint_are_its_own(tmp_path: Path) -> None:
    run = open_plain(kept_run(tmp_path / "tiny"))
    save_head_analysis(run.folder, heads(run, ["ba de", "go fi ko"]), None)
    live = LivePage.of(run, DEFAULT_OPTIONS, LookOptions())
    for label, n_texts in (("final", 2), ("step 10", 1)):
        shown = unpack(live.page(LookRequest(text="ba de fi", checkpoint=label)).packed)
        assert shown["looks"][0]["sections"]["heads"]["n_texts"] == n_texts


def test_saliency_maps_are_made_on_request(tmp_path: Path) -> None:
    live = LivePage.of(
        open_plain(kept_run(tmp_path / "lm", "complete")), DEFAULT_OPTIONS, LookOptions()
    )
    for maps in (False, True):
        shown = unpack(live.page(LookRequest(text="ba de fi", maps=maps, new=2)).packed)
        assert ("saliency" in shown["looks"][0]["sections"]) == maps


def test_the_walk_follows_the_requested_token(tmp_path: Path) -> None:
    live = LivePage.of(
        open_plain(kept_run(tmp_path / "lm", "complete")), DEFAULT_OPTIONS, LookOptions()
    )
    shown = unpack(live.page(LookRequest(text="ba de fi", walk=("self", 1, 2, 0))).packed)
    at = shown["looks"][0]["sections"]["walk"]["at"]
    assert at == {"kind": "self", "layer": 1, "head": 2, "row": 0}
    with pytest.raises(UserError):
        live.page(LookRequest(text="ba de fi", walk=("self", 9, 2, 0)))


def test_the_first_request_has_the_options_of_the_command() -> None:
    ask = GenerationOptions(output="We sleep.", prefix="We", max_new_tokens=5)
    change = Intervention(
        hidden=frozenset({("source", 1)}), disabled_heads=frozenset({("cross", 0, 1)})
    )
    request = initial_request("a", ask, change)
    assert request == LookRequest(
        text="a", output="We sleep.", force="We", new=5, hidden=(("source", 1),), off=("cross.0.1",)
    )
    assert request.change() == change


class Browsed:
    """The served page in a browser, which may speak to that server and to nobody else."""

    def __init__(self, browser: Any, server: str, state: str = "") -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.page = self.context.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(f"{server}/{state}")
        self.page.wait_for_selector("#root[data-drawn]")
        self.answers = 0

    def after(self, act: Callable[[], None]) -> None:
        """Does something that asks the server, and waits for the answer."""
        act()
        self.answers += 1
        self.page.wait_for_selector(f"[data-live=said][data-answers='{self.answers}']")

    def text(self, name: str) -> str:
        return str(self.page.text_content(f"[data-live={name}]"))


def test_the_strip_requests_other_texts_and_changes(browser: Any, translator: LoadedRun) -> None:
    @cache
    def answer(
        text: str, ask: GenerationOptions = DEFAULT_OPTIONS, change: Intervention = NO_INTERVENTION
    ) -> str:
        ids = trace(translator, text, ask, change).reading.last.ids[1:]
        return translator.vocab.target.decode(ids)

    with served(translator) as server:
        there = Browsed(browser, server, "#tab=attention&kind=cross&layer=1&head=2")
        page = there.page
        assert there.text("answer").endswith(answer(TEXT))

        text = "Der Hund schläft im Garten."
        page.fill("[data-live=text]", text)
        there.after(lambda: page.press("[data-live=text]", "Enter"))
        assert there.text("answer").endswith(answer(text))
        assert "tab=attention" in page.url  # the state is kept
        assert page.get_attribute("#root", "data-drawn") == "attention"

        place = trace(translator, text).reading.first.pieces.index("▁Hund")
        there.after(lambda: page.click(f"[data-hide='{place}']"))
        hidden = Intervention(hidden=frozenset({("source", place)}))
        assert there.text("answer").endswith(answer(text, DEFAULT_OPTIONS, hidden))
        assert answer(text, DEFAULT_OPTIONS, hidden) != answer(text)
        assert page.get_attribute(f"[data-hide='{place}']", "aria-pressed") == "true"
        there.after(lambda: page.click(f"[data-hide='{place}']"))
        assert there.text("answer").endswith(answer(text))

        there.after(lambda: page.click("[data-live=off]"))
        assert page.get_attribute("[data-off]", "data-off") == "cross.1.2"
        off = Intervention(disabled_heads=frozenset({("cross", 1, 2)}))
        assert there.text("answer").endswith(answer(text, DEFAULT_OPTIONS, off))
        there.after(lambda: page.click("[data-live=reset]"))
        assert page.locator("[data-off]").count() == 0

        page.fill("[data-live=force]", "Our")
        there.after(lambda: page.press("[data-live=force]", "Enter"))
        assert there.text("answer").endswith(answer(text, GenerationOptions(prefix="Our")))

        for name, value in (("temperature", "0.9"), ("seed", "5"), ("seed", "")):
            page.fill(f"[data-live={name}]", value)
            there.after(lambda name=name: page.press(f"[data-live={name}]", "Enter"))
        assert "--bad" not in (page.get_attribute("[data-live=said]", "style") or "")
        assert page.input_value("[data-live=seed]") == "1"  # an empty field has its default

        page.fill("[data-live=text]", "")
        there.after(lambda: page.click("[data-live=go]"))
        assert "--bad" in page.get_attribute("[data-live=said]", "style")
        there.context.close()
        assert there.complaints == []
        assert all(url.startswith((server, "data:", "blob:")) for url in there.asked)


def test_the_strip_switches_off_the_head_that_is_shown(browser: Any, translator: LoadedRun) -> None:
    with served(translator) as server:
        there = Browsed(browser, server, "#tab=attention")
        page = there.page
        assert page.locator("h2").nth(1).inner_text() == "cross 2.1"
        assert there.text("off").endswith("cross 2.1")
        page.click("[data-tab=overview]")
        assert there.text("off").endswith("cross 2.1")
        page.click("[data-tab=walk]")
        at = [page.input_value(f"[data-walk={key}]") for key in ("kind", "layer", "head")]
        assert page.get_attribute("[data-live=off]", "data-head") == ".".join(at)
        page.click("[data-tab=attention]")
        page.click("[data-head='encoder.2.3']")
        assert there.text("off").endswith("encoder 3.4")
        page.click("[data-tab=heads]")
        assert there.text("off").endswith("encoder 3.4")
        page.click("[data-tab=attention]")
        there.after(lambda: page.click("[data-live=off]"))
        assert page.get_attribute("[data-off]", "data-off") == "encoder.2.3"
        there.context.close()
        assert there.complaints == []


def test_the_strip_names_the_head_of_the_map(browser: Any, tmp_path: Path) -> None:
    held = headway.load(kept_run(tmp_path / "tiny"), device="cpu")
    live = LivePage.of(held.opened.inspection_copy(), DEFAULT_OPTIONS, LookOptions())
    html = live.page(LookRequest(text="ba de fi ko", maps=True)).live_html
    with running(create_app([held], home=html)) as server:
        there = Browsed(browser, server, "#tab=saliency&kind=encoder&saliencyMap=head&layer=0")
        assert there.page.locator(".chip[data-key=head]").inner_text().endswith("cross 1.1")
        assert there.text("off").endswith("cross 1.1")
        there.context.close()
        assert there.complaints == []


def test_a_model_without_attention_has_no_heads_to_switch_off(browser: Any, tmp_path: Path) -> None:
    with served(open_plain(tiny_run(tmp_path / "lstm", "classify", "lstm-additive"))) as server:
        there = Browsed(browser, server)
        assert there.page.locator("[data-hide]").count() > 0
        assert there.page.locator("[data-live=off]").count() == 0
        there.context.close()
        assert there.complaints == []


def test_a_text_with_markup_stays_text(browser: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)> ba"
    with served(open_plain(kept_run(tmp_path / "tags", "tag")), evil) as server:
        there = Browsed(browser, server)
        assert there.page.locator("img").count() == 0
        assert there.page.input_value("[data-live=text]") == evil
        there.context.close()
        assert there.complaints == []
