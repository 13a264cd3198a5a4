"""What a decoder knows of the tokens that it has read: keys and values of attention, hidden states
of a recurrence, inputs of a convolution. The decoding loop owns it and passes it in; the model
stores nothing between calls.

All of it is kept by token, each token in a cell of its own. So one thing moves hypotheses, takes
guesses back and lets finished sequences go, whatever a layer keeps: a beam's tree says which cells
are a hypothesis's past, and a recurrence goes on from the last of them as attention looks at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.layout import Layout, Tree

KEYS, VALUES = "keys", "values"


class LayerCache:
    """What one layer keeps of its own tokens, and of the memory, computed once."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.kept: dict[str, Tensor] = {}
        """By name, a row of cells for each sequence (B S …). A state has one cell more, the first:
        where a sequence begins."""

        self.memory: tuple[Tensor, Tensor] | None = None
        """Cross-attention keys and values (M G K), filled by the first call."""

    def append(self, k_NGK: Tensor, v_NGK: Tensor, new: Layout) -> tuple[Tensor, Tensor, Layout]:
        """Write the new rows behind each sequence's cached ones; all rows so far come back."""
        keys = self.cache.keys_with(new)
        k_BSGK, v_BSGK = self.grids(k_NGK, v_NGK)
        self.cache.write(k_BSGK, k_NGK, new)
        self.cache.write(v_BSGK, v_NGK, new)
        return k_BSGK.flatten(0, 1), v_BSGK.flatten(0, 1), keys

    def grids(self, k_NGK: Tensor, v_NGK: Tensor) -> tuple[Tensor, Tensor]:
        """Where keys and values like these are kept, with as much room as the cache has now."""
        capacity = self.cache.capacity
        return self._room(KEYS, k_NGK, capacity), self._room(VALUES, v_NGK, capacity)

    def begin(self, name: str, first_BE: Tensor) -> None:
        """What a state is before the first token of each sequence."""
        grid_BSE = self._room(name, first_BE, self.cache.capacity + 1)
        grid_BSE[: len(first_BE), 0] = first_BE

    def before(self, name: str, new: Layout, depth: int = 1) -> Tensor:
        """The states of the tokens before each new row, the nearest first (N depth E)."""
        self.cache.keys_with(new)
        return self._gather(name, new, self.cache.past(new, depth + 1)[:, 1:])

    def latest(self, name: str, new: Layout, depth: int) -> Tensor:
        """The same of each new row, once it is written, and of those before it."""
        return self._gather(name, new, self.cache.past(new, depth))

    def last(self, name: str) -> Tensor:
        """The state of each sequence as it stands (B E)."""
        grid_BSE = self.kept[name]
        cell_B = torch.tensor(self.cache.lengths, dtype=torch.long).to(grid_BSE.device)
        return grid_BSE[torch.arange(len(grid_BSE), device=grid_BSE.device), cell_B]

    def put(self, name: str, fresh_NE: Tensor, new: Layout) -> None:
        """The states of new rows."""
        self.cache.keys_with(new)  # makes room
        grid_BSE = self._room(name, fresh_NE, self.cache.capacity + 1)
        self.cache.write(grid_BSE[:, 1:], fresh_NE, new)

    def _gather(self, name: str, new: Layout, cells_NC: Tensor) -> Tensor:
        grid_BSE = self.kept[name]
        if self.cache.tree is None:
            number_N = new.numbers_N()
        else:
            queries = self.cache.tree.may_BTS.shape[1]
            number_N = torch.arange(new.n_rows, device=grid_BSE.device) // queries
        return grid_BSE[number_N[:, None], cells_NC + 1]

    def _room(self, name: str, fresh_N: Tensor, capacity: int) -> Tensor:
        """The grid, made or enlarged where it is too small."""
        n_rows, grid_BS = self.cache.n_rows, self.kept.get(name)
        if grid_BS is not None and grid_BS.shape[:2] == (n_rows, capacity):
            return grid_BS
        larger_BS = fresh_N.new_zeros(n_rows, capacity, *fresh_N.shape[1:])
        if grid_BS is not None:
            larger_BS[: len(grid_BS), : grid_BS.shape[1]] = grid_BS
        self.kept[name] = larger_BS
        return larger_BS


