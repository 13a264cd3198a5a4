"""Training loop for any modality: steps, gradients, evaluations, checkpoints and ranks.

The next step depends only on `State` and the weights. A cursor in `State` determines the data, and
the number of the step determines the random numbers. A run that was killed therefore resumes as if
it had not been interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import nn

from headway.errors import Stopped, UserError, out_of_memory
from headway.models.folder import load_weights, model_weights
from headway.nn.eval_mode import evaluating
from headway.nn.stack import stacks
from headway.progress import ProgressStage
from headway.settings.train import ResolvedTrain
from headway.tasks.custom_metrics import MetricFailed
from headway.tasks.dataset import EvalPass
from headway.tasks.losses import LossOf
from headway.tasks.objective import Objective
from headway.tasks.scores import Scores
from headway.training.average import Ema
from headway.training.budget import Budget, Decision
from headway.training.checkpoint import Checkpoints, Snapshot
from headway.training.distributed import Distributed
from headway.training.feed import Cursor, Prefetcher, StepItem, part_tokens
from headway.training.no_learning import Plateau
from headway.training.optim import load_optimizer_tensors, optimizer_tensors
from headway.training.schedule import schedule_steps
from headway.training.step import Step
from headway.training.threads import ThreadPlan


@dataclass
class State:
    """Progress of training, stored in every checkpoint."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    targets: int = 0
    """Number of targets trained on so far: tokens, words or texts."""

    tokens: int = 0
    """Number of tokens read so far. In translation, only target tokens count."""

    evaluated: int = 0
    """Step of the last evaluation."""

    best: list[float] | None = None
    """Metric and loss of the best evaluation, with signs such that higher is better. None before
    the first evaluation."""

    best_step: int = 0
    best_examples: int | None = None
    """Number of examples of the best evaluation, if a time budget chose it; None otherwise. A score
    on more examples replaces one on fewer."""

    without_gain: int = 0
    micro_tokens: int = 0
    bad_in_a_row: int = 0
    bad_steps: int = 0
    ended: str = ""
    """Reason that the `get_end_reason` callback gave for ending before the last step; empty if it
    gave none."""

    plan: dict[str, Any] | None = None
    """Current plan of a run with a time budget; None without a budget."""

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.epoch, self.index)


class Log(Protocol):
    """Interface of the loop's output, which may be log files, a progress bar, or nothing."""

    def numbers(self, kind: str, step: int, **values: Any) -> None: ...

    def event(self, step: int, text: str) -> None: ...

    def stage(self, what: str) -> ProgressStage: ...


class Diverged(UserError):
    """Error: too many consecutive steps had a loss or gradient that is not finite."""


