"""A training run, from settings to a finished folder: prepare data, resolve settings, train or
resume, choose weights."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from headway.data.binding_table import TrainingTables
from headway.data.bound_data import BoundData, write_tables
from headway.data.source import with_files
from headway.data.store import ImpossibleData, PreparedData
from headway.errors import FolderError, Option, Stopped, UserError, needs
from headway.models.folder import model_weights, save_weights
from headway.progress import Progress, duration
from headway.settings.data import GIVEN
from headway.settings.folder import (
    CHAT_TEMPLATE,
    CONFIG,
    TOKENIZER,
    WEIGHTS,
    file_in,
    load_run,
    run_folders,
    write_config,
)
from headway.settings.overrides import Origin, OriginKind, Overrides
from headway.settings.run import (
    Resolved,
    RunSettings,
    check_effect,
    overrides_of,
    resolved_toml,
    without_folders,
)
from headway.settings.task_rows import spec_of
from headway.storage import replace_file, replace_text
from headway.tasks.custom_metrics import CustomMetric
from headway.tasks.distil import comparison_line
from headway.tasks.history import LOG, finite, mean, read_history
from headway.tasks.modality import decided
from headway.tasks.objective import Objective
from headway.tasks.pretrained import with_pretrained
from headway.tasks.task import Task, make_task
from headway.training import estimate as plan
from headway.training.budget import (
    PLAN,
    READ,
    SEARCHED,
    UNTIMED,
    Budget,
    Decision,
    Journal,
    UnlimitedEvaluations,
)
from headway.training.check_settings import check_from_scratch
from headway.training.checkpoint import Checkpoints
from headway.training.distributed import Distributed
from headway.training.initial_weights import trainable
from headway.training.log import LogCallback, RunLog, TensorBoardWriter
from headway.training.loop import Loop, State
from headway.training.no_learning import final_warning
from headway.training.report import CARD, REPORT, Throttled, model_card, write_report
from headway.training.resolve import resolve_run
from headway.training.run_folder import RunFolder
from headway.training.schedule import schedule_line
from headway.training.signals import StopSignal
from headway.training.threads import ThreadPlan, threads_here
from headway.training.trainer import Trainer, load_final_weights


@dataclass(kw_only=True)
class Training:
    """Training run. `train` executes it."""

    settings: RunSettings
    out: Path
    device: str = "auto"
    budget_s: float | None = None
    restart: bool = False
    bound_data: Mapping[str, BoundData] = field(default_factory=dict)
    """Data passed in memory, by the names of the files that it will be written to."""

    quiet: bool = False
    call: str = ""
    """Python call that starts and resumes the run, for messages. Empty if the run was started on
    the command line."""

    custom_metrics: Mapping[str, CustomMetric] = field(default_factory=dict)
    """User-defined metrics, in addition to those of the task."""

    custom_selection: str = ""
    """Name of the user-defined metric that selects the best weights. Empty: a metric of the task
    selects them."""

    on: LogCallback | None = None
    """Callback for every line of the log, which may end the training. None: no callback."""

    now: Callable[[], float] = time.monotonic
    started: float = field(default_factory=time.monotonic)
    """Time at which the command started, measured by the clock `now`."""

    def __post_init__(self) -> None:
        self.settings = replace(with_files(self.settings), asked=overrides_of(self.settings))
        self.most_threads = torch.get_num_threads()
        self.run_folder = RunFolder(self.out)
        self.ranks = Distributed.start(self.device)
        self.progress = Progress(enabled=self.ranks.is_first and not self.quiet)
        self.log = RunLog(self.out if self.ranks.is_first else None, self.progress, self.on)
        self.checkpoints: Checkpoints | None = None
        self.removed = False
        """Whether the run folder has been removed while the run was active."""

        self.timing: plan.Timing | None = None
        self.unwritten: list[str] = []
        """Final files that could not be written."""

        if self.settings.train.tensorboard:
            needs("tensorboard", "tensorboard")  # fail before the data is read

    def decide(self) -> None:
        """Determine the variant of the task from the data files, and raise an error for settings
        that have no effect on it.

        Data in memory must already have been written to files.
        """
        self.settings = decided(self.settings)
        check_effect(self.settings, [spec_of(self.settings)])

    @cached_property
    def task(self) -> Task:
        """Task of the run. Available after `decide`."""
        return make_task(spec_of(self.settings))

    def train(self) -> list[str]:
        """Train, and return descriptions of everything that could not be saved. A stop signal
        raises `Stopped` with instructions to resume."""
        with StopSignal(guest=bool(self.call)) as stop:
            try:
                with self.run_folder.locked() if self.ranks.is_first else nullcontext():
                    try:
                        return self._train(stop)
                    except BaseException:
                        if self.log.report is not None:
                            self._report_so_far()
                        raise
            except Stopped as error:
                if self.log.error is not None:
                    raise self.log.error from None
                raise self._stop(stop.name or "a signal") from error
            finally:
                self.progress.close()
                self.log.close()
                self.ranks.close()

    def _report_so_far(self) -> None:
        """Write the report during training. Failures are ignored, because the report is written
        again later."""
        if self.run_folder.exists():
            with suppress(OSError):
                write_report(self.out)

    def _train(self, stop: StopSignal) -> list[str]:
        with stop.immediate():
            known = not self.restart and self.ranks.broadcast((self.out / CONFIG).exists())
            with suppress(UserError):  # a damaged file is reported next
                if known:  # a resumed run keeps its start run
                    self._start(load_run(self.out))
            if self.ranks.is_first:
                self.run_folder.check(self.settings, self.restart)
                self._write_bound_data()
            if not known:
                self.choose_start()
            self.decide()
            prepared = self._prepare()
            settings = self._settings(prepared)
        if settings.train.threads:
            torch.set_num_threads(settings.train.threads)
        if settings.train.tensorboard and self.ranks.is_first:
            self.log.tensorboard = TensorBoardWriter(self.out)
        checkpoints = Checkpoints(
            self.out,
            max(settings.train.keep, settings.train.average),
            self.progress.note,
            owner=self.ranks.is_first,
            before=lambda: self._keep_folder(settings, prepared),
        )
        self.checkpoints = checkpoints
        self.ranks.wait()  # until rank 0 has cleaned up
        fresh = not self.ranks.broadcast(bool(checkpoints.paths()))
        worker = Trainer(
            settings,
            prepared,
            self.ranks,
            self._note if fresh else None,
            own=self.custom_metrics,
            by=self.custom_selection,
        )
        journal = Journal(self.out / PLAN if self.ranks.is_first else None, self.progress.note)
        budget = None
        if self.budget_s is not None:
            budget = self._budget(settings, worker.objective, journal)
            if self.timing is not None:
                budget.timed(self.timing.step_s, self.timing.example_s)
        loop = worker.loop(
            checkpoints, self.log, lambda: stop.requested or self.log.error is not None, self.out,
            budget, None if self.on is None else lambda: self.log.end_reason,
            self._thread_plan(settings, journal),
        )  # fmt: skip
        resumed = loop.resume()
        if self.ranks.is_first:
            self.log.rewind(loop.state.step)
            if loop.plateau is not None:
                loop.plateau.replay(read_history(self.out).points("train", "nll"))
        if resumed and self.ranks.is_first:
            self.log.event(loop.state.step, f"resuming from step {loop.state.step:,}")
        if self.ranks.is_first:
            self._announce(settings, worker)
            self.log.report = Throttled(self._report_so_far)
        self.progress.start(loop.steps, loop.state.step)
        state = loop.run()
        self.progress.close()
        stopped = self.ranks.is_first and not self._finish(worker, loop, state)
        if self.ranks.any(stopped):
            raise Stopped
        if self.log.error is not None:
            raise self.log.error
        troubles = self._troubles()
        some = self.ranks.any(bool(troubles))
        return troubles or ["another rank could not save everything"] * some

    def dry_run(self, prepared: PreparedData) -> tuple[Resolved, plan.Timing]:
        """Return the settings that the run would have, and the speed measured on a temporary copy
        of the model."""
        settings = self._with_threads(resolve_run(self.settings, prepared, self.ranks.device))
        if self.budget_s is not None:
            settings = self._fitted(settings, prepared)
        if self.timing is None:
            worker = Trainer(settings, prepared, self.ranks)
            self.timing = replace(
                worker.time(for_s=3.0, now=self.now), examples=worker.objective.n_quick
            )
        return settings, self.timing

    def choose_start(self) -> None:
        """Choose the default start run unless the user named one, and print the choice."""
        begins = self._start(with_pretrained(self.settings))
        check_from_scratch(self.settings)
        if begins:
            self._note(
                f"starting from the pretrained encoder {self.settings.start.run}, whose "
                f"vocabulary covers these texts. To train from scratch: {Option('start', 'none')}"
            )

    def _start(self, of: RunSettings) -> bool:
        """Use the start run named in the settings `of`, unless the user chose one. Return whether
        it is used."""
        name = str(self.ranks.broadcast(of.start.run))
        if not name or self.settings.parent or "start.run" in self.settings.asked:
            return False
        why = Origin(OriginKind.CHOSEN, "its vocabulary covers the texts")
        asked = self.settings.asked | Overrides({"start.run": name}, why)
        start = replace(self.settings.start, run=name)
        self.settings = replace(self.settings, start=start, asked=asked)
        return True

    def _write_bound_data(self) -> None:
        """Write data passed in memory to files, because a resumed run needs the same data."""
        if not write_tables(
            self.out / GIVEN, self.bound_data, replace=not (self.out / CONFIG).exists()
        ):
            raise FolderError(self._other_data())

    def _other_data(self) -> str:
        return (
            f"the data differs from the data that {self.out} was trained on so far. Use the same "
            f"data, choose another {Option('out')}, or start over with {Option('restart', True)}."
        )

    def _prepare(self) -> PreparedData:
        """Prepare the data on rank 0, then load it on the other ranks."""
        if not self.ranks.is_first:
            self.ranks.wait()
            return self.task.load_prepared(self.out)
        try:
            prepared = self.task.prepare(self.settings, self.out, self.progress)
        except ImpossibleData as error:  # it has the errors; print the other findings
            for line in error.report.lines("warning", "note"):
                self.progress.note(line)
            raise
        for line in self.tables.lines(prepared.report):
            self.progress.note(line)
        for line in prepared.report.lines():
            self.progress.note(line)
        self.ranks.wait()
        return prepared

    @cached_property
    def tables(self) -> TrainingTables:
        """Data files of the run with the roles of their columns."""
        return TrainingTables.of(self.settings, self.task.row, self.bound_data)

    def _settings(self, prepared: PreparedData) -> Resolved:
        """Return the settings of the stored run if this run resumes it. Otherwise choose settings
        and write them to the run folder."""
        is_known = self.ranks.broadcast((self.out / CONFIG).exists())
        if is_known:
            settings = self.run_folder.stored(self.settings.task)
            if settings.fingerprint != prepared.fingerprint:
                raise FolderError(self._other_data())
        else:
            settings = replace(self._resolve(prepared), fingerprint=prepared.fingerprint)
        if self.ranks.is_first:
            if not is_known:  # left by an earlier run
                (self.out / PLAN).unlink(missing_ok=True)
            self._write_settings(settings, prepared, config=not is_known)
        return settings

    def _write_settings(self, settings: Resolved, prepared: PreparedData, config: bool) -> None:
        if prepared.vocab is not None and (config or not self._has_tokenizer()):
            replace_file(self.out / TOKENIZER, prepared.save_tokenizer)
            self._take_template(settings)
        if config:
            write_config(self.out, resolved_toml(settings))

    def _take_template(self, settings: Resolved) -> None:
        """Copy the chat template of the parent run to the run folder, if the new model is a
        language model with the same tokenizer."""
        if not settings.start.run or not self.task.row.continues:
            return
        [folder] = run_folders([settings.start.run])
        theirs, ours = folder / TOKENIZER, self.out / TOKENIZER
        if (folder / CHAT_TEMPLATE).is_file() and theirs.read_bytes() == ours.read_bytes():
            copy = partial(shutil.copyfile, folder / CHAT_TEMPLATE)
            replace_file(self.out / CHAT_TEMPLATE, copy)

    def _has_tokenizer(self) -> bool:
        """Return whether the tokenizer file exists and is undamaged. If not, the caller writes it
        again."""
        try:
            file_in(self.out, TOKENIZER)
        except FolderError as error:
            self.progress.note(f"{error} The file is written again from the prepared data.")
            return False
        return True

    def _keep_folder(self, settings: Resolved, prepared: PreparedData) -> None:
        """Create the run folder again if it was removed, with all files that are needed to use the
        next checkpoint."""
        if not self.run_folder.exists():
            self.run_folder.recreate()
        elif (self.out / CONFIG).is_file():
            return
        self.removed = True
        self._write_settings(settings, prepared, config=True)
        self.progress.note(
            f"warning: {self.out} was removed during training. The folder is created again with "
            "the settings, and will contain only what is saved from now on."
        )

    def _resolve(self, prepared: PreparedData) -> Resolved:
        settings = self._with_threads(resolve_run(self.settings, prepared, self.ranks.device))
        if self.budget_s is not None:
            self.progress.note("timing a few steps")
            settings = self._fitted(settings, prepared)
        settings = replace(settings, data=self.tables.named(settings.data))
        # Use the settings of rank 0, because other ranks may have a different amount of free
        # memory.
        shared = self.ranks.broadcast(settings)
        assert isinstance(shared, Resolved)
        return shared

    def _note(self, text: str) -> None:
        if self.ranks.is_first:
            self.progress.note(text)

    def _with_threads(self, settings: Resolved) -> Resolved:
        """Return the settings with the number of threads that is fastest now.

        The number is a setting because it affects rounding, so a resumed run needs the same one.
        With several ranks, the launcher chooses it.
        """
        if settings.train.threads or self.ranks.device.type != "cpu" or self.ranks.world > 1:
            return settings
        threads, most = threads_here(), torch.get_num_threads()
        if threads < most:
            self.progress.note(
                f"using {threads} of {most} threads, because other programs keep the cores busy. "
                "The best number is measured again when the load changes (to always use all "
                f"threads: train.threads={most})"
            )
        torch.set_num_threads(threads)
        why = {**settings.why, "train.threads": "the fastest number when it was measured"}
        return replace(settings, train=replace(settings.train, threads=threads), why=why)

    def _thread_plan(self, settings: Resolved, journal: Journal) -> ThreadPlan | None:
        """Return the plan that adapts the number of threads to the load. None if the user or a
        launcher set the number."""
        first = settings.train.threads
        chosen = "train.threads" in self.settings.asked or "OMP_NUM_THREADS" in os.environ
        if first is None or chosen or self.ranks.device.type != "cpu" or self.ranks.world > 1:
            return None
        return ThreadPlan(first, max(first, self.most_threads), journal, self.progress.note)

    def _budget(self, settings: Resolved, objective: Objective[Any], journal: Journal) -> Budget:
        assert self.budget_s is not None
        wanted = UnlimitedEvaluations(
            n_quick=objective.n_quick, n_valid=objective.n_valid,
            eval_every=settings.asked.get("train.eval_every"),
            save_every=settings.asked.get("train.save_every"),
            warmup=0 if settings.train.warmup is None else max(1, settings.train.warmup),
            careful=SEARCHED if spec_of(settings).in_words else READ,
        )  # fmt: skip
        look = 1 if self.ranks.device.type == "cpu" else None
        return Budget(self.budget_s, wanted, journal, started=self.started, now=self.now, look=look)

    def _fitted(self, settings: Resolved, prepared: PreparedData) -> Resolved:
        """Return the settings with the number of steps that fits into the budget, found by a trial.

        If the number is too small to learn anything, steps become smaller.
        """
        first = self._first_plan(settings, prepared)
        smaller = plan.smaller_steps(settings, first.steps if self.timing else 1)
        if smaller != settings:
            if self.timing is not None and self.timing.long:
                device = self.ranks.device
                share = plan.work_seconds(smaller, device) / plan.work_seconds(settings, device)
                self.timing = replace(self.timing, step_s=share * self.timing.step_s)
            first = self._first_plan(smaller, prepared)
            why = f"to fit about {first.steps:,} steps into the budget"
            if self.timing is None:
                why = "to fit steps into the remaining time"
            self.progress.note(f"{why}: {_what_fits(settings, smaller)}")
        return plan.with_steps(smaller, first)

    def _first_plan(self, settings: Resolved, prepared: PreparedData) -> Decision:
        """Return the first plan of a run with these settings. It is based on `timing`, which is
        None if there was no time for a trial."""
        assert self.budget_s is not None
        spent = (self.now() - self.started) / self.budget_s
        if self.timing is None and self.ranks.broadcast(spent > 0.8):  # no time for a trial
            return Decision(step=0, steps=UNTIMED, until=UNTIMED, examples=0, progress=0.0)
        worker = Trainer(
            settings,
            prepared,
            self.ranks,
            compiled=False,
            own=self.custom_metrics,
            by=self.custom_selection,
        )
        trial = self._budget(settings, worker.objective, Journal(None))
        again = self.timing is None or not self.timing.long
        if again and self.ranks.broadcast(trial.left_s > 0.3 * self.budget_s):
            found = self.ranks.broadcast(worker.time(min(5.0, self.budget_s / 40), self.now))
            assert isinstance(found, plan.Timing)
            self.timing = found
        if self.timing is not None:
            trial.timed(self.timing.step_s, self.timing.example_s)
        first = self.ranks.broadcast(trial.decide(0, None))
        assert isinstance(first, Decision)
        if self.timing is not None:
            self.timing = replace(self.timing, examples=first.examples)
        return first

    def _announce(self, settings: Resolved, worker: Trainer) -> None:
        train, model = settings.train, settings.model
        steps, batch_tokens = train.steps, train.batch_tokens
        learning, n = trainable(worker.model)
        some = f" ({learning:,} trainable)" if learning < n else ""
        data, ranks = self.task.describe(worker.prepared), self.ranks
        device = f"{ranks.device} × {ranks.world}" if ranks.world > 1 else str(ranks.device)
        pieces = -(-batch_tokens // train.micro_tokens)
        self.progress.note(
            f"{n:,} parameters{some}, {data}"
            + (f", {steps:,} steps of {batch_tokens:,} tokens" if steps else "")
            + (f" in {pieces} micro-batches" if steps and pieces > 1 else "")
            + f", {train.precision} on {device}"
        )
        if not (self.out / CARD).exists():
            columns = self.tables.describe(worker.prepared.report)
            text = model_card(n, learning, data, columns, device, train.precision)
            self._put(CARD, lambda: replace_text(self.out / CARD, text))
        if steps:
            rates = schedule_line(train, steps, model.d_model)
            self.progress.note(f"{train.optimizer}, {rates}")
            if worker.no_graph_reason:
                self.progress.note(
                    f"steps run without a CUDA graph (slower), because of {worker.no_graph_reason}"
                )
        for line in worker.objective.notes():
            self.progress.note(line)

    def _finish(self, worker: Trainer, loop: Loop, state: State) -> bool:
        """Choose the final weights, save them and write the report. Return False if a stop was
        requested in the meantime."""
        try:
            chosen = load_final_weights(worker, loop)
            beside = worker.compare_with_teacher(
                loop.stop_requested, self.progress, chosen["examples"], careful=chosen["careful"]
            )
            chosen["figures"] |= beside
        except Stopped:
            return False
        self._put(CONFIG, lambda: self._keep_folder(worker.settings, worker.prepared))
        self._put(WEIGHTS, lambda: save_weights(self.out, model_weights(worker.merged_model())))
        settings = without_folders(with_fitted(worker.settings, chosen.get("fitted") or {}))
        if settings != worker.settings:
            self._put(CONFIG, lambda: write_config(self.out, resolved_toml(settings)))
        took, lines = self.now() - self.started, chosen.pop("lines")
        losses = finite(read_history(self.out).points("valid", "loss"))
        learning = final_warning(losses, worker.objective.prior_loss(), state.step)
        if learning:
            chosen["learning"] = learning
        self.log.numbers("end", state.step, seconds=took, **chosen)
        self.progress.note(chosen["text"])
        for line in lines:
            self.progress.note(line)
        if chosen.get("advice"):
            self.progress.note(chosen["advice"])
        if learning:
            self.progress.note(learning)
        if beside:
            self.progress.note(comparison_line(beside["distilled"]))
        self._put(REPORT, lambda: write_report(self.out))
        waits = finite(read_history(self.out).points("train", "stall"))
        waited = f", waited for data {mean(waits):.1%} of training" if waits else ""
        if troubles := self._troubles():
            self.progress.note(
                f"ended after {duration(took)}, but not everything was saved: "
                f"{'; '.join(troubles)}. "
                + (f"{WEIGHTS} was not written." if WEIGHTS in self.unwritten
                   else f"{WEIGHTS} holds: {chosen['kept']}.")
                + (f" Fix the problem and {self._again('run')}: training resumes {self._where()}."
                   if self._is_fixed_by_rerun(state.step) else "")
            )  # fmt: skip
        else:
            report = self.out / REPORT
            self.progress.note(f"done in {duration(took)}{waited}: {self.out} (report: {report})")
        return True

    def _put(self, name: str, write: Callable[[], object]) -> None:
        """Write a final file of the run. If that fails, record it and continue with other files."""
        try:
            write()
        except (OSError, FolderError) as error:
            self.unwritten.append(name)
            self.progress.note(f"warning: {error}")

    def _troubles(self) -> list[str]:
        """Return descriptions of everything that was lost or not saved. They determine the last
        line of output and the exit code."""
        found = []
        if self.removed or (self.ranks.is_first and not self.run_folder.exists()):
            found.append(
                f"{self.out} was removed during the run, with earlier checkpoints, the prepared "
                "data and the log"
            )
        if self.checkpoints is not None and self.checkpoints.failed:
            steps = self.checkpoints.failed
            shown = ", ".join(f"{step:,}" for step in steps[:5]) + ", …" * (len(steps) > 5)
            found.append(f"saving failed at step {shown}")
        if self.log.failed:
            found.append(f"{LOG} is incomplete")
        if self.unwritten:
            found.append(f"{', '.join(self.unwritten)} could not be written")
        return found

    def _is_fixed_by_rerun(self, last: int) -> bool:
        """Return whether running the same command again would write what is missing.

        Older checkpoints do not count, because they are not needed once the run has ended.
        """
        held = self.checkpoints is not None and self.checkpoints.holds(last)
        return bool(self.unwritten) or self.log.failed or not held

    def _where(self) -> str:
        step = self.checkpoints.newest_step() if self.checkpoints is not None else 0
        return f"from step {step:,}" if step else "from step 0"

    def _again(self, verb: str = "") -> str:
        """Return the command or Python call that resumes this run, with an optional verb before
        it."""
        if self.call:
            return f"{verb and 'call '}{self.call} with the same arguments"
        return f"{verb} the same command again" if verb else "the same command"

    def _stop(self, name: str) -> Stopped:
        """Return the error that a stopped run ends with. It tells how to resume, and whether
        everything is saved."""
        made = self.checkpoints
        if made is not None and made.failed and made.failed[-1] > made.newest_step():
            text = (
                f"stopped by {name}, but step {made.failed[-1]:,} could not be saved; "
                f"{self._again()} resumes {self._where()}"
            )
            return Stopped(text, saved=False)
        return Stopped(f"stopped by {name}; {self._again()} resumes from here")


def with_fitted(settings: Resolved, fitted: Mapping[str, float]) -> Resolved:
    """Return the settings with the values that were fitted on the validation data."""
    sections: dict[str, Any] = {}
    for key, value in fitted.items():
        section, _, name = key.partition(".")
        before = sections.get(section, getattr(settings, section))
        sections[section] = replace(before, **{name: value})
    why = {**settings.why, **dict.fromkeys(fitted, "fitted on the validation data")}
    return replace(settings, why=why, **sections)


def _what_fits(before: Resolved, after: Resolved) -> str:
    """Return a description of what was made smaller to fit into the budget."""
    changes = []
    tokens, fewer = before.train.batch_tokens, after.train.batch_tokens
    if fewer != tokens:
        changes.append(f"steps of {fewer:,} tokens instead of {tokens:,}")
    if after.model != before.model:
        changes.append(f"{after.model.n_layers} layers instead of {before.model.n_layers}")
    return ", ".join(changes)
