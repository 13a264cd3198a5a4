"""A smaller model that learns from a larger one, as DistilBERT (Sanh et al. 2019).

The student has the teacher's shape with fewer layers and starts from every other one of them. Its
loss on a batch is that of the task, and beside it what separates its answers and its hidden states
from the teacher's on the very same batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.config.folder import load_run, run_folder
from headway.config.model import ModelSettings, Seq2SeqSettings
from headway.config.run import RunSettings
from headway.config.start import DistilSettings
from headway.errors import ConfigError
from headway.models.folder import load_model
from headway.models.parts.front import compute_in
from headway.progress import SILENT, OnProgress, Progress, unheard
from headway.tasks.kind import Note
from headway.tasks.scores import Scores
from headway.tasks.task import Frequencies, Part, Task, TaskLoss
from headway.training.start import WITHOUT_VECTORS, changed, check_same, stacks

CHUNK_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Scores of teacher or student held at a time."""

TIMED_S = 1.0
"""For each of the two models whose speed is compared."""


@dataclass(frozen=True)
class Seen:
    """What a model makes of a batch: the vectors that are scored, and those that should look alike
    in teacher and student, with the weight of each row."""

    rows_RD: Tensor
    weights_R: Tensor
    states_ND: Tensor
    real_N: Tensor
    scores: Callable[[Tensor], Tensor]
    hard: Callable[[], TaskLoss]
    """The loss of the task itself."""


View = Callable[[Any, nn.Module, Any], Seen]


def _fill(task: Any, model: Any, batch: Any) -> Seen:
    x_ND = model(batch.tokens_N, batch.layout)
    x_RD = x_ND.index_select(0, batch.rows_R)
    loss = lambda: model.words.loss(x_RD, batch.labels_R, task.smoothing, batch.weights_R)  # noqa: E731
    return Seen(x_RD, batch.weights_R, x_ND, batch.real_N, model.scores, lambda: TaskLoss(*loss()))


def _complete(task: Any, model: Any, batch: Any) -> Seen:
    x_ND, weights_N = model(batch.tokens_N, batch.layout), batch.weights_N
    loss = lambda: model.words.loss(x_ND, batch.labels_N, task.smoothing, weights_N)  # noqa: E731
    return Seen(x_ND, weights_N, x_ND, weights_N, model.scores, lambda: TaskLoss(*loss()))


def _classify(task: Any, model: Any, batch: Any) -> Seen:
    segments = () if batch.segments_N is None else (batch.segments_N,)
    x_ND = model(batch.tokens_N, batch.layout, *segments)
    x_BD = model.pooled(x_ND, batch.layout)
    scores_BC = model.head_named("classes")(x_BD)

    def hard() -> TaskLoss:
        (right, wrong), logs_BC = task.smoothing, scores_BC.float().log_softmax(-1)
        nll_B = -logs_BC.gather(1, batch.labels_B[:, None])[:, 0]
        loss_B = (right - wrong) * nll_B - wrong * logs_BC.sum(-1)
        nll = (nll_B.detach() * batch.weights_B).sum()
        return TaskLoss((loss_B * batch.weights_B).sum(), nll)

    return Seen(x_BD, batch.weights_B, x_BD, batch.weights_B, lambda _: scores_BC, hard)


VIEWS: dict[str, View] = {"fill": _fill, "complete": _complete, "classify": _classify}
BY_SEQUENCE = ("translate",)
"""Here the student learns from what the teacher wrote (Kim and Rush 2016); see `taught.py`."""


@dataclass
class DistilTask:
    """The teacher's task with more terms in its loss; all else is the task's."""

    inner: Task
    teacher: nn.Module
    view: View
    settings: DistilSettings

    def __post_init__(self) -> None:
        self.metric = self.inner.metric

    def epoch(self, number: int) -> Sequence[Any]:
        return self.inner.epoch(number)

    def parts(self, step: Any, micro_tokens: int) -> list[Part]:
        return self.inner.parts(step, micro_tokens)

    def batch(self, part: Part, device: torch.device, fixed: Any) -> Any:
        return self.inner.batch(part, device, fixed)

    def fixed(self, micro_tokens: int) -> Any:
        return self.inner.fixed(micro_tokens)

    @property
    def n_valid(self) -> int:
        return self.inner.n_valid

    @property
    def n_quick(self) -> int:
        return self.inner.n_quick

    def evaluate(
        self,
        model: nn.Module,
        device: torch.device,
        stopped: Callable[[], bool],
        full: bool,
        on_progress: OnProgress = unheard,
        *,
        most: int | None = None,
    ) -> Scores:
        return self.inner.evaluate(model, device, stopped, full, on_progress, most=most)

    def frequencies(self) -> Frequencies | None:
        return self.inner.frequencies()

    def show(self, part: Part) -> list[dict[str, Any]]:
        return self.inner.show(part)

    def loss(self, model: nn.Module, batch: Any) -> TaskLoss:
        """Each term is a sum over the targets, so that a step is divided by their number."""
        wanted = self.settings
        student = self.view(self.inner, model, batch)
        with torch.no_grad():
            teacher = self.view(self.inner, self.teacher, batch)
        hard = student.hard()
        total = wanted.hard * hard.sum
        if wanted.soft:
            total = total + wanted.soft * soft_loss(student, teacher, wanted.temperature)
        if wanted.cosine:
            total = total + wanted.cosine * cosine_loss(student, teacher)
        return TaskLoss(total, hard.nll)


