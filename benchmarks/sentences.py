"""Work like real translation: sentence-like lengths, flat for us, padded and sorted for peers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.nn.layout import Layout, loss_weights

LONGEST = 100
CORPUS = 100
"""How many times the sentences that are used a corpus has."""


def pair_lengths(
    n_pairs: int, seed: int = 0, mean: float = 26, deviation: float = 14
) -> list[tuple[int, int]]:
    """Source and target lengths, mean 26 and deviation 14, at most 100, alike within a pair."""
    random = torch.Generator().manual_seed(seed)
    source = torch.randn(n_pairs, generator=random) * deviation + mean
    target = source * (1 + 0.15 * torch.randn(n_pairs, generator=random))
    clipped = [x.round().clamp(1, LONGEST).int().tolist() for x in (source, target)]
    return list(zip(*clipped, strict=True))


def batches(pairs: list[tuple[int, int]], n_tokens: int) -> list[list[tuple[int, int]]]:
    """Cut into batches of at most `n_tokens` on either side."""
    cut: list[list[tuple[int, int]]] = [[]]
    sums = [0, 0]
    for pair in pairs:
        if sums[0] + pair[0] > n_tokens or sums[1] + pair[1] > n_tokens:
            cut.append([])
            sums = [0, 0]
        cut[-1].append(pair)
        sums = [sums[0] + pair[0], sums[1] + pair[1]]
    return cut[:-1]


def padded_batches(pairs: list[tuple[int, int]], n_tokens: int) -> list[list[tuple[int, int]]]:
    """Sorted by length, at most `n_tokens` cells of a padded grid on either side."""
    cut: list[list[tuple[int, int]]] = [[]]
    for pair in sorted(pairs, key=lambda pair: (pair[1], pair[0])):
        longer = [*cut[-1], pair]
        cells = len(longer) * max(max(source, target) for source, target in longer)
        if cells > n_tokens:
            cut.append([])
        cut[-1].append(pair)
    return cut


def spread_batches(n_batches: int, n_tokens: int) -> list[list[tuple[int, int]]]:
    """Padded batches of all lengths, as a corpus in order of length gives them: hardly padded.

    A few batches' worth of sentences, sorted, would leave more padding in each than a corpus does.
    """
    corpus = padded_batches(pair_lengths(n_batches * n_tokens * CORPUS // 26), n_tokens)
    return [corpus[(2 * i + 1) * len(corpus) // (2 * n_batches)] for i in range(n_batches)]


def dealt(pairs: list[tuple[int, int]], n_batches: int) -> list[list[tuple[int, int]]]:
    """In random order, cut into so many batches of about as many tokens."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    size = sum(map(sum, pairs)) / n_batches
    cut: list[list[tuple[int, int]]] = [[] for _ in range(n_batches)]
    before = 0
    for i in order:
        cut[min(int(before / size), n_batches - 1)].append(pairs[i])
        before += sum(pairs[i])
    return cut


@dataclass(frozen=True)
class FlatBatch:
    source_M: Tensor
    source: Layout
    target_N: Tensor
    target: Layout
    labels_N: Tensor
    weights_N: Tensor
    n_targets: Tensor
    """How many, as a tensor: a recorded step can only read tensors."""


def flat_batch(
    pairs: list[tuple[int, int]],
    vocab_size: int,
    device: torch.device,
    n_tokens: int | None,
    longest: int = LONGEST,
) -> FlatBatch:
    """In the fixed-size form for `n_tokens`, or just as long as the sentences without it."""
    pairs = sorted(pairs, key=max)  # within a batch order is free; this one spreads work evenly
    lengths = [list(side) for side in zip(*pairs, strict=True)]
    layouts = []
    for side in lengths:
        if n_tokens is None:
            layouts.append(Layout.of(side, device))
        else:
            slots = n_tokens // 16
            layouts.append(
                Layout.fixed(
                    side, n_rows=n_tokens, n_sequences=slots, longest=longest, device=device
                )
            )
    source, target = layouts
    draw = torch.Generator().manual_seed(len(pairs))
    numbers = [
        torch.randint(vocab_size, (n,), generator=draw).to(device)
        for n in (source.n_rows, target.n_rows, target.n_rows)
    ]
    return FlatBatch(
        numbers[0], source, numbers[1], target, numbers[2],
        loss_weights(lengths[1], target.n_rows, device),
        torch.tensor(float(sum(lengths[1])), device=device),
    )  # fmt: skip


@dataclass(frozen=True)
class PaddedBatch:
    source_BS: Tensor
    target_BT: Tensor
    labels_BT: Tensor
    """-100 where padded."""

    source_real_BS: Tensor
    target_real_BT: Tensor


def padded_batch(
    pairs: list[tuple[int, int]], vocab_size: int, device: torch.device
) -> PaddedBatch:
    draw = torch.Generator().manual_seed(len(pairs))
    lengths = [torch.tensor(side) for side in zip(*pairs, strict=True)]
    reals = [torch.arange(int(side.max())) < side[:, None] for side in lengths]
    source, target = (torch.randint(1, vocab_size, real.shape, generator=draw) for real in reals)
    labels = torch.randint(1, vocab_size, reals[1].shape, generator=draw)
    tensors = (
        source * reals[0], target * reals[1], labels.where(reals[1], -100), reals[0], reals[1],
    )  # fmt: skip
    return PaddedBatch(*(x.to(device) for x in tensors))
