"""Table of model families, and `build_model`. A new family is a module here and a table entry."""

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
"""Module in this package and function of each family; imported on use."""


def build_model(
    settings: ModelSettings, *, device: torch.device | str = "cpu", seed: int | None = 0
) -> nn.Module:
    """Build a model with initialised weights. On the device "meta" it takes no memory, which is
    enough to count its parameters. Without a seed, weights are left uninitialised for a caller that
    loads all of them."""
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
    """Context that skips torch's weight initialisation, which on the meta device has no effect but
    imports the compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)
