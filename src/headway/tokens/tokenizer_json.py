"""Properties of a tokenizer that are determined by its JSON in the format of the library
`tokenizers`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from copy import deepcopy
from functools import cached_property
from typing import Any

import tokenizers
from tokenizers import models

# Pre-tokenization pattern of headway's own tokenizers: letters with their marks, digits, other
# symbols or spaces, each with the space before it. Sub-word tokenizers separate digits, word
# tokenizers separate symbols.
SUBWORD_CUTS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
WORD_CUTS = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]|\s+(?!\S)|\s+"

NEVER = -1e6
"""Score of unigram tokens that must not be matched in text, such as tokens that only the other
language of a translation model uses."""

BEGINNING = r"\A"
PREFIXES = ("Prepend", "Replace")
"""Types of normalizers that can put a space before a text."""


class TokenizerJson:
    def __init__(self, text: str) -> None:
        self.tree: dict[str, Any] = json.loads(text)
        self.model: dict[str, Any] = self.tree["model"]

    @cached_property
    def in_bytes(self) -> bool:
        """Whether tokens are byte-level, so that each of their characters represents one byte."""
        return bool(_parts(self.tree["pre_tokenizer"], "ByteLevel"))

    @property
    def covers_everything(self) -> bool:
        """Whether every text can be encoded, because every byte has a token."""
        return self.in_bytes or bool(self.model.get("byte_fallback"))

    @cached_property
    def prepends(self) -> bool:
        """Whether the normalizer puts a space before the text."""
        tree = self.tree["normalizer"]
        return any(_is_prefix(part) for kind in PREFIXES for part in _parts(tree, kind))

    @cached_property
    def adds_a_space(self) -> bool:
        """Whether a text is split as if it began with a space."""
        metaspace = _parts(self.tree["pre_tokenizer"], "Metaspace")
        in_bytes = _parts(self.tree["pre_tokenizer"], "ByteLevel")
        return (
            self.prepends
            or any(part["prepend_scheme"] != "never" for part in metaspace)
            or any(part["add_prefix_space"] for part in in_bytes)
        )

    @cached_property
    def cuts_at_spaces(self) -> bool:
        """Whether pre-tokenization is that of headway's own tokenizers, in which no token has text
        on both sides of a single space."""
        cuts = (self.tree["pre_tokenizer"] or {}).get("pretokenizers") or [{}]
        first = cuts[0].get("pattern", {}).get("Regex")
        return self.prepends and first in (SUBWORD_CUTS, WORD_CUTS)

    @cached_property
    def marks_spaces(self) -> bool:
        """Whether tokens contain `▁` for a space, which decoding converts back."""
        return bool(_parts(self.tree["decoder"], "Metaspace")) or any(
            part["pattern"] == {"String": "▁"} and part["content"] == " "
            for part in _parts(self.tree["decoder"], "Replace")
        )

    @cached_property
    def added_tokens(self) -> list[str]:
        """Added tokens, which are matched in a text before anything else."""
        found = [t["content"] for t in self.tree["added_tokens"] if not t["special"]]
        return [token for token in found if token not in self.languages]

    @cached_property
    def languages(self) -> frozenset[str]:
        """Language tokens such as `>>de<<`, which have their meaning only at the start of a
        text."""
        added = (t["content"] for t in self.tree["added_tokens"] if not t["special"])
        return frozenset(t for t in added if t.startswith(">>") and t.endswith("<<"))

    def without_specials(
        self, specials: Collection[int], *, with_space: bool = True
    ) -> tokenizers.Tokenizer:
        """Return a copy of the tokenizer in which text cannot spell a special token.

        Unigram and word-level models look up parts of the text in the vocabulary, so they would
        find special tokens in it.
        """
        facts = deepcopy(self.tree)
        kept = set(self.added_tokens)
        facts["added_tokens"] = [t for t in facts["added_tokens"] if t["content"] in kept]
        _hide(facts["model"], specials)
        if not with_space:
            facts["normalizer"] = _without_prefix(facts["normalizer"])
            for part in _parts(facts["pre_tokenizer"], "Metaspace"):
                part["prepend_scheme"] = "never"
            for part in _parts(facts["pre_tokenizer"], "ByteLevel"):
                part["add_prefix_space"] = False
        made = build_tokenizer(facts)
        made.encode_special_tokens = True
        return made


def build_tokenizer(facts: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Build a tokenizer from its JSON with exact scores.

    When the library `tokenizers` reads JSON, it changes the last digit of some scores.
    """
    made = tokenizers.Tokenizer.from_str(json.dumps(facts))
    model = facts["model"]
    if isinstance(model, dict) and model.get("type") == "Unigram":
        pieces = [(piece, score) for piece, score in model["vocab"]]
        in_bytes = bool(model.get("byte_fallback"))
        made.model = models.Unigram(pieces, unk_id=model["unk_id"], byte_fallback=in_bytes)
    return made


def _parts(tree: Any, kind: str) -> list[dict[str, Any]]:
    """Return all components of a type (normalizers, pre-tokenizers or decoders) in nested
    sequences."""
    if not isinstance(tree, dict):
        return []
    inner = [
        part for v in tree.values() if isinstance(v, list) for p in v for part in _parts(p, kind)
    ]
    return [tree, *inner] if tree.get("type") == kind else inner


def _without_prefix(tree: Any) -> Any:
    if not isinstance(tree, dict) or _is_prefix(tree):
        return None
    if "normalizers" in tree:
        kept = [_without_prefix(part) for part in tree["normalizers"]]
        return {**tree, "normalizers": [part for part in kept if part is not None]}
    return tree


def _is_prefix(part: Mapping[str, Any]) -> bool:
    """Whether a normalizer puts a space before all texts, or before all but some specific texts."""
    if part.get("type") == "Replace":
        return str(part["pattern"].get("Regex")).startswith(f"{BEGINNING}(?!")
    return part.get("type") == "Prepend"


def _hide(model: dict[str, Any], specials: Collection[int]) -> None:
    """Rename special tokens, and tokens that must not be matched in text, to strings that no text
    contains."""
    if model["type"] == "Unigram":
        for i, (_, score) in enumerate(model["vocab"]):
            if i in specials or score <= NEVER:
                model["vocab"][i] = [_unspeakable(i), 0.0]
    elif model["type"] == "WordLevel":
        found = [(piece, i) for piece, i in model["vocab"].items() if i in specials]
        for piece, i in found:
            if piece != model["unk_token"]:
                model["vocab"][_unspeakable(i)] = model["vocab"].pop(piece)


def _unspeakable(i: int) -> str:
    return f" \U0010ffff{i} "
