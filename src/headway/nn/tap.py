"""Taps: named places in a model where a tensor can be recorded. Without `record`, they do
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import UserError


class Tap(nn.Module):
    """Module that returns a tensor, or a list of tensors (one per sequence), unchanged, and passes
    it to `record` if that is active."""

    def __init__(self) -> None:
        super().__init__()
        self.listener: Callable[[Any], None] | None = None

    @property
    def is_recording(self) -> bool:
        return self.listener is not None

    def __call__(self, x: Any) -> Any:
        """Return the input immediately if nothing is recorded. This avoids the overhead of a
        PyTorch module call at every decoded token."""
        return x if self.listener is None else self.forward(x)

    def forward(self, x: Any) -> Any:
        if self.listener is not None:
            self.listener(x)
        return x


@contextmanager
def record(
    model: nn.Module, *suffixes: str, gradients: bool = False
) -> Iterator[dict[str, list[Any]]]:
    """Record the tensors at every tap whose name ends in one of `suffixes`, with one list entry per
    call.

    With `gradients`, the tensors stay in the autograd graph and keep their `.grad` after a backward
    pass. Only this model is affected, and only inside the `with`.
    """
    seen: dict[str, list[Any]] = {}
    taps = {name: module for name, module in model.named_modules() if isinstance(module, Tap)}
    chosen = {name: tap for name, tap in taps.items() if name.endswith(suffixes)}
    if not chosen:
        kinds = sorted({name.rsplit(".", 1)[-1] for name in taps})
        raise UserError(
            f"this model has no tap whose name ends in {' or '.join(map(repr, suffixes))}. Names "
            f"of its taps end in: {', '.join(kinds)}."
        )
    previous = {name: tap.listener for name, tap in chosen.items()}
    try:
        for name, tap in chosen.items():
            tap.listener = partial(_keep, seen.setdefault(name, []), gradients)
        yield seen
    finally:  # an exception in the forward pass must not leave the model recording
        for name, tap in chosen.items():
            tap.listener = previous[name]


def _keep(entries: list[Any], gradients: bool, x: Any) -> None:
    tensors = x if isinstance(x, list) else [x]
    if gradients and torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.retain_grad()
        entries.append(x)
        return
    kept: list[Tensor] = [tensor.detach().clone() for tensor in tensors]
    entries.append(kept if isinstance(x, list) else kept[0])
