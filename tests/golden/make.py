"""Write golden files, or those of them that are named:

    python -m tests.golden.make --only answers/classify --only 'page/*'

Only what is meant to change is renewed, each with a line in CHANGES.md that says why.
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

from .cells import CELLS
from .pieces import Tiny, pieces_of

WIDTH = 120
EXPECTED = Path(__file__).parent / "expected"

Makers = dict[str, Callable[[Path], Any]]
"""By the names of the pieces, `answers` and so on; each is given a folder to work in."""


def makers(subject: str, slow: bool = False) -> Makers:
    """Of a tiny run, which makes itself once for all of its pieces."""
    from . import recipes, shipped, words

    if subject in CELLS:
        made: dict[Path, Tiny] = {}

        def of_run(make: Callable[[Tiny], Any], root: Path) -> Any:
            return make(made.setdefault(root, Tiny(subject, root)))

        return {name: partial(of_run, make) for name, make in pieces_of(subject, slow).items()}
    if subject in shipped.MODELS:
        return shipped.makers(subject, slow)
    found: Makers = {**recipes.MAKERS, **words.MAKERS}
    return {} if slow or subject not in found else {"": found[subject]}


def subjects() -> list[str]:
    from . import recipes, shipped, words

    return [*CELLS, *shipped.MODELS, *recipes.MAKERS, *words.MAKERS]


def path_of(subject: str) -> Path:
    return EXPECTED / f"{subject}.json"


def expected(subject: str) -> dict[str, Any]:
    path = path_of(subject)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def key_of(piece: str, subject: str) -> str:
    return f"{piece}/{subject}" if piece else subject


def write(subject: str, pieces: Mapping[str, Any]) -> None:
    EXPECTED.mkdir(exist_ok=True)
    path_of(subject).write_text(folded(pieces) + "\n", encoding="utf-8")


def folded(value: Any, indent: str = "") -> str:
    """JSON with a line for whatever fits into one, so that one can read what has changed."""
    whole = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(whole) <= WIDTH or not isinstance(value, dict | list) or not value:
        return whole
    inner = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + folded(x, inner) for x in value) + f"\n{indent}]"
    items = (f"{inner}{json.dumps(k, ensure_ascii=False)}: {folded(v, inner)}"
             for k, v in value.items())  # fmt: skip
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


def renew(subject: str, only: list[str], slow: bool) -> list[str]:
    """The names of what was made."""
    every = makers(subject) | (makers(subject, slow=True) if slow else {})
    wanted = {
        piece: make
        for piece, make in every.items()
        if not only or any(fnmatch(key_of(piece, subject), pattern) for pattern in only)
    }
    if not wanted:
        return []
    with tempfile.TemporaryDirectory() as folder:
        made = {piece: make(Path(folder)) for piece, make in wanted.items()}
    if "" in made:
        write(subject, made[""])
    else:
        old = expected(subject)
        known = [*makers(subject), *makers(subject, slow=True)]
        write(subject, {n: made.get(n, old.get(n)) for n in known if n in made or n in old})
    return [key_of(piece, subject) for piece in wanted]


def main(words: list[str] | None = None) -> int:
    import torch

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(prog="python -m tests.golden.make", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="PIECE/SUBJECT")
    parser.add_argument("--slow", action="store_true", help="also the pieces of slow tests")
    asked = parser.parse_args(words)
    made = [name for subject in subjects() for name in renew(subject, asked.only, asked.slow)]
    sys.stdout.write("".join(f"{name}\n" for name in made) or "nothing has that name\n")
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())