class Cache:
    """The state of a decoder: a `LayerCache` per layer and the number of tokens each sequence holds
    in all of them.

    Rows of different length stand side by side. Room is allocated once for `capacity` tokens a
    sequence and doubled if that was too little.
    """

    def __init__(self, n_layers: int, n_rows: int, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} leaves no room for a token")
        self.layers = [LayerCache(self) for _ in range(n_layers)]
        self.n_rows = n_rows
        self.capacity = capacity
        self.lengths: tuple[int, ...] = (0,) * n_rows
        self.tree: Tree | None = None
        """What each of the next queries sees, where it is not all that is there."""

        self._keys: tuple[Layout, Layout] | None = None

    def layout(self, n_new: int | Sequence[int], device: torch.device | str = "cpu") -> Layout:
        """Where the next rows of a batch belong: `n_new` for every sequence, or a number each."""
        if isinstance(n_new, int):
            offsets_B = torch.tensor(self.lengths, dtype=torch.long).to(device, non_blocking=True)
            return Layout.steps(offsets_B, n_new, reach=max(self.lengths, default=0) + n_new)
        return Layout.of(n_new, device).shifted(self.lengths)

    def keys_with(self, new: Layout) -> Layout:
        """The layout of all keys once `new` is written. All layers of a call share it."""
        if self._keys is not None and self._keys[0] is new:
            return self._keys[1]
        added = new.known_lengths()
        if len(added) != self.n_rows:
            raise ValueError(f"{len(added)} sequences, but the cache has {self.n_rows}")
        lengths = tuple(a + b for a, b in zip(self.lengths, added, strict=True))
        while max(lengths, default=0) > self.capacity:
            self.capacity *= 2
        keys = Layout.in_cache(lengths, self.capacity, new.starts_B.device, self.tree)
        self._keys = (new, keys)
        return keys

    def past(self, new: Layout, depth: int) -> Tensor:
        """The cells of each new row and of the tokens before it, the nearest first; -1 where there
        is none. All layers of a call share it."""
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
        """Count the rows written in this call; the stack does it once, after its last layer."""
        self.lengths = tuple(a + b for a, b in zip(self.lengths, new.known_lengths(), strict=True))
        self._keys = None

    def select(self, rows: Sequence[int]) -> None:
        """Sequence i becomes what sequence `rows[i]` was: beams move, finished rows go.

        Only what moves is copied, and only its tokens. Memory is not touched: sequences that share
        a source share its keys by their layout.
        """
        moved = [(to, origin) for to, origin in enumerate(rows) if to != origin]
        used = max((self.lengths[origin] for _, origin in moved), default=0)
        for layer in self.layers:
            for name, grid_BS in layer.kept.items():
                begins = grid_BS.shape[1] - self.capacity
                layer.kept[name] = _moved(grid_BS, moved, len(rows), used + begins)
        self.lengths = tuple(self.lengths[origin] for origin in rows)
        self.n_rows = len(rows)
        self._keys = None

    def repeated(self, n_rows: int, capacity: int) -> Cache:
        """A new cache of so many sequences, each with the tokens of the one that is here.

        So a long beginning that many sequences share is computed once.
        """
        assert self.n_rows == 1, "only one sequence can be repeated"
        used = self.lengths[0]
        copy = Cache(len(self.layers), n_rows, max(capacity, used))
        copy.lengths = (used,) * n_rows
        for mine, theirs in zip(copy.layers, self.layers, strict=True):
            for name, grid_1S in theirs.kept.items():
                begins = grid_1S.shape[1] - self.capacity
                cells = copy.capacity + begins
                larger = grid_1S.new_zeros(n_rows, cells, *grid_1S.shape[2:])
                larger[:, : used + begins] = grid_1S[:, : used + begins]
                mine.kept[name] = larger
        return copy

    def level(self) -> None:
        """All sequences go on behind the longest. What lies between is for the tree to hide."""
        self.lengths = (max(self.lengths, default=0),) * self.n_rows
        self._keys = None

    def trim(self, lengths: Sequence[int]) -> None:
        """Forget the tokens behind these lengths, as when a guess is taken back."""
        if any(new > old for new, old in zip(lengths, self.lengths, strict=True)):
            raise ValueError(f"cannot trim {self.lengths} to {tuple(lengths)}")
        self.lengths = tuple(lengths)
        self._keys = None


def _moved(grid_BSGK: Tensor, moved: list[tuple[int, int]], n_rows: int, used: int) -> Tensor:
    """The grid with `n_rows` rows, after the first `used` cells went along the pairs (to, from)."""
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
