"""The page at `/` in a real browser: it asks, shows, looks inside, and runs nobody's text."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.run import Run
from headway.serve.keys import Keys
from headway.settings.folder import SHIPPED
from tests.inside.browser import browser as browser
from tests.interop.padded_runs import media_run
from tests.training.labelled import SHORT, TINY

from .conftest import Here, serving, wait_for

WAV, PNG = SHIPPED / "digits/example.wav", SHIPPED / "shapes/example.png"
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


class There:
    """A browser at the page; it may speak to that server and to nobody else."""

    def __init__(self, browser: Any, url: str, **more: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1000, "height": 820}, **more)
        self.page = self.context.new_page()
        self.url, self.asked, self.complaints = url, [], []  # type: ignore[var-annotated]
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(f"{url}/")
        self.page.wait_for_selector("#root[data-drawn]")

    def _said(self, message: Any) -> None:
        if message.type == "error" and "401" not in message.text and "422" not in message.text:
            self.complaints.append(message.text)

    def choose(self, name: str) -> None:
        self.page.select_option("[data-serve=model]", name)

    def send(self, wait: str = "[data-serve=latency]") -> str:
        self.page.click("[data-serve=go]")
        self.page.wait_for_selector(wait)
        self.page.wait_for_selector("#root[data-drawn='try done']")
        found = self.page.locator("[data-serve=text]")
        return str(found.inner_text()) if found.count() else ""

    def image(self, name: str) -> None:
        """Kept where someone wants to look at it: HEADWAY_IMAGES=folder."""
        if folder := os.environ.get("HEADWAY_IMAGES"):
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []
        assert all(url.startswith((self.url, "blob:", "data:")) for url in self.asked)


@pytest.fixture
def there(browser: Any, here: Here) -> Iterator[There]:
    found = There(browser, here.url)
    yield found
    found.close()


def test_translate_with_alternatives_and_lines_that_work(
    there: There, here: Here, runs: dict[str, Run]
) -> None:
    page, text = there.page, "Es ist kalt; 'wirklich'."
    page.fill("[data-serve=input]", text)
    page.click("summary")
    page.fill("[data-option=n_best]", "3")
    want = runs["tatoeba-de-en"](text, n_best=3)
    assert there.send() == want.text
    shown = page.locator("[data-serve=alternative]").all_inner_texts()
    assert shown == [want.text, *(other.text for other in want.others)]
    assert " ms" in page.inner_text("[data-serve=latency]")
    words = shlex.split(page.inner_text("[data-serve=curl]"))
    assert words[:2] == ["curl", f"{here.url}/v1/predict"]
    body = words[words.index("-d") + 1]
    kind = {"Content-Type": "application/json"}
    response = here.post("/v1/predict", content=body, headers=kind).json()
    assert response["answer"]["outputs"][0]["text"] == want.text
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.click("div:has(> [data-serve=curl]) > header button")  # as on a page that came without TLS
    assert shlex.split(page.evaluate("String(getSelection())")) == words
    code = page.inner_text("[data-serve=python]")
    assert f'headway.load("tatoeba-de-en")("{text}", n_best=3)' in code
    said_by_python: list[Any] = []
    exec(code, {"print": said_by_python.append})
    assert said_by_python[0]["outputs"][0]["text"] == want.text
    assert said_by_python[1].text == want.text
    there.image("translate")


def test_a_translator_gives_as_many_lines_as_it_was_given(
    there: There, here: Here, runs: dict[str, Run]
) -> None:
    page, lines = there.page, ["Hallo.", "Wie geht es dir?", "", "Gut."]
    page.fill("[data-serve=input]", "\n".join(lines))
    want = "\n".join(runs["tatoeba-de-en"](line).text if line else "" for line in lines)
    there.send()
    assert page.text_content("[data-serve=text]") == want
    found: list[Any] = []
    exec(page.inner_text("[data-serve=python]"), {"print": found.append})
    assert [one["outputs"][0]["text"] for one in found[0]] == want.replace("\n\n", "\n").split("\n")
    assert [one.text for one in found[1]] == want.replace("\n\n", "\n").split("\n")


def test_embed_has_one_box_and_texts_stay_with_their_model(
    there: There, runs: dict[str, Run]
) -> None:
    page = there.page
    page.fill("[data-serve=input]", "Guten Tag.")
    there.choose("base-en")
    assert page.locator("[data-serve=input]").count() == 1
    assert page.input_value("[data-serve=input]") == ""
    page.fill("[data-serve=input]", "a small house")
    size = len(runs["base-en"]("a small house").vector)
    assert re.findall(r"\d+", there.send()) == [str(size)]
    there.image("embed")
    there.choose("tatoeba-de-en")
    assert page.input_value("[data-serve=input]") == "Guten Tag."


def test_an_empty_input_sends_no_request(there: There) -> None:
    page = there.page
    for button in ("go", "look"):
        page.reload()
        page.click(f"[data-serve={button}]")
        page.wait_for_selector("[data-serve=wrong]")
        assert len(there.context.pages) == 1
    assert not any("v1/predict" in url or "v1/look" in url for url in there.asked)
    page.fill("[data-serve=input]", "Ja.")
    assert there.send()
    assert page.locator("[data-serve=wrong]").count() == 0


def test_boxes_keep_their_state_during_a_request(there: There) -> None:
    page = there.page
    page.fill("[data-serve=input]", "Guten Tag.")
    page.click("summary")
    page.evaluate("document.querySelector('[data-serve=input]').setSelectionRange(3, 5)")
    page.press("[data-serve=input]", "Control+Enter")
    page.wait_for_selector("[data-serve=latency]")
    box = "document.activeElement"
    assert page.evaluate(f"[{box}.dataset.serve, {box}.selectionStart, {box}.selectionEnd]") == [
        "input", 3, 5
    ]  # fmt: skip
    assert page.evaluate("document.querySelector('[data-serve=options]').open")
    assert page.locator(".option label").first.inner_text().startswith("n best")
    assert page.locator("#help-n_best").is_visible()  # also where nothing can be hovered


def test_by_keyboard(there: There) -> None:
    page = there.page
    page.focus("[role=tablist] [role=tab][aria-selected=true]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("[data-tab=api][aria-selected=true]:focus")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector("[data-tab=try][aria-selected=true]:focus")
    there.choose("shapes")
    page.focus("[data-serve=model]")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.serve") == "file"


def test_complete_appears_as_it_is_written_and_can_be_stopped(
    there: There, here: Here, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    from .test_faults import settled, slow_steps

    page = there.page
    there.choose("stories")
    page.fill("[data-serve=input]", "Once upon a time")
    page.click("summary")
    page.fill("[data-option=max_len]", "40")
    page.select_option("[data-option=sample]", "no")
    page.fill("[data-option=beam]", "1")
    want = runs["stories"]("Once upon a time", sample=False, beam=1, max_len=40).text
    with slow_steps(monkeypatch, 0.03):
        page.press("[data-serve=input]", "Control+Enter")
        page.wait_for_selector("[data-serve=growing]")
        growing = page.locator("[data-serve=growing]")
        wait_for(lambda: len(growing.inner_text()) > 21)
        early = growing.inner_text().removeprefix("Once upon a time")
        assert want.startswith(early)
        assert early != want
        there.image("complete-growing")
        page.wait_for_selector("[data-serve=latency]")
    assert page.inner_text("[data-serve=text]") == "Once upon a time" + want
    # Until the end and until the first token.
    assert len(re.findall(r"\d+ ms", page.inner_text("[data-serve=latency]"))) == 2
    there.image("complete")
    with slow_steps(monkeypatch, 0.05):
        page.fill("[data-option=max_len]", "250")
        page.click("[data-serve=go]")
        page.wait_for_selector("[data-serve=growing]")
        page.click("[data-serve=stop]")
        page.wait_for_selector("[data-serve=wrong]")
        assert settled(here, 4)


def test_caption_and_transcribe_a_file_that_is_chosen(there: There) -> None:
    page = there.page
    there.choose("shapes")
    page.set_input_files("[data-serve=file]", str(PNG))
    page.wait_for_selector(".drop img")
    assert there.send() == "a purple square left of a yellow circle"
    assert "-F 'file=@example.png'" in page.inner_text("[data-serve=curl]")
    there.image("caption")
    there.choose("digits")
    assert there.send("[data-serve=wrong]") == ""
    assert page.inner_text("[data-serve=wrong]")
    page.set_input_files("[data-serve=file]", str(WAV))
    page.wait_for_selector(".drop audio")
    assert there.send("[data-serve=text]") == "three eight six eight four"
    assert page.locator(".words span").count() == 5
    there.image("transcribe")


def test_record_from_the_microphone(there: There) -> None:
    """Chromium's own: a beep a second, of which nothing but a file of audio is expected."""
    page = there.page
    there.choose("digits")
    there.context.grant_permissions(["microphone"], origin=there.url)
    page.click("[data-serve=record]")
    page.wait_for_selector("[data-serve=record]:has-text('■')")
    page.wait_for_timeout(600)
    page.click("[data-serve=record]")
    page.wait_for_selector(".drop audio")
    assert "recording.wav" in page.inner_text("[data-serve=drop]")
    there.send()
    assert page.locator("[data-serve=wrong]").count() == 0
    assert "-F 'file=@recording.wav'" in page.inner_text("[data-serve=curl]")


