"""Each map is what its definition says, computed another way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.forward import run_interventions, run_reading
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.reading import DEFAULT_OPTIONS, GenerationOptions
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure import maps
from headway.inside.measure.maps.flow import FlowNetwork, LevelEdges, max_flow
from headway.inside.measure.maps.integrated import SAMPLE
from headway.inside.measure.maps.map import Map
from headway.inside.measure.maps.norms import contributions
from headway.inside.measure.maps.rollout import roll
from headway.nn.tap import record
from headway.tasks.loaded_run import LoadedRun, open_plain

from ..interop.padded_runs import RUNS, tiny_run
from .copier import copier
from .media_runs import media_for, media_run

integrating = sys.modules[
    "headway.inside.measure.maps.integrated"
]  # the package has a function so named
DOCS = Path(__file__).parents[2] / "docs"
TEXT = {"fill": "ba [MASK] de go fi"}
OpenRun = Callable[[str], tuple[LoadedRun, Trace]]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    known: dict[str, tuple[LoadedRun, Trace]] = {}

    def give(task: str) -> tuple[LoadedRun, Trace]:
        if task not in known:
            run = open_plain(tiny_run(tmp_path_factory.mktemp(task) / "run", task, n_layers=2))
            ask = GenerationOptions(output="ko fi de") if task == "translate" else DEFAULT_OPTIONS
            known[task] = run, trace(run, TEXT.get(task, "ba de go fi ko"), ask)
        return known[task]

    return give


@pytest.fixture(params=list(RUNS))
def both(request: pytest.FixtureRequest, opened: OpenRun) -> tuple[LoadedRun, Trace]:
    return opened(request.param)


def test_every_task_has_every_map_with_a_row_an_output(both: tuple[LoadedRun, Trace]) -> None:
    run, traced = both
    made = {map_.name: map_ for map_ in maps.make(run, traced)}
    singles = ("rollout", "norm", "flow", "gradxattention", "gradxinput", "integrated", "occlusion")
    assert made.keys() >= set(singles)
    sizes = {name: len(stream) for name, stream in traced.reading.streams.items()}
    for name in singles:
        assert dict(made[name].columns) == sizes
    for map_ in made.values():
        width = sum(size for _, size in map_.columns)
        assert map_.weights_RS.shape == (len(traced.reading.outputs), width)
        assert map_.weights_RS.isfinite().all()


def test_rows_of_heads_means_and_rollout_sum_to_one(both: tuple[LoadedRun, Trace]) -> None:
    made = maps.make(*both, ["heads", "mean", "rollout"])
    for map_ in made:
        torch.testing.assert_close(map_.weights_RS.sum(1), torch.ones(len(map_.weights_RS)))
    kinds = {map_.name.split(".")[0] for map_ in made} - {"rollout"}
    assert kinds == ({"cross", "decoder"} if both[0].settings.task == "translate" else {"self"})


def test_heads_are_the_weights_that_were_recorded(opened: OpenRun) -> None:
    run, traced = opened("complete")
    made = {map_.name: map_.weights_RS for map_ in maps.make(run, traced, ["heads", "max"])}
    torch.testing.assert_close(made["self.1.2"], traced.attention["self"][1][2])
    torch.testing.assert_close(made["self.1.max"], traced.attention["self"][1].amax(0))


def test_a_pooled_output_reads_all_rows(opened: OpenRun) -> None:
    run, traced = opened("embed")
    assert run.model.pooling == "mean"
    [row_S] = maps.head_maps(run, traced)[0].weights_RS
    torch.testing.assert_close(row_S, traced.attention["self"][0][0].mean(0))


def test_rollout_of_a_translator_is_a_product_of_matrices_over_all_tokens() -> None:
    torch.manual_seed(0)
    n_source, n_target = 4, 3

    def weights(n: int, m: int) -> torch.Tensor:
        return torch.randn(n, m).softmax(-1)

    attention = {
        "encoder": [weights(4, 4) for _ in range(2)],
        "decoder": [weights(3, 3).tril() for _ in range(2)],
        "cross": [weights(3, 4) for _ in range(2)],
    }
    found = roll(attention, 0.5, 0.5)
    whole = torch.eye(7)
    for layer in attention["encoder"]:
        whole = torch.block_diag((layer + torch.eye(4)) / 2, torch.eye(3)) @ whole
    for own, cross in zip(attention["decoder"], attention["cross"], strict=True):
        whole = torch.block_diag(torch.eye(4), (own + torch.eye(3)) / 2) @ whole
        mixed = torch.eye(7)
        mixed[n_source:, :n_source], mixed[n_source:, n_source:] = cross / 2, torch.eye(3) / 2
        whole = mixed @ whole
    torch.testing.assert_close(found["source"], whole[n_source:, :n_source])
    torch.testing.assert_close(found["target"], whole[-n_target:, n_source:])


def edmonds_karp(network: FlowNetwork, row: int, level: int, end: int) -> float:
    """The largest flow, one shortest way after another."""
    starts = np.cumsum([0, *network.levels])
    room = np.zeros((starts[-1], starts[-1]))
    for pipe in network.pipes:
        above, below = starts[pipe.above], starts[pipe.below]
        n, m = pipe.widths_IJ.shape
        room[above : above + n, below : below + m] = pipe.widths_IJ.numpy()
    return largest_flow(room, int(starts[-2] + row), int(starts[level] + end))


def largest_flow(room: np.ndarray, first: int, last: int) -> float:
    """From one node to another; `room` is used up."""
    total = 0.0
    while True:
        came = {first: first}
        queue = [first]
        for node in queue:
            for other in np.nonzero(room[node] > 1e-9)[0]:
                if other not in came:
                    came[other] = node
                    queue.append(other)
        if last not in came:
            return total
        way, node = [], last
        while node != first:
            way.append((came[node], node))
            node = came[node]
        most = min(room[i, j] for i, j in way)
        for i, j in way:
            room[i, j] -= most
            room[j, i] += most
        total += most


def test_flow_is_the_largest_flow() -> None:
    torch.manual_seed(1)
    own = torch.eye(3) / 2
    pipes = [LevelEdges(n + 1, n, (4 * torch.randn(4, 4)).softmax(-1)) for n in range(2)]
    pipes += [LevelEdges(4, 3, (4 * torch.randn(3, 3)).softmax(-1) / 2 + own)]
    pipes += [LevelEdges(5, 2, (4 * torch.randn(3, 4)).softmax(-1) / 2), LevelEdges(5, 4, own)]
    network = FlowNetwork((4, 4, 4, 3, 3, 3), tuple(pipes), {"source": 0, "target": 3})
    for level in (0, 3):
        size = network.levels[level]
        for row in range(3):
            given = torch.zeros(3)
            given[row] = 1.0
            found = max_flow(network, given.expand(size, -1), level, torch.arange(size))
            wanted = [edmonds_karp(network, row, level, end) for end in range(size)]
            torch.testing.assert_close(found, torch.tensor(wanted).float(), atol=1e-4, rtol=1e-4)


def means(traced: Trace, kind: str) -> list[np.ndarray]:
    return [weights_HTS.mean(0).double().numpy() for weights_HTS in traced.attention[kind]]


@pytest.mark.parametrize("task", ["classify", "embed", "complete"])
def test_flow_of_one_text_is_that_of_a_network_built_by_hand(opened: OpenRun, task: str) -> None:
    """Half of what a token takes in is its own, half comes through attention."""
    run, traced = opened(task)
    n, layers = len(traced.reading.first), means(traced, "self")
    top = n * len(layers)
    room = np.zeros((top + n + 1, top + n + 1))  # node n·l + i: token i after l layers; the output
    for level, weights_TS in enumerate(layers):
        for i in range(n):
            for j in range(n):
                room[n * (level + 1) + i, n * level + j] = (weights_TS[i, j] + (i == j)) / 2
    found = maps.flow(run, traced).weights_RS
    for number, output in enumerate(traced.reading.outputs):
        pipes = room.copy()
        if task == "embed":
            pipes[-1, top : top + n] = 1 / n
        else:
            pipes[-1, top + (output.row or 0)] = 1
        wanted = [largest_flow(pipes.copy(), top + n, j) for j in range(n)]
        torch.testing.assert_close(found[number], torch.tensor(wanted).float(), atol=1e-4, rtol=0)
    assert found.max() > 0.4


def test_flow_of_a_translator_is_that_of_a_network_built_by_hand(opened: OpenRun) -> None:
    run, traced = opened("translate")
    s, t = len(traced.reading.first), len(traced.reading.last)
    nodes: dict[tuple[str, float, int], int] = {}

    def node(stream: str, level: float, place: int) -> int:
        return nodes.setdefault((stream, level, place), len(nodes))

    pipes: list[tuple[int, int, float]] = []
    for level, weights_SS in enumerate(means(traced, "encoder")):
        for i, j in np.ndindex(s, s):
            width = (weights_SS[i, j] + (i == j)) / 2
            pipes.append((node("source", level + 1, i), node("source", level, j), width))
    n_layers = len(traced.attention["encoder"])
    both = zip(means(traced, "decoder"), means(traced, "cross"), strict=True)
    for level, (own_TT, cross_TS) in enumerate(both):
        for i, j in np.ndindex(t, t):
            width = (own_TT[i, j] + (i == j)) / 2
            pipes.append((node("target", level + 0.5, i), node("target", level, j), width))
        for i in range(t):
            pipes.append((node("target", level + 1, i), node("target", level + 0.5, i), 0.5))
            for j in range(s):
                width = cross_TS[i, j] / 2
                pipes.append((node("target", level + 1, i), node("source", n_layers, j), width))
    room = np.zeros((len(nodes), len(nodes)))
    for above, below, width in pipes:
        room[above, below] = width
    found = maps.flow(run, traced).parts()
    top = len(traced.attention["cross"])
    for stream, size in (("source", s), ("target", t)):
        for i, j in np.ndindex(t, size):
            # What is read there is one output: no more than 1 goes in.
            wanted = min(1, largest_flow(room.copy(), node("target", top, i), node(stream, 0, j)))
            assert float(found[stream][i, j]) == pytest.approx(wanted, abs=1e-4)
        assert found[stream].max() > 0.1


def test_flow_of_a_too_long_text_is_an_error(opened: OpenRun) -> None:
    run, traced = opened("complete")
    stream = traced.reading.first
    long = replace(stream, ids=stream.ids * 20)
    with pytest.raises(UserError, match=rf"(?=.*\b64\b)(?=.*\b{len(long.ids)}\b)"):
        maps.flow(run, replace(traced, reading=replace(traced.reading, streams={"text": long})))


def test_what_columns_add_sums_to_what_attention_added(both: tuple[LoadedRun, Trace]) -> None:
    run, traced = both
    kind = Anatomy.of(run.model).kinds[-1]
    with record(run.model, ".heads") as seen, torch.no_grad():
        run_reading(run, traced.reading)
    names = {id(module): name for name, module in run.model.named_modules()}
    heads_THK = seen[names[id(kind.layers[0].heads)]][0]
    wanted_TD = heads_THK.flatten(1) @ kind.layers[0].to_out.weight.T
    moved_SHD = contributions(kind.layers[0], traced.values[kind.name][0])
    found_TD = torch.einsum("hts,shd->td", traced.attention[kind.name][0], moved_SHD)
    torch.testing.assert_close(found_TD, wanted_TD, atol=1e-5, rtol=1e-4)
    if kind.rows == traced.reading.last.name:
        one = {map_.name: map_ for map_ in maps.norm_maps(run, traced)}[f"{kind.name}.0.norm"]
        lengths_TS = torch.einsum("hts,shd->tsd", traced.attention[kind.name][0], moved_SHD).norm(
            dim=-1
        )
        reads_RT = maps.readout_RT(run, traced.reading)
        torch.testing.assert_close(one.weights_RS, reads_RT @ lengths_TS, atol=1e-5, rtol=1e-4)


def test_gradient_times_input_is_what_a_little_more_of_a_token_does(
    both: tuple[LoadedRun, Trace],
) -> None:
    run, traced = both
    [stack] = [part.name for part in Anatomy.of(run.model).stacks][:1]
    x_TD, step = traced.states[stack][0], 1e-2
    found = maps.gradient_maps(run, traced)[1].parts()[traced.reading.first.name]
    for place in (1, 2):
        result = []
        for sign in (1, -1):
            changed_TD = x_TD.clone()
            changed_TD[place] *= 1 + sign * step
            result.append(run_reading(run, traced.reading, fronts={stack: changed_TD}).log_probs_R)
        slope_R = (result[0] - result[1]).detach() / (2 * step)
        torch.testing.assert_close(found[:, place], slope_R, atol=5e-3, rtol=5e-2)


def test_gradient_times_attention_of_one_output_is_what_the_trace_has(opened: OpenRun) -> None:
    run, _ = opened("classify")
    traced = trace(run, "ba de go fi ko", gradients=True)
    helps = {
        kind: [(slope * w).relu().mean(0) for slope, w in zip(of, traced.attention[kind],
                                                              strict=True)]
        for kind, of in traced.gradients.items()
    }  # fmt: skip
    [one, two] = helps["self"]
    wanted_TT = (torch.eye(len(one)) + two) @ (torch.eye(len(one)) + one) - torch.eye(len(one))
    wanted_RS = maps.readout_RT(run, traced.reading) @ wanted_TT
    found = maps.gradient_maps(run, traced)[0]
    torch.testing.assert_close(found.weights_RS, wanted_RS, atol=1e-6, rtol=1e-4)


def off_by(run: OpenRun, traced: Trace, baseline: str) -> float:
    """How far the sums of integrated gradients are from what the text changes, at most."""
    found = maps.integrated_gradients(run, traced, baseline)
    nothing = {
        part.name: maps.baseline_TD(run, traced.reading, part.name, baseline)
        for part in Anatomy.of(run.model).stacks
    }
    with torch.no_grad():
        changed_R = run_reading(run, traced.reading).log_probs_R
        changed_R = changed_R - run_reading(run, traced.reading, fronts=nothing).log_probs_R
    off_R = (found.weights_RS.sum(1) - changed_R).abs() / changed_R.abs().clamp(min=0.1)
    assert found.facts["error"] == pytest.approx(float(off_R.max()), abs=1e-4)
    return float(off_R.max())


def test_integrated_gradients_add_up_to_what_the_text_changes(
    both: tuple[LoadedRun, Trace],
) -> None:
    assert off_by(*both, "mean") < 0.01


def test_integrated_gradients_may_start_from_zero(opened: OpenRun) -> None:
    assert off_by(*opened("classify"), "zero") < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tatoeba-de-en", "stories"])
def test_integrated_gradients_of_trained_models_add_up(name: str) -> None:
    run = open_plain(name)
    text = "Tom wohnt in Boston." if name != "stories" else "Once upon a time"
    assert off_by(run, trace(run, text, GenerationOptions(max_new_tokens=4)), "mean") < 0.01


def test_integrated_gradients_of_texts_start_from_the_mean_of_tokens_that_the_docs_name(
    opened: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all tokens where there are few, of some that are spread evenly where there are more."""
    run, traced = opened("translate")
    part = Anatomy.of(run.model).stacks[0]
    size, length = part.front.tokens.num_embeddings, len(traced.reading.streams[part.stream])
    assert size < SAMPLE

    def mean_of(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return torch.stack(
                [part.front(*part.front.collate([[i] * length])) for i in ids]
            ).mean(0)  # fmt: skip

    every_TD = maps.baseline_TD(run, traced.reading, part.name, "mean")
    torch.testing.assert_close(every_TD, mean_of(list(range(size))))
    monkeypatch.setattr(integrating, "SAMPLE", 3)
    three_TD = maps.baseline_TD(run, traced.reading, part.name, "mean")
    torch.testing.assert_close(three_TD, mean_of([0, (size - 1) // 2, size - 1]))
    assert not torch.allclose(every_TD, three_TD, atol=1e-3)
    found = (DOCS / "look" / "maps.md").read_text(encoding="utf-8")
    assert f"{SAMPLE} tokens" in found


@pytest.mark.parametrize(("task", "kind"), [("caption", "image"), ("captioned-video", "image"),
                                            ("transcribe", "audio")])  # fmt: skip
def test_integrated_gradients_of_media_start_from_their_mean_colour_or_from_silence(
    task: str, kind: str
) -> None:
    run = media_run(task)
    media = media_for(run)
    traced = trace(
        run, media, GenerationOptions(output="one two" if kind == "audio" else "a red circle")
    )
    source, target = Anatomy.of(run.model).stacks
    nothing = np.zeros_like(media.item)
    if kind == "image":
        for colour in range(3):
            nothing[:, colour] = round(float(media.item[:, colour].mean()))
    with torch.no_grad():
        wanted_SD = source.front(*source.front.collate([nothing]))
    found_SD = maps.baseline_TD(run, traced.reading, source.name, "mean")
    assert torch.equal(found_SD, wanted_SD)
    text_TD = maps.baseline_TD(run, traced.reading, target.name, "mean")
    assert len(text_TD) == len(traced.reading.streams["target"])


def test_integrated_gradients_report_their_error(opened: OpenRun) -> None:
    run, traced = opened("translate")
    few, many = (maps.integrated_gradients(run, traced, most=most).facts for most in (8, 256))
    assert few["steps"] == 8
    assert few["error"] >= many["error"]
    with pytest.raises(UserError, match=r"'mena'.*'mean'"):
        maps.integrated_gradients(run, traced, "mena")


def test_occlusion_is_what_hiding_a_token_does(both: tuple[LoadedRun, Trace]) -> None:
    run, traced = both
    # Beside others sums are made in another order, of which nothing is left behind 16 digits.
    run = run.with_model(deepcopy(run.model).double())
    found = maps.occlusion(run, traced).parts()
    with torch.no_grad():
        before_R = run_reading(run, traced.reading).log_probs_R
        for name, stream in traced.reading.streams.items():
            place = len(stream) - 2
            without = run_reading(
                run, traced.reading, Intervention(hidden=frozenset({(name, place)}))
            )
            wanted_R = before_R - without.log_probs_R
            torch.testing.assert_close(found[name][:, place], wanted_R, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("task", ["translate", "embed"])
def test_maps_are_the_same_whatever_is_computed_at_once(
    opened: OpenRun, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    run, traced = opened(task)

    def made() -> list[Map]:
        path = maps.integrated_gradients(run, traced, most=16)
        return [maps.flow(run, traced), maps.occlusion(run, traced), path]

    together = made()
    few = {"flow": ("AT_ONCE", 500), "occlusion": ("TOGETHER", 40), "integrated": ("TOGETHER", 60)}
    for name, (limit, size) in few.items():
        monkeypatch.setattr(sys.modules[f"headway.inside.measure.maps.{name}"], limit, size)
    for one, other in zip(together, made(), strict=True):
        torch.testing.assert_close(one.weights_RS, other.weights_RS, atol=1e-4, rtol=1e-3)
        assert one.columns == other.columns


def test_each_copy_has_its_own_hidden_tokens_and_its_own_fronts(opened: OpenRun) -> None:
    run, traced = opened("translate")
    off, places = (
        frozenset({("cross", 1, 2)}),
        [[], [("source", 1)], [("target", 0), ("source", 3)]],
    )
    changes = [Intervention(frozenset(hidden), off) for hidden in places]
    inputs = [traced.states["encoder"][0] * size for size in (1.0, 0.5, 2.0)]
    with torch.no_grad():
        together = run_interventions(
            run, traced.reading, changes, fronts={"encoder": torch.cat(inputs)}
        )
        for found, change, x_SD in zip(together, changes, inputs, strict=True):
            alone = run_reading(run, traced.reading, change, fronts={"encoder": x_SD})
            torch.testing.assert_close(found.x_ND, alone.x_ND, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(found.scores_RC, alone.scores_RC, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("task", ["see", "watch", "caption", "identify", "transcribe-ctc"])
def test_images_and_recordings_go_side_by_side_too(task: str) -> None:
    run = media_run(task)
    traced = trace(run, media_for(run))
    hidden = [frozenset[tuple[str, int]](), frozenset({(traced.reading.first.name, 2)})]
    with torch.no_grad():
        together = run_interventions(
            run, traced.reading, [Intervention(places) for places in hidden]
        )
        for found, places in zip(together, hidden, strict=True):
            alone = run_reading(run, traced.reading, Intervention(places))
            torch.testing.assert_close(found.scores_RC, alone.scores_RC, atol=1e-4, rtol=1e-4)


def test_shares_of_source_and_prefix_sum_to_one(opened: OpenRun) -> None:
    run, traced = opened("translate")
    for map_ in maps.make(run, traced, ["gradients", "occlusion", "norm", "rollout"]):
        if len(map_.columns) == 2:
            shares = [map_.share_R(stream) for stream in map_.streams]
            torch.testing.assert_close(shares[0] + shares[1], torch.ones(len(shares[0])))
            assert (shares[0] >= 0).all()
    assert maps.head_maps(run, traced)[0].share_R("source") is None
    parts = {
        "source": torch.tensor([[3.0, -3.0], [0.0, 0.0]]),
        "target": torch.tensor([[2.0], [0]]),
    }
    assert Map.of("signed", parts).share_R("source").tolist() == [0.75, 0.5]


def test_a_source_of_zeros_has_no_share(opened: OpenRun) -> None:
    run, traced = opened("translate")
    before_R = maps.gradient_maps(run, traced)[1].share_R("source")
    assert before_R is not None
    assert before_R.mean() > 0.2
    zeros = {"encoder": torch.zeros_like(traced.states["encoder"][0])}
    touched = maps.gradient_maps(run, traced, zeros)[1]
    path = maps.integrated_gradients(run, traced, "zero", zeros, most=16)
    for map_ in (touched, path):
        share_R = map_.share_R("source")
        assert share_R is not None
        assert share_R.max() < 0.05


def test_maps_point_at_the_known_cause(tmp_path: Path) -> None:
    run = copier(tmp_path)
    traced = trace(run, "bo de be do bu")
    written = [output.name for output in traced.reading.outputs]
    assert written == list(traced.reading.first.pieces)
    made = {map_.name: map_ for map_ in maps.make(run, traced)}
    places = torch.arange(len(traced.reading.outputs))
    for name in ("cross.0.0", "norm", "gradxattention", "gradxinput", "integrated", "occlusion"):
        found_R = made[name].parts()["source"].argmax(1)
        assert torch.equal(found_R, places), name
    assert not (made["cross.0.1"].parts()["source"].argmax(1) == places)[:-1].any()


def test_agreement_is_the_rank_correlation_over_visible_tokens(opened: OpenRun) -> None:
    assert maps.spearman(np.array([1.0, 2, 3]), np.array([2.0, 4, 9])) == pytest.approx(1)
    assert maps.spearman(np.array([1.0, 2, 3]), np.array([9.0, 4, 2])) == pytest.approx(-1)
    assert maps.spearman(np.array([1.0, 2, 2, 4]), np.array([1.0, 3, 2, 4])) == pytest.approx(
        0.9486833
    )
    assert maps.spearman(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) is None
    _, traced = opened("complete")
    n = len(traced.reading.outputs)
    one = Map.of("one", {"text": torch.rand(n, n)})
    later = Map.of("later", {"text": one.weights_RS.tril() + torch.rand(n, n).triu(1)})
    assert maps.agreement(one, later, traced.reading) == pytest.approx(1)


def test_an_unknown_map_gets_the_nearest_name(opened: OpenRun) -> None:
    with pytest.raises(UserError, match=r"'rolout'.*'rollout'"):
        maps.make(*opened("classify"), ["rolout"])
