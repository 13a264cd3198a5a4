"""Whisper's special tokens have the numbers that its models were trained with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from headway.errors import DataError
from headway.tokens.foreign import load_foreign
from headway.tokens.whisper import (
    LANGUAGES,
    add_space,
    unspoken_pieces,
    whisper_roles,
    whisper_specials,
)
from tests.facts import naming

NUMBERS = {
    51_864: {"<|endoftext|>": 50_256, "<|startoftranscript|>": 50_257, "<|en|>": 50_258,
             "<|su|>": 50_356, "<|translate|>": 50_357, "<|nospeech|>": 50_361,
             "<|notimestamps|>": 50_362, "<|0.00|>": 50_363, "<|30.00|>": 51_863},
    51_865: {"<|endoftext|>": 50_257, "<|startoftranscript|>": 50_258, "<|en|>": 50_259,
             "<|transcribe|>": 50_359, "<|notimestamps|>": 50_363, "<|30.00|>": 51_864},
    51_866: {"<|yue|>": 50_358, "<|transcribe|>": 50_360, "<|notimestamps|>": 50_364,
             "<|30.00|>": 51_865},
}  # fmt: skip


@pytest.mark.parametrize("rows", NUMBERS)
def test_special_tokens_have_their_numbers(rows: int) -> None:
    found = whisper_specials(rows)
    assert NUMBERS[rows].items() <= found.items()
    assert sorted(found.values()) == list(range(min(found.values()), rows))
    assert len(set(LANGUAGES)) == 100


def test_a_model_of_another_size_has_the_tokens_that_its_files_say() -> None:
    assert whisper_specials(51_863) == {}


def bytes_alone() -> tokenizers.Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "-"), ("(", "(")]
    pieces = [*letters, "Ġ-", "(("]
    inner = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.add_special_tokens(["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"])
    return inner


def test_signs_of_one_piece_are_never_written() -> None:
    found = unspoken_pieces(bytes_alone())
    assert {"(", "((", "Ġ-", '"', "~"} <= set(found)
    assert not {"-", "'", "a", "."} & set(found)
    assert "â" in found  # the first byte of a note of music


def test_a_folder_may_say_what_is_suppressed() -> None:
    inner = bytes_alone()
    usual = whisper_roles(inner, {}, "here")
    assert usual.never_first == ("Ġ", "<|endoftext|>")
    assert usual.target_begin == "<|notimestamps|>"
    a, b = inner.token_to_id("a"), inner.token_to_id("b")
    end = inner.token_to_id("<|endoftext|>")
    suppressed = {"suppress_tokens": [a, end, -1], "begin_suppress_tokens": [b]}
    roles = whisper_roles(inner, suppressed, "here")
    assert (roles.unwritten, roles.banned, roles.never_first) == (
        ("a",),
        ("<|endoftext|>",),
        ("b",),
    )
    nothing = whisper_roles(inner, {"suppress_tokens": None, "begin_suppress_tokens": []}, "here")
    assert (nothing.unwritten, nothing.never_first) == ((), ())


def test_texts_are_tokenised_with_a_leading_space() -> None:
    inner = bytes_alone()
    assert inner.encode("a").tokens == ["a"]
    assert add_space(inner).encode("a").tokens == ["Ġ", "a"]


def test_a_vocabulary_without_whisper_tokens_is_an_error(tmp_path: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    (tmp_path / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(letters)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(DataError, match=naming("vocab.json", "'<|endoftext|>'")):
        load_foreign(tmp_path, {"model_type": "whisper"}, 260)


def test_a_model_of_many_languages_chooses_its_language_but_writes_no_times() -> None:
    inner = bytes_alone()
    inner.add_special_tokens(["<|de|>", "<|transcribe|>", "<|translate|>", "<|0.00|>", "<|0.02|>"])
    roles = whisper_roles(inner, {"is_multilingual": True}, "here")
    assert roles.target_begin is None
    assert {"<|translate|>", "<|0.00|>", "<|0.02|>"} <= set(roles.banned)
    assert not {"<|transcribe|>", "<|de|>", "<|notimestamps|>"} & set(roles.banned)
    assert whisper_roles(inner, {}, "here").target_begin == "<|notimestamps|>"
