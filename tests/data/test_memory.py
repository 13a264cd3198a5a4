"""Preparing takes the memory of a few numbers a row, whatever the size of the files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = 5_000_000
MOST = 500_000_000

MEASURED = """
import json, resource, sys
from pathlib import Path
from headway.settings.run import run_settings
from headway.data.prepare import prepare
from headway.data.workers import Workers

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

workers, close = [0], Workers.close

def measured(self):
    # What getrusage says of children counts the process that they were begun from.
    for child in self._all:
        status = Path(f"/proc/{child.pid}/status").read_text()
        workers.append(1024 * int(status.split("VmHWM:")[1].split()[0]))
    close(self)

Workers.close = measured

folder = Path(sys.argv[1])
data = {"source": [str(folder / "a.txt")], "target": [str(folder / "b.txt")]}
settings = run_settings({"data": data, "tokenizer": {"vocab_size": 2000}})
before = peak()
made = prepare(settings, folder / "run")
print(json.dumps({
    "rows": made.train.n + made.valid.n,
    "above": peak() - before,
    "worker": max(workers),
}))
"""


def measured(folder: Path, rows: int) -> dict[str, int]:
    """What a process of its own takes to prepare so many pairs of short sentences."""
    for name, words in (
        ("a.txt", "der die das ein eine kein"),
        ("b.txt", "the one a this that no"),
    ):
        first = words.split()
        with (folder / name).open("w", encoding="utf-8") as file:
            for row in range(rows):
                file.write(f"{first[row % 4]} {name[0]}{row % 5003} w{row % 7919} {row}\n")
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_five_million_rows_take_less_than_half_a_gigabyte(tmp_path: Path) -> None:
    found = measured(tmp_path, ROWS)
    assert found["rows"] == ROWS
    assert found["above"] < MOST
    assert 0 < found["worker"] < MOST
