"""Answers written one token at a time, with all that came before read anew every time."""

from __future__ import annotations

from dataclasses import replace

import torch

from headway.decode.search.hypothesis import Hypothesis
from headway.inside.capture.forward import read_out, scores_in, vectors
from headway.inside.capture.interventions import Change, gated
from headway.inside.capture.media import Media
from headway.inside.capture.streams import Output, Reading, Stream
from headway.settings.decode import DecodeSettings
from headway.tasks.opened import Opened
from headway.tasks.targets import target_of


@torch.no_grad()
def scores_of(run: Opened, reading: Reading, change: Change) -> torch.Tensor:
    with gated(run.model, change):
        x_ND, layout = vectors(run.model, reading, [change])
        return scores_in(run, read_out(run, reading, x_ND, layout)).clone()


def number_read(run: Opened, reading: Reading, change: Change) -> Reading:
    """With the number that the model answers; what it hangs on is seen as of a vector of one."""
    score_1C = scores_of(run, reading, change)[:1]
    value = float(target_of(run.settings, ()).shares(score_1C)[0, 0])
    return replace(reading, outputs=(Output(None, 0, f"{value:.6g}"),), direction=(1.0,))


def greedily(
    run: Opened,
    first: Stream,
    start: list[int],
    change: Change,
    decode: DecodeSettings,
    media: Media | None = None,
) -> Hypothesis:
    """The likeliest token again and again, with all that came before read anew every time: no
    cache knows of hidden tokens."""
    tokenizer = run.vocab.target
    is_pair = first.name == "source"
    limit = decode.max_len or len(first) + decode.extra_len
    tokens: list[int] = []
    never = sorted(tokenizer.specials - {tokenizer.eos})
    while len(tokens) < limit:
        ids = [*start, *tokens]
        name = "target" if is_pair else "text"
        streams = {name: Stream.of(name, ids, tokenizer)}
        reading = Reading(
            text="",
            task="translate" if is_pair else "complete",
            streams={"source": first, **streams} if is_pair else streams,
            outputs=(Output(len(ids) - 1, -1, ""),),
            media=media,
        )
        scores_V = scores_of(run, reading, change)[0]
        scores_V[never] = -torch.inf
        best = int(scores_V.argmax())
        if best == tokenizer.eos:
            return Hypothesis(_written(start, tokens, is_pair), 0.0, 0.0, [], finished=True)
        tokens.append(best)
    return Hypothesis(_written(start, tokens, is_pair), 0.0, 0.0, [], finished=False)


def _written(start: list[int], tokens: list[int], is_pair: bool) -> list[int]:
    """A translation has what it begins with, but for the first token; a continuation has not."""
    return [*start[1:], *tokens] if is_pair else tokens
