"""Many passages through the model at once, with a view of every layer's states, or a hand in them.

A *site* is a stack and a layer of it: layer 0 is what the front hands over, layer n what comes out
of the nth block, before any final norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.hidden_rows import some_hidden
from headway.inside.capture.passages import Passage
from headway.models.parts.heads import Input
from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout
from headway.tasks import items as tasks
from headway.tasks.intake import Gone
from headway.tasks.opened import Opened
from headway.tasks.read import asked

Site = tuple[str, int]
Edit = Callable[[Site, Tensor], Tensor | None]
"""Gets the states of a site and may answer others, which the model goes on with."""

READ_AT_ONCE = 2048
"""Tokens of a batch."""


@dataclass(frozen=True)
class Batch:
    passages: list[Passage]
    streams: dict[str, Input]
    """What is read first comes first."""

    hidden: tasks.Batch[Gone] | None = None
    """Of media with hidden rows: which they are, and what stood there."""

    @classmethod
    def of(cls, run: Opened, passages: Sequence[Passage]) -> Batch:
        """On the device of the model."""
        device = next(run.model.parameters()).device
        streams: dict[str, Input] = {}
        hidden: tasks.Batch[Gone] | None = None
        for stream in passages[0].ids:
            media = [one.media for one in passages if one.media is not None]
            if passages[0].hides:
                hidden = some_hidden(run, media, np.arange(len(media)), passages[0].line)
                streams[stream] = hidden.streams[0]
            elif passages[0].is_media(stream):
                front = Anatomy.of(run.model).stacks[0].front
                given = front.collate([one.item for one in media], device)
                streams[stream] = Input(*given)
            else:
                many = [passage.ids[stream] for passage in passages]
                ids_N = torch.tensor([i for ids in many for i in ids], device=device)
                streams[stream] = Input(ids_N, Layout.of([len(ids) for ids in many], device))
        segments = [number for passage in passages for number in passage.segments]
        if segments:
            last = list(streams)[-1]
            segments_N = torch.tensor(segments, device=device)
            streams[last] = replace(streams[last], segments_N=segments_N)
        return cls(list(passages), streams, hidden)

    @property
    def last(self) -> str:
        """The stream that the model answers in."""
        return list(self.streams)[-1]

    def ids(self, stream: str) -> Tensor:
        """Of all passages; -1 for rows of media."""
        every = [i for passage in self.passages for i in passage.ids[stream]]
        return torch.tensor(every, device=self.streams[stream].layout.starts_B.device)

    def ordinary(self, run: Opened, stream: str) -> Tensor:
        """Which rows are words, patches or sound: the first and last tokens of a text carry other
        things, and some models park huge states on them; so do rows that are no part of a picture,
        and the silence that a recording is filled up with is none of it."""
        if self.passages[0].is_media(stream):
            own = [one.media.is_own for one in self.passages if one.media is not None]
            device = self.streams[stream].layout.starts_B.device
            return torch.tensor([row for rows in own for row in rows], device=device)
        tokenizer = run.vocab.source if stream == "source" else run.vocab.target
        begins = (tokenizer.source_begin, tokenizer.target_begin)
        apart = [tokenizer.bos, tokenizer.eos, *(i for i in begins if i is not None)]
        ids_N = self.ids(stream)
        return ~torch.isin(ids_N, torch.tensor(apart, device=ids_N.device))

    def places(self, stream: str) -> Iterator[tuple[int, int]]:
        """For each row of a stream the number of its passage in the batch, and its place there."""
        for number, passage in enumerate(self.passages):
            for place in range(len(passage.ids[stream])):
                yield number, place


def batches(
    run: Opened, passages: Sequence[Passage], tokens: int = READ_AT_ONCE
) -> Iterator[Batch]:
    """In order, about `tokens` at a time."""
    held: list[Passage] = []
    size = 0
    for passage in passages:
        if held and size + passage.n_tokens > tokens:
            yield Batch.of(run, held)
            held, size = [], 0
        held.append(passage)
        size += passage.n_tokens
    if held:
        yield Batch.of(run, held)


def sites_of(model: nn.Module) -> list[Site]:
    parts = Anatomy.of(model).stacks
    return [(part.name, layer) for part in parts for layer in range(len(part.blocks) + 1)]


def stream_of(model: nn.Module, site: Site) -> str:
    return Anatomy.of(model).stack(site[0]).stream


def vectors_of(model: nn.Module, batch: Batch) -> Tensor:
    """Of the last stream that the batch has, behind the final norm."""
    given = list(batch.streams.values())
    if len(given) < len(Anatomy.of(model).stacks):
        return cast(Seq2Seq, model).encode(given[0].values, given[0].layout).x_MD
    return asked(model).states(*given).x_ND


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
