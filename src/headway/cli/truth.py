"""`headway truth`: measure how often attribution maps point at the position that is known to be
right."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.data_arguments import JsonOption, RunArgument, check_alone, print_to_stderr
from headway.cli.flags import Flag, OptionValues, check_fits
from headway.cli.head_names import shown
from headway.cli.print_table import show_table
from headway.errors import UserError
from headway.progress import Progress
from headway.settings.folder import is_shipped, load_run, run_folder
from headway.settings.task_rows import spec_of
from headway.specs.tasks import Spec

if TYPE_CHECKING:
    from headway.inside.measure.truth import MapAccuracy

BEST_HEADS = 5
"""Number of heads listed on the terminal. The result file contains all of them."""

FLAGS = (
    Flag("pairs", "SOURCE<TAB>TARGET per line; optionally <TAB> and an alignment like 0-0 1-2.",
         "cases",
         lambda spec: spec.truth == "pairs", "FILE", Path),
    Flag("reactions", "Reactions as SMILES with atom-mapping numbers.", "cases",
         lambda spec: spec.fills_masks and spec.is_text, "FILE", Path),
    Flag("media", "A JSONL manifest of images with boxes, or audio with word times.", "cases",
         lambda spec: not spec.is_text, "FILE", Path),
)  # fmt: skip


def truth(
    run: RunArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE", help="Pairs, reactions or a media manifest, depending on the run."
        ),
    ] = None,
    texts: Annotated[int, typer.Option(min=2, help="Maximum number of inputs to use.")] = 500,
    few: Annotated[
        int, typer.Option(min=0, help="Maximum number of inputs for the slow maps.")
    ] = 40,
    out: Annotated[
        Path | None, typer.Option(help="The file to write. Default: truth.json in the run folder.")
    ] = None,
    methods: Annotated[
        str, typer.Option("--maps", help="Kinds of maps, separated by commas, or all.")
    ] = "all",
    untrained: Annotated[
        bool,
        typer.Option(
            "--untrained", help="Measure the same architecture with random weights, as a control."
        ),
    ] = False,
    as_json: JsonOption = False,
    *,
    named: OptionValues,
) -> None:
    """Compare attention maps and heads with ground truth.

    Every map is compared with chance, on data with known ground truth. The result is saved
    for the pages of `headway look`."""
    folder = run_folder(run)
    settings = load_run(folder)
    spec, task = spec_of(settings), settings.task
    check_fits(named, FLAGS, spec)
    if words:
        named = _by_option(words, named, spec)
    pairs, reactions, media = (named.get(flag.name) for flag in FLAGS)
    if spec.truth == "pairs" and pairs is None:
        raise UserError(
            f"{run} is a run of the task {task} and needs a file with SOURCE<TAB>TARGET on each "
            f"line: headway truth {run} pairs.tsv. Names and numbers that are copied from source "
            "to target serve as known alignments."
        )
    if spec.truth and not spec.is_text and media is None:
        raise UserError(
            f"{run} is a run of the task {task} and needs a manifest with known boxes or times: "
            f"headway truth {run} FILE.jsonl. `examples/make_{spec.truth}.py` writes such a "
            "manifest."
        )
    if not spec.truth and reactions is None:
        print(f"not validated: the correct positions are unknown for runs of the task {task}.")
        return
    from headway.inside.measure.maps import METHODS, check_methods
    from headway.inside.measure.truth.accuracy import find_cases, validate, with_fresh_weights
    from headway.tasks.loaded_run import open_plain

    wanted = check_methods(METHODS if methods == "all" else methods.split(","))
    loaded = open_plain(run, settings)
    loaded = with_fresh_weights(loaded) if untrained else loaded
    cases = find_cases(loaded, texts, pairs=pairs, reactions=reactions, media=media)
    if not cases.cases:
        print(f"not validated: the inputs contain no known positions ({cases.kind}).")
        return
    found = validate(loaded, cases, wanted, few=few, progress=Progress())
    if not found.is_conclusive:
        print_to_stderr(
            f"only {found.n} {found.unit} could be measured: too few for reliable figures. Give "
            "more inputs."
        )
    if out is not None or not untrained:
        _save(found, folder, out)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        _show(found, len(cases.cases))


def _by_option(words: list[str], named: OptionValues, spec: Spec) -> OptionValues:
    """Return the positional file as a mapping, under the name of the option that applies to the
    run."""
    check_alone(words, named)
    if len(words) > 1:
        raise UserError(
            f"headway truth reads one file, but {len(words)} are given: {', '.join(words)}."
        )
    flag = next((flag for flag in FLAGS if flag.fits(spec)), None)
    if flag is None:
        raise UserError(
            f"headway truth reads no file for a run of the task {spec.name}, but {words[0]} is "
            "given. Leave the file out."
        )
    return {flag.name: Path(words[0])}


def _save(found: MapAccuracy, folder: Path, out: Path | None) -> None:
    from headway.inside.page.look import TRUTH

    if out is None and is_shipped(folder):
        print_to_stderr(f"not saved: {folder.name} is a shipped model. Give a file with --out.")
        return
    path = out or folder / TRUTH
    found.save(path)
    print_to_stderr(f"wrote {path}")


def _show(found: MapAccuracy, n_texts: int) -> None:
    scores, items = found.maps, found.items
    print(
        f"{found.task}: {found.n} {found.unit} in {n_texts} {items}; chance "
        f"accuracy {found.chance:.3f}\n"
    )
    # P@1 is printed for all data, AER only for texts: any patch of an object is a correct answer.
    figures = ["P@1", "AER"] if items == "texts" else ["P@1"]
    rows = []
    for name in found.leading(BEST_HEADS):
        score = scores[name]
        rates = [f"{score.p1:.3f}", f"{score.aer:.3f}"][: len(figures)]
        rows.append((shown(name), *rates, f"{score.n}"))
    show_table(["map", *figures, found.unit], rows, {*figures, found.unit})
    print()
    heads = found.heads
    if len(heads) > BEST_HEADS:
        mean = sum(scores[name].p1 for name in heads) / len(heads)
        print(f"{len(heads)} heads in total, mean P@1 {mean:.3f}")
    if found.best is not None:
        best = found.best
        print(
            f"best head, selected on one half of the {items}: {shown(best.name)}, "
            f"P@1 {best.p1:.3f} on the other half ({best.n} {found.unit})"
        )
    if times := found.facts.get("times"):
        print(f"\nstart and end times of {times['words']} words, median error\n")
        ways, own = ["raw", "moved to pauses"], times.get("own_ms", {})
        rows = [
            (_way(name), f"{own[name]:.0f} ms" if name in own else "", f"{ms:.0f} ms")
            for name, ms in times["median_ms"].items()
        ]
        show_table(["method", *ways], rows, set(ways))


def _way(name: str) -> str:
    way, _, head = name.partition(" ")
    return f"{shown(head)}, selected on one half" if way == "head" else name
