"""Run folder, which is locked for one process, and checked for other settings and foreign files."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from headway.data.fingerprint import FIELDS, MEDIA_FIELDS, inputs_match
from headway.data.manifest import MANIFEST
from headway.errors import ConfigError, FolderError, Option, UserError
from headway.settings.data import FILES, GIVEN, DataSettings, file_name
from headway.settings.folder import CHAT_TEMPLATE, CONFIG, TOKENIZER, WEIGHTS, check_config
from headway.settings.overrides import Overrides
from headway.settings.run import FILE_KEYS, Resolved, RunSettings, differences, load_resolved
from headway.settings.toml import parse, read_text
from headway.specs.metrics import custom_metrics_of
from headway.tasks.history import LOG
from headway.training.budget import PLAN

ANY = re.compile("")
OWN = {
    **dict.fromkeys(
        (
            CONFIG,
            WEIGHTS,
            TOKENIZER,
            CHAT_TEMPLATE,
            LOG,
            PLAN,
            "card.json",
            "report.html",
            "bad-batch.json",
        ),
        ANY,
    ),
    "checkpoints": re.compile(r"\.?step-\d+"),
    "data": re.compile(
        r"(manifest|report|tokenizer|seen)\.json|(valid|problems)\.jsonl|(train|valid|items)\."
    ),
    "given": re.compile(r"(rows|valid)(\.jsonl)?$"),
    "given.tmp": ANY,
    "data.tmp": ANY,
    "data.work": ANY,
    "input.tmp": ANY,
    "tensorboard": re.compile(r"events\."),
}
"""Names of the files in a run folder, which `--restart` removes. Subfolders are mapped to a pattern
of the names inside. Temporary files, whose names begin with a dot, exist only while a run is
active."""


def _reads_from(data: DataSettings, folder: Path) -> bool:
    """Return whether data files are inside this folder, as those of data passed in memory are."""
    files = (path for name in FILES for path in getattr(data, name))
    return any(Path(path).is_relative_to(folder) for path in files)


def _moved(asked: Mapping[str, object]) -> dict[str, object]:
    """Return the settings with paths of in-memory data that do not depend on the run folder.
    Settings can then be compared even if the run was moved."""
    return {
        key: [_in_run(one) for one in value] if isinstance(value, list) else value
        for key, value in asked.items()
    }


def _in_run(value: object) -> object:
    parts = Path(value).parts[-2:] if isinstance(value, str) else ()
    ours = len(parts) == 2 and parts[0] == "given" and OWN["given"].match(parts[1])
    return "/".join(parts) if ours else value


class RunFolder:
    """Run folder at `path`, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self._lock = -1
        """File descriptor of the locked folder, which stays valid if the folder is removed; −1 if
        it is not locked."""

        self._created: list[Path] = []
        """Folders created by this object, innermost first."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager that creates and locks the folder. If an error rejects the run, folders
        created here are removed."""
        try:
            self._take()
            yield
        except UserError:
            self._unmake()
            raise
        finally:
            self._leave()

    def exists(self) -> bool:
        """Return whether the locked folder still exists under its name."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._lock))
        except OSError:
            return False

    def recreate(self) -> None:
        """Create the folder again after it was removed. Raises an error if another folder now has
        its name."""
        if self.path.is_dir() and any(self.path.iterdir()):
            raise FolderError(f"{self.path} was removed, and another folder now has its name")
        self._leave()
        self._take()

    def _unmake(self) -> None:
        """Remove the folders created here, if they are empty or hold only copies of in-memory
        data."""
        if self._created and self.exists() and [one.name for one in self.path.iterdir()] == [GIVEN]:
            shutil.rmtree(self.path / GIVEN)
        with suppress(OSError):  # stops at the first that is not empty
            for folder in self._created:
                folder.rmdir()

    def _take(self) -> None:
        self._created = [one for one in (self.path, *self.path.parents) if not one.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path, os.O_RDONLY)
        except (FileExistsError, NotADirectoryError) as error:
            raise FolderError(
                f"{self._obstacle()}, but {Option('out')} must be a folder. Choose another "
                f"{Option('out')}."
            ) from error
        except OSError as error:
            raise FolderError(f"cannot use {self.path} as a run folder: {error}.") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise FolderError(f"{self.path} is not writable. Choose another {Option('out')}.")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderError(
                f"another process is training in {self.path}. Wait until it ends, or choose "
                "another folder."
            ) from error
        except OSError:  # a file system without locks
            pass

    def _obstacle(self) -> str:
        """Return a description of what prevents the folder, or a folder above it, from being
        created."""
        for path in (self.path, *self.path.parents):
            if path.is_file():
                return f"{path} is a file"
            if path.is_symlink() and not path.exists():
                return f"{path} is a link to {path.readlink()}, which does not exist"
            if path.exists() and not path.is_dir():  # a device, a pipe
                return f"{path} is not a folder"
        return f"{self.path} is not a folder"

    def _leave(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def check(self, settings: RunSettings, restart: bool) -> None:
        """Raise an error if the folder contains anything other than this run.

        `restart`: remove the old run first.
        """
        foreign = self._foreign()
        is_run = self.config.is_file() if not restart else self._names_a_task()
        if any("/" in name for name in foreign) or (foreign and not is_run):
            raise FolderError(
                f"{self.path} is not empty and not a run folder: it holds "
                f"{', '.join(foreign[:5])}. Choose another {Option('out')}."
            )
        if restart:
            for path in map(self.path.joinpath, OWN):
                if path.name == "given" and _reads_from(settings.data, path):
                    continue
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        elif is_run:
            self._check_same(settings)

    def _check_same(self, settings: RunSettings) -> None:
        """Raise an error if the settings differ from those of the stored run.

        Data files may be in different folders, because they may have been moved.
        """
        asked = settings.asked
        before = self.stored(settings.task).asked
        changed = differences(_moved(before), _moved(asked))
        files = tuple(f"data.{name}: " for name in (*FIELDS, *MEDIA_FIELDS))
        if all(one.startswith(files) for one in changed) and (
            not changed
            or self._was_prepared_from(settings.data)
            or self._differs_only_in_folders(before, asked)
        ):
            return
        own = [name for name in custom_metrics_of(before) if f"metrics.{name}" not in asked]
        given = ", ".join(f"{name!r}: …" for name in own)
        raise FolderError(
            f"{self.path} holds a run with other settings:\n  "
            + "\n  ".join(changed)
            + f"\nPass its custom metrics again: headway.train(…, metrics={{{given}}})" * bool(own)
            + "\nPass its custom model parts again: headway.train(…, parts=…)"
            * ("model.parts" in before and "model.parts" not in asked)
            + f"\nUse the same settings to resume, choose another {Option('out')}, or start "
            f"over with {Option('restart', True)}."
        )

    def _was_prepared_from(self, data: DataSettings) -> bool:
        try:
            made = json.loads(read_text(self.path / "data" / MANIFEST))
            return inputs_match(made["inputs"], data)
        except (KeyError, TypeError, ValueError, OSError, UserError):  # reported later
            return False

    def _differs_only_in_folders(self, before: Overrides, asked: Overrides) -> bool:
        """Return whether only the folders of the data files differ, and the prepared data is
        gone. In that case the data is prepared again, and its fingerprint shows whether it has
        changed."""
        is_gone = not (self.path / "data" / MANIFEST).exists()
        names = asked.with_names(FILE_KEYS, file_name)
        return is_gone and not differences(_moved(before), _moved(names))

    def stored(self, task: str) -> Resolved:
        """Load the settings of the stored run. Raises an error if that run has another task."""
        way_out = f"Choose another {Option('out')}, or start over with {Option('restart', True)}."
        try:
            found = parse(read_text(self.config), self.config).get("task", "none")
            if found != task:
                raise FolderError(f"{self.path} holds a run of the task {found}. {way_out}")
            check_config(self.config)
            return load_resolved(self.config)
        except ConfigError as error:
            raise FolderError(f"{error} {way_out}") from error

    def _names_a_task(self) -> bool:
        try:
            return "task" in parse(read_text(self.config), self.config)
        except ConfigError:
            return False

    def _foreign(self) -> list[str]:
        """Return the files that do not belong to a run, including those in its subfolders."""
        found = []
        for path in sorted(self.path.iterdir()):
            if path.name not in OWN:
                found += [path.name] if path.name[0] != "." else []
            elif path.is_dir():
                known = OWN[path.name]
                names = sorted(inside.name for inside in path.iterdir())
                found += [f"{path.name}/{name}" for name in names if not known.match(name)]
        return found
