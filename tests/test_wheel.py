"""What is installed has everything: the wheel makes a page without the checkout beside it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
import headway
from headway.inside.page.look import Page
from headway.web.html import FOLDER
assert headway.__file__.startswith(sys.argv[1]), headway.__file__
assert str(FOLDER).startswith(sys.argv[1]), FOLDER
panels = sorted(path.stem for path in FOLDER.glob("panels/*.js"))
sections = {name: {} for name in panels}
look = {"label": "one", "streams": {}, "sections": sections}
html = Page("from the wheel", [look], {}, {}).html
print(html.count("<script data-panel="), "from the wheel" in html)
"""

WEB = ROOT / "src" / "headway" / "web"


def test_the_wheel_makes_a_page(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    installed = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(installed)
    command = [sys.executable, "-I", "-c", CODE, str(installed)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    panels = len(list((WEB / "panels").glob("*.js")))
    assert done.stdout == f"{panels} True\n", done.stderr


@pytest.mark.slow
def test_the_source_distribution_has_the_sources_of_the_page(tmp_path: Path) -> None:
    (archive,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(archive) as file:
        names = {name.split("/", 1)[1] for name in file.getnames() if "/" in name}
    wanted = {str(path.relative_to(ROOT)) for path in WEB.rglob("*.*")}
    assert wanted <= names
