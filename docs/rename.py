"""Rename names of the code as `docs/built/renames.toml` lists them.

    python docs/rename.py                # apply the table to the working tree
    python docs/rename.py --check        # only list what would change, and what is unclear

The table has, in this order of application:

- `[move]`: files and folders, by path.
- `[names]`: names at the top of a module, `"tasks.intake:Gone" = "MaskTargets"`. Uses are found
  through the imports of every file.
- `[members]`: attributes, methods and settings of a class, `"tasks.readout:Read.few" =
  "small_output"`. Uses are found through the types that mypy infers.
- `[local]`: identifiers of one file, `"tasks/losses.py" = { aims_RC = "targets_RC" }`.
- `[strings]`: strings that are equal to a key, in files that match a pattern.
- `[text]`: patterns and replacements for source, docs and data files.
"""

# ruff: noqa: SIM102

from __future__ import annotations

import argparse
import ast
import io
import keyword
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "built" / "renames.toml"
SKIPPED = (
    "transformers", "scipy", "sklearn", "onnx", "onnxruntime", "onnxscript", "pyarrow",
    "matplotlib", "hypothesis", "schemathesis", "starlette", "pandas", "triton", "sentencepiece",
)  # fmt: skip
"""Packages whose types say nothing of ours; reading them takes minutes."""


def tracked(*patterns: str) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def module_of(path: Path) -> str:
    """Module name of a file: `headway.nn.layout`, `tests.nn.test_layout`."""
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    name = name.removeprefix("src/")
    return name.removesuffix("/__init__").replace("/", ".")


