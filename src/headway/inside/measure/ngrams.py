"""Effects of single n-grams, and of the neural layers, on the output of a model that has both."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.inside.capture.forward import ReadingBatch, final_states, read_out
from headway.inside.capture.interventions import disable_heads
from headway.inside.capture.ngrams import (
    NgramOccurrence,
    ngram_occurrences,
    ngram_table,
    token_contributions,
)
from headway.inside.capture.streams import Reading, display_piece
from headway.inside.capture.trace import Trace
from headway.models.parts.ngrams import TokenView
from headway.tasks.label_kinds import label_type_of
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.scores import MODEL, NEURAL, NGRAMS

VIEW_LABELS = {
    TokenView.PIECE: "{} (exact case)",
    TokenView.SHAPE: "shape of {}",
    TokenView.ENDING: "ending of {}",
}
INSIDE = "(inside a word)"
"""Display name of the n-gram to which all tokens inside words are hashed."""


@dataclass(frozen=True)
class NgramEffects:
    """Effects of n-grams and neural layers on one output.

    For a single label, effects are on its margin, which is its score minus the mean score of the
    others. For independent labels they are on the label's own score. For a number they are on its
    distance from the training mean. All effects add up to this margin, score or distance.
    """

    probs: dict[str, Tensor]
    """Probabilities of all labels (C), or the predicted number (1), by part of the model. The whole
    model is last."""

    grams: tuple[tuple[str, float], ...]
    """Display names of n-grams with their effects, strongest first."""

    bias: float
    """Effect of the n-gram model's bias, which is its effect on a text without known n-grams."""

    layers: float
    """Effect of the neural layers."""

    tokens_T: Tensor
    """Effect of n-grams by token. The effect of an n-gram is divided among its tokens."""


@torch.no_grad()
def ngram_effects(run: LoadedRun, trace: Trace) -> list[NgramEffects]:
    """Return the effects of n-grams on each output; empty for a model without n-grams."""
    table, reading, change = ngram_table(run.model), trace.reading, trace.change
    if table is None:
        return []
    with disable_heads(run.model, change):
        batch = ReadingBatch.of(run, [reading])
        read = read_out(run, batch, final_states(run.model, batch, [change]), [change])
    assert read.ngrams is not None
    kind = run.spec.answers
    margin = _score if kind in ("labels", "number") else _margin
    scale = (run.settings.classify.std or 1.0) if kind == "number" else 1.0
    share = float(table.share)
    said = {
        NEURAL: read.neural.averaged_logits(),
        NGRAMS: read.ngrams.scores_RC,
        MODEL: read.averaged_logits(),
    }
    added_TRC, each = (
        token_contributions(table, reading, change),
        ngram_occurrences(table, reading, change),
    )
    found = []
    for row, (output, grams) in enumerate(zip(reading.outputs, each, strict=True)):
        merged: dict[str, float] = {}
        for gram in grams:
            name = name_of(gram, reading)
            effect = scale * share * float(margin(gram.scores_C, output.id))
            merged[name] = merged.get(name, 0.0) + effect
        found.append(
            NgramEffects(
                {name: _answers(run, scores_RC[row]) for name, scores_RC in said.items()},
                tuple(sorted(merged.items(), key=lambda one: -abs(one[1]))),
                scale * share * float(margin(table.bias_C, output.id)),
                scale * (1 - share) * float(margin(said[NEURAL][row], output.id)),
                scale * share * margin(added_TRC[:, row], output.id),
            )
        )
    return found


def _answers(run: LoadedRun, scores_C: Tensor) -> Tensor:
    """Return the probabilities of labels or tags (C), or the predicted number (1), from their
    scores."""
    if run.spec.is_tagging:
        return scores_C.double().softmax(-1)
    return label_type_of(run.settings, run.settings.labels).predictions(scores_C.double()[None])[0]


def _score(scores_XC: Tensor, label: int) -> Tensor:
    return scores_XC[..., label]


def _margin(scores_XC: Tensor, label: int) -> Tensor:
    others = scores_XC.sum(-1) - scores_XC[..., label]
    return scores_XC[..., label] - others / max(1, scores_XC.shape[-1] - 1)


def name_of(gram: NgramOccurrence, reading: Reading) -> str:
    """Return the display name of an n-gram: its text, and the form of the tokens by which it was
    matched."""
    stream, name, before = reading.last, "", -2
    if gram.view is None and reading.is_single_label and len(gram.places) > 1:
        firsts = {stream.pieces[seen[0]] for seen in gram.places}
        if len(firsts) > 1:  # one hash for all tokens inside words
            return INSIDE
    for place in gram.places[0]:
        joined = place == before + 1 and stream.words[place] == stream.words[before] >= 0
        piece = display_piece(stream.pieces[place]).removeprefix("##" if joined else "")
        name, before = name + " " * bool(name and not joined) + piece, place
    return VIEW_LABELS.get(gram.view, "{}").format(name) if gram.view is not None else name
