"""LibreTranslate's routes, so that its browser extensions and client libraries work unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headway.run import Run
from headway.serve.asking import checked_options, inputs_of, parse_json
from headway.serve.problems import Refused
from headway.serve.routes.route import TEXT, Route, an, an_object
from headway.serve.sentences import put_back, sentences
from headway.serve.service import Service, kind_of, one_of, response
from headway.serve.worker import Worker
from headway.tasks.answers import Answer

NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish",
    "de": "German", "el": "Greek", "en": "English", "eo": "Esperanto", "es": "Spanish",
    "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French", "ga": "Irish",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "la": "Latin", "lt": "Lithuanian",
    "lv": "Latvian", "nb": "Norwegian", "nl": "Dutch", "no": "Norwegian", "pl": "Polish",
    "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian",
    "sr": "Serbian", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
CODE = re.compile(r"[a-z]{2,3}")
PAIR = re.compile(r"(?:^|[-_.])([a-z]{2,3})[-_]([a-z]{2,3})$")


def languages_of(run: Run) -> tuple[str, str] | None:
    """Source and target language, from the endings of the training files or the run's name."""
    data = run.settings.data
    if data.source and data.target:
        ends = [Path(files[0]).suffix[1:].lower() for files in (data.source, data.target)]
        if all(end in NAMES for end in ends):
            return ends[0], ends[1]
    found = PAIR.search(run.name.lower())
    if found and all(code in NAMES for code in found.groups()):
        return found[1], found[2]
    return None


def translators(service: Service) -> dict[tuple[str, str], Worker]:
    found: dict[tuple[str, str], Worker] = {}
    for worker in service.workers.values():
        if worker.spec.reads == "pairs":
            pair = service.languages.get(worker.name) or languages_of(worker.run)
            if pair is not None:
                found.setdefault(pair, worker)
    return found


async def languages(service: Service, request: Request) -> Response:
    known = translators(service)
    codes = sorted({code for pair in known for code in pair})
    return response([
        {"code": code, "name": NAMES.get(code, code),
         "targets": sorted(target for source, target in known if source == code)}
        for code in codes
    ])  # fmt: skip


async def translate(service: Service, request: Request) -> Response:
    given = await fields(service, request)
    for name in ("api_key", "secret"):  # `secret`: sent by LibreTranslate's own page
        given.pop(name, None)
    texts, source = given.pop("q", None), given.pop("source", None)
    target = given.pop("target", None)
    form: Any = given.pop("format", None) or "text"
    n = given.pop("alternatives", None) or 0
    if isinstance(n, str) and n.isascii() and n.isdigit() and len(n) < 9:
        n = int(n)
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < service.limits.n:
        raise Refused(
            422, f"alternatives must be an integer from 0 to {service.limits.n - 1}.",
            param="alternatives",
        )  # fmt: skip
    if form not in ("text", "html"):
        raise Refused(422, "format must be text or html.", param="format")
    if given:
        name = next(iter(given))[:60]
        raise Refused(422, f"unknown field {name!r} in the request.", param=name)
    several = isinstance(texts, list)
    asked = texts if isinstance(texts, list) else [texts]
    if not all(isinstance(one, str) for one in asked):
        raise Refused(422, "q must be a string or a list of strings.", param="q")
    worker = _translator(service, source, target)
    options: dict[str, Any] = {}
    if n:
        beam = max(worker.run.settings.decode.beam, n + 1)
        options = {"n_best": n + 1, "beam": min(beam, service.limits.beams), "groups": 1}
    asked = inputs_of(worker.run, asked, service.limits)
    known = await service.reading(lambda: [sentences(one, form) for one in asked])
    said = [sentence.text for of_one in known for sentence in of_one]
    options = checked_options(options, service.options(worker))
    answers: list[Answer] = []
    if said:
        answers = (await service.ask(request, worker, said, options, checked=True)).answers
    for answer in answers:
        if answer.error:
            raise Refused(422, answer.error, param="q")
    found = [[answer.text, *(other.text for other in answer.others)] for answer in answers]
    made: list[list[str]] = []
    for text, of_one in zip(asked, known, strict=True):
        mine, found = found[: len(of_one)], found[len(of_one) :]
        # Alternative k joins output k of every sentence, or its last output if it has fewer.
        made.append([
            put_back(text, of_one, [outs[min(k, len(outs) - 1)] for outs in mine], form)
            for k in range(max(map(len, mine), default=1))
        ])  # fmt: skip
    out = [outs[0] for outs in made]
    body: dict[str, Any] = {"translatedText": out if several else out[0]}
    if n:
        rest = [outs[1:] for outs in made]
        body["alternatives"] = rest if several else rest[0]
    return response(body)


