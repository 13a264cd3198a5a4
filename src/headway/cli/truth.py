"""`headway truth`: how often the maps of a run point at the right place, where that is known."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.data_arguments import Json, RunName
from headway.cli.flags import Flag, Named, check_fits
from headway.cli.head_names import shown
from headway.errors import UserError
from headway.progress import Progress
from headway.settings.folder import SHIPPED, load_run, run_folder
from headway.tasks.specs import spec_of

if TYPE_CHECKING:
    from headway.inside.measure.truth import Case, Spoken, Truth
    from headway.tasks.opened import Opened

BEST_HEADS = 5
BASELINES = ("random", "diagonal", "centre")


ENOUGH = 50
"""Judged cases below which a score is mostly luck: a share of a half is then known to 0.14."""


FLAGS = (
    Flag("pairs", "Source, tab, target a line; tab, 0-0 1-2 if aligned.", "cases",
         lambda spec: spec.truth == "pairs", "FILE", Path),
    Flag("reactions", "Reactions as SMILES with numbered atoms.", "cases",
         lambda spec: spec.name == "fill" and spec.modality == "text", "FILE", Path),
    Flag("media", "Pictures with boxes, recordings with word times: a JSONL manifest.", "cases",
         lambda spec: spec.modality != "text", "FILE", Path),
)  # fmt: skip


def truth(
    run: RunName,
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
    pairs, reactions, media = (named.get(flag.name) for flag in FLAGS)
    if spec.truth == "pairs" and pairs is None:
        raise UserError(
            f"{run} translates, so its truth comes from pairs: --pairs FILE, with a source, a tab "
            "and its translation a line. Copied names and numbers in them are known alignments."
        )
    if spec.truth and spec.modality != "text" and media is None:
        raise UserError(
            f"{run} is a run of {task}: its truth comes from a manifest, --media FILE.jsonl, in "
            f"which boxes or times are known. `examples/make_{spec.truth}.py` writes such."
        )
    if not spec.truth and reactions is None:
        print(f"not validated: nobody knows where a run of the task {task} has to look.")
        return
    from headway.inside.measure.maps import METHODS, known
    from headway.inside.measure.truth import measure, measure_times
    from headway.inside.measure.truth.times import with_aligning
    from headway.tasks.opened import open_plain

    wanted = known(METHODS if methods == "all" else methods.split(","))
    loaded = open_plain(run, settings)
    loaded = _fresh(loaded) if untrained else loaded
    spoken: list[Spoken] = []
    if media is not None:
        kind, cases, spoken = _media_cases(loaded, media, texts)
    else:
        kind, cases = _cases(loaded, pairs, reactions, texts)
    if not cases:
        print(f"not validated: {kind}: there is none.")
        return
    with Progress().stage("measuring", len(cases), "texts") as stage:
        found = measure(
            loaded,
            cases,
            wanted,
            task=kind,
            few=few,
            maker=with_aligning(wanted, few) if spoken else None,
            note=stage.update,
        )
    if spoken:
        with Progress().stage("measuring when words are said"):
            times = measure_times(loaded, spoken)
        found = replace(found, facts={**found.facts, "times": times})
    if found.n < ENOUGH:
        print(
            f"only {found.n} {found.unit} could be judged: too few to trust the figures. Give more "
            "texts.",
            file=sys.stderr,
        )
    if out is not None or not untrained:
        _save(found, folder, out)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        _show(found, len(cases))


def _cases(
    run: Opened, pairs: Path | None, reactions: Path | None, most: int
) -> tuple[str, list[Case]]:
    """What the truth is, in words, and the texts."""
    from headway.inside.measure.truth import (
        aligned,
        atom_maps,
        copied_words,
        read_known,
        repeats,
    )

    if reactions is not None:
        return "atoms of reactions", atom_maps(run, reactions)[:most]
    if pairs is None:
        return "tokens copied from random text", repeats(run, min(most, 200))
    known = read_known(pairs)
    if any(pair.links for pair in known):
        return "words with a known alignment", aligned(run, known[:most])
    copied = copied_words(run, [(pair.source, pair.target) for pair in known])
    return "names and numbers copied", copied[:most]


def _media_cases(run: Opened, manifest: Path, most: int) -> tuple[str, list[Case], list[Spoken]]:
    """The same for pictures, videos and recordings; of recordings also when words were said."""
    from headway.inside.measure.truth import recordings, scenes
    from headway.models.seq2seq import Seq2Seq

    if run.settings.task != "transcribe":
        return "things with known boxes", scenes(run, manifest, most), []
    if not isinstance(run.model, Seq2Seq):
        raise UserError("a model with CTC alone looks at nothing word by word: no maps to judge.")
    spoken = recordings(run, manifest, most)
    return "words with known times", [each.case for each in spoken if each.case.links], spoken


def _fresh(run: Opened) -> Opened:
    """What a map finds there is in the shape of the model, not in what it has learned."""
    import torch

    from headway.models.build import build_model

    torch.manual_seed(1)
    return run.with_model(build_model(run.shape).eval())


def _save(found: Truth, folder: Path, out: Path | None) -> None:
    from headway.inside.page.look import TRUTH

    if out is None and folder.is_relative_to(SHIPPED):
        print("not written: this model comes with headway. Use --out FILE.", file=sys.stderr)
        return
    path = out or folder / TRUTH
    found.save(path)
    print(f"wrote {path}", file=sys.stderr)


def _show(found: Truth, n_texts: int) -> None:
    from headway.cli.print_table import show_table
    from headway.inside.measure.truth.measure import is_head

    scores = found.maps
    chance, items = scores["random"].random, _items(found)
    print(
        f"{found.task}: {found.n} {found.unit} in {n_texts} {items}; chance is right {chance:.3f} "
        "of the time\n"
    )
    names = sorted(scores, key=lambda name: -scores[name].p1)
    heads = [name for name in names if is_head(name)]
    chosen = [n for n in names if n not in heads[BEST_HEADS:] and n not in BASELINES]
    # A word is linked to one word or to few; of a thing any patch will do.
    figures = ["P@1", "AER"] if items == "texts" else ["P@1"]
    rows = []
    for name in [*chosen, *(name for name in BASELINES if name in scores)]:
        score = scores[name]
        rates = [f"{score.p1:.3f}", f"{score.aer:.3f}"][: len(figures)]
        rows.append((shown(name), *rates, f"{score.n}"))
    show_table(["map", *figures, found.unit], rows, {*figures, found.unit})
    print()
    if len(heads) > BEST_HEADS:
        mean = sum(scores[name].p1 for name in heads) / len(heads)
        print(f"{len(heads)} heads in all, the mean of their P@1 is {mean:.3f}")
    if found.best is not None:
        best = found.best
        print(
            f"best head, chosen on one half of the {items}: {shown(best.name)}, P@1 {best.p1:.3f} "
            f"on the other half ({best.n} {found.unit})"
        )
    if "times" in found.facts:
        _show_times(found.facts["times"])


def _items(found: Truth) -> str:
    if "times" in found.facts:
        return "recordings"
    return "pictures" if "centre" in found.maps else "texts"


def _show_times(times: dict[str, Any]) -> None:
    from headway.cli.print_table import show_table

    print(f"\nwhere {times['words']} words begin and end, median error\n")
    own = times.get("own_ms", {})
    figures = ["by itself", "moved to pauses"]
    rows = [
        (_way(name), f"{own[name]:.0f} ms" if name in own else "", f"{ms:.0f} ms")
        for name, ms in times["median_ms"].items()
    ]
    show_table(["by", *figures], rows, set(figures))


def _way(name: str) -> str:
    kind, _, head = name.partition(" ")
    return f"{shown(head)}, chosen on one half" if kind == "head" else name
