"""Requests from `headway train`, `headway check`, `headway.train` and `headway.check`.

The command line and Python build the same `TrainRequest`. Its method `resolve` returns the settings
of a run and its data.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from headway.data.bound_data import ROWS, VALID, BoundData
from headway.data.files import DataFiles
from headway.data.named_data import bind_data, named_files
from headway.errors import DATA_ARGUMENT, ConfigError, Option
from headway.settings.data import GIVEN
from headway.settings.effects import OF_REQUEST, RequestFacts
from headway.settings.folder import load_run, run_folder
from headway.settings.listed import ensure_list
from headway.settings.overrides import Origin, OriginKind, Overrides, as_typed
from headway.settings.recipes import in_folder, recipe_path
from headway.settings.run import RunSettings, load_run_settings
from headway.settings.task_rows import check_task_name, spec_of
from headway.specs.needs import MEDIA
from headway.specs.tasks import ALIASES, SPECS, Alias
from headway.training.check_settings import check_files, check_training

ColumnOrFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""Name of a column, or one or several files."""

NOTHING = "none"
"""Value of `start` that trains from scratch, without the default pretrained run."""


@dataclass(frozen=True)
class RequestedRun:
    """Settings and data that a `TrainRequest` resolves to."""

    settings: RunSettings
    """Settings that the user gave. All others are chosen later, from the data."""

    tables: Mapping[str, BoundData] = field(default_factory=dict)
    """Training and validation data passed in memory, by the names of the files that they will be
    written to."""

    budget_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """Run to train, or data to check for one, as the user describes it."""

    command: Literal["train", "check"] = "train"
    task: str | None
    """Name of a task, or its alias. None: the recipe names the task."""

    data: object = None
    """Files, or a table in memory. None: `columns` or the settings name the files."""

    valid: object = None
    """Validation data, as files or as a table in memory. None: the settings name the files, or a
    part of `data` is used."""

    columns: Mapping[str, ColumnOrFiles] = field(default_factory=dict)
    """Column names of `data`, by input and target of the task. Without `data`: files that each hold
    one column."""

    overrides: Overrides = field(default_factory=Overrides)
    """Settings by key, from `key=value` arguments or from Python."""

    recipe: str | os.PathLike[str] | None = None
    """Name of a shipped recipe, or path of a TOML file."""

    recipe_data: Path | None = None
    """Folder that contains the data files of the recipe. None: the paths in the recipe are used."""

    start: str | None = None
    """Run to fine-tune. `none`: train from scratch. None: the default pretrained run, if the task
    has one."""

    teacher: str | None = None
    """Run whose model is distilled into the new one. None: no distillation."""

    budget: str | None = None
    """Time for the whole run, such as `10m`. None: no limit."""

    out: Path | None = None

    def resolve(self) -> RequestedRun:
        """Return the settings and the data, after all checks that need not read all data.

        If several sources give a setting, the last of these takes precedence: recipe, start run or
        teacher, data, settings, task.
        """
        self._check_task()
        self._check_options()
        self._check_runs()
        recipe = None if self.recipe is None else recipe_path(os.fspath(self.recipe))
        of_recipe = Overrides() if recipe is None else Overrides.from_file(recipe)
        files = DataFiles()
        said = self.overrides | self._fields()
        implied = implied_settings(self.task, self.start, self.teacher, said)
        if self.data is None:
            named, tables = self._name_files(), dict[str, BoundData]()
        else:
            task = implied.get("task", self.task) or of_recipe.get("task") or ""
            named, tables = self._bind(str(task), implied | said, files)
        self._check_given_once(named)
        asked = self._files_of_recipe(recipe) | implied | named | self.overrides
        settings = load_run_settings(recipe, [], asked | self._arguments(implied), is_recipe=True)
        settings = replace(settings, files=files)
        check_files(settings)
        if self.command == "train":
            check_training(settings)
        if self.budget is None:
            return RequestedRun(settings, tables)
        settings, budget_s = self._with_budget(settings, self.budget)
        return RequestedRun(settings, tables, budget_s)

    def _check_task(self) -> None:
        if self.task is not None:
            check_task_name(self.task)
        elif self.recipe is None:
            recipe = f", or a recipe: {Option('recipe', takes='NAME')}" * (self.command == "train")
            raise ConfigError(f"no task is given. Name a task ({', '.join(SPECS)}){recipe}.")

    def _check_options(self) -> None:
        """Raise an error for an argument that has no effect in combination with the others."""
        distils = ALIASES.get(self.task or "", Alias()).needs == "distil.teacher"
        facts = RequestFacts(
            distils=distils, data=self.data is not None, recipe=self.recipe is not None
        )
        options = {"teacher": self.teacher, "valid": self.valid is not None,
                   "data": self.recipe_data}  # fmt: skip
        OF_REQUEST.check_options(options, facts)
        given = self.overrides.only(["distil.teacher"])
        OF_REQUEST.check(given, facts, typed=lambda key, value: as_typed(given, key))

    def _check_runs(self) -> None:
        """Raise an error if the start run or the teacher is unknown. This comes first, because
        later checks of settings depend on the two runs."""
        for name in (self.start, self.teacher):
            if name not in (None, "", NOTHING):
                run_folder(name)

    def _arguments(self, implied: Overrides) -> Overrides:
        """Return the settings that correspond to arguments: the start run and the task."""
        found = implied.only(["start.run"])
        if self.task in SPECS:
            words, call = f"headway {self.command} {self.task}", f"{self.command}(…)"
            found |= Overrides({"task": self.task}, Origin.positional(words, call))
        return found

    def _fields(self) -> Overrides:
        """Return the setting `data.fields` if an argument names the fields as columns of the data;
        otherwise nothing."""
        fields = self.columns.get("fields") if self.data is not None else None
        return Overrides({"data.fields": ensure_list(fields)}) if fields else Overrides()

    def _name_files(self) -> Overrides:
        """Return the settings of the data files, if arguments name files instead of columns."""
        found = Overrides()
        for key, value in named_files(self.columns).items():
            origin = Origin.argument(key.removesuffix("_field"))
            found |= Overrides({f"data.{key}": value}, origin)
        return found

    def _bind(
        self, task: str, said: Overrides, files: DataFiles
    ) -> tuple[Overrides, dict[str, BoundData]]:
        """Bind the columns of the data. Return the settings for its files and columns, and the
        tables in memory.

        `said`: settings that may name a column or give the modality.
        """
        columns = dict[str, Any](self.columns)
        if "data.fields" in said:
            columns["fields"] = said["data.fields"]
        what = said.get(f"{task}.modality")
        rows = SPECS[task].rows if task in SPECS else ()
        what = what if what in {row.modality for row in rows} else None
        media = any(row.is_media for row in rows)
        if "data.path_field" in said and media and not {*MEDIA, "path"} & set(columns):
            columns["path"] = str(said["data.path_field"])
        data = {ROWS: bind_data(task, self.data, columns, what=what, files=files)}
        if self.valid is not None:
            valid = bind_data(task, self.valid, columns, like=data[ROWS], what=what, files=files)
            data[VALID] = data[ROWS].match_columns(valid)
        found = Overrides()
        origin = Origin.positional(f"headway {self.command}", "train(data)")
        for name, one in data.items():
            for key, value in one.settings((self.out or Path()) / GIVEN, name).items():
                found |= Overrides({f"data.{key}": value}, origin)
        return found, {name: one for name, one in data.items() if one.table is not None}

    def _check_given_once(self, found: Overrides) -> None:
        """Raise an error if a setting and an argument name different files or columns."""
        for key, value in found.items():
            said = self.overrides.get(key, value)
            if str(said) != str(value):  # a column may have a number
                by = [f"{Option(name, str(one))}" for name, one in self.columns.items()
                      if ensure_list(one) == ensure_list(value)]  # fmt: skip
                raise ConfigError(
                    f"{key} is given twice: by {by[0] if by else DATA_ARGUMENT} and by "
                    f"{as_typed(self.overrides, key)}. Give it only once."
                )

    def _files_of_recipe(self, recipe: Path | None) -> Overrides:
        """Return the settings of the recipe's data files, which are looked up in the folder
        `recipe_data`."""
        if self.recipe_data is None or recipe is None:
            return Overrides()
        return Overrides(in_folder(recipe, self.recipe_data), Origin.argument("data"))

    def _with_budget(self, settings: RunSettings, budget: str) -> tuple[RunSettings, float]:
        """Return the settings with the time budget, and the budget in seconds. The settings store
        the budget because a resumed run must repeat it."""
        from headway.training.estimate import seconds

        length = seconds(budget)
        _check_length(settings, budget)
        asked = settings.asked | Overrides({"budget": budget}, Origin.argument("budget"))
        return replace(settings, asked=asked), length


