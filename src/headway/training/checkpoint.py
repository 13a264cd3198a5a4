"""Checkpoints of a run. Each is either complete or absent, and is verified before use.

A checkpoint is a folder `checkpoints/step-N/`. It is written under a temporary name that starts
with a dot, and then renamed. If the process is killed at any moment, the old checkpoints are
intact; the new one is complete or absent.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from headway.errors import FolderError
from headway.storage import sync
from headway.training.snapshot import (
    WEIGHTS,
    Snapshot,
    not_finite,
    read_manifest,
    read_snapshot,
    verify,
    write_snapshot,
)

__all__ = ["Checkpoints", "Snapshot"]

FOLDER = "checkpoints"
UNUSABLE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP)
"""Read errors that mean that a checkpoint is damaged. Other errors (no permission, an unreachable
network drive) may be temporary, and must not make a run resume from an older checkpoint."""


class Checkpoints:
    """Checkpoints in the folder of one run.

    Only one process may write; others pass `owner=False`. `failed` lists the steps that could not
    be saved; training continues without them. `before` is called before each save, and may prevent
    it by raising an error.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        log: Callable[[str], None],
        *,
        owner: bool = True,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder / FOLDER
        self.keep = keep
        self.log = log
        self.before = before
        self.failed: list[int] = []
        self.owner = owner
        if owner:
            self._tidy()
        self._best = self._best_on_disk()

    def save(self, snapshot: Snapshot, *, best: bool = False, passing: bool = False) -> Path | None:
        """Write a checkpoint, then remove all others except the newest `keep` and the best. Return
        its path, or None if writing failed.

        A `passing` checkpoint is temporary. It lets a stopped run resume from a step at which an
        uninterrupted run saves nothing. It is not counted or listed, and the next save removes it.
        If a regular checkpoint of this step exists, that one is used instead.

        If writing fails, the reason is logged in one line, and the other checkpoints are intact.
        """
        part, path = self._hidden(snapshot.step, "tmp"), self._path(snapshot.step)
        if passing and _is_regular(path) and _is_whole(path):
            return path
        best_step = snapshot.step if best else self._best
        try:
            bad = not_finite(snapshot.tensors)
            if bad:
                raise FloatingPointError(f"{bad} contains NaN or infinite values")
            self.before()
            self.folder.mkdir(parents=True, exist_ok=True)
            _remove(part)
            write_snapshot(part, snapshot, best=best_step, passing=passing)
            self._put(part, path)
        except (OSError, SafetensorError, FloatingPointError, FolderError) as error:
            _remove(part)
            self.failed.append(snapshot.step)
            self.log(
                f"warning: step {snapshot.step} was not saved: {error}. Training continues; "
                "earlier checkpoints are unchanged."
            )
            return None
        self._best = best_step
        self._prune(snapshot.step, snapshot.step)
        return path

    def newest(self) -> Snapshot | None:
        """Load the newest undamaged checkpoint, or return None if there is none. Each damaged
        checkpoint is reported in one line."""
        for path in reversed(self._all()):
            try:
                manifest = verify(path)
                snapshot = read_snapshot(path, manifest)
            except FolderError as error:
                self.log(f"warning: {error} Using the checkpoint before it.")
            except OSError as error:
                if error.errno in UNUSABLE:
                    self.log(
                        f"warning: {path} is damaged: {error}. Using the checkpoint before it."
                    )
                    continue
                raise FolderError(
                    f"cannot read {path}: {error}. Fix the problem, or move this checkpoint away "
                    "to resume from the previous one."
                ) from error
            else:
                self._best = manifest.best
                if self.owner:  # a killed process may not have got to it
                    self._prune(snapshot.step, _step(self._all()[-1]))
                return snapshot
        return None

    def paths(self) -> list[Path]:
        """Return the paths of the regular checkpoints, oldest first. They are not verified."""
        return [path for path in self._all() if _is_regular(path)]

    def newest_step(self) -> int:
        """Step of the newest checkpoint, which is not verified; 0 if there is none."""
        return max(map(_step, self._all()), default=0)

    def holds(self, step: int) -> bool:
        """Return whether the checkpoint of this step exists and is undamaged."""
        return _is_whole(self._path(step))

    def best_path(self) -> Path | None:
        """Return the path of the best checkpoint so far, which is verified. None if it is missing
        or damaged."""
        path = None if self._best is None else self._path(self._best)
        return path if path is not None and _is_whole(path) else None

    @staticmethod
    def weights(path: Path) -> dict[str, Tensor]:
        """Load the weights of a checkpoint for evaluation or use: the moving average if there is
        one, otherwise the weights of the model."""
        try:
            manifest = verify(path, [f"{name}.safetensors" for name in WEIGHTS])
            tensors = load_file(path / "model.safetensors")
            if "ema.safetensors" in manifest.files:
                averages = load_file(path / "ema.safetensors")
                tensors |= {name: averages[name] for name in tensors if name in averages}
        except (OSError, SafetensorError) as error:
            raise FolderError(f"cannot read {path}: {error}.") from error
        return tensors

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def _hidden(self, step: int, kind: str) -> Path:
        return self.folder / f".step-{step}.{kind}"

    def _all(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if re.fullmatch(r"step-\d+", path.name)]
        return sorted(found, key=_step)

    def _best_on_disk(self) -> int | None:
        for path in reversed(self._all()):
            try:
                return read_manifest(path).best
            except (FolderError, OSError):
                continue
        return None

    def _put(self, part: Path, path: Path) -> None:
        """Move a new checkpoint from its temporary name to its final name.

        If a run was resumed further back, an older checkpoint of the same step may exist. It is
        moved aside first. If the process is killed in between, `_tidy` restores it.
        """
        aside = self._hidden(_step(path), "old")
        if path.exists():
            _remove(aside)
            path.rename(aside)
        try:
            part.rename(path)
        except OSError:
            if aside.exists():
                aside.rename(path)
            raise
        sync(self.folder)
        _remove(aside)

    def _prune(self, newest: int, last: int) -> None:
        """Remove all checkpoints except the best one and the last `keep` that are not after step
        `newest`.

        Checkpoints after `newest` are damaged, because otherwise the run would have resumed from
        them. When a run is resumed, `last` is the step of the last of these, and they are left
        alone. After a save, `last` equals `newest`, so they are removed.
        """
        dropped = []
        try:
            regular = [step for step in map(_step, self.paths()) if step <= newest]
            kept = {*regular[-self.keep :], newest, self._best}
            for path in self._all():
                if _step(path) not in kept and not newest < _step(path) <= last:
                    # Rename the folder first, so that a kill during the deletion cannot leave half
                    # a checkpoint.
                    hidden = self._hidden(_step(path), "gone")
                    _remove(hidden)
                    dropped.append(path.rename(hidden))
            if dropped:
                sync(self.folder)
        except OSError as error:
            self.log(f"warning: an old checkpoint could not be removed: {error}.")
        for path in dropped:
            _remove(path)

    def _tidy(self) -> None:
        """Clean up after a killed process: remove its temporary files, and restore a checkpoint
        that it had moved aside."""
        for path in list(self.folder.glob(".step-*")) if self.folder.is_dir() else []:
            home = self.folder / path.stem.removeprefix(".")
            if path.suffix == ".old" and not home.exists():
                with contextlib.suppress(OSError):  # in a read-only folder
                    path.rename(home)
            else:
                _remove(path)


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _is_regular(path: Path) -> bool:
    try:
        return not read_manifest(path).passing
    except (FolderError, OSError):
        return False


def _is_whole(path: Path) -> bool:
    try:
        verify(path)
    except (FolderError, OSError):
        return False
    return True


def _remove(folder: Path) -> None:
    """Remove a folder as far as possible. It has a temporary name, so the next start of the run
    removes the rest."""
    with contextlib.suppress(OSError):  # rmtree may raise it in spite of ignore_errors
        shutil.rmtree(folder, ignore_errors=True)