class File:
    """A Python file with the edits that are to be made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.module = module_of(path)
        self.is_package = path.name == "__init__.py"
        self.lines = self.text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.edits: dict[tuple[int, int], str] = {}

    def offset(self, line: int, column: int) -> int:
        """Offset of a position of `ast`, whose columns count bytes."""
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode())
        return self.starts[line - 1] + column

    def replace(self, start: int, old: str, new: str) -> None:
        found = self.text[start : start + len(old)]
        assert found == old, (self.path, start, found, old)
        self.edits[start, start + len(old)] = new

    def replace_after(self, start: int, old: str, new: str) -> None:
        """Replace the first whole word `old` at or after an offset."""
        match = re.compile(rf"\b{re.escape(old)}\b").search(self.text, start)
        assert match, (self.path, old)
        self.replace(match.start(), old, new)

    def write(self) -> bool:
        if not self.edits:
            return False
        parts, at = [], 0
        for (start, end), new in sorted(self.edits.items()):
            assert start >= at, (self.path, start, new)
            parts += [self.text[at:start], new]
            at = end
        self.path.write_text("".join([*parts, self.text[at:]]), encoding="utf-8")
        return True


def load() -> list[File]:
    return [File(path) for path in tracked("*.py")]


# ---------------------------------------------------------------- names of modules


def absolute(file: File, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = file.module.split(".")
    base = parts[: len(parts) - node.level + (1 if file.is_package else 0)]
    return ".".join([*base, *((node.module or "").split(".") if node.module else [])])


def top_level(tree: ast.Module) -> set[str]:
    """Names that a module itself defines."""
    found: set[str] = set()
    for node in ast.walk(tree):  # definitions under `if` and `try` are at the top, too
        if isinstance(node, ast.Module | ast.If | ast.Try):
            for one in node.body:
                if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(one.name)
                elif isinstance(one, ast.Assign):
                    found |= {
                        n.id for t in one.targets for n in ast.walk(t) if isinstance(n, ast.Name)
                    }
                elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    found.add(one.target.id)
    return found


class Names:
    """Names of all files, resolved to the modules that define them."""

    def __init__(self, files: list[File], table: dict[tuple[str, str], str]) -> None:
        self.files = {file.module: file for file in files}
        self.table = table
        self.defined = {file.module: top_level(file.tree) for file in files}
        self.imported: dict[str, dict[str, tuple[str, str]]] = {}
        for file in files:
            found = {}
            for node in ast.walk(file.tree):
                if isinstance(node, ast.ImportFrom):
                    module = absolute(file, node)
                    for one in node.names:
                        found[one.asname or one.name] = (module, one.name)
            self.imported[file.module] = found

        counts: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for module, names in self.defined.items():
            for name in names:
                counts[name].add((module, name))
        # Names that only one module of ours defines mean the same thing in any text.
        self.unique = {
            name: table[places.pop()]
            for name, places in counts.items()
            if len(places) == 1 and next(iter(places)) in table and not name.islower()
        }

    def origin(self, module: str, name: str, depth: int = 0) -> tuple[str, str]:
        """Where a name of a module was defined."""
        if depth < 12 and module in self.files and name not in self.defined[module]:
            if (other := self.imported[module].get(name)) and other != (module, name):
                return self.origin(*other, depth + 1)
        return module, name

    def new(self, module: str, name: str) -> str | None:
        return self.table.get(self.origin(module, name))

    def module(self, file: File, name: str) -> str | None:
        """The module that a local name of a file is, if it is one."""
        if found := self.imported[file.module].get(name):
            whole = ".".join(found)
            if whole in self.files:
                return whole
        return self.plain.get(name)

    def apply(self) -> Iterator[str]:
        for file in self.files.values():
            self.plain: dict[str, str] = {}
            # Attributes of a class body have a namespace of their own.
            self.own = {
                id(target)
                for node in ast.walk(file.tree)
                if isinstance(node, ast.ClassDef)
                for one in node.body
                for target in getattr(one, "targets", [getattr(one, "target", None)])
            }
            self.exported = {
                id(item)
                for node in file.tree.body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
                for item in ast.walk(node.value)
            }
            for node in ast.walk(file.tree):
                if isinstance(node, ast.Import):
                    for one in node.names:
                        if one.asname:
                            self.plain[one.asname] = one.name
            yield from self._file(file)

    def _file(self, file: File) -> Iterator[str]:
        here: dict[str, str] = {}
        for name in {*self.defined[file.module], *self.imported[file.module]}:
            if name in self.imported[file.module] and name not in self.defined[file.module]:
                real = self.imported[file.module][name][1]
                if name != real:  # `import X as Y`: only the import changes
                    continue
            if new := self.new(file.module, name):
                here[name] = new
        words = set(re.findall(r"\b\w+\b", file.text))
        for name, new in here.items():
            if new in words and new in {
                *self.defined[file.module], *self.imported[file.module]
            } - set(here):  # fmt: skip
                yield f"{file.path}: {name} -> {new}, which is there already"
        yield from self._nodes(file, file.tree, here)
        mention(file, self.unique | here)
        for node in ast.walk(file.tree):
            self._paths(file, node)

    def _paths(self, file: File, node: ast.AST) -> None:
        """Rename names in strings such as "classify.Labels", a path below a package of ours, and in
        calls such as `setattr(module, "NAME", …)`."""
        if isinstance(node, ast.Call) and len(node.args) > 1:
            called = ast.unparse(node.func).rsplit(".", 1)[-1]
            first, second = node.args[:2]
            if called in ("setattr", "getattr", "hasattr", "delattr") and isinstance(
                second, ast.Constant
            ):
                module = self._module_expr(file, first)
                if module and (new := self.new(module, str(second.value))):
                    start = file.offset(second.lineno, second.col_offset)
                    file.replace(start + 1, second.value, new)
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            return
        path, dot, name = node.value.rpartition(".")
        if dot and re.fullmatch(r"[\w.]+", node.value):
            for base in ("", "headway.", "headway.tasks.", f"{file.module.rpartition('.')[0]}."):
                if base + path in self.files and (new := self.new(base + path, name)):
                    start = file.offset(node.lineno, node.col_offset)
                    file.replace_after(start + len(path) + 1, name, new)
                    return

    def _nodes(self, file: File, node: ast.AST, here: dict[str, str]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = {n: v for n, v in here.items() if n not in bound_in(node)}
        else:
            inner = here
        if isinstance(node, ast.ImportFrom):
            module = absolute(file, node)
            start = file.offset(node.lineno, node.col_offset)
            start = file.text.index("import", start + 4 + len(node.module or ""))
            for one in node.names:
                if new := self.new(module, one.name):
                    at = file.offset(one.lineno, one.col_offset)
                    file.replace(at, one.name, new)
                    if one.asname == one.name:  # exported again
                        file.replace_after(at + len(one.name) + 1, one.asname, new)
                    if one.asname == new:
                        yield f"{file.path}:{one.lineno}: import {one.name} as {new}"
            return
        if isinstance(node, ast.Name) and (new := here.get(node.id)) and id(node) not in self.own:
            file.replace(file.offset(node.lineno, node.col_offset), node.id, new)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            module = self._module_expr(file, node.value)
            if module and (new := self.new(module, node.attr)):
                end = file.offset(node.end_lineno or 0, node.end_col_offset or 0)
                file.replace(end - len(node.attr), node.attr, new)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if (new := here.get(node.value)) and (
                not node.value.islower() or id(node) in self.exported
            ):
                start = file.offset(node.lineno, node.col_offset)
                file.replace_after(start, node.value, new)
        for field in ast.iter_child_nodes(node):
            if isinstance(field, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                # The name of a definition belongs to the scope around it.
                if isinstance(node, ast.Module | ast.If | ast.Try | ast.With):
                    if (new := here.get(field.name)) and field.name in self.defined[file.module]:
                        file.replace_after(
                            file.offset(field.lineno, field.col_offset)
                            + (6 if isinstance(field, ast.ClassDef) else 4),
                            field.name, new,
                        )  # fmt: skip
            yield from self._nodes(file, field, inner)

    def in_examples(self, text: str, path: Path) -> str:
        """A page with new names in backquotes and in its examples, by what these import."""
        local: dict[str, str] = {}
        for match in re.finditer(r"from (headway[\w.]*) import ([\w, ]+)", text):
            for item in match.group(2).split(","):
                name, _, alias = item.strip().partition(" as ")
                if new := self.new(match.group(1), name):
                    if not alias:
                        local[name] = new
                    text = text.replace(
                        match.group(), match.group().replace(name, new, 1)
                    ) if alias else text  # fmt: skip
        text = mentioned(text, self.unique)
        if not local:
            return text
        words = re.compile(rf"(?<![\w.])({'|'.join(local)})\b(?!=)")
        if path.suffix == ".ipynb":
            return words.sub(lambda found: local[found.group()], text)
        return re.sub(
            r"^```py.*?^```",
            lambda m: words.sub(lambda f: local[f.group()], m.group()),
            text,
            flags=re.MULTILINE | re.DOTALL,
        )

    def _module_expr(self, file: File, node: ast.expr) -> str | None:
        text = ast.unparse(node)
        if text in self.files:
            return text
        head, _, rest = text.partition(".")
        base = self.module(file, head)
        whole = f"{base}.{rest}" if base and rest else base
        return whole if whole in self.files else None


def bound_in(node: ast.AST) -> set[str]:
    """Names that are bound in a function (not in those inside it)."""
    found: set[str] = set()
    args = node.args  # type: ignore[attr-defined]
    for one in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
        if one is not None:
            found.add(one.arg)
    body = node.body if isinstance(node.body, list) else [node.body]  # type: ignore[attr-defined]
    stack: list[ast.AST] = list(body)
    while stack:
        one = stack.pop()
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(one.name)
            continue
        if isinstance(one, ast.Lambda):
            continue
        stack += ast.iter_child_nodes(one)
    return found


def mentioned(text: str, names: dict[str, str]) -> str:
    """Text with the names that stand in backquotes replaced."""
    return re.sub(
        r"(?<=`)([A-Za-z_]\w*)(?=[`.(\[])", lambda m: names.get(m.group(1), m.group(1)), text
    )


def mention(file: File, names: dict[str, str]) -> None:
    """Rename what comments and docstrings name in backquotes."""
    for one in tokenize.generate_tokens(io.StringIO(file.text).readline):
        is_text = one.type == tokenize.COMMENT or (
            one.type == tokenize.STRING and one.string.endswith('"""')
        )
        if is_text and (new := mentioned(one.string, names)) != one.string:
            file.replace(file.starts[one.start[0] - 1] + one.start[1], one.string, new)


