"""Small SentencePiece models, each learned once."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import sentencepiece

from tests.tokens.torture import CORPUS


@cache
def trained(**options: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        **{"vocab_size": 1100, "hard_vocab_limit": False, "num_threads": 1} | options,
        max_sentence_length=100_000,
        minloglevel=2,
    )
    return model.getvalue()
