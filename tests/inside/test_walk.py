"""Every step of a walk, computed again from the numbers it brings along, leads where the model
went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.errors import UserError
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.trace import trace
from headway.inside.measure.walk import LayerWalk, WalkStep, walk
from headway.inside.page.look import LookInputs
from headway.inside.page.sections.walk import section
from headway.nn.feedforward import ACTIVATIONS, GATED
from headway.tasks.loaded_run import LoadedRun, open_plain
from headway.web.pack import pack

from ..interop.padded_runs import tiny_run

CASES = [
    ("translate", "as-published"),
    ("translate", "relative-grouped"),
    ("translate", "t5-like"),
    ("translate", "parallel-one-key-head"),
    ("complete", "llama-like"),
    ("complete", "window-and-alibi"),
    ("complete", "no-positions-parallel"),
    ("fill", "albert-like"),
    ("classify", "as-published"),
    ("tag", "qk-norm-scaled-rotary"),
    ("tag", "some-biases-wide-heads"),
    ("embed", "window"),
]

Give = Callable[..., LoadedRun]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Give:
    known: dict[tuple[str, str | None], LoadedRun] = {}

    def give(task: str, variant: str | None = None) -> LoadedRun:
        if (task, variant) not in known:
            folder = tiny_run(tmp_path_factory.mktemp(task) / "run", task, variant, n_layers=2)
            known[task, variant] = open_plain(folder)
        return known[task, variant]

    return give


def text_for(task: str) -> str:
    return "ba [MASK] de go fi" if task == "fill" else "ba de go fi ko"


def again(step: WalkStep, vectors: dict[str, Tensor]) -> tuple[Tensor, Any]:
    """What the step leads to, and which of its numbers: written down once more, on purpose."""
    has, x = step.numbers, [vectors[name].double() for name in step.inputs]
    if step.kind == "norm":
        mean = x[0].mean() if has["centred"] else 0.0
        spread = ((x[0] - mean).square().mean() + has["eps"]).sqrt()
        return (x[0] - mean) / spread * has["weight"] + has.get("bias", 0.0), slice(None)
    if step.kind == "linear":
        return has["weight"].double() @ x[0] + has.get("bias", 0.0), has["rows"]
    if step.kind == "rotary":
        a, b = x[0].chunk(2)
        turned = [a * has["cos"] - b * has["sin"], b * has["cos"] + a * has["sin"]]
        return torch.cat(turned), slice(None)
    if step.kind == "scores":
        shown = has["shown"]
        return has["keys"].double() @ x[0] * has["scale"] + has["bias"][:shown], slice(0, shown)
    if step.kind == "softmax":
        return x[0].softmax(-1), slice(None)
    if step.kind == "mix":
        return x[0] @ has["vectors"].double() + has["rest"], slice(None)
    if step.kind == "activation":
        parts = x[0].view(-1, len(has["neurons"]))
        act = {**ACTIVATIONS, **GATED}[has["activation"]]
        return act(parts[0]) * (parts[1] if len(parts) > 1 else 1.0), slice(None)
    assert step.kind == "add"
    return torch.stack(x).sum(0), slice(None)


def worst(found: LayerWalk) -> float:
    errors = []
    for step in found.steps[1:]:
        got, rows = again(step, found.vectors)
        true = found.vectors[step.out]
        errors.append(float((got - true[rows]).abs().max() / true.abs().max()))
    return max(errors)


@pytest.mark.parametrize(("task", "variant"), CASES)
def test_every_step_leads_where_the_model_went(opened: Give, task: str, variant: str) -> None:
    run = opened(task, variant)
    found = trace(run, text_for(task))
    for kind, layers in found.attention.items():
        for layer in range(len(layers)):
            made = walk(run, found, (kind, layer, None, None))
            assert worst(made) < 1e-3
            row, head = made.at.row, made.at.head
            end_D = found.states[made.stack][layer + 1][row]
            torch.testing.assert_close(made.vectors["end"], end_D, rtol=1e-4, atol=1e-4)
            seen_S = found.attention[kind][layer][head, row]
            softmax = next(s for s in made.steps if s.out == f"{kind}.weights")
            assert torch.equal(made.vectors[f"{kind}.weights"], seen_S[softmax.numbers["columns"]])
            h = made.vectors["h"]
            neurons = made.steps[[s.out for s in made.steps].index("h")].numbers["neurons"]
            torch.testing.assert_close(h, found.hidden[made.stack][layer][row, neurons])


def test_a_twin_is_followed_as_the_run_is(opened: Give) -> None:
    run = opened("fill", "albert-like")
    ways = [walk(one, trace(one, text_for("fill"))) for one in (run, run.inspection_copy())]
    assert [step.title for step in ways[0].steps] == [step.title for step in ways[1].steps]
    for name, vector_D in ways[0].vectors.items():
        assert torch.equal(vector_D, ways[1].vectors[name])


def test_every_head_of_every_row_can_be_followed(opened: Give) -> None:
    run = opened("translate", "relative-grouped")
    found = trace(run, "ba de go fi ko")
    for head in range(4):
        for row in range(len(found.reading.last)):
            made = walk(run, found, ("cross", 1, head, row))
            assert (made.at.head, made.at.row) == (head, row)
            assert worst(made) < 1e-3


def test_the_choice_is_the_last_word_the_middle_layer_and_the_sharpest_head(opened: Give) -> None:
    run = opened("translate", "as-published")
    found = trace(run, "ba de go fi ko")
    at = walk(run, found).at
    assert (at.kind, at.layer) == ("cross", 1)
    weights_HS = found.attention["cross"][1][:, at.row].clone()
    weights_HS[:, list(found.reading.first.special)] = 0
    assert at.head == int(weights_HS.amax(1).argmax())


def test_what_is_hidden_and_switched_off_stays_so(opened: Give) -> None:
    run = opened("translate", "as-published")
    change = Intervention(frozenset({("source", 1)}), frozenset({("cross", 1, 2)}))
    found = trace(run, "ba de go fi ko", change=change)
    made = walk(run, found, ("cross", 1, 2, None))
    assert worst_of_off(made) < 1e-3
    softmax = next(s for s in made.steps if s.out == "cross.weights")
    assert 1 not in softmax.numbers["columns"]
    assert made.vectors["cross.z"].abs().max() == 0
    assert made.vectors["cross.others"].abs().max() > 0


def worst_of_off(found: LayerWalk) -> float:
    """A head that is off ends in zeros, of which there is no share."""
    kept = [s for s in found.steps[1:] if s.out not in ("cross.z", "cross.one")]
    errors = []
    for step in kept:
        got, rows = again(step, found.vectors)
        true = found.vectors[step.out]
        errors.append(float((got - true[rows]).abs().max() / true.abs().max()))
    return max(errors)


def test_many_tokens_keep_their_scores_and_a_common_rest(opened: Give) -> None:
    run = opened("complete", "llama-like")
    found = trace(run, " ".join(["ba de go fi ko"] * 6))
    made = walk(run, found, ("self", 1, 0, 29))
    mix = next(s for s in made.steps if s.out == "self.z")
    scores = next(s for s in made.steps if s.out == "self.scores")
    assert scores.numbers["shown"] == 24
    assert len(made.vectors["self.scores"]) == 30
    assert mix.numbers["others"] == 6
    assert worst(made) < 1e-3


def test_an_unknown_place_is_an_error(opened: Give) -> None:
    run = opened("complete", "llama-like")
    found = trace(run, "ba de")
    with pytest.raises(UserError, match=r"'cross'.*self"):
        walk(run, found, ("cross", 0, 0, 0))
    with pytest.raises(UserError, match=r"\bself\b.*\b2\b.*\b6\b"):
        walk(run, found, ("self", 5, 0, 0))
    with pytest.raises(UserError, match=r"\bself\b.*\b4\b.*\b10\b"):
        walk(run, found, ("self", 0, 9, 0))
    with pytest.raises(UserError, match=r"\btext\b.*\b400\b"):
        walk(run, found, ("self", 0, 0, 399))


def test_a_wide_model_stays_within_its_part_of_a_page(tmp_path: Any) -> None:
    sizes = {"d_model": 768, "n_heads": 12, "d_ff": 3072, "n_layers": 1}
    run = open_plain(tiny_run(tmp_path / "run", "translate", "as-published", **sizes))
    found = trace(run, " ".join(["ba de go fi ko"] * 5))
    made = walk(run, found)
    assert worst(made) < 1e-3
    assert len(pack(section(LookInputs(run=run, trace=found)))) < 250_000
    for step in made.steps:
        if step.kind == "linear":
            y = made.vectors[step.out]
            rows = step.numbers["rows"]
            others = np.setdiff1d(np.arange(len(y)), rows.numpy())
            assert len(rows) > 4
            assert not len(others) or y[others].abs().max() <= y[rows].abs().min()


def test_weights_too_large_for_16_bits_are_kept_in_32(opened: Give) -> None:
    run = opened("complete", "llama-like")
    norm = run.model.stack.blocks[1].norm_attention
    before = norm.weight.data.clone()
    try:
        norm.weight.data[0] = 3e4
        attention = run.model.stack.blocks[1].attention
        attention.to_qkv.weight.data[:, 0] *= 1e-3
        made = walk(run, trace(run, "ba de go fi ko"), ("self", 1, 0, None))
        assert worst(made) < 1e-3
    finally:
        norm.weight.data.copy_(before)


def test_an_activation_has_the_name_that_the_page_computes() -> None:
    assert F.silu is GATED["swiglu"]
    assert set(ACTIVATIONS) | set(GATED) == {
        "relu", "relu2", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"
    }  # fmt: skip
