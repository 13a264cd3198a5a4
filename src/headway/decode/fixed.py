"""Searches whose tensors keep shape and place, so that a GPU can replay a recorded step.

Nothing here asks the device for a number on the way: where a step stands, which sources are done
and which hypothesis grew from which are tensors. Unrecorded, it runs on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from headway.decode.beam import Beams, Continuations, grow
from headway.decode.best import best
from headway.decode.job import Job
from headway.decode.steps import encoded
from headway.decode.walk import Paths
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention import Memory
from headway.nn.cache import Cache
from headway.nn.layout import Layout, Tree


@dataclass(frozen=True)
class Shape:
    """The sizes of everything that a recorded step touches."""

    n_sources: int
    width: int
    source_room: int
    """Tokens of the longest source."""

    room: int
    """Tokens of the longest output, end token included."""


class FixedCache(Cache):
    """New keys go where a tensor says; what is seen of them is for the tree to say."""

    def __init__(self, n_layers: int, shape: Shape, device: torch.device) -> None:
        super().__init__(n_layers, shape.n_sources, shape.room * shape.width)
        self.at_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.new_W = torch.arange(shape.width, device=device)
        self.rows_W = self.new_W
        """Where the next keys go, among those of their source."""

        self.used = self.capacity
        """Rows that attention reads of each source: a bound, the same for all."""

        unknown = Layout.in_cache([0] * self.n_rows, self.capacity, device)
        self.keys = replace(unknown, lengths=None)

    def keys_with(self, new: Layout) -> Layout:
        return replace(self.keys, longest=self.used, tree=self.tree)

    def write(self, grid_BSGK: Tensor, fresh_NGK: Tensor, new: Layout) -> None:
        grid_BSGK.index_copy_(1, self.rows_W, fresh_NGK.unflatten(0, (self.n_rows, -1)))

    def advance(self, new: Layout) -> None:
        pass

    def hold_memory(self, number: int, fresh: tuple[Tensor, Tensor], room: int) -> None:
        """The keys and values of a layer for the first sources, `room` cells each."""
        layer = self.layers[number]
        if layer.memory is None:
            k_MGK, v_MGK = (x.new_zeros(self.n_rows * room, *x.shape[1:]) for x in fresh)
            layer.memory = (k_MGK, v_MGK)
        for old, new in zip(layer.memory, fresh, strict=True):
            old[: len(new)] = new

    def take_over(self, other: FixedCache, index_B: Tensor) -> None:
        """What another cache holds of these sources."""
        self.at_1.copy_(other.at_1)
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            assert theirs.k_BSGK is not None and theirs.v_BSGK is not None and theirs.memory  # noqa: PT018
            mine.k_BSGK = _into(mine.k_BSGK, theirs.k_BSGK[index_B])
            mine.v_BSGK = _into(mine.v_BSGK, theirs.v_BSGK[index_B])
            old = mine.memory or (None, None)
            fresh = [
                x.unflatten(0, (other.n_rows, -1))[index_B].flatten(0, 1) for x in theirs.memory
            ]
            mine.memory = (_into(old[0], fresh[0]), _into(old[1], fresh[1]))


class FixedSearch:
    """Greedy or beam search for batches that fit the shape: `begin`, then `advance` until done."""

    def __init__(self, model: Seq2Seq, shape: Shape, job: Job) -> None:
        self.model, self.shape, self.job = model, shape, job
        self.device = next(model.parameters()).device
        n_sources, width = shape.n_sources, shape.width
        self.blocks = list(model.decoder.blocks)  # type: ignore[arg-type]
        self.cache = FixedCache(len(self.blocks), shape, self.device)
        self.tokens_BW = torch.zeros(n_sources, width, dtype=torch.long, device=self.device)
        size = shape.room * width
        self.may_BWS = torch.zeros(n_sources, width, size, dtype=torch.bool, device=self.device)
        self.position_S = torch.arange(size, device=self.device) // width
        self.own_WW = torch.eye(width, dtype=torch.bool, device=self.device)
        limit_B = torch.ones(n_sources, dtype=torch.long, device=self.device)
        start = Paths.start if width == 1 else Beams.start
        self.state: Beams | Paths = start(limit_B, width, shape.room)
        self.sees_BWS = torch.zeros(
            n_sources, width, shape.source_room, dtype=torch.bool, device=self.device
        )
        memory_tree = Tree(self.sees_BWS, torch.zeros(shape.source_room, device=self.device))
        in_memory = Layout.in_cache(
            [shape.source_room] * n_sources, shape.source_room, self.device, memory_tree
        )
        self.memory = Memory(torch.empty(0, device=self.device), replace(in_memory, lengths=None))
        self.base = Layout.of([width] * n_sources, self.device)

    def begin(self, sources: Sequence[Sequence[int]], limits: Sequence[int]) -> None:
        """Take a batch: at most as many sources, as long ones and as long outputs as fit."""
        shape, lack = self.shape, self.shape.n_sources - len(sources)
        memory = encoded(self.model, sources, self.device, shape.source_room)
        lengths_B = torch.tensor([*map(len, sources), *[1] * lack], device=self.device)
        cell_S = torch.arange(shape.source_room, device=self.device)
        self.sees_BWS.copy_((cell_S < lengths_B[:, None])[:, None].expand_as(self.sees_BWS))
        for number, block in enumerate(self.blocks):
            self.cache.hold_memory(number, block.cross.keys_of(memory), shape.source_room)
        limit_B = torch.tensor([*limits, *[1] * lack], device=self.device)
        start = Paths.start if shape.width == 1 else Beams.start
        copy_state(self.state, start(limit_B, shape.width, shape.room))
        # The places that no source takes are done before they begin.
        self._done()[len(sources) :] = True
        self.may_BWS.zero_()
        self.cache.at_1.zero_()
        self.tokens_BW.fill_(self.job.specials.bos)

    def advance(self, used: int) -> None:
        """One step; `used` bounds the tokens so far, this one included."""
        state, at_1 = self.state, self.cache.at_1
        scores_RV = self._scores(used)
        self._rules(scores_RV)
        eos = self.job.specials.eos
        if isinstance(state, Paths):
            log_prob_R1, token_R1 = best(scores_RV, 1)
            self.tokens_BW.copy_(token_R1)
            copy_state(state, state.after(token_R1, log_prob_R1, at_1, eos))
        else:
            candidates = best(scores_RV, min(2 * self.shape.width, scores_RV.shape[1]))
            values, tokens = (x.unflatten(0, self.tokens_BW.shape) for x in candidates)
            found = Continuations.of(state.log_prob_BW, values, tokens, None)
            grown, parents_BW = grow(
                state, found, at_1, eos=eos, penalty=self.job.penalty,
                stop_at=self.job.settings.n_best,
            )  # fmt: skip
            self.tokens_BW.copy_(grown.tokens_BWT.index_select(2, at_1).squeeze(2))
            copy_state(state, grown)
            past_BWS = self.may_BWS[:, :, : used * self.shape.width]
            past_BWS.copy_(past_BWS.gather(1, parents_BW[:, :, None].expand_as(past_BWS)))
        at_1 += 1

    def _scores(self, used: int) -> Tensor:
        width, at_1 = self.shape.width, self.cache.at_1
        by_step_BWTW = self.may_BWS.unflatten(2, (-1, width))
        own_BW1W = self.own_WW[:, None].expand(len(by_step_BWTW), -1, -1, -1)
        by_step_BWTW.index_copy_(2, at_1, own_BW1W.contiguous())
        self.cache.used = used * width
        self.cache.rows_W = at_1 * width + self.cache.new_W
        self.cache.tree = Tree(self.may_BWS[:, :, : used * width], self.position_S[: used * width])
        position_N = at_1.expand(self.tokens_BW.numel())
        layout = replace(self.base, positions_N=position_N, reach=used, memo={})
        x_ND = self.model.decode(self.tokens_BW.flatten(), layout, self.memory, self.cache)
        return self.model.scores(x_ND).float().log_softmax(-1)

    def _rules(self, scores_RV: Tensor) -> None:
        settings, specials = self.job.settings, self.job.specials
        scores_RV[:, specials.bos] = -torch.inf
        if settings.unknown == "ban":
            scores_RV[:, specials.unk] = -torch.inf
        if settings.min_len:
            too_early_1 = self.cache.at_1 < settings.min_len
            scores_RV[:, specials.eos].masked_fill_(too_early_1, -torch.inf)

    def changing(self) -> list[Tensor]:
        """All that a step changes and that has a row for each source, but for keys and values,
        which a step only adds to."""
        state = [getattr(self.state, field.name) for field in fields(self.state)]
        return [*state, self.tokens_BW, self.may_BWS]

    def take_over(self, other: FixedSearch, places: Sequence[int]) -> None:
        """Go on with some sources of another search; only its number of sources is another."""
        lack = self.shape.n_sources - len(places)
        index_B = torch.tensor([*places, *[places[0]] * lack], device=self.device)
        for mine, theirs in zip(self.changing(), other.changing(), strict=True):
            mine.copy_(theirs[index_B])
        self.sees_BWS.copy_(other.sees_BWS[index_B])
        self._done()[len(places) :] = True
        self.cache.take_over(other.cache, index_B)

    def _done(self) -> Tensor:
        return self.state.done_BW if isinstance(self.state, Paths) else self.state.done_B


def fits(job: Job) -> bool:
    """Whether this is a search of one model that fixed shapes can do."""
    settings = job.settings
    plain = not settings.sample and settings.groups == 1 and not settings.coverage
    free = settings.repetition_penalty == 1.0 and not settings.no_repeat_ngram
    asked = any(wish.prefix or wish.required or wish.banned for wish in job.wishes)
    return plain and free and not asked


def _into(old: Tensor | None, new: Tensor) -> Tensor:
    """The new values in the old place, if there is one: a recorded step knows only places."""
    return new.clone() if old is None else old.copy_(new)


def copy_state(old: Beams | Paths, new: Beams | Paths) -> None:
    for field in fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before is not after:
            before.copy_(after)
