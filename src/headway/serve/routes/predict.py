"""Headway's own routes: `/v1/predict`, `/v1/look` and the list of models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from headway.errors import UserError
from headway.serve.errors import RequestRejected
from headway.serve.routes.route import ANY, TEXT, Route, event_stream_schema, object_schema, schema
from headway.serve.service import (
    EventStreamResponse,
    Service,
    json_response,
    media_type_of,
    result_of,
    single_field,
    to_json,
)
from headway.serve.validation import Upload, as_rejection, check_value_count, parse_json
from headway.serve.worker import InferenceWorker
from headway.tasks.answers import Answer


def any_model(worker: InferenceWorker) -> bool:
    return True


async def predict(service: Service, request: Request) -> Response:
    """Return the answers in the format of `headway predict --json`."""
    given = await _request_fields(service, request)
    worker = service.select_worker(given.pop("model", None), any_model, "answers requests")
    if worker.spec.is_text:
        await service.body(request, service.limits.body)  # already read: check its size
    options = given.pop("options", None)
    if options is not None and not isinstance(options, dict):
        raise RequestRejected(422, "options must be a JSON object.", param="options")
    stream = given.pop("stream", None) or False
    if not isinstance(stream, bool):
        raise RequestRejected(422, "stream must be true or false.", param="stream")
    several, one = given.pop("inputs", None), given.pop("input", None)
    if given:
        name = next(iter(given))
        raise RequestRejected(422, f"unknown field {name[:60]!r} in the request.", param=name[:60])
    if (several is None) == (one is None):
        raise RequestRejected(
            422, "send exactly one of the fields input and inputs.", param="input"
        )
    if several is not None and not isinstance(several, list):
        raise RequestRejected(422, "inputs must be a list.", param="inputs")
    inputs: Sequence[Any] = [one] if several is None else several
    if stream:
        return await _stream_answers(service, worker, inputs, options or {})
    asked = await service.run_request(request, worker, inputs, options or {})
    if several is not None:
        return json_response(
            {"model": worker.name, "answers": [answer_json(one) for one in asked.answers]}
        )
    [answer] = asked.answers
    if answer.error:
        raise RequestRejected(422, answer.error, param="input")
    return json_response({"model": worker.name, "answer": answer_json(answer)})


def answer_json(answer: Answer) -> dict[str, Any]:
    """Convert an answer to the format of `headway predict --json`."""
    found = answer.to_dict()
    return found if answer.id is None else {"id": answer.id, **found}


async def _request_fields(service: Service, request: Request) -> dict[str, Any]:
    """Return the fields of a JSON body or a form."""
    kind = media_type_of(request)
    if kind == "application/json":
        body = await service.body(request, service.max_body_bytes)
        if len(body) > service.limits.body:
            check_value_count(body)
        return parse_json(body)
    if kind != "multipart/form-data":
        raise RequestRejected(415, "Content-Type must be application/json or multipart/form-data.")
    form = await service.form(request)
    found: dict[str, Any] = {}
    files = [one for name in ("file", "files", "input", "inputs") for one in form.pop(name, [])]
    for name in ("model", "options", "stream"):
        if name in form:
            found[name] = single_field(form, name)
            del form[name]
    if form:
        name = next(iter(form))
        raise RequestRejected(422, f"unknown field {name[:60]!r} in the form.", param=name[:60])
    if "options" in found:
        said = str(found["options"] or "{}").encode("utf-8", "replace")
        found["options"] = parse_json(said, "options")
    if "stream" in found:
        found["stream"] = {"true": True, "false": False}.get(str(found["stream"]), found["stream"])
    for one in files:
        if isinstance(one, str) and not one.isprintable() and "\x00" in one:
            raise RequestRejected(
                422, "a text in the form contains a NUL character.", param="input"
            )
    if len(files) == 1:
        return {**found, "input": files[0]}
    return {**found, "inputs": files}


async def _stream_answers(
    service: Service, worker: InferenceWorker, inputs: Sequence[Any], options: Mapping[str, Any]
) -> Response:
    """Send answers as server-sent events: pieces of text once they are final, then the complete
    answers."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    ticket = await service.submit(
        worker, inputs, options, on_piece=lambda n, w, text: queue.put_nowait((n, w, text))
    )

    async def events() -> AsyncIterator[bytes]:
        try:
            async for piece in service.pieces(ticket, queue):
                if piece is None:
                    yield b": alive\n\n"
                else:
                    number, w, text = piece
                    yield sse_event({"input": number, "output": w, "text": text})
            answers = [answer_json(one) for one in result_of(ticket)]
            yield sse_event({"model": worker.name, "answers": answers})
        except RequestRejected as error:
            yield sse_event(error.body())
        yield b"data: [DONE]\n\n"

    return EventStreamResponse(events(), ticket)


def sse_event(content: Any) -> bytes:
    return b"data: " + to_json(content) + b"\n\n"


