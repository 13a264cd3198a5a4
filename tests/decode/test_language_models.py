"""Going on with prompts: the tokens of Hugging Face, cached steps, contexts, prefixes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher, SharedPrefix
from headway.decode.steps import DecoderSteps
from headway.errors import ConfigError, UserError
from headway.models.decoder import Decoder
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from tests.models.variants import EVERY, tiny
from tests.references.convert import converted

BOS, EOS, UNK, VOCAB = 1, 2, 0, 53
PROMPTS = [[5, 9, 17, 33, 8, 21], [40], [8, 8, 3], [12, 39, 7, 7, 7, 30, 30, 11], [6, 6, 6]]
SPECIALS = SpecialTokens(BOS, EOS, UNK)


def models(seed: int = 0, **more: Any) -> tuple[Any, Decoder]:
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=48, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=UNK,
        **more,
    )  # fmt: skip
    torch.manual_seed(seed)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            if weight.ndim > 1:
                weight.mul_(9.0)  # or all words are almost alike
    ours = converted(theirs)
    assert isinstance(ours, Decoder)
    return theirs, ours


def generated(model: Any, n_tokens: int, eos: int = EOS, **more: Any) -> list[list[int]]:
    """Their batches are padded on the left."""
    longest = max(map(len, PROMPTS))
    ids_BS = torch.tensor([[UNK] * (longest - len(p)) + p for p in PROMPTS])
    real_BS = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in PROMPTS])
    out_BT = model.generate(
        input_ids=ids_BS, attention_mask=real_BS, max_new_tokens=n_tokens, do_sample=False,
        eos_token_id=eos, pad_token_id=UNK, bad_words_ids=[[UNK], [BOS]], **more,
    )  # fmt: skip
    texts = [row[longest:].tolist() for row in out_BT]
    return [text[: text.index(eos)] if eos in text else text for text in texts]


def tokens(found: list[list[Any]]) -> list[list[int]]:
    return [of_prompt[0].tokens for of_prompt in found]


@pytest.mark.parametrize("seed", range(3))
def test_greedy_tokens_are_theirs(seed: int) -> None:
    """Whatever token is taken for the end: a random model would not end otherwise."""
    theirs, ours = models(seed)
    settings = DecodeSettings(beam=1, max_len=14)
    lengths = set()
    for eos in {EOS, *generated(theirs, 14)[0]}:
        found = Searcher([ours], settings, SpecialTokens(BOS, eos, UNK))(PROMPTS)
        expected = generated(theirs, 14, eos)
        assert tokens(found) == expected
        assert [h.finished for [h] in found] == [len(text) < 14 for text in expected]
        lengths |= {len(text) for text in expected}
    assert len(lengths) > 2


@pytest.mark.parametrize("beam", [2, 5])
def test_beam_tokens_are_theirs_where_lengths_are_forced(beam: int) -> None:
    theirs, ours = models(7)
    settings = DecodeSettings(beam=beam, max_len=12, min_len=12)
    found = Searcher([ours], settings, SPECIALS)(PROMPTS)
    assert tokens(found) == generated(theirs, 12, num_beams=beam, min_new_tokens=12)


def test_no_sequence_of_the_prompt_comes_again_as_with_theirs() -> None:
    theirs, ours = models(2)
    settings = DecodeSettings(beam=1, max_len=14, no_repeat_ngram=2)
    found = Searcher([ours], settings, SPECIALS)(PROMPTS)
    assert tokens(found) == generated(theirs, 14, no_repeat_ngram_size=2)
    free = Searcher([ours], replace(settings, no_repeat_ngram=0), SPECIALS)(PROMPTS)
    assert tokens(free) != tokens(found)


def test_the_repetition_penalty_counts_the_prompt() -> None:
    """Theirs in beam search: on log-probabilities, as ours."""
    theirs, ours = models(3)
    settings = DecodeSettings(beam=3, max_len=9, min_len=9, repetition_penalty=1.7)
    found = Searcher([ours], settings, SPECIALS)(PROMPTS)
    assert tokens(found) == generated(
        theirs, 9, num_beams=3, min_new_tokens=9, repetition_penalty=1.7
    )
    alone = [Searcher([ours], settings, SPECIALS)([prompt])[0] for prompt in PROMPTS]
    assert tokens(alone) == tokens(found)


def one_pass(model: Decoder, text: list[int]) -> torch.Tensor:
    with torch.no_grad():
        x_ND = model(torch.tensor(text), Layout.of([len(text)]))
        return model.scores(x_ND)[-1].log_softmax(-1)


@pytest.mark.parametrize("variant", EVERY)
@pytest.mark.parametrize(("width", "apart"), [(1, True), (3, True), (3, False)])
def test_cached_steps_are_one_pass(variant: str, width: int, apart: bool) -> None:
    """Also when hypotheses change places, and when prompts leave."""
    model = tiny("decoder", variant)
    assert isinstance(model, Decoder)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        steps = DecoderSteps(model, PROMPTS, width, 6, apart=apart)
        texts = [[list(prompt) for _ in range(width)] for prompt in PROMPTS]
        new_BW = torch.zeros(len(texts), width, dtype=torch.long)
        for at in range(6):
            scores_RV = steps.step(new_BW)
            rows = [text for of_prompt in texts for text in of_prompt]
            for row, text in enumerate(rows):
                assert torch.allclose(scores_RV[row], one_pass(model, text), atol=1e-5)
            new_BW = torch.randint(3, 41, (len(texts), width), generator=draw)
            if not apart and at:
                parents_BW = torch.randint(0, width, (len(texts), width), generator=draw)
                steps.reorder(parents_BW)
                order = parents_BW.tolist()
                texts = [[of[p] for p in row] for of, row in zip(texts, order, strict=True)]
            if at == 2:
                staying = [3, 0, 1]
                steps.keep(staying)
                texts, new_BW = [texts[i] for i in staying], new_BW[staying]
            pairs = zip(texts, new_BW.tolist(), strict=True)
            texts = [
                [[*text, token] for text, token in zip(of, row, strict=True)] for of, row in pairs
            ]


@pytest.mark.parametrize("variant", EVERY)
def test_texts_of_one_length_have_the_scores_of_one_pass(variant: str) -> None:
    model = tiny("decoder", variant).eval()
    assert isinstance(model, Decoder)
    texts = [[5, 9, 17], [8, 8, 3], [30, 4, 4]]
    attention = model.stack.blocks[1].attention
    if attention is not None:
        attention.gate_H = torch.linspace(0.0, 1.5, attention.n_heads)
    with torch.no_grad():
        steps = DecoderSteps(model, texts, 1, 40, apart=True)
        new_B1 = torch.zeros(3, 1, dtype=torch.long)
        for at in range(8):
            scores_BV = steps.step(new_B1)
            for row, text in enumerate(texts):
                assert torch.allclose(scores_BV[row], one_pass(model, text), atol=1e-5)
            new_B1 = torch.tensor([[3 + at + row] for row in range(len(texts))])
            texts = [[*text, 3 + at + row] for row, text in enumerate(texts)]
            if at == 3:
                steps.keep([2, 0])
                texts, new_B1 = [texts[2], texts[0]], new_B1[[2, 0]]


def test_a_full_context_ends_the_output_and_a_longer_prompt_is_an_error() -> None:
    """The last token is not read, so there is room for it."""
    ours = models(1)[1]
    searcher = Searcher([ours], DecodeSettings(beam=1, min_len=99), SPECIALS)
    assert searcher.context == 48
    long = [[5] * 48, [5] * 45, [7, 8]]
    found = searcher(long)
    assert [len(h.tokens) for [h] in found] == [1, 4, 47]
    assert not any(h.finished for [h] in found)
    with pytest.raises(UserError, match=r"\b2\b.*\b49\b.*\b48\b"):
        searcher([[5], [5] * 49])
    smaller = Searcher([ours], DecodeSettings(beam=1), SPECIALS, context=6)
    with pytest.raises(UserError, match=r"\b1\b.*\b7\b.*\b6\b"):
        smaller([[5] * 7])


def test_drawn_tokens_depend_on_the_seed_and_the_number_alone() -> None:
    model = models(4)[1]
    settings = DecodeSettings(sample=True, n_best=3, max_len=10, top_p=0.95, temperature=1.3)
    searcher = Searcher([model], settings, SPECIALS)
    together = [[h.tokens for h in found] for found in searcher(PROMPTS)]
    alone = [
        [h.tokens for h in searcher([prompt], None, [[number]])[0]]
        for number, prompt in enumerate(PROMPTS)
    ]
    assert together == alone
    assert len({tuple(text) for found in together for text in found}) == 15
    other = Searcher([model], replace(settings, seed=2), SPECIALS)(PROMPTS)
    assert together != [[h.tokens for h in found] for found in other]


@pytest.mark.parametrize(
    "settings",
    [
        DecodeSettings(beam=1, max_len=8),
        DecodeSettings(beam=3, max_len=8),
        DecodeSettings(sample=True, n_best=2, max_len=8),
    ],
)
def test_a_shared_beginning_is_read_once(settings: DecodeSettings) -> None:
    model = models(5)[1]
    beginning = [5, 9, 17, 33, 8, 21, 40, 12, 4, 4]
    prompts = [[*beginning, *prompt] for prompt in PROMPTS]
    searcher = Searcher([model], settings, SPECIALS)
    expected = searcher(prompts)
    rows: list[int] = []
    hook = model.stack.register_forward_hook(lambda part, inputs, out: rows.append(len(out)))
    prefix = SharedPrefix([model], beginning)
    found = searcher(prompts, prefix=prefix)
    assert rows[:2] == [len(beginning), sum(map(len, PROMPTS))]
    again = searcher(prompts[:2], prefix=prefix)
    hook.remove()
    for one, other in ((found, expected), (again, expected[:2])):
        for a, b in zip(one, other, strict=True):
            assert [h.tokens for h in a] == [h.tokens for h in b]
            assert a[0].token_log_probs == pytest.approx(b[0].token_log_probs, abs=1e-4)


def test_several_models_are_the_mean_of_their_probabilities() -> None:
    one, two = models(5)[1], models(6)[1]
    [[h]] = Searcher([one, two], DecodeSettings(beam=1, max_len=1), SPECIALS)([[5, 6]])
    mean_V = (one_pass(one, [5, 6]).exp() + one_pass(two, [5, 6]).exp()) / 2
    mean_V[[BOS, UNK]] = 0.0
    assert h.tokens == [int(mean_V.argmax())]
    assert h.log_prob == pytest.approx(float(mean_V.max().log()), abs=1e-5)


@pytest.mark.parametrize("wrong", [{"coverage": 0.2}, {"unknown": "copy"}])
def test_settings_about_a_source_are_an_error(wrong: dict[str, Any]) -> None:
    [(key, value)] = wrong.items()
    with pytest.raises(ConfigError, match=rf"decode\.{key}={value}\b"):
        Searcher([models()[1]], DecodeSettings(**wrong), SPECIALS)
