"""The loss of a run with weights that it does not have."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from headway.lab import datasets
from headway.lab.run_loss import RunLoss
from headway.lab.workspace import Workspace


@pytest.mark.parametrize("task", ["translate", "complete"])
def test_it_measures_as_training_does(tmp_path: Path, task: str) -> None:
    bench = Workspace(folder=tmp_path, seed=0, quick=True, device="cpu")
    own = {"model.d_model": 16, "model.d_ff": 16, "model.n_layers": 1, "train.steps": 3,
           "train.batch_tokens": 200, "train.label_smoothing": 0.1}  # fmt: skip
    if task == "translate":
        train, valid = datasets.make_pairs(datasets.grammar, 40, 10, 0).columns()
    else:
        train, valid = datasets.speeches(4, 2, 100)
        own |= {"tokenizer.kind": "characters", "complete.context": 32}
    run = bench.train("a", task, train, valid=valid, settings=own)
    yardstick = RunLoss(run)
    loss = yardstick.validation()
    assert loss == pytest.approx(run.scores["loss"], abs=1e-5)
    assert yardstick.ensemble([run.model, run.model]) == pytest.approx(loss, abs=1e-5)
    assert yardstick.training() != pytest.approx(loss, abs=1e-3)
    other = copy.deepcopy(run.model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.zero_()
    size = run.settings.model.vocab_size
    assert yardstick.validation(other) == pytest.approx(
        torch.tensor(float(size)).log().item(), abs=1e-4
    )
    assert yardstick.validation() == loss
