"""Pretrained word vectors as initial embeddings of a model.

Files are in the text format of word2vec and GloVe: a word and its numbers on each line, separated
by spaces. A file of word2vec begins with a line that has the number of words and the number of
dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.errors import DataError
from headway.tokens.tokenizer import Tokenizer

Float32Array = NDArray[np.float32]


def embedding_matrix(
    path: str | Path, tokenizer: Tokenizer, d_model: int, std: float, seed: int = 0
) -> tuple[Tensor, int]:
    """Return initial embeddings, and the number of tokens whose vector is from the file.

    A token that is a whole word gets the vector of that word, or of the word in lower case. All
    other tokens get random vectors with the standard deviation `std`. All vectors from the file are
    multiplied by one common factor, so that they also have the standard deviation `std`.
    """
    words = _whole_words(tokenizer)
    wanted = dict(words)
    lowered: dict[str, list[int]] = {}
    for word, ids in words.items():
        lowered.setdefault(word.lower(), []).extend(ids)
    found = read_vectors(path, wanted.keys() | lowered.keys(), d_model)
    rows: dict[int, Float32Array] = {}
    for names in (lowered, wanted):  # exact words override lower-cased ones
        rows |= {i: found[word] for word, ids in names.items() if word in found for i in ids}
    if not rows:
        raise DataError(
            f"{path} has no vector for any of the {len(words):,} whole words in the vocabulary."
        )
    draw = torch.Generator().manual_seed(seed)
    matrix_VD = torch.randn(tokenizer.vocab_size, d_model, generator=draw) * std
    places = sorted(rows)
    taken = torch.from_numpy(np.stack([rows[i] for i in places]))
    spread = float(taken.std(correction=0))
    matrix_VD[places] = taken * (std / spread if spread > 0 else 1.0)
    return matrix_VD, len(rows)


def read_vectors(path: str | Path, wanted: set[str], width: int) -> dict[str, Float32Array]:
    """Return the vectors of the wanted words in a file. If a word is repeated, its first vector is
    used."""
    found: dict[str, Float32Array] = {}
    for number, line in enumerate(_lines(Path(path)), 1):
        fields = line.rstrip().split(" ")
        if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
            _check_width(path, int(fields[1]), width)
            continue
        if len(fields) == 1 and not fields[0]:
            continue
        if not found and number <= 2:
            _check_width(path, _n_numbers(fields), width)
        if len(fields) <= width:
            raise DataError(
                f"{path}, line {number:,}: expected a word and {width} numbers, but found "
                f"{len(fields)} fields: {line[:40]!r}."
            )
        word = " ".join(fields[:-width])  # GloVe has some words with spaces
        if word in wanted and word not in found:
            found[word] = _numbers(fields[-width:], f"{path}, line {number:,}")
    return found


def _whole_words(tokenizer: Tokenizer) -> Mapping[str, list[int]]:
    words: dict[str, list[int]] = {}
    ids = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.specials]
    for i, word in zip(ids, tokenizer.whole_words(ids), strict=True):
        if word:
            words.setdefault(word, []).append(i)
    return words


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            yield from (line.rstrip("\r\n") for line in file)
    except FileNotFoundError as error:
        raise DataError(f"the word-vector file {path} does not exist.") from error
    except OSError as error:
        raise DataError(f"cannot read the word vectors {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text. Convert binary word vectors to the text format."
        ) from error


def _n_numbers(fields: list[str]) -> int:
    """Return the number of numeric fields at the end of a line. The first field is always the
    word."""
    n = 0
    while n < len(fields) - 1 and _is_number(fields[-1 - n]):
        n += 1
    return n


def _check_width(path: str | Path, there: int, width: int) -> None:
    # A word that is itself a number would be counted as one of the numbers.
    if there not in (width, width + 1):
        raise DataError(
            f"the vectors in {path} have {there} dimensions, but model.d_model={width}. "
            f"Set model.d_model={there}, or use other vectors."
        )


def _is_number(field: str) -> bool:
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


def _numbers(fields: list[str], where: str) -> Float32Array:
    try:
        vector = np.array(fields, np.float64).astype(np.float32)
    except ValueError as error:
        bad = next(field for field in fields if not _is_number(field))
        raise DataError(f"{where}: {bad!r} is not a finite number.") from error
    if not np.isfinite(vector).all():
        raise DataError(f"{where}: the vector has an infinite or NaN value.")
    return vector
