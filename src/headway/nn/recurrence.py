"""LSTM and GRU layers on flat batches.

A batch is processed as a packed sequence: the first tokens of all sequences, then all second
tokens, and so on. Each step is then one product without padding. If the host does not know the
lengths, as in a CUDA graph, the batch is padded to a fixed shape. With a cache, a step continues
from the state of the previous token of its hypothesis.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.attention.attention import Memory
from headway.nn.cache import LayerCache
from headway.nn.grid import cells_N, to_grid, to_rows
from headway.nn.layout import Layout
from headway.nn.linear import Linear
from headway.nn.tap import Tap

CELLS: dict[str, tuple[type[nn.LSTM] | type[nn.GRU], int]] = {
    "lstm": (nn.LSTM, 4),
    "gru": (nn.GRU, 3),
}
"""PyTorch layer class of each kind, and its number of gates. Its weights fuse one matrix per
gate."""

LATEST = 32
"""Number of tokens at the end of a prompt whose states are kept. At most this many tokens can be
undone."""

STATE = "state"


class PackedOrder(NamedTuple):
    """Order in which a recurrence reads the tokens of a flat batch, as in PyTorch's packed
    sequences."""

    sizes: Tensor
    """Number of sequences that have a first token, a second token, and so on. It is on the host."""

    rows_N: Tensor
    """For each place in the packed order, the index of its token in the flat batch."""

    place_N: Tensor
    """For each token of the flat batch, its place in the packed order."""

    order_B: Tensor
    """Indices of the sequences that have tokens, longest first."""

    rank_B: Tensor
    """Index of each sequence in `order_B`; 0 for empty sequences."""

    groups: list[tuple[Tensor, Tensor]]
    """One pair per distinct length: indices of the sequences of that length, and indices of their
    tokens (T B). Empty except on a CPU."""

    @classmethod
    def of(cls, layout: Layout) -> PackedOrder:
        """Return the packed order of a layout. It is computed once and stored in the layout for all
        layers."""
        found = layout.memo.get("packed")
        if not isinstance(found, PackedOrder):
            found = cls.of_lengths(layout.known_lengths(), layout.starts_B.device)
            layout.memo["packed"] = found
        return found

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], device: torch.device) -> PackedOrder:
        """Return the packed order of contiguous sequences of these lengths."""
        counts = np.array(lengths, dtype=np.int64)
        order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
        rank = np.zeros(len(counts), dtype=np.int64)
        rank[order] = np.arange(len(order))
        longest = int(counts.max(initial=0))
        sizes = (counts[order, None] > np.arange(longest)).sum(0)
        before = np.concatenate([[0], np.cumsum(sizes)[:-1]]) if longest else np.zeros(0, np.int64)
        starts = np.cumsum(counts) - counts
        position = np.arange(counts.sum()) - np.repeat(starts, counts)
        place = before[position] + np.repeat(rank, counts)
        rows = np.empty_like(place)
        rows[place] = np.arange(len(place))
        arrays = (rows, place, order, rank)
        places = [torch.from_numpy(x).to(device, non_blocking=True) for x in arrays]
        groups = []
        for length in np.unique(counts[counts > 0]) if torch.device(device).type == "cpu" else ():
            number = np.flatnonzero(counts == length)
            rows_TB = starts[number] + np.arange(length)[:, None]
            groups.append((torch.from_numpy(number), torch.from_numpy(rows_TB)))
        rows_N, place_N, order_B, rank_B = places
        return cls(torch.from_numpy(sizes), rows_N, place_N, order_B, rank_B, groups)


class InitialState(nn.Module):
    """Initial state of a recurrent decoder: a learned projection of the encoder's last state.

    A bidirectional encoder has two last states: that of the last token forwards, and that of the
    first token backwards.
    """

    def __init__(self, d_model: int, size: int, *, both_ends: bool) -> None:
        super().__init__()
        self.ends = ("first", "last") if both_ends else ("last",)
        self.to_state = Linear(d_model * len(self.ends), size)

    def forward(self, memory: Memory) -> Tensor:
        rows = [memory.layout.pooled(memory.x_MD, end) for end in self.ends]
        return self.to_state(torch.cat(rows, dim=-1)).tanh()


class Recurrence(nn.Module):
    """One LSTM or GRU layer of PyTorch. If it is bidirectional, the outputs of the two directions
    are concatenated, and together they have the width of the residual stream."""

    compiles = True
    """Whether the layer can be compiled. Its surroundings can; the recurrence itself runs in
    cuDNN."""

    def __init__(
        self,
        d_model: int,
        kind: str,
        *,
        bidirectional: bool = False,
        first: InitialState | None = None,
    ) -> None:
        super().__init__()
        cell, self.n_gates = CELLS[kind]
        self.width = d_model // 2 if bidirectional else d_model
        self.cell = cell(d_model, self.width, bidirectional=bidirectional)
        self.bidirectional, self.first = bidirectional, first
        self.is_lstm = isinstance(self.cell, nn.LSTM)
        self.hidden = Tap()

    @property
    def size(self) -> int:
        """Number of values of a state: the hidden state and, in an LSTM, the cell state."""
        return self.state_size(self.width, lstm=self.is_lstm)

    @staticmethod
    def state_size(width: int, *, lstm: bool) -> int:
        return 2 * width if lstm else width

    def matrices(self) -> dict[Tensor, tuple[int, ...]]:
        """Return the weights. Each is mapped to the row counts of the gates that are fused in
        it."""
        named = self.cell.named_parameters()
        rows = (self.width,) * self.n_gates
        return {weight: rows for name, weight in named if name.startswith("weight")}

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        given_ND, x_ND = x_ND, self._in_own_type(x_ND)
        if cache is None:
            first_BE = None if self.first is None or memory is None else self.first(memory)
            out_ND = self._read_rows(x_ND, layout, first_BE)
        else:
            out_ND = self._continue(x_ND, layout, memory, cache)
        return self.hidden(out_ND.to(given_ND.dtype))

    def read(
        self, x_ND: Tensor, packed: PackedOrder, first_BE: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Process whole sequences, each from an initial state. Return one vector per token, and the
        last state of each sequence (B E) in the forward direction."""
        # cuDNN returns gradients only in training mode, but a model under inspection is in
        # evaluation mode. The cell has no dropout, so training mode does not change its output.
        directions = 2 if self.bidirectional else 1
        if not len(x_ND) or x_ND.is_meta:
            out_ND = self._outline(x_ND) if x_ND.is_meta else x_ND
            return out_ND, x_ND.new_zeros(len(packed.rank_B), self.size)
        if first_BE is None:
            first_BE = x_ND.new_zeros(len(packed.rank_B), directions * self.size)
        if not self.is_lstm and x_ND.device.type == "cpu" and torch.is_grad_enabled():
            return self._by_length(x_ND, packed, first_BE.to(x_ND.dtype))
        state = self._as_torch(first_BE.to(x_ND.dtype)[packed.order_B], directions)
        call: Any = torch._VF.lstm if self.is_lstm else torch._VF.gru
        out_ND, *last = call(
            x_ND[packed.rows_N], packed.sizes, state, self._weights(x_ND), True, 1, 0.0,
            torch.is_grad_enabled(), self.bidirectional,
        )  # fmt: skip
        last_BE = torch.cat([part[0] for part in last], dim=-1)
        return out_ND[packed.place_N], last_BE[packed.rank_B]

    def _read_rows(self, x_ND: Tensor, layout: Layout, first_BE: Tensor | None) -> Tensor:
        if layout.lengths is None and layout.bounds is not None and not x_ND.is_meta:
            return self._in_grid(x_ND, layout, first_BE)
        return self.read(x_ND, PackedOrder.of(layout), first_BE)[0]

    def _in_grid(self, x_ND: Tensor, layout: Layout, first_BE: Tensor | None) -> Tensor:
        """Process sequences as a padded batch (T B), for lengths that the host does not know.

        Zeros follow the end of a sequence and do not change the outputs of its tokens. The backward
        direction reads each sequence reversed, so that its zeros are at the end too.
        """
        directions = 1 + self.bidirectional
        if first_BE is None:
            first_BE = x_ND.new_zeros(layout.n_sequences, directions * self.size)
        state, weights = self._as_torch(first_BE.to(x_ND.dtype), directions), self._weights(x_ND)
        call: Any = torch._VF.lstm if self.is_lstm else torch._VF.gru
        each = len(weights) // directions
        outs = []
        for number in range(directions):
            cell_N = cells_N(layout, backwards=number == 1)
            one = slice(number, number + 1)
            begun = tuple(part[one] for part in state) if self.is_lstm else state[one]
            with warnings.catch_warnings():  # cuDNN warns that it copies the weights
                warnings.filterwarnings("ignore", message="RNN module weights are not part")
                out_TBD, *_ = call(
                    to_grid(x_ND, cell_N, layout), begun, weights[number * each :][:each], True, 1,
                    0.0, torch.is_grad_enabled(), False, False,
                )  # fmt: skip
            outs.append(to_rows(out_TBD, cell_N))
        return torch.cat(outs, dim=-1)

    def _by_length(
        self, x_ND: Tensor, packed: PackedOrder, first_BE: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Process sequences with a GRU on a CPU, in groups of equal length.

        The backward pass of PyTorch's packed GRU takes time quadratic in the number of tokens,
        because each step fills a gradient for all of them.
        """
        out_ND = x_ND.new_zeros(len(x_ND), self.cell.hidden_size * (1 + self.bidirectional))
        last_BE = torch.zeros_like(first_BE[:, : self.size])
        for number_B, rows_TB in packed.groups:
            state = self._as_torch(first_BE[number_B], 1 + self.bidirectional)
            call: Any = torch._VF.gru
            out_TBD, last_1BE = call(
                x_ND[rows_TB], state, self._weights(x_ND), True, 1, 0.0, torch.is_grad_enabled(),
                self.bidirectional, False,
            )  # fmt: skip
            out_ND = out_ND.index_copy(0, rows_TB.flatten(), out_TBD.flatten(0, 1))
            last_BE = last_BE.index_copy(0, number_B, last_1BE[0])
        return out_ND, last_BE

    def step(self, x_ND: Tensor, state_NE: Tensor) -> Tensor:
        """Return the states after one more token of each sequence."""
        weights = self._weights(x_ND)
        if not self.is_lstm:
            return torch._VF.gru_cell(x_ND, state_NE, *weights)
        h_ND, c_ND = torch._VF.lstm_cell(x_ND, state_NE.chunk(2, dim=-1), *weights)
        return torch.cat([h_ND, c_ND], dim=-1)

    def begin(
        self, memory: Memory | None, cache: LayerCache, like_ND: Tensor | None = None
    ) -> None:
        """Store the initial state of sequences in a cache."""
        if self.first is not None and memory is not None:
            cache.begin(STATE, self._in_own_type(self.first(memory)))
        elif like_ND is not None:
            cache.begin(STATE, like_ND.new_zeros(cache.cache.n_rows, self.size))

    def _continue(
        self, x_ND: Tensor, layout: Layout, memory: Memory | None, cache: LayerCache
    ) -> Tensor:
        if STATE not in cache.cells:
            self.begin(memory, cache, x_ND)
        if cache.cache.tree is not None or layout.longest == 1:
            states_NE = self.step(x_ND, cache.before(STATE, layout)[:, 0])
            cache.put(STATE, states_NE, layout)
            return states_NE[:, : self.width]
        # PyTorch returns only the last cell state of a sequence. The last `LATEST` tokens are
        # therefore processed one by one, so that their states are known and they can be undone.
        # Earlier tokens are processed at once.
        state_BE = cache.last(STATE)
        lengths = layout.known_lengths()
        whole = [max(0, length - LATEST) for length in lengths]
        # Undoing more than `LATEST` tokens gives NaN rather than a wrong state.
        states_NE = x_ND.new_full((len(x_ND), self.size), torch.nan)
        out_ND = x_ND.new_zeros(len(x_ND), self.width)
        starts = np.cumsum(lengths) - np.array(lengths)
        if any(whole):
            row_N = torch.from_numpy(
                np.concatenate([np.arange(a, a + n) for a, n in zip(starts, whole, strict=True)])
            ).to(x_ND.device)
            packed = PackedOrder.of_lengths(whole, x_ND.device)
            out_ND[row_N], last_BE = self.read(x_ND[row_N], packed, state_BE)
            had_B1 = torch.tensor([[n > 0] for n in whole], device=x_ND.device)
            state_BE = torch.where(had_B1, last_BE, state_BE)
        rest = np.array(lengths) - np.array(whole)
        for t in range(int(rest.max(initial=0))):
            going = np.flatnonzero(rest > t)
            index_B = torch.from_numpy(going).to(x_ND.device)
            row_B = torch.from_numpy((starts + np.array(whole) + t)[going]).to(x_ND.device)
            after_BE = self.step(x_ND[row_B], state_BE[index_B])
            state_BE = state_BE.index_copy(0, index_B, after_BE)
            states_NE[row_B] = after_BE
            out_ND[row_B] = after_BE[:, : self.width]
        cache.put(STATE, states_NE, layout)
        return out_ND

    def _outline(self, x_ND: Tensor) -> Tensor:
        """Return an output of the right shape on the meta device, for memory estimates. It keeps
        about as many activations for the backward pass as all time steps together."""
        flat, outs = self._weights(x_ND), []
        for weights in (flat[at : at + 4] for at in range(0, len(flat), 4)):
            gates_NE = F.linear(x_ND, weights[0], weights[2])
            gates_NE = gates_NE + F.linear(gates_NE[:, : self.width], weights[1], weights[3])
            first_ND, *others = (gate.sigmoid() for gate in gates_NE.chunk(self.n_gates, dim=-1))
            for other_ND in others:
                first_ND = first_ND * other_ND
            outs.append(first_ND.tanh())
        return torch.cat(outs, dim=-1)

    def _as_torch(self, state_BE: Tensor, directions: int) -> Tensor | tuple[Tensor, ...]:
        """Return a state in PyTorch's form: one tensor per direction, and a pair (h, c) for an
        LSTM."""
        parts = state_BE.unflatten(1, (-1, directions, self.width)).permute(1, 2, 0, 3)
        whole = [part.contiguous() for part in parts]
        return tuple(whole) if self.is_lstm else whole[0]

    def _in_own_type(self, x: Tensor) -> Tensor:
        return x.to(self._type(x))

    def _type(self, x: Tensor) -> torch.dtype:
        """Return the dtype to compute in. It is not bf16, which cuDNN does not support here."""
        own = next(self.cell.parameters()).dtype
        return torch.float32 if x.is_cuda and own is torch.bfloat16 else own

    def _weights(self, x_ND: Tensor) -> list[Tensor]:
        flat: list[Tensor] = self.cell._flat_weights  # type: ignore[assignment]
        return flat if flat[0].dtype == x_ND.dtype else [one.to(x_ND.dtype) for one in flat]


@cache
def exclude_from_compile() -> None:
    """Run recurrences eagerly inside compiled blocks, because the compiler would unroll every time
    step.

    This is called when a stack is compiled. A decorator on the method would import `torch._dynamo`
    at once, which takes more than a second.
    """
    Recurrence._read_rows = torch.compiler.disable(Recurrence._read_rows)  # type: ignore[method-assign]
