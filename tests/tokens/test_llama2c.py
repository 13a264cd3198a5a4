"""The tokenizer.bin of llama2.c gives the ids that its program gives."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import DataError
from headway.tokens.files import load_tokenizer
from headway.tokens.llama2c import load_llama2c_tokenizer
from tests.facts import naming
from tests.tokens.spm_models import trained
from tests.tokens.torture import SPELLED, TORTURE

Pieces = list[tuple[bytes, float]]


def pieces_of_a_model() -> Pieces:
    """As its export writes them: blanks for marks, line ends around the special tokens."""
    model = trained(model_type="bpe", byte_fallback=True, normalization_rule_name="identity")
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = []
    for i in range(library.vocab_size()):
        piece = library.id_to_piece(i)
        piece = f"\n{piece}\n" if piece in ("<s>", "</s>") else piece.replace("▁", " ")
        found.append((piece.encode(), library.get_score(i)))
    return found


def write(path: Path, pieces: Pieces) -> Path:
    longest = max(len(piece) for piece, _ in pieces)
    parts = [struct.pack("<fi", score, len(piece)) + piece for piece, score in pieces]
    path.write_bytes(struct.pack("<i", longest) + b"".join(parts))
    return path


def by_its_rule(pieces: Pieces, text: str) -> list[int]:
    """A blank first; characters, or their bytes; then the best pair of all, again and again."""
    numbers = {piece: i for i, (piece, _) in enumerate(pieces)}
    ids = [numbers[b" "]] if text else []
    for character in text:
        whole = character.encode()
        ids += [numbers[whole]] if whole in numbers else [byte + 3 for byte in whole]
    while True:
        best, at = -1e10, -1
        for place in range(len(ids) - 1):
            made = numbers.get(pieces[ids[place]][0] + pieces[ids[place + 1]][0])
            if made is not None and pieces[made][1] > best:
                best, at = pieces[made][1], place
        if at < 0:
            return ids
        ids[at : at + 2] = [numbers[pieces[ids[at]][0] + pieces[ids[at + 1]][0]]]


def test_ids_are_those_of_its_rule(tmp_path: Path) -> None:
    pieces = pieces_of_a_model()
    path = write(tmp_path / "tokenizer.bin", pieces)
    ours = load_llama2c_tokenizer(path, len(pieces) + 4)
    assert ours.vocab_size == len(pieces) + 4
    for name, text in (TORTURE | SPELLED).items():
        if len(text) < 1000:
            assert ours.encode(text) == by_its_rule(pieces, text), name
        assert ours.decode(ours.encode(text)) == text, name
    assert (ours.bos, ours.eos, ours.unk, ours.as_prompt([9])) == (1, 1, 0, [1, 9])

    @settings(deadline=None, max_examples=100)
    @given(st.text(st.sampled_from("  aathecatdogs.é漢\n▁<s>"), max_size=30))
    def check(text: str) -> None:
        assert ours.encode(text) == by_its_rule(pieces, text)

    check()
    for place in (path, tmp_path):
        assert load_tokenizer(place).encode("The cat") == ours.encode("The cat")
    with pytest.raises(DataError, match=naming("tokenizer.bin", 100, "1,099")):
        load_llama2c_tokenizer(path, 100)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    pieces = pieces_of_a_model()
    path = write(tmp_path / "tokenizer.bin", pieces)
    whole = path.read_bytes()
    reasons = set()
    for changed, facts in (
        (whole[:-1], "1,099 4"),
        (whole + b"\0\0", "1,100"),
        (whole + struct.pack("<fi", 0, -5), "1,100 -5"),
        (whole + struct.pack("<fi", 0, 2**31 - 1), "1,100 2,147,483,647"),
        (whole + struct.pack("<fi", float("nan"), 1) + b"x", "1,100 nan"),
        (whole + struct.pack("<fi", 0, 1) + b"\xff", "1,100 UTF-8"),
        (whole + struct.pack("<fi", 0, 1) + b"a", "1,100 'a'"),
        (whole[:4], "'</s>'"),
        (b"", "'</s>'"),
    ):
        path.write_bytes(changed)
        with pytest.raises(DataError, match=naming(path, facts)) as caught:
            load_llama2c_tokenizer(path)
        reasons.add(str(caught.value))
    assert len(reasons) == 8  # one for both files without pieces
    with pytest.raises(DataError, match=naming(tmp_path / "none.bin")) as caught:
        load_llama2c_tokenizer(tmp_path / "none.bin")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
