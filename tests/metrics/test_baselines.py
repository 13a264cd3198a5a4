"""Baselines on cases whose best answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.metrics.baselines import BagOfWords, FrequentTags, features, majority


def test_the_majority() -> None:
    assert majority(np.array([2, 1, 2, 0]), 3) == 2
    assert majority(np.array([1, 0]), 3) == 0


def test_words_and_pairs_of_words_of_both_texts() -> None:
    assert features("Not good.") == ["not", "good", ".", "not good", "good ."]
    assert features("a", "A a") == ["a", "\ta", "\ta a"]


TEXTS = [("good fun", ""), ("very good", ""), ("bad", ""), ("not good", ""), ("so bad", "")] * 3
LABELS = [1, 1, 0, 0, 0] * 3


def test_a_bag_of_words_learns_the_labels_of_words() -> None:
    bag = BagOfWords.fit(TEXTS, LABELS, 2)
    assert bag.predict(TEXTS).tolist() == LABELS
    assert bag.predict([("very good fun", ""), ("bad bad", "")]).tolist() == [1, 0]
    assert np.exp(bag.log_probs(TEXTS)).sum(1) == pytest.approx(np.ones(15))


def test_it_is_at_the_minimum_of_the_penalised_loss() -> None:
    """There the gradient of the likelihood is minus the penalty's."""
    bag = BagOfWords.fit(TEXTS, LABELS, 2, l2=0.5)
    p_NC = np.exp(bag.log_probs(TEXTS))
    wrong_NC = p_NC - np.eye(2)[LABELS]
    for name, number in bag.numbers.items():
        has_N = np.array([name in features(*text) for text in TEXTS])
        assert has_N @ wrong_NC == pytest.approx(-0.5 * bag.weight_FC[number].numpy(), abs=2e-3)


def test_it_takes_texts_without_a_known_word_or_without_any() -> None:
    bag = BagOfWords.fit(TEXTS, LABELS, 2)
    assert bag.predict([("", ""), ("xyzzy", "")]).tolist() == [0, 0]
    assert BagOfWords.fit([("", ""), ("", "")], [0, 1], 2).predict([("", "")]).shape == (1,)


def test_a_large_corpus_is_thinned() -> None:
    bag = BagOfWords.fit(TEXTS * 10, LABELS * 10, 2, most_characters=100)
    assert bag.predict(TEXTS).tolist() == LABELS


def test_of_too_many_features_the_most_frequent_are_kept() -> None:
    assert list(BagOfWords.fit(TEXTS, LABELS, 2, most_weights=4).numbers) == ["good", "bad"]


def test_it_may_be_fitted_where_no_gradients_are_kept() -> None:
    with torch.no_grad():
        assert BagOfWords.fit(TEXTS, LABELS, 2).predict(TEXTS).tolist() == LABELS


def test_the_most_frequent_tag_of_each_word() -> None:
    train = [(["a", "b", "a"], [1, 2, 1]), (["a", "c", "c"], [0, 0, 2])]
    tags = FrequentTags.fit(train)
    assert tags.predict(["a", "b", "c", "new"]) == [1, 2, 0, 0]


def test_a_bag_of_words_of_several_labels_and_of_numbers() -> None:
    texts = [("red cat", ""), ("cat", ""), ("red", ""), ("dog", "")] * 20
    right_NC = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]] * 20)
    bag = BagOfWords.fit_to(texts, right_NC, "several")
    assert (bag.scores(texts) > 0).float().equal(right_NC)
    numbers_N1 = (right_NC @ torch.tensor([[2.0], [1.0]])) - 1.5
    bag = BagOfWords.fit_to(texts, numbers_N1, "number", l2=0.01)
    torch.testing.assert_close(bag.scores(texts), numbers_N1, atol=0.02, rtol=0)


def test_ridge_regression_is_at_the_minimum() -> None:
    """There its weights are what the normal equations give."""
    random = np.random.default_rng(0)
    numbers_N = random.standard_normal(len(TEXTS)).astype(np.float32)
    bag = BagOfWords.fit_to(TEXTS, torch.from_numpy(numbers_N)[:, None], "number", l2=2.0)
    x_NF = np.array([[name in features(*text) for name in bag.numbers] for text in TEXTS], float)
    x_NF -= x_NF.mean(0)
    weight_F = np.linalg.solve(x_NF.T @ x_NF + 2.0 * np.eye(x_NF.shape[1]), x_NF.T @ numbers_N)
    assert bag.weight_FC[:, 0].numpy() == pytest.approx(weight_F, abs=1e-3)
