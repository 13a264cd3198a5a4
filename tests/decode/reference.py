"""Searches written down slowly from their definitions, to hold the quick ones to."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout
from tests.models.variants import tiny

BOS, EOS, UNK = 1, 2, 0

Next = Callable[[tuple[int, ...]], Tensor]
"""The tokens so far to the log-probabilities of the next."""


DEFAULT: dict[str, Any] = {"tie": False, "head_bias": True}


def small_model(vocab_size: int = 9, variant: str = "as-published", **more: Any) -> Seq2Seq:
    """Random, with scores that differ enough for searches to disagree, and ends that come up."""
    model = tiny("seq2seq", variant, **DEFAULT | {"vocab_size": vocab_size} | more)
    assert isinstance(model, Seq2Seq)
    with torch.no_grad():
        for block in model.decoder.blocks:
            read = block.mixer.first.to_state if block.cross is None else block.cross.to_out
            read.weight.mul_(3.0)  # what is written depends on what is read
        model.head.linear.weight.mul_(1.5)
        model.head.linear.bias[EOS] += 2.0
    return model


def next_given(models: Sequence[Seq2Seq], source: Any, banned: Sequence[int] = (BOS, UNK)) -> Next:
    """The mean of the models' probabilities, each computed in one pass over all tokens."""

    @cache
    @torch.no_grad()
    def log_probs(tokens: tuple[int, ...]) -> Tensor:
        found = []
        for model in models:
            device = next(model.parameters()).device
            target = torch.tensor([BOS, *tokens], device=device)
            given, layout = model.source_front.collate([source], device)
            x_ND = model(given, layout, target, Layout.of([len(target)], device))
            found.append(model.scores(x_ND)[-1].double().log_softmax(-1).cpu())
        mean_V = torch.stack(found).logsumexp(0) - math.log(len(found))
        mean_V[list(banned)] = -torch.inf
        return mean_V

    return log_probs


@dataclass(frozen=True)
class Found:
    tokens: tuple[int, ...]
    """With the end token, if it came."""

    log_prob: float
    score: float


def gnmt(n: int, alpha: float = 0.6) -> float:
    return ((5 + n) / 6) ** alpha


def greedy(log_probs: Next, limit: int) -> Found:
    tokens: tuple[int, ...] = ()
    total = 0.0
    while len(tokens) < limit and tokens[-1:] != (EOS,):
        logs_V = log_probs(tokens)
        best = int(logs_V.argmax())
        tokens, total = (*tokens, best), total + float(logs_V[best])
    return Found(tokens, total, total / gnmt(len(tokens)))


Bonus = Callable[[tuple[int, ...]], float]
"""What is added to the score of finished tokens."""


def beam(
    log_probs: Next,
    width: int,
    limit: int,
    n_best: int = 1,
    bonus: Bonus = lambda tokens: 0.0,
) -> list[Found]:
    """Finished ones from the best down, then alive ones."""
    alive: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    ended: list[Found] = []
    for n in range(1, limit + 1):
        grown = [
            ((*tokens, token), total + value)
            for tokens, total in alive
            for token, value in enumerate(log_probs(tokens).tolist())
            if value > -math.inf
        ]
        grown = sorted(grown, key=lambda pair: -pair[1])[: 2 * width]
        ended += [Found(t, p, p / gnmt(n) + bonus(t)) for t, p in grown if t[-1] == EOS]
        ended = sorted(ended, key=lambda found: -found.score)[:width]
        alive = [(t, p) for t, p in grown if t[-1] != EOS][:width]
        if not alive:
            break
        if len(ended) >= n_best and ended[n_best - 1].score > alive[0][1] / gnmt(limit):
            break
    rest = [Found(t, p, p / gnmt(len(t))) for t, p in alive]
    return (ended + rest)[:n_best]


def everything(log_probs: Next, vocab_size: int, limit: int) -> list[Found]:
    """All finished outputs up to the limit, from the best down."""
    found = []
    words = [token for token in range(vocab_size) if token not in (BOS, EOS, UNK)]
    for n in range(limit):
        for tokens in itertools.product(words, repeat=n):
            steps = [log_probs(tokens[:at])[token] for at, token in enumerate((*tokens, EOS))]
            total = float(sum(steps))
            found.append(Found((*tokens, EOS), total, total / gnmt(n + 1)))
    return sorted(found, key=lambda one: -one.score)


def diverse(log_probs: Next, width: int, groups: int, price: float, limit: int) -> list[Found]:
    """All finished outputs of all groups, each group a beam; from the best down."""
    k = width // groups
    alive: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)] for _ in range(groups)]
    ended: list[list[Found]] = [[] for _ in range(groups)]
    done = [False] * groups
    for n in range(1, limit + 1):
        paid: dict[int, float] = {}
        for g in range(groups):
            if done[g]:
                continue
            grown = [
                ((*tokens, token), total + value)
                for tokens, total in alive[g]
                for token, value in enumerate(log_probs(tokens).tolist())
                if value > -math.inf
            ]
            grown.sort(key=lambda pair: paid.get(pair[0][-1], 0.0) - pair[1])
            grown = grown[: 2 * k]
            ended[g] += [Found(t, p, p / gnmt(n)) for t, p in grown if t[-1] == EOS]
            ended[g] = sorted(ended[g], key=lambda found: -found.score)[:k]
            alive[g] = [(t, p) for t, p in grown if t[-1] != EOS][:k]
            for tokens, _ in alive[g]:
                paid[tokens[-1]] = paid.get(tokens[-1], 0.0) + price
            best = alive[g][0][1] / gnmt(limit)
            done[g] = len(ended[g]) >= k and ended[g][k - 1].score > best
        if all(done):
            break
    everything = sorted((f for group in ended for f in group), key=lambda found: -found.score)
    return list({found.tokens: found for found in reversed(everything)}.values())[::-1]
