"""Load the tokenizer in a Hugging Face model folder, in any of its file formats.

`tokenizer.json` takes precedence over the files of the model's original program. The roles of
special tokens are determined by the model type and the small configuration files in the folder.
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
from headway.tokens.foreign_roles import (
    QWEN,
    AddedTokens,
    TokenizerHints,
    ends_in_json,
    token_roles_of,
)
from headway.tokens.json_limits import check_tokenizer
from headway.tokens.small_files import read_text
from headway.tokens.spm import UNUSED, albert_folding, library_tokenizer, read_sentencepiece
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.vocab_alignment import align_vocabulary, unused_name
from headway.tokens.vocabtxt import vocab_txt
from headway.tokens.whisper import add_space, whisper_roles, whisper_specials

MARIAN = ("source.spm", "target.spm", "vocab.json")
OTHER_NUMBERS = ("xlm-roberta", "camembert", "mbart", "pegasus", "xlnet", "m2m_100")
"""Model types whose token ids differ from those in their SentencePiece file."""


@dataclass(frozen=True)
class RawTokenizer:
    """A tokenizer as it was loaded, before special tokens have roles such as end token."""

    inner: tokenizers.Tokenizer
    where: str
    size: int | None = None
    ends: AddedTokens | None = None
    """Special tokens that `tokenizer.json` adds to a text; None for other formats."""

    pieces: bool = False
    """Whether the file is in the format of SentencePiece or tiktoken."""


def load_foreign(
    folder: Path, config: Mapping[str, Any], n_tokens: int, n_source_tokens: int | None = None
) -> Vocabularies:
    """Load the source and target tokenizers, which are usually the same.

    `config`: parsed config.json. `n_tokens`: vocabulary size of the model. `n_source_tokens`:
    source vocabulary size, if the model has a separate one. Special tokens fill unused ids.
    """
    hints = TokenizerHints.read(folder, config)
    if all((folder / name).is_file() for name in MARIAN):
        return _marian(folder, hints, n_tokens, n_source_tokens or n_tokens)
    raw = _raw(folder, hints)
    if hints.model_type == "whisper":
        return _whisper(raw, hints, n_tokens)
    extra = {t: i for t, i in hints.added.items() if raw.inner.token_to_id(t) is None}
    inner = align_vocabulary(raw.inner, n_tokens, raw.where, extra)
    both = _finished(replace(raw, inner=inner, size=None), hints, n_tokens)
    return Vocabularies(both, both)


def _finished(raw: RawTokenizer, hints: TokenizerHints, n_tokens: int) -> Tokenizer:
    inner = raw.inner
    present = [name for name in hints.specials if inner.token_to_id(name) is not None]
    inner.add_special_tokens(present)
    roles = token_roles_of(hints, inner, raw.where, in_json=raw.ends, pieces=raw.pieces)
    named = {roles.bos, roles.eos, roles.unk, roles.mask, roles.source_begin, roles.target_begin}
    named |= {*roles.banned, *(roles.before or ()), *(roles.behind or ())}
    inner.add_special_tokens(sorted(n for n in named if n is not None))
    made = Tokenizer(inner, raw.where, roles, size=raw.size)
    assert made.vocab_size == n_tokens, (made.vocab_size, n_tokens)
    return made


def _whisper(raw: RawTokenizer, hints: TokenizerHints, n_tokens: int) -> Vocabularies:
    """Return the tokenizer of Whisper: that of GPT-2, with a space before each text and with
    Whisper's special tokens."""
    known = raw.inner.get_vocab(with_added_tokens=True)
    taken = set(known.values())
    extra = whisper_specials(n_tokens) | dict(hints.added)
    extra = {t: i for t, i in extra.items() if t not in known and i not in taken}
    inner = align_vocabulary(raw.inner, n_tokens, raw.where, extra)
    inner.add_special_tokens([t for t in (*extra, *whisper_specials(n_tokens)) if t in known])
    both = Tokenizer(add_space(inner), raw.where, whisper_roles(inner, hints.generation, raw.where))
    assert both.vocab_size == n_tokens, (both.vocab_size, n_tokens)
    return Vocabularies(both, both)


