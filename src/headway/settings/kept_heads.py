"""Which heads a model still has, where some of them were taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from headway.errors import ConfigError

Heads = tuple[tuple[int, ...], ...]
"""For each layer the numbers of some of its heads."""


@dataclass(frozen=True, kw_only=True)
class KeptHeads:
    """The heads that are left of each layer, where some were taken out; None: all of them.

    By kind of attention, and by their numbers in the whole model, from 0: what a head adds to
    scores by distance hangs on its number. Layers that are one and the same have one list.
    """

    encoder: Heads | None = None
    decoder: Heads | None = None
    cross: Heads | None = None
    self: Heads | None = None
    """Of models that have only one kind of attention."""

    def __post_init__(self) -> None:
        for field in fields(self):
            layers = getattr(self, field.name)
            if layers is not None:  # lists come from files and commands
                object.__setattr__(self, field.name, tuple(tuple(heads) for heads in layers))

    def of(self, kind: str, layer: int) -> tuple[int, ...] | None:
        """None: all. Layers that are one and the same have one list for any of them."""
        layers: Heads | None = getattr(self, kind)
        return None if layers is None else layers[layer if len(layers) > 1 else 0]

    def of_layers(self, picks: Mapping[str, Sequence[int]]) -> KeptHeads:
        """Those of a model that has only these layers, by kind of attention."""
        changes = {
            kind: tuple(layers[layer] for layer in picks[kind])
            for kind, layers in vars(self).items()
            if layers is not None and len(layers) > 1
        }
        return replace(self, **changes)

    def check(self, n_layers: Mapping[str, int], n_heads: Mapping[str, tuple[int, int]]) -> None:
        """`n_layers` and `n_heads` (of queries, and of keys and values): of each kind of attention
        that the model has."""
        for field in fields(self):
            layers, name = getattr(self, field.name), f"kept_heads.{field.name}"
            if layers is None:
                continue
            if field.name not in n_layers:
                has = ", ".join(n_layers)
                raise ConfigError(f"{name} has no effect: this model has the attention {has}.")
            if len(layers) != n_layers[field.name]:
                raise ConfigError(
                    f"{name} lists heads of {len(layers)} layers, and there are "
                    f"{n_layers[field.name]} of them."
                )
            for layer, heads in enumerate(layers):
                _check_kept(f"{name}, layer {layer + 1}", heads, *n_heads[field.name])


ALL_HEADS = KeptHeads()


def _check_kept(where: str, heads: tuple[int, ...], n_heads: int, kv_heads: int) -> None:
    if not heads:
        raise ConfigError(f"{where}: no head is left. Keep at least one in every attention.")
    if any(type(head) is not int for head in heads) or list(heads) != sorted(set(heads)):
        raise ConfigError(f"{where}: {list(heads)} must be whole numbers, each once, in order.")
    if heads[0] < 0 or heads[-1] >= n_heads:
        raise ConfigError(f"{where}: {list(heads)} must be among the heads 0 to {n_heads - 1}.")
    size = n_heads // kv_heads
    whole = {head // size * size + i for head in heads for i in range(size)}
    if kv_heads > 1 and set(heads) != whole:
        raise ConfigError(
            f"{where}: {list(heads)} parts heads that share keys and values "
            f"(n_kv_heads={kv_heads}: each {size} in a row belong together). Keep all or none."
        )
