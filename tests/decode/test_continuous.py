"""Continuous batching: whoever stands beside a text, it becomes what it becomes alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import headway
from headway.decode.continuous import ContinuousBatch, RowCache
from headway.decode.output import Output
from headway.errors import UserError
from headway.models.decoder import Decoder
from headway.nn.cache import KEYS, VALUES, Cache
from headway.run import Run
from headway.tasks.causal_lm import context_of

PROMPTS = ["Once upon a time", "The dog", "Lily went to the park and saw a big", "", "Mom said"]
GREEDY: dict[str, Any] = {"beam": 1, "sample": False, "max_len": 12}
DRAWN: dict[str, Any] = {"sample": True, "temperature": 1.0, "top_p": 0.9, "max_len": 10}
SAYS: tuple[dict[str, Any], ...] = (
    GREEDY,
    {**GREEDY, "max_len": 1},
    {**GREEDY, "max_len": 30},
    {**GREEDY, "stop": ("there", ".")},
    {**GREEDY, "no_repeat_ngram": 2, "max_len": 20},
    {**GREEDY, "repetition_penalty": 1.3, "min_len": 6},
    DRAWN,
    {**DRAWN, "seed": 7},
    {**DRAWN, "n_best": 3},
    {**DRAWN, "top_k": 5, "top_p": 1.0},
)


@pytest.fixture(scope="module")
def run() -> Run:
    return headway.load("stories", device="cpu")


def together(run: Run, **more: Any) -> ContinuousBatch:
    opened = run.opened
    models = [model for model in opened.writers if isinstance(model, Decoder)]
    return ContinuousBatch(models, opened.vocab.target, context_of(run.settings), **more)


def ids(run: Run, prompt: str) -> list[int]:
    tokenizer = run.tokenizer
    return tokenizer.as_prompt(tokenizer.encode(prompt) if prompt else [])


def texts(outputs: list[Output] | None) -> list[str]:
    assert outputs is not None
    return [output.text for output in outputs]


@pytest.mark.parametrize("fixed", [False, True])
def test_an_answer_does_not_depend_on_its_neighbours(run: Run, fixed: bool) -> None:
    asked = [(PROMPTS[n % len(PROMPTS)], SAYS[n % len(SAYS)]) for n in range(25)]
    alone = {n: run(prompt, **result) for n, (prompt, result) in enumerate(asked)}
    chance, growing = random.Random(0), together(run, most_rows=9, fixed=fixed)
    waiting = list(alone)
    chance.shuffle(waiting)
    members, pieces, most = {}, {n: {} for n in alone}, 0
    while waiting or not growing.is_empty:
        for _ in range(min(len(waiting), chance.randint(0, 3))):
            n = waiting.pop()
            prompt, result = asked[n]
            heard: dict[int, str] = pieces[n]

            def hear(w: int, piece: str, heard: dict[int, str] = heard) -> None:
                heard[w] = heard.get(w, "") + piece

            decode = replace(run.settings.decode, **result)
            members[n] = growing.member(ids(run, prompt), decode, on_piece=hear)
            growing.join(members[n])
        growing.step()
        most = max(most, len(growing.rows))
    assert 5 < most <= 9
    for n, answer in alone.items():
        found = texts(members[n].outputs)
        assert found == [answer.text, *(other.text for other in answer.others)], asked[n]
        assert [pieces[n].get(w, "") for w in members[n].order] == found
    assert growing.caches[0].n_rows == 0
    assert any(growing.caches[0].stores) == fixed  # what is recorded must stay where it is


def test_a_cancelled_request_leaves_at_the_next_step_and_others_continue(run: Run) -> None:
    growing, decode = together(run), replace(run.settings.decode, **{**GREEDY, "max_len": 20})
    one, other, third = (growing.member(ids(run, prompt), decode) for prompt in PROMPTS[:3])
    growing.join(one)
    growing.join(other)
    growing.step()
    one.cancelled = True
    growing.join(third)
    third.cancelled = True
    assert set(growing.step()) == {one, third}
    assert [member for member, _ in growing.rows] == [other]
    while not growing.is_empty:
        growing.step()
    assert one.outputs is None
    assert texts(other.outputs) == [run(PROMPTS[1], **{**GREEDY, "max_len": 20}).text]


def test_the_likeliest_tokens_are_recorded_on_request(run: Run) -> None:
    growing = together(run)
    member = growing.member(ids(run, PROMPTS[0]), replace(run.settings.decode, **GREEDY), top=3)
    growing.join(member)
    while not member.done:
        growing.step()
    assert [len(step) for step in member.top_log_probs[0]] == [3] * len(member.tokens[0])
    for step, token, log_prob in zip(
        member.top_log_probs[0], member.tokens[0], member.log_probs[0], strict=True
    ):
        assert step[0] == (token, log_prob)
        assert step[0][1] >= step[1][1] >= step[2][1]


def test_an_ensemble_of_the_same_is_the_same(run: Run) -> None:
    one = together(run)
    two = ContinuousBatch([*one.models, *one.models], run.tokenizer, one.context)
    found = []
    for growing in (one, two):
        decode = replace(run.settings.decode, **GREEDY)
        member = growing.member(ids(run, PROMPTS[1]), decode)
        growing.join(member)
        while not member.done:
            growing.step()
        found.append(texts(member.outputs))
    assert found[0] == found[1]


def test_a_request_over_a_limit_is_rejected_before_it_joins(run: Run) -> None:
    growing = together(run)
    with pytest.raises(UserError, match=r"\b2,001\b.*\b512\b"):
        growing.member([5] * 2001, replace(run.settings.decode, **GREEDY))
    with pytest.raises(UserError, match=r"\b65\b.*\b64\b"):
        growing.member([5], replace(run.settings.decode, sample=True, n_best=65))
    assert growing.is_empty


def test_rows_come_and_go_without_moving_others() -> None:
    rows = RowCache(1)
    for start in (0, 10):
        other = Cache(1, 2, 3)
        other.lengths = (2, 3)
        grid = torch.arange(start, start + 6.0).view(2, 3, 1, 1)
        other.layers[0].cells = {KEYS: grid, VALUES: -grid}
        rows.admit(other)
    assert rows.lengths == (2, 3, 2, 3)
    rows.select([0, 3, 2])  # the last takes the place of the one that goes
    found = rows.layers[0].cells[KEYS]
    assert found is not None
    assert found[:, :3, 0, 0].tolist() == [[0, 1, 2], [13, 14, 15], [10, 11, 12]]
    assert found.data_ptr() == rows.stores[0][KEYS].grid_BS.data_ptr()
    rows.select([])
    assert rows.stores == [{}]


def test_models_are_used_without_dropout_and_not_looked_through_at_every_step(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing, calls, real = together(run), [], torch.nn.Module.train

    def train(self: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
        calls.append(mode)
        return real(self, mode)

    monkeypatch.setattr(torch.nn.Module, "train", train)
    member = growing.member(ids(run, "The dog"), replace(run.settings.decode, **GREEDY))
    growing.join(member)
    growing.step()
    assert calls == []
    growing.models[0].train()
    try:
        growing.step()
        assert growing.models[0].training  # as before
        assert False in calls
    finally:
        growing.models[0].eval()


def test_fixed_steps_are_few_and_are_rebuilt_when_the_cache_moves(run: Run) -> None:
    growing = together(run, most_rows=8, fixed=True)
    long = {**GREEDY, "max_len": 60, "min_len": 60}
    decode = replace(run.settings.decode, **long)
    members = [growing.member(ids(run, prompt), decode) for prompt in PROMPTS[:3]]
    for member in members:
        growing.join(member)
    shapes, [steps] = set(), growing.steps
    places = []
    while not growing.is_empty:
        growing.step()
        shapes |= set(steps.steps)
        places.append(steps.moves)
    assert shapes == {(4, 16), (4, 32), (4, 64), (4, 128)}
    assert len(set(places[1:])) == 2  # room for 64 tokens, then for 128
    assert set(steps.steps) == {(4, 128)}
    for prompt, member in zip(PROMPTS, members, strict=False):
        assert texts(member.outputs) == [run(prompt, **long).text]
    growing.clear()
    assert not growing.steps[0].steps


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("said", [GREEDY, {**DRAWN, "n_best": 3}], ids=["greedy", "drawn"])
def test_a_long_prompt_is_read_in_parts_while_others_grow(
    run: Run, fixed: bool, said: dict[str, Any]
) -> None:
    long = "Once upon a time there was a little dog. " * 6
    want = [run(PROMPTS[1], **GREEDY).text, run(long, **said).text, run(long[:150], **said).text]
    growing = together(run, fixed=fixed)
    growing.read_at_once = 10
    decode = replace(run.settings.decode, **said)
    short = growing.member(ids(run, PROMPTS[1]), replace(run.settings.decode, **GREEDY))
    growing.join(short)
    growing.step()
    members = [growing.member(ids(run, text), decode) for text in (long, long[:150])]
    assert len(members[0].prompt) > 4 * growing.read_at_once
    for member in members:
        growing.join(member)
    for n in range(2, 5):
        growing.step()
        assert len(short.tokens[0]) == n  # it grows by one in each step
        assert members[0].tokens == []  # which is not read yet
    for _ in range(60):
        growing.step()
    assert growing.is_empty
    assert [texts(one.outputs)[0] for one in (short, *members)] == want


def test_a_cancelled_long_prompt_is_not_read_further(run: Run) -> None:
    growing = together(run)
    growing.read_at_once = 10
    member = growing.member(ids(run, "The dog. " * 20), replace(run.settings.decode, **GREEDY))
    growing.join(member)
    growing.step()
    assert not growing.is_empty
    assert growing.members == [member]
    member.cancelled = True
    assert growing.step() == [member]
    assert growing.is_empty
