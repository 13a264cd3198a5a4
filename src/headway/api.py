"""`headway.train` and `headway.check`: the commands `train` and `check` as Python functions."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import ConfigError, FolderError, columns_by_option, suggest
from headway.settings.data import INPUTS
from headway.settings.overrides import FROM_PYTHON, Origin, Overrides
from headway.settings.run import RunSettings, overrides_of
from headway.settings.synonyms import setting_here, setting_with, training_setting
from headway.settings.task_rows import spec_of
from headway.specs.tasks import SPECS, Spec
from headway.training.request import ColumnOrFiles, TrainRequest

if TYPE_CHECKING:
    import torch

    from headway.data.check_report import Report
    from headway.models.parts.custom import Parts
    from headway.run import Run
    from headway.tasks.custom_metrics import CustomMetric
    from headway.tasks.custom_metrics import MetricFunction as OwnMetric
    from headway.training.log import LogCallback

SettingsLike = Mapping[str, Any] | RunSettings
"""Type of settings: a mapping by dotted key (`{"train.lr": 1e-3}`), nested mappings, or a
`RunSettings`."""

_TRAINING_LOCK = threading.RLock()
"""Lock that allows one training at a time, because seeds and the number of threads are
process-wide."""


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
    """Train a model in the folder `out`, or resume the training there.

    The call blocks until the training ends. Ctrl-C saves a checkpoint and raises
    `headway.errors.Stopped`; the same call then resumes. Errors that the caller can fix raise
    `UserError`.

    Args:
        task: Name of the task, such as `"classify"`. None if the recipe names it.
        data: Training data, as a path, a list of paths, or a table in memory.
        out: Folder of the run.
        valid: Validation data, in the same forms as `data`. None: a part of `data` is held out.
        start: Run to fine-tune. `"none"`: train from scratch. None: chosen from the data.
        teacher: Run to learn from, for the task `distil`.
        preset: Name of a published architecture, such as `"gpt2"`.
        recipe: Name of a recipe, or path of a TOML file with settings.
        settings: Settings by dotted key, such as `{"train.lr": 1e-3}`, or as nested mappings.
        device: `"cpu"`, `"cuda"` or `"cuda:1"`. `"auto"` uses a GPU if there is one.
        budget: Time limit of the whole call, as a text (`"10m"`) or in seconds. None: no limit.
        restart: Train from the beginning and replace the run in `out`.
        quiet: Print nothing.
        on: Function that is called with every log entry, a mapping. If it returns True, or a text
            with the reason, training ends and keeps the best weights so far.
        metrics: Custom metrics by name. Each is a function of predictions and targets, or a pair
            `(function, "lower")` if lower values are better. `train.metric` may name one of them.
        parts: Custom blocks, positional encodings or attention patterns. Pass them again to resume
            training, and to `load`.
        **needs: Names of the columns of `data`, such as `text="review"`. Without `data`, names of
            files, such as `source="a.de"`. Training settings such as `epochs=3` are accepted, too.

    Returns:
        The trained run.

    Example:
        run = headway.train("classify", "reviews.tsv", label="stars", out="runs/reviews", epochs=3)
    """
    started = time.monotonic()
    _check_arguments(out, on, metrics)
    out = Path(out)
    if budget is not None and not isinstance(budget, str):
        budget = f"{budget:.10g}s"
    request = _request(
        task, data, needs, settings, start, teacher, valid=valid, recipe=recipe, budget=budget,
        out=out,
    )  # fmt: skip
    asked = request.overrides
    if preset is not None:
        asked |= Overrides({"model.preset": preset}, Origin.argument("preset"))
    if parts is not None:
        asked |= _with_parts(parts, asked)
    by = asked.get("train.metric") if asked.get("train.metric") in (metrics or {}) else None
    if by is not None:
        asked = asked.without("train.metric")
    elif task in SPECS:
        _check_metric(asked.get("train.metric"), SPECS[task])
    found = replace(request, overrides=asked).resolve()
    run, own = _with_metrics(found.settings, metrics or {}, by)
    from headway.training.run import Training

    with _TRAINING_LOCK:
        training = Training(
            settings=run, out=out, device=device, budget_s=found.budget_s, restart=restart,
            bound_data=found.tables, quiet=quiet, on=on, custom_metrics=own,
            custom_selection=by or "", call=f"headway.train(…, out={os.fspath(out)!r})",
            started=started,
        )  # fmt: skip
        with preserved_state(training.ranks.device), columns_by_option(data is not None, asked):
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
    """Check data before training, as `headway check` does. Nothing is trained.

    Args:
        task: Name of the task, such as `"classify"`.
        data: Training data, as a path, a list of paths, or a table in memory.
        valid: Validation data, in the same forms as `data`. None: a part of `data` is held out.
        start: Run to fine-tune. `"none"`: train from scratch. None: chosen from the data.
        teacher: Run to learn from, for the task `distil`.
        settings: Settings by dotted key, such as `{"train.lr": 1e-3}`, or as nested mappings.
        quiet: Print nothing.
        **needs: Names of the columns of `data`, such as `text="review"`. Without `data`, names of
            files, such as `source="a.de"`. Training settings such as `epochs=3` are accepted, too.

    Returns:
        A report of the problems. `report.ok` is False if no model can be trained on the data.

    Example:
        >>> rows = [{"source": f"{n} Hunde", "target": f"{n} dogs"} for n in range(99)]
        >>> headway.check("translate", rows).ok
        True
    """
    request = _request(
        task, data, needs, settings, start, teacher, valid=valid, command="check"
    )  # fmt: skip
    found = request.resolve()
    from headway.training.data_report import data_report

    with columns_by_option(data is not None, request.overrides):
        return data_report(found, quiet=quiet)


def _request(
    task: str | None, data: object, needs: Mapping[str, ColumnOrFiles],
    settings: SettingsLike | None, start: object, teacher: object, **more: Any,
) -> TrainRequest:  # fmt: skip
    """Build the training request from the arguments of `train` or `check`. `needs`: their
    additional keyword arguments, which are columns or files by input name, and training settings
    such as `epochs=3`."""
    asked = _settings(settings)
    columns = {name: one for name, one in needs.items() if not _is_setting(task, name)}
    for name in needs.keys() - columns.keys():
        key, value = training_setting(name), needs[name]
        if key is None:
            raise ConfigError(
                f"{name}={value!r} is not an argument of train(). Pass it as a setting: "
                f"settings={{{setting_with(name, value)}}}"
            )
        if key in asked:
            raise ConfigError(
                f"{key} is given twice: as {name}= and in the settings. Give it only once."
            )
        asked |= Overrides({key: value}, Origin.argument(name))
    return TrainRequest(
        task=task, data=data, columns=columns, overrides=asked, start=_name(start),
        teacher=_name(teacher), **more,
    )  # fmt: skip


def _is_setting(task: str | None, name: str) -> bool:
    """Whether a keyword is the name of a setting, in headway or in another library."""
    rows = SPECS[task].rows if task in SPECS else ()
    if any(name == need.name for row in rows for need in row.needs):
        return False
    return name not in INPUTS and bool(training_setting(name) or setting_here(name))


def _check_arguments(out: object, on: object, metrics: object) -> None:
    """Raise a `ConfigError` for invalid arguments that would otherwise fail only after the data has
    been read."""
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
    """Register custom parts, and return the setting `model.parts` with their name. A run stores
    only the name, because code is not saved."""
    from headway.models.parts.custom import register_parts

    if "model.parts" in asked:
        raise ConfigError(
            f"model.parts is given twice: as parts= and in settings ({asked['model.parts']!r}). "
            "Remove model.parts from the settings."
        )
    register_parts(parts)
    return Overrides({"model.parts": parts.name}, Origin.argument("parts"))


def _with_metrics(
    run: RunSettings, metrics: Mapping[str, OwnMetric], by: str | None
) -> tuple[RunSettings, dict[str, CustomMetric]]:
    """Return settings that name the custom metrics, and the metrics by name. A run stores only the
    names and whether higher or lower is better, because functions are not saved."""
    from headway.tasks.custom_metrics import custom_metrics

    own = custom_metrics(metrics, spec_of(run))
    said = {f"metrics.{name}": "lower" if one.metric.lower else "higher"
            for name, one in own.items()}  # fmt: skip
    asked = run.asked | Overrides(said, Origin.argument("metrics"))
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


def _name(run: object) -> str | None:
    """Return a run as text: the folder of a loaded `Run`, otherwise the given name or path. None if
    no run is given."""
    if run is None:
        return None
    return str(getattr(run, "folder", run))


@contextmanager
def preserved_state(device: torch.device) -> Iterator[None]:
    """Context manager that enables gradients for training. On exit, the random state and the number
    of threads are restored."""
    import torch

    threads = torch.get_num_threads()
    devices = [device.index or 0] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
