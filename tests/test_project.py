"""The files that people expect beside the code agree with it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from trove_classifiers import classifiers

import headway
from tests.facts import missing

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "test.yml").read_text()


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version_and_licence() -> None:
    found = dict(re.findall(r"^(version|license): (.*)$", read("CITATION.cff"), re.MULTILINE))
    assert found == {"version": headway.__version__, "license": PROJECT["license"]}


def test_package_metadata_agrees_with_the_citation_and_the_tested_versions() -> None:
    assert [author["name"] for author in PROJECT["authors"]] == re.findall(
        r"^  - name: (.*)$", read("CITATION.cff"), re.MULTILINE
    )
    tested = re.findall(r'"(3\.\d+)"', WORKFLOW)
    python = "Programming Language :: Python :: "
    assert {f"{python}{version}" for version in tested} <= set(PROJECT["classifiers"])
    assert set(PROJECT["classifiers"]) <= classifiers
    assert set(re.findall(r"^  - ([a-z ]+)$", read("CITATION.cff"), re.MULTILINE)) <= set(
        PROJECT["keywords"]
    )


def test_continuous_integration_runs_what_people_run() -> None:
    assert "make test" in WORKFLOW
    assert "make test" in read(".ci/run")
    targets = re.findall(r"run: make ([\w-]+)", WORKFLOW)
    assert [name for name in targets if not re.search(rf"^{name}:", read("Makefile"), re.M)] == []


def test_versions_of_python_are_those_that_are_tested() -> None:
    tested = re.findall(r'"(3\.\d+)"', WORKFLOW)
    assert PROJECT["requires-python"] == f">={tested[0]}"
    table = read("docs/start/install.md")
    for place in (table, read("CONTRIBUTING.md")):
        assert [line for line in place.splitlines() if not missing(line, tested[0], tested[-1])]
    [torch] = [one for one in PROJECT["dependencies"] if one.startswith("torch")]
    least, most = re.findall(r"\d+\.\d+", torch)
    assert [line for line in table.splitlines() if not missing(line, least, most)]


def test_hooks_before_a_commit_are_those_of_make_check() -> None:
    hooks = re.findall(r"entry: \.venv/bin/python -m (.*)$", read(".pre-commit-config.yaml"), re.M)
    assert len(hooks) == 3
    for hook in hooks:
        assert f"$(PY) -m {hook.removesuffix(' --fix')}" in read("Makefile")


def test_every_extra_that_is_named_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]
    named = {
        name for page in pages for name in re.findall(r"headway\[([\w,]+)\]", page.read_text())
    }
    extras = set(PROJECT["optional-dependencies"])
    assert {one for name in named for one in name.split(",")} <= extras
