"""Routes of OpenAI's API, so that its clients work unchanged: completions, chat, embeddings and
transcription."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from headway import __version__
from headway.decode.continuous import BatchMember
from headway.serve.chat import checked_messages, has_template
from headway.serve.errors import RequestRejected
from headway.serve.logprobs import OutputLogprobs, TokenLogprob, has_stop_string, logprobs_by_name
from headway.serve.routes.predict import sse_event
from headway.serve.routes.route import (
    TEXT,
    TEXTS,
    Route,
    event_stream_schema,
    object_schema,
    schema,
)
from headway.serve.service import (
    EventStreamResponse,
    PromptTokens,
    Service,
    json_response,
    media_type_of,
    result_of,
    single_field,
)
from headway.serve.validation import Upload, checked_inputs, checked_options, parse_json
from headway.serve.worker import InferenceWorker, Ticket, TokenDetail
from headway.tasks.answers import (
    Answer,
    AnswerSegment,
    TextAnswer,
    TranscriptAnswer,
    VectorAnswer,
)
from headway.tasks.format import PrintOptions

DEFAULT_MAX_TOKENS = 16
"""Default `max_tokens` of `/v1/completions`, as in OpenAI's API."""

UNSUPPORTED_FIELDS: dict[str, tuple[Any, ...]] = {
    "suffix": (None, ""), "logit_bias": (None, {}),
    "presence_penalty": (None, 0), "frequency_penalty": (None, 0), "tools": (None, []),
    "tool_choice": (None, "none", "auto"), "functions": (None, []),
    "response_format": (None, {"type": "text"}),
}  # fmt: skip
"""Fields of OpenAI's API that are not supported, each with the values that are accepted because
they have no effect."""

IGNORED_FIELDS = ("user", "metadata", "store", "service_tier", "parallel_tool_calls")
"""Fields that are ignored, because they are only for the client's own records."""


def can_complete(worker: InferenceWorker) -> bool:
    return worker.spec.continues and not worker.run.settings.data.fields


def can_chat(worker: InferenceWorker) -> bool:
    return can_complete(worker) and has_template(worker.run)


def can_embed(worker: InferenceWorker) -> bool:
    return worker.spec.is_embedding and worker.spec.is_text


def can_transcribe(worker: InferenceWorker) -> bool:
    return worker.spec.writes and worker.spec.is_audio


def fingerprint(worker: InferenceWorker) -> str:
    settings = worker.run.settings
    return f"headway-{__version__}-{getattr(settings, 'fingerprint', '')[:8]}".rstrip("-")


MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-4, 2
"""Minimum temperature for sampling (lower values give the same samples), and OpenAI's maximum."""

MAX_SPEECH_TEMPERATURE = 1
"""Maximum temperature for transcriptions in OpenAI's API."""

MAX_LOGPROBS, MAX_CHAT_LOGPROBS = 5, 20
"""Maximum values of `logprobs` (completions) and `top_logprobs` (chat) in OpenAI's API."""


