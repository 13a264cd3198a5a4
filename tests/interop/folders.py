"""Whole model folders: weights and a tokenizer that go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .theirs import reference, saved

WORDS = ["the", "film", "plot", "a", "actor", "music", "scene", "and", "of", "long", "awful"]
WORDS += ["great", "ok", "ada", "grace", "alan", "kurt", "went", "saw", "then", "river", "mister"]
WORDS += ["in", "paris", "rome", "lagos", "lima", "##s", "##ly", "."]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "bcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIALS, *WORDS, *LETTERS]
N_PIECES = len(PIECES)

SIZES = {"vocab_size": N_PIECES, "hidden_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 24}


def write_pieces(folder: Path, pieces: list[str] = PIECES) -> None:
    """BERT's tokenizer, as its folders have it."""
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    config = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def bert_folder(folder: Path, name: str = "BertForMaskedLM", **sizes: Any) -> tuple[Path, Any]:
    """A folder and the model in it."""
    theirs = reference(name, {**SIZES, **sizes})
    saved(theirs, folder)
    write_pieces(folder)
    return folder, theirs


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
