"""Models in searches with fixed shapes: load sources, then compute hidden states of new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from headway.decode.steps import encode_sources, prefill
from headway.models.decoder import Decoder
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.cache import Cache
from headway.nn.layout import Layout, Tree
from headway.nn.positions import max_positions


@dataclass(frozen=True)
class StaticShape:
    """Sizes of all tensors in the CUDA graph of a decoding step."""

    n_sources: int
    width: int
    source_room: int
    """Positions of the longest encoded source, or tokens of the longest prompt."""

    room: int
    """Tokens of the longest output, including the end token."""


@dataclass(frozen=True)
class FirstTokens:
    """First tokens of a batch and their positions, by source."""

    tokens: list[int]
    """First token to process."""

    offsets: list[int]
    """Position of that token: the number of tokens already processed."""


class StaticModel(Protocol):
    blocks: list[Any]
    front: int
    """Number of cache entries before those of the outputs."""

    reach: int | None
    """Maximum number of positions, or None if there is no limit."""

    def load(self, sources: Sequence[Any], cache: Cache, prefix: Cache | None) -> FirstTokens:
        """Process a batch of sources or prompts and fill the cache."""

    def hidden_states(self, tokens_N: Tensor, layout: Layout, cache: Cache) -> Tensor: ...

    def per_source(self) -> list[Tensor]:
        """Tensors with one row per source, apart from the cache."""


class StaticSeq2Seq:
    """Encoder-decoder: sources are encoded, and their keys for cross-attention are cached."""

    def __init__(self, model: Seq2Seq, shape: StaticShape, bos: int, device: torch.device) -> None:
        self.model, self.shape, self.bos, self.device = model, shape, bos, device
        self.blocks = list(model.decoder.blocks)  # type: ignore[arg-type]
        self.front, self.reach = 0, max_positions(model.target_front)
        n_sources, room = shape.n_sources, shape.source_room
        self.sees_BWS = torch.zeros(n_sources, shape.width, room, dtype=torch.bool, device=device)
        tree = Tree(self.sees_BWS, torch.zeros(room, device=device))
        in_memory = Layout.in_cache([room] * n_sources, room, device, tree)
        self.memory = Memory(torch.empty(0, device=device), replace(in_memory, lengths=None))

    def load(self, sources: Sequence[Any], cache: Cache, prefix: Cache | None) -> FirstTokens:
        room, n_sources = self.shape.source_room, self.shape.n_sources
        memory = encode_sources(self.model, sources, self.device, room)
        lack = n_sources - len(sources)
        lengths = memory.layout.known_lengths()
        lengths_B = torch.tensor([*lengths, *[1] * lack], device=self.device)
        cell_S = torch.arange(room, device=self.device)
        self.sees_BWS.copy_((cell_S < lengths_B[:, None])[:, None].expand_as(self.sees_BWS))
        for layer, block in zip(cache.layers, self.blocks, strict=True):
            block.begin(memory, layer)
            if block.cross is None:
                continue
            fresh = block.cross.keys_of(memory)
            if layer.memory is None:
                k_MGK, v_MGK = (x.new_zeros(n_sources * room, *x.shape[1:]) for x in fresh)
                layer.memory = (k_MGK, v_MGK)
            for old, new in zip(layer.memory, fresh, strict=True):
                old[: len(new)] = new
        return FirstTokens([self.bos] * n_sources, [0] * n_sources)

    def hidden_states(self, tokens_N: Tensor, layout: Layout, cache: Cache) -> Tensor:
        return self.model.decode(tokens_N, layout, self.memory, cache)

    def per_source(self) -> list[Tensor]:
        return [self.sees_BWS]


class StaticDecoder:
    """Language model: the keys of a prompt come first in the cache; its last token is the first to
    be processed."""

    def __init__(self, model: Decoder, shape: StaticShape, device: torch.device) -> None:
        self.model, self.shape, self.device = model, shape, device
        self.blocks = list(model.stack.blocks)  # type: ignore[arg-type]
        self.front, self.reach = shape.source_room, max_positions(model.front)

    def load(
        self, sources: Sequence[Sequence[int]], cache: Cache, prefix: Cache | None
    ) -> FirstTokens:
        lack = self.shape.n_sources - len(sources)
        lengths = [len(source) - 1 for source in sources]
        longest = max(lengths)
        if prefix is None:
            prompts = Cache(len(self.blocks), len(sources), max(longest, 1))
        else:
            prompts = prefix.repeated(len(sources), longest)
        prefill(self.model, [source[:-1] for source in sources], prompts, self.device)
        for mine, read in zip(cache.layers, prompts.layers, strict=True):
            for name, fresh_BS in read.cells.items():
                begins = fresh_BS.shape[1] - prompts.capacity
                if name not in mine.cells:
                    size = (cache.n_rows, cache.capacity + begins, *fresh_BS.shape[2:])
                    mine.cells[name] = fresh_BS.new_zeros(size)
                mine.cells[name][: len(sources), : longest + begins] = fresh_BS[
                    :, : longest + begins
                ]
        return FirstTokens(
            [*(source[-1] for source in sources), *[0] * lack], [*lengths, *[0] * lack]
        )

    def hidden_states(self, tokens_N: Tensor, layout: Layout, cache: Cache) -> Tensor:
        return self.model(tokens_N, layout, cache)

    def per_source(self) -> list[Tensor]:
        return []


def static_model_of(
    model: Seq2Seq | Decoder, shape: StaticShape, bos: int, device: torch.device
) -> StaticModel:
    if isinstance(model, Decoder):
        return StaticDecoder(model, shape, device)
    return StaticSeq2Seq(model, shape, bos, device)