class CompletionParams:
    """Validated generation options of a completion or chat request."""

    def __init__(
        self, given: dict[str, Any], service: Service, worker: InferenceWorker, *,
        may_read_only: bool = False,
    ) -> None:  # fmt: skip
        """Validate the options of a request. `may_read_only`: whether `max_tokens` may be 0, so
        that only the prompt is scored."""
        for name, fine in UNSUPPORTED_FIELDS.items():
            if given.pop(name, None) not in fine:
                raise RequestRejected(422, f"{name} is not supported.", param=name)
        for name in IGNORED_FIELDS:
            given.pop(name, None)
        self.stream = _flag(given, "stream")
        options = given.pop("stream_options", None)
        if options is not None and (not isinstance(options, dict) or not self.stream):
            raise RequestRejected(
                422,
                "stream_options must be an object and needs stream=true.",
                param="stream_options",
            )
        self.include_usage = bool((options or {}).get("include_usage"))
        self.echo = _flag(given, "echo")
        limits, known = service.limits, service.options(worker)
        self.n = _integer(given, "n", 1, 1, limits.n)
        if given.pop("best_of", None) not in (None, 1, self.n):
            raise RequestRejected(
                422, "best_of must equal n, because all outputs are returned.", param="best_of"
            )
        said: dict[str, Any] = {}
        said["max_len"] = given.pop("max_completion_tokens", None)
        tokens = given.pop("max_tokens", None)
        said["max_len"] = tokens if said["max_len"] is None else said["max_len"]
        self.generates = not (
            _is_integer(said["max_len"]) and said["max_len"] == 0 and may_read_only
        )
        """Whether to generate text. False: only the prompt is returned, with its
        log-probabilities."""

        if not self.generates:
            said["max_len"] = None
        temperature = given.pop("temperature", None)
        if _is_number(temperature) and not 0 <= temperature <= MAX_TEMPERATURE:
            raise RequestRejected(
                422, f"temperature must be from 0 to {MAX_TEMPERATURE}.", param="temperature"
            )
        said |= {name: given.pop(name, None) for name in ("top_p", "stop", "seed")}
        said["stop"] = _stops(said["stop"])
        drawn = worker.run.settings.decode.sample
        if _is_number(temperature):
            drawn = temperature != 0
            if 0 < temperature < MIN_TEMPERATURE:  # lower values give the same samples
                temperature = MIN_TEMPERATURE
        drawn = drawn and self.generates
        if _is_number(said["top_p"]) and said["top_p"] == 0:  # only the most likely token
            drawn, said["top_p"] = False, None
        said["temperature"] = None if _is_number(temperature) and not temperature else temperature
        if isinstance(said["seed"], int) and said["seed"] < 0:
            said["seed"] %= 2**53  # negative seeds are mapped to valid ones
        if drawn:
            said |= {"sample": True, "n_best": self.n}
            said["seed"] = secrets.randbelow(2**31) if said["seed"] is None else said["seed"]
        else:
            # Validate sampling options even without sampling, when they have no effect.
            checked_options({name: said.pop(name) for name in ("temperature", "top_p")}, known)
            said |= {"sample": False, "beam": 1, "n_best": 1, "seed": None}
        try:
            self.options = checked_options(said, known)
        except RequestRejected as error:
            names = {"max_len": "max_tokens", "n_best": "n"}
            name = names.get(str(error.param), str(error.param))
            message = str(error).replace(f"{error.param} must", f"{name} must")
            raise RequestRejected(error.status, message, param=name) from error
        self.copies = 1 if drawn else self.n
        """Number of times that each output is repeated. Without sampling, all `n` outputs are
        identical, so only one is computed."""


async def completions(service: Service, request: Request) -> Response:
    given = await _json(service, request)
    worker = service.select_worker(given.pop("model", None), can_complete, "continues text")
    if given.get("max_tokens") is None:
        given["max_tokens"] = DEFAULT_MAX_TOKENS
    top = given.pop("logprobs", None)
    if top is not None and not (_is_integer(top) and 0 <= top <= MAX_LOGPROBS):
        raise RequestRejected(
            422, f"logprobs must be an integer from 0 to {MAX_LOGPROBS}.", param="logprobs"
        )
    prompts = _prompts(given.pop("prompt", None), worker, service, "prompt")
    wanted = CompletionParams(given, service, worker, may_read_only=True)
    _reject_unknown_fields(given)
    if not wanted.generates and worker.run.opened.engine is not None:
        raise RequestRejected(
            422,
            f"max_tokens must be at least 1 with the engine {worker.run.opened.engine.name}.",
            param="max_tokens",
        )
    return await _generate(
        service, request, worker, prompts, wanted, CompletionFormat(top, wanted.echo)
    )


async def chat(service: Service, request: Request) -> Response:
    begun = time.perf_counter()
    given = await _json(service, request)
    worker = service.select_worker(given.pop("model", None), can_chat, "has a chat template")
    messages = checked_messages(given.pop("messages", None), service.limits)
    wants, top = _flag(given, "logprobs"), _integer(given, "top_logprobs", 0, 0, MAX_CHAT_LOGPROBS)
    if top and not wants:
        raise RequestRejected(422, "top_logprobs needs logprobs=true.", param="top_logprobs")
    wanted = CompletionParams(given, service, worker)
    _reject_unknown_fields(given)
    prompt = await service.chat_prompt(request, worker, messages, begun)
    shape = ChatFormat(top if wants else None)
    return await _generate(service, request, worker, [prompt], wanted, shape, begun)


