"""The tokenizer of a Hugging Face model folder, in whatever files it is kept.

Its JSON where there is one; else the files that the model's own programs read. Which token plays
which part follows from the kind of model and the small files beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers

from headway.errors import DataError
from headway.tokens import bytepairs
from headway.tokens.charsmap import Preparation
from headway.tokens.foreign_roles import QWEN, Ends, Hints, ends_in_json, roles_of
from headway.tokens.json_limits import check_tokenizer
from headway.tokens.model_rows import unused_name, with_rows
from headway.tokens.small_files import read_text
from headway.tokens.spm import UNUSED, library_tokenizer, read_sentencepiece
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.vocabtxt import vocab_txt
from headway.tokens.whisper import add_space, whisper_roles, whisper_specials

MARIAN = ("source.spm", "target.spm", "vocab.json")
OTHER_NUMBERS = ("xlm-roberta", "camembert", "mbart", "pegasus", "xlnet", "m2m_100")
"""Kinds whose programs number pieces in another way than their SentencePiece file."""


@dataclass(frozen=True)
class Raw:
    """A tokenizer before its tokens have their parts."""

    inner: tokenizers.Tokenizer
    where: str
    preparation: Preparation | None = None
    size: int | None = None
    ends: Ends | None = None
    """What its JSON puts around a text, where it is one."""

    pieces: bool = False
    """It is a file of pieces: SentencePiece, tiktoken."""


def load_foreign(
    folder: Path, config: Mapping[str, Any], n_tokens: int, n_source_tokens: int | None = None
) -> Vocabularies:
    """The tokenizers of both sides; mostly one for both. `config`: the parsed config.json.

    They have as many tokens as the model has rows: `n_tokens`, and `n_source_tokens` where the
    source has a vocabulary of its own. Special tokens fill the numbers that nothing has.
    """
    hints = Hints.read(folder, config)
    if all((folder / name).is_file() for name in MARIAN):
        return _marian(folder, hints, n_tokens, n_source_tokens or n_tokens)
    raw = _raw(folder, hints)
    if hints.model_type == "whisper":
        return _whisper(raw, hints, n_tokens)
    extra = {t: i for t, i in hints.added.items() if raw.inner.token_to_id(t) is None}
    inner = with_rows(raw.inner, n_tokens, raw.where, extra)
    both = _finished(replace(raw, inner=inner, size=None), hints, n_tokens)
    return Vocabularies(both, both)


def _finished(raw: Raw, hints: Hints, n_tokens: int) -> Tokenizer:
    inner = raw.inner
    present = [name for name in hints.specials if inner.token_to_id(name) is not None]
    inner.add_special_tokens(present)
    roles = roles_of(hints, inner, raw.where, in_json=raw.ends, pieces=raw.pieces)
    named = {roles.bos, roles.eos, roles.unk, roles.mask, roles.source_begin, roles.target_begin}
    named |= {*roles.banned, *(roles.before or ()), *(roles.behind or ())}
    inner.add_special_tokens(sorted(n for n in named if n is not None))
    made = Tokenizer(inner, raw.where, roles, preparation=raw.preparation, size=raw.size)
    assert made.vocab_size == n_tokens, (made.vocab_size, n_tokens)
    return made


def _whisper(raw: Raw, hints: Hints, n_tokens: int) -> Vocabularies:
    """GPT-2's way to cut, with a space before each text, and many special tokens."""
    known = raw.inner.get_vocab(with_added_tokens=True)
    taken = set(known.values())
    extra = whisper_specials(n_tokens) | dict(hints.added)
    extra = {t: i for t, i in extra.items() if t not in known and i not in taken}
    inner = with_rows(raw.inner, n_tokens, raw.where, extra)
    inner.add_special_tokens([t for t in (*extra, *whisper_specials(n_tokens)) if t in known])
    both = Tokenizer(add_space(inner), raw.where, whisper_roles(inner, hints.generation, raw.where))
    assert both.vocab_size == n_tokens, (both.vocab_size, n_tokens)
    return Vocabularies(both, both)


