"""What a run is made of, and which weights it keeps in the end."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.cli.main import main
from headway.errors import FolderError, Stopped
from headway.models.build import build_model
from headway.nn.stack import stacks
from headway.progress import SILENT, ProgressStage
from headway.settings.presets import preset
from headway.settings.run import RunSettings, load_run_settings
from headway.settings.task_rows import spec_of
from headway.settings.train import TrainSettings
from headway.tasks.causal_lm import CausalLMTask
from headway.tasks.dataset import EvalPass
from headway.tasks.scores import MethodScores, Scores
from headway.training import trainer
from headway.training.budget import Budget, Journal, UnlimitedEvaluations
from headway.training.checkpoint import Checkpoints
from headway.training.distributed import Distributed
from headway.training.log import RunLog
from headway.training.resolve import resolve_run
from headway.training.run import Training
from headway.training.snapshot import write_snapshot
from headway.training.step import Step
from headway.training.trainer import Trainer, load_final_weights
from tests.tasks.written import pair_items

from .test_translate_task import made_of
from .toy import ToyTask, toy_loop, weights

# The choice at the end


class Judge(ToyTask):
    """Gives weights the scores that it is told to give: to the best, then to their mean."""

    def __init__(self, *verdicts: float) -> None:
        super().__init__()
        self.verdicts = list(verdicts)
        self.full: list[bool] = []

    n_valid = 100

    def evaluate(self, asked: EvalPass) -> Scores:
        self.full.append(asked.full)
        if asked.should_stop():
            raise Stopped
        return Scores(values={"loss": self.verdicts[len(self.full) - 1]})


def chosen(loop: Any, *verdicts: float, average: int = 3, stop: bool = False) -> dict[str, Any]:
    loop.objective = Judge(*verdicts)
    loop.stop_requested = lambda: stop
    settings = SimpleNamespace(train=SimpleNamespace(average=average))
    return load_final_weights(SimpleNamespace(model=loop.model, settings=settings), loop)  # type: ignore[arg-type]


def trained(folder: Path, **settings: Any) -> Any:
    loop = toy_loop(folder, **{"steps": 8, "save_every": 2, "eval_every": 4, **settings})
    loop.run()
    return loop


def weights_at(loop: Any, step: int) -> Tensor:
    tensors = Checkpoints.weights(loop.checkpoints.folder / f"step-{step}")
    return torch.cat([tensors[name].flatten() for name, _ in loop.model.named_parameters()])


def test_the_average_is_kept_where_it_is_better(tmp_path: Path) -> None:
    loop = trained(tmp_path)
    found = chosen(loop, 2.0, 1.5)
    mean = torch.stack([weights_at(loop, step).double() for step in (4, 6, 8)]).mean(0).float()
    assert torch.equal(weights(loop), mean)
    assert re.search(r"\baverage\b.*\b3\b", found["kept"])
    assert "+0.50" in found["text"]
    assert loop.objective.full == [True, True]


def test_the_best_is_kept_where_that_is_better(tmp_path: Path) -> None:
    loop = trained(tmp_path)
    assert loop.state.best_step == 8
    before = weights(loop).clone()
    found = chosen(loop, 1.5, 2.0)
    assert torch.equal(weights(loop), before)
    best, average = found["scores"]
    assert found["kept"] == best
    assert "step-8" in best
    assert re.search(r"\baverage\b.*\b3\b", average)
    assert "-0.50" in found["text"]
    assert found["scores"] == {best: {"loss": 1.5}, average: {"loss": 2.0}}


def test_with_a_running_average_that_is_what_is_compared(tmp_path: Path) -> None:
    loop = trained(tmp_path, ema=0.9)
    chosen(loop, 1.0, 2.0)
    assert loop.ema is not None
    averages = torch.cat([tensor.flatten() for tensor in loop.ema.averages.values()])
    assert torch.equal(weights(loop), averages)


def test_nothing_is_averaged_with_one_checkpoint(tmp_path: Path) -> None:
    loop = trained(tmp_path)
    found = chosen(loop, 1.0, average=1)
    assert list(found["scores"]) == [found["kept"]]
    assert "step-8" in found["kept"]
    assert re.findall(r"[+-]?\d\.\d+", found["text"]) == ["1.000"]


def test_a_damaged_checkpoint_is_left_out(tmp_path: Path) -> None:
    loop = trained(tmp_path)
    path = tmp_path / "checkpoints/step-6/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert re.search(r"\baverage\b.*\b3\b", chosen(loop, 2.0, 1.0)["kept"])
    mean = torch.stack([weights_at(loop, step).double() for step in (2, 4, 8)]).mean(0).float()
    assert torch.equal(weights(loop), mean)
    assert any("step-6" in text for text in loop.log.said)


def test_without_checkpoints_the_last_step_is_kept(tmp_path: Path) -> None:
    loop = toy_loop(tmp_path)
    before = weights(loop).clone()
    found = chosen(loop, 3.0)
    kept = found["kept"]
    assert "step-" not in kept
    assert "3.000" in found.pop("text")
    assert found == {
        "kept": kept,
        "scores": {kept: {"loss": 3.0}},
        "figures": {},
        "examples": 100,
        "careful": True,
        "lines": [],
    }
    assert torch.equal(weights(loop), before)


@pytest.mark.parametrize("ema", [0.0, 0.9])
@pytest.mark.parametrize("last", [1.0, 3.0])
def test_a_last_step_that_the_disk_did_not_take_is_a_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ema: float, last: float
) -> None:
    def full(folder: Path, snapshot: Any, **_: Any) -> None:
        if snapshot.step > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_snapshot(folder, snapshot, **_)

    monkeypatch.setattr("headway.training.checkpoint.write_snapshot", full)
    loop = trained(tmp_path, ema=ema)
    with loop.averaged():
        end = weights(loop).clone()
    found = chosen(loop, 2.0, 2.5, last)
    assert loop.checkpoints.failed == [6, 8]
    best, average, end_of_run = found["scores"]
    assert "step-4" in best
    assert re.search(r"\baverage\b.*\b2\b", average)
    assert not re.search(r"\d", end_of_run)
    assert found["kept"] == (end_of_run if last == 1.0 else best)
    assert "-0.50" in found["text"]
    assert torch.equal(weights(loop), end if last == 1.0 else weights_at(loop, 4))


def test_a_checkpoint_that_is_gone_when_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = trained(tmp_path)
    before = weights(loop).clone()

    def gone(path: Path) -> None:
        raise FolderError(f"{path} cannot be read.")

    monkeypatch.setattr(loop.checkpoints, "weights", gone)
    assert "step-" not in chosen(loop, 2.0, average=1)["kept"]
    assert torch.equal(weights(loop), before)


def test_a_stop_is_heeded_in_the_comparison(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        chosen(trained(tmp_path), 1.0, 2.0, stop=True)


# The model


def test_computing_blocks_twice_changes_no_gradient() -> None:
    draw = torch.Generator().manual_seed(0)
    side = [x.tolist() for x in torch.randint(3, 100, (15,), generator=draw).split([3, 7, 5])]
    source, target = (
        pair_items(side, side).batch(torch.arange(3).numpy(), torch.device("cpu")).streams
    )
    gradients, kept = [], []
    for twice in (False, True):
        model = build_model(preset("transformer-test"), seed=1).train()
        if twice:
            for _, stack in stacks(model):
                stack.recompute_activations()
        bytes_kept = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal bytes_kept
            bytes_kept += tensor.nbytes
            return tensor

        torch.manual_seed(0)  # with dropout: the second time must drop the same
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            x_ND = model(source.values, source.layout, target.values, target.layout)
        x_ND.square().sum().backward()
        gradients.append(
            torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])
        )
        kept.append(bytes_kept)
    assert torch.equal(gradients[0], gradients[1])
    assert kept[1] < 0.5 * kept[0]


@pytest.mark.parametrize(
    "body", [["convolution"], ["gru", "additive"], ["lstm"], ["lstm", "last"], ["gru"]]
)
def test_steps_of_bodies_can_be_recorded_unless_a_grid_is_mostly_empty_or_all_pairs_are_scored(
    tmp_path: Path, body: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = made_of(tmp_path, kind="words")
    words = ["task=translate", f"model.body={body[0]}", "model.d_model=136", "model.n_layers=1"]
    words += [f"model.source_attention={memory}" for memory in body[1:]]
    words += ["decode.max_len=8", "train.batch_tokens=100", "train.precision=bf16"]
    settings = resolve_run(load_run_settings(None, words), prepared, torch.device("cpu"))
    worker = Trainer(settings, prepared, Distributed())
    why = worker._why_no_graph()
    assert why.startswith("model.source_attention=additive") if "additive" in body else why == ""
    monkeypatch.setattr(trainer, "CELLS", 0)
    assert worker._why_no_graph().startswith("model.")


def long_documents(folder: Path) -> list[str]:
    """Arguments that train a language model on them, with attention too long for `short`."""
    lines = [" ".join(f"w{(i * j) % 11}" for j in range(2 + 7 * i)) for i in range(1, 30)]
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    shape = ["model.d_model=32", "model.n_layers=1", "model.n_heads=2", "model.d_ff=32"]
    return [str(folder / "text.txt"), "data.unit=line", "tokenizer.kind=words", *shape,
            "model.max_len=256", "train.batch_tokens=512", "train.steps=3", "data.valid_size=3",
            "train.average=1"]  # fmt: skip


@pytest.mark.parametrize(("setting", "wanted"), [
    ("model.attention_dropout=0.1", ""),
    ("model.attention_dropout=0", ""),
    ("model.positions=alibi", "model.positions=alibi"),
    ("train.gradient_checkpointing=true", "train.gradient_checkpointing=true"),
    ("train.precision=fp32", "train.precision=fp32"),
    ("train.compile=no", "train.compile=no"),
    ("model.n_heads=8", r"model\.d_model=32\b.*\b4\b"),
])  # fmt: skip
def test_the_setting_that_keeps_a_step_from_being_recorded_is_named(
    tmp_path: Path, setting: str, wanted: str
) -> None:
    text, *words = long_documents(tmp_path)
    settings = load_run_settings(None, ["task=complete", f"data.text={json.dumps([text])}", *words,
                                        "train.precision=bf16", setting])  # fmt: skip
    prepared = CausalLMTask(spec_of("complete")).prepare(settings, tmp_path / "run", SILENT)
    settings = resolve_run(settings, prepared, torch.device("cpu"))
    why = Trainer(settings, prepared, Distributed())._why_no_graph()
    assert re.match(wanted, why)
    assert bool(why) == bool(wanted)


@pytest.mark.parametrize("why", ["", "train.precision=fp32"])
def test_a_line_names_the_setting_because_of_which_steps_are_not_recorded(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = Trainer.__init__

    def on_gpu(self: Trainer, *words: Any, **more: Any) -> None:
        begin(self, *words, **more)
        self.no_graph_reason = why

    monkeypatch.setattr(Trainer, "__init__", on_gpu)
    assert main(["train", "complete", *long_documents(tmp_path), "--device", "cpu",
                 "--out", str(tmp_path / "run")]) == 0  # fmt: skip
    shown = "".join(capsys.readouterr())
    assert ("CUDA graph" in shown) == bool(why)
    assert why in shown


@pytest.mark.gpu
@pytest.mark.parametrize("setting", ["model.attention_dropout=0.1", "model.positions=alibi"])
def test_training_with_attention_dropout_on_long_documents_is_recorded_on_a_gpu(
    tmp_path: Path, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "complete", *long_documents(tmp_path), setting, "--device", "cuda",
                 "train.precision=bf16", "--out", str(tmp_path / "run")]) == 0  # fmt: skip
    shown = "".join(capsys.readouterr())
    assert ("CUDA graph" in shown) == (setting == "model.positions=alibi")


def test_time_is_measured_with_real_steps(tmp_path: Path) -> None:
    prepared = made_of(tmp_path, kind="words")
    words = ["task=translate", "model.preset=transformer-test", "decode.max_len=8"]
    words += ["train.batch_tokens=100"]
    settings = resolve_run(load_run_settings(None, words), prepared, torch.device("cpu"))
    timing = Trainer(settings, prepared, Distributed()).time(for_s=0.05)
    assert 0 < timing.step_s < 5
    assert 0 < timing.example_s < 60
    assert 40 / timing.step_s < timing.tokens_per_s <= 100 / timing.step_s


@pytest.mark.parametrize("asked", [[], ["train.warmup=400"]])
def test_a_budget_respects_a_set_warmup(tmp_path: Path, asked: list[str]) -> None:
    prepared = made_of(tmp_path, kind="words")
    words = ["task=translate", "model.preset=transformer-test", "train.steps=50", "train.lr=1.0"]
    words += ["train.schedule=linear", *asked]
    settings = resolve_run(load_run_settings(None, words), prepared, torch.device("cpu"))
    worker = Trainer(settings, prepared, Distributed())
    run: Any = SimpleNamespace(budget_s=60.0, ranks=Distributed(), started=0.0, now=lambda: 0.0)
    budget = Training._budget(run, settings, worker.objective, Journal(None))
    first = budget.decide(0, None)
    assert first is not None
    assert first.warmup == (400 if asked else 0)
    checkpoints, log = Checkpoints(tmp_path, 1, print), RunLog(None, SILENT)
    for limit in (None, budget):
        loop = worker.loop(checkpoints, log, lambda: False, tmp_path, limit)
        assert loop.lr_at(5) == pytest.approx(5 / 400 if asked else 1.0)
        assert (loop.lr_at(400) == 1.0) == (limit is not None and bool(asked))


def test_a_trial_ends_within_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part takes a second, a step many of them, and the trial may take two."""
    prepared = made_of(tmp_path, kind="words")
    words = ["task=translate", "model.preset=transformer-test", "decode.max_len=8"]
    words += ["train.batch_tokens=400", "train.micro_tokens=40"]
    settings = resolve_run(load_run_settings(None, words), prepared, torch.device("cpu"))
    clock, add = [0.0], Step.add

    def slow(self: Step, batch: Any, n_targets: int) -> None:
        add(self, batch, n_targets)
        clock[0] += 1.0

    monkeypatch.setattr(Step, "add", slow)
    timing = Trainer(settings, prepared, Distributed()).time(for_s=1.5, now=lambda: clock[0])
    assert clock[0] == 4.0  # two parts to begin with, and two that count
    assert 8.0 < timing.step_s < 16.0
    assert not timing.long


