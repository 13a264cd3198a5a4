"""`headway serve` beside its peers: the same weights, requests and limits, over HTTP.

A decoder of GPT-2's size beside `transformers serve`, with and without its continuous batching, and
a translator of the size of the first Transformer beside LitServe with its own batching around
`MarianMTModel.generate`, sorted and padded; both with random weights and vocabularies of shipped
models. Lengths are fixed: no output ends early. Once all outputs are as long, which suits who
computes in batches; once (`-mixed`) they and the prompts differ as sentences of news do, 26 ± 14
tokens, scaled to the mean that is asked for. Then what an operator asks, of the shipped
translator: overload, idle connections, growth. Overload is also measured of a server that parses
every request and rejects none from its bytes alone (`-parsed`). Clients are in this process, on the
same cores, and do little but wait. `--only` measures some parts and keeps the others of an earlier
run.

`--worker` measures the batching worker in this process, without HTTP, beside `generate_batch` and
`generate` of transformers: for machines without HTTP packages.

Peers need `pip install litserve accelerate`, here or where `--peers PYTHON` says; what is not
installed is noted as failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import torch

from benchmarks.machine import RESULTS, describe, peaks, pick_device, save
from headway.interop.exporting import export_run
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.run import Run
from headway.settings.folder import CONFIG, TOKENIZER, load_run, run_folder
from headway.settings.presets import preset
from headway.settings.run import resolved_toml

T = TypeVar("T")

TURNS = 5
"""Of the worker and what it is compared with, after two that warm them."""

LONG_ROUND = 45.0
"""Seconds of a round after which there is no second one. The better counts: the first that has so
many requests together pays for memory and code, with us and elsewhere."""


CONCURRENT = (1, 8, 64)
ROUNDS = 4
"""Of the peak and of overload."""

OURS = "headway serve"
PARTS = (
    "decoder",
    "translator",
    "decoder-mixed",
    "translator-mixed",
    "overload",
    "overload-parsed",
    "overload-base",
    "overload-base-parsed",
    "long",
    "memory",
    "idle",
    "growth",
)
ENGLISH = "Once upon a time there was little girl dog park big happy day went saw"
GERMAN = "Ich gehe heute mit Tom nach Hause und wir essen dort ein Brot"


# The models


def random_run(folder: Path, like: str, name: str, **changes: Any) -> Path:
    """A run of a preset's shape with random weights and the vocabulary of a shipped run."""
    shipped = run_folder(like)
    settings = load_run(shipped)
    size: Any = settings.model
    shape: Any = replace(preset(name), **changes, vocab_size=size.vocab_size, dropout=0.0)
    torch.manual_seed(0)
    model = build_model(shape).eval()
    folder.mkdir(parents=True)
    decode = replace(settings.decode, sample=False, beam=1, temperature=1.0, top_p=1.0)
    settings = replace(settings, model=shape, decode=decode)
    (folder / CONFIG).write_text(resolved_toml(settings))
    (folder / TOKENIZER).write_bytes((shipped / TOKENIZER).read_bytes())
    save_weights(folder, model_weights(model))
    return folder


def exported(run: Run, out: Path) -> Path:
    """The same weights as Hugging Face's classes read them."""
    export_run(run.opened, "hf", out)
    return out


# The servers


