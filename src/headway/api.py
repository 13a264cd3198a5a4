"""`headway.train` and `headway.check`: the commands as Python functions."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.data.bound_data import ROWS, VALID, BoundData, bind_data, named_files
from headway.errors import ConfigError, FolderError, InPython, columns_by_argument, suggest
from headway.settings.data import GIVEN, INPUTS
from headway.settings.listed import ensure_list
from headway.settings.overrides import FROM_PYTHON, Origin, Overrides
from headway.settings.recipes import recipe_path
from headway.settings.run import RunSettings, overrides_of
from headway.settings.synonyms import setting_here, setting_with, training_setting
from headway.settings.task_rows import spec_of
from headway.specs.needs import MEDIA
from headway.specs.tasks import SPECS, Spec
from headway.training.arguments import (
    check_task_name,
    check_training,
    data_report,
    implied_settings,
    settings_for,
    with_budget,
)

if TYPE_CHECKING:
    import torch

    from headway.data.check_report import Report
    from headway.models.parts.custom import Parts
    from headway.run import Run
    from headway.tasks.custom_metrics import CustomMetric
    from headway.tasks.custom_metrics import MetricFunction as OwnMetric
    from headway.training.log import LogCallback

ColumnOrFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""The name of a column, or one or several files."""

SettingsLike = Mapping[str, Any] | RunSettings
"""Settings by dotted key (`{"train.lr": 1e-3}`), as nested mappings, or as an object."""

_TRAINING_LOCK = threading.RLock()
"""Allows one training at a time, because seeds and the number of threads are process-wide."""


@InPython()
def train(
    task: str | None = None,
    data: object = None,
    *,
    out: str | os.PathLike[str],
    valid: object = None,
    start: str | os.PathLike[str] | None = None,
    teacher: str | os.PathLike[str] | None = None,
    preset: str | None = None,
    recipe: str | os.PathLike[str] | None = None,
    settings: SettingsLike | None = None,
    device: str = "auto",
    budget: str | float | None = None,
    restart: bool = False,
    quiet: bool = False,
    on: LogCallback | None = None,
    metrics: Mapping[str, OwnMetric] | None = None,
    parts: Parts | None = None,
    **needs: ColumnOrFiles,
) -> Run:
    """Train a model in the folder `out`, or resume the training there, and return the trained run.

    With `data` (a path, paths, or a table in memory), keywords name its columns:
    `text="review"`. Without it, they name files: `source="a.de", target="a.en"`. Ctrl-C saves and
    raises `headway.errors.Stopped`; the same call resumes. Errors that the caller can fix are
    `UserError`.

    `on` is called with every entry of the log, a mapping. If it returns True, or a text with the
    reason, training ends with the best weights so far. If it raises an exception, that is raised
    again after everything is saved. `metrics` adds functions of predictions and targets as
    metrics: `{"polite": function}`, or `(function, "lower")` if lower values are better. If
    `train.metric` names one of them, it selects the best weights. `parts` passes custom blocks,
    positions or attention patterns as a `headway.Parts`. Pass it again to resume, and to `load`.
    """
    started = time.monotonic()
    _check_arguments(out, on, metrics)
    out = Path(out)
    wish = TrainRequest(
        task=task, data=data, valid=valid, needs=needs, settings=settings, preset=preset,
        recipe=recipe, start=start, teacher=teacher,
    )  # fmt: skip
    asked, tables = wish.overrides(out)
    if parts is not None:
        asked |= _with_parts(parts, asked)
    by = asked.get("train.metric") if asked.get("train.metric") in (metrics or {}) else None
    if by is None and task in SPECS:
        _check_metric(asked.get("train.metric"), SPECS[task])
    run = wish.run(
        asked if by is None else asked.without("train.metric"),
        Origin.positional("train(…)"),
        quiet,
    )
    check_training(run)
    run, own = _with_metrics(run, metrics or {}, by)
    budget_s = None
    if budget is not None:
        said = budget if isinstance(budget, str) else f"{budget:.10g}s"
        goes_on = None if restart else out
        run, budget_s = with_budget(run, said, in_call("budget"), goes_on)
    from headway.training.run import Training

    with _TRAINING_LOCK:
        training = Training(
            settings=run, out=out, device=device, budget_s=budget_s, restart=restart,
            bound_data=tables, quiet=quiet, on=on, custom_metrics=own, custom_selection=by or "",
            call=f"headway.train(…, out={os.fspath(out)!r})", started=started,
        )  # fmt: skip
        with preserved_state(training.ranks.device), columns_by_argument(data, _settings(settings)):
            troubles = training.train()
    if "model.safetensors" in training.unwritten:
        raise FolderError(
            f"{out}: training has finished, but the weights were not saved: {'; '.join(troubles)}."
        )
    if troubles:
        warnings.warn(
            f"{out}: training has finished, but not everything was saved: {'; '.join(troubles)}",
            stacklevel=2,
        )
    from headway.run import load

    return load(out, device=device, parts=parts)


