"""LoRA: a matrix W that was learned elsewhere stays as it is, and W + B·A is used instead of it.

A and B have a small rank, so what is trained and what the optimiser keeps is a few per cent of the
model (Hu et al. 2021). Afterwards B·A is added to W once and nothing is left of it: a model that
was trained so is saved, copied and used as any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.errors import ConfigError
from headway.nn.block import Block
from headway.nn.cpu_packed import ALL
from headway.nn.linear import Linear, linear

Targets = Literal["attention", "all"]
"""Which matrices of a layer: those of attention, or those of the feed-forward too."""


class LoraLinear(Linear):
    """Takes the place of a linear layer and has its very weight, which no longer learns."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    scale: float

    @classmethod
    def around(cls, layer: Linear, rank: int, alpha: float, random: torch.Generator) -> LoraLinear:
        n_out, n_in = layer.weight.shape
        with torch.device("meta"):
            made = cls(n_in, n_out, bias=layer.bias is not None)
        made.weight, made.bias = layer.weight, layer.bias
        made.packed, made.scale = layer.packed, alpha / rank
        # A starts so that A·x has the variance of x, and B at zero: nothing is changed yet.
        a_RD = torch.empty(rank, n_in).normal_(0.0, n_in**-0.5, generator=random)
        made.lora_a = nn.Parameter(a_RD.to(layer.weight))
        made.lora_b = nn.Parameter(layer.weight.new_zeros(n_out, rank))
        return made

    def product(self, x: Tensor, bias: Tensor | None, rows: slice = ALL) -> Tensor:
        low = linear(x, self.lora_a, None)
        return super().product(x, bias, rows) + linear(low, self.lora_b[rows], None) * self.scale

    def relu(self, x: Tensor) -> Tensor:
        return F.relu(self.product(x, self.bias))

    @torch.no_grad()
    def merged(self) -> Linear:
        """A plain layer with the same output. It takes over the weight, changed in place."""
        self.weight += self.lora_b @ self.lora_a * self.scale
        n_out, n_in = self.weight.shape
        with torch.device("meta"):
            plain = Linear(n_in, n_out, bias=self.bias is not None)
        plain.weight, plain.bias, plain.packed = self.weight, self.bias, self.packed
        return plain


def add_lora(model: nn.Module, rank: int, alpha: float, targets: Targets, seed: int = 0) -> None:
    """Change a model in place so that of its layers only A and B learn, and beside them its heads.

    What it computes does not change. Layers that are frozen already get none. The projections to
    queries, keys and values lie in one matrix and share one A. The same seed gives the same A on
    every device.
    """
    if not any(isinstance(part, Block) for part in model.modules()):
        raise ConfigError(
            f"lora.rank={rank} changes the matrices of a Transformer's layers, and this model has "
            "another body. Leave it out: all of its weights are trained then."
        )
    random = torch.Generator().manual_seed(seed)
    chosen = [place for place in _targets(model, targets) if place[2].weight.requires_grad]
    for name, parameter in model.named_parameters():
        if not name.startswith("heads."):
            parameter.requires_grad_(False)
    for owner, name, layer in chosen:
        setattr(owner, name, LoraLinear.around(layer, rank, alpha, random))


def merge_lora(model: nn.Module) -> nn.Module:
    """The same model with plain layers again and the same output. Without LoRA it stays as it is.

    What was frozen for LoRA stays frozen: this is for the end of training.
    """
    for owner in list(model.modules()):
        for name, layer in list(owner.named_children()):
            if isinstance(layer, LoraLinear):
                setattr(owner, name, layer.merged())
    return model


def merge_tensors(weights: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """The weights of a checkpoint as those of a plain model; without LoRA they stay as they are."""
    plain = {name: tensor for name, tensor in weights.items() if "lora_" not in name}
    for name, b_OR in weights.items():
        if name.endswith(".lora_b"):
            layer = name.removesuffix("lora_b")
            change = b_OR @ weights[f"{layer}lora_a"] * (alpha / b_OR.shape[1])
            plain[f"{layer}weight"] = plain[f"{layer}weight"] + change
    return plain


def _targets(model: nn.Module, targets: Targets) -> Iterator[tuple[nn.Module, str, Linear]]:
    """Each layer with the part that holds it and its name there."""
    for block in model.modules():
        if isinstance(block, Block):
            for attention in (block.attention, block.cross):
                if attention is not None:
                    yield attention, "to_qkv", attention.to_qkv
                    yield attention, "to_out", attention.to_out
            if targets == "all":
                yield block.feed_forward, "to_hidden", block.feed_forward.to_hidden
                yield block.feed_forward, "to_out", block.feed_forward.to_out