# Steps that are not numbers, in a real run


def test_a_run_that_diverges_stops_and_shows_the_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{'abcdefg'[n % 7]} {'hijklmnop'[n % 9]}" for n in range(63)]
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{line} {name}\n" for line in lines))
    out = tmp_path / "run"
    command = ["train", "translate", "--source", f"{tmp_path}/a", "--target", f"{tmp_path}/b"]
    command += ["--device", "cpu", "--out", str(out), "model.preset=transformer-test"]
    command += ["tokenizer.kind=words", "train.steps=30", "train.batch_tokens=40"]
    command += ["data.valid_size=4", "train.lr=1e30", "train.schedule=constant", "train.warmup=3"]
    command += ["train.save_every=1", "train.max_bad_steps=4"]
    assert main(command) == 2
    printed = capsys.readouterr().err
    pattern = r"\b4\b.*\bbad-batch\.json\b.*\btrain\.lr\b"
    assert re.search(pattern, printed.splitlines()[-1])
    shown = json.loads((out / "bad-batch.json").read_text())
    assert shown["step"] >= 5
    assert {(e["source"], e["target"]) for e in shown["examples"]} <= {
        (f"{line} a", f"{line} b") for line in lines
    }
    assert shown["examples"]
    skipped = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert sum(entry["kind"] == "event" for entry in skipped) == 4
    assert main(command) == 2  # and again, without a traceback
    assert re.search(pattern, capsys.readouterr().err.splitlines()[-1])


