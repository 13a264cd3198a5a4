"""Weights in bf16 or int8 for decoding, where reading the weights takes most of the time."""

from __future__ import annotations

import torch
from torch import nn

from headway.errors import Option, UserError
from headway.nn.int8 import quantize_model


def compute_in_type(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights of a model to this type; the residual stream then has it, too.

    Norms, softmax and log-probabilities are still computed in fp32.
    """
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


def cast_weights(model: nn.Module, precision: str) -> None:
    """Cast the weights as `decode.precision` names it."""
    if precision == "bf16":
        compute_in_type(model, torch.bfloat16)
    if precision == "int8":
        if any(weight.device.type != "cpu" for weight in model.parameters()):
            raise UserError(
                "decode.precision=int8 works only on a CPU. Use decode.precision=bf16, or run "
                f"the model on the CPU with {Option('device', 'cpu')}."
            )
        quantize_model(model)
