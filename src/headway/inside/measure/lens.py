"""Logit lens: the prediction that the model would make from each layer.

The vectors between two layers are passed directly to the final norm and the task's own head. This
shows how words (or classes, or tags) emerge, and from which layer the prediction no longer changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.forward import (
    ReadingBatch,
    log_prob_function,
    ngram_vote,
    output_scores,
    read_out,
)
from headway.inside.capture.reading import Reading, TracedOutput
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.tuned_lens import TunedLens, tune
from headway.models.parts.output_heads import HiddenStates
from headway.models.parts.text import TextFront
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.readout import Read, sigmoid_divergence

__all__ = ["LogitLens", "TunedLens", "lens", "tune"]

WITH_NGRAMS = "with n-grams"

TOP = 5
"""Most probable candidates that are kept for each layer."""


@dataclass(frozen=True)
class LogitLens:
    """Predictions by layer: from the output of the front (0) to the last layer.

    A model with an n-gram member has one more row with the prediction of both members. Rows of
    tensors are outputs.
    """

    outputs: tuple[TracedOutput, ...]
    layers: tuple[str, ...]
    """Names of the layers."""

    how: str
    """How the vectors of a layer are read, in a sentence."""

    scores_RC: Tensor
    """Scores of the last of `layers`: the model's prediction."""

    top_LRK: Tensor
    """Most probable words or labels of each layer; empty if the output is a vector."""

    probability_LRK: Tensor
    """Probabilities of `top_LRK`."""

    rank_LR: Tensor
    """Rank of the final output at each layer: 1 is the most probable."""

    chosen_LR: Tensor
    """Probability of the final output; for a vector its cosine with the final one."""

    kl_LR: Tensor
    """Kullback-Leibler divergence from the final prediction, in nats; for independent labels their
    mean."""

    @property
    def decided(self) -> tuple[int | None, ...]:
        """For each output the first layer from which it stays the most probable.

        None if it never does: a search or neighbouring tags may decide.
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
    """Read the prediction at each layer; the last one equals the model's exactly. `tuned` applies a
    fitted map before the head for every layer but the last."""
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
