"""Word vectors that others have trained, as the first embeddings of a model.

The text format of word2vec and GloVe: a word and its numbers on a line, with blanks between;
word2vec begins with a line that has the number of words and their width.
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

Vector = NDArray[np.float32]


def embedding_matrix(
    path: str | Path, tokenizer: Tokenizer, d_model: int, std: float, seed: int = 0
) -> tuple[Tensor, int]:
    """Embeddings of a vocabulary, and how many of its pieces have their vector from the file.

    A piece takes the vector of the word that it is, or of that word in lower case; a piece inside
    a word takes none. The vectors are scaled together to the standard deviation `std`, which the
    rows of all other pieces are drawn with.
    """
    words = _whole_words(tokenizer)
    wanted = dict(words)
    lowered: dict[str, list[int]] = {}
    for word, ids in words.items():
        lowered.setdefault(word.lower(), []).extend(ids)
    found = read_vectors(path, wanted.keys() | lowered.keys(), d_model)
    rows: dict[int, Vector] = {}
    for names in (lowered, wanted):  # the exact word has the last say
        rows |= {i: found[word] for word, ids in names.items() if word in found for i in ids}
    if not rows:
        raise DataError(f"{path} has a vector for none of the {len(words):,} words needed here.")
    draw = torch.Generator().manual_seed(seed)
    matrix_VD = torch.randn(tokenizer.vocab_size, d_model, generator=draw) * std
    places = sorted(rows)
    taken = torch.from_numpy(np.stack([rows[i] for i in places]))
    spread = float(taken.std(correction=0))
    matrix_VD[places] = taken * (std / spread if spread > 0 else 1.0)
    return matrix_VD, len(rows)


def read_vectors(path: str | Path, wanted: set[str], width: int) -> dict[str, Vector]:
    """The vectors of the wanted words, of that width. Of a word that comes twice, the first."""
    found: dict[str, Vector] = {}
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
                f"{path}, line {number:,}: a word and {width} numbers are needed, but there are "
                f"{len(fields)} fields: {line[:40]!r}."
            )
        word = " ".join(fields[:-width])  # GloVe has some words with blanks
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
        raise DataError(f"there is no file of word vectors {path}.") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8. Word vectors are read as text; binary ones must be converted."
        ) from error


def _n_numbers(fields: list[str]) -> int:
    """How many of the last fields are numbers; at least one field is the word."""
    n = 0
    while n < len(fields) - 1 and _is_number(fields[-1 - n]):
        n += 1
    return n


def _check_width(path: str | Path, there: int, width: int) -> None:
    # A word may be a number itself, so that there seems to be one more.
    if there not in (width, width + 1):
        raise DataError(
            f"{path} has vectors of {there} numbers, but the model has model.d_model={width}. "
            f"Set model.d_model={there}, or use other vectors."
        )


def _is_number(field: str) -> bool:
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


def _numbers(fields: list[str], where: str) -> Vector:
    try:
        vector = np.array(fields, np.float64).astype(np.float32)
    except ValueError as error:
        bad = next(field for field in fields if not _is_number(field))
        raise DataError(f"{where}: {bad!r} is no number.") from error
    if not np.isfinite(vector).all():
        raise DataError(f"{where}: a number is infinite or not a number.")
    return vector
