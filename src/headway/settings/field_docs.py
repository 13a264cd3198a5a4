"""Docstrings of dataclass fields, from which help texts and the settings reference are
generated."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path


@cache
def documented(cls: type) -> Mapping[str, str]:
    """Return the docstrings of the documented fields of a dataclass and its bases by name, each
    joined to one line."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if is_dataclass(one):
            found |= _classes(inspect.getsourcefile(one) or "").get(one.__name__, {})
    return found


@cache
def _classes(path: str) -> Mapping[str, Mapping[str, str]]:
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return {node.name: _fields(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, below in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found
