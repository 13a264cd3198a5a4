"""Read OpenAI's Whisper files, which are pickles of ten sizes and the weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from headway.interop.families import Architecture
from headway.interop.foreign_config import LONGEST, ForeignConfig
from headway.interop.hf.whisper import WhisperNames, whisper_pairs, whisper_settings
from headway.interop.pickles import read_checkpoint
from headway.interop.weights import LazyWeights, TensorEntry
from headway.settings.model import StackSettings

OPENAI = WhisperNames(
    layer="blocks",
    attention="attn",
    cross="cross_attn",
    projections=("query", "key", "value", "out"),
    norms=("attn_ln", "cross_attn_ln", "mlp_ln"),
    hidden=("mlp.0", "mlp.2"),
    final_norms=("ln_post", "ln"),
    words="token_embedding.weight",
    positions="positional_embedding",
)

FEED_FORWARD = 4
"""Width of the feed-forward layers as a multiple of the model width, fixed in Whisper."""

IGNORED = {r"alignment_heads": "list of heads that follow the audio, which are found by search"}


def read_openai_whisper(path: Path) -> tuple[dict[str, Any], Architecture, LazyWeights]:
    """Return the sizes of the model, the architecture and the weights."""
    dims, tensors = read_checkpoint(path, "dims", "model_state_dict")
    given = ForeignConfig(dims, f"{path}: dims")
    width, heads = given.integer("n_audio_state"), given.integer("n_audio_head")
    given.require("n_text_state", width, f"encoder and decoder must have the same width, {width}")
    text_heads = given.integer("n_text_head", heads)
    model = whisper_settings(
        vocab_size=given.integer("n_vocab"),
        d_model=width,
        n_layers=given.layers("n_audio_layer", tensors),
        n_heads=heads,
        decoder=StackSettings(
            n_layers=given.layers("n_text_layer", tensors),
            n_heads=None if text_heads == heads else text_heads,
        ),
        d_ff=FEED_FORWARD * width,
        max_len=given.integer("n_text_ctx", most=LONGEST),
        activation="gelu",
        embedding_scale=False,
        dropout=0.0,
        max_rows=given.integer("n_audio_ctx", most=LONGEST),
        bands=given.integer("n_mels", most=1024),
    )
    entries = {
        name: TensorEntry(tuple(tensor.shape), tensor.dtype, partial(_detached, tensor))
        for name, tensor in tensors.items()
    }
    found = Architecture(
        task="transcribe",
        model=model,
        pairs=whisper_pairs(model, OPENAI, ""),
        ignored=IGNORED,
        decode={"beam": 1, "unknown": "keep", "max_len": model.max_len - 1},
    )
    return dims, found, LazyWeights(entries, [path])


def _detached(tensor: Tensor) -> Tensor:
    return tensor.detach()
