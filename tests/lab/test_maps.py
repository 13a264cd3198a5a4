"""E12 with a planted truth: numbers, and a model of which it is known where it looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.inside.measure.truth import AlignedPair, alignment_cases
from headway.lab.maps import BETTER, EXPERIMENT, NAMED, measure_run, other_models
from tests.inside.copier import WORDS, copier


def seed(
    gain: float | tuple[float, float, float], jitter: float = 0.0, *, last: float = 0.5,
    picked: float = 0.9, random: float = 0.2, shuffled: float = 0.2, fresh: float = 0.25,
    ablated: float = 0.1,
) -> dict[str, Any]:  # fmt: skip
    """What rollout, norms and gradients have over the attention of the last layer."""
    gains = gain if isinstance(gain, tuple) else (gain, gain, gain)
    p1 = dict.fromkeys(NAMED, last)
    p1 |= {name: last + one + jitter for name, one in zip(BETTER, gains, strict=True)}
    return {
        "p1": p1 | {"picked": picked, "random": random}, "chance": 0.2, "sigma": 0.02,
        "shuffled": shuffled, "fresh": fresh, "heads": [[0.1, 0.9], [0.3, 0.4]],
        "agreement": {"last": 0.3, "norm": 0.5, "rollout": 0.3 + ablated + jitter},
        "others": [["a", "b", 1, 1, 1, 1, 0.1]],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(0.2, 0.01 * i) for i in range(3)], "supported"),
        ([seed(-0.2, 0.01 * i) for i in range(3)], "refuted"),
        ([seed(0.0, 0.2 * (i - 1)) for i in range(3)], "undecided"),
        ([seed(0.2)], "undecided"),
        ([seed(0.2, 0.01 * i, random=0.5) for i in range(3)], "undecided"),
        ([seed(0.2, 0.01 * i, random=0.264) for i in range(3)], "undecided"),
        ([seed(0.2, 0.01 * i, shuffled=0.6) for i in range(3)], "undecided"),
        ([seed(0.2, 0.01 * i, fresh=0.8) for i in range(3)], "undecided"),
        ([seed(0.2, 0.01 * i, picked=0.3) for i in range(3)], "undecided"),
    ],
    ids=["there", "opposite", "noisy", "one seed", "chance is none", "hardly chance",
         "shuffled is right", "fresh is right", "nothing to find"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert all(figure.data() for figure in EXPERIMENT.figures(given))


def test_each_map_is_judged_by_itself() -> None:
    """Their mean was judged: one map that fails made two papers about others `disagree`."""
    verdict = EXPERIMENT.judge([seed((-0.3, 0.1, 0.1), 0.01 * i, ablated=0.2) for i in range(5)])
    assert verdict.verdict == "refuted"
    assert verdict.parts == {"rollout": "refuted", "norm": "supported", "gradxinput": "supported",
                             "agreement": "supported"}  # fmt: skip
    stances = {
        one.who: one.stance_on_finding(verdict.verdict, verdict.parts)
        for one in EXPERIMENT.literature
    }
    assert stances["Kobayashi et al. 2020"] == "agrees"
    assert stances["Abnar, Zuidema 2020"] == "agrees"
    other = EXPERIMENT.judge([seed((0.2, -0.2, 0.2), 0.01 * i, ablated=-0.2) for i in range(5)])
    stances = {
        one.who: one.stance_on_finding(other.verdict, other.parts) for one in EXPERIMENT.literature
    }
    assert stances["Kobayashi et al. 2020"] == "disagrees"
    assert stances["Abnar, Zuidema 2020"] == "disagrees"


def test_where_attention_is_perfect_no_map_can_be_better() -> None:
    found = [seed((-0.4, -0.001, -0.1), 1e-4 * i, last=0.999, picked=0.999) for i in range(5)]
    verdict = EXPERIMENT.judge(found)
    assert verdict.parts["norm"] == "cannot tell"
    assert verdict.parts["rollout"] == "refuted"
    stances = {
        one.who: one.stance_on_finding(verdict.verdict, verdict.parts)
        for one in EXPERIMENT.literature
    }
    assert stances["Kobayashi et al. 2020"] == "open"
    all_perfect = [seed(-0.001, 1e-4 * i, last=0.999, picked=0.999) for i in range(5)]
    assert EXPERIMENT.judge(all_perfect).verdict == "cannot tell"


def test_of_a_copier_it_is_found_which_head_points_right(tmp_path: Path) -> None:
    """Its first head looks at the word that it copies; its second, more firmly, at the one behind
    it, and does nothing with it: attention misleads, and norms and gradients do not."""
    run = copier(tmp_path)
    texts = [" ".join(WORDS[i : i + 6]) for i in range(10)]
    known = [AlignedPair(text, text, tuple((i, i) for i in range(6))) for text in texts]
    assert len(alignment_cases(run, known)) == 10
    found = measure_run(run, known, few=2, seed=0)
    assert found["picked"] == "cross.0.0"
    assert found["p1"]["picked"] == 1
    assert found["p1"]["last"] < 0.5
    assert found["p1"]["norm"] == 1
    assert found["p1"]["gradxinput"] == 1
    assert found["shuffled"] < 0.6
    assert found["heads"][0][0] == 1
    assert found["heads"][0][1] < 0.2


def test_models_that_come_along_were_measured() -> None:
    assert {row[0] for row in other_models()} == {"tatoeba-de-en", "shapes", "digits"}
    assert all(0 <= value <= 1 for row in other_models() for value in row[2:])
