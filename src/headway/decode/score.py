"""Log-probabilities that models assign to given outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headway.decode.batching import batches
from headway.decode.output import TargetScore
from headway.models.seq2seq import Seq2Seq
from headway.nn.eval_mode import evaluating
from headway.nn.layout import Layout
from headway.tokens.tokenizer import Tokenizer

ROWS = 1024
"""Tokens whose logits over the vocabulary are held at a time."""


def target_scores(
    models: Sequence[Seq2Seq],
    sources: Sequence[object],
    targets: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    lengths: Sequence[int],
    room: int,
) -> list[TargetScore]:
    """Score each target given its source, in batches of similar length.

    `lengths` are those of the pairs; a batch has at most `room` tokens."""
    begin = [] if tokenizer.target_begin is None else [tokenizer.target_begin]
    found: dict[int, list[float]] = {}
    for group in batches(lengths, room):
        with evaluating(models):
            logs = token_log_probs(
                models,
                [sources[place] for place in group],
                [[*begin, *targets[place]] for place in group],
                bos=tokenizer.bos,
                eos=tokenizer.eos,
            )
        found |= dict(zip(group, logs, strict=True))
    # The begin token is the same in every output and is not scored.
    of_tokens = [found[place][len(begin) :] for place in range(len(targets))]
    return [TargetScore(sum(logs), logs) for logs in of_tokens]


@torch.no_grad()
def token_log_probs(
    models: Sequence[Seq2Seq],
    sources: Sequence[Any],
    targets: Sequence[Sequence[int]],
    *,
    bos: int,
    eos: int,
) -> list[list[float]]:
    """Log-probabilities of the tokens of each target and its end token.

    Text sources already contain their end token. An ensemble averages probabilities.
    """
    lengths = [len(target) + 1 for target in targets]
    inputs = [token for target in targets for token in (bos, *target)]
    labels_N = torch.tensor([token for target in targets for token in (*target, eos)])
    of_models = [
        _given(model, sources, torch.tensor(inputs), lengths, labels_N) for model in models
    ]
    total_N = torch.stack(of_models).double().logsumexp(0) - torch.tensor(len(models)).log()
    return [part.tolist() for part in total_N.split(lengths)]


def _given(
    model: Seq2Seq,
    sources: Sequence[Any],
    inputs_N: Tensor,
    lengths: list[int],
    labels_N: Tensor,
) -> Tensor:
    device = next(model.parameters()).device
    given, layout = model.source_front.collate(sources, device)
    x_ND = model(given, layout, inputs_N.to(device), Layout.of(lengths, device))
    found = []
    for x_RD, labels_R in zip(x_ND.split(ROWS), labels_N.to(device).split(ROWS), strict=True):
        logs_RV = model.scores(x_RD).float().log_softmax(-1)
        found.append(logs_RV.gather(1, labels_R[:, None]).squeeze(1))
    return torch.cat(found).cpu()