def _translator(service: Service, source: object, target: object) -> Worker:
    known = translators(service)
    source, target = (one.lower() if isinstance(one, str) else one for one in (source, target))
    shown = ", ".join(f"{one} to {other}" for one, other in known) or "none"
    if not known:
        raise Refused(
            404, "no served model is known as a translator. Start the server with its languages: "
            "--languages RUN=de-en.", code="model_not_found",
        )  # fmt: skip
    if source in (None, "", "auto"):
        able = [worker for pair, worker in known.items() if pair[1] == target]
        if len(able) != 1:
            raise Refused(
                422, f"set source: the language of a text is not detected. Served: {shown}.",
                param="source",
            )  # fmt: skip
        return able[0]
    worker = known.get((str(source), str(target)))
    if worker is None:
        raise Refused(
            422,
            f"no model translates {str(source)[:20]!r} to {str(target)[:20]!r}. Served: {shown}.",
            param="target",
        )
    return worker


async def detect(service: Service, request: Request) -> Response:
    """Reject the request: no model detects languages, and a guess would look like a result."""
    raise Refused(
        404, "language detection is not supported. Set source in requests to /translate.",
        code="not_offered",
    )  # fmt: skip


async def fields(service: Service, request: Request) -> dict[str, Any]:
    """Return the fields of a JSON body or of either kind of form."""
    kind = kind_of(request)
    if kind == "application/json":
        return parse_json(await service.body(request, service.limits.body))
    if kind not in ("application/x-www-form-urlencoded", "multipart/form-data"):
        raise Refused(415, "Content-Type must be application/json or that of a form.")
    form = await service.form(request)
    found: dict[str, Any] = {name: one_of(form, name) for name in form if name != "q"}
    texts: Mapping[str, Any] = {"q": form.get("q", [])}
    found["q"] = texts["q"][0] if len(texts["q"]) == 1 else texts["q"]
    return found


LANGUAGE = an_object(("code", "name", "targets"), code=TEXT, name=TEXT)
BODY = an_object(
    ("q", "source", "target"), q={"description": "A text, or a list of texts."}, target=TEXT,
    source={**TEXT, "description": "auto works if only one model has this target."},
    format=an("string", enum=["text", "html"]), api_key=TEXT,
    alternatives=an("integer", description="Number of alternative translations per text."),
)  # fmt: skip
ROUTES = (
    Route(
        method="POST", path="/translate", queues=True, answer=translate, body=BODY, urlencoded=True,
        key_in_body=True, plain_errors=True, summary="Translate texts or HTML.",
        gives={"application/json": an_object(
            ("translatedText",), translatedText={"description": "One translation per text of q."},
            alternatives={"description": "Alternative translations of each text."})},
    ),
    Route(
        method="GET", path="/languages", answer=languages, key_in_body=True, plain_errors=True,
        summary="List source languages with their target languages.",
        gives={"application/json": an("array", items=LANGUAGE)},
        codes=(400, 401, 403, 408, 413, 429),
    ),
    Route(
        method="POST", path="/detect", answer=detect, body=an_object(("q",), q=TEXT),
        urlencoded=True, key_in_body=True, plain_errors=True,
        summary="Language detection is not supported: always 404.",
        gives={"application/json": an("array")},
    ),
)  # fmt: skip
