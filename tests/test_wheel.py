"""What is installed has everything: without the checkout beside it, headway answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import headway
from headway.settings.folder import shipped_names

ROOT = Path(__file__).parents[1]
CODE = """
import json
from pathlib import Path
import headway
run = headway.load("tatoeba-de-en")
run.look("Guten Morgen.").save("look.html")
print(json.dumps({
    "place": headway.__file__, "models": headway.available(), "answer": run("Guten Morgen.").text,
    "panels": Path("look.html").read_text().count("<script data-panel="),
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip makes of the source distribution: a wheel that is built of it and nothing else, with
    the packages that are here already."""
    folder = tmp_path_factory.mktemp("dist")
    (archive,) = SdistBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    place = folder / "site"
    words = ["install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    run(folder, "-m", "pip", *words, "--target", str(place), archive)
    return place


def run(folder: Path, *words: str, site: Path | None = None) -> str:
    home = {} if site is None else {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=folder, timeout=600,
        env={**os.environ, **home},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_pip_installs_has_the_models_the_page_and_answers(
    installed: Path, tmp_path: Path
) -> None:
    found = json.loads(run(tmp_path, "-c", CODE, site=installed))
    assert found["place"].startswith(str(installed))
    assert found["models"] == sorted(shipped_names())
    assert found["panels"] > 5
    assert found["answer"] == "Good morning."
    assert (installed / "headway" / "settings" / "defaults.toml").is_file()


def test_the_installed_command_prints_its_version(installed: Path, tmp_path: Path) -> None:
    found = run(tmp_path, str(installed / "bin" / "headway"), "--version", site=installed)
    assert headway.__version__ in found


@pytest.mark.slow
def test_the_wheel_of_the_checkout_is_that_of_the_source_distribution(
    installed: Path, tmp_path: Path
) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    run(tmp_path, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target",
        str(tmp_path / "site"), wheel)  # fmt: skip
    assert names(tmp_path / "site") == names(installed)


def names(site: Path) -> set[str]:
    found = (path for path in (site / "headway").rglob("*") if path.is_file())
    return {str(path.relative_to(site)) for path in found if path.suffix != ".pyc"}


@pytest.mark.slow
def test_the_source_distribution_has_all_that_the_repository_has(tmp_path: Path) -> None:
    (archive,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(archive) as file:
        there = {name.split("/", 1)[1] for name in file.getnames() if "/" in name}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    wanted = [name for name in tracked.stdout.splitlines() if not name.startswith(".ci/")]
    assert [name for name in wanted if name not in there] == []
