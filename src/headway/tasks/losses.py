"""Training losses: the task's own loss, R-Drop and distillation, and the losses of output heads.

Each loss is a sum over the targets of the batch; the training step divides it by their number.
R-Drop and distillation need only the outputs of a model (`Read`), so they work for every task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.models.parts.counted import NgramLMHead
from headway.models.parts.output_heads import LMHead, MaskedLMHead
from headway.nn.divergence import softmax_divergence
from headway.nn.loss import LabelSmoothing
from headway.nn.tap import record
from headway.settings.run import RunSettings
from headway.settings.start import DistilSettings
from headway.tasks.dataset import Batch
from headway.tasks.objective import Objective, TaskLoss
from headway.tasks.readout import Read

LossOf = Callable[[nn.Module, Any], TaskLoss]

PLAIN = LabelSmoothing(1.0, 0.0)
"""Label smoothing switched off: plain negative log-likelihood."""

CHUNK_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Maximum size in bytes of the logits of teacher or student that are in memory at once, by device
type."""


def loss_for(
    objective: Objective[Any], settings: RunSettings, teacher: nn.Module | None = None
) -> LossOf:
    """Return the loss function of a run: distillation if there is a teacher, R-Drop if the settings
    enable it, otherwise the task's own loss."""
    if teacher is not None:
        return distil(objective, teacher, settings.distil)
    return rdrop(objective, settings.train.rdrop) if settings.train.rdrop else plain(objective)


def plain(objective: Objective[Any]) -> LossOf:
    """Return the task's own loss, without R-Drop or distillation."""

    def loss(model: nn.Module, batch: Batch[Any]) -> TaskLoss:
        given = objective.augment(model, batch)
        return objective.loss(objective.read(model, given), given)

    return loss


def rdrop(objective: Objective[Any], weight: float) -> LossOf:
    """Return the R-Drop loss (Liang et al. 2021), which runs two passes with different dropout and
    penalizes the divergence of their predictions.

    It is ½ (loss₁ + loss₂) + weight/4 (KL(1‖2) + KL(2‖1)): half of the paper's loss, which is a sum
    over the two passes.
    """
    usual = plain(objective)

    def loss(model: nn.Module, batch: Batch[Any]) -> TaskLoss:
        if not model.training:
            return usual(model, batch)
        given = objective.augment(model, batch)
        reads = [objective.read(model, given).with_cached_log_probs() for _ in range(2)]
        one, two = (objective.loss(read, given) for read in reads)
        total = (one.sum + two.sum) / 2 + weight / 4 * _disagreement(*reads)
        return TaskLoss(total, (one.nll + two.nll) / 2)

    return loss


def _disagreement(one: Read, two: Read) -> Tensor:
    """Return the symmetric KL divergence between two passes with different dropout, as a weighted
    sum over all heads."""
    total = torch.zeros((), device=one.x_RD.device)
    for name, read in one.heads.items():
        other = two.heads[name]
        if read.divergence is softmax_divergence:
            p_RC, q_RC = read.log_probs(), other.log_probs()
            apart_R = _kl(p_RC, q_RC) + _kl(q_RC, p_RC)
        else:
            p_RC, q_RC = read.logits_RC, other.logits_RC
            apart_R = read.divergence(p_RC, q_RC, 1.0) + read.divergence(q_RC, p_RC, 1.0)
        total = total + read.loss_weight * _weighted(apart_R, read)
    return total


def _kl(p_RC: Tensor, q_RC: Tensor) -> Tensor:
    """Return KL(p ‖ q) at each position, given log-probabilities."""
    return F.kl_div(q_RC, p_RC, reduction="none", log_target=True).sum(-1)


def distil(objective: Objective[Any], teacher: nn.Module, settings: DistilSettings) -> LossOf:
    """Return the distillation loss: a weighted sum of the task's own loss, the divergence between
    student and teacher on the same batch, and the cosine distances of their hidden states."""

    def listened(model: nn.Module) -> AbstractContextManager[Mapping[str, Sequence[Tensor]]]:
        return record(model, "given", gradients=True) if settings.between else nullcontext({})

    def loss(model: nn.Module, batch: Batch[Any]) -> TaskLoss:
        given = objective.augment(model, batch)
        with listened(model) as mine:
            student = objective.read(model, given)
        with torch.no_grad(), listened(teacher) as its:
            aims = objective.read(teacher, given)
        hard = objective.loss(student, given)
        total = settings.hard * hard.sum
        if settings.soft:
            total = total + settings.soft * soft_loss(student, aims, settings.temperature)
        if settings.cosine:
            total = total + settings.cosine * cosine_loss(student, aims)
        if settings.between:
            total = total + settings.between * between_loss(mine, its, student)
        return TaskLoss(total, hard.nll)

    return loss


def soft_loss(student: Read, teacher: Read, temperature: float) -> Tensor:
    """Return the divergence of the student's predictions from the teacher's, as a weighted sum over
    all heads."""
    losses = [
        read.loss_weight * _head_divergence(read, teacher.heads[name], temperature)
        for name, read in student.heads.items()
    ]
    return losses[0] if len(losses) == 1 else torch.stack(losses).sum()


