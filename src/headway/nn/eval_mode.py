"""Models as they are used, whatever they are while they learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Without dropout inside; afterwards as before.

    Compiled blocks run as they are written: every length would compile them once more.
    """
    training = [model.training for model in models]
    compiled = any(map(is_compiled, models))
    try:
        for model in models:
            model.eval()
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for model, was_training in zip(models, training, strict=True):
            model.train(was_training)


def is_compiled(model: nn.Module) -> bool:
    """Whether a part of it is."""
    return any(part._compiled_call_impl is not None for part in model.modules())
