"""Files that sentence-transformers needs in addition to an encoder: pooling and normalisation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from headway.interop.sentence_transformers import KEPT, MODULES, POOLINGS, SentenceFolder
from headway.settings.model import DecoderSettings, EncoderSettings
from headway.settings.run import RunSettings
from headway.storage import replace_text
from headway.tasks.loaded_run import LoadedRun


def write_modules(settings: RunSettings, out: Path) -> None:
    """Write the module files. There are none for vectors from BERT's pooler, which the format does
    not support."""
    model = settings.model
    assert isinstance(model, EncoderSettings | DecoderSettings)
    if model.pooling == "first" and "pooled" in model.heads:
        return
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * settings.embed.normalise
    listed = [
        {
            "idx": number,
            "name": str(number),
            "path": f"{number}_{kind}" if number else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, kind in enumerate(kinds)
    ]
    _write(out / MODULES, listed)
    for module in listed[1:]:
        (out / str(module["path"])).mkdir()
    pooling = {key: model.pooling == way for key, way in POOLINGS.items()}
    _write(
        out / "1_Pooling" / "config.json", {"word_embedding_dimension": model.d_model, **pooling}
    )
    _write(out / "sentence_bert_config.json", {"max_seq_length": model.max_len})


def give_back_modules(run: LoadedRun, out: Path) -> bool:
    """Copy the original files of an imported run if they still match its settings; return whether
    they do."""
    kept = run.folder / KEPT
    model = run.shape
    assert isinstance(model, EncoderSettings | DecoderSettings)
    if not (kept / MODULES).is_file():
        return False
    said = SentenceFolder(kept)
    if (said.pooling, said.normalise) != (model.pooling, run.settings.embed.normalise):
        return False
    shutil.copytree(kept, out, dirs_exist_ok=True, ignore=_links)
    return True


def _links(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (Path(folder) / name).is_symlink()]


def _write(path: Path, values: Any) -> None:
    replace_text(path, json.dumps(values, indent=2) + "\n")
