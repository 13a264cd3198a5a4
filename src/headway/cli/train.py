"""`headway train TASK`: from plain files to a model in a folder. The same command goes on."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.errors import ConfigError, Stopped
from headway.settings.asked import Asked
from headway.settings.recipes import in_folder, recipe_path
from headway.settings.run import resolved_toml
from headway.tasks.specs import ALIASES, SPECS, spec_of

if TYPE_CHECKING:
    from headway.training.run import Training

AGAIN = 75
"""Exit code of a run that stopped because it was asked to; the same command goes on with it."""

INCOMPLETE = 1
"""Of one that ended, while something of it could not be saved."""

Files = Annotated[list[str], typer.Option(help="May be given several times; `-`: standard input.")]


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK [KEY=VALUE]...",
            help=f"{', '.join(SPECS)}; detect, distil; and settings.",
        ),
    ] = None,
    text: Annotated[
        list[str],
        typer.Option(help="Plain text, JSONL, TSV or CSV with labels, CoNLL columns."),
    ] = [],  # noqa: B006
    valid_text: Files = [],  # noqa: B006
    media: Annotated[
        list[str],
        typer.Option(help="Pictures, videos, recordings: folders by class, or TSV/JSONL of paths."),
    ] = [],  # noqa: B006
    valid_media: Files = [],  # noqa: B006
    source: Files = [],  # noqa: B006 (typer's way to say: none)
    target: Files = [],  # noqa: B006
    pairs: Annotated[list[str], typer.Option(help="TSV or JSONL with both sides.")] = [],  # noqa: B006
    valid_source: Files = [],  # noqa: B006
    valid_target: Files = [],  # noqa: B006
    valid_pairs: Files = [],  # noqa: B006
    encoding: Annotated[str | None, typer.Option(help="Of the text files; UTF-8.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="RUN", help="Start from the weights of a run.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(metavar="RUN", help="For distil: the run to learn from.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A recipe's name (`headway recipes`) or a TOML file.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Where the recipe's files are.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Wall-clock time for everything: 90s, 10m, 2h.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; auto: a GPU if any.")] = "auto",
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew, whatever is in the folder.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, resolve, measure; train nothing.")
    ] = False,
) -> int:
    """Train a model from plain files; run the same command again to go on after a stop."""
    started = time.monotonic()
    task, overrides = task_and_settings(words or [])
    given = Asked()
    path = recipe_path(recipe) if recipe else None
    if path and data:
        given |= Asked(in_folder(path, data), "--data")
    elif data:
        raise ConfigError("--data says where the files of a --recipe are. Name a recipe too.")
    options = {
        "source": source, "target": target, "pairs": pairs, "valid_source": valid_source,
        "valid_target": valid_target, "valid_pairs": valid_pairs, "encoding": encoding,
        "text": text, "valid_text": valid_text, "media": media, "valid_media": valid_media,
    }  # fmt: skip
    given |= Asked.from_flags({f"data.{name}": value for name, value in options.items() if value})
    from headway.training.arguments import check_training, settings_for, with_budget

    settings = settings_for(
        task, given, overrides, recipe=path, start=start, teacher=teacher,
        whence=f"headway train {task}",
    )  # fmt: skip
    if out is None and not dry_run:
        raise ConfigError("--out is missing: the folder for this run, for example runs/de-en.")
    check_training(settings)
    budget_s = None
    if budget:
        settings, budget_s = with_budget(settings, budget, "--budget")
    from headway.training.run import Training

    with tempfile.TemporaryDirectory() as folder:
        run = Training(
            settings=settings, out=out or Path(folder), device=device, budget_s=budget_s,
            restart=restart, started=started,
        )  # fmt: skip
        return _show_plan(run, Path(folder)) if dry_run else _train(run)


def _train(run: Training) -> int:
    try:
        return INCOMPLETE if run.train() else 0
    except Stopped as stop:
        run.progress.note(str(stop))
        return AGAIN if stop.saved else INCOMPLETE


def task_and_settings(words: list[str]) -> tuple[str | None, list[str]]:
    """`translate train.lr=1e-3 …`: the task, if named, and the rest."""
    tasks = [word for word in words if "=" not in word]
    if len(tasks) > 1 and Path(tasks[1]).exists():
        options = "--source FILE --target FILE, or --pairs FILE"
        alias = ALIASES.get(tasks[0])
        spec = spec_of(tasks[0]) if tasks[0] in SPECS or (alias and alias.task) else None
        if spec is None or spec.reads != "pairs":
            also = spec is not None and any(row.reads == "media" for row in spec.others)
            media = spec is not None and spec.reads == "media"
            media |= also and Path(tasks[1]).is_dir()
            options = f"{'--media' if media else '--text'} {tasks[1]}"
        raise ConfigError(f"{tasks[1]!r} stands alone; the data goes to options: {options}")
    if len(tasks) > 1:
        raise ConfigError(f"{tasks[1]!r} is not key=value. Example: train.lr=1e-3")
    from headway.training.arguments import check_word

    return (check_word(tasks[0]) if tasks else None), [word for word in words if "=" in word]


def _show_plan(run: Training, folder: Path) -> int:
    """What would happen, measured on this machine. The plan goes to stdout as TOML."""
    from headway.models.summary import count, outline
    from headway.progress import duration
    from headway.training.estimate import memory_needed
    from headway.training.schedule import schedule_line

    prepared = run.task.prepare(run.settings, folder, run.progress)
    for line in prepared.report.lines():
        print(f"# {line}")
    if prepared.report.impossible:
        return 2
    settings, timing = run.dry_run(prepared)
    train, model = settings.train, settings.model
    steps = train.steps or 0
    evaluations = -(-steps // (train.eval_every or 1))
    total = steps * timing.step_s + evaluations * timing.evaluation_s
    print(f"# {count(outline(model)):,} parameters, {memory_needed(settings) / 2**20:,.0f} MiB")
    print(f"# measured: {timing.tokens_per_s:,.0f} tokens/s, {timing.step_s:.3g} s a step")
    print(f"# {steps:,} steps and {evaluations} evaluations: about {duration(total)}")
    print(f"# {schedule_line(train, steps, model.d_model)}")
    print(resolved_toml(settings), end="")
    return 0
