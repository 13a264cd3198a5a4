"""Tokens with other parts than their names tell, and the file that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.errors import DataError
from headway.settings.data import TokenizerSettings
from headway.tokens.special_tokens import TokenRoles
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_vocabularies
from tests.facts import naming

LINES = ["The cat sat on the mat.", "Der Hund lief über die Straße."] * 4
ROLES = TokenRoles(
    bos="<pad>", eos="</s>", unk="<unk>", source_begin="<s>", target_begin="<2de>", pair_ends=2,
    banned=("<pad>", "<s>"),
)  # fmt: skip


def plain() -> Tokenizer:
    made = train_vocabularies(LINES, LINES, TokenizerSettings(vocab_size=300), 8).source
    return made.with_specials(["<pad>", "<2de>"])


def with_roles(roles: TokenRoles = ROLES) -> Tokenizer:
    return Tokenizer.from_json(
        json.dumps({"tokenizer": json.loads(plain().to_json()), "roles": roles.as_dict()}), "t"
    )


def test_roles_come_back_from_the_file(tmp_path: Path) -> None:
    one, other = with_roles(), plain()
    for vocab in (Vocabularies(one, one), Vocabularies(one, other), Vocabularies(other, one)):
        vocab.save(tmp_path / "tokenizer.json")
        again = Vocabularies.load(tmp_path / "tokenizer.json")
        assert again.joint == vocab.joint
        for before, after in ((vocab.source, again.source), (vocab.target, again.target)):
            assert after.roles == before.roles
            assert after.to_json() == before.to_json()
            assert after.encode(LINES[1]) == before.encode(LINES[1])


def test_a_tokenizer_without_roles_keeps_its_file_byte_for_byte(tmp_path: Path) -> None:
    tokenizer = plain()
    text = tokenizer.library_json()
    assert tokenizer.to_json() == text
    Vocabularies(tokenizer, tokenizer).save(tmp_path / "tokenizer.json")
    assert (tmp_path / "tokenizer.json").read_text() == text
    assert tokenizer.prompt_ends == ((tokenizer.bos,), ())
    assert tokenizer.text_ends == ((tokenizer.bos,), (tokenizer.eos,))
    assert tokenizer.pair_ends == 1
    assert tokenizer.banned == ()
    assert tokenizer.source_begin is tokenizer.target_begin is tokenizer.roles is None


def test_roles_say_which_token_plays_which_part() -> None:
    tokenizer = with_roles()
    number = tokenizer.special
    assert tokenizer.bos == number("<pad>")
    assert tokenizer.eos == number("</s>")
    assert tokenizer.source_begin == number("<s>")
    assert tokenizer.target_begin == number("<2de>")
    assert tokenizer.banned == (number("<pad>"), number("<s>"))
    assert tokenizer.as_source([7, 8]) == [number("<s>"), 7, 8, tokenizer.eos]
    assert tokenizer.vocab_size == plain().vocab_size  # nothing was added
    more = tokenizer.with_specials(["<mask>"])
    assert more.roles == ROLES
    assert more.mask == tokenizer.vocab_size
    silent = with_roles(TokenRoles(bos="<s>", eos="</s>", begins=False))
    assert (silent.as_prompt([5]), silent.as_prompt([])) == ([5], [silent.bos])


@pytest.mark.parametrize(
    ("roles", "facts"),
    [
        ({"bos": "<s>"}, "bos eos"),
        ({"bos": "<s>", "eos": "</s>", "pair_ends": 0}, "pair_ends 1"),
        ({"bos": "<s>", "eos": "</s>", "begin": True}, "'begin' 'begins'"),
        ({"bos": "<s>", "eos": 3}, "eos 3"),
        ({"bos": "<s>", "eos": "</s>", "banned": [3]}, "banned [3]"),
        ({"bos": "<s>", "eos": "<none>"}, "'<none>'"),
        ({"bos": "<s>", "eos": "</s>", "mask": "<no>"}, "'<no>'"),
        ("bos", "'bos'"),
    ],
)
def test_roles_that_make_no_sense_are_named(roles: object, facts: str) -> None:
    text = json.dumps({"tokenizer": json.loads(plain().to_json()), "roles": roles})
    with pytest.raises(DataError, match=naming("t.json", facts)):
        Tokenizer.from_json(text, "t.json")