def test_where_a_budget_has_no_time_the_best_checkpoint_is_kept_with_its_score(
    tmp_path: Path,
) -> None:
    loop = trained(tmp_path)
    clock = [0.0]
    wanted = UnlimitedEvaluations(n_quick=50, n_valid=100)
    loop.budget = Budget(10.0, wanted, Journal(None), started=0.0, now=lambda: clock[0])
    loop.budget.timed(1.0, 0.001)
    loop.state.best, loop.state.best_examples = [-2.5, -2.5], 50
    clock[0] = 11.0
    settings = SimpleNamespace(
        train=SimpleNamespace(average=3), distil=SimpleNamespace(teacher=None)
    )
    loop.objective = Judge()
    found = load_final_weights(SimpleNamespace(model=loop.model, settings=settings), loop)  # type: ignore[arg-type]
    assert "step-8" in found["kept"]
    assert found["examples"] == 0
    assert re.search(r"\b50\b.*\b100\b.*\bstep-8\b.*\b2\.500\b", found["text"])
    assert "budget" in found["text"]


def test_a_comparison_that_takes_too_long_is_made_with_fewer_examples(tmp_path: Path) -> None:
    loop = trained(tmp_path)
    clock, sizes = [0.0], []

    class Slow(Judge):
        def evaluate(self, asked: EvalPass) -> Scores:
            assert asked.max_examples is not None
            sizes.append((asked.max_examples, asked.full))
            clock[0] += asked.max_examples * 0.5
            if asked.should_stop():
                raise Stopped
            return Scores(values={"loss": 1.0})

    loop.objective = Slow()
    wanted = UnlimitedEvaluations(n_quick=100, n_valid=100)
    loop.budget = Budget(100.0, wanted, Journal(None), started=0.0, now=lambda: clock[0])
    loop.budget.timed(1.0, 0.05)  # as it was until now
    clock[0] = 60.0
    settings = SimpleNamespace(
        train=SimpleNamespace(average=3), distil=SimpleNamespace(teacher=None)
    )
    found = load_final_weights(SimpleNamespace(model=loop.model, settings=settings), loop)  # type: ignore[arg-type]
    assert clock[0] < 120.0
    assert sizes[0][0] > sizes[-1][0] or found["examples"] == 0
    assert found["kept"]


