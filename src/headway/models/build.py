"""Table of model families, and `build_model`. A new family is a module here and a table entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from headway.models.audio import audio_encoder, audio_seq2seq
from headway.models.decoder import decoder
from headway.models.encoder import encoder
from headway.models.seq2seq import seq2seq
from headway.models.vision import image_encoder, image_seq2seq
from headway.nn.init import initialise
from headway.settings.model import ModelSettings, family_of

FAMILIES: dict[str, Callable[[Any], nn.Module]] = {
    "seq2seq": seq2seq,
    "encoder": encoder,
    "decoder": decoder,
    "image-encoder": image_encoder,
    "image-seq2seq": image_seq2seq,
    "audio-encoder": audio_encoder,
    "audio-seq2seq": audio_seq2seq,
}


def build_model(
    settings: ModelSettings, *, device: torch.device | str = "cpu", seed: int | None = 0
) -> nn.Module:
    """Build a model with initialised weights. On the device "meta" it takes no memory, which is
    enough to count its parameters. Without a seed, weights are left uninitialised for a caller that
    loads all of them."""
    is_meta = torch.device(device).type == "meta"
    with torch.device("meta" if is_meta else "cpu"), SkipInit() if is_meta else nullcontext():
        model = FAMILIES[family_of(settings)](settings)
    if seed is not None and not is_meta:
        initialise(model, settings.init, seed)
    return model if is_meta else model.to(device)


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
