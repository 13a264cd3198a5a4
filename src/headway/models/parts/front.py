"""Base class of fronts: the input layers, which convert raw input to vectors with positional
encodings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from headway.nn.layout import Layout

BatchT = TypeVar("BatchT")


class Front(nn.Module):
    """Front: input layers that convert a flat batch of one modality to one vector per position.

    `dtype` is the data type of the residual stream, and so of all layers after the front. None: the
    type of the weights.
    """

    reads: ClassVar[Literal["text", "image", "audio"]] = "text"
    """Modality of the front's input."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype: torch.dtype | None = None

    def rows(self, item: Any) -> int:
        """Return the number of positions that one raw item takes."""
        raise NotImplementedError

    def collate(
        self, items: Sequence[Any], device: torch.device | str = "cpu"
    ) -> tuple[Any, Layout]:
        """Collate raw items (token indices, images or audio) into a flat batch. Return it with its
        layout."""
        raise NotImplementedError

    def blanks(self, n_rows: int) -> list[Any]:
        """Return empty items of typical size that fill about `n_rows` positions. They are used for
        measurements without data."""
        raise NotImplementedError

    def cast(self, x_ND: Tensor) -> Tensor:
        return x_ND if self.dtype is None else x_ND.to(self.dtype)


def on_device(batch: BatchT, device: torch.device | str) -> BatchT:
    """Return a batch (a dataclass of tensors) with all tensors moved to a device."""

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(moved(one) for one in value)
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value

    given: Any = batch
    return replace(given, **{f.name: moved(getattr(given, f.name)) for f in fields(given)})


def set_compute_dtype(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Set the data type of a model's residual stream. None: the type of its weights."""
    for part in model.modules():
        if isinstance(part, Front):
            part.dtype = dtype
