"""Stop signals, sent for real to a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from headway.errors import Stopped
from headway.training.signals import StopSignal

from .fork_server import Server

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_only_requests_a_stop(number: signal.Signals) -> None:
    with StopSignal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
        assert stop.name == number.name


def test_the_handlers_before_are_put_back_also_after_an_error() -> None:
    def mine(number: int, frame: object) -> None: ...

    kept = signal.signal(signal.SIGUSR1, mine)
    before = [signal.getsignal(number) for number in SIGNALS]
    try:
        with contextlib.suppress(KeyError), StopSignal():
            assert [signal.getsignal(number) for number in SIGNALS] != before
            raise KeyError
        assert [signal.getsignal(number) for number in SIGNALS] == before
        assert before[2] is mine
    finally:
        signal.signal(signal.SIGUSR1, kept)


@pytest.mark.parametrize("number", SIGNALS)
def test_what_a_parent_has_had_ignored_stays_ignored(number: signal.Signals) -> None:
    """A run in the background of a script goes on when Ctrl-C ends what is in front of it."""
    kept = signal.signal(number, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), number)
            assert not stop.requested
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, kept)


def test_repetitions_within_the_pause_are_the_same_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher passes on what the terminal has sent to the whole group already."""
    now, left = [100.0], list[int]()
    clock = SimpleNamespace(monotonic=lambda: now[0])  # of this module alone: servers go on
    monkeypatch.setattr("headway.training.signals.time", clock)
    monkeypatch.setattr("headway.training.signals._leave", left.append)
    with StopSignal(pause=2.0) as stop:
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        now[0] += 1.9
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.name == "SIGTERM"
        assert left == []
        now[0] += 0.1
        os.kill(os.getpid(), signal.SIGUSR1)
        assert left == [128 + signal.SIGUSR1]


def test_a_second_signal_acts_as_without_headway() -> None:
    with StopSignal(pause=0.0, guest=True) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_work_with_nothing_to_save_stops_where_it_is() -> None:
    with StopSignal(pause=60) as stop:
        with pytest.raises(Stopped), stop.immediate():
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped), stop.immediate():
            pytest.fail("began although a stop was asked for")
        with pytest.raises(Stopped):
            stop.check()
        os.kill(os.getpid(), signal.SIGTERM)  # outside, nothing is raised
    with StopSignal() as stop, stop.immediate():
        stop.check()  # nobody asked


def test_outside_the_main_thread_nothing_is_installed() -> None:
    seen = []

    def work() -> None:
        with StopSignal() as stop:
            seen.append(stop.requested)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
    assert signal.getsignal(signal.SIGTERM) is before


CHILD = """
import time
from headway.training.signals import StopSignal
with StopSignal(pause=0.0) as stop:
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
    print("asked", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGINT, signal.SIGINT), (signal.SIGUSR1, signal.SIGTERM)]
)
def test_a_second_signal_ends_the_process_at_once(
    server: Server, first: signal.Signals, second: signal.Signals
) -> None:
    child, limit = server.start(CHILD), time.monotonic() + 300
    for found, number in (("ready", first), ("asked", second)):
        while found not in server.said():
            assert time.monotonic() < limit, server.said()
            time.sleep(0.005)
        os.kill(child, number)
    assert server.wait() == 128 + second
