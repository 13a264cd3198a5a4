"""Hidden states of every layer on many readings, recorded or edited during the forward pass.

A *site* is a stack and a layer of it. Layer 0 is the output of the embedding, layer n that of block
n, before any final norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.forward import ReadingBatch, last_hidden_states
from headway.inside.capture.streams import Reading
from headway.tasks.loaded_run import LoadedRun

Site = tuple[str, int]
StateEdit = Callable[[Site, Tensor], Tensor | None]
"""Function that receives a site and its hidden states. It returns replacement states, or None to
keep them."""

READ_AT_ONCE = 2048
"""Maximum number of tokens per forward pass. The limit bounds memory."""


def batches(
    run: LoadedRun, readings: Sequence[Reading], tokens: int = READ_AT_ONCE
) -> Iterator[ReadingBatch]:
    """Yield batches of readings in their order, with at most `tokens` tokens each. A longer reading
    is a batch of its own."""
    held: list[Reading] = []
    for reading in readings:
        if held and sum(one.n_tokens for one in [*held, reading]) > tokens:
            yield ReadingBatch.of(run, held)
            held = []
        held.append(reading)
    if held:
        yield ReadingBatch.of(run, held)


def sites_of(model: nn.Module) -> list[Site]:
    parts = Anatomy.of(model).stacks
    return [(part.name, layer) for part in parts for layer in range(len(part.blocks) + 1)]


def stream_of(model: nn.Module, site: Site) -> str:
    return Anatomy.of(model).stack(site[0]).stream


def states_of(model: nn.Module, batch: ReadingBatch) -> dict[Site, Tensor]:
    """Return the hidden states of each site, one row per token of the batch."""
    with record_states(model) as found:
        last_hidden_states(model, batch)
    return found


@contextmanager
def record_states(model: nn.Module) -> Iterator[dict[Site, Tensor]]:
    """Record the hidden states of each site during a forward pass within the context."""
    found: dict[Site, Tensor] = {}

    def keep(site: Site, x_ND: Tensor) -> None:
        found[site] = x_ND.detach()

    with edit_states(model, keep):
        yield found


@contextmanager
def edit_states(model: nn.Module, edit: StateEdit) -> Iterator[None]:
    """Call `edit` with the hidden states of each site during a forward pass within the context."""
    hooks: list[Any] = []
    try:
        for part in Anatomy.of(model).stacks:
            hooks += _hooks(part, edit)
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _hooks(part: StackPart, edit: StateEdit) -> list[Any]:
    # Layers that share weights are one module that is called repeatedly, so calls are counted.
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
