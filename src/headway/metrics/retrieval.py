"""Retrieval metrics, for finding the partner of each example by vectors, or by tf-idf as a
baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from headway.data.token_store import TokenStore

COMPARED_AT_ONCE = 256
"""Number of examples whose similarities to all others are computed at a time, to limit memory."""

NEAR = 1e-6
"""Maximum difference at which cosine similarities count as equal. Rounding depends on the batch, so
a test for exact equality would depend on it, too."""

Float32Array = NDArray[np.float32]


@dataclass(frozen=True)
class Retrieval:
    """Retrieval scores from 0 to 1. For each example, all candidates are ranked to find its
    partner."""

    accuracy: float
    """Fraction of examples whose partner is ranked first."""

    mrr: float
    """Mean reciprocal rank of the partner."""


def cosine(x_ND: Float32Array) -> Float32Array:
    """Normalize vectors to length one, so that their dot products are cosine similarities."""
    lengths_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
    return (x_ND / np.maximum(lengths_N1, 1e-12)).astype(np.float32)


def retrieval(a_ND: Float32Array, b_ND: Float32Array, keys_N: NDArray[np.int64]) -> Retrieval:
    """Return the retrieval scores if the vectors in `b` are ranked by cosine similarity to each
    vector in `a`. The correct partner has the same index. Vectors with equal keys are duplicates,
    and do not compete with each other."""
    a, b = torch.from_numpy(cosine(a_ND)), torch.from_numpy(cosine(b_ND))
    return _ranked(lambda rows: a[rows] @ b.T, keys_N)


def chance(n: int) -> Retrieval:
    """Return the expected scores of a random ranking of `n` candidates."""
    return Retrieval(1 / max(1, n), float((1 / np.arange(1, n + 1)).sum()) / max(1, n))


def text_keys(texts: TokenStore) -> NDArray[np.int64]:
    """Return one number per text. Equal texts have equal numbers."""
    known: dict[bytes, int] = {}
    pairs = pairwise(texts.offsets.tolist())
    found = [known.setdefault(texts.tokens[i:j].tobytes(), len(known)) for i, j in pairs]
    return np.array(found, np.int64)


def bag_retrieval(a: TokenStore, b: TokenStore, vocab_size: int) -> Retrieval:
    """Return the scores of a baseline without a model: cosine similarities of tf-idf vectors."""
    n = len(b.offsets) - 1
    all_rows = torch.arange(n)
    flat = torch.ones(vocab_size)
    present_V = torch.zeros(vocab_size)
    for rows in all_rows.split(COMPARED_AT_ONCE):
        present_V += (_bags(b, rows, flat) > 0).sum(0)
    idf_V = torch.log((1 + n) / (1 + present_V)) + 1
    parts = [_bags(b, rows, idf_V).norm(dim=1) for rows in all_rows.split(COMPARED_AT_ONCE)]
    norms_S = torch.cat([torch.zeros(0), *parts]).clamp(min=1e-12)
    tokens, lengths = b.gather(all_rows.numpy())
    tokens_M = torch.from_numpy(tokens)
    weights_M = idf_V[tokens_M] / norms_S.repeat_interleave(torch.from_numpy(lengths))
    starts_S = torch.from_numpy(np.cumsum(lengths) - lengths)

    def likeness(rows: Tensor) -> Tensor:
        columns_VT = F.normalize(_bags(a, rows, idf_V), dim=1).T.contiguous()
        return F.embedding_bag(
            tokens_M, columns_VT, starts_S, mode="sum", per_sample_weights=weights_M
        ).T

    return _ranked(likeness, text_keys(b))


def _bags(texts: TokenStore, rows: Tensor, weight_V: Tensor) -> Tensor:
    """Return the matrix of weighted token counts of the given texts."""
    tokens, lengths = texts.gather(rows.numpy())
    number_M = torch.arange(len(rows)).repeat_interleave(torch.from_numpy(lengths))
    tokens_M = torch.from_numpy(tokens)
    bags_TV = torch.zeros(len(rows), len(weight_V))
    return bags_TV.index_put_((number_M, tokens_M), weight_V[tokens_M], accumulate=True)


def _ranked(likeness: Callable[[Tensor], Tensor], keys_N: NDArray[np.int64]) -> Retrieval:
    """Return retrieval scores from similarities. Ties count as their expected value in random
    order."""
    keys, right, reciprocal = torch.from_numpy(keys_N), 0.0, 0.0
    for rows in torch.arange(len(keys)).split(COMPARED_AT_ONCE):
        like_TS = likeness(rows)
        own_T1 = like_TS.gather(1, rows[:, None])
        rival_TS = keys[rows][:, None] != keys
        nearer_T = ((like_TS > own_T1 + NEAR) & rival_TS).sum(1)
        equal_T = (((like_TS - own_T1).abs() <= NEAR) & rival_TS).sum(1)
        right += float(((nearer_T == 0) / (1 + equal_T)).sum())
        reciprocal += float((1 / (1 + nearer_T + equal_T / 2)).sum())
    n = max(1, len(keys))
    return Retrieval(right / n, reciprocal / n)
