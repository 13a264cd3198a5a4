"""The search with fixed shapes, which a GPU records, finds what the plain one finds."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from headway.decode.logits_processors import NO_CONSTRAINTS, SpecialTokens, TokenConstraints
from headway.decode.search.cuda_graphs import CudaGraphSearcher, supports_static_search
from headway.decode.search.job import Hypothesis, Job
from headway.decode.search.searcher import Searcher, SharedPrefix, search
from headway.models.decoder import Decoder
from headway.models.seq2seq import Seq2Seq
from headway.settings.decode import DecodeSettings
from headway.tasks.loaded_run import compute_in_type
from tests.models.variants import EVERY, tiny

from . import copying
from .copying import copier
from .reference import BOS, EOS, UNK, small_model

SETTINGS = {
    "greedy": DecodeSettings(beam=1, max_len=14),
    "beam": DecodeSettings(beam=4, n_best=3, max_len=40),
    "power": DecodeSettings(
        beam=3, length_penalty="power", length_penalty_alpha=1.0, unknown="keep"
    ),
    "forced": DecodeSettings(beam=2, min_len=9, max_len=9),
    "draws": DecodeSettings(sample=True, n_best=2, max_len=14, top_k=4, temperature=1.5),
    "penalty": DecodeSettings(beam=3, max_len=14, repetition_penalty=1.5),
}


def recorded(model: Seq2Seq, settings: DecodeSettings) -> Searcher:
    searcher = Searcher([model], settings, SpecialTokens(BOS, EOS, UNK))
    searcher.graph_searcher = CudaGraphSearcher(model)
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
    assert on_device.graph_searcher is not None
    sizes = {shape.n_sources for shape in on_device.graph_searcher.searches}
    assert 48 in sizes
    if name == "beam":
        assert len(sizes) > 1  # the last sources moved to a smaller batch


@pytest.mark.parametrize("variant", EVERY)
def test_fixed_shapes_serve_every_kind_of_model(variant: str, device: torch.device) -> None:
    model = small_model(13, variant)
    sources = [[5, 6, 7, EOS], [3, EOS], [8, 8, 4, 3, 5, EOS]]
    settings = DecodeSettings(beam=3, max_len=20)
    expected = search([model], sources, settings, bos=BOS, eos=EOS, unk=UNK)
    check_same(recorded(model.to(device), settings)(sources), expected)


@pytest.mark.parametrize("name", SETTINGS)
def test_outputs_that_begin_alike_have_fixed_shapes_too(name: str, device: torch.device) -> None:
    """A first token for all, and tokens that may not come behind it."""
    model, settings = copier(), SETTINGS[name]
    sources = copying.sources(12, seed=8)
    begun = SpecialTokens(BOS, EOS, UNK, target_begin=5)
    freely = Searcher([model], settings, begun)(sources)
    second = next(found[0].tokens[1] for found in freely if len(found[0].tokens) > 1)
    specials = begun._replace(never_first=(second, EOS))
    expected = Searcher([model], settings, specials)(sources)
    assert all(h.tokens[0] == 5 and h.tokens[1] != second for found in expected for h in found)
    on_device = Searcher([deepcopy(model).to(device)], settings, specials)
    on_device.graph_searcher = CudaGraphSearcher(on_device.models[0])
    check_same(on_device(sources), expected)
    assert on_device.graph_searcher.searches


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


DRAWN = DecodeSettings(sample=True, n_best=3, max_len=14, top_k=5, temperature=1.3)
LANGUAGE = {
    "greedy": DecodeSettings(beam=1, max_len=21),
    "beam": DecodeSettings(beam=3, n_best=2, max_len=12, length_penalty="none"),
    "draws": DRAWN,
    "penalty": DecodeSettings(beam=1, max_len=12, repetition_penalty=1.4),
    "beam-penalty": DecodeSettings(beam=3, max_len=12, repetition_penalty=1.4),
    "all-draws": replace(DRAWN, top_k=0, top_p=0.9, n_best=1),
}
PROMPTS = [[5, 9, 17, 33, 8, 21], [1], [8, 8, 3], [12, 39, 7, 7, 7, 30, 30, 11], [6] * 12, [4]] * 2


def language_model(variant: str = "as-published", seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    model = tiny("decoder", variant)
    assert isinstance(model, Decoder)
    with torch.no_grad():
        for weight in model.stack.parameters():
            weight.mul_(2.0 if weight.ndim > 1 else 1.0)
    return model


def both_ways(
    model: Decoder, settings: DecodeSettings, device: torch.device, eos: int = EOS
) -> tuple[Searcher, Searcher]:
    """Plain on the CPU, and with fixed shapes on the device."""
    specials = SpecialTokens(BOS, eos, UNK)
    fixed = Searcher([deepcopy(model).to(device)], settings, specials)
    fixed.graph_searcher = CudaGraphSearcher(fixed.models[0])
    return Searcher([model], settings, specials), fixed


@pytest.mark.parametrize("name", LANGUAGE)
def test_prompts_are_continued_with_fixed_shapes_as_without(
    name: str, device: torch.device
) -> None:
    """Whatever token is the end; batches take each other's place, and the last ones move."""
    model = language_model()
    frequent = Searcher([model], LANGUAGE[name], SpecialTokens(BOS, EOS, UNK))(PROMPTS)
    for eos in {EOS, *(found[0].tokens[2] for found in frequent[:2])}:
        plain, fixed = both_ways(model, LANGUAGE[name], device, eos)
        for prompts in (PROMPTS, PROMPTS[3:0:-1], [[9] * 20]):
            check_same(fixed(prompts), plain(prompts))
        assert fixed.graph_searcher is not None
        assert len(fixed.graph_searcher.searches) >= 3


