"""Folders of sentence-transformers: an encoder, how its tokens become one vector, normalisation."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.errors import FolderError, UserError
from headway.interop.families import Architecture
from headway.interop.folder_files import inside, read_json, read_table
from headway.interop.foreign_config import Given
from headway.settings.model import DecoderSettings, EncoderSettings

MODULES = "modules.json"

KEPT = "modules"
"""Where a run keeps the files of the folder that it was imported from."""

BESIDE = ("config_sentence_transformers.json", "sentence_bert_config.json", "README.md")

POOLINGS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""Keys of the pooling's configuration; exactly one of them holds, and no other one."""

UNUSED = "this folder makes its vectors without the pooler"


class SentenceFolder:
    """What the modules of a folder say. Refuses any but an encoder, a pooling, a normalisation."""

    def __init__(self, folder: Path) -> None:
        modules = modules_of(folder)
        kinds = [kind for kind, _ in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise UserError(
                f"{folder / MODULES} lists {', '.join(kinds) or 'nothing'}. Supported are "
                "Transformer, Pooling and Normalize, in this order."
            )
        self.home = folder if not modules[0][1] else _part(folder, modules[0][1])
        """Where the encoder is."""

        self.normalise = "Normalize" in kinds
        self.pooling = _pooling(_part(folder, modules[1][1]) / "config.json")
        self.notes = _notes(folder, self.home)
        self._folder, self._parts = folder, [path for _, path in modules[1:]]

    def keep(self, run: Path) -> None:
        """Copy what says how vectors are made into a run, for its way back. Where the encoder has a
        folder of its own the way back is another, with files of our making."""
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
        """The architecture of the encoder or decoder as one that makes sentence vectors."""
        model = found.model
        if not isinstance(model, EncoderSettings | DecoderSettings):
            raise UserError(
                f"{self._folder / MODULES}: sentence vectors of an encoder-decoder are not "
                "supported; those of an encoder or a decoder are."
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
    """The kind and the folder of each module."""
    listed = read_json(inside(folder, MODULES))
    try:
        return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in listed]
    except (TypeError, KeyError) as error:
        raise FolderError(f"{folder / MODULES} is not a list of modules.") from error


def _part(folder: Path, name: str) -> Path:
    path = inside(folder, name)
    if not path.is_dir():
        raise FolderError(f"there is no folder {path}, which {MODULES} names.")
    return path


def _pooling(path: Path) -> str:
    given = Given(read_table(inside(path.parent, path.name)), str(path))
    given.only("include_prompt", True, "all tokens of a text are read")
    chosen = [key for key, value in given.values.items()
              if key.startswith("pooling_mode_") and value]  # fmt: skip
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise UserError(
            f"{path}: {' and '.join(chosen) or 'no way of pooling'} is not supported; it may be "
            f"one of {', '.join(POOLINGS)}."
        )
    return POOLINGS[chosen[0]]


def _notes(folder: Path, home: Path) -> tuple[str, ...]:
    """What the other files say, as far as it matters."""
    notes = []
    for place, name in ((folder, "config_sentence_transformers.json"),
                        (home, "sentence_bert_config.json")):  # fmt: skip
        if not (place / name).is_file():
            continue
        given = Given(read_table(inside(place, name)), str(place / name))
        given.only("do_lower_case", False, "only what the tokenizer itself does to text is")
        prompt = given.values.get("default_prompt_name")
        if prompt is not None and given.table("prompts").get(prompt):
            raise given.error("default_prompt_name", "is not supported: texts stay as they are")
        if given.values.get("max_seq_length") is not None:
            n = given.whole("max_seq_length")
            notes.append(f"sentence-transformers cuts texts at {n:,} tokens; here all is read")
    return tuple(notes)
