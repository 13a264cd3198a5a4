"""LibreTranslate's clients, unchanged."""

from __future__ import annotations

from typing import Any
from urllib.error import HTTPError

import pytest
from libretranslatepy import LibreTranslateAPI

import headway
from headway.run import Run
from headway.serve.keys import Keys
from headway.serve.routes.libretranslate import languages_of

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
        assert here.post("/translate", {"q": "Ja."}).json()["error"].startswith("a key is needed")
        client = LibreTranslateAPI(here.url, api_key="secret")
        assert client.translate("Ja.", "de", "en")
        assert client.languages()[0]["code"] == "de"


@pytest.mark.parametrize("source", ["de", "auto", None])
def test_lists_and_alternatives(here: Here, runs: dict[str, Run], source: str | None) -> None:
    body: dict[str, Any] = {"q": ["Ja.", "Danke."], "target": "en", "alternatives": 2}
    if source is not None:
        body["source"] = source
    said = here.post("/translate", body).json()
    want = [runs["tatoeba-de-en"](text, n_best=3, beam=4) for text in body["q"]]
    assert said["translatedText"] == [one.text for one in want]
    assert said["alternatives"] == [[other.text for other in one.others] for one in want]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"alternatives": 10_000}, "from 0 to 7"),
        ({"alternatives": -1}, "from 0 to 7"),
        ({"format": "html"}, "markup is not translated"),
        ({"q": 3}, "q must be"),
        ({"target": "fr"}, "Known: de to en"),
        ({"foo": 3}, "no field 'foo'"),
    ],
)
def test_what_is_refused(here: Here, more: dict[str, Any], message: str) -> None:
    said = here.post("/translate", {"q": "Ja.", "source": "de", "target": "en", **more})
    assert said.status_code == 422
    assert message in said.json()["error"]  # its clients show it as it is


def test_languages_come_from_files_names_or_the_operator() -> None:
    assert languages_of(headway.load("tatoeba-de-en")) == ("de", "en")
    assert languages_of(headway.load("tatoeba-en-de")) == ("en", "de")
    assert languages_of(headway.load("stories")) is None
