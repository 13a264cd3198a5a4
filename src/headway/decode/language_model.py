"""Decoder-only models as steps: prompts are read in one pass, then a token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headway.decode.search.lean import lean_step
from headway.decode.steps import FIRST_ROOM
from headway.models.decoder import Decoder
from headway.nn.cache import Cache
from headway.nn.layout import Layout, Tree


def read(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    room: int,
    prefix: Cache | None = None,
) -> tuple[Cache, Tensor]:
    """All prompts in one flat pass: their keys, with room for more, and each one's last vector.

    `prefix` holds the tokens that all prompts begin with and that were read before; each has at
    least one more.
    """
    device = next(model.parameters()).device
    known = 0 if prefix is None else prefix.lengths[0]
    assert all(len(prompt) > known for prompt in prompts), "a prompt has no token of its own"
    capacity = max(map(len, prompts)) + room
    if prefix is None:
        cache = Cache(len(model.stack.blocks), len(prompts), capacity)  # type: ignore[arg-type]
    else:
        cache = prefix.repeated(len(prompts), capacity)
    x_ND, layout = fill(model, prompts, cache, device)
    return cache, x_ND[layout.last_N().long()]


def fill(
    model: Decoder, texts: Sequence[Sequence[int]], cache: Cache, device: torch.device
) -> tuple[Tensor, Layout]:
    """Read what the cache does not hold of each text yet; the vectors of that."""
    pairs = zip(texts, cache.lengths, strict=True)
    rest = [text[known:] for text, known in pairs]
    layout = cache.layout([len(tokens) for tokens in rest], device)
    tokens_N = torch.tensor([token for tokens in rest for token in tokens], dtype=torch.long)
    if not len(tokens_N):
        return torch.empty(0, device=device), layout
    return model(tokens_N.to(device), layout, cache), layout


class DecoderSteps:
    """`Steps` of a language model; the sources are prompts of any lengths.

    The hypotheses of a prompt share its keys, as those of a beam do: each is a query with a past
    of its own. With `apart` each has a copy instead, which is quicker where many go their own way.
    """

    def __init__(
        self,
        model: Decoder,
        prompts: Sequence[Sequence[int]],
        width: int,
        capacity: int,
        prefix: Cache | None = None,
        *,
        apart: bool = False,
    ) -> None:
        """`capacity`: the most new tokens of an output. `prefix`: as in `read`."""
        self.model = model
        self.device = next(model.parameters()).device
        self.copies, self.width = (width, 1) if apart else (1, width)
        first = min(capacity, FIRST_ROOM) * self.width
        self.last_BD: Tensor | None
        self.cache, self.last_BD = read(model, prompts, first, prefix)
        if self.copies > 1:
            self.cache.select([row for row in range(len(prompts)) for _ in range(width)])
        lengths = self.cache.lengths
        self.front, self.length = max(lengths), 0
        self.offsets = list(lengths)
        self.cache.level()
        # The keys of a prompt stand in front, then step by step those of its hypotheses side by
        # side. Without a tree every query sees all: right where there is one of it, and no gap.
        self.may_BWS: Tensor | None = None
        if self.width > 1 or min(lengths) < self.front:
            self.may_BWS, self.position_B1S = self._tree(capacity)
        self.own_WW = torch.eye(self.width, dtype=torch.bool, device=self.device)
        self.lean = lean_step(model) if self.may_BWS is None else None
        self._lay_out()

    def _tree(self, capacity: int) -> tuple[Tensor, Tensor]:
        """What each hypothesis sees before it has tokens, and the position of every key."""
        size = self.front + capacity * self.width
        offset_B1 = torch.tensor(self.offsets, device=self.device)[:, None]
        cell_S = torch.arange(size, device=self.device)
        may_BS = cell_S < offset_B1
        may_BWS = may_BS[:, None].repeat(1, self.width, 1)
        step_S = (cell_S - self.front).div(self.width, rounding_mode="floor")
        position_BS = torch.where(cell_S < self.front, cell_S, offset_B1 + step_S)
        return may_BWS, position_BS[:, None]

    def _lay_out(self) -> None:
        self.base = Layout.of([self.width] * len(self.offsets), self.device)
        offset_B = torch.tensor(self.offsets, device=self.device)
        self.offset_N = offset_B.repeat_interleave(self.width)
        self.reach = max(self.offsets, default=0)

    def step(self, tokens_BW: Tensor) -> Tensor:
        """The tokens of the first step are the prompts' own, which were read already."""
        if self.last_BD is not None:
            scores_BV = self.model.scores(self.last_BD).float().log_softmax(-1)
            self.last_BD = None
            width = tokens_BW.shape[1]
            return scores_BV if width == 1 else scores_BV.repeat_interleave(width, 0)
        at = self.front + self.length * self.width
        end = at + self.width
        if self.may_BWS is not None:
            self.may_BWS[:, :, at:end] = self.own_WW
            self.cache.tree = Tree(self.may_BWS[:, :, :end], self.position_B1S[:, :, :end])
        layout = replace(
            self.base,
            positions_N=self.offset_N + self.length,
            reach=self.reach + self.length + 1,
            memo={},
        )
        compute = self.model if self.lean is None else self.lean
        x_ND = compute(tokens_BW.flatten(), layout, self.cache)
        self.length += 1
        return self.model.scores(x_ND).float().log_softmax(-1)

    def reorder(self, parents_BW: Tensor) -> None:
        if self.width > 1 and self.may_BWS is not None:
            used_BWS = self.may_BWS[:, :, : self.front + self.length * self.width]
            used_BWS.copy_(used_BWS.gather(1, parents_BW[:, :, None].expand_as(used_BWS)))

    def keep(self, sources: Sequence[int]) -> None:
        rows = [n * self.copies + copy for n in sources for copy in range(self.copies)]
        self.cache.select(rows)
        self.offsets = [self.offsets[row] for row in rows]
        if self.may_BWS is not None:
            index = torch.tensor(rows, dtype=torch.long, device=self.device)
            self.may_BWS, self.position_B1S = self.may_BWS[index], self.position_B1S[index]
        if self.last_BD is not None:
            self.last_BD = self.last_BD[torch.tensor(list(sources), device=self.device)]
        self._lay_out()

    @property
    def attention_BWS(self) -> Tensor:
        raise AssertionError("a language model attends to no source")
