"""What the JSON of a tokenizer says about how it cuts text."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Mapping
from copy import deepcopy
from functools import cached_property
from typing import Any

import tokenizers
from tokenizers import models

from headway.tokens.charsmap import Charsmap

# How our own tokenizers cut text: letters with their marks, digits, other signs, blanks; each with
# the space before it. Single digits for sub-words; single signs for words.
SUBWORD_CUTS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
WORD_CUTS = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]|\s+(?!\S)|\s+"

NEVER = -1e6
"""The score of a piece of a unigram model that has a number and a text but is not found in any:
what the other side of a translation is made of."""


class Facts:
    def __init__(self, text: str) -> None:
        self.all: dict[str, Any] = json.loads(text)
        self.model: dict[str, Any] = self.all["model"]

    @cached_property
    def in_bytes(self) -> bool:
        """Pieces are bytes, written as characters."""
        return bool(_parts(self.all["pre_tokenizer"], "ByteLevel"))

    @property
    def covers_everything(self) -> bool:
        """Every text is made of bytes, and every byte has a token."""
        return self.in_bytes or bool(self.model.get("byte_fallback"))

    @cached_property
    def prepends(self) -> bool:
        """The normaliser puts a blank before the text."""
        return bool(_parts(self.all["normalizer"], "Prepend"))

    @cached_property
    def adds_a_space(self) -> bool:
        """A text is cut as if a space stood before it."""
        metaspace = _parts(self.all["pre_tokenizer"], "Metaspace")
        in_bytes = _parts(self.all["pre_tokenizer"], "ByteLevel")
        return (
            self.prepends
            or any(part["prepend_scheme"] != "never" for part in metaspace)
            or any(part["add_prefix_space"] for part in in_bytes)
        )

    @cached_property
    def cuts_at_spaces(self) -> bool:
        """Our own cuts, which never cross a single space."""
        cuts = (self.all["pre_tokenizer"] or {}).get("pretokenizers") or [{}]
        first = cuts[0].get("pattern", {}).get("Regex")
        return self.prepends and first in (SUBWORD_CUTS, WORD_CUTS)

    @cached_property
    def marks_spaces(self) -> bool:
        """`▁` stands for a space and becomes one again."""
        return bool(_parts(self.all["decoder"], "Metaspace")) or any(
            part["pattern"] == {"String": "▁"} and part["content"] == " "
            for part in _parts(self.all["decoder"], "Replace")
        )

    @cached_property
    def kept(self) -> list[str]:
        """Tokens that are found in a text before anything else."""
        found = [t["content"] for t in self.all["added_tokens"] if not t["special"]]
        return [token for token in found if token not in self.languages]

    @cached_property
    def languages(self) -> frozenset[str]:
        """Tokens such as `>>de<<`, which count at the start of a text alone."""
        added = (t["content"] for t in self.all["added_tokens"] if not t["special"])
        return frozenset(t for t in added if t.startswith(">>") and t.endswith("<<"))

    def charsmap(self) -> Charsmap:
        """The table of characters; pieces that stay whole are left as they are."""
        tables = _parts(self.all["normalizer"], "Precompiled")
        data = base64.b64decode(tables[0]["precompiled_charsmap"] or "") if tables else b""
        return Charsmap(data, self.kept)

    def cutter(
        self, specials: Collection[int], *, with_space: bool = True, prepared: bool = False
    ) -> tokenizers.Tokenizer:
        """A tokenizer for text: no special token can be spelled in it.

        Vocabularies that are searched for what stands in a text (all but those that merge pieces or
        see words without signs) would find them. `prepared`: the text is normalised already.
        """
        facts = deepcopy(self.all)
        kept = set(self.kept)
        facts["added_tokens"] = [t for t in facts["added_tokens"] if t["content"] in kept]
        _hide(facts["model"], specials)
        if prepared:
            facts["normalizer"] = None
            for token in facts["added_tokens"]:
                token["normalized"] = True
        if not with_space:
            facts["normalizer"] = _without_prefix(facts["normalizer"])
            for part in _parts(facts["pre_tokenizer"], "Metaspace"):
                part["prepend_scheme"] = "never"
            for part in _parts(facts["pre_tokenizer"], "ByteLevel"):
                part["add_prefix_space"] = False
        made = read_exactly(facts)
        made.encode_special_tokens = True
        return made


def read_exactly(facts: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """The tokenizer of this JSON. The library's own reader changes some scores in their last digit,
    each time they are written and read."""
    made = tokenizers.Tokenizer.from_str(json.dumps(facts))
    model = facts["model"]
    if isinstance(model, dict) and model.get("type") == "Unigram":
        pieces = [(piece, score) for piece, score in model["vocab"]]
        in_bytes = bool(model.get("byte_fallback"))
        made.model = models.Unigram(pieces, unk_id=model["unk_id"], byte_fallback=in_bytes)
    return made


def _parts(tree: Any, kind: str) -> list[dict[str, Any]]:
    """The normalisers, cutters or decoders of a kind, wherever they stand in sequences."""
    if not isinstance(tree, dict):
        return []
    inner = [
        part for v in tree.values() if isinstance(v, list) for p in v for part in _parts(p, kind)
    ]
    return [tree, *inner] if tree.get("type") == kind else inner


def _without_prefix(tree: Any) -> Any:
    if not isinstance(tree, dict) or tree.get("type") == "Prepend":
        return None
    if "normalizers" in tree:
        kept = [_without_prefix(part) for part in tree["normalizers"]]
        return {**tree, "normalizers": [part for part in kept if part is not None]}
    return tree


def _hide(model: dict[str, Any], specials: Collection[int]) -> None:
    """Give special tokens, and pieces that are never found, names that no text has."""
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
