"""Prompts to text: order, streams, stops, seeds, shared beginnings, folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headway.decode.completer import Completer, shared_length
from headway.errors import ConfigError, FolderError, UserError
from headway.models.build import build_model
from headway.settings.data import TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.model import EncoderSettings
from headway.tasks.answers import ContinuationAnswer
from headway.tasks.complete_answers import completer_of
from headway.tasks.loaded_run import open_run
from headway.tasks.seq2seq_answers import answer_of
from headway.tokens.tokenizer import Tokenizer
from headway.tokens.trainer import train_vocabularies

from ..facts import missing
from .writing import completer, save_run, settings, tokenizer, writer

GREEDY = DecodeSettings(beam=1, max_len=40)
DRAWN = DecodeSettings(sample=True, max_len=20, temperature=2.0)
PROMPTS = ["the cat", "one two three", "", "a naïve", "the cat sat on the mat. the", "one"]


def texts(decoder: Completer, prompts: list[str] = PROMPTS, **more: object) -> list[str]:
    return [found.text for found in decoder.complete(prompts, **more)]  # type: ignore[arg-type]


def test_what_was_learned_is_continued_in_order_and_the_same_in_any_batch() -> None:
    found = texts(completer(GREEDY))
    assert found[:2] == [" sat on the mat. the dog ran.", " four five six."]
    assert found[3] == " café – “quoted” 日本 text."
    for batch_tokens in (1, 300):
        assert texts(completer(replace(GREEDY, batch_tokens=batch_tokens))) == found
    assert texts(completer(replace(GREEDY, beam=3)))[:2] == found[:2]


def test_facts_have_the_log_probability_of_every_token() -> None:
    decoder = completer(replace(GREEDY, n_best=2, beam=2))
    [found] = decoder.complete(["one two"])
    answer = answer_of(found.outputs, ContinuationAnswer, source=found.source)
    facts = json.loads(json.dumps(answer.to_dict()))
    assert facts["source"] == "one two"
    assert facts["text"] == facts["outputs"][0]["text"]
    best, second = facts["outputs"]
    assert best["text"] == " three four five six."
    assert best["finished"]
    assert len(best["token_log_probs"]) == len(best["tokens"]) + 1
    assert sum(best["token_log_probs"]) == pytest.approx(best["log_prob"], abs=1e-4)
    assert best["score"] > second["score"]
    assert "".join(best["tokens"]).replace("▁", " ") == best["text"]
    assert decoder.summary.sources == 1
    assert decoder.summary.text("prompt").startswith("1 ")


@pytest.mark.parametrize("way", [GREEDY, DRAWN, replace(GREEDY, beam=2), replace(DRAWN, n_best=3)])
@pytest.mark.parametrize("stop", [(), (" the",), (".", "thre")])
def test_streamed_pieces_are_the_text(way: DecodeSettings, stop: tuple[str, ...]) -> None:
    decoder = completer(replace(way, stop=stop))
    pieces: list[list[str]] = []
    streamed = []
    for prompt in PROMPTS:
        pieces.append([])
        streamed += list(decoder.complete([prompt], on_token=pieces[-1].append))
    assert ["".join(of_prompt) for of_prompt in pieces] == [found.text for found in streamed]
    if not way.sample:
        assert [found.text for found in streamed] == texts(decoder)
    if way is GREEDY and not stop:
        assert len(pieces[0]) > 5


@pytest.mark.parametrize("way", [GREEDY, replace(GREEDY, beam=2)])
def test_a_stop_string_ends_the_text_before_it(way: DecodeSettings) -> None:
    """Also where it begins inside one token and ends in another."""
    [[found]] = [f.outputs for f in completer(replace(way, stop=("at. t",))).complete(["the cat"])]
    assert (found.text, found.stopped_by, found.finished) == (" sat on the m", "at. t", False)
    assert len(found.tokens) == len(found.token_log_probs) < 25
    assert "".join(found.tokens).replace("▁", " ").startswith(" sat on the mat. t")
    with pytest.raises(ConfigError, match=r"decode\.stop\b"):
        completer(replace(way, stop=("",)))


def test_draws_depend_on_the_seed_and_the_place_alone() -> None:
    several = replace(DRAWN, n_best=3)

    def draws(changes: DecodeSettings) -> list[list[str]]:
        found = completer(changes).complete(PROMPTS)
        return [[output.text for output in one.outputs] for one in found]

    first = draws(several)
    assert first == draws(replace(several, batch_tokens=1))
    assert first != draws(replace(several, seed=2))
    assert all(len(set(found)) == 3 for found in first)


def test_repetition_and_limits() -> None:
    again = replace(GREEDY, no_repeat_ngram=1, max_len=12)
    [found] = completer(again).complete(["the cat sat on the"])
    new = found.outputs[0].tokens
    assert len(new) == len(set(new)) > 3
    assert not set(new) & set(tokenizer().tokens(tokenizer().encode("the cat sat on the")))
    decoder = completer(replace(GREEDY, max_len=3))
    [short] = decoder.complete(["the cat"])
    assert len(short.outputs[0].tokens) == 3
    assert not short.outputs[0].finished
    assert decoder.summary.unfinished == 1
    [*_, last] = decoder.summary.text("prompt").split("; ")
    assert not missing(last, "1")


def test_a_prompt_longer_than_the_context_is_named() -> None:
    decoder = completer(GREEDY)
    with pytest.raises(UserError, match=r"\b2\b.*'the cat the.*\b182\b.*\b96\b"):
        list(decoder.complete(["one", "the cat " * 60]))
    full = "the cat " * 9 + "the"
    n = len(decoder.ids(full))
    small = completer(replace(GREEDY, max_len=None, min_len=90), context=n + 2)
    [found] = small.complete([full])
    assert len(found.outputs[0].tokens) == 3
    assert not found.outputs[0].finished


def test_a_beginning_that_prompts_share_is_read_once() -> None:
    model, start = writer(), "one two three four five six. the dog ran. "
    prompts = [start + more for more in ("the cat", "one", "a", "the dog")]
    decoder = completer(GREEDY)
    expected = [texts(decoder, [prompt])[0] for prompt in prompts]
    assert decoder.prefix is None
    rows: list[int] = []
    hook = model.stack.register_forward_hook(lambda part, inputs, out: rows.append(len(out)))
    for shared in ("", start):
        decoder = completer(GREEDY)
        rows.clear()
        assert texts(decoder, prompts, shared=shared) == expected
        whole = [len(decoder.ids(prompt)) for prompt in prompts]
        n = shared_length([decoder.ids(prompt) for prompt in prompts])
        assert n > 16
        assert rows[:2] == [n, sum(whole) - 4 * n]
        assert decoder.summary.shared == 3 * n
        assert not missing(decoder.summary.text("prompt"), f"{3 * n:,}")
    hook.remove()
    # Prompts that come one by one use what was read for those before them.
    before = decoder.prefix
    assert texts(decoder, [prompts[2]]) == expected[2:3]
    assert decoder.prefix is before is not None


def test_tokens_are_prompts_too_and_may_end_elsewhere() -> None:
    decoder, inner = completer(GREEDY), tokenizer()
    ids = [inner.bos, *inner.encode("the cat")]
    [found] = decoder.complete([ids])
    assert (found.source, found.text) == ("the cat", " sat on the mat. the dog ran.")
    full_stop = inner.encode("mat.")[-1]
    [found] = decoder.complete([ids], end=full_stop)
    assert found.text == " sat on the mat"
    assert found.outputs[0].finished


def test_run_folders_and_a_draft(tmp_path: Path) -> None:
    run, small = save_run(tmp_path / "run"), save_run(tmp_path / "small", writer(60))
    plain = completer_of(open_run(run, device="cpu"))
    assert plain.context == 96
    expected = texts(plain)
    assert expected[1] == " four five six."
    both = completer_of(open_run(run, device="cpu"), draft=small)
    assert texts(both) == expected
    assert both.summary.proposed >= both.summary.accepted > 0
    share = f"{both.summary.accepted / both.summary.proposed:.0%}"
    assert not missing(both.summary.text(), share, f"{both.summary.proposed:,}")
    assert texts(completer_of(open_run(run, small, device="cpu"), GREEDY))[1] == expected[1]
    with pytest.raises(UserError, match="ensemble"):
        completer_of(open_run(run, small, device="cpu"), GREEDY, draft=small)
    with pytest.raises(ConfigError, match=r"decode\.beam=4"):
        completer_of(open_run(run, device="cpu"), DecodeSettings(), draft=small)


def test_models_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    run, other = save_run(tmp_path / "run"), save_run(tmp_path / "other")
    lines = ["other words"] * 3
    strange = train_vocabularies(lines, lines, TokenizerSettings(kind="words"), 2)
    strange.save(other / "tokenizer.json")
    with pytest.raises(FolderError, match=rf"{other}/tokenizer\.json.*\b5\b.*\b300\b"):
        completer_of(open_run(other, device="cpu"))
    swapped = replace(settings(), vocab_size=strange.target.vocab_size)
    save_run(other, build_model(swapped), model=swapped)  # type: ignore[arg-type]
    strange.save(other / "tokenizer.json")
    with pytest.raises(UserError, match=rf"\bdraft\b.*{other}\b.*{run}\b"):
        completer_of(open_run(run, device="cpu"), draft=other)
    with pytest.raises(FolderError, match=rf"{other}/tokenizer\.json.*{run}\b"):
        completer_of(open_run(run, other, device="cpu"))
    encoder = EncoderSettings(vocab_size=tokenizer().vocab_size, n_layers=1)
    save_run(tmp_path / "encoder", model=encoder)
    with pytest.raises(FolderError, match=rf"{tmp_path}/encoder.*\bencoder\b"):
        completer_of(open_run(tmp_path / "encoder", device="cpu"))


def test_a_prompt_begins_with_the_start_token_only_if_the_tokenizer_adds_it() -> None:
    plain = completer(GREEDY)
    text = json.dumps(
        {
            "tokenizer": json.loads(tokenizer().to_json()),
            "roles": {"bos": "<s>", "eos": "</s>", "begins": False},
        }
    )
    bare = Completer(plain.models, Tokenizer.from_json(text, "t"), GREEDY)
    ids = tokenizer().encode("the cat")
    assert (plain.ids("the cat"), bare.ids("the cat")) == ([tokenizer().bos, *ids], ids)
    assert bare.ids("") == plain.ids("") == [tokenizer().bos]
    assert len(texts(bare)) == len(PROMPTS)