@InPython()
def check(
    task: str,
    data: object = None,
    *,
    valid: object = None,
    start: str | os.PathLike[str] | None = None,
    teacher: str | os.PathLike[str] | None = None,
    settings: SettingsLike | None = None,
    quiet: bool = True,
    **needs: ColumnOrFiles,
) -> Report:
    """Check data before training, as `headway check` does, and return a report with `ok`,
    `findings`, `columns` and `fingerprint`. The arguments are those of `train`."""
    wish = TrainRequest(
        task=task, data=data, valid=valid, needs=needs, settings=settings, start=start,
        teacher=teacher,
    )  # fmt: skip
    asked, tables = wish.overrides(Path())
    run = wish.run(asked, Origin.positional("check(…)"), quiet)
    with columns_by_argument(data, _settings(settings)):
        return data_report(run, tables, quiet=quiet)


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Arguments shared by `train`, `check` and their commands: the task, the data, the settings and
    the runs to start from or to distil."""

    task: str | None
    data: object = None
    valid: object = None
    needs: Mapping[str, ColumnOrFiles] = field(default_factory=dict)
    settings: SettingsLike | None = None
    preset: str | None = None
    recipe: str | os.PathLike[str] | None = None
    start: object = None
    teacher: object = None
    words: Sequence[str] = ()
    """`key=value` arguments of the command line."""

    command: str = ""
    """Name of the command, such as `headway train`; empty in Python. With it, the recorded origin
    of each setting is an option instead of a Python argument."""

    def overrides(self, out: Path) -> tuple[Overrides, dict[str, BoundData]]:
        """Return the settings, and the data that a run in `out` has to store."""
        if not self.command and any(map(self._is_setting, self.needs)):
            return self._with_separate_settings().overrides(out)
        if self.task is not None:
            check_task_name(self.task)
        elif self.recipe is None:
            raise ConfigError(
                f"no task is given. Name a task ({', '.join(SPECS)}), or a recipe: --recipe NAME."
            )
        said = _settings(self.settings) | Overrides.from_arguments(self.words)
        if self.preset is not None:
            said |= Overrides({"model.preset": self.preset}, in_call("preset"))
        if self.data is not None:
            found, tables = self._bind(said, out)
        elif self.valid is not None:
            raise ConfigError(
                "--valid needs training data given after the task: headway train TASK FILES "
                "--valid FILES. If the training files are given by options, use --valid-text, "
                "--valid-source and --valid-target."
            )
        else:
            found, tables = Overrides(), {}
            for key, one in named_files(self.needs).items():
                found |= Overrides({f"data.{key}": one}, self._place(key))
        for key in found:
            if key in said and str(said[key]) != str(found[key]):  # a column may have a number
                text = (
                    f"{key} is given twice: {str(found[key])!r} as an argument and "
                    f"{str(said[key])!r} in the settings. Give it only once."
                )
                raise ConfigError(text)
        return found | said, tables

    def _is_setting(self, name: str) -> bool:
        """Whether a keyword is the name of a setting, in headway or in another library."""
        rows = SPECS[self.task].rows if self.task in SPECS else ()
        if any(name == need.name for row in rows for need in row.needs):
            return False
        return name not in INPUTS and bool(training_setting(name) or setting_here(name))

    def _with_separate_settings(self) -> TrainRequest:
        """Return a copy in which keywords such as `epochs=3` are settings (`train.epochs`). A name
        of another library raises an error with the name in headway."""
        settings = _settings(self.settings)
        for name in filter(self._is_setting, self.needs):
            key, value = training_setting(name), self.needs[name]
            if key is None:
                raise ConfigError(
                    f"{name}={value!r} is not an argument of train(). Pass it as a setting: "
                    f"settings={{{setting_with(name, value)}}}"
                )
            if key in settings:
                raise ConfigError(
                    f"{key} is given twice: as {name}= and in the settings. Give it only once."
                )
            settings |= Overrides({key: value}, in_call(name))
        needs = {name: one for name, one in self.needs.items() if not self._is_setting(name)}
        return replace(self, settings=settings, needs=needs)

    def _place(self, name: str) -> Origin:
        name = name.removesuffix("_field")
        if not self.command:
            return in_call(name)
        return Origin.option(f"--{name.replace('_', '-')}")

    def _bind(self, said: Overrides, out: Path) -> tuple[Overrides, dict[str, BoundData]]:
        needs = dict[str, Any](self.needs)
        if needs.get("fields"):
            said |= Overrides({"data.fields": ensure_list(needs["fields"])})
        begun = implied_settings(self.task, _name(self.start), _name(self.teacher), said)
        task = begun.get("task", self.task)
        if task is None and self.recipe is not None:
            task = Overrides.from_file(recipe_path(os.fspath(self.recipe))).get("task")
        fields = said.get("data.fields", begun.get("data.fields"))
        if fields is not None:
            needs.setdefault("fields", fields)
        task = "" if task is None else str(task)
        what = said.get(f"{task}.modality")
        rows = SPECS[task].rows if task in SPECS else ()
        # A setting that names the media column, or gives their modality, is enough.
        what = what if what in {row.modality for row in rows} else None
        media = any(row.reads == "media" for row in rows)
        if "data.path_field" in said and media and not {*MEDIA, "path"} & set(needs):
            needs["path"] = str(said["data.path_field"])
        tables = {ROWS: bind_data(task, self.data, needs, what=what)}
        if self.valid is not None:
            held = bind_data(task, self.valid, needs, like=tables[ROWS], what=what)
            tables[VALID] = tables[ROWS].match_columns(held)
        asked = Overrides()
        origin = Origin.positional(self.command or "train(data)")
        for name, one in tables.items():
            for key, value in one.settings(out / GIVEN, name).items():
                asked |= Overrides({f"data.{key}": value}, origin)
        return asked, tables

    def run(self, asked: Overrides, origin: Origin, quiet: bool) -> RunSettings:
        path = None if self.recipe is None else recipe_path(os.fspath(self.recipe))
        start, teacher = _name(self.start), _name(self.teacher)
        return settings_for(
            self.task,
            asked,
            self.words,
            recipe=path,
            start=start,
            teacher=teacher,
            origin=origin,
            quiet=quiet,
        )


def _check_arguments(out: object, on: object, metrics: object) -> None:
    """Check the arguments that are used only after the data has been read."""
    if not isinstance(out, str | os.PathLike) or not str(out):
        raise ConfigError(f"out={out!r} must be the path of the run folder, such as 'runs/demo'.")
    if on is not None and not callable(on):
        raise ConfigError(f"on={on!r} must be a function with one argument, a log entry.")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ConfigError(
            f"metrics={metrics!r} must be a dictionary of functions by name, for example "
            'metrics={"polite": function}'
        )


def _check_metric(metric: str | None, spec: Spec) -> None:
    known = {name for row in spec.rows for name in row.scores}
    if metric is not None and metric not in known:
        raise ConfigError(
            f"train.metric={metric!r} is not a metric of the task {spec.name}."
            f"{suggest(metric, sorted(known))} To use a custom metric, pass its function: "
            f"metrics={{{metric!r}: function}}"
        )


def _with_parts(parts: Parts, asked: Overrides) -> Overrides:
    """Register custom parts. The run stores only their name, because code is not saved."""
    from headway.models.parts.custom import register_parts

    if "model.parts" in asked:
        raise ConfigError(
            f"model.parts is given twice: as parts= and in settings ({asked['model.parts']!r}). "
            "Remove model.parts from the settings."
        )
    register_parts(parts)
    return Overrides({"model.parts": parts.name}, in_call("parts"))


def _with_metrics(
    run: RunSettings, metrics: Mapping[str, OwnMetric], by: str | None
) -> tuple[RunSettings, dict[str, CustomMetric]]:
    """Bind custom metrics to the run. It stores only their names and whether higher or lower is
    better, because functions are not saved."""
    from headway.tasks.custom_metrics import custom_metrics

    own = custom_metrics(metrics, spec_of(run))
    said = {f"metrics.{name}": "lower" if one.metric.lower else "higher"
            for name, one in own.items()}  # fmt: skip
    asked = run.asked | Overrides(said, in_call("metrics"))
    if by is not None:
        asked |= Overrides({"train.metric": by}, FROM_PYTHON)
    return replace(run, asked=asked), own


def _settings(settings: SettingsLike | None) -> Overrides:
    if settings is None or isinstance(settings, Overrides):
        return settings or Overrides()
    if not isinstance(settings, RunSettings | Mapping):
        raise ConfigError(f'settings={settings!r} must be a mapping, such as {{"train.lr": 1e-3}}.')
    if not isinstance(settings, RunSettings):
        return Overrides({key: _plain(value) for key, value in settings.items()}, FROM_PYTHON)
    return overrides_of(settings).without("task")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def in_call(name: str) -> Origin:
    """The origin of a setting that a keyword of `headway.train` gives."""
    return Origin.python(f"train({name}=…)")


def _name(run: object) -> str | None:
    """Name of a run, given as a folder, the name of a shipped model, or a loaded run."""
    if run is None:
        return None
    return str(getattr(run, "folder", run))


@contextmanager
def preserved_state(device: torch.device) -> Iterator[None]:
    """Context for training, with gradients enabled. On exit it restores the random state and the
    number of threads of the process."""
    import torch

    threads = torch.get_num_threads()
    devices = [device.index or 0] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