def implied_settings(
    task: str | None, start: str | None, teacher: str | None, asked: Overrides
) -> Overrides:
    """Return the settings that follow from a start run, a teacher, `detect` or `distil`."""
    nothing = start == NOTHING
    by_start, by_teacher = Origin.implied(Option("start")), Origin.implied(Option("teacher"))
    given = Overrides()
    if start:
        given |= Overrides({"start.run": "" if nothing else start}, Origin.argument("start"))
    start = None if nothing else start
    teacher = asked.get("distil.teacher", teacher)
    named = "data.fields" in asked
    alias = ALIASES.get(task or "", Alias())
    if alias.needs == "distil.teacher":
        if not teacher:
            raise ConfigError(
                f"the task distil needs a teacher. Give its run: {Option('teacher', takes='RUN')}."
            )
        given |= _of_teacher(teacher, by_teacher, with_fields=not named)
    if task in SPECS and SPECS[task].continues and start and not named:
        fields = load_run(run_folder(start)).data.fields
        if fields:
            given |= Overrides({"data.fields": fields}, by_start)
    if alias.needs == "data.fields":
        origin = Origin.positional(f"headway train {task}", "train(…)")
        given |= Overrides({"task": alias.task}, origin)
        if not named:
            fields = load_run(run_folder(start)).data.fields if start else ()
            if not fields:
                raise ConfigError(
                    f"the task {task} needs documents with fields. Start from a run that has "
                    f"fields ({Option('start', takes='RUN')}), or give their names: "
                    "data.fields=[title,body]"
                )
            given |= Overrides({"data.fields": fields}, by_start)
    return given


def _of_teacher(teacher: str, origin: Origin, *, with_fields: bool) -> Overrides:
    """Return the settings of a student that follow from its teacher."""
    taught = load_run(run_folder(teacher))
    spec = spec_of(taught)
    section = getattr(taught, spec.name, None)
    found: dict[str, Any] = {"task": taught.task, "distil.teacher": teacher}
    found |= {f"{spec.name}.{name}": getattr(section, name) for name in spec.readout_settings}
    if not spec.is_text and hasattr(section, "modality"):
        found[f"{spec.name}.modality"] = spec.modality
    if taught.data.fields and with_fields:
        found["data.fields"] = taught.data.fields
    return Overrides(found, origin)


def _check_length(settings: RunSettings, budget: str) -> None:
    """Raise an error for a budget in combination with explicit `train.steps` or `train.epochs`.
    Steps and epochs of a recipe are only defaults, so they are allowed."""
    for key in ("train.steps", "train.epochs"):
        if settings.asked.origin(key).kind in (OriginKind.SETTING, OriginKind.PYTHON):
            raise ConfigError(
                f"{key}={settings.asked[key]} and {Option('budget', budget)} both set the length "
                "of training. Remove one of them."
            )
