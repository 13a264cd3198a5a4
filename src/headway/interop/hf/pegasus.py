"""Pegasus of Hugging Face: Marian with its norms before the layers. Our translators are such."""

from __future__ import annotations

from torch import Tensor

from headway.interop.families import Config
from headway.interop.hf.bart import BartFamily
from headway.nn.positions import sinusoids

PEGASUS = BartFamily("pegasus", "Pegasus", "ForConditionalGeneration", wiring="pre", learned=False)


def tables(config: Config) -> dict[str, Tensor]:
    """It looks for its sinusoids in the file, though it could compute them."""
    table_PD = sinusoids(config["max_position_embeddings"], config["d_model"], halves=True)
    return {f"model.{side}.embed_positions.weight": table_PD for side in ("encoder", "decoder")}
