"""Trainer, which combines a model with its objective, optimizer and loop, and the choice of the
final weights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.errors import ConfigError, FolderError, Stopped
from headway.models.build import build_model
from headway.models.folder import load_weights, model_weights
from headway.models.parts.front import set_compute_dtype
from headway.models.parts.output_heads import apply_temperature
from headway.models.summary import meta_model
from headway.nn.attention.additive import AdditiveAttention
from headway.nn.attention.attend import suits_short
from headway.nn.attention.attention import Attention
from headway.nn.eval_mode import evaluating
from headway.nn.recurrence import Recurrence
from headway.nn.sha_rnn import SingleHead
from headway.nn.stack import stacks
from headway.progress import SILENT, Progress
from headway.settings.run import Resolved
from headway.settings.task_rows import spec_of
from headway.storage import replace_text
from headway.tasks.custom_metrics import CustomMetric, with_metrics
from headway.tasks.dataset import EvalPass
from headway.tasks.distil import compare, load_teacher
from headway.tasks.format import comparison_lines
from headway.tasks.losses import loss_for
from headway.tasks.objective import Objective
from headway.tasks.scores import Baselines, Scores, advice, standings
from headway.tasks.task import Note, make_task
from headway.training import estimate as plan
from headway.training.average import Ema, average_of, newest_undamaged
from headway.training.budget import FEW, PATIENCE, Budget, Final
from headway.training.checkpoint import Checkpoints
from headway.training.distributed import Distributed
from headway.training.feed import Cursor, StepItem, iter_steps, part_tokens
from headway.training.initial_weights import (
    initialize_weights,
    lr_scales,
    merge_adapters,
    set_trainable,
)
from headway.training.log import RunLog
from headway.training.loop import Loop, State, interrupting, ranking
from headway.training.no_learning import Plateau
from headway.training.optim import build_optimizer
from headway.training.schedule import learning_rate, schedule_steps
from headway.training.step import Step
from headway.training.threads import ThreadPlan

COMPILE_S = 60.0
"""Approximate duration of compiling a model in seconds. By default, a model is compiled only for
runs that take several times as long."""


LATE = 0.6
"""Fraction of all steps. If the best evaluation is later than this, more steps may help."""

CELLS = 8
"""Maximum size of a padded batch, as a multiple of its number of tokens, for layers that need
padding in a CUDA graph. With more padding, the graph does not save time."""


class Trainer:
    """Model with everything that trains it: objective, loss, teacher and optimizer."""

    def __init__(
        self,
        settings: Resolved,
        prepared: Any,
        ranks: Distributed,
        note: Note | None = None,
        *,
        compiled: bool = True,
        own: Mapping[str, CustomMetric] | None = None,
        by: str = "",
    ) -> None:
        """Build the model and its optimizer.

        `note`: called with lines about the initial weights; None if the weights come from a
        checkpoint. `compiled`: compile the model if that saves time, which it does not in a trial.
        `own`: user-defined metrics. `by`: name of the user-defined metric that selects the best
        weights; empty: a metric of the task does.
        """
        self.settings, self.prepared, self.ranks = settings, prepared, ranks
        train, device = settings.train, ranks.device
        self.objective: Objective[Any] = with_metrics(
            make_task(spec_of(settings)).objective(settings, prepared), own or {}, by
        )
        self.no_graph_reason = self._why_no_graph() if device.type == "cuda" else ""
        """Reason why steps on a GPU run without a CUDA graph. Empty if they use one, and on a
        CPU."""
        self.use_cuda_graph = device.type == "cuda" and not self.no_graph_reason
        self.model = build_model(settings.model, device=device, seed=train.seed)
        if note is not None:
            initialize_weights(self.model, settings, prepared, note)
            self.objective.begin(self.model, note)
        set_trainable(self.model, settings)
        if train.precision == "bf16":
            set_compute_dtype(self.model, torch.bfloat16)
        self.teacher: nn.Module | None = None
        if settings.distil.teacher and not spec_of(settings).by_sequence:
            self.teacher = load_teacher(settings, device)
        self.loss_of = loss_for(self.objective, settings, self.teacher)
        self.optimizer = build_optimizer(
            self.model,
            train,
            device=device,
            capturable=self.use_cuda_graph,
            scales=lr_scales(self.model, settings.start.layer_decay),
        )
        if compiled and self._should_compile():
            self.compile()
        if train.gradient_checkpointing:
            for _, stack in stacks(self.model):
                stack.recompute_activations()

    def compare_with_teacher(
        self,
        stopped: Callable[[], bool],
        progress: Progress = SILENT,
        examples: int | None = None,
        *,
        careful: bool = True,
    ) -> dict[str, Any]:
        """Compare a student with its teacher: size, speed and scores. The result is empty for
        models that are not students, and if there is no time for a single example."""
        if not self.settings.distil.teacher or examples == 0:
            return {}
        device = self.ranks.device
        teacher = self.teacher or load_teacher(self.settings, device)
        student = EvalPass(self.model, device, careful, examples, should_stop=stopped)
        return {"distilled": compare(teacher, student, self.objective, progress)}

    def merged_model(self) -> nn.Module:
        """Return the model for use, with LoRA adapters merged into the weights."""
        return merge_adapters(self.model, self.settings)

    def _why_no_graph(self) -> str:
        """Return the setting that prevents a CUDA graph for the step; empty if nothing does.

        In a CUDA graph, all sequence lengths are read on the device. This needs attention kernels
        for flat batches. Layers that need a padded batch can be used if it is not too large.
        """
        train, model = self.settings.train, self.settings.model
        if train.compile == "no":
            return "train.compile=no"
        if train.gradient_checkpointing:
            return (
                "train.gradient_checkpointing=true, which computes blocks again in the backward "
                "pass"
            )
        if train.precision != "bf16":
            return f"train.precision={train.precision}; the kernels compute in bf16"
        if model.positions in ("alibi", "relative"):
            return (
                f"model.positions={model.positions}, which the attention kernels for flat batches "
                "do not support"
            )
        fixed, shape = self.objective.fixed(train.micro_tokens), meta_model(model)
        if fixed is None:
            return f"task={self.settings.task}, whose batches vary in shape for this data"
        if not all(stack.has_fixed_shapes for _, stack in stacks(shape)):
            return f"model.body={model.body}, which needs the sequence lengths on the CPU"
        short = suits_short(fixed.longest, fixed.most_rows, fixed.n_sequences)
        cells, model_width = fixed.n_sequences * fixed.longest, f"model.d_model={model.d_model}"
        for part in shape.modules():
            if isinstance(part, AdditiveAttention):
                # It scores all pairs of a padded batch, so in a CUDA graph it is half as fast and
                # needs twice the memory.
                return "model.source_attention=additive, which scores every pair of positions"
            on_grid, grid_of = isinstance(part, Recurrence), f"model.body={model.body}"
            if isinstance(part, Attention | SingleHead):
                width = part.d_head
                on_grid, grid_of = width > 128, f"{model_width} with heads of width {width}"
                if not on_grid and width % 8 and not (short and width >= 16):
                    return (
                        f"{model_width} with attention heads of width {width}; the kernels need "
                        "multiples of 8"
                    )
            if on_grid and cells > CELLS * fixed.most_rows:
                return f"{grid_of}, which would mostly compute padding for inputs of these lengths"
        return ""

    def _should_compile(self) -> bool:
        train = self.settings.train
        if train.compile == "no" or train.gradient_checkpointing:
            return False
        work = plan.work_seconds(self.settings, self.ranks.device)
        if train.compile == "yes" and work < COMPILE_S:
            raise ConfigError(
                f"train.compile=yes does not save time: compiling takes about a minute, and the "
                f"whole training about {work:.0f} s. Remove train.compile."
            )
        # On a CPU, compiling takes minutes and gains nothing, so compile only on request.
        return train.compile == "yes" or (self.use_cuda_graph and work > 3 * COMPILE_S)

    def compile(self) -> None:
        for _, stack in stacks(self.model):
            stack.compile_blocks()

    def loop(
        self,
        checkpoints: Checkpoints,
        log: RunLog,
        stop_asked: Callable[[], bool],
        out: Path,
        budget: Budget | None = None,
        enough: Callable[[], str] | None = None,
        threads: ThreadPlan | None = None,
    ) -> Loop:
        train, model = self.settings.train, self.settings.model

        def on_bad(item: StepItem, state: State) -> None:
            if not self.ranks.is_first:
                return
            shown = [example for part in item.parts for example in self.objective.show(part)]
            text = {"step": state.step, "examples": shown}
            try:
                replace_text(out / "bad-batch.json", json.dumps(text, ensure_ascii=False, indent=1))
            except OSError as error:  # must not hide the reason why training stops
                log.event(state.step, f"warning: {error}")

        return Loop(
            objective=self.objective,
            loss_of=self.loss_of,
            model=self.model,
            optimizer=self.optimizer,
            lr_at=learning_rate(
                train,
                train.steps if budget is None else schedule_steps(train),
                model.d_model,
            ),
            settings=train,
            ranks=self.ranks,
            checkpoints=checkpoints,
            log=log,
            stop_requested=stop_asked,
            use_cuda_graph=self.use_cuda_graph,
            on_bad=on_bad,
            ema=Ema(self.model, train.ema) if train.ema else None,
            plateau=Plateau.of(self.objective, train, model) if self.ranks.is_first else None,
            budget=budget,
            threads=threads,
            get_end_reason=enough,
        )

    def time(self, for_s: float, now: Callable[[], float] = time.monotonic) -> plan.Timing:
        """Measure real steps and an evaluation of a few examples, and return their durations. The
        weights change, so this object cannot be used for training afterwards."""
        train = self.settings.train
        micro = part_tokens(train.micro_tokens, train.batch_tokens, self.ranks)
        fixed = self.objective.fixed(micro) if self.use_cuda_graph else None
        step = Step(
            self.model, self.loss_of, self.optimizer, self.ranks,
            clip=train.clip, use_cuda_graph=self.use_cuda_graph,
        )  # fmt: skip
        steps, ranks, begun = iter_steps(self.objective, Cursor()), self.ranks, now()

        def wait() -> None:
            if ranks.device.type == "cuda":
                torch.cuda.synchronize()

        def run_parts(late: Callable[[], bool]) -> tuple[int, int]:
            rows, _ = next(steps)
            parts = self.objective.parts(rows, micro)
            n_targets = sum(part.n_targets for part in parts)
            done = 0
            for first in range(0, len(parts), ranks.world):  # one for every rank
                together = parts[first : first + ranks.world]
                for part in together[ranks.rank : ranks.rank + 1]:
                    step.add(self.objective.batch(part, ranks.device, fixed), n_targets)
                wait()
                done += sum(part.n_tokens for part in together)
                if first + ranks.world < len(parts) and late():
                    break
            return done, sum(part.n_tokens for part in parts)

        def finish() -> None:
            step.finish(1e-5)
            wait()

        step_s = tokens_per_s = 0.0
        if train.steps:
            step_s, tokens_per_s = plan.step_time(
                run_parts, finish, for_s, now, ranks.any, prepares=ranks.device.type == "cuda"
            )
        examples = min(FEW, self.objective.n_quick)
        start = now()
        late = start + for_s
        with (
            torch.no_grad(),
            evaluating([self.model]),
            interrupting(self.model, lambda: now() > late) as stopped,
        ):
            try:
                self.objective.evaluate(
                    EvalPass(self.model, ranks.device, False, examples, should_stop=stopped)
                )
                took = now() - start
            except Stopped:
                took = PATIENCE * (now() - start)
        long = now() - begun > plan.LONG * for_s
        return plan.Timing(step_s, took / examples, tokens_per_s, long=long)


def load_final_weights(worker: Trainer, loop: Loop) -> dict[str, Any]:
    """Load the final weights into the model: the best checkpoint, or the average of the newest
    ones. Return a dictionary of facts for the log, with the text to print under `lines`.

    The weights of the last step, in memory, are another candidate if their checkpoint could not be
    saved or the best checkpoint is missing. Otherwise they would be lost in favour of an old
    checkpoint.
    """
    checkpoints, objective = loop.checkpoints, loop.objective
    best = checkpoints.best_path()
    newest = newest_undamaged(checkpoints, worker.settings.train.average)
    candidates: dict[str, Any] = {}
    if best is not None:
        candidates[f"best checkpoint ({best.name})"] = lambda: checkpoints.weights(best)
    if len(newest) > 1:
        candidates[f"average of the last {len(newest)}"] = lambda: average_of(newest)
    averaged = len(candidates) == 2
    if best is None or not checkpoints.holds(loop.state.step):
        with loop.averaged():
            last = {name: tensor.clone() for name, tensor in model_weights(worker.model).items()}
        candidates["last step"] = lambda: last
    final: Final | None = None
    found = CandidateComparison({}, "last step", None)
    if loop.budget is None:
        found = compare_candidates(worker, loop, candidates, None, None) or found
    else:
        n = len(candidates) + 2 * bool(worker.settings.distil.teacher)
        for final, deadline in loop.budget.comparisons(n):
            if not final.examples:
                found = without_comparison(loop, candidates, best)
                break
            result = compare_candidates(worker, loop, candidates, final, deadline)
            if result is not None:
                found = result
                break
    if found.weights is not None:
        load_weights(worker.model, found.weights)
    metric = objective.metric
    shown = ", ".join(
        f"{name} {metric.shown(values[metric.name])}" for name, values in found.scores.items()
    )
    some = ""
    if final is not None and found.scores:
        n = final.examples or loop.state.best_examples or objective.n_quick
        some = f" on {n:,} of {objective.n_valid:,} examples" if n < objective.n_valid else ""
    text = f"validation {metric.label}{some}: {shown or 'none'}; kept: {found.winner}"
    if averaged and len(found.scores) == len(candidates):
        first, second, *_ = (ranking(values, objective)[0] for values in found.scores.values())
        text += f" (averaging gains {second - first:+.{metric.digits}f})"
    if final is not None and not final.examples:
        text += " (not compared: the budget has no time for it)"
    facts: dict[str, Any] = {
        "kept": found.winner, "scores": found.scores, "text": text,
        "figures": {} if found.result is None else found.result.figures,
        "examples": objective.n_valid if final is None else final.examples,
        "careful": final is None or final.careful, "lines": [],
    }  # fmt: skip
    if found.result is not None and found.result.temperature is not None:
        temperature = found.result.temperature
        apply_temperature(worker.model, temperature.value, temperature.ngram_weight)
        facts["temperature"] = asdict(temperature)
        facts["lines"].append(temperature.describe(spec_of(worker.settings).counts + "s"))
    if found.result is not None and found.result.fitted:
        facts["fitted"] = found.result.fitted
        n, unit = facts["examples"], spec_of(worker.settings).counts + "s"
        facts["lines"] += [
            f"{key}={value:.3g}: fitted on {n:,} validation {unit}"
            for key, value in found.result.fitted.items()
        ]
    if found.result is not None and found.result.members:
        facts["members"] = found.result.members
    if found.result is not None and (baselines := baselines_in_time(loop, found.result)):
        value, steps = found.scores[found.winner][metric.name], loop.state.step
        rows = standings(
            value, baselines, found.result.ranges(metric.name), metric, found.result.members
        )
        facts |= {
            "baselines": baselines,
            "compared": {"metric": metric.name, "rows": [row.facts for row in rows]},
            "lines": facts["lines"] + comparison_lines(rows, metric),
            "advice": advice(
                spec_of(worker.settings),
                value,
                baselines,
                metric,
                steps if loop.state.best_step > LATE * steps else 0,
                tuned=bool(worker.settings.start.run),
            ),
        }
        facts["lines"] += found.result.cautions
        facts |= late_facts(loop, found.result)
    return facts


def late_facts(loop: Loop, result: Scores) -> dict[str, Any]:
    """Return the results that take long to compute, without empty ones. There are none if the
    budget has no time left."""
    if loop.budget is not None and loop.budget.left_s <= 0.0:
        return {}
    with loop.log.stage("training baselines on fewer labels"):
        return {name: found for name, found in result.late_facts.items() if found}


def baselines_in_time(loop: Loop, result: Scores) -> Baselines:
    """Return the baselines of the final model. There are none if the budget has no time left."""
    if loop.budget is not None and loop.budget.left_s <= 0.0:
        return {}
    with loop.log.stage("computing baselines"):
        return result.baselines


class CandidateComparison(NamedTuple):
    scores: dict[str, dict[str, float]]
    winner: str
    weights: dict[str, Tensor] | None
    result: Scores | None = None
    """Scores of the winner; None if there was no comparison."""


def without_comparison(
    loop: Loop, candidates: Mapping[str, Callable[[], dict[str, Tensor]]], best: Path | None
) -> CandidateComparison:
    """Choose the final weights without a comparison: the best checkpoint, or the last step if it
    was better but could not be saved. The score is the one measured in training, if there is
    one."""
    state, metric, scores = loop.state, loop.objective.metric, {}
    unsaved = "last step" in candidates and state.best_step == state.step
    if best is None or unsaved:
        name, step = "last step", f"step-{state.step}"
    else:
        name, step = next(iter(candidates)), best.name
    if state.best is not None and step == f"step-{state.best_step}":
        sign = -1.0 if metric.lower else 1.0
        rank, loss = state.best
        scores[name] = {"loss": -loss, metric.name: sign * rank}
    return CandidateComparison(scores, name, candidates[name]())


def compare_candidates(
    worker: Trainer,
    loop: Loop,
    candidates: Mapping[str, Callable[[], dict[str, Tensor]]],
    final: Final | None,
    deadline: float | None,
) -> CandidateComparison | None:
    """Evaluate the candidates. Return all scores with the best candidate, or None if the deadline
    passed."""
    scores: dict[str, dict[str, float]] = {}
    found = CandidateComparison(scores, "last step", None)
    for name, read in candidates.items():
        try:
            tensors = read()
        except FolderError as error:  # damaged since it was verified
            loop.checkpoints.log(f"warning: {error} This candidate is left out.")
            continue
        load_weights(worker.model, tensors)
        result = loop.evaluate(
            f"comparing: {name}",
            full=final is None or final.careful,
            most=None if final is None else final.examples,
            deadline=deadline,
            calibrate=True,
        )
        if result is None:
            return None
        scores[name] = dict(result)
        if found.weights is None or ranking(result, loop.objective) > ranking(
            scores[found.winner], loop.objective
        ):
            found = CandidateComparison(scores, name, tensors, result)
    return found
