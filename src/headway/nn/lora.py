"""LoRA (Hu et al. 2021): a pretrained matrix W is frozen and replaced by W + B·A.

A and B have a small rank, so the trained weights and the optimizer state are a few per cent of the
model. After training, B·A is added to W once. The model is then saved, copied and used like any
other.
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

LoraTargets = Literal["attention", "all"]
"""Matrices of a layer that get LoRA: `attention`, or `all` to include those of the feed-forward
network."""


class LoraLinear(Linear):
    """Linear layer with LoRA. It shares the frozen weight of the layer that it replaces, and adds
    B·A."""

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
        # A·x initially has the variance of x. B is initially zero, so the output does not change.
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
        """Return a plain linear layer with the same output. B·A is added to the shared weight in
        place."""
        self.weight += self.lora_b @ self.lora_a * self.scale
        n_out, n_in = self.weight.shape
        with torch.device("meta"):
            plain = Linear(n_in, n_out, bias=self.bias is not None)
        plain.weight, plain.bias, plain.packed = self.weight, self.bias, self.packed
        return plain


def add_lora(
    model: nn.Module, rank: int, alpha: float, targets: LoraTargets, seed: int = 0
) -> None:
    """Add LoRA to a model in place, so that only A, B and the output heads are trained.

    The output does not change. Layers that are already frozen get no LoRA. The projections to
    queries, keys and values are one matrix and share one A. The same seed gives the same A on every
    device.
    """
    if not any(isinstance(part, Block) for part in model.modules()):
        raise ConfigError(
            f"lora.rank={rank} needs Transformer layers, but this model has none. To train all "
            "weights, remove lora.rank."
        )
    random = torch.Generator().manual_seed(seed)
    chosen = [place for place in _targets(model, targets) if place[2].weight.requires_grad]
    for name, parameter in model.named_parameters():
        if not name.startswith("heads."):
            parameter.requires_grad_(False)
    for owner, name, layer in chosen:
        setattr(owner, name, LoraLinear.around(layer, rank, alpha, random))


def merge_lora(model: nn.Module) -> nn.Module:
    """Replace LoRA layers by plain layers with the same output, in place. Return the model,
    unchanged if it has no LoRA.

    Call it at the end of training, because weights that were frozen for LoRA stay frozen.
    """
    for owner in list(model.modules()):
        for name, layer in list(owner.named_children()):
            if isinstance(layer, LoraLinear):
                setattr(owner, name, layer.merged())
    return model


def merge_tensors(weights: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """Merge LoRA into the weights of a checkpoint. Weights without LoRA are returned unchanged."""
    plain = {name: tensor for name, tensor in weights.items() if "lora_" not in name}
    for name, b_OR in weights.items():
        if name.endswith(".lora_b"):
            layer = name.removesuffix("lora_b")
            change = b_OR @ weights[f"{layer}lora_a"] * (alpha / b_OR.shape[1])
            plain[f"{layer}weight"] = plain[f"{layer}weight"] + change
    return plain


def _targets(model: nn.Module, targets: LoraTargets) -> Iterator[tuple[nn.Module, str, Linear]]:
    """Yield each layer that gets LoRA, as its parent module, its attribute name there, and the
    layer itself."""
    for block in model.modules():
        if isinstance(block, Block):
            for attention in (block.attention, block.cross):
                if attention is not None:
                    yield attention, "to_qkv", attention.to_qkv
                    yield attention, "to_out", attention.to_out
            if targets == "all":
                yield block.feed_forward, "to_hidden", block.feed_forward.to_hidden
                yield block.feed_forward, "to_out", block.feed_forward.to_out
