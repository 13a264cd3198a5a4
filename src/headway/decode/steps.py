"""Decoding steps: the interface between search algorithms and models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from headway.errors import UserError
from headway.models.decoder import Decoder
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.cache import Cache
from headway.nn.layout import Layout, Tree
from headway.nn.tap import record

FIRST_ROOM = 32
"""Initial cache capacity in tokens per hypothesis. The capacity doubles when it is exhausted."""


class DecodingSteps(Protocol):
    """Interface between a search and a model: W hypotheses for each of B sources, all with the same
    number of tokens."""

    @property
    def device(self) -> torch.device: ...

    def step(self, tokens_BW: Tensor) -> Tensor:
        """Append a token to each hypothesis. Return the log-probabilities of its next token (B·W,
        V).

        The caller may modify the returned tensor, and the next step may overwrite it.
        """

    def reorder(self, parents_BW: Tensor) -> None:
        """Replace hypothesis w of each source by its hypothesis with index `parents_BW[:, w]`."""

    def keep(self, sources: Sequence[int]) -> None:
        """Keep only the sources with these indices, in this order."""

    @property
    def attention_BWS(self) -> Tensor:
        """Attention on each source position in the last step; an empty tensor if it is not
        recorded."""


class Seq2SeqSteps:
    """`DecodingSteps` of an encoder-decoder.

    A source is encoded once, and all its hypotheses share one cache of keys and values. A mask
    selects the keys of each hypothesis, so no cache is copied.
    """

    def __init__(
        self,
        model: Seq2Seq,
        sources: Sequence[Any],
        width: int,
        capacity: int,
        *,
        attention: bool = False,
    ) -> None:
        self.model, self.width, self.looks = model, width, attention
        self.device = next(model.parameters()).device
        self.memory = encode_sources(model, sources, self.device)
        room = min(capacity, FIRST_ROOM) * width
        self.cache = Cache(len(model.decoder.blocks), len(sources), room)  # type: ignore[arg-type]
        self.length = 0
        self.attention_BWS = torch.empty(0)
        # The keys of a source are ordered by step, and within a step by hypothesis.
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
        if not self.looks:
            return self.model.decode(tokens_N, layout, self.memory, self.cache)
        name = cross_attention_tap(self.model, alignment_layer(self.model))
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


class DecoderSteps:
    """`DecodingSteps` of a language model, whose sources are prompts of any lengths.

    The hypotheses of a prompt share its keys, and a mask selects the keys of each. With `apart`,
    each hypothesis has a copy instead, which is faster for independent outputs.
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
        """Process the prompts. `capacity`: maximum number of new tokens. `prefix`: cache of a
        prefix that all prompts share."""
        self.model = model
        self.device = next(model.parameters()).device
        self.copies, self.width = (width, 1) if apart else (1, width)
        first = min(capacity, FIRST_ROOM) * self.width
        self.last_BD: Tensor | None
        self.cache, self.last_BD = prefill_prompts(model, prompts, first, prefix)
        if self.copies > 1:
            self.cache.select([row for row in range(len(prompts)) for _ in range(width)])
        lengths = self.cache.lengths
        self.front, self.length = max(lengths), 0
        self.offsets = list(lengths)
        self.cache.level()
        # The keys of a prompt come first, then those of its hypotheses, step by step. Without a
        # `Tree` mask every query sees all keys, which is correct for one hypothesis and prompts of
        # equal length.
        self.may_BWS: Tensor | None = None
        if self.width > 1 or min(lengths) < self.front:
            self.may_BWS, self.position_B1S = self._tree(capacity)
        self.own_WW = torch.eye(self.width, dtype=torch.bool, device=self.device)
        self._lay_out()

    def _tree(self, capacity: int) -> tuple[Tensor, Tensor]:
        """Return the initial mask of keys that each hypothesis may attend to, and the position of
        every key."""
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
        """Append tokens, as `DecodingSteps.step` does. The first call ignores its tokens, because
        the prompts are already processed."""
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
        x_ND = self.model(tokens_BW.flatten(), layout, self.cache)
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
        raise AssertionError("a language model has no cross-attention")


class EnsembleSteps:
    """Decoding steps of an ensemble, which predicts the mean probability of its models."""

    def __init__(self, members: Sequence[DecodingSteps]) -> None:
        self.members = members
        self.device = members[0].device

    def step(self, tokens_BW: Tensor) -> Tensor:
        # Run the models one after another, so that only two sets of scores are in memory.
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


def prefill_prompts(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    room: int,
    prefix: Cache | None = None,
) -> tuple[Cache, Tensor]:
    """Process all prompts in one flat batch. Return a cache with room for more tokens, and the
    hidden state of each prompt's last token.

    `prefix`: cache of a prefix that all prompts share. Each prompt must have at least one more
    token.
    """
    device = next(model.parameters()).device
    known = 0 if prefix is None else prefix.lengths[0]
    assert all(len(prompt) > known for prompt in prompts), "a prompt has no token of its own"
    capacity = max(map(len, prompts)) + room
    if prefix is None:
        cache = Cache(len(model.stack.blocks), len(prompts), capacity)  # type: ignore[arg-type]
    else:
        cache = prefix.repeated(len(prompts), capacity)
    x_ND, layout = prefill(model, prompts, cache, device)
    return cache, x_ND[layout.last_N().long()]


def prefill(
    model: Decoder, texts: Sequence[Sequence[int]], cache: Cache, device: torch.device
) -> tuple[Tensor, Layout]:
    """Process the tokens that are not yet in the cache. Return their hidden states."""
    pairs = zip(texts, cache.lengths, strict=True)
    rest = [text[known:] for text, known in pairs]
    layout = cache.layout([len(tokens) for tokens in rest], device)
    tokens_N = torch.tensor([token for tokens in rest for token in tokens], dtype=torch.long)
    if not len(tokens_N):
        return torch.empty(0, device=device), layout
    return model(tokens_N.to(device), layout, cache), layout


def alignment_layer(model: Seq2Seq) -> int:
    """Return the index of the decoder layer whose cross-attention gives the best word alignments.

    It is the penultimate layer, because the last layer already attends to the next word (Garg et
    al. 2019).
    """
    return max(0, len(model.decoder.blocks) - 2)  # type: ignore[arg-type]


def cross_attention_tap(model: Seq2Seq, layer: int) -> str:
    """Return the name under which the cross-attention of a decoder layer is recorded."""
    if model.decoder.blocks[layer].cross is None:  # type: ignore[index]
        raise UserError(
            "this model has no cross-attention (model.source_attention), so alignments, coverage, "
            "copied words and word times are not available. Train a model with "
            "model.source_attention=dot or model.source_attention=additive."
        )
    return f"decoder.blocks.{layer}.cross.weights"


def encode_sources(
    model: Seq2Seq,
    sources: Sequence[Any],
    device: torch.device,
    room: int | None = None,
) -> Memory:
    """Encode sources into a padded batch (source × position).

    A source is what the model's input layers accept: tokens, an image or audio. All sources are
    padded to the length of the longest one, or to `room`.
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
    """Combine the attention weights of each source (H W S), averaged over heads, into one padded
    tensor."""
    means = [weights_HWS.mean(0) for weights_HWS in weights]
    padded = [torch.nn.functional.pad(mean, (0, longest - mean.shape[1])) for mean in means]
    return torch.stack(padded)
