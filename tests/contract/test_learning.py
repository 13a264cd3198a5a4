"""What the loop rests on: a step may be cut anywhere, an example is read as it is among others, and
what is read in training is what is answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from headway.settings.task_rows import spec_of
from headway.tasks.losses import plain

from .tiny import CPU, ROWS, Tiny, named, parts_of

WHOLE = 10**6
CUTS = (1, 40, 90)
"""Tokens computed at a time: one example each, some, more."""


def priced(tiny: Tiny, micro_tokens: int) -> dict[str, Any]:
    """Sums over two steps: the loss, what it is divided by, and the gradient."""
    model, loss = tiny.model, plain(tiny.task)
    model.eval().zero_grad()  # nothing by chance
    found = {"parts": 0, "loss": 0.0, "nll": 0.0, "targets": 0, "tokens": 0}
    for part in parts_of(tiny, micro_tokens):
        one = loss(model, tiny.task.batch(part, CPU, None))
        one.sum.backward()
        found["parts"] += 1
        found["loss"] += one.sum.item()
        found["nll"] += one.nll.item()
        found["targets"] += part.n_targets
        found["tokens"] += part.n_tokens
    slopes = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return found | {"gradient": torch.cat([slope.reshape(-1) for slope in slopes])}


def test_a_loss_is_the_sum_of_its_parts_however_it_is_cut(tiny: Tiny) -> None:
    whole = priced(tiny, WHOLE)
    assert whole["parts"] == len(tiny.task.epoch(0)[:2])
    for cut in CUTS:
        found = priced(tiny, cut)
        assert (found["targets"], found["tokens"]) == (whole["targets"], whole["tokens"])
        assert found["loss"] == pytest.approx(whole["loss"], rel=1e-4)
        assert found["nll"] == pytest.approx(whole["nll"], rel=1e-4)
        torch.testing.assert_close(
            found["gradient"], whole["gradient"], rtol=1e-3, atol=1e-4 * float(whole["loss"])
        )


def test_steps_are_cut_at_all(tiny_of: Any) -> None:
    """But for those whose examples are compared with each other."""
    uncut = {
        named(row) for row in ROWS
        if len(list(parts_of(tiny_of(row), 1))) == len(list(parts_of(tiny_of(row), WHOLE)))
    }  # fmt: skip
    assert uncut == {named(row) for row in ROWS if row.compares and row.answers == "vector"}


def answers_read(tiny: Tiny, micro_tokens: int) -> torch.Tensor:
    """What the model says of each row of two steps."""
    task, model = tiny.task, tiny.model.eval()
    with torch.no_grad():
        batches = [task.batch(part, CPU, None) for part in parts_of(tiny, micro_tokens)]
        return torch.cat(
            [task.read(model, task.augment(model, one)).averaged_logits() for one in batches]
        )


def in_order(rows_RC: torch.Tensor) -> np.ndarray:
    """Cut otherwise, examples come in another order: sorted by all of their numbers, roughly."""
    rows = rows_RC.double().numpy()
    return rows[np.lexsort(np.round(rows, 3).T[::-1])]


def test_an_example_is_read_alone_as_among_others(tiny: Tiny) -> None:
    whole, alone = in_order(answers_read(tiny, WHOLE)), in_order(answers_read(tiny, 1))
    assert whole.shape == alone.shape
    np.testing.assert_allclose(alone, whole, atol=5e-3)
    np.testing.assert_allclose(np.sort(alone.sum(-1)), np.sort(whole.sum(-1)), atol=1e-3)


def test_what_training_reads_is_what_is_answered(tiny: Tiny) -> None:
    """The scores of every training example are among those of the answers to all examples, and the
    largest is the label."""
    if spec_of(tiny.run.settings).answers != "label":
        return
    said_RC = answers_read(tiny, WHOLE).softmax(-1).double().numpy()
    answers = tiny.run([{k: one[k] for k in tiny.questions[0]} for one in tiny.examples])
    labels = tiny.run.labels
    known_NC = np.array([[one.probabilities[name] for name in labels] for one in answers])
    for row_C in said_RC:
        nearest = int(np.abs(known_NC - row_C).sum(-1).argmin())
        # Recordings are stored in 16 bits, also where they had another rate; a temperature below
        # one makes more of that.
        np.testing.assert_allclose(known_NC[nearest], row_C, atol=6e-3)
        assert answers[nearest].label == labels[int(row_C.argmax())]
