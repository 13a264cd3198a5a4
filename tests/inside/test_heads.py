"""Heads: importance is the gradient of their gates, and planted roles are found."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import examples
from headway.inside.capture.forward import run_reading
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.streams import Reading, TokenStream
from headway.inside.capture.trace import trace
from headway.inside.measure.heads import (
    ROLES,
    HeadAnalysis,
    RunningMeans,
    TokenFrequencies,
    add_alignment,
    add_columns,
    add_places,
    add_repeats,
    heads,
    roles_of,
)
from headway.inside.measure.pruning import save_pruned
from headway.models.build import build_model
from headway.settings.data import TokenizerSettings
from headway.settings.model import DecoderSettings, EncoderSettings, RelativeSettings
from headway.settings.run import RunSettings
from headway.tasks.loaded_run import LoadedRun, open_plain
from headway.tokens.tokenizer import Vocabularies
from headway.tokens.trainer import train_on_texts

from ..interop.padded_runs import RUNS, tiny_run

LINES = ["ba de go", "fi ko ga mo pu ba", "de de ba", "ka ke ki ko da pe ga"]
TASKS = list(RUNS)


def opened(tmp_path: Path, task: str, **changes) -> LoadedRun:
    return open_plain(tiny_run(tmp_path / task, task, **changes))


@pytest.mark.parametrize("task", TASKS)
def test_importance_is_the_mean_size_of_the_gradient_of_the_gates(
    task: str, tmp_path: Path
) -> None:
    run = opened(tmp_path, task, n_layers=2)
    readings = examples(run, Corpus.of_lines(LINES))
    found = heads(run, readings)
    attentions = [
        (kind.name, layer, attention)
        for kind in Anatomy.of(run.model).kinds
        for layer, attention in enumerate(kind.layers)
    ]
    worth: dict[str, float] = {}
    for reading in readings:
        for _, _, attention in attentions:
            attention.gate_H = torch.ones(attention.n_heads, requires_grad=True)
        (-run_reading(run, reading).log_probs_R.mean()).backward()
        for kind, layer, attention in attentions:
            for head, slope in enumerate(attention.gate_H.grad.abs().tolist()):
                name = f"{kind}.{layer}.{head}"
                worth[name] = worth.get(name, 0.0) + slope / len(readings)
    for _, _, attention in attentions:
        attention.gate_H = None
    if task == "fill":  # its layers are one: they have one gate, whose slope is their sum
        assert all(worth[one.name] > 0 for one in found.heads)
        return
    assert {one.name for one in found.heads} == worth.keys()
    for one in found.heads:
        assert one.importance == pytest.approx(worth[one.name], rel=1e-3, abs=1e-7)
        assert 0 <= one.evenness <= 1 + 1e-6
    assert max(worth.values()) > 1e-3


@pytest.mark.parametrize("task", ["translate", "complete"])
def test_judging_heads_leaves_the_model_as_it_was(task: str, tmp_path: Path) -> None:
    run = opened(tmp_path, task)
    [reading] = examples(run, Corpus.of_lines(LINES[:1]))
    before = run_reading(run, reading).scores_RC.detach()
    heads(run, LINES)
    assert torch.equal(run_reading(run, reading).scores_RC.detach(), before)
    assert all(parameter.grad is None for parameter in run.model.parameters())
    assert all(a.gate_H is None for kind in Anatomy.of(run.model).kinds for a in kind.layers)


def test_shared_layers_are_distinguished(tmp_path: Path) -> None:
    run = opened(tmp_path, "fill", n_layers=3)
    found = heads(run, LINES)
    assert len(found.heads) == 12
    assert found["self.0.1"].entropy != found["self.2.1"].entropy
    assert found["self.0.1"].importance != found["self.2.1"].importance


def test_heads_of_pruned_shared_layers_keep_their_numbers(tmp_path: Path) -> None:
    run = opened(tmp_path, "fill", n_layers=3)
    save_pruned(run, [("self", 0, 1)], tmp_path / "small")
    found = heads(open_plain(tmp_path / "small"), LINES)
    assert [one.number for one in found.heads] == [0, 2, 3] * 3


def test_importance_by_layer_has_length_one(tmp_path: Path) -> None:
    found = heads(opened(tmp_path, "translate", n_layers=2), LINES)
    for kind in found.kinds():
        for layer in range(2):
            worth = found.importance(normalised=True)
            assert sum(v**2 for h, v in worth.items() if h[:2] == (kind, layer)) == pytest.approx(1)


def test_what_was_found_goes_through_json(tmp_path: Path) -> None:
    found = heads(opened(tmp_path, "translate"), LINES)
    assert HeadAnalysis.from_dict(found.to_dict()) == found
    assert found.grid("cross") == [[one.importance for one in found.heads if one.kind == "cross"]]


def test_unreadable_texts_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?=.*\b102\b)(?=.*\b32\b)"):
        heads(opened(tmp_path, "classify"), ["ba " * 100])
    with pytest.raises(UserError, match=r"\btag\b.*corpus"):
        Corpus.own(opened(tmp_path, "tag"))


def words(n: int) -> Vocabularies:
    names = [f"w{i}" for i in range(n)]
    found = train_on_texts([" ".join(names)] * 2, TokenizerSettings(kind="words"), n + 10, [])
    return Vocabularies(found, found)


def planted(settings, task: str, tmp_path: Path, vocab: Vocabularies) -> LoadedRun:
    """A run whose model is all zeros, for a test to write into."""
    model = build_model(settings).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.zero_()
    run = RunSettings(task=task, model=settings, labels=("a", "b") if task == "classify" else ())
    return LoadedRun.of(tmp_path, run, model, vocab)


@torch.no_grad()
def test_planted_previous_next_and_self_heads_are_found(tmp_path: Path) -> None:
    vocab = words(30)
    settings = EncoderSettings(
        vocab_size=vocab.target.vocab_size, d_model=16, n_layers=1, n_heads=4, d_ff=8, max_len=32,
        positions="relative", relative=RelativeSettings(buckets=8, max_distance=16),
        heads=("classes",), n_labels=2, n_segments=0,
    )  # fmt: skip
    run = planted(settings, "classify", tmp_path, vocab)
    bias = run.model.stack.bias
    for head, distance in enumerate((-1, 1, 0)):
        bias.table.weight[bias.bucket(torch.tensor(distance)), head] = 30.0
    found = heads(run, ["w1 w2 w3 w4 w5 w6 w7", "w9 w8 w7 w6 w5"], importance=False)
    assert [found[f"self.0.{head}"].roles for head in range(4)] == [
        ("previous",), ("next",), ("self",), (),
    ]  # fmt: skip
    assert found["self.0.0"].scores["previous"] == pytest.approx(1, abs=1e-4)
    assert found["self.0.2"].distance == pytest.approx(0, abs=1e-4)
    assert found["self.0.2"].entropy == pytest.approx(0, abs=1e-4)
    assert found["self.0.3"].evenness == pytest.approx(1, abs=1e-4)


@torch.no_grad()
def test_entropy_and_distance_of_attention_that_is_known(tmp_path: Path) -> None:
    vocab = words(30)
    settings = EncoderSettings(
        vocab_size=vocab.target.vocab_size, d_model=15, n_layers=1, n_heads=3, d_ff=8, max_len=32,
        positions="relative", relative=RelativeSettings(buckets=8, max_distance=16),
        heads=("classes",), n_labels=2, n_segments=0,
    )  # fmt: skip
    run = planted(settings, "classify", tmp_path, vocab)
    bias = run.model.stack.bias
    for head, distance in ((0, 0), (1, -1), (1, 1)):
        bias.table.weight[bias.bucket(torch.tensor(distance)), head] = 30.0
    reading = trace(run, "w1 w2 w3 w4 w5 w6 w7").reading
    found, n = heads(run, [reading], importance=False), len(reading.first)
    itself, beside, even = (found[f"self.0.{head}"] for head in range(3))
    assert (itself.entropy, itself.distance) == pytest.approx((0, 0), abs=1e-4)
    # Half on each neighbour; the first and the last token have only one.
    assert beside.entropy == pytest.approx((n - 2) / n * math.log(2), abs=1e-4)
    assert beside.distance == pytest.approx(1, abs=1e-4)
    assert even.entropy == pytest.approx(math.log(n), abs=1e-4)
    assert even.evenness == pytest.approx(1, abs=1e-4)
    assert even.distance == pytest.approx((n * n - 1) / (3 * n), abs=1e-4)


def test_entropy_and_distance_are_means_over_rows_of_every_kind(tmp_path: Path) -> None:
    run = opened(tmp_path, "translate", n_layers=2)
    seen = trace(run, "fi ko ga mo pu ba", GenerationOptions(output="de go"))
    found = heads(run, [seen.reading])
    for one in found.heads:
        weights_TS = seen.attention[one.kind][one.layer][one.head].double().numpy()
        n_rows, n_columns = weights_TS.shape
        stretch = n_columns / n_rows if one.kind == "cross" else 1
        entropy, distance = 0.0, 0.0
        for row in range(n_rows):
            for column in range(n_columns):
                weight = float(weights_TS[row, column])
                entropy -= weight * math.log(weight) if weight > 0 else 0
                distance += weight * abs(column - stretch * row)
        assert one.entropy == pytest.approx(entropy / n_rows, abs=1e-4)
        assert one.distance == pytest.approx(distance / n_rows, abs=1e-4)


@pytest.mark.parametrize("task", ["translate", "complete"])
def test_heads_are_judged_as_changed(task: str, tmp_path: Path) -> None:
    run = opened(tmp_path, task, n_layers=2)
    kind, stream = ("cross", "source") if task == "translate" else ("self", "text")
    change = Intervention(hidden=frozenset({(stream, 1)}), disabled_heads=frozenset({(kind, 0, 1)}))
    reading = trace(run, "ba de go fi", change=change).reading
    whole, found = heads(run, [reading]), heads(run, [reading], change=change)
    assert found[f"{kind}.0.1"].importance == 0 < whole[f"{kind}.0.1"].importance
    with torch.no_grad():
        loss = float(-run_reading(run, reading, change).log_probs_R.mean())
    assert found.loss == pytest.approx(loss, abs=1e-5)
    assert found.loss != pytest.approx(whole.loss, abs=1e-5)
    if task == "complete":  # heads are off in random tokens read twice, too
        again = [one["self.1.0"].scores["duplicate"] for one in (whole, found)]
        assert again[0] != pytest.approx(again[1], abs=1e-6)


@torch.no_grad()
def test_a_planted_induction_head_is_found(tmp_path: Path) -> None:
    """Layer 1 writes down what stood before (head 1); layer 2 looks for its own token there."""
    vocab, half = words(60), 32
    settings = DecoderSettings(
        vocab_size=vocab.target.vocab_size, d_model=2 * half, n_layers=2, n_heads=2, d_ff=8,
        max_len=64, positions="relative", relative=RelativeSettings(buckets=16, max_distance=32),
        norm="rms", attention_bias="", d_head=half,
    )  # fmt: skip
    run = planted(settings, "complete", tmp_path, vocab)
    table = run.model.front.tokens.weight
    random = torch.Generator().manual_seed(0)
    codes = torch.randn(len(table), half, generator=random).sign()
    table[:, :half] = codes
    bias = run.model.stack.bias
    bias.table.weight[bias.bucket(torch.tensor(-1)), 0] = 40.0
    first, second = (block.attention for block in run.model.stack.blocks)
    eye = torch.eye(half)
    _, _, v_ED = first.to_qkv.weight.split(first.sizes)
    v_ED[:half, :half] = eye  # head 1 reads the token ...
    first.to_out.weight[half:, :half] = eye  # ... and writes it into the free half
    q_ED, k_ED, _ = second.to_qkv.weight.split(second.sizes)
    q_ED[half:, :half] = 4 * eye  # head 2 asks for its own token ...
    k_ED[half:, half:] = 4 * eye  # ... where it stood before
    found = heads(run, ["w1 w2 w3 w4 w5 w6 w7 w8"], importance=False)
    assert found["self.1.1"].roles[0] == "induction"
    assert found["self.1.1"].scores["induction"] > 0.9
    assert found["self.0.0"].roles == ("previous",)
    assert "induction" not in found["self.0.1"].roles


def stream(name: str, pieces: str) -> TokenStream:
    listed = tuple(pieces.split())
    special = tuple(piece.startswith("<") for piece in listed)
    ids = tuple(sum(map(ord, piece)) for piece in listed)
    return TokenStream(name, ids, listed, tuple(range(len(listed))), special)


def planted_on(n: int, columns: list[int], *, causal: bool) -> torch.Tensor:
    """Two heads: one looks at the given column in every row, one evenly."""
    weights_2TS = torch.zeros(2, n, n)
    seen_TS = torch.ones(n, n).tril() if causal else torch.ones(n, n)
    for row, column in enumerate(columns):
        weights_2TS[0, row, min(column, row) if causal else column] = 1.0
    weights_2TS[1] = seen_TS / seen_TS.sum(-1, keepdim=True)
    return weights_2TS


def found_roles(means: RunningMeans, even: RunningMeans) -> list[tuple[str, ...]]:
    levels = {name: float(even.of(name)) for name in even.sums}
    scores = [{name: float(means.of(name)[head]) for name in means.sums} for head in range(2)]
    return [roles_of(one, levels) for one in scores]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("role", ["previous", "self", "first", "next"])
def test_planted_places_are_found_and_even_attention_has_no_role(role: str, causal: bool) -> None:
    if causal and role == "next":
        return
    shift = {"previous": -1, "self": 0, "next": 1}.get(role)
    columns = [0 if shift is None else min(max(row + shift, 0), 11) for row in range(12)]
    means, even = RunningMeans(), RunningMeans()
    add_places(means, even, planted_on(12, columns, causal=causal), causal=causal)
    assert found_roles(means, even) == [(role,), ()]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("role", "place"), [("ends", 5), ("rare", 2)])
def test_planted_columns_are_found(role: str, place: int, causal: bool) -> None:
    one = stream("text", "<s> the cat sat the , and the cat sat the and sat the")
    means, even = RunningMeans(), RunningMeans()
    weights = planted_on(len(one), [place] * len(one), causal=causal)
    add_columns(means, even, weights, one, rare=2, causal=causal)
    assert found_roles(means, even) == [(role,), ()]


def test_planted_alignment_and_repeats_are_found() -> None:
    means, even = RunningMeans(), RunningMeans()
    weights_HTS = torch.full((2, 6, 8), 0.1)
    for row, column in enumerate([3, 1, 7, 0, 2, 5]):
        weights_HTS[0, row, column] = 0.3
    add_alignment(means, even, weights_HTS, [0, 1, 2, 3, 5], [3, 1, 7, 0, 5])
    assert found_roles(means, even) == [("alignment",), ()]
    for role, back in (("duplicate", 8), ("induction", 7)):
        means, even = RunningMeans(), RunningMeans()
        columns = [max(row - back, 0) for row in range(17)]
        add_repeats(means, even, planted_on(17, columns, causal=True), 1, 8)
        assert found_roles(means, even) == [(role,), ()]


def test_the_rarest_word_is_neither_special_nor_punctuation() -> None:
    one = stream("text", "<s> the cat , the <e>")
    reading = Reading("", "complete", {"text": one}, ())
    assert TokenFrequencies([reading]).rarest(one) == 2
    assert TokenFrequencies([reading]).rarest(stream("text", "<s> , <e>")) is None


def test_every_role_has_a_letter_of_its_own() -> None:
    assert len({role.mark for role in ROLES.values()}) == len(ROLES)
