"""Find and load the tokenizer of an import, in the model folder or at the path given by
`--tokenizer`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import DataError
from headway.interop.folder_files import inside
from headway.settings.folder import CHAT_TEMPLATE
from headway.storage import work_folder
from headway.tokens.files import tokenizer_files
from headway.tokens.foreign import load_foreign
from headway.tokens.llama2c import load_llama2c_tokenizer
from headway.tokens.small_files import read_table, read_text
from headway.tokens.tokenizer import Vocabularies

NAMES = ("*.model", "*.spm", "*.tiktoken", "tokenizer.json", "tokenizer_config.json",
         "special_tokens_map.json", "added_tokens.json", "vocab.json", "target_vocab.json",
         "vocab.txt", "merges.txt", CHAT_TEMPLATE)  # fmt: skip
"""File name patterns of tokenizer files."""

HINTS = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
USUAL = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}
BY_KIND = {".json": "tokenizer.json", ".txt": "vocab.txt"}
PAIRED = ("vocab.json", "merges.txt")


def files_of(folder: Path) -> list[Path]:
    """Return the tokenizer files in a folder."""
    found = {path.name for name in NAMES for path in folder.glob(name) if path.is_file()}
    return [inside(folder, name) for name in sorted(found)]


def chat_template(files: Sequence[Path]) -> str | None:
    """Return the default chat template from its own file or from `tokenizer_config.json`; None if
    there is none."""
    named = {path.name: path for path in files}
    if CHAT_TEMPLATE in named:
        return read_text(named[CHAT_TEMPLATE])
    config = named.get("tokenizer_config.json")
    found = None if config is None else read_table(config).get("chat_template")
    if isinstance(found, list):  # several templates with names
        usual = [one for one in found if isinstance(one, dict) and one.get("name") == "default"]
        found = usual[0].get("template") if usual else None
    return found if isinstance(found, str) and found else None


def load_beside(
    folder: Path, config: Mapping[str, Any], n_tokens: int, n_source: int | None = None
) -> Vocabularies:
    """Load the tokenizer in a model folder. Links to files outside the folder raise an error."""
    files_of(folder)
    return load_foreign(folder, config, n_tokens, n_source)


def files_named(path: Path) -> list[Path]:
    """Return the tokenizer files at the path of a file or a folder that the user gave."""
    path = _gpt2_in(path)
    if path.is_dir():
        return files_of(path)
    if path.suffix in (".json", ".txt", ".bpe"):
        return list(tokenizer_files(path))
    return [path]


def _gpt2_in(path: Path) -> Path:
    """Return the path of `encoder.json` if the folder has the two tokenizer files of OpenAI's
    GPT-2, otherwise the path itself."""
    files = [path / name for name in USUAL]
    return files[0] if path.is_dir() and all(file.is_file() for file in files) else path


def load_named(
    path: Path, folder: Path | None, config: Mapping[str, Any], n_tokens: int,
    n_source: int | None = None,
) -> Vocabularies:  # fmt: skip
    """Load the tokenizer at the path that the user gave.

    The configuration files of the model folder still determine the roles of special tokens.
    """
    path = _gpt2_in(path)
    if path.suffix == ".bin":
        both = load_llama2c_tokenizer(path, n_tokens)
        return Vocabularies(both, both)
    if path.is_dir():
        return load_beside(path, config, n_tokens, n_source)
    with work_folder() as place:
        for hint in HINTS:
            if folder is not None and (folder / hint).is_file():
                shutil.copyfile(inside(folder, hint), place / hint)
        for file in files_named(path):
            usual = USUAL.get(file.name, file.name)
            called = usual if usual in PAIRED else BY_KIND.get(file.suffix, usual)
            try:
                shutil.copyfile(file, place / called)
            except OSError as error:
                raise DataError(f"cannot read {file}: {error.strerror}.") from error
        try:
            return load_foreign(place, config, n_tokens, n_source)
        except DataError as error:
            raise DataError(str(error).replace(str(place), str(path.parent))) from error
