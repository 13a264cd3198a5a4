"""Steps of a walkthrough: inputs, output, and the numbers from which a page can recompute each
step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.nn.norms import LayerNorm

ROUGH = 3e-4
"""Largest error that 16-bit weights may cause, relative to the largest value of a vector."""

VectorName = tuple[str, str]
"""Name of a vector, and its symbol in formulas."""


@dataclass(frozen=True)
class WalkStep:
    kind: str
    """One of start, norm, linear, rotary, scores, softmax, mix, activation and add."""

    title: str
    words: str
    """Explanation in one sentence."""

    inputs: tuple[str, ...]
    out: str
    numbers: dict[str, Any] = field(default_factory=dict)
    """Tensors and plain values by name. Weights may have 16 bits."""


@dataclass
class WalkBuilder:
    """Vectors by name, as the model computed them, and the steps between them."""

    room: int
    """Most weights of a matrix that are stored; of larger matrices some rows are stored."""

    vectors: dict[str, Tensor] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    steps: list[WalkStep] = field(default_factory=list)

    def vector(self, named: VectorName, values: Tensor) -> str:
        name, label = named
        assert name not in self.vectors, name
        self.vectors[name], self.labels[name] = values.detach().float(), label
        return name

    def add(self, step: WalkStep) -> str:
        assert all(name in self.vectors for name in (*step.inputs, step.out))
        self.steps.append(step)
        return step.out

    def norm(self, norm: nn.Module, source: str, out: VectorName, words: str) -> str:
        """Add a step for a norm, of a layer or of a head's queries."""
        made = self.vector(out, norm(self.vectors[source][None])[0])
        parts = {name: value.detach() for name, value in norm.named_parameters()}
        centred = isinstance(norm, LayerNorm)
        title = "Layer norm: mean 0, variance 1" if centred else "RMS norm: mean square 1"
        numbers = {"centred": centred, "eps": norm.eps, **parts}
        return self.add(WalkStep("norm", title, words, (source,), made, numbers))

    def linear(
        self, source: str, matrix: tuple[Tensor, Tensor | None], out: VectorName, true_E: Tensor,
        title: str, words: str,
    ) -> str:  # fmt: skip
        """Add a step for a matrix with an optional bias that leads to `true_E`. Of a large matrix
        the strongest rows are stored; the other outputs are taken as given."""
        weight_ED, bias_E = (None if part is None else part.detach().float() for part in matrix)
        assert weight_ED is not None
        made, x_D = self.vector(out, true_E), self.vectors[source]
        rows_R = strongest(true_E, max(1, self.room // len(x_D)))
        kept_RD = weight_ED[rows_R].half()
        if not _fine(kept_RD.float() @ x_D, weight_ED[rows_R] @ x_D, true_E):
            rows_R = strongest(true_E, max(1, self.room // (2 * len(x_D))))
            kept_RD = weight_ED[rows_R]
        numbers: dict[str, Any] = {"rows": rows_R, "weight": kept_RD}
        if bias_E is not None:
            numbers["bias"] = bias_E[rows_R]
        return self.add(WalkStep("linear", title, words, (source,), made, numbers))

    def mix(self, shares: str, vectors_SD: Tensor, rest_D: Tensor, out: VectorName, true_D: Tensor,
            about: tuple[str, str], **numbers: Any) -> str:  # fmt: skip
        """Add a step for a weighted sum of vectors, with one more vector for the rest."""
        made, shares_S = self.vector(out, true_D), self.vectors[shares]
        kept_SD = vectors_SD.detach().half()
        if not _fine(shares_S @ kept_SD.float(), shares_S @ vectors_SD, true_D):
            kept_SD = vectors_SD.detach().float()
        numbers |= {"vectors": kept_SD, "rest": rest_D.detach().float()}
        return self.add(WalkStep("mix", *about, (shares,), made, numbers))

    def plus(self, sources: tuple[str, ...], out: VectorName, title: str, words: str) -> str:
        made = self.vector(out, torch.stack([self.vectors[name] for name in sources]).sum(0))
        return self.add(WalkStep("add", title, words, sources, made))


def strongest(values_E: Tensor, most: int) -> Tensor:
    """Indices of the largest values, in order; all if there is room."""
    if len(values_E) <= most:
        return torch.arange(len(values_E))
    return values_E.abs().topk(most).indices.sort().values


def _fine(near: Tensor, true: Tensor, all_E: Tensor) -> bool:
    return bool((near - true).abs().max() <= ROUGH * all_E.abs().max())