# ---------------------------------------------------------------- members of classes


def typed(files: list[File]) -> dict[str, dict[tuple[int, int, int, int], set[str]]]:
    """For each file, the classes of every expression: mypy's answer, with all base classes."""
    from mypy import build, nodes, types
    from mypy.modulefinder import BuildSource
    from mypy.options import Options

    options = Options()
    options.export_types = options.preserve_asts = True
    options.incremental = False
    options.check_untyped_defs = options.ignore_missing_imports = True
    options.namespace_packages = options.explicit_package_bases = True
    options.mypy_path = [str(ROOT / "src"), str(ROOT)]
    options.python_version = sys.version_info[:2]
    for name in SKIPPED:
        options.per_module_options[f"{name}.*"] = {"follow_imports": "skip"}
    sources = [BuildSource(str(f.path), f.module) for f in files if "docs" not in f.path.parts]
    result = build.build(sources, options)
    found: dict[str, dict[tuple[int, int, int, int], set[str]]] = defaultdict(dict)

    def classes(kind: types.Type | None) -> set[str]:
        kind = types.get_proper_type(kind)
        if isinstance(kind, types.Instance):
            return {base.fullname for base in kind.type.mro}
        if isinstance(kind, types.UnionType):
            return set().union(*(classes(item) for item in kind.items))
        if isinstance(kind, types.TypeType):
            return classes(kind.item)
        if isinstance(kind, types.TupleType):
            return classes(kind.partial_fallback)
        if isinstance(kind, types.TypeVarType):
            return classes(kind.upper_bound)
        if isinstance(kind, types.CallableType) and kind.is_type_obj():
            return {base.fullname for base in kind.type_object().mro}
        if isinstance(kind, types.Overloaded):
            return classes(kind.items[0])
        if isinstance(kind, types.AnyType):
            return {"?"}
        return set()

    skipped = {"node", "info", "analyzed", "names", "imports", "alias_defs", "original_def", "type"}
    inner = (
        nodes.Expression, nodes.Statement, nodes.MypyFile, nodes.FuncDef, nodes.ClassDef,
        nodes.OverloadedFuncDef, nodes.Decorator, nodes.Argument, nodes.Block,
    )  # fmt: skip

    def walk(tree: nodes.MypyFile) -> Iterator[Any]:
        """All nodes of a file. The visitors of mypy are compiled and cannot be subclassed."""
        seen: set[int] = set()
        stack: list[Any] = [tree]
        while stack:
            one = stack.pop()
            if isinstance(one, list | tuple):
                stack.extend(one)
                continue
            if not isinstance(one, inner) or id(one) in seen:
                continue
            seen.add(id(one))
            yield one
            for kind in type(one).__mro__:
                for name in getattr(kind, "__mypyc_attrs__", ()):
                    if name not in skipped:
                        stack.append(getattr(one, name, None))

    for file in files:
        state = result.graph.get(file.module)
        if state is None or state.tree is None:
            continue
        here = found[file.module]
        for one in walk(state.tree):
            if isinstance(one, nodes.ClassDef) and one.info:
                here[one.line, -1, 0, 0] = {base.fullname for base in one.info.mro}
            elif isinstance(one, nodes.Expression) and (some := classes(result.types.get(one))):
                place = (one.line, one.column, one.end_line or 0, one.end_column or 0)
                here.setdefault(place, set()).update(some)
    return found


