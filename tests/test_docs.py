"""The documentation is true: commands print what it shows, and no setting is missing."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from benchmarks import report
from headway.cli.main import main
from headway.config.data import DataSettings, TokenizerSettings
from headway.config.decode import DecodeSettings
from headway.config.hints import setting_types
from headway.config.model import FAMILY_SETTINGS, Seq2SeqSettings
from headway.config.tasks import SECTIONS, DistilSettings, LoraSettings, StartSettings
from headway.config.toml import toml_value
from headway.config.train import TrainSettings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
SESSION = re.compile(
    r"^```[a-z]*\n\$ (?:echo (.*) \| )?headway (.*)\n((?:.*\n)*?)```$", re.MULTILINE
)
SESSIONS = [
    pytest.param(*match.groups(default=""), id=f"{path.name}: {match[2]}")
    for path in PAGES
    for match in SESSION.finditer(path.read_text())
]
SPEED = re.compile(r"[\d,]+ a second")
NUMBER = re.compile(r"-?\d+\.\d+")


@pytest.mark.parametrize(("text", "command", "output"), SESSIONS)
def test_a_command_prints_what_the_documentation_shows(
    text: str, command: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    lines = "".join(word + "\n" for word in shlex.split(text))
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(lines.encode())))
    printed = StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        main(shlex.split(command))
    assert_alike(printed.getvalue(), output)


def assert_alike(printed: str, shown: str) -> None:
    """Equal, but for speeds, and for what another processor may do to the last digits."""
    texts, numbers = [], []
    for text in (printed, shown):
        text = SPEED.sub("… a second", text)
        texts.append(NUMBER.sub("…", text))
        numbers.append([float(number) for number in NUMBER.findall(text)])
    assert texts[0] == texts[1], printed
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-3)


def test_the_documentation_shows_commands() -> None:
    assert len(SESSIONS) >= 8


def test_every_page_is_in_the_navigation_and_on_the_first_page() -> None:
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
    first = (DOCS / "index.md").read_text()
    assert [page for page in named if f"]({page})" not in first] == ["index.md"]


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            if "://" in path:
                continue
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_speed_tables_are_those_of_the_saved_results() -> None:
    page = report.PAGE.read_text()
    assert report.TABLE.search(page)
    assert report.filled(page) == page


def test_the_speed_in_the_readme_is_the_measured_one() -> None:
    text = (ROOT / "README.md").read_text()
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


def test_every_setting_of_a_model_is_documented() -> None:
    text = (DOCS / "settings.md").read_text()
    for kind in FAMILY_SETTINGS.values():
        for field in fields(kind):
            assert f"`{field.name}`" in text or f"`{field.name}.*`" in text, field.name


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("`[model]`: what every family has", Seq2SeqSettings),
        ("`[data]`", DataSettings),
        ("`[tokenizer]`", TokenizerSettings),
        ("`[train]`", TrainSettings),
        ("`[decode]`", DecodeSettings),
        ("`[start]`", StartSettings),
        ("`[lora]`", LoraSettings),
        ("`[distil]`", DistilSettings),
        *((f"`[{name}]`", kind) for name, kind in SECTIONS.items()),
    ],
)
def test_settings_are_documented_with_their_defaults_and_choices(title: str, kind: type) -> None:
    rows = {name: (default, text) for name, default, text in documented(title)}
    names = [field.name for field in fields(kind)]
    assert list(rows) == [name for name in names if name in rows]
    if kind is not Seq2SeqSettings:  # some of its settings are those of one family, or groups
        assert list(rows) == names
    hints = setting_types(kind)
    for name, (default, text) in rows.items():
        real = getattr(kind(), name)
        if isinstance(real, float):
            assert float(default) == real, name
        else:
            assert default == toml_value(real).strip('"'), name
        missing = [word for word in choices(hints[name]) if f"`{word}`" not in text]
        assert not missing, f"{name}: {missing}"


def documented(title: str) -> Iterator[tuple[str, str, str]]:
    """Each setting in the table under a title, with its default and its whole row.

    A row may hold several, with their defaults in the same order, or one that they share.
    """
    page = (DOCS / "settings.md").read_text()
    part = re.split(rf"\n###? {re.escape(title)}\n", page, maxsplit=1)[1]
    part = re.split(r"\n###? ", part, maxsplit=1)[0]
    for row in re.findall(r"^\| `.*$", part, re.MULTILINE):
        _, first, second, *_ = row.split("|")
        names = re.findall(r"`(\w+)`", first)
        defaults = re.sub('[`"]', "", second).strip().split(", ")
        for number, name in enumerate(names):
            yield name, defaults[min(number, len(defaults) - 1)], row


def choices(hint: Any) -> tuple[str, ...]:
    return get_args(hint) if get_origin(hint) is Literal else ()
