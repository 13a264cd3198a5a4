"""Training steps that are captured as a CUDA graph and replayed, so that the GPU never waits for
Python.

All batches need the same shape (see `Layout.fixed`). Each batch is copied into the batch that the
graph was captured with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

B = TypeVar("B")

WARM_UPS = 3
"""Number of calls before the capture, in which libraries allocate their workspaces."""


class GraphedStep(Generic[B]):
    """CUDA graph of a call `step(batch)`, captured with an example batch.

    The call must use only tensors: no `.item()`, and no shape that depends on data. A capturable
    optimizer may step inside it. Gradients must be None between steps.
    """

    def __init__(self, step: Callable[[B], Tensor], example: B) -> None:
        self.batch = example
        self.step = step  # the graph holds only addresses: keep its tensors alive
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
        """Replay the graph on a batch. Every call returns the same tensor, so read it before the
        next call."""
        copy_into(self.batch, batch)
        return self.replay()

    def replay(self) -> Tensor:
        """Replay the graph on the current contents of the batch that it was captured with."""
        self.graph.replay()
        return self.result


def copy_into(old: Any, new: Any) -> None:
    """Copy tensors in place into those of another batch: all tensors of a dataclass, including
    nested dataclasses and tuples.

    Values other than tensors are constants of the CUDA graph. They must be equal in the two
    batches.
    """
    for field in fields(old):
        _copy(getattr(old, field.name), getattr(new, field.name), field.name, field.compare)


def _copy(before: Any, after: Any, name: str, compare: bool) -> None:
    if isinstance(before, Tensor):
        if before.shape != after.shape:
            raise ValueError(
                f"the CUDA graph was captured with {name} of shape {(*before.shape,)}, "
                f"but this batch has shape {(*after.shape,)}"
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
        raise ValueError(
            f"the CUDA graph was captured with {name}={before!r}, but this batch has {after!r}"
        )
