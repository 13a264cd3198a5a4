"""Factors of real and of tiny models: true figures, true effects, the same again from a file."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.errors import ConfigError, DataError, FolderError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import Passage, passages
from headway.inside.capture.forward import ReadingBatch, last_hidden_states
from headway.inside.capture.states import sites_of, states_of
from headway.inside.measure.features.browse import browse
from headway.inside.measure.features.dictionary import (
    FeatureDictionary,
    factors,
    identity,
    learn_dictionary,
    moments,
)
from headway.inside.measure.features.learn import (
    DictionaryLearning,
    Reservoir,
    chosen_sites,
    sample_states,
)
from headway.inside.measure.features.recovery import measure_fidelity
from headway.inside.measure.features.sparse_coders import TopKCoder, fit_coder
from headway.tasks.loaded_run import LoadedRun, open_plain

from ..interop.padded_runs import RUNS, WORDS, tiny_run

LINES = [" ".join(WORDS[(i * j) % len(WORDS)] for j in range(1, 4 + i % 7)) for i in range(1, 90)]
SMALL: dict[str, Any] = {"n": 12, "k": 3, "steps": 20, "browse": 400}


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return open_plain(tiny_run(tmp_path_factory.mktemp("w") / "run", "complete", n_layers=2))


@pytest.fixture(scope="module")
def found(writer: LoadedRun) -> FeatureDictionary:
    return factors(writer, LINES, method="topk", **SMALL)


def whole(run: LoadedRun, texts: list[Passage]) -> FeatureDictionary:
    """A dictionary that leaves nothing out: every axis, in both directions."""
    sites = sites_of(run.model)
    learning = DictionaryLearning(method="topk", n=2 * run.shape.d_model, k=2 * run.shape.d_model)
    mean_SD, scale_S = moments(*sample_states(run, texts, sites, learning), len(sites))
    axes_DD = torch.eye(run.shape.d_model)
    coder = TopKCoder(torch.cat([axes_DD, -axes_DD]), learning.n)
    return FeatureDictionary(learning, tuple(sites), coder, mean_SD, scale_S, run=identity(run))


@pytest.mark.parametrize("task", list(RUNS))
@pytest.mark.parametrize("method", ["sparse", "topk"])
def test_every_family_has_factors(task: str, method: str, tmp_path: Path) -> None:
    run = open_plain(tiny_run(tmp_path / "run", task, n_layers=2))
    targets = LINES[::-1] if task == "translate" else None
    made = factors(run, Corpus.of_lines(LINES, targets), method=method, **SMALL)
    assert len(made.entries) == 12
    assert [list(site) for site in made.sites] == [list(site) for site in sites_of(run.model)]
    assert len(made.figures["layers"]) == len(made.sites)
    assert made.figures["unit"] == ("1 − cosine" if task == "embed" else "nats")
    alive = [entry for entry in made.entries if entry["effect"] is not None]
    assert alive
    for entry in alive:
        assert entry["effect"]["kl"] >= -1e-4
        context = entry["contexts"][0]
        assert context["values"][context["at"]] == pytest.approx(entry["strength"], abs=1e-3)
        assert len(context["pieces"]) == len(context["values"])
    has_words = task in ("translate", "complete", "fill", "tag")
    assert ("promotes" in made.entries[0]) == has_words


def test_a_dictionary_that_holds_everything_recovers_everything() -> None:
    run = open_plain("stories")
    lines = [f"Once there was a {thing} named Tim." for thing in ("boy", "dog", "red bird", "cat")]
    texts = passages(run, Corpus.of_lines(lines), 600)
    facts = measure_fidelity(run, whole(run, texts), texts)
    assert facts["explained"] == pytest.approx(1.0, abs=1e-3)
    assert facts["recovered"] == pytest.approx(1.0, abs=1e-2)
    for layer in facts["layers"]:
        assert layer["rebuilt"] == pytest.approx(layer["loss"], abs=1e-3)
        assert layer["zero"] > layer["loss"] + 1


@torch.no_grad()
def test_the_loss_is_the_loss_of_the_model_and_zeros_are_zeros(writer: LoadedRun) -> None:
    texts = passages(writer, Corpus.of_lines(LINES), 300)
    facts = measure_fidelity(writer, whole(writer, texts), texts)
    part = Anatomy.of(writer.model).stacks[-1]

    def zero(module: nn.Module, given: Any, out: Tensor) -> Tensor:
        words_N = batch.ordinary(writer, "text")
        return torch.where(words_N[:, None], 0.0, out)

    losses: dict[str, list[float]] = {"loss": [], "zero": []}
    for name in losses:
        hook = part.blocks[0].register_forward_hook(zero) if name == "zero" else None
        for text in texts:
            ids_N = torch.tensor(text.last.ids)
            batch = ReadingBatch.of(writer, [text])
            scores_TV = writer.model.scores(last_hidden_states(writer.model, batch))
            losses[name] += F.cross_entropy(scores_TV[:-1], ids_N[1:], reduction="none").tolist()
        if hook is not None:
            hook.remove()
    means = {name: sum(values) / len(values) for name, values in losses.items()}
    assert facts["layers"][1]["loss"] == pytest.approx(means["loss"], abs=1e-3)
    assert facts["layers"][1]["zero"] == pytest.approx(means["zero"], abs=1e-3)


@torch.no_grad()
def test_an_effect_is_what_changes_when_the_factor_is_taken_away(
    writer: LoadedRun, found: FeatureDictionary
) -> None:
    """Of one factor and one context, done by hand with a hook on one block."""
    texts = passages(writer, Corpus.of_lines(LINES), 600)
    number = max(range(found.n), key=lambda a: (found.entries[a]["effect"] or {"kl": -1})["kl"])
    one = browse(writer, found, texts[:1], texts[:1], lambda line: None).entries[number]
    stack, layer = found.sites[one["site"]]
    batch = ReadingBatch.of(writer, texts[:1])
    states_TD = states_of(writer.model, batch)[stack, layer]
    code_T = found.codes(states_TD, (stack, layer))[:, number]
    code_T[~batch.ordinary(writer, "text")] = 0.0
    part_TD = found.contribution(number, code_T, (stack, layer))
    module = Anatomy.of(writer.model).stacks[0]
    place = module.front if layer == 0 else module.blocks[layer - 1]
    before_TV = writer.model.scores(last_hidden_states(writer.model, batch)).log_softmax(-1)
    hook = place.register_forward_hook(lambda block, given, out: out - part_TD)
    after_TV = writer.model.scores(last_hidden_states(writer.model, batch)).log_softmax(-1)
    hook.remove()
    kl_T = (before_TV.exp() * (before_TV - after_TV)).sum(-1)[:-1]
    next_T1 = batch.streams["text"].values[1:, None]
    grew_T = before_TV[:-1].gather(1, next_T1) - after_TV[:-1].gather(1, next_T1)
    assert one["effect"]["kl"] == pytest.approx(float(kl_T.mean()), abs=1e-4)
    assert one["effect"]["nats"] == pytest.approx(float(grew_T.mean()), abs=1e-4)
    assert abs(one["effect"]["nats"]) > 1e-3


def test_what_a_factor_speaks_for_rises_when_it_is_added(
    writer: LoadedRun, found: FeatureDictionary
) -> None:
    part = Anatomy.of(writer.model).stacks[-1]
    middle_D, scale = found.mean_SD[-1], found.scale_S[-1]
    both_2D = torch.stack([middle_D, middle_D + found.atoms_AD[5] * scale])
    with torch.no_grad():
        before_V, behind_V = writer.model.scores(part.stack.final_norm(both_2D))
    gain_V = behind_V - before_V
    word, value = found.entries[5]["promotes"][0]
    gain_V -= gain_V.mean()
    assert value == pytest.approx(float(gain_V.max()), abs=1e-2)
    assert word == writer.vocab.target.tokens([int(gain_V.argmax())])[0]


def test_saved_factors_are_the_same_factors(
    writer: LoadedRun, found: FeatureDictionary, tmp_path: Path
) -> None:
    found.save(tmp_path / "f")
    again = FeatureDictionary.load(tmp_path / "f")
    x_ND = torch.randn(7, writer.shape.d_model)
    site = found.sites[1]
    assert torch.equal(again.codes(x_ND, site), found.codes(x_ND, site))
    assert again.entries == tuple(json.loads(json.dumps(found.entries)))
    assert again.figures == found.figures
    again.check_fits(writer)


def test_the_same_seed_gives_the_same_factors(writer: LoadedRun, found: FeatureDictionary) -> None:
    again = factors(writer, LINES, method="topk", **SMALL)
    assert torch.equal(again.atoms_AD, found.atoms_AD)
    assert again.entries == found.entries


def test_factors_of_another_model_are_an_error(found: FeatureDictionary) -> None:
    with pytest.raises(FolderError, match=r"(?=.*\b32\b)(?=.*stories)"):
        found.check_fits(open_plain("stories"))


def test_a_folder_without_factors_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="headway factors"):
        FeatureDictionary.load(tmp_path)


def test_a_too_small_corpus_is_reported_with_its_size_and_the_least(writer: LoadedRun) -> None:
    with pytest.raises(DataError, match=r"(?=.*\b240\b)(?=.*\b4,096)(?=.*\b40\b)(?=.*n=15)"):
        factors(writer, ["ba de go fi ko"] * 40, n=512)
    with pytest.raises(DataError, match=r"(?=.*\b1\b)(?=.*\b10\b)") as caught:
        factors(writer, ["ba de go fi ko"], n=2, k=1)
    assert "n=" not in str(caught.value)  # fewer factors are no way out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n": 1}, r"n=1\b.*\b2\b"),
        ({"k": 0}, "k=0"),
        ({"n": 8, "k": 9}, r"k=9\b.*n=8\b"),
        ({"method": "topk", "l1": 0.1}, r"(?=.*topk)(?=.*\bl1\b)"),
        ({"method": "pca"}, "method.*pca"),
        ({"atoms": 5}, "'atoms'"),
        ({"layers": "7"}, "layers.*'7'"),
        ({"layers": "decoder"}, r"'decoder'.*\bself\b"),
        ({"steps": 0}, "steps=0"),
    ],
)
def test_invalid_settings_are_an_error(
    writer: LoadedRun, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        factors(writer, LINES, **settings)


def test_layers_and_stacks_can_be_chosen() -> None:
    run = open_plain("tatoeba-de-en")
    every = sites_of(run.model)
    assert chosen_sites(run, "all") == every
    assert chosen_sites(run, "decoder") == [site for site in every if site[0] == "decoder"]
    assert chosen_sites(run, "encoder,0,2") == [("encoder", 0), ("encoder", 2)]
    assert chosen_sites(run, "last") == [("encoder", 4), ("decoder", 2)]


def test_a_reservoir_is_a_fair_sample_and_never_larger_than_it_may_be() -> None:
    reservoir = Reservoir(200, seed=1)
    for first in range(0, 4000, 100):
        reservoir.add(torch.arange(first, first + 100.0)[:, None], first // 2000)
    rows_RD, site_R = reservoir.sample()
    assert rows_RD.shape == (200, 1)
    assert len(set(rows_RD.flatten().tolist())) == 200
    assert float(rows_RD.mean()) == pytest.approx(2000, abs=4 * 1155 / 200**0.5)
    assert torch.equal(site_R, (rows_RD.flatten() >= 2000).long())


def test_what_is_learned_from_is_centred(
    writer: LoadedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(rows_RD: Tensor, *more: Any, **others: Any) -> Any:
        seen.append(rows_RD.clone())
        return fit_coder(rows_RD, *more, **others)

    # The package has a function of that name, too.
    monkeypatch.setattr(
        import_module("headway.inside.measure.features.dictionary"), "fit_coder", spy
    )
    learning = DictionaryLearning(**SMALL, layers="2")
    texts = passages(writer, Corpus.of_lines(LINES), 600)
    learn_dictionary(writer, texts, chosen_sites(writer, "2"), learning)
    assert float(seen[0].mean(0).abs().max()) < 1e-5
    assert float(seen[0].norm(dim=1).mean()) == pytest.approx(1.0, abs=1e-5)


def test_every_layer_is_centred_and_scaled_by_itself() -> None:
    random = torch.Generator().manual_seed(0)
    rows_RD = torch.randn(4000, 8, generator=random)
    site_R = torch.arange(4000) % 2
    rows_RD[1::2] = 50 * rows_RD[1::2] + 7
    mean_SD, scale_S = moments(rows_RD, site_R, 2)
    assert float(mean_SD[1].mean()) == pytest.approx(7, abs=1.5)
    assert float(scale_S[1] / scale_S[0]) == pytest.approx(50, rel=0.1)


@pytest.mark.gpu
def test_factors_are_learned_on_a_gpu(writer: LoadedRun) -> None:
    made = factors(writer, LINES, method="sparse", device="cuda", **SMALL)
    assert made.atoms_AD.device.type == "cpu"
    assert next(writer.model.parameters()).device.type == "cpu"
    assert made.figures["explained"] > 0
