"""Text in, text out: order, line count, long and empty lines, wishes, scores, folders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.decode.logits_processors import SpecialTokens, TextConstraints, TokenConstraints
from headway.decode.search.job import Hypothesis
from headway.decode.search.searcher import Searcher
from headway.decode.sources import TextSources
from headway.decode.writer import Writer
from headway.errors import DataError, FolderError, UserError
from headway.models.folder import model_weights, save_weights
from headway.models.seq2seq import Seq2Seq
from headway.settings.data import DataSettings, TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings, resolved_toml
from headway.tasks.loaded_run import open_run
from headway.tasks.seq2seq_answers import writer_of
from headway.tokens.special_tokens import TokenRoles
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_vocabularies

from ..facts import missing
from .copying import SIZES, VOCAB, copier

WORDS = [f"{c}{v}" for c in "bdfgk" for v in "aeio"]
"""As many as the model has besides its three special tokens."""

QUICK = DecodeSettings(beam=2, max_len=14)


@cache
def vocab() -> Vocabularies:
    """A word is a token: `ba` is 3, ..."""
    assert len(WORDS) == VOCAB - 3
    lines = [" ".join(WORDS)] * 2
    return train_vocabularies(lines, lines, TokenizerSettings(kind="words"), 2)


def translator(changes: DecodeSettings = QUICK, **more: object) -> Writer:
    return Writer([copier(250)], vocab(), changes, **more)  # type: ignore[arg-type]


def texts(lines: list[str], changes: DecodeSettings = QUICK, **more: object) -> list[str]:
    return [found.text for found in translator(changes, **more).write(lines)]


def test_the_vocabulary_is_the_models() -> None:
    assert vocab().target.vocab_size == VOCAB


LINES = ["ba de", "", "fi ko ga", "   ", "\t", "go", "de de ba fi", "ka ke ki ko da"]


def test_a_model_that_copies_copies_text() -> None:
    found = texts(LINES)
    assert found[0] == "ba de"
    assert found[1] == found[3] == found[4] == ""
    assert sum(a == b.strip() for a, b in zip(found, LINES, strict=True)) >= len(LINES) - 1


lines = st.lists(
    st.lists(
        st.sampled_from([*WORDS, "", "  ", "ü", ".", "\u2028", "ba.", "Hallo"]), max_size=7
    ).map(" ".join),
    max_size=12,
)


@settings(max_examples=12, deadline=None)
@given(lines, st.sampled_from([1, 30, 4096]))
def test_there_is_one_line_for_each_line_in_order(
    given_lines: list[str], batch_tokens: int
) -> None:
    found = texts(given_lines, replace(QUICK, batch_tokens=batch_tokens))
    assert len(found) == len(given_lines)
    alone = [texts([line])[0] for line in given_lines]
    assert found == alone
    assert not any("\n" in text or "\r" in text for text in found)


@pytest.mark.parametrize("beam", [1, 4])
def test_the_text_is_the_same_at_any_batch_size(beam: int) -> None:
    draw = torch.Generator().manual_seed(1)
    many = [
        " ".join(WORDS[i] for i in torch.randint(20, (n % 7,), generator=draw)) for n in range(64)
    ]
    changes = replace(QUICK, beam=beam)
    at_once = texts(many, replace(changes, batch_tokens=10**6))
    assert at_once == texts(many, replace(changes, batch_tokens=1))
    by_seven = replace(changes, batch_tokens=7 * 7 * beam)
    assert at_once == texts(many, by_seven)


def test_a_line_that_is_too_long_is_split_cut_or_an_error() -> None:
    line = " ".join(["ba de fi ko."] * 5)  # full stops are unknown to this vocabulary
    split = translator(max_len=6)
    [short, found] = split.write(["ba de", line])
    assert (short.parts, found.parts, found.cut) == (1, 5, False)
    assert found.text.split().count("ba") >= 4
    assert split.summary.split == 1

    cutting = translator(max_len=6, on_long="cut")
    [_, found] = cutting.write(["ba", line])
    assert found.cut
    assert cutting.summary.cut == [2]
    [*_, last] = cutting.summary.text().split("; ")
    assert not missing(last, "1", "2")

    with pytest.raises(UserError, match=r"\b2\b.*\b25\b.*\b6\b.*on_long="):
        list(translator(max_len=6, on_long="error").write(["ba", line]))


def test_three_thousand_words_are_one_line() -> None:
    line = " ".join(WORDS[i % 20] for i in range(3000))
    [before, found, after] = texts(["ba", line, "de"], replace(QUICK, beam=1), max_len=8)
    assert (before, after) == ("ba", "de")
    assert len(found.split()) > 2000


def test_outputs_of_parts_are_joined_with_their_scores_and_alignments() -> None:
    both = translator(max_len=3, align=True)
    one = translator(align=True)
    [joined] = both.write(["ba de fi. Ko ga"])
    first, second = one.write(["ba de fi.", "Ko ga"])
    a, b, c = first.outputs[0], second.outputs[0], joined.outputs[0]
    assert joined.parts > 1
    assert c.finished
    assert len(c.token_log_probs) == len(c.tokens) + joined.parts
    assert sum(c.token_log_probs) == pytest.approx(c.log_prob, abs=1e-4)
    assert c.alignment is not None
    assert a.alignment is not None
    assert b.alignment is not None
    assert {target for _, target in c.alignment} == set(range(len(c.text.split())))
    assert max(source for source, _ in c.alignment) > 2


def test_alignments_follow_the_words() -> None:
    [found] = translator(align=True).write(["fi ko ga"])
    assert found.text == "fi ko ga"
    assert found.outputs[0].alignment == [(0, 0), (1, 1), (2, 2)]


def test_n_best_outputs_come_from_the_best_down_and_draws_by_seed() -> None:
    [found] = translator(replace(QUICK, beam=4, n_best=3)).write(["fi ko ga"])
    scores = [output.score for output in found.outputs]
    assert len({output.text for output in found.outputs}) == 3
    assert scores == sorted(scores, reverse=True)
    drawn = DecodeSettings(sample=True, n_best=4, temperature=3.0, max_len=8)
    many = ["fi ko", "de", "ba ba"]

    def draws(changes: DecodeSettings) -> list[list[str]]:
        return [[o.text for o in found.outputs] for found in translator(changes).write(many)]

    assert draws(drawn) == draws(replace(drawn, batch_tokens=1))
    assert draws(drawn) != draws(replace(drawn, seed=7))


def test_prefixes_and_constraints_of_a_line_are_followed() -> None:
    wishes = [
        TextConstraints(prefix="ga ga"),
        TextConstraints(required=("ki ke",)),
        TextConstraints(banned=("ko",)),
        TextConstraints(),
    ]
    found = [t.text for t in translator().write(["fi ko ga"] * 4, wishes)]
    assert found[0].startswith("ga ga")
    assert "ki ke" in found[1]
    assert "ko" not in found[2].split()
    assert found[3] == "fi ko ga"


def test_too_few_wishes_and_wishes_of_a_split_line_are_errors() -> None:
    with pytest.raises(UserError, match=r"\b1\b"):
        list(translator().write(["ba", "de"], [TextConstraints()]))
    with pytest.raises(UserError, match=r"\b1\b.*\b3\b.*\b2\b.*on_long=.cut."):
        list(translator(max_len=2).write(["ba de fi"], [TextConstraints(required=("ba",))]))


def test_a_banned_word_is_banned_however_it_is_spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens can write a word in many ways; the text is what counts."""
    lines = ["ab abab ab b a bab"] * 4
    pieces = train_vocabularies(lines, lines, TokenizerSettings(kind="bpe", vocab_size=270), 4)
    target = pieces.target
    whole, a, b, bab = (target.encode(word)[0] for word in ("ab", "a", "b", "bab"))
    inner_b = next(i for i in range(target.vocab_size) if target.tokens([i]) == ["b"])
    wanted = [[whole, bab], [b, a, inner_b, bab], [b, bab]]
    assert [target.decode(tokens) for tokens in wanted] == ["ab bab", "b ab bab", "b bab"]
    asked: list[tuple[tuple[int, ...], ...]] = []

    def first_allowed(
        sources: list[list[int]], wishes: list[TokenConstraints], numbers: object
    ) -> list[list[Hypothesis]]:
        """A search that would like to write these, in this order."""
        asked.append(wishes[0].banned)
        free = [
            tokens
            for tokens in wanted
            if not any(holds(tokens, phrase) for phrase in wishes[0].banned)
        ]
        return [[Hypothesis(free[0], -1.0, -1.0, [-1.0], True)] for _ in sources]

    decoder = Writer([copier(250)], pieces, QUICK)
    monkeypatch.setattr(decoder, "searcher", first_allowed)
    [found] = decoder.write(["a"], [TextConstraints(banned=("ab",))])
    assert found.text == "b bab"  # `ab` inside a word is another word
    assert asked == [((whole,),), ((whole,), (a, inner_b))]


