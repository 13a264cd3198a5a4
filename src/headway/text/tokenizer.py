"""Text to token ids and back, and the one file that a run keeps of it.

A thin layer over `tokenizers`, whose JSON carries everything: normalisation, lower-casing, how
text is cut, the vocabulary, and how pieces are put together again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any

import tokenizers

from headway.errors import DataError
from headway.text.pieces import SPACE_MARK, readable
from headway.text.words import Flat, WordTable

__all__ = [
    "SPACE_MARK",
    "SPECIALS",
    "SUBWORD_CUTS",
    "UNK",
    "WORD_CUTS",
    "Tokenizer",
    "Vocabularies",
]

UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIALS = [UNK, BOS, EOS]

# What other tokenizers call these three, the likeliest first.
UNK_NAMES = (UNK, "[UNK]", "<|unk|>", "<UNK>", "unk")
BOS_NAMES = (BOS, "[CLS]", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "[BOS]", "<BOS>")
EOS_NAMES = (EOS, "[SEP]", "<eos>", "<|endoftext|>", "<|end_of_text|>", "[EOS]", "<EOS>")

# How our own tokenizers cut text: letters with their marks, digits, other signs, blanks; each with
# the space before it. Single digits for sub-words; single signs for words.
SUBWORD_CUTS = r" ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
WORD_CUTS = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]|\s+(?!\S)|\s+"

MAX_KNOWN = 1 << 18
"""Words that are remembered; then it begins anew."""


class Tokenizer:
    """One vocabulary. Ids come and go without the special tokens, which batches and searches add.

    Text that spells a special token stays text: no line of a file can end a sentence early.
    """

    def __init__(self, inner: tokenizers.Tokenizer, where: str = "the tokenizer") -> None:
        self._inner = inner
        self._words = WordTable()
        inner.no_padding()
        inner.no_truncation()
        eos = _named(inner, EOS_NAMES)
        if eos is None:
            raise DataError(
                f"{where} has no end token; it would be called one of {', '.join(EOS_NAMES)}. "
                "Add one to it, or leave the file out and a tokenizer is trained."
            )
        self.eos: int = eos
        self.bos: int = _named_or_new(inner, BOS_NAMES)
        self.unk: int = _named_or_new(inner, UNK_NAMES)
        inner.encode_special_tokens = True  # not kept in the JSON

    @classmethod
    def from_json(cls, text: str, where: str) -> Tokenizer:
        try:
            return cls(tokenizers.Tokenizer.from_str(text), where)
        except DataError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"{where} is not a tokenizer that can be read: {error}.") from error

    def to_json(self) -> str:
        return self._inner.to_str()

    @cached_property
    def vocab_size(self) -> int:
        return self._inner.get_vocab_size(with_added_tokens=True)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, in order."""
        return self.encode_flat(texts).lists()

    def encode_flat(self, texts: Sequence[str]) -> Flat:
        """The same as arrays, for many texts.

        Our own cuts never cross a single space, so a text is the sum of what stands between its
        spaces, and that is encoded once. Texts with other blanks beside a space, or with a word too
        long to remember, are encoded whole.
        """
        if not texts or not self._cuts_at_spaces:
            return self._encode_whole(texts)
        if len(self._words.places) > MAX_KNOWN:
            self._words = WordTable()
        table = self._words
        cut = [text.split(" ") for text in texts]
        new = [word for word in set(chain.from_iterable(cut)) if word not in table.places]
        table.learn(new, self._encode_whole, self._stands_alone)
        if not table.places:
            return self._encode_whole(texts)
        flat, unknown = table.look_up(cut)
        if not unknown.any():
            return flat
        return flat.with_rows(unknown, self._encode_whole(list(compress(texts, unknown))))

    def _stands_alone(self, word: str) -> bool:
        """Whether what stands between two spaces is cut the same without them."""
        seen = word if word.isascii() else self.normalise(word)
        return bool(seen) and seen == seen.strip()

    def _encode_whole(self, texts: Sequence[str]) -> Flat:
        """Runs on all cores."""
        try:
            encoded = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(_not_text(texts)) from error
        return Flat.of([item.ids for item in encoded])

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids; special tokens and ids outside the vocabulary leave no trace."""
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=True)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """One readable piece for each id: `▁` is a space, `<0xe4>` a byte of a character."""
        pieces = [self._inner.id_to_token(int(i)) or f"<{int(i)}>" for i in ids]
        if not self.covers_everything:
            return [piece.replace(" ", SPACE_MARK) for piece in pieces]
        special = {self.unk, self.bos, self.eos}
        return [
            piece if int(i) in special else readable(piece)
            for i, piece in zip(ids, pieces, strict=True)
        ]

    def normalise(self, text: str) -> str:
        """The text as the tokenizer sees it: what `decode` gives back after `encode`."""
        normalizer = self._inner.normalizer
        if normalizer is None or not text:
            return text
        try:
            seen = normalizer.normalize_str(text)
        except UnicodeEncodeError as error:
            raise DataError(_not_text([text])) from error
        return seen[1:] if self._adds_a_space else seen

    @cached_property
    def covers_everything(self) -> bool:
        """Every text is made of bytes, and every byte has a token."""
        facts = self._facts
        return '"ByteLevel"' in json.dumps(facts["pre_tokenizer"]) or bool(
            facts["model"].get("byte_fallback")
        )

    def unknown_characters(self, text: str) -> set[str]:
        """The characters that no token holds. Blanks do not count."""
        if self.covers_everything:
            return set()
        return {c for c in set(self.normalise(text)) - self._alphabet if not c.isspace()}

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return json.loads(self._inner.to_str())

    @cached_property
    def _adds_a_space(self) -> bool:
        return '"Prepend"' in json.dumps(self._facts["normalizer"])

    @cached_property
    def _cuts_at_spaces(self) -> bool:
        cut = self._facts["pre_tokenizer"] or {}
        first = cut.get("pretokenizers", [{}])[0].get("pattern", {}).get("Regex")
        return self._adds_a_space and first in (SUBWORD_CUTS, WORD_CUTS)

    @cached_property
    def _alphabet(self) -> set[str]:
        special = {self.unk, self.bos, self.eos}
        vocabulary = self._inner.get_vocab(with_added_tokens=True)
        return {c for piece, i in vocabulary.items() if i not in special for c in piece}


@dataclass(frozen=True)
class Vocabularies:
    """The tokenizers of both sides: what `tokenizer.json` holds."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @classmethod
    def load(cls, path: Path) -> Vocabularies:
        """Read the JSON of `tokenizers`, or `{"source": …, "target": …}` with one for each side."""
        try:
            text = path.read_text(encoding="utf-8")
            values = json.loads(text)
        except FileNotFoundError as error:
            raise DataError(f"there is no tokenizer file {path}.") from error
        except OSError as error:
            raise DataError(f"cannot read the tokenizer {path}: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is not the JSON of a tokenizer: {error}.") from error
        if isinstance(values, dict) and values.keys() == {"source", "target"}:
            sides = {
                side: Tokenizer.from_json(json.dumps(values[side]), f"{path} ({side})")
                for side in ("source", "target")
            }
            return cls(**sides)
        both = Tokenizer.from_json(text, str(path))
        return cls(both, both)

    def save(self, path: Path) -> None:
        """All or nothing: written beside and moved into place."""
        if self.joint:
            text = self.source.to_json()
        else:
            text = f'{{"source": {self.source.to_json()}, "target": {self.target.to_json()}}}'
        beside = path.with_name(path.name + ".tmp")
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


def _named(inner: tokenizers.Tokenizer, names: Sequence[str]) -> int | None:
    found = (inner.token_to_id(name) for name in names)
    return next((i for i in found if i is not None), None)


def _named_or_new(inner: tokenizers.Tokenizer, names: Sequence[str]) -> int:
    """A token without which we cannot do is added where a foreign tokenizer lacks it."""
    known = _named(inner, names)
    if known is not None:
        return known
    inner.add_special_tokens([names[0]])
    return inner.get_vocab(with_added_tokens=True)[names[0]]


def _not_text(texts: Sequence[str]) -> str:
    """Half of a surrogate pair is the one thing a Python string can hold that is no Unicode."""
    halves = (text for text in texts if any("\ud800" <= c <= "\udfff" for c in text))
    return f"a text holds half of a surrogate pair: {next(halves, '')[:40]!a}."
