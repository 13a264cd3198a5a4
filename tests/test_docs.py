"""The documentation is true: commands print what it shows, and no setting is missing."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest

import headway
from benchmarks import bodies_tables, report
from headway.cli.main import app, main
from headway.settings.field_docs import documented
from headway.settings.model import FAMILY_SETTINGS
from headway.settings.run import SETTINGS
from headway.settings.toml import toml_value

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BESIDE = ["CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "examples/README.md"]
SESSION = re.compile(
    r"^```[a-z]*\n\$ (?:echo (.*) \| )?headway (.*)\n((?:.*\n)*?)```$", re.MULTILINE
)
SESSIONS = [
    pytest.param(*match.groups(default=""), id=f"{path.name}: {match[2]}")
    for path in PAGES
    for match in SESSION.finditer(path.read_text())
]
SPEED = re.compile(r"[\d,.]+ \w+ second\b")
NUMBER = re.compile(r"-?\d+\.\d+")
WAITED = re.compile(r"^\S.*  (?:\?|\d+[dhms])(?: \d+[dhms])*(?: [a-z]+)*\n", re.MULTILINE)
"""Lines of progress, which only a slow machine prints: they end with a time."""


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
        text = SPEED.sub("…", text)
        texts.append(NUMBER.sub("…", text))
        numbers.append([float(number) for number in NUMBER.findall(text)])
    assert texts[0] == texts[1], printed
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-3)


def test_the_documentation_shows_commands() -> None:
    assert len(SESSIONS) >= 8


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_documentation_is_built_without_a_broken_link(tmp_path: Path) -> None:
    """As `make docs` does it, elsewhere."""
    pytest.importorskip("zensical", reason="make setup installs it")
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    words = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for built in ("tasks/translate/index.html", "look/examples/translation.html"):
        assert (tmp_path / "site" / built).is_file()


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*PAGES, *(ROOT / name for name in BESIDE)]:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            if "://" in path:
                continue
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_the_tables_of_results_are_those_of_the_saved_results() -> None:
    for path in report.PAGES:
        page = path.read_text()
        assert report.TABLE.search(page)
        assert report.filled(page) == page, "run `python -m benchmarks.report`"


def test_the_tables_of_bodies_are_those_of_the_saved_results() -> None:
    assert any(bodies_tables.TABLE.search(page.read_text()) for page in bodies_tables.PAGES)
    for page in bodies_tables.PAGES:
        assert bodies_tables.filled(page.read_text()) == page.read_text()


OURS, EAGER, COMPILED = "headway", "headway eager", "headway compiled + CUDA graph"
GREEDY = "greedy, batch {}, bf16"
SPEEDS = (
    ("encode-bert-base-cpu", "", OURS, False),
    ("train-step-graphs-cuda", "", COMPILED, False),
    ("gpt2-decode-cuda", GREEDY.format(64), OURS, True),
    ("encode-bert-base-cuda", "", OURS, True),
)
"""Each row of speeds in the README: result file, case in it, our system, and whether it is compared
with all peers, not only with those that run as ours does (eager or compiled)."""


def test_every_speed_in_the_readme_is_the_measured_ratio_to_the_fastest_peer() -> None:
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (.*) \| (.*) \| (.*) \| (.*)× \| `(python -m .*)` \|$", text, re.M)
    page = report.PAGES[0].read_text()
    assert len(rows) == len(SPEEDS) == len(re.findall(r"\d×", text)), "a figure without a check"
    for (_, where, _, figure, command), (name, case, ours, every) in zip(rows, SPEEDS, strict=True):
        rates = measured(name, case)
        peers = [
            rate for peer, rate in rates.items()
            if not peer.startswith("headway") and (every or way(peer) == way(ours))
        ]  # fmt: skip
        assert figure == f"{rates[ours] / max(peers):.1f}"
        assert way(ours) in (None, where.split(", ")[1])
        assert ("H200" in where) == name.endswith("cuda")
        assert command in page, "the command is not explained"


def way(system: str) -> str | None:
    return next((way for way in ("eager", "compiled") if way in system), None)


def measured(name: str, case: str = "") -> dict[str, float]:
    """Speed of each system: in training, or in one of several cases."""
    result = json.loads((report.RESULTS / f"{name}.json").read_text())
    rows = result["cases"][case] if case else result.get("training", result)["systems"]
    units = ("target_tokens_per_s", "tokens_per_s", "images_per_s")
    return {
        system: next(row[unit] for unit in units if unit in row) for system, row in rows.items()
    }


def test_introductions_name_no_missing_command() -> None:
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


def test_the_reference_matches_the_declarations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else run `python docs/reference.py`."""
    monkeypatch.syspath_prepend(DOCS)
    reference = importlib.import_module("reference")
    for name, page in reference.PAGES.items():
        found = (DOCS / "reference" / name).read_text()
        assert found == page().rstrip() + "\n", "run `python docs/reference.py`"


