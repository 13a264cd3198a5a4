"""`make` on a fresh machine: which Python it takes, the error when there is none, exit codes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.facts import missing

ROOT = Path(__file__).parents[1]
NAMES = ("python3.11", "python3.12", "python3.13", "python3.14", "python3")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def make(folder: Path, *words: str, **pythons: tuple[int, int]) -> subprocess.CompletedProcess[str]:
    """In a folder with our Makefile and nothing else, where only these run: `python3_12=(3, 12)`.
    The other names are on the path and lead nowhere, as a version manager's may."""
    shutil.copy(ROOT / "Makefile", folder)
    place = folder / "path"
    place.mkdir()
    for name in NAMES:
        version = pythons.get(name.replace(".", "_"))
        said = f'exec {sys.executable} -c "import sys; sys.version_info = {version}; $2"'
        (place / name).write_text(f"#!/bin/sh\n{said if version else 'exit 127'}\n")
        (place / name).chmod(0o755)
    environment = {
        k: v for k, v in os.environ.items() if k != "PYTHON" and not k.startswith("MAKE")
    }
    return subprocess.run(
        ["make", "--no-print-directory", *words], cwd=folder, capture_output=True, text=True,
        env={**environment, "PATH": f"{place}:{os.environ['PATH']}"}, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3": (3, 13), "python3_12": (3, 12), "python3_11": (3, 11)}, "python3.12"),
        ({"python3": (3, 14), "python3_11": (3, 11)}, "python3.11"),
        ({"python3": (3, 14)}, "python3"),
        ({"python3": (3, 10), "python3_13": (3, 13)}, "python3.13"),
        ({"python3_14": (3, 14)}, "python3.14"),
        ({"python3": (3, 10)}, ""),
    ],
)
def test_tested_pythons_come_first_and_newer_ones_are_taken(
    tmp_path: Path, pythons: dict[str, tuple[int, int]], taken: str
) -> None:
    done = make(tmp_path, "--eval", "taken: ; @echo $(PYTHON)", "taken", **pythons)
    assert (done.stdout.strip(), done.returncode) == (taken, 0), done.stderr


def test_the_error_without_a_python_names_those_that_were_tried(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    done = make(tmp_path, "setup", python3=(3, 10))
    assert done.returncode == 2
    assert not missing(done.stderr, "3.11 python3.12 python3.11")
    assert not (tmp_path / ".venv").exists()


def test_the_package_has_no_newest_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"


@pytest.mark.parametrize(("types", "tests"), [(0, 0), (1, 0), (0, 1)])
def test_make_test_fails_when_a_part_of_it_does(tmp_path: Path, types: int, tests: int) -> None:
    """With a stand-in for Python that prints its arguments."""
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\n[ $1 = -m ] && shift; echo asked: $1\n"
        f"[ $1 != mypy ] || exit {types}\n[ $1 != pytest ] || exit {tests}\n"
    )
    python.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", ".venv/installed"):
        (tmp_path / name).touch()
    done = make(tmp_path, "test", "CHROMIUM=true")
    assert (done.returncode == 0) == (types == tests == 0)
    asked = [line for line in done.stdout.splitlines() if line.startswith("asked")]
    tools = ("ruff", "ruff", "docs/wording.py", "pytest", "mypy")
    assert asked == [f"asked: {tool}" for tool in tools]


@pytest.mark.parametrize(
    ("npm", "prettier", "tsc", "passes"),
    [("absent", 0, 0, True), ("false", 0, 0, True), ("true", 0, 0, True), ("true", 1, 0, False),
     ("true", 0, 1, False)],
)  # fmt: skip
def test_make_lint_checks_javascript_where_npm_can_install(
    tmp_path: Path, npm: str, prettier: int, tsc: int, passes: bool
) -> None:
    """With stand-ins for Python and the tools; `npm` does nothing and succeeds, or fails."""
    codes = {".venv/bin/python": 0, "node_modules/.bin/prettier": prettier,
             "node_modules/.bin/tsc": tsc}  # fmt: skip
    for name, code in codes.items():
        tool = tmp_path / name
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(f"#!/bin/sh\necho asked: {tool.name}\nexit {code}\n")
        tool.chmod(0o755)
    files = ("pyproject.toml", "constraints.txt", ".venv/installed", "package.json")
    for name in (*files, "package-lock.json"):
        (tmp_path / name).touch()
    done = make(tmp_path, "lint", f"NPM={npm}")
    assert (done.returncode == 0) == passes
    asked = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("asked")]
    tools = [] if npm != "true" else ["prettier", "tsc"][: 1 if prettier else 2]
    assert asked == ["python"] * 3 + tools
    assert ("make web" in done.stderr) == (npm != "true")


@pytest.mark.parametrize(
    ("flags", "taken"),
    [
        ("fpu avx avx2 avx512f avx512vl", "default avx2 avx512"),
        ("fpu avx avx2 bmi2", "default avx2"),
        ("fpu avx", "default"),
        (None, "default"),
    ],
)
def test_other_processors_are_those_that_this_one_has(
    tmp_path: Path, flags: str | None, taken: str
) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\nbugs : none\n")
    done = make(
        tmp_path, "CPUINFO=cpuinfo", "--eval", "taken: ; @echo $(PROCESSORS)", "taken",
        python3=(3, 12),
    )  # fmt: skip
    assert (done.stdout.strip(), done.returncode) == (taken, 0), done.stderr
