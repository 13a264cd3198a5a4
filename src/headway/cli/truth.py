"""`headway truth`: how often the maps of a run point at the right place, where that is known."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.data_arguments import Json, RunName, check_alone, say
from headway.cli.flags import Flag, Named, check_fits
from headway.cli.head_names import shown
from headway.cli.print_table import show_table
from headway.errors import UserError
from headway.progress import Progress
from headway.settings.folder import is_shipped, load_run, run_folder
from headway.tasks.specs import Spec, spec_of

if TYPE_CHECKING:
    from headway.inside.measure.truth import Truth

BEST_HEADS = 5
FLAGS = (
    Flag("pairs", "Source, tab, target a line; tab, 0-0 1-2 if aligned.", "cases",
         lambda spec: spec.truth == "pairs", "FILE", Path),
    Flag("reactions", "Reactions as SMILES with numbered atoms.", "cases",
         lambda spec: spec.answers == "gaps" and spec.modality == "text", "FILE", Path),
    Flag("media", "Pictures with boxes, recordings with word times: a JSONL manifest.", "cases",
         lambda spec: spec.modality != "text", "FILE", Path),
)  # fmt: skip


def truth(
    run: RunName,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Pairs, reactions or a manifest, as the run reads."),
    ] = None,
    texts: Annotated[int, typer.Option(min=2, help="The most texts to use.")] = 500,
    few: Annotated[
        int, typer.Option(min=0, help="Of these, how many for maps that take time.")
    ] = 40,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; else truth.json in the run folder.")
    ] = None,
    methods: Annotated[
        str, typer.Option("--maps", help="Kinds of maps, with commas; all: every kind.")
    ] = "all",
    untrained: Annotated[
        bool, typer.Option("--untrained", help="A control: the same shape with fresh weights.")
    ] = False,
    as_json: Json = False,
    *,
    named: Named,
) -> None:
    """Measure every map and head of a run beside chance, and note it for its pages."""
    folder = run_folder(run)
    settings = load_run(folder)
    spec, task = spec_of(settings), settings.task
    check_fits(named, FLAGS, spec)
    if words:
        named = _by_option(words, named, spec)
    pairs, reactions, media = (named.get(flag.name) for flag in FLAGS)
    if spec.truth == "pairs" and pairs is None:
        raise UserError(
            f"{run} translates, so its truth comes from pairs, with a source, a tab and its "
            f"translation a line: headway truth {run} pairs.tsv. Copied names and numbers in them "
            "are known alignments."
        )
    if spec.truth and spec.modality != "text" and media is None:
        raise UserError(
            f"{run} is a run of {task}: its truth comes from a manifest in which boxes or times "
            f"are known: headway truth {run} FILE.jsonl. `examples/make_{spec.truth}.py` writes "
            "such."
        )
    if not spec.truth and reactions is None:
        print(f"not validated: nobody knows where a run of the task {task} has to look.")
        return
    from headway.inside.measure.maps import METHODS, known
    from headway.inside.measure.truth.validate import find_cases, validate, with_fresh_weights
    from headway.tasks.opened import open_plain

    wanted = known(METHODS if methods == "all" else methods.split(","))
    loaded = open_plain(run, settings)
    loaded = with_fresh_weights(loaded) if untrained else loaded
    cases = find_cases(loaded, texts, pairs=pairs, reactions=reactions, media=media)
    if not cases.cases:
        print(f"not validated: {cases.kind}: there is none.")
        return
    found = validate(loaded, cases, wanted, few=few, progress=Progress())
    if not found.is_telling:
        say(
            f"only {found.n} {found.unit} could be judged: too few to trust the figures. Give more "
            "texts."
        )
    if out is not None or not untrained:
        _save(found, folder, out)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        _show(found, len(cases.cases))


def _by_option(words: list[str], named: Named, spec: Spec) -> Named:
    """The file that stands behind the run, under the option that such a run takes it by."""
    check_alone(words, named)
    if len(words) > 1:
        raise UserError(f"one file at a time, but there are {len(words)}: {', '.join(words)}.")
    flag = next((flag for flag in FLAGS if flag.fits(spec)), None)
    if flag is None:
        raise UserError(
            f"{words[0]} has no effect: a run of the task {spec.name} takes no file here."
        )
    return {flag.name: Path(words[0])}


def _save(found: Truth, folder: Path, out: Path | None) -> None:
    from headway.inside.page.look import TRUTH

    if out is None and is_shipped(folder):
        say("not written: this model comes with headway. Use --out FILE.")
        return
    path = out or folder / TRUTH
    found.save(path)
    say(f"wrote {path}")


def _show(found: Truth, n_texts: int) -> None:
    scores, items = found.maps, found.items
    print(
        f"{found.task}: {found.n} {found.unit} in {n_texts} {items}; chance is right "
        f"{found.chance:.3f} of the time\n"
    )
    # A word is linked to one word or to few; of a thing any patch will do.
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
        print(f"{len(heads)} heads in all, the mean of their P@1 is {mean:.3f}")
    if found.best is not None:
        best = found.best
        print(
            f"best head, chosen on one half of the {items}: {shown(best.name)}, P@1 {best.p1:.3f} "
            f"on the other half ({best.n} {found.unit})"
        )
    if times := found.facts.get("times"):
        print(f"\nwhere {times['words']} words begin and end, median error\n")
        ways, own = ["by itself", "moved to pauses"], times.get("own_ms", {})
        rows = [
            (_way(name), f"{own[name]:.0f} ms" if name in own else "", f"{ms:.0f} ms")
            for name, ms in times["median_ms"].items()
        ]
        show_table(["by", *ways], rows, set(ways))


def _way(name: str) -> str:
    kind, _, head = name.partition(" ")
    return f"{shown(head)}, chosen on one half" if kind == "head" else name
