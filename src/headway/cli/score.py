"""`headway score`: print the log-probability that a model assigns to given translations."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headway.cli.data_arguments import (
    DeviceOption,
    RunsArgument,
    SettingsArgument,
    files_and_settings,
    print_note,
    run_folders,
    settings_of,
)
from headway.errors import UserError
from headway.settings.data import DataSettings


def score(
    run: RunsArgument,
    source: Annotated[list[str], typer.Option(help="Source files, one sentence per line.")],
    target: Annotated[list[str], typer.Option(help="Translations, line by line with --source.")],
    words: SettingsArgument = None,
    more: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="RUN", help="Another run, to form an ensemble."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Source and target tokens per batch.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of the text files.")] = "utf-8",
    device: DeviceOption = "auto",
) -> None:
    """Print the log-probability of given translations.

    For each pair: log P, log P per token, and the number of tokens, including the end token."""
    files, overrides = files_and_settings(words or [])
    if files:
        raise UserError(
            f"{files[0]!r} is not a key=value setting. Give files with --source and --target."
        )
    folders = run_folders(run, more or [])
    decode = {} if batch_tokens is None else {"batch_tokens": batch_tokens}
    run_settings = settings_of(folders[0], overrides, decode)
    if run_settings.task != "translate":
        raise UserError(
            f"{folders[0]} is a run of the task {run_settings.task}, but `headway score` supports "
            "only the task translate. Use `headway evaluate` instead."
        )
    from headway.data.pairs import read_pairs
    from headway.run import Run
    from headway.tasks.seq2seq_answers import writer_of

    data = DataSettings(source=tuple(source), target=tuple(target), encoding=encoding)
    model = Run(folders, device=device, settings=run_settings)
    pairs = read_pairs(data.source, data.target, (), data)
    total, n_tokens, n_pairs = 0.0, 0, 0
    for found in writer_of(model.opened, run_settings.decode).score(pairs):
        total, n_tokens, n_pairs = total + found.log_prob, n_tokens + found.n_tokens, n_pairs + 1
        if as_json:
            print(json.dumps(found.facts()))
        else:
            print(f"{found.log_prob:.4f}\t{found.per_token:.4f}\t{found.n_tokens}")
    mean = f", {total / n_tokens:.4f} per token" if n_tokens else ""
    print_note("score", f"{n_pairs:,} pairs, log P {total:.2f}{mean}")
