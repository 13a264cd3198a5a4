"""Where things are computed, by name."""

from __future__ import annotations

import torch

from headway.errors import UserError

CPU = torch.device("cpu")


def pick_device(name: str, local: int = 0) -> torch.device:
    """`auto`: a CUDA device if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}. Try cpu, cuda or cuda:1.") from error
    if device.type not in ("cpu", "cuda"):
        apple = " (on a Mac the CPU is used, not Apple's GPU)" if device.type == "mps" else ""
        raise UserError(
            f"--device {name}: headway computes on CPUs and on CUDA devices{apple}. Use --device "
            "cpu, or leave it out."
        )
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(f"--device {name}: torch finds no CUDA device here. Try --device cpu.")
        # fp32 is fp32: of convolutions and recurrences cuDNN would round what it multiplies to ten
        # bits (TF32), which torch's own products do not.
        torch.backends.cudnn.allow_tf32 = False
        return torch.device("cuda", local if device.index is None else device.index)
    return device
