"""SentencePiece models give the ids that the SentencePiece library gives, except for rare texts."""

from __future__ import annotations

import contextlib
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headway.errors import DataError, UserError
from headway.tokens.files import load_tokenizer
from headway.tokens.spm import read_sentencepiece
from headway.tokens.tokenizer import Tokenizer
from tests.facts import naming
from tests.tokens.spm_models import trained
from tests.tokens.torture import SPELLED, TIED, TORTURE

EVERYTHING = TORTURE | SPELLED
WAYS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "unigram, bytes": {"byte_fallback": True},
    "unigram, as it is": {
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
    "unigram, no prefix": {"add_dummy_prefix": False, "byte_fallback": True},
    "unigram, folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "unigram, across words": {"split_by_whitespace": False},
    "bpe": {"model_type": "bpe"},
    "bpe, bytes": {"model_type": "bpe", "byte_fallback": True},
    "bpe, like Llama": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
        "allow_whitespace_only_pieces": True,
    },
    "bpe, no prefix": {"model_type": "bpe", "add_dummy_prefix": False},
    "bpe, across words": {"model_type": "bpe", "split_by_whitespace": False},
    "bpe, own pieces": {"model_type": "bpe", "user_defined_symbols": ["<sep>", "fox", "ü"]},
    "bpe, own blanks": {
        "model_type": "bpe",
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["▁▁", "▁▁▁▁", "\n"],
    },
    "bpe, own capitals": {
        "model_type": "bpe",
        "normalization_rule_name": "nmt_nfkc_cf",
        "user_defined_symbols": ["<sep>", "<SEP>"],
    },
    "unigram, own pieces": {"user_defined_symbols": ["<sep>", "fox", "ü"]},
    "unigram, more control": {"control_symbols": ["<2de>", "cat"], "pad_id": 3},
    "char": {"model_type": "char"},
}
TEXTS = st.text(
    st.sampled_from("  \n\t▁'.<>/0123\u00a0\u200b\u3000éÄß東京😀\x00")
    | st.sampled_from("aathecatdogsxfop")
    | st.characters(exclude_categories=["Cs", "Mn", "Mc", "Me", "Nl"]),
    max_size=40,
)
REPEATED = re.compile(r"(.{1,4}?)\1\1", re.DOTALL)
"""Part of a text that may have several equally likely segmentations."""


def differing(way: str) -> set[str]:
    """Names of the texts for which the ids differ from those of the library."""
    tied = TIED if way.startswith("unigram") else set()
    own = WAYS[way].get("user_defined_symbols", []) if way.startswith("bpe") else []
    return tied | {name for name, text in EVERYTHING.items() if text in own}


def same_text(ours: Tokenizer, ids: list[int], theirs: Any, ids_there: list[int]) -> bool:
    """Whether both segmentations decode to the same letters, or contain unknown characters."""
    if theirs.unk_id() in (*ids, *ids_there):
        return True
    return ours.decode(ids).replace(" ", "") == theirs.decode(ids_there).replace(" ", "")


def both(path: Path, way: str) -> tuple[Tokenizer, Any]:
    model = trained(**{k: v if type(v) is not list else ",".join(v) for k, v in WAYS[way].items()})
    (path / "spiece.model").write_bytes(model)
    return load_tokenizer(path), sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.parametrize("way", WAYS)
def test_ids_and_texts_are_those_of_the_library(way: str, tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, way)
    again = Tokenizer.from_json(ours.to_json(), "again")
    assert again.to_json() == ours.to_json()
    texts = list(EVERYTHING.values())
    wanted = theirs.encode(texts)
    for tokenizer in (ours, again):
        found = tokenizer.encode_batch(texts)
        for name, ids, ids_there in zip(EVERYTHING, found, wanted, strict=True):
            if name in differing(way):
                assert same_text(ours, ids, theirs, ids_there), name
            else:
                assert ids == ids_there, name
    for name, ids in zip(EVERYTHING, wanted, strict=True):
        if theirs.unk_id() not in ids:  # where there is text for an unknown token, we have none
            assert ours.decode(ids) == theirs.decode(ids), name

    @settings(deadline=None, max_examples=30)
    @given(TEXTS)
    @example("<sep> a")
    @example("fox<sep>ü fox  u\u0308<sep> ")
    @example("ｶﾞｷﾞ ﾊﾟ")
    @example("e\u0323\u0302 n\u0303 \u1112\u1161\u11ab \u1112\u1161")
    def check(text: str) -> None:
        assume(not REPEATED.search(text))
        assume(text not in WAYS[way].get("user_defined_symbols", []))  # no space before it
        assert ours.encode(text) == theirs.encode(text)

    check()


