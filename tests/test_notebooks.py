"""The notebooks of examples/ are whole, have no outputs, and run from top to bottom."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
WAYS = ("_repr_html_", "_repr_markdown_", "__repr__")


def programs(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(programs: list[str]) -> dict[str, Any]:
    """As a kernel would, in this process: what a cell ends with is shown. A kernel of its own would
    need thirty more packages, and show nothing more."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, program in enumerate(programs, 1):
        tree = ast.parse(program)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            assert isinstance(last, ast.Expr)
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            show = next(getattr(value, way) for way in WAYS if hasattr(value, way))
            assert value is None or show(), f"cell {number} shows nothing"
    return names


def test_there_are_three_and_they_are_listed() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["classify_and_look", "transcribe", "translate"]
    listed = (FOLDER / "README.md").read_text()
    assert [path.name for path in NOTEBOOKS if f"]({path.name})" not in listed] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_whole_and_has_no_outputs(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["cells"][0]["cell_type"]) == (4, "markdown")
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    for program in programs(path):
        compile(program, path.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").symlink_to(FOLDER / "data")
    monkeypatch.chdir(tmp_path)
    assert run(programs(path))
