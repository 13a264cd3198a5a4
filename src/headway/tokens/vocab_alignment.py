"""Align a tokenizer with the embedding matrix of a model, so that there is exactly one token per
row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers

from headway.errors import DataError
from headway.tokens.tokenizer_json import NEVER


def unused_name(i: int) -> str:
    """Return the name of the placeholder token for a row of the embedding matrix that the original
    tokenizer does not use."""
    return f"<|unused {i}|>"


def align_vocabulary(
    inner: tokenizers.Tokenizer,
    n_rows: int | None,
    where: str,
    extra: Mapping[str, int] | None = None,
) -> tokenizers.Tokenizer:
    """Add `extra` tokens at their ids, and placeholder tokens for all other unused rows of the
    embedding matrix.

    Special tokens after the last row (such as a padding token that only the tokenizer has) are
    removed; other tokens without a row are an error. `n_rows`: number of rows. None: as many as the
    tokens need.
    """
    inner = _drop_last_rows(inner, n_rows, where)
    vocab: dict[str, int] = inner.get_vocab(with_added_tokens=True)
    wanted = {t: i for t, i in (extra or {}).items() if vocab.get(t) != i}
    taken = set(vocab.values())
    for token, i in wanted.items():
        if token in vocab or i in taken or (n_rows is not None and not 0 <= i < n_rows):
            raise DataError(
                f"{where}: the token {token!r} cannot have id {i:,}. The token or the id is "
                "already in use, or the id is outside the vocabulary of the model."
            )
        taken.add(i)
    size = max(taken, default=-1) + 1 if n_rows is None else n_rows
    wanted |= {unused_name(i): i for i in range(size) if i not in taken}
    if not wanted:
        return inner
    in_order = sorted(wanted, key=lambda token: wanted[token])
    if [wanted[token] for token in in_order] == list(range(len(vocab), size)):
        inner.add_special_tokens(in_order)
        return inner
    facts = json.loads(inner.to_str())
    _fill(facts["model"], vocab | wanted)
    made = tokenizers.Tokenizer.from_str(json.dumps(facts))
    made.add_special_tokens(in_order)
    return made


def _drop_last_rows(
    inner: tokenizers.Tokenizer, n_rows: int | None, where: str
) -> tokenizers.Tokenizer:
    vocab: dict[str, int] = inner.get_vocab(with_added_tokens=True)
    over = {t for t, i in vocab.items() if n_rows is not None and i >= n_rows}
    if not over:
        return inner
    facts = json.loads(inner.to_str())
    added = facts["added_tokens"]
    behind = {t["content"] for t in added if t["special"]} - inner.get_vocab(False).keys()
    if over - behind:
        names = sorted(over - behind, key=lambda token: vocab[token])
        more = " …" if len(names) > 5 else ""
        raise DataError(
            f"{where} belongs to another model: its token ids go up to {max(vocab.values()):,}, "
            f"but the model has only {n_rows:,} embeddings. Tokens without an embedding: "
            f"{', '.join(map(repr, names[:5]))}{more}."
        )
    facts["added_tokens"] = [t for t in added if t["content"] not in over]
    # The post-processor may name removed tokens. It is not needed, because headway adds special
    # tokens itself.
    facts["post_processor"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(facts))


def _fill(model: dict[str, Any], vocab: Mapping[str, int]) -> None:
    """Add tokens to the vocabulary of the model component, because added tokens cannot have
    arbitrary ids."""
    if model["type"] == "Unigram":
        have = len(model["vocab"])
        by_number = {i: token for token, i in vocab.items()}
        model["vocab"] += [[by_number[i], NEVER] for i in range(have, len(by_number))]
    else:
        model["vocab"] = dict(sorted(vocab.items(), key=lambda item: item[1]))
