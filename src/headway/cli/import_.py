"""`headway import`: convert published weights to a run folder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.progress import Progress
from headway.settings.task_rows import spec_of

if TYPE_CHECKING:
    from headway.interop.importing import ImportSummary


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A Hugging Face or sentence-transformers folder, a llama2.c .bin file, a "
            "Whisper .pt file, or owner/name on the Hugging Face hub.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The new run folder.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Settings of the new run, such as data.other_field=other."
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="A tokenizer file or folder, instead of the one next to the weights."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="`embed`: use an encoder or decoder for embeddings.")
    ] = None,
) -> None:
    """Convert published weights to a run folder.

    The new run can predict, be evaluated, fine-tuned, served and exported."""
    from headway.interop.importing import import_run

    done = import_run(
        source, out, tokenizer=tokenizer, task=task, words=words or (), progress=Progress()
    )
    for line in report(done):
        print(line)


def report(done: ImportSummary) -> list[str]:
    from headway.settings.model import family_of

    settings = done.settings
    assert settings.model is not None
    n = len(done.ignored)
    family = family_of(settings.model)
    a = "an" if family[0] in "aeiou" else "a"
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