@contextlib.contextmanager
def process(words: Sequence[str], url: str, alive: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a process of its own, from when it answers."""
    quiet = subprocess.DEVNULL
    started = subprocess.Popen(words, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        until = time.monotonic() + 300
        while True:
            with contextlib.suppress(OSError), socket.create_connection(_place(url), 1) as raw:
                raw.sendall(f"GET {alive} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                if b" 200 " in raw.recv(64):
                    break
            if started.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{' '.join(words[:4])} … did not start")
            time.sleep(0.1)
        yield started
    finally:
        started.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(10)
        with contextlib.suppress(ProcessLookupError):  # and those that it started
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


CLIENTS: set[int] = set()
"""Cores of those who ask, where they have some of their own; others are the servers'."""


def step_aside() -> None:
    """This thread asks from now on: it leaves the cores of the servers to them."""
    if CLIENTS:
        os.sched_setaffinity(0, CLIENTS)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _place(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rpartition(":")[2])


def parse_all() -> contextlib.AbstractContextManager[Any]:
    """The server parses every request before it rejects it, as without `reject_early`."""
    from headway.serve.access import AccessControl

    return mock.patch.object(AccessControl, "reject_early", return_value=None)


def serve_parsing_all() -> None:
    """The command `headway`, with `parse_all`, in a process of its own."""
    from headway.cli.main import main

    with parse_all():
        sys.exit(main())


@contextlib.contextmanager
def headway_server(
    run: Run, inside: bool, *more: str, early: bool = True
) -> Iterator[tuple[str, int]]:
    """Its address and process. `inside`: a thread of this one, for a quick look. `early`: requests
    are rejected from their bytes in an overload, as they are outside of benchmarks."""
    if inside:
        from headway.serve.application import create_app
        from headway.serve.limits import Limits
        from headway.serve.server import running

        given = {word.partition("=")[0].removeprefix("serve."): int(word.partition("=")[2])
                 for word in more}  # fmt: skip
        app = create_app([run], limits=Limits(**given))  # type: ignore[arg-type]
        with contextlib.nullcontext() if early else parse_all(), running(app) as url:
            yield url, os.getpid()
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    parsing = ["-c", "from benchmarks.serve import serve_parsing_all as main; main()"]
    program = ["-m", "headway"] if early else parsing
    words = [sys.executable, *program, "serve", str(run.folder), "--port", str(port)]
    with process([*words, "--device", "cpu", "--quiet", *more], url, "/ready") as started:
        yield url, started.pid


@contextlib.contextmanager
def transformers_server(
    python: str, folder: Path, *, continuous: bool
) -> Iterator[tuple[str, int]]:  # fmt: skip
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [python, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1"]
    words += [str(folder), "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    words += ["--continuous-batching"] if continuous else []
    with process(words, url, "/health") as started:
        yield url, started.pid


@contextlib.contextmanager
def lit_server(
    python: str, folder: Path, together: int, beam: int
) -> Iterator[tuple[str, int]]:  # fmt: skip
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [python, "-m", "benchmarks.lit_translator", str(folder), str(port)]
    with process([*words, str(together), str(beam)], url, "/health") as started:
        yield url, started.pid


# The clients


class Client:
    """A connection that is kept. It does as little as it can: it has the server's own cores."""

    def __init__(self, url: str, path: str) -> None:
        self.place, self.path = _place(url), path
        self.pair: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> tuple[int, float]:
        """The status, when all of the answer is there; and after how many seconds to come again."""
        text = posted(self.path, body)
        if self.pair is None:
            self.pair = await asyncio.open_connection(*self.place)
        reader, writer = self.pair
        writer.write(text)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        lines = dict(line.split(b": ", 1) for line in answer.split(b"\r\n")[1:-2])
        if b"content-length" in lines:
            await reader.readexactly(int(lines[b"content-length"]))
        else:
            while (size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)) or size == 0:
                await reader.readexactly(size + 2)
                if not size:
                    break
        if lines.get(b"connection") == b"close":
            self.close()
        return int(answer.split()[1]), float(lines.get(b"retry-after", 0))

    def close(self) -> None:
        if self.pair is not None:
            self.pair[1].close()
        self.pair = None


async def load(
    url: str, bodies: Sequence[Mapping[str, Any]], path: str, concurrent: int, seconds: float = 0.0
) -> tuple[list[tuple[int, float]], float]:
    """Status and seconds of each request, of a closed loop of so many clients; and all seconds.
    `seconds`: for so long, instead of each body once. Who is refused comes again when told to."""
    found: list[tuple[int, float]] = []
    texts = [json.dumps(body).encode() for body in bodies]
    begun = time.perf_counter()
    left = iter(range(10**9 if seconds else len(texts)))

    async def one() -> None:
        client = Client(url, path)
        for number in left:
            if seconds and time.perf_counter() - begun > seconds:
                break
            start = time.perf_counter()
            status, wait = await client.post(texts[number % len(texts)])
            found.append((status, time.perf_counter() - start))
            await asyncio.sleep(min(wait, max(0.0, begun + seconds - time.perf_counter())))
        client.close()

    await asyncio.gather(*(one() for _ in range(concurrent)))
    return found, time.perf_counter() - begun


def alone(work: Coroutine[Any, Any, T]) -> T:
    """In a loop of a thread of its own: whoever calls may have one already."""
    with ThreadPoolExecutor(1, initializer=step_aside) as pool:
        return pool.submit(asyncio.run, work).result()


def spent(pid: int) -> float:
    """Seconds of cores that a server has taken so far, with all processes that it started."""
    ticks = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            facts = place.read_text().rpartition(") ")[2].split()
            if int(facts[3]) == pid or int(place.parent.name) == pid:
                ticks += int(facts[11]) + int(facts[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rates(
    server: tuple[str, int], bodies: Sequence[Mapping[str, Any]], path: str,
    lengths: Sequence[int], concurrent: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    """Throughput and latency at each number of clients, and what the server took of the cores,
    which depends little on what else they do."""
    url, pid = server
    alone(load(url, bodies[:2], path, 1))  # the first one is slower everywhere
    result: dict[str, Any] = {}
    for n in concurrent:
        some = bodies[: max(8, min(len(bodies), 4 * n))]
        tokens = sum(lengths[: len(some)])
        rounds = []
        while not rounds or (len(rounds) < 2 and rounds[0][1] < LONG_ROUND):
            before = spent(pid)
            found, took = alone(load(url, some, path, n))
            rounds.append((found, took, spent(pid) - before))
        found, took, cores = min(rounds, key=lambda one: one[1])
        assert {status for status, _ in found} == {200}, {status for status, _ in found}
        times = sorted(seconds for _, seconds in found)
        result[str(n)] = {
            "requests_per_s": len(found) / took, "tokens_per_s": tokens / took,
            "p50_ms": 1e3 * statistics.median(times),
            "p99_ms": 1e3 * times[min(len(times) - 1, int(0.99 * len(times)))],
            "core_ms_per_token": 1e3 * cores / tokens,
        }  # fmt: skip
    return result


def beside(
    systems: Mapping[str, Callable[[], contextlib.AbstractContextManager[tuple[str, int]]]],
    bodies: Mapping[str, Sequence[Mapping[str, Any]]],
    paths: Mapping[str, str],
    lengths: Sequence[int],
    concurrent: Sequence[int],
) -> dict[str, Any]:
    """One server after another: they would take each other's cores."""
    result: dict[str, Any] = {"servers": {}, "failed": {}}
    for name, start in systems.items():
        try:
            with start() as server:
                result["servers"][name] = rates(
                    server, bodies[name], paths[name], lengths, concurrent
                )
        except Exception as error:
            if name.startswith("headway"):
                raise
            result["failed"][name] = f"{type(error).__name__}: {error}"
    return result


def offline(
    run: Run, inputs: Sequence[str], options: Mapping[str, Any], tokens: int
) -> dict[str, float]:
    """Tokens a second of the same inputs in one call."""
    run(list(inputs[:8]), **options)
    times, cores = [], []
    for _ in range(2):
        start, began = time.perf_counter(), time.process_time()
        run(list(inputs), **options)
        times.append(time.perf_counter() - start)
        cores.append(time.process_time() - began)
    work = len(inputs) * tokens
    return {"tokens_per_s": work / min(times), "core_ms_per_token": 1e3 * min(cores) / work}


def products(run: Run, inputs: Sequence[str], lengths: Sequence[int], beam: int) -> float:
    """Operations of a request, the mean: of products with weights alone, and twice their numbers
    for each row. Attention, norms and the search are not in it."""

    def of(part: Any, *but: str) -> int:
        found = part.named_parameters()
        return sum(p.numel() for name, p in found
                   if p.dim() == 2 and not any(word in name for word in but))  # fmt: skip

    model: Any = run.model
    shape: Any = run.settings.model
    read = statistics.mean(len(run.tokenizer.encode(text)) + 1 for text in inputs)
    tokens = statistics.mean(lengths)
    words = shape.vocab_size * shape.d_model
    if not hasattr(model, "encoder"):
        return 2 * (of(model.stack) * (read + tokens - 1) + words * tokens)
    cross = 2 * shape.d_model**2 * len(model.decoder.blocks)  # keys and values of the source
    once = of(model.encoder) * read + cross * read
    return 2 * (once + (of(model.decoder) - cross + words) * beam * tokens)


def overhead(
    run: Run, url: str, inputs: Sequence[str], options: Mapping[str, Any]
) -> dict[str, float]:
    """Milliseconds of one request alone and of the bare call, taking turns; in this thread, which
    has computed before: torch's library lets threads wait asleep where several of a process
    compute, and a step of one text then takes a fifth longer."""
    times: list[tuple[float, float]] = []
    with socket.create_connection(_place(url), 10) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def ask(text: str) -> float:
            body = json.dumps({"input": text, "options": dict(options)}).encode()
            start = time.perf_counter()
            raw.sendall(posted("/v1/predict", body))
            assert answered(raw) == 200
            return time.perf_counter() - start

        def call(text: str) -> float:
            start = time.perf_counter()
            run(text, **options)
            return time.perf_counter() - start

        for turn, text in enumerate([inputs[0], *inputs]):  # the first one warms both
            if turn % 2:  # who comes second has the other's memory behind it, or its clock
                served = ask(text)
                times.append((call(text), served))
            else:
                times.append((call(text), ask(text)))
    bare, served = ([1e3 * pair[n] for pair in times[1:]] for n in (0, 1))
    more = [one - other for other, one in zip(bare, served, strict=True)]
    return {
        "bare_ms": statistics.median(bare), "served_ms": statistics.median(served),
        "overhead_ms": statistics.median(more),
        "overhead_of_the_best_ms": min(served) - min(bare),
    }  # fmt: skip


def posted(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Content-Type: application/json\r\n\r\n" + body


def answered(raw: socket.socket) -> int:
    """The status of an answer that has a length, when all of it is there."""
    text = b""
    while (size := whole(text)) is None or len(text) < size:
        more = raw.recv(65536)
        assert more, "the server closed the connection"
        text += more
    return int(text[9:12])


def whole(text: bytes) -> int | None:
    """Bytes of an answer of which this is the beginning, as soon as that is known."""
    end = text.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = text[:end].lower()
    at = head.index(b"content-length: ") + len(b"content-length: ")
    return end + 4 + int(head[at:].split(b"\r\n", 1)[0])


# What an operator asks


def offered(
    url: str, requests: Sequence[bytes], rate: float, seconds: float, most: int = 1000
) -> tuple[list[tuple[int, float]], float, int]:
    """So many requests a second for so long, whatever becomes of them, each on a connection that
    is free (nobody comes again after a refusal: the next one comes anyway). Status and seconds of
    each, all seconds, and how many were not sent because `most` connections waited."""
    found: list[tuple[int, float]] = []
    poll, free = select.epoll(), list[socket.socket]()
    waiting: dict[int, tuple[socket.socket, float, bytes]] = {}
    opened: list[socket.socket] = []
    sent = missed = 0
    begun = time.perf_counter()
    try:
        while (now := time.perf_counter()) < begun + seconds or waiting:
            due = int(min(now - begun, seconds) * rate)
            while sent + missed < due:
                if not free and len(opened) < most:
                    raw = socket.create_connection(_place(url), 10)
                    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    poll.register(raw, select.EPOLLIN)
                    opened.append(raw)
                    free.append(raw)
                if not free:
                    missed += 1
                    continue
                raw = free.pop()
                waiting[raw.fileno()] = (raw, time.perf_counter(), b"")
                raw.sendall(requests[sent % len(requests)])
                sent += 1
            next_due = begun + (sent + missed + 1) / rate
            for number, _ in poll.poll(max(0.0, min(0.05, next_due - time.perf_counter()))):
                if number not in waiting:  # nobody used it for long, and the server closed it
                    idle_one = next(raw for raw in free if raw.fileno() == number)
                    free.remove(idle_one)
                    opened.remove(idle_one)
                    poll.unregister(idle_one)
                    idle_one.close()
                    continue
                raw, start, text = waiting[number]
                more = raw.recv(65536)
                assert more, "the server closed the connection"
                text += more
                size = whole(text)
                if size is None or len(text) < size:
                    waiting[number] = (raw, start, text)
                    continue
                found.append((int(text[9:12]), time.perf_counter() - start))
                del waiting[number]
                free.append(raw)
    finally:
        for raw in opened:
            raw.close()
        poll.close()
    return found, time.perf_counter() - begun, missed


def computed(url: str) -> tuple[float, float]:
    """Inputs that were computed so far, and in how many batches, as the server counts them."""
    with socket.create_connection(_place(url), 10) as raw:
        raw.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(partial(raw.recv, 65536), b"")).decode()
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if " " in line)
    return tuple(  # type: ignore[return-value]
        sum(float(v) for k, v in found.items() if k.startswith(f"headway_batch_inputs_{what}"))
        for what in ("sum", "count")
    )


@contextlib.contextmanager
def counted(into: Counter[str], url: str, pid: int) -> Iterator[None]:
    """What a server does meanwhile: its inputs and batches, and seconds of cores."""
    before, cores = computed(url), spent(pid)
    yield
    into["cores"] += spent(pid) - cores  # type: ignore[assignment]
    for name, late, early in zip(("inputs", "batches"), computed(url), before, strict=True):
        into[name] += late - early  # type: ignore[assignment]


def overload(
    run: Run, bodies: Sequence[Mapping[str, Any]], said: Any, early: bool
) -> dict[str, Any]:
    """Ten times as many requests a second as are answered when as many clients ask as fit; the
    two take turns. Shares are those of all rounds together: by the clock, and by what the server
    took of the cores, which depends less on what else they do."""
    seconds, room = said.seconds, said.room
    requests = [posted("/v1/predict", json.dumps(body).encode()) for body in bodies]
    with (
        headway_server(run, said.inside, f"serve.queue={room}", early=early) as server,
        ThreadPoolExecutor(1, initializer=step_aside) as pool,
    ):
        url, pid = server
        alone(load(url, bodies, "/v1/predict", room, min(2.0, seconds)))
        best, full = Counter[str](), Counter[str]()  # of the peak, and of overload
        found: list[tuple[int, float]] = []
        missed, shares = 0, []
        for _ in range(ROUNDS):
            with counted(best, url, pid):
                answers, took = alone(load(url, bodies, "/v1/predict", room, seconds / ROUNDS))
            n = sum(status == 200 for status, _ in answers)
            best.update({"answered": n, "seconds": took})
            rate = n / took
            with counted(full, url, pid):
                work = pool.submit(offered, url, requests, 10 * rate, seconds / ROUNDS)
                answers, took, late = work.result()
            n = sum(status == 200 for status, _ in answers)
            full.update({"answered": n, "seconds": took})
            shares.append(n / took / rate)
            found, missed = found + answers, missed + late
        calm, _ = alone(load(url, bodies[:32], "/v1/predict", 1))
    took, peak = full["seconds"], best["answered"] / best["seconds"]
    good = [seconds for status, seconds in found if status == 200]
    refused = sorted(seconds for status, seconds in found if status == 429)
    assert len(good) + len(refused) == len(found)
    return {
        "room": room, "peak_requests_per_s": peak, "offered_requests_per_s": 10 * peak,
        "sent_requests_per_s": len(found) / took, "not_sent": missed,
        "accepted_requests_per_s": len(good) / took,
        "share_of_peak": len(good) / took / peak, "shares_of_rounds": shares,
        "share_of_peak_in_core_time":
            full["answered"] / full["cores"] * best["cores"] / best["answered"],
        "refused": len(refused),
        "inputs_together_at_the_peak": best["inputs"] / max(1.0, best["batches"]),
        "inputs_together_in_overload": full["inputs"] / max(1.0, full["batches"]),
        "cores_at_the_peak": best["cores"] / best["seconds"],
        "cores_in_overload": full["cores"] / took,
        "accepted_p99_ms": 1e3 * sorted(good)[int(0.99 * len(good))],
        "p50_ms_afterwards": 1e3 * statistics.median(seconds for _, seconds in calm),
        "refused_p50_ms": 1e3 * statistics.median(refused) if refused else 0.0,
        "refused_p99_ms": 1e3 * refused[int(0.99 * len(refused))] if refused else 0.0,
    }  # fmt: skip


def held(pid: int) -> tuple[int, int]:
    """Bytes and descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize(), len([*Path(f"/proc/{pid}/fd").iterdir()])


def idle(run: Run, inside: bool, n: int) -> dict[str, float]:
    """Memory of connections that say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * n)), hard))
    with headway_server(run, inside) as (url, pid):
        before, _ = held(pid)
        raws = [socket.create_connection(_place(url), 10) for _ in range(n)]
        time.sleep(1)
        after, _ = held(pid)
        start = time.perf_counter()
        with socket.create_connection(_place(url), 10) as raw:
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b" 200 " in raw.recv(64)
        took = time.perf_counter() - start
        for raw in raws:
            raw.close()
    return {"connections": n, "bytes_each": (after - before) / n, "health_ms": 1e3 * took}


