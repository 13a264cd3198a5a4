"""Runs the `headway` command as several ranks: forks of a process that has imported everything,
each with the environment that `torchrun` would give it. Hooks as in `fork_server`, for each rank.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":  # run as a script, there is no package around it
    from fork_server import Hook, run_command  # type: ignore[import-not-found]
else:
    from .fork_server import Hook, run_command


class RankServer:
    """The side of the tests."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )

    def run(self, words: list[str], world: int = 2, **hooks: Hook) -> list[int]:
        """The exit codes by rank. A hook is given as `rank_1=hook(…)`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        logs = [str(self.log(rank)) for rank in range(world)]
        order = {"words": words, "hooks": hooks, "logs": logs}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return list(json.loads(self.process.stdout.readline()))

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def said(self, rank: int) -> str:
        return self.log(rank).read_text()

    def close(self) -> None:
        self.process.communicate()


def serve() -> None:
    import sacrebleu.metrics  # noqa: F401
    import torch._dynamo  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        world, port = len(order["logs"]), free_port()
        children = []
        for rank, log in enumerate(order["logs"]):
            child = os.fork()
            if child == 0:
                os.environ |= {
                    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                }  # fmt: skip
                hooks = [hook for at, hook in order["hooks"].items() if at == f"rank_{rank}"]
                os._exit(run_command({"words": order["words"], "hooks": hooks, "log": log}))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), file=answers, flush=True)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    serve()
