"""Ground truth of language models: tokens copied from an earlier place in the same text."""

from __future__ import annotations

import random

import torch

from headway.errors import UserError
from headway.inside.capture.forward import run_reading
from headway.inside.capture.streams import Reading, TokenStream, TracedOutput
from headway.inside.measure.truth.case import Case, GroundTruthLink
from headway.tasks.loaded_run import LoadedRun

TEXTS, HALF = 200, 32
"""Number of texts, and of the tokens that are repeated in each."""


@torch.no_grad()
def repeat_cases(run: LoadedRun, n: int = TEXTS, length: int = HALF, seed: int = 1) -> list[Case]:
    """Make cases of random tokens that are repeated once.

    A model that predicts the second half correctly has copied it from the place after the earlier
    occurrence. Only correct predictions count. No token occurs twice in the first half, so that
    this place is unique.
    """
    if not run.spec.continues:
        raise UserError(
            "repeated tokens can only be measured for language models (task complete), not for the "
            f"task {run.settings.task}."
        )
    tokenizer = run.vocab.source
    ordinary = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.specials]
    if len(ordinary) < length:
        raise UserError(
            f"the vocabulary has {len(ordinary)} tokens besides special tokens, but sequences of "
            f"{length} different tokens are needed."
        )
    picks, cases = random.Random(seed), []
    for _ in range(n):
        half = picks.sample(ordinary, length)
        ids = [tokenizer.bos, *half, *half]
        names = tokenizer.tokens(ids)
        reading = Reading(
            text=tokenizer.decode(half),
            task=run.settings.task,
            streams={"text": TokenStream.of("text", ids, tokenizer)},
            outputs=tuple(TracedOutput(n - 1, ids[n], names[n]) for n in range(1, len(ids))),
            n_given=len(ids),
        )
        best_R = run_reading(run, reading).scores_RC.argmax(-1)
        copying = [row for row in range(length + 1, 2 * length) if best_R[row] == ids[row + 1]]
        links = tuple(_link(row, length) for row in copying)
        if links:
            columns = tuple((place,) for place in range(len(ids)))
            cases.append(Case(reading, "text", columns, links, "tokens"))
    return cases


def _link(row: int, length: int) -> GroundTruthLink:
    """Link of row `row`, which predicts token row + 1: that token occurred `length` places
    before."""
    right = frozenset({row + 1 - length})
    return GroundTruthLink((row,), right, right, tuple(range(row + 1)))