def test_every_setting_has_a_description() -> None:
    for kind in (*SETTINGS.values(), *FAMILY_SETTINGS.values()):
        missing = [one.name for one in fields(kind) if one.name not in documented(kind)]
        assert not missing, kind.__name__


def test_a_page_that_explains_a_command_has_the_lines_of_python() -> None:
    explained = [page for name in ("start", "tasks", "look", "weights", "models")
                 for page in (DOCS / name).glob("*.md")]  # fmt: skip
    asked = [
        page for page in explained if re.search(r"^```sh\n(.*\n)*?headway ", page.read_text(), re.M)
    ]
    assert [page.name for page in asked if "```py" not in page.read_text()] == []


def test_python_names_on_pages_exist() -> None:
    """Those that need files of their own are not run: so much is checked."""
    for page in PAGES:
        for program in re.findall(r"^```py\n(.*?)^```", page.read_text(), re.M | re.S):
            tree = ast.parse(program, page.name)
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headway"):
                    module = importlib.import_module(node.module or "")
                    assert all(hasattr(module, one.name) for one in node.names), page.name
                elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    called = node.value.id == "headway" and "import headway." not in program
                    assert not called or hasattr(headway, node.attr), f"{page.name}: {node.attr}"


FILE = re.compile(r"`((?:[a-z_0-9]+/)+|(?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`")
"""A folder, or a file of Python."""

PLACE = re.compile(r"\n(?:\n|- |\| )")
"""What lies between paragraphs, entries of lists and rows of tables."""


def missing(text: str, files: set[str]) -> list[str]:
    """Files that are named and do not exist: in this project, in the package, or in a folder that
    was named before in the same place, by itself or by another file of it."""
    wrong = []
    for place in PLACE.split(text):
        folders = ["", "src/headway/"]
        for name in FILE.findall(place):
            if name.endswith("/"):
                folders += [name, f"src/headway/{name}"]
                continue
            found = [folder + name for folder in folders if folder + name in files]
            wrong += [name] if not found else []
            folders += [one.rpartition("/")[0] + "/" for one in found if "/" in name]
    return wrong


def test_a_bare_name_of_a_file_is_looked_for_in_the_folders_named_before() -> None:
    files = {"src/headway/a/one.py", "src/headway/a/two.py", "src/headway/b/three.py", "top.py"}
    assert not missing("`a/one.py` and `two.py`; `b/`: `three.py`; `top.py`", files)
    assert missing("`two.py`, `a/`, `three.py`", files) == ["two.py", "three.py"]
    assert missing("- `a/one.py`\n- `two.py`\n\n`a/one.py`\n\n`two.py`", files) == ["two.py"] * 2


def test_every_file_that_is_named_exists() -> None:
    folders = ("src", "tests", "examples", "benchmarks", "docs")
    files = {
        str(path.relative_to(ROOT)) for name in folders for path in (ROOT / name).rglob("*.py")
    }
    nowhere = {"utils.py", "common.py", "helpers.py"}  # what we have none of
    for page in [*PAGES, *(ROOT / name for name in BESIDE if name != "CHANGELOG.md")]:
        wrong = set(missing(page.read_text(), files)) - nowhere
        assert not wrong, f"{page.name}: {sorted(wrong)}"


def test_defaults_that_pages_of_tasks_show_are_those_of_the_settings() -> None:
    shown = [
        (page.name, *row)
        for page in (DOCS / "tasks").glob("*.md")
        for row in re.findall(
            r"^\| `(\w+)\.(\w+)` \| ([\d.]+|true|false|all) \| [^|]* \|$", page.read_text(), re.M
        )
    ]
    assert len(shown) >= 10
    for name, section, setting, found in shown:
        usual = toml_value(getattr(SETTINGS[section](), setting)).strip('"')
        assert found in (usual, usual.removesuffix(".0")), f"{name}: {section}.{setting}"


def test_every_module_and_name_that_is_named_exists() -> None:
    for page in [*PAGES, *(ROOT / name for name in BESIDE if name != "CHANGELOG.md")]:
        for name in re.findall(r"`(headway(?:\.\w+)+)", page.read_text()):
            assert resolves(name), f"{page.name}: {name}"


def resolves(name: str) -> bool:
    """Whether it is a module, or something in one."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        return all(hasattr(found, one) and (found := getattr(found, one)) for one in parts[size:])
    return False
