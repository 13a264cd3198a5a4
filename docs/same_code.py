"""Prove that a change of words or names left the code as it was.

    python docs/same_code.py HEAD                      # since the last commit: same but for words
    python docs/same_code.py HEAD~3 HEAD src/headway/data
    python docs/same_code.py HEAD~1 HEAD --renames docs/built/renames.toml

Two trees are the same but for words if they are equal without docstrings and without the arguments
of errors and output calls. Other strings that differ are printed, to be read: help texts, labels,
tables of reasons. With `--renames`, identifiers and strings may also differ as the table says.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
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

    def __init__(self, renames: Renames) -> None:
        self.renames = renames
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
        if any(ERRORS.search(name) or name in OUTPUT for name in self.renames.related(called)):
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


class Renames:
    """What the table of docs/rename.py allows: pairs of names, and patterns of words."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.pairs: dict[str, set[str]] = defaultdict(set)
        rows = [row["map"] for row in table.get("strings", ())]
        rows += [table.get(name, {}) for name in ("names", "members", "settings")]
        rows += table.get("values", {}).values()
        for old, new in (pair for row in rows for pair in row.items()):
            self.pairs[re.split(r"[.:]", old)[-1]].add(new)
        for old, new in table.get("move", {}).items():
            self.pairs[Path(old).stem].add(Path(new).stem)
        self.back: dict[str, set[str]] = defaultdict(set)
        for old, every in self.pairs.items():
            for new in every:
                self.back[new].add(old)
        self.words = [(re.compile(row["from"]), row["to"]) for row in table.get("text", ())]

    def allowed(self, name: str) -> set[str]:
        found = {name, *self.pairs[name]}
        return found | {self._reworded(one) for one in found}

    def related(self, name: str) -> set[str]:
        """All names that are connected with this one by renames, in either direction."""
        found, open_names = {name}, [name]
        while open_names:
            one = open_names.pop()
            new = (self.pairs[one] | self.back[one]) - found
            found |= new
            open_names += new
        return found

    def text(self, text: str) -> str:
        """A text with the new words, as far as they have one meaning."""
        single = {old: next(iter(new)) for old, new in self.pairs.items() if len(new) == 1}
        said = self._reworded(text)
        return re.sub(r"\w+", lambda found: single.get(found.group(), found.group()), said)

    def _reworded(self, text: str) -> str:
        for pattern, new in self.words:
            text = pattern.sub(new, text)
        return text


def compare(old: str, new: str, renames: Renames) -> tuple[list[str], list[str]]:
    """Differences of code, and of texts outside messages. Imports may be in another order."""
    before, after = Blank(renames), Blank(renames)
    one, two = before.visit(ast.parse(old)), after.visit(ast.parse(new))
    code: list[str] = []
    texts: list[str] = []
    lost = Counter(before.imports) - Counter(after.imports)
    added = [name for _, *names in after.imports for name in names if name]
    for _, *names in lost.elements():
        for name in filter(None, names):
            if not renames.allowed(name) & set(added):
                code.append(f"import of {name} is gone")
    left, right = list(leaves(one)), list(leaves(two))
    for (kind, value, line), (other, other_value, other_line) in zip(left, right, strict=False):
        if kind != other or (kind in ("node", "value") and value != other_value):
            code.append(f"lines {line} and {other_line}: {value} became {other_value}")
            break
        if kind == "name" and other_value not in renames.allowed(value):
            code.append(f"lines {line} and {other_line}: name {value} became {other_value}")
        if kind == "text" and other_value not in {*renames.allowed(value), renames.text(value)}:
            texts.append(f"{other_line}: {value!r}\n      became {other_value!r}")
    if not code and len(left) != len(right):
        code.append(f"{len(left)} parts became {len(right)}")
    return code, texts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base")
    parser.add_argument("rest", nargs="*", help="another revision (else the working tree), paths")
    parser.add_argument("--renames", type=Path)
    parser.add_argument("--quiet", action="store_true", help="do not print the texts that differ")
    asked = parser.parse_args()
    rest = list(asked.rest)
    revision = rest.pop(0) if rest and not (ROOT / rest[0]).exists() else None
    paths = rest or ["src"]
    table = tomllib.loads(asked.renames.read_text()) if asked.renames else {}
    renames, moves = Renames(table), table.get("move", {})
    old, new = sources(asked.base, paths), sources(revision, paths)
    old = {moves.get(name, name): text for name, text in old.items()}
    failed = 0
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            print(f"{name}: only {'before' if name in old else 'after'}")
            failed += 1
        elif old[name] != new[name]:
            code, texts = compare(old[name], new[name], renames)
            failed += bool(code)
            print("".join(f"{name}: CODE {one}\n" for one in code), end="")
            if not asked.quiet:
                print("".join(f"{name}:{one}\n" for one in texts), end="")
    print(f"{failed} of {len(old)} files differ in code")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
