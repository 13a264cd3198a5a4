"""CTC beside a decoder, against every way to read the rows, one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from headway.decode.logits_processors import NO_CONSTRAINTS, SpecialTokens
from headway.decode.search.beam import beam_search
from headway.decode.search.greedy import generate_independently, most_likely
from headway.decode.search.job import Job
from headway.decode.speech.ctc import CtcSteps, JointSteps, best_path
from headway.nn.ctc import PrefixScorer
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings

EOS, A, B = 0, 1, 2
BLANK = 3
ROWS = 5


def rows(seed: int, n_rows: int = ROWS) -> Tensor:
    logits = torch.randn(n_rows, BLANK + 1, generator=torch.Generator().manual_seed(seed))
    logits[:, EOS] = -20.0  # as trained: no row says the end
    return (1.5 * logits).log_softmax(-1)


def spoken(logs_SV: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of every text: all paths summed."""
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(BLANK + 1), repeat=len(logs_SV)):
        text = tuple(token for token, _ in itertools.groupby(path) if token != BLANK)
        chance = math.exp(sum(float(logs_SV[s, token]) for s, token in enumerate(path)))
        found[text] = found.get(text, 0.0) + chance
    return found


def steps_of(logs: Sequence[Tensor], width: int = 1) -> CtcSteps:
    rows_of = Layout.of([len(logs_SV) for logs_SV in logs])
    return CtcSteps(PrefixScorer(torch.cat(list(logs)), rows_of, BLANK, EOS), len(logs), width)


class Table:
    """A decoder that says what a seeded table says for each text so far."""

    device = torch.device("cpu")
    attention_BWS = torch.empty(0)

    def __init__(self, seeds: Sequence[int], width: int) -> None:
        self.seeds = list(seeds)
        self.past: list[list[list[int]]] = [[[] for _ in range(width)] for _ in seeds]

    @staticmethod
    def scores(seed: int, text: Sequence[int]) -> Tensor:
        number = seed
        for token in text:
            number = number * 31 + token + 7
        draw = torch.Generator().manual_seed(number)
        return torch.randn(BLANK, generator=draw).log_softmax(-1)

    def step(self, tokens_BW: Tensor) -> Tensor:
        for of_source, tokens in zip(self.past, tokens_BW.tolist(), strict=True):
            for text, token in zip(of_source, tokens, strict=True):
                text.append(token)
        found = [
            self.scores(seed, text[1:])
            for seed, of in zip(self.seeds, self.past, strict=True)
            for text in of
        ]
        return torch.stack(found)

    def reorder(self, parents_BW: Tensor) -> None:
        self.past = [
            [list(of[parent]) for parent in parents]
            for of, parents in zip(self.past, parents_BW.tolist(), strict=True)
        ]

    def keep(self, sources: Sequence[int]) -> None:
        self.past = [self.past[i] for i in sources]
        self.seeds = [self.seeds[i] for i in sources]


def test_next_tokens_are_as_likely_as_all_paths_together_say() -> None:
    logs_SV = rows(1)
    truth = spoken(logs_SV)
    for text in [(), (A,), (B,), (A, B), (A, A), (A, B, A)]:
        steps = steps_of([logs_SV])
        for token in (99, *text):  # the first is where outputs begin
            found_V = steps.step(torch.tensor([[token]]))[0]
        begins = sum(p for found, p in truth.items() if found[: len(text)] == text)
        for token in (A, B):
            longer = (*text, token)
            goes_on = sum(p for found, p in truth.items() if found[: len(longer)] == longer)
            torch.testing.assert_close(
                float(found_V[token]), math.log(goes_on / begins), atol=1e-4, rtol=1e-4
            )
        ends = math.log(truth[text] / begins)
        torch.testing.assert_close(float(found_V[EOS]), ends, atol=1e-4, rtol=1e-4)


def test_a_recording_gives_the_same_output_in_a_batch_with_a_longer_one() -> None:
    short, long = rows(2), rows(3, 9)
    both, alone = steps_of([short, long], 2), steps_of([short], 2)
    for tokens in ([9, 9], [A, B], [A, A]):
        pair = both.step(torch.tensor([tokens, tokens]))
        torch.testing.assert_close(pair[:2], alone.step(torch.tensor([tokens])))


