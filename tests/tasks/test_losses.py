"""R-Drop and distillation, of every task: what they cost, what they teach, what they refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headway.errors import ConfigError
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.settings.folder import CONFIG, TOKENIZER
from headway.settings.overrides import Overrides
from headway.settings.run import load_run_settings, resolved_toml
from headway.settings.start import DistilSettings
from headway.specs.tasks import SPECS
from headway.storage import replace_text
from headway.tasks.distil import load_teacher
from headway.tasks.losses import cosine_loss, distil, plain, rdrop, soft_loss
from headway.tasks.objective import Objective, TaskLoss
from headway.tasks.task import find_task
from headway.training.check_settings import check_training
from headway.training.distributed import Distributed
from headway.training.request import implied_settings
from headway.training.trainer import Trainer

from ..training import every
from ..training.every import CPU, DATA, Made

LIKELY = [name for name in DATA if name not in ("embed", "fill images")]
"""Those whose answers have probabilities."""

STILL = {"model__dropout": 0.0, "model__attention_dropout": 0.0}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of each task, made when it is asked for; nothing is dropped in its model."""
    return cache(lambda name: every.make(name, tmp_path_factory.mktemp("tiny"), **STILL))


def deeper(made: Made, seed: int = 7) -> nn.Module:
    """A teacher: the model with a layer more."""
    assert made.settings.model is not None
    shape = replace(made.settings.model, n_layers=2)
    return build_model(shape, seed=seed).eval().requires_grad_(False)


def batch_of(task: Objective[Any]) -> Any:
    return task.batch(task.parts(task.epoch(0)[0], 256)[0], CPU, None)


def priced(loss: Any, model: nn.Module, batch: Any) -> tuple[TaskLoss, list[torch.Tensor | None]]:
    """The loss and all gradients, with the same chance every time."""
    torch.manual_seed(3)
    model.train().zero_grad()
    found = loss(model, batch)
    found.sum.backward()
    return found, [weight.grad for weight in model.parameters()]


