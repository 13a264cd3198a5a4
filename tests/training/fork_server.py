"""Runs the `headway` command, or a piece of code, in forks of a process that has imported
everything already, so that one run of it costs milliseconds. Reads orders as JSON lines: to start
one, which is answered with a process number, or to wait for one, which is answered with its exit
code.

Hooks do something at the n-th call of a function in the child, or from it on: send it a signal,
remove a folder, raise an OSError, or give a number in its place. Such a kill is as real as any, and
hits a chosen place.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Hook = dict[str, Any]


def hook(at: str, count: int, *, onward: bool = False, **does: int | str) -> Hook:
    """`at` is "package.module:Class.method"; what it `does`: signal=…, errno=…, remove=FOLDER,
    gives=NUMBER."""
    return {"at": at, "count": count, "onward": onward, **does}


class Server:
    """The side of the tests."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.newest = 0
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )

    def start(
        self,
        words: list[str] | str,
        *hooks: Hook,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """The process number of a new run of a command, or of code where `words` is text."""
        log = log or self.log
        log.write_text("")  # before anyone looks whether the new one has said something
        order = {"words": words, "hooks": hooks, "log": str(log), "env": env or {}}
        self.newest = self._answer(order)
        return self.newest

    def wait(self, child: int | None = None) -> int:
        """The exit code, or minus the signal that ended it: of the newest unless told."""
        return self._answer({"wait": child or self.newest})

    def run(self, words: list[str], *hooks: Hook) -> int:
        self.start(words, *hooks)
        return self.wait()

    def said(self) -> str:
        """All that the last run printed."""
        return self.log.read_text()

    def close(self) -> None:
        self.process.communicate()

    def _answer(self, order: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import_everything()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        elif (answer := os.fork()) == 0:
            os._exit(carry_out(order))
        print(answer, file=answers, flush=True)
    os._exit(0)  # at once: what is frozen would be called leaked


def import_everything() -> None:
    """That a training needs, as most of it is imported where it is used."""
    # Loaded by the first optimiser, the first score and the first words of a command line.
    for name in ("torch._dynamo", "sacrebleu.metrics", "sacrebleu.tokenizers.tokenizer_13a",
                 "typer._adapters"):  # fmt: skip
        importlib.import_module(name)
    for name in ("cli", "settings", "data", "decode", "metrics", "tasks", "tokens", "training"):
        package = importlib.import_module(f"headway.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    from headway.cli.main import main

    main(["train", "--help"])  # the commands are read
    gc.freeze()  # and are not written to by looking for garbage


def carry_out(order: dict[str, Any]) -> int:
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= order["env"]
    for one in order["hooks"]:
        install(one)
    from headway.cli.main import main

    try:
        if isinstance(order["words"], str):
            exec(order["words"], {})
            return 0
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
            if "gives" in one:
                return one["gives"]
        return plain(*args, **keywords)

    setattr(owner, name, counted)


if __name__ == "__main__":
    serve()
