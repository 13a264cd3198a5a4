"""Distillation of a run into a smaller model, as in DistilBERT (Sanh et al. 2019).

The student has the teacher's architecture with fewer layers, and is initialized from some of the
teacher's layers. `losses.distil` defines its loss.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import ConfigError
from headway.models.parts.front import set_compute_dtype
from headway.nn.stack import stacks
from headway.progress import SILENT, Progress
from headway.settings.facts import ParentRun
from headway.settings.model import EncoderSettings, ModelSettings, Seq2SeqSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of
from headway.settings.warm_start import WITHOUT_VECTORS, check_same, with_changes
from headway.tasks.dataset import EvalPass
from headway.tasks.loaded_run import LoadedRun, open_run
from headway.tasks.losses import pick_layers, plain
from headway.tasks.objective import Objective
from headway.tasks.readout import readout_of
from headway.tasks.task import Note

TIMED_S = 1.0
"""Time in seconds for which the speed of each of the two models is measured: short, and long enough
for many batches."""


def student_model(begun: ParentRun, settings: RunSettings) -> ModelSettings:
    """Return the student's model settings: the teacher's with fewer layers. Settings that do not
    change the shapes of weights may be overridden."""
    name, teacher = begun.name, begun.model
    if begun.task != settings.task:
        raise ConfigError(
            f"the teacher {name} is a run of the task {begun.task}, but this run is for the task "
            f"{settings.task}. Use headway train distil, which uses the teacher's task, or choose "
            "another teacher."
        )
    without = {key: value for key, value in WITHOUT_VECTORS.items() if hasattr(teacher, key)}
    shape = with_changes(teacher, {**without, **settings.asked.section("model")})
    check_same(name, teacher, _with_front_of(teacher, shape))
    layers = n_student_layers(teacher.n_layers, settings)
    picks = pick_layers(layers, teacher.n_layers)
    if isinstance(shape, Seq2SeqSettings) and isinstance(teacher, Seq2SeqSettings):
        decoder = n_student_layers(teacher.stack("decoder").n_layers, settings)
        others = pick_layers(decoder, teacher.stack("decoder").n_layers)
        kept = shape.kept_heads.of_layers({"encoder": picks, "decoder": others, "cross": others})
        own = replace(shape.decoder, n_layers=decoder)
        return replace(shape, n_layers=layers, decoder=own, kept_heads=kept)
    return replace(shape, n_layers=layers, kept_heads=shape.kept_heads.of_layers({"self": picks}))


def _with_front_of(teacher: ModelSettings, shape: ModelSettings) -> ModelSettings:
    """Return the student's model settings with the teacher's embedding width, so that the other
    settings can be compared.

    The widths may differ, because a student's narrower embeddings start as principal components of
    the teacher's. Embeddings wider than the layers raise an error.
    """
    if isinstance(shape, EncoderSettings) and isinstance(teacher, EncoderSettings):
        if teacher.d_embedding is None and (shape.d_embedding or 0) > teacher.d_model:
            raise ConfigError(
                f"model.d_embedding={shape.d_embedding} must not exceed the layer width, "
                f"model.d_model={teacher.d_model}."
            )
        if teacher.d_embedding is None:
            return replace(shape, d_embedding=None)
    return shape


def n_student_layers(of_teacher: int, settings: RunSettings) -> int:
    layers = settings.distil.layers or max(1, of_teacher // 2)
    if layers > of_teacher:
        raise ConfigError(
            f"distil.layers={layers} exceeds the {of_teacher} layers of the teacher. "
            f"Use {of_teacher} or fewer."
        )
    return layers


@torch.no_grad()
def start_student(model: nn.Module, settings: RunSettings, note: Note) -> None:
    """Copy the teacher's input layers, heads and selected layers into the student."""
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
        note(f"{stack_name} initialised from teacher layers {shown} of {len(its.blocks)}")
    own = dict(model.state_dict())
    if "front.to_stream.weight" in own.keys() - theirs.keys():
        theirs |= narrowed(theirs, own["front.tokens.weight"].shape[1])
        note(f"embeddings initialised from the first {own['front.tokens.weight'].shape[1]} "
             "principal components of the teacher's embeddings")  # fmt: skip
    for name, tensor in own.items():
        prefix = next((start for start in names if name.startswith(start)), "")
        tensor.copy_(theirs[names.get(prefix, "") + name.removeprefix(prefix)])


