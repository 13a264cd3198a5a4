"""What the model would say if it stopped after each layer: the lens.

The vectors between two layers go straight to the final norm and the task's own head. So a reader
sees words (or classes, or tags) grow, and from which layer on the answer stays what it will be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.inside.capture.anatomy import Anatomy, StackPart
from headway.inside.capture.forward import Batch, logs_in, read_out, scores_in, vote_of
from headway.inside.capture.reading import Output, Reading
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.tuned_lens import Tuned, tune
from headway.models.parts.output_heads import States
from headway.models.parts.text import TextFront
from headway.tasks.opened import Opened
from headway.tasks.readout import Read, bernoulli

__all__ = ["Lens", "Tuned", "lens", "tune"]

WITH_NGRAMS = "with n-grams"

TOP = 5
"""Answers that are kept of each layer, the likeliest first."""


@dataclass(frozen=True)
class Lens:
    """Layers count from what the front hands over (0) to the last; after it comes, for a model with
    an n-gram member, the answer of both members. Rows are the outputs."""

    outputs: tuple[Output, ...]
    layers: tuple[str, ...]
    """Their names."""

    how: str
    """What is done with a layer's vectors, in a sentence."""

    scores_RC: Tensor
    """Scores of the last of `layers`: the model's answer."""

    top_LRK: Tensor
    """The likeliest words or labels of each layer. Of a vector as output there are none."""

    probability_LRK: Tensor
    """Theirs."""

    rank_LR: Tensor
    """Of the output that was chosen in the end: 1 is the likeliest."""

    chosen_LR: Tensor
    """The probability of that output; of a vector: its cosine with the final one."""

    kl_LR: Tensor
    """Kullback-Leibler divergence of the layer from the answer, in nats; of several labels that are
    right or not, the mean of theirs."""

    @property
    def decided(self) -> tuple[int | None, ...]:
        """For each output the first layer from which on it stays the likeliest; None: it never
        does, as happens where a search or neighbouring tags decide."""
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
def lens(run: Opened, text: str | Reading | Trace, tuned: Tuned | None = None) -> Lens:
    """The last one is the model's answer, to the last bit. `tuned`: with a fitted map before the
    head of every layer but the last."""
    found = text if isinstance(text, Trace) else trace(run, text)
    reading, part = found.reading, Anatomy.of(run.model).stacks[-1]
    states = found.states[part.name]
    if tuned is not None:
        tuned.check(len(states) - 1, states[0].shape[1])
        states = [*(tuned.after(layer, x_TD) for layer, x_TD in enumerate(states[:-1])), states[-1]]
    batch, norm = Batch.of(run, [reading]), part.stack.final_norm
    changes = [found.change]
    behind = [States(x_TD if norm is None else norm(x_TD), batch.layout) for x_TD in states]
    names = ["input", *(f"layer {number}" for number in range(1, len(states)))]
    vote = vote_of(run.model, batch, changes)
    if vote is not None:
        behind.append(behind[-1]._replace(ngrams=vote))
        names.append(WITH_NGRAMS)
    reads = [read_out(run, batch, one, changes) for one in behind]
    layers = [_layer(run, read, reads[-1], reading) for read in reads]
    top, probability, rank, chosen, kl = (torch.stack(parts) for parts in zip(*layers, strict=True))
    how = _how(part) + ("" if tuned is None else " A fitted map goes first.")
    if vote is not None:
        how += " The last step adds the n-grams: it is the answer."
    last_RC = scores_in(run, reads[-1])
    return Lens(reading.outputs, tuple(names), how, last_RC, top, probability, rank, chosen, kl)


def _layer(run: Opened, read: Read, last: Read, reading: Reading) -> tuple[Tensor, ...]:
    scores_RC, last_RC = scores_in(run, read), scores_in(run, last)
    n_rows = len(scores_RC)
    if not read.is_likely:
        cosine_R = F.cosine_similarity(scores_RC.double(), last_RC.double(), dim=-1)
        none = scores_RC.new_zeros(n_rows, 0)
        nothing_R = scores_RC.new_zeros(n_rows)
        return none.long(), none, nothing_R.long(), cosine_R, nothing_R
    logs_RC = logs_in(read)(scores_RC.double())
    top = logs_RC.topk(min(TOP, logs_RC.shape[1]))
    ids_R1 = torch.tensor([output.id for output in reading.outputs])[:, None]
    chosen_R1 = logs_RC.gather(1, ids_R1)
    rank_R = 1 + (logs_RC > chosen_R1).sum(1)
    if read.apart is bernoulli:  # each label for itself
        kl_R = read.apart(scores_RC, last_RC, 1.0)
    else:
        last_logs_RC = last_RC.double().log_softmax(-1)
        kl_R = (last_logs_RC.exp() * (last_logs_RC - logs_RC)).sum(1)
    return top.indices, top.values.exp(), rank_R, chosen_R1.exp().squeeze(1), kl_R


def _how(part: StackPart) -> str:
    if part.stack.final_norm is not None:
        return "A layer's vectors go through the model's final norm, then to its own head."
    if isinstance(part.front, TextFront) and part.front.norm is not None:
        return (
            "Every layer of this model ends with a norm, and so does what comes in: vectors go "
            "straight to the head."
        )
    return (
        "Every layer of this model ends with a norm, so its vectors go straight to the head; what "
        "comes in has no norm and is taken as it is."
    )
