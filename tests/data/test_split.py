"""Validation pairs share nothing with training pairs, and are the same ones everywhere."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.data.check import duplicates
from headway.data.hashing import LONGEST, CharacterCodes, fold_hashes
from headway.data.split import choose_rows, groups
from headway.errors import DataError
from tests.facts import naming

unhurried = settings(deadline=None)
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1)


@unhurried
@given(TEXTS)
def test_hashes_are_equal_exactly_for_equal_texts(texts: list[str]) -> None:
    hashes = CharacterCodes.of(texts).hashes().tolist()
    assert len(set(zip(texts, hashes, strict=True))) == len(set(texts)) == len(set(hashes))


@unhurried
@given(TEXTS)
def test_the_hash_of_a_text_does_not_depend_on_its_neighbours(texts: list[str]) -> None:
    together = [CharacterCodes.of(texts), CharacterCodes.of(texts).folded()]
    alone = [CharacterCodes.of([text]) for text in texts]
    assert [int(one.hashes()[0]) for one in alone] == together[0].hashes().tolist()
    assert [int(one.folded().hashes()[0]) for one in alone] == together[1].hashes().tolist()


def validation_rows(pairs: list[tuple[str, str]], size: int) -> NDArray[np.bool_]:
    """Of pairs of texts."""
    sources, targets = zip(*pairs, strict=True)
    return choose_rows(
        fold_hashes(CharacterCodes.of(sources)), fold_hashes(CharacterCodes.of(targets)), size
    )


def test_long_texts_are_distinguished_by_start_and_length() -> None:
    start = "x" * LONGEST
    texts = ["", "x", start, start + "y", start + "yy", "y" + start]
    assert len(set(CharacterCodes.of(texts).hashes().tolist())) == len(texts)


def test_case_punctuation_and_blanks_are_folded_away_but_for_texts_of_nothing_else() -> None:
    same = ["Don't stop!", "DON’T  STOP", "dont\u00a0stop…", "\x01don´t, stop.\x01"]
    others = ["Do not stop", "Dont stöp", "?!", "!?", "", " ", "😀", "1", "2"]
    hashes = fold_hashes(CharacterCodes.of(same + others)).tolist()
    assert len(set(hashes[: len(same)])) == 1
    assert len(set(hashes)) == 1 + len(others)


def components(pairs: list[tuple[str, str]]) -> list[int]:
    """The first pair of each pair's group, by following links one at a time."""
    first = list(range(len(pairs)))
    changed = True
    while changed:
        changed = False
        for i, one in enumerate(pairs):
            for j, other in enumerate(pairs):
                if (one[0] == other[0] or one[1] == other[1]) and first[j] < first[i]:
                    first[i], changed = first[j], True
    return first


NUMBERED = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=30)


@unhurried
@given(NUMBERED)
def test_groups_are_the_connected_components(numbers: list[tuple[int, int]]) -> None:
    pairs = [(f"s{a}", f"t{b}") for a, b in numbers]
    source, target = (fold_hashes(CharacterCodes.of(side)) for side in zip(*pairs, strict=True))
    assert groups(source, target).tolist() == components(pairs)


def test_a_long_chain_is_one_group() -> None:
    n = 20_000
    order = np.random.default_rng(0).permutation(n)
    links = np.arange(n, dtype=np.uint64)
    assert not groups((links // 2)[order], ((links + 1) // 2)[order]).any()


@pytest.mark.parametrize("size", [1, 20, 1000])
def test_no_side_of_a_validation_pair_is_in_training(size: int) -> None:
    pairs = [(f"a{i // 2}", f"b{i // 3}") for i in range(0, 3000, 3)] + [("A0!", "x")]
    held = validation_rows(pairs, size)
    assert held.sum() == min(size, len(pairs) // 10)
    for side in (0, 1):
        ours = {pair[side].casefold().strip("!") for pair, h in zip(pairs, held, strict=True) if h}
        others = {
            pair[side].casefold().strip("!") for pair, h in zip(pairs, held, strict=True) if not h
        }
        assert not ours & others


def test_the_order_of_the_pairs_and_other_processes_change_nothing() -> None:
    pairs = [(f"satz {i // 2}", f"sentence {i // 3}") for i in range(500)]
    held = validation_rows(pairs, 30)
    order = np.random.default_rng(1).permutation(len(pairs))
    assert np.array_equal(validation_rows([pairs[i] for i in order], 30), held[order])
    code = (
        "from headway.data.hashing import CharacterCodes, fold_hashes\n"
        "from headway.data.split import choose_rows\n"
        "pairs = [(f'satz {i // 2}', f'sentence {i // 3}') for i in range(500)]\n"
        "sides = [fold_hashes(CharacterCodes.of(side)) for side in zip(*pairs)]\n"
        "print(choose_rows(*sides, 30).nonzero()[0].tolist())"
    )
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
        assert done.stdout == f"{held.nonzero()[0].tolist()}\n", done.stderr


def test_where_everything_hangs_together_sources_alone_are_kept_apart() -> None:
    pairs = [(f"Frage {i // 2}", "ja" if i % 3 else "nein") for i in range(200)]
    held = validation_rows(pairs, 10)
    assert held.sum() == 10
    sources = {pair[0] for pair, h in zip(pairs, held, strict=True) if h}
    assert not sources & {pair[0] for pair, h in zip(pairs, held, strict=True) if not h}


def test_pairs_that_cannot_be_split_are_an_error_with_the_option() -> None:
    with pytest.raises(DataError, match=naming(1, "valid=…")):
        validation_rows([("a", "b")], 5)
    with pytest.raises(DataError, match=naming(20, "valid=…")):
        validation_rows([("Ja.", f"b{i}") for i in range(20)], 5)
    assert choose_rows(*np.arange(4, dtype=np.uint64).reshape(2, 2), 5).sum() == 1


def test_check_and_split_take_few_bytes_a_pair() -> None:
    """Counted, not measured; docs/tasks/data.md says what they are with what is kept of each."""
    n = 100_000
    draw = np.random.default_rng(0)
    factor = np.uint64(0x9E3779B97F4A7C15)
    source, target = (draw.integers(0, 5 * n, n).astype(np.uint64) * factor for _ in range(2))
    for most, work in (
        (25, lambda: duplicates(source)),
        (65, lambda: choose_rows(source, target, 2000)),
    ):
        tracemalloc.start()
        try:
            work()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < most * n


def test_every_label_gives_its_share_and_equal_texts_stay_together() -> None:
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(4, dtype=np.int32), [600, 300, 90, 10])
    keys = draw.integers(0, 700, 1000).astype(np.uint64) + np.uint64(1000) * labels.astype(
        np.uint64
    )
    order = draw.permutation(1000)
    keys, labels = keys[order], labels[order]
    held = choose_rows(keys, keys, 100, labels=labels)
    assert not np.isin(keys[held], keys[~held]).any()
    assert held.sum() == 100
    shares = np.bincount(labels[held]) / np.bincount(labels)
    assert (np.abs(shares - 0.1) < 0.05).all()
    again = draw.permutation(1000)
    assert np.array_equal(
        choose_rows(keys[again], keys[again], 100, labels=labels[again]), held[again]
    )
    with pytest.raises(DataError, match=naming(2, "valid=…")):
        choose_rows(keys[:2], keys[:2], 5, labels=np.arange(2, dtype=np.int32))
