"""Which side a text looks like: by the other texts, not by itself or what lies next to it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.hashing import CharacterCodes
from headway.data.language_id import MIN_PROFILE, Profiles, Trigrams

from .conftest import sentences


def folded(texts: list[str]) -> Trigrams:
    return Trigrams.of(CharacterCodes.of(texts).folded())


def learned() -> Profiles:
    profiles = Profiles()
    source, target = map(list, zip(*sentences(), strict=True))
    profiles.swapped(folded(source), folded(target), learn=True)
    return profiles


@settings(deadline=None)
@given(st.lists(st.text("abc d", max_size=9), min_size=1))
def test_a_trigram_does_not_cross_texts(texts: list[str]) -> None:
    bins, sizes = folded(texts)
    lengths = [len(text.replace(" ", "")) for text in texts]
    assert sizes.tolist() == [max(n - 2, 0) for n in lengths]
    alone = [folded([text]).bins for text in texts]
    assert bins.tolist() == np.concatenate(alone).tolist()


def test_an_exchanged_pair_is_known_and_a_right_one_is_not() -> None:
    profiles = learned()
    source, target = sentences()[5]
    for learn in (False, True):
        assert profiles.swapped(folded([target]), folded([source]), learn=learn).all()
        assert not profiles.swapped(folded([source]), folded([target]), learn=learn).any()


def test_a_text_is_not_evidence_about_itself() -> None:
    """Words that came once before, on the other side, weigh against the pair that repeats them."""
    profiles = learned()
    one, other = "Xylophon quakt Zwergdatei", "Jukebox fuzzy wombat gypsum"
    assert not profiles.swapped(folded([one]), folded([other]), learn=True).any()
    assert profiles.swapped(folded([other]), folded([one]), learn=True).all()


def test_little_text_gives_no_verdict() -> None:
    profiles = Profiles()
    source, target = sentences()[0]
    assert len(folded([source]).bins) < MIN_PROFILE
    profiles.swapped(folded([source]), folded([target]), learn=True)
    assert not profiles.swapped(folded([target]), folded([source]), learn=False).any()
    assert not learned().swapped(folded(["The dog", ""]), folded(["Der Hu", ""]), learn=True).any()