def members_of(node: ast.ClassDef) -> set[str]:
    """Names that a class body or a method of it assigns or defines."""
    found: set[str] = set()
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(one.name)
            for inner in ast.walk(one):
                if (
                    isinstance(inner, ast.Attribute)
                    and isinstance(inner.ctx, ast.Store)
                    and isinstance(inner.value, ast.Name)
                    and inner.value.id == "self"
                ):
                    found.add(inner.attr)
        for target in (
            [one.target] if isinstance(one, ast.AnnAssign)
            else one.targets if isinstance(one, ast.Assign) else []
        ):  # fmt: skip
            if isinstance(target, ast.Name):
                found.add(target.id)
    return found


def foreign_members() -> set[str]:
    """Names of attributes that objects of other packages have."""
    import collections
    import pathlib
    import subprocess as process
    import types

    import numpy
    import torch

    kinds = (
        str, bytes, list, dict, set, int, float, pathlib.Path, re.Match, collections.Counter,
        torch.Tensor, torch.nn.Module, torch.Generator, numpy.ndarray, numpy, torch,
        types.ModuleType, process, threading_names(), re, ast,
    )  # fmt: skip
    extra = {"parameters", "marks", "origin", "share", "words", "all", "text", "look", "facts"}
    return extra.union(*(dir(kind) for kind in kinds))


def threading_names() -> object:
    import threading

    return threading.Thread


