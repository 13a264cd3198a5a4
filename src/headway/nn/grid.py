"""Conversion between a flat batch and a time-major padded batch (T B), with one column per
sequence.

With a fixed-size layout, the shape is known in advance and no length is read from the device. A
CUDA graph can therefore capture the conversion.
"""

from __future__ import annotations

from torch import Tensor

from headway.nn.layout import Layout


def cells_N(layout: Layout, *, backwards: bool = False) -> Tensor:
    """Return the index of each token of the flat batch in the padded batch (T B). With `backwards`,
    each sequence is reversed."""
    number_N, place_N = layout.numbers_N(), layout.positions_N
    if backwards:
        place_N = layout.lengths_B[number_N] - 1 - place_N
    return place_N * layout.n_sequences + number_N


def to_grid(x_N: Tensor, cell_N: Tensor, layout: Layout) -> Tensor:
    """Return a flat batch as a padded batch (T B …). Padding is zero. Tokens may have any further
    axes."""
    shape = layout.longest, layout.n_sequences
    cells = x_N.new_zeros(shape[0] * shape[1], *x_N.shape[1:])
    return cells.index_copy(0, cell_N, x_N).unflatten(0, shape)


def to_rows(x_TB: Tensor, cell_N: Tensor) -> Tensor:
    return x_TB.flatten(0, 1).index_select(0, cell_N)
