"""Distributed training: the rank of this process, and collective operations.

Gradients are summed over ranks and divided by the number of targets of the whole step. The number
of ranks therefore affects only the speed. Only rank 0 writes files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from headway.errors import UserError
from headway.nn.devices import CPU, pick_device

BUCKET_BYTES = 64 << 20
"""Size in bytes of the gradients in one all-reduce. Larger buckets need more memory, smaller ones
more calls."""

JOINING = timedelta(seconds=45)
"""Maximum time that a rank waits for all others at the start. A launcher starts all ranks at once.
A rank that is still alone after this time, such as one restarted after the others gave up, ends
with an error."""

PATIENCE = timedelta(hours=12)
"""Maximum time that connected ranks wait while rank 0 prepares data or evaluates. If a rank ends,
the others notice it at once, without waiting this long."""


class RankLost(UserError):
    """Error in a rank that waited for another rank, which ended or never connected."""


@dataclass(frozen=True, kw_only=True)
class Distributed:
    rank: int = 0
    world: int = 1
    device: torch.device = CPU

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @classmethod
    def start(cls, device: str = "auto") -> Distributed:
        """Join the ranks that `torchrun` started. Without `torchrun`, run as a single process."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        rank, local = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
        place = pick_device(device, local)
        if world > 1:
            if place.type == "cuda":
                torch.cuda.set_device(place)
            _join("nccl" if place.type == "cuda" else "gloo", rank, world)
        return cls(rank=rank, world=world, device=place)

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Sum tensors over all ranks in place, with many tensors in each call of the collective
        operation."""
        if self.world == 1:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            with _together():
                dist.all_reduce(flat)
            parts = flat.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def any(self, mine: bool) -> bool:
        """Return whether `mine` is true on at least one rank. All ranks get the same result."""
        if self.world == 1:
            return mine
        flag = torch.tensor([float(mine)], device=self.device)
        with _together():
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def wait(self) -> None:
        """Wait until all ranks have made this call."""
        if self.world > 1:
            with _together():
                dist.barrier()

    def broadcast(self, value: object) -> object:
        """Return the value of rank 0 on all ranks."""
        if self.world == 1:
            return value
        box = [value]
        with _together():
            dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


def _join(backend: str, rank: int, world: int) -> None:
    """Form the process group and connect all ranks, with a short timeout."""
    end = time.monotonic() + JOINING.total_seconds()

    def left() -> timedelta:
        return timedelta(seconds=max(1.0, end - time.monotonic()))

    try:
        store, _, _ = next(rendezvous("env://", timeout=left()))
        store.set_timeout(left())
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=left())
        dist.barrier()
        store.set_timeout(PATIENCE)
        dist.distributed_c10d._set_pg_timeout(PATIENCE)
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RankLost(
            f"rank {rank} of {world} could not connect to the others within "
            f"{JOINING.total_seconds():.0f} s ({first}). "
            "Start all ranks again: the run resumes from its last checkpoint."
        ) from error


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLost(
            f"another rank has ended. See its output for the reason. This rank reported: {error}"
        ) from error


def _buckets(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size + tensor.nbytes > BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.nbytes
    if bucket:
        yield bucket