@pytest.mark.parametrize("how", ["model", "key"])
def test_the_microphone_is_off_after_another_choice(there: There, how: str) -> None:
    page = there.page
    page.evaluate("""() => {
      const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
      navigator.mediaDevices.getUserMedia = async (asked) => (window.heard = await real(asked));
    }""")
    there.choose("digits")
    there.context.grant_permissions(["microphone"], origin=there.url)
    page.click("[data-serve=record]")
    page.wait_for_selector("[data-serve=record]:has-text('■')")
    state = "heard.getTracks().map((track) => track.readyState)"
    assert page.evaluate(state) == ["live"]
    if how == "model":
        there.choose("stories")
    else:
        page.evaluate("begin()")
        page.wait_for_selector("[data-serve=input]")
    assert page.evaluate(state) == ["ended"]
    there.choose("digits")
    assert "●" in page.inner_text("[data-serve=record]")
    assert page.locator(".drop audio").count() == 0


def test_files_that_are_not_shown_any_more_are_let_go(there: There) -> None:
    page = there.page
    page.evaluate("""() => {
      window.kept = new Set();
      const make = URL.createObjectURL, drop = URL.revokeObjectURL;
      URL.createObjectURL = (file) => { const url = make(file); kept.add(url); return url; };
      URL.revokeObjectURL = (url) => { kept.delete(url); drop(url); };
    }""")
    there.choose("shapes")
    for _ in range(3):
        page.set_input_files("[data-serve=file]", str(PNG))
        page.wait_for_selector(".drop img")
    there.send()
    assert page.evaluate("kept.size") == 1
    there.choose("stories")
    assert page.evaluate("kept.size") == 0