def holds(tokens: list[int], phrase: tuple[int, ...]) -> bool:
    return any(tuple(tokens[i : i + len(phrase)]) == phrase for i in range(len(tokens)))


def test_unknown_words_are_kept_or_copied_from_the_source() -> None:
    model = unknowing()
    kept = Writer([model], vocab(), replace(QUICK, unknown="keep"))
    assert next(kept.write(["ba Xylophon de"])).text.count("<unk>") == 1
    copying = Writer([model], vocab(), replace(QUICK, unknown="copy"))
    assert next(copying.write(["ba Xylophon de"])).text == "ba Xylophon de"
    banning = Writer([model], vocab(), replace(QUICK, unknown="ban"))
    assert "unk" not in next(banning.write(["ba Xylophon de"])).text


@cache
def unknowing() -> Seq2Seq:
    """Copies unknown tokens as it copies `go`: it takes them for that."""
    from copy import deepcopy

    model, go = deepcopy(copier(250)), vocab().source.encode("go")[0]
    with torch.no_grad():
        model.source_front.tokens.weight[0] = model.source_front.tokens.weight[go]
        model.head.linear.weight[go] = 0.0
    return model


def test_scores_are_those_of_decoding() -> None:
    decoder = translator(replace(QUICK, beam=4))
    sources = ["ba de", "fi ko ga", "go"]
    found = list(decoder.write(sources))
    scores = list(decoder.score((t.source, t.text) for t in found))
    for score, translation in zip(scores, found, strict=True):
        best = translation.outputs[0]
        assert score.log_prob == pytest.approx(best.log_prob, abs=1e-4)
        assert score.token_log_probs == pytest.approx(best.token_log_probs, abs=1e-4)
        assert score.n_tokens == len(best.tokens) + 1
        assert score.per_token == pytest.approx(score.log_prob / score.n_tokens)
    small = translator(replace(QUICK, batch_tokens=1))
    again = small.score((t.source, t.text) for t in found)
    assert [s.log_prob for s in again] == pytest.approx([s.log_prob for s in scores], abs=1e-4)
    [empty] = decoder.score([("", "")])
    assert empty.n_tokens == 1


