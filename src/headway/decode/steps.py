"""Hypotheses that grow by one token at a time: the only thing a search knows about a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.cache import Cache
from headway.nn.layout import Layout, Tree
from headway.nn.tap import record

FIRST_ROOM = 32
"""Tokens a hypothesis that a cache has room for at first; it doubles when they are used up."""


class Steps(Protocol):
    """W hypotheses for each of B sources, all of the same number of tokens."""

    @property
    def device(self) -> torch.device: ...

    def step(self, tokens_BW: Tensor) -> Tensor:
        """Add a token to each and give the log-probabilities of the next (B·W rows by V).

        The tensor may be written on; the next step may reuse it.
        """

    def reorder(self, parents_BW: Tensor) -> None:
        """Hypothesis w of a source becomes what its hypothesis `parents_BW[:, w]` was."""

    def keep(self, sources: Sequence[int]) -> None:
        """Only these sources stay, in this order."""

    @property
    def attention_BWS(self) -> Tensor:
        """What each row of the source got in the last step, if the steps were made to watch it."""


class Seq2SeqSteps:
    """The source is encoded once. Its keys and values, in cross attention as in self-attention,
    serve all its hypotheses: a hypothesis is a query with a past of its own, never a copy."""

    def __init__(
        self,
        model: Seq2Seq,
        sources: Sequence[Any],
        width: int,
        capacity: int,
        *,
        watch: bool = False,
    ) -> None:
        self.model, self.width, self.watch = model, width, watch
        self.device = next(model.parameters()).device
        self.memory = encoded(model, sources, self.device)
        room = min(capacity, FIRST_ROOM) * width
        self.cache = Cache(len(model.decoder.blocks), len(sources), room)  # type: ignore[arg-type]
        self.length = 0
        self.attention_BWS = torch.empty(0)
        # The keys of a source stand step by step, in each step its hypotheses side by side.
        self.may_BWS = torch.zeros(
            len(sources), width, capacity * width, dtype=torch.bool, device=self.device
        )
        self.own_WW = torch.eye(width, dtype=torch.bool, device=self.device)
        self.position_S = torch.arange(capacity * width, device=self.device) // width
        self.base = Layout.of([width] * len(sources), self.device)

    def step(self, tokens_BW: Tensor) -> Tensor:
        at, end = self.length * self.width, (self.length + 1) * self.width
        if self.width > 1:
            self.may_BWS[:, :, at:end] = self.own_WW
            self.cache.tree = Tree(self.may_BWS[:, :, :end], self.position_S[:end])
        position_N = torch.full((tokens_BW.numel(),), self.length, device=self.device)
        layout = replace(self.base, positions_N=position_N, reach=self.length + 1, memo={})
        x_ND = self._decode(tokens_BW.flatten(), layout)
        self.length += 1
        return self.model.scores(x_ND).float().log_softmax(-1)

    def _decode(self, tokens_N: Tensor, layout: Layout) -> Tensor:
        if not self.watch:
            return self.model.decode(tokens_N, layout, self.memory, self.cache)
        name = f"decoder.blocks.{alignment_layer(self.model)}.cross.weights"
        with record(self.model, name) as seen:
            x_ND = self.model.decode(tokens_N, layout, self.memory, self.cache)
        self.attention_BWS = _side_by_side(seen[name][0], self.memory.layout.longest)
        return x_ND

    def reorder(self, parents_BW: Tensor) -> None:
        if self.width > 1:
            used_BWS = self.may_BWS[:, :, : self.length * self.width]
            index_BWS = parents_BW[:, :, None].expand_as(used_BWS)
            self.may_BWS[:, :, : self.length * self.width] = used_BWS.gather(1, index_BWS)

    def keep(self, sources: Sequence[int]) -> None:
        self.cache.select(sources)
        index = torch.tensor(sources, dtype=torch.long, device=self.device)
        self.may_BWS = self.may_BWS[index]
        old = self.memory.layout
        lengths = [old.known_lengths()[number] for number in sources]
        longest = max(lengths, default=0)
        for layer in self.cache.layers:
            if layer.memory is not None:
                k_MGK, v_MGK = layer.memory
                layer.memory = (
                    _rows_of(k_MGK, old.longest, index, longest),
                    _rows_of(v_MGK, old.longest, index, longest),
                )
        x_MD = _rows_of(self.memory.x_MD, old.longest, index, longest)
        self.memory = Memory(x_MD, Layout.in_cache(lengths, max(longest, 1), self.device))
        self.base = Layout.of([self.width] * len(sources), self.device)


class Ensemble:
    """Several models as one: the mean of their probabilities."""

    def __init__(self, members: Sequence[Steps]) -> None:
        self.members = members
        self.device = members[0].device

    def step(self, tokens_BW: Tensor) -> Tensor:
        # One after another: only two rows of scores are held, however many the models.
        total_RV = self.members[0].step(tokens_BW).clone()
        for member in self.members[1:]:
            torch.logaddexp(total_RV, member.step(tokens_BW), out=total_RV)
        return total_RV.sub_(torch.tensor(len(self.members)).log().item())

    def reorder(self, parents_BW: Tensor) -> None:
        for member in self.members:
            member.reorder(parents_BW)

    def keep(self, sources: Sequence[int]) -> None:
        for member in self.members:
            member.keep(sources)

    @property
    def attention_BWS(self) -> Tensor:
        return torch.stack([member.attention_BWS for member in self.members]).mean(0)


def alignment_layer(model: Seq2Seq) -> int:
    """The decoder layer whose cross attention says best which source word a token is about.

    It is the last but one: the last layer already looks for the next word (Garg et al. 2019).
    """
    return max(0, len(model.decoder.blocks) - 2)  # type: ignore[arg-type]


def encoded(
    model: Seq2Seq,
    sources: Sequence[Any],
    device: torch.device,
    room: int | None = None,
) -> Memory:
    """The encoder's output as a grid, a row of cells a source, so that no step has to sort it.

    What a source is, the model's front knows: tokens, a picture, a recording. A row of the grid has
    as many cells as the longest source has rows, or `room`.
    """
    given, layout = model.source_front.collate(sources, device)
    lengths = layout.known_lengths()
    room = max(lengths) if room is None else room
    x_MD = model.encode(given, layout).x_MD
    if min(lengths) < room:
        real_BS = torch.arange(room) < torch.tensor(lengths)[:, None]
        grid_CD = x_MD.new_zeros(len(lengths) * room, x_MD.shape[1])
        grid_CD[real_BS.flatten().nonzero().squeeze(1).to(device)] = x_MD
        x_MD = grid_CD
    return Memory(x_MD, Layout.in_cache(lengths, room, device))


def _rows_of(x_M: Tensor, stride: int, index: Tensor, longest: int) -> Tensor:
    return x_M.unflatten(0, (-1, stride))[index, :longest].flatten(0, 1)


def _side_by_side(weights: list[Tensor], longest: int) -> Tensor:
    """The weights (H W S) of each source, averaged over heads, in one grid."""
    means = [weights_HWS.mean(0) for weights_HWS in weights]
    padded = [torch.nn.functional.pad(mean, (0, longest - mean.shape[1])) for mean in means]
    return torch.stack(padded)