class Members:
    def __init__(
        self, files: list[File], table: dict[tuple[str, str], str], loose: set[str]
    ) -> None:
        self.files, self.table = files, table
        self.names = {name for _, name in table}
        self.loose = loose
        self.types = typed(files)
        defined: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.parameters: dict[str, set[str]] = defaultdict(set)
        for file in files:
            for node in ast.walk(file.tree):
                if isinstance(node, ast.ClassDef):
                    for name in members_of(node):
                        defined[name].add((f"{file.module}.{node.name}", name))
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    args = node.args
                    self.parameters[node.name] |= {
                        one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)
                    }
        # A name that no other class has can be renamed where nothing is known of the object.
        foreign = foreign_members()
        for name in self.names:
            places = defined[name] - self.table.keys()
            new = {value for (_, key), value in self.table.items() if key == name}
            if not places and len(new) == 1 and name not in foreign:
                self.loose.add(name)
            elif any(place.startswith("tests.") for place, _ in places):
                print(f"{name}: also in {sorted(place for place, _ in places)}", file=sys.stderr)

    def new(self, owners: set[str], name: str) -> str | None:
        for owner in owners:
            if new := self.table.get((owner, name)):
                return new
        return None

    def apply(self) -> Iterator[str]:
        for file in self.files:
            yield from self._file(file)

    def at(self, file: File, node: ast.expr) -> set[str]:
        place = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
        return self.types.get(file.module, {}).get(place, set())

    def _file(self, file: File) -> Iterator[str]:
        names = self.names & set(re.findall(r"\w+", file.text))
        if not names:
            return
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Attribute) and node.attr in names:
                owners = self.at(file, node.value)
                new = self.new(owners, node.attr)
                if new is None and (not owners or "?" in owners):
                    if node.attr in self.loose:
                        new = next(v for (_, k), v in self.table.items() if k == node.attr)
                    else:
                        yield f"{file.path}:{node.lineno}: {ast.unparse(node)[-60:]} has no type"
                if new:
                    end = file.offset(node.end_lineno or 0, node.end_col_offset or 0)
                    file.replace(end - len(node.attr), node.attr, new)
            elif isinstance(node, ast.Call):
                owners = self.at(file, node.func)
                called = ast.unparse(node.func)
                if called.rsplit(".", 1)[-1] == "replace" and node.args:
                    owners = self.at(file, node.args[0])
                for one in node.keywords:
                    if one.arg in names:
                        new = self.new(owners, one.arg)
                        if new:
                            at = file.offset(one.lineno, one.col_offset)
                            file.replace(at, one.arg, new)
                        elif not owners or "?" in owners:
                            last = called.rsplit(".", 1)[-1]
                            if one.arg in self.loose and (
                                last in self.parameters and one.arg not in self.parameters[last]
                            ):
                                new = next(v for (_, k), v in self.table.items() if k == one.arg)
                                at = file.offset(one.lineno, one.col_offset)
                                file.replace(at, one.arg, new)
                            elif last in self.parameters and one.arg in self.parameters[last]:
                                pass  # a parameter of a function
                            else:
                                yield f"{file.path}:{one.lineno}: {called}({one.arg}=…) has no type"
            elif isinstance(node, ast.ClassDef):
                yield from self._class(file, node, names)

    def _class(self, file: File, node: ast.ClassDef, names: set[str]) -> Iterator[str]:
        found = self.types.get(file.module, {})
        lines = [node.lineno, *(one.lineno for one in node.decorator_list)]
        some = (found.get((line, -1, 0, 0), set()) for line in lines)
        owners = {f"{file.module}.{node.name}"}.union(*some)
        for one in node.body:
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name in names:
                if new := self.new(owners, one.name):
                    at = file.offset(one.lineno, one.col_offset) + 4
                    file.replace_after(at, one.name, new)
            if isinstance(one, ast.FunctionDef) and one.name == "__init__":
                for arg in (*one.args.args, *one.args.kwonlyargs):
                    new = self.new(owners, arg.arg) if arg.arg in names else None
                    if new and new not in {n.id for n in ast.walk(one) if isinstance(n, ast.Name)}:
                        file.replace(file.offset(arg.lineno, arg.col_offset), arg.arg, new)
                        for use in ast.walk(one):
                            if isinstance(use, ast.Name) and use.id == arg.arg:
                                at = file.offset(use.lineno, use.col_offset)
                                file.replace(at, use.id, new)
                    elif new:
                        yield f"{file.path}:{arg.lineno}: parameter {arg.arg} of __init__"
            targets = (
                [one.target] if isinstance(one, ast.AnnAssign)
                else one.targets if isinstance(one, ast.Assign) else []
            )  # fmt: skip
            for target in targets:
                if isinstance(target, ast.Name) and target.id in names:
                    if new := self.new(owners, target.id):
                        file.replace(file.offset(target.lineno, target.col_offset), target.id, new)
                        for other in node.body:  # uses inside the class body, as in a default
                            if isinstance(other, ast.AnnAssign) and other.value is not None:
                                for use in ast.walk(other.value):
                                    if isinstance(use, ast.Name) and use.id == target.id:
                                        at = file.offset(use.lineno, use.col_offset)
                                        file.replace(at, use.id, new)
        yield from ()


