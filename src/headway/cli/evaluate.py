"""`headway evaluate`: how good a model is on held-out data, with scores that can be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.predict import check_engine, check_settings, run_folders, settings_of
from headway.errors import UserError
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.tasks.specs import spec_of

if TYPE_CHECKING:
    from headway.tasks.scores import Scores

OF_PAIRS = ("source", "target", "hypotheses", "against", "lowercase", "tokenised", "out")
"""Options that only translations have."""


def evaluate(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run folder or shipped model; several with commas."),
    ] = None,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="decode.* settings.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="The test set, in the form of the training data.")
    ] = None,
    media: Annotated[
        list[str] | None,
        typer.Option(help="The test set of pictures, videos or recordings, as in training."),
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="translate: sources, a line each.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="translate: references, a line each.")
    ] = None,
    pairs: Annotated[
        list[str] | None, typer.Option(help="TSV or JSONL with both sides, instead.")
    ] = None,
    hypotheses: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="translate: score these lines; translate nothing."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|FILE", help="translate: compare with another run, or with its output."
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses kept; 1 is greedy.")] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="translate: case does not count.")
    ] = False,
    tokenize: Annotated[
        str, typer.Option(help="translate: sacreBLEU's: 13a, intl, zh, char ...")
    ] = "13a",
    tokenised: Annotated[
        str | None,
        typer.Option(
            metavar="en|de|fr",
            help="translate: also Moses-tokenised lower-cased BLEU, as in papers.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="translate: where the translations go.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of the text files; that of the training data, or UTF-8.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="torch|ctranslate2|onnx", help="What computes; others run an exported folder."
        ),
    ] = "torch",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; auto: a GPU if any.")] = "auto",
) -> None:
    """Score a run on a test set, beside a trivial baseline."""
    check_engine(engine, device)
    if run is None and hypotheses is None:
        raise UserError("name a run to evaluate, or give its output with --hypotheses FILE.")
    overrides = _settings_only(words or [])
    folders = [] if run is None else run_folders(run, [])
    resolved = settings_of(folders[0], overrides, {"beam": beam}) if folders else None
    settings = RunSettings(task="translate") if resolved is None else resolved
    spec = spec_of(settings)
    if len(folders) > 1 and not spec.together:
        raise UserError(
            f"a run of the task {settings.task} is scored alone; {len(folders)} are given."
        )
    options: dict[str, Any] = {
        "source": source, "target": target, "hypotheses": hypotheses,
        "against": against, "lowercase": lowercase, "tokenize": tokenize, "tokenised": tokenised,
        "out": out,
    }  # fmt: skip
    others: list[Path] = []
    if media and spec.reads != "media":
        raise UserError(f"--media has no effect on a run of the task {settings.task}.")
    if spec.reads == "media":
        _refuse(settings.task, {**options, "text": text, "pairs": pairs})
        files = _media_files(settings.data, media, encoding)
    elif spec.reads == "pairs":
        files = _pair_files(settings.data, source, target, pairs, encoding)
        if against is not None and not Path(against).is_file():
            options["against"], others = None, run_folders(against, [])
    else:
        _refuse(settings.task, options)
        files = _text_files(settings.data, text, pairs, encoding)
    progress = Progress()
    from headway.run import Run

    with progress.stage("evaluating"):
        if others:
            precision = settings.decode.precision
            against_runs = Run(tuple(map(str, others)), device=device, precision=precision)
            options["against_runs"] = against_runs.opened
        if resolved is not None:
            names = tuple(map(str, folders))
            model = Run(names, device=device, engine=engine, settings=resolved)
            found = model.score(files, options, progress)
        else:
            from headway.tasks.write_scores import evaluate_translations

            found = evaluate_translations(None, settings.decode, files, options, progress)
    if as_json:
        print(json.dumps(found.facts, indent=2, ensure_ascii=False))
    else:
        _show(found)


def _pair_files(
    data: DataSettings,
    source: list[str] | None,
    target: list[str] | None,
    pairs: list[str] | None,
    encoding: str | None,
) -> DataSettings:
    """The test set; columns are those of the training data. Of a score no line is left out."""
    return replace(
        data, bad="error", source=tuple(source or ()), target=tuple(target or ()) if source else (),
        pairs=tuple(pairs or ()), valid_source=(), valid_target=(), valid_pairs=(),
        encoding=encoding or data.encoding,
    )  # fmt: skip


def _text_files(
    data: DataSettings, text: list[str] | None, pairs: list[str] | None, encoding: str | None
) -> DataSettings:
    """The test set, read as the training data was."""
    if not text and not pairs:
        raise UserError("give a test set: --text FILE.")
    return replace(
        data, text=tuple(text or ()), valid_text=(), pairs=tuple(pairs or ()), valid_pairs=(),
        bad="error", encoding=encoding or data.encoding,
    )  # fmt: skip


def _media_files(data: DataSettings, media: list[str] | None, encoding: str | None) -> DataSettings:
    """The same for pictures and recordings."""
    if not media:
        raise UserError("give a test set: --media PATH.")
    return replace(data, media=tuple(media), valid_media=(), encoding=encoding or data.encoding)


def _refuse(task: str, options: dict[str, Any]) -> None:
    for name in (*OF_PAIRS, "text", "pairs"):
        if options.get(name):
            raise UserError(f"--{name} has no effect on a run of the task {task}.")


def _show(found: Scores) -> None:
    from headway.cli.table import show_table

    show_table(["score", "value", ""], found.rows, {"value"})
    confusion = found.figures.get("confusion")
    if confusion:
        print()
        names = [str(name) for name in confusion["labels"]]
        rows = [
            (name, *map(str, counts))
            for name, counts in zip(names, confusion["counts"], strict=True)
        ]
        show_table(["true \\ answered", *names], rows, set(names))


def _settings_only(words: Sequence[str]) -> list[str]:
    for word in words:
        if "=" not in word:
            raise UserError(f"{word!r} is no key=value setting. Files go to options.")
    check_settings(words)
    return list(words)
