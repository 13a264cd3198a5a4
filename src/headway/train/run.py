"""A training run from settings to a finished folder: prepare, resolve, train or go on, choose."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from headway.config.durable import replace_file, replace_text
from headway.config.folder import CONFIG, TOKENIZER, WEIGHTS
from headway.config.run import RunSettings, differences, resolved_toml, run_settings
from headway.config.train import known
from headway.data.report import CheckReport
from headway.data.store import ImpossibleData, Prepared, prepare
from headway.errors import FolderError
from headway.models.folder import model_weights, save_weights
from headway.train import plan
from headway.train.checkpoint import Checkpoints
from headway.train.loop import Loop, State
from headway.train.progress import Progress, duration
from headway.train.ranks import Ranks
from headway.train.report import write_report
from headway.train.runlog import METRICS, RunLog
from headway.train.schedule import peak_lr
from headway.train.signals import AGAIN, StopSignal
from headway.train.task import Stopped
from headway.train.worker import Worker, choose

OWN = (CONFIG, WEIGHTS, TOKENIZER, METRICS, "report.html", "checkpoints", "data", "bad-batch.json",
       "data.tmp")  # fmt: skip
"""What a run folder holds and `--restart` removes."""


@dataclass(kw_only=True)
class Run:
    """Everything of one training run. `train` does the work and returns the exit code."""

    settings: RunSettings
    out: Path
    device: str = "auto"
    budget_s: float | None = None
    restart: bool = False
    started: float

    def __post_init__(self) -> None:
        self.ranks = Ranks.start(self.device)
        self.progress = Progress(enabled=self.ranks.is_first)
        self.log = RunLog(self.out if self.ranks.is_first else None, self.progress)

    def train(self) -> int:
        with StopSignal() as stop:
            try:
                with self._own_folder():
                    return self._train(stop)
            except Stopped:
                self.progress.close()
                self.progress.note(
                    f"stopped by {stop.name or 'a signal'}; the same command goes on from here"
                )
                return AGAIN
            finally:
                self.progress.close()
                self.ranks.close()

    def _train(self, stop: StopSignal) -> int:
        with stop.at_once():
            if self.ranks.is_first:
                self._check_folder()
            prepared = self._prepare()
            if (self.out / CONFIG).exists():
                settings = self._stored()
                if settings.fingerprint != prepared.fingerprint:
                    raise FolderError(
                        f"the data files are not those that {self.out} was trained on so far. "
                        "Put them back, choose another --out, or begin anew with --restart."
                    )
            else:
                settings = replace(self._resolve(prepared), fingerprint=prepared.fingerprint)
                if self.ranks.is_first:
                    replace_text(self.out / CONFIG, resolved_toml(settings))
                self.ranks.wait()
        checkpoints = Checkpoints(
            self.out, settings.train.keep, self.progress.note, owner=self.ranks.is_first
        )
        worker = Worker(settings, prepared, self.ranks)
        loop = worker.loop(checkpoints, self.log, lambda: stop.asked, self.out)
        resumed = loop.resume()
        if self.ranks.is_first:
            self.log.rewind(loop.state.step)
        if resumed and self.ranks.is_first:
            self.log.event(loop.state.step, f"going on from step {loop.state.step:,}")
        if self.ranks.is_first:
            self._announce(settings, worker)
        self.progress.start(loop.steps, loop.state.step)
        state = loop.run()
        self.progress.close()
        if self.ranks.is_first:
            self._finish(worker, loop, state)
        self.ranks.wait()
        return 1 if checkpoints.failed_saves and not checkpoints.paths() else 0

    def dry_run(self, prepared: Prepared) -> tuple[RunSettings, plan.Timing]:
        """Settings as they would be, and the speed measured on a throw-away copy."""
        settings = plan.resolve(self.settings, prepared, self.ranks.device)
        timing = Worker(settings, prepared, self.ranks).time(for_s=3.0)
        if self.budget_s:
            settings = plan.within_budget(settings, timing, self._left_s(), self._final_s(timing))
        return settings, timing

    @contextmanager
    def _own_folder(self) -> Iterator[None]:
        """No two runs in one folder at a time."""
        if not self.ranks.is_first:
            yield
            return
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.out, os.O_RDONLY)
        except OSError as error:
            raise FolderError(f"cannot use {self.out} as a run folder: {error}.") from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FolderError(f"another process is training in {self.out}.") from error
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            os.close(lock)

    def _check_folder(self) -> None:
        if self.restart:
            for name in OWN:
                path = self.out / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        foreign = [p.name for p in self.out.iterdir() if p.name not in OWN and p.name[0] != "."]
        if foreign and not (self.out / CONFIG).exists():
            raise FolderError(
                f"{self.out} is not empty and no run folder: it holds {', '.join(foreign[:5])}. "
                "Choose another --out."
            )
        if (self.out / CONFIG).exists():
            changed = differences(self._stored().asked, self.settings.asked)
            if changed:
                raise FolderError(
                    f"{self.out} holds a run with other settings:\n  "
                    + "\n  ".join(changed)
                    + "\nUse the same settings to go on, another --out, or --restart to begin anew."
                )

    def _stored(self) -> RunSettings:
        try:
            values = tomllib.loads((self.out / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FolderError(
                f"cannot read {self.out / CONFIG}: {error}. --restart begins anew."
            ) from error
        return run_settings(values)

    def _prepare(self) -> Prepared:
        """Rank 0 prepares; the others then find it done."""
        if not self.ranks.is_first:
            self.ranks.wait()
        try:
            prepared = prepare(self.settings, self.out, self.progress.note)
        except ImpossibleData as error:
            self._show(error.report)
            raise
        if self.ranks.is_first:
            self._show(prepared.report)
            replace_file(self.out / TOKENIZER, prepared.vocab.save)
            self.ranks.wait()
        return prepared

    def _show(self, report: CheckReport) -> None:
        for line in report.lines():
            self.progress.note(line)

    def _resolve(self, prepared: Prepared) -> RunSettings:
        settings = plan.resolve(self.settings, prepared, self.ranks.device)
        if self.budget_s is None:
            return settings
        timing = Worker(settings, prepared, self.ranks).time(for_s=min(10.0, self.budget_s / 20))
        settings = plan.within_budget(settings, timing, self._left_s(), self._final_s(timing))
        stored = self.ranks.same(resolved_toml(settings))
        return run_settings(tomllib.loads(str(stored)))

    def _left_s(self) -> float:
        assert self.budget_s is not None
        return 0.96 * (self.budget_s - (time.time() - self.started))

    @staticmethod
    def _final_s(timing: plan.Timing) -> float:
        """The careful comparison at the end: two times the validation set, with beam search."""
        return 6.0 * timing.evaluation_s

    def _announce(self, settings: RunSettings, worker: Worker) -> None:
        train, model = settings.train, settings.model
        assert model is not None
        steps, batch_tokens = known(train.steps), known(train.batch_tokens)
        n = sum(weight.numel() for weight in worker.model.parameters())
        pieces = -(-batch_tokens // known(train.micro_tokens))
        self.progress.note(
            f"{n:,} parameters, {len(worker.prepared.train):,} pairs, {steps:,} steps of "
            f"{batch_tokens:,} target tokens"
            + (f" in {pieces} parts" if pieces > 1 else "")
            + f", {train.precision} on {self.ranks.device}"
            + (f" × {self.ranks.world}" if self.ranks.world > 1 else "")
        )
        peak = peak_lr(train, steps, model.d_model)
        self.progress.note(f"{train.optimizer}, {train.schedule} schedule, peak rate {peak:.3g}")

    def _finish(self, worker: Worker, loop: Loop, state: State) -> None:
        """The average of the newest checkpoints against the best one; the winner is the model."""
        chosen = choose(worker, loop)
        save_weights(self.out, model_weights(worker.model))
        took = time.time() - self.started
        self.log.numbers("end", state.step, seconds=took, **chosen)
        self.progress.note(chosen["text"])
        report = write_report(self.out)
        self.progress.note(f"done in {duration(took)}: {self.out} (report: {report})")
