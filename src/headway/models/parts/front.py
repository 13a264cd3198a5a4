"""Base class of fronts, which turn raw input into vectors with positional encodings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from headway.nn.layout import Layout

BatchT = TypeVar("BatchT")


class Front(nn.Module):
    """Module that turns a flat batch of one modality into one vector per position.

    `dtype` is the type of the residual stream, and so of all computation after it.
    """

    reads: ClassVar[Literal["text", "image", "audio"]] = "text"
    """Modality of the front's input."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype: torch.dtype | None = None

    def rows(self, item: Any) -> int:
        """Number of positions that one raw item takes."""
        raise NotImplementedError

    def collate(
        self, items: Sequence[Any], device: torch.device | str = "cpu"
    ) -> tuple[Any, Layout]:
        """Collate raw items (token numbers, images or audio) into a flat batch."""
        raise NotImplementedError

    def blanks(self, n_rows: int) -> list[Any]:
        """Empty items of typical size that fill about `n_rows` positions, for measurements without
        data."""
        raise NotImplementedError

    def cast(self, x_ND: Tensor) -> Tensor:
        return x_ND if self.dtype is None else x_ND.to(self.dtype)


def on_device(batch: BatchT, device: torch.device | str) -> BatchT:
    """Move the input of a front, a dataclass of tensors, to a device."""

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(moved(one) for one in value)
        return value.to(device, non_blocking=True) if isinstance(value, Tensor) else value

    given: Any = batch
    return replace(given, **{f.name: moved(getattr(given, f.name)) for f in fields(given)})


def set_compute_dtype(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Set the type of the residual stream of a model (None: the type of its weights)."""
    for part in model.modules():
        if isinstance(part, Front):
            part.dtype = dtype
