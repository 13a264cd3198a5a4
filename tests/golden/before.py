"""The package as it was before the house is rebuilt, importable as `headway_before`.

    python -m tests.golden.before

takes it out of git into an ignored folder, under its new name, so that one process can ask the old
and the new code the same question. It goes away when the rebuilding is done.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
COMMIT = "06b66eb936a7843711f4be4fa811e38163d3fbef"
"""The tag `before-house`, which a clone need not have."""

NAME = "headway_before"
FOLDER = ROOT / ".cache" / "before" / COMMIT[:12]

IMPORT = re.compile(r"^(\s*(?:from|import)) headway(?=[.\s])", re.MULTILINE)
NAMED = re.compile(r"""(["'])headway(?=\.[a-z]|::)""")
"""Modules and torch's operators that are named by strings."""


class Unavailable(Exception):
    """Why the old package cannot be had here."""


def renamed(code: str) -> str:
    return NAMED.sub(rf"\1{NAME}", IMPORT.sub(rf"\1 {NAME}", code))


def make() -> Path:
    """The folder that holds the package, made if it is not there yet."""
    if FOLDER.is_dir():
        return FOLDER
    unfinished = FOLDER.with_name(f"{FOLDER.name}.{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(_archive())) as files:
            for member in files.getmembers():
                _write(member, files, unfinished)
        try:
            unfinished.rename(FOLDER)
        except OSError:  # another process was quicker
            if not FOLDER.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return FOLDER


def _archive() -> bytes:
    words = ["git", "archive", COMMIT, "src/headway", "web"]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    except OSError as error:
        raise Unavailable(f"git cannot be run ({error})") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise Unavailable(
            f"git does not know the commit {COMMIT[:12]} here ({' '.join(said)}). "
            "A full clone has it: git fetch --unshallow"
        ) from error
    return done.stdout


def _write(member: tarfile.TarInfo, files: tarfile.TarFile, folder: Path) -> None:
    """`web` becomes a part of the package, as in a wheel."""
    if not member.isfile():
        return
    name = member.name.removeprefix("src/headway/")
    content = files.extractfile(member)
    assert content is not None
    path = folder / NAME / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.read()
    if path.suffix == ".py":
        data = renamed(data.decode()).encode()
    path.write_bytes(data)


def before(module: str) -> ModuleType:
    """A module of the old package: `before("config.run")`."""
    folder = str(make())
    if folder not in sys.path:
        sys.path.append(folder)
    return import_module(f"{NAME}.{module}")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{make() / NAME}\n")
    except Unavailable as error:
        sys.exit(f"headway_before: {error}")
