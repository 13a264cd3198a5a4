"""Export a run to a folder for another program, and prove that the outputs are equal."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from headway.errors import Option, UserError, suggest
from headway.interop.proof import Proof
from headway.interop.proof_inputs import proof_sentences
from headway.progress import SILENT, Progress
from headway.settings.effects import CallFacts, check_options
from headway.settings.model import family_of
from headway.settings.run import media_settings
from headway.settings.task_rows import spec_of
from headway.storage import check_free, new_folder
from headway.tasks.engines import TEXT_ALONE
from headway.tasks.loaded_run import LoadedRun, open_plain

TARGETS = {
    "hf": "headway.interop.hf.export",
    "ctranslate2": "headway.interop.ctranslate2.export",
    "onnx": "headway.interop.onnx.export",
    "torch": "headway.interop.torch_export",
}
"""Module for each value of `--to`. Each module implements `ExportTarget`."""

FULL_PRECISION = {
    "hf": "transformers quantises when it loads a model (`quantization_config`), not in the file",
    "torch": "a .pt2 file contains the model in fp32",
}
"""Export targets that do not support int8, with the reason."""

UNIVERSAL_TARGETS = ("onnx", "torch")
"""Export targets that support every run. Error messages recommend them."""


class ExportTarget(Protocol):
    def write(self, run: LoadedRun, out: Path, *, int8: bool) -> None:
        """Write all files of the export into `out`, an existing empty folder."""
        ...

    def prove(
        self, run: LoadedRun, out: Path, sentences: Sequence[str], *, int8: bool
    ) -> Proof: ...


def export_run(
    name: str | Path | LoadedRun,
    to: str,
    out: str | Path,
    *,
    int8: bool = False,
    sentences: Sequence[str] = (),
    progress: Progress = SILENT,
) -> Proof:
    """Export a run atomically to the folder `out`, and return the proof of the export.

    The proof is saved in the folder even if it fails. A loaded run is exported as it was saved.

    Args:
        name: Run name or folder, or a loaded run.
        to: Key of `TARGETS`.
        int8: Whether to quantize the weights to int8.
        sentences: Sentences for the proof, which precede the built-in ones.
    """
    target, out = _target(to, int8), Path(out)
    check_free(out)
    if isinstance(name, LoadedRun):
        run = name.inspection_copy()
    else:
        with progress.stage(f"reading {name}"):
            run = open_plain(name)
    if run.shape.body != "transformer":
        raise UserError(
            f"{run.folder.name} has model.body={run.shape.body}, but only Transformers can be "
            "exported. Use the run folder with headway instead."
        )
    if media_settings(run.settings) is not None:
        _check_media(to, family_of(run.shape), int8)
        check_options(CallFacts(row=spec_of(run.settings), options={"sentences": sentences}))
    with new_folder(out) as folder:
        with progress.stage(f"writing {out}"):
            target.write(run, folder, int8=int8)
        with progress.stage("comparing the outputs of both models"):
            proof = target.prove(run, folder, proof_sentences(more=sentences), int8=int8)
        proof.save(folder)
    return proof


def _check_media(to: str, family: str, int8: bool) -> None:
    if to in TEXT_ALONE:
        others = _universal(int8)
        raise UserError(
            f"{Option('to', to)} supports only text models, but this model is of the family "
            f"{family}. Use {others}."
        )


def _universal(int8: bool) -> str:
    """Return the `--to` options of the targets that support every model, for a message. With
    `int8`, targets without int8 are omitted."""
    names = [name for name in UNIVERSAL_TARGETS if not int8 or name not in FULL_PRECISION]
    return " or ".join(f"{Option('to', name)}" for name in names)


def _target(to: str, int8: bool) -> ExportTarget:
    if to not in TARGETS:
        raise UserError(f"unknown value {to!r} for {Option('to')}.{suggest(to, TARGETS)}")
    if int8 and to in FULL_PRECISION:
        others = _universal(int8)
        raise UserError(
            f"{Option('int8', True)} is not supported with {Option('to', to)}: "
            f"{FULL_PRECISION[to]}. Remove {Option('int8', True)}, or use {others}."
        )
    target: ExportTarget = importlib.import_module(TARGETS[to])
    return target
