"""Weight initialization of all models, by scheme.

| scheme | token embedding            | other matrices   | matrices that write to the stream |
|--------|----------------------------|------------------|-----------------------------------|
| paper  | normal, deviation d^-0.5   | Glorot uniform   | Glorot uniform                    |
| bert   | normal 0.02                | normal 0.02      | normal 0.02                       |
| gpt2   | normal 0.02                | normal 0.02      | normal 0.02 / √(sub-layers)       |
| small  | normal 0.02                | normal d^-0.5    | zero: every layer starts as x     |

In all schemes, biases are zero, and norms have scale one and shift zero. The forget gate of an LSTM
has bias one (Jozefowicz et al. 2015).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from headway.nn.attention.attention import Attention
from headway.nn.block import Layer
from headway.nn.feedforward import FeedForward
from headway.nn.positions import Grid2d

STD = 0.02
"""Standard deviation of weights in BERT and GPT-2."""

SCHEMES = ("paper", "bert", "gpt2", "small")


@runtime_checkable
class HasMatrices(Protocol):
    """Module whose weights may consist of several fused matrices. Glorot initialization depends on
    the shape of each."""

    def matrices(self) -> dict[Tensor, tuple[int, ...]]: ...


def initialise(model: nn.Module, scheme: str, seed: int = 0) -> None:
    """Initialize every parameter of the model. The same seed gives the same weights on every
    device."""
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}. Known schemes: {', '.join(SCHEMES)}.")
    random = torch.Generator().manual_seed(seed)
    n_sublayers = sum(block.n_sublayers for block in model.modules() if isinstance(block, Layer))
    fused = {
        weight: rows
        for part in model.modules()
        if isinstance(part, HasMatrices)
        for weight, rows in part.matrices().items()
    }
    outputs = {
        part.to_out.weight for part in model.modules() if isinstance(part, Attention | FeedForward)
    }
    done: set[Tensor] = set()  # a tied matrix is drawn once
    for name, parameter in model.named_parameters():
        if parameter in done:
            continue
        done.add(parameter)
        with torch.no_grad():
            if parameter.ndim < 2:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            else:
                is_table = _is_table(model, name)
                for part in parameter.split(fused.get(parameter, (len(parameter),))):
                    std = _deviation(scheme, part, is_table, parameter in outputs, n_sublayers)
                    part.copy_(_drawn(part, std, random))
    for part in model.modules():
        if isinstance(part, nn.LSTM):
            for name, bias_4D in part.named_parameters():
                if name.startswith("bias_ih") and not bias_4D.is_meta:
                    with torch.no_grad():
                        bias_4D[part.hidden_size : 2 * part.hidden_size] = 1.0


def _deviation(
    scheme: str, matrix: Tensor, is_table: bool, is_output: bool, n_sublayers: int
) -> float | None:
    """Return the standard deviation of the normal distribution for a weight, or None for Glorot
    uniform."""
    if scheme == "paper":
        return matrix[0].numel() ** -0.5 if is_table else None
    if is_output and scheme == "gpt2":
        return STD * max(n_sublayers, 1) ** -0.5
    if is_output and scheme == "small":
        return 0.0
    if scheme == "small" and not is_table:
        return matrix[0].numel() ** -0.5  # of a convolution: all inputs of one output
    return STD


def _drawn(matrix: Tensor, std: float | None, random: torch.Generator) -> Tensor:
    if matrix.is_meta:
        return matrix
    fresh = torch.empty(matrix.shape)
    if std is None:
        return nn.init.xavier_uniform_(fresh, generator=random)
    return fresh.normal_(0.0, std, generator=random) if std else fresh.zero_()


def _is_table(model: nn.Module, name: str) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Embedding | Grid2d)
