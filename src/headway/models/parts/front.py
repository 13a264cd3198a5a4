"""What a front is: it turns raw input into vectors that know their place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from headway.nn.layout import Layout

Batch = TypeVar("Batch")


class Front(nn.Module):
    """Called with a flat batch of its kind of input and its layout; gives a vector a row.

    `dtype` is the type of the residual stream, and so of all computation behind it.
    """

    reads: ClassVar[Literal["text", "picture", "sound"]] = "text"
    """What its rows are of."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype: torch.dtype | None = None

    def rows(self, item: Any) -> int:
        """Rows of the flat batch that one raw item becomes."""
        raise NotImplementedError

    def collate(
        self, items: Sequence[Any], device: torch.device | str = "cpu"
    ) -> tuple[Any, Layout]:
        """Raw items (texts as token numbers, pictures, recordings) as a flat batch."""
        raise NotImplementedError

    def blanks(self, n_rows: int) -> list[Any]:
        """Usual items without content that fill about so many rows."""
        raise NotImplementedError

    def typed(self, x_ND: Tensor) -> Tensor:
        return x_ND if self.dtype is None else x_ND.to(self.dtype)


def on_device(batch: Batch, device: torch.device | str) -> Batch:
    """A front's input, a dataclass, with its tensors and tuples of tensors moved."""

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(moved(one) for one in value)
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value

    given: Any = batch
    return replace(given, **{f.name: moved(getattr(given, f.name)) for f in fields(given)})


def compute_in(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Let every front hand over its stream in this type (None: that of the weights)."""
    for part in model.modules():
        if isinstance(part, Front):
            part.dtype = dtype
