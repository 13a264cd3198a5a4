"""Routes of LibreTranslate's API, so that its browser extensions and client libraries work
unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headway.run import Run
from headway.serve.errors import RequestRejected
from headway.serve.routes.route import TEXT, Route, object_schema, schema
from headway.serve.segmentation import replace_sentences, split_sentences
from headway.serve.service import Service, json_response, media_type_of, single_field
from headway.serve.validation import checked_inputs, checked_options, parse_json
from headway.serve.worker import InferenceWorker
from headway.tasks.answers import Answer

LANGUAGE_NAMES = {
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
    """Return the source and target language of a translator, from the extensions of its training
    files or from its name. Return None if they are unknown."""
    data = run.settings.data
    if data.source and data.target:
        ends = [Path(files[0]).suffix[1:].lower() for files in (data.source, data.target)]
        if all(end in LANGUAGE_NAMES for end in ends):
            return ends[0], ends[1]
    found = PAIR.search(run.name.lower())
    if found and all(code in LANGUAGE_NAMES for code in found.groups()):
        return found[1], found[2]
    return None


def translators(service: Service) -> dict[tuple[str, str], InferenceWorker]:
    found: dict[tuple[str, str], InferenceWorker] = {}
    for worker in service.workers.values():
        if worker.spec.reads_pairs:
            pair = service.languages.get(worker.name) or languages_of(worker.run)
            if pair is not None:
                found.setdefault(pair, worker)
    return found


async def languages(service: Service, request: Request) -> Response:
    known = translators(service)
    codes = sorted({code for pair in known for code in pair})
    return json_response([
        {"code": code, "name": LANGUAGE_NAMES.get(code, code),
         "targets": sorted(target for source, target in known if source == code)}
        for code in codes
    ])  # fmt: skip


async def translate(service: Service, request: Request) -> Response:
    given = await request_fields(service, request)
    for name in ("api_key", "secret"):  # `secret`: sent by LibreTranslate's own page
        given.pop(name, None)
    texts, source = given.pop("q", None), given.pop("source", None)
    target = given.pop("target", None)
    form: Any = given.pop("format", None) or "text"
    n = given.pop("alternatives", None) or 0
    if isinstance(n, str) and n.isascii() and n.isdigit() and len(n) < 9:
        n = int(n)
    if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < service.limits.n:
        raise RequestRejected(
            422, f"alternatives must be an integer from 0 to {service.limits.n - 1}.",
            param="alternatives",
        )  # fmt: skip
    if form not in ("text", "html"):
        raise RequestRejected(422, "format must be text or html.", param="format")
    if given:
        name = next(iter(given))[:60]
        raise RequestRejected(422, f"unknown field {name!r} in the request.", param=name)
    several = isinstance(texts, list)
    asked = texts if isinstance(texts, list) else [texts]
    if not all(isinstance(one, str) for one in asked):
        raise RequestRejected(422, "q must be a string or a list of strings.", param="q")
    worker = _translator(service, source, target)
    options: dict[str, Any] = {}
    if n:
        beam = max(worker.run.settings.decode.beam, n + 1)
        options = {"n_best": n + 1, "beam": min(beam, service.limits.beams), "groups": 1}
    asked = checked_inputs(worker.run, asked, service.limits)
    known = await service.run_in_thread(lambda: [split_sentences(one, form) for one in asked])
    said = [sentence.text for of_one in known for sentence in of_one]
    options = checked_options(options, service.options(worker))
    answers: list[Answer] = []
    if said:
        answers = (await service.run_request(request, worker, said, options, checked=True)).answers
    for answer in answers:
        if answer.error:
            raise RequestRejected(422, answer.error, param="q")
    found = [[answer.text, *(other.text for other in answer.others)] for answer in answers]
    made: list[list[str]] = []
    for text, of_one in zip(asked, known, strict=True):
        mine, found = found[: len(of_one)], found[len(of_one) :]
        # Alternative k joins output k of all sentences. A sentence with fewer outputs contributes
        # its last one.
        made.append([
            replace_sentences(text, of_one, [outs[min(k, len(outs) - 1)] for outs in mine], form)
            for k in range(max(map(len, mine), default=1))
        ])  # fmt: skip
    out = [outs[0] for outs in made]
    body: dict[str, Any] = {"translatedText": out if several else out[0]}
    if n:
        rest = [outs[1:] for outs in made]
        body["alternatives"] = rest if several else rest[0]
    return json_response(body)


def _translator(service: Service, source: object, target: object) -> InferenceWorker:
    known = translators(service)
    source, target = (one.lower() if isinstance(one, str) else one for one in (source, target))
    shown = ", ".join(f"{one} to {other}" for one, other in known) or "none"
    if not known:
        raise RequestRejected(
            404, "no served model has a known language pair. Start the server with a language "
            "pair, for example --languages RUN=de-en.", code="model_not_found",
        )  # fmt: skip
    if source in (None, "", "auto"):
        able = [worker for pair, worker in known.items() if pair[1] == target]
        if len(able) != 1:
            raise RequestRejected(
                422, "source must be set, because language detection is not supported. Served "
                f"language pairs: {shown}.", param="source",
            )  # fmt: skip
        return able[0]
    worker = known.get((str(source), str(target)))
    if worker is None:
        raise RequestRejected(
            422,
            f"no model translates {str(source)[:20]!r} to {str(target)[:20]!r}. Served language "
            f"pairs: {shown}.",
            param="target",
        )
    return worker


async def detect(service: Service, request: Request) -> Response:
    """Reject the request. No model detects languages, and a guess would look like a result."""
    raise RequestRejected(
        404, "language detection is not supported. Set source in requests to /translate.",
        code="not_offered",
    )  # fmt: skip


async def request_fields(service: Service, request: Request) -> dict[str, Any]:
    """Return the fields of a JSON body, or of a form in either encoding."""
    kind = media_type_of(request)
    if kind == "application/json":
        return parse_json(await service.body(request, service.limits.body))
    if kind not in ("application/x-www-form-urlencoded", "multipart/form-data"):
        raise RequestRejected(
            415, "Content-Type must be application/json, application/x-www-form-urlencoded or "
            "multipart/form-data.",
        )  # fmt: skip
    form = await service.form(request)
    found: dict[str, Any] = {name: single_field(form, name) for name in form if name != "q"}
    texts: Mapping[str, Any] = {"q": form.get("q", [])}
    found["q"] = texts["q"][0] if len(texts["q"]) == 1 else texts["q"]
    return found


LANGUAGE = object_schema(("code", "name", "targets"), code=TEXT, name=TEXT)
BODY = object_schema(
    ("q", "source", "target"), q={"description": "A text, or a list of texts."}, target=TEXT,
    source={**TEXT, "description": "auto works if only one model has this target."},
    format=schema("string", enum=["text", "html"]), api_key=TEXT,
    alternatives=schema("integer", description="Number of alternative translations per text."),
)  # fmt: skip
ROUTES = (
    Route(
        method="POST", path="/translate", queues=True, handler=translate, body=BODY,
        urlencoded=True,
        key_in_body=True, plain_errors=True, summary="Translate texts or HTML.",
        responses={"application/json": object_schema(
            ("translatedText",), translatedText={"description": "One translation per text of q."},
            alternatives={"description": "Alternative translations of each text."})},
    ),
    Route(
        method="GET", path="/languages", handler=languages, key_in_body=True, plain_errors=True,
        summary="List source languages with their target languages.",
        responses={"application/json": schema("array", items=LANGUAGE)},
        error_codes=(400, 401, 403, 408, 413, 429),
    ),
    Route(
        method="POST", path="/detect", handler=detect, body=object_schema(("q",), q=TEXT),
        urlencoded=True, key_in_body=True, plain_errors=True,
        summary="Language detection is not supported: always 404.",
        responses={"application/json": schema("array")},
    ),
)  # fmt: skip
