"""How every weight starts, by name of scheme: the one place that decides it.

| scheme | token embedding            | other matrices   | matrices that write to the stream |
|--------|----------------------------|------------------|-----------------------------------|
| paper  | normal, deviation d^-0.5   | Glorot uniform   | Glorot uniform                    |
| bert   | normal 0.02                | normal 0.02      | normal 0.02                       |
| gpt2   | normal 0.02                | normal 0.02      | normal 0.02 / √(sub-layers)       |
| small  | normal 0.02                | normal d^-0.5    | zero: every layer starts as x     |

Everywhere: biases zero, norms one and zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.nn.attention.attention import Attention
from headway.nn.block import Block
from headway.nn.feedforward import FeedForward
from headway.nn.positions import Grid2d

STD = 0.02
SCHEMES = ("paper", "bert", "gpt2", "small")


def initialise(model: nn.Module, scheme: str, seed: int = 0) -> None:
    """Fill every parameter of the model. The same seed gives the same weights on every device."""
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}, known are {', '.join(SCHEMES)}")
    random = torch.Generator().manual_seed(seed)
    n_sublayers = sum(
        2 if block.cross is None else 3 for block in model.modules() if isinstance(block, Block)
    )
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
                for part in _matrices(model, name, parameter):
                    std = _deviation(scheme, part, is_table, parameter in outputs, n_sublayers)
                    part.copy_(_drawn(part, std, random))


def _deviation(
    scheme: str, matrix: Tensor, is_table: bool, is_output: bool, n_sublayers: int
) -> float | None:
    """Standard deviation of a normal; None stands for Glorot uniform."""
    if scheme == "paper":
        return matrix[0].numel() ** -0.5 if is_table else None
    if is_output and scheme == "gpt2":
        return STD * max(n_sublayers, 1) ** -0.5
    if is_output and scheme == "small":
        return 0.0
    if scheme == "small" and not is_table:
        return matrix[0].numel() ** -0.5  # of a convolution: all that one result reads
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


def _matrices(model: nn.Module, name: str, parameter: Tensor) -> list[Tensor]:
    """The single matrices that a parameter fuses: Glorot's bound depends on each one's shape."""
    owner = model.get_submodule(name.rpartition(".")[0].rpartition(".")[0])
    if isinstance(owner, Attention) and name.endswith("to_qkv.weight"):
        return list(parameter.split(owner.sizes))
    if isinstance(owner, FeedForward) and owner.is_gated and name.endswith("to_hidden.weight"):
        return list(parameter.chunk(2))
    return [parameter]
