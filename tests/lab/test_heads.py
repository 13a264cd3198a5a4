"""E10 with a planted truth: numbers, and a model of which it is known what each head does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headway.inside import GenerationOptions, read
from headway.inside.capture.forward import ReadingBatch
from headway.lab import heads as lab_heads
from headway.lab.heads import EXPERIMENT, KINDS, _gates, at_quarter, loss, pruned, removable_share
from tests.inside.copier import WORDS, copier


def study(
    share: float, n: int = 24, *, most: float = 3.0, sliced: float = 0.0, cross: float = 4.0
) -> dict[str, Any]:
    """Losses of a model whose least important heads are free, up to this share of all."""
    least = [0.1 if i <= round(share * n) else 2.0 for i in range(n + 1)]
    worst = [0.1, *([0.1 + most] * n)]
    kinds = {"encoder": [0.1, 0.2], "decoder": [0.1, 0.3], "cross": [0.1, cross]}
    return {
        "loss": 0.1, "free": removable_share(least), "kinds": kinds, "speed": 1.1,
        "sliced_apart": sliced,
        "orders": {"least": least, "chance": worst, "most": worst},
        "gates": {"0.01": {"open": 8.0, "loss": 0.2}}, "roles": [["a head", 1.0, "previous", 0.5]],
    }  # fmt: skip


def seed(share: float, **more: Any) -> dict[str, Any]:
    losses = {"1": 0.12, "4": 0.1, "8": 0.1, "deep": 0.11}
    return {
        "loss": losses, "parameters": dict.fromkeys(losses, 1000),
        "own": study(share, **more), "comes_along": study(0.3),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(share) for share in (0.4, 0.45, 0.5)], "supported"),
        ([seed(share) for share in (0.0, 0.05, 0.1)], "refuted"),
        ([seed(share) for share in (0.1, 0.3, 0.7)], "undecided"),
        ([seed(0.5)], "undecided"),
        ([seed(share, most=-0.05) for share in (0.4, 0.45, 0.5)], "undecided"),
        ([seed(share, sliced=0.1) for share in (0.4, 0.45, 0.5)], "undecided"),
        ([seed(share, cross=0.2) for share in (0.4, 0.45, 0.5)], "refuted"),
    ],
    ids=["many free", "none free", "seeds differ", "one seed", "importance is luck", "cut wrongly",
         "the source can be done without"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    found = EXPERIMENT.judge(given)
    assert found.verdict == verdict
    needed = KINDS["decoder" if given[0]["own"]["kinds"]["cross"][-1] < 0.3 else "cross"]
    assert verdict == "undecided" or needed in found.measured
    assert all(figure.data() for figure in EXPERIMENT.figures(given))


def test_free_heads_are_those_before_the_first_that_is_needed() -> None:
    assert removable_share([1.0, 1.01, 1.02, 2.0, 1.0]) == pytest.approx(0.5, abs=0.01)
    assert removable_share([1.0, 1.025, 1.075]) == pytest.approx(0.75)
    assert removable_share([1.0, 51.0, 1.0]) == pytest.approx(0.0, abs=0.01)
    assert removable_share([1.0, 1.0, 0.9]) == 1.0
    assert at_quarter(study(0.5), "least") == 0
    assert at_quarter(study(0.5), "most") == pytest.approx(3.0)


def test_of_a_copier_one_head_of_six_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first cross head copies; the other five do nothing."""
    run = copier(tmp_path)
    texts = [" ".join(WORDS[i : i + 5]) for i in range(4)]
    pairs = [(text, text) for text in texts]
    found = pruned(run, pairs, pairs, 0, gates=False)
    assert found["free"] == pytest.approx(5 / 6, abs=0.02)
    assert found["sliced_apart"] < 1e-5
    assert found["kinds"]["cross"][-1] > found["loss"] + 0.5
    assert found["kinds"]["encoder"][-1] == pytest.approx(found["loss"])
    name = found["roles"][0][0]
    assert name.startswith(KINDS["cross"])
    assert re.findall(r"\d+", name) == ["1", "1"]
    assert found["roles"][0][3] > 0.5
    batch = ReadingBatch.of(
        run, [read(run, text, GenerationOptions(output=text)) for text in texts]
    )
    monkeypatch.setattr(lab_heads, "STEPS", 40)
    gates = _gates(run, batch, batch, price=0.05, seed=0)
    assert gates["open"] == 1
    assert gates["loss"] == pytest.approx(loss(run, batch), abs=0.05)
