"""The `dense` back end: PyTorch's fused attention on batches that are padded for this call only.

A batch of equal lengths needs no padding and no copy. Other batches are divided into groups of
sequences of similar length, so that there is little padding. Works on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout, Tree

WASTE = 1.25
"""Maximum size of a padded group of sequences, as a multiple of its number of tokens."""

SMALL = 512
"""Number of positions, including padding, below which a group is never split. One more call takes
longer than computing the padding that the split would save."""


def attend_dense(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    if queries.is_full_grid and keys.stride is not None and queries.n_rows:
        return _on_views(q_NHK, k_MGK, v_MGK, queries, keys, scope)
    plan = _plan(queries, keys)
    if not plan.groups:  # no query sees any key
        return q_NHK.masked_fill(torch.ones_like(q_NHK, dtype=torch.bool), 0.0)
    q_parts = plan.q.to_grids(q_NHK)
    k_parts, v_parts = plan.k.to_grids(k_MGK), plan.k.to_grids(v_MGK)
    outs = [
        _fused(q_BTHK, k_BSGK, v_BSGK, group, scope).flatten(0, 1)
        for q_BTHK, k_BSGK, v_BSGK, group in zip(
            q_parts, k_parts, v_parts, plan.groups, strict=True
        )
    ]
    return plan.q.to_rows(outs)


def _on_views(
    q_NHK: Tensor, k_MGK: Tensor, v_MGK: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    assert keys.stride is not None
    n_sequences = queries.n_sequences
    q_BTHK = q_NHK.unflatten(0, (n_sequences, queries.longest))
    k_BSGK = k_MGK.unflatten(0, (-1, keys.stride))[:n_sequences, : keys.longest]
    v_BSGK = v_MGK.unflatten(0, (-1, keys.stride))[:n_sequences, : keys.longest]
    if keys.tree is not None:
        mask_B1TS = _tree_mask(q_BTHK, queries, keys.tree, scope)
        return _sdpa(q_BTHK, k_BSGK, v_BSGK, mask_B1TS, scope).flatten(0, 1)
    group = _Group.over(queries, keys, None)
    return _fused(q_BTHK, k_BSGK, v_BSGK, group, scope).flatten(0, 1)


def _fused(
    q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, group: _Group, scope: AttentionSpec
) -> Tensor:
    """Call `scaled_dot_product_attention` with the cheapest valid mask. Return the output (B T H
    K)."""
    # The padding is at the end, where causal queries of real tokens cannot see it. No mask is
    # needed.
    causal_alone = scope.causal and group.is_square and scope.window is None and scope.bias is None
    mask_B1TS = None if causal_alone else _mask(q_BTHK, group, scope)
    return _sdpa(q_BTHK, k_BSGK, v_BSGK, mask_B1TS, scope, causal_alone=causal_alone)


def _sdpa(
    q_BTHK: Tensor,
    k_BSGK: Tensor,
    v_BSGK: Tensor,
    mask_B1TS: Tensor | None,
    scope: AttentionSpec,
    *,
    causal_alone: bool = False,
) -> Tensor:
    out_BHTK = F.scaled_dot_product_attention(
        q_BTHK.transpose(1, 2),
        k_BSGK.transpose(1, 2),
        v_BSGK.transpose(1, 2),
        attn_mask=mask_B1TS,
        dropout_p=scope.dropout,
        is_causal=causal_alone,
        scale=scope.scale_for(q_BTHK.shape[-1]),
        enable_gqa=q_BTHK.shape[2] != k_BSGK.shape[2],
    )
    return out_BHTK.transpose(1, 2)


def _tree_mask(q_BTHK: Tensor, queries: Layout, tree: Tree, scope: AttentionSpec) -> Tensor:
    may_B1TS = tree.may_BTS.unsqueeze(1)
    if scope.window is None and scope.bias is None:
        return may_B1TS
    distance_BTS = tree_distance(tree, queries)
    if scope.window is not None:
        may_B1TS = may_B1TS & (distance_BTS.abs() < scope.window).unsqueeze(1)
    if scope.bias is None:
        return may_B1TS
    return scope.bias(distance_BTS).to(q_BTHK.dtype).masked_fill(~may_B1TS, -torch.inf)


def tree_distance(tree: Tree, queries: Layout) -> Tensor:
    """Return the position of each key minus that of each query (B T S), for the hypotheses of a
    beam."""
    return tree.position_S - queries.positions_N.view(*tree.may_BTS.shape[:2], 1)


def _mask(q_BTHK: Tensor, group: _Group, scope: AttentionSpec) -> Tensor | None:
    """Return the attention mask (B 1 T S), which is true where a query may attend, or None if every
    query sees every key. With an attention bias, return the additive mask instead: the bias, and −∞
    for masked keys."""
    sees_all = group.n_queries == 1 or not scope.causal
    if group.all_keys_real and sees_all and scope.window is None and scope.bias is None:
        return None
    # If all sequences have the same shape, they share one mask.
    rows = slice(0, 1) if group.all_keys_real and group.same_offset else slice(None)
    q_lengths_B1, k_lengths_B1 = group.q_lengths_B[rows, None], group.k_lengths_B[rows, None]
    key_S = torch.arange(group.n_keys, device=q_BTHK.device)
    new_T = torch.arange(group.n_queries, device=q_BTHK.device)
    may_BTS = (key_S < k_lengths_B1)[:, None, :]
    if scope.causal or scope.window is not None:
        # Padding queries get the position of the last query. Their output is discarded, but a query
        # that sees no key would become NaN.
        new_BT = new_T.minimum((q_lengths_B1 - 1).clamp(min=0))
        distance_BTS = key_S - (k_lengths_B1 - q_lengths_B1 + new_BT)[:, :, None]
        if scope.causal:
            may_BTS = may_BTS & (distance_BTS <= 0)
        if scope.window is not None:
            may_BTS = may_BTS & (distance_BTS.abs() < scope.window)
    may_B1TS = may_BTS.unsqueeze(1)
    if scope.bias is None:
        return may_B1TS
    offset_B1 = (k_lengths_B1 - q_lengths_B1)[: 1 if group.same_offset else None]
    distance_BTS = key_S - (offset_B1 + new_T)[:, :, None]
    return scope.bias(distance_BTS).to(q_BTHK.dtype).masked_fill(~may_B1TS, -torch.inf)


@dataclass(frozen=True)
class _Group:
    """Sequences that are padded together to `n_queries` queries and `n_keys` keys each."""

    n_queries: int
    n_keys: int
    q_lengths_B: Tensor
    k_lengths_B: Tensor
    is_square: bool
    """Whether every sequence is known to have as many queries as keys."""

    all_keys_real: bool
    same_offset: bool
    """Whether the number of keys minus the number of queries is known to be the same in every
    sequence."""

    @classmethod
    def over(cls, queries: Layout, keys: Layout, chosen: Sequence[int] | None) -> _Group:
        """Build the group of the sequences with the indices `chosen`, or of all sequences if it is
        None."""
        index = slice(None) if chosen is None else torch.tensor(chosen).to(queries.starts_B.device)
        q_lengths_B, k_lengths_B = queries.lengths_B[index], keys.lengths_B[index]
        if queries.lengths is None or keys.lengths is None:  # fixed-size form: lengths unknown
            square = queries is keys
            return cls(
                queries.longest, keys.longest, q_lengths_B, k_lengths_B, square, False, square
            )
        numbers = range(queries.n_sequences) if chosen is None else chosen
        q_lengths = [queries.lengths[i] for i in numbers]
        k_lengths = [keys.lengths[i] for i in numbers]
        offsets = {k - q for q, k in zip(q_lengths, k_lengths, strict=True)}
        return cls(
            n_queries=max(q_lengths),
            n_keys=max(k_lengths),
            q_lengths_B=q_lengths_B,
            k_lengths_B=k_lengths_B,
            is_square=offsets == {0},
            all_keys_real=min(k_lengths) == max(k_lengths),
            same_offset=len(offsets) == 1,
        )


@dataclass(frozen=True)
class _Cells:
    """Index mapping between a flat batch and its padded groups (C positions in all groups
    together)."""

    row_of_cell_C: Tensor
    empty_C: Tensor
    """Padding positions of the padded groups: indices, or a mask if the batch has fixed shapes
    (CUDA graphs)."""

    cell_of_row_N: Tensor
    lost_N: Tensor
    """Tokens of the flat batch without a position in a padded group, as indices or a mask. Examples
    are free slots of a cache and queries without keys."""

    shapes: list[tuple[int, int]]
    """Number of sequences and padded length of each group."""

    is_shared: bool
    """Whether several padded positions may hold the same token, because the sequences of
    `Layout.pick` may overlap."""

    @classmethod
    def over(
        cls, layout: Layout, groups: list[Sequence[int]], widths: list[int], n_rows: int
    ) -> _Cells:
        device = layout.starts_B.device
        reals = [torch.zeros(0, dtype=torch.bool, device=device)]
        rows = [torch.zeros(0, dtype=torch.int32, device=device)]
        for chosen, width in zip(groups, widths, strict=True):
            index = torch.tensor(chosen).to(device)
            cell_T = torch.arange(width, device=device)
            reals.append((cell_T < layout.lengths_B[index, None]).flatten())
            rows.append((layout.starts_B[index, None] + cell_T).flatten())
        real_C, row_C = torch.cat(reals), torch.cat(rows).long()
        number_C = torch.arange(len(row_C), device=device)
        # Padding is written to one extra token, which is removed afterwards.
        cell_of_row_N = torch.full((n_rows + 1,), -1, device=device)
        cell_of_row_N[row_C.where(real_C, n_rows)] = number_C
        cell_of_row_N = cell_of_row_N[:-1]
        empty_C, lost_N = ~real_C, cell_of_row_N < 0
        if layout.lengths is not None:
            empty_C, lost_N = empty_C.nonzero().squeeze(1), lost_N.nonzero().squeeze(1)
        shapes = [(len(chosen), width) for chosen, width in zip(groups, widths, strict=True)]
        return cls(
            row_C.where(real_C, 0),
            empty_C,
            cell_of_row_N.clamp(min=0),
            lost_N,
            shapes,
            layout.bounds is None,
        )

    def to_grids(self, x_NHK: Tensor) -> list[Tensor]:
        if self.is_shared:  # gradients of a row's cells must add up, as autograd does by itself
            cells_CHK = _take(x_NHK, self.row_of_cell_C, self.empty_C)
        else:
            cells_CHK = _Move.apply(
                x_NHK, self.row_of_cell_C, self.empty_C, self.cell_of_row_N, self.lost_N
            )
        parts = cells_CHK.split([n * width for n, width in self.shapes])
        return [part.unflatten(0, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def to_rows(self, grids: list[Tensor]) -> Tensor:
        cells_CHK = grids[0] if len(grids) == 1 else torch.cat(grids)
        moved: Tensor = _Move.apply(
            cells_CHK, self.cell_of_row_N, self.lost_N, self.row_of_cell_C, self.empty_C
        )
        return moved


class _Move(torch.autograd.Function):
    """Gather vectors by index and set some of them to zero. Each index occurs only once, so the
    backward pass is the same operation with the inverse indices."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, take: Tensor, blank: Tensor, take_back: Tensor, blank_back: Tensor
    ) -> Tensor:
        ctx.save_for_backward(take, blank, take_back, blank_back)
        return _take(x, take, blank)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        take, blank, take_back, blank_back = ctx.saved_tensors
        return _Move.apply(grad, take_back, blank_back, take, blank), None, None, None, None


