"""The page about serving: its examples are run, its table of limits is what holds."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from headway.serve.limits import Limits
from headway.serve.routes.admin import PAGE as FILES
from headway.settings.field_docs import documented
from headway.settings.folder import SHIPPED

from .conftest import Here

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/serve/index.md").read_text()
BLOCKS = re.findall(r"^```(sh|py)\n(.*?)^```", PAGE, re.M | re.S)
COOKBOOK = (ROOT / "docs/start/cookbook.md").read_text()
CURLS = [
    line
    for text in re.findall(r"^```sh\n(.*?)^```", PAGE + COOKBOOK, re.M | re.S)
    for line in text.replace("\\\n", " ").splitlines()
    if line.startswith("curl")
]
HERE = "http://127.0.0.1:8080"


def test_there_are_examples() -> None:
    assert len(CURLS) >= 7


@pytest.mark.parametrize("line", CURLS)
def test_a_line_of_curl_is_answered(here: Here, line: str) -> None:
    words = shlex.split(line)
    url = next(word for word in words if word.startswith(HERE))
    headers = dict(
        words[place + 1].split(": ", 1) for place, word in enumerate(words) if word == "-H"
    )
    more: dict[str, Any] = {"headers": headers}
    method = "GET"
    if "-d" in words:
        method, more["content"] = "POST", words[words.index("-d") + 1].encode()
    parts = [words[place + 1] for place, word in enumerate(words) if word == "-F"]
    if parts:
        method = "POST"
        named = dict(part.split("=", 1) for part in parts)
        path = SHIPPED / named["model"] / named.pop("file").removeprefix("@")
        more |= {"data": named, "files": {"file": (path.name, path.read_bytes())}}
    response = here.client.request(method, url.removeprefix(HERE), **more)
    assert response.status_code == 200, response.text
    assert '"error"' not in response.text[:2000]


@pytest.mark.parametrize("program", [text for kind, text in BLOCKS if kind == "py"])
def test_a_program_runs(
    here: Here, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(SHIPPED / "digits")
    exec(program.replace(HERE, here.url), {})
    if "openai" in program:
        assert "three eight six" in capsys.readouterr().out


def test_the_table_of_limits_is_what_holds() -> None:
    shown = PAGE.partition("<!-- limits -->")[2].partition("<!-- end -->")[0]
    said, usual = documented(Limits), Limits()
    rows = []
    for one in fields(Limits):
        value = getattr(usual, one.name)
        number = f"{value:,}" if isinstance(value, int) else f"{value:,g}"
        rows.append(f"| `{one.name}` | {number} | {said[one.name]} |")
    assert shown.split("|---|---:|---|\n")[1].splitlines() == rows


def test_every_file_of_the_page_is_in_the_package() -> None:
    web = ROOT / "src/headway/web"
    assert all((web / name).is_file() for name, _ in FILES.values())
