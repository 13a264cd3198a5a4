"""`headway make`: pictures, videos and recordings with known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.errors import ConfigError, suggest

KINDS = {
    "shapes": "scenes of shapes with captions and boxes",
    "moving": "videos of shapes that move, with actions and captions",
    "digits": "strings of spoken digits with the time of each",
}


def make(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="shapes, moving or digits.")],
    out: Annotated[Path, typer.Option(help="A new folder.")],
    n: Annotated[
        int | None,
        typer.Option(help="Examples to train on. [default: 20000 shapes, 10000 of the others]"),
    ] = None,
    valid: Annotated[int | None, typer.Option(help="Examples to validate with.")] = None,
    test: Annotated[int | None, typer.Option(help="Examples of each test set.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same bytes.")] = 0,
    size: Annotated[
        int | None,
        typer.Option(help="Pictures: rows and columns. [default: 48 shapes, 32 moving]"),
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="moving: frames of a video. [default: 8]")
    ] = None,
    recordings: Annotated[
        str | None, typer.Option(help="digits: all recordings side by side, sound file or .npy.")
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            help="digits: an .npy with a line a recording: speaker, digit, take, samples."
        ),
    ] = None,
    rate: Annotated[
        int | None, typer.Option(help="digits: samples a second of an .npy. [default: 8000]")
    ] = None,
    longest: Annotated[
        int | None, typer.Option(help="digits: most of a string. [default: 7]")
    ] = None,
    gap: Annotated[
        float | None, typer.Option(help="digits: longest pause in seconds. [default: 0.2]")
    ] = None,
    overlap: Annotated[
        float | None, typer.Option(help="digits: most seconds that two overlap. [default: 0]")
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="digits: noise as a share of the speech. [default: 0]")
    ] = None,
) -> None:
    """Make data with known truth: scenes of shapes, videos of moving shapes, strings of digits."""
    given: dict[str, Any] = {
        name: value
        for name, value in {
            "n": n, "valid": valid, "test": test, "size": size, "frames": frames,
            "recordings": recordings, "index": index, "rate": rate, "longest": longest,
            "gap": gap, "overlap": overlap, "noise": noise,
        }.items()
        if value is not None
    }  # fmt: skip
    new = _makers(kind, out, {**given, "seed": seed})
    files = sorted(path for path in out.iterdir() if path.suffix == ".jsonl")
    print(f"{out}: {KINDS[kind]}" + ("" if new else " (they were there already)"))
    width = max(len(path.name) for path in files)
    for path in files:
        with path.open("rb") as file:
            print(f"  {path.name:<{width}}  {sum(1 for _ in file):>7,}")


def _makers(kind: str, out: Path, given: dict[str, Any]) -> bool:
    """False: the same was there already."""
    from dataclasses import fields

    from headway.data.making.digits import DigitsSettings, make_digits
    from headway.data.making.moving import MovingSettings, make_moving
    from headway.data.making.shapes import ShapesSettings, make_shapes

    if kind not in KINDS:
        raise ConfigError(f"cannot make {kind!r}.{suggest(kind, KINDS)}")
    settings = {"shapes": ShapesSettings, "moving": MovingSettings, "digits": DigitsSettings}[kind]
    foreign = [name for name in given if name not in {field.name for field in fields(settings)}]
    if foreign:
        raise ConfigError(f"`headway make {kind}` has no --{foreign[0]}.")
    if kind == "digits":
        missing = [name for name in ("recordings", "index") if name not in given]
        if missing:
            raise ConfigError(
                f"`headway make digits` needs --{missing[0]}: AudioMNIST, say. "
                "See docs/tasks/making.md."
            )
        return make_digits(out, DigitsSettings(**given))
    if kind == "moving":
        return make_moving(out, MovingSettings(**given))
    return make_shapes(out, ShapesSettings(**given))