def test_beginnings_change_places_and_leave() -> None:
    logs = [rows(4), rows(5)]
    steps = steps_of(logs, 2)
    steps.step(torch.tensor([[9, 9], [9, 9]]))
    steps.step(torch.tensor([[A, B], [A, B]]))
    steps.reorder(torch.tensor([[1, 1], [1, 0]]))
    steps.keep([1])
    found = steps.step(torch.tensor([[A, B]]))
    again = steps_of(logs[1:], 2)
    for tokens in ([9, 9], [B, A], [A, B]):
        expected = again.step(torch.tensor([tokens]))
    torch.testing.assert_close(found, expected)


def _best(logs_SV: Tensor, seed: int, weight: float, longest: int) -> tuple[tuple[int, ...], float]:
    """Of all texts up to so many tokens the one with the best sum."""
    truth, found = spoken(logs_SV), {}
    for length in range(longest):
        for text in itertools.product((A, B), repeat=length):
            table = sum(
                float(Table.scores(seed, text[:at])[(*text, EOS)[at]]) for at in range(length + 1)
            )
            chance = truth.get(text, 0.0)
            if chance:
                found[text] = (1 - weight) * table + weight * math.log(chance)
    text = max(found, key=lambda text: found[text])
    return text, found[text]


def test_joint_search_finds_what_all_texts_one_by_one_give() -> None:
    """Also with CTC alone, and several recordings at a time."""
    settings = DecodeSettings(beam=24, length_penalty="none", n_best=1, unknown="keep")
    specials = SpecialTokens(bos=9, eos=EOS, unk=9)
    seeds = [1, 2, 3]
    logs = [rows(seed) for seed in seeds]
    for weight in (0.3, 1.0):
        limits = [ROWS + 1] * 3
        job = Job.of(settings, specials, [ROWS + 1 - 50] * 3, [NO_CONSTRAINTS] * 3, None)
        job = Job(settings, specials, limits, job.constraints, _no_rules, job.penalty)  # type: ignore[arg-type]
        steps = JointSteps(Table(seeds, 24), steps_of(logs, 24), weight)
        found = beam_search(steps, job)
        for seed, of_source in zip(seeds, found, strict=True):
            text, score = _best(rows(seed), seed, weight, ROWS + 1)
            assert tuple(of_source[0].tokens) == text
            torch.testing.assert_close(of_source[0].log_prob, score, atol=1e-3, rtol=1e-3)


def _no_rules(scores_RV: Tensor, tokens_RT: Tensor, sources: Sequence[int]) -> None:
    """`Rule`."""


def test_ctc_ignores_the_forced_beginning_of_outputs() -> None:
    logs = [rows(7)]
    plain = JointSteps(Table([5], 1), steps_of(logs), 1.0)
    begun = JointSteps(Table([5], 1), steps_of(logs), 1.0, skip=1)
    first = plain.step(torch.tensor([[9]]))
    begun.step(torch.tensor([[9]]))
    torch.testing.assert_close(begun.step(torch.tensor([[8]])), first)
    after = plain.step(torch.tensor([[A]]))
    torch.testing.assert_close(begun.step(torch.tensor([[A]])), after)


def test_ctc_alone_can_be_walked() -> None:
    settings = DecodeSettings(beam=1, length_penalty="none", unknown="keep")
    specials = SpecialTokens(bos=9, eos=EOS, unk=9)
    job = Job.of(settings, specials, [ROWS], [NO_CONSTRAINTS], None)
    job = Job(settings, specials, [ROWS + 1], job.constraints, _no_rules, job.penalty)  # type: ignore[arg-type]
    found = generate_independently(steps_of([rows(1)]), job, 1, most_likely)[0][0]
    assert found.finished
    truth = spoken(rows(1))
    torch.testing.assert_close(
        math.exp(found.log_prob), truth[tuple(found.tokens)], atol=1e-4, rtol=1e-3
    )


def test_the_best_path_takes_repetitions_together_and_blanks_out() -> None:
    blank = 3
    path = [0, 0, blank, 0, 1, 1, 1, blank, blank, 2]
    logs_SV = torch.nn.functional.one_hot(torch.tensor(path), blank + 1).float().log_softmax(-1)
    assert best_path(logs_SV).tokens == [0, 0, 1, 2]
