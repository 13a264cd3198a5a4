"""Forward passes over readings that return hidden states and the scores of all outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.interventions import (
    NO_INTERVENTION,
    Intervention,
    disable_heads,
    hiding_mask,
)
from headway.inside.capture.media import MediaInput
from headway.inside.capture.ngrams import (
    NGRAMS,
    ngram_table,
    scores_from_contributions,
    scores_with_hidden,
)
from headway.inside.capture.streams import Reading
from headway.models.parts.ngrams import NgramScores
from headway.models.parts.output_heads import HiddenStates, ModelInput
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Memory
from headway.nn.divergence import mean_square, sigmoid_divergence
from headway.nn.layout import Layout
from headway.tasks import dataset as tasks
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.preprocess.preprocessor import MaskedDataset, MaskTargets, preprocessor_of
from headway.tasks.readout import OneVector, Read, as_model, readout_of

TOGETHER = 2048
"""Number of tokens per batch when variants of one reading are computed together, such as one
variant per hidden token. A larger number is faster, but needs more memory."""

__all__ = [
    "NO_INTERVENTION",
    "ForwardResult",
    "Intervention",
    "ReadingBatch",
    "final_states",
    "last_hidden_states",
    "ngram_vote",
    "read_out",
    "run_interventions",
    "run_reading",
]  # fmt: skip


@dataclass(frozen=True)
class ReadingBatch:
    """Batch of readings, concatenated without padding as the model reads them."""

    readings: Sequence[Reading]
    streams: dict[str, ModelInput]
    """Model inputs by stream, in the order in which the model computes the streams."""

    hidden: tasks.Batch[MaskTargets] | None = None
    """Batch with masked positions and their true values; None unless the model reconstructs
    media."""

    @classmethod
    def of(cls, run: LoadedRun, readings: Sequence[Reading]) -> ReadingBatch:
        """Collate the readings on the device of the model."""
        device = next(run.model.parameters()).device
        media = [one.media for one in readings if one.media is not None]
        streams: dict[str, ModelInput] = {}
        hidden: tasks.Batch[MaskTargets] | None = None
        for name in readings[0].streams:
            if not readings[0].is_media(name):
                many = [one.streams[name].ids for one in readings]
                ids_N = torch.tensor([i for ids in many for i in ids], device=device)
                streams[name] = ModelInput(ids_N, Layout.of([len(ids) for ids in many], device))
            elif readings[0].hides is not None:
                hidden = mask_positions(run, media, readings[0].hides)
                streams[name] = hidden.streams[0]
            else:
                front = Anatomy.of(run.model).stacks[0].front
                streams[name] = ModelInput(*front.collate([one.item for one in media], device))
        segments = [number for one in readings for number in one.segments]
        if segments:
            last = list(streams)[-1]
            segments_N = torch.tensor(segments, device=device)
            streams[last] = replace(streams[last], segments_N=segments_N)
        return cls(readings, streams, hidden)

    @property
    def last(self) -> str:
        """Name of the last stream, from which the outputs are read."""
        return list(self.streams)[-1]

    @property
    def layout(self) -> Layout:
        """Layout (sequence boundaries) of the last stream."""
        return self.streams[self.last].layout

    def rows(self) -> Tensor:
        """Indices in the last stream of the positions that outputs are read from; for
        reconstruction, of the masked positions."""
        if self.hidden is not None:
            assert self.hidden.rows_R is not None
            return self.hidden.rows_R
        starts = self.layout.starts_B.tolist()
        rows = [
            start + output.row
            for start, one in zip(starts, self.readings, strict=True)
            for output in one.outputs
            if output.row is not None
        ]
        return torch.tensor(rows, dtype=torch.long, device=self.layout.starts_B.device)

    def ordinary(self, run: LoadedRun, stream: str) -> Tensor:
        """Boolean mask of the positions of a stream that are words, patches or audio.

        It excludes special tokens, because some models have very large states there. It also
        excludes the class token of an image and the padding of a recording.
        """
        device = self.layout.starts_B.device
        if self.readings[0].is_media(stream):
            own = [one.media.content_mask for one in self.readings if one.media is not None]
            return torch.tensor([row for rows in own for row in rows], device=device)
        tokenizer = run.vocab.source if stream == "source" else run.vocab.target
        begins = (tokenizer.source_begin, tokenizer.target_begin)
        apart = [tokenizer.bos, tokenizer.eos, *(i for i in begins if i is not None)]
        return ~torch.isin(self.streams[stream].values, torch.tensor(apart, device=device))

    def places(self, stream: str) -> Iterator[tuple[int, int]]:
        """Yield the index of the reading and the position within it, for each position of a
        stream."""
        for number, one in enumerate(self.readings):
            for place in range(len(one.streams[stream])):
                yield number, place


def mask_positions(
    run: LoadedRun, media: Sequence[MediaInput], seed: int
) -> tasks.Batch[MaskTargets]:
    """Mask random positions of images or recordings. Return the batch with the true values of these
    positions.

    Equal seeds mask equal positions, including in copies of one input.
    """
    intake, model = preprocessor_of(run.settings), run.model
    each = {id(one): one for one in media}
    number = {key: place for place, key in enumerate(each)}
    columns = intake.columns([one.item for one in each.values()])
    items = intake.masked_dataset(columns, run.settings.fill).for_epoch(tasks.EpochSeed(seed, 0))
    assert isinstance(items, MaskedDataset)
    rows = np.array([number[id(one)] for one in media], np.int64)
    batch = items.batch(rows, next(model.parameters()).device)
    return items.apply_mask(model, batch, training=False)


def last_hidden_states(
    model: nn.Module, batch: ReadingBatch, changes: Sequence[Intervention] = ()
) -> Tensor:
    """Return the hidden states of the last stream, after the final norm.

    `changes`: one intervention per reading, of which only the hidden tokens are applied. Empty: no
    intervention.
    """
    return final_states(model, batch, changes).x_ND


def final_states(
    model: nn.Module,
    batch: ReadingBatch,
    changes: Sequence[Intervention] = (),
    added_ND: Tensor | None = None,
) -> HiddenStates:
    """Return the final hidden states of the last stream, with the scores of the n-gram model if
    there is one.

    `changes`: one intervention per reading. `added_ND`: replacement for the contributions of the
    tokens to the n-gram scores.
    """
    found = _states(model, batch, changes)
    return found._replace(ngrams=ngram_vote(model, batch, changes, added_ND))


def ngram_vote(
    model: nn.Module,
    batch: ReadingBatch,
    changes: Sequence[Intervention] = (),
    added_ND: Tensor | None = None,
) -> NgramScores | None:
    """Return the scores that the n-gram model gives to the outputs of a batch; None if the model
    has no n-gram model."""
    table = ngram_table(model)
    if table is None:
        return None
    stream = batch.streams[batch.last]
    if added_ND is not None:
        return NgramScores(
            scores_from_contributions(table, added_ND, batch.readings, batch.layout), table.share
        )
    if any(change.hidden for change in changes):
        return NgramScores(
            scores_with_hidden(table, batch.readings, batch.layout, changes), table.share
        )
    return table.score_labels(stream.values, stream.layout, stream.segments_N)


def _states(model: nn.Module, batch: ReadingBatch, changes: Sequence[Intervention]) -> HiddenStates:
    given = list(batch.streams.values())
    if len(given) < len(Anatomy.of(model).stacks):
        memory = cast(Seq2Seq, model).encode(given[0].values, given[0].layout)
        return HiddenStates(memory.x_MD, memory.layout)
    if not any(change.hidden for change in changes):
        return as_model(model).states(*given)
    anatomy = Anatomy.of(model)
    anatomy.check_by_attention("hiding tokens needs")
    causal = {part.stream: part.blocks[0].attention.scope.causal for part in anatomy.stacks}
    sizes = {name: len(stream) for name, stream in batch.readings[0].streams.items()}
    unseen = {name: [change.places(name) for change in changes] for name in sizes}
    inputs = [
        _with_tree(one, sizes[name], sizes[name], unseen[name], causal=causal[name], own=True)
        for name, one in batch.streams.items()
    ]
    if len(inputs) == 1:
        return as_model(model).states(*inputs)
    source, target = inputs
    seen = _with_tree(given[0], sizes["target"], sizes["source"], unseen["source"])
    writer = cast(Seq2Seq, model)
    memory = Memory(writer.encode(source.values, source.layout).x_MD, seen.layout)
    return HiddenStates(writer.decode(target.values, target.layout, memory), target.layout, memory)


def _with_tree(
    given: ModelInput, n_rows: int, n_columns: int, hidden: list[list[int]], *,
    causal: bool = False,
    own: bool = False,
) -> ModelInput:  # fmt: skip
    """Return the input with an attention mask that hides the given tokens; unchanged if there are
    none."""
    if not any(hidden):
        return given
    tree = hiding_mask(n_rows, n_columns, hidden, causal=causal, own=own)
    return replace(given, layout=replace(given.layout, tree=tree, memo={}))


def log_softmax(scores_RC: Tensor) -> Tensor:
    return scores_RC.log_softmax(-1)


@dataclass(frozen=True)
class ForwardResult:
    """Outputs of one forward pass over a reading."""

    x_ND: Tensor
    """Hidden states of the last stream, after the final norm."""

    scores_RC: Tensor
    """Scores of words, classes or tags, one row per output. For an embedding: the vector before
    normalization."""

    reading: Reading
    targets_RE: Tensor | None = None
    """True values of the masked positions of media; None for all other tasks."""

    to_log_probs: Callable[[Tensor], Tensor] = log_softmax
    """Function that converts the scores to log-probabilities."""

    @property
    def log_probs_R(self) -> Tensor:
        """Log-probability that the model assigns to the token or label of each output.

        For an embedding: its component along the direction of the reading, so that gradients and
        changes show what the embedding depends on. For reconstructions: the negative mean squared
        error.
        """
        if self.targets_RE is not None:
            return -mean_square(self.scores_RC, self.targets_RE, 1.0)
        if self.reading.direction:
            return self.scores_RC @ self.scores_RC.new_tensor(self.reading.direction)
        ids_R1 = torch.tensor([output.id for output in self.reading.outputs])[:, None]
        return self.to_log_probs(self.scores_RC.float()).gather(1, ids_R1).squeeze(1)


def run_reading(
    run: LoadedRun,
    reading: Reading,
    change: Intervention = NO_INTERVENTION,
    *,
    fronts: Mapping[str, Tensor] | None = None,
) -> ForwardResult:
    """Run the model on a reading. Gradients are recorded if they are enabled.

    `fronts`: replacement embeddings by the name of the stack, one row per token. Under the key
    `NGRAMS`: replacement for the contributions of the tokens to the n-gram scores.
    """
    [found] = run_interventions(run, reading, [change], fronts=fronts)
    return found


def run_interventions(
    run: LoadedRun,
    reading: Reading,
    changes: Sequence[Intervention],
    *,
    fronts: Mapping[str, Tensor] | None = None,
) -> list[ForwardResult]:
    """Run the model once per intervention, in one batch of copies of the reading.

    The interventions may differ in hidden tokens, but not in disabled heads. `fronts`: replacement
    embeddings of all copies, concatenated.
    """
    lengths = {name: len(stream.ids) for name, stream in reading.streams.items()}
    for change in changes:
        change.check(lengths)
    n = len(changes)
    [off] = {change.disabled_heads for change in changes}
    given = dict(fronts or {})
    added_ND = given.pop(NGRAMS, None)
    with (
        disable_heads(run.model, Intervention(disabled_heads=off)),
        _replace_fronts(run.model, given),
    ):
        batch = ReadingBatch.of(run, [reading] * n)
        states = final_states(run.model, batch, changes, added_ND)
        read = read_out(run, batch, states, changes)
        scores_RC, logs = output_scores(run, read), log_prob_function(read)
    parts = zip(states.x_ND.tensor_split(n), scores_RC.tensor_split(n), strict=True)
    if batch.hidden is None:
        return [ForwardResult(x_TD, its_RC, reading, to_log_probs=logs) for x_TD, its_RC in parts]
    right = batch.hidden.targets.targets.tensor_split(n)
    return [
        ForwardResult(*part, reading, its_RE) for part, its_RE in zip(parts, right, strict=True)
    ]


def read_out(
    run: LoadedRun, batch: ReadingBatch, states: HiddenStates, changes: Sequence[Intervention] = ()
) -> Read:
    """Apply the output head to hidden states of the last stream, from any layer. Return one row per
    output.

    If a text is represented by its mean state, the tokens hidden by `changes` are left out of the
    mean.
    """
    readout = readout_of(run.settings)
    if not readout.pools:
        return readout.of(run.model, states, batch.rows())
    if any(change.hidden for change in changes) and getattr(run.model, "pooling", "") == "mean":
        states = _without(states, [change.places(batch.last) for change in changes])
    return readout.of(run.model, states)


def _without(states: HiddenStates, hidden: Sequence[Sequence[int]]) -> HiddenStates:
    lengths, places_N = states.layout.known_lengths(), states.layout.positions_N
    kept_N = torch.ones_like(places_N, dtype=torch.bool)
    for start, places in zip(states.layout.starts_B.tolist(), hidden, strict=True):
        kept_N[[start + place for place in places]] = False
    left = [n - len(places) for n, places in zip(lengths, hidden, strict=True)]
    return states._replace(x_ND=states.x_ND[kept_N], layout=Layout.of(left, states.x_ND.device))


def output_scores(run: LoadedRun, read: Read) -> Tensor:
    """Return the output scores: logits of words, classes or tags, reconstructions, or embeddings
    before normalization."""
    return read.x_RD if gives_vector(run) else read.averaged_logits()


def log_prob_function(read: Read) -> Callable[[Tensor], Tensor]:
    """Return the function that converts scores to log-probabilities: log-softmax, or log-sigmoid
    for independent labels."""
    return F.logsigmoid if read.divergence is sigmoid_divergence else log_softmax


def gives_vector(run: LoadedRun) -> bool:
    """Whether the output of the run is an embedding, without scores of words or labels."""
    return isinstance(readout_of(run.settings), OneVector)


@contextmanager
def _replace_fronts(model: nn.Module, fronts: Mapping[str, Tensor]) -> Iterator[None]:
    anatomy = Anatomy.of(model)
    with ExitStack() as stack:
        for name, x_ND in fronts.items():
            hook = anatomy.stack(name).front.register_forward_hook(_instead(x_ND))
            stack.callback(hook.remove)
        yield


def _instead(x_ND: Tensor) -> Any:
    return lambda module, given, out: x_ND
