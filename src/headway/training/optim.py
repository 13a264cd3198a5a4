"""Adam, AdamW, Muon and LAMB behind one `torch.optim.Optimizer`, and its state as named tensors."""

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
"""Devices on which one kernel updates everything in all supported versions of torch."""

LISTS = ("params", "matrix_rows")
"""What a group has one of for each parameter."""


def build_optimizer(
    model: nn.Module,
    settings: TrainSettings,
    *,
    device: torch.device | str,
    capturable: bool = False,
    scales: Mapping[Tensor, float] | None = None,
) -> Optimizer:
    """The optimiser for all trainable parameters. Its rate is 0 until `set_lr`.

    `capturable`: a step may be recorded in a CUDA graph. The rate is then a tensor that `set_lr`
    fills in place, so that a replay sees the new value.
    `scales`: parameters that learn at another rate, and how many times that of the others.
    """
    check_optimizer(settings)
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
        groups = [{"params": []}]  # a model that counts: nothing is learned in steps
    elif not groups:
        raise ConfigError(
            "no weight is left to train: start.freeze leaves none. Use a smaller one."
        )
    if capturable:  # a tensor each: the default one would be shared
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
    """Fused kernels change weights without telling: whoever keeps something that was computed from
    a weight, as `nn/cpu_packed.py` does, sees by its version that it is out of date."""
    torch.autograd.graph.increment_version(_parameters(optimizer))


def check_optimizer(settings: TrainSettings) -> None:
    """Refuse settings that would have no effect."""
    if settings.optimizer == "adam" and settings.weight_decay:
        raise ConfigError(
            f"train.weight_decay={settings.weight_decay:g} has no effect with "
            "train.optimizer=adam. Use train.optimizer=adamw, or leave the decay out."
        )


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """The rate of the step; a group with an `lr_scale` takes so many times it."""
    for group in optimizer.param_groups:
        own = lr * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def _by_scale(group: dict[str, Any], scales: Mapping[Tensor, float]) -> list[dict[str, Any]]:
    """The group cut into one for each rate, the fastest first."""
    parts = []
    for scale in sorted({scales.get(p, 1.0) for p in group["params"]}, reverse=True):
        kept = [i for i, p in enumerate(group["params"]) if scales.get(p, 1.0) == scale]
        lists = {name: [group[name][i] for i in kept] for name in LISTS if name in group}
        parts.append({**group, **lists, "lr_scale": scale})
    return parts


def parameter_groups(model: nn.Module, settings: TrainSettings) -> list[dict[str, Any]]:
    """What Muon takes (none of it for AdamW), what decays, and what does not, without empty ones.
    Adam, which has no decay, takes all as one.

    Norms, biases and embeddings never decay: pulling them to zero regularises nothing. A softmax
    that is tied to an embedding counts as the embedding.
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
    """The matrices inside the layers, with the rows of each single matrix that one tensor fuses.

    Queries, keys and values lie in one tensor for speed but are three maps, and so are a gate and
    what it multiplies, and the gates of a recurrence: each is orthogonalised on its own.
    """
    found: dict[Tensor, tuple[int, ...]] = {}
    for part in model.modules():
        if isinstance(part, HasMatrices):
            found |= part.matrices()
    return found


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """All state, step counters too, as `<number of the parameter>.<name>`. Not copies."""
    return {
        f"{number}.{name}": value.detach()
        for number, parameter in enumerate(_parameters(optimizer))
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave, bit for bit.

    State that exists already is overwritten where it lies: a recorded step keeps its addresses.
    """
    parameters = _parameters(optimizer)
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        prefix, _, name = key.partition(".")
        if not (prefix.isdecimal() and int(prefix) < len(parameters) and name):
            raise FolderError(f"the optimiser's state {key!r} belongs to no weight of this model.")
        number = int(prefix)
        shape = tuple(parameters[number].shape)
        if tensor.ndim and tuple(tensor.shape) != shape:
            raise FolderError(
                f"the optimiser's state {key!r} is of shape {tuple(tensor.shape)}, "
                f"its weight {shape}."
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
    # A counter lies beside its weight only where the kernel itself reads it.
    beside = tensor.ndim or defaults["fused"] or defaults["capturable"]
    return tensor.to(parameter.device if beside else "cpu", copy=True)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
