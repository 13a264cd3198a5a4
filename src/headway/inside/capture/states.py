"""Many readings through the model at once, with a view of every layer's states, or a hand in them.

A *site* is a stack and a layer of it: layer 0 is what the front hands over, layer n what comes out
of the nth block, before any final norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.forward import Batch, vectors
from headway.inside.capture.streams import Reading
from headway.tasks.opened import Opened

Site = tuple[str, int]
Edit = Callable[[Site, Tensor], Tensor | None]
"""Gets the states of a site and may answer others, which the model goes on with."""

READ_AT_ONCE = 2048
"""Tokens of a batch."""


def batches(
    run: Opened, readings: Sequence[Reading], tokens: int = READ_AT_ONCE
) -> Iterator[Batch]:
    """In order, about `tokens` at a time."""
    held: list[Reading] = []
    for reading in readings:
        if held and sum(one.n_tokens for one in [*held, reading]) > tokens:
            yield Batch.of(run, held)
            held = []
        held.append(reading)
    if held:
        yield Batch.of(run, held)


def sites_of(model: nn.Module) -> list[Site]:
    parts = Anatomy.of(model).stacks
    return [(part.name, layer) for part in parts for layer in range(len(part.blocks) + 1)]


def stream_of(model: nn.Module, site: Site) -> str:
    return Anatomy.of(model).stack(site[0]).stream


def states_of(model: nn.Module, batch: Batch) -> dict[Site, Tensor]:
    """The states of every site, a row a token."""
    with watch_states(model) as found:
        vectors(model, batch)
    return found


@contextmanager
def watch_states(model: nn.Module) -> Iterator[dict[Site, Tensor]]:
    """What a pass inside leaves in every site."""
    found: dict[Site, Tensor] = {}

    def keep(site: Site, x_ND: Tensor) -> None:
        found[site] = x_ND.detach()

    with edit_states(model, keep):
        yield found


@contextmanager
def edit_states(model: nn.Module, edit: Edit) -> Iterator[None]:
    """Inside, `edit` sees the states of every site in the order in which they come about."""
    hooks: list[Any] = []
    try:
        for part in Anatomy.of(model).stacks:
            hooks += _hooks(part, edit)
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hooks(part: StackPart, edit: Edit) -> list[Any]:
    # Layers that share their weights are one module called again and again, so calls are counted.
    layer = 0

    def before(module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        nonlocal layer
        layer = 0
        new = edit((part.name, 0), given[0])
        return None if new is None else (new, *given[1:])

    def behind(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> Tensor | None:
        nonlocal layer
        layer += 1
        return edit((part.name, layer), out)

    hooks = [part.stack.register_forward_pre_hook(before)]
    hooks += [block.register_forward_hook(behind) for block in set(part.blocks)]
    return hooks