LONG = {
    "alone": {},
    "5,000 characters": {"input": 5_000},
    "20,000 characters": {"input": 20_000},
    "8,000 characters, 16 beams": {"input": 8_000, "options": {"beam": 16}},
    "20,000 characters, 16 beams": {"input": 20_000, "options": {"beam": 16}},
}
"""Requests that are computed while small ones are measured; of inputs their lengths."""


def long_requests(run: Run, inside: bool) -> dict[str, Any]:
    """Seconds of a small request, sent again and again while a large one is computed."""
    sentence = "Ich gehe heute mit Tom nach Hause, und wir essen dort ein Brot. "

    def ask(url: str, body: Mapping[str, Any]) -> float:
        sent = urllib.request.Request(
            f"{url}/v1/predict", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        began = time.perf_counter()
        with urllib.request.urlopen(sent, timeout=300) as answer:
            json.load(answer)
        return time.perf_counter() - began

    found = {}
    more = "serve.seconds=600"  # measured on a busy machine too
    with headway_server(run, inside, more) as (url, _), ThreadPoolExecutor(1) as pool:
        ask(url, {"input": "Ja."})
        for name, large in LONG.items():
            size = large.get("input", 0)
            body = {**large, "input": (sentence * (size // len(sentence) + 1))[:size]}
            running = pool.submit(ask, url, body) if size else None
            time.sleep(0.2)
            took = []
            while len(took) < 20 or (running is not None and not running.done()):
                took.append(ask(url, {"input": "Ja."}))
                time.sleep(0.1)
                if running is not None and running.done():
                    break
            found[name] = {
                "small_requests": len(took), "small_median_s": statistics.median(took),
                "small_most_s": max(took), "large_s": running.result() if running else None,
            }  # fmt: skip
    return found


def memory(folder: Path, like: str) -> dict[str, Any]:
    """MB of a server of one or eight small models, when they are read and after requests."""
    same = folder / "same"
    same.mkdir(parents=True)
    copies = [shutil.copytree(run_folder(like), same / f"m{n}") for n in range(8)]
    shapes = [
        random_run(
            folder / "shapes" / f"m{n}", like, "transformer-base", d_model=128 + 32 * n,
            n_heads=4, d_ff=512 + 64 * n, n_layers=2,
        )
        for n in range(8)
    ]  # fmt: skip
    return {
        "1 model": _held_by(copies[:1]),
        "8 of one shape": _held_by(copies),
        "8 shapes": _held_by(shapes),
        "8 shapes, 256 pieces of code": _held_by(shapes, ONEDNN_PRIMITIVE_CACHE_CAPACITY="256"),
    }


def _held_by(folders: Sequence[Path], **environment: str) -> dict[str, float]:
    url = f"http://127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "headway", "serve", *map(str, folders), "--device", "cpu"]
    words += ["--quiet", "--port", url.rpartition(":")[2]]

    def get(path: str, body: Any = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        sent = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(sent, timeout=100) as answer:
            return str(answer.read().decode())

    def held(name: str) -> float:
        lines = [line for line in get("/metrics").splitlines() if line.startswith(name)]
        return sum(float(line.split()[1]) for line in lines) / 1e6

    draw = np.random.default_rng(0)
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        with process(words, url, "/ready"):
            found = {"models_mb": held("headway_model_bytes"), "read_mb": held("process_resident")}
            for _ in range(12):
                for one in folders:
                    texts = [GERMAN[: draw.integers(3, 60)] for _ in range(draw.integers(1, 13))]
                    options = {"max_len": 16}
                    get("/v1/predict", {"model": one.name, "inputs": texts, "options": options})
            return {**found, "answered_mb": held("process_resident")}
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def growth(
    run: Run, bodies: Sequence[Mapping[str, Any]], inside: bool, minutes: float
) -> dict[str, float]:
    """Memory and descriptors over mixed load: answers, streams, clients that leave."""
    streams = [{**body, "stream": True} for body in bodies]
    with headway_server(run, inside) as (url, pid):
        until, marks = time.monotonic() + 60 * minutes, []
        while time.monotonic() < until or len(marks) < 3:
            alone(load(url, [*bodies[:64], *streams[:64]], "/v1/predict", 16))
            for _ in range(4):
                with socket.create_connection(_place(url), 10) as raw:
                    raw.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-")
            marks.append(held(pid))
    third = max(1, len(marks) // 3)
    early, late = marks[third : 2 * third], marks[2 * third :]
    return {
        "minutes": minutes,
        "rounds": len(marks),
        "bytes": marks[-1][0],
        "bytes_at_first": marks[0][0],
        "bytes_of_thirds": [
            float(np.mean([m for m, _ in some])) for some in (marks[:third], early, late)
        ],
        "bytes_grown": float(np.mean([m for m, _ in late]) - np.mean([m for m, _ in early])),
        "descriptors_grown": max(n for _, n in late) - max(n for _, n in early),
    }


# Without HTTP


@contextlib.contextmanager
def asked_worker(
    run: Run, texts: Sequence[str], options: Mapping[str, Any]
) -> Iterator[Callable[[], None]]:
    """All texts, each a request of its own, through the batching worker."""
    from headway.serve.limits import Limits
    from headway.serve.metrics import Metrics
    from headway.serve.worker import InferenceWorker, Ticket

    worker = InferenceWorker(run, Limits(queue=len(texts)), Metrics())
    worker.start()
    worker.ready.wait(120)

    async def ask() -> None:
        loop, tickets = asyncio.get_running_loop(), []
        for text in texts:
            worker.reserve(1)
            use = run.use(options)
            tickets.append(Ticket([run.question(text)], use, "", loop, loop.create_future()))
            worker.enqueue(tickets[-1])
        await asyncio.gather(*(ticket.future for ticket in tickets))

    yield lambda: alone(ask())
    worker.stop()


def without_http(run: Run, folder: Path, texts: Sequence[str], tokens: int) -> dict[str, Any]:
    """Tokens a second of the worker, of `generate` in one padded batch, of `generate_batch`: in
    turns, the median of several."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    options = {"beam": 1, "sample": False, "max_len": tokens}
    device = run.device
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text)["input_ids"] for text in texts]

    @torch.inference_mode()
    def padded(**more: Any) -> None:
        longest = max(map(len, ids))
        given = torch.tensor([[0] * (longest - len(one)) + one for one in ids], device=device)
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in ids],
                            device=device)  # fmt: skip
        model.generate(given, attention_mask=mask, do_sample=False, min_new_tokens=tokens,
                       max_new_tokens=tokens, eos_token_id=None, pad_token_id=0,
                       **more)  # fmt: skip

    def continuous() -> None:
        config = GenerationConfig(
            do_sample=False, max_new_tokens=tokens, eos_token_id=-1, pad_token_id=0
        )
        model.generate_batch(inputs=ids, generation_config=config)

    with asked_worker(run, texts, options) as worker:
        systems = {
            "headway worker": worker,
            "transformers generate": padded,
            "transformers generate, static": partial(padded, cache_implementation="static"),
            "transformers generate_batch": continuous,
        }
        seconds: dict[str, list[float]] = {name: [] for name in systems}
        failed: dict[str, str] = {}
        for turn in range(2 + TURNS):  # the first two warm it: graphs are recorded, code is made
            for name, act in systems.items():
                if name in failed:
                    continue
                start = time.perf_counter()
                try:
                    act()
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {error}"
                    continue
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if turn >= 2:
                    seconds[name].append(time.perf_counter() - start)
    work = len(texts) * tokens
    rows = {
        name: {"tokens_per_s": work / statistics.median(took), "seconds": took}
        for name, took in seconds.items()
        if name not in failed
    }
    return {"systems": rows, "failed": failed}


def texts_of(words: str, n: int, most: int) -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(words.split(), draw.integers(3, most))) for _ in range(n)]


def as_news(n: int, mean: int, seed: int) -> list[int]:
    """Lengths with the spread of news: 26 ± 14 tokens, none below a quarter of the mean."""
    drawn = np.random.default_rng(seed).normal(mean, mean * 14 / 26, n)
    return [int(one) for one in np.clip(drawn, mean / 4, 3 * mean).round()]


def requests_of(words: str, said: Any, most: int, mixed: bool) -> tuple[list[str], list[int]]:
    """Inputs, and how many tokens each is answered with."""
    n = said.requests
    if not mixed:
        return texts_of(words, n, most), [said.tokens] * n
    draw = np.random.default_rng(2)
    texts = [" ".join(draw.choice(words.split(), size)) for size in as_news(n, said.tokens, 0)]
    return texts, as_news(n, said.tokens, 1)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="gpt2")
    parser.add_argument("--translator", default="transformer-base")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="of every output")
    parser.add_argument("--beam", type=int, default=4, help="of the translator")
    parser.add_argument("--concurrent", type=int, nargs="+", default=CONCURRENT)
    parser.add_argument("--seconds", type=float, default=20.0, help="of overload")
    parser.add_argument("--room", type=int, default=32, help="of the queue in overload")
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10.0, help="of mixed load")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--server-cores", help="0,1: of servers and of what is computed here")
    parser.add_argument("--client-cores", help="2,3: of those who ask; all share them otherwise")
    parser.add_argument("--inside", action="store_true", help="our server in this process")
    parser.add_argument("--alone", action="store_true", help="no peers")
    parser.add_argument("--peers", default=sys.executable, help="the Python that has them")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--worker", action="store_true", help="the worker alone, without HTTP")
    said = parser.parse_args(given)
    if said.server_cores:
        cores = {int(one) for one in said.server_cores.split(",")}
        os.sched_setaffinity(0, cores)  # and so all processes and threads that start from here
        said.threads = said.threads or len(cores)
    CLIENTS.clear()
    CLIENTS.update(int(one) for one in (said.client_cores or "").split(",") if one)
    if said.threads:
        torch.set_num_threads(said.threads)
        os.environ["OMP_NUM_THREADS"] = str(said.threads)
    device = pick_device() if said.worker else torch.device("cpu")
    layers = {} if said.layers is None else {"n_layers": said.layers}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if said.worker:
            made = random_run(folder / "decoder", "stories", said.preset, **layers)
            precision = "bf16" if device.type == "cuda" else "auto"
            writer = Run([made], device=device.type, precision=precision)
            theirs = exported(Run([made], device="cpu"), folder / "hf")
            prompts = texts_of(ENGLISH, 64, 12)
            result = without_http(writer, theirs, prompts, said.tokens)
            path = save("serve-worker", device, {"work": vars(said), **result})
        else:
            work = {k: v for k, v in vars(said).items() if v is not None and k != "peers"}
            where = {"work": work, "machine": describe(device)}
            parts = {} if len(said.only) == len(PARTS) else kept(device)
            for name in said.only:  # each is kept as soon as it is there
                parts[name] = {**measure(name, said, folder, layers), **where}
                path = save("serve", device, parts)
    print(path.read_text())


def kept(device: torch.device) -> dict[str, Any]:
    """What an earlier run has of all parts."""
    path = RESULTS / f"serve-{device.type}.json"
    before = json.loads(path.read_text()) if path.is_file() else {}
    return {name: before[name] for name in PARTS if name in before}


def measure(name: str, said: Any, folder: Path, layers: Mapping[str, Any]) -> dict[str, Any]:
    for what, of in {"decoder": decoder, "translator": translator}.items():
        if name.startswith(what):
            return of(said, folder / name, layers, mixed=name.endswith("-mixed"))
    run = Run(["tatoeba-de-en"], device="cpu")
    if name.startswith("overload-base"):  # of the size that the throughput is measured with
        made = random_run(folder / name, "tatoeba-de-en", said.translator, **layers)
        run = Run([made], device="cpu")
    if name == "memory":
        return memory(folder / name, "tatoeba-de-en")
    if name == "long":
        return long_requests(run, said.inside)
    if name == "idle":
        return idle(run, said.inside, said.idle)
    texts = texts_of(GERMAN, said.requests, 16)
    bodies = [{"input": text, "options": {"beam": 1, "max_len": said.tokens}} for text in texts]
    if name.startswith("overload"):
        return overload(run, bodies, said, not name.endswith("-parsed"))
    return growth(run, bodies, said.inside, said.minutes)


def decoder(
    said: Any, folder: Path, layers: Mapping[str, Any], *, mixed: bool
) -> dict[str, Any]:  # fmt: skip
    run = Run([random_run(folder / "decoder", "stories", said.preset, **layers)], device="cpu")
    prompts, lengths = requests_of(ENGLISH, said, 12, mixed)
    # No output of random weights ends in so few tokens.
    options: list[dict[str, Any]] = [
        {"beam": 1, "sample": False, "max_len": tokens} for tokens in lengths
    ]
    systems: dict[str, Any] = {OURS: lambda: headway_server(run, said.inside)}
    asked = zip(prompts, options, strict=True)
    bodies: dict[str, Any] = {OURS: [{"input": text, "options": one} for text, one in asked]}
    paths = {OURS: "/v1/predict"}
    if not said.alone:
        theirs = exported(run, folder / "hf-decoder")
        config = theirs / "generation_config.json"
        config.write_text('{"eos_token_id": null, "do_sample": false}\n')
        for name, continuous in {"": False, ", continuous batching": True}.items():
            systems[f"transformers serve{name}"] = partial(
                transformers_server, said.peers, theirs, continuous=continuous
            )
            bodies[f"transformers serve{name}"] = [
                {"model": str(theirs), "prompt": text, "max_tokens": tokens, "temperature": 0}
                for text, tokens in zip(prompts, lengths, strict=True)
            ]
            paths[f"transformers serve{name}"] = "/v1/completions"
    return compared(run, prompts, lengths, options, said, systems, bodies, paths)


def translator(
    said: Any, folder: Path, layers: Mapping[str, Any], *, mixed: bool
) -> dict[str, Any]:  # fmt: skip
    made = random_run(folder / "translator", "tatoeba-de-en", said.translator, **layers)
    run = Run([made], device="cpu")
    texts, lengths = requests_of(GERMAN, said, 16, mixed)
    one: dict[str, Any] = {"min_len": said.tokens - 1, "max_len": said.tokens}
    if mixed:  # as long as its source: what is told is the same for all, as clients do
        one = {"min_len": 1000, "extra_len": 0}
        lengths = [len(run.tokenizer.encode(text)) + 1 for text in texts]
    options = [{"beam": said.beam, **one}] * len(texts)
    systems: dict[str, Any] = {OURS: lambda: headway_server(run, said.inside)}
    asked = zip(texts, options, strict=True)
    bodies: dict[str, Any] = {OURS: [{"input": text, "options": one} for text, one in asked]}
    paths = {OURS: "/v1/predict"}
    if not said.alone:
        theirs = exported(run, folder / "hf-translator")
        # Of one length all go together; of several fewer are padded less: who knows what is best?
        for together in (16, 32, 64) if mixed else (64,):
            name = f"LitServe, {together} together"
            systems[name] = partial(lit_server, said.peers, theirs, together, said.beam)
            pairs = zip(texts, lengths, strict=True)
            bodies[name] = [{"input": text, "tokens": str(tokens)} for text, tokens in pairs]
            paths[name] = "/predict"
    return compared(run, texts, lengths, options, said, systems, bodies, paths)


def compared(
    run: Run, inputs: list[str], lengths: list[int], options: Sequence[Mapping[str, Any]],
    said: Any, systems: Mapping[str, Any], bodies: Mapping[str, Any], paths: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Servers beside each other; ours beside the bare call, which has one length for all."""
    own: dict[str, Any] = {}
    bare = None
    if len(set(lengths)) == 1:
        bare = offline(run, inputs, options[0], lengths[0])
        with headway_server(run, said.inside) as (url, _):
            more = overhead(run, url, inputs[: max(3, min(40, said.requests))], options[0])
        own = {"offline": bare, "alone": more}
    found = beside(systems, bodies, paths, lengths, said.concurrent)
    rows, most = found["servers"], str(max(said.concurrent))
    mine, peers = rows[OURS][most], [row[most] for key, row in rows.items() if key != OURS]
    cores, rate = "core_ms_per_token", "tokens_per_s"
    work = products(run, inputs, lengths, options[0]["beam"])
    peak = peaks(torch.device("cpu"))["tflops"] * 1e12
    for row in rows.values():
        row[most]["share_of_peak_products"] = row[most]["requests_per_s"] * work / peak
    if bare is not None:
        own |= {"of_offline": mine[rate] / bare[rate],
                "of_offline_in_core_time": bare[cores] / mine[cores]}  # fmt: skip
    return {
        "operations_a_request": work, "peak_operations_per_s": peak, **own,
        "of_best_peer": mine[rate] / max(row[rate] for row in peers) if peers else None,
        "of_best_peer_in_core_time": min(row[cores] for row in peers) / mine[cores] if peers
        else None,
        **found,
    }  # fmt: skip


if __name__ == "__main__":
    main()
