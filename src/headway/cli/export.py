"""`headway export`: convert a run for another program, and check that both give the same
outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli import completion
from headway.cli.data_arguments import RunArgument
from headway.progress import Progress


def export(
    run: RunArgument,
    to: Annotated[
        str,
        typer.Option(
            metavar="hf|ctranslate2|onnx|torch",
            help="The format of the result.",
            autocompletion=completion.of_value("hf|ctranslate2|onnx|torch"),
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder for the result.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Store weights in 8 bits (ctranslate2 and onnx).")
    ] = False,
    sentences: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="More sentences for the proof, one per line."),
    ] = None,
) -> int:
    """Convert a run for another program and check that outputs agree.

    The exit code is 1 if the proof fails.
    """
    from headway.data.files import open_lines
    from headway.interop.exporting import export_run

    own = list(open_lines(sentences)) if sentences else []
    proof = export_run(run, to, out, int8=int8, sentences=own, progress=Progress())
    print(proof.text())
    print(
        f"wrote {out}"
        f"{'' if proof.passed else ', but the outputs of the export and of the run differ'}"
    )
    return 0 if proof.passed else 1
