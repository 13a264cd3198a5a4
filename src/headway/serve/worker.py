"""Worker thread of one model. It takes requests from the queue, computes them in batches, and
answers them.

Waiting requests with the same options form one flat batch. Text that is generated token by token
uses one continuous batch, in which new requests join at the next step, and finished and cancelled
ones leave at once. If a computation fails, its requests are computed separately, so that only the
request that caused the failure gets an error.

The cost of a request determines its rank. Between two steps of a search, or two batches of an
encoder, requests of lower ranks are answered. These are nested calls in the same thread, each with
its own search.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from headway.decode.continuous import BatchMember, ContinuousBatch
from headway.decode.search.job import INTERRUPTION, UNNUMBERED, Interruption
from headway.errors import UserError
from headway.run import Run
from headway.serve.cost import MEASURED_FROM, LatencyEstimator, cost_of
from headway.serve.errors import ModelFailed, RequestRejected
from headway.serve.limits import MAX_RETRY_AFTER, Limits, RetryAfter
from headway.serve.memory import model_bytes
from headway.serve.metrics import SECONDS, SIZES, Metrics
from headway.settings.task_rows import spec_of
from headway.tasks.answer_stream import AnswerStream
from headway.tasks.answers import Answer
from headway.tasks.inputs import Inputs, ParsedInput
from headway.tasks.task import ContinuousBatchingPredictor, InferenceRequest, Predictor, find_task

log = logging.getLogger("headway.serve")

PieceCallback = Callable[[int, int, str], None]
"""Callback for new text, called in the event loop. Arguments: index of the input, index of its
output, and the piece of text."""

MAX_PREDICTORS = 16
"""Maximum number of predictors that are cached for later requests with the same options."""

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Time in seconds before the second attempt to load a model, and maximum time between later
attempts."""

QUEUED_INPUTS_PER_REQUEST = 8
"""Limit on the inputs in a queue, as a multiple of the limit on its requests (`serve.queue`)."""

MAX_UNINTERRUPTED_SECONDS = 0.25
"""Maximum time in seconds before a computation can be interrupted again.

Usually this time equals the duration of the last interruption, so that interruptions take at most
half of the time.
"""

MAX_DEADLINE_SHARE = 0.8
"""Maximum estimated duration of a request, as a fraction of the time limit (`serve.seconds`)."""

PROBE_TEXTS = ("one two three four five six seven eight nine ten eleven twelve thirteen.",) * 4
"""Texts that are computed after a model is loaded, to warm it up and to measure its speed."""


class AllCancelled(Exception):
    """Raised when all requests of the running computation were cancelled."""


@dataclass(frozen=True)
class TokenDetail:
    """Details of the tokens that a response includes."""

    top: int = 0
    """Number of most likely tokens to list at each position; 0: none."""

    prompt_logprobs: bool = False
    """Whether to include the log-probabilities of the prompt."""

    generates: bool = True
    """Whether to generate text. False: only the prompt is scored."""


NO_TOKEN_DETAIL = TokenDetail()


