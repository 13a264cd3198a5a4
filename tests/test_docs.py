"""The documentation is true: commands print what it shows, and no setting is missing."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

import headway
from benchmarks import report
from headway.cli.main import app, main
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.model import FAMILY_SETTINGS, Seq2SeqSettings
from headway.settings.run import OF_TASKS
from headway.settings.start import DistilSettings, LoraSettings, StartSettings
from headway.settings.toml import toml_value
from headway.settings.train import TrainSettings
from headway.settings.value_types import setting_types

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
WAITED = re.compile(r"^\S.*  (?:\? left|\d.* (?:left|so far))\n", re.MULTILINE)
"""What a slow machine says besides."""


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
    assert_alike(WAITED.sub("", printed.getvalue()), output)


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


def test_the_documentation_is_built_without_a_broken_link(tmp_path: Path) -> None:
    """As `make docs` does it, elsewhere."""
    pytest.importorskip("zensical", reason="make setup installs it")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    words = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "tasks" / "translate" / "index.html").is_file()


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


OURS, EAGER, COMPILED = "headway", "headway eager", "headway compiled + CUDA graph"
SPEEDS = [
    (
        "train-step-small-cpu",
        EAGER,
        ["nn.Transformer eager"],
        "as fast as with `nn.Transformer` and",
    ),
    (
        "train-step-small-cpu",
        EAGER,
        ["nn.Transformer eager", "HF Marian eager", "OpenNMT-py eager", "eole eager"],
        "as fast as with the quickest of four peers",
    ),
    (
        "encode-bert-base-cpu",
        OURS,
        ["HF sorted"],
        "as fast as Hugging Face's does in batches sorted by length",
    ),
    ("gpt2-train-cuda", COMPILED, ["HF GPT-2 compiled"], "as fast as Hugging Face's and"),
    ("gpt2-train-cuda", COMPILED, ["plain code compiled"], "as fast as plain code, ViT-B/16"),
    (
        "vit-speed-cuda",
        OURS,
        ["HF default", "HF default, channels last", "HF reduce-overhead"],
        "as fast as Hugging Face's; eager",
    ),
    ("train-step-base-cuda", EAGER, ["nn.Transformer eager"], "as fast as `nn.Transformer`, and"),
    ("encode-bert-base-cuda", OURS, ["HF sorted"], "the speed of Hugging Face's in sorted batches"),
    ("gpt2-decode-cuda", OURS, ["HF generate"], "as fast as `generate` does as it comes"),
]
"""Each figure of the README: the result, ours, the others that the best is taken of, its words."""


def test_every_speed_in_the_readme_is_the_measured_one() -> None:
    [bullet] = re.findall(
        r"^- \*\*Fast\*\*.*?(?=^- )", (ROOT / "README.md").read_text(), re.M | re.S
    )
    said = " ".join(bullet.split())
    for name, ours, theirs, words in SPEEDS:
        rates = measured(name)
        figure = f"{rates[ours] / max(rates[peer] for peer in theirs):.1f}×"
        assert f"{figure} {words}" in said
    assert len(re.findall(r"\d×", said)) == len(SPEEDS), "a figure that nothing checks"


def test_like_stands_beside_like_in_the_readme() -> None:
    for name, ours, theirs, _ in SPEEDS:
        assert all(way(peer) == way(ours) for peer in theirs), name
        alike = {peer: rate for peer, rate in measured(name).items() if way(peer) == way(ours)}
        others = {peer: rate for peer, rate in alike.items() if not peer.startswith("headway")}
        named = {peer for said in SPEEDS if said[0] == name for peer in said[2]}
        assert max(others, key=lambda peer: others[peer]) in named, f"{name}: not the quickest"


def way(system: str) -> str | None:
    return next((way for way in ("eager", "compiled") if way in system), None)


def measured(name: str) -> dict[str, float]:
    """What each system did in a second, in training, or in the first of several cases."""
    result = json.loads((report.RESULTS / f"{name}.json").read_text())
    rows = result.get("training", result).get("systems") or next(iter(result["cases"].values()))
    units = ("target_tokens_per_s", "tokens_per_s", "pictures_per_s")
    return {
        system: next(row[unit] for unit in units if unit in row) for system, row in rows.items()
    }


def test_what_is_said_first_names_no_command_that_is_missing() -> None:
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    firsts = {
        "README.md": (ROOT / "README.md").read_text().split("```")[0],
        "index.md": (DOCS / "index.md").read_text().split("\n- ")[0],
        "mkdocs.yml": (ROOT / "mkdocs.yml").read_text().split("docs_dir")[0],
        "pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
            "description"
        ],
        "headway": headway.__doc__,
        "headway --help": app.info.help,
    }
    for place, text in firsts.items():
        assert "serve" not in text or "serve" in commands, place
        assert "small" not in text, place


def test_every_proof_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "results" / "proofs.md").read_text()))
    sources = "".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert named
    assert not {name for name in named if f"def {name}(" not in sources}


def test_every_setting_of_a_model_is_documented() -> None:
    text = (DOCS / "reference" / "index.md").read_text()
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
        *((f"`[{name}]`", kind) for name, kind in OF_TASKS.items()),
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
    page = (DOCS / "reference" / "index.md").read_text()
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
