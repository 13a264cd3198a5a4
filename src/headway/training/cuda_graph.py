"""A training step recorded once as a CUDA graph and replayed: the device never waits for Python.

Needs batches of one shape (the fixed-size form of `Layout`). What changes from step to step is
copied into the batch that was recorded with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

B = TypeVar("B")

WARM_UPS = 3
"""Calls before recording, in which libraries allocate what they keep."""


class GraphedStep(Generic[B]):
    """`step(batch)` must work on tensors alone: no `.item()`, no shape that depends on data.

    A capturable optimiser may step inside it. Gradients must be None between steps.
    """

    def __init__(self, step: Callable[[B], Tensor], example: B) -> None:
        self.batch = example
        self.step = step  # a graph knows only addresses: what lives there must stay alive
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                step(example)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = step(example)

    def __call__(self, batch: B) -> Tensor:
        """The same tensor every time; read it before the next call."""
        copy_into(self.batch, batch)
        return self.replay()

    def replay(self) -> Tensor:
        """Once more on what the recorded batch holds."""
        self.graph.replay()
        return self.result


def copy_into(old: Any, new: Any) -> None:
    """Copy every tensor of a dataclass, also of dataclasses and tuples inside it, into its twin's
    place.

    What is not a tensor was recorded and cannot change, so it must be equal.
    """
    for field in fields(old):
        _copy(getattr(old, field.name), getattr(new, field.name), field.name, field.compare)


def _copy(before: Any, after: Any, name: str, compare: bool) -> None:
    if isinstance(before, Tensor):
        if before.shape != after.shape:
            raise ValueError(
                f"a recorded step has {name} of shape {(*before.shape,)} "
                f"and cannot be given {(*after.shape,)}"
            )
        before.copy_(after, non_blocking=True)
    elif is_dataclass(before):
        copy_into(before, after)
    elif isinstance(before, tuple) and any(
        isinstance(p, Tensor) or is_dataclass(p) for p in before
    ):
        for old, new in zip(before, after, strict=True):
            _copy(old, new, name, compare)
    elif compare and before != after:
        raise ValueError(f"a recorded step has {name}={before!r} and cannot be given {after!r}")
