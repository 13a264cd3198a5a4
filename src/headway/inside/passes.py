"""Many passages through the model at once, with a view of every layer's states, or a hand in them.

A *site* is a stack and a layer of it: layer 0 is what the front hands over, layer n what comes out
of the nth block, before any final norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.inside.anatomy import Anatomy, StackPart
from headway.inside.corpus import Passage
from headway.models.encoder import Encoder
from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout

Site = tuple[str, int]
Edit = Callable[[Site, Tensor], Tensor | None]
"""Gets the states of a site and may answer others, which the model goes on with."""

READ_AT_ONCE = 2048
"""Tokens of a batch."""


@dataclass(frozen=True)
class Batch:
    passages: list[Passage]
    tokens: dict[str, Tensor]
    layouts: dict[str, Layout]

    @classmethod
    def of(cls, passages: Sequence[Passage], device: torch.device | str = "cpu") -> Batch:
        tokens, layouts = {}, {}
        for stream in passages[0].ids:
            many = [passage.ids[stream] for passage in passages]
            tokens[stream] = torch.tensor([i for ids in many for i in ids], device=device)
            layouts[stream] = Layout.of([len(ids) for ids in many], device)
        return cls(list(passages), tokens, layouts)

    @property
    def last(self) -> str:
        """The stream that the model answers in."""
        return list(self.tokens)[-1]

    def places(self, stream: str) -> Iterator[tuple[int, int]]:
        """For each row of a stream the number of its passage in the batch, and its place there."""
        for number, passage in enumerate(self.passages):
            for place in range(len(passage.ids[stream])):
                yield number, place


def batches(
    passages: Sequence[Passage], device: torch.device | str = "cpu", tokens: int = READ_AT_ONCE
) -> Iterator[Batch]:
    """In order, about `tokens` at a time."""
    held: list[Passage] = []
    size = 0
    for passage in passages:
        if held and size + passage.n_tokens > tokens:
            yield Batch.of(held, device)
            held, size = [], 0
        held.append(passage)
        size += passage.n_tokens
    if held:
        yield Batch.of(held, device)


def sites_of(model: nn.Module) -> list[Site]:
    parts = Anatomy.of(model).stacks
    return [(part.name, layer) for part in parts for layer in range(len(part.blocks) + 1)]


def stream_of(model: nn.Module, site: Site) -> str:
    return Anatomy.of(model).stack(site[0]).stream


def last_site(model: nn.Module) -> Site:
    part = Anatomy.of(model).stacks[-1]
    return part.name, len(part.blocks)


def vectors_of(model: nn.Module, batch: Batch) -> Tensor:
    """Of the last stream that the batch has, behind the final norm."""
    if isinstance(model, Seq2Seq):
        source, target = "source", "target"
        if target not in batch.tokens:
            return model.encode(batch.tokens[source], batch.layouts[source]).x_MD
        return model(
            batch.tokens[source], batch.layouts[source], batch.tokens[target], batch.layouts[target]
        )
    if isinstance(model, Encoder) and any(passage.segments for passage in batch.passages):
        segments = [number for passage in batch.passages for number in passage.segments]
        ids_N = batch.tokens["text"]
        return model(ids_N, batch.layouts["text"], torch.tensor(segments, device=ids_N.device))
    return model(batch.tokens["text"], batch.layouts["text"])


def states_of(model: nn.Module, batch: Batch) -> dict[Site, Tensor]:
    """The states of every site, a row a token."""
    with watched(model) as found:
        vectors_of(model, batch)
    return found


@contextmanager
def watched(model: nn.Module) -> Iterator[dict[Site, Tensor]]:
    """What a pass inside leaves in every site."""
    found: dict[Site, Tensor] = {}

    def keep(site: Site, x_ND: Tensor) -> None:
        found[site] = x_ND.detach()

    with edited(model, keep):
        yield found


@contextmanager
def edited(model: nn.Module, edit: Edit) -> Iterator[None]:
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