def narrowed(theirs: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """Return the weights of narrower text embeddings of size `width`, and of their projection to
    the layer width, by PCA.

    Token, position and segment embeddings are projected onto the directions in which the token
    embeddings vary most.
    """
    tables = ("tokens.weight", "positions.table.weight", "segments.weight")
    names = [f"front.{name}" for name in tables if f"front.{name}" in theirs]
    rows_VD = theirs["front.tokens.weight"].float()
    rows_VD = rows_VD - rows_VD.mean(0)
    _, directions_DD = torch.linalg.eigh(rows_VD.T @ rows_VD)
    most_DE = directions_DD[:, -width:]
    found = {name: theirs[name].float() @ most_DE for name in names}
    whole = most_DE.shape[0]
    # A norm gives vectors of both widths the same mean square, so the projection must rescale them.
    gain_D = theirs.get("front.norm.weight", torch.ones(whole))
    scale = (whole / width) ** 0.5 if "front.norm.weight" in theirs else 1.0
    found["front.to_stream.weight"] = gain_D[:, None] * most_DE * scale
    found["front.to_stream.bias"] = theirs.get("front.norm.bias", torch.zeros(whole))
    found |= {name: fill for name, fill in (("front.norm.weight", torch.ones(width)),
                                            ("front.norm.bias", torch.zeros(width)))
              if name in theirs}  # fmt: skip
    return found


def load_teacher(settings: RunSettings, device: torch.device) -> nn.Module:
    """Return the teacher's model, with frozen weights."""
    name, opened = settings.distil.teacher, _opened(settings, device)
    theirs = opened.settings
    if theirs.labels != settings.labels:
        raise ConfigError(
            f"the teacher {name} has the labels {', '.join(theirs.labels)}, but the data has "
            f"{', '.join(settings.labels)}. Use data with the teacher's labels."
        )
    if not readout_of(settings).reads_like(readout_of(theirs)):
        read_by = [f"{settings.task}.{name}" for name in spec_of(settings).readout_settings]
        raise ConfigError(
            f"the outputs of the teacher {name} cannot be compared with those of this run, because "
            f"the settings differ. Remove {', '.join(read_by)}: a student uses the values of its "
            "teacher."
        )
    teacher = opened.model.requires_grad_(False)
    if settings.train.precision == "bf16":
        set_compute_dtype(teacher, torch.bfloat16)
    return teacher


def _opened(settings: RunSettings, device: torch.device) -> LoadedRun:
    name = settings.distil.teacher
    return open_run(name, device=str(device), precision="fp32", words=False)


@torch.no_grad()
def compare(
    teacher: nn.Module, student: EvalPass, objective: Objective[Any], progress: Progress = SILENT
) -> dict[str, Any]:
    """Return size, speed and scores of teacher and student: parameters, batches per second and
    validation scores. Each model runs in the precision that it was trained or loaded in."""
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
    """Return the results of `compare` as one human-readable line."""
    metric = facts["metric"]
    one, other = facts["teacher"], facts["student"]
    return (
        f"student: {other['parameters']:,} parameters, {facts['smaller']:.0%} fewer than the "
        f"teacher's {one['parameters']:,}; {facts['faster']:.2f} times as fast; validation "
        f"{metric} {other['scores'][metric]:.4g}, teacher {one['scores'][metric]:.4g} "
        f"({facts['kept']:.1%} retained)"
    )


def _kept(teacher: dict[str, float], student: dict[str, float], objective: Objective[Any]) -> float:
    one, other = teacher[objective.metric.name], student[objective.metric.name]
    if objective.metric.lower:
        one, other = other, one
    return other / one if one else 0.0


def _speed(model: nn.Module, objective: Objective[Any], device: torch.device) -> float:
    """Return the measured speed of a model in batches per second: forward pass and loss, on the
    first training examples."""
    step = objective.epoch(0)[0]
    parts = objective.parts(step, 2048)[:4]
    batches = [objective.batch(part, device, None) for part in parts]
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    loss_of = plain(objective)
    for batch in batches:  # warm-up: the first pass also allocates memory
        loss_of(model, batch)
    wait()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < TIMED_S:
        for batch in batches:
            loss_of(model, batch)
        wait()
        done += len(batches)
    return done / (time.perf_counter() - start)
