"""A smaller model that learns from a larger one, as DistilBERT (Sanh et al. 2019).

The student has the teacher's shape with fewer layers and starts from every other one of them.
`losses.distil` is what it learns by.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from headway.errors import ConfigError
from headway.models.parts.front import compute_in
from headway.nn.stack import stacks
from headway.progress import SILENT, Progress
from headway.settings.facts import Origin
from headway.settings.from_parent import WITHOUT_VECTORS, check_same, with_changes
from headway.settings.model import ModelSettings, Seq2SeqSettings
from headway.settings.run import RunSettings
from headway.tasks.items import Pass
from headway.tasks.losses import plain
from headway.tasks.objective import Objective
from headway.tasks.opened import Opened, open_run
from headway.tasks.readout import readout_of
from headway.tasks.specs import spec_of
from headway.tasks.task import Note

TIMED_S = 1.0
"""For each of the two models whose speed is compared."""


def student_model(begun: Origin, settings: RunSettings) -> ModelSettings:
    """The teacher's shape with fewer layers; what has no weights of its own may be set too."""
    name, teacher = begun.name, begun.model
    if begun.task != settings.task:
        raise ConfigError(
            f"the teacher {name} is a run of the task {begun.task}, and this one of "
            f"{settings.task}. Use headway train distil, which takes the teacher's task, or "
            "another teacher."
        )
    without = {key: value for key, value in WITHOUT_VECTORS.items() if hasattr(teacher, key)}
    shape = with_changes(teacher, {**without, **settings.asked.under("model")})
    check_same(name, teacher, shape)
    layers = n_layers(teacher.n_layers, settings)
    picks = pick_layers(layers, teacher.n_layers)
    if isinstance(shape, Seq2SeqSettings) and isinstance(teacher, Seq2SeqSettings):
        decoder = n_layers(teacher.decoder_layers, settings)
        others = pick_layers(decoder, teacher.decoder_layers)
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


def pick_layers(student: int, teacher: int) -> list[int]:
    """The teacher's layers that a student starts from: for half as many every other one."""
    return [number * teacher // student for number in range(student)]


@torch.no_grad()
def start_student(model: nn.Module, settings: RunSettings, note: Note) -> None:
    """Front, heads and every other layer as the teacher has them."""
    teacher = _opened(settings, torch.device("cpu")).model
    theirs = dict(teacher.state_dict())
    names: dict[str, str] = {}
    for (stack_name, mine), (_, its) in zip(stacks(model), stacks(teacher), strict=True):
        picks = pick_layers(len(mine.blocks), len(its.blocks))
        names |= {
            f"{stack_name}.blocks.{number}.": f"{stack_name}.blocks.{pick}."
            for number, pick in enumerate(picks)
        }
        shown = ", ".join(str(pick + 1) for pick in picks)
        note(f"the {stack_name} starts from layers {shown} of {len(its.blocks)} of its teacher")
    for name, tensor in model.state_dict().items():
        prefix = next((start for start in names if name.startswith(start)), "")
        tensor.copy_(theirs[names.get(prefix, "") + name.removeprefix(prefix)])


def load_teacher(settings: RunSettings, device: torch.device) -> nn.Module:
    """A run that no longer learns, beside its student."""
    name, opened = settings.distil.teacher, _opened(settings, device)
    theirs = opened.settings
    if theirs.labels != settings.labels:
        raise ConfigError(
            f"the teacher {name} knows the labels {', '.join(theirs.labels)}, and the data has "
            f"{', '.join(settings.labels)}. Give data with the teacher's labels."
        )
    if not readout_of(settings).reads_like(readout_of(theirs)):
        read_by = [f"{settings.task}.{name}" for name in spec_of(settings).read_by]
        raise ConfigError(
            f"the answers of the teacher {name} are read otherwise than those of this run. Leave "
            f"{', '.join(read_by)} out: a student has them from its teacher."
        )
    teacher = opened.model.requires_grad_(False)
    if settings.train.precision == "bf16":
        compute_in(teacher, torch.bfloat16)
    return teacher


def _opened(settings: RunSettings, device: torch.device) -> Opened:
    name = settings.distil.teacher
    return open_run(name, device=str(device), precision="fp32", words=False)


@torch.no_grad()
def compare(
    teacher: nn.Module, student: Pass, objective: Objective[Any], progress: Progress = SILENT
) -> dict[str, Any]:
    """Size, speed and scores of both: parameters, batches of the task a second, and an evaluation.
    Both run as they are, in the type they were trained or loaded in."""
    facts: dict[str, Any] = {"metric": objective.metric.name}
    for name, model in (("teacher", teacher), ("student", student.model)):
        model.eval()
        with progress.stage(f"evaluating the {name}") as stage:
            asked = replace(student, model=model, on_progress=stage.update)
            facts[name] = {
                "parameters": sum(weight.numel() for weight in model.parameters()),
                "batches_per_s": _speed(model, objective, student.device),
                "scores": dict(objective.evaluate(asked)),
            }
    one, other = facts["teacher"], facts["student"]
    facts["smaller"] = 1.0 - other["parameters"] / one["parameters"]
    facts["faster"] = other["batches_per_s"] / one["batches_per_s"]
    facts["kept"] = _kept(one["scores"], other["scores"], objective)
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


def _kept(teacher: dict[str, float], student: dict[str, float], objective: Objective[Any]) -> float:
    one, other = teacher[objective.metric.name], student[objective.metric.name]
    if objective.metric.lower:
        one, other = other, one
    return other / one if one else 0.0


def _speed(model: nn.Module, objective: Objective[Any], device: torch.device) -> float:
    """Batches a second of reading alone, on the first examples of training."""
    step = objective.epoch(0)[0]
    parts = objective.parts(step, 2048)[:4]
    batches = [objective.batch(part, device, None) for part in parts]
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    loss_of = plain(objective)
    for batch in batches:  # what is allocated first is not what takes time later
        loss_of(model, batch)
    wait()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < TIMED_S:
        for batch in batches:
            loss_of(model, batch)
        wait()
        done += len(batches)
    return done / (time.perf_counter() - start)
