"""Runs the `headway` command in forks of a process that has imported everything already, so that
one run of it costs milliseconds. Reads orders as JSON lines, answers with a process number when a
run begins and its exit code when it has ended.

Hooks do something at the n-th call of a function in the child, or from it on: send it a signal,
remove a folder, or raise an OSError. Such a kill is as real as any, and hits a chosen place.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Hook = dict[str, Any]


def hook(at: str, count: int, *, onward: bool = False, **does: int | str) -> Hook:
    """`at` is "package.module:Class.method"; what it `does`: signal=…, errno=…, remove=FOLDER."""
    return {"at": at, "count": count, "onward": onward, **does}


class Server:
    """The side of the tests."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        assert self._answer() == "ready"

    def start(self, words: list[str], *hooks: Hook) -> int:
        """The process number of a new run."""
        order = {"words": words, "hooks": hooks, "log": str(self.log)}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self._answer())

    def wait(self) -> int:
        """The exit code, or minus the signal that ended it."""
        return int(self._answer())

    def run(self, words: list[str], *hooks: Hook) -> int:
        self.start(words, *hooks)
        return self.wait()

    def said(self) -> str:
        """All that the last run printed."""
        return self.log.read_text()

    def close(self) -> None:
        self.process.communicate()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def serve() -> None:
    # The last two are loaded by the first optimiser and the first score, and are slow.
    for name in ("headway.cli.main", "headway.cli.train", "headway.train.run", "torch._dynamo",
                 "sacrebleu.metrics"):  # fmt: skip
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(run_command(order))
        print(child, file=answers, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def run_command(order: dict[str, Any]) -> int:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for one in order["hooks"]:
        install(one)
    from headway.cli.main import main

    try:
        return main(["--debug", *order["words"]])
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 99
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def install(one: Hook) -> None:
    module, _, path = one["at"].partition(":")
    *owners, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    plain: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def counted(*args: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == one["count"] or (one["onward"] and calls > one["count"]):
            if "remove" in one:
                shutil.rmtree(one["remove"], ignore_errors=True)
            if "signal" in one:
                os.kill(os.getpid(), one["signal"])
            if "errno" in one:
                raise OSError(one["errno"], os.strerror(one["errno"]))
        return plain(*args, **keywords)

    setattr(owner, name, counted)


if __name__ == "__main__":
    serve()
