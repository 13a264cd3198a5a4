"""The search with fixed shapes, which a GPU records, finds what the plain one finds."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from headway.config.decode import DecodeSettings
from headway.decode.fixed import fits
from headway.decode.hypothesis import NO_WISH
from headway.decode.job import Job
from headway.decode.recorded import Recorded
from headway.decode.search import Hypothesis, Searcher, Specials, Wish, search
from headway.models.seq2seq import Seq2Seq
from tests.models.variants import VARIANTS

from . import copying
from .copying import copier
from .reference import BOS, EOS, UNK, small_model

SETTINGS = {
    "greedy": DecodeSettings(beam=1, max_len=14),
    "beam": DecodeSettings(beam=4, n_best=3, max_len=40),
    "power": DecodeSettings(beam=3, length_penalty="power", alpha=1.0, unknown="keep"),
    "forced": DecodeSettings(beam=2, min_len=9, max_len=9),
}


def recorded(model: Seq2Seq, settings: DecodeSettings) -> Searcher:
    searcher = Searcher([model], settings, Specials(BOS, EOS, UNK))
    searcher.recorded = Recorded(model)
    return searcher


def check_same(ours: list[list[Hypothesis]], theirs: list[list[Hypothesis]]) -> None:
    assert [[h.tokens for h in found] for found in ours] == [
        [h.tokens for h in found] for found in theirs
    ]
    for one, other in zip(ours, theirs, strict=True):
        for h, g in zip(one, other, strict=True):
            assert h.finished == g.finished
            assert h.score == pytest.approx(g.score, abs=1e-4)
            assert h.token_log_probs == pytest.approx(g.token_log_probs, abs=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
def test_fixed_shapes_find_what_the_plain_search_finds(name: str, device: torch.device) -> None:
    """Twice: the second batch is decoded in the place of the first, and is another one."""
    model, settings = copier(), SETTINGS[name]
    on_device = recorded(deepcopy(model).to(device), settings)
    for seed, size in ((5, 40), (6, 37)):
        sources = copying.sources(size, seed=seed)
        expected = search([model], sources, settings, bos=BOS, eos=EOS, unk=UNK)
        check_same(on_device(sources), expected)
    assert on_device.recorded is not None
    sizes = {shape.n_sources for shape in on_device.recorded.searches}
    assert 48 in sizes
    if name == "beam":
        assert len(sizes) > 1  # the last sources moved to a smaller batch


@pytest.mark.parametrize("variant", VARIANTS)
def test_fixed_shapes_serve_every_kind_of_model(variant: str, device: torch.device) -> None:
    model = small_model(13, variant)
    sources = [[5, 6, 7, EOS], [3, EOS], [8, 8, 4, 3, 5, EOS]]
    settings = DecodeSettings(beam=3, max_len=20)
    expected = search([model], sources, settings, bos=BOS, eos=EOS, unk=UNK)
    check_same(recorded(model.to(device), settings)(sources), expected)


def test_weights_that_moved_are_not_read_where_they_were(device: torch.device) -> None:
    settings, sources = SETTINGS["greedy"], copying.sources(9)
    model = deepcopy(copier()).to(device)
    searcher = recorded(model, settings)
    before = searcher(sources)
    other = copier(seed=1)
    for parameter, new in zip(model.parameters(), other.parameters(), strict=True):
        parameter.data = new.detach().clone().to(device)
    after = search([other], sources, settings, bos=BOS, eos=EOS, unk=UNK)
    assert [h.tokens for [h] in before] != [h.tokens for [h] in after]
    check_same(searcher(sources), after)


def test_only_plain_searches_have_fixed_shapes() -> None:
    plain = DecodeSettings()
    assert fits(_job(plain))
    for changes in (
        {"sample": True},
        {"groups": 2},
        {"coverage": 0.2},
        {"repetition_penalty": 1.2},
        {"no_repeat_ngram": 3},
    ):
        assert not fits(_job(replace(plain, **changes)))  # type: ignore[arg-type]
    for wish in (Wish(prefix=(4,)), Wish(required=((4,),)), Wish(banned=((4,),))):
        assert not fits(_job(plain, wish))


def _job(settings: DecodeSettings, wish: Wish = NO_WISH) -> Job:
    return Job.of(settings, Specials(BOS, EOS, UNK), [4], [wish], None)
