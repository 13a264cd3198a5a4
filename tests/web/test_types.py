"""The types of the pages' scripts describe what Python puts into pages."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.inside.capture.corpus import Corpus
from headway.inside.capture.reading import DEFAULT_OPTIONS
from headway.inside.page.live import LivePage, LookRequest
from headway.inside.page.look import LookOptions, look
from headway.lab.page import write_index, write_page
from headway.tasks.loaded_run import open_plain
from headway.training.report import write_report
from headway.web.html import FOLDER
from headway.web.pack import unpack

from ..inside.kept_runs import kept_run
from ..interop.padded_runs import media_lines, media_run
from ..lab.test_page import ENTRY, FACTS
from ..training.test_report import entries

ROOT = Path(__file__).parents[2]
TSC = ROOT / "node_modules" / ".bin" / "tsc"
ARRAYS = {"f": "Floats", "i": "Ints", "u": "Shorts"}
TEXT = "ba de fi ko"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not TSC.exists(),
    reason="tsc is not installed: `make web` installs it",
)


def typescript(value: Any) -> str:
    """The value as an expression; arrays by their type alone, and the ends of long lists."""
    if isinstance(value, np.ndarray):
        return f"array<{ARRAYS[value.dtype.kind]}<{value.ndim}>>()"
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)}: {typescript(one)}" for key, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        some = value if len(value) < 8 else [*value[:4], *value[-3:]]
        return f"[{', '.join(map(typescript, some))}]"
    return json.dumps(value)


def checked(folder: Path, pages: dict[str, dict[str, Any]]) -> str:
    """What tsc prints about these data as the type `PageData`."""
    options = {"target": "es2023", "lib": ["es2023", "dom"], "types": [], "strict": True}
    config = {
        "compilerOptions": {**options, "noEmit": True, "moduleDetection": "force"},
        "include": [".", str(FOLDER / "core" / "types.d.ts")],
    }
    (folder / "tsconfig.json").write_text(json.dumps(config))
    for name, data in pages.items():
        code = f"declare function array<T>(): T;\nexport const data: PageData = {typescript(data)};"
        (folder / f"{name}.ts").write_text(code)
    done = subprocess.run(
        [TSC, "--project", folder], capture_output=True, text=True, check=False, timeout=300
    )
    return done.stdout


def texts(folder: Path) -> str:
    corpus = Corpus.of_lines(["ba de", "go fi ko"], ["go", "ba ba"])
    return look(kept_run(folder / "run"), TEXT, corpus=corpus, slow=True).html


def images(folder: Path) -> str:
    run, [first, *_] = media_run(folder / "run", "caption"), media_lines(folder / "in", "caption")
    return look(run, file=first).html


def recordings(folder: Path) -> str:
    run, [_, second, *_] = (
        media_run(folder / "run", "transcribe"),
        media_lines(folder / "in", "transcribe"),
    )
    return look(run, file=second).html


def served(folder: Path) -> str:
    run = open_plain(kept_run(folder / "run", "complete"))
    live = LivePage.of(run, DEFAULT_OPTIONS, LookOptions())
    live.asked["post"] = "v1/look"
    return live.page(LookRequest(text=TEXT)).html


def report(folder: Path) -> str:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries()))
    (folder / "config.toml").write_text('task = "translate"\n[train]\nlr = 0.1\n')
    return write_report(folder).read_text(encoding="utf-8")


def experiment(folder: Path) -> str:
    return write_page(folder, ENTRY, FACTS, [{"gap": 1.0, "on": True}]).read_text(encoding="utf-8")


def index(folder: Path) -> str:
    rows = [{**FACTS, "page": "a.html"}, {"number": 2, "experiment": "b", "question": "And b?"}]
    return write_index(folder, rows).read_text(encoding="utf-8")


PAGES: list[Callable[[Path], str]] = [texts, images, recordings, served, report, experiment, index]


def test_the_data_of_pages_have_the_types_of_the_scripts(tmp_path: Path) -> None:
    pages = {}
    for make in PAGES:
        folder = tmp_path / f"{make.__name__}-files"
        folder.mkdir()
        pages[make.__name__] = unpack(make(folder))
    (tmp_path / "types").mkdir()
    assert checked(tmp_path / "types", pages) == ""


def test_other_data_do_not(tmp_path: Path) -> None:
    data = {"title": "a", "run": {}, "order": [], "looks": [{"label": 1}], "shared": {}}
    assert "TS2322" in checked(tmp_path, {"wrong": data})