def _raw(folder: Path, hints: TokenizerHints) -> RawTokenizer:
    """Load the tokenizer from the first supported format in the folder."""
    if (folder / "tokenizer.json").is_file():
        inner = _library(folder / "tokenizer.json")
        return RawTokenizer(inner, str(folder / "tokenizer.json"), ends=ends_in_json(inner))
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if vocabulary.is_file() and merges.is_file():
        if hints.model_type == "openai-gpt" or bytepairs.ends_words(vocabulary):
            return RawTokenizer(bytepairs.gpt_tokenizer(vocabulary, merges), str(vocabulary))
        if hints.model_type in QWEN:
            return RawTokenizer(bytepairs.qwen_tokenizer(vocabulary, merges), str(vocabulary))
        spaced = bool(hints.settings.get("add_prefix_space"))
        return RawTokenizer(
            bytepairs.gpt2_tokenizer(vocabulary, merges, with_space=spaced), str(vocabulary)
        )
    if (folder / "vocab.txt").is_file():
        return RawTokenizer(_bert(folder / "vocab.txt", hints), str(folder / "vocab.txt"))
    for pattern in ("*.model", "*.tiktoken"):
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise DataError(f"{folder} has several tokenizers: {names}. Remove all but one.")
        if found and bytepairs.is_tiktoken(found[0]):
            return RawTokenizer(bytepairs.tiktoken_tokenizer(found[0]), str(found[0]), pieces=True)
        if found and pattern == "*.model":
            return _sentencepiece(found[0], hints)
        if found:
            raise DataError(
                f"{found[0]} is not a tiktoken file: expected a piece in base64 and its id in the "
                "first line."
            )
    raise DataError(
        f"no tokenizer found in {folder}. Supported files: tokenizer.json, vocab.json with "
        "merges.txt, vocab.txt, *.model (SentencePiece), *.tiktoken, or source.spm and target.spm "
        "with vocab.json."
    )


def _library(path: Path) -> tokenizers.Tokenizer:
    text = read_text(path)
    try:
        check_tokenizer(json.loads(text), str(path))
        inner = tokenizers.Tokenizer.from_str(text)
        inner.no_padding()  # meant for batches; its tokens would look like special tokens at ends
        inner.no_truncation()
        return inner
    except DataError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"cannot read the tokenizer {path}: {error}.") from error


def _bert(path: Path, hints: TokenizerHints) -> tokenizers.Tokenizer:
    """Load a BERT vocabulary with the options of tokenizer_config.json. Without `do_lower_case`,
    text is lower-cased unless the vocabulary has capital letters."""
    settings = hints.settings
    return vocab_txt(
        path,
        lowercase=settings.get("do_lower_case"),
        strip_accents=settings.get("strip_accents"),
        chinese=settings.get("tokenize_chinese_chars", True),
    )


def _sentencepiece(path: Path, hints: TokenizerHints) -> RawTokenizer:
    if hints.model_type in OTHER_NUMBERS:
        raise DataError(
            f"{path} cannot be used alone: the token ids of {hints.model_type} models differ from "
            "those in the SentencePiece file. Load the tokenizer with `transformers` and save it "
            f"as {path.with_name('tokenizer.json')}."
        )
    model = read_sentencepiece(path)
    first: list[Any] = []
    if hints.model_type == "albert":
        first = albert_folding(
            strip_accents=not hints.settings.get("keep_accents", False),
            lowercase=bool(hints.settings.get("do_lower_case", True)),
        )
    inner = library_tokenizer(model, first=first)
    if hints.model_type == "t5" and inner.token_to_id("<extra_id_0>") is None:
        n_extra = hints.settings.get("extra_ids", 100)
        names = [f"<extra_id_{n}>" for n in reversed(range(n_extra))]
        inner.add_special_tokens(names)
    return RawTokenizer(inner, str(path), pieces=True)


def _marian(folder: Path, hints: TokenizerHints, n_target: int, n_source: int) -> Vocabularies:
    """Load Marian's SentencePiece model for each side. Both sides have one table of ids, or each
    has its own."""
    tables = [folder / "vocab.json"] * 2
    if hints.settings.get("separate_vocabs") or (folder / "target_vocab.json").is_file():
        tables[1] = folder / "target_vocab.json"
    sides = []
    for side, table, n_rows in zip(MARIAN, tables, (n_source, n_target), strict=False):
        numbers = bytepairs.read_numbers(table)
        over = [token for token, i in numbers.items() if i >= n_rows]
        if over:
            raise DataError(
                f"{table} has the token {over[0]!r} with id {numbers[over[0]]:,}, but the "
                f"vocabulary of the model has {n_rows:,} rows."
            )
        taken = set(numbers.values())
        numbers |= {unused_name(i): i for i in range(n_rows) if i not in taken}
        model = read_sentencepiece(folder / side)
        if model.of_type(UNUSED):
            raise DataError(f"{folder / side} has unused pieces, which are not supported.")
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
        raw = RawTokenizer(inner, str(folder / side), more)
        sides.append(_finished(raw, hints, n_rows))
    return Vocabularies(*sides)
