"""Documents as a language model reads them: plain ones, and ones that are made of fields."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.causal_lm import (
    DEFAULT_EPOCH,
    DocumentStream,
    FieldMarks,
    FieldStream,
    mark_names,
)
from headway.data.document_windows import fixed_windows, random_windows
from headway.data.token_store import TokenStore

BOS, EOS = 1, 2
DOCUMENTS = st.lists(st.lists(st.integers(10, 99), max_size=20), min_size=1, max_size=8)
MARKS = {"title": FieldMarks(3, 4), "date": FieldMarks(5, 6), "body": FieldMarks(7, 8)}


def store(documents: list[list[int]]) -> TokenStore:
    tokens = np.array([token for document in documents for token in document], np.uint16)
    return TokenStore(tokens, np.array([len(document) for document in documents], np.int32))


def fields_of(
    documents: list[dict[str, list[int]]], drop: float = 0.3, seed: int = 0
) -> FieldStream:
    stores = {name: store([document.get(name, []) for document in documents]) for name in MARKS}
    return FieldStream(stores, MARKS, BOS, EOS, drop, seed)


def some_fields(n: int) -> list[dict[str, list[int]]]:
    draw = np.random.default_rng(0)
    return [
        {name: draw.integers(10, 99, draw.integers(1, 6)).tolist() for name in MARKS}
        for _ in range(n)
    ]


@given(DOCUMENTS, st.integers(1, 9), st.integers(0, 3))
def test_every_token_is_predicted_once_from_the_one_before_it(
    documents: list[list[int]], context: int, epoch: int
) -> None:
    """Also by the windows of an epoch, which come in any order."""
    stream = DocumentStream(store(documents), BOS, EOS)
    assert stream.lengths(epoch).tolist() == [len(document) + 1 for document in documents]
    cut = random_windows(stream.lengths(epoch), context, 0, epoch)
    order = np.random.default_rng(epoch).permutation(len(cut))
    inputs, labels = stream.read(epoch, cut.document[order], cut.start[order], cut.length[order])
    assert len(inputs) == len(labels) == cut.length.sum()
    read = {}
    ends = np.cumsum(cut.length[order])
    for row, end in zip(order, ends, strict=True):
        window = slice(end - cut.length[row], end)
        read[cut.document[row], cut.start[row]] = inputs[window].tolist(), labels[window].tolist()
    for number, document in enumerate(documents):
        whole = [BOS, *document, EOS]
        mine = [read[key] for key in sorted(read) if key[0] == number]
        assert [token for tokens, _ in mine for token in tokens] == whole[:-1]
        assert [token for _, tokens in mine for token in tokens] == whole[1:]


def test_a_document_without_words_is_a_beginning_and_an_end() -> None:
    for documents in ([[]], [[20], [], [21]]):
        stream = DocumentStream(store(documents), BOS, EOS)
        place = np.array([documents.index([])])
        inputs, labels = stream.read(0, place, np.array([0]), np.array([1]))
        assert (inputs.tolist(), labels.tolist()) == ([BOS], [EOS])


def parsed(tokens: list[int]) -> dict[str, list[int]]:
    """The fields of a document in the order they stand in it."""
    assert (tokens[0], tokens[-1]) == (BOS, EOS)
    opened = {marks.open: name for name, marks in MARKS.items()}
    found, at = {}, 1
    while at < len(tokens) - 1:
        name = opened[tokens[at]]
        end = tokens.index(MARKS[name].close, at)
        assert name not in found
        found[name] = tokens[at + 1 : end]
        at = end + 1
    return found


@given(st.lists(st.fixed_dictionaries({}, optional={
    name: st.lists(st.integers(10, 99), min_size=1, max_size=4) for name in MARKS}),
    min_size=1, max_size=6), st.integers(0, 9), st.sampled_from([0.0, 0.3, 1.0]))  # fmt: skip
def test_kept_fields_are_enclosed_in_their_markers(
    documents: list[dict[str, list[int]]], epoch: int, drop: float
) -> None:
    stream = fields_of(documents, drop)
    for at in (epoch, DEFAULT_EPOCH):
        lengths = stream.lengths(at)
        for number, document in enumerate(documents):
            tokens = stream.document(at, number).tolist()
            assert len(tokens) == lengths[number] + 1
            found = parsed(tokens)
            assert found.items() <= document.items()
            assert bool(found) == bool(document)  # at least one field stays
            if at == DEFAULT_EPOCH:
                assert list(found) == [name for name in MARKS if name in document]
            elif drop == 0.0:
                assert found == document


def test_the_share_that_is_left_out_is_about_right_and_orders_are_all_there() -> None:
    stream = fields_of(some_fields(4000), drop=0.2)
    kept_DF, order_DF = stream.choice(0)
    assert kept_DF.mean(0) == pytest.approx([0.8] * 3, abs=0.03)
    assert kept_DF.any(1).all()
    orders = {tuple(order) for order in order_DF}
    assert len(orders) == 6
    assert np.mean(order_DF[:, 0] == 2) == pytest.approx(1 / 3, abs=0.03)


def test_choices_change_with_the_epoch_and_the_seed_and_with_nothing_else() -> None:
    documents = some_fields(30)
    one, other = fields_of(documents), fields_of(documents)
    read = [[one.document(epoch, n).tolist() for n in range(30)] for epoch in range(5)]
    assert all(read[i] != read[j] for i in range(5) for j in range(i))
    for epoch in (4, 3, 0, 2, 1, 0):  # in any order, as after a resume
        assert [other.document(epoch, n).tolist() for n in range(30)] == read[epoch]
        assert len(other._choices) <= 3
    assert [fields_of(documents, seed=1).document(0, n).tolist() for n in range(30)] != read[0]


@pytest.mark.parametrize("epoch", [0, DEFAULT_EPOCH])
def test_windows_of_fields_are_slices_of_documents(epoch: int) -> None:
    stream = fields_of(some_fields(12))
    cut = fixed_windows(stream.lengths(epoch), 5)
    inputs, labels = stream.read(epoch, cut.document, cut.start, cut.length)
    whole = [stream.document(epoch, number).tolist() for number in range(12)]
    assert inputs.tolist() == [token for document in whole for token in document[:-1]]
    assert labels.tolist() == [token for document in whole for token in document[1:]]


def test_marks_are_named_after_their_fields() -> None:
    assert mark_names(["title", "body"]) == ["<title>", "</title>", "<body>", "</body>"]
