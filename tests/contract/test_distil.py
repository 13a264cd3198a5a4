"""A smaller model learns from the run of any row: it starts from its layers, and what it lacks is
how far its answers are from its teacher's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headway.models.build import build_model
from headway.settings.start import DistilSettings
from headway.tasks.distil import load_teacher, start_student, student_model
from headway.tasks.losses import loss_for
from headway.tasks.parent_run import parent_of

from .tiny import CPU, ROWS, Tiny, named

TAUGHT = [row for row in ROWS if not row.by_sequence]
"""The others learn from what their teacher writes."""


@pytest.mark.parametrize("tiny", TAUGHT, ids=named, indirect=True)
def test_a_student_begins_as_its_teacher_and_learns_where_it_differs(tiny: Tiny) -> None:
    lesson = DistilSettings(teacher=str(tiny.folder), layers=1, soft=1.0, hard=0.0, cosine=0.0)
    settings = replace(tiny.run.settings, distil=lesson)
    origin = parent_of(settings)
    assert origin is not None
    assert student_model(origin, settings).n_layers == 1
    student = build_model(settings.model, seed=9)  # with as many layers as its teacher
    teacher = load_teacher(settings, CPU).eval()
    loss_of = loss_for(tiny.task, settings, teacher)
    part = tiny.task.parts(tiny.task.epoch(0)[0], 192)[0]
    batch = tiny.task.batch(part, CPU, None)
    strange = float(loss_of(student.eval(), batch).sum.detach())
    start_student(student, settings, lambda text: None)
    assert float(loss_of(student, batch).sum.detach()) == pytest.approx(0.0, abs=1e-4)
    assert strange > 1e-3
    with torch.no_grad():
        for name, weight in student.named_parameters():
            if "blocks" in name and weight.ndim > 1:
                weight.mul_(1.1)
    student.train()
    found = loss_of(student, batch).sum
    found.backward()
    assert found > 0
    moved = [w for n, w in student.named_parameters() if "blocks" in n and w.grad is not None]
    assert any(bool(w.grad.abs().max() > 0) for w in moved)
    assert all(weight.grad is None for weight in teacher.parameters())
