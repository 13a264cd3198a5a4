"""One optimizer step from any number of micro-batches, with CUDA graphs where possible.

Every micro-batch adds its summed loss divided by the number of targets of the whole step. The
gradient therefore does not depend on the micro-batches or on the number of ranks. A step whose loss
or gradient is not finite changes nothing and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.tasks.losses import LossOf
from headway.training.cuda_graph import GraphedStep
from headway.training.distributed import Distributed
from headway.training.optim import set_lr
from headway.training.tensor_lists import add_, scale_, zero_


@dataclass(frozen=True)
class ScaledBatch:
    """Batch and the factor that its summed loss is multiplied by. The factor is a tensor, so that a
    CUDA graph can read it."""

    batch: Any
    scale: Tensor


class Step:
    """Optimizer step with gradient accumulation: call `add` for each micro-batch, then `finish`."""

    def __init__(
        self,
        model: nn.Module,
        loss_of: LossOf,
        optimizer: torch.optim.Optimizer,
        ranks: Distributed,
        *,
        clip: float = 0.0,
        use_cuda_graph: bool = False,
    ) -> None:
        self.model, self.loss_of, self.optimizer = model, loss_of, optimizer
        self.ranks, self.clip, self.use_cuda_graph = ranks, clip, use_cuda_graph
        self.weights = [p for p in model.parameters() if p.requires_grad]
        device = ranks.device
        self.totals = torch.zeros(2, device=device, dtype=torch.float64)
        """Loss and negative log-likelihood of the current step, as means over its targets."""

        self.logged = torch.zeros(3, device=device, dtype=torch.float64)
        """Loss, negative log-likelihood and gradient norm of the last finished step."""

        self.bad = torch.zeros(2, device=device, dtype=torch.int64)
        """Number of consecutive skipped steps up to now, and number of skipped steps in total."""

        self.skip = torch.zeros((), device=device)
        self.sums: list[Tensor] = []
        """Gradients summed over the micro-batches. Used only with CUDA graphs; otherwise empty."""

        self._compute: Callable[[ScaledBatch], Any] | None = None
        self._update: Callable[[], object] | None = None

    def add(self, batch: Any, n_targets: int) -> None:
        scale = torch.tensor(1.0 / n_targets, device=self.ranks.device)
        scaled = ScaledBatch(batch, scale)
        if not self.use_cuda_graph:
            self._backward(scaled)
            return
        if self._compute is None:
            self._capture(scaled)
        assert self._compute is not None
        self._compute(scaled)

    def finish(self, lr: float) -> None:
        """Update the weights. If the loss or gradient is not finite, only count the step."""
        set_lr(self.optimizer, lr)
        gradients = self.sums if self.use_cuda_graph else self._gradients()
        self.ranks.sum_([*gradients, self.totals])
        if self._update is not None:
            self._update()
        else:
            self._step(gradients)

    def _gradients(self) -> list[Tensor]:
        for weight in self.weights:
            if weight.grad is None:  # a rank without micro-batches still takes part in the sum
                weight.grad = torch.zeros_like(weight)
        return [weight.grad for weight in self.weights if weight.grad is not None]

    def _backward(self, scaled: ScaledBatch) -> Tensor:
        loss, nll = self.loss_of(self.model, scaled.batch)
        loss = loss * scaled.scale
        loss.backward()
        self.totals += torch.stack([loss.detach(), nll.detach() * scaled.scale])
        return self.totals

    def _step(self, gradients: list[Tensor]) -> None:
        norm = torch.nn.utils.get_total_norm(gradients)
        self._count(norm)
        if self.skip.item() == 0:
            self._clip(gradients, norm)
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.totals.zero_()

    def _count(self, norm: Tensor) -> None:
        is_bad = ~(norm.isfinite() & self.totals.isfinite().all())
        self.skip.copy_(is_bad)
        self.logged.copy_(torch.stack([*self.totals, norm.double()]))
        self.bad.copy_(torch.stack([(self.bad[0] + 1) * is_bad, self.bad[1] + is_bad]))

    def _clip(self, gradients: list[Tensor], norm: Tensor) -> None:
        if self.clip:
            scale_(gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0))

    @torch.no_grad()
    def _put_back(self, before: list[Tensor], copies: list[Tensor]) -> None:
        known = {id(tensor) for tensor in before}
        for tensor, copy in zip(before, copies, strict=True):
            tensor.copy_(copy)
        for tensor in [*self._everything(), *self.sums]:
            if id(tensor) not in known:
                tensor.zero_()  # the initial state of an optimizer is zero

    def _capture(self, example: ScaledBatch) -> None:
        """Warm up, capture the CUDA graphs, and restore all weights and optimizer state."""
        before = self._everything()
        copies = [tensor.detach().clone() for tensor in before]
        self.sums = [torch.zeros_like(weight) for weight in self.weights]
        try:
            self._compute = GraphedStep(self._backward_into_sums, example)
            if _reads_found_inf(self.optimizer):
                self._update = GraphedStep(self._graph_step, example).replay
            else:
                self._update = self._host_step
        finally:  # also after running out of memory
            self._put_back(before, copies)

    def _everything(self) -> list[Tensor]:
        """Return all tensors that a step changes: weights, optimizer state and counters."""
        states = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor)
        ]
        return [*self.weights, *states, self.totals, self.logged, self.bad]

    def _backward_into_sums(self, scaled: ScaledBatch) -> Tensor:
        self._backward(scaled)
        add_(self.sums, self._gradients())
        self.optimizer.zero_grad()
        return self.totals

    def _graph_step(self, _: ScaledBatch) -> Tensor:
        """Update the weights without a synchronization. The optimizer reads on the device whether
        to skip the step."""
        for weight, total in zip(self.weights, self.sums, strict=True):
            weight.grad = total
        norm = torch.nn.utils.get_total_norm(self.sums)
        self._count(norm)
        self._clip(self.sums, norm)
        self.optimizer.found_inf = self.skip  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._clear()
        return self.skip

    def _host_step(self) -> None:
        for weight, total in zip(self.weights, self.sums, strict=True):
            weight.grad = total
        self._step(self.sums)
        self._clear()

    def _clear(self) -> None:
        zero_(self.sums)
        self.totals.zero_()


def _reads_found_inf(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer skips a step if `found_inf` is 1, as PyTorch's fused Adam
    does."""
    fused = all(group.get("fused") for group in optimizer.param_groups)
    return fused and isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW)
