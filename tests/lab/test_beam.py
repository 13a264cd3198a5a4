"""E9 with a planted truth: numbers, and models of which the best output is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import Searcher
from headway.inside.capture.beam_tree import BeamTree, Node, StepCounts
from headway.lab.beam import (
    EXPERIMENT,
    ExactResult,
    Seq2Seq,
    count_pruned,
    exact_best,
    next_log_probs,
    pruned_at_threshold,
    sample_pairs,
)
from headway.models.build import build_model
from headway.settings.decode import DecodeSettings
from headway.settings.model import Seq2SeqSettings

EOS = 2


def seed(
    gain: float, hopeless: float = 0.95, jitter: float = 0.0, *, least: float = 0.0,
    wide: float = -2.0,
) -> dict[str, Any]:  # fmt: skip
    """What the exact search adds to the chrF of beam 4, and how much of what was cut was
    hopeless."""
    arms = {"1": -2.3, "4": -2.1, "16": wide, "exact": -2.0, "gnmt-0.6": -2.2, "gnmt-1": -2.2}
    quality = dict.fromkeys(arms, 70.0) | {"exact": 70.0 + gain + jitter}
    return {
        "better": 0.02, "worse": 0.02,
        "missed": {"1": 0.2, "4": 0.1, "16": 0.0}, "solved": 1.0, "empty": 0.0,
        "by_length": {"shorter": 0.1, "longer": 0.3}, "least_gain": least, "log_prob": arms,
        "quality": quality, "bleu": quality, "length": quality, "worst_rank": 1.5,
        "cut": {"kept": 0.5, "hopeless": hopeless, "fatal": 0.01}, "accounted": True,
        "threshold": {str(t): {"spared": 0.5, "lost": 0.0} for t in (1.0, 2.0, 4.0, 8.0)},
        "examples": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([seed(-0.3, jitter=0.01 * i) for i in range(3)], "supported"),
        ([seed(15.0, jitter=0.01 * i) for i in range(3)], "refuted"),
        ([seed(-0.3, 0.5, jitter=0.01 * i) for i in range(3)], "refuted"),
        ([seed(0.5, jitter=1.0 * i) for i in range(3)], "undecided"),
        ([seed(-0.3)], "undecided"),
        ([seed(-0.3, jitter=0.01 * i, least=-0.5) for i in range(3)], "undecided"),
        ([seed(-0.3, jitter=0.01 * i, wide=-2.2) for i in range(3)], "undecided"),
    ],
    ids=["nothing lost", "exact is better", "hopeful ones cut", "noisy", "one seed",
         "exact is worse", "wider finds less"],
)  # fmt: skip
def test_the_verdict_follows_the_planted_truth(given: list[dict[str, Any]], verdict: str) -> None:
    assert EXPERIMENT.judge(given).verdict == verdict
    assert EXPERIMENT.figures(given)[0].data()["bars"]


def garden_path(hypotheses: Sequence[Sequence[int]]) -> Tensor:
    """Token 3 looks best first and leads nowhere; token 4 is behind it and then sure of itself."""
    rows = {
        (): {3: 0.6, 4: 0.4},
        (3,): {3: 0.3, 4: 0.3, EOS: 0.4},
        (4,): {EOS: 0.9, 3: 0.1},
    }
    table = torch.full((len(hypotheses), 5), 1e-9)
    for row, tokens in zip(table, hypotheses, strict=True):
        for token, share in rows.get(tuple(tokens), {EOS: 0.5, 3: 0.5}).items():
            row[token] = share
    return table.log()


def test_the_exact_search_leaves_the_garden_path() -> None:
    greedy = Hypothesis([3], math.log(0.24), math.log(0.24), [], True)
    for first in (None, greedy):
        best = exact_best(garden_path, EOS, 6, first, most=1_000)
        assert (best.tokens, best.proved) == ([4], True)
        assert best.log_prob == pytest.approx(math.log(0.36), abs=1e-5)


def test_a_search_that_gave_up_proved_nothing() -> None:
    assert not exact_best(garden_path, EOS, 6, None, most=1).proved


def test_the_exact_search_is_brute_force() -> None:
    settings = Seq2SeqSettings(vocab_size=6, d_model=16, n_heads=2, d_ff=16, n_layers=1, tie="none")
    model: Any = build_model(settings, seed=5).eval()
    assert isinstance(model, Seq2Seq)
    decode = DecodeSettings(beam=2, length_penalty="none", max_len=4)
    source = [3, 4, 5, EOS]
    job = Searcher([model], decode, SpecialTokens(1, EOS, 0)).job([source])
    ask = next_log_probs(model, source, job)
    total: dict[tuple[int, ...], float] = {}
    for length in range(4):
        for tokens in product((3, 4, 5), repeat=length):
            steps = [ask([tokens[:i]])[0] for i in range(length + 1)]
            result = zip(steps, (*tokens, EOS), strict=True)
            total[tokens] = float(sum(step[token] for step, token in result))
    found = exact_best(ask, EOS, job.limits[0], None, most=10_000)
    assert total[tuple(found.tokens)] == pytest.approx(max(total.values()), abs=1e-5)
    assert found.log_prob == pytest.approx(max(total.values()), abs=1e-5)


def test_a_tree_is_judged_by_the_best_output() -> None:
    """Two tokens: 3 goes on and ends, 4 was the beginning of the best output and was cut, and 5
    was cut when it was worse already than that output."""

    def node(number: int, parent: int, tokens: tuple[int, ...], log_prob: float, fate: str) -> Node:
        rank = 1 if number in (1, 4) else number
        return Node(number, parent, tokens, "", 0.0, log_prob, 0.0, len(tokens), rank, 0, fate, "",
                    next=(object(),) if fate == "kept" else ())  # type: ignore[arg-type]  # fmt: skip

    nodes = (
        node(0, -1, (), 0.0, "kept"),
        node(1, 0, (3,), -0.5, "kept"),
        node(2, 0, (4,), -0.9, "cut"),
        node(3, 0, (5,), -3.0, "cut"),
        node(4, 1, (3, EOS), -1.4, "ended"),
    )
    count = StepCounts(1, 0, 1, 6, 1, 3, 2, None)
    tree = BeamTree(nodes, (count,), (4,), 1, 1, "none", 0.0, 9, "")
    found = count_pruned([tree], [ExactResult([4], -1.0, 5, True)])
    assert found["cut"] == {"kept": 0.5, "hopeless": 0.5, "fatal": 0.5}
    assert found["accounted"]
    assert found["worst_rank"] == 1
    assert pruned_at_threshold([tree], 1.0) == {"spared": 0.0, "lost": 0.0}


def test_every_seed_has_sentences_and_neighbours_share_none() -> None:
    pairs = [(str(n), "") for n in range(12)]
    seeds = [sample_pairs(pairs, 4, seed) for seed in range(9)]
    assert all(len(set(some)) == 4 for some in seeds)
    assert seeds[1] == pairs[4:8]
    for first in (0, 3, 6):
        assert sorted(pair for some in seeds[first : first + 3] for pair in some) == sorted(pairs)
    assert len({tuple(sorted(some)) for some in seeds}) == 9
    assert len(sample_pairs(pairs, 20, 0)) == 12
