"""`headway import`: a run folder from published weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.progress import Progress
from headway.tasks.specs import spec_of

if TYPE_CHECKING:
    from headway.interop.importing import Imported


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A model folder of Hugging Face or sentence-transformers, a .bin file of "
            "llama2.c, a .pt file of Whisper, or owner/name on the Hugging Face hub.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The new run folder.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Settings of the run, such as data.other_field=other."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer file or folder, instead of the one beside the weights."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="`embed`: use any encoder or decoder for vectors.")
    ] = None,
) -> None:
    """Make a run folder of published weights: it predicts, evaluates, trains further, exports."""
    from headway.interop.importing import import_run

    done = import_run(
        source, out, tokenizer=tokenizer, task=task, words=words or (), progress=Progress()
    )
    for line in report(done):
        print(line)


def report(done: Imported) -> list[str]:
    from headway.settings.model import family_of

    settings = done.settings
    assert settings.model is not None
    n = len(done.ignored)
    family = family_of(settings.model)
    a = "an" if family == "encoder" else "a"
    lines = [
        f"{done.folder}: {done.model_type}, {a} {family} for {settings.task}, "
        f"{done.n_parameters:,} parameters",
        f"{done.used:,} tensors used, {n:,} ignored",
    ]
    for reason, count in Counter(done.ignored.values()).items():
        first = next(name for name, why in done.ignored.items() if why == reason)
        more = f" and {count - 1} more" if count > 1 else ""
        lines.append(f"  {first}{more}: {reason}")
    lines += [f"note: {text}" for text in done.notes]
    lines.append("next: " + spec_of(settings).example.format(run=done.folder, mask="[MASK]"))
    return lines