def _take(x: Tensor, take: Tensor, blank: Tensor) -> Tensor:
    out = x.index_select(0, take)
    if blank.dtype == torch.bool:
        return out.masked_fill_(blank[:, None, None], 0.0)
    return out.index_fill_(0, blank, 0.0) if len(blank) else out


@dataclass(frozen=True)
class _Plan:
    groups: list[_Group]
    q: _Cells
    k: _Cells
    keys: Layout
    """Layout of the keys. It is kept alive because its `id` is the key under which the plan is
    stored."""


def _is_recording() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _plan(queries: Layout, keys: Layout) -> _Plan:
    found = queries.memo.get(id(keys))
    if isinstance(found, _Plan) and not _is_recording():
        return found
    if queries.lengths is None or keys.lengths is None:
        if _is_recording():
            raise RuntimeError(
                "dense attention cannot be recorded as a CUDA graph, because its grids depend on "
                "the sequence lengths."
            )
        chosen: list[Sequence[int]] = [range(queries.n_sequences)]
    else:
        chosen = group_by_length(queries.lengths, keys.lengths)
    groups = [_Group.over(queries, keys, numbers) for numbers in chosen]
    q = k = _Cells.over(queries, chosen, [group.n_queries for group in groups], queries.n_rows)
    if queries is not keys:
        k = _Cells.over(keys, chosen, [group.n_keys for group in groups], keys.n_rows)
    plan = _Plan(groups, q, k, keys)
    queries.memo[id(keys)] = plan
    return plan


def group_by_length(q_lengths: Sequence[int], k_lengths: Sequence[int]) -> list[Sequence[int]]:
    """Divide sequences into groups of similar length, so that padding each group wastes little.
    Return their indices.

    Sequences without queries or without keys are in no group.
    """
    used = [i for i, (q, k) in enumerate(zip(q_lengths, k_lengths, strict=True)) if q and k]
    used.sort(key=lambda i: (k_lengths[i], q_lengths[i]), reverse=True)
    groups: list[list[int]] = []
    rows = n_queries = n_keys = 0
    for i in used:
        rows += q_lengths[i] + k_lengths[i]
        n_queries, n_keys = max(n_queries, q_lengths[i]), max(n_keys, k_lengths[i])
        cells = (len(groups[-1]) + 1) * (n_queries + n_keys) if groups else 0
        if not groups or (cells > SMALL and cells > WASTE * rows):
            groups.append([])
            rows, n_queries, n_keys = q_lengths[i] + k_lengths[i], q_lengths[i], k_lengths[i]
        groups[-1].append(i)
    return [sorted(group) for group in groups]
