"""Decoding with a cache gives what one pass over everything gives, in whatever pieces it is fed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from headway.nn.attention.attention import Memory
from headway.nn.cache import Cache
from headway.nn.layout import Layout

from .variants import EVERY, VOCAB, Sample, Seq2Seq, flat, samples, scores, tiny

LENGTHS = [6, 4, 7]

writers = pytest.mark.parametrize("family", ["seq2seq", "decoder"])
every_variant = pytest.mark.parametrize("variant", EVERY)

PIECES: dict[str, list[list[int]]] = {
    "everything": [LENGTHS],
    "one by one": [[1, 1, 1]] * 4 + [[1, 0, 1]] * 2 + [[0, 0, 1]],
    "a prompt each, then one by one": [[5, 2, 4], [1, 1, 1], [0, 1, 1], [0, 0, 1]],
    "uneven": [[1, 3, 2], [3, 0, 4], [2, 1, 1]],
    "alike, then the rest": [[2, 2, 2], [2, 2, 2], [2, 0, 3]],
}
"""How many tokens of each of three sequences come in each call."""


def device_of(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def memory_of(model: nn.Module, batch: Sequence[Sample]) -> Memory | None:
    if not isinstance(model, Seq2Seq):
        return None
    return model.encode(*flat([sample.source for sample in batch], device_of(model)))


def step(
    model: nn.Module, tokens_N: Tensor, layout: Layout, memory: Memory | None, cache: Cache | None
) -> Tensor:
    """Scores for every new row."""
    if memory is None:
        return model.scores(model(tokens_N, layout, cache))
    return model.scores(model.decode(tokens_N, layout, memory, cache))


def in_pieces(
    model: nn.Module, batch: Sequence[Sample], pieces: list[list[int]], cache: Cache
) -> list[Tensor]:
    """The scores of each sequence, put together again."""
    memory, device = memory_of(model, batch), device_of(model)
    parts: list[list[Tensor]] = [[] for _ in batch]
    done = [0] * len(batch)
    for counts in pieces:
        new = [s.target[d : d + n] for s, d, n in zip(batch, done, counts, strict=True)]
        layout = cache.layout(counts, device)
        scores_NV = step(model, flat(new, device)[0], layout, memory, cache)
        for part, scores_TV in zip(parts, layout.split(scores_NV), strict=True):
            part.append(scores_TV)
        done = [d + n for d, n in zip(done, counts, strict=True)]
    assert done == [len(sample.target) for sample in batch]
    return [torch.cat(part) for part in parts]


@writers
@every_variant
@torch.no_grad()
def test_any_pieces_give_the_scores_of_one_pass(
    family: str, variant: str, device: torch.device
) -> None:
    """Also where the cache has to grow on the way."""
    model, batch = tiny(family, variant, device=device), samples(LENGTHS)
    expected = scores(model, batch)
    for name, pieces in PIECES.items():
        cache = Cache(n_layers=2, n_rows=3, capacity=2)
        for ours, theirs in zip(in_pieces(model, batch, pieces, cache), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, msg=name)
        assert cache.lengths == tuple(LENGTHS)


@writers
@torch.no_grad()
def test_a_step_of_all_alike_is_the_layout_of_equal_counts(
    family: str, device: torch.device
) -> None:
    """`cache.layout(1)` is the quick form of `cache.layout([1, 1, 1])`."""
    model, batch = tiny(family, device=device), samples([5, 5, 5])
    memory = memory_of(model, batch)
    quick, plain = (Cache(n_layers=2, n_rows=3, capacity=8) for _ in range(2))
    for at in range(5):
        tokens_N = torch.tensor([sample.target[at] for sample in batch], device=device)
        a_NV = step(model, tokens_N, quick.layout(1, device), memory, quick)
        b_NV = step(model, tokens_N, plain.layout([1, 1, 1], device), memory, plain)
        torch.testing.assert_close(a_NV, b_NV, rtol=1e-5, atol=1e-5)


def greedy(model: nn.Module, batch: Sequence[Sample], *, cached: bool) -> list[list[int]]:
    """Twelve more tokens for each sample: each time the best of those that it does not have yet.

    Without that a model with random weights would soon repeat one token for ever.
    """
    device, memory = device_of(model), memory_of(model, batch)
    cache = Cache(n_layers=2, n_rows=len(batch), capacity=4) if cached else None
    texts = [list(sample.target) for sample in batch]
    new = [list(text) for text in texts]
    for _ in range(12):
        tokens_N, layout = flat(new if cached else texts, device)
        if cache is not None:
            layout = cache.layout([len(tokens) for tokens in new], device)
        last_BV = step(model, tokens_N, layout, memory, cache)[layout.last_N()]
        for scores_V, text in zip(last_BV, texts, strict=True):
            scores_V[text] = -torch.inf
        new = [[token] for token in last_BV.argmax(-1).tolist()]
        texts = [text + token for text, token in zip(texts, new, strict=True)]
    return texts


@writers
@every_variant
@torch.no_grad()
def test_a_greedy_text_is_the_same_with_and_without_a_cache(
    family: str, variant: str, device: torch.device
) -> None:
    model, batch = tiny(family, variant, device=device), samples([2, 5, 1])
    texts = greedy(model, batch, cached=True)
    assert [len(text) for text in texts] == [14, 17, 13]
    assert texts == greedy(model, batch, cached=False)
    # What is written depends on what was read.
    assert texts[0][2:] != texts[1][5:] != texts[2][1:]


def with_target(sample: Sample, tokens: Sequence[int]) -> Sample:
    return Sample(sample.source, tuple(tokens))


class Beams:
    """Hypotheses that grow by random tokens, kept twice: as lists and in a cache."""

    def __init__(self, model: nn.Module, sources: Sequence[Sample], width: int) -> None:
        self.model = model
        self.memory = memory_of(model, sources)
        self.sample_of = [i for i in range(len(sources)) for _ in range(width)]
        self.sources = sources
        self.texts: list[list[int]] = [[] for _ in self.sample_of]
        self.cache = Cache(n_layers=2, n_rows=len(self.texts), capacity=3)

    def grow(self, random: torch.Generator) -> Tensor:
        """A token each; the scores that the cache gives for it."""
        device = device_of(self.model)
        tokens_N = torch.randint(1, VOCAB, (len(self.texts),), generator=random)
        self.texts = [[*t, n] for t, n in zip(self.texts, tokens_N.tolist(), strict=True)]
        memory = self.memory
        if memory is not None:  # the hypotheses of a sentence share its rows: only the layout grows
            memory = Memory(memory.x_MD, memory.layout.pick(self.sample_of))
        layout = self.cache.layout(1, device)
        return step(self.model, tokens_N.to(device), layout, memory, self.cache)

    def select(self, rows: list[int]) -> None:
        self.texts = [list(self.texts[row]) for row in rows]
        self.sample_of = [self.sample_of[row] for row in rows]
        self.cache.select(rows)

    def expected(self) -> Tensor:
        """The last scores of every hypothesis, each computed alone from its first token."""
        pairs = zip(self.sample_of, self.texts, strict=True)
        alone = [with_target(self.sources[number], text) for number, text in pairs]
        return torch.stack([scores(self.model, [sample])[0][-1] for sample in alone])


@writers
@every_variant
@torch.no_grad()
def test_beams_move_split_and_end_without_a_trace_of_the_others(
    family: str, variant: str, device: torch.device
) -> None:
    model, random = tiny(family, variant, device=device), torch.Generator().manual_seed(3)
    beams = Beams(model, samples([1, 2]), width=3)
    moves = [
        [0, 0, 1, 3, 4, 4],  # one hypothesis takes another's place
        [2, 1, 0, 5, 4, 3],  # all change places
        [0, 0, 0, 5, 5, 5],  # one is left of each sentence, three times
        [1, 2, 4],  # some have ended
        [2, 0, 0, 1],  # and there is room for more
    ]
    for rows in moves:
        torch.testing.assert_close(beams.grow(random), beams.expected(), rtol=1e-5, atol=1e-5)
        beams.select(rows)
    torch.testing.assert_close(beams.grow(random), beams.expected(), rtol=1e-5, atol=1e-5)
    assert len({tuple(text) for text in beams.texts}) == len(beams.texts)  # they differ


@torch.no_grad()
def test_the_memory_of_a_beam_is_projected_once_and_not_copied(device: torch.device) -> None:
    beams = Beams(tiny("seq2seq", device=device), samples([4, 6]), width=3)
    random = torch.Generator().manual_seed(3)
    beams.grow(random)
    held = [layer.memory for layer in beams.cache.layers]
    n_rows = len(beams.memory.x_MD)
    assert all(len(k_MGK) == len(v_MGK) == n_rows for k_MGK, v_MGK in held)
    beams.select([0, 0, 2, 5])
    beams.grow(random)
    assert all(
        layer.memory is before for layer, before in zip(beams.cache.layers, held, strict=True)
    )


@pytest.mark.parametrize("variant", [name for name in EVERY if "last" not in name])
@torch.no_grad()
def test_hypotheses_of_a_sentence_may_read_its_memory_as_one_sequence(
    variant: str, device: torch.device
) -> None:
    """Cross attention looks at no order among queries, so W new rows are one sequence of W."""
    model, width = tiny("seq2seq", variant, device=device), 3
    memory = memory_of(model, samples([4, 6]))
    cross = model.decoder.blocks[0].cross
    x_ND = torch.randn(2 * width, cross.to_out.out_features, device=device)
    shared = Memory(memory.x_MD, memory.layout.pick([0, 0, 0, 1, 1, 1]))
    each = cross(x_ND, Layout.of([1] * 6, device), shared)
    together = cross(x_ND, Layout.of([width, width], device), memory)
    torch.testing.assert_close(together, each, rtol=1e-5, atol=1e-5)


@writers
@every_variant
@torch.no_grad()
def test_a_guess_that_is_taken_back_leaves_no_trace(
    family: str, variant: str, device: torch.device
) -> None:
    model, batch = tiny(family, variant, device=device), samples([6, 6])
    memory = memory_of(model, batch)
    cache = Cache(n_layers=2, n_rows=2, capacity=4)

    def feed(texts: list[Sequence[int]]) -> list[Tensor]:
        tokens_N, plain = flat(texts, device)
        layout = cache.layout(list(plain.known_lengths()), device)
        return layout.split(step(model, tokens_N, layout, memory, cache))

    feed([batch[0].target[:3], batch[1].target[:4]])
    feed([(5, 6, 7), (8, 9)])
    cache.trim([3, 4])
    after = feed([batch[0].target[3:], batch[1].target[4:]])
    expected = scores(model, batch)
    torch.testing.assert_close(after[0], expected[0][3:], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after[1], expected[1][4:], rtol=1e-5, atol=1e-5)


@writers
@torch.no_grad()
def test_two_requests_use_one_model_at_once(family: str, device: torch.device) -> None:
    """The model keeps nothing between calls: steps of two texts may take turns."""
    model = tiny(family, device=device)
    batches = [samples([5, 5], seed=seed) for seed in (1, 2)]
    memories = [memory_of(model, batch) for batch in batches]
    caches = [Cache(n_layers=2, n_rows=2, capacity=8) for _ in batches]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen: list[list[Tensor]] = [[], []]
    for at in range(5):
        for number, batch in enumerate(batches):
            tokens_N = torch.tensor([sample.target[at] for sample in batch], device=device)
            layout = caches[number].layout(1, device)
            args: tuple = (tokens_N, layout, memories[number], caches[number])
            seen[number].append(step(model, *args))
    for number, batch in enumerate(batches):
        expected = torch.stack(scores(model, batch), dim=1)
        torch.testing.assert_close(torch.stack(seen[number]), expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