@dataclass(kw_only=True)
class Loop:
    objective: Objective[Any]
    loss_of: LossOf
    model: nn.Module
    optimizer: torch.optim.Optimizer
    lr_at: Callable[[float], float]
    """Learning rate as a function of the step, for a run of `settings.steps` steps. If a budget
    changes the number of steps, the function is evaluated at the completed fraction of the
    schedule, which has `schedule_steps` steps."""

    settings: ResolvedTrain
    """Training settings in which all values are chosen, including steps, batch sizes, intervals and
    precision."""

    ranks: Distributed
    checkpoints: Checkpoints
    log: Log
    stop_requested: Callable[[], bool]
    use_cuda_graph: bool = False
    on_bad: Callable[[StepItem, State], None] = lambda item, state: None
    ema: Ema | None = None
    plateau: Plateau | None = None
    budget: Budget | None = None
    threads: ThreadPlan | None = None
    get_end_reason: Callable[[], str] | None = None
    """Callback that returns the reason for ending training, or empty text to continue. It is called
    on rank 0."""

    def __post_init__(self) -> None:
        self.state = State(micro_tokens=self.settings.micro_tokens)
        self.steps = self.settings.steps
        self.check_every = 1 if self.ranks.device.type == "cpu" else 16
        """Number of steps between two synchronizations with the device."""

        self.log_every = max(1, min(50, self.steps // 100))
        self.saved = 0
        self.shrunk = False
        self.last_item: StepItem | None = None
        self.plan: Decision | None = None

    def resume(self) -> bool:
        """Resume from the newest undamaged checkpoint. Return whether there is one."""
        snapshot = self.checkpoints.newest()
        if snapshot is None:
            return False
        load_weights(self.model, snapshot.tensors["model"])
        load_optimizer_tensors(self.optimizer, snapshot.tensors["optimizer"])
        if self.ema is not None:
            self.ema.load(snapshot.tensors["ema"])
        self.state = State(**snapshot.state)
        if self.budget is not None:
            assert self.state.plan is not None
            self.plan = Decision(**self.state.plan)
            self.steps = self.plan.steps
        # A transient checkpoint does not replace the regular checkpoint that is due at its step.
        self.saved = 0 if snapshot.transient else self.state.step
        return True

    def run(self) -> State:
        """Train until the last step, or until early stopping. Raises `Stopped` on a stop signal."""
        self.step = self._new_step()
        feed = self._new_feed()
        self._rest(feed)
        try:
            while True:
                self._plan()
                if self.threads is not None and self.threads.update(self.state.step):
                    self._rest(feed)
                self._evaluate_and_save(feed)
                if self.state.step >= self.steps or self._should_end():
                    return self.state
                self._check()
                feed = self._one_step(feed)
        except Stopped:
            self.save(passing=True)
            self.ranks.wait()  # a launcher ends the others as soon as one has left
            raise
        except MetricFailed:
            self.save(passing=True)
            raise
        finally:
            feed.close()

    def _plan(self) -> None:
        """Plan the number of steps and the next evaluation of a run with a time budget. Rank 0
        reads the clock and decides for all ranks."""
        step, plan = self.state.step, self.plan
        if self.budget is None or (plan is not None and not plan.looks(step)):
            return
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize()  # otherwise only kernel launches would be timed
        mine = self.budget.decide(step, plan) if self.ranks.is_first else None
        if self.ranks.any(mine is not None):
            decision = self.ranks.broadcast(mine)
            assert isinstance(decision, Decision)
            self._follow(decision)

    def _follow(self, decision: Decision) -> None:
        self.plan, self.steps = decision, decision.steps
        self.state.plan = asdict(decision)
        self.log.numbers("plan", decision.step, steps=decision.steps)

    def _rate(self, step: int) -> float:
        plan, steps = self.plan, self.settings.steps
        if plan is None or step <= plan.warmup:
            return self.lr_at(step)
        if plan.warmup:
            steps = schedule_steps(self.settings)
        return self.lr_at(plan.warmup + plan.progress_at(step) * (steps - plan.warmup))

    def _should_end(self) -> bool:
        state = self.state
        enough = bool(self.settings.patience) and state.without_gain >= self.settings.patience
        if enough:
            text = f"stopped early: no improvement in {state.without_gain} evaluations"
            self.log.event(state.step, text)
        return enough or self._was_ended()

    def _was_ended(self) -> bool:
        """Return whether the `get_end_reason` callback has ended the run, now or before it was
        resumed."""
        state = self.state
        if state.ended or self.get_end_reason is None or state.step % self.check_every:
            return bool(state.ended)
        mine = self.get_end_reason() if self.ranks.is_first else ""
        if not self.ranks.any(bool(mine)):
            return False
        state.ended = str(self.ranks.broadcast(mine))
        self.log.event(state.step, f"stopped early: {state.ended}")
        regular = self.saved == state.step  # that checkpoint lacks the reason
        self.save(best=regular and state.best_step == state.step, passing=not regular)
        return True

    def _one_step(self, feed: Prefetcher) -> Prefetcher:
        number = self.state.step + 1
        self.model.train()
        _seed(self.settings.seed, number, self.ranks.rank)
        try:
            item = next(feed)
            for batch in item.batches:
                self.step.add(batch, item.n_targets)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return self._halve_micro_batches(feed, error)
        self.step.finish(self._rate(number))
        if self.ema is not None:
            self.ema.update()
        state = self.state
        state.step, (state.epoch, state.index) = number, item.after
        state.targets += item.n_targets
        state.tokens += item.n_tokens
        self.last_item = item
        if number % self.log_every == 0 or number == self.steps:
            self._log(feed)
        return feed

    def _halve_micro_batches(self, feed: Prefetcher, error: BaseException) -> Prefetcher:
        """Halve the size of micro-batches after running out of memory, and repeat the step with the
        same examples."""
        tokens = self.state.micro_tokens // 2
        if self.ranks.world > 1 or tokens < 1 or self.shrunk:
            raise UserError(
                f"out of memory with micro-batches of {self.state.micro_tokens} target tokens "
                f"({str(error) or type(error).__name__}). "
                f"Set train.micro_tokens={max(1, tokens)}: the effective batch size stays the same."
            ) from error
        self.shrunk = True
        self.log.event(
            self.state.step,
            f"out of memory: continuing with micro-batches of {tokens} target tokens; the "
            "effective batch size stays the same",
        )
        feed.close()
        self._count_bad()
        self.state.micro_tokens = tokens
        self.optimizer.zero_grad()
        self.step = self._new_step()
        if self.ranks.device.type == "cuda":
            torch.cuda.empty_cache()
        return self._new_feed()

    def _check(self) -> None:
        """Raise `Stopped` after a stop signal, or `Diverged` after too many consecutive steps with
        a loss or gradient that is not finite."""
        if self.state.step % self.check_every:
            return
        if self.ranks.any(self.stop_requested()):
            raise Stopped
        self._count_bad()
        if self.state.bad_in_a_row >= self.settings.max_bad_steps:
            if self.last_item is not None:  # None: the run was resumed in this state
                self.on_bad(self.last_item, self.state)
            raise Diverged(
                f"stopped at step {self.state.step}: {self.state.bad_in_a_row} steps in a row had "
                f"a loss or gradient that was not finite. The last examples are in "
                f"bad-batch.json. Try a lower train.lr, train.clip=1, or train.precision=fp32."
            )

    def _count_bad(self) -> None:
        """Read the number of skipped steps from the device, and log those that are new."""
        state, (in_a_row, in_all) = self.state, self.step.bad.tolist()
        if new := in_all - state.bad_steps:
            text = f"{new} step{'s' * (new > 1)} skipped: the loss or gradient is not finite"
            self.log.event(state.step, text)
        state.bad_in_a_row, state.bad_steps = in_a_row, in_all

    def _evaluate_and_save(self, feed: Prefetcher) -> None:
        """Evaluate and save, if that is due at this step and was not done before the run was
        resumed."""
        state, settings = self.state, self.settings
        last = state.step == self.steps
        is_best = False
        evaluate_now = state.step % settings.eval_every == 0
        save_now = state.step % settings.save_every == 0
        if self.plan is not None and self.budget is not None:
            evaluate_now = state.step == self.plan.until
            every = self.budget.unlimited.save_every
            save_now = evaluate_now if every is None else state.step % every == 0
        if state.evaluated < state.step and (last or evaluate_now):
            is_best = self._evaluate(feed)
        if (last or is_best or save_now) and self.saved < state.step:
            start = time.perf_counter()
            self.save(best=is_best)
            if self.budget is not None:
                self.budget.saved(time.perf_counter() - start)
            self._rest(feed)

    def _evaluate(self, feed: Prefetcher) -> bool:
        """Evaluate, and return whether the result is the best so far. Only rank 0 evaluates; all
        ranks receive the result."""
        start = time.perf_counter()
        scores = self._scores() if self.ranks.is_first else None
        heard = self.ranks.broadcast(
            (dict(scores), scores.examples) if scores is not None else None
        )
        if not isinstance(heard, tuple):
            raise Stopped
        values, examples = heard
        state = self.state
        state.evaluated = state.step
        if not values:
            self.log.event(state.step, "evaluation skipped: the budget has no time for it")
            self._rest(feed)
            return False
        rank = ranking(values, self.objective)
        gained = state.best is None or rank > tuple(state.best)
        if examples is not None:  # the best on fewer examples need not be the best on more
            gained = gained or examples > (state.best_examples or 0)
        if gained:
            state.best, state.best_step, state.without_gain = list(rank), state.step, 0
            state.best_examples = examples
        else:
            state.without_gain += 1
        if scores is not None:
            seconds = time.perf_counter() - start
            about = {} if examples is None else {"examples": examples}
            self.log.numbers(
                "valid", state.step, **values, best=gained, seconds=seconds,
                samples=scores.samples, figures=scores.figures, **about,
            )  # fmt: skip
        self._rest(feed)
        return gained

    def _scores(self) -> Scores | None:
        """Evaluate the model on this rank and return the scores. None: a stop was requested.
        `Stopped` is not raised here, because the other ranks must learn of the stop before this one
        exits. The scores are empty if a budget has no time for an evaluation."""
        try:
            with self.averaged():
                if self.budget is None:
                    return self.evaluate("evaluating", full=False)
                return self._scores_in_time(self.budget)
        except Stopped:
            return None

    def _scores_in_time(self, budget: Budget) -> Scores:
        assert self.plan is not None
        step, examples = self.state.step, self.plan.examples
        while examples:
            examples, deadline = budget.evaluation(step, examples)
            if not examples:
                break
            start = budget.now()
            scores = self.evaluate("evaluating", full=False, most=examples, deadline=deadline)
            seconds = budget.now() - start
            if scores is not None:
                budget.evaluated(examples, seconds)
                return scores.updated(examples=examples)
            examples = budget.aborted(step, examples, seconds)
        return Scores({})

    def evaluate(
        self,
        what: str,
        *,
        full: bool,
        most: int | None = None,
        deadline: float | None = None,
        calibrate: bool = False,
    ) -> Scores | None:
        """Evaluate the model and return the scores. None: the deadline passed. Raises `Stopped` on
        a stop signal.

        `what`: text for the progress display.
        """

        def asked() -> bool:
            late = self.budget is not None and deadline is not None and self.budget.now() > deadline
            return late or self.stop_requested()

        try:
            with (
                torch.no_grad(),
                evaluating([self.model]),
                interrupting(self.model, asked) as stopped,
                self.log.stage(what) as stage,
            ):
                return self.objective.evaluate(
                    EvalPass(
                        self.model, self.ranks.device, full, most, stage.update,
                        calibrate=calibrate, should_stop=stopped,
                    )
                )  # fmt: skip
        except Stopped:
            if self.stop_requested():
                raise
            return None

    def save(self, best: bool = False, passing: bool = False) -> None:
        """Save a checkpoint.

        `passing`: the checkpoint is only for resuming, as after a stop signal, and is removed
        later.
        """
        self.saved = self.state.step
        self._count_bad()
        if not self.ranks.is_first:
            return
        tensors = {
            "model": model_weights(self.model),
            "optimizer": optimizer_tensors(self.optimizer),
        }
        if self.ema is not None:
            tensors["ema"] = self.ema.tensors()
        snapshot = Snapshot(self.state.step, tensors, asdict(self.state))
        self.checkpoints.save(snapshot, best=best, passing=passing)

    def averaged(self) -> Any:
        """Context manager in which the model has its averaged weights; its own weights if there is
        no moving average."""
        return nullcontext() if self.ema is None else self.ema.swap()

    def _new_step(self) -> Step:
        step = Step(
            self.model,
            self.loss_of,
            self.optimizer,
            self.ranks,
            clip=self.settings.clip,
            use_cuda_graph=self.use_cuda_graph,
        )
        step.bad.copy_(torch.tensor([self.state.bad_in_a_row, self.state.bad_steps]))
        return step

    def _new_feed(self) -> Prefetcher:
        tokens = part_tokens(self.state.micro_tokens, self.settings.batch_tokens, self.ranks)
        self.fixed = self.objective.fixed(tokens) if self.use_cuda_graph else None
        return Prefetcher(self.objective, self.state.cursor, tokens, self.ranks, self.fixed)

    def _padding(self) -> float:
        """Return the fraction of padding among the computed tokens. It is 0 unless batches have a
        fixed size."""
        item = self.last_item
        if self.fixed is None or item is None or not item.batches:
            return 0.0
        room = len(item.batches) * self.fixed.rows
        return max(0.0, 1.0 - sum(part.n_tokens for part in item.parts) / room)

    def _rest(self, feed: Prefetcher) -> None:
        """Restart the timing of steps for the budget, after other work."""
        self._clock(feed)
        if self.budget is not None:
            self.budget.mark(self.state.step)

    def _clock(self, feed: Prefetcher) -> None:
        """Restart the measurement of speed, so that evaluations do not count as training time."""
        self._since = (time.perf_counter(), self.state.tokens, feed.waited)

    def _log(self, feed: Prefetcher) -> None:
        loss, nll, norm = self.step.logged.tolist()
        start, tokens, waited = self._since
        now = time.perf_counter()
        self.log.numbers(
            "train",
            self.state.step,
            epoch=self.state.epoch,
            loss=loss,
            nll=nll,
            lr=self._rate(self.state.step),
            grad_norm=norm,
            padding=self._padding(),
            tokens_per_s=(self.state.tokens - tokens) / max(now - start, 1e-9),
            stall=(feed.waited - waited) / max(now - start, 1e-9),
            skipped=self.state.bad_steps,
        )
        if self.plateau is not None and (warning := self.plateau.record(self.state.step, nll)):
            self.log.event(self.state.step, warning)
        self._clock(feed)


def ranking(values: Mapping[str, float], objective: Objective[Any]) -> tuple[float, float]:
    """Return the sort key of an evaluation: the metric, then the loss to break ties. Signs are such
    that higher is better."""
    sign = -1.0 if objective.metric.lower else 1.0
    first, second = (
        key if math.isfinite(key) else -math.inf
        for key in (sign * values[objective.metric.name], -values["loss"])
    )
    return first, second


@contextmanager
def interrupting(model: nn.Module, asked: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
    """Context manager that makes a model interruptible. When `asked` returns true, the next forward
    pass raises `Stopped`, even within a beam search.

    Yields `asked`, for checks between forward passes.
    """

    def listen(*_: object) -> None:
        if asked():
            raise Stopped

    hooks = [stack.register_forward_pre_hook(listen) for _, stack in stacks(model)]
    try:
        yield asked
    finally:
        for hook in hooks:
            hook.remove()


def _seed(seed: int, step: int, rank: int) -> None:
    """Seed the random numbers of a step from its number, so that no generator state has to be
    stored."""
    torch.manual_seed((seed * 1_000_003 + step) * 4099 + rank)
