"""Padded batches through recorded graphs, whoever runs them: arrays by name in, by name out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.config.model import Seq2SeqSettings
from headway.interop.int8_proof import judged_as_int8
from headway.interop.plain.graphs import (
    ALONE,
    IDS,
    LOGITS,
    MASK,
    PLACES,
    READER,
    SEGMENTS,
    SENTENCE,
    SOURCE_MASK,
    STATES,
    WRITER,
)
from headway.interop.proof import Proof, Reading, compared, our_logits, proof_ids
from headway.interop.run import LoadedRun

Array = NDArray[Any]
Call = Callable[[Mapping[str, Array]], dict[str, Array]]
"""A graph: all its inputs to all its outputs."""


BATCHES = (1, 3, 5, 7)
"""Texts of the batches of a proof; no graph was recorded with any of these."""

STEPS = 5
"""Tokens at the end of a proof's texts that are read one by one."""


def padded(texts: Sequence[Sequence[int]], *, left: bool = False) -> tuple[Array, Array]:
    """Tokens in a grid, 0 where there are none, and a mask of the real ones."""
    longest = max(map(len, texts))
    ids_BT = np.zeros((len(texts), longest), np.int64)
    real_BT = np.zeros((len(texts), longest), np.int64)
    for row, text in enumerate(texts):
        place = slice(longest - len(text), None) if left else slice(len(text))
        ids_BT[row, place], real_BT[row, place] = text, 1
    return ids_BT, real_BT


class Growing:
    """Texts that grow: what a step graph is given, and gives back for the next step."""

    def __init__(
        self,
        call: Call,
        heads: Mapping[str, tuple[int, int]],
        n_texts: int,
        given: Mapping[str, Array] | None = None,
    ) -> None:
        """`heads`: how many and how wide, by the names of the past; `given`: the other inputs."""
        self.call, self.given = call, dict(given or {})
        self.real_BS = np.zeros((n_texts, 0), np.int64)
        self.past = {
            name: np.zeros((n_texts, count, 0, width), np.float32)
            for name, (count, width) in heads.items()
        }

    def read(self, ids_BT: Array, real_BT: Array | None = None) -> dict[str, Array]:
        """More tokens of each; all outputs but the past."""
        real_BT = np.ones_like(ids_BT) if real_BT is None else real_BT
        self.real_BS = np.concatenate([self.real_BS, real_BT], 1)
        positions_BT = self.real_BS.cumsum(1)[:, -ids_BT.shape[1] :] - 1
        found = self.call(
            {
                IDS: ids_BT,
                MASK: self.real_BS,
                PLACES: positions_BT.clip(0),
                **self.past,
                **self.given,
            }
        )
        self.past = {name: found.pop(name.replace("past", "present", 1)) for name in self.past}
        return found

    def pick(self, rows: Array, *, same_given: bool = False) -> None:
        """Text i becomes what text `rows[i]` was. `same_given`: both were given the same."""
        self.real_BS = self.real_BS[rows]
        self.past = {name: x.take(rows, 0) for name, x in self.past.items()}
        if not same_given:
            self.given = {name: x.take(rows, 0) for name, x in self.given.items()}


def sources_of(reader: Call, texts: Sequence[Sequence[int]]) -> dict[str, Array]:
    """What a translator's step graph is given of its sources."""
    ids_BS, real_BS = padded(texts)
    found = reader({IDS: ids_BS, MASK: real_BS})
    found.pop(STATES)
    return {SOURCE_MASK: real_BS, **found}


def prove_padded(
    to: str,
    run: LoadedRun,
    sentences: Sequence[str],
    calls: Mapping[str, Call],
    *,
    by: str,
    int8: bool = False,
) -> Proof:
    """Sentences in batches of odd sizes, padded; those that grow also a token at a time."""
    readings = our_logits(run, proof_ids(run, sentences))
    theirs = [scores for some in _batches(readings) for scores in said(run, calls, some)]
    what = "vectors" if run.settings.task == "embed" else "logits"
    sizes = ", ".join(map(str, BATCHES))
    notes = [f"padded batches of {sizes} texts; none was recorded in such a size"]
    proof = compared(to, readings, theirs, what=what, by=by, notes=notes)
    return judged_as_int8(proof, readings, theirs) if int8 else proof


def _batches(readings: Sequence[Reading]) -> Iterator[Sequence[Reading]]:
    first = 0
    for size in cycle(BATCHES):
        if first >= len(readings):
            return
        yield readings[first : first + size]
        first += size


def said(run: LoadedRun, calls: Mapping[str, Call], readings: Sequence[Reading]) -> list[Array]:
    """The scores of each, as `Reading.scores`."""
    texts = [reading.tokens for reading in readings]
    shape, task = run.shape, run.settings.task
    kind = "decoder" if isinstance(shape, Seq2SeqSettings) else "self"
    heads = {
        f"past.{layer}.{part}": (shape.heads_in(kind, layer)[1], shape.head_width)
        for layer in range(shape.attention_layers[kind])
        for part in ("key", "value")
    }
    if isinstance(shape, Seq2SeqSettings):
        given = sources_of(calls[READER], texts)
        texts = [reading.target for reading in readings]
        return _grown(Growing(calls[WRITER], heads, len(texts), given), texts)
    if task == "complete":
        return _grown(Growing(calls[ALONE], heads, len(texts)), texts)
    ids_BT, real_BT = padded(texts)
    inputs = {IDS: ids_BT, MASK: real_BT}
    if getattr(shape, "n_segments", 0):
        inputs[SEGMENTS] = padded([reading.segments for reading in readings])[0]
    found = calls[ALONE](inputs)
    if task in ("embed", "classify"):
        return list(found[SENTENCE if task == "embed" else LOGITS][:, None])
    return _real(found[LOGITS], real_BT)


def _grown(growing: Growing, texts: Sequence[Sequence[int]]) -> list[Array]:
    """All but the last tokens at once, those one by one."""
    ids_BT, real_BT = padded(texts, left=True)
    at_once = max(1, ids_BT.shape[1] - STEPS)
    scores = [growing.read(ids_BT[:, :at_once], real_BT[:, :at_once])[LOGITS]]
    for place in range(at_once, ids_BT.shape[1]):
        now = slice(place, place + 1)
        scores.append(growing.read(ids_BT[:, now], real_BT[:, now])[LOGITS])
    return _real(np.concatenate(scores, 1), real_BT)


def _real(scores_BTV: Array, real_BT: Array) -> list[Array]:
    return [scores_TV[real_T > 0] for scores_TV, real_T in zip(scores_BTV, real_BT, strict=True)]
