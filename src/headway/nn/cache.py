"""Decoder cache: attention keys and values, states of recurrences, inputs of convolutions.

The decoding loop owns the cache and passes it in. The model stores nothing between calls.

Every layer stores the values of each token in a slot of its own. Reordering hypotheses, undoing
draft tokens and dropping finished sequences therefore work in the same way for all layers. In beam
search, a `Tree` lists the slots of each hypothesis. Attention reads all of these slots; a
recurrence reads only the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.layout import Layout, Tree

KEYS, VALUES = "keys", "values"


class LayerCache:
    """Cached values of one layer: those of its own tokens, and the cross-attention keys and values
    of the encoder output."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.cells: dict[str, Tensor] = {}
        """Cached tensors by name, with one row of slots per sequence (B S …). Tensors with states
        or inputs have one more slot at the start, for the initial state."""

        self.memory: tuple[Tensor, Tensor] | None = None
        """Cross-attention keys and values (M G K); None until the first call computes them."""

    def append(self, k_NGK: Tensor, v_NGK: Tensor, new: Layout) -> tuple[Tensor, Tensor, Layout]:
        """Write new keys and values after the cached ones. Return all keys, all values and their
        layout."""
        keys = self.cache.keys_with(new)
        k_BSGK, v_BSGK = self.grids(k_NGK, v_NGK)
        self.cache.write(k_BSGK, k_NGK, new)
        self.cache.write(v_BSGK, v_NGK, new)
        return k_BSGK.flatten(0, 1), v_BSGK.flatten(0, 1), keys

    def grids(self, k_NGK: Tensor, v_NGK: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tensors that cache keys and values of these shapes, at the current capacity of
        the cache."""
        capacity = self.cache.capacity
        return self._room(KEYS, k_NGK, capacity), self._room(VALUES, v_NGK, capacity)

    def begin(self, name: str, first_BE: Tensor) -> None:
        """Store the state before the first token of each sequence."""
        grid_BSE = self._room(name, first_BE, self.cache.capacity + 1)
        grid_BSE[: len(first_BE), 0] = first_BE

    def before(self, name: str, new: Layout, depth: int = 1) -> Tensor:
        """Return the states of the tokens before each new token, nearest first (N depth E)."""
        self.cache.keys_with(new)
        return self._gather(name, new, self.cache.past(new, depth + 1)[:, 1:])

    def latest(self, name: str, new: Layout, depth: int) -> Tensor:
        """Return the state of each new token and the states before it, `depth` in total, nearest
        first (N depth E). The states of the new tokens must already be written."""
        return self._gather(name, new, self.cache.past(new, depth))

    def last(self, name: str) -> Tensor:
        """Return the state after the last token of each sequence (B E)."""
        grid_BSE = self.cells[name]
        cell_B = torch.tensor(self.cache.lengths, dtype=torch.long).to(grid_BSE.device)
        return grid_BSE[torch.arange(len(grid_BSE), device=grid_BSE.device), cell_B]

    def put(self, name: str, fresh_NE: Tensor, new: Layout) -> None:
        """Write the states of new tokens."""
        self.cache.keys_with(new)  # enlarges the capacity if needed
        grid_BSE = self._room(name, fresh_NE, self.cache.capacity + 1)
        self.cache.write(grid_BSE[:, 1:], fresh_NE, new)

    def _gather(self, name: str, new: Layout, cells_NC: Tensor) -> Tensor:
        grid_BSE = self.cells[name]
        if self.cache.tree is None:
            number_N = new.numbers_N()
        else:
            queries = self.cache.tree.may_BTS.shape[1]
            number_N = torch.arange(new.n_rows, device=grid_BSE.device) // queries
        return grid_BSE[number_N[:, None], cells_NC + 1]

    def _room(self, name: str, fresh_N: Tensor, capacity: int) -> Tensor:
        """Return the cached tensor of that name. Create or enlarge it if necessary."""
        n_rows, grid_BS = self.cache.n_rows, self.cells.get(name)
        if grid_BS is not None and grid_BS.shape[:2] == (n_rows, capacity):
            return grid_BS
        larger_BS = fresh_N.new_zeros(n_rows, capacity, *fresh_N.shape[1:])
        if grid_BS is not None:
            larger_BS[: len(grid_BS), : grid_BS.shape[1]] = grid_BS
        self.cells[name] = larger_BS
        return larger_BS


class Cache:
    """Decoder cache: a `LayerCache` per layer, and the number of cached tokens of each sequence.

    All layers cache the same tokens. Sequences may differ in length. Memory is allocated for
    `capacity` tokens per sequence, and doubled when that is not enough.
    """

    def __init__(self, n_layers: int, n_rows: int, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} must be at least 1")
        self.layers = [LayerCache(self) for _ in range(n_layers)]
        self.n_rows = n_rows
        self.capacity = capacity
        self.lengths: tuple[int, ...] = (0,) * n_rows
        self.tree: Tree | None = None
        """Slots that each of the next queries may read in beam search. None: all slots of its
        sequence."""

        self._keys: tuple[Layout, Layout] | None = None

    def layout(self, n_new: int | Sequence[int], device: torch.device | str = "cpu") -> Layout:
        """Return the layout of the next tokens. `n_new`: number of tokens for every sequence, or a
        list with one number per sequence."""
        if isinstance(n_new, int):
            offsets_B = torch.tensor(self.lengths, dtype=torch.long).to(device, non_blocking=True)
            return Layout.steps(offsets_B, n_new, reach=max(self.lengths, default=0) + n_new)
        return Layout.of(n_new, device).shifted(self.lengths)

    def keys_with(self, new: Layout) -> Layout:
        """Return the layout of all keys, including those of the tokens in `new`. It is computed
        once per forward pass and shared by all layers."""
        if self._keys is not None and self._keys[0] is new:
            return self._keys[1]
        added = new.known_lengths()
        if len(added) != self.n_rows:
            raise ValueError(f"got {len(added)} sequences, but the cache holds {self.n_rows}")
        lengths = tuple(a + b for a, b in zip(self.lengths, added, strict=True))
        while max(lengths, default=0) > self.capacity:
            self.capacity *= 2
        keys = Layout.in_cache(lengths, self.capacity, new.starts_B.device, self.tree)
        self._keys = (new, keys)
        return keys

    def past(self, new: Layout, depth: int) -> Tensor:
        """Return the slots of each new token and of the tokens before it, nearest first (N depth);
        −1 if there is no such token. Computed once per forward pass and shared by all layers."""
        key = ("past", depth)
        found = new.memo.get(key)
        if isinstance(found, Tensor):
            return found
        if self.tree is None:
            back_C = torch.arange(depth, device=new.positions_N.device)
            cells_NC = (new.positions_N[:, None] - back_C).clamp(min=-1)
        else:
            may_BTS = self.tree.may_BTS
            cell_S = torch.arange(may_BTS.shape[2], device=may_BTS.device)
            seen_BTS = torch.where(may_BTS, cell_S, -1)
            some = min(depth, len(cell_S))
            cells_NC = seen_BTS.topk(some, dim=2).values.flatten(0, 1)
            cells_NC = F.pad(cells_NC, (0, depth - some), value=-1)
        new.memo[key] = cells_NC
        return cells_NC

    def write(self, grid_BSGK: Tensor, fresh_NGK: Tensor, new: Layout) -> None:
        if new.is_full_grid and len(set(self.lengths)) == 1:
            start = self.lengths[0]
            fresh_BTGK = fresh_NGK.unflatten(0, (self.n_rows, new.longest))
            grid_BSGK[:, start : start + new.longest] = fresh_BTGK
        else:
            row_N = torch.repeat_interleave(new.lengths_B, output_size=new.n_rows)
            grid_BSGK[row_N, new.positions_N] = fresh_NGK

    def advance(self, new: Layout) -> None:
        """Advance the cache lengths by the tokens written in this forward pass. The layer stack
        calls this once, after its last layer."""
        self.lengths = tuple(a + b for a, b in zip(self.lengths, new.known_lengths(), strict=True))
        self._keys = None

    def select(self, rows: Sequence[int]) -> None:
        """Replace sequence i by the previous sequence `rows[i]`, to reorder beams or drop finished
        sequences.

        Only the used slots of sequences that move are copied. Cross-attention keys are not copied,
        because the layout lets sequences with the same source share them.
        """
        moved = [(to, origin) for to, origin in enumerate(rows) if to != origin]
        used = max((self.lengths[origin] for _, origin in moved), default=0)
        for layer in self.layers:
            for name, grid_BS in layer.cells.items():
                begins = grid_BS.shape[1] - self.capacity
                layer.cells[name] = _moved(grid_BS, moved, len(rows), used + begins)
        self.lengths = tuple(self.lengths[origin] for origin in rows)
        self.n_rows = len(rows)
        self._keys = None

    def repeated(self, n_rows: int, capacity: int) -> Cache:
        """Return a new cache of `n_rows` sequences, each a copy of the only sequence in this cache.
        A prompt that many sequences share is thus computed only once."""
        assert self.n_rows == 1, "only a cache with one sequence can be repeated"
        used = self.lengths[0]
        copy = Cache(len(self.layers), n_rows, max(capacity, used))
        copy.lengths = (used,) * n_rows
        for mine, theirs in zip(copy.layers, self.layers, strict=True):
            for name, grid_1S in theirs.cells.items():
                begins = grid_1S.shape[1] - self.capacity
                cells = copy.capacity + begins
                larger = grid_1S.new_zeros(n_rows, cells, *grid_1S.shape[2:])
                larger[:, : used + begins] = grid_1S[:, : used + begins]
                mine.cells[name] = larger
        return copy

    def level(self) -> None:
        """Set the length of every cached sequence to that of the longest. If lengths differed, the
        caller must set a `tree` that masks the unused slots."""
        self.lengths = (max(self.lengths, default=0),) * self.n_rows
        self._keys = None

    def trim(self, lengths: Sequence[int]) -> None:
        """Shorten the sequences to these lengths, one per sequence, for example to drop rejected
        draft tokens."""
        if any(new > old for new, old in zip(lengths, self.lengths, strict=True)):
            raise ValueError(
                f"cannot trim lengths {self.lengths} to {tuple(lengths)}: no length may increase"
            )
        self.lengths = tuple(lengths)
        self._keys = None


def _moved(grid_BSGK: Tensor, moved: list[tuple[int, int]], n_rows: int, used: int) -> Tensor:
    """Return the tensor with `n_rows` sequences, after copying the first `used` slots between
    sequences. `moved`: pairs of sequence indices, each with the source and the destination of a
    copy."""
    to_R = torch.tensor([to for to, _ in moved], dtype=torch.long).to(grid_BSGK.device)
    from_R = torch.tensor([origin for _, origin in moved], dtype=torch.long).to(grid_BSGK.device)
    fresh_RSGK = grid_BSGK[from_R, :used]  # a copy: a row may be overwritten before it is read
    if n_rows > len(grid_BSGK):
        larger_BSGK = grid_BSGK.new_zeros(n_rows, *grid_BSGK.shape[1:])
        larger_BSGK[: len(grid_BSGK)] = grid_BSGK
        grid_BSGK = larger_BSGK
    grid_BSGK = grid_BSGK[:n_rows]
    grid_BSGK[to_R, :used] = fresh_RSGK
    return grid_BSGK
