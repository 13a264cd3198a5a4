"""Detect the format of an import source, and open it.

A source is a Hugging Face or sentence-transformers folder, a llama2.c or OpenAI Whisper file, or a
model id on the Hugging Face hub. Everything except the weights is read when the source is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.errors import FolderError, Option, UserError, one_line
from headway.interop.families import Architecture, family_named
from headway.interop.folder_files import (
    ADAPTER_JSON,
    CONFIG_JSON,
    GENERATION_JSON,
    inside,
    read_table,
)
from headway.interop.foreign_config import ForeignConfig
from headway.interop.hf.preprocessing import read_preprocessor, with_preprocessing
from headway.interop.hf.sentence_transformers import MODULES, SentenceFolder
from headway.interop.hub import download
from headway.interop.llama2c import read_llama2c
from headway.interop.named_tokenizer import files_named, files_of, load_beside, load_named
from headway.interop.openai_whisper import read_openai_whisper
from headway.interop.weights import INDEX, WHOLE, LazyWeights, open_weights
from headway.settings.folder import CONFIG
from headway.settings.model import ImageEncoderSettings, Seq2SeqSettings, TextSettings
from headway.tokens.tokenizer import Vocabularies

HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
"""Pattern of a model id on the Hugging Face hub. The owner is optional because the ids of old
models, such as gpt2, have none."""


WEIGHTS = (*WHOLE, *INDEX)


@dataclass(frozen=True)
class OpenedSource:
    kind: str
    """Name of the source's format, as shown to the user."""

    name: str
    """Name of the source: a folder name, a file name or a hub id."""

    model_type: str
    architecture: Architecture
    weights: LazyWeights
    vocabularies: Callable[[], Vocabularies] | None
    """Function that loads the tokenizers; None if the model does not use text."""

    tokenizer_files: list[Path] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)
    sentence: SentenceFolder | None = None
    """Pooling and normalization of a sentence-transformers folder; None for other sources."""


def open_source(source: str, tokenizer: Path | None, note: Callable[[str], None]) -> OpenedSource:
    """Open an import source.

    Args:
        source: Folder, file or hub id.
        tokenizer: File or folder to use instead of the tokenizer next to the weights.
        note: Called with messages for the user.
    """
    path = Path(source)
    if path.is_dir():
        return _folder(path, path.absolute().name, tokenizer)
    if path.is_file():
        return _file(path, tokenizer)
    if HUB_ID.fullmatch(source):
        note(f"there is no folder {source}; searching the Hugging Face hub")
        return _folder(download(source), source, tokenizer)
    raise FolderError(
        f"{source} does not exist. Give a model folder with its config.json, a llama2.c .bin file, "
        "a Whisper .pt file, or owner/name on the Hugging Face hub."
    )


def _file(path: Path, tokenizer: Path | None) -> OpenedSource:
    if path.suffix in (".pt", ".pth"):
        return _openai(path, tokenizer)
    if path.suffix != ".bin":
        raise UserError(
            f"{path} cannot be imported on its own. Give the folder with config.json, a llama2.c "
            ".bin file, or a Whisper .pt file."
        )
    config, found, weights = read_llama2c(path)
    words = tokenizer or _beside(path)
    assert isinstance(found.model, TextSettings)
    size, like = found.model.vocab_size, {"model_type": "llama"}
    return OpenedSource(
        kind="llama2.c file",
        name=path.name,
        model_type="llama2.c",
        architecture=found,
        weights=weights,
        vocabularies=lambda: load_named(words, None, like, size),
        tokenizer_files=files_named(words),
        config=config,
    )


def _openai(path: Path, tokenizer: Path | None) -> OpenedSource:
    """Open an OpenAI Whisper file.

    The file does not contain a vocabulary, which is part of OpenAI's program, so `tokenizer` is
    required.
    """
    dims, found, weights = read_openai_whisper(path)
    if tokenizer is None:
        raise UserError(
            f"{path} contains no vocabulary. Give one with {Option('tokenizer')}: GPT-2's "
            "encoder.json and vocab.bpe for an English model, multilingual.tiktoken for others."
        )
    assert isinstance(found.model, TextSettings)
    words, size, like = tokenizer, found.model.vocab_size, {"model_type": "whisper"}
    return OpenedSource(
        kind="OpenAI Whisper file",
        name=path.name,
        model_type="openai-whisper",
        architecture=found,
        weights=weights,
        vocabularies=lambda: load_named(words, None, like, size),
        tokenizer_files=files_named(words),
        config=dims,
    )


