"""Renew the expected values of all pieces, or of those that are named:

    python -m tests.golden.make --only answers/classify --only 'weights/*'

Renew only what was changed on purpose, and give the reason in CHANGES.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from . import shipped
from .cells import CELLS
from .pieces import TinyRun, pieces_of

WIDTH = 120
EXPECTED = Path(__file__).parent / "expected"
SUBJECTS = (*CELLS, *shipped.MODELS)

Makers = dict[str, Callable[[Path], Any]]
"""Functions that compute a piece (`answers`, `loss`, `weights`) in an empty folder, by name."""


def makers(subject: str) -> Makers:
    """The pieces of a subject. All pieces of a tiny run share one run per folder."""
    if subject in shipped.MODELS:
        return {"answers": partial(shipped.answers, subject)}
    runs: dict[Path, TinyRun] = {}

    def of_run(make: Callable[[TinyRun], Any], root: Path) -> Any:
        return make(runs.setdefault(root, TinyRun(subject, root)))

    return {name: partial(of_run, make) for name, make in pieces_of(subject).items()}


def path_of(subject: str) -> Path:
    return EXPECTED / f"{subject}.json"


def expected(subject: str) -> dict[str, Any]:
    path = path_of(subject)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write(subject: str, pieces: Mapping[str, Any]) -> None:
    path_of(subject).write_text(folded(pieces) + "\n", encoding="utf-8")


def folded(value: Any, indent: str = "") -> str:
    """JSON in which every value that fits is on one line, which keeps diffs readable."""
    whole = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(whole) <= WIDTH or not isinstance(value, dict | list) or not value:
        return whole
    inner = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + folded(x, inner) for x in value) + f"\n{indent}]"
    items = (f"{inner}{json.dumps(k, ensure_ascii=False)}: {folded(v, inner)}"
             for k, v in value.items())  # fmt: skip
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def renew(subject: str, only: list[str]) -> list[str]:
    """Recompute the pieces that match a pattern and store them. Returns their names."""
    known = makers(subject)
    names = {name: f"{name}/{subject}" for name in known}
    chosen = [name for name in known if not only or any(fnmatch(names[name], one) for one in only)]
    if chosen:
        with tempfile.TemporaryDirectory() as folder:
            pieces = expected(subject) | {name: known[name](Path(folder)) for name in chosen}
        write(subject, {name: pieces[name] for name in known if name in pieces})
    return [names[name] for name in chosen]


def main(words: list[str] | None = None) -> int:
    import torch

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden.make", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", action="append", default=[], metavar="PIECE/SUBJECT")
    only = parser.parse_args(words).only
    renewed = [name for subject in SUBJECTS for name in renew(subject, only)]
    sys.stdout.write("".join(f"{name}\n" for name in renewed) or "no piece matches\n")
    return 0 if renewed else 1


if __name__ == "__main__":
    sys.exit(main())
