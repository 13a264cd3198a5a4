"""The documentation is true: commands print what it shows, and no setting is missing."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from benchmarks import report
from headway.cli.main import main
from headway.config.model import FAMILY_SETTINGS

DOCS = Path(__file__).parents[1] / "docs"
SESSION = re.compile(r"^```[a-z]*\n\$ headway (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
SESSIONS = [
    pytest.param(*match.groups(), id=f"{path.name}: {match[1]}")
    for path in [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    for match in SESSION.finditer(path.read_text())
]


@pytest.mark.parametrize(("command", "output"), SESSIONS)
def test_a_command_prints_what_the_documentation_shows(
    command: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(shlex.split(command))
    printed = capsys.readouterr()
    assert printed.out + printed.err == output


def test_the_documentation_shows_commands() -> None:
    assert len(SESSIONS) >= 2


def test_the_speed_tables_are_those_of_the_saved_results() -> None:
    page = report.PAGE.read_text()
    assert report.TABLE.search(page)
    assert report.filled(page) == page


def test_the_speed_in_the_readme_is_the_measured_one() -> None:
    text = (DOCS.parent / "README.md").read_text()
    said = {
        ("train-step-small-cpu", "target_tokens_per_s", "headway eager", "nn.Transformer eager"),
        ("encode-bert-base-cpu", "tokens_per_s", "headway", "HF unsorted"),
    }
    for name, unit, ours, theirs in said:
        systems = json.loads((report.RESULTS / f"{name}.json").read_text())["systems"]
        assert f"{systems[ours][unit] / systems[theirs][unit]:.1f}× as fast" in text


def test_every_proof_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "proofs.md").read_text()))
    sources = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert named
    assert not {name for name in named if f"def {name}(" not in sources}


def test_every_setting_is_documented() -> None:
    text = (DOCS / "settings.md").read_text()
    for kind in FAMILY_SETTINGS.values():
        for field in fields(kind):
            assert f"`{field.name}`" in text or f"`{field.name}.*`" in text, field.name
