"""Build the settings of a run from the arguments of `headway train` and `headway.train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.errors import ConfigError, UserError, suggest
from headway.progress import Progress
from headway.settings.data import GIVEN
from headway.settings.decode import DecodeSettings
from headway.settings.folder import CONFIG, load_run, run_folder
from headway.settings.overrides import UNKNOWN, Origin, OriginKind, Overrides
from headway.settings.run import RunSettings, load_run_settings, overrides_of
from headway.settings.start import DistilSettings, LoraSettings
from headway.settings.task_rows import spec_of
from headway.settings.toml import parse, read_text
from headway.specs.needs import SOURCE
from headway.specs.tasks import ALIASES, SPECS, Alias
from headway.storage import work_folder

if TYPE_CHECKING:
    from headway.data.bound_data import BoundData
    from headway.data.check_report import Report


def check_task_name(task: str) -> str:
    """Return the word if it is a task or an alias of one; otherwise raise an error."""
    if task not in (*SPECS, *ALIASES):
        known = [*SPECS, *(name for name, alias in ALIASES.items() if not alias.old)]
        raise ConfigError(f"unknown task {task!r}.{suggest(task, known)}")
    return task


def settings_for(
    task: str | None,
    given: Overrides,
    words: Sequence[str] = (),
    *,
    recipe: Path | None = None,
    start: str | None = None,
    teacher: str | None = None,
    origin: Origin = UNKNOWN,
    quiet: bool = False,
) -> RunSettings:
    """Return the settings of a recipe, overridden by options (`given`) and `key=value` arguments.

    `origin`: of the task. `quiet`: print no note about a renamed task.
    """
    asked = given | Overrides.from_arguments(words)
    if task is None and recipe is None:
        known = [*SPECS, *(name for name, alias in ALIASES.items() if not alias.old)]
        raise ConfigError(
            f"no task given. Choose one ({', '.join(known)}), or give --recipe FILE.",
            python=f"no task given. Pass one ({', '.join(known)}) as the first argument, or pass "
            "recipe=….",
        )
    given |= implied_settings(task, start, teacher, asked)
    word = task
    if recipe is not None and not task:
        word = str(parse(read_text(recipe), recipe).get("task"))
    if word in ALIASES and ALIASES[word].old:
        new, what = ALIASES[word].task, ALIASES[word].modality
        Progress(enabled=not quiet).note(
            f"the task {word} is now part of the task {new}: use {new} with {new}.modality={what}"
        )
    if task in SPECS or (task in ALIASES and ALIASES[task].old):
        given |= Overrides({"task": task}, origin)
    settings = load_run_settings(recipe, words, given, is_recipe=True)
    check_files(settings)
    return settings


def check_training(settings: RunSettings) -> None:
    """Reject settings that are impossible or have no effect, before any data is read."""
    check_implied(settings)
    from headway.settings.warm_start import check_task

    spec = spec_of(settings)
    for field in fields(DecodeSettings):
        unusual = getattr(settings.decode, field.name) != field.default
        if unusual and field.name not in spec.decode:
            raise UserError(
                f"decode.{field.name} has no effect on a run of the task {spec.name}. Remove "
                f"decode.{field.name}."
            )
    if settings.start.run:
        old = load_run(run_folder(settings.start.run)).model
        assert old is not None
        check_task(settings.start.run, settings, old)


def with_budget(
    settings: RunSettings, budget: str, origin: Origin, goes_on: Path | None = None
) -> tuple[RunSettings, float]:
    """Return the settings with the budget, which a resumed run must repeat, and its seconds.

    `goes_on`: folder of a run that may be resumed.
    """
    from headway.training.estimate import seconds

    length = seconds(budget)
    if goes_on is None or not _had_budget(goes_on):
        _check_length(settings, budget)
    asked = settings.asked | Overrides({"budget": budget}, origin)
    return replace(settings, asked=asked), length


def _check_length(settings: RunSettings, budget: str) -> None:
    """Reject a budget beside explicit `train.steps` or `train.epochs`; those of a recipe are only
    defaults."""
    for key in ("train.steps", "train.epochs"):
        if settings.asked.origin(key).kind in (OriginKind.SETTING, OriginKind.PYTHON):
            raise ConfigError(
                f"{key}={settings.asked[key]} and --budget {budget} both set the length of "
                "training. Remove one of them."
            )


def _had_budget(folder: Path) -> bool:
    """Whether the folder has a run that was started with a budget. Older versions ignored steps
    beside a budget, and the command that started such a run must still resume it."""
    if not (folder / CONFIG).is_file():
        return False
    try:
        return "budget" in load_run(folder).asked
    except UserError:  # reported when the run is opened
        return True


def data_report(
    settings: RunSettings, given: Mapping[str, BoundData] | None = None, *, quiet: bool = False,
    steps: bool = False,
) -> Report:  # fmt: skip
    """Prepare the data in a temporary folder, as training would, and report what is unusual.

    `steps`: also show one example after each stage from its file to a batch.
    """
    from headway.data.binding_table import TrainingTables
    from headway.data.store import ImpossibleData
    from headway.tasks.modality import decided
    from headway.tasks.pretrained import with_pretrained
    from headway.tasks.task import find_task

    with work_folder() as folder:
        changes: dict[str, Any] = {}
        for part, one in (given or {}).items():
            one.write(folder / GIVEN, part)
            changes |= one.settings(folder / GIVEN, part)
        tuples: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in changes.items()
        }
        data = replace(settings.data, **tuples)
        with Progress(enabled=not quiet) as progress:
            run = decided(with_pretrained(replace(settings, data=data)))
            try:
                prepared = find_task(run).prepare(run, folder, progress)
            except ImpossibleData as error:
                found: Report = error.report
            else:
                found = replace(prepared.report, fingerprint=prepared.fingerprint)
                if steps:
                    from headway.training.example_stages import steps_of

                    found = replace(found, steps=steps_of(run, prepared))
        tables = TrainingTables.of(run, spec_of(run), given or {})
        found = replace(found, columns=tables.columns, tables=tables.lines(found))
    return found


NOTHING = "none"
"""Value of `--from` for training from scratch, without the default pretrained run."""


def implied_settings(
    task: str | None, start: str | None, teacher: str | None, asked: Overrides
) -> Overrides:
    """Return the settings that `--from`, `--teacher`, `detect` and `distil` imply."""
    nothing = start == NOTHING
    by_start, by_teacher = Origin.implied("--from"), Origin.implied("--teacher")
    given = Overrides(
        {"start.run": "" if nothing else start} if start else {}, Origin.option("--from")
    )
    start = None if nothing else start
    teacher = asked.get("distil.teacher", teacher)
    named = "data.fields" in asked
    alias = ALIASES.get(task or "", Alias())
    if alias.needs == "distil.teacher":
        if not teacher:
            raise ConfigError("the task distil needs a teacher. Give its run: --teacher RUN.")
        taught = load_run(run_folder(teacher))
        given |= Overrides({"task": taught.task, "distil.teacher": teacher}, by_teacher)
        spec = spec_of(taught)
        section = getattr(taught, spec.name, None)
        given |= Overrides(
            {f"{spec.name}.{name}": getattr(section, name) for name in spec.readout_settings},
            by_teacher,
        )
        if not spec.is_text and hasattr(section, "modality"):
            given |= Overrides({f"{spec.name}.modality": spec.modality}, by_teacher)
        if taught.data.fields and not named:
            given |= Overrides({"data.fields": taught.data.fields}, by_teacher)
    elif teacher:
        raise ConfigError(
            "--teacher applies only to the task distil: headway train distil --teacher RUN"
        )
    if task in SPECS and SPECS[task].continues and start and not named:
        fields = load_run(run_folder(start)).data.fields
        if fields:
            given |= Overrides({"data.fields": fields}, by_start)
    if alias.needs == "data.fields":
        given |= Overrides({"task": alias.task}, Origin.positional(f"headway train {task}"))
        if not named:
            fields = load_run(run_folder(start)).data.fields if start else ()
            if not fields:
                raise ConfigError(
                    f"the task {task} needs documents with fields. Start from a run that has "
                    "fields (--from RUN), or give their names: data.fields=[title,body]"
                )
            given |= Overrides({"data.fields": fields}, by_start)
    return given


def check_implied(settings: RunSettings) -> None:
    """Reject settings that the start run or the teacher has fixed, or that have no effect without
    one."""
    start, teacher = settings.start.run, settings.distil.teacher
    if start and teacher:
        raise ConfigError(
            "--from cannot be combined with --teacher: a student starts from layers of its "
            "teacher. Remove --from."
        )
    for key in settings.asked:
        if (start or teacher) and key.startswith("tokenizer."):
            raise ConfigError(
                f"{key} has no effect: the vocabulary comes from {start or teacher}. Remove {key}."
            )
    if settings.distil != DistilSettings() and not teacher:
        key = next(key for key in settings.asked if key.startswith("distil."))
        raise ConfigError(
            f"{key} has no effect without a teacher. Give a run as the teacher: headway train "
            "distil --teacher RUN."
        )
    if settings.lora != LoraSettings() and not settings.lora.rank:
        key = next(key for key in overrides_of(settings) if key.startswith("lora."))
        raise ConfigError(f"{key} has no effect without lora.rank. Set lora.rank, or remove {key}.")
    if not spec_of(settings).pretrained or "start.run" in settings.asked:
        check_from_scratch(settings)


def check_from_scratch(settings: RunSettings) -> None:
    """Reject settings about the weights of another run where training starts from scratch."""
    start = settings.start
    needs_run = {
        "lora.rank": settings.lora.rank, "start.freeze": start.freeze,
        "start.layer_decay": start.layer_decay != 1.0,
    }  # fmt: skip
    key = next((key for key, is_set in needs_run.items() if is_set), None)
    if key is not None and not start.run:
        raise ConfigError(
            f"{key} needs the weights of another run, but this run starts from scratch. Choose a "
            f"run to start from with --from RUN (`headway models` lists some), or remove {key}."
        )


def check_files(settings: RunSettings) -> None:
    """Reject a task without training files, before anything slow."""
    data, spec = settings.data, spec_of(settings)
    texts = data.text or (data.pairs if SOURCE in spec.needs else ())
    there = {"pairs": data.source or data.pairs, "media": data.media}.get(spec.reads, texts)
    if not there:
        raise ConfigError(
            f"no training data. Give FILES after the task{spec.file_options}.",
            python="no training data. Pass it after the task, as a path, a list of paths or a "
            f"table: headway.train({settings.task!r}, data, out=…){spec.file_arguments}.",
        )
