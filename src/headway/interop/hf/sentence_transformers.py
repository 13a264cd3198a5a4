"""Read and write sentence-transformers folders: an encoder or decoder, pooling, and optional
normalization."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.errors import FolderError, UserError
from headway.interop.families import Architecture
from headway.interop.folder_files import inside, read_json, read_table
from headway.interop.foreign_config import ForeignConfig
from headway.settings.model import DecoderSettings, EncoderSettings
from headway.settings.run import RunSettings
from headway.storage import replace_text
from headway.tasks.loaded_run import LoadedRun

MODULES = "modules.json"

KEPT = "modules"
"""Subfolder of an imported run that contains the module files of the original folder."""

BESIDE = ("config_sentence_transformers.json", "sentence_bert_config.json", "README.md")

POOLINGS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""headway's pooling for each key of the pooling configuration. Exactly one key must be true."""

UNUSED = "the pooler, which this folder does not use for its vectors"


class SentenceFolder:
    """Modules of a sentence-transformers folder. Only Transformer, Pooling and Normalize are
    supported."""

    def __init__(self, folder: Path) -> None:
        modules = modules_of(folder)
        kinds = [kind for kind, _ in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise UserError(
                f"{folder / MODULES} lists the modules {', '.join(kinds) or '(none)'}. Only "
                "Transformer, Pooling and optionally Normalize are supported, in this order."
            )
        self.home = folder if not modules[0][1] else _part(folder, modules[0][1])
        """Folder with the encoder."""

        self.normalise = "Normalize" in kinds
        self.pooling = _pooling(_part(folder, modules[1][1]) / "config.json")
        self.notes = _notes(folder, self.home)
        self._folder, self._parts = folder, [path for _, path in modules[1:]]

    def keep(self, run: Path) -> None:
        """Copy the module files into a run, so that an export can restore them.

        If the encoder is in a subfolder, nothing is copied, and an export writes new module files.
        """
        if self.home != self._folder:
            return
        (run / KEPT).mkdir()
        for name in (MODULES, *BESIDE):
            if (self._folder / name).is_file():
                shutil.copyfile(inside(self._folder, name), run / KEPT / name)
        for part in filter(None, self._parts):
            path = inside(self._folder, part) / "config.json"
            (run / KEPT / part).mkdir(exist_ok=True)
            if path.is_file():
                shutil.copyfile(inside(path.parent, path.name), run / KEPT / part / path.name)

    def applied(self, found: Architecture) -> Architecture:
        """Return the architecture of an encoder or decoder with the pooling and normalization of
        this folder."""
        model = found.model
        if not isinstance(model, EncoderSettings | DecoderSettings):
            raise UserError(
                f"{self._folder / MODULES}: sentence embeddings from an encoder-decoder are not "
                "supported. Use an encoder or a decoder."
            )
        changes: dict[str, Any] = {"pooling": self.pooling}
        if self.pooling == "first" and "pooled" in model.heads:
            changes["heads"] = tuple(head for head in model.heads if head != "pooled")
            dropped = [pair for pair in found.pairs if pair.ours.startswith("heads.pooled.")]
            kept = [pair for pair in found.pairs if pair not in dropped]
            ignored = {pair.theirs.replace(".", r"\."): UNUSED for pair in dropped}
            found = replace(found, pairs=kept, ignored=found.ignored | ignored)
        return replace(
            found,
            task="embed",
            model=replace(model, **changes),
            embed={"normalise": self.normalise},
            notes=(*found.notes, *self.notes),
        )


def modules_of(folder: Path) -> list[tuple[str, str]]:
    """Return the kind and the subfolder of each module."""
    listed = read_json(inside(folder, MODULES))
    try:
        return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in listed]
    except (TypeError, KeyError) as error:
        raise FolderError(
            f"{folder / MODULES} must be a list of modules, each with type and path."
        ) from error


def _part(folder: Path, name: str) -> Path:
    path = inside(folder, name)
    if not path.is_dir():
        raise FolderError(f"{MODULES} names the folder {path}, which does not exist.")
    return path


def _pooling(path: Path) -> str:
    given = ForeignConfig(read_table(inside(path.parent, path.name)), str(path))
    given.require("include_prompt", True, "pooling always includes all tokens of a text")
    chosen = [key for key, value in given.values.items()
              if key.startswith("pooling_mode_") and value]  # fmt: skip
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise UserError(
            f"{path}: unsupported pooling ({' and '.join(chosen) or 'none'}). Exactly one of these "
            f"must be true: {', '.join(POOLINGS)}."
        )
    return POOLINGS[chosen[0]]


def _notes(folder: Path, home: Path) -> tuple[str, ...]:
    """Return notes for the user on settings in the other files. Raise an error for unsupported
    settings."""
    notes = []
    for place, name in ((folder, "config_sentence_transformers.json"),
                        (home, "sentence_bert_config.json")):  # fmt: skip
        if not (place / name).is_file():
            continue
        given = ForeignConfig(read_table(inside(place, name)), str(place / name))
        given.require("do_lower_case", False, "only the tokenizer itself may lower-case text")
        prompt = given.values.get("default_prompt_name")
        if prompt is not None and given.nested("prompts").get(prompt):
            raise given.error(
                "default_prompt_name", "is not supported: headway adds no prompts to texts"
            )
        if given.values.get("max_seq_length") is not None:
            n = given.integer("max_seq_length")
            notes.append(
                f"sentence-transformers truncates texts to {n:,} tokens; headway reads all tokens "
                "that the model supports"
            )
    return tuple(notes)


def write_modules(settings: RunSettings, out: Path) -> None:
    """Write the module files.

    Embeddings from BERT's pooler get none, because the format does not support them.
    """
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
    """Restore the original module files of an imported run if they still match its settings. Return
    whether they do."""
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