# ---------------------------------------------------------------- identifiers, strings and text


def local(file: File, table: dict[str, str]) -> Iterator[str]:
    words = set(re.findall(r"\b\w+\b", file.text))
    for old, new in table.items():
        if old not in words:
            yield f"{file.path}: no {old}"
        if new in words:
            yield f"{file.path}: {old} -> {new}, which is there already"
    for one in tokenize.generate_tokens(io.StringIO(file.text).readline):
        if one.type == tokenize.NAME and one.string in table and not keyword.iskeyword(one.string):
            file.replace(
                file.starts[one.start[0] - 1] + one.start[1], one.string, table[one.string]
            )


def strings(file: File, table: dict[str, str]) -> None:
    docs = {
        id(n.value) for n in ast.walk(file.tree)
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
    }  # fmt: skip
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            if new := table.get(node.value):
                start = file.offset(node.lineno, node.col_offset)
                end = file.offset(node.end_lineno or 0, node.end_col_offset or 0)
                if (start, end) in file.edits or file.text[start] not in "\"'":
                    continue
                file.replace(start + 1, node.value, new)


def text_files(table: list[dict[str, Any]]) -> None:
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        some = [
            row for row in table
            if any(fnmatch(name, p) for p in row["files"])
            and not any(fnmatch(name, p) for p in row.get("not", ()))
        ]  # fmt: skip
        if not some:
            continue
        before = text = path.read_text(encoding="utf-8")
        for row in some:
            text = re.sub(row["from"], row["to"], text, flags=re.MULTILINE)
        if text != before:
            path.write_text(text, encoding="utf-8")


TEXTS = ("*.py", "*.md", "*.toml", "*.ipynb", "*.yml", "*.js", "*.json")


def settings_text(keys: dict[str, str], values: dict[str, dict[str, str]]) -> None:
    """Rename settings in any text: `train.pool`, and `pool` below `[train]` in TOML."""
    for path in tracked(*TEXTS):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(("docs/built/", "benchmarks/results/", "docs/rename")):
            continue
        before = text = path.read_text(encoding="utf-8")
        if path.suffix in (".toml", ".md"):
            section, lines = "", []
            for line in text.split("\n"):
                if match := re.match(r"\[([\w.-]+)\]", line):
                    section = match.group(1)
                if match := re.match(r"([\w-]+)(\s*=)", line):
                    key = f"{section}.{match.group(1)}"
                    line = keys.get(key, match.group(1)) + line[match.end(1) :]
                lines.append(line)
            text = "\n".join(lines)
        for old, new in keys.items():
            section, _, last = old.rpartition(".")
            text = re.sub(rf"\b{section}(\\?\.){last}\b", rf"{section}\1{new}", text)
        for key, table in values.items():
            for old, new in table.items():
                text = re.sub(rf"(\b{key}[\"']?\s*[=:]\s*[\"']?){old}\b(?!-)", rf"\1{new}", text)
        if text != before:
            path.write_text(text, encoding="utf-8")


