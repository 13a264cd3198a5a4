"""Download models from the Hugging Face hub. Only the files that an import reads are downloaded."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable
from pathlib import Path

from headway.errors import UserError, needs
from headway.interop.folder_files import ADAPTER_JSON, CONFIG_JSON, GENERATION_JSON
from headway.interop.hf.preprocessing import PREPROCESSOR_JSON, PROCESSOR_JSON
from headway.interop.hf.sentence_transformers import BESIDE, MODULES, modules_of
from headway.interop.named_tokenizer import NAMES
from headway.interop.weights import INDEX, WHOLE, shards_of

SMALL = (
    CONFIG_JSON, GENERATION_JSON, ADAPTER_JSON, PREPROCESSOR_JSON, PROCESSOR_JSON, *NAMES, MODULES,
    *BESIDE, "1_Pooling/config.json",
)  # fmt: skip
"""Files without weights. They include the usual pooling folder, so that most models need only one
request."""

SAFETENSORS = (WHOLE[0], INDEX[0], "model-*-of-*.safetensors")
"""Patterns of the weight files to fetch first. Pickles are fetched only if none of these exist."""

Fetch = Callable[[Iterable[str]], Path]
"""Function that downloads all files that match any of the patterns, and returns their folder."""


def download(name: str) -> Path:
    """Return the local folder of a model on the hub. Files that are not in the local cache are
    downloaded."""
    try:
        hub = needs("huggingface_hub", "hub")
    except UserError as error:
        raise UserError(
            f"there is no folder {name}. To download the model {name} from the Hugging Face hub, "
            "first run `pip install 'headway[hub]'`. Or download it in another way and import its "
            "folder."
        ) from error
    try:
        return _fetched(lambda files: Path(hub.snapshot_download(name, allow_patterns=[*files])))
    except UserError:
        raise
    except Exception as error:  # the library has many for the network, the hub and the name
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
        raise UserError(
            f"there is no folder {name}, and the model {name} could not be downloaded from the "
            f"Hugging Face hub ({type(error).__name__}{': ' if reason else ''}{reason}). Check the "
            "name and the network connection. Or download the model on another machine "
            f"(hf download {name} --local-dir DIR) and import the folder: headway import DIR"
        ) from error


def _fetched(fetch: Fetch) -> Path:
    folder = fetch([*SMALL, *SAFETENSORS])
    home = ""
    if (folder / MODULES).is_file():
        paths = [path for _, path in modules_of(folder)]
        home = f"{paths[0]}/" if paths and paths[0] else ""
        parts = {f"{path}/{CONFIG_JSON}" for path in paths if path} - {*SMALL}
        inside_home = [home + file for file in (*SMALL, *SAFETENSORS)] if home else []
        if parts or home:
            fetch([*map(glob.escape, parts), *inside_home])
    _fetch_missing_weights(fetch, folder, home)
    return folder


def _fetch_missing_weights(fetch: Fetch, folder: Path, home: str) -> None:
    here = folder / home
    if not any((here / file).is_file() for file in (WHOLE[0], INDEX[0])):
        fetch([home + WHOLE[1], home + INDEX[1]])
    for whole, index in zip(WHOLE, INDEX, strict=True):
        if (here / whole).is_file():
            return
        if (here / index).is_file():
            missing = [file for file in shards_of(here, index) if not (here / file).is_file()]
            if missing:
                fetch([home + glob.escape(file) for file in missing])
            return
