"""Encode batches of texts with a tokenizer whose special tokens are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import tokenizers

from headway.errors import DataError
from headway.tokens.pieces import SPACE_MARK
from headway.tokens.tokenizer_json import TokenizerJson
from headway.tokens.word_cache import FlatIds

LANGUAGE = re.compile(">>[^<>]+<<")


class TextEncoder:
    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        tokenizer_json: TokenizerJson,
        specials: frozenset[int],
        unk: int,
        size: int | None,
    ) -> None:
        """Create an encoder from a tokenizer of the library `tokenizers`. `size`: vocabulary size.
        None: that of the tokenizer."""
        self.inner, self.tokenizer_json = inner, tokenizer_json
        self.specials, self.unk, self.size = specials, unk, size

    def encode(self, texts: Sequence[str], with_space: bool = True) -> FlatIds:
        """Encode texts on all cores. `with_space`: put a space before each text, if the tokenizer
        does so."""
        if not self.tokenizer_json.languages:
            return self._encode(texts, with_space)
        # In translation models with several languages, a text begins with the target language, such
        # as `>>de<<`.
        firsts = [LANGUAGE.match(text) for text in texts]
        known = [m[0] if m and m[0] in self.tokenizer_json.languages else "" for m in firsts]
        rest = [text[len(name) :] for text, name in zip(texts, known, strict=True)]
        ids = self._encode(rest, with_space).lists()
        for name, of_text in zip(known, ids, strict=True):
            number = self.inner.token_to_id(name) if name else None
            of_text[:0] = [] if number is None else [number]
        return FlatIds.of(ids)

    def normalise(self, text: str) -> str:
        """Return the normalized text, which `Tokenizer.decode` returns after `encode`."""
        normalizer = self._without_space.normalizer
        try:
            seen = text if normalizer is None else normalizer.normalize_str(text)
        except UnicodeEncodeError as error:
            raise DataError(_not_text([text])) from error
        except BaseException as error:
            _name_panic(error)
            raise
        return seen.replace(SPACE_MARK, " ") if self.tokenizer_json.marks_spaces else seen

    def _encode(self, texts: Sequence[str], with_space: bool) -> FlatIds:
        cutter = self._cutter if with_space else self._without_space
        try:
            encoded = cutter.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(_not_text(texts)) from error
        except BaseException as error:
            _name_panic(error)
            raise
        flat = FlatIds.of([item.ids for item in encoded])
        if self.size is not None:
            flat.ids[flat.ids >= self.size] = self.unk
        return flat

    @cached_property
    def _cutter(self) -> tokenizers.Tokenizer:
        """The tokenizer to encode with. It is a copy in which text cannot spell special tokens, or
        the original if text cannot do so there."""
        spelled = self.tokenizer_json.model["type"] in ("Unigram", "WordLevel")
        if not spelled or self.tokenizer_json.cuts_at_spaces:
            return self.inner
        return self.tokenizer_json.without_specials(self.specials)

    @cached_property
    def _without_space(self) -> tokenizers.Tokenizer:
        return self.tokenizer_json.without_specials(self.specials, with_space=False)


def _name_panic(error: BaseException) -> None:
    """Raise a DataError instead of a Rust panic. The library panics if a pattern backtracks too
    long."""
    if type(error).__name__ == "PanicException":
        raise DataError(
            f"the tokenizer failed on a text because of one of its patterns or tables: {error}."
        ) from error


def _not_text(texts: Sequence[str]) -> str:
    """Return the message about lone surrogates, which are the only invalid Unicode that a Python
    string can contain."""
    halves = (text for text in texts if any("\ud800" <= c <= "\udfff" for c in text))
    return f"a text is not valid Unicode: {next(halves, '')[:40]!a} has half of a surrogate pair."