def test_the_text_comes_back_where_the_model_loses_nothing(tmp_path: Path) -> None:
    ours, _ = both(tmp_path, "bpe, like Llama")
    for name, text in EVERYTHING.items():
        assert ours.decode(ours.encode(text)) == text.replace("▁", " "), name
        assert ours.normalise(text) == text.replace("▁", " "), name
    assert ours.covers_everything
    assert not ours.unknown_characters("漢")


def test_properties_of_a_model_are_known(tmp_path: Path) -> None:
    ours, theirs = both(tmp_path, "unigram")
    assert (ours.unk, ours.bos, ours.eos) == (0, 1, 2)
    assert ours.vocab_size == theirs.vocab_size()
    assert ours.normalise("  ﬁne\u00a0 \tday ") == "fine day"
    assert ours.unknown_characters("a\u4e01") == {"\u4e01"}
    assert ours.tokens(ours.encode("The cat"))[0].startswith("▁")
    pieces = ours.encode("The quick brown fox didn't")
    starts = ours.word_starts(pieces).tolist()
    words = [p for p, start in zip(ours.tokens(pieces), starts, strict=True) if start]
    assert [w for w in words if w.startswith("▁")] == [
        p for p in ours.tokens(pieces) if p.startswith("▁")
    ]


def test_parts_of_a_document_continue_without_a_space(tmp_path: Path) -> None:
    ours, _ = both(tmp_path, "bpe, like Llama")
    parts = ["The cat", " sat on", "the mat", "  and"]
    flat = ours.encode_parts(parts, np.array([False, True, True, True]))
    assert ours.decode(flat.ids.tolist()) == "".join(parts)


def field(number: int, data: bytes) -> bytes:
    size = len(data)
    return bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7]) + data


def table(units: dict[int, int], texts: bytes = b"a\0") -> bytes:
    """A table of characters whose trie begins at 256, with these units."""
    there = np.zeros(512, "<u4")
    there[0] = 256 << 10
    for at, unit in units.items():
        there[at] = unit
    return field(3, field(2, struct.pack("<I", there.nbytes) + there.tobytes() + texts))


def piece(text: bytes, score: float = -1.0, kind: int = 1) -> bytes:
    inner = field(1, text) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
    return field(1, inner)


WHOLE = piece(b"<unk>", 0, 2) + piece(b"<s>", 0, 3) + piece(b"</s>", 0, 3) + piece(b"a")
DAMAGED = {
    "empty piece": (piece(b"<unk>", 0, 2) + piece(b""), "1"),
    "repeated piece": (WHOLE + piece(b"a"), "'a'"),
    "invalid text": (WHOLE + piece(b"\xff\xfe"), "UTF-8 4"),
    "invalid score": (WHOLE + piece(b"b", float("nan")), "'b' nan"),
    "truncated number": (WHOLE + b"\x88\x80", "ModelProto"),
    "no unknown piece": (piece(b"a"), "0 1"),
    "two unknown pieces": (WHOLE + piece(b"b", 0, 2), "2 1"),
    "missing byte pieces": (WHOLE + field(2, b"\x98\x02\x01"), ""),
    "word model": (WHOLE + field(2, b"\x18\x03"), "'word' unigram bpe"),
    "space as suffix": (WHOLE + field(2, b"\xc0\x01\x01"), ""),
    "charsmap size": (WHOLE + field(3, field(2, b"\xff\xff\xff\x7f1234")), ""),
}
"""Damaged models, with the facts that their error messages hold."""