async def look(service: Service, request: Request) -> Response:
    """Return the page of `headway look` for one input as HTML, or its data as JSON."""
    kind = media_type_of(request)
    data = None
    if kind == "application/json":
        values = parse_json(await service.body(request, service.limits.body))
    elif kind == "multipart/form-data":
        form = await service.form(request)
        values = {}
        for name, all_of in form.items():
            if name == "file" and isinstance(all_of[0], Upload):
                data = all_of[0].data or None
            elif name == "request":
                said = (single_field(form, name) or "{}").encode("utf-8", "replace")
                values |= parse_json(said, name)
            else:
                values[name] = single_field(form, name)
    else:
        raise RequestRejected(415, "Content-Type must be application/json or multipart/form-data.")
    values.pop("api_key", None)
    worker = service.select_worker(values.pop("model", None), any_model, "can be inspected")
    if worker.run.opened.engine is not None:
        raise RequestRejected(
            422, f"{worker.name} runs with the engine {worker.run.opened.engine.name}, which does "
            "not expose internal states. Serve the original run instead.",
        )  # fmt: skip
    text = values.get("text")
    if isinstance(text, str) and not text.strip() and worker.spec.is_text:
        raise RequestRejected(422, "text is empty. Send a text to inspect.", param="text")
    if isinstance(text, str) and len(text) > service.limits.characters:
        raise RequestRejected(
            413, f"text has {len(text):,} characters; the limit is {service.limits.characters:,}.",
            param="text",
        )  # fmt: skip
    if service.draining:
        raise RequestRejected(503, "the server is shutting down.", headers={"Retry-After": "5"})
    post = f"{request.scope.get('root_path', '')}/v1/look"
    work = service.looks.submit(worker.run, values, data, post)
    try:
        await service.wait_for(request, work, time.perf_counter())
        page = work.result()
    except UserError as error:
        raise as_rejection(error) from error
    finally:
        work.cancel()  # has an effect only if it has not started
    if "application/json" in request.headers.get("accept", ""):
        return json_response({"packed": page.packed})
    return HTMLResponse(page.live_html)


async def models(service: Service, request: Request) -> Response:
    listed = [model_json(service, worker) for worker in service.workers.values()]
    return json_response({"object": "list", "data": listed})


async def model(service: Service, request: Request) -> Response:
    name = request.path_params["model"]
    return json_response(
        model_json(service, service.select_worker(name, any_model, "answers requests"))
    )


def model_json(service: Service, worker: InferenceWorker) -> dict[str, Any]:
    """Return the description of a model in OpenAI's format. Its field `headway` has additional data
    for the web page."""
    run, spec = worker.run, worker.spec
    known = service.options(worker)
    own = {
        "task": run.task, "reads": spec.modality, "answers": spec.answers, "writes": spec.writes,
        "continues": spec.continues, "inputs": [need.name for need in run.needs],
        "fields": list(run.settings.data.fields), "labels": list(run.labels[:1000]),
        "options": [one.as_json() for one in known.values()], "ready": worker.ready.is_set(),
        "bytes": worker.n_bytes,
    }  # fmt: skip
    created = int(service.started)
    return {
        "id": worker.name, "object": "model", "created": created, "owned_by": "headway",
        "headway": own,
    }  # fmt: skip


ANSWER = object_schema()
PREDICT = object_schema(
    model={**TEXT, "description": "Name of the model; optional if only one is served."},
    input={"description": 'A text, an object of texts, or a media file: {"data": base64}.'},
    inputs=schema("array", items=ANY, description="A list of inputs."),
    options=object_schema(),
    stream=schema("boolean", nullable=True),
)
MODEL = object_schema(("id", "object"), id=TEXT, object=TEXT, created=schema("integer"),
owned_by=TEXT,
                  headway=object_schema())  # fmt: skip
EVENT = object_schema(
    input=schema("integer"),
    output=schema("integer"),
    text=TEXT,
    model=TEXT,
    answers=schema("array", items=ANSWER),
)
"""Schema of an event in a stream. An event has a piece of text, or at the end all answers."""

ROUTES = (
    Route(
        method="POST", path="/v1/predict", queues=True, handler=predict, body=PREDICT,
        summary="Run any model; same answers as `headway predict --json`.",
        form=object_schema(model=TEXT, options={**TEXT, "description": "A JSON object."},
        stream=TEXT,
                       file=schema("array", items=schema("string", format="binary")),
                       input=schema("array", items=TEXT)),
        responses={
            "application/json": object_schema(
                ("model",), model=TEXT, answer=ANSWER, answers=schema("array", items=ANSWER)
            ),
            "text/event-stream": event_stream_schema(
                EVENT, '{"input": 0, "output": 0, "text": " was"}'
            ),
        },
    ),
    Route(
        method="POST", path="/v1/look", handler=look, key_in_body=True,
        summary="The page of `headway look` for one input.",
        body=object_schema(model=TEXT, text=TEXT),
        form=object_schema(model=TEXT, text=TEXT, api_key=TEXT, file=schema("string",
        format="binary")),
        responses={"text/html": TEXT, "application/json": object_schema(("packed",), packed=TEXT)},
    ),
    Route(
        method="GET", path="/v1/models", handler=models, summary="List all models.",
        responses={"application/json": object_schema(
            ("object", "data"), object=TEXT, data=schema("array", items=MODEL))},
        error_codes=(401, 403),
    ),
    Route(
        method="GET", path="/v1/models/{model}", handler=model, summary="Describe one model.",
        responses={"application/json": MODEL}, error_codes=(401, 403, 404),
    ),
)  # fmt: skip
