"""Count what makes the code hard to follow; the counts may only fall.

    python docs/structure.py            # print the counts, fail if one has risen
    python docs/structure.py --show     # also print every comparison with its file and line
    python docs/structure.py --update   # store lower counts

`docs/built/structure.json` holds the highest value allowed for each.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "headway"
LIMITS = ROOT / "docs" / "built" / "structure.json"

KINDS = {"reads", "answers", "modality"}
"""Names that hold the kind of a task's data and answers. A class with a method is easier to extend
than a comparison of such a name with a text."""

LOCAL = {"kind", "what", "files"}
"""Names that hold the kind of a column or a medium in the folders `WHERE`. Elsewhere they hold
other things, such as the type of an HTTP body."""

WHERE = ("data/", "tasks/", "settings/", "cli/", "specs/", "api.py", "run.py")

OWNERS = ("data/columns/", "specs/")
"""Folders that define the kinds and may compare them."""


def comparisons(tree: ast.AST, kinds: set[str]) -> Iterator[int]:
    """Yield the line of each comparison of one of these names with literal text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        names = {
            one.id if isinstance(one, ast.Name) else one.attr
            for one in sides
            if isinstance(one, ast.Name | ast.Attribute) and not _is_of_array(one)
        }
        if names & kinds and any(map(_is_text, sides)):
            yield node.lineno


def _is_of_array(node: ast.AST) -> bool:
    """Whether this is `values.dtype.kind`, which is not the kind of a column."""
    return isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("dtype")


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and all(map(_is_text, node.elts))
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value)


def kind_comparisons() -> list[str]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        kinds = KINDS | LOCAL if name.startswith(WHERE) else KINDS
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{name}:{line}" for line in comparisons(tree, kinds)]
    return found


def imported_modules(module: str) -> int:
    """Number of modules of the package that importing one of them loads."""
    code = (
        f"import sys, {module}\nprint(sum(name.split('.')[0] == 'headway' for name in sys.modules))"
    )
    return int(_python(code))


OPENS = """
import os, sys, headway
from headway.data import files
if sys.argv[3] == "large":
    files.KEPT = 0
opened, path = [], os.path.realpath(sys.argv[1])
def hook(event, args):
    if event == "open" and isinstance(args[0], str) and os.path.realpath(args[0]) == path:
        opened.append(args)
sys.addaudithook(hook)
headway.train(
    "classify", path, out=sys.argv[2], device="cpu", quiet=True, start="none",
    settings={"train.steps": 1, "tokenizer.kind": "words", "model.n_layers": 1, "train.threads": 1},
)
print(len(opened))
"""


def opens_per_training(size: str) -> int:
    """Number of times that a training of one step opens its data file, which is `small` enough to
    be kept or as good as `large`. A new vocabulary is learned, which takes a pass of its own."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "reviews.tsv"
        rows = [f"text number {i} of many\t{'ab'[i % 2]}" for i in range(200)]
        data.write_text("\n".join(["text\tlabel", *rows, ""]), encoding="utf-8")
        return int(_python(OPENS, str(data), str(Path(folder) / "run"), size))


def _python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.splitlines()[-1]


def counts(found: list[str]) -> dict[str, int]:
    return {
        "comparisons of a kind with a text": len(found),
        "of these, outside data/columns and specs": sum(
            not one.startswith(OWNERS) for one in found
        ),
        "modules loaded by a text classifier (tasks.label)": imported_modules(
            "headway.tasks.label"
        ),
        "modules loaded by headway.load and headway.train": imported_modules("headway.api"),
        "times that a training opens a small data file": opens_per_training("small"),
        "times that a training opens a large data file": opens_per_training("large"),
    }


def main() -> None:
    found = kind_comparisons()
    now = counts(found)
    allowed = json.loads(LIMITS.read_text()) if LIMITS.exists() else now
    if "--show" in sys.argv:
        print("\n".join(found))
    for name, n in now.items():
        print(f"{n:5} (at most {allowed[name]:4}) {name}")
    risen = [name for name, n in now.items() if n > allowed[name]]
    if "--update" in sys.argv and not risen:
        LIMITS.write_text(json.dumps(now, indent=2) + "\n")
    if risen:
        raise SystemExit(f"Risen: {', '.join(risen)}. Lower the count, see docs/structure.py.")


if __name__ == "__main__":
    main()