def budgeted(loop: Any, total: float, at: float, clock: list[float]) -> dict[str, Any]:
    """What is chosen under a budget, at a time."""
    wanted = UnlimitedEvaluations(n_quick=50, n_valid=100)
    loop.budget = Budget(total, wanted, Journal(None), started=0.0, now=lambda: clock[0])
    loop.budget.timed(1.0, 0.001)
    clock[0] = at
    settings = RunSettings(task="classify", train=TrainSettings(average=3))
    return load_final_weights(SimpleNamespace(model=loop.model, settings=settings), loop)  # type: ignore[arg-type]


@pytest.mark.parametrize("saved", [True, False])
def test_a_score_is_shown_only_for_what_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    """Without time for a comparison: the last step was the best, and the disk took it or not."""

    def full(folder: Path, snapshot: Any, **_: Any) -> None:
        if snapshot.step > 4 and not saved:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_snapshot(folder, snapshot, **_)

    monkeypatch.setattr("headway.training.checkpoint.write_snapshot", full)
    loop = trained(tmp_path)
    assert loop.state.best_step == 8
    end = weights(loop).clone()
    found = budgeted(loop, 10.0, 11.0, [0.0])
    assert ("step-8" in found["kept"]) == saved
    assert list(found["scores"]) == [found["kept"]]
    assert torch.equal(weights(loop), end)


