"""Weights in fewer bits, cast once, for decoding: a step reads all of them and little else."""

from __future__ import annotations

import torch
from torch import nn

from headway.errors import UserError
from headway.nn.int8 import hold_int8


def compute_in_type(model: nn.Module, dtype: torch.dtype) -> None:
    """Hold the weights of a model in this type, which the stream then has too.

    Norms, softmax and the log-probabilities are computed in fp32 all the same.
    """
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


def hold_in(model: nn.Module, precision: str) -> None:
    """`decode.precision` by its name."""
    if precision == "bf16":
        compute_in_type(model, torch.bfloat16)
    if precision == "int8":
        if any(weight.device.type != "cpu" for weight in model.parameters()):
            raise UserError(
                "decode.precision=int8 is for a CPU. On this device use decode.precision=bf16, "
                "or compute with --device cpu."
            )
        hold_int8(model)
