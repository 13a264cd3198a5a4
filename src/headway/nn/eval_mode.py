"""Context manager for evaluating models during training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import nn


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Put models into evaluation mode inside the `with`, and restore their mode afterwards.

    Compiled blocks run eagerly inside the `with`, because each new length would compile them again.
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
    """Return whether any part of the model is compiled."""
    return any(part._compiled_call_impl is not None for part in model.modules())