def test_look_inside_opens_the_page_of_this_input(there: There) -> None:
    page = there.page
    page.fill("[data-serve=input]", "Der Hund schläft.")
    page.click("summary")
    page.fill("[data-option=beam]", "2")
    page.fill("[data-option=length_penalty_alpha]", "0.25")
    with there.context.expect_page() as opened:
        page.click("[data-serve=look]")
    look = opened.value
    look.wait_for_selector("#root[data-drawn]", timeout=60_000)
    assert look.input_value("[data-live=text]") == "Der Hund schläft."
    asked = look.evaluate("LIVE.draft")
    assert (asked["beam"], asked["length_penalty_alpha"], asked["temperature"]) == (2, 0.25, None)
    look.fill("[data-live=text]", "Die Katze schläft.")
    look.press("[data-live=text]", "Enter")
    look.wait_for_selector("[data-live=said][data-answers='1']", timeout=60_000)
    assert re.search(r"\d+ ms", look.text_content("[data-live=said]"))


@pytest.mark.slow
def test_look_inside_a_image_that_was_sent(there: There) -> None:
    page = there.page
    there.choose("shapes")
    page.set_input_files("[data-serve=file]", str(PNG))
    with there.context.expect_page() as opened:
        page.click("[data-serve=look]")
    look = opened.value
    look.wait_for_selector("#root[data-drawn]", timeout=60_000)
    assert look.locator("[data-tab=image]").count() == 1
    look.click("[data-live=go]")  # the image is kept: the page can be asked again
    look.wait_for_selector("[data-live=said][data-answers='1']", timeout=60_000)
    assert re.search(r"\d+ ms", look.text_content("[data-live=said]"))


def test_classify_a_text_and_labels_that_are_markup(browser: Any, tmp_path: Path) -> None:
    rows = [(f"ba de {n} gut", EVIL if n % 2 else "plain") for n in range(40)]
    rows = [(text + (" schlecht" if n % 2 else ""), label) for n, (text, label) in enumerate(rows)]
    small = {
        **TINY, **SHORT, "data.valid_size": 4, "tokenizer.kind": "words", "train.steps": 2,
        "train.threads": 1,
    }  # fmt: skip
    data = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    run = headway.train(
        "classify", data, out=tmp_path / "labels", settings=small, device="cpu", quiet=True
    )
    with serving(run) as here:
        there = There(browser, here.url)
        there.page.fill("[data-serve=input]", f"ba {EVIL}")
        want = run(f"ba {EVIL}")
        assert there.send() == want.text
        shown = there.page.inner_text("[data-serve=answer]")
        assert EVIL in shown
        assert "plain" in shown
        assert there.page.locator("#panel img, #panel script").count() == 0
        there.image("classify")
        there.close()


