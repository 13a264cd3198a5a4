"""Scores against sacreBLEU's own, and the bootstrap against its significance tests."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from headway.errors import UserError
from headway.metrics.translation import (
    bleu,
    bleu_interval,
    chrf,
    compare_bleu,
    exact_match,
    tokenised_bleu,
)

TEXT = "Der Hund, läuft. über die Straße und (eine) Katze! schläft heute nicht mehr"
WORDS = TEXT.split()


def corpus(noise: float, seed: int, n: int = 120) -> tuple[list[str], list[str]]:
    """References (the same for every seed), and outputs in which some words are others."""
    random = np.random.default_rng(0)
    references = [list(random.choice(WORDS, size=random.integers(5, 15))) for _ in range(n)]
    random = np.random.default_rng(seed)
    outputs = [
        [str(random.choice(WORDS)) if random.random() < noise else word for word in words]
        for words in references
    ]
    return [" ".join(words) for words in outputs], [" ".join(words) for words in references]


def test_bleu_and_chrf_are_sacrebleus() -> None:
    outputs, references = corpus(0.2, 0)
    for lowercase in (False, True):
        metric = BLEU(lowercase=lowercase)
        score = bleu(outputs, references, lowercase=lowercase)
        assert score.value == metric.corpus_score(outputs, [references]).score
        assert score.signature == str(metric.get_signature())
        assert f"case:{'lc' if lowercase else 'mixed'}|eff:no|tok:13a" in score.signature
    for order, name in ((0, "chrF"), (2, "chrF++")):
        found = chrf(outputs, references, word_order=order)
        assert found.name == name
        assert found.value == CHRF(word_order=order).corpus_score(outputs, [references]).score
        assert f"nw:{order}" in found.signature
    assert 20 < bleu(outputs, references).value < 90


def test_case_counts_by_default() -> None:
    outputs, references = ["ein kleiner Hund läuft heute"], ["Ein kleiner Hund läuft heute"]
    assert bleu(outputs, references).value < 100
    assert bleu(outputs, references, lowercase=True).value == pytest.approx(100)


def test_tokenised_bleu_compares_moses_tokens_in_lower_case() -> None:
    outputs = ["L'homme qui marche, seul.", "un chien court vite"]
    references = ["l’homme qui marche , seul .", "Un chien court vite"]
    score = tokenised_bleu(outputs, references, "fr")
    assert score.value == pytest.approx(100)
    assert "BLEU" in score.name
    assert score.name != bleu(outputs, references).name
    assert "case:lc" in score.signature
    assert "tok:moses-fr" in score.signature
    cased = tokenised_bleu(outputs, references, "fr", lowercase=False)
    assert cased.value < 100
    assert "case:mixed" in cased.signature


def test_exact_match_is_a_percentage() -> None:
    assert exact_match(["a", "b", "c", "d"], ["a", "x", "c", "d "]).value == 50
    assert exact_match(["a", "b"], ["A", "b"]).value == 50
    assert exact_match(["a", "b"], ["A", "b"], lowercase=True).value == 100


def test_resampled_sums_give_sacrebleus_bleu() -> None:
    """The value itself is computed from the same counts as the samples."""
    cases = [corpus(0.2, 0), corpus(0.9, 1, n=4), (["a b"], ["a b c d e"]), (["x"], ["y z"])]
    cases += [(["", "a b c d e"], ["a", "a b c d"]), (["a b c d e"], ["v w x y z"])]
    for outputs, references in cases:
        for tokenize in ("13a", "char"):
            wanted = bleu(outputs, references, tokenize=tokenize).value
            found = bleu_interval(outputs, references, tokenize=tokenize)
            assert found.value == pytest.approx(wanted, abs=1e-9)
            assert found.low <= found.high


def test_the_interval_is_about_sacrebleus() -> None:
    outputs, references = corpus(0.2, 0)
    theirs = BLEU().corpus_score(outputs, [references], n_bootstrap=1000)
    ours = bleu_interval(outputs, references)
    assert ours.low < ours.value < ours.high
    assert (ours.high - ours.low) / 2 == pytest.approx(theirs._ci, rel=0.2)
    assert bleu_interval(outputs, references) == ours  # and it is always the same


def test_the_comparison_is_about_sacrebleus() -> None:
    worse, references = corpus(0.30, 0)
    better, _ = corpus(0.26, 1)
    systems = [("b", worse), ("a", better)]
    test = PairedTest(systems, {"BLEU": BLEU(references=[references])}, None, "bs", 1000)
    _, scores = test()
    ours = compare_bleu(better, worse, references)
    assert ours.p_value == pytest.approx(scores["BLEU"][1].p_value, abs=0.05)
    assert ours.difference.low <= ours.difference.value <= ours.difference.high


def test_a_clear_difference_is_significant_and_none_is_not() -> None:
    good, references = corpus(0.1, 0)
    bad, _ = corpus(0.5, 1)
    clear = compare_bleu(good, bad, references)
    assert clear.p_value < 0.01
    assert clear.difference.low > 0
    assert clear.difference.value == pytest.approx(
        bleu(good, references).value - bleu(bad, references).value
    )
    equal = compare_bleu(good, good, references)
    assert (equal.p_value, equal.difference.value) == (1.0, 0.0)


def test_unscorable_outputs_are_an_error() -> None:
    for function in (bleu, chrf, exact_match, bleu_interval):
        with pytest.raises(UserError, match=r"\b2\b.*\b1\b"):
            function(["a", "b"], ["a"])
        with pytest.raises(UserError, match=r"^\D*\boutputs\b\D*$"):
            function([], [])
    with pytest.raises(UserError, match=r"'13b'.*'13a'"):
        bleu(["a"], ["a"], tokenize="13b")


def test_importing_the_scores_loads_no_sacrebleu() -> None:
    code = "import sys, headway.metrics.translation; print('sacrebleu' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "False\n", done.stderr
