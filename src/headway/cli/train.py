"""`headway train TASK FILES`: train a model from files. The same command resumes it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import completion
from headway.cli.data_arguments import (
    DeviceOption,
    EncodingOption,
    FromOption,
    TeacherOption,
    ValidOption,
    task_files_settings,
)
from headway.cli.flags import COLUMNS, FILES, VALID_FILES, OptionValues, columns_named
from headway.errors import ConfigError, Stopped
from headway.settings.overrides import Origin, Overrides
from headway.settings.recipes import in_folder, recipe_path
from headway.settings.run import resolved_toml
from headway.specs.tasks import SPECS
from headway.storage import work_folder

if TYPE_CHECKING:
    from headway.api import TrainRequest
    from headway.training.run import Training

AGAIN = 75
"""Exit code of a run that was interrupted and saved: the same command resumes it."""

INCOMPLETE = 1
"""Exit code of a run that ended, but could not save everything."""

FLAGS = (*COLUMNS, *FILES, *VALID_FILES)


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK [FILES]... [KEY=VALUE]...",
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
    task, files, settings = task_files_settings(words or [], recipe=recipe is not None)
    wish = train_request(
        "train",
        task,
        files,
        valid,
        {**named, "encoding": encoding},
        settings,
        start,
        teacher,
        recipe,
    )
    asked, _ = wish.overrides(out or Path())
    if recipe and data:
        asked = Overrides(in_folder(recipe_path(recipe), data), Origin.option("--data")) | asked
    elif data:
        raise ConfigError(
            f"--data {data} names the folder for the files of a recipe, but no recipe is given. "
            "Add --recipe NAME."
        )
    typed = Origin.positional(f"headway train {task}")
    run = wish.run(asked, typed, quiet=False)
    if out is None and not dry_run:
        raise ConfigError(
            "--out is missing. Name a folder for this run, for example --out runs/de-en."
        )
    from headway.training.arguments import check_training, with_budget

    check_training(run)
    budget_s = None
    if budget:
        run, budget_s = with_budget(
            run, budget, Origin.option("--budget"), None if restart else out
        )
    from headway.training.run import Training

    training = partial(
        Training, settings=run, device=device, budget_s=budget_s, restart=restart, started=started
    )
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
    command: str, task: str | None, files: list[str], valid: list[str] | None,
    named: OptionValues, settings: list[str], start: str | None, teacher: str | None,
    recipe: str | None = None,
) -> TrainRequest:  # fmt: skip
    """The request that `headway.train` or `headway.check` would build from the same arguments."""
    from headway.api import TrainRequest

    encoding = named.get("encoding")
    said = {name: one for name, one in named.items() if name != "encoding"}
    needs = columns_named(files, said)
    return TrainRequest(
        task=task, data=files or None, valid=valid, needs=needs, recipe=recipe, start=start,
        teacher=teacher, command=f"headway {command}",
        settings=Overrides.from_flags({"data.encoding": encoding} if encoding else {}),
        words=settings,
    )  # fmt: skip


def _show_plan(run: Training, folder: Path) -> int:
    """Print the plan, with times measured on this machine, as comments and TOML on stdout."""
    from headway.models.summary import count_parameters, meta_model
    from headway.progress import duration
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
    print(resolved_toml(settings), end="")
    return 0
