"""State that all routes share: the models and their workers, the API keys, and the limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headway.decode.continuous import BatchMember
from headway.errors import UserError, suggest
from headway.run import Run
from headway.serve.chat import MOST_PER_CHARACTER, prompt_ids, template_failed, template_values
from headway.serve.errors import ModelFailed, RequestRejected
from headway.serve.keys import Keys
from headway.serve.limits import Limits
from headway.serve.look import LookService
from headway.serve.memory import resident_bytes
from headway.serve.metrics import SECONDS, Metrics
from headway.serve.template import ChatTemplate, TemplateError
from headway.serve.validation import (
    OptionSpec,
    Upload,
    as_rejection,
    checked_inputs,
    checked_options,
    option_specs,
)
from headway.serve.worker import (
    NO_TOKEN_DETAIL,
    InferenceWorker,
    PieceCallback,
    Ticket,
    TokenDetail,
)
from headway.settings.folder import CHAT_TEMPLATE
from headway.tasks.answers import Answer
from headway.tasks.inputs import Inputs
from headway.tasks.inputs import ParsedInput as Question

FORM_URLENCODED = "application/x-www-form-urlencoded"
MAX_INLINE_FORM_BYTES = 50_000
"""Size in bytes up to which a form is parsed in the event loop instead of a thread."""

SSE_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
UNAUTHENTICATED_DIVISOR = 4
"""Divisor of the limit `serve.bodies` for bodies whose API key was not checked yet."""

T = TypeVar("T")

HEARTBEAT_SECONDS = 15.0
"""Seconds without output after which a stream sends a keep-alive comment."""


class ClientGone(Exception):
    """Raised when the client has disconnected."""


class FiniteJSONResponse(JSONResponse):
    """JSON response in which NaN and infinities become null."""

    def render(self, content: Any) -> bytes:
        return to_json(content)


def to_json(content: Any) -> bytes:
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(content), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float) and not -1e308 < value < 1e308:
        return None
    return value


@dataclass(frozen=True)
class PromptTokens:
    """Prompt that was sent as token ids."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class RequestResult:
    """Answers of one request, with the generation state of those that were generated token by
    token."""

    answers: list[Answer]
    members: list[BatchMember | None]


