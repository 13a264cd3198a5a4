"""Many passages at once give the states that each has alone, and edits reach the right layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import passages
from headway.inside.capture.forward import ReadingBatch, last_hidden_states
from headway.inside.capture.states import Site, edit_states, sites_of, states_of
from headway.inside.capture.streams import Reading, TracedOutput
from headway.inside.capture.trace import trace
from headway.inside.measure.ablation import batch_outputs, losses
from headway.tasks.loaded_run import LoadedRun, open_plain

from ..interop.padded_runs import RUNS, tiny_run

LINES = ["ba de go fi ko", "fi ko ga mo pu ba", "de ba"]


@pytest.fixture(params=list(RUNS))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> LoadedRun:
    return open_plain(tiny_run(tmp_path / "run", request.param, n_layers=2))


def batch_of(run: LoadedRun) -> ReadingBatch:
    targets = LINES[::-1] if run.settings.task == "translate" else None
    return ReadingBatch.of(run, passages(run, Corpus.of_lines(LINES, targets), 1000))


def reading_of(run: LoadedRun, batch: ReadingBatch, number: int) -> Reading:
    """One passage alone, as `trace` takes it."""
    streams = batch.readings[number].streams
    row = None if run.settings.task in ("classify", "embed") else 1
    segments = tuple([0] * len(streams[batch.last]))
    return Reading("", run.settings.task, streams, (TracedOutput(row, 0, ""),), segments)


@torch.no_grad()
def test_states_are_those_of_each_passage_alone(run: LoadedRun) -> None:
    batch = batch_of(run)
    states = states_of(run.model, batch)
    assert list(states) == sites_of(run.model)
    alone = trace(run, reading_of(run, batch, 1))
    for (stack, layer), x_ND in states.items():
        stream = {"encoder": "source", "decoder": "target"}.get(stack, "text")
        own = batch.streams[stream].layout.split(x_ND)[1]
        torch.testing.assert_close(own, alone.states[stack][layer], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_an_edit_changes_its_layer_and_all_later_ones(run: LoadedRun) -> None:
    batch = batch_of(run)
    before = states_of(run.model, batch)
    wanted = (sites_of(run.model)[-1][0], 1)

    def more(site: Site, x_ND: Tensor) -> Tensor | None:
        seen[site] = x_ND
        return x_ND + ramp_D if site == wanted else None

    # No constant: what a norm comes behind would not see it.
    ramp_D = torch.linspace(-2, 2, before[wanted].shape[-1])
    seen: dict[Site, Tensor] = {}
    with edit_states(run.model, more):
        changed = last_hidden_states(run.model, batch)
    assert torch.equal(seen[wanted], before[wanted])
    assert torch.equal(seen[wanted[0], 0], before[wanted[0], 0])
    assert (seen[wanted[0], 2] - before[wanted[0], 2]).abs().max() > 0.1
    assert torch.equal(last_hidden_states(run.model, batch), last_hidden_states(run.model, batch))
    assert (changed - last_hidden_states(run.model, batch)).abs().max() > 0.1


@torch.no_grad()
def test_nothing_is_lost_where_nothing_changes(run: LoadedRun) -> None:
    batch = batch_of(run)
    clean = batch_outputs(run, batch)
    before_R, behind_R, kl_R = losses(clean, batch_outputs(run, batch))
    torch.testing.assert_close(before_R, behind_R, atol=1e-6, rtol=0)
    assert float(kl_R.abs().max()) < 1e-6
    assert len(before_R) > 0


@torch.no_grad()
def test_the_loss_of_a_language_model_is_that_of_the_next_token(tmp_path: Path) -> None:
    run = open_plain(tiny_run(tmp_path / "run", "complete", n_layers=2))
    batch = batch_of(run)
    before_R, _, _ = losses(batch_outputs(run, batch), batch_outputs(run, batch))
    expected = []
    for passage in batch.readings:
        ids = torch.tensor(passage.last.ids)
        one = ReadingBatch.of(run, [passage])
        logs_TV = run.model.scores(last_hidden_states(run.model, one)).log_softmax(-1)
        expected += (-logs_TV[:-1].gather(1, ids[1:, None]).squeeze(1)).tolist()
    assert before_R.tolist() == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def test_of_several_labels_the_loss_is_that_of_each(tmp_path: Path) -> None:
    one = open_plain(tiny_run(tmp_path / "run", "classify", n_layers=2))
    settings = replace(one.settings, classify=replace(one.settings.classify, answer="labels"))
    run = one.with_model(one.model, settings)
    batch = batch_of(run)
    clean = batch_outputs(run, batch)
    site = sites_of(run.model)[1]
    with edit_states(run.model, lambda at, x_ND: 2 * x_ND if at == site else None):
        changed = batch_outputs(run, batch)
    before_R, behind_R, moved_R = losses(clean, changed)
    own_RC, new_RC = (found.readout.averaged_logits() for found in (clean, changed))
    yes_RC = (own_RC > 0).float()
    want = F.binary_cross_entropy_with_logits(own_RC, yes_RC, reduction="none").mean(-1)
    torch.testing.assert_close(before_R, want)
    want = F.binary_cross_entropy_with_logits(new_RC, yes_RC, reduction="none").mean(-1)
    torch.testing.assert_close(behind_R, want)
    assert float(moved_R.min()) > 0
