"""The steps of a walk: what goes in, what comes out, and the numbers that lead from one to the
other, so that a page can compute each step again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.nn.norms import LayerNorm

ROUGH = 3e-4
"""Largest error, as a share of the largest number of a vector, that 16-bit weights may cause."""

Named = tuple[str, str]
"""A vector's name and how a formula writes it."""


@dataclass(frozen=True)
class Step:
    kind: str
    """start, norm, linear, rotary, scores, softmax, mix, activation or add."""

    title: str
    words: str
    """One plain sentence."""

    inputs: tuple[str, ...]
    out: str
    numbers: dict[str, Any] = field(default_factory=dict)
    """Tensors and plain values by name. Weights may be in 16 bits."""


@dataclass
class Story:
    """Vectors by name, as the model computed them, and the steps between them."""

    room: int
    """Numbers of weights that each matrix may bring along; of larger ones some rows are there."""

    vectors: dict[str, Tensor] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def vector(self, named: Named, values: Tensor) -> str:
        name, label = named
        assert name not in self.vectors, name
        self.vectors[name], self.labels[name] = values.detach().float(), label
        return name

    def add(self, step: Step) -> str:
        assert all(name in self.vectors for name in (*step.inputs, step.out))
        self.steps.append(step)
        return step.out

    def norm(self, norm: nn.Module, source: str, out: Named, words: str) -> str:
        """One norm, of a layer or of a head's queries."""
        made = self.vector(out, norm(self.vectors[source][None])[0])
        parts = {name: value.detach() for name, value in norm.named_parameters()}
        centred = isinstance(norm, LayerNorm)
        title = "Norm: mean 0, spread 1" if centred else "Norm: mean square 1"
        numbers = {"centred": centred, "eps": norm.eps, **parts}
        return self.add(Step("norm", title, words, (source,), made, numbers))

    def linear(
        self, source: str, matrix: tuple[Tensor, Tensor | None], out: Named, true_E: Tensor,
        title: str, words: str,
    ) -> str:  # fmt: skip
        """A matrix, and perhaps a bias, that lead to `true_E`. Of a large one the strongest rows
        are brought along, and the rest of what comes out is taken as given."""
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
        return self.add(Step("linear", title, words, (source,), made, numbers))

    def mix(self, shares: str, vectors_SD: Tensor, rest_D: Tensor, out: Named, true_D: Tensor,
            about: tuple[str, str], **numbers: Any) -> str:  # fmt: skip
        """Vectors, each times its share, and one more for all that are not brought along."""
        made, shares_S = self.vector(out, true_D), self.vectors[shares]
        kept_SD = vectors_SD.detach().half()
        if not _fine(shares_S @ kept_SD.float(), shares_S @ vectors_SD, true_D):
            kept_SD = vectors_SD.detach().float()
        numbers |= {"vectors": kept_SD, "rest": rest_D.detach().float()}
        return self.add(Step("mix", *about, (shares,), made, numbers))

    def plus(self, sources: tuple[str, ...], out: Named, title: str, words: str) -> str:
        made = self.vector(out, torch.stack([self.vectors[name] for name in sources]).sum(0))
        return self.add(Step("add", title, words, sources, made))


def strongest(values_E: Tensor, most: int) -> Tensor:
    """Numbers of the largest values, in order; all, if there is room."""
    if len(values_E) <= most:
        return torch.arange(len(values_E))
    return values_E.abs().topk(most).indices.sort().values


def _fine(near: Tensor, true: Tensor, all_E: Tensor) -> bool:
    return bool((near - true).abs().max() <= ROUGH * all_E.abs().max())
