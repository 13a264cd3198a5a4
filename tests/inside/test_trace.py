"""Looking does not change the answer, and what is recorded is what happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.errors import FolderError, UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.forward import ReadingBatch, output_scores, read_out, run_reading
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.reading import GenerationOptions, read
from headway.inside.capture.trace import TENSORS, Trace, trace
from headway.models.parts.output_heads import HiddenStates
from headway.nn.tap import record
from headway.tasks.loaded_run import LoadedRun, open_plain

from ..interop.padded_runs import RUNS, tiny_run

CASES = [
    *((task, None) for task in RUNS),
    ("translate", "as-published"),
    ("translate", "llama-like"),
    ("complete", "parallel-one-key-head"),
    ("complete", "window"),
    ("complete", "as-published"),
    ("complete", "window-and-alibi"),
    ("translate", "t5-like"),
]
TEXT = {"fill": "ba [MASK] de go fi"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str | None], LoadedRun]:
    known: dict[tuple[str, str | None], LoadedRun] = {}

    def give(task: str, variant: str | None) -> LoadedRun:
        if (task, variant) not in known:
            folder = tiny_run(tmp_path_factory.mktemp(task) / "run", task, variant, n_layers=2)
            known[task, variant] = open_plain(folder)
        return known[task, variant]

    return give


@pytest.fixture(params=CASES, ids=lambda case: "-".join(filter(None, case)))
def run(
    request: pytest.FixtureRequest, opened: Callable[[str, str | None], LoadedRun]
) -> LoadedRun:
    return opened(*request.param)


def text_for(run: LoadedRun) -> str:
    return TEXT.get(run.settings.task, "ba de go fi ko")


def test_looking_does_not_change_the_answer(run: LoadedRun) -> None:
    found = trace(run, text_for(run), gradients=True)
    with torch.no_grad():
        unseen = run_reading(run, found.reading)
    assert found.scores_RC is not None
    torch.testing.assert_close(found.scores_RC, unseen.scores_RC, atol=1e-5, rtol=1e-5)
    assert all(parameter.grad is None for parameter in run.model.parameters())
    assert not any(layer.weights.is_recording for k in Anatomy.of(run.model).kinds
                   for layer in k.layers)  # fmt: skip


def test_weights_and_values_make_what_the_heads_gave(run: LoadedRun) -> None:
    found = trace(run, text_for(run))
    with record(run.model, ".heads") as seen, torch.no_grad():
        run_reading(run, found.reading)
    heads = [x_NHK for calls in seen.values() for x_NHK in calls]
    made = []
    for kind, layers in found.attention.items():
        for weights_HTS, v_SGK in zip(layers, found.values[kind], strict=True):
            assert (weights_HTS >= 0).all()
            torch.testing.assert_close(weights_HTS.sum(-1), torch.ones(weights_HTS.shape[:2]))
            v_SHK = v_SGK.repeat_interleave(len(weights_HTS) // v_SGK.shape[1], 1)
            made.append(torch.einsum("hts,shk->thk", weights_HTS, v_SHK))
    assert len(made) == len(heads) > 0
    for out_THK in heads:
        assert any(
            out_THK.shape == mine.shape and torch.allclose(out_THK, mine, atol=1e-5)
            for mine in made
        )


def test_the_last_state_gives_the_answer(run: LoadedRun) -> None:
    found = trace(run, text_for(run))
    part = Anatomy.of(run.model).stacks[-1]
    states = found.states[part.name]
    assert len(states) == len(part.blocks) + 1
    x_TD = states[-1] if part.stack.final_norm is None else part.stack.final_norm(states[-1])
    with torch.no_grad():
        batch = ReadingBatch.of(run, [found.reading])
        scores_RC = output_scores(run, read_out(run, batch, HiddenStates(x_TD, batch.layout)))
    torch.testing.assert_close(scores_RC, found.scores_RC)
    assert not torch.allclose(states[0], states[-1])


def test_gradients_by_weights_add_up_to_those_by_gates(run: LoadedRun) -> None:
    found = trace(run, text_for(run), gradients=True)
    anatomy = Anatomy.of(run.model)
    for kind in anatomy.kinds:
        for layer, attention in enumerate(kind.layers):
            if kind.layers.count(attention) > 1:
                continue  # one gate for all layers
            attention.gate_H = torch.ones(attention.n_heads, requires_grad=True)
            try:
                run_reading(run, found.reading).log_probs_R.sum().backward()
                gate_H = attention.gate_H.grad
            finally:
                attention.gate_H = None
                run.model.zero_grad(set_to_none=True)
            products_HTS = found.gradients[kind.name][layer] * found.attention[kind.name][layer]
            torch.testing.assert_close(products_HTS.sum((1, 2)), gate_H, atol=1e-4, rtol=1e-4)
    assert any(g.abs().sum() > 0 for layers in found.gradients.values() for g in layers)


def test_a_hidden_token_influences_no_other(run: LoadedRun) -> None:
    reading = read(run, text_for(run))
    stream, place = reading.first.name, len(reading.first) // 2
    other = replace(
        reading.first, ids=tuple(5 if n == place else i for n, i in enumerate(reading.first.ids))
    )
    assert other.ids != reading.first.ids
    changed = replace(reading, streams={**reading.streams, stream: other})
    change = Intervention(hidden=frozenset({(stream, place)}))
    rows = [n for n, output in enumerate(reading.outputs) if output.row != place]
    if stream == "source":
        rows = list(range(len(reading.outputs)))
    whole = any(output.row is None for output in reading.outputs)
    with torch.no_grad():
        one, two = run_reading(run, reading, change), run_reading(run, changed, change)
        plain, seen = run_reading(run, reading), run_reading(run, changed)
    assert not torch.equal(plain.scores_RC, seen.scores_RC)
    if not whole:
        assert torch.equal(one.scores_RC[rows], two.scores_RC[rows])
        assert not torch.equal(one.scores_RC[rows], plain.scores_RC[rows])
    kept = [n for n in range(len(one.x_ND)) if n != place or stream == "source"]
    assert torch.equal(one.x_ND[kept], two.x_ND[kept])


def test_a_head_that_is_off_is_one_without_output_weights(run: LoadedRun) -> None:
    reading = read(run, text_for(run))
    kind = Anatomy.of(run.model).kinds[-1]
    attention, head = kind.layers[0], 1
    change = Intervention(disabled_heads=frozenset({(kind.name, 0, head)}))
    width = attention.d_head
    columns = slice(head * width, (head + 1) * width)
    with torch.no_grad():
        off = run_reading(run, reading, change).scores_RC
        plain = run_reading(run, reading).scores_RC
        before = attention.to_out.weight[:, columns].clone()
        attention.to_out.weight[:, columns] = 0.0
        without = run_reading(run, reading).scores_RC
        attention.to_out.weight[:, columns] = before
        again = run_reading(run, reading).scores_RC
    torch.testing.assert_close(off, without, atol=1e-6, rtol=1e-6)
    assert torch.equal(plain, again)
    assert not torch.allclose(off, plain)
    assert attention.gate_H is None


def test_a_trace_comes_back_from_the_disk(run: LoadedRun, tmp_path: Path) -> None:
    found = trace(run, text_for(run), gradients=True, beam=True)
    found.save(tmp_path / "kept")
    back = Trace.load(tmp_path / "kept")
    assert (tmp_path / "kept" / TENSORS).stat().st_mode & 0o777 == 0o644
    assert back.reading == found.reading
    assert back.meta == found.meta
    assert (back.beam is None) == (found.beam is None)
    for group in ("attention", "values", "states", "hidden", "gradients"):
        one, two = getattr(found, group), getattr(back, group)
        assert one.keys() == two.keys()
        for name in one:
            assert all(torch.equal(a, b) for a, b in zip(one[name], two[name], strict=True))


def test_a_damaged_trace_is_an_error(
    opened: Callable[[str, str | None], LoadedRun], tmp_path: Path
) -> None:
    trace(opened("classify", None), "ba de").save(tmp_path)
    (tmp_path / TENSORS).write_bytes(b"nothing")
    with pytest.raises(FolderError, match="SafetensorError"):
        Trace.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Intervention(hidden=frozenset({("source", 99)})), r"\b100\b.*\bsource\b.*\b3\b"),
        (Intervention(hidden=frozenset({("image", 0)})), "'image'"),
        (Intervention(disabled_heads=frozenset({("cross", 9, 0)})), r"\bcross\b.*\b2\b.*\b10\b"),
        (Intervention(disabled_heads=frozenset({("cross", 0, 9)})), r"\bcross\b.*\b4\b.*\b10\b"),
        (Intervention(disabled_heads=frozenset({("crss", 0, 0)})), "'crss'.*'cross'"),
    ],
)
def test_what_cannot_be_changed_is_named(
    opened: Callable[[str, str | None], LoadedRun], change: Intervention, message: str
) -> None:
    run = opened("translate", None)
    reading = read(run, "ba de")
    with pytest.raises(UserError, match=message):
        run_reading(run, reading, change)


def test_the_output_can_be_given(opened: Callable[[str, str | None], LoadedRun]) -> None:
    reading = read(opened("translate", None), "ba de", GenerationOptions(output="go go"))
    assert [output.name for output in reading.outputs] == ["▁go", "▁go", "</s>"]
    assert reading.last.pieces == ("<s>", "▁go", "▁go")
    with pytest.raises(UserError, match="classify"):
        read(opened("classify", None), "ba", GenerationOptions(output="go"))
