"""Stop signals, sent for real to a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from headway.train.signals import StopSignal
from headway.train.task import Stopped

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_ends_nothing(number: signal.Signals) -> None:
    with StopSignal() as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked
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


def test_repetitions_within_the_pause_are_the_same_request() -> None:
    """A launcher passes on what the terminal has sent to the whole group already."""
    with StopSignal(pause=60) as stop:
        for number in SIGNALS:
            os.kill(os.getpid(), number)
        assert stop.name == "SIGTERM"


def test_work_with_nothing_to_save_stops_where_it_is() -> None:
    with StopSignal(pause=60) as stop:
        with pytest.raises(Stopped), stop.at_once():
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped), stop.at_once():
            pytest.fail("began although a stop was asked for")
        with pytest.raises(Stopped):
            stop.check()
        os.kill(os.getpid(), signal.SIGTERM)  # outside, nothing is raised
    with StopSignal() as stop, stop.at_once():
        stop.check()  # nobody asked


def test_outside_the_main_thread_nothing_is_installed() -> None:
    seen = []

    def work() -> None:
        with StopSignal() as stop:
            seen.append(stop.asked)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
    assert signal.getsignal(signal.SIGTERM) is before


CHILD = """
import sys, time
from headway.train.signals import StopSignal
with StopSignal(pause=0.1) as stop:
    print("ready", flush=True)
    while not stop.asked:
        time.sleep(0.01)
    print("asked", flush=True)
    time.sleep(60)
"""


def test_a_second_signal_ends_the_process_at_once() -> None:
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for child, (first, second) in zip(
        children, [(signal.SIGINT, signal.SIGINT), (signal.SIGUSR1, signal.SIGTERM)], strict=True
    ):
        with child:
            assert child.stdout is not None
            try:
                assert child.stdout.readline() == "ready\n"
                child.send_signal(first)
                assert child.stdout.readline() == "asked\n"
                child.send_signal(first)  # too soon to count
                time.sleep(0.2)
                assert child.poll() is None
                start = time.monotonic()
                child.send_signal(second)
                assert child.wait(timeout=30) == 128 + second
                assert time.monotonic() - start < 5
            finally:
                child.kill()
