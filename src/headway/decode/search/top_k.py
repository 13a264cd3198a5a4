"""Fast top-k over the scores of a vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128


def top_k(scores_RV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row, in order, and their indices.

    The k largest values are in the k blocks with the largest maxima, so that one fast pass over the
    blocks leaves little to sort.
    """
    n_blocks = scores_RV.shape[1] // BLOCK
    if n_blocks <= 2 * k:
        largest = scores_RV.topk(min(k, scores_RV.shape[1]))
        return largest.values, largest.indices
    blocks_RCS = scores_RV[:, : n_blocks * BLOCK].unflatten(1, (n_blocks, BLOCK))
    chosen_Rk = blocks_RCS.amax(2).topk(k, sorted=False).indices
    inside_RkS = blocks_RCS.gather(1, chosen_Rk[:, :, None].expand(-1, -1, BLOCK))
    largest = inside_RkS.flatten(1).topk(k)
    block_Rk = chosen_Rk.gather(1, largest.indices // BLOCK)
    values_Rk, index_Rk = largest.values, block_Rk * BLOCK + largest.indices % BLOCK
    rest = scores_RV.shape[1] % BLOCK
    if not rest:
        return values_Rk, index_Rk
    tail = scores_RV[:, -rest:].topk(min(k, rest))
    largest = torch.cat([values_Rk, tail.values], dim=1).topk(k)
    where = torch.cat([index_Rk, tail.indices + n_blocks * BLOCK], dim=1)
    return largest.values, where.gather(1, largest.indices)
