"""Table of model families, and `build_model`.

To add a family, write a module in this package and add it to the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from headway.nn.init import initialise
from headway.settings.model import ModelSettings, family_of

FAMILIES = {
    "seq2seq": "seq2seq:seq2seq",
    "encoder": "encoder:encoder",
    "decoder": "decoder:decoder",
    "image-encoder": "vision:image_encoder",
    "image-seq2seq": "vision:image_seq2seq",
    "audio-encoder": "audio:audio_encoder",
    "audio-seq2seq": "audio:audio_seq2seq",
}
"""Module in this package and name of the function that builds each family. Modules are imported on
first use."""


def build_model(
    settings: ModelSettings, *, device: torch.device | str = "cpu", seed: int | None = 0
) -> nn.Module:
    """Build a model with initialized weights.

    On the device `meta`, it takes no memory; that is enough to count its parameters. `seed`: None
    leaves the weights uninitialized, for callers that load all of them.
    """
    is_meta = torch.device(device).type == "meta"
    with torch.device("meta" if is_meta else "cpu"), SkipInit() if is_meta else nullcontext():
        model = _family(family_of(settings))(settings)
    if seed is not None and not is_meta:
        initialise(model, settings.init, seed)
    return model if is_meta else model.to(device)


def _family(name: str) -> Callable[[Any], nn.Module]:
    module, function = FAMILIES[name].split(":")
    made: Callable[[Any], nn.Module] = getattr(import_module(f"headway.models.{module}"), function)
    return made


class SkipInit(TorchFunctionMode):
    """Context manager that skips PyTorch's weight initialization. On the meta device, that would
    have no effect but would import the compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)
