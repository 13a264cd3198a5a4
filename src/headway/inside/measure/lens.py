"""Logit lens and tuned lens: the prediction that the model would make from each layer.

The logit lens passes the hidden states after each layer directly to the final norm and the output
head of the task. It shows how words (or classes, or tags) emerge, and from which layer the
prediction no longer changes.

The tuned lens first passes the states through an affine map per layer, which predicts the state of
the last layer. The maps are fitted to the predictions of the last layer (Belrose et al. 2023). Each
map starts as the plain logit lens, and remains so if the fit does not help on validation lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headway.errors import DataError, FolderError, UserError
from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import mask_tokens
from headway.inside.capture.forward import (
    ReadingBatch,
    gives_vector,
    log_prob_function,
    ngram_vote,
    output_scores,
    read_out,
)
from headway.inside.capture.media import MediaInput, is_too_long
from headway.inside.capture.reading import (
    GenerationOptions,
    Reading,
    TracedOutput,
    read,
    read_masked,
)
from headway.inside.capture.trace import Trace, trace
from headway.models.parts.output_heads import HiddenStates
from headway.models.parts.text import TextFront
from headway.nn.divergence import sigmoid_divergence
from headway.nn.layout import Layout
from headway.storage import replace_file
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.readout import Read, readout_of

__all__ = ["LogitLens", "TunedLens", "lens", "tune"]

WITH_NGRAMS = "with n-grams"

TOP = 5
"""Number of most probable candidates stored for each output and layer: enough to see the
alternatives."""


@dataclass(frozen=True)
class LogitLens:
    """Predictions by layer, from the embedding (0) to the last layer.

    If the model contains an n-gram model, there is one more layer with the combined prediction.
    Axes of the tensors: L layers, R outputs, K candidates, C classes or words.
    """

    outputs: tuple[TracedOutput, ...]
    layers: tuple[str, ...]
    """Display names of the layers."""

    how: str
    """Explanation for the user, in one sentence, of how the hidden states of a layer are converted
    to a prediction."""

    scores_RC: Tensor
    """Scores of the last layer, which is the prediction of the model."""

    top_LRK: Tensor
    """Ids of the most probable words or labels at each layer; empty if the output is an
    embedding."""

    probability_LRK: Tensor
    """Probabilities of `top_LRK`."""

    rank_LR: Tensor
    """Rank of the model's output at each layer; 1 is the most probable."""

    chosen_LR: Tensor
    """Probability of the model's output at each layer. For an embedding: cosine similarity to the
    final embedding."""

    kl_LR: Tensor
    """Kullback–Leibler divergence in nats from the final prediction at each layer; for independent
    labels the mean over the labels."""

    @property
    def decided(self) -> tuple[int | None, ...]:
        """First layer from which each output is the most probable candidate up to the last layer.

        None for an output that is not the most probable even at the last layer, because a search or
        neighbouring tags decided.
        """
        first_R = []
        for rank_L in self.rank_LR.T.tolist():
            below = [layer for layer, rank in enumerate(rank_L) if rank != 1]
            first = below[-1] + 1 if below else 0
            first_R.append(first if first < len(rank_L) else None)
        return tuple(first_R)

    @property
    def is_vector(self) -> bool:
        return self.top_LRK.shape[-1] == 0


@torch.no_grad()
def lens(run: LoadedRun, text: str | Reading | Trace, tuned: TunedLens | None = None) -> LogitLens:
    """Apply the logit lens: predict from each layer. The last layer's prediction equals that of
    the model.

    Args:
        run: The run, opened by `load`.
        text: Input text, or a `Reading` or `Trace`.
        tuned: Tuned lens whose maps are applied to all layers but the last. None: logit lens.

    Example:
        >>> from headway.inside import lens, load
        >>> found = lens(load("tatoeba-de-en"), "Guten Morgen.")
        >>> found.decided  # first layer at which each output is the most probable
        (2, 1, 2, 2, 1)
    """
    found = text if isinstance(text, Trace) else trace(run, text)
    reading, part = found.reading, Anatomy.of(run.model).stacks[-1]
    states = found.states[part.name]
    if tuned is not None:
        tuned.check(len(states) - 1, states[0].shape[1])
        states = [*(tuned.apply(layer, x_TD) for layer, x_TD in enumerate(states[:-1])), states[-1]]
    batch, norm = ReadingBatch.of(run, [reading]), part.stack.final_norm
    changes = [found.change]
    behind = [HiddenStates(x_TD if norm is None else norm(x_TD), batch.layout) for x_TD in states]
    names = ["input", *(f"layer {number}" for number in range(1, len(states)))]
    vote = ngram_vote(run.model, batch, changes)
    if vote is not None:
        behind.append(behind[-1]._replace(ngrams=vote))
        names.append(WITH_NGRAMS)
    reads = [read_out(run, batch, one, changes) for one in behind]
    layers = [_layer(run, read, reads[-1], reading) for read in reads]
    top, probability, rank, chosen, kl = (torch.stack(parts) for parts in zip(*layers, strict=True))
    how = _how(part) + ("" if tuned is None else " A fitted affine map is applied first.")
    if vote is not None:
        how += " The last step adds the n-grams, which gives the model's prediction."
    last_RC = output_scores(run, reads[-1])
    return LogitLens(
        reading.outputs, tuple(names), how, last_RC, top, probability, rank, chosen, kl
    )


