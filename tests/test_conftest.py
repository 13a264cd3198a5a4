"""Where an optional package is missing, files that import it are skipped and the others run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
import pytest

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] == "soundfile"
        return None if hidden else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
sys.exit(pytest.main(["-p", "tests.conftest", "--import-mode=importlib", *sys.argv[1:]]))
"""


@pytest.mark.parametrize(("package", "code"), [("soundfile", 0), ("no_such_package", 2)])
def test_only_missing_optional_packages_skip_a_file(
    tmp_path: Path, package: str, code: int
) -> None:
    (tmp_path / "test_one.py").write_text(f"import {package}\n\ndef test_a() -> None: ...\n")
    (tmp_path / "test_two.py").write_text("def test_b() -> None: ...\n")
    words = ["-rs", "--rootdir", str(tmp_path), "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True,
        cwd=Path(__file__).parents[1], check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout
    assert ("1 passed, 1 skipped" in done.stdout) == (code == 0)