BROKEN = {
    "long number": b"\x88" + b"\xff" * 12,
    "truncated field": b"\x0a\xff\xff\xff\xff\x0f",
    "field 0": b"\x00\x00",
    "unknown wire type": b"\x0b",
}
"""Ends of files that are not Protocol Buffers messages."""


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_models_are_errors_with_the_reason(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "x.model"
    path.write_bytes(WHOLE)
    load_tokenizer(path)
    model, facts = DAMAGED[damage]
    path.write_bytes(model)
    with pytest.raises(DataError, match=naming(path, facts)):
        load_tokenizer(path)


TABLES = {
    "offset": table({256 ^ 97: 97 | 1 << 8 | 4000 << 10}),
    "short key": table({256 ^ 0xC3: 0xC3 | 1 << 8}),
    "text": table({256 ^ 97: 97 | 1 << 8 | 1 << 10, 256 ^ 96: 1 << 31 | 99}),
    "key": table({0x1F4: 0xF4 | 1 << 10, 0x165: 0x90, 0x1E5: 0x80, 0x164: 0x81}),
}
"""Damaged tables of characters, which only a text that meets the damage shows."""


@pytest.mark.parametrize("damage", TABLES)
def test_damaged_tables_of_characters_do_no_more_than_raise(damage: str, tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(WHOLE + TABLES[damage])
    tokenizer = load_tokenizer(tmp_path / "x.model")
    for text in ("a", "aé", "Ã", "\U00010000", "漢 e\u0301"):
        with contextlib.suppress(DataError):
            tokenizer.encode(text)


@pytest.mark.parametrize("end", BROKEN)
def test_files_that_are_not_messages_are_errors(end: str, tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(WHOLE + BROKEN[end])
    with pytest.raises(DataError, match=naming(tmp_path / "x.model", "ModelProto")):
        load_tokenizer(tmp_path / "x.model")


@pytest.mark.parametrize("package", ["sentencepiece", "google.protobuf"])
def test_only_the_first_reading_needs_the_package(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _ = both(tmp_path, "unigram")
    stored = ours.to_json()
    for name in list(sys.modules):
        if name.startswith(("sentencepiece", package)):
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=naming("pip install 'headway[sentencepiece]'")):
        load_tokenizer(tmp_path)
    assert Tokenizer.from_json(stored, "run").encode("The cat") == ours.encode("The cat")


def test_different_damage_has_different_reasons(tmp_path: Path) -> None:
    path, reasons = tmp_path / "x.model", set()
    for model, _ in DAMAGED.values():
        path.write_bytes(model)
        with pytest.raises(DataError) as caught:
            load_tokenizer(path)
        reasons.add(str(caught.value))
    assert len(reasons) == len(DAMAGED)


def test_absent_and_huge_files_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=naming(tmp_path / "x.model")):
        load_tokenizer(tmp_path / "x.model")
    with pytest.raises(DataError, match=naming(tmp_path / "x.model")) as caught:
        read_sentencepiece(tmp_path / "x.model")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    (tmp_path / "x.model").write_bytes(WHOLE)
    monkeypatch.setattr("headway.tokens.spm.MAX_FILE", 10)
    with pytest.raises(DataError, match=naming(tmp_path / "x.model", 10)):
        load_tokenizer(tmp_path / "x.model")


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_mangled_models_never_do_more_than_be_refused(data: st.DataObject) -> None:
    way = data.draw(st.sampled_from([{}, {"model_type": "bpe", "byte_fallback": True}]))
    whole = bytearray(trained(**way))
    table = data.draw(st.booleans())  # half of the changes go where the table of characters is
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(whole) - 1))
        if not table:
            at %= 20_000
        match data.draw(st.sampled_from(["set", "cut", "put", "double"])):
            case "set":
                whole[at] = data.draw(st.integers(0, 255))
            case "cut":
                del whole[at : at + data.draw(st.integers(1, 2_000))]
            case "put":
                whole[at:at] = data.draw(st.binary(max_size=20))
            case "double":
                whole[at:at] = whole[at : at + data.draw(st.integers(1, 200))]
        if not whole:
            return
    path = MANGLED / "x.model"
    path.write_bytes(whole)
    with contextlib.suppress(DataError):
        load_tokenizer(path).encode("The cat e\u0301 ﬁ ▁ \u1112\u1161 漢 aaaa")


MANGLED = Path()


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global MANGLED
    MANGLED = tmp_path_factory.mktemp("mangled")
