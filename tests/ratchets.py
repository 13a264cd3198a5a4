"""What there is too much of, counted in the source: it may only become less.

    python -m tests.ratchets            # what there is, with lines, files and one-importer modules
    python -m tests.ratchets --write    # bring the table to what there is now, if it is no more

Four things are counted. Of each the sum may only fall; the table has it by package (the folder
under `headway/`), so that code may move from one to another.

- `task names`: outside `tasks` and `cli`, comparisons (`==`, `!=`, `in`, `not in`, `case`) with
  the name of a task as a literal, and literals that hold two names or more (a dict by its keys): a
  table of tasks beside the one in `tasks`.
- `families`: `isinstance`, `issubclass` and `type(x) is` of a family's class (of `FAMILIES`), of a
  front's (`...Front`), or of their settings.
- `any`: `Any` in the hints of arguments and results, each time it stands there.
- `openers`: functions that call `load_model`, that is, read the weights of a run by themselves.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/headway"
TABLE = Path(__file__).parent / "ratchets.toml"

TASKS = frozenset({
    "translate", "complete", "fill", "classify", "tag", "embed", "see", "watch", "caption",
    "transcribe", "identify", "detect", "distil",
})  # fmt: skip
HOMES = ("tasks", "cli")
"""Packages that may know tasks by their names."""

FAMILIES = tuple(
    f"models/{name}.py" for name in ("seq2seq", "encoder", "decoder", "seeing", "hearing")
)
FRONT_SETTINGS = frozenset({"PictureSettings", "SoundSettings"})

Sources = Mapping[str, str]
"""The text of each module, by its path under `headway`."""


@dataclass(frozen=True)
class Found:
    path: str
    line: int
    text: str

    @property
    def package(self) -> str:
        return self.path.split("/")[0].removesuffix(".py")

    def __str__(self) -> str:
        return f"{SOURCE}/{self.path}:{self.line}: {self.text}"


Nodes = Sequence[ast.AST]
Count = Callable[[str, Nodes, frozenset[str]], Iterator[ast.AST]]


def _is_task(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in TASKS


def _named_tasks(node: ast.AST) -> int:
    """How many a literal holds; of a dict the keys count."""
    if isinstance(node, ast.Dict):
        return sum(map(_is_task, node.keys))
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return sum(map(_is_task, node.elts))
    return 0


def task_names(path: str, nodes: Nodes, _: frozenset[str]) -> Iterator[ast.AST]:
    if path.split("/")[0] in HOMES:
        return
    inside: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Compare):
            sides = _sides(node)
            if any(_is_task(side) or _named_tasks(side) for side in sides):
                inside |= {id(side) for side in sides}
                yield node
        elif isinstance(node, ast.MatchValue):
            if _is_task(node.value):
                yield node
        elif id(node) not in inside and _named_tasks(node) >= 2:
            yield node


def families(path: str, nodes: Nodes, classes: frozenset[str]) -> Iterator[ast.AST]:
    for node in nodes:
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call) and _called(node) in ("isinstance", "issubclass"):
            asked = node.args[1:]
        elif isinstance(node, ast.Compare) and any(
            isinstance(side, ast.Call) and _called(side) == "type" for side in _sides(node)
        ):
            asked = _sides(node)
        if any(_names(one) & classes for one in asked):
            yield node


def any_hints(path: str, nodes: Nodes, _: frozenset[str]) -> Iterator[ast.AST]:
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        for hint in [node.returns, *(arg.annotation for arg in every if arg is not None)]:
            if hint is not None:
                yield from (name for name in ast.walk(hint) if _name(name) == "Any")


def openers(path: str, nodes: Nodes, _: frozenset[str]) -> Iterator[ast.AST]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = _of_this_function(node)
            if any(isinstance(one, ast.Call) and _called(one) == "load_model" for one in own):
                yield node


def _sides(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def _of_this_function(function: ast.AST) -> Iterator[ast.AST]:
    """What stands in it, but not in functions that are defined inside."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _of_this_function(child)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _called(node: ast.Call) -> str:
    return _name(node.func)


def _names(node: ast.AST) -> set[str]:
    return {_name(one) for one in ast.walk(node)} - {""}


COUNTS: dict[str, Count] = {
    "task names": task_names,
    "families": families,
    "any": any_hints,
    "openers": openers,
}


def classes_of(sources: Sources) -> frozenset[str]:
    """The families and fronts, and their settings."""
    found = set(FRONT_SETTINGS)
    for path, code in sources.items():
        if not path.startswith(("models/", "config/")):
            continue
        names = {node.name for node in ast.parse(code).body if isinstance(node, ast.ClassDef)}
        if path in FAMILIES:
            found |= {name for name in names if not name.startswith("_")}
        elif path.startswith("models/"):
            found |= {name for name in names if name.endswith("Front")}
        else:
            found |= {name for name in names if name.endswith(("coderSettings", "SeqSettings"))}
    return frozenset(found)


