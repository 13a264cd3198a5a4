"""`headway factors`: dictionary learning, which decomposes hidden states into sums of feature
directions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.data_arguments import (
    DeviceOption,
    RunArgument,
    check_alone,
    print_note,
    split_words,
)
from headway.cli.flags import Flag, OptionValues, check_fits
from headway.cli.print_table import show_table
from headway.errors import FolderError, UserError
from headway.progress import Progress
from headway.settings.folder import is_shipped, run_folder
from headway.settings.overrides import parse_override

if TYPE_CHECKING:
    from headway.inside.measure.features.dictionary import FeatureDictionary

TELLING = 10
"""Number of features listed on the terminal, about half a screen. The output folder contains all of
them."""

CONTEXT = 7
"""Number of tokens that the table shows before the strongest activation. It is small enough for a
line of the terminal."""


FLAGS = (
    Flag("text", "A corpus with one text per line; for translation, source<TAB>target.", "cases",
         lambda spec: not spec.is_media, "FILE", several=True),
    Flag("media", "A corpus of images, videos or audio: folders or manifests.", "cases",
         lambda spec: spec.is_media, "PATH", several=True),
)  # fmt: skip


def factors(
    run: RunArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE|KEY=VALUE",
            help="A corpus. Settings: n=512, k=16, l1, layers=all, tokens, rows, browse, steps, "
            "minutes, seed.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The folder to write. Default: `factors` in the run folder."
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(metavar="sparse|topk", help="Sparse coding or a TopK autoencoder."),
    ] = "sparse",
    restart: Annotated[
        bool, typer.Option("--restart", help="Replace the factors in the folder.")
    ] = False,
    device: DeviceOption = "auto",
    *,
    named: OptionValues,
) -> None:
    """Learn a dictionary of features (factors) of hidden states.

    `headway look --factors` shows them. Default corpus: the validation data saved with the run.
    """
    files, given = split_words(words or [])
    settings = _settings(given)
    check_alone(files, named)
    folder = run_folder(run)
    # Shipped models are in the package, where nothing may be written.
    place = out or (Path(f"{folder.name}-factors") if is_shipped(folder) else folder / "factors")
    _check_free(place, restart)
    from headway.inside.capture.corpus import Corpus
    from headway.inside.measure.features.dictionary import factors as learn
    from headway.nn.devices import pick_device
    from headway.tasks.loaded_run import open_plain

    loaded = open_plain(folder)
    check_fits(named, FLAGS, loaded.spec)
    files = files or named.get("text") or named.get("media") or []
    corpus = Corpus.of(files, loaded) if files else Corpus.own(loaded)
    where = pick_device(device)
    with Progress().stage("learning factors"):
        found = learn(
            loaded,
            corpus,
            device=where,
            note=partial(print_note, "factors"),
            method=method,
            **settings,
        )
    found.save(place)
    _show(found)
    way = "--text '…'" if corpus.lines else "--file …"
    print(f"\nwrote {place}. To see the factors: headway look {run} {way} --factors {place}")


def _settings(words: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in words:
        path, value = parse_override(word)
        name = ".".join(path)
        if name == "method":
            raise UserError(
                "method= is an option, not a setting. Use --method sparse or --method topk."
            )
        found[name] = str(value) if name == "layers" else value
    return found


def _check_free(place: Path, restart: bool) -> None:
    if place.exists() and not place.is_dir():
        raise FolderError(f"{place} is a file, not a folder. Give another folder with --out.")
    if not restart and place.is_dir() and any(place.iterdir()):
        raise FolderError(
            f"{place} is not empty. Replace its contents with --restart, or give another folder "
            "with --out."
        )


def _show(found: FeatureDictionary) -> None:
    figures, unit = found.figures, found.figures["unit"]
    many = figures.get("rows", "tokens")
    held = "held-out text" if many == "tokens" else "held-out examples"
    rows = [
        ("explained variance", f"{figures['explained']:.1%}", f"of centred hidden states, {held}"),
        (f"factors per {many[:-1]}", f"{figures['l0']:.1f}", f"of {found.n:,}"),
        ("dead factors", f"{figures['dead']:.1%}", f"in {figures['browsed_tokens']:,} {many}"),
        ("loss recovered", _share(figures["recovered"]), f"{unit}; 0 % means layers set to zero"),
        ("", _share(figures["recovered_mean"]), "0 % means layers replaced by their mean"),
    ]
    show_table(["measure", "value", ""], rows, {"value"})
    print()
    named = zip(found.sites, figures["layers"], strict=True)
    names = ("explained", "l0", "loss", "rebuilt", "mean", "zero")
    show_table(
        ["layer", "explained", "active", "loss", "rebuilt", "mean", "zeros"],
        [(_layer(site), *(f"{facts[name]:.3f}" for name in names)) for site, facts in named],
        {"explained", "active", "loss", "rebuilt", "mean", "zeros"},
    )
    print()
    show_table(
        ["factor", "fires", "layer", "effect", "where it fires most"],
        [_line(found, number) for number in found.most_effective(TELLING)],
        {"factor", "fires", "effect"},
    )


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"


def _line(found: FeatureDictionary, number: int) -> tuple[str, ...]:
    entry = found.entries[number]
    context = entry["contexts"][0]
    at, pieces = context["at"], context["pieces"]
    before = "".join(pieces[max(0, at - CONTEXT) : at])
    space = " " if pieces[at].startswith(" ") else ""
    shown = f"{before}{space}[{pieces[at].strip()}]{''.join(pieces[at + 1 : at + 3])}"
    effect = entry["effect"]["kl"]
    layer = _layer(found.sites[entry["site"]])
    return str(number), f"{entry['fires']:.2%}", layer, f"{effect:.3f}", shown.strip()


def _layer(site: tuple[str, int]) -> str:
    stack, layer = site
    name = "embedding" if layer == 0 else f"layer {layer}"
    return name if stack == "self" else f"{stack} {name}"
