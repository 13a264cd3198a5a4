"""Text comes back from its tokens; nothing in a text can pass for a special token."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from headway.errors import DataError
from headway.settings.data import TokenizerSettings
from headway.tokens import trainer as train
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import choose_size, thin_pairs, train_vocabularies
from tests.facts import naming

LINES = [
    "Der Hund läuft über die Straße, und die Katze schläft.",
    "The dog runs across the street, and the cat sleeps!",
    "Don't panic: 42 is 42, </s> is no end, <s> and <unk> are text.",
    "</s> </s></s> <s> <unk> </s>",
] * 5
KINDS = ["bpe", "unigram", "characters", "words", "bytes"]
IN_BYTES = ["bpe", "unigram", "bytes"]

ANY_TEXT = st.text(
    st.sampled_from(" \n\r\t\0\u00a0\u2028\u3000\u0301'<s/>unkÄäßΣσς1२😀👩\u200d´\ufb01ﹰ▁Ġ")
    | st.characters(exclude_categories=["Cs"]),
    max_size=30,
)
SPECIAL = st.sampled_from(["</s>", "<s>", "<unk>"])
TEXTS = st.one_of(ANY_TEXT, st.lists(ANY_TEXT | SPECIAL, max_size=5).map(" ".join))


def trained(**changes: Any) -> Tokenizer:
    values = {"vocab_size": 400, **changes}
    return train_vocabularies(LINES, LINES, TokenizerSettings(**values), len(LINES)).source


@pytest.fixture(scope="module")
def by_kind() -> dict[str, Tokenizer]:
    return {kind: trained(kind=kind) for kind in KINDS}


@pytest.mark.parametrize("kind", IN_BYTES)
@pytest.mark.parametrize("normalisation", ["none", "nfc", "nfkc", "nfd", "nfkd"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_any_text_comes_back_as_normalised(kind: str, normalisation: str, lowercase: bool) -> None:
    tokenizer = trained(kind=kind, normalisation=normalisation, lowercase=lowercase)

    @settings(deadline=None, max_examples=30)
    @given(TEXTS)
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == tokenizer.normalise(text)
        assert not {tokenizer.unk, tokenizer.bos, tokenizer.eos} & set(ids)
        if normalisation == "none" and not lowercase:
            assert tokenizer.normalise(text) == text

    check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("normalisation", ["none", "nfc", "nfkd"])
def test_encoding_by_words_gives_the_same_ids(kind: str, normalisation: str) -> None:
    tokenizer = trained(kind=kind, normalisation=normalisation, lowercase=True)
    assert tokenizer._tokenizer_json.cuts_at_spaces == (kind in ("bpe", "unigram", "words"))

    @settings(deadline=None, max_examples=100)
    @given(st.lists(TEXTS, max_size=4))
    def check(texts: list[str]) -> None:
        assert tokenizer.encode_batch(texts) == tokenizer._encoder.encode(texts).lists()

    check()


def test_words_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = trained()
    long = "x" * 1000
    wanted = tokenizer._encoder.encode(["a b", f"a {long}", "b c"]).lists()
    monkeypatch.setattr("headway.tokens.tokenizer.MAX_KNOWN", 1)
    for _ in range(2):
        assert tokenizer.encode_batch(["a b", f"a {long}", "b c"]) == wanted
        assert tokenizer._words.places.keys() == {"a", "b", "c"}
    tokenizer.encode("d")
    assert tokenizer._words.places.keys() == {"d"}


def test_several_threads_may_encode_at_once() -> None:
    tokenizer = trained()
    texts = [
        f"Wort{i} {'x' * i} {i}  zwei" if i % 3 else f"Wort{i} Hund{i % 7}" for i in range(300)
    ]
    wanted = tokenizer._encoder.encode(texts).lists()
    with ThreadPoolExecutor(4) as threads:
        starts = [0, 50, 100, 150] * 3
        found = list(threads.map(lambda n: tokenizer.encode_batch(texts[n:] + texts[:n]), starts))
    assert found == [wanted[n:] + wanted[:n] for n in starts]


def test_a_run_of_blanks_is_not_cut_at_its_spaces() -> None:
    lines = ["a \n \n b", "a\u00a0 \u00a0b"] * 20
    settings = TokenizerSettings(vocab_size=400)
    tokenizer = train_vocabularies(lines, lines, settings, len(lines)).source
    for line in (*lines[:2], "a \t b", "\t \t", " \n \n"):
        assert tokenizer.encode_batch([line]) == tokenizer._encoder.encode([line]).lists()


@pytest.mark.parametrize("kind", ["characters", "words"])
def test_text_of_known_pieces_comes_back_blanks_and_all(
    by_kind: dict[str, Tokenizer], kind: str
) -> None:
    for line in LINES[:4]:
        assert by_kind[kind].decode(by_kind[kind].encode(line)) == line


@pytest.mark.parametrize("kind", KINDS)
def test_specials_come_first_and_leave_no_trace(by_kind: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = by_kind[kind]
    assert (tokenizer.unk, tokenizer.bos, tokenizer.eos) == (0, 1, 2)
    assert tokenizer.tokens([0, 1, 2]) == ["<unk>", "<s>", "</s>"]
    ids = tokenizer.encode(LINES[0])
    assert tokenizer.decode([1, *ids, 2]) == tokenizer.decode(ids) == LINES[0]
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([10**6]) == ""
    assert max(ids) < tokenizer.vocab_size


def test_a_word_is_the_same_token_at_the_start_and_later(by_kind: dict[str, Tokenizer]) -> None:
    for kind in ("bpe", "unigram", "words"):
        one, other, both, reversed_ = by_kind[kind].encode_batch(
            ["die", "Katze", "die Katze", "Katze die"]
        )
        assert both == one + other
        assert reversed_ == other + one


def test_tokens_are_readable(by_kind: dict[str, Tokenizer]) -> None:
    def pieces(kind: str, text: str) -> list[str]:
        return by_kind[kind].tokens(by_kind[kind].encode(text))

    assert pieces("bpe", "die Straße") == ["▁die", "▁Straße"]
    assert pieces("words", "die Katze!") == ["▁die", "▁Katze", "!"]
    assert pieces("characters", "a b") == ["a", "▁", "b"]
    assert pieces("bytes", "a ä") == ["a", "▁", "<0xc3>", "<0xa4>"]
    assert pieces("bytes", r"\xe4") == ["\\", "x", "e", "4"]


def test_uncovered_characters_are_known(by_kind: dict[str, Tokenizer]) -> None:
    for kind in IN_BYTES:
        assert by_kind[kind].covers_everything
        assert by_kind[kind].unknown_characters("日本 😀") == set()
    characters, words = by_kind["characters"], by_kind["words"]
    assert characters.unknown_characters("Der 日 Hund\t") == {"日"}
    assert characters.encode("D日r")[1] == characters.unk
    assert characters.decode(characters.encode("D日r")) == "Dr"
    assert words.unknown_characters("Der Hundx 日") == {"日"}
    assert words.encode("Der Hundx")[1] == words.unk


def test_lower_casing_and_normalisation_travel_with_the_file(tmp_path: Path) -> None:
    tokenizer = trained(lowercase=True, normalisation="nfkc")
    Vocabularies(tokenizer, tokenizer).save(tmp_path / "t.json")
    again = Vocabularies.load(tmp_path / "t.json")
    assert again.joint
    assert again.source.decode(again.source.encode("ﬁne ÄRGER")) == "fine ärger"
    assert again.source.encode("</s>") == tokenizer.encode("</s>") != [2]
    assert again.source.to_json() == tokenizer.to_json()


def test_separate_vocabularies_share_one_file(tmp_path: Path) -> None:
    settings = TokenizerSettings(joint=False, vocab_size=300)
    vocab = train_vocabularies(["aaa bbb"] * 9, ["ccc ddd"] * 9, settings, 9)
    assert not vocab.joint
    vocab.save(tmp_path / "t.json")
    again = Vocabularies.load(tmp_path / "t.json")
    assert not again.joint
    assert again.source.tokens(again.source.encode("aaa")) == ["▁aaa"]
    assert again.target.tokens(again.target.encode("ccc")) == ["▁ccc"]
    assert len(again.target.encode("aaa")) > 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


@pytest.mark.parametrize("kind", [*KINDS, "wordpiece"])
def test_the_same_text_gives_the_same_file_in_every_process(kind: str) -> None:
    code = f"""
