"""The nearest tokens of a corpus: exact, and a token finds itself first."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.errors import UserError
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.forward import ReadingBatch
from headway.inside.capture.reading import GenerationOptions
from headway.inside.capture.states import states_of
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.features.dictionary import FeatureDictionary, identity, moments
from headway.inside.measure.features.learn import DictionaryLearning, sample_states
from headway.inside.measure.features.sparse_coders import TopKCoder
from headway.inside.measure.nearest_tokens import TokenIndex, build_indexes
from headway.tasks.loaded_run import LoadedRun, open_plain

TEXT = "The little dog ran to the big park."
LINES = [TEXT, "A small cat sat on the mat.", "Tom and Lily went to the park with a dog.",
         "The sun was hot and the sky was blue.", "She had a red ball and a blue hat."]  # fmt: skip


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return open_plain("stories")


@pytest.fixture(scope="module")
def traced(run: LoadedRun) -> Trace:
    return trace(run, TEXT, GenerationOptions(output=""))


@pytest.mark.parametrize("layer", [0, 3, 5])
def test_a_token_finds_itself_first(run: LoadedRun, traced: Trace, layer: int) -> None:
    index = TokenIndex.of(run, LINES, layer)
    for place in range(1, len(traced.reading.last)):
        best = index.nearest(traced, "text", place, 3)[0]
        assert best.cosine == pytest.approx(1.0, abs=2e-3)
        if layer:  # in the embedding the same word is the same state
            assert (best.passage, best.place) == (0, place)


@torch.no_grad()
def test_it_is_what_comparing_everything_by_hand_gives(run: LoadedRun, traced: Trace) -> None:
    index = TokenIndex.of(run, LINES, 4)
    rows, places = [], []
    for number, passage in enumerate(index.texts):
        x_TD = states_of(run.model, ReadingBatch.of(run, [passage]))["self", 4][1:]
        rows.append(x_TD)
        places += [(number, place + 1) for place in range(len(x_TD))]
    x_ND = torch.cat(rows).double()
    middle_D = x_ND.mean(0)
    asked_D = traced.states["self"][4][3].double() - middle_D
    cosine_N = torch.cosine_similarity(x_ND - middle_D, asked_D[None])
    order = cosine_N.argsort(descending=True)[:5].tolist()
    hits = index.nearest(traced, "text", 3, 5)
    assert [(hit.passage, hit.place) for hit in hits] == [places[n] for n in order]
    for hit, n in zip(hits, order, strict=True):
        assert hit.cosine == pytest.approx(float(cosine_N[n]), abs=2e-3)


def test_states_are_held_in_half_precision_and_first_tokens_are_not_in(run: LoadedRun) -> None:
    index = TokenIndex.of(run, LINES, 5)
    assert index.unit_ND.dtype == np.float16
    assert (index.where_N2[:, 1] > 0).all()
    assert len(index.where_N2) == sum(len(text.last) - 1 for text in index.texts)


def test_several_layers_in_one_pass_are_the_same(run: LoadedRun) -> None:
    both = build_indexes(run, LINES, [("self", 1), ("self", 5)])
    assert np.array_equal(both["self", 5].unit_ND, TokenIndex.of(run, LINES, 5).unit_ND)


def test_a_hit_is_shown_in_its_context(run: LoadedRun, traced: Trace) -> None:
    index = TokenIndex.of(run, LINES, 5)
    hit = index.nearest(traced, "text", 3, 1)[0]
    shown = index.token_context(hit.passage, hit.place)
    assert shown["pieces"][shown["at"]].strip() == traced.reading.last.pieces[3].strip("▁")
    assert "".join(shown["pieces"]).strip().startswith("<s> The little dog")


def test_a_translator_is_searched_by_its_source_alone() -> None:
    run = open_plain("tatoeba-de-en")
    corpus = Corpus.of_lines(["Guten Morgen, Tom.", "Ich habe einen Hund."])
    index = build_indexes(run, corpus, [("encoder", 2)])["encoder", 2]
    found = index.nearest(trace(run, "Ich habe einen Hund."), "source", 3, 1)[0]
    assert (found.passage, found.place) == (1, 3)
    assert "target" not in index.texts[0].streams


def test_what_is_not_there_is_named(run: LoadedRun, traced: Trace) -> None:
    with pytest.raises(UserError, match=r"\b9\b.*\bself\b"):
        TokenIndex.of(run, LINES, 9)
    with pytest.raises(UserError, match=r"(?=.*\btext\b)(?=.*\bsource\b)"):
        TokenIndex.of(run, LINES, 1).nearest(traced, "source", 1)
    with pytest.raises(UserError, match="factors="):
        TokenIndex.of(run, LINES, 1).strongest(0)


def test_by_factors_a_token_finds_itself_and_a_factor_its_strongest_place(
    run: LoadedRun, traced: Trace
) -> None:
    index = TokenIndex.of(run, LINES, 3)
    sites, learning = [("self", 3)], DictionaryLearning(method="topk", n=64, k=8)
    mean_SD, scale_S = moments(*sample_states(run, index.texts, sites, learning), 1)
    atoms_AD = torch.randn(64, run.shape.d_model, generator=torch.Generator().manual_seed(0))
    coder = TopKCoder(atoms_AD / atoms_AD.norm(dim=1, keepdim=True), 8)
    found = FeatureDictionary(learning, tuple(sites), coder, mean_SD, scale_S, run=identity(run))
    by_factor = TokenIndex.of(run, LINES, 3, factors=found)
    best = by_factor.nearest(traced, "text", 4, 1)[0]
    assert (best.passage, best.place) == (0, 4)
    value, passage, place = by_factor.strongest(5, 1)[0]
    with torch.no_grad():
        codes = [
            (float(code), number, spot + 1)
            for number, text in enumerate(index.texts)
            for spot, code in enumerate(
                found.codes(
                    states_of(run.model, ReadingBatch.of(run, [text]))["self", 3][1:], ("self", 3)
                )[:, 5]
            )
        ]
    assert (passage, place) == max(codes)[1:]
    assert value == pytest.approx(max(codes)[0], abs=2e-3)
