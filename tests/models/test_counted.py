"""N-grams as a language model: asked, searched and saved like any other, and no layer learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.decode.search.speculative import SpeculativeSearcher
from headway.decode.steps import DecoderSteps
from headway.errors import ConfigError, FolderError, UserError
from headway.inside.capture.anatomy import Anatomy
from headway.models.build import build_model
from headway.models.decoder import Decoder
from headway.models.folder import load_model, model_weights, save_model
from headway.models.parts.counted import NgramLMHead
from headway.nn.cache import Cache
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from headway.settings.load import model_settings
from headway.settings.model import DecoderSettings
from tests.decode.reference import BOS, EOS, UNK

from ..facts import missing

VOCAB = 12
SPECIALS = SpecialTokens(BOS, EOS, UNK)
PROMPTS = [[BOS, 3, 4], [BOS], [BOS, 9, 8, 7, 6, 5], [BOS, 4, 4]]


def settings(order: int = 4) -> DecoderSettings:
    return DecoderSettings(body="ngram", order=order, vocab_size=VOCAB, max_len=32)


def fitted(order: int = 4, seed: int = 0) -> Decoder:
    model = build_model(settings(order)).eval()
    assert isinstance(model, Decoder)
    draw = np.random.default_rng(seed)
    texts = [((3 + draw.integers(0, 3, 9).cumsum()) % 9 + 3).tolist() for _ in range(60)]
    read = [token for text in texts for token in [BOS, *text]]
    found = [token for text in texts for token in [*text, EOS]]
    table_of(model).fit(np.array(read), np.array(found), [len(text) + 1 for text in texts])
    return model


def table_of(model: Decoder) -> Any:
    assert isinstance(model.head, NgramLMHead)
    return model.head.table


@torch.no_grad()
def one_pass(model: Decoder, text: list[int]) -> torch.Tensor:
    return model.scores(model(torch.tensor(text), Layout.of([len(text)])))[-1]


@torch.no_grad()
def test_scores_are_logs_of_chances_and_the_loss_is_theirs() -> None:
    model = fitted()
    text = torch.tensor([BOS, 3, 4, 5, 11])
    x_NK = model(text[:-1], Layout.of([4]))
    logs_NV = model.scores(x_NK)
    torch.testing.assert_close(logs_NV.exp().sum(1), torch.ones(4))
    nll_N = torch.nn.functional.cross_entropy(logs_NV, text[1:], reduction="none")
    weights_N = torch.tensor([1.0, 0.0, 1.0, 0.5])
    loss = model.lm_head.loss(x_NK, text[1:], None, weights_N)
    torch.testing.assert_close(loss.nll, (nll_N * weights_N).sum())


@torch.no_grad()
def test_neighbours_in_a_batch_are_not_seen() -> None:
    model = fitted()
    texts = [[BOS, 3, 4], [4, 5], [BOS]]
    both = model(torch.tensor([token for text in texts for token in text]), Layout.of([3, 2, 1]))
    alone = [model(torch.tensor(text), Layout.of([len(text)])) for text in texts]
    assert torch.equal(both, torch.cat(alone))


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize(("width", "apart"), [(1, True), (3, True), (3, False)])
@torch.no_grad()
def test_cached_steps_are_one_pass(order: int, width: int, apart: bool) -> None:
    """Also when hypotheses change places, and when prompts leave."""
    model, draw = fitted(order), torch.Generator().manual_seed(1)
    steps = DecoderSteps(model, PROMPTS, width, 6, apart=apart)
    texts = [[list(prompt) for _ in range(width)] for prompt in PROMPTS]
    new_BW = torch.zeros(len(texts), width, dtype=torch.long)
    for at in range(6):
        scores_RV = steps.step(new_BW)
        for row, text in enumerate(text for of_prompt in texts for text in of_prompt):
            torch.testing.assert_close(scores_RV[row], one_pass(model, text), atol=1e-5, rtol=0)
        new_BW = torch.randint(3, VOCAB, (len(texts), width), generator=draw)
        if not apart and at:
            parents_BW = torch.randint(0, width, (len(texts), width), generator=draw)
            steps.reorder(parents_BW)
            order_BW = parents_BW.tolist()
            texts = [[of[p] for p in row] for of, row in zip(texts, order_BW, strict=True)]
        if at == 2:
            staying = [3, 0, 1]
            steps.keep(staying)
            texts, new_BW = [texts[i] for i in staying], new_BW[staying]
        texts = [
            [[*text, token] for text, token in zip(of, row, strict=True)]
            for of, row in zip(texts, new_BW.tolist(), strict=True)
        ]


def test_searches_find_what_is_likely() -> None:
    model = fitted()
    greedy, beam = (
        Searcher([model], DecodeSettings(beam=beam, max_len=8, length_penalty="none"), SPECIALS)
        for beam in (1, 6)
    )
    for prompt, [one], [best, *_] in zip(PROMPTS, greedy(PROMPTS), beam(PROMPTS), strict=True):
        text = list(prompt)
        for token in one.tokens:
            logs_V = one_pass(model, text)
            logs_V[[BOS, UNK]] = -torch.inf
            assert float(logs_V[token]) == pytest.approx(float(logs_V.max()))
            text.append(token)
        assert best.log_prob >= one.log_prob - 1e-5


def test_n_grams_can_draft_for_another_model() -> None:
    big = build_model(
        DecoderSettings(vocab_size=VOCAB, d_model=16, n_layers=1, n_heads=2, d_ff=16, max_len=32)
    ).eval()
    assert isinstance(big, Decoder)
    wanted = DecodeSettings(beam=1, max_len=8)
    expected = Searcher([big], wanted, SPECIALS)(PROMPTS[:1])
    found = SpeculativeSearcher(big, fitted(), wanted, SPECIALS, ahead=3)(PROMPTS[:1])
    assert [h.tokens for [h] in found] == [h.tokens for [h] in expected]


def test_a_folder_has_room_for_what_was_counted(tmp_path: Path) -> None:
    model = fitted()
    save_model(tmp_path, model, settings())
    again = load_model(tmp_path)
    ours, theirs = model_weights(model), model_weights(again)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not any(parameter.requires_grad for parameter in again.parameters())
    assert len(ours["head.table.keys_J"]) > 100


def test_a_table_of_another_model_does_not_fit(tmp_path: Path) -> None:
    save_model(tmp_path, fitted(), settings())
    with pytest.raises(FolderError, match="chance_V"):
        load_model(tmp_path, settings=DecoderSettings(body="ngram", vocab_size=13))


def test_an_ngram_model_has_no_hidden_states_to_inspect() -> None:
    with pytest.raises(UserError, match="n-gram"):
        Anatomy.of(fitted())


@torch.no_grad()
def test_what_is_kept_of_a_token_is_its_number() -> None:
    model, cache = fitted(), Cache(1, 1, 4)
    model(torch.tensor([BOS, 3, 4]), cache.layout([3]), cache)
    assert cache.layers[0].cells["tokens"][0, :4, 0].tolist() == [-1, BOS, 3, 4]
    assert model.stack.blocks[0].cache_sizes() == (1, 0)


@pytest.mark.parametrize(
    ("wrong", "facts"),
    [
        ({"order": 0}, ("order=0", "1")),
        ({"n_layers": 3}, ("n_layers", "body='ngram'")),
        ({"dropout": 0.3}, ("dropout", "body='ngram'")),
        ({"kernel": 5}, ("kernel", "body='ngram'", "convolution")),
        ({"heads": ["words", "classes"], "n_labels": 2}, ("n_labels", "body='ngram'")),
        ({"body": "transformer", "order": 3}, ("order", "body='transformer'", "ngram")),
        ({"body": "gru", "order": 3}, ("order", "body='gru'", "ngram")),
        ({"family": "encoder"}, ("body='ngram'", "decoder")),
        ({"family": "seq2seq"}, ("body='ngram'", "decoder")),
    ],
)
def test_settings_of_other_bodies_are_errors(wrong: dict[str, Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        model_settings({"family": "decoder", "body": "ngram", "vocab_size": 9, **wrong})
    assert not missing(caught.value, *facts)