from headway.settings.data import TokenizerSettings
from headway.tokens.trainer import train_vocabularies
settings = TokenizerSettings(kind={kind!r}, vocab_size=400)
print(train_vocabularies({LINES!r}, {LINES!r}, settings, {len(LINES)}).source.to_json())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": "7"}
    )
    assert done.stdout.strip() == trained(kind=kind).to_json().strip(), done.stderr


def test_vocabularies_have_at_most_the_requested_size() -> None:
    assert trained(vocab_size=300).vocab_size == 300
    assert trained(vocab_size=30_000).vocab_size < 1000
    assert trained(kind="words", vocab_size=10).vocab_size == 10
    assert trained(kind="characters", vocab_size=10).vocab_size == 10
    assert trained(kind="bytes").vocab_size == 259
    for kind in IN_BYTES:  # every byte has a token, however few are asked for
        assert 259 <= trained(kind=kind, vocab_size=8).vocab_size < 300
        assert train_vocabularies([], [], TokenizerSettings(kind=kind), 0).source.encode("ä")


def test_the_chosen_size_grows_smoothly_with_the_corpus() -> None:
    sizes = [choose_size("bpe", n) for n in (0, 10_000, 30_000, 100_000, 500_000, 2_000_000, 10**9)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 512
    assert sizes[1] == 3968
    assert sizes[-1] == sizes[-2] == 32_000
    assert all(size % 64 == 0 for size in sizes)


def test_a_large_corpus_is_thinned_evenly_and_never_held_whole() -> None:
    pairs = [(f"{i:05}", f"{i:05}") for i in range(1000)]
    assert thin_pairs(pairs, 10_000) == pairs
    assert thin_pairs(iter(pairs), 9_999) == pairs[::2]
    assert thin_pairs(iter(pairs), 1_250) == pairs[::8]
    assert thin_pairs([("x" * 100, "")], 10) == [("x" * 100, "")]


def test_training_uses_the_thinned_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "SAMPLE", 400)
    lines = ["aa aa aa", "bb bb bb"] * 50
    tokenizer = train_vocabularies(lines, lines, TokenizerSettings(vocab_size=300), 100).source
    assert len(tokenizer.encode("aa")) == 1
    assert len(tokenizer.encode("bb")) > 1