def _beside(path: Path) -> Path:
    """Return the tokenizer of a llama2.c file, which must be the only `tok*.bin` file next to
    it."""
    found = [p for p in sorted(path.parent.glob("tok*.bin")) if p != path]
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "none"
        raise UserError(
            f"{path} needs exactly one tokenizer (tok*.bin) in its folder; found: {names}. Choose "
            f"one with {Option('tokenizer', takes='FILE')}."
        )
    return found[0]


def _folder(folder: Path, name: str, tokenizer: Path | None) -> OpenedSource:
    if not (folder / MODULES).is_file():
        return _plain(folder, name, tokenizer)
    sentence = SentenceFolder(folder)
    opened = _plain(sentence.home, name, tokenizer)
    return replace(
        opened,
        kind="sentence-transformers folder",
        architecture=sentence.applied(opened.architecture),
        sentence=sentence,
    )


def _adapter(folder: Path) -> FolderError:
    given = ForeignConfig(read_table(inside(folder, ADAPTER_JSON)), ADAPTER_JSON)
    kind = one_line(given.string("peft_type", "adapter"), "peft_type")
    base = one_line(given.string("base_model_name_or_path", "BASE"), "base_model_name_or_path")
    return FolderError(
        f"{folder} contains a PEFT adapter ({ADAPTER_JSON}: {kind}) for the model {base}, not a "
        "whole model. Merge it into that model, then import the result:\n"
        "  from transformers import AutoModelForCausalLM  # or the class of the base model\n"
        "  from peft import PeftModel\n"
        f"  base = AutoModelForCausalLM.from_pretrained({base!r})\n"
        f"  PeftModel.from_pretrained(base, {str(folder)!r}).merge_and_unload()"
        ".save_pretrained('merged')\n"
        "Copy the tokenizer files of the base model to the folder merged, too."
    )


def _plain(folder: Path, name: str, tokenizer: Path | None) -> OpenedSource:
    if (folder / ADAPTER_JSON).is_file() and not any((folder / file).exists() for file in WEIGHTS):
        raise _adapter(folder)
    if not (folder / CONFIG_JSON).is_file():
        if (folder / CONFIG).is_file():
            raise FolderError(
                f"{folder} is already a headway run ({CONFIG}). Use it directly with predict, "
                "evaluate, export and `train --from`."
            )
        raise FolderError(
            f"{folder} contains no {CONFIG_JSON}. Give a model folder with this file."
        )
    config = read_table(inside(folder, CONFIG_JSON))
    generation = {}
    if (folder / GENERATION_JSON).is_file():
        generation = read_table(inside(folder, GENERATION_JSON))
    given = ForeignConfig(config)
    model_type = given.string("model_type")
    family = family_named(model_type)
    if config.get("quantization_config") is not None:
        raise given.error(
            "quantization_config", "is not supported: weights must be fp32, fp16 or bf16"
        )
    weights = open_weights(folder)
    found = family.read(config, weights.keys(), generation)
    preprocessor = read_preprocessor(folder)
    found = with_preprocessing(found, preprocessor)
    model = found.model
    source = model.source_vocab if type(model) is Seq2SeqSettings else None
    sizes = getattr(model, "vocab_size", 0), source

    def words() -> Vocabularies:
        if tokenizer is None:
            return load_beside(folder, config, *sizes)
        return load_named(tokenizer, folder, config, *sizes)

    if isinstance(model, ImageEncoderSettings):
        if tokenizer is not None:
            raise UserError(
                f"this model does not use text. Remove the option {Option('tokenizer')}."
            )
        return OpenedSource(
            kind="Hugging Face folder",
            name=name,
            model_type=model_type,
            architecture=found,
            weights=weights,
            vocabularies=None,
            config=config,
            preprocessor=preprocessor,
        )
    return OpenedSource(
        kind="Hugging Face folder",
        name=name,
        model_type=model_type,
        architecture=found,
        weights=weights,
        vocabularies=words,
        tokenizer_files=files_of(folder) if tokenizer is None else files_named(tokenizer),
        config=config,
        generation=generation,
        preprocessor=preprocessor,
    )
