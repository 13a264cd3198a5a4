"""The example of docs/built/objective.md runs, and an objective has nine members to implement."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.specs.tasks import SPECS
from headway.tasks.dataset import TaskDataset
from headway.tasks.evaluate import Evaluator
from headway.tasks.objective import Objective
from headway.tasks.task import Predictor, Task

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


def test_the_example_learns_evaluates_and_predicts(stars: str, tmp_path: Path) -> None:
    settings = {
        "model.n_layers": 1, "model.d_model": 32, "model.n_heads": 2, "model.d_ff": 48,
        "data.valid_size": 15, "train.steps": 60, "train.batch_tokens": 256, "train.lr": 1e-2,
        "train.eval_every": 30, "tokenizer.kind": "words", "train.threads": 1,
    }  # fmt: skip
    run = headway.train(
        "stars", rated(120), out=tmp_path / "run", settings=settings, device="cpu", quiet=True
    )
    assert run.labels == ("2", "4", "6", "8", "10")
    scores = run.evaluate(rated(40))
    assert set(scores) == {"mae", "loss"}
    assert scores.n == 40
    assert scores["mae"] < 0.5 < scores.baselines["median"]["mae"]
    assert set(run.evaluate()) == {"mae", "loss"}
    assert [run(f"a {word} song").text for word in ("awful", "superb")] == ["2", "10"]
    assert len([line for line in stars.splitlines() if line.strip()]) <= 60


def abstract_members() -> set[str]:
    bases = (Task, Objective, TaskDataset, Evaluator, Predictor)
    return {f"{base.__name__}.{name}" for base in bases for name in base.__abstractmethods__}


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