class CompletionFormat:
    """Response format of `/v1/completions`."""

    object_type, chunk_object_type, id_prefix = "text_completion", "text_completion", "cmpl-"

    def __init__(self, top: int | None, echo: bool = False) -> None:
        self.top, self.echo = top, echo

    def choice(self, prompt: str, text: str, probs: dict[str, Any] | None) -> dict[str, Any]:
        return {"text": (prompt if self.echo else "") + text, "logprobs": probs}

    def chunk_choice(
        self, text: str, probs: dict[str, Any] | None, prompt: str | None
    ) -> dict[str, Any]:
        """Return a chunk of a stream. `prompt`: text of the prompt if it precedes the first chunk
        of an output, else None."""
        return {"text": ((prompt or "") if self.echo else "") + text, "logprobs": probs}

    def logprobs(self, steps: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self.top is None:
            return None
        best = [None if one.top is None else dict(one.top) for one in steps]
        return {
            "tokens": [one.token for one in steps],
            "token_logprobs": [one.log_prob for one in steps],
            "top_logprobs": best if any(best) else None,
            "text_offset": [one.start for one in steps],
        }  # fmt: skip


class ChatFormat(CompletionFormat):
    """Response format of `/v1/chat/completions`."""

    object_type, chunk_object_type, id_prefix = (
        "chat.completion",
        "chat.completion.chunk",
        "chatcmpl-",
    )

    def choice(self, prompt: str, text: str, probs: dict[str, Any] | None) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}, "logprobs": probs}

    def chunk_choice(
        self, text: str, probs: dict[str, Any] | None, prompt: str | None
    ) -> dict[str, Any]:
        role = {"role": "assistant"} if prompt is not None else {}
        return {"delta": {**role, "content": text} if text or role else {}, "logprobs": probs}

    def logprobs(self, steps: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self.top is None:
            return None
        rows = [
            {
                "token": one.token, "bytes": None, "logprob": one.log_prob,
                "top_logprobs": [
                    {"token": name, "logprob": value, "bytes": None}
                    for name, value in one.top or ()
                ],
            }
            for one in steps
        ]  # fmt: skip
        return {"content": rows, "refusal": None}


async def _generate(
    service: Service, request: Request, worker: InferenceWorker, prompts: list[Any],
    wanted: CompletionParams,
    shape: CompletionFormat, begun: float | None = None,
) -> Response:  # fmt: skip
    common = {
        "id": f"{shape.id_prefix}{secrets.token_hex(12)}", "created": int(time.time()),
        "model": worker.name, "system_fingerprint": fingerprint(worker),
    }  # fmt: skip
    detail = TokenDetail(shape.top or 0, shape.echo and shape.top is not None, wanted.generates)
    if wanted.stream:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        ticket = await service.submit(
            worker, prompts, wanted.options, detail=detail, checked=True, begun=begun,
            on_piece=lambda n, w, text: queue.put_nowait((n, w, text)),
        )  # fmt: skip
        body = _stream_chunks(service, worker, ticket, queue, wanted, shape, common, prompts)
        return EventStreamResponse(body, ticket)
    asked = await service.run_request(
        request, worker, prompts, wanted.options, detail=detail, checked=True, begun=begun
    )
    choices: list[dict[str, Any]] = []
    for number, (answer, member) in enumerate(zip(asked.answers, asked.members, strict=True)):
        if answer.error:
            raise RequestRejected(422, answer.error, param="prompt")
        prompt = _prompt_text(worker, prompts[number])
        before = prompt if shape.echo else None
        for w, out in _outputs(answer, member) * wanted.copies:
            probs = None
            if shape.top is not None and member is not None:
                probs = shape.logprobs(OutputLogprobs(worker, member, w, before).take_rest(out))
            elif shape.top is not None:
                probs = shape.logprobs(logprobs_by_name(out, len(before or "")))
            said = shape.choice(prompt, out.text, probs)
            choices.append({"index": len(choices), **said, "finish_reason": _finish_reason(out)})
    usage = _usage(worker, asked.answers, asked.members, wanted.copies)
    return json_response(
        {**common, "object": shape.object_type, "choices": choices, "usage": usage}
    )


async def _stream_chunks(
    service: Service, worker: InferenceWorker, ticket: Ticket, queue: asyncio.Queue[Any],
    wanted: CompletionParams,
    shape: CompletionFormat, common: Mapping[str, Any], prompts: Sequence[Any],
) -> AsyncIterator[bytes]:  # fmt: skip
    sent: dict[int, str] = {}
    steps: dict[int, OutputLogprobs] = {}

    def chunk(
        index: int, w: int, text: str, out: TextAnswer | None = None, reason: str | None = None
    ) -> bytes:
        """Return a chunk of the stream. `out`: the complete output for its last chunk, else
        None."""
        number, probs = index // wanted.n, None
        before = _prompt_text(worker, prompts[number])
        prompt = None if index in sent else before
        sent[index] = sent.get(index, "") + text
        member = ticket.members[number]
        if shape.top is not None and member is not None:
            if index not in steps:
                steps[index] = OutputLogprobs(worker, member, w, before if shape.echo else None)
            given = (
                steps[index].take_until(len(sent[index]))
                if out is None
                else steps[index].take_rest(out)
            )
            probs = shape.logprobs(given)
        elif shape.top is not None and out is not None:
            probs = shape.logprobs(logprobs_by_name(out, len(before) if shape.echo else 0))
        said = shape.chunk_choice(text, probs, prompt)
        choice = {"index": index, **said, "finish_reason": reason}
        more = {"usage": None} if wanted.include_usage else {}
        return sse_event({**common, "object": shape.chunk_object_type, "choices": [choice], **more})

    try:
        async for piece in service.pieces(ticket, queue):
            if piece is None:
                yield b": alive\n\n"
                continue
            number, w, text = piece
            for copy in range(wanted.copies):
                yield chunk(number * wanted.n + w + copy, w, text)
        answers = result_of(ticket)
        for number, answer in enumerate(answers):
            if answer.error:
                raise RequestRejected(422, answer.error, param="prompt")
            outputs = _outputs(answer, ticket.members[number]) * wanted.copies
            for index, (w, out) in enumerate(outputs, number * wanted.n):
                rest = out.text[len(sent.get(index, "")) :]
                yield chunk(index, w, rest, out, _finish_reason(out))
        if wanted.include_usage:
            usage = _usage(worker, answers, ticket.members, wanted.copies)
            yield sse_event(
                {**common, "object": shape.chunk_object_type, "choices": [], "usage": usage}
            )
    except RequestRejected as error:
        yield sse_event(error.body())
    yield b"data: [DONE]\n\n"


def _outputs(answer: Answer, member: BatchMember | None) -> list[tuple[int, TextAnswer]]:
    """Return the outputs of one prompt, each with its index in the continuous batch, ordered by
    this index."""
    assert isinstance(answer, TextAnswer)
    found = [answer, *answer.others]
    order = range(len(found)) if member is None else member.order
    return sorted(zip(order, found, strict=True), key=lambda pair: pair[0])


def _finish_reason(out: TextAnswer) -> str:
    return "stop" if out.finished or has_stop_string(out) else "length"


def _prompt_text(worker: InferenceWorker, prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else worker.run.tokenizer.decode(prompt.ids)


def _usage(
    worker: InferenceWorker,
    answers: Sequence[Answer],
    members: Sequence[BatchMember | None],
    copies: int,
) -> dict[str, int]:
    read = wrote = 0
    for answer, member in zip(answers, members, strict=True):
        if member is not None:
            read += len(member.prompt)
            wrote += copies * sum(map(len, member.log_probs))
        elif isinstance(answer, TextAnswer):
            read += len(worker.run.tokenizer.encode(answer.source or ""))
            wrote += copies * sum(len(one.token_log_probs) for one in (answer, *answer.others))
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def _prompts(given: Any, worker: InferenceWorker, service: Service, param: str) -> list[Any]:
    """Parse the prompt field: a text, a list of texts, token ids, or lists of token ids."""
    given = "" if given is None else given
    several = given if isinstance(given, list) else [given]
    if isinstance(given, list) and given and all(map(_is_integer, given)):
        several = [given]
    if not several or len(several) > service.limits.inputs:
        raise RequestRejected(
            413 if several else 422, f"the request has {len(several):,} {param}s, but must have 1 "
            f"to {service.limits.inputs:,}.", param=param,
        )  # fmt: skip
    size = worker.run.tokenizer.vocab_size
    found: list[Any] = []
    for one in several:
        if isinstance(one, str):
            try:
                found += checked_inputs(worker.run, [one], service.limits)
            except RequestRejected as error:
                raise RequestRejected(error.status, str(error), param=param) from error
        elif not isinstance(one, list):
            raise RequestRejected(
                422, f"{param} must be a string, a list of strings, or token ids.", param=param
            )
        elif (
            not one
            or len(one) > service.limits.characters
            or not all(_is_integer(token) and 0 <= token < size for token in one)
        ):
            raise RequestRejected(
                422,
                f"{param} must contain 1 to {service.limits.characters:,} token ids, each an "
                f"integer from 0 to {size - 1:,} (vocabulary size: {size:,}).",
                param=param,
            )
        else:
            found.append(PromptTokens(tuple(one)))
    return found


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)


def _stops(given: Any) -> Any:
    """Return the stop strings. Empty ones are dropped, because they have no effect."""
    if isinstance(given, list):
        return [one for one in given if one != ""] or None
    return None if given == "" else given


async def embeddings(service: Service, request: Request) -> Response:
    given = await _json(service, request)
    worker = service.select_worker(given.pop("model", None), can_embed, "computes text embeddings")
    texts = given.pop("input", None)
    form = given.pop("encoding_format", None) or "float"
    if form not in ("float", "base64"):
        raise RequestRejected(
            422, "encoding_format must be float or base64.", param="encoding_format"
        )
    size = given.pop("dimensions", None)
    for name in IGNORED_FIELDS:
        given.pop(name, None)
    _reject_unknown_fields(given)
    if texts is None:
        raise RequestRejected(422, "input is missing.", param="input")
    # Decode the token ids with the vocabulary of the model. The text is then handled like any other
    # input.
    given_texts = _prompts(texts, worker, service, "input")
    several = [_prompt_text(worker, one) for one in given_texts]
    asked = await service.run_request(request, worker, several, {})
    rows = []
    for index, answer in enumerate(asked.answers):
        if answer.error:
            raise RequestRejected(422, answer.error, param="input")
        assert isinstance(answer, VectorAnswer)
        vector = np.asarray(answer.vector, np.float32)
        if size is not None and size != len(vector):
            raise RequestRejected(
                422, f"dimensions must be {len(vector)}, the model's vector size.",
                param="dimensions",
            )  # fmt: skip
        value: Any = vector.tolist()
        if form == "base64":
            value = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        rows.append({"object": "embedding", "index": index, "embedding": value})
    n = await service.run_in_thread(_count_tokens, worker, several)
    usage = {"prompt_tokens": n, "total_tokens": n}
    return json_response({"object": "list", "data": rows, "model": worker.name, "usage": usage})


def _count_tokens(worker: InferenceWorker, texts: Sequence[str]) -> int:
    return sum(map(len, worker.run.tokenizer.encode_batch(list(texts))))


FORMATS = ("json", "text", "srt", "vtt", "verbose_json")


async def transcriptions(service: Service, request: Request) -> Response:
    if media_type_of(request) != "multipart/form-data":
        raise RequestRejected(415, "Content-Type must be multipart/form-data with a file.")
    form = await service.form(request)
    worker = service.select_worker(
        single_field(form, "model"), can_transcribe, "transcribes speech"
    )
    shape = single_field(form, "response_format") or "json"
    if shape not in FORMATS:
        raise RequestRejected(
            422, f"response_format must be one of {', '.join(FORMATS)}.", param="response_format"
        )
    files = form.get("file", [])
    if len(files) != 1 or not isinstance(files[0], Upload):
        raise RequestRejected(
            422, "the form must contain exactly one file, in the field 'file'.", param="file"
        )
    if single_field(form, "stream") not in (None, "false", "False"):
        raise RequestRejected(
            422, "transcripts cannot be streamed: set stream=false.", param="stream"
        )
    said: dict[str, Any] = {}
    temperature = single_field(form, "temperature") or "0"
    try:
        heat = float(temperature)
    except ValueError as error:
        raise RequestRejected(422, "temperature must be a number.", param="temperature") from error
    if not 0 <= heat <= MAX_SPEECH_TEMPERATURE:
        raise RequestRejected(
            422, f"temperature must be from 0 to {MAX_SPEECH_TEMPERATURE}.", param="temperature"
        )
    if heat:
        said = {"sample": True, "temperature": heat}
    times = {str(one) for name in ("timestamp_granularities[]", "timestamp_granularities")
             for one in form.get(name, [])} or {"segment"}  # fmt: skip
    known = {"file", "model", "response_format", "stream", "temperature", "language", "prompt"}
    known |= {"timestamp_granularities[]", "timestamp_granularities", "include[]"}
    _reject_unknown_fields({name: value for name, value in form.items() if name not in known})
    if not times <= {"word", "segment"}:
        raise RequestRejected(
            422, "timestamp_granularities must be word or segment.", param="timestamp_granularities"
        )
    asked = await service.run_request(request, worker, [files[0]], said)
    [answer] = asked.answers
    if answer.error:
        raise RequestRejected(422, answer.error, param="file")
    assert isinstance(answer, TranscriptAnswer)
    if shape == "json":
        return json_response({"text": answer.text})
    if shape != "verbose_json":
        text = answer.lines(PrintOptions(form=shape)) if shape != "text" else answer.text
        kinds = {"vtt": "text/vtt", "srt": "application/x-subrip"}
        return PlainTextResponse(
            text.rstrip("\n") + "\n", media_type=kinds.get(shape, "text/plain")
        )
    found: dict[str, Any] = {
        "task": "transcribe", "language": "", "duration": answer.seconds, "text": answer.text
    }  # fmt: skip
    if "segment" in times:
        spoken = [one for one in answer.segments if one.log_prob is not None]
        found["segments"] = [_segment(number, one) for number, one in enumerate(spoken)]
    if "word" in times:
        found["words"] = [
            {"word": word.text, "start": word.start, "end": word.end} for word in answer.words
        ]
    return json_response(found)


SEEK_S = 0.01
"""Unit in seconds of `seek` in OpenAI's API: one frame of 10 ms."""


def _segment(number: int, one: AnswerSegment) -> dict[str, Any]:
    """Return a segment of a transcript with the keys of OpenAI's API. Probabilities that the model
    does not provide are omitted."""
    facts = {
        "id": number,
        "seek": round(one.start / SEEK_S),
        "start": one.start,
        "end": one.end,
        "text": one.text,
        "tokens": list(one.tokens),
        "temperature": one.temperature,
        "avg_logprob": one.log_prob,
        "compression_ratio": one.compression_ratio,
        "no_speech_prob": one.no_speech_prob,
    }
    return {key: value for key, value in facts.items() if value is not None}


async def _json(service: Service, request: Request) -> dict[str, Any]:
    if media_type_of(request) != "application/json":
        raise RequestRejected(415, "Content-Type must be application/json.")
    return parse_json(await service.body(request, service.limits.body))


def _flag(given: dict[str, Any], name: str) -> bool:
    value = given.pop(name, None)
    if value not in (None, True, False) or (isinstance(value, int | float) and value not in (
        True, False,
    )):  # fmt: skip
        raise RequestRejected(422, f"{name} must be true or false.", param=name)
    if value is not None and not isinstance(value, bool):
        raise RequestRejected(422, f"{name} must be true or false.", param=name)
    return bool(value)


def _integer(given: dict[str, Any], name: str, usual: int, low: int, high: int) -> int:
    value = given.pop(name, None)
    value = usual if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise RequestRejected(422, f"{name} must be an integer from {low} to {high}.", param=name)
    return value


def _reject_unknown_fields(given: Mapping[str, Any]) -> None:
    if given:
        name = next(iter(given))[:60]
        raise RequestRejected(422, f"unknown field {name!r} in the request.", param=name)


USAGE = object_schema(prompt_tokens=schema("integer"), total_tokens=schema("integer"))


def _nullable(kind: str, text: str) -> dict[str, Any]:
    return schema(kind, nullable=True, description=text)


SAMPLING_PROPERTIES = {
    "max_tokens": _nullable(
        "integer", "Largest number of output tokens. Completions: 16 by default, 0 is allowed."
    ),
    "temperature": _nullable(
        "number", "Sampling temperature from 0 to 2; 0: always the most likely token."
    ),
    "top_p": _nullable("number", "Sample from the most likely tokens with this total probability."),
    "n": _nullable("integer", "Number of outputs per prompt."),
    "seed": _nullable("integer", "Random seed; without it each request samples differently."),
    "stop": {
        "description": "A string or a list of strings that end the output; not part of the output."
    },
    "stream": _nullable("boolean", "Send the output in pieces, as server-sent events."),
    "stream_options": {"nullable": True, "description": '{"include_usage": true}'},
}
CHOICES = object_schema(
    ("id", "object", "choices"), id=TEXT, object=TEXT, created=schema("integer"), model=TEXT,
    choices=schema("array", items=object_schema()), usage=USAGE,
)  # fmt: skip
CHUNK = object_schema(
    ("id", "object", "choices"), id=TEXT, object=TEXT, created=schema("integer"), model=TEXT,
    choices=schema("array", items=object_schema()), usage={**USAGE, "nullable": True},
)  # fmt: skip
ROUTES = (
    Route(
        method="POST", path="/v1/completions", queues=True, invalid_value_status=400,
        handler=completions,
        summary="Continue a prompt (OpenAI's legacy completions).",
        body=object_schema(model=TEXT,
        prompt={"description": "A text, a list of texts, or token ids."},
                       logprobs=_nullable(
                           "integer", "Return log-probabilities, and those of this many top tokens."
                       ),
                       echo=_nullable("boolean", "Return the prompt before its output."),
                       **SAMPLING_PROPERTIES),
        responses={"application/json": CHOICES,
               "text/event-stream": event_stream_schema(CHUNK, '{"choices": [{"text": " was"}]}')},
    ),
    Route(
        method="POST", path="/v1/chat/completions", queues=True, invalid_value_status=400,
        handler=chat,
        summary="Answer a chat; needs a model with a chat template.",
        body=object_schema(("messages",), model=TEXT, messages=schema("array",
        items=object_schema()),
                       logprobs=schema("boolean", nullable=True),
                       top_logprobs=schema("integer", nullable=True), **SAMPLING_PROPERTIES),
        responses={"application/json": CHOICES,
               "text/event-stream": event_stream_schema(
                   CHUNK, '{"choices": [{"delta": {"content": " was"}}]}')},
    ),
    Route(
        method="POST", path="/v1/embeddings", queues=True, invalid_value_status=400,
        handler=embeddings,
        summary="Compute text embeddings.",
        body=object_schema(("input",), model=TEXT,
                       input={"description": "A text, a list of texts, or token ids."},
                       encoding_format={**TEXT, "description": "float or base64."},
                       dimensions=schema("integer", nullable=True)),
        responses={"application/json": object_schema(
            ("object", "data"), object=TEXT, data=schema("array", items=object_schema()),
            model=TEXT,
            usage=USAGE)},
    ),
    Route(
        method="POST", path="/v1/audio/transcriptions", queues=True, invalid_value_status=400,
        handler=transcriptions, summary="Transcribe speech.",
        form=object_schema(("file",), file=schema("string", format="binary"), model=TEXT,
        language=TEXT,
                       prompt=TEXT, response_format=schema("string", enum=list(FORMATS)),
                       temperature=TEXT, **{"timestamp_granularities[]": TEXTS}),
        responses={"application/json": object_schema(("text",), text=TEXT), "text/plain": TEXT,
               "text/vtt": TEXT, "application/x-subrip": TEXT},
    ),
)  # fmt: skip