@pytest.mark.parametrize("name", DATA)
def test_of_a_student_nothing_of_the_tasks_own_loss_is_lost(tiny: Any, name: str) -> None:
    made = tiny(name)
    batch, alone = batch_of(made.task), DistilSettings(hard=1.0, soft=0.0, cosine=0.0)
    own, gradients = priced(plain(made.task), made.model, batch)
    taught, same = priced(distil(made.task, deeper(made), alone), made.model, batch)
    assert torch.equal(own.sum, taught.sum)
    assert torch.equal(own.nll, taught.nll)
    for one, other in zip(gradients, same, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("name", DATA)
def test_a_student_comes_nearer_to_its_teacher(tiny: Any, name: str) -> None:
    made = tiny(name)
    assert made.settings.model is not None
    student = build_model(made.settings.model, seed=2)
    task, teacher, batch = made.task, deeper(made), batch_of(made.task)
    given = task.augment(student.eval(), batch)

    def apart() -> tuple[float, float]:
        with torch.no_grad():
            mine, aims = task.read(student.eval(), given), task.read(teacher, given)
            return float(soft_loss(mine, aims, 2.0)), float(cosine_loss(mine, aims))

    before = apart()
    assert min(before) > 0.0
    loss_of = distil(task, teacher, DistilSettings(hard=0.0, soft=1.0, cosine=1.0))
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    for _ in range(12):
        optimizer.zero_grad()
        loss_of(student, batch).sum.backward()  # as it evaluates: nothing is changed by chance
        optimizer.step()
    after = apart()
    assert after[0] < 0.8 * before[0]
    assert after[1] < 0.8 * before[1]
    assert all(weight.grad is None for weight in teacher.parameters())


def with_token(made: Made) -> Made:
    """The same images, seen by a DeiT."""
    shape: Any = made.settings.model
    image = replace(shape.image, class_token=True, distil_token=True)
    heads = ("classes", "distilled")
    shape = replace(shape, image=image, heads=heads, pooling="first")
    settings = replace(made.settings, model=shape)
    task = find_task(settings).objective(settings, made.prepared)
    return Made(settings, made.prepared, task, build_model(shape, seed=1))


def test_every_head_learns_from_the_teacher(tiny: Any) -> None:
    """CTC beside a decoder, and the distillation token."""
    soft = DistilSettings(hard=0.0, soft=1.0, cosine=0.0)
    for made, heads in (
        (tiny("transcribe"), ("words", "ctc")),
        (with_token(tiny("classify images")), ("classes", "distilled")),
    ):
        batch = batch_of(made.task)
        found, _ = priced(distil(made.task, deeper(made), soft), made.model, batch)
        assert found.sum.item() > 0
        for head in heads:
            assert made.model.head_named(head).linear.weight.grad.abs().max() > 0


@pytest.mark.parametrize("name", DATA)
def test_a_teacher_with_equal_outputs_adds_no_loss(tiny: Any, name: str) -> None:
    made = tiny(name)
    made.model.eval()
    given = made.task.augment(made.model, batch_of(made.task))
    with torch.no_grad():
        one, other = (made.task.read(made.model, given) for _ in range(2))
        assert float(soft_loss(one, other, 3.0)) == pytest.approx(0.0, abs=1e-4)
        assert float(cosine_loss(one, other)) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("name", LIKELY)
def test_rdrop_costs_what_two_readings_differ_by(tiny: Any, name: str) -> None:
    """Nothing where nothing is dropped, and more the more is; not a thing in an evaluation."""
    made = tiny(name)
    batch = batch_of(made.task)
    own, _ = priced(plain(made.task), made.model, batch)
    twice, _ = priced(rdrop(made.task, 2.0), made.model, batch)
    torch.testing.assert_close(twice.sum, own.sum, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(twice.nll, own.nll, rtol=1e-4, atol=1e-4)
    noisy = build_model(replace(made.settings.model, dropout=0.3), seed=1)
    cheap, dear = (priced(rdrop(made.task, weight), noisy, batch)[0] for weight in (1e-9, 4.0))
    assert dear.sum.item() > 1.001 * cheap.sum.item()
    noisy.eval()
    assert torch.equal(rdrop(made.task, 4.0)(noisy, batch).sum, plain(made.task)(noisy, batch).sum)


@pytest.mark.parametrize("name", ["embed", "fill images"])
def test_terms_on_probabilities_are_an_error_without_any(name: str) -> None:
    given = {"task": name.split()[0], **({"data.media": ["x"]} if "image" in name else {})}
    for word in ("train.rdrop=1", "distil.temperature=3"):
        with pytest.raises(ConfigError, match=rf"{word.split('=')[0]}.*\b{given['task']}\b"):
            load_run_settings(None, [word], {**given, "distil.teacher": "x"})


def test_a_student_is_not_read_twice_as_well() -> None:
    given = {"distil.teacher": "x"}
    for name, spec in SPECS.items():
        if spec.has_probabilities and not spec.by_sequence:
            with pytest.raises(ConfigError, match=r"train\.rdrop.*\bteacher"):
                load_run_settings(None, ["train.rdrop=1"], {"task": name, **given})
    assert load_run_settings(None, ["train.rdrop=1"], {"task": "translate", **given})


def test_distillation_terms_without_a_teacher_or_with_its_texts_are_an_error() -> None:
    settings = load_run_settings(None, ["distil.soft=1"], {"task": "classify"})
    with pytest.raises(ConfigError, match=r"distil\.soft.*teacher="):
        check_training(settings)
    with pytest.raises(ConfigError, match=r"distil\.soft.*\btranslate\b"):
        load_run_settings(None, ["distil.soft=1"], {"task": "translate", "distil.teacher": "x"})
    given = {"task": "translate", "distil.teacher": "x"}
    assert load_run_settings(None, ["distil.layers=1"], given)


def saved(made: Made, folder: Path) -> Path:
    """As a finished run."""
    folder.mkdir()
    save_weights(folder, model_weights(made.model))
    replace_text(folder / CONFIG, resolved_toml(made.settings))
    if made.prepared.vocab is not None:
        made.prepared.save_tokenizer(folder / TOKENIZER)
    return folder


@pytest.mark.parametrize("name", [name for name in DATA if name != "translate"])
def test_a_run_of_any_task_can_teach(tiny: Any, name: str, tmp_path: Path) -> None:
    """From a finished run to the first step of its student."""
    teacher = saved(tiny(name), tmp_path / "teacher")
    student = every.make(name, tmp_path / "student", teacher)
    worker = Trainer(student.settings, student.prepared, Distributed(), lambda text: None)
    assert worker.teacher is not None
    found = worker.loss_of(worker.model.train(), batch_of(worker.objective))
    found.sum.backward()
    assert torch.isfinite(found.sum)


def test_a_student_reads_as_its_teacher_does(tiny: Any, tmp_path: Path) -> None:
    """What says how answers are read comes with the teacher; what contradicts it is refused."""
    made = tiny("identify")
    angles = replace(made.settings.identify, margin=0.2, scale=20.0)
    by_angle = replace(made, settings=replace(made.settings, identify=angles))
    teacher = saved(by_angle, tmp_path / "teacher")
    given = implied_settings("distil", None, str(teacher), Overrides({}))
    assert given["identify.margin"] == 0.2
    assert given["identify.scale"] == 20.0
    settings = replace(made.settings, distil=DistilSettings(teacher=str(teacher)))
    with pytest.raises(ConfigError, match=r"identify\.margin.*identify\.scale"):
        load_teacher(settings, CPU)
    load_teacher(replace(settings, identify=angles), CPU)
