"""Temporary folders do not stay: not after a signal, nor for long after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.storage import work_folder
from headway.training.run import Training

HOLD = """
import time
from headway.storage import work_folder
with work_folder() as folder:
    (folder / "file").write_text("text")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, which holds nothing of others."""
    folder = tmp_path / "system"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@contextmanager
def holding() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that works in a folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_folder_goes_with_its_process(system: Path) -> None:
    with holding() as (process, folder):
        assert (folder / "file").is_file()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
        assert [*system.iterdir()] == []


def test_folders_of_killed_processes_are_removed_by_the_next() -> None:
    with holding() as (alive, used), holding() as (killed, left):
        killed.kill()
        killed.wait(10)
        assert left.is_dir()
        with work_folder() as folder:
            assert folder.is_dir()
            assert not left.exists()
            assert (used / "file").is_file()
        assert not folder.exists()
        assert alive.poll() is None


def test_a_training_has_all_its_files_in_the_run_folder(
    tmp_path: Path, system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.tsv").write_text("text\tlabel\na\t0\nb\t1\n")
    seen: list[list[Path]] = []
    monkeypatch.setattr(Training, "train", lambda self: seen.append([*system.iterdir()]) or [])
    words = ["train", "classify", str(tmp_path / "t.tsv"), "--out", str(tmp_path / "run")]
    assert main(words) == 0
    assert seen == [[]]
