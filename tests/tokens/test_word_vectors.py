"""Word vectors land on the pieces that are their words, at the scale of the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from headway.errors import DataError
from headway.settings.data import TokenizerSettings
from headway.tokens.tokenizer import Tokenizer
from headway.tokens.trainer import train_on_texts
from headway.tokens.word_vectors import embedding_matrix, read_vectors
from tests.facts import naming

LINES = ["the dog sleeps , the Cat eats"] * 9


def tokenizer(kind: str = "words") -> Tokenizer:
    return train_on_texts(LINES, TokenizerSettings(kind=kind, vocab_size=400), 99)  # type: ignore[arg-type]


def write(folder: Path, *lines: str) -> Path:
    path = folder / "vectors.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize("kind", ["words", "bpe", "unigram", "wordpiece"])
@pytest.mark.parametrize("header", [[], ["4 3"]])
def test_words_take_their_vectors(tmp_path: Path, kind: str, header: list[str]) -> None:
    path = write(tmp_path, *header, "dog 1 2 3", "cat -1 0 1", ". . 9 9 9", "Dog 7 7 7", "og 5 5 5")
    made = tokenizer(kind)
    matrix_VD, covered = embedding_matrix(path, made, 3, std=0.02)
    assert matrix_VD.shape == (made.vocab_size, 3)
    assert covered >= 2
    [dog], [cat] = made.encode("dog"), made.encode("Cat")  # cat by its lower case
    rows_2D = matrix_VD[[dog, cat]]
    ratio = rows_2D / torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 1.0]])
    scale = ratio[0, 0]
    assert torch.allclose(rows_2D, scale * torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 1.0]]))
    if covered == 2:
        assert float(rows_2D.std(correction=0)) == pytest.approx(0.02, rel=1e-4)
    others = [i for i in range(made.vocab_size) if i not in (dog, cat)]
    if kind == "bpe":
        assert float(matrix_VD[others].std()) == pytest.approx(0.02, rel=0.2)
    again, _ = embedding_matrix(path, made, 3, std=0.02)
    assert torch.equal(again, matrix_VD)


def test_the_exact_word_and_the_first_line_take_precedence(tmp_path: Path) -> None:
    path = write(tmp_path, "cat 1 0", "Cat 0 1", "Cat 5 5", "123 2 2")
    assert {w: v.tolist() for w, v in read_vectors(path, {"cat", "Cat", "123"}, 2).items()} == {
        "cat": [1, 0],
        "Cat": [0, 1],
        "123": [2, 2],
    }
    made = tokenizer()
    matrix_VD, covered = embedding_matrix(path, made, 2, std=1.0)
    assert covered == 1
    row = matrix_VD[made.encode("Cat")[0]].numpy()
    assert row[0] == 0
    assert row[1] > 0
    words_with_blanks = write(tmp_path, ". . . 1 2", "dog 3 4 ")
    found = read_vectors(words_with_blanks, {". . .", "dog"}, 2)
    assert np.array_equal(found[". . ."], [1, 2])
    assert np.array_equal(found["dog"], [3, 4])


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        (["dog 1 2 3 4 5"], "5 model.d_model=3 model.d_model=5"),
        (["2 300", "dog 1"], "300 model.d_model=3 model.d_model=300"),
        (["the 1 2 3", "dog 1 2"], "2 3 'dog 1 2'"),
        (["the 1 2 3", "dog 1 x 3"], "2 'x'"),
        (["the 1 2 3", "dog 1 nan 3"], "2"),
        (["no 1 2 3"], "6"),
        ([], "6"),
    ],
)
def test_invalid_vectors_are_named(tmp_path: Path, lines: list[str], facts: str) -> None:
    with pytest.raises(DataError, match=naming("vectors.txt", facts)):
        embedding_matrix(write(tmp_path, *lines), tokenizer(), 3, std=1.0)


def test_files_that_are_not_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming(tmp_path / "none")) as caught:
        embedding_matrix(tmp_path / "none", tokenizer(), 3, 1.0)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    (tmp_path / "v.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=naming("v.bin", "UTF-8")):
        embedding_matrix(tmp_path / "v.bin", tokenizer(), 3, 1.0)
