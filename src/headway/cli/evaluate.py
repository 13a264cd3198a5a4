"""`headway evaluate`: score a model on held-out data with comparable metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import completion
from headway.cli.data_arguments import (
    DeviceOption,
    EngineOption,
    JsonOption,
    check_decoding,
    check_engine,
    check_settings,
    run_folders,
    settings_of,
    split_words,
)
from headway.cli.flags import (
    COLUMNS,
    DECODING,
    FILES,
    SCORES,
    OptionValues,
    check_fits,
    columns_named,
    in_sections,
)
from headway.cli.print_table import show_table
from headway.errors import UserError, columns_by_option, visible
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.renamed import key_of
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of

if TYPE_CHECKING:
    from headway.tasks.scores import Scores

TEST_SET = (*COLUMNS, *FILES)
FLAGS = (*TEST_SET, *SCORES, *DECODING)


def evaluate(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="A run folder or shipped model; separate several by commas.",
            autocompletion=completion.runs,
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|KEY=VALUE", autocompletion=completion.to_ask,
            help="The test set, in the format of the training data; decode.* settings.",
        ),
    ] = None,
    as_json: JsonOption = False,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of the text files. Default: as in training.")
    ] = None,
    engine: EngineOption = "torch",
    device: DeviceOption = "auto",
    *,
    named: OptionValues,
) -> None:  # fmt: skip
    """Score a run on a test set, next to a trivial baseline.

    With FILES, options such as --text and --label name their columns, if these differ from the
    training data. Without FILES, --text, --source and --target name the files themselves.
    """
    check_engine(engine, device)
    decode, rest = in_sections(named)
    if run is None and "hypotheses" not in rest:
        raise UserError("no run given. Name a run, or give model outputs with --hypotheses FILE.")
    paths, overrides = split_words(words or [])
    check_settings(overrides)
    folders = [] if run is None else run_folders(run)
    resolved = settings_of(folders[0], overrides, decode) if folders else None
    settings = RunSettings(task="translate") if resolved is None else resolved
    if len(folders) > 1 and not spec_of(settings).scores_ensembles:
        raise UserError(
            f"runs of the task {settings.task} cannot form an ensemble. Give one run, not "
            f"{len(folders)}."
        )
    check_fits(named, FLAGS, spec_of(settings))
    check_decoding(settings, overrides)
    files = files_of_test(settings, paths, rest, encoding, hypotheses="hypotheses" in rest)
    options: dict[str, Any] = {flag.name: rest.get(flag.name) for flag in SCORES}
    if not paths and "pairs" not in rest:
        options |= {"source": rest.get("source"), "target": rest.get("target")}
    others: list[Path] = []
    if options["against"] is not None and not Path(options["against"]).is_file():
        others = run_folders(options.pop("against"))
    from headway.run import Run

    progress = Progress()
    said = {key_of(word) for word in overrides}
    with progress.stage("evaluating"), columns_by_option(paths, said):
        if others:
            beside = Run(others, device=device, precision=settings.decode.precision)
            options["against_runs"] = beside.opened
        if resolved is not None:
            model = Run(folders, device=device, engine=engine, settings=resolved)
            found = model.score(files, options, progress)
        else:
            from headway.tasks.translate import evaluate_outputs

            found = evaluate_outputs(settings.decode, files, options, progress)
    if as_json:
        print(visible(json.dumps(found.facts, indent=2, ensure_ascii=False)))
    else:
        _show(found)


def files_of_test(
    settings: RunSettings, paths: list[str], named: OptionValues, encoding: str | None, *,
    hypotheses: bool = False,
) -> DataSettings:  # fmt: skip
    """Return the data settings of a test set. Invalid lines are errors, because scores must cover
    every line."""
    from headway.run import test_files

    names = {flag.name for flag in TEST_SET}
    needs: dict[str, Any] = {name: one for name, one in named.items() if name in names}
    if not paths and not needs and not hypotheses:
        raise UserError(f"no test set given. Give FILES{spec_of(settings).file_options}.")
    if not paths and not {"source", "pairs"} & needs.keys():  # given outputs need no sources
        needs.pop("target", None)
    found = test_files(settings, paths, columns_named(paths, needs))
    return replace(found, encoding=encoding or found.encoding)


def _show(found: Scores) -> None:
    from headway.tasks.format import confusion_rows

    show_table(["score", "value", ""], found.rows, {"value"})
    if rows := confusion_rows(found):
        print()
        head, *counts = rows
        show_table(head, counts, set(head[1:]))