def test_an_endless_input_is_translated_as_it_comes() -> None:
    def endless() -> Iterator[str]:
        while True:
            yield "ba de"

    found = translator(replace(QUICK, beam=1)).write(endless())
    assert [next(found).text for _ in range(300)] == ["ba de"] * 300


def save_run(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    run = RunSettings(task="translate", model=SIZES, decode=QUICK, data=DataSettings(max_len=8))
    (folder / "config.toml").write_text(resolved_toml(replace(run, **changes)))  # type: ignore[arg-type]
    vocab().save(folder / "tokenizer.json")
    save_weights(folder, model_weights(copier(250)))
    return folder


def test_a_run_folder_is_a_translator(tmp_path: Path) -> None:
    one, two = save_run(tmp_path / "one"), save_run(tmp_path / "two")
    decoder = writer_of(open_run(one, device="cpu"))
    assert [t.text for t in decoder.write(LINES)] == texts(LINES)
    assert isinstance(decoder.sources, TextSources)
    assert decoder.sources.room == 8
    both = writer_of(open_run(one, two, device="cpu"), replace(QUICK, beam=3))
    assert [t.text for t in both.write(["ba de"])] == ["ba de"]


def test_a_folder_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    run = save_run(tmp_path / "run")
    with pytest.raises(FolderError, match=rf"{tmp_path}/nowhere\b.*run/"):
        writer_of(open_run(tmp_path / "nowhere", device="cpu"))

    lines_ = ["aa bb"] * 3
    other = train_vocabularies(lines_, lines_, TokenizerSettings(kind="words"), 3)
    other.save(run / "tokenizer.json")
    with pytest.raises(FolderError, match=rf"{run}/tokenizer\.json.*\b5\b.*\bsource\b.*\b23\b"):
        writer_of(open_run(run, device="cpu"))

    (run / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=rf"{run}/tokenizer\.json"):
        writer_of(open_run(run, device="cpu"))
    (run / "tokenizer.json").unlink()
    with pytest.raises(FolderError, match=rf"\btokenizer\.json\b.*{run}\b.*\bconfig\.toml\b"):
        writer_of(open_run(run, device="cpu"))

    encoder = save_run(tmp_path / "encoder", model=EncoderSettings(vocab_size=VOCAB, n_layers=1))
    with pytest.raises(FolderError, match=rf"{encoder}\b.*\bencoder\b"):
        writer_of(open_run(encoder, device="cpu"))


def test_models_with_different_vocabularies_cannot_form_an_ensemble(tmp_path: Path) -> None:
    one, two = save_run(tmp_path / "one"), save_run(tmp_path / "two")
    shuffled = [" ".join(WORDS) + " ko"] * 2
    train_vocabularies(shuffled, shuffled, TokenizerSettings(kind="words"), 2).save(
        two / "tokenizer.json"
    )
    with pytest.raises(FolderError, match=rf"{two}/tokenizer\.json.*{one}\b"):
        writer_of(open_run(one, two, device="cpu"))


def with_roles(**parts: object) -> Vocabularies:
    roles = TokenRoles(bos="<s>", eos="</s>", unk="<unk>", **parts)  # type: ignore[arg-type]
    inner = json.loads(vocab().target.to_json())
    text = json.dumps({"tokenizer": inner, "roles": roles.as_dict()})
    both = Tokenizer.from_json(text, "t")
    return Vocabularies(both, both)


def test_sources_and_outputs_begin_as_the_roles_say() -> None:
    """As BART: what all begin with is read, and seen in no text, score or alignment."""
    made = with_roles(source_begin=" ba", target_begin=" de")
    decoder = Writer([copier(250)], made, replace(QUICK, beam=2), align=True)
    seen: list[list[int]] = []
    search = decoder.searcher

    def watched(sources: list[list[int]], *more: object) -> list[list[Hypothesis]]:
        seen.extend(sources)
        return search(sources, *more)  # type: ignore[arg-type]

    decoder.searcher = watched  # type: ignore[assignment]
    [found] = decoder.write(["fi ko"])
    first, begin = made.source.encode("ba de")
    assert seen == [[first, *made.source.encode("fi ko"), made.source.eos]]
    best = found.outputs[0]
    assert len(best.token_log_probs) == len(best.tokens) + best.finished
    assert best.text == " ".join(word.strip("▁") for word in best.tokens)
    assert best.alignment is not None
    assert {target for _, target in best.alignment} == set(range(len(best.text.split())))
    assert {source for source, _ in best.alignment} <= {0, 1}

    def crossed(sources: list[list[int]], targets: list[list[int]], bos: int) -> list[torch.Tensor]:
        """The first word written looks at the last one read, the others at the first."""
        weights_TS = torch.zeros(len(targets[0]) + 1, len(sources[0]))
        weights_TS[0, 0] = weights_TS[1, 2] = 1.0
        weights_TS[2:, 1] = 1.0
        return [weights_TS] * len(targets)

    decoder.attention = crossed  # type: ignore[assignment]
    [again] = decoder.write(["fi ko"])
    aligned = [(1, 0), *((0, n) for n in range(1, len(again.text.split())))]
    assert len(aligned) > 1
    assert again.outputs[0].alignment == aligned
    [score] = decoder.score([("fi ko", found.text)])
    assert score.token_log_probs == pytest.approx(best.token_log_probs, abs=1e-4)
    [[direct]] = Searcher([copier(250)], replace(QUICK, beam=2), SpecialTokens.of(made.target))(
        seen[:1]
    )
    assert direct.tokens[0] == begin


def test_banned_tokens_are_never_written() -> None:
    made = with_roles(banned=(" ba", " ko"))
    decoder = Writer([copier(250)], made, QUICK)
    written = " ".join(found.text for found in decoder.write(LINES)).split()
    assert "de" in written
    assert not {"ba", "ko"} & set(written)