def _layer(run: LoadedRun, read: Read, last: Read, reading: Reading) -> tuple[Tensor, ...]:
    scores_RC, last_RC = output_scores(run, read), output_scores(run, last)
    n_rows = len(scores_RC)
    if not read.has_probabilities:
        cosine_R = F.cosine_similarity(scores_RC.double(), last_RC.double(), dim=-1)
        none = scores_RC.new_zeros(n_rows, 0)
        nothing_R = scores_RC.new_zeros(n_rows)
        return none.long(), none, nothing_R.long(), cosine_R, nothing_R
    logs_RC = log_prob_function(read)(scores_RC.double())
    top = logs_RC.topk(min(TOP, logs_RC.shape[1]))
    ids_R1 = torch.tensor([output.id for output in reading.outputs])[:, None]
    chosen_R1 = logs_RC.gather(1, ids_R1)
    rank_R = 1 + (logs_RC > chosen_R1).sum(1)
    if read.divergence is sigmoid_divergence:  # independent labels
        kl_R = read.divergence(scores_RC, last_RC, 1.0)
    else:
        last_logs_RC = last_RC.double().log_softmax(-1)
        kl_R = (last_logs_RC.exp() * (last_logs_RC - logs_RC)).sum(1)
    return top.indices, top.values.exp(), rank_R, chosen_R1.exp().squeeze(1), kl_R


def _how(part: StackPart) -> str:
    if part.stack.final_norm is not None:
        return "The vectors of a layer go through the model's final norm, then to its output head."
    if isinstance(part.front, TextFront) and part.front.norm is not None:
        return (
            "Every layer of this model ends with a norm, and so does its input, so vectors go "
            "directly to the output head."
        )
    return (
        "Every layer of this model ends with a norm, so its vectors go directly to the output "
        "head; the input has no norm and is used as it is."
    )


FEWEST = 20
"""Minimum number of lines for fitting a tuned lens. With fewer, a tenth of them is too few for
validation and test."""

MOST = 2000
"""Maximum number of corpus examples for the fit; more examples barely change it."""

STEPS, LOOKS = 320, 16
"""Number of fitting steps, and number of validations during the fit."""

ROWS = 128
"""Approximate number of tokens per fitting step."""

RATE = 5e-3
"""Learning rate of AdamW for the maps, which start at zero; validation selects the best step."""

SHRINK = 0.02
"""Weight decay of the maps towards zero (the plain logit lens); AdamW multiplies it by the learning
rate."""

HIDDEN = 0.15
"""Fraction of tokens that are masked to fit the lens of a masked language model; about the 15 % of
BERT's training."""


