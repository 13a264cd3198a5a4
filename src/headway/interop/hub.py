"""Models of the Hugging Face hub: only the files that an import reads are fetched."""

from __future__ import annotations

from pathlib import Path

from headway.errors import UserError, needs

SMALL = ["config.json", "generation_config.json", "tokenizer*.json", "special_tokens_map.json",
         "added_tokens.json", "chat_template.jinja", "vocab.json", "vocab.txt", "merges.txt",
         "*.model", "*.spm", "*.tiktoken", "modules.json", "*sentence*.json",
         "1_Pooling/config.json"]  # fmt: skip
WEIGHTS = ["model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"]
OLD_WEIGHTS = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"]
"""Fetched only where there are no others."""


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
        folder = Path(hub.snapshot_download(name, allow_patterns=[*SMALL, *WEIGHTS]))
        if not any(folder.glob("model*.safetensors")):
            folder = Path(hub.snapshot_download(name, allow_patterns=[*SMALL, *OLD_WEIGHTS]))
    except Exception as error:  # of the network, of the hub, of the name: the library has many
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else ""
        raise UserError(
            f"there is no folder {name}, and the hub did not give a model of that name "
            f"({type(error).__name__}{': ' if reason else ''}{reason}). Check the name and the "
            f"network; or fetch it where there is one (`hf download {name} --local-dir DIR`) and "
            "give its folder: headway import DIR"
        ) from error
    return folder
