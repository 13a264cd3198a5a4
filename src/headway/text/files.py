"""Tokenizers in files: ours and those of `tokenizers`, and GPT-2's and BERT's own.

GPT-2 keeps a vocabulary (`encoder.json`) and merges (`vocab.bpe`), BERT a list of pieces
(`vocab.txt`); how text is cut is part of their programs and stands here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from headway.errors import DataError
from headway.text.tokenizer import Tokenizer, Vocabularies

GPT2_NAMES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
BERT_NAME = "vocab.txt"
OURS = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tokenizer_files(path: Path) -> tuple[Path, ...]:
    """The files that make up the tokenizer at this path, which may be one of them or their
    folder."""
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and path.name not in {name for both in GPT2_NAMES for name in both}:
        return (path,)
    candidates = [*GPT2_NAMES, (BERT_NAME,)]
    candidates = [(OURS,), *candidates] if path.is_dir() else candidates
    for names in candidates:
        files = tuple(folder / name for name in names)
        if all(file.is_file() for file in files):
            return files
    if path.is_dir():
        known = " or ".join(" with ".join(names) for names in [(OURS,), *GPT2_NAMES, (BERT_NAME,)])
        raise DataError(f"there is no tokenizer in {path}: it would be {known}.")
    if path.suffix == ".json" and path.is_file():
        return (path,)
    other = next(n for both in GPT2_NAMES for n in both if path.name in both and n != path.name)
    raise DataError(f"{path} goes with {other}, which is not beside it.")


def load_vocabularies(path: Path) -> Vocabularies:
    """The tokenizers of both sides; a foreign one serves both."""
    files = tokenizer_files(path)
    if len(files) == 2:
        both = _gpt2(*files)
    elif files[0].suffix == ".txt":
        both = _bert(files[0])
    else:
        return Vocabularies.load(files[0])
    return Vocabularies(both, both)


def load_tokenizer(path: Path) -> Tokenizer:
    """One tokenizer; a file with two is refused."""
    vocab = load_vocabularies(path)
    if not vocab.joint:
        raise DataError(f"{path} holds two vocabularies, for translation; one is needed here.")
    return vocab.source


def bert_normaliser(lowercase: bool) -> Any:
    """Control characters go, Chinese characters stand alone; accents go together with case."""
    return normalizers.BertNormalizer(lowercase=lowercase)


def _gpt2(vocabulary: Path, merges: Path) -> Tokenizer:
    try:
        pieces = json.loads(_read(vocabulary))
        lines = _read(merges).split("\n")
        pairs = [_pair(line) for line in lines if line.strip() and not line.startswith("#version")]
        inner = tokenizers.Tokenizer(models.BPE(pieces, pairs))
    except DataError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"{vocabulary} and {merges} are no tokenizer: {error}.") from error
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([END_OF_TEXT])
    return Tokenizer(inner, str(vocabulary))


def _pair(line: str) -> tuple[str, str]:
    one, other = line.split(" ")
    return one, other


def _bert(path: Path) -> Tokenizer:
    """Lower-casing is not written down; a vocabulary without a capital letter means it."""
    pieces = [line.removesuffix("\r") for line in _read(path).split("\n")]
    if pieces and not pieces[-1]:
        pieces.pop()
    missing = [name for name in BERT_SPECIALS[1:4] if name not in pieces]
    if missing:
        raise DataError(
            f"{path} is no vocabulary of BERT: it lacks {', '.join(missing)}. "
            "A file of one piece a line is needed."
        )
    lowercase = not any(p != p.lower() for p in pieces if not p.startswith("["))
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    inner = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = bert_normaliser(lowercase)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens([name for name in BERT_SPECIALS if name in vocabulary])
    return Tokenizer(inner, str(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read the tokenizer {path}: {error.strerror}.") from error
    except ValueError as error:
        raise DataError(f"{path} is not a tokenizer that can be read: {error}.") from error