@pytest.mark.parametrize("variant", EVERY)
def test_fixed_shapes_serve_every_kind_of_language_model(
    variant: str, device: torch.device
) -> None:
    """To the end of the context, where what is done must not go further."""
    model = language_model(variant)
    for settings in (DecodeSettings(beam=1, min_len=99, max_len=27), LANGUAGE["beam"]):
        plain, fixed = both_ways(model, settings, device)
        prompts = [[7] * 30, [5, 6], [8] * 9]
        check_same(fixed(prompts), plain(prompts))


def test_a_prefix_and_stops_serve_fixed_shapes(device: torch.device) -> None:
    model = language_model()
    plain, fixed = both_ways(model, LANGUAGE["greedy"], device)
    prompts = [[5, 9, 17, *prompt] for prompt in PROMPTS[:4]]
    prefix = SharedPrefix(fixed.models, [5, 9, 17])
    check_same(fixed(prompts, prefix=prefix), plain(prompts))
    seen: dict[int, list[int]] = {}

    def watch(place: int, w: int, token: int) -> bool:
        """Each prompt may have as many tokens as its number says."""
        seen.setdefault(place, []).append(token)
        return len(seen[place]) == 3 * place + 1

    found = fixed(prompts, watch=watch)
    expected = [h.tokens for [h] in plain(prompts)]
    assert [h.tokens for [h] in found] == [
        text[: 3 * place + 1] for place, text in enumerate(expected)
    ]
    seen.clear()
    assert [h.tokens for [h] in plain(prompts, watch=watch)] == [h.tokens for [h] in found]


def test_an_observer_may_start_another_search(device: torch.device) -> None:
    """The state of the first lies where it was recorded."""
    plain, fixed = both_ways(language_model(), LANGUAGE["greedy"], device)
    inner = []

    def watch(place: int, w: int, token: int) -> bool:
        if not inner:
            inner.append(fixed([*PROMPTS[1:4], PROMPTS[0]]))
        return False

    check_same(fixed(PROMPTS[:4], watch=watch), plain(PROMPTS[:4]))
    check_same(inner[0], plain([*PROMPTS[1:4], PROMPTS[0]]))


def test_only_plain_searches_have_fixed_shapes() -> None:
    plain = DecodeSettings()
    assert supports_static_search(_job(plain))
    for changes in (
        {"groups": 2},
        {"coverage": 0.2},
        {"no_repeat_ngram": 3},
    ):
        assert not supports_static_search(_job(replace(plain, **changes)))  # type: ignore[arg-type]
    for wish in (
        TokenConstraints(prefix=(4,)),
        TokenConstraints(required=((4,),)),
        TokenConstraints(banned=((4,),)),
    ):
        assert not supports_static_search(_job(plain, wish))


def _job(settings: DecodeSettings, wish: TokenConstraints = NO_CONSTRAINTS) -> Job:
    return Job.of(settings, SpecialTokens(BOS, EOS, UNK), [4], [wish], None)


@pytest.mark.parametrize("variant", ["as-published", "llama-like"])
def test_sixteen_bits_write_nearly_what_thirty_two_write(
    variant: str, device: torch.device
) -> None:
    """The weights are cast once; tied ones stay one, and the scores are near."""
    model = language_model(variant)
    settings = DecodeSettings(beam=1, max_len=8)
    plain, fixed = both_ways(model, settings, device)
    compute_in_type(fixed.models[0], torch.bfloat16)
    assert {weight.dtype for weight in fixed.models[0].parameters()} == {torch.bfloat16}
    found, expected = fixed(PROMPTS), plain(PROMPTS)
    first = [h.token_log_probs[0] for [h] in found]
    assert first == pytest.approx([h.token_log_probs[0] for [h] in expected], abs=0.15)
    assert sum(h.tokens == g.tokens for [h], [g] in zip(found, expected, strict=True)) >= 8
