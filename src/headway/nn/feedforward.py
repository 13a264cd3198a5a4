"""The feed-forward sub-layer: two or three matrices, applied to each token separately."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.dropout import Dropout
from headway.nn.linear import Linear
from headway.nn.tap import Tap


def relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu2": relu2,
}

GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu-tanh": partial(F.gelu, approximate="tanh"),
}
"""Activation functions of gated units, in which one half of the hidden layer is activated and
multiplies the other half."""


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, which may be gated (`swiglu`, `geglu`)."""

    def __init__(
        self, d_model: int, d_ff: int, activation: str, *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.name, self.is_gated = activation, activation in GATED
        self.activation = GATED[activation] if self.is_gated else ACTIVATIONS[activation]
        self.to_hidden = Linear(d_model, d_ff * (2 if self.is_gated else 1), bias=bias)
        self.to_out = Linear(d_ff, d_model, bias=bias)
        self.drop = Dropout(dropout)
        self.hidden = Tap()

    def matrices(self) -> dict[Tensor, tuple[int, ...]]:
        """Return the weights. Each is mapped to the row counts of the matrices that are fused in
        it."""
        rows = len(self.to_hidden.weight)
        hidden = (rows // 2,) * 2 if self.is_gated else (rows,)
        return {self.to_hidden.weight: hidden, self.to_out.weight: (len(self.to_out.weight),)}

    def forward(self, x_ND: Tensor) -> Tensor:
        if self.is_gated:
            gate_NF, value_NF = self.to_hidden(x_ND).chunk(2, dim=-1)
            hidden_NF = self.activation(gate_NF) * value_NF
        elif self.activation is F.relu:
            hidden_NF = self.to_hidden.relu(x_ND)
        else:
            hidden_NF = self.activation(self.to_hidden(x_ND))
        hidden_NF = self.hidden(hidden_NF)
        return self.to_out(self.drop(hidden_NF))
