"""LibreTranslate's clients, unchanged."""

from __future__ import annotations

import html
import re
import time
from typing import Any
from urllib.error import HTTPError

import pytest
from libretranslatepy import LibreTranslateAPI

import headway
from headway.run import Run
from headway.serve.keys import Keys
from headway.serve.routes.libretranslate import languages_of
from headway.serve.segmentation import replace_sentences, split_sentences

from .conftest import Here, serving


def test_the_published_client(here: Here, runs: dict[str, Run]) -> None:
    client = LibreTranslateAPI(here.url)
    assert (
        client.translate("Guten Morgen.", "de", "en") == runs["tatoeba-de-en"]("Guten Morgen.").text
    )
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": []},  # lists of targets are made from these
    ]
    with pytest.raises(HTTPError, match="422"):
        client.translate("Hello", "en", "xx")
    with pytest.raises(HTTPError, match="404"):  # a guess would be passed on as knowledge
        client.detect("Hello")


def test_the_published_client_with_a_key(runs: dict[str, Run]) -> None:
    with serving(runs["tatoeba-de-en"], keys=Keys.of("secret")) as here:
        for key in (None, "wrong"):
            client = LibreTranslateAPI(here.url, api_key=key)
            with pytest.raises(HTTPError, match="401"):
                client.translate("Ja.", "de", "en")
            with pytest.raises(HTTPError, match="401"):
                client.languages()
        response = here.post("/translate", {"q": "Ja."})
        assert response.status_code == 401
        assert isinstance(response.json()["error"], str)
        client = LibreTranslateAPI(here.url, api_key="secret")
        assert client.translate("Ja.", "de", "en")
        assert client.languages()[0]["code"] == "de"


@pytest.mark.parametrize("source", ["de", "auto", None])
def test_lists_and_alternatives(here: Here, runs: dict[str, Run], source: str | None) -> None:
    body: dict[str, Any] = {"q": ["Ja.", "Danke."], "target": "en", "alternatives": 2}
    if source is not None:
        body["source"] = source
    response = here.post("/translate", body).json()
    want = [runs["tatoeba-de-en"](text, n_best=3, beam=4) for text in body["q"]]
    assert response["translatedText"] == [one.text for one in want]
    assert response["alternatives"] == [[other.text for other in one.others] for one in want]


def test_every_sentence_and_every_line_break_is_there(here: Here, runs: dict[str, Run]) -> None:
    run = runs["tatoeba-de-en"]
    text = "Hallo.\nWie geht es dir?\n\n  Gut. Danke! – \r\nIch lese ein Buch. Es ist spät."
    asked = {"q": [text, "", "…"], "source": "DE", "target": "en", "secret": "x"}
    response = here.post("/translate", {**asked, "alternatives": 1}).json()
    want = text
    parts = ("Hallo.", "Wie geht es dir?", "Gut.", "Danke!", "Ich lese ein Buch.", "Es ist spät.")
    for one in parts:
        assert one in want
        want = want.replace(one, run(one, n_best=2, beam=4).text)
    assert response["translatedText"] == [want, "", "…"]
    assert [len(others) for others in response["alternatives"]] == [1, 0, 0]
    assert response["alternatives"][0][0].count("\n") == text.count("\n")


def test_of_a_page_the_text_alone_is_translated(here: Here, runs: dict[str, Run]) -> None:
    page = (
        '<!DOCTYPE html><p title="Guten Tag. Ja > nein">{}\n {}<br/>{}</p><!-- Danke. -->\n'
        '<script>let a = "Guten Morgen.";</script><STYLE>p {{}}</STYLE><b>{}</b>. {}'
    )
    parts = ["Guten Morgen.", "Wie geht\nes dir?", "Tom &amp; Maria schlafen.", "Danke", "Gut."]
    asked = {"q": page.format(*parts), "source": "de", "target": "en", "format": "html"}
    response = here.post("/translate", asked).json()["translatedText"]
    read = [html.unescape(" ".join(one.split())) for one in parts]
    made = [runs["tatoeba-de-en"](one).text for one in read]
    assert response == page.format(*made)
    assert replace_sentences(
        "<b>a</b>", split_sentences("<b>a</b>", "html"), ["x < y"], "html"
    ) == ("<b>x &lt; y</b>")


@pytest.mark.parametrize("part", ["<a ", "<!-- >", "<script", "</script a ", "<a b='>", "&#", ". "])
def test_broken_markup_is_read_once(part: str) -> None:
    """html.parser takes seconds for some of these, and everybody else waits meanwhile."""
    page = part * (20_000 // len(part))
    began = time.process_time()
    found = split_sentences(page, "html")
    assert replace_sentences(page, found, [one.text for one in found], "html")
    assert time.process_time() - began < 0.5


def test_sentences_without_a_space_between_them_get_one() -> None:
    text = "你好。再见！"
    found = split_sentences(text)
    assert [one.text for one in found] == ["你好。", "再见！"]
    assert replace_sentences(text, found, ["Hello.", "Bye!"], "text") == "Hello. Bye!"
    assert replace_sentences(text, found, ["今日は。", "またね！"], "text") == "今日は。またね！"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"alternatives": 10_000}, r"alternatives.*\b7\b"),
        ({"alternatives": -1}, r"alternatives.*\b7\b"),
        ({"format": "pdf"}, r"format.*\btext\b.*\bhtml\b"),
        ({"q": 3}, r"\bq\b"),
        ({"target": "fr"}, r"'fr'.*\bde\b.*\ben\b"),
        ({"foo": 3}, "'foo'"),
    ],
)
def test_invalid_requests_are_rejected(here: Here, more: dict[str, Any], message: str) -> None:
    response = here.post("/translate", {"q": "Ja.", "source": "de", "target": "en", **more})
    assert response.status_code == 422
    assert re.search(message, response.json()["error"])  # its clients show it as it is


def test_languages_come_from_files_names_or_the_operator() -> None:
    assert languages_of(headway.load("tatoeba-de-en")) == ("de", "en")
    assert languages_of(headway.load("tatoeba-en-de")) == ("en", "de")
    assert languages_of(headway.load("stories")) is None
