"""`headway train TASK FILES`: train a model from files. The same command resumes it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import completion
from headway.cli.data_arguments import (
    DeviceOption,
    EncodingOption,
    FromOption,
    TeacherOption,
    ValidOption,
    split_words,
)
from headway.cli.flags import COLUMNS, FILES, VALID_FILES, OptionValues, columns_named
from headway.errors import ConfigError, Stopped, columns_by_option
from headway.settings.overrides import Overrides
from headway.settings.run import resolved_toml
from headway.settings.task_rows import check_task_name
from headway.specs.tasks import ALIASES, SPECS
from headway.storage import work_folder

if TYPE_CHECKING:
    from headway.training.request import TrainRequest
    from headway.training.run import Training

AGAIN = 75
"""Exit code of a run that was interrupted and saved. It is `EX_TEMPFAIL` of sysexits.h, because
repeating the command resumes the run."""

INCOMPLETE = 1
"""Exit code of a run that was trained to the end but could not save everything."""

FLAGS = (*COLUMNS, *FILES, *VALID_FILES)


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK|FILE|KEY=VALUE",
            help=f"The task ({', '.join(SPECS)}, detect, distil), data files, and settings.",
            autocompletion=completion.to_train,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the new run.")] = None,
    valid: ValidOption = None,
    encoding: EncodingOption = None,
    start: FromOption = None,
    teacher: TeacherOption = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A recipe's name (`headway recipes`) or a TOML file.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The folder with the data files of the recipe.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time limit for the whole run: 90s, 10m, 2h.")
    ] = None,
    device: DeviceOption = "auto",
    restart: Annotated[
        bool, typer.Option("--restart", help="Train from the start, replacing a run in --out.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show the settings and the expected time, without training."
        ),
    ] = False,
    *,
    named: OptionValues,
) -> int:
    """Train a model from files. To resume an interrupted run, repeat the command.

    With FILES, options such as --text and --label name their columns, if they have other names:
    headway train classify reviews.tsv --text review --label stars --out runs/reviews. Without
    FILES, --text, --source and --target name the files: --source a.de --target a.en.
    """
    started = time.monotonic()
    request = train_request(
        words or [], named, encoding=encoding, recipe=recipe, valid=valid, recipe_data=data,
        start=start, teacher=teacher, budget=budget, out=out,
    )  # fmt: skip
    found = request.resolve()
    if out is None and not dry_run:
        raise ConfigError(
            "--out is missing. Name a folder for this run, for example --out runs/de-en."
        )
    from headway.training.run import Training

    training = partial(
        Training, settings=found.settings, device=device, budget_s=found.budget_s,
        restart=restart, started=started,
    )  # fmt: skip
    with columns_by_option(request.data, request.overrides):
        if dry_run:
            with work_folder() as folder:
                return _show_plan(training(out=out or folder), folder)
        assert out is not None
        return _train(training(out=out))


def _train(run: Training) -> int:
    try:
        return INCOMPLETE if run.train() else 0
    except Stopped as stop:
        run.progress.note(str(stop))
        return AGAIN if stop.saved else INCOMPLETE


def train_request(
    words: Sequence[str], named: OptionValues, *, task: str | None = None,
    encoding: str | None = None, recipe: str | None = None, **more: Any,
) -> TrainRequest:  # fmt: skip
    """Return the request that `headway.train` or `headway.check` would build from the same
    arguments.

    `named`: options that name columns or files. `more`: other fields of the request.
    """
    from headway.training.request import TrainRequest

    task, files, settings = _task_files_settings(words, task, recipe=recipe is not None)
    asked = Overrides.from_flags({"data.encoding": encoding} if encoding else {})
    return TrainRequest(
        task=task, data=files or None, columns=columns_named(files, named), recipe=recipe,
        overrides=asked | Overrides.from_arguments(settings), **more,
    )  # fmt: skip


def _task_files_settings(
    words: Sequence[str], task: str | None = None, *, recipe: bool = False
) -> tuple[str | None, list[str], list[str]]:
    """Split the words `translate pairs.tsv train.lr=1e-3 …` into the task (None if not named),
    files and settings."""
    rest, settings = split_words(words)
    if task is None and rest and (rest[0] in (*SPECS, *ALIASES) or not recipe):
        task, *rest = rest
        if task not in (*SPECS, *ALIASES) and Path(task).is_file():
            raise ConfigError(
                f"{task} is a file, not a task. Name a task before the file: {', '.join(SPECS)}."
            )
    if task is not None:
        check_task_name(task)
    for word in rest:
        if word != "-" and not Path(word).exists():
            raise ConfigError(
                f"no such file: {word!r}. Write settings as key=value, for example train.lr=1e-3."
            )
    alone = task in SPECS and SPECS[task].reads_pairs and len(rest) == 2
    if alone and all(Path(word).is_file() and not _is_table(word) for word in rest):
        one, other = map(shlex.quote, rest)
        raise ConfigError(
            f"{rest[0]} and {rest[1]} are not tables. If they are line-aligned files, use: "
            f"--source {one} --target {other}"
        )
    return task, rest, settings


def _is_table(path: str) -> bool:
    """Whether a file is a table, according to its name or to a tab in its first line."""
    from headway.data.sniff import COMPRESSED, TAB, TABLES, extensions

    if extensions(path) & (COMPRESSED | TABLES - {TAB}):
        return True
    with Path(path).open("rb") as file:
        return b"\t" in file.readline(1 << 20)


def _show_plan(run: Training, folder: Path) -> int:
    """Print the plan of the training on stdout as TOML, with times measured on this machine in
    comments."""
    from headway.models.summary import count_parameters, meta_model
    from headway.progress import duration
    from headway.settings.defaults import TABLE
    from headway.training.estimate import memory_needed
    from headway.training.schedule import schedule_line

    run.choose_start()
    run.decide()
    prepared = run.task.prepare(run.settings, folder, run.progress)
    for line in prepared.report.lines():
        print(f"# {line}")
    if prepared.report.impossible:
        return 2
    settings, timing = run.dry_run(prepared)
    train, model = settings.train, settings.model
    if model.is_counted:
        print(
            "# n-grams are counted in one pass over the training text, at a few seconds per "
            "million tokens"
        )
        print(resolved_toml(settings), end="")
        return 0
    steps = train.steps or 0
    evaluations = -(-steps // (train.eval_every or 1))
    total = steps * timing.step_s + evaluations * timing.evaluation_s
    print(
        f"# {count_parameters(meta_model(model)):,} parameters, "
        f"{memory_needed(settings) / 2**20:,.0f} MiB of memory"
    )
    print(f"# measured: {timing.tokens_per_s:,.0f} tokens/s, {timing.step_s:.3g} s per step")
    print(f"# {steps:,} steps and {evaluations} evaluations: about {duration(total)}")
    print(f"# {schedule_line(train, steps, model.d_model)}")
    print(f"# [row] after a reason: a row of the table of defaults, {TABLE}")
    print(resolved_toml(settings), end="")
    return 0
