"""`headway train TASK`: from plain files to a model in a folder. The same command goes on."""

from __future__ import annotations

import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.config.asked import Asked
from headway.config.decode import DecodeSettings
from headway.config.folder import load_run, run_folder
from headway.config.recipes import in_folder, recipe_path
from headway.config.run import RunSettings, load_run_settings, resolved_toml
from headway.errors import ConfigError, suggest
from headway.tasks.specs import SOURCE, SPECS, spec_of

OTHER_WORDS = ("detect", "distil")
"""`detect` is `classify` of documents with fields, and `distil` the task of a teacher."""

Files = Annotated[list[str], typer.Option(help="May be given several times; `-`: standard input.")]


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK [KEY=VALUE]...",
            help="translate, complete, fill, classify, tag, embed, detect, distil; see, watch, "
            "caption, transcribe, identify; and settings.",
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
    given |= beginning(task, start, teacher, overrides)
    if task in SPECS:
        given |= Asked({"task": task}, f"headway train {task}")
    elif not path and not task:
        raise ConfigError(f"name a task ({', '.join((*SPECS, *OTHER_WORDS))}) or a --recipe.")
    settings = load_run_settings(path, overrides, given, is_recipe=True)
    check_files(settings)
    check_beginning(settings)
    if out is None and not dry_run:
        raise ConfigError("--out is missing: the folder for this run, for example runs/de-en.")
    from headway.cli.predict import check_decoding
    from headway.training.plan import seconds
    from headway.training.run import Training
    from headway.training.start import check_task

    unusual = [
        f"decode.{field.name}"
        for field in fields(DecodeSettings)
        if getattr(settings.decode, field.name) != field.default
    ]
    check_decoding(spec_of(settings), unusual)

    if settings.start.run:  # said before the data is prepared
        old = load_run(run_folder(settings.start.run)).model
        assert old is not None
        check_task(settings.start.run, settings.task, old)
    budget_s = seconds(budget) if budget else None
    if budget:
        settings = _with_asked(settings, budget)
    if dry_run:
        with tempfile.TemporaryDirectory() as folder:
            run = Training(
                settings=settings, out=out or Path(folder), device=device, budget_s=budget_s,
                started=started,
            )  # fmt: skip
            return _show_plan(run, Path(folder))
    assert out is not None
    return Training(
        settings=settings, out=out, device=device, budget_s=budget_s, restart=restart,
        started=started,
    ).train()  # fmt: skip


def task_and_settings(words: list[str]) -> tuple[str | None, list[str]]:
    """`translate train.lr=1e-3 …`: the task, if named, and the rest."""
    tasks = [word for word in words if "=" not in word]
    if len(tasks) > 1 and Path(tasks[1]).exists():
        options = "--source FILE --target FILE, or --pairs FILE"
        spec = SPECS.get(tasks[0])
        if spec is None or spec.reads != "pairs":
            media = spec is not None and spec.reads == "media"
            options = f"{'--media' if media else '--text'} {tasks[1]}"
        raise ConfigError(f"{tasks[1]!r} stands alone; the data goes to options: {options}")
    if len(tasks) > 1:
        raise ConfigError(f"{tasks[1]!r} is not key=value. Example: train.lr=1e-3")
    known = (*SPECS, *OTHER_WORDS)
    if tasks and tasks[0] not in known:
        raise ConfigError(f"unknown task {tasks[0]!r}.{suggest(tasks[0], known)}")
    return (tasks[0] if tasks else None), [word for word in words if "=" in word]


def beginning(
    task: str | None, start: str | None, teacher: str | None, overrides: list[str]
) -> Asked:
    """What `--from`, `--teacher`, `detect` and `distil` stand for among the settings."""
    given = Asked({"start.run": start} if start else {}, "--from")
    for word in overrides:
        if word.startswith("distil.teacher="):
            teacher = word.partition("=")[2]
    named = any(word.startswith("data.fields=") for word in overrides)
    if task == "distil":
        if not teacher:
            raise ConfigError("distil needs a run to learn from: --teacher RUN.")
        taught = load_run(run_folder(teacher))
        given |= Asked({"task": taught.task, "distil.teacher": teacher}, "--teacher")
        if taught.data.fields and not named:
            given |= Asked({"data.fields": taught.data.fields}, "--teacher")
    elif teacher:
        raise ConfigError("--teacher goes with the task distil: headway train distil --teacher RUN")
    if task == "complete" and start and not named:
        fields = load_run(run_folder(start)).data.fields
        if fields:
            given |= Asked({"data.fields": fields}, "--from")
    if task == "detect":
        given |= Asked({"task": "classify"}, "headway train detect")
        if not named:
            fields = load_run(run_folder(start)).data.fields if start else ()
            if not fields:
                raise ConfigError(
                    "detect reads documents with fields. Start from a run that has them "
                    "(--from RUN), or name them: data.fields=[title,body]"
                )
            given |= Asked({"data.fields": fields}, "--from")
    return given


def check_beginning(settings: RunSettings) -> None:
    """Refuse what another run, which this one begins with, has decided already."""
    start, teacher = settings.start.run, settings.distil.teacher
    if start and teacher:
        raise ConfigError("a student begins with its teacher's layers: leave --from out.")
    for key in settings.asked:
        if (start or teacher) and key.startswith("tokenizer."):
            raise ConfigError(
                f"{key} has no effect: the vocabulary is that of {start or teacher}. Leave it out."
            )
    if settings.lora.rank and not start:
        raise ConfigError("lora.rank changes the weights of a run: name it with --from RUN.")


def check_files(settings: RunSettings) -> None:
    """Refuse a task without the files it reads, before anything slow."""
    data, spec = settings.data, spec_of(settings)
    if spec.reads == "pairs":
        if not data.source and not data.pairs:
            raise ConfigError(
                "no data. Give --source FILE --target FILE, or --pairs FILE (TSV or JSONL)."
            )
    elif spec.reads == "media":
        if not data.media:
            raise ConfigError(
                f"no data. {spec.name} reads media: --media FOLDER, or a file of paths."
            )
    elif not data.text and not (SOURCE in spec.needs and data.pairs):
        more = ", or --pairs FILE" if SOURCE in spec.needs else ""
        raise ConfigError(f"no data. Give --text FILE{more}.")


def _with_asked(settings: RunSettings, budget: str) -> RunSettings:
    from dataclasses import replace

    return replace(settings, asked=settings.asked | Asked({"budget": budget}, "--budget"))


def _show_plan(run: Any, folder: Path) -> int:
    """What would happen, measured on this machine. The plan goes to stdout as TOML."""
    from headway.models.summary import count, outline
    from headway.progress import duration
    from headway.training.plan import memory_needed
    from headway.training.schedule import schedule_line

    prepared = run.kind.prepare(run.settings, folder, run.progress)
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
