"""Grids (T B) of the rows of a flat batch, one column per sequence.

The shape of a fixed-size layout is known in advance. No length is read from the device, so a CUDA
graph can capture computations on the grid.
"""

from __future__ import annotations

from torch import Tensor

from headway.nn.layout import Layout


def cells_N(layout: Layout, *, backwards: bool = False) -> Tensor:
    """Return the number of each row's cell in a grid (T B). With `backwards`, the last row of a
    sequence comes first."""
    number_N, place_N = layout.numbers_N(), layout.positions_N
    if backwards:
        place_N = layout.lengths_B[number_N] - 1 - place_N
    return place_N * layout.n_sequences + number_N


def to_grid(x_N: Tensor, cell_N: Tensor, layout: Layout) -> Tensor:
    """Arrange rows as a grid (T B ...). Empty cells are zero. Rows may have any further axes."""
    shape = layout.longest, layout.n_sequences
    cells = x_N.new_zeros(shape[0] * shape[1], *x_N.shape[1:])
    return cells.index_copy(0, cell_N, x_N).unflatten(0, shape)


def to_rows(x_TB: Tensor, cell_N: Tensor) -> Tensor:
    return x_TB.flatten(0, 1).index_select(0, cell_N)
