"""Run exported graphs on padded batches, in any runtime. Inputs and outputs are named arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headway.interop.graphs.graph_inputs import (
    HIDDEN_ROWS,
    IDS,
    LENGTHS,
    MASK,
    PIXELS,
    SEGMENTS,
    WAVEFORM,
)
from headway.interop.graphs.graphs import (
    CTC,
    DECODER,
    EMBEDDING,
    ENCODER,
    LOGITS,
    MODEL,
    POSITION_IDS,
    REBUILT,
    SENTENCE,
    SOURCE_MASK,
    STATES,
)
from headway.interop.int8_proof import judged_as_int8
from headway.interop.proof import Proof, compared
from headway.interop.proof_inputs import (
    ProofCase,
    compute_cases,
    output_name,
    proof_items,
    unit_names,
)
from headway.models.parts.audio import FULL_SCALE
from headway.settings.model import Seq2SeqSettings
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.readout import readout_of
from headway.tasks.text_items import TextItem

One = TypeVar("One")
GraphArray = NDArray[Any]
GraphCall = Callable[[Mapping[str, GraphArray]], dict[str, GraphArray]]
"""Function that runs a graph. It maps all named inputs to all named outputs."""


BATCH_SIZES = (1, 3, 5, 7)
"""Batch sizes that a proof uses in turn. They differ from the sizes of the example inputs, with
which graphs are exported."""

STEPS = 5
"""Number of tokens at the end of each text that a proof reads one at a time, which tests the
cache."""


def padded(texts: Sequence[Sequence[int]], *, left: bool = False) -> tuple[GraphArray, GraphArray]:
    """Return token ids padded with 0 to equal lengths, and their attention mask."""
    longest = max(map(len, texts))
    ids_BT = np.zeros((len(texts), longest), np.int64)
    real_BT = np.zeros((len(texts), longest), np.int64)
    for row, text in enumerate(texts):
        place = slice(longest - len(text), None) if left else slice(len(text))
        ids_BT[row, place], real_BT[row, place] = text, 1
    return ids_BT, real_BT


class CachedGraph:
    """Decodes step by step with a graph, and keeps its cache of keys and values between steps."""

    def __init__(
        self,
        call: GraphCall,
        heads: Mapping[str, tuple[int, int]],
        n_texts: int,
        constant_inputs: Mapping[str, GraphArray] | None = None,
    ) -> None:
        """Begin with an empty cache.

        Args:
            call: Runs the graph.
            heads: Number and width of the attention heads, by the names of the cache inputs.
            n_texts: Batch size.
            constant_inputs: Inputs that are the same in every step.
        """
        self.call, self.constant_inputs = call, dict(constant_inputs or {})
        self.real_BS = np.zeros((n_texts, 0), np.int64)
        self.past = {
            name: np.zeros((n_texts, count, 0, width), np.float32)
            for name, (count, width) in heads.items()
        }

    def feed(self, ids_BT: GraphArray, real_BT: GraphArray | None = None) -> dict[str, GraphArray]:
        """Read further tokens of each text. Return all outputs of the graph except the cache.

        `real_BT`: attention mask of these tokens; None if there is no padding.
        """
        real_BT = np.ones_like(ids_BT) if real_BT is None else real_BT
        self.real_BS = np.concatenate([self.real_BS, real_BT], 1)
        positions_BT = self.real_BS.cumsum(1)[:, -ids_BT.shape[1] :] - 1
        found = self.call(
            {
                IDS: ids_BT,
                MASK: self.real_BS,
                POSITION_IDS: positions_BT.clip(0),
                **self.past,
                **self.constant_inputs,
            }
        )
        self.past = {name: found.pop(name.replace("past", "present", 1)) for name in self.past}
        return found

    def select(self, rows: GraphArray, *, same_given: bool = False) -> None:
        """Reorder the cache, so that text i continues the former text `rows[i]`.

        `same_given`: whether text i and the former text `rows[i]` have equal constant inputs, which
        then need no reordering.
        """
        self.real_BS = self.real_BS[rows]
        self.past = {name: x.take(rows, 0) for name, x in self.past.items()}
        if not same_given:
            self.constant_inputs = {
                name: x.take(rows, 0) for name, x in self.constant_inputs.items()
            }


def text_inputs(
    texts: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None
) -> dict[str, GraphArray]:
    """Return the inputs of a text graph.

    `segments`: for each token, 1 in the second text of a pair, otherwise 0; None without pairs.
    """
    ids_BT, real_BT = padded(texts)
    second_BT = np.zeros_like(ids_BT) if segments is None else padded(segments)[0]
    return {IDS: ids_BT, MASK: real_BT, SEGMENTS: second_BT}


def media_inputs(
    items: Sequence[GraphArray], hidden: Sequence[GraphArray] = ()
) -> dict[str, GraphArray]:
    """Return the inputs of a media graph.

    Args:
        items: Images (T C Y X) of equal size, or audio as 16-bit or float samples.
        hidden: Mask of the masked positions of each item, for graphs with such an input.
    """
    if items[0].ndim == 4:
        pixels = np.stack(items)
        inputs = {PIXELS: pixels[:, 0] if pixels.shape[1] == 1 else pixels}
    else:
        lengths_B = np.array([len(item) for item in items], np.int64)
        waves_BS = np.zeros((len(items), max(1, int(lengths_B.max()))), np.float32)
        for wave_S, item in zip(waves_BS, items, strict=True):
            full_scale = FULL_SCALE if item.dtype == np.int16 else 1.0
            wave_S[: len(item)] = item.astype(np.float32) / full_scale
        inputs = {WAVEFORM: waves_BS, LENGTHS: lengths_B}
    if hidden:
        longest = max(map(len, hidden))
        rows = [np.pad(hidden_R, (0, longest - len(hidden_R))) for hidden_R in hidden]
        inputs[HIDDEN_ROWS] = np.stack(rows)
    return inputs


def source_inputs(reader: GraphCall, inputs: Mapping[str, GraphArray]) -> dict[str, GraphArray]:
    """Run the source graph. Return the outputs that are inputs of the target graph, and `CTC` if
    present."""
    found = reader(inputs)
    found.pop(STATES)
    return {SOURCE_MASK: inputs[MASK], **found} if MASK in inputs else found


def prove_padded(
    to: str,
    run: LoadedRun,
    sentences: Sequence[str],
    calls: Mapping[str, GraphCall],
    *,
    by: str,
    int8: bool = False,
) -> Proof:
    """Compare the outputs of graphs with those of the run, in padded batches of several sizes.

    Models that generate text also read it one token at a time.
    """
    readings = compute_cases(run, proof_items(run, sentences, odd=True))
    ours, theirs, heard = [*readings], [], []
    for some in _batches(readings):
        scores, ctc = _graph_outputs(run, calls, some)
        theirs += scores
        heard += ctc
    items, units = unit_names(run)
    sizes = ", ".join(map(str, BATCH_SIZES))
    many = f"padded batches of {sizes} texts" if items == "sentences" else f"batches of {sizes}"
    notes = [f"{many}; no graph was exported with an example of such a size"]
    if heard:
        notes.append("the outputs of the CTC head were compared, too")
        ours += [_ctc_case(reading) for reading in readings]
    proof = compared(to, ours, [*theirs, *heard], what=output_name(run), by=by, notes=notes)
    if int8:
        proof = judged_as_int8(proof, ours, [*theirs, *heard])
    tokens = sum(reading.n_positions for reading in readings)
    return replace(proof, sentences=len(readings), tokens=tokens, items=items, units=units)


def _ctc_case(reading: ProofCase) -> ProofCase:
    assert reading.ctc_scores is not None
    return replace(reading, scores=reading.ctc_scores)


def _graph_outputs(
    run: LoadedRun, calls: Mapping[str, GraphCall], readings: Sequence[ProofCase]
) -> tuple[list[GraphArray], list[GraphArray]]:
    """Return the outputs for each item, as in `ProofCase.scores`. For an encoder-decoder with a CTC
    head, also return the CTC logits, otherwise an empty list."""
    if run.spec.continues:
        growing = CachedGraph(calls[MODEL], _heads(run), len(readings))
        return _cached_scores(growing, [reading.tokens for reading in readings]), []
    inputs = _inputs(readings)
    if isinstance(run.shape, Seq2SeqSettings):
        given = source_inputs(calls[ENCODER], inputs)
        ctc = _unpadded(given.pop(CTC), given[SOURCE_MASK]) if CTC in given else []
        growing = CachedGraph(calls[DECODER], _heads(run), len(readings), given)
        return _cached_scores(growing, [reading.target for reading in readings]), ctc
    found = calls[MODEL](inputs)
    if REBUILT in found:
        pairs = zip(found[REBUILT], readings, strict=True)
        return [rows_RE[: len(reading.scores)] for rows_RE, reading in pairs], []
    if readout_of(run.settings).pools:
        name = next(name for name in (LOGITS, SENTENCE, EMBEDDING) if name in found)
        return list(found[name][:, None]), []
    return _unpadded(found[LOGITS], (inputs | found)[MASK]), []


def _inputs(readings: Sequence[ProofCase]) -> dict[str, GraphArray]:
    texts = [one.item for one in readings if isinstance(one.item, TextItem)]
    if texts:
        segments = [text.segments or [0] * len(text.ids) for text in texts]
        return text_inputs([text.ids for text in texts], segments)
    items = [one.item for one in readings if not isinstance(one.item, TextItem)]
    return media_inputs(items, [one.masked_P for one in readings if one.masked_P is not None])


def _batches(items: Sequence[One]) -> Iterator[Sequence[One]]:
    first = 0
    for size in cycle(BATCH_SIZES):
        if first >= len(items):
            return
        yield items[first : first + size]
        first += size


def _heads(run: LoadedRun) -> dict[str, tuple[int, int]]:
    """Return the number and width of the attention heads, by the names of the cache inputs of a
    step graph."""
    kind, stack = [*run.shape.stacks.items()][-1]
    width = stack.head_width
    return {
        f"past.{layer}.{part}": (run.shape.heads_in(kind, layer)[1], width)
        for layer in range(run.shape.attention_layers[kind])
        for part in ("key", "value")
    }


def _cached_scores(growing: CachedGraph, texts: Sequence[Sequence[int]]) -> list[GraphArray]:
    """Return the logits of each text, computed with a cache. The last `STEPS` tokens are read one
    by one, the tokens before them in one call."""
    ids_BT, real_BT = padded(texts, left=True)
    at_once = max(1, ids_BT.shape[1] - STEPS)
    scores = [growing.feed(ids_BT[:, :at_once], real_BT[:, :at_once])[LOGITS]]
    for place in range(at_once, ids_BT.shape[1]):
        now = slice(place, place + 1)
        scores.append(growing.feed(ids_BT[:, now], real_BT[:, now])[LOGITS])
    return _unpadded(np.concatenate(scores, 1), real_BT)


def _unpadded(scores_BTV: GraphArray, real_BT: GraphArray) -> list[GraphArray]:
    return [scores_TV[real_T > 0] for scores_TV, real_T in zip(scores_BTV, real_BT, strict=True)]