def soft_loss(student: Seen, teacher: Seen, temperature: float) -> Tensor:
    """T² · KL(teacher‖student) of the answers at temperature T, summed over the rows.

    Over a vocabulary the scores exist a chunk of rows at a time, and are made again in the
    backward pass.
    """

    def chunk(s_RD: Tensor, t_RD: Tensor, weights_R: Tensor) -> Tensor:
        logs_RV = (student.scores(s_RD).float() / temperature).log_softmax(-1)
        with torch.no_grad():
            aims_RV = (teacher.scores(t_RD).float() / temperature).log_softmax(-1)
        apart_R = (aims_RV.exp() * (aims_RV - logs_RV)).sum(-1)
        return (apart_R * weights_R).sum() * temperature**2

    rows = (student.rows_RD, teacher.rows_RD, student.weights_R)
    with torch.no_grad():
        width = student.scores(rows[0][:1]).shape[-1]
    limit = max(1, CHUNK_BYTES.get(rows[0].device.type, 1 << 26) // (4 * width))
    if len(rows[0]) <= limit:
        return chunk(*rows)
    parts = zip(*(x.split(limit) for x in rows), strict=True)
    total = student.rows_RD.new_zeros((), dtype=torch.float32)
    for part in parts:
        # Heads of words draw no random numbers.
        total = total + checkpoint(chunk, *part, use_reentrant=False, preserve_rng_state=False)
    return total


def cosine_loss(student: Seen, teacher: Seen) -> Tensor:
    """1 − cos between hidden states: the mean over the rows, as often as there are targets."""
    cos_N = F.cosine_similarity(student.states_ND.float(), teacher.states_ND.float(), dim=-1)
    mean = ((1.0 - cos_N) * student.real_N).sum() / student.real_N.sum().clamp(min=1.0)
    return mean * student.weights_R.sum()


def student_model(teacher: ModelSettings, settings: RunSettings) -> ModelSettings:
    """The teacher's shape with fewer layers; what has no weights of its own may be set too."""
    name = settings.distil.teacher
    run = load_run(run_folder(name))
    known_tasks = (*VIEWS, *BY_SEQUENCE)
    if run.task not in known_tasks:
        raise ConfigError(
            f"{name} is a run of the task {run.task}. Teachers can be runs of "
            f"{', '.join(known_tasks)}."
        )
    if run.task != settings.task:
        raise ConfigError(
            f"the teacher {name} is a run of the task {run.task}, and this one of {settings.task}. "
            f"Use headway train distil, which takes the teacher's task, or another teacher."
        )
    shape = changed(teacher, {**WITHOUT_VECTORS, **settings.asked.under("model")})
    check_same(name, teacher, shape)
    layers = n_layers(teacher.n_layers, settings)
    picks = picked_layers(layers, teacher.n_layers)
    if isinstance(shape, Seq2SeqSettings) and isinstance(teacher, Seq2SeqSettings):
        decoder = n_layers(teacher.decoder_layers, settings)
        others = picked_layers(decoder, teacher.decoder_layers)
        kept = shape.kept_heads.of_layers({"encoder": picks, "decoder": others, "cross": others})
        return replace(shape, n_layers=layers, n_decoder_layers=decoder, kept_heads=kept)
    return replace(shape, n_layers=layers, kept_heads=shape.kept_heads.of_layers({"self": picks}))


def n_layers(of_teacher: int, settings: RunSettings) -> int:
    layers = settings.distil.layers or max(1, of_teacher // 2)
    if layers > of_teacher:
        raise ConfigError(
            f"distil.layers={layers} is more than the {of_teacher} that the teacher has."
        )
    return layers


def picked_layers(student: int, teacher: int) -> list[int]:
    """The teacher's layers that a student starts from: for half as many every other one."""
    return [number * teacher // student for number in range(student)]


@torch.no_grad()
def start_student(model: nn.Module, settings: RunSettings, note: Note) -> None:
    """Front, heads and every other layer as the teacher has them."""
    teacher = load_model(run_folder(settings.distil.teacher))
    theirs = dict(teacher.state_dict())
    names: dict[str, str] = {}
    for (stack_name, mine), (_, its) in zip(stacks(model), stacks(teacher), strict=True):
        picks = picked_layers(len(mine.blocks), len(its.blocks))
        names |= {
            f"{stack_name}.blocks.{number}.": f"{stack_name}.blocks.{pick}."
            for number, pick in enumerate(picks)
        }
        shown = ", ".join(str(pick + 1) for pick in picks)
        note(f"the {stack_name} starts from layers {shown} of {len(its.blocks)} of its teacher")
    for name, tensor in model.state_dict().items():
        prefix = next((start for start in names if name.startswith(start)), "")
        tensor.copy_(theirs[names.get(prefix, "") + name.removeprefix(prefix)])


def distilled(task: Task, settings: RunSettings, device: torch.device) -> Task:
    """The task with its teacher beside it, who no longer learns."""
    if settings.task in BY_SEQUENCE:
        return task
    folder = run_folder(settings.distil.teacher)
    labels = load_run(folder).labels
    if labels != settings.labels:
        raise ConfigError(
            f"the teacher {settings.distil.teacher} knows the labels {', '.join(labels)}, and the "
            f"text has {', '.join(settings.labels)}. Give text with the teacher's labels."
        )
    teacher = load_model(folder, device).eval().requires_grad_(False)
    if settings.train.precision == "bf16":
        compute_in(teacher, torch.bfloat16)
    return DistilTask(task, teacher, VIEWS[settings.task], settings.distil)


def load_teacher(task: Task, settings: RunSettings, device: torch.device) -> nn.Module:
    """The one that the task has already, or a fresh one."""
    if isinstance(task, DistilTask):
        return task.teacher
    return load_model(run_folder(settings.distil.teacher), device).eval()


@torch.no_grad()
def compare(
    teacher: nn.Module,
    student: nn.Module,
    task: Task,
    device: torch.device,
    stopped: Callable[[], bool] = lambda: False,
    progress: Progress = SILENT,
    most: int | None = None,
    *,
    careful: bool = True,
) -> dict[str, Any]:
    """Size, speed and scores of both: parameters, batches of the task a second, and an evaluation,
    of `most` examples. Both run as they are, in the type they were trained or loaded in."""
    facts: dict[str, Any] = {"metric": task.metric.name}
    inner = task.inner if isinstance(task, DistilTask) else task
    for name, model in (("teacher", teacher), ("student", student)):
        model.eval()
        with progress.stage(f"evaluating the {name}") as stage:
            facts[name] = {
                "parameters": sum(weight.numel() for weight in model.parameters()),
                "batches_per_s": _speed(model, inner, device),
                "scores": dict(
                    inner.evaluate(model, device, stopped, careful, stage.update, most=most)
                ),
            }
    one, other = facts["teacher"], facts["student"]
    facts["smaller"] = 1.0 - other["parameters"] / one["parameters"]
    facts["faster"] = other["batches_per_s"] / one["batches_per_s"]
    facts["kept"] = _kept(one["scores"], other["scores"], task)
    return facts


def comparison_line(facts: dict[str, Any]) -> str:
    """What `compare` found, for people."""
    metric = facts["metric"]
    one, other = facts["teacher"], facts["student"]
    return (
        f"student {other['parameters']:,} parameters, {facts['smaller']:.0%} fewer than its "
        f"teacher's {one['parameters']:,}; {facts['faster']:.2f} times as fast; validation "
        f"{metric} {other['scores'][metric]:.4g}, teacher {one['scores'][metric]:.4g} "
        f"({facts['kept']:.1%} kept)"
    )


def _kept(teacher: dict[str, float], student: dict[str, float], task: Task) -> float:
    one, other = teacher[task.metric.name], student[task.metric.name]
    if task.metric.lower:
        one, other = other, one
    return other / one if one else 0.0


def _speed(model: nn.Module, task: Task, device: torch.device) -> float:
    """Batches a second of reading alone, on the first examples of training."""
    step = task.epoch(0)[0]
    parts = task.parts(step, 2048)[:4]
    batches = [task.batch(part, device, None) for part in parts]
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for batch in batches:  # what is allocated first is not what takes time later
        task.loss(model, batch)
    wait()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < TIMED_S:
        for batch in batches:
            task.loss(model, batch)
        wait()
        done += len(batches)
    return done / (time.perf_counter() - start)
