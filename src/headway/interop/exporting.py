"""From a run to a folder for another program, with a proof that it says the same."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from headway.config.model import family_of
from headway.errors import UserError, suggest
from headway.interop.proof import Proof, proof_sentences
from headway.interop.run import LoadedRun, load_run_for_export
from headway.interop.whole import check_free, new_folder
from headway.progress import SILENT, Progress

TARGETS = {
    "hf": "headway.interop.to_hf",
    "ctranslate2": "headway.interop.to_ctranslate2",
    "onnx": "headway.interop.to_onnx",
    "torch": "headway.interop.to_torch",
}
"""What `--to` can say: each is a module with `write` and `prove`."""

FULL_PRECISION = {
    "hf": "transformers quantises while it loads (`quantization_config`), not in the file",
    "torch": "a .pt2 holds the model as it computes, in fp32",
}
"""Targets without int8, and why."""


TEXT_FAMILIES = ("seq2seq", "encoder", "decoder")
LOOK_AND_LISTEN = ("hf",)
"""Targets for models of pictures and recordings, too."""


class Target(Protocol):
    def write(self, run: LoadedRun, out: Path, *, int8: bool) -> None:
        """Write everything into the folder, which exists and is empty."""
        ...

    def prove(
        self, run: LoadedRun, out: Path, sentences: Sequence[str], *, int8: bool
    ) -> Proof: ...


def export_run(
    name: str | Path,
    to: str,
    out: str | Path,
    *,
    int8: bool = False,
    sentences: Sequence[str] = (),
    progress: Progress = SILENT,
) -> Proof:
    """Write `out`, which is whole or not there, and prove it. A proof that fails is saved too.

    `sentences`: used in the proof before our own.
    """
    target, out = _target(to, int8), Path(out)
    check_free(out)
    with progress.stage(f"reading {name}"):
        run = load_run_for_export(name)
    if to not in LOOK_AND_LISTEN and family_of(run.shape) not in TEXT_FAMILIES:
        raise UserError(
            f"--to {to} takes models that read text; this one is of the {family_of(run.shape)} "
            f"family. Use --to {' or '.join(LOOK_AND_LISTEN)}."
        )
    with new_folder(out) as folder:
        with progress.stage(f"writing {out}"):
            target.write(run, folder, int8=int8)
        with progress.stage("comparing what both say"):
            proof = target.prove(run, folder, proof_sentences(more=sentences), int8=int8)
        proof.save(folder)
    return proof


def _target(to: str, int8: bool) -> Target:
    if to not in TARGETS:
        raise UserError(f"--to has no choice {to!r}.{suggest(to, TARGETS)}")
    if int8 and to in FULL_PRECISION:
        others = ", ".join(name for name in TARGETS if name not in FULL_PRECISION)
        raise UserError(
            f"--int8 does not go with --to {to}: {FULL_PRECISION[to]}. Leave it out, or use "
            f"--to {others.replace(', ', ' or ')}."
        )
    target: Target = importlib.import_module(TARGETS[to])
    return target
