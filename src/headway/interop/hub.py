"""Models of the Hugging Face hub: fetch the files that an import reads, and no others."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable
from pathlib import Path

from headway.errors import UserError, needs
from headway.interop.folder_files import ADAPTER_JSON, CONFIG_JSON, GENERATION_JSON
from headway.interop.hf.preprocessing import PREPROCESSOR_JSON, PROCESSOR_JSON
from headway.interop.named_tokenizer import NAMES
from headway.interop.sentence_transformers import BESIDE, MODULES, modules_of
from headway.interop.weights import INDEX, WHOLE, shards_of

SMALL = (
    CONFIG_JSON, GENERATION_JSON, ADAPTER_JSON, PREPROCESSOR_JSON, PROCESSOR_JSON, *NAMES, MODULES,
    *BESIDE, "1_Pooling/config.json",
)  # fmt: skip
"""Everything but weights. The pooling's usual folder is named here so that most models need only
one request."""

SAFETENSORS = (WHOLE[0], INDEX[0], "model-*-of-*.safetensors")
"""Weights that are fetched first; pickles only where there are none of these."""

Fetch = Callable[[Iterable[str]], Path]
"""Fetch the files that match any of the patterns; return the folder that holds them."""


def download(name: str) -> Path:
    """The folder of a model, from the hub's store on this machine or from the network."""
    try:
        hub = needs("huggingface_hub", "hub")
    except UserError as error:
        raise UserError(
            f"there is no folder {name}. To fetch a model of that name from the Hugging Face hub, "
            f"`pip install 'headway[hub]'` first; or fetch it by other means and give its folder."
        ) from error
    try:
        return _fetched(lambda files: Path(hub.snapshot_download(name, allow_patterns=[*files])))
    except UserError:
        raise
    except Exception as error:  # of the network, of the hub, of the name: the library has many
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
        raise UserError(
            f"there is no folder {name}, and the hub did not give a model of that name "
            f"({type(error).__name__}{': ' if reason else ''}{reason}). Check the name and the "
            f"network; or fetch it where there is one (`hf download {name} --local-dir DIR`) and "
            "give its folder: headway import DIR"
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
