"""A task without text, and a loop around it whose every event is written down.

Vectors and what a fixed matrix makes of them: nothing that a loop could mistake for translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.errors import Stopped
from headway.nn.feedforward import FeedForward
from headway.progress import SILENT, ProgressStage
from headway.settings.train import TrainSettings
from headway.specs.metrics import METRICS
from headway.tasks.dataset import EvalPass
from headway.tasks.objective import MicroBatch, TaskLoss
from headway.tasks.scores import Scores
from headway.training.average import Ema
from headway.training.checkpoint import Checkpoints, Snapshot
from headway.training.distributed import Distributed
from headway.training.feed import StepItem
from headway.training.loop import Loop, State
from headway.training.optim import build_optimizer

WIDTH, N, PER_STEP = 6, 22, 5
PER_EPOCH = 5
"""Steps; the last of an epoch is a small one."""


class ToyTask:
    """Predict the product with a matrix. `on_batch` and `on_evaluate` are for making trouble."""

    metric = METRICS["loss"]

    def __init__(self) -> None:
        noise = torch.Generator().manual_seed(7)
        self.x_NK = torch.randn(N, WIDTH, generator=noise)
        self.y_NK = self.x_NK @ torch.randn(WIDTH, WIDTH, generator=noise)
        self.scores: Callable[[float], dict[str, float]] = lambda loss: {"loss": loss}
        self.on_loss: Callable[[Tensor, Tensor], Tensor] = lambda loss, rows: loss
        self.on_batch: Callable[[MicroBatch], None] = lambda part: None
        self.on_evaluate: Callable[[], None] = lambda: None
        self.heeds = True
        """Whether an evaluation is given up when a stop is asked for."""

        self.cut_to: list[int] = []

    def epoch(self, number: int) -> list[list[int]]:
        order = np.random.default_rng([3, number]).permutation(N).tolist()
        return [order[first : first + PER_STEP] for first in range(0, N, PER_STEP)]

    def parts(self, step: list[int], micro_tokens: int) -> list[MicroBatch]:
        firsts = range(0, len(step), micro_tokens)
        rows = [step[first : first + micro_tokens] for first in firsts]
        self.cut_to.append(micro_tokens)
        return [MicroBatch(part, len(part)) for part in rows]

    def batch(self, part: MicroBatch, device: torch.device, fixed: Any) -> Tensor:
        self.on_batch(part)
        return torch.tensor(part.rows, device=device)

    def fixed(self, micro_tokens: int) -> None:
        return None

    def loss_of(self, model: nn.Module, batch: Tensor) -> TaskLoss:
        loss = (model(self.x_NK[batch]) - self.y_NK[batch]).square().sum()
        return TaskLoss(self.on_loss(loss, batch), loss)

    n_valid = n_quick = N

    def evaluate(self, asked: EvalPass) -> Scores:
        assert not asked.model.training
        assert not torch.is_grad_enabled()
        self.on_evaluate()
        if self.heeds and asked.should_stop():
            raise Stopped
        n = N if asked.max_examples is None else min(N, asked.max_examples)
        return Scores(values=self.scores(float(self.loss_of(asked.model, torch.arange(n)).nll) / n))


class Events:
    """A log that keeps everything, and a list of what happened in which order."""

    def __init__(self) -> None:
        self.order: list[tuple[str, int]] = []
        self.said: list[str] = []
        self.entries: list[dict[str, Any]] = []

    def numbers(self, kind: str, step: int, **values: Any) -> None:
        self.order.append((kind, step))
        self.entries.append({"kind": kind, "step": step, **values})

    def event(self, step: int, text: str) -> None:
        self.order.append(("event", step))
        self.said.append(text)

    def stage(self, what: str) -> ProgressStage:
        return SILENT.stage(what)

    def of(self, kind: str) -> list[int]:
        return [step for k, step in self.order if k == kind]

    def values(self, kind: str, name: str) -> list[Any]:
        return [entry[name] for entry in self.entries if entry["kind"] == kind]


class LoggedCheckpoints(Checkpoints):
    def __init__(self, folder: Path, keep: int, events: Events) -> None:
        super().__init__(folder, keep, events.said.append)
        self.events = events

    def save(self, snapshot: Snapshot, *, best: bool = False, passing: bool = False) -> Path | None:
        kind = "pass" if passing else "best" if best else "save"
        self.events.order.append((kind, snapshot.step))
        return super().save(snapshot, best=best, passing=passing)


SETTINGS: dict[str, Any] = {
    "steps": 12,
    "batch_tokens": PER_STEP,
    "micro_tokens": PER_STEP,
    "eval_every": 4,
    "save_every": 2,
    "lr": 0.02,
    "precision": "fp32",
    "max_bad_steps": 3,
}


def toy_loop(
    folder: Path,
    *,
    task: ToyTask | None = None,
    stop_asked: Callable[[], bool] = lambda: False,
    dropout: float = 0.0,
    on_bad: Callable[[StepItem, State], None] = lambda item, state: None,
    **settings: Any,
) -> Loop:
    """A new model and all around it, as a new process would make it; `log` is an `Events`."""
    train = TrainSettings(**(SETTINGS | settings))
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), FeedForward(WIDTH, 8, "gelu", dropout=dropout), nn.Dropout(dropout)
    )
    log = Events()
    task = task or ToyTask()
    return Loop(
        objective=task,
        loss_of=task.loss_of,
        model=model,
        optimizer=build_optimizer(model, train, device="cpu"),
        lr_at=lambda step: train.lr or 0.0,
        settings=train,
        ranks=Distributed(),
        checkpoints=LoggedCheckpoints(folder, train.keep, log),
        log=log,
        stop_requested=stop_asked,
        on_bad=on_bad,
        ema=Ema(model, train.ema) if train.ema else None,
    )


def run_until_done(make: Callable[[], Loop], most: int = 30) -> Loop:
    """As a user would: the same command again after every stop."""
    for _ in range(most):
        loop = make()
        loop.resume()
        with suppress(Stopped):
            loop.run()
            return loop
    raise AssertionError("it stops for ever")


def weights(loop: Loop) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in loop.model.parameters()])


def steps_of(folder: Path) -> list[int]:
    """The checkpoints that lie there."""
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))


def contents(folder: Path) -> dict[str, bytes]:
    paths: Iterable[Path] = sorted((folder / "checkpoints").rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.is_file()}
