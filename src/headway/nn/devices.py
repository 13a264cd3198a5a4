"""Choice of the device that models run on."""

from __future__ import annotations

import torch

from headway.errors import Option, UserError

CPU = torch.device("cpu")


def pick_device(name: str, local: int = 0) -> torch.device:
    """Return the device of that name.

    `name`: `auto` means CUDA if available, else the CPU. `local`: index of the device, if `name`
    has none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}. Try cpu, cuda or cuda:1.") from error
    if device.type not in ("cpu", "cuda"):
        apple = " (on a Mac the CPU is used, not Apple's GPU)" if device.type == "mps" else ""
        raise UserError(
            f"{Option('device', name)} is not supported: headway runs only on CPUs and CUDA "
            f"devices{apple}. Use {Option('device', 'cpu')}, or remove {Option('device')}."
        )
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError(
                f"{Option('device', name)}: torch finds no CUDA device. Use "
                f"{Option('device', 'cpu')}."
            )
        # Disable TF32 in cuDNN, which would round the operands of convolutions and recurrences to
        # ten mantissa bits. PyTorch disables it for matrix products by default.
        torch.backends.cudnn.allow_tf32 = False
        return torch.device("cuda", local if device.index is None else device.index)
    return device
