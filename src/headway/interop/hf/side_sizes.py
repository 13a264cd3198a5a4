"""Sizes of encoder and decoder in the configurations of BART, Marian, Pegasus and Whisper."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict

from headway.interop.foreign_config import ForeignConfig
from headway.settings.model import Seq2SeqSettings, StackSettings

KEYS = {"n_layers": "layers", "n_heads": "attention_heads", "d_ff": "ffn_dim"}
"""Foreign keys by our settings; `encoder_` or `decoder_` precedes them."""


class SideSizes(TypedDict):
    n_layers: int
    n_heads: int
    d_ff: int
    decoder: StackSettings


def read_sides(given: ForeignConfig, names: Collection[str]) -> SideSizes:
    """Read the sizes of both sides. If both have the same heads and feed-forward width, it is set
    once."""
    n_heads, d_ff = given.integer("encoder_attention_heads"), given.integer("encoder_ffn_dim")
    decoder_heads = given.integer("decoder_attention_heads", n_heads)
    decoder_ff = given.integer("decoder_ffn_dim", d_ff)
    return {
        "n_layers": given.layers("encoder_layers", names),
        "n_heads": n_heads,
        "d_ff": d_ff,
        "decoder": StackSettings(
            n_layers=given.layers("decoder_layers", names),
            n_heads=None if decoder_heads == n_heads else decoder_heads,
            d_ff=None if decoder_ff == d_ff else decoder_ff,
        ),
    }


def foreign_sizes(ours: Seq2SeqSettings) -> dict[str, int]:
    return {
        f"{kind}_{theirs}": getattr(stack, name)
        for name, theirs in KEYS.items()
        for kind, stack in ours.stacks.items()
    }