@dataclass(frozen=True)
class TunedLens:
    """Tuned lens: one affine map per layer, x + x·matrix + shift. The last layer has no map."""

    matrix_LDD: Tensor
    shift_LD: Tensor
    plain_L: Tensor
    """KL divergence in nats between the plain logit lens of each layer and the last layer, on
    held-out lines. For reconstructions: mean squared difference."""

    tuned_L: Tensor
    """KL divergence between the tuned lens of each layer and the last layer, on held-out lines. For
    reconstructions: mean squared difference."""

    n_lines: int
    n_held_out: int

    def apply(self, layer: int, x_ND: Tensor) -> Tensor:
        return x_ND + x_ND @ self.matrix_LDD[layer] + self.shift_LD[layer]

    def check(self, n_layers: int, width: int) -> None:
        """Raise an error if the shape of this lens does not match the model's number of layers and
        width."""
        if self.shift_LD.shape != (n_layers, width):
            mine = " × ".join(map(str, self.shift_LD.shape))
            raise UserError(
                f"this tuned lens was fitted for {mine} (layers × width), but the model has "
                f"{n_layers} × {width}. Fit a lens for this run."
            )

    def save(self, path: Path) -> None:
        tensors = {
            "matrix": self.matrix_LDD,
            "shift": self.shift_LD,
            "plain": self.plain_L,
            "tuned": self.tuned_L,
        }
        facts = {"lines": self.n_lines, "held_out": self.n_held_out}
        kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda part: save_file(kept, part, {"lens": json.dumps(facts)}))
        except OSError as error:
            raise FolderError(f"cannot write {path}: {error.strerror}.") from error

    @classmethod
    def load(cls, path: Path) -> TunedLens:
        try:
            with safe_open(path, "pt") as file:
                facts = json.loads(file.metadata()["lens"])
                matrix_LDD, shift_LD, plain_L, tuned_L = map(
                    file.get_tensor, ("matrix", "shift", "plain", "tuned")
                )
            n_layers, width = shift_LD.shape
            shapes = [(n_layers, width, width), (n_layers,), (n_layers,)]
            if [tuple(each.shape) for each in (matrix_LDD, plain_L, tuned_L)] != shapes:
                raise ValueError("the shapes of its tensors do not match")
            counts = int(facts["lines"]), int(facts["held_out"])
            return cls(matrix_LDD, shift_LD, plain_L, tuned_L, *counts)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise FolderError(
                f"cannot read a tuned lens from {path} ({type(error).__name__}: {error}). "
                "To write a tuned lens: `headway.inside.tune(run, lines).save(path)`"
            ) from error


LineStates = Tensor
"""Hidden states of one example at the positions that the output head reads (layers, tokens,
width)."""

AffineMaps = tuple[Tensor, Tensor]
"""Matrices and shifts of the affine maps of all layers."""


