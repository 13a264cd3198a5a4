"""What may come next: every rule against its definition, and in the searches that use it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.decode.logits_processors import (
    NO_CONSTRAINTS,
    LogitsProcessors,
    SpecialTokens,
    TokenConstraints,
    ban_phrases,
    ban_repeated,
    min_length,
    penalise_repetition,
)
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import Searcher, search
from headway.errors import ConfigError
from headway.settings.decode import DecodeSettings

from . import copying
from .copying import BOS, EOS, UNK, VOCAB, copier

WAYS = {
    "greedy": DecodeSettings(beam=1, max_len=12),
    "beam": DecodeSettings(beam=4, n_best=4, max_len=12),
    "draws": DecodeSettings(sample=True, n_best=3, max_len=12, temperature=1.5),
    "diverse": DecodeSettings(beam=4, groups=2, n_best=4, max_len=12),
}
every_way = pytest.mark.parametrize("way", WAYS)


def find(
    settings: DecodeSettings, sources: list[list[int]], wishes: list[TokenConstraints] | None = None
) -> list[list[Hypothesis]]:
    return search([copier()], sources, settings, bos=BOS, eos=EOS, unk=UNK, wishes=wishes)


def contains(tokens: list[int], phrase: tuple[int, ...]) -> bool:
    n = len(phrase)
    return any(tuple(tokens[i : i + n]) == phrase for i in range(len(tokens) - n + 1))


rows = st.lists(st.lists(st.integers(3, 6), min_size=7, max_size=7), min_size=1, max_size=4)


@settings(deadline=None)
@given(rows, st.integers(1, 4))
def test_no_sequence_of_tokens_comes_twice(tokens: list[list[int]], n: int) -> None:
    scores_RV = torch.zeros(len(tokens), 8)
    ban_repeated(n)(scores_RV, torch.tensor(tokens), [0])
    for row, text in enumerate(tokens):
        for token in range(8):
            grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
            new = (*text[len(text) - n + 1 :], token)
            assert (scores_RV[row, token] == -torch.inf) == (new in grams)


@settings(deadline=None)
@given(rows, st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=3), max_size=4))
def test_a_banned_phrase_never_becomes_complete(
    tokens: list[list[int]], phrases: list[list[int]]
) -> None:
    scores_RV = torch.zeros(2 * len(tokens), 8)
    banned = [[tuple(phrase) for phrase in phrases]] * len(tokens)
    twice = torch.tensor([text for text in tokens for _ in range(2)])
    ban_phrases(banned)(scores_RV, twice, list(range(len(tokens))))
    for row, text in enumerate(twice.tolist()):
        for token in range(8):
            new = [*text, token]
            ends = any(new[len(new) - len(phrase) :] == phrase for phrase in phrases)
            assert (scores_RV[row, token] == -torch.inf) == ends


@pytest.mark.parametrize(("begin", "place"), [(None, 0), (7, 1)])
def test_tokens_that_no_output_begins_with_are_banned_there_alone(
    begin: int | None, place: int
) -> None:
    specials = SpecialTokens(
        bos=0, eos=1, unk=1, target_begin=begin, banned=(5,), never_first=(1, 3)
    )
    filters = LogitsProcessors(DecodeSettings(unknown="keep"), specials, [NO_CONSTRAINTS])
    for length in range(4):
        scores_RV = torch.zeros(1, 9)
        filters(scores_RV, torch.full((1, length), 4), [0])
        gone = {0, 5, *([1, 3] if length == place else [])}
        assert set(scores_RV[0].isinf().nonzero().flatten().tolist()) == gone


def test_an_end_before_the_minimum_length_is_banned() -> None:
    for length in range(4):
        scores_RV = torch.zeros(1, 5)
        min_length(2, EOS)(scores_RV, torch.full((1, length), 3), [0])
        assert (scores_RV[0, EOS] == -torch.inf) == (length < 2)
        assert scores_RV.isfinite().sum() == 5 - (length < 2)


def test_a_repeated_token_costs_its_log_probability_times_the_penalty_once() -> None:
    scores_RV = torch.full((1, 6), -2.0)
    penalise_repetition(1.5)(scores_RV, torch.tensor([[3, 4, 3, 3]]), [0])
    assert scores_RV[0].tolist() == [-2.0, -2.0, -2.0, -3.0, -3.0, -2.0]


@every_way
def test_searches_repeat_no_pair_of_tokens_where_that_is_banned(way: str) -> None:
    sources = [[5, 5, 5, 5, 5, EOS], [7, 8, 7, 8, 7, 8, EOS], [4, EOS]]
    plain = find(replace(WAYS[way], min_len=6), sources)
    banned = find(replace(WAYS[way], min_len=6, no_repeat_ngram=2), sources)

    def repeats(found: list[list[Hypothesis]]) -> int:
        texts = [h.tokens for of_source in found for h in of_source]
        return sum(len(list(pairwise(t))) - len(set(pairwise(t))) for t in texts)

    assert repeats(plain) > 0
    assert repeats(banned) == 0


@every_way
def test_an_output_begins_with_its_prefix_and_the_others_do_not_care(way: str) -> None:
    sources = copying.sources(8)
    prefixes: list[tuple[int, ...]] = [(9, 9, 4), (), (3,), (UNK, 5)]
    wishes = [TokenConstraints(prefix=prefix) for prefix in [*prefixes, *[()] * 4]]
    found = find(WAYS[way], sources, wishes)
    for of_source, wish in zip(found, wishes, strict=True):
        for h in of_source:
            assert tuple(h.tokens[: len(wish.prefix)]) == wish.prefix
            assert all(value > -torch.inf for value in h.token_log_probs)
    free = find(WAYS[way], sources)
    for place, prefix in enumerate(prefixes):
        same = [h.tokens for h in found[place]] == [h.tokens for h in free[place]]
        assert same == (not prefix)


def test_a_prefix_longer_than_the_limit_is_written_whole() -> None:
    long = tuple(range(3, 20))
    [[h]] = find(DecodeSettings(max_len=4), [[5, EOS]], [TokenConstraints(prefix=long)])
    assert tuple(h.tokens[: len(long)]) == long


@every_way
def test_banned_phrases_do_not_come(way: str) -> None:
    sources, settings = copying.sources(20), replace(WAYS[way], min_len=3)
    plain = find(settings, sources)
    banned = [tuple(of_source[0].tokens[1:3]) for of_source in plain]
    found = find(settings, sources, [TokenConstraints(banned=(phrase,)) for phrase in banned])
    for of_source, phrase in zip(found, banned, strict=True):
        assert not any(contains(h.tokens, phrase) for h in of_source)


def phrases(draw: torch.Generator, n: int) -> tuple[tuple[int, ...], ...]:
    def phrase() -> tuple[int, ...]:
        size = int(torch.randint(1, 4, (1,), generator=draw))
        return tuple(torch.randint(3, VOCAB, (size,), generator=draw).tolist())

    return tuple(phrase() for _ in range(n))


@pytest.mark.parametrize("beam", [1, 4, 10])
def test_required_phrases_always_come(beam: int) -> None:
    """Also where there is hardly room for them, and each in a place of its own."""
    draw = torch.Generator().manual_seed(beam)
    sources = copying.sources(16, seed=3)
    wishes = [TokenConstraints(required=phrases(draw, n % 4)) for n in range(16)]
    wishes[5] = TokenConstraints(required=((7, 8), (7, 8), (8, 7)))  # one may not serve for two
    wishes[6] = TokenConstraints(required=((4, 4, 5),), prefix=(4,))
    wishes[7] = TokenConstraints(required=((UNK, 3),), banned=((9,),))
    for limit in (6, 20):
        settings = DecodeSettings(beam=beam, n_best=min(beam, 3), max_len=limit)
        found = find(settings, sources, wishes)
        for of_source, wish in zip(found, wishes, strict=True):
            assert of_source
            for h in of_source:
                assert holds_apart(h.tokens, list(wish.required)), (h.tokens, wish)
                assert sum(h.token_log_probs) == pytest.approx(h.log_prob, abs=1e-4)
                assert not any(contains(h.tokens, phrase) for phrase in wish.banned)
                assert tuple(h.tokens[: len(wish.prefix)]) == wish.prefix


def holds_apart(tokens: list[int], needed: list[tuple[int, ...]]) -> bool:
    """Whether all phrases are there without sharing a token."""
    if not needed:
        return True
    first, *rest = needed
    n = len(first)
    return any(
        holds_apart([*tokens[:i], *[-1] * n, *tokens[i + n :]], rest)
        for i in range(len(tokens) - n + 1)
        if tuple(tokens[i : i + n]) == first
    )


def test_what_is_required_but_comes_anyway_changes_nothing() -> None:
    sources, settings = copying.sources(20), DecodeSettings(beam=8, max_len=12, min_len=3)
    plain = find(settings, sources)
    wishes = [TokenConstraints(required=(tuple(of_source[0].tokens[1:3]),)) for of_source in plain]
    found = find(settings, sources, wishes)
    same = [a[0].tokens == b[0].tokens for a, b in zip(plain, found, strict=True)]
    assert sum(same) >= 0.8 * len(same)  # seldom does a search of other outputs find a better one


def test_required_phrases_need_plain_beam_search() -> None:
    wish = [TokenConstraints(required=((4,),))]
    for changes, named in (
        ({"sample": True}, r"decode\.sample=true"),
        ({"groups": 2}, r"decode\.groups=2"),
        ({"coverage": 0.1}, r"decode\.coverage=0\.1"),
    ):
        with pytest.raises(ConfigError, match=named):
            find(replace(DecodeSettings(), **changes), [[5, EOS]], wish)  # type: ignore[arg-type]


def test_the_unknown_token_comes_only_where_it_is_allowed() -> None:
    sources = [[UNK, UNK, UNK, EOS], [UNK, 5, UNK, EOS]]
    for unknown, may in (("ban", False), ("keep", True), ("copy", True)):
        settings = DecodeSettings(sample=True, n_best=30, temperature=5.0, unknown=unknown)  # type: ignore[arg-type]
        found = search([copier()], sources, settings, bos=BOS, eos=EOS, unk=UNK)
        tokens = {token for of_source in found for h in of_source for token in h.tokens}
        assert (UNK in tokens) == may
        assert BOS not in tokens


@every_way
@pytest.mark.parametrize("required", [False, True])
def test_every_output_begins_with_the_forced_token_which_costs_nothing(
    way: str, required: bool
) -> None:
    if required and way in ("draws", "diverse"):
        return
    sources = copying.sources(6)
    wishes = [TokenConstraints(prefix=(7,), required=((9,),) if required else ())] * 6
    searcher = Searcher([copier()], WAYS[way], SpecialTokens(BOS, EOS, UNK, target_begin=4))
    for of_source in [*searcher(sources), *searcher(sources, wishes)]:
        for h in of_source:
            assert h.tokens[0] == 4
            assert h.token_log_probs[0] == 0.0
            assert h.log_prob == pytest.approx(sum(h.token_log_probs), abs=1e-4)
    assert all(h.tokens[1] == 7 for found in searcher(sources, wishes) for h in found)


@every_way
def test_banned_tokens_are_in_no_output(way: str) -> None:
    sources, settings = copying.sources(12), replace(WAYS[way], min_len=3)
    used = {t for found in find(settings, sources) for h in found for t in h.tokens}
    assert {5, 8, 11} <= used
    specials = SpecialTokens(BOS, EOS, UNK, banned=(5, 8, 11, EOS))  # the end is never banned
    found = Searcher([copier()], settings, specials)(sources)
    assert not {5, 8, 11} & {t for of_source in found for h in of_source for t in h.tokens}
    assert any(h.finished for of_source in found for h in of_source)


def test_where_no_token_is_left_what_was_written_so_far_is_the_answer() -> None:
    """Nothing twice, and more than there are tokens."""
    settings = DecodeSettings(beam=4, min_len=40, max_len=60, no_repeat_ngram=1)
    for found in find(settings, copying.sources(3)):
        assert not found[0].finished
        assert len(set(found[0].tokens)) == len(found[0].tokens) > 1
