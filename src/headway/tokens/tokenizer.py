"""Convert text to token ids and back, and read and write the `tokenizer.json` of a run.

This is a thin layer over the library `tokenizers`. Its JSON contains normalization, lower-casing,
pre-tokenization, the vocabulary and the decoder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from headway.errors import DataError
from headway.settings.listed import ensure_list
from headway.tokens.json_limits import check_tokenizer
from headway.tokens.pieces import SPACE_MARK, all_borders, readable
from headway.tokens.special_tokens import (
    BOS_NAMES,
    EOS_NAMES,
    MASK,
    MASK_NAMES,
    SPECIALS,
    UNK,
    UNK_NAMES,
    TokenRoles,
    find_or_add_token,
    find_token,
)
from headway.tokens.text_encoder import TextEncoder
from headway.tokens.tokenizer_json import SUBWORD_CUTS, WORD_CUTS, TokenizerJson, build_tokenizer
from headway.tokens.word_cache import FlatIds, WordTable
from headway.tokens.word_shapes import word_shapes

__all__ = [
    "MASK",
    "MASK_NAMES",
    "SPACE_MARK",
    "SPECIALS",
    "SUBWORD_CUTS",
    "UNK",
    "WORD_CUTS",
    "EncodedWords",
    "Tokenizer",
    "Vocabularies",
]

LONG_TEXT = 2_000
"""Average number of characters per text above which caching words gains nothing."""

MAX_KNOWN = 1 << 18
"""Maximum number of cached words. A larger cache is emptied, so that its memory stays bounded."""


class EncodedWords(NamedTuple):
    """Encoded sentences that were given as lists of words, with the number of ids of each word."""

    text: FlatIds
    """Token ids of each sentence."""

    pieces: FlatIds
    """Number of token ids of each word in each sentence; at least one."""

    shapes: FlatIds | None = None
    """`WordShape` of each word in each sentence. None if the tokenizer distinguishes upper and
    lower case."""


class Tokenizer:
    """A tokenizer with one vocabulary.

    `encode` and `decode` do not add special tokens; code that forms batches or generates text does.
    Text that spells a special token stays text, so no line of a file can end a sentence early.
    """

    bos: int
    eos: int
    unk: int
    prompt_ends: tuple[tuple[int, ...], tuple[int, ...]]
    """Special tokens before and after a prompt."""

    text_ends: tuple[tuple[int, ...], tuple[int, ...]]
    """Special tokens before and after a text that is classified, tagged or embedded."""

    source_begin: int | None
    target_begin: int | None
    pair_ends: int
    between: tuple[int, ...] | None = None
    banned: tuple[int, ...]
    unwritten: tuple[int, ...] = ()
    never_first: tuple[int, ...] = ()
    more_ends: tuple[int, ...] = ()

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        where: str = "the tokenizer",
        roles: TokenRoles | None = None,
        *,
        size: int | None = None,
    ) -> None:
        """Wrap a tokenizer of the library `tokenizers`.

        `size`: vocabulary size, if it is smaller than that of `inner`. Ids beyond it become
        unknown. None: that of `inner`.
        """
        self._inner, self.roles, self._size = inner, roles, size
        self._words = WordTable()
        inner.no_padding()
        inner.no_truncation()
        if roles is None:
            self._find_by_names(where)
        else:
            self._find_by_roles(roles, where)
        inner.encode_special_tokens = True  # not kept in the JSON

    def _find_by_roles(self, roles: TokenRoles, where: str) -> None:
        """Set the special tokens from their roles. Missing tokens are not added, because the
        vocabulary of a trained model is complete."""

        def found(name: str) -> int:
            i = self._inner.token_to_id(name)
            if i is None:
                raise DataError(
                    f"{where}: the roles refer to the token {name!r}, but the vocabulary does not "
                    "contain it."
                )
            return i

        self.bos, self.eos = found(roles.bos), found(roles.eos)
        usual = find_token(self._inner, UNK_NAMES[:-1])
        self.unk = found(roles.unk) if roles.unk else self.eos if usual is None else usual
        self.pair_ends = roles.pair_ends
        if roles.between is not None:
            self.between = tuple(map(found, roles.between))
        self._set_ends(
            *(None if side is None else tuple(map(found, side))
              for side in (roles.before, roles.behind)),
            begins=roles.begins,
        )  # fmt: skip
        self.source_begin = found(roles.source_begin) if roles.source_begin else None
        self.target_begin = found(roles.target_begin) if roles.target_begin else None
        self.banned = tuple(found(name) for name in roles.banned)
        self.unwritten = tuple(found(name) for name in roles.unwritten)
        self.never_first = tuple(found(name) for name in roles.never_first)
        self.more_ends = tuple(found(name) for name in roles.more_ends)
        if roles.mask:
            found(roles.mask)

    def _set_ends(
        self, before: tuple[int, ...] | None, behind: tuple[int, ...] | None, *, begins: bool = True
    ) -> None:
        usual = (self.bos,) if begins else ()
        self.prompt_ends = (usual if before is None else before, behind or ())
        self.text_ends = (
            (self.bos,) if before is None else before,
            (self.eos,) if behind is None else behind,
        )

    def _find_by_names(self, where: str) -> None:
        inner = self._inner
        eos = find_token(inner, EOS_NAMES)
        if eos is None:
            raise DataError(
                f"{where} has no end token. Add one of these tokens: {', '.join(EOS_NAMES)}. To "
                "train a new tokenizer instead, remove tokenizer.file."
            )
        # GPT-2 has a single special token, which also begins a text. It has no unknown token,
        # because bytes cover any text.
        missing = eos if self.covers_everything else None
        self.eos = eos
        self.bos = find_or_add_token(inner, BOS_NAMES, missing)
        # In a byte-level vocabulary, `unk` is an ordinary token.
        names = UNK_NAMES[:-1] if self.covers_everything else UNK_NAMES
        self.unk = find_or_add_token(inner, names, missing)
        self.pair_ends, self.banned = 1, ()
        self._set_ends(None, None)
        self.source_begin, self.target_begin = None, None

    @classmethod
    def from_json(cls, text: str, where: str) -> Tokenizer:
        """Read a tokenizer from JSON, either in the format of the library `tokenizers` or as
        `{"tokenizer": …, "roles": …}`. `where`: the name of the file, for errors."""
        more: dict[str, Any] = {}
        try:
            facts = values = json.loads(text)
            if isinstance(values, dict) and "tokenizer" in values:
                facts = values["tokenizer"]
                if "roles" in values:
                    more["roles"] = TokenRoles.from_dict(values["roles"], where)
                if values.get("sentencepiece", {}).get("quotes"):
                    raise DataError(
                        f"{where} stores an ALBERT tokenizer in an earlier form. Import the model "
                        "again: headway import"
                    )
                more["size"] = values.get("size")
                if not isinstance(more["size"], int | None):
                    raise DataError(f"{where}: size must be an integer, not {more['size']!r}.")
            check_tokenizer(facts, where)
            inner = build_tokenizer(facts)
            check_rows(inner, more.get("size"), where)
            return cls(inner, where, **more)
        except DataError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"cannot read the tokenizer {where}: {error}.") from error

    def to_json(self) -> str:
        """Return the complete tokenizer as JSON, which `from_json` reads."""
        more: dict[str, Any] = {}
        if self.roles is not None:
            more["roles"] = self.roles.as_dict()
        if self._size is not None:
            more["size"] = self._size
        if not more:
            return self.library_json()
        facts = json.dumps(more, ensure_ascii=False)
        return f'{{"tokenizer": {self.library_json()}, {facts[1:]}'

    def library_json(self) -> str:
        """Return the tokenizer in the JSON format of the `tokenizers` library, which has no
        roles."""
        return self._inner.to_str()

    @cached_property
    def vocab_size(self) -> int:
        return self._size or self._inner.get_vocab_size(with_added_tokens=True)

    def special(self, name: str) -> int | None:
        """Return the id of a special token; None if it is missing. Each name in `MASK_NAMES` means
        the mask token."""
        if name in MASK_NAMES:
            return self.mask
        found = self._inner.token_to_id(name)
        return found if found in self.specials else None

    @cached_property
    def mask(self) -> int | None:
        chosen = self.roles.mask if self.roles else None
        return find_token(self._inner, MASK_NAMES if chosen is None else [chosen])

    @cached_property
    def specials(self) -> frozenset[int]:
        """Ids of special tokens. Encoding text never produces them."""
        added = self._inner.get_added_tokens_decoder()
        marked = (i for i, token in added.items() if token.special)
        others = (i for i in (self.source_begin, self.target_begin) if i is not None)
        return frozenset([*marked, self.unk, self.bos, self.eos, *others, *self.banned])

    def with_specials(self, names: Sequence[str]) -> Tokenizer:
        """Return this tokenizer, or a copy with the missing special tokens appended."""
        new = [name for name in names if self.special(name) is None]
        if not new:
            return self
        if self._size is not None:
            raise DataError(
                f"cannot add the special token {new[0]!r} to a tokenizer with fixed ids."
            )
        inner = build_tokenizer(json.loads(self.library_json()))
        inner.add_special_tokens(new)
        return Tokenizer(inner, roles=self.roles)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, in order."""
        return self.encode_flat(texts).lists()

    def encode_flat(self, texts: Sequence[str]) -> FlatIds:
        """Encode many texts, and return their concatenated ids.

        In headway's own tokenizers, no token has text on both sides of a single space, so every
        word between spaces is encoded once and cached. Long texts are encoded whole on all cores.
        So are texts with other white space next to a space, or with a word too long for the cache.
        """
        texts = ensure_list(texts)
        if not self._tokenizer_json.cuts_at_spaces or sum(map(len, texts)) >= LONG_TEXT * len(
            texts
        ):
            return self._encoder.encode(texts)
        if len(self._words.places) > MAX_KNOWN:
            self._words = WordTable()
        table = self._words
        cut = [text.split(" ") for text in texts]
        words = list(chain.from_iterable(cut))
        places = table.find(words)
        new = np.flatnonzero(places < 0)
        if len(new):
            strange = [words[i] for i in new.tolist()]
            table.learn(dict.fromkeys(strange), self._encoder.encode, self._is_context_free)
            places[new] = table.find(strange)
        if not table.places:
            return self._encoder.encode(texts)
        flat, unknown = table.look_up(places, np.fromiter(map(len, cut), np.int64, len(cut)))
        if not unknown.any():
            return flat
        return flat.with_rows(unknown, self._encoder.encode(list(compress(texts, unknown))))

    def encode_parts(self, texts: Sequence[str], goes_on: NDArray[np.bool_]) -> FlatIds:
        """Encode texts, some of which continue the previous text (`goes_on`). No space is put
        before those that do, so that the parts of a document decode to the document."""
        if not goes_on.any() or not self._tokenizer_json.adds_a_space:
            return self.encode_flat(texts)
        # The tokenizer adds a space, so a text that begins with a space is encoded without it.
        spaced = np.array([len(text) > 1 and text[0] == " " for text in texts], np.bool_)
        spaced &= goes_on & self._tokenizer_json.prepends
        bare = goes_on & ~spaced
        given = [text[1:] if cut else text for text, cut in zip(texts, spaced, strict=True)]
        if not bare.any():
            return self.encode_flat(given)
        whole = self.encode_flat(["" if b else t for t, b in zip(given, bare, strict=True)])
        return whole.with_rows(bare, self._encoder.encode(list(compress(texts, bare)), False))

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> EncodedWords:
        """Encode sentences that are already split into words."""
        sentences = [words.split() if isinstance(words, str) else words
                     for words in ensure_list(sentences)]  # fmt: skip
        sizes = np.fromiter(map(len, sentences), np.int64, len(sentences))
        words = [word for sentence in sentences for word in sentence]
        shapes = None if self.is_cased else FlatIds(word_shapes(words), sizes)
        if not self._tokenizer_json.adds_a_space:  # then the space between two words is added here
            firsts = set((np.cumsum(sizes) - sizes).tolist())
            words = [w if i in firsts else f" {w}" for i, w in enumerate(words)]
        flat = self.encode_flat(words)
        if (flat.lengths == 0).any():
            gone = flat.lengths == 0
            flat = flat.with_rows(gone, FlatIds.of([[self.unk]] * int(gone.sum())))
        ends = np.concatenate([[0], np.cumsum(flat.lengths)])
        last = np.cumsum(sizes)
        lengths = ends[last] - ends[last - sizes]
        return EncodedWords(
            FlatIds(flat.ids, lengths), FlatIds(flat.lengths.astype(np.int32), sizes), shapes
        )

    @cached_property
    def is_cased(self) -> bool:
        """Whether the tokenizer distinguishes upper and lower case."""
        return self.normalise("Aa") != self.normalise("aa")

    def word_starts(self, ids: Sequence[int] | NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each token whether it begins a word. A symbol or a digit counts as a word."""
        given = np.asarray(ids, np.int64)
        begins, open_ends = self._borders
        starts = begins[given]
        starts[:1] = True
        starts[1:] |= ~open_ends[given[:-1]]
        return starts

    def whole_words(self, ids: Sequence[int]) -> list[str]:
        """Return the word that each token begins. Tokens that continue a word get an empty
        string."""
        begins, _ = self._borders
        pieces = self.tokens(ids)
        return [
            piece.replace(SPACE_MARK, " ").strip() if begins[i] else ""
            for i, piece in zip(ids, pieces, strict=True)
        ]

    @property
    def begins_words(self) -> NDArray[np.bool_]:
        """Array by token id: whether the token always begins a word."""
        return self._borders[0]

    @cached_property
    def _borders(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Two arrays by token id: whether the token always begins a word, and whether the word may
        continue after it."""
        pieces = self._inner.get_vocab(with_added_tokens=True)
        ordinary = {piece: i for piece, i in pieces.items() if i not in self.specials}
        size = max(pieces.values()) + 1
        return all_borders(
            ordinary,
            size,
            in_bytes=self._tokenizer_json.in_bytes,
            inside=self._tokenizer_json.model.get("continuing_subword_prefix") or "",
            last=self._tokenizer_json.model.get("end_of_word_suffix") or "",
        )

    def _is_context_free(self, word: str) -> bool:
        """Whether a word between spaces has the same ids in any context."""
        seen = word if word.isascii() else self.normalise(word)
        return bool(seen) and seen == seen.strip()

    def as_source(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a source text with the special tokens for an encoder around them."""
        begin = [] if self.source_begin is None else [self.source_begin]
        return [*begin, *ids, self.eos]

    def as_prompt(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a prompt with the special tokens for a language model around them; at
        least one id."""
        return [*self.as_open_prompt(ids), *self.prompt_ends[1]]

    def as_text(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a text that is classified, tagged or embedded, with its special tokens
        around them; at least one id."""
        before, behind = self.text_ends
        return [*before, *ids, *behind] or [self.bos]

    def as_open_prompt(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a prompt with only the special tokens before it; at least one id."""
        return [*self.prompt_ends[0], *ids] or [self.bos]

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens and ids outside the vocabulary."""
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=True)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return a readable form of each token: `▁` is a space, `<0xe4>` a single byte of a
        character."""
        known = self._readable
        for i in ids:
            if i not in known:
                known[i] = self._piece(int(i))
        return [known[i] for i in ids]

    @cached_property
    def _readable(self) -> dict[int, str]:
        return {}

    def _piece(self, i: int) -> str:
        piece = self._inner.id_to_token(i) or f"<{i}>"
        if not self._tokenizer_json.in_bytes:
            return piece.replace(" ", SPACE_MARK)
        return piece if i in self.specials else readable(piece)

    def normalise(self, text: str) -> str:
        """Return the normalized text, which `decode` returns after `encode`."""
        return self._encoder.normalise(text) if text else text

    @property
    def covers_everything(self) -> bool:
        """Whether every text can be encoded, because every byte has a token."""
        return self._tokenizer_json.covers_everything

    def unknown_characters(self, text: str) -> set[str]:
        """Return the characters of a text that have no token, except for white space."""
        if self.covers_everything:
            return set()
        return {c for c in set(self.normalise(text)) - self._alphabet if not c.isspace()}

    @cached_property
    def _tokenizer_json(self) -> TokenizerJson:
        return TokenizerJson(self._inner.to_str())

    @cached_property
    def _encoder(self) -> TextEncoder:
        return TextEncoder(self._inner, self._tokenizer_json, self.specials, self.unk, self._size)

    @cached_property
    def _alphabet(self) -> set[str]:
        vocabulary = self._inner.get_vocab(with_added_tokens=True)
        return {c for piece, i in vocabulary.items() if i not in self.specials for c in piece}


def check_rows(inner: tokenizers.Tokenizer, size: int | None, where: str) -> None:
    """Raise an error unless ids are consecutive, because embeddings have exactly one row per token.
    `size`: as in `Tokenizer`."""
    vocab: dict[str, int] = inner.get_vocab(with_added_tokens=True)
    n = inner.get_vocab_size(with_added_tokens=True)  # a unigram may have a piece twice
    over = [token for token, i in vocab.items() if i >= n]
    if over and size is None:
        raise DataError(
            f"{where} has {n:,} tokens, but {over[0]!r} has id {vocab[over[0]]:,}. Ids must be "
            "consecutive from 0."
        )


@dataclass(frozen=True)
class Vocabularies:
    """Tokenizers of source and target, as stored in `tokenizer.json`. With a joint vocabulary, they
    are the same object."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @classmethod
    def load(cls, path: Path) -> Vocabularies:
        """Read a file with the JSON of one tokenizer, or with `{"source": …, "target": …}`."""
        try:
            text = path.read_text(encoding="utf-8")
            values = json.loads(text)
        except FileNotFoundError as error:
            raise DataError(f"the tokenizer file {path} does not exist.") from error
        except OSError as error:
            raise DataError(f"cannot read the tokenizer {path}: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} is not valid tokenizer JSON: {error}.") from error
        if isinstance(values, dict) and values.keys() == {"source", "target"}:
            sides = {
                side: Tokenizer.from_json(json.dumps(values[side]), f"{path} ({side})")
                for side in ("source", "target")
            }
            return cls(**sides)
        both = Tokenizer.from_json(text, str(path))
        return cls(both, both)

    def save(self, path: Path) -> None:
        """Write the tokenizers to a file atomically: to a temporary file that then replaces it."""
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
