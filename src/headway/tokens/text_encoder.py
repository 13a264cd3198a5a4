"""Encoding of batches of texts, after the special tokens of a tokenizer are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

import tokenizers

from headway.errors import DataError
from headway.tokens.pieces import SPACE_MARK
from headway.tokens.spm_normalizer import Charsmap, SpmNormalization
from headway.tokens.tokenizer_json import TokenizerJson
from headway.tokens.unigram import ExactUnigram
from headway.tokens.word_cache import FlatIds

LANGUAGE = re.compile(">>[^<>]+<<")


class TextEncoder:
    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        tokenizer_json: TokenizerJson,
        specials: frozenset[int],
        unk: int,
        preparation: SpmNormalization | None,
        size: int | None,
    ) -> None:
        """`preparation` and `size` are those of `Tokenizer`."""
        self.inner, self.tokenizer_json, self.specials, self.unk = (
            inner,
            tokenizer_json,
            specials,
            unk,
        )
        self.preparation, self.size = preparation, size

    def encode(self, texts: Sequence[str], with_space: bool = True) -> FlatIds:
        """Encode texts on all cores. `with_space`: add the space before a text that the tokenizer
        is configured to add."""
        if not self.tokenizer_json.languages:
            return self._encode(texts, with_space)
        # The target language comes first, as a token such as `>>de<<`.
        firsts = [LANGUAGE.match(text) for text in texts]
        known = [m[0] if m and m[0] in self.tokenizer_json.languages else "" for m in firsts]
        rest = [text[len(name) :] for text, name in zip(texts, known, strict=True)]
        ids = self._encode(rest, with_space).lists()
        for name, of_text in zip(known, ids, strict=True):
            number = self.inner.token_to_id(name) if name else None
            of_text[:0] = [] if number is None else [number]
        return FlatIds.of(ids)

    def normalise(self, text: str) -> str:
        """Return the text that `decode` returns after `encode`."""
        try:
            seen = self._prepared(text, with_space=False)
            if self._cutter.normalizer is not None:
                seen = self._cutter.normalizer.normalize_str(seen)
        except UnicodeEncodeError as error:
            raise DataError(_not_text([text])) from error
        except BaseException as error:
            _name_panic(error)
            raise
        seen = seen[1:] if self.tokenizer_json.prepends and self.preparation is None else seen
        return seen.replace(SPACE_MARK, " ") if self.tokenizer_json.marks_spaces else seen

    def _encode(self, texts: Sequence[str], with_space: bool) -> FlatIds:
        cutter = self._cutter if with_space else self._without_space
        try:
            seen = texts
            if self.preparation is not None:
                seen = [self._prepared(text, with_space) for text in texts]
            encoded = cutter.encode_batch_fast(list(seen), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise DataError(_not_text(texts)) from error
        except BaseException as error:
            _name_panic(error)
            raise
        ids = [item.ids for item in encoded]
        exact = self._exact
        if exact is not None:
            both = zip(seen, ids, strict=True)
            ids = [exact.encode(t) if exact.may_differ(t, found) else found for t, found in both]
        flat = FlatIds.of(ids)
        if self.size is not None:
            flat.ids[flat.ids >= self.size] = self.unk
        return flat

    def _prepared(self, text: str, with_space: bool) -> str:
        """Prepare a text as SentencePiece does, if the tokenizer needs it."""
        if self.preparation is None:
            return text
        return self.preparation(text, self._charsmap, with_prefix=with_space)

    @cached_property
    def _charsmap(self) -> Charsmap:
        return self.tokenizer_json.charsmap()

    @cached_property
    def _cutter(self) -> tokenizers.Tokenizer:
        """Tokenizer in which text cannot spell special tokens; usually the original one."""
        spelled = self.tokenizer_json.model["type"] in ("Unigram", "WordLevel")
        if self.preparation is None and (not spelled or self.tokenizer_json.cuts_at_spaces):
            return self.inner
        return self.tokenizer_json.without_specials(
            self.specials, prepared=self.preparation is not None
        )

    @cached_property
    def _without_space(self) -> tokenizers.Tokenizer:
        if self.preparation is not None:
            return self._cutter
        return self.tokenizer_json.without_specials(self.specials, with_space=False)

    @cached_property
    def _exact(self) -> ExactUnigram | None:
        """Encoder for texts whose best segmentation depends on the rounding of sums."""
        model = self.tokenizer_json.model
        if (
            self.preparation is None
            or model["type"] != "Unigram"
            or self.tokenizer_json.added_tokens
        ):
            return None
        in_bytes = self.tokenizer_json.covers_everything
        return ExactUnigram(model["vocab"], self.specials, model["unk_id"], in_bytes=in_bytes)


def _name_panic(error: BaseException) -> None:
    """Turn a Rust panic into a DataError. The library panics if a pattern backtracks too long."""
    if type(error).__name__ == "PanicException":
        raise DataError(
            f"the tokenizer failed on a text because of one of its patterns or tables: {error}."
        ) from error


def _not_text(texts: Sequence[str]) -> str:
    """Message about lone surrogates, the only invalid Unicode that a Python string can contain."""
    halves = (text for text in texts if any("\ud800" <= c <= "\udfff" for c in text))
    return f"a text is not valid Unicode: {next(halves, '')[:40]!a} has half of a surrogate pair."
