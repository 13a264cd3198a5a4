"""Checkpoints of a run: each is whole or not there, and is checked before it is used.

They are folders `checkpoints/step-N/`. One is made under a name that starts with a dot and then
renamed, so a kill at any moment leaves the old checkpoints, and the new one or none.
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
"""Errors of reading that mean damage; others (no permission, a network drive that is gone) may
pass, and must not make a run fall back to old work."""


class Checkpoints:
    """Of one run folder. Only one process may write: others say `owner=False`, and do not save.

    `failed` are the steps that the disk refused. Training goes on without them. `before` is called
    before each save, and may refuse it with an error.
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
        """Write one, then remove what is no longer kept: all but the newest `keep` and the best.

        A `passing` one is for going on after a stop, at a step where an uninterrupted run saves
        nothing: it is not counted or listed, and the next save removes it. Where a regular one of
        this step exists, that one serves.
        If it cannot be written, one line says why, None is returned, and the others are intact.
        """
        part, path = self._hidden(snapshot.step, "tmp"), self._path(snapshot.step)
        if passing and _is_regular(path) and _is_whole(path):
            return path
        best_step = snapshot.step if best else self._best
        try:
            bad = not_finite(snapshot.tensors)
            if bad:
                raise FloatingPointError(f"{bad} is not finite")
            self.before()
            self.folder.mkdir(parents=True, exist_ok=True)
            _remove(part)
            write_snapshot(part, snapshot, best=best_step, passing=passing)
            self._put(part, path)
        except (OSError, SafetensorError, FloatingPointError, FolderError) as error:
            _remove(part)
            self.failed.append(snapshot.step)
            self.log(
                f"warning: step {snapshot.step} was not saved: {error}. Training goes on; "
                "earlier checkpoints are as they were."
            )
            return None
        self._best = best_step
        self._prune(snapshot.step, snapshot.step)
        return path

    def newest(self) -> Snapshot | None:
        """The newest one that is whole. Each damaged one is reported in a line."""
        for path in reversed(self._all()):
            try:
                manifest = verify(path)
                snapshot = read_snapshot(path, manifest)
            except FolderError as error:
                self.log(f"warning: {error} Using the one before it.")
            except OSError as error:
                if error.errno in UNUSABLE:
                    self.log(f"warning: {path} is damaged: {error}. Using the one before it.")
                    continue
                raise FolderError(
                    f"cannot read {path}: {error}. Put that right, or move the folder away "
                    "to go on from the checkpoint before it."
                ) from error
            else:
                self._best = manifest.best
                if self.owner:  # a killed process may not have come to it
                    self._prune(snapshot.step, _step(self._all()[-1]))
                return snapshot
        return None

    def paths(self) -> list[Path]:
        """Those of the run's own schedule, oldest first; not verified."""
        return [path for path in self._all() if _is_regular(path)]

    def newest_step(self) -> int:
        """Of all that lie there, not verified; 0 where there is none."""
        return max(map(_step, self._all()), default=0)

    def holds(self, step: int) -> bool:
        """Whether that step is there and whole."""
        return _is_whole(self._path(step))

    def best_path(self) -> Path | None:
        """The best one so far, verified; None when there is none or it is damaged."""
        path = None if self._best is None else self._path(self._best)
        return path if path is not None and _is_whole(path) else None

    @staticmethod
    def weights(path: Path) -> dict[str, Tensor]:
        """The weights that are evaluated and used: the running average where there is one."""
        try:
            manifest = verify(path, [f"{name}.safetensors" for name in WEIGHTS])
            tensors = load_file(path / "model.safetensors")
            if "ema.safetensors" in manifest.files:
                averages = load_file(path / "ema.safetensors")
                tensors |= {name: averages[name] for name in tensors if name in averages}
        except (OSError, SafetensorError) as error:
            raise FolderError(f"{path} cannot be read: {error}.") from error
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
        """Rename into place. One of the same step, left by a run that was taken up further back,
        steps aside first; `_tidy` brings it back should the process end in between."""
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
        """Keep the best, and of those up to `newest` the last ones. What lies beyond it was found
        damaged, or the run would have gone on from there: after a save, with `last` the same as
        `newest`, that goes too."""
        dropped = []
        try:
            regular = [step for step in map(_step, self.paths()) if step <= newest]
            kept = {*regular[-self.keep :], newest, self._best}
            for path in self._all():
                if _step(path) not in kept and not newest < _step(path) <= last:
                    # Renamed first: a kill while its files go must not leave half of one.
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
        """Remove what a killed process left, and finish a replacement it was in the middle of."""
        for path in list(self.folder.glob(".step-*")) if self.folder.is_dir() else []:
            home = self.folder / path.stem.removeprefix(".")
            if path.suffix == ".old" and not home.exists():
                with contextlib.suppress(OSError):  # in a folder that may only be read
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
    """As far as that goes; what is left has a name that the next start removes."""
    with contextlib.suppress(OSError):  # which the next line raises all the same in places
        shutil.rmtree(folder, ignore_errors=True)
