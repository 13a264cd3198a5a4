"""Attention heads that remain in a pruned model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from headway.errors import ConfigError
from headway.settings.effects import OF_MODEL, ModelFacts

HeadsPerLayer = tuple[tuple[int, ...], ...]
"""Indices of the remaining heads in each layer."""


@dataclass(frozen=True, kw_only=True)
class KeptHeads:
    """Heads that remain in each layer after pruning, by kind of attention. None: all heads.

    Heads keep the indices (from 0) that they had in the unpruned model, because position biases
    depend on the index of a head. Layers with shared weights have one list.
    """

    encoder: HeadsPerLayer | None = None
    decoder: HeadsPerLayer | None = None
    cross: HeadsPerLayer | None = None
    self: HeadsPerLayer | None = None
    """Heads in models with only one kind of attention."""

    def __post_init__(self) -> None:
        for field in fields(self):
            layers = getattr(self, field.name)
            if layers is not None:  # lists come from files and commands
                object.__setattr__(self, field.name, tuple(tuple(heads) for heads in layers))

    def of(self, kind: str, layer: int) -> tuple[int, ...] | None:
        """Return the indices of the remaining heads of one layer; None if all remain. For layers
        with shared weights, `layer` is ignored."""
        layers: HeadsPerLayer | None = getattr(self, kind)
        return None if layers is None else layers[layer if len(layers) > 1 else 0]

    def of_layers(self, picks: Mapping[str, Sequence[int]]) -> KeptHeads:
        """Return the remaining heads of a model that consists of some of the layers. `picks`:
        indices of these layers, by kind of attention."""
        changes = {
            kind: tuple(layers[layer] for layer in picks[kind])
            for kind, layers in vars(self).items()
            if layers is not None and len(layers) > 1
        }
        return replace(self, **changes)

    def check(self, n_layers: Mapping[str, int], n_heads: Mapping[str, tuple[int, int]]) -> None:
        """Raise an error if the lists do not fit the model. `n_layers` and `n_heads` (numbers of
        query heads and of key/value heads) are given for each kind of attention."""
        for field in fields(self):
            layers, name = getattr(self, field.name), f"kept_heads.{field.name}"
            if layers is None:
                continue
            OF_MODEL.check({f"model.{name}": layers}, ModelFacts(attention=frozenset(n_layers)))
            if len(layers) != n_layers[field.name]:
                raise ConfigError(
                    f"{name} has lists for {len(layers)} layers, but the model has "
                    f"{n_layers[field.name]} layers. Give one list per layer."
                )
            for layer, heads in enumerate(layers):
                _check_kept(f"{name}, layer {layer + 1}", heads, *n_heads[field.name])


ALL_HEADS = KeptHeads()


def _check_kept(where: str, heads: tuple[int, ...], n_heads: int, kv_heads: int) -> None:
    if not heads:
        raise ConfigError(
            f"{where}: no head is kept. Keep at least one head in every attention layer."
        )
    if any(type(head) is not int for head in heads) or list(heads) != sorted(set(heads)):
        raise ConfigError(
            f"{where}: {list(heads)} must be distinct whole numbers in increasing order."
        )
    if heads[0] < 0 or heads[-1] >= n_heads:
        raise ConfigError(
            f"{where}: {list(heads)} may contain only head numbers from 0 to {n_heads - 1}."
        )
    size = n_heads // kv_heads
    whole = {head // size * size + i for head in heads for i in range(size)}
    if kv_heads > 1 and set(heads) != whole:
        raise ConfigError(
            f"{where}: {list(heads)} separates heads that share keys and values "
            f"(n_kv_heads={kv_heads}: groups of {size} consecutive heads). Keep all heads of a "
            "group or none."
        )