def found_in(sources: Sources) -> dict[str, list[Found]]:
    classes, found = classes_of(sources), {name: list[Found]() for name in COUNTS}
    for path, code in sources.items():
        nodes, lines = list(ast.walk(ast.parse(code))), code.splitlines()
        for name, count in COUNTS.items():
            at = sorted(node.lineno for node in count(path, nodes, classes))  # type: ignore[attr-defined]
            found[name] += [Found(path, line, lines[line - 1].strip()) for line in at]
    return found


def numbers(found: Mapping[str, list[Found]]) -> dict[str, dict[str, int]]:
    return {name: dict(sorted(Counter(one.package for one in every).items()))
            for name, every in found.items()}  # fmt: skip


def sources_here() -> Sources:
    folder = ROOT / SOURCE
    return {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
    }


def sources_then() -> Sources:
    """As they were when the table was written last; nothing where git does not know it."""
    try:
        commit = _git("log", "-1", "--format=%H", "--", str(TABLE)).decode().strip()
        archive = _git("archive", commit, SOURCE) if commit else b""
    except (OSError, subprocess.CalledProcessError):
        return {}
    if not archive:
        return {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return {
            member.name.removeprefix(f"{SOURCE}/"): files.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in files.getmembers()
            if member.name.endswith(".py")
        }


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True)
    return done.stdout


def new_ones(name: str, now: list[Found]) -> list[Found]:
    """Those that were not there when the table was written: by their text, wherever it stands."""
    old = Counter(one.text for one in found_in(sources_then())[name])
    fresh = []
    for one in now:
        if old[one.text]:
            old[one.text] -= 1
        else:
            fresh.append(one)
    return fresh


Table = dict[str, dict[str, int]]


def table() -> Table:
    found: Table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return found


def complaints(found: Mapping[str, list[Found]], allowed: Table) -> list[str]:
    said = []
    for name, now in numbers(found).items():
        n, most = sum(now.values()), sum(allowed.get(name, {}).values())
        if n > most:
            said.append(f"{name}: {most} → {n}, and may only become fewer. New:")
            said += [f"  {one}" for one in new_ones(name, found[name])]
        elif now != allowed.get(name, {}):
            said.append(
                f"{name}: {most} → {n}, and the table does not say so yet. Write it down: "
                "python -m tests.ratchets --write"
            )
    return said


def written(now: Table, old: Table) -> str:
    """The new table as text. What has grown stays as it was."""
    lines = ["# How many there are, by package (tests/ratchets.py). Their sums may only fall."]
    for name, packages in now.items():
        before = old.get(name, packages)
        grown = sum(packages.values()) > sum(before.values())
        lines += ["", f'["{name}"]']
        lines += [f"{package} = {n}" for package, n in (before if grown else packages).items()]
    return "\n".join(lines) + "\n"


def sizes(sources: Sources) -> Iterator[str]:
    """Lines and files of each package, and the modules that only one other imports."""
    lines, files = Counter[str](), Counter[str]()
    for path, code in sources.items():
        package = path.split("/")[0].removesuffix(".py")
        lines[package] += code.count("\n")
        files[package] += 1
    yield f"{'package':12} {'lines':>7} {'files':>6}"
    for package in sorted(lines):
        yield f"{package:12} {lines[package]:7,} {files[package]:6}"
    yield f"{'all':12} {sum(lines.values()):7,} {sum(files.values()):6}"
    lonely = sorted(module for module, n in importers(sources).items() if n == 1)
    yield f"{len(lonely)} modules are imported by one other: {', '.join(lonely)}"


def importers(sources: Sources) -> Counter[str]:
    """How many modules import each."""
    modules = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
               for path in sources}  # fmt: skip
    found = Counter[str](dict.fromkeys(modules, 0))
    for code in sources.values():
        named = set[str]()
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found.update({name.removeprefix("headway.") for name in named} & modules)
    return found


def main(words: list[str]) -> int:
    here = sources_here()
    found = found_in(here)
    for name, packages in numbers(found).items():
        parts = ", ".join(f"{package} {n}" for package, n in packages.items())
        sys.stdout.write(f"{name}: {sum(packages.values())} ({parts})\n")
    if "--write" in words:
        old = table() if TABLE.exists() else {}
        TABLE.write_text(written(numbers(found), old), encoding="utf-8")
        said = complaints(found, table())
        sys.stdout.write("".join(f"{line}\n" for line in said))
        return 1 if said else 0
    sys.stdout.write("\n" + "\n".join(sizes(here)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
