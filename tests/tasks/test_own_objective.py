"""The example of docs/built/objective.md runs, and an objective has nine members to implement."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import headway
from headway.data.batches import FixedShapes, IntArray, to_device
from headway.data.prepare import evaluation_set
from headway.data.store import Columns, PreparedData
from headway.errors import UserError
from headway.models.parts.output_heads import ModelInput
from headway.nn.layout import Layout
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.settings.run import Resolved, with_files
from headway.specs.metrics import scored
from headway.specs.needs import LABEL, TEXT
from headway.specs.tasks import SPECS, Spec, register
from headway.tasks.answers import Answer, LabelAnswer
from headway.tasks.dataset import Batch, EvalPass, FloatArray, TaskDataset, example_outputs
from headway.tasks.evaluate import Evaluator
from headway.tasks.objective import Objective, TaskLoss
from headway.tasks.readout import Read, readout_of
from headway.tasks.scores import Scores
from headway.tasks.task import InferenceRequest, Predictor, Task
from headway.tokens.tokenizer import Tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "built" / "objective.md"
WORDS = ("awful", "weak", "fair", "good", "superb")


@pytest.fixture
def stars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The example of the page as a module, which registers its task."""
    [code] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "stars.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("my_package.stars")
    yield code
    del SPECS["stars"]
    for name in ("my_package", "my_package.stars"):
        sys.modules.pop(name, None)


def rated(n: int) -> list[dict[str, Any]]:
    names = ("film", "plot", "song", "cast", "scene")
    return [
        {"text": f"a {WORDS[i % 5]} {names[i // 5 % 5]} {i}", "label": str(2 * (i % 5 + 1))}
        for i in range(n)
    ]


def trained(task: str, out: Path) -> headway.Run:
    settings = {
        "model.n_layers": 1, "model.d_model": 32, "model.n_heads": 2, "model.d_ff": 48,
        "data.valid_size": 15, "train.steps": 60, "train.batch_tokens": 256, "train.lr": 1e-2,
        "train.eval_every": 30, "tokenizer.kind": "words", "train.threads": 1,
    }  # fmt: skip
    return headway.train(task, rated(120), out=out, settings=settings, device="cpu", quiet=True)


def test_the_example_learns_evaluates_and_predicts(stars: str, tmp_path: Path) -> None:
    run = trained("stars", tmp_path / "run")
    assert run.labels == ("2", "4", "6", "8", "10")
    scores = run.evaluate(rated(40))
    assert set(scores) == {"mae", "loss"}
    assert scores.n == 40
    assert scores["mae"] < 0.5 < scores.baselines["median"]["mae"]
    assert set(run.evaluate()) == {"mae", "loss"}
    assert [run(f"a {word} song").text for word in ("awful", "superb")] == ["2", "10"]
    assert len([line for line in stars.splitlines() if line.strip()]) <= 60


