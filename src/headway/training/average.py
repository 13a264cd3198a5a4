"""The mean of several checkpoints, which is usually better than each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from headway.errors import FolderError
from headway.models.folder import describe_difference
from headway.training.checkpoint import Checkpoints
from headway.training.manifest import verify


def average(weights: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, added up in fp64, in its own type. One set is held at a time.

    What is not floating point, such as a counter, is that of the last.
    """
    sums: dict[str, Tensor] = {}
    last: Mapping[str, Tensor] = {}
    n = 0
    for n, one in enumerate(weights, 1):
        shapes = {name: tuple(tensor.shape) for name, tensor in one.items()}
        if last and shapes != {name: tuple(tensor.shape) for name, tensor in last.items()}:
            before = {name: tuple(tensor.shape) for name, tensor in last.items()}
            raise FolderError(
                f"checkpoint {n} of those to average is of another model than the one before it.\n"
                f"{describe_difference(before, shapes)}"
            )
        for name, tensor in one.items():
            if tensor.is_floating_point():
                number = tensor.to(torch.float64)
                sums[name] = sums[name].add_(number) if name in sums else number.clone()
        last = one
    if not n:
        raise ValueError("nothing to average")
    return {
        name: (sums[name] / n).to(tensor.dtype) if name in sums else tensor.clone()
        for name, tensor in last.items()
    }


def newest_whole(checkpoints: Checkpoints, n: int) -> list[Path]:
    """Up to `n`, oldest first; one that is damaged is reported and left out."""
    found: list[Path] = []
    for path in reversed(checkpoints.paths()):
        try:
            verify(path)
        except (FolderError, OSError) as error:
            checkpoints.log(f"warning: {error} It is left out of the average.")
            continue
        found.insert(0, path)
        if len(found) == n:
            break
    return found


def average_of(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Of checkpoints, each verified as it is read."""
    return average(Checkpoints.weights(path) for path in paths)