def test_an_older_checkpoint_is_not_shown_with_the_score_of_a_later_one(tmp_path: Path) -> None:
    loop = trained(tmp_path)
    loop.state.best_step = 6  # which the disk did not take
    found = budgeted(loop, 10.0, 11.0, [0.0])
    assert "step-8" in found["kept"]
    assert found["scores"] == {}
    assert not re.search(r"\d\.\d", found["text"])


@pytest.mark.parametrize("evaluation_s", [1.0, 60.0])
def test_baselines_come_after_the_choice_and_only_where_there_is_time(
    tmp_path: Path, evaluation_s: float
) -> None:
    loop = trained(tmp_path)
    clock, stages, order = [0.0], list[str](), list[str]()

    class Shown(Judge):
        def evaluate(self, asked: EvalPass) -> Scores:
            clock[0] += evaluation_s / 2
            order.append("evaluation")
            found = super().evaluate(asked)
            return Scores(found, find_baselines=self.baselines)

        def baselines(self) -> dict[str, MethodScores]:
            order.append(stages[-1])
            clock[0] += 500.0
            return {"constant": MethodScores({"loss": 9.0})}

    def stage(what: str) -> ProgressStage:
        stages.append(what)
        return SILENT.stage(what)

    loop.objective, loop.log.stage = Shown(2.0, 1.0), stage
    found = budgeted(loop, 100.0, 37.0, clock)
    assert re.search(r"\baverage\b.*\b3\b", found["kept"])
    looked = evaluation_s == 1.0
    assert order == ["evaluation"] * 2 + [stages[-1]] * looked
    assert ("baselines" in stages[-1]) == looked
    assert any(re.search(r"\bconstant +9\.000$", line) for line in found["lines"]) == looked
