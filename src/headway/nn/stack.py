"""Stacks of layers: an encoder, or a decoder if the layers have cross-attention or a cache."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.nn.attention.attention import Memory
from headway.nn.block import Layer
from headway.nn.cache import Cache
from headway.nn.layout import Layout
from headway.nn.recurrence import exclude_from_compile
from headway.nn.tap import Tap


class Stack(nn.Module):
    """Sequence of layers, followed by a final norm if there is one."""

    def __init__(
        self,
        blocks: Sequence[Layer],
        final_norm: nn.Module | None = None,
        bias: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = final_norm
        self.bias = bias
        """Position bias that the attention of all layers shares. It is registered only here, so
        that its weights are saved once."""

        self.given = Tap()
        """Tap that records the input of each layer."""

    def forward(
        self,
        x_ND: Tensor,
        layout: Layout,
        memory: Memory | None = None,
        cache: Cache | None = None,
        n_first: int | None = None,
    ) -> Tensor:
        """Run the stack.

        With `n_first`, the last layer computes only the first `n_first` tokens of each sequence.
        This requires `can_end_early`.
        """
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            layer = None if cache is None else cache.layers[number]
            x_ND = self.given(x_ND)
            if n_first is not None and number == last:
                x_ND = block(x_ND, layout, memory, layer, n_first)
            else:
                x_ND = block(x_ND, layout, memory, layer)
        if cache is not None:
            cache.advance(layout)
        return x_ND if self.final_norm is None else self.final_norm(x_ND)

    @property
    def can_end_early(self) -> bool:
        return bool(self.blocks[-1].can_end_early)

    def compile_blocks(self) -> None:
        """Compile the layers. They have the same code and shapes, so the compilation of one serves
        all."""
        exclude_from_compile()
        for block in self.blocks:
            if block.compiles:
                block.compile(dynamic=False)

    def recompute_activations(self) -> None:
        """Recompute the activations of each layer in the backward pass instead of storing them
        (gradient checkpointing). This saves memory and costs time."""
        for block in self.blocks:
            whole = block.forward
            block.forward = lambda *inputs, whole=whole: checkpoint(
                whole, *inputs, use_reentrant=False
            )

    @property
    def has_fixed_shapes(self) -> bool:
        """Whether all layers can run with fixed shapes, without knowing the sequence lengths on the
        host."""
        return all(block.compiles for block in self.blocks)


def stacks(model: nn.Module) -> list[tuple[str, Stack]]:
    """Return the stacks of a model as pairs of name and module."""
    return [(name, part) for name, part in model.named_children() if isinstance(part, Stack)]