def test_the_most_probable_of_many_classes_of_an_image_are_shown(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.tasks.format.MOST_CLASSES", 2)
    run = headway.load(media_run(tmp_path / "see", "see"), device="cpu")
    want = run(PNG)
    with serving(run) as here:
        there = There(browser, here.url)
        there.page.set_input_files("[data-serve=file]", PNG)
        assert there.send() == want.text
        shown = there.page.locator("[data-serve=answer] .bar .name").all_inner_texts()
        assert shown == sorted(want.probabilities, key=want.probabilities.get, reverse=True)
        there.close()


def test_markup_in_answers_names_and_errors_stays_text(there: There, tmp_path: Path) -> None:
    page = there.page
    there.choose("stories")
    page.fill("[data-serve=input]", EVIL)
    page.click("summary")
    page.fill("[data-option=max_len]", "3")
    assert EVIL in there.send()
    there.choose("shapes")
    path = tmp_path / "<img src=x onerror=alert(3)>.png"
    path.write_bytes(b"no image")
    page.set_input_files("[data-serve=file]", str(path))
    there.send("[data-serve=wrong]")
    assert page.locator("img[src=x]").count() == 0


def test_the_page_needs_the_key_and_keeps_it_in_the_tab(browser: Any, runs: dict[str, Run]) -> None:
    with serving(runs["tatoeba-de-en"], keys=Keys.of("secret")) as here:
        there = There(browser, here.url)
        page = there.page
        page.fill("[data-serve=key]", "wrong")
        page.press("[data-serve=key]", "Enter")
        page.wait_for_selector(".wrong")
        there.image("key")
        page.fill("[data-serve=key]", "secret")
        page.press("[data-serve=key]", "Enter")
        page.fill("[data-serve=input]", "Ja.")
        assert there.send()
        assert "Bearer $KEY" in page.inner_text("[data-serve=curl]")
        assert "secret" not in page.content()
        with there.context.expect_page() as opened:
            page.click("[data-serve=look]")
        look = opened.value
        look.wait_for_selector("#root[data-drawn]", timeout=60_000)
        look.fill("[data-live=text]", "Nein.")
        look.press("[data-live=text]", "Enter")
        look.wait_for_selector("[data-live=said][data-answers='1']", timeout=60_000)
        assert re.search(r"\d+ ms", look.text_content("[data-live=said]"))
        page.click("[data-tab=api]")
        with page.expect_download() as saved:  # which a link could not, without the key
            page.click("[data-serve=openapi]")
        assert "/translate" in json.loads(saved.value.path().read_text())["paths"]
        page.click("[data-serve=forget]")
        page.wait_for_selector("[data-serve=key]")
        there.close()


def test_phone_dark_and_the_list_of_routes(browser: Any, here: Here) -> None:
    there = There(browser, here.url, color_scheme="dark")
    page = there.page
    page.set_viewport_size({"width": 390, "height": 780})
    assert page.get_attribute("html", "data-theme") == "dark"
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390
    there.image("phone-dark")
    page.click("[data-tab=api]")
    page.get_by_text("POST /v1/completions").click()
    route = page.locator("details.route[open]")
    shown = route.inner_text()
    for found in (
        "max_tokens\tinteger or null",
        "choices\tlist of object required",
        "429 The queue",
    ):
        assert found in shown
    words = shlex.split(route.locator("[data-serve=example]").inner_text())
    body = words[words.index("-d") + 1]
    kind = {"Content-Type": "application/json"}
    assert here.post("/v1/completions", content=body, headers=kind).status_code == 200
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    there.image("routes")
    page.click("[data-tab=try]")
    page.wait_for_selector("[data-serve=input]")
    there.close()


def test_the_policy_blocks_inline_scripts(here: Here) -> None:
    response = here.get("/")
    policy = response.headers["content-security-policy"]
    assert "'unsafe-inline'" not in policy
    assert "script-src 'self'" in policy
    assert "default-src 'none'" in policy
    assert not re.search(r"<script(?![^>]* src=)|<style|style=|\son\w+=", response.text)