@dataclass(eq=False)
class Ticket:
    """Request in the queue, with its inputs, its options, and the future for its answers."""

    inputs: list[ParsedInput]
    request: InferenceRequest
    key: Hashable
    """Key of the options. Only tickets with equal keys can be computed together."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Answer]]
    on_piece: PieceCallback | None = None
    detail: TokenDetail = NO_TOKEN_DETAIL
    received_at: float = field(default_factory=time.perf_counter)
    answers: list[Answer | None] = field(default_factory=list)
    members: list[BatchMember | None] = field(default_factory=list)
    """State of the generation for each input in the continuous batch; None for other inputs."""

    predictor: ContinuousBatchingPredictor | None = None
    """Predictor of the continuous batch; None if the request is not in it."""

    joined: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set when all valid inputs have joined the continuous batch."""

    cost: float = 0.0
    """Estimated cost in the units of `serve.cost`."""

    rank: int = 0
    """Rank by cost, 0 for small requests. Requests of lower ranks interrupt running requests of
    higher ranks."""

    seconds: float = 0.0
    """Estimated computation time in seconds."""

    cancelled: bool = False
    ended: bool = False
    sent_chars: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of characters that were sent, by input and output."""

    def cancel(self) -> None:
        """Cancel the request. It leaves its batch at the next step."""
        self.cancelled = True
        self.cancel_members()

    def cancel_members(self) -> None:
        for member in self.members:
            if member is not None:
                member.cancelled = True

    @property
    def is_complete(self) -> bool:
        return all(answer is not None for answer in self.answers)


class InferenceWorker:
    """Thread that answers the requests to one model."""

    def __init__(
        self, run: Run, limits: Limits, metrics: Metrics, wakeup: threading.Event | None = None
    ) -> None:  # fmt: skip
        """Create the worker of a model. `wakeup`: event that is set when results were passed to an
        event loop."""
        self.wakeup = threading.Event() if wakeup is None else wakeup
        self.run, self.limits, self.name = run, limits, run.name
        self.spec = spec_of(run.settings)
        self.ready = threading.Event()
        """Event that is set while the model is loaded and the thread runs."""

        self.stopping = False
        self.load_error = ""
        """Reason why the model cannot be loaded; empty if there is none. Only the operator sees it,
        while clients get "not ready"."""

        self._queue: deque[Ticket] = deque()
        self._condition = threading.Condition()
        self._accepted = self._inputs = 0
        self._last_batch_size = 1
        """Number of requests in the last batch."""

        self._seconds_per_request = 0.05
        """Recent computation time in seconds per request, when requests share a batch."""

        self._retry_after = RetryAfter()
        self.n_bytes = 0
        """Size of the model in bytes; 0 until it is loaded and warmed up."""

        self.latency_estimator = LatencyEstimator()
        self._expected_seconds = 0.0
        """Estimated computation time in seconds of all accepted requests above the lowest rank."""

        self._nested_seconds = 0.0
        """CPU time in seconds of this thread that interruptions of the running batch took."""

        self._uninterrupted_until = 0.0
        """Time (`time.perf_counter`) before which the running batch is not interrupted again."""

        self._predictors: OrderedDict[Hashable, Predictor] = OrderedDict()
        self._continuous_batch: ContinuousBatch | None = None
        self._owners: dict[BatchMember, tuple[Ticket, int]] = {}
        self._current: list[Ticket] = []
        self._isolated: list[Ticket] = []
        """Tickets of a failed step, which are to be computed separately."""

        self._outbox: list[tuple[asyncio.AbstractEventLoop, Callable[[], None]]] = []
        self._register_metrics(metrics)
        self._thread = threading.Thread(
            target=self._thread_main, name=f"headway-{self.name}", daemon=True
        )

    def _register_metrics(self, metrics: Metrics) -> None:
        said = metrics.histogram
        self._queue_seconds = said(
            "headway_queue_seconds", "Seconds that requests waited in the queue.", SECONDS
        )  # fmt: skip
        self._batch_inputs = said("headway_batch_inputs", "Inputs per batch.", SIZES)
        counter = partial(metrics.counter, model=self.name)
        self._generated_tokens = counter("headway_tokens_total", "Generated tokens.")
        self._prompt_tokens = counter("headway_prompt_tokens_total", "Prompt tokens.")
        self._failures = counter("headway_broken_total", "Failed computations.")
        self._cancelled_requests = counter("headway_given_up_total", "Cancelled requests.")
        metrics.gauge(
            "headway_queue_requests", "Requests queued or running.", lambda: self._accepted,
            model=self.name,
        )  # fmt: skip
        metrics.gauge(
            "headway_growing_texts", "Sequences in the continuous batch.",
            lambda: len(self._continuous_batch.rows) if self._continuous_batch is not None else 0,
            model=self.name,
        )  # fmt: skip
        metrics.gauge(
            "headway_model_bytes", "Bytes of weights and packed copies.", lambda: self.n_bytes,
            model=self.name,
        )  # fmt: skip
        metrics.gauge(
            "headway_model_ready", "1 if the model accepts requests.", self.ready.is_set,
            model=self.name,
        )  # fmt: skip

    # -- called from the event loop

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    @property
    def accepted(self) -> int:
        return self._accepted

    @property
    def is_full(self) -> bool:
        return not self.free_slots

    @property
    def free_slots(self) -> int:
        """Number of requests that can still be accepted."""
        return max(0, self.limits.queue - self._accepted)

    def reserve(self, n_inputs: int) -> None:
        """Reserve a place in the queue. Raise `RequestRejected` with the reason if there is
        none."""
        if not self.ready.is_set():
            raise RequestRejected(
                503,
                f"the model {self.name} is not ready. Retry in 2 s.",
                code="not_ready",
                headers={"Retry-After": "2"},
            )
        with self._condition:
            most = QUEUED_INPUTS_PER_REQUEST * self.limits.queue
            if self.is_full or (self._inputs and self._inputs + n_inputs > most):
                raise self.queue_full_error()
            self._accepted += 1
            self._inputs += n_inputs

    def queue_full_error(self) -> RequestRejected:
        """Return the rejection of a request for which the queue has no place."""
        return self.rejection(self._accepted, self.retry_after())

    def rejection(self, waiting: int, wait: int) -> RequestRejected:
        return RequestRejected(
            429, f"the queue of the model {self.name} is full ({waiting:,} requests). "
                 f"Retry in {wait} s.",
            code="queue_full", headers={"Retry-After": str(wait)},
        )  # fmt: skip

    def retry_after(self) -> int:
        """Count a rejection and return its `Retry-After` in seconds."""
        with self._condition:
            return self._retry_after.seconds(self._accepted, self._seconds_per_request)

    def release(self, n_inputs: int) -> None:
        """Release the place of a request that has ended or could not be queued."""
        with self._condition:
            self._accepted -= 1
            self._inputs -= n_inputs

    def enqueue(self, ticket: Ticket) -> None:
        """Add a ticket whose place was reserved to the queue."""
        ticket.answers = [
            Answer(error=str(one.error), id=one.id) if one.error is not None else None
            for one in ticket.inputs
        ]
        ticket.members = [None] * len(ticket.inputs)
        with self._condition:
            if ticket.rank:
                self._expected_seconds += ticket.seconds
            self._queue.append(ticket)
            self._condition.notify()

    def estimate(self, ticket: Ticket) -> None:
        """Set the ticket's cost and rank. Raise `RequestRejected` if it would miss its deadline.

        The status is 413 if the request takes too long by itself, and 429 if it takes too long
        after the requests that were accepted before it.
        """
        decode = ticket.request.settings.decode
        if self.spec.continues and decode.walks:
            return  # it joins the continuous batch
        context = getattr(ticket.request.settings.model, "max_len", None)
        questions = [one.value for one in ticket.inputs if one.error is None]
        ticket.cost = cost_of(questions, self.spec, decode, context)
        ticket.rank = self.latency_estimator.rank(ticket.cost)
        ticket.seconds = seconds = self.latency_estimator.seconds(ticket.cost)
        most = self.limits.seconds
        if not ticket.rank or not self.latency_estimator.is_measured:
            return
        if seconds > MAX_DEADLINE_SHARE * most:
            wide = f" with {decode.width} beams" if self.spec.writes and decode.width > 1 else ""
            raise RequestRejected(
                413, f"this request{wide} would take about {seconds:,.0f} s on this machine; the "
                f"deadline is {most:g} s (serve.seconds). Send less text per request"
                f"{', or use fewer beams' if wide else ''}.",
                param="input", code="too_expensive",
            )  # fmt: skip
        if self._expected_seconds and self._expected_seconds + seconds > most:
            wait = math.ceil(min(MAX_RETRY_AFTER, self._expected_seconds + seconds - most))
            raise RequestRejected(
                429, f"the model {self.name} is busy for about {self._expected_seconds:,.0f} s, "
                     f"and this request would take about {seconds:,.0f} s. Retry in {wait} s.",
                code="queue_full", headers={"Retry-After": str(wait)},
            )  # fmt: skip

    def stop(self) -> None:
        with self._condition:
            self.stopping = True
            self._condition.notify()

    def join(self, seconds: float) -> bool:
        """Wait at most this number of seconds for the thread to end, and return whether it has
        ended. Call it after `stop`."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    # -- run in the worker thread

    def _thread_main(self) -> None:
        """Main loop of the thread.

        After a crash the model is loaded again, and queued requests wait until it is ready.
        """
        pause = FIRST_PAUSE
        while not self.stopping:
            try:
                _ = self.run.opened.models if self.run.opened.engine is None else None
                self._warm_up()
                if self.run.opened.engine is None:
                    self.n_bytes = model_bytes(self.run.opened.models)
            except BaseException as error:  # the thread must not end while there are requests
                said = f"cannot load the model {self.name}: {error}"
                if said != self.load_error:
                    log.error("%s", said)
                self.load_error = said
                self._unload()
                self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause, self.load_error = FIRST_PAUSE, ""
            self.ready.set()
            try:
                self._process_queue()
            except BaseException as error:
                self.ready.clear()
                self._failures(model=self.name)
                log.error("%s: the worker crashed (%s); restarting it", self.name,
                          type(error).__name__)  # fmt: skip
                self._fail_running(ModelFailed(f"the worker of {self.name} crashed and restarts."))
                self._unload()
                self._pause(pause)

    def _unload(self) -> None:
        self.run.close()
        self._predictors.clear()
        self._continuous_batch = None

    def _pause(self, seconds: float) -> None:
        """Sleep for `seconds`, or until the worker is stopped."""
        until = time.perf_counter() + seconds
        with self._condition:
            while not self.stopping and (left := until - time.perf_counter()) > 0:
                self._condition.wait(left)

    def _warm_up(self) -> None:
        """Compute probe texts, so that the first request need not wait while weights are packed."""
        if not self.spec.is_text:
            return
        use = self.run.use({})
        if not self.latency_estimator.is_measured and self.run.opened.engine is None:
            weights = (p.numel() for one in self.run.opened.models for p in one.parameters())
            self.latency_estimator.guess_from_size(sum(weights))
        if isinstance(self._predictor(use, ()), ContinuousBatchingPredictor):
            return
        asked = [Inputs(self.run.settings, self.run.folder).parse(text) for text in PROBE_TEXTS]
        if any(one.error is not None for one in asked):
            return  # a task of pairs or fields: its first requests are measured
        with contextlib.suppress(Exception):
            [*AnswerStream(use, asked[:1])]  # the first call makes packed weights and threads
            began = time.thread_time()
            [*AnswerStream(use, asked)]
            cost = cost_of(PROBE_TEXTS, self.spec, use.settings.decode, None)
            self.latency_estimator.record(max(cost, MEASURED_FROM), time.thread_time() - began)

    def _fail_running(self, error: Exception) -> None:
        """Fail all requests that were being computed, because one of them may have caused the
        crash."""
        owners = [ticket for ticket, _ in self._owners.values()]
        self._owners.clear()
        for ticket in dict.fromkeys([*self._current, *owners, *self._isolated]):
            self._finish(ticket, error)
        self._isolated = []
        self._current = []
        self._flush()

    def _process_queue(self) -> None:
        while (tickets := self._take()) is not None:
            self._compute(tickets)

    def _compute(self, tickets: Sequence[Ticket]) -> None:
        """Compute these tickets and one step of the continuous batch."""
        outer, self._current = self._current, [*self._current, *tickets]
        batches: dict[Hashable, list[Ticket]] = {}
        for ticket in tickets:
            self._queue_seconds(time.perf_counter() - ticket.received_at, model=self.name)
            if ticket.request.opened is not self.run.opened:  # the model was loaded again
                ticket.request = replace(ticket.request, opened=self.run.opened)
            if ticket.is_complete or ticket.cancelled:
                self._finish(ticket)
            elif not self._join(ticket):
                # Samples depend on the position in a batch, so a sampled request gets a batch of
                # its own.
                alone = ticket.request.settings.decode.sample
                key = id(ticket) if alone else (ticket.key, ticket.rank)
                batches.setdefault(key, []).append(ticket)
        for batch in batches.values():
            self._compute_batch(batch)
        self._current = outer
        if self._continuous_batch is not None and not self._continuous_batch.is_empty:
            self._step(self._continuous_batch)
        self._flush()

    def _interrupt(self, tickets: Sequence[Ticket]) -> None:
        """Answer requests of lower ranks between two steps or batches of these tickets.

        The texts in the continuous batch advance by one token as well.
        """
        if threading.current_thread() is not self._thread:
            return  # a thread that prefetches files
        if all(ticket.cancelled for ticket in tickets):
            raise AllCancelled
        if time.perf_counter() < self._uninterrupted_until:
            return
        others: list[Ticket] = []
        if self._queue:
            with self._condition:
                others = self._take_small(tickets[0].rank) + self._take_large(tickets[0].rank)
        if not others and (self._continuous_batch is None or self._continuous_batch.is_empty):
            return
        began, cpu, nested = time.perf_counter(), time.thread_time(), self._nested_seconds
        self._compute(others)
        self._nested_seconds = nested + time.thread_time() - cpu
        now = time.perf_counter()
        self._uninterrupted_until = now + min(MAX_UNINTERRUPTED_SECONDS, now - began)

    def _take(self) -> list[Ticket] | None:
        """Take waiting tickets from the queue; None if the worker is stopping.

        If the last batch had several requests, wait up to `serve.collect_ms` for more.
        """
        with self._condition:
            busy = self._continuous_batch is not None and not self._continuous_batch.is_empty
            while not self._queue and not busy:
                if self.stopping:
                    return None
                self._condition.wait()
            if not busy and self._last_batch_size > 1 and len(self._queue) < self._last_batch_size:
                until = time.perf_counter() + self.limits.collect_ms / 1000
                while len(self._queue) < self._last_batch_size and not self.stopping:
                    left = until - time.perf_counter()
                    if left <= 0 or not self._condition.wait(left):
                        break
            # Large tickets come last, because `_interrupt` answers requests that arrive while they
            # run.
            found = self._take_small(1) + self._take_large(None)
            if not busy:
                self._last_batch_size = len(found)
            return found

    def _take_small(self, below: int) -> list[Ticket]:
        """Remove tickets from the queue and return them: all cancelled ones, and as many of rank 0
        as fit in one batch.

        `below`: rank of the running batch. If it is 0, only cancelled tickets are removed.
        """
        found: list[Ticket] = []
        later: deque[Ticket] = deque()
        inputs, cost = 0, 0.0
        for ticket in self._queue:
            room = inputs < self.limits.batch and cost < ticket.request.settings.decode.batch_tokens
            if ticket.cancelled or (ticket.rank < min(below, 1) and (not found or room)):
                found.append(ticket)
                inputs += len(ticket.inputs)
                cost += ticket.cost
            else:
                later.append(ticket)
        self._queue = later
        return found

    def _take_large(self, below: int | None) -> list[Ticket]:
        """Remove the oldest ticket above rank 0 from the queue, with others that fit in its batch,
        and return them.

        All of them have the same rank and options. `below`: upper limit (exclusive) of their rank;
        None: no limit.
        """
        found: list[Ticket] = []
        cost = 0.0
        for ticket in self._queue:
            if ticket.rank and (below is None or ticket.rank < below):
                first = found[0] if found else ticket
                alike = (ticket.key, ticket.rank) == (first.key, first.rank)
                room = ticket.request.settings.decode.batch_tokens
                if alike and (not found or cost + ticket.cost <= room):
                    found.append(ticket)
                    cost += ticket.cost
        self._queue = deque(ticket for ticket in self._queue if ticket not in found)
        return found

    def _predictor(self, use: InferenceRequest, key: Hashable) -> Predictor:
        """Return the predictor for these options. The most recent ones are cached."""
        if key in self._predictors:
            self._predictors.move_to_end(key)
            return self._predictors[key]
        with use.opened.lock:
            made = find_task(use.settings).predictor(use)
        self._predictors[key] = made
        while len(self._predictors) > MAX_PREDICTORS:
            self._predictors.popitem(last=False)
        return made

    # -- token-by-token generation

    def _join(self, ticket: Ticket) -> bool:
        """Add the ticket to the continuous batch, if its model generates token by token."""
        try:
            predictor = self._predictor(ticket.request, ticket.key)
        except Exception as error:
            self._finish(ticket, self._client_error(error))
            return True
        if not isinstance(predictor, ContinuousBatchingPredictor) or not predictor.can_batch:
            return False
        ticket.predictor = predictor
        if self._continuous_batch is None:
            self._continuous_batch = predictor.new_batch()
            self._continuous_batch.most_rows = self.limits.rows
        growing = self._continuous_batch
        for number, asked in enumerate(ticket.inputs):
            if ticket.answers[number] is None and not ticket.ended:
                self._join_one(growing, ticket, number, asked)
        if ticket.is_complete:
            self._finish(ticket)
        if ticket.on_piece is not None:  # only for streams: the call wakes the event loop
            self._outbox.append((ticket.loop, ticket.joined.set))
        return True

    def _join_one(
        self, growing: ContinuousBatch, ticket: Ticket, number: int, asked: ParsedInput
    ) -> None:  # fmt: skip
        predictor = ticket.predictor
        assert predictor is not None

        def on_piece(w: int, piece: str) -> None:
            self._send_piece(ticket, number, w, piece)

        try:
            member = predictor.member(
                growing, asked.value, on_piece=None if ticket.on_piece is None else on_piece,
                top=ticket.detail.top, number=number,
            )  # fmt: skip
            member.scores_prompt = ticket.detail.prompt_logprobs
            member.generates = ticket.detail.generates
        except UserError as error:
            ticket.answers[number] = Answer(error=str(error), id=asked.id)
            return
        except Exception as error:
            self._finish(ticket, self._client_error(error))
            ticket.cancel_members()  # inputs that have already joined
            return
        ticket.members[number] = member
        member.cancelled, member.owner = ticket.cancelled, ticket
        self._owners[member] = (ticket, number)
        self._prompt_tokens(len(member.prompt), model=self.name)
        growing.join(member)

    def _send_piece(self, ticket: Ticket, number: int, w: int, piece: str) -> None:
        """Send new text of a stream. If the text is generated again after a failure, the part that
        was already sent is skipped."""
        place = (number, w)
        seen, known = (
            ticket.sent_chars.get(place, 0),
            ticket.sent_chars.setdefault((number, -1 - w), 0),
        )
        ticket.sent_chars[number, -1 - w] = known + len(piece)
        fresh = piece[max(0, seen - known) :]
        if fresh and ticket.on_piece is not None:
            ticket.sent_chars[place] = seen + len(fresh)
            call = ticket.on_piece
            self._outbox.append((ticket.loop, lambda: call(number, w, fresh)))

    def _step(self, growing: ContinuousBatch) -> None:
        began, rows = time.perf_counter(), len(growing.rows)
        try:
            with self.run.opened.lock:
                done = growing.step()
        except Exception as error:
            self._bisect_failure(growing, error)
            return
        finally:
            took = time.perf_counter() - began
        self._seconds_per_request += 0.1 * (took / max(1, rows) - self._seconds_per_request)
        if growing.rows:
            self._batch_inputs(len(growing.rows), model=self.name)
        for member in done:
            self._finish_member(member)

    def _finish_member(self, member: BatchMember) -> None:
        ticket, number = self._owners.pop(member)
        if member.outputs is None:
            self._finish(ticket)  # it was cancelled
            return
        asked = ticket.inputs[number]
        try:
            assert ticket.predictor is not None
            answer = ticket.predictor.finished_answer(asked.value, member)
        except Exception as error:
            self._finish(ticket, self._client_error(error))
            ticket.cancel_members()
            return
        ticket.answers[number] = _with_id(answer, asked)
        self._generated_tokens(sum(map(len, member.log_probs)), model=self.name)
        if ticket.is_complete:
            self._finish(ticket)

    def _bisect_failure(self, growing: ContinuousBatch, error: Exception) -> None:
        """Find the request that caused a failed step, so that only this request gets the error.

        All texts are generated again from the start, in groups that are halved until a text fails
        alone.
        """
        log.error("%s: a generation step failed (%s); retrying its requests in smaller groups",
                  self.name, type(error).__name__)  # fmt: skip
        told = self._client_error(error)
        growing.clear()
        owners, self._owners = self._owners, {}
        self._isolated += [ticket for ticket, _ in owners.values()]
        left = []
        for member, (ticket, number) in owners.items():
            if member.outputs is not None:  # it was finished before the failure
                self._owners[member] = (ticket, number)
                self._finish_member(member)
            elif ticket.ended or ticket.cancelled:
                self._finish(ticket)
            else:
                left.append((ticket, number))
        if len(left) == 1:
            [(ticket, _)] = left
            self._finish(ticket, told)
            ticket.cancel_members()
        else:
            half = len(left) // 2
            self._regenerate(growing, left[:half])
            self._regenerate(growing, left[half:])
        self._isolated = [ticket for ticket in self._isolated if not ticket.ended]
        self._flush()

    def _regenerate(self, growing: ContinuousBatch, some: Sequence[tuple[Ticket, int]]) -> None:
        """Generate these texts from start to end without letting other requests join."""
        for ticket, number in some:
            for place in [
                place for place in ticket.sent_chars if place[0] == number and place[1] < 0
            ]:
                del ticket.sent_chars[place]  # count again, so that no text is sent twice
            if not ticket.ended:
                self._join_one(growing, ticket, number, ticket.inputs[number])
        while not growing.is_empty:
            self._step(growing)
            self._flush()

    # -- complete batches

    def _compute_batch(self, tickets: Sequence[Ticket]) -> None:
        """Compute several requests as one flat batch. If that fails, compute each of them alone."""
        owners = [
            (ticket, number)
            for ticket in tickets
            for number, answer in enumerate(ticket.answers)
            if answer is None
        ]
        began = time.perf_counter()
        self._batch_inputs(len(owners), model=self.name)
        # Audio is split into windows, and repeated inputs get new indices.
        exact = not self.spec.is_audio and len(tickets) > 1

        def given_up(number: int) -> bool:
            if exact and number != UNNUMBERED:
                return owners[number][0].cancelled
            return all(ticket.cancelled for ticket in tickets)

        told = INTERRUPTION.set(Interruption(given_up, lambda: self._interrupt(tickets)))
        cpu, nested = time.thread_time(), self._nested_seconds
        try:
            asked = (ticket.inputs[number] for ticket, number in owners)
            use = replace(tickets[0].request, between=lambda *_: self._interrupt(tickets))
            found = AnswerStream(use, asked, keep=True, again=len(tickets) == 1)
            for (ticket, number), answer in zip(owners, found, strict=True):
                ticket.answers[number] = answer
                if ticket.is_complete:
                    self._finish(ticket)
                    self._flush()
        except AllCancelled:
            for ticket in tickets:
                self._finish(ticket)
        except Exception as error:
            self._handle_batch_error(tickets, error)
        finally:
            INTERRUPTION.reset(told)
        if all(ticket.is_complete for ticket in tickets):
            own = time.thread_time() - cpu - (self._nested_seconds - nested)
            self.latency_estimator.record(sum(ticket.cost for ticket in tickets), own)
        if not tickets[0].rank:
            self._seconds_per_request += 0.2 * (
                (time.perf_counter() - began) / len(tickets) - self._seconds_per_request
            )

    def _handle_batch_error(self, tickets: Sequence[Ticket], error: Exception) -> None:
        open_ones = [ticket for ticket in tickets if not ticket.ended]
        if not isinstance(error, UserError):
            log.error("%s: a batch failed (%s)", self.name, type(error).__name__)
        if len(tickets) == 1:
            for ticket in open_ones:
                self._finish(ticket, self._client_error(error))
            return
        for ticket in open_ones:
            self._compute_batch([ticket])

    # -- results and errors

    def _client_error(self, error: Exception) -> Exception:
        """Return the error for a client: a `UserError` unchanged, any other error as
        `ModelFailed`."""
        if isinstance(error, UserError):
            return error
        self._failures(model=self.name)
        return ModelFailed(
            f"the model {self.name} failed on this request ({type(error).__name__})."
        )

    def _finish(self, ticket: Ticket, error: Exception | None = None) -> None:
        if ticket.ended:
            return
        ticket.ended = True
        self.release(len(ticket.inputs))
        if ticket.rank:
            with self._condition:
                self._expected_seconds = max(0.0, self._expected_seconds - ticket.seconds)
        if ticket.cancelled:
            self._cancelled_requests(model=self.name)
        if error is None and not any(member is not None for member in ticket.members):
            self._count(ticket)

        def tell() -> None:
            if ticket.future.done():
                return
            if ticket.cancelled or (error is None and not ticket.is_complete):
                ticket.future.cancel()
            elif error is not None:
                ticket.future.set_exception(error)
            else:
                ticket.future.set_result([one for one in ticket.answers if one is not None])

        self._outbox.append((ticket.loop, tell))

    def _count(self, ticket: Ticket) -> None:
        known = [getattr(answer, "token_log_probs", ()) for answer in ticket.answers
                 if answer is not None and not answer.error]  # fmt: skip
        if n := sum(map(len, known)):
            self._generated_tokens(n, model=self.name)

    def _flush(self) -> None:
        """Pass the results of this step to the event loops, with one call per loop."""
        if not self._outbox:
            return
        calls, self._outbox = self._outbox, []
        for loop in dict.fromkeys(loop for loop, _ in calls):
            mine = [call for own, call in calls if own is loop]
            try:
                loop.call_soon_threadsafe(_call_all, mine)
            except RuntimeError:  # the loop is closed, so its clients are gone too
                continue
        self.wakeup.set()


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _with_id(answer: Answer, asked: ParsedInput) -> Answer:
    return answer if asked.id is None else replace(answer, id=asked.id)