def _raw(folder: Path, hints: Hints) -> Raw:
    """The first of the formats that is there."""
    if (folder / "tokenizer.json").is_file():
        inner = _library(folder / "tokenizer.json")
        return Raw(inner, str(folder / "tokenizer.json"), ends=ends_in_json(inner))
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if vocabulary.is_file() and merges.is_file():
        if hints.model_type == "openai-gpt" or bytepairs.ends_words(vocabulary):
            return Raw(bytepairs.gpt_tokenizer(vocabulary, merges), str(vocabulary))
        if hints.model_type in QWEN:
            return Raw(bytepairs.qwen_tokenizer(vocabulary, merges), str(vocabulary))
        spaced = bool(hints.settings.get("add_prefix_space"))
        return Raw(bytepairs.gpt2_tokenizer(vocabulary, merges, with_space=spaced), str(vocabulary))
    if (folder / "vocab.txt").is_file():
        return Raw(_bert(folder / "vocab.txt", hints), str(folder / "vocab.txt"))
    for pattern in ("*.model", "*.tiktoken"):
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise DataError(f"{folder} has several tokenizers ({names}); leave one of them there.")
        if found and bytepairs.is_tiktoken(found[0]):
            return Raw(bytepairs.tiktoken_tokenizer(found[0]), str(found[0]), pieces=True)
        if found and pattern == "*.model":
            return _sentencepiece(found[0], hints)
        if found:
            raise DataError(f"{found[0]} is no tiktoken file: its first line is no piece.")
    raise DataError(
        f"there is no tokenizer in {folder}: it would be tokenizer.json, vocab.json with "
        "merges.txt, vocab.txt, a .model of SentencePiece, a .tiktoken, or source.spm and "
        "target.spm with vocab.json."
    )


def _library(path: Path) -> tokenizers.Tokenizer:
    text = read_text(path)
    try:
        check_tokenizer(json.loads(text), str(path))
        inner = tokenizers.Tokenizer.from_str(text)
        inner.no_padding()  # as in batches of their programs; it would pass for the rule of ends
        inner.no_truncation()
        return inner
    except DataError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"{path} is not a tokenizer that can be read: {error}.") from error


def _bert(path: Path, hints: Hints) -> tokenizers.Tokenizer:
    """BERT's program lower-cases unless it is told not to; a capital in the vocabulary tells."""
    settings = hints.settings
    return vocab_txt(
        path,
        lowercase=settings.get("do_lower_case"),
        strip_accents=settings.get("strip_accents"),
        chinese=settings.get("tokenize_chinese_chars", True),
    )


def _sentencepiece(path: Path, hints: Hints) -> Raw:
    if hints.model_type in OTHER_NUMBERS:
        raise DataError(
            f"{path} belongs to a model of the kind {hints.model_type}, whose programs number "
            "pieces in another way. Save the tokenizer there as tokenizer.json with `transformers`."
        )
    model = read_sentencepiece(path)
    inner = library_tokenizer(model)
    preparation = model.preparation
    if hints.model_type == "albert":
        preparation = Preparation(
            dummy_prefix=preparation.dummy_prefix,
            one_blank=preparation.one_blank,
            quotes=True,
            strip_accents=not hints.settings.get("keep_accents", False),
            lowercase=bool(hints.settings.get("do_lower_case", True)),
        )
    if hints.model_type == "t5" and inner.token_to_id("<extra_id_0>") is None:
        n_extra = hints.settings.get("extra_ids", 100)
        names = [f"<extra_id_{n}>" for n in reversed(range(n_extra))]
        inner.add_special_tokens(names)
    return Raw(inner, str(path), preparation, pieces=True)


def _marian(folder: Path, hints: Hints, n_target: int, n_source: int) -> Vocabularies:
    """One table of numbers for both sides, or one each; and a way to cut for each."""
    tables = [folder / "vocab.json"] * 2
    if hints.settings.get("separate_vocabs") or (folder / "target_vocab.json").is_file():
        tables[1] = folder / "target_vocab.json"
    sides = []
    for side, table, n_rows in zip(MARIAN, tables, (n_source, n_target), strict=False):
        numbers = bytepairs.read_numbers(table)
        over = [token for token, i in numbers.items() if i >= n_rows]
        if over:
            raise DataError(
                f"{table} has tokens without a row in the model, which has {n_rows:,}: {over[0]!r}."
            )
        taken = set(numbers.values())
        numbers |= {unused_name(i): i for i in range(n_rows) if i not in taken}
        model = read_sentencepiece(folder / side)
        if model.of_type(UNUSED):
            raise DataError(f"{folder / side} has pieces that are switched off.")
        inner = library_tokenizer(model, numbers)
        inner.add_special_tokens([unused_name(i) for i in range(n_rows) if i not in taken])
        inner.add_tokens(
            [
                tokenizers.AddedToken(token, normalized=False)
                for token in numbers
                if token.startswith(">>") and token.endswith("<<")
            ]
        )
        more = n_rows if len(inner.get_vocab(True)) > n_rows else None
        raw = Raw(inner, str(folder / side), model.preparation, more)
        sides.append(_finished(raw, hints, n_rows))
    return Vocabularies(*sides)
