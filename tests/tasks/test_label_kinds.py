"""What is answered: several labels, and numbers. Learned, said and scored without any front."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.data.store import Columns
from headway.data.token_store import TokenStore
from headway.errors import ConfigError
from headway.models.parts.output_heads import LabelHead, set_class_prior
from headway.nn.divergence import mean_square, sigmoid_divergence
from headway.nn.loss import LabelSmoothing
from headway.settings.run import RunSettings, load_run_settings
from headway.settings.task_rows import spec_of
from headway.tasks.format import PrintOptions
from headway.tasks.label_kinds import MultiLabel, Regression, SingleLabel
from headway.tasks.readout import Read

SEVERAL = MultiLabel(("art", "food", "sport"))
NUMBER = Regression(mean=10.0, std=4.0)


def several(*sets: list[int]) -> Columns:
    flat = np.array([label for one in sets for label in one], np.uint32)
    return Columns({"labels": TokenStore(flat, np.array([len(one) for one in sets], np.int64))})


def read_of(scores_RC: Tensor, apart: Any) -> Read:
    return Read(
        scores_RC, lambda x: x, apart, weights_R=torch.tensor([1.0, 0.0]), small_output=True
    )


def test_sets_become_ones_and_zeros() -> None:
    truth = SEVERAL.stored_targets(several([0, 2], [], [1]))
    assert truth[:].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert truth[np.array([2, 0])].tolist() == [[0, 1, 0], [1, 0, 1]]
    assert SEVERAL.title(truth[0]) == "art, sport"


def test_each_label_is_right_or_not_for_itself() -> None:
    scores_BC = torch.tensor([[2.0, -1.0, 0.5], [9.0, 9.0, 9.0]])
    aims_BC = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    found = replace(SEVERAL, smoothing=0.2).loss(read_of(scores_BC, sigmoid_divergence), aims_BC)
    p_C = scores_BC[0].sigmoid()
    nll = -(p_C[0].log() + (1 - p_C[1]).log() + p_C[2].log()) / 3
    torch.testing.assert_close(found.nll, nll)  # the second example has no weight
    soft_C = torch.tensor([0.9, 0.1, 0.9])
    soft = -(soft_C * p_C.log() + (1 - soft_C) * (1 - p_C).log()).mean()
    torch.testing.assert_close(found.sum, soft)


def test_numbers_are_learned_as_if_their_mean_were_zero() -> None:
    aims_B1 = NUMBER.targets(torch.tensor([14.0, 6.0]))
    assert aims_B1.tolist() == [[1.0], [-1.0]]
    read = read_of(torch.tensor([[0.5], [7.0]]), mean_square)
    assert NUMBER.loss(read, aims_B1).sum.item() == pytest.approx(0.25)
    assert NUMBER.predictions(torch.tensor([[0.5]])).tolist() == [[12.0]]


def test_answers_are_labels_from_one_half_on() -> None:
    answer = SEVERAL.answer(np.array([0.5, 0.2, 0.9]), "", None)
    assert answer.labels == ("sport", "art")
    assert answer.text == "sport, art"
    assert answer.probabilities["food"] == 0.2
    assert answer.lines() == "sport, art"
    assert answer.lines(PrintOptions(scores=True)) == "sport\t0.9000\tart\t0.5000"
    assert answer.to_dict() == {
        "labels": ["sport", "art"], "probabilities": {"art": 0.5, "food": 0.2, "sport": 0.9},
    }  # fmt: skip
    most = SEVERAL.answer(np.array([0.1, 0.2, 0.3]), "a.png", 2)
    assert most.labels == ()
    assert most.lines(PrintOptions(top=2)) == "sport\t0.3000\tfood\t0.2000"
    assert most.to_dict()["file"] == "a.png"
    number = NUMBER.answer(np.array([12.25]), "", None)
    assert (number.value, float(number), number.text) == (12.25, 12.25, "12.25")
    assert number.to_dict() == {"value": 12.25}


def test_baselines_are_the_usual_set_and_the_mean() -> None:
    train, valid = several([0], [0], [0, 1], []), several([0], [1])
    truth = SEVERAL.stored_targets(valid)[:]
    [(name, shares_NC)] = SEVERAL.baseline_predictions(SEVERAL.stored_targets(train), 2).items()
    assert name == "most frequent set"
    values = SEVERAL.values(shares_NC, truth)
    assert values["exact_match"] == 50.0
    assert np.isfinite(values["loss"])
    assert "'art'" in SEVERAL.remark(SEVERAL.stored_targets(train))
    numbers_N = np.array([1.0, 3.0], np.float32)
    [(name, shares_NC)] = NUMBER.baseline_predictions(numbers_N, 2).items()
    assert (name, shares_NC.tolist()) == ("mean", [[2.0], [2.0]])
    assert NUMBER.values(shares_NC, numbers_N)["r2"] == 0.0


def test_how_far_sets_are_apart_is_zero_for_the_same() -> None:
    one, two = torch.randn(2, 3), torch.randn(2, 3)
    assert sigmoid_divergence(one, one, 2.0).abs().max() < 1e-6
    p, q = two.sigmoid(), one.sigmoid()
    expected = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean(-1)
    torch.testing.assert_close(sigmoid_divergence(one, two, 1.0), expected)
    assert F.relu(-sigmoid_divergence(one, two, 3.0)).sum() == 0


def settings(*words: str) -> RunSettings:
    return load_run_settings(None, list(words), {"task": "classify", "data.text": ["a.tsv"]})


def test_the_answer_selects_the_row() -> None:
    assert spec_of(settings()).answers == "label"
    labels, number = (spec_of(settings(f"classify.answer={one}")) for one in ("labels", "number"))
    assert (labels.answers, labels.scores[0], labels.labelled) == ("labels", "micro_f1", True)
    assert (number.answers, number.scores[0], number.labelled) == ("number", "mae", False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["classify.answer=labels", "classify.balance=true"], r"\.balance.*\.answer=labels"),
        (["classify.answer=number", "classify.balance=true"], r"\.balance.*\.answer=number"),
        (["classify.answer=number", "train.label_smoothing=0.1"], r"train\.label_smoothing"),
        (["classify.answer=label", "classify.std=2.0"], r"classify\.std.*classify\.answer=number"),
        (["classify.answer=number", "classify.std=0.0"], "std=0"),
    ],
)
def test_settings_without_effect_on_an_answer_are_an_error(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings(*words)


def test_a_scale_has_no_effect_without_a_margin() -> None:
    given = {"task": "identify", "data.media": ["a"]}
    with pytest.raises(ConfigError, match=r"identify\.scale.*identify\.margin"):
        load_run_settings(None, ["identify.scale=20.0"], given)
    assert load_run_settings(None, ["identify.scale=20.0", "identify.margin=0.2"], given)


def test_priors_are_the_scores_of_frequencies_alone() -> None:
    truth = SEVERAL.stored_targets(several([0], [0], [0, 1], []))
    shares_C = SEVERAL.predictions(torch.tensor(SEVERAL.prior(truth, None))).tolist()
    assert shares_C == pytest.approx([4 / 6, 2 / 6, 1 / 6])
    one = SingleLabel(("a", "b"), LabelSmoothing(1.0, 0.0))
    labels_N = np.array([0] * 8 + [1] * 2)
    shares_C = one.predictions(torch.tensor(one.prior(labels_N, None))).tolist()
    assert shares_C == pytest.approx([9 / 12, 3 / 12])
    assert one.prior(labels_N, one.weights(labels_N)) == pytest.approx([0.0, 0.0], abs=1e-6)
    assert NUMBER.prior(np.array([16.0, 20.0], np.float32), None).tolist() == [2.0]


def test_fresh_heads_start_at_the_priors_and_others_keep_their_biases() -> None:
    heads = nn.ModuleDict({"classes": LabelHead(4, 3, 0.0), "tags": LabelHead(4, 3, 0.0, True)})
    for head in heads.values():
        nn.init.zeros_(head.linear.bias)
    set_class_prior(heads, np.array([1.0, 2.0, 3.0]))
    assert heads["classes"].linear.bias.tolist() == [1.0, 2.0, 3.0]
    assert heads["tags"].linear.bias.tolist() == [0.0, 0.0, 0.0]
    set_class_prior(heads, np.array([7.0, 7.0, 7.0]))
    assert heads["classes"].linear.bias.tolist() == [1.0, 2.0, 3.0]


def test_the_most_frequent_set_is_answered_at_every_threshold() -> None:
    truth = SEVERAL.stored_targets(several([0], [0], [1], [1, 0]))
    for threshold in (0.2, 0.5, 0.9):
        target = replace(SEVERAL, threshold=threshold)
        [shares_NC] = target.baseline_predictions(truth, 2).values()
        assert target.predicted(shares_NC).tolist() == [[True, False, False]] * 2