def tune(run: LoadedRun, lines: Corpus | Sequence[str], seed: int = 0) -> TunedLens:
    """Fit a tuned lens: one affine map per layer.

    Eight tenths of the lines fit the maps, one tenth selects the best step for each layer, which
    may be the plain lens, and one tenth evaluates the result.

    Args:
        run: The run, opened by `load`.
        lines: Texts like the training data, a few hundred or more.
        seed: Random seed for splitting lines into training, validation and test sets.

    Example:
        tuned = tune(load("stories"), Path("stories.txt").read_text().splitlines())
    """
    if gives_vector(run):
        raise UserError(
            "this run outputs a vector, not words or labels, so a tuned lens cannot be fitted."
        )
    corpus = lines if isinstance(lines, Corpus) else Corpus.of_lines(lines)
    given = corpus.first(MOST).examples
    texts = [one for one in given if isinstance(one, str) or not is_too_long(run, one)]
    if len(texts) < FEWEST:
        what = "lines of text" if corpus.lines else corpus.unit
        raise DataError(
            f"{len(texts)} {what} are too few for a tuned lens: at least {FEWEST} are needed, "
            "and a few hundred are better."
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(texts))
    tenth = max(1, len(texts) // 10)
    read_lines = [_line(run, texts[number], int(number), rng) for number in order]
    read_lines = [line for line in read_lines if line.shape[1]]
    held, choose, fit = read_lines[:tenth], read_lines[tenth : 2 * tenth], read_lines[2 * tenth :]
    found = _fit(run, fit, choose, rng)
    plain_L = _divergence(run, held, None)
    tuned_L = _divergence(run, held, found)
    return TunedLens(*found, plain_L, tuned_L, n_lines=len(texts), n_held_out=tenth)


def _fit(
    run: LoadedRun, fit: list[LineStates], choose: list[LineStates], rng: np.random.Generator
) -> AffineMaps:
    n_layers, _, width = fit[0].shape
    matrix_LDD = torch.zeros(n_layers - 1, width, width, requires_grad=True)
    shift_LD = torch.zeros(n_layers - 1, width, requires_grad=True)
    best = (matrix_LDD.detach().clone(), shift_LD.detach().clone())
    best_L = _divergence(run, choose, None)
    optimiser = torch.optim.AdamW([matrix_LDD, shift_LD], lr=RATE, weight_decay=SHRINK)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for number, batch in enumerate(islice(_endless(fit, rng), STEPS), 1):
        kl_L = _batch_divergence(run, batch, (matrix_LDD, shift_LD)).mean(1)
        matrix_LDD.grad, shift_LD.grad = torch.autograd.grad(kl_L.sum(), [matrix_LDD, shift_LD])
        optimiser.step()
        schedule.step()
        if number % (STEPS // LOOKS):
            continue
        maps = (matrix_LDD.detach(), shift_LD.detach())
        now_L = _divergence(run, choose, maps)
        better = now_L < best_L
        best_L = torch.where(better, now_L, best_L)
        for kept, new in zip(best, maps, strict=True):
            kept[better] = new[better]
    return best


@torch.no_grad()
def _divergence(run: LoadedRun, lines: list[LineStates], maps: AffineMaps | None) -> Tensor:
    """Return the mean divergence of each layer's prediction from that of the last layer, over all
    outputs of the lines.

    `maps`: affine maps of a tuned lens; None: plain logit lens.
    """
    found = [_batch_divergence(run, batch, maps) for batch in _batches(lines)]
    return torch.cat(found, dim=1).mean(1)


def _batch_divergence(run: LoadedRun, batch: list[LineStates], maps: AffineMaps | None) -> Tensor:
    states_LND = torch.cat(batch, dim=1)
    layout = Layout.of([line.shape[1] for line in batch])
    with torch.no_grad():
        last_RC = _read_out(run, states_LND[-1], layout).averaged_logits()
    found = []
    for layer, x_ND in enumerate(states_LND[:-1]):
        read = _read_out(run, _map(x_ND, maps, layer), layout)
        found.append(read.divergence(read.averaged_logits(), last_RC, 1.0))
    return torch.stack(found)


def _map(x_ND: Tensor, maps: AffineMaps | None, layer: int) -> Tensor:
    return x_ND if maps is None else x_ND + x_ND @ maps[0][layer] + maps[1][layer]


def _read_out(run: LoadedRun, x_ND: Tensor, layout: Layout) -> Read:
    """Apply the final norm and the output head to hidden states of any layer."""
    norm = Anatomy.of(run.model).stacks[-1].stack.final_norm
    x_ND = x_ND if norm is None else norm(x_ND)
    return readout_of(run.settings).of(run.model, HiddenStates(x_ND, layout))


def _endless(lines: list[LineStates], rng: np.random.Generator) -> Iterator[list[LineStates]]:
    while True:
        yield from _batches([lines[number] for number in rng.permutation(len(lines))])


def _batches(lines: list[LineStates]) -> Iterator[list[LineStates]]:
    batch: list[LineStates] = []
    for line in lines:
        batch.append(line)
        if sum(one.shape[1] for one in batch) >= ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _line(
    run: LoadedRun, text: str | MediaInput, number: int, rng: np.random.Generator
) -> LineStates:
    # A language model reads the line and generates nothing. Other models decode without a beam.
    gaps = run.spec.fills_masks
    if gaps and not isinstance(text, str):
        reading = read_masked(run, text, number)
    else:
        reading = read(
            run,
            text,
            GenerationOptions(decode=replace(run.settings.decode, beam=1), max_new_tokens=0),
        )
        reading = _with_gaps(reading, run, rng) if gaps else reading
    states = trace(run, reading).states[Anatomy.of(run.model).stacks[-1].name]
    rows = [output.row for output in reading.outputs if output.row is not None]
    states_LTD = torch.stack(states)
    return states_LTD[:, rows] if rows or not reading.outputs else states_LTD


def _with_gaps(reading: Reading, run: LoadedRun, rng: np.random.Generator) -> Reading:
    """Mask some tokens at random, as in training. A text that already has masked tokens is
    unchanged."""
    tokenizer, text = run.vocab.source, reading.last
    if tokenizer.mask in text.ids:
        return reading
    plain = [row for row, apart in enumerate(text.special) if not apart]
    n_hidden = max(1, round(HIDDEN * len(plain)))
    rows = sorted(int(row) for row in rng.choice(plain, min(n_hidden, len(plain)), replace=False))
    return mask_tokens(run, reading, rows)