def test_a_task_without_answers_only_trains_and_evaluates(
    stars: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("my_package.stars.Stars.predictor")
    run = trained("stars", tmp_path / "run")
    assert run.evaluate(rated(40)).n == 40
    with pytest.raises(UserError, match="stars"):
        run("a superb song")


class RatedTexts(TaskDataset[Tensor]):
    def __init__(self, columns: Columns, tokenizer: Tokenizer) -> None:
        texts: Any = columns["text"]
        self.texts = [tokenizer.as_text(text.tolist()) for text in texts]
        self.labels_N = np.asarray(columns["label"])

    @property
    def lengths(self) -> IntArray:
        return np.array([[len(text)] for text in self.texts])

    def batch(
        self, rows: IntArray, device: torch.device, fixed: FixedShapes | None = None
    ) -> Batch[Tensor]:
        chosen = [torch.tensor(self.texts[row]) for row in rows]
        read = ModelInput(torch.cat(chosen), Layout.of([len(text) for text in chosen]))
        return to_device(Batch((read,), torch.from_numpy(self.labels_N[rows])), device)


class RatedObjective(Objective[Tensor]):
    def loss(self, read: Read, given: Batch[Tensor]) -> TaskLoss:
        loss = F.cross_entropy(read.logits_RC, given.targets, reduction="sum")
        return TaskLoss(loss, loss.detach())


class RatedEvaluator(Evaluator[RatedTexts, FloatArray], Predictor):
    def __init__(self, settings: Resolved, tokenizer: Tokenizer, use: Any = None) -> None:
        self.settings, self.tokenizer, self.use = settings, tokenizer, use

    def test_set(self, files: DataSettings, progress: Progress) -> RatedTexts:
        asked, labels = with_files(self.settings, files), self.settings.labels
        return RatedTexts(evaluation_set(asked, self.tokenizer, labels)[0], self.tokenizer)

    def predict(self, asked: EvalPass, examples: RatedTexts) -> FloatArray:
        read = readout_of(self.settings).read
        return example_outputs(
            asked, examples, lambda _, batch: read(asked.model, *batch.streams).logits_RC.softmax(1)
        )

    def score(self, predictions: FloatArray, examples: RatedTexts, full: bool) -> Scores:
        labels_N = examples.labels_N[: len(predictions)]
        right_N = predictions.argmax(1) == labels_N
        loss = -np.log(predictions[np.arange(len(labels_N)), labels_N]).mean()
        return Scores({"accuracy": float(right_N.mean()), "loss": float(loss)}, n=len(labels_N))

    def answers(self, lines: Any, live: bool = False) -> Iterator[Answer]:
        asked = EvalPass.of_run(self.use.opened)
        for line in lines:
            text, labels = self.tokenizer.encode(str(line)), np.zeros(1, np.int64)
            columns: Any = {"text": [np.array(text)], "label": labels}
            [shares_C] = self.predict(asked, RatedTexts(columns, self.tokenizer))
            yield LabelAnswer.of(self.settings.labels, shares_C.tolist())


class RatedTask(Task):
    def objective(self, settings: Resolved, prepared: PreparedData) -> RatedObjective:
        tokenizer = prepared.tokenizer
        return RatedObjective(
            settings, prepared, evaluator=RatedEvaluator(settings, tokenizer),
            train_dataset=RatedTexts(prepared.train, tokenizer),
            valid_dataset=RatedTexts(prepared.valid, tokenizer),
        )  # fmt: skip

    def evaluator(self, use: InferenceRequest) -> Evaluator[Any, Any]:
        return RatedEvaluator(use.settings, use.opened.vocab.target, use)


@pytest.fixture
def rated_task() -> Iterator[str]:
    register(Spec(
        name="rated", modality="text", objective=f"{__name__}.RatedTask", reads="labelled",
        needs=(TEXT, LABEL), answers="label", metrics=scored("accuracy", "loss"),
        families=("encoder",), heads=("classes",), decode=frozenset({"precision"}), counts="text",
        lacks="more texts",
    ))  # fmt: skip
    yield "rated"
    del SPECS["rated"]


BASES = (Task, Objective, TaskDataset, Evaluator, Predictor)


def test_the_nine_members_train_evaluate_and_predict(rated_task: str, tmp_path: Path) -> None:
    own = (RatedTask, RatedObjective, RatedTexts, RatedEvaluator)
    written = {
        f"{base.__name__}.{name}"
        for base in BASES for kind in own if base in kind.__mro__
        for name in vars(kind) if name in vars(base) and not name.startswith("_")
    }  # fmt: skip
    assert written == abstract_members()
    run = trained(rated_task, tmp_path / "run")
    assert run.evaluate(rated(40))["accuracy"] == 1
    assert run.evaluate()["accuracy"] == 1
    assert [run(f"a {word} song").text for word in ("awful", "superb")] == ["2", "10"]
    assert headway.load(tmp_path / "run")("a fair plot").text == "6"


def abstract_members() -> set[str]:
    return {f"{base.__name__}.{name}" for base in BASES for name in base.__abstractmethods__}


def test_at_most_nine_members_must_be_implemented() -> None:
    found = abstract_members()
    assert len(found) <= 9
    documented = re.findall(r"^\| `(\w+\.\w+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert set(documented) == found
    module = sys.modules[Objective.__module__].__doc__ or ""
    assert (
        set(re.findall(r"`((?:Task|Objective|TaskDataset|Evaluator|Predictor)\.\w+)`", module))
        - {"Task.predictor"}
        == found
    )