class Service:
    def __init__(
        self,
        runs: Sequence[Run],
        keys: Keys | None,
        limits: Limits,
        *,
        languages: Mapping[str, tuple[str, str]] | None = None,
        looks: LookService | None = None,
    ) -> None:
        if not runs:
            raise UserError("there is no model to serve: pass at least one run.")
        self.keys, self.limits, self.metrics = keys, limits, Metrics()
        self.wakeup = threading.Event()
        """Event that is set when a worker has results for the event loop."""

        self.workers: dict[str, InferenceWorker] = {}
        for run in runs:
            if run.name in self.workers:
                raise UserError(
                    f"two runs are named {run.name!r}, but requests select a model by its name. "
                    "Copy one of them to a folder with another name, or serve it separately."
                )
            self.workers[run.name] = InferenceWorker(run, limits, self.metrics, self.wakeup)
        self.languages = dict(languages or {})
        self.looks = LookService(limits.looks) if looks is None else looks
        self.home: str | None = None
        """HTML of a page that replaces ours at `/`; None: our page."""

        self.draining = False
        self.started = time.time()
        self.in_flight = 0
        """Number of requests in progress, including streams."""

        self.body_bytes = 0
        """Bytes of the bodies of all requests in progress."""

        self.n_thread_calls = 0
        """Number of calls that run in a thread of `run_in_thread`."""

        self.templates: dict[str, ChatTemplate] = {}
        """Chat templates by model name, loaded at the first chat."""

        self._open_tickets: set[Ticket] = set()
        """Accepted requests that are not answered yet."""

        self._option_specs: dict[str, dict[str, OptionSpec]] = {}
        self._readers = ThreadPoolExecutor(4, "headway-read")
        self._reads: set[Future[Any]] = set()
        """Work in the threads of `_readers`. It continues even if its request is cancelled."""

        self.requests = self.metrics.counter(
            "headway_requests_total", "Requests by path and status."
        )
        self.latency = self.metrics.histogram(
            "headway_request_seconds", "Seconds from a request to its complete response.", SECONDS
        )
        self.metrics.gauge(
            "headway_in_flight_requests", "Requests in progress.", lambda: self.in_flight
        )
        self.metrics.gauge(
            "process_resident_memory_bytes",
            "Resident memory of this process in bytes.",
            resident_bytes,
        )
        self.metrics.gauge(
            "headway_draining", "1 while new requests are rejected.", lambda: self.draining
        )

    def start(self) -> None:
        for worker in self.workers.values():
            worker.start()

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop()
        self._end_templates()
        self._readers.shutdown(wait=False, cancel_futures=True)
        self.looks.close()

    def abort_requests(self) -> None:
        """Fail all requests that are not answered when the server stops."""
        self._end_templates()
        for ticket in [*self._open_tickets]:
            ticket.cancel()
            if not ticket.future.done():
                ticket.future.set_exception(
                    _shutting_down("the server stopped before it answered this request.")
                )

    def _end_templates(self) -> None:
        for template in self.templates.values():
            template.close()

    def join(self, seconds: float) -> bool:
        """Return whether all computation ends within this time after `stop`."""
        until = time.monotonic() + seconds
        ended = [one.join(max(0.0, until - time.monotonic())) for one in self.workers.values()]
        return all(ended) and not self.looks.waiting and not self._reads

    @property
    def is_ready(self) -> bool:
        workers = self.workers.values()
        return not self.draining and all(w.ready.is_set() and not w.is_full for w in workers)

    @property
    def free_slots(self) -> int | None:
        """Number of requests that can still be accepted.

        None if it depends on the model, a model is still loading, or the server is draining.
        """
        if self.draining:
            return None
        free = [one.free_slots if one.ready.is_set() else None for one in self.workers.values()]
        return free[0] if len(free) == 1 or all(one == 0 for one in free) else None

    # -- selection of a model

    def select_worker(
        self, name: object, fits: Callable[[InferenceWorker], bool], what: str
    ) -> InferenceWorker:
        """Return the worker of the named model, or without a name the only one that fits.

        `what` completes the sentence "no model ...".
        """
        able = [one for one in self.workers.values() if fits(one)]
        if name is None or name == "":
            if len(able) == 1:
                return able[0]
            if not able:
                raise RequestRejected(
                    404, f"no model on this server {what}.", param="model", code="model_not_found"
                )
            raise RequestRejected(
                422,
                "the request does not name a model. Set model to one of: "
                f"{', '.join(one.name for one in able)}.",
                param="model",
            )
        if not isinstance(name, str) or name not in self.workers:
            near = suggest(str(name)[:80], self.workers)
            raise RequestRejected(
                404, f"unknown model {str(name)[:80]!r}.{near}", param="model",
                code="model_not_found",
            )  # fmt: skip
        if not fits(self.workers[name]):
            others = ", ".join(one.name for one in able)
            raise RequestRejected(
                404,
                f"the model {name!r} cannot be used here: this route needs a model that {what}. "
                + (f"Use one of: {others}." if others else "Send it to /v1/predict instead."),
                param="model", code="model_not_found",
            )  # fmt: skip
        return self.workers[name]

    def options(self, worker: InferenceWorker) -> dict[str, OptionSpec]:
        if worker.name not in self._option_specs:
            self._option_specs[worker.name] = option_specs(worker.run, self.limits)
        return self._option_specs[worker.name]

    # -- requests

    async def run_request(
        self,
        request: Request,
        worker: InferenceWorker,
        inputs: Sequence[Any],
        options: Mapping[str, Any],
        *,
        detail: TokenDetail = NO_TOKEN_DETAIL,
        checked: bool = False,
        begun: float | None = None,
    ) -> RequestResult:
        """Compute all answers of a request, or raise an error. A disconnect cancels the
        computation."""
        ticket = await self.submit(
            worker, inputs, options, detail=detail, checked=checked, begun=begun
        )  # fmt: skip
        answers = await self.wait(request, ticket)
        return RequestResult(answers, ticket.members)

    async def submit(
        self,
        worker: InferenceWorker,
        inputs: Sequence[Any],
        options: Mapping[str, Any],
        *,
        on_piece: PieceCallback | None = None,
        detail: TokenDetail = NO_TOKEN_DETAIL,
        checked: bool = False,
        begun: float | None = None,
    ) -> Ticket:
        """Validate the inputs and queue them.

        Threads decode media and tokenize texts. `begun`: time of the request, if it is not now.
        """
        if self.draining:
            raise _shutting_down("the server is shutting down and accepts no new requests.")
        said = dict(options) if checked else checked_options(options, self.options(worker))
        given = list(inputs) if checked else await self._inputs(worker, inputs)
        worker.reserve(len(given))
        loop = asyncio.get_running_loop()
        try:
            ticket = await self.run_in_thread(
                self._make_ticket, worker, given, said, loop, on_piece, detail
            )
            if begun is not None:
                ticket.received_at = begun
            worker.estimate(ticket)
        except BaseException as error:
            worker.release(len(given))
            if isinstance(error, UserError):
                raise as_rejection(error) from error
            raise
        self._open_tickets.add(ticket)
        ticket.future.add_done_callback(lambda _: self._open_tickets.discard(ticket))
        worker.enqueue(ticket)
        if on_piece is not None:
            await self._wait_until_started(ticket)
        return ticket

    async def _wait_until_started(self, ticket: Ticket) -> None:
        """Wait until a stream generates or has finished, at most `HEARTBEAT_SECONDS` seconds.

        So a stream that fails at once gets an error status like any other request.
        """
        joined = asyncio.ensure_future(ticket.joined.wait())
        both: set[asyncio.Future[Any]] = {joined, ticket.future}
        try:
            await asyncio.wait(
                both,
                timeout=min(HEARTBEAT_SECONDS, self.limits.seconds),
                return_when=asyncio.FIRST_COMPLETED,
            )
        except asyncio.CancelledError:
            ticket.cancel()
            raise
        finally:
            joined.cancel()
        if ticket.future.done():
            errors = [one.error for one in result_of(ticket)]
            if all(errors):
                raise RequestRejected(422, errors[0], param="input")

    async def _inputs(self, worker: InferenceWorker, given: Sequence[Any]) -> list[Any]:
        """Return validated inputs. Media are checked in a thread, because they may be large."""
        if worker.spec.is_text:
            return checked_inputs(worker.run, given, self.limits)
        return await self.run_in_thread(checked_inputs, worker.run, given, self.limits)

    async def run_in_thread(self, act: Callable[..., T], *given: Any) -> T:
        """Run slow work in a thread, so that the event loop can answer other requests."""
        self.n_thread_calls += 1
        try:
            work = self._readers.submit(act, *given)
            self._reads.add(work)
            work.add_done_callback(self._reads.discard)
            return await asyncio.wrap_future(work)
        finally:
            self.n_thread_calls -= 1

    def _make_ticket(
        self, worker: InferenceWorker, inputs: list[Any], options: dict[str, Any],
        loop: asyncio.AbstractEventLoop, on_piece: PieceCallback | None, detail: TokenDetail,
    ) -> Ticket:  # fmt: skip
        run = worker.run
        use = run.use(options)
        made = Inputs(run.settings, run.folder)  # it counts the inputs for its error messages
        questions = []
        for one in inputs:
            if isinstance(one, PromptTokens):
                made.n += 1
                questions.append(Question(list(one.ids)))
            elif isinstance(one, Upload):
                questions.append(made.parse(one.data, one.name))
            else:
                questions.append(made.parse(one))
        key = repr(sorted(options.items()))
        if worker.spec.continues:
            use = _with_max_len(use, self.limits.tokens)
        future: asyncio.Future[list[Answer]] = loop.create_future()
        return Ticket(questions, use, key, loop, future, on_piece, detail)

    async def chat_prompt(
        self, request: Request, worker: InferenceWorker, messages: Sequence[Mapping[str, str]],
        begun: float,
    ) -> PromptTokens:  # fmt: skip
        """Render messages as a prompt.

        A slow template delays only chats with the same model. `begun`: time of the request.
        """
        run = worker.run
        if worker.name not in self.templates:
            most = MOST_PER_CHARACTER * self.limits.characters
            self.templates[worker.name] = ChatTemplate(run.folder / CHAT_TEMPLATE, most)
        template = self.templates[worker.name]
        values = await self.run_in_thread(template_values, run, messages)
        if self.draining:
            raise _shutting_down("the server is shutting down and accepts no new requests.")
        loop = asyncio.get_running_loop()
        rendering = loop.run_in_executor(template.thread, template.render, values)
        try:
            await self.wait_for(request, rendering, begun)
            text = rendering.result()
        except (TemplateError, asyncio.CancelledError) as error:
            if template.is_closed:
                raise _shutting_down(
                    "the server stopped before it answered this request."
                ) from error
            if isinstance(error, TemplateError):
                raise template_failed(error) from error
            raise
        finally:
            rendering.cancel()
        return PromptTokens(await self.run_in_thread(prompt_ids, run, text))

    async def wait(self, request: Request, ticket: Ticket) -> list[Answer]:
        try:
            await self.wait_for(request, ticket.future, ticket.received_at)
            return result_of(ticket)
        finally:
            if not ticket.future.done():
                ticket.cancel()

    async def wait_for(self, request: Request, work: asyncio.Future[Any], begun: float) -> None:
        """Wait until a future is done. Raise an error if the client disconnects or the deadline
        passes."""
        left = asyncio.ensure_future(_disconnected(request))
        try:
            seconds = self.limits.seconds - (time.perf_counter() - begun)
            both: set[asyncio.Future[Any]] = {work, left}
            done, _ = await asyncio.wait(
                both, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED
            )
            if work in done:
                return
            if left in done:
                raise ClientGone
            raise RequestRejected(
                504,
                f"the request was cancelled at the deadline of {self.limits.seconds:g} s.",
                code="deadline",
            )  # fmt: skip
        finally:
            left.cancel()

    async def pieces(self, ticket: Ticket, queue: asyncio.Queue[Any]) -> AsyncIterator[Any]:
        """Yield the pieces of text that a ticket puts into the queue, until it is answered.

        Yield None after `HEARTBEAT_SECONDS` seconds without a piece.
        """
        ticket.future.add_done_callback(lambda _: queue.put_nowait(END_OF_STREAM))
        until = ticket.received_at + self.limits.seconds
        while True:
            left = until - time.perf_counter()
            if left <= 0:
                raise RequestRejected(
                    504,
                    f"the request was cancelled at the deadline of {self.limits.seconds:g} s.",
                    code="deadline",
                )  # fmt: skip
            try:
                piece = await asyncio.wait_for(queue.get(), min(HEARTBEAT_SECONDS, left))
            except TimeoutError:
                yield None
                continue
            if piece is END_OF_STREAM:
                return
            yield piece

    # -- bodies of requests

    async def body(self, request: Request, most: int) -> bytes:
        """Return the whole body if it is within the limit and arrives in time.

        Later calls return the same bytes.
        """
        known: bytes | None = request.scope.get("headway_body")
        if known is None:
            known = request.scope["headway_body"] = await self._read(request, most)
        if len(known) > most:
            raise RequestRejected(
                413, f"the request body has {len(known):,} bytes; the limit is {most:,}."
            )
        return known

    def _count_body_bytes(self, request: Request, n: int) -> None:
        """Count bytes of a body until its request is answered.

        Raise an error if the bodies of all requests together exceed `serve.bodies`.
        """
        known = self.keys is None or request.scope.get("headway_key") is not None
        most = self.limits.bodies // (1 if known else UNAUTHENTICATED_DIVISOR)
        if self.body_bytes + n > most:
            raise RequestRejected(
                429, "too many large requests are in progress. Retry in 2 s.",
                code="queue_full", headers={"Retry-After": "2", "Connection": "close"},
            )  # fmt: skip
        self.body_bytes += n
        request.scope["headway_held"] = request.scope.get("headway_held", 0) + n

    async def _read(self, request: Request, most: int) -> bytes:
        length = request.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or len(length) > 15:
            raise RequestRejected(
                400, f"the Content-Length header {length[:60]!r} is not a valid number of bytes."
            )
        if int(length) > most:
            raise RequestRejected(
                413, f"the request body has {int(length):,} bytes; the limit is {most:,}."
            )
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise RequestRejected(
                            413, f"the request body exceeds the limit of {most:,} bytes."
                        )
                    self._count_body_bytes(request, len(part))
                    parts.append(part)
        except TimeoutError as error:
            raise RequestRejected(
                408, f"the request body did not arrive within {self.limits.body_seconds:g} s.",
                headers={"Connection": "close"},
            ) from error  # fmt: skip
        except ClientDisconnect as error:
            raise ClientGone from error
        return b"".join(parts)

    async def form(self, request: Request) -> dict[str, list[str | Upload]]:
        """Return the fields of a form. Files have their names and bytes."""
        if media_type_of(request) == FORM_URLENCODED:
            return await self._text_form(await self.body(request, self.limits.body))
        body = await self.body(request, self.max_body_bytes)
        sent = False

        async def again() -> dict[str, Any]:
            nonlocal sent
            if sent:
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        found: dict[str, list[str | Upload]] = {}
        most = self.limits.inputs
        try:
            copy = Request(request.scope, again)
            async with copy.form(
                max_files=most + 1, max_fields=most + 32, max_part_size=self.max_body_bytes
            ) as form:
                for name, value in form.multi_items():
                    if isinstance(value, UploadFile):
                        one: str | Upload = Upload(value.filename or "", await value.read())
                    else:
                        one = value
                    found.setdefault(name, []).append(one)
        except Exception as error:  # the parser has errors of several kinds
            detail = getattr(error, "detail", None) or str(error)
            raise RequestRejected(
                400, f"the form data cannot be parsed ({str(detail)[:120]})."
            ) from error
        return found

    async def _text_form(self, body: bytes) -> dict[str, list[str | Upload]]:
        """Return the fields of a URL-encoded form."""
        most = self.limits.inputs + 32
        parse = partial(parse_qsl, keep_blank_values=True, max_num_fields=most)
        try:
            text = body.decode("utf-8")
            pairs = (
                await self.run_in_thread(parse, text)
                if len(body) > MAX_INLINE_FORM_BYTES
                else parse(text)
            )
        except ValueError as error:
            raise RequestRejected(
                400, f"the form data cannot be parsed ({str(error)[:120]})."
            ) from error
        found: dict[str, list[str | Upload]] = {}
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        return found

    @property
    def max_body_bytes(self) -> int:
        """Largest body in bytes of a request that may contain media."""
        media = any(not one.spec.is_text for one in self.workers.values())
        return self.limits.media if media else self.limits.body


