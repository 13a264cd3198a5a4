"""Runs the `headway` command as several ranks: processes of the fork server, each with the
environment that `torchrun` would give it. Hooks as there, for each rank.
"""

from __future__ import annotations

import socket
from pathlib import Path

from .fork_server import Hook, Server


class RankServer:
    def __init__(self, server: Server, logs: Path) -> None:
        self.server, self.logs = server, logs

    def run(self, words: list[str], world: int = 2, **hooks: Hook) -> list[int]:
        """The exit codes by rank. A hook is given as `rank_1=hook(…)`."""
        port = free_port()
        children = [
            self.start(words, rank, world, port, *([hooks[at]] if at in hooks else []))
            for rank, at in enumerate(f"rank_{rank}" for rank in range(world))
        ]
        return [self.server.wait(child) for child in children]

    def start(self, words: list[str] | str, rank: int, world: int, port: int, *hooks: Hook) -> int:
        """The process number of one of them."""
        env = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        return self.server.start(words, *hooks, log=self.log(rank), env=env)

    def log(self, rank: int) -> Path:
        return self.logs / f"rank-{rank}.log"

    def said(self, rank: int) -> str:
        return self.log(rank).read_text()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
