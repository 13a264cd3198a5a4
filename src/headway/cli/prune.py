"""`headway prune`: remove the least important attention heads, and report the effect on the
score."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.data_arguments import JsonOption, RunArgument, print_to_stderr
from headway.cli.evaluate import TEST_SET, files_of_test
from headway.cli.flags import OptionValues, check_fits
from headway.cli.head_names import head_given, shown
from headway.cli.print_table import show_table
from headway.errors import UserError
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.folder import is_shipped, load_run, run_folder
from headway.settings.model import ModelSettings
from headway.settings.task_rows import spec_of

if TYPE_CHECKING:
    from headway.inside.capture.streams import Reading
    from headway.inside.measure.heads import HeadAnalysis
    from headway.inside.measure.pruning import HeadId
    from headway.inside.measure.pruning_curve import ComparisonRow
    from headway.tasks.loaded_run import LoadedRun


def prune(
    run: RunArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="A test set, in the format of the training data."),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            metavar="40%|N|cross.2.4,…",
            help="How many heads to remove, least important first; or which, counted from 1.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the pruned run.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="Remove heads of this attention only: encoder, cross, …")
    ] = None,
    curve: Annotated[
        bool,
        typer.Option(
            "--curve", help="Measure the score with 0 to 90 % removed; saved in RUN for `look`."
        ),
    ] = False,
    importance_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Inputs to measure importance on: texts (SOURCE<TAB>TARGET for pairs) or media.",
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(help="Encoding of the text files. Default: as in training."),
    ] = None,
    as_json: JsonOption = False,
    *,
    named: OptionValues,
) -> None:
    """Remove attention heads from a model permanently. Print size, score and speed before and
    after."""
    if heads is None and not curve:
        raise UserError("nothing to do: give --heads, for example --heads 40%, or --curve.")
    if (heads is None) != (out is None):
        raise UserError(
            "--heads and --out must be given together: --heads selects the heads to remove, and "
            "--out names the new folder."
        )
    folder = run_folder(run)
    settings = load_run(folder)
    check_fits(named, TEST_SET, spec_of(settings))
    files = files_of_test(settings, words or [], named, encoding) if words or named else None
    if curve and files is None:
        ways = spec_of(settings).file_options
        raise UserError(f"--curve needs a test set. Give FILES{ways}.")
    if not settings.model.attention_layers:
        raise UserError(
            f"{run} has no attention heads to remove: its model.body is {settings.model.body}. "
            "Only models with model.body=transformer can be pruned."
        )
    wanted = None if heads is None else _wanted(heads, settings.model, kind)
    from headway.inside.measure.pruning_curve import find_examples, least_important
    from headway.storage import check_free
    from headway.tasks.loaded_run import open_plain

    if out is not None:
        check_free(out)
    whole = open_plain(folder, settings)
    judging = curve or isinstance(wanted, int)
    readings, where = find_examples(whole, importance_from, files, needed=judging)
    found = _judged(whole, readings, where) if judging else None
    if curve:
        assert files is not None
        assert found is not None
        _curve(whole, files, found, folder)
    if out is not None:
        assert wanted is not None
        if isinstance(wanted, int):
            assert found is not None
            wanted = least_important(whole.shape, found, wanted, kind)
        _write(whole, wanted, out, readings, files, as_json)


def _wanted(text: str, model: ModelSettings, kind: str | None) -> int | frozenset[HeadId]:
    """Return the number of heads to remove, or the list of heads, from the value of `--heads`."""
    from headway.inside.measure.pruning import all_heads, prunable, remaining_heads

    if kind is not None and kind not in model.attention_layers:
        has = ", ".join(model.attention_layers)
        raise UserError(
            f"--kind {kind} is not a kind of attention in this model. Choose from: {has}."
        )
    if "." in text and not text.endswith("%"):
        gone = frozenset(head_given(name, "--heads") for name in text.split(","))
        if kind is not None:
            raise UserError("--kind cannot be combined with heads by name (--heads). Leave it out.")
        remaining_heads(model, gone)  # an unknown head, or none left, surfaces here
        return gone
    total = sum(kind in (None, head[0]) for head in all_heads(model))
    most = prunable(model, kind)
    of = f"the {total} heads" + ("" if kind is None else f" of {kind} attention")
    try:
        share = text.endswith("%")
        n_gone = round(float(text[:-1]) / 100 * total if share else float(int(text)))
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"--heads {text!r} is not valid. Give a share (40%), a number (12) or a list of heads "
            "(cross.2.4,encoder.1.1)."
        ) from error
    if n_gone < 1:
        raise UserError(f"--heads {text} removes none of {of}. Give a larger value.")
    if n_gone > most:
        raise UserError(
            f"--heads {text} would remove {n_gone} of {of}, but every attention layer must keep "
            f"at least one head. At most {most} can be removed ({100 * most / total:.0f} %)."
        )
    return n_gone


def _judged(run: LoadedRun, readings: list[Reading], where: str) -> HeadAnalysis:
    from headway.inside.measure.heads import heads

    print_to_stderr(f"measuring head importance on {len(readings):,} {readings[0].unit}: {where}")
    with Progress().stage("measuring heads"):
        return replace(heads(run, readings), source=where)


def _curve(run: LoadedRun, files: DataSettings, found: HeadAnalysis, folder: Path) -> None:
    from headway.inside.measure.pruning_curve import CURVE, curve, save_head_analysis

    with Progress().stage("measuring the score without heads"):
        measured = curve(run, files, found, note=print_to_stderr)
    rows = [
        (p.order, p.kind, f"{p.share:.0%}", str(p.gone), f"{p.score:.2f}") for p in measured.points
    ]
    show_table(["order", "attention", "share", "removed", measured.metric], rows,
               {"share", "removed", measured.metric})  # fmt: skip
    if is_shipped(folder):
        print_to_stderr(
            f"curve not saved: {folder.name} is a shipped model. Copy it to your own folder first."
        )
        return
    save_head_analysis(folder, found, measured)
    print_to_stderr(f"saved {folder / CURVE}. `headway look` shows the curve.")


def _write(
    run: LoadedRun, gone: frozenset[HeadId], out: Path, readings: list[Reading],
    files: DataSettings | None, as_json: bool,
) -> None:  # fmt: skip
    from headway.inside.measure.pruning import name_of
    from headway.inside.measure.pruning_curve import prune_run

    lines = prune_run(run, gone, out, readings, files)
    names = [name_of(head) for head in sorted(gone)]
    if as_json:
        print(json.dumps({"heads": names, "lines": [asdict(line) for line in lines]}, indent=2))
        return
    rows = [_row(line) for line in lines]
    show_table(["", "before", "after", "change", ""], rows, {"before", "after", "change"})
    print(f"\nheads removed: {', '.join(map(shown, names))}")
    print_to_stderr(f"wrote {out}. To fine-tune it: `headway train … --from {out}`")


def _row(line: ComparisonRow) -> tuple[str, ...]:
    before, after = (f"{value:,.{line.digits}f}" for value in (line.before, line.after))
    change = f"{line.after - line.before:+.{line.digits}f}"
    if not line.digits and line.before:
        change = f"{100 * (line.after / line.before - 1):+.1f} %"
    return line.name, before, after, change, line.note
