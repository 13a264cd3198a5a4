"""Prove that a change of words left the code as it was.

    python docs/same_code.py HEAD                      # since the last commit: same but for words
    python docs/same_code.py HEAD~3 HEAD src/headway/data

Two trees are the same but for words if they are equal without docstrings and without the arguments
of errors and output calls. Other strings that differ are printed for review: help texts, labels,
tables of reasons.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wording import ERRORS, OUTPUT

ROOT = Path(__file__).resolve().parent.parent
IDENTIFIERS = ("id", "attr", "arg", "name", "asname")


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def sources(revision: str | None, paths: list[str]) -> dict[str, str]:
    """Python files at a revision, or in the working tree, by path."""
    if revision is None:
        names = git("ls-files", "--cached", "--others", "--exclude-standard", *paths).splitlines()
        found = {name: ROOT / name for name in names if name.endswith(".py")}
        return {
            name: path.read_text(encoding="utf-8") for name, path in found.items() if path.exists()
        }
    names = git("ls-tree", "-r", "--name-only", revision, *paths).splitlines()
    return {name: git("show", f"{revision}:{name}") for name in names if name.endswith(".py")}


class Blank(ast.NodeTransformer):
    """Take out docstrings, the arguments of errors and output calls, and imports."""

    def __init__(self) -> None:
        self.imports: list[tuple[str, str, str | None]] = []

    def visit_Import(self, node: ast.Import) -> None:
        self.imports += [("", one.name, one.asname) for one in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        self.imports += [(module, one.name, one.asname) for one in node.names]

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = ast.unparse(node.func).rsplit(".", 1)[-1]
        if ERRORS.search(called) or called in OUTPUT:
            return ast.copy_location(ast.Call(node.func, [], []), node)
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        parts = [
            one.value if isinstance(one, ast.Constant) else f"{{{ast.unparse(one.value)}}}"
            for one in node.values
            if isinstance(one, ast.Constant | ast.FormattedValue)
        ]
        return ast.copy_location(ast.Constant("".join(str(part) for part in parts)), node)


def leaves(node: Any) -> Iterator[tuple[str, str, int]]:
    """Identifiers, strings and everything else of a tree, in order."""
    for one in ast.walk(node):
        line = getattr(one, "lineno", 0)
        yield "node", type(one).__name__, line
        for field, value in ast.iter_fields(one):
            if field in IDENTIFIERS and isinstance(value, str):
                yield "name", value, line
            elif field == "kwd_attrs" or isinstance(one, ast.Global | ast.Nonlocal):
                yield from (("name", name, line) for name in value)
            elif isinstance(value, str):
                yield "text", value, line
            elif field == "value" and isinstance(one, ast.Constant):
                yield "value", repr(value), line


def compare(old: str, new: str) -> tuple[list[str], list[str]]:
    """Differences of code, and of texts outside messages. Imports may be in another order."""
    before, after = Blank(), Blank()
    one, two = before.visit(ast.parse(old)), after.visit(ast.parse(new))
    code: list[str] = []
    texts: list[str] = []
    lost = Counter(before.imports) - Counter(after.imports)
    added = [name for _, *names in after.imports for name in names if name]
    for _, *names in lost.elements():
        for name in filter(None, names):
            if name not in added:
                code.append(f"import of {name} is gone")
    left, right = list(leaves(one)), list(leaves(two))
    for (kind, value, line), (other, other_value, other_line) in zip(left, right, strict=False):
        if kind != other or (kind in ("node", "value") and value != other_value):
            code.append(f"lines {line} and {other_line}: {value} became {other_value}")
            break
        if kind == "name" and value != other_value:
            code.append(f"lines {line} and {other_line}: name {value} became {other_value}")
        if kind == "text" and value != other_value:
            texts.append(f"{other_line}: {value!r}\n      became {other_value!r}")
    if not code and len(left) != len(right):
        code.append(f"{len(left)} parts became {len(right)}")
    return code, texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base")
    parser.add_argument("rest", nargs="*", help="another revision (else the working tree), paths")
    parser.add_argument("--quiet", action="store_true", help="do not print the texts that differ")
    asked = parser.parse_args()
    rest = list(asked.rest)
    revision = rest.pop(0) if rest and not (ROOT / rest[0]).exists() else None
    paths = rest or ["src"]
    old, new = sources(asked.base, paths), sources(revision, paths)
    failed = 0
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            print(f"{name}: only {'before' if name in old else 'after'}")
            failed += 1
        elif old[name] != new[name]:
            code, texts = compare(old[name], new[name])
            failed += bool(code)
            print("".join(f"{name}: CODE {one}\n" for one in code), end="")
            if not asked.quiet:
                print("".join(f"{name}:{one}\n" for one in texts), end="")
    print(f"{failed} of {len(old)} files differ in code")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
