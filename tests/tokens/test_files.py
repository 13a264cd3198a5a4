"""GPT-2's and BERT's own files give the ids that their own programs give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

from headway.errors import DataError
from headway.settings.data import TokenizerSettings
from headway.tokens.files import load_tokenizer, load_vocabularies, tokenizer_files
from headway.tokens.tokenizer import Tokenizer
from headway.tokens.trainer import train_on_texts, train_vocabularies
from tests.facts import naming

LINES = [
    "The quick brown fox didn't jump over 1,234 lazy dogs; they'd've barked!",
    "Ärger über Größe: naïve café façade, 東京 and Ελλάδα unk mask.",
    "unbelievable wordpieces play playing played player players",
] * 4
TEXTS = st.text(
    st.sampled_from(" \n\t'.,!?0123\u00a0\u200b\u3000\u0301éÄß東京😀\x00\ufffd")
    | st.sampled_from("theplayingdiv")
    | st.characters(exclude_categories=["Cs"]),
    max_size=40,
)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    made = ByteLevelBPETokenizer()
    special = ["<|endoftext|>"]
    made.train_from_iterator(
        LINES, vocab_size=400, min_frequency=1, special_tokens=special, show_progress=False
    )
    made.save_model(str(folder))  # vocab.json and merges.txt
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def bert(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    made = BertWordPieceTokenizer(lowercase=request.param)
    made.train_from_iterator(LINES, vocab_size=300, min_frequency=1, show_progress=False)
    made.save_model(str(folder))
    return folder / "vocab.txt"


def plain(text: str) -> bool:
    """Without the special tokens, which other programs find in text."""
    return not any(name in text for name in ("<|", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]"))


def test_gpt2_files_give_its_ids(gpt2: Path) -> None:
    ours = load_tokenizer(gpt2)
    theirs: Any = transformers.GPT2Tokenizer(
        vocab=str(gpt2 / "vocab.json"), merges=str(gpt2 / "merges.txt")
    )

    @settings(deadline=None, max_examples=200)
    @given(TEXTS.filter(plain))
    def check(text: str) -> None:
        ids = ours.encode(text)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ids) == text

    check()
    for text in LINES[:3]:
        assert ours.encode(text) == theirs(text)["input_ids"]
    end = json.loads((gpt2 / "vocab.json").read_text())["<|endoftext|>"]
    assert (ours.bos, ours.eos, ours.unk, ours.mask) == (end, end, end, None)
    assert ours.vocab_size == len(json.loads((gpt2 / "vocab.json").read_text()))
    assert end not in ours.encode("a <|endoftext|> b")


def test_bert_files_give_its_ids(bert: Path) -> None:
    ours = load_tokenizer(bert)
    pieces = bert.read_text().split("\n")
    lowercase = "T" not in pieces
    theirs: Any = transformers.BertTokenizer(vocab=str(bert), do_lower_case=lowercase)

    @settings(deadline=None, max_examples=200)
    @given(TEXTS.filter(plain))
    def check(text: str) -> None:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]

    check()
    names = [pieces[i] for i in (ours.unk, ours.bos, ours.eos, ours.mask or 0)]
    assert names == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert ours.special("<mask>") == ours.mask == ours.special("[MASK]")
    assert ours.special("playing") is None
    assert ours.vocab_size == len(pieces) - 1
    assert not {ours.bos, ours.mask} & set(ours.encode("[CLS] a [MASK]"))
    assert ours.with_specials(["<mask>"]) is ours


def test_a_folder_or_either_file_will_do(gpt2: Path, bert: Path, tmp_path: Path) -> None:
    for path in (gpt2, gpt2 / "vocab.json", gpt2 / "merges.txt"):
        assert tokenizer_files(path) == (gpt2 / "vocab.json", gpt2 / "merges.txt")
        assert load_tokenizer(path).eos == load_tokenizer(gpt2).eos
    assert tokenizer_files(bert.parent) == (bert,)
    for old, new in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        (tmp_path / new).write_bytes((gpt2 / old).read_bytes())
    assert load_tokenizer(tmp_path).encode(LINES[0]) == load_tokenizer(gpt2).encode(LINES[0])
    ours = load_tokenizer(gpt2)
    assert Tokenizer.from_json(ours.to_json(), "t").encode(LINES[1]) == ours.encode(LINES[1])
    both = train_vocabularies([], [], TokenizerSettings(file=str(bert)), 0)
    assert both.joint
    given_file = TokenizerSettings(file=str(gpt2))
    masked = train_on_texts([], given_file, 0, ["<mask>"])
    assert masked.mask == ours.vocab_size == masked.vocab_size - 1


def test_files_that_are_not_a_tokenizer_are_named(gpt2: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming(tmp_path, "tokenizer.json encoder.json vocab.txt")):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(DataError, match=naming(tmp_path / "merges.txt", "vocab.json")):
        load_tokenizer(tmp_path / "merges.txt")
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(DataError, match=naming("vocab.json merges.txt", "`a`")):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("a b c\n")
    with pytest.raises(DataError, match=naming("vocab.json merges.txt")) as caught:
        load_tokenizer(tmp_path)
    assert isinstance(caught.value.__cause__, ValueError)
    (tmp_path / "vocab.txt").write_text("the\n[UNK]\n")
    with pytest.raises(DataError, match=naming("vocab.txt", "[CLS]", "[SEP]")):
        load_tokenizer(tmp_path / "vocab.txt")
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=naming("vocab.txt", "0xff")) as caught:
        load_tokenizer(tmp_path / "vocab.txt")
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)
    with pytest.raises(DataError, match=naming(tmp_path / "none.txt")) as caught:
        load_tokenizer(tmp_path / "none.txt")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    two = TokenizerSettings(joint=False, vocab_size=300)
    train_vocabularies(LINES, LINES, two, 9).save(tmp_path / "two.json")
    assert not load_vocabularies(tmp_path / "two.json").joint
    with pytest.raises(DataError, match=naming(tmp_path / "two.json")):
        load_tokenizer(tmp_path / "two.json")
