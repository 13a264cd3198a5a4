"""Searches beyond greedy and beam with other bodies: what is drawn, required, forced or told in
groups has the log-probabilities that the model itself gives, whatever its state is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import headway
from headway.decode.completer import Completer
from headway.decode.continuous import ContinuousBatch
from headway.decode.logits_processors import SpecialTokens, TokenConstraints
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import Searcher
from headway.models.decoder import Decoder
from headway.nn.layout import Layout
from headway.run import Run
from headway.settings.decode import DecodeSettings
from tests.models.variants import BODIES, tiny

from .reference import BOS, EOS, UNK, next_given, small_model
from .test_logits_processors import contains

SPECIALS = SpecialTokens(BOS, EOS, UNK)
SOURCES = [[3, 4, 5, 6], [7, 8], [9, 3, 9, 3, 10]]
PROMPTS = [[BOS, 5, 6, 7], [BOS], [BOS, 9]]
WAYS: dict[str, tuple[DecodeSettings, TokenConstraints]] = {
    "greedy": (DecodeSettings(beam=1, max_len=8), TokenConstraints()),
    "draws": (
        DecodeSettings(sample=True, n_best=3, max_len=8, temperature=1.5),
        TokenConstraints(),
    ),
    "groups": (DecodeSettings(beam=4, groups=2, n_best=4, max_len=8), TokenConstraints()),
    "required": (
        DecodeSettings(beam=4, n_best=2, max_len=8),
        TokenConstraints(required=((5, 6), (4,))),
    ),
    "banned": (
        DecodeSettings(beam=4, n_best=2, max_len=8),
        TokenConstraints(banned=((3,), (5, 5))),
    ),
    "prefix": (DecodeSettings(beam=3, max_len=8), TokenConstraints(prefix=(8, 4))),
}
bodies = pytest.mark.parametrize("variant", BODIES)


def held(found: list[list[Hypothesis]], wish: TokenConstraints) -> None:
    """To what was asked for."""
    for one in (h for of_source in found for h in of_source):
        assert all(contains(one.tokens, phrase) for phrase in wish.required)
        assert not any(contains(one.tokens, phrase) for phrase in wish.banned)
        assert tuple(one.tokens[: len(wish.prefix)]) == wish.prefix


@bodies
@pytest.mark.parametrize("way", WAYS)
def test_translators_say_what_their_models_give(variant: str, way: str) -> None:
    model, (settings, wish) = small_model(13, variant).eval(), WAYS[way]
    found = Searcher([model], settings, SPECIALS)(SOURCES, [wish] * len(SOURCES))
    held(found, wish)
    for source, of_source in zip(SOURCES, found, strict=True):
        likely = next_given([model], source, banned=())
        for one in of_source:
            result = [*one.tokens, EOS] if one.finished else one.tokens
            own = [float(likely(tuple(result[:n]))[token]) for n, token in enumerate(result)]
            assert one.token_log_probs == pytest.approx(own, abs=1e-4)


@bodies
@pytest.mark.parametrize("way", ["greedy", "draws", "groups"])
@torch.no_grad()
def test_generated_log_probabilities_equal_those_of_one_pass(variant: str, way: str) -> None:
    model = tiny("decoder", variant).eval()
    assert isinstance(model, Decoder)
    found = Searcher([model], WAYS[way][0], SPECIALS)(PROMPTS)
    for prompt, of_source in zip(PROMPTS, found, strict=True):
        for one in of_source:
            result = [*one.tokens, EOS] if one.finished else one.tokens
            whole = [*prompt, *result]
            scores_NV = model.scores(model(torch.tensor(whole), Layout.of([len(whole)])))
            logs_NV = scores_NV.double().log_softmax(-1)
            own = [float(logs_NV[len(prompt) - 1 + n, token]) for n, token in enumerate(result)]
            assert one.token_log_probs == pytest.approx(own, abs=1e-4)


@pytest.fixture(scope="module")
def stories() -> Run:
    return headway.load("stories", device="cpu")


@bodies
@pytest.mark.parametrize("fixed", [False, True])
def test_a_request_in_a_batch_gets_the_same_answer_as_alone(
    stories: Run, variant: str, fixed: bool, device: str
) -> None:
    words: Any = stories.opened.vocab.target
    model = tiny("decoder", variant, vocab_size=words.vocab_size, max_len=48).eval().to(device)
    assert isinstance(model, Decoder)
    says = [{"sample": False, "beam": 1, "max_len": n} for n in (12, 3, 7)]
    says += [{"sample": True, "max_len": 9, "seed": 3, "n_best": 2}]
    asked = [words.as_prompt(words.encode(text)) for text in ("The dog", "A", "Once upon a time")]
    asked.append(asked[0])
    growing, members = ContinuousBatch([model], words, 48, fixed=fixed), []
    assert growing.fixed == fixed
    decodes = [replace(stories.settings.decode, **found) for found in says]
    for prompt, decode in zip(asked, decodes, strict=True):
        members.append(growing.member(prompt, decode))
        growing.join(members[-1])
        growing.step()  # the next one comes when this one has begun
    while not growing.is_empty:
        growing.step()
    for prompt, decode, member in zip(asked, decodes, members, strict=True):
        [alone] = Completer([model], words, decode, context=48).complete([prompt])
        assert member.outputs is not None
        assert member.outputs[0].text == alone.text
