"""`headway export`: a run as a folder for another program, proved to say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli import completion
from headway.cli.data_arguments import RunName
from headway.progress import Progress


def export(
    run: RunName,
    to: Annotated[
        str,
        typer.Option(
            metavar="hf|ctranslate2|onnx|torch",
            help="What reads the result.",
            autocompletion=completion.of_value("hf|ctranslate2|onnx|torch"),
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for it.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="8-bit weights: ctranslate2 and onnx.")
    ] = False,
    sentences: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Sentences for the proof, a line each, before our own."),
    ] = None,
) -> int:
    """Write a run for another program, with a proof that both agree.

    The exit code is 1 when the proof fails.
    """
    from headway.data.files import open_lines
    from headway.interop.exporting import export_run

    own = list(open_lines(sentences)) if sentences else []
    proof = export_run(run, to, out, int8=int8, sentences=own, progress=Progress())
    print(proof.text())
    print(f"{out}: written{'' if proof.passed else ', but it does not say the same'}")
    return 0 if proof.passed else 1