END_OF_STREAM = object()


class EventStreamResponse(StreamingResponse):
    """Stream of server-sent events for a ticket. The ticket is cancelled if the client
    disconnects."""

    def __init__(self, content: AsyncIterator[bytes], ticket: Ticket) -> None:
        super().__init__(content, media_type="text/event-stream", headers=SSE_HEADERS)
        self.ticket = ticket

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if not self.ticket.future.done():
                self.ticket.cancel()


def _shutting_down(message: str) -> RequestRejected:
    headers = {"Retry-After": "5", "Connection": "close"}
    return RequestRejected(503, message, code="draining", headers=headers)


def result_of(ticket: Ticket) -> list[Answer]:
    """Return the answers of a ticket. An error of it is raised as the response that clients get."""
    try:
        return ticket.future.result()
    except UserError as error:
        raise as_rejection(error) from error
    except ModelFailed as error:
        raise RequestRejected(500, str(error), code="broken") from error
    except asyncio.CancelledError as error:
        raise ClientGone from error


async def _disconnected(request: Request) -> None:
    with contextlib.suppress(RuntimeError):
        while (await request.receive())["type"] != "http.disconnect":
            pass


def _with_max_len(use: Any, most: int) -> Any:
    """Return the options with `max_len` set to `most` tokens, unless it is already lower."""
    decode = use.settings.decode
    if decode.max_len is not None and decode.max_len <= most:
        return use
    settings = replace(use.settings, decode=replace(decode, max_len=most))
    return replace(use, settings=settings)


def media_type_of(request: Request) -> str:
    """Media type of the body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def single_field(form: Mapping[str, Sequence[str | Upload]], name: str) -> str | None:
    """Return a form field that must be text and occur at most once; None if it is missing."""
    values = form.get(name, ())
    if not values:
        return None
    if len(values) > 1 or not isinstance(values[0], str):
        raise RequestRejected(
            422,
            f"the form field {name!r} must occur only once, as text and not as a file.",
            param=name,
        )
    return values[0]


def json_response(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return FiniteJSONResponse(content, status, dict(headers or {}))