def split(table: dict[str, str], base: str = "headway.") -> dict[tuple[str, str], str]:
    found = {}
    for key, new in table.items():
        module, _, name = key.partition(":")
        found[base + module if not module.startswith(("tests.", "@")) else module, name] = new
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--only", default="", help="sections of the table, with commas")
    parser.add_argument("--modules", default="", help="packages whose names change, with commas")
    given = parser.parse_args()
    table = tomllib.loads(given.table.read_text())
    steps = given.only.split(",") if given.only else list(table)
    if given.modules:
        chosen = tuple(given.modules.split(","))
        for name in ("names", "members"):
            table[name] = {key: new for key, new in table[name].items() if key.startswith(chosen)}
        table["move"] = {
            old: new for old, new in table["move"].items()
            if re.sub(r"^(src/headway|tests)/", "", old).startswith(chosen)
        }  # fmt: skip
    problems: list[str] = []

    def done(files: list[File]) -> None:
        for file in files:
            if given.check:
                for (start, _), new in sorted(file.edits.items()):
                    line = file.text.count("\n", 0, start) + 1
                    print(f"{file.path.relative_to(ROOT)}:{line}: -> {new}")
            else:
                file.write()

    if "members" in steps and table.get("members"):
        files = load()
        rows = {
            (f"headway.{key.replace(':', '.').rpartition('.')[0]}", key.rpartition(".")[2]): new
            for key, new in table["members"].items()
        }
        problems += Members(files, rows, set(table.get("loose", {}).get("members", []))).apply()
        done(files)
    if "names" in steps and table.get("names"):
        files = load()
        names = Names(files, split(table["names"]))
        for module, name in names.table:
            if name not in names.defined.get(module, set()):
                problems.append(f"{module} defines no {name}")
        problems += names.apply()
        done(files)
        for path in () if given.check else tracked("*.md", "*.ipynb", "pyproject.toml"):
            text = path.read_text(encoding="utf-8")
            new = text if path.suffix == ".toml" else names.in_examples(text, path)
            for (module, name), other in names.table.items():
                new = re.sub(rf"\b{re.escape(module)}\.{name}\b", f"{module}.{other}", new)
            if new != text and path.name not in ("glossary.md", "writing.md"):
                path.write_text(new, encoding="utf-8")
    if "local" in steps and table.get("local"):
        files = load()
        for file in files:
            name = file.path.relative_to(ROOT).as_posix().removeprefix("src/headway/")
            if name in table["local"]:
                problems += local(file, table["local"][name])
        done(files)
    if "strings" in steps and table.get("strings"):
        files = load()
        for file in files:
            name = file.path.relative_to(ROOT).as_posix()
            for row in table["strings"]:
                if any(fnmatch(name, p) for p in row["files"]) and not any(
                    fnmatch(name, p) for p in row.get("not", ())
                ):
                    strings(file, row["map"])
        done(files)
    if "settings" in steps and not given.check:
        settings_text(table.get("settings", {}), table.get("values", {}))
    if "text" in steps and not given.check:
        text_files(table.get("text", []))
    if "move" in steps and not given.check:
        within: dict[tuple[str, str], str] = {}
        for old, new in table.get("move", {}).items():
            one, other = (module_of(ROOT / path).rpartition(".") for path in (old, new))
            if old.endswith(".py") and one[0] == other[0]:
                within[one[0], one[2]] = other[2]
        files = load()
        problems += Names(files, within).apply()
        done(files)
        for old, new in table.get("move", {}).items():
            (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", old, new], cwd=ROOT, check=True)
        modules = {
            module_of(ROOT / old): module_of(ROOT / new)
            for old, new in table.get("move", {}).items() if old.endswith(".py")
        }  # fmt: skip
        moved(modules)
    print("\n".join(problems), file=sys.stderr)
    return 0


def moved(modules: dict[str, str]) -> None:
    """Correct imports of moved modules, and dotted names and paths of them in any text."""
    for file in load():
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ImportFrom) and not node.level:
                start = file.offset(node.lineno, node.col_offset)
                if node.module in modules:
                    file.replace(start + 5, node.module, modules[node.module])
                elif any(
                    f"{node.module}.{one.name}" in modules
                    and modules[f"{node.module}.{one.name}"].rpartition(".")[0] != node.module
                    for one in node.names
                ):
                    print(f"{file.path}:{node.lineno}: {ast.unparse(node)}", file=sys.stderr)
        file.write()
    for path in tracked():
        if path.suffix not in (".py", ".md", ".toml", ".js", ".yml", ".txt", ".ipynb", ".json"):
            continue
        before = text = path.read_text(encoding="utf-8")
        for old, new in modules.items():
            text = re.sub(rf"\b{re.escape(old)}\b(?!\.?\w*\.py)", new, text)
            one, other = (f"{m.replace('.', '/').removeprefix('headway/')}.py" for m in (old, new))
            text = re.sub(rf"(?<![\w]){re.escape(one)}\b", other, text)
        if text != before:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