def foreign(**names: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"hi": 0}, unk_token="hi"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = list(names.values())
    trainer = trainers.WordLevelTrainer(special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(["hello world"], trainer)
    return tokenizer


def test_a_foreign_tokenizer_is_recognised_by_its_special_tokens(tmp_path: Path) -> None:
    path = tmp_path / "bert.json"
    inner = foreign(unk="[UNK]", bos="[CLS]", eos="[SEP]", mask="[MASK]")
    inner.enable_truncation(1)
    inner.enable_padding(length=9)
    inner.save(str(path))
    settings = TokenizerSettings(file=str(path))
    tokenizer = train_vocabularies([], [], settings, 0).source
    assert tokenizer.tokens([tokenizer.unk, tokenizer.bos, tokenizer.eos]) == [
        "[UNK]",
        "[CLS]",
        "[SEP]",
    ]
    assert tokenizer.tokens(tokenizer.encode("hello world")) == ["hello", "world"]


def test_missing_starts_and_unknowns_are_added_but_an_end_there_must_be(tmp_path: Path) -> None:
    path = tmp_path / "gpt.json"
    foreign(eos="<|endoftext|>").save(str(path))
    tokenizer = Vocabularies.load(path).source
    assert len({tokenizer.unk, tokenizer.bos, tokenizer.eos}) == 3
    assert tokenizer.vocab_size == 5
    foreign(unk="[UNK]").save(str(path))
    with pytest.raises(DataError, match=naming("gpt.json", "</s> [SEP] <eos>")):
        Vocabularies.load(path)


@pytest.mark.parametrize(
    ("content", "facts", "cause"),
    [
        (b"", "JSON", json.JSONDecodeError),
        (b"\xff\xfe", "JSON", UnicodeDecodeError),
        (b"[" * 100_000, "JSON", RecursionError),
        (b"{}", "", Exception),
        (b"[1, 2]", "", Exception),
        (b'{"source": {}, "target": {}}', "(source)", Exception),
    ],
)
def test_a_file_that_is_not_a_tokenizer_is_named(
    tmp_path: Path, content: bytes, facts: str, cause: type[Exception]
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=naming(path, facts)) as caught:
        Vocabularies.load(path)
    assert type(caught.value.__cause__) is cause
    with pytest.raises(DataError, match=naming(tmp_path / "none.json")) as caught:
        Vocabularies.load(tmp_path / "none.json")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    with pytest.raises(DataError, match=naming(tmp_path)) as caught:
        Vocabularies.load(tmp_path)
    assert isinstance(caught.value.__cause__, IsADirectoryError)


def test_a_damaged_tokenizer_is_an_error_or_works() -> None:
    """Whatever value is replaced by another, there is our error or a tokenizer, and no crash."""
    whole = json.loads(trained(vocab_size=260).to_json())
    refused = []
    for name in whole:
        for value in (None, 3, "x", [], {}):
            text = json.dumps({**whole, name: value})
            try:
                Tokenizer.from_json(text, "t").encode("Der Hund")
            except DataError:
                refused.append(name)
    assert {"model", "added_tokens"} <= set(refused)


def test_half_a_surrogate_pair_is_an_error_that_names_it() -> None:
    for kind in ("bpe", "bytes"):
        with pytest.raises(DataError, match=r"\\ud83d"):
            trained(kind=kind).encode_batch(["good", "bad \ud83d"])
