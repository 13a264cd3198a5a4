"""Tokenizers of other people may hold anything: none takes all time or memory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from headway.errors import DataError
from headway.tokens import bytepairs
from headway.tokens.foreign import load_foreign
from headway.tokens.json_limits import MOST_TOKENS, check_tokenizer, may_backtrack_forever
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.tokenizer_json import SUBWORD_CUTS, WORD_CUTS
from tests.facts import naming

WORDS = {"</s>": 0, "<unk>": 1, "a": 2, "b": 3}


def facts(**parts: Any) -> dict[str, Any]:
    """The JSON of a tokenizer of four tokens, some of its parts replaced."""
    made = Library(models.WordLevel(WORDS, unk_token="<unk>"))
    made.add_special_tokens([AddedToken("</s>"), AddedToken("<unk>")])
    return {**json.loads(made.to_str()), **parts}


def split(regex: str) -> dict[str, Any]:
    cuts = {"type": "Split", "behavior": "Isolated", "invert": False}
    return {**cuts, "pattern": {"Regex": regex}}


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


ENDLESS = [
    "(a+)+$", "(a|a)*$", "(?:a*)*b", "(a|aa)+$", "((a|b)c)*d", "(?<x>a+){2,}b", r"(\w+\s?)*$",
    "([a-z]+)*x", "(a?){30}a{30}", r"(?i:(a)\1?)+", "(?=(a+)+)b", "(a{1,9})+b", "((ab)+)*c",
    r"(?<n>a\g<n>?\g<n>?)[bd]", r"(?<n>a\g'n'|a)b",
]  # fmt: skip


@pytest.mark.parametrize("regex", ENDLESS)
def test_a_pattern_with_exponential_backtracking_is_an_error_at_once(regex: str) -> None:
    begun = time.process_time()
    for name, part in {
        "pre_tokenizer": split(regex),
        "normalizer": sequence({"type": "NFC"}, replace({"Regex": regex}, "x")),
    }.items():
        text = json.dumps(facts(**{name: part}))
        with pytest.raises(DataError, match=naming("in.json", repr(regex))):
            Tokenizer.from_json(text, "in.json")
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize(
    "regex",
    [
        bytepairs.GPT2_CUTS, bytepairs.CL100K_CUTS, bytepairs.QWEN_CUTS, bytepairs.O200K_CUTS,
        SUBWORD_CUTS, WORD_CUTS,
        r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",  # thousands from the right
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        r"(?:ab)+|(?:[ab]c)*|(a|b)?|(a+){1}|\(a+\)+|[(a+)]+|a{2,}",
    ],
)  # fmt: skip
def test_patterns_of_real_tokenizers_are_read(regex: str) -> None:
    assert not may_backtrack_forever(regex)
    Tokenizer.from_json(json.dumps(facts(pre_tokenizer=split(regex))), "in.json")


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (sequence(*[replace({"String": "a"}, "aa")] * 40), "1,099,511,627,776 10"),
        (sequence(*[replace({"Regex": "x*"}, "a")] * 40), "1,099,511,627,776 10"),
        (sequence(*[replace({"String": ""}, "a")] * 40), "1,099,511,627,776 10"),
        (replace({"Regex": "[ab]"}, "c" * 900), "900 10"),
        (replace({"String": "a"}, "c" * 2000), "1,000"),
        ({"type": "Prepend", "prepend": "c" * 2000}, "1,000"),
        (sequence(*[{"type": "NFKD"}, replace({"String": "ا"}, "ﷺ")] * 9), "11,019,960,576 10"),
        (sequence(sequence(*[{"type": "ByteLevel"}] * 9)), "65,536 10"),
        (sequence(*[{"type": "NFC"}] * 100), "100 64"),
    ],
)
def test_replacements_that_grow_are_errors(part: dict[str, Any], named: str) -> None:
    with pytest.raises(DataError, match=naming("in.json", "normalizer", named)):
        Tokenizer.from_json(json.dumps(facts(normalizer=part)), "in.json")


def test_replacements_of_real_tokenizers_are_read() -> None:
    spaces = [replace({"String": " "}, "▁"), replace({"Regex": " {2,}"}, " "), {"type": "NFKC"}]
    quotes = [replace({"String": "``"}, '"'), replace({"String": "…"}, "...")]
    part = sequence({"type": "Prepend", "prepend": "▁"}, *spaces, *quotes, {"type": "Lowercase"})
    Tokenizer.from_json(json.dumps(facts(normalizer=part)), "in.json")


@pytest.mark.parametrize("number", [2**31, 2**31 - 1, MOST_TOKENS])
def test_a_token_with_an_impossible_number_is_an_error(number: int) -> None:
    far = facts()
    far["model"]["vocab"]["far"] = number
    with pytest.raises(DataError, match=naming("in.json", "'far'", number)):
        Tokenizer.from_json(json.dumps(far), "in.json")
    added = facts()
    added["added_tokens"].append({**added["added_tokens"][0], "content": "far", "id": number})
    with pytest.raises(DataError, match=naming("in.json", "'far'", number)):
        check_tokenizer(added, "in.json")


def test_numbers_that_are_left_out_are_named() -> None:
    far = facts()
    far["model"]["vocab"]["far"] = 50
    with pytest.raises(DataError, match=naming("in.json", 5, "'far'", 50)):
        Tokenizer.from_json(json.dumps(far), "in.json")


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (
            {"tokenizer.json": json.dumps(facts(pre_tokenizer=split("(a+)+$")))},
            "tokenizer.json '(a+)+$'",
        ),
        ({"vocab.json": '{"a": 2147483648}', "merges.txt": ""}, "vocab.json 'a' 2147483648"),
        (
            {"tokenizer_config.json": '{"added_tokens_decoder": {"4294967296": "x"}}'},
            "tokenizer_config.json 'x' '4294967296'",
        ),
        (
            {"tokenizer_config.json": '{"added_tokens_decoder": {"²": "x"}}'},
            "tokenizer_config.json 'x' '²'",
        ),
        (
            {"generation_config.json": '{"eos_token_id": 1099511627776}'},
            "eos_token_id 1099511627776",
        ),
    ],
)
def test_an_imported_folder_is_checked_alike(
    tmp_path: Path, files: dict[str, str], named: str
) -> None:
    if "vocab.json" not in files:
        (tmp_path / "tokenizer.json").write_text(json.dumps(facts()))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=naming(named)):
        load_foreign(tmp_path, {"model_type": "gpt2"}, 4)


def test_a_run_folder_is_checked_alike(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"tokenizer": facts(pre_tokenizer=split("(a+)+$"))}))
    with pytest.raises(DataError, match=naming(path, "'(a+)+$'")):
        Vocabularies.load(path)


def test_a_panic_of_the_library_is_a_data_error() -> None:
    """Whatever pattern gets through: the library gives up by itself, in a way of its own."""
    inner = Library(models.WordLevel(WORDS, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("(a|a)*$"), "isolated")
    inner.normalizer = normalizers.Replace(Regex("(b|b)*$"), "b")
    made = Tokenizer(inner)
    with pytest.raises(DataError, match="retry-limit"):
        made.encode("a" * 40 + "c")
    with pytest.raises(DataError, match="retry-limit"):
        made.normalise("b" * 40 + "c")