def _head_divergence(student: Read, teacher: Read, temperature: float) -> Tensor:
    """Return the divergence of one head's predictions from the teacher's, summed over positions.

    To save memory, logits over a vocabulary are computed in chunks, and computed again in the
    backward pass.
    """
    if student.small_output:
        with torch.no_grad():
            aims_RC = teacher.logits_RC
        return _weighted(student.divergence(student.logits_RC, aims_RC, temperature), student)

    def chunk(s_RD: Tensor, t_RD: Tensor, weights_R: Tensor) -> Tensor:
        with torch.no_grad():
            aims_RC = teacher.scores(t_RD)
        return (student.divergence(student.scores(s_RD), aims_RC, temperature) * weights_R).sum()

    rows = (student.x_RD, teacher.x_RD, _weights(student))
    with torch.no_grad():
        width = teacher.scores(rows[1][:1]).shape[-1]
    limit = max(1, CHUNK_BYTES.get(rows[0].device.type, 1 << 26) // (4 * width))
    if len(rows[0]) <= limit:
        return chunk(*rows)
    total = student.x_RD.new_zeros((), dtype=torch.float32)
    for part in zip(*(x.split(limit) for x in rows), strict=True):
        # Heads over a vocabulary use no random numbers, so checkpointing need not restore a random
        # state.
        total = total + checkpoint(chunk, *part, use_reentrant=False, preserve_rng_state=False)
    return total


def cosine_loss(student: Read, teacher: Read) -> Tensor:
    """Return the cosine loss on the last hidden states: the mean of 1 − cos between student and
    teacher. It is multiplied by the number of targets, because losses are sums."""
    weights_R = _weights(student)
    s_ND, t_ND, real_N = student.x_RD, teacher.x_RD, weights_R
    if student.real_N is not None:
        assert student.states_ND is not None
        assert teacher.states_ND is not None
        s_ND, t_ND, real_N = student.states_ND, teacher.states_ND, student.real_N
    return _cosine_distance(s_ND, t_ND, real_N) * weights_R.sum()


def between_loss(
    student: Mapping[str, Sequence[Tensor]], teacher: Mapping[str, Sequence[Tensor]], read: Read
) -> Tensor:
    """Return the cosine loss on intermediate layers: the mean of 1 − cos between the input of each
    student layer and that of the teacher layer from which it was initialized.

    It is averaged over layers and multiplied by the number of targets, because losses are sums.
    """
    apart = []
    for name, given in student.items():
        for number, pick in enumerate(pick_layers(len(given), len(teacher[name]))):
            s_ND, real_N = given[number], read.real_N
            if real_N is None or len(real_N) != len(s_ND):  # weights of another stream
                real_N = torch.ones(len(s_ND), device=s_ND.device)
            apart.append(_cosine_distance(s_ND, teacher[name][pick], real_N))
    return torch.stack(apart).mean() * _weights(read).sum()


def _cosine_distance(s_ND: Tensor, t_ND: Tensor, real_N: Tensor) -> Tensor:
    cos_N = F.cosine_similarity(s_ND.float(), t_ND.float(), dim=-1)
    return ((1.0 - cos_N) * real_N).sum() / real_N.sum().clamp(min=1.0)


def _weights(read: Read) -> Tensor:
    if read.weights_R is not None:
        return read.weights_R
    return torch.ones(len(read.x_RD), device=read.x_RD.device)


def _weighted(price_R: Tensor, read: Read) -> Tensor:
    return (price_R if read.weights_R is None else price_R * read.weights_R).sum()


def label_loss(read: Read, labels_R: Tensor, smoothing: LabelSmoothing) -> TaskLoss:
    """Return the cross-entropy with one label per position and label smoothing."""
    logs_RC = read.log_probs()
    return _priced(-logs_RC.gather(1, labels_R[:, None])[:, 0], logs_RC, read, smoothing)


def shared_loss(read: Read, targets_RC: Tensor, smoothing: LabelSmoothing) -> TaskLoss:
    """Return the cross-entropy with a target distribution over labels at each position, and label
    smoothing."""
    logs_RC = read.log_probs()
    return _priced(-(targets_RC * logs_RC).sum(-1), logs_RC, read, smoothing)


def _priced(nll_R: Tensor, logs_RC: Tensor, read: Read, smoothing: LabelSmoothing) -> TaskLoss:
    right, wrong = smoothing
    loss_R = (right - wrong) * nll_R - wrong * logs_RC.sum(-1)
    return TaskLoss(_weighted(loss_R, read), _weighted(nll_R.detach(), read))


def sets_loss(read: Read, aims_RC: Tensor, smoothing: float) -> TaskLoss:
    """Return the binary cross-entropy of multi-label targets, averaged over the labels."""
    scores_RC = read.logits_RC
    soft_RC = aims_RC * (1 - smoothing) + smoothing / 2
    loss_R, nll_R = (
        F.binary_cross_entropy_with_logits(scores_RC, aims, reduction="none").mean(-1)
        for aims in (soft_RC, aims_RC)
    )
    return TaskLoss(_weighted(loss_R, read), _weighted(nll_R.detach(), read))


def number_loss(read: Read, aims_RC: Tensor) -> TaskLoss:
    """Return the squared error of predicted numbers."""
    away_R = (read.logits_RC - aims_RC).square().mean(-1)
    return TaskLoss(_weighted(away_R, read), _weighted(away_R.detach(), read))


def word_loss(read: Read, labels_R: Tensor, smoothing: LabelSmoothing) -> TaskLoss:
    """Return the cross-entropy over a vocabulary. Logits are computed in chunks, unless `read`
    already holds all log-probabilities."""
    if read.cached_log_probs_RC is not None:
        return label_loss(read, labels_R, smoothing)
    head = read.scores
    assert isinstance(head, LMHead | MaskedLMHead | NgramLMHead)
    return TaskLoss(*head.loss(read.x_RD, labels_R, smoothing, read.weights_R))


def pick_layers(student: int, teacher: int) -> list[int]:
    """Return the indices of the teacher layers from which a student's layers are initialized. For
    half as many layers, this is every other layer."""
    return [number * teacher // student for number in range(student)]
