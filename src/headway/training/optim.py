"""Adam, AdamW, Muon and LAMB as PyTorch optimizers, and their state as named tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from headway.errors import ConfigError, FolderError
from headway.nn.init import HasMatrices
from headway.settings.train import TrainSettings
from headway.training.lamb import Lamb
from headway.training.muon import Muon

FUSED = ("cpu", "cuda")
"""Devices with fused optimizer kernels in all supported versions of PyTorch."""

LISTS = ("params", "matrix_rows")
"""Entries of a parameter group that hold one value per parameter."""


def build_optimizer(
    model: nn.Module,
    settings: TrainSettings,
    *,
    device: torch.device | str,
    capturable: bool = False,
    scales: Mapping[Tensor, float] | None = None,
) -> Optimizer:
    """Return the optimizer for all trainable parameters. Its learning rate is 0 until `set_lr` is
    called.

    `capturable`: a CUDA graph can contain a step. The learning rate is then a tensor that `set_lr`
    fills in place, so that a replay sees the new value. `scales`: learning-rate factors of some
    parameters; all others have the factor 1.
    """
    kind = torch.device(device).type
    arguments: dict[str, Any] = {
        "lr": torch.zeros((), device=device) if capturable else 0.0,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.eps,
        "weight_decay": 0.0,
        "fused": True if kind in FUSED else None,
        "capturable": capturable and kind == "cuda",
    }
    groups = parameter_groups(model, settings)
    if scales:
        groups = [part for group in groups for part in _by_scale(group, scales)]
    if not groups and settings.steps == 0:
        groups = [{"params": []}]  # an n-gram model has no trainable weights
    elif not groups:
        raise ConfigError("start.freeze leaves no weights to train. Freeze fewer layers.")
    if capturable:  # one tensor per group: the default would be shared
        groups = [{**group, "lr": torch.zeros((), device=device)} for group in groups]
    kinds: dict[str, type[torch.optim.Adam]] = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "muon": Muon,
        "lamb": Lamb,
    }
    optimizer = kinds[settings.optimizer](groups, **arguments)
    optimizer.register_step_post_hook(_mark_changed)
    return optimizer


def _mark_changed(optimizer: Optimizer, *_: object) -> None:
    """Increment the version counter of all weights, which fused kernels do not do. Caches of values
    computed from a weight, as in `nn/cpu_packed.py`, rely on the counter."""
    torch.autograd.graph.increment_version(_parameters(optimizer))


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of the next step. Each parameter group multiplies it by its factor
    `lr_scale`."""
    for group in optimizer.param_groups:
        own = lr * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def _by_scale(group: dict[str, Any], scales: Mapping[Tensor, float]) -> list[dict[str, Any]]:
    """Split a parameter group into one group per learning-rate factor, the largest factor first."""
    parts = []
    for scale in sorted({scales.get(p, 1.0) for p in group["params"]}, reverse=True):
        kept = [i for i, p in enumerate(group["params"]) if scales.get(p, 1.0) == scale]
        lists = {name: [group[name][i] for i in kept] for name in LISTS if name in group}
        parts.append({**group, **lists, "lr_scale": scale})
    return parts


def parameter_groups(model: nn.Module, settings: TrainSettings) -> list[dict[str, Any]]:
    """Return the parameter groups that are not empty: hidden matrices for Muon, parameters with
    weight decay, and parameters without.

    Adam has a single group without weight decay. Norms, biases and embeddings have no weight decay,
    because it would not regularize them. An output matrix that is tied to an embedding counts as
    the embedding.
    """
    if settings.optimizer == "adam":
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return [{"params": trained}] if trained else []
    hidden = hidden_matrices(model) if settings.optimizer == "muon" else {}
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    orthogonal, decayed, plain = [], [], []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter in hidden:
            orthogonal.append(parameter)
        elif parameter.ndim >= 2 and parameter not in tables:
            decayed.append(parameter)
        else:
            plain.append(parameter)
    decay = settings.weight_decay
    groups = [
        {
            "params": orthogonal,
            "weight_decay": decay,
            "matrix_rows": [hidden[parameter] for parameter in orthogonal],
        },
        {"params": decayed, "weight_decay": decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def hidden_matrices(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Return the matrices inside the layers, each with the row counts of the matrices that are
    fused in it.

    The projections of queries, keys and values share a tensor for speed, as do a gate and its
    value, and the gates of a recurrence. Each matrix is orthogonalized separately.
    """
    found: dict[Tensor, tuple[int, ...]] = {}
    for part in model.modules():
        if isinstance(part, HasMatrices):
            found |= part.matrices()
    return found


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the whole state of the optimizer, including step counters, as tensors named `<index of
    the parameter>.<name>`. The tensors are not copies."""
    return {
        f"{number}.{name}": value.detach()
        for number, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore a state that `optimizer_tensors` returned, bit for bit.

    Existing state is overwritten in place, because CUDA graphs refer to its addresses.
    """
    parameters = _parameters(optimizer)
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        prefix, _, name = key.partition(".")
        if not (prefix.isdecimal() and int(prefix) < len(parameters) and name):
            raise FolderError(
                f"the optimiser state {key!r} does not belong to any weight of this model."
            )
        number = int(prefix)
        shape = tuple(parameters[number].shape)
        if tensor.ndim and tuple(tensor.shape) != shape:
            raise FolderError(
                f"the optimiser state {key!r} has shape {tuple(tensor.shape)}, but its weight has "
                f"shape {shape}."
            )
        states.setdefault(number, {})[name] = tensor
    for number, parameter in enumerate(parameters):
        old = optimizer.state.pop(parameter, {})
        if number in states:
            optimizer.state[parameter] = {
                name: _placed(tensor, old.get(name), parameter, optimizer.defaults)
                for name, tensor in states[number].items()
            }


def _placed(
    tensor: Tensor, old: Tensor | None, parameter: Tensor, defaults: Mapping[str, Any]
) -> Tensor:
    if old is not None and old.shape == tensor.shape and old.dtype == tensor.dtype:
        return old.copy_(tensor)
    # The step counter of a weight is on the weight's device only if the optimizer kernel reads it.
    beside = tensor.ndim or defaults["fused"] or defaults["capturable"]
    return tensor.to(parameter.device if beside else "cpu", copy=True)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
