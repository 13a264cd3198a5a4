"""Decoding with a cache equals one pass, however the tokens arrive and the rows move."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.nn import linear as linear_file
from headway.nn.attention.attention import Memory
from headway.nn.cache import Cache
from headway.nn.layout import Layout
from headway.nn.stack import Stack

MakeStack = Callable[..., Stack]
N_LAYERS = 2


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)


def one_pass(stack: Stack, sequences: list[Tensor], memory: Memory | None = None) -> list[Tensor]:
    layout = Layout.of([len(x_TD) for x_TD in sequences], sequences[0].device)
    return layout.split(stack(torch.cat(sequences), layout, memory))


def feed(
    stack: Stack, cache: Cache, pieces: list[Tensor], memory: Memory | None = None
) -> list[Tensor]:
    """One call with a piece for each sequence; what comes back is split again."""
    lengths = [len(x_TD) for x_TD in pieces]
    device = pieces[0].device
    layout = cache.layout(lengths[0] if len(set(lengths)) == 1 else lengths, device)
    return layout.split(stack(torch.cat(pieces), layout, memory, cache))


def in_pieces(
    stack: Stack, cache: Cache, sequences: list[Tensor], calls: list[list[int]]
) -> list[Tensor]:
    """The sequences fed by `calls`: in each, so many tokens of each sequence."""
    outs: list[list[Tensor]] = [[] for _ in sequences]
    done = [0] * len(sequences)
    for lengths in calls:
        pieces = [x[n : n + more] for x, n, more in zip(sequences, done, lengths, strict=True)]
        for out, piece in zip(outs, feed(stack, cache, pieces), strict=True):
            out.append(piece)
        done = [n + more for n, more in zip(done, lengths, strict=True)]
    return [torch.cat(out) for out in outs]


KINDS = {
    "plain": {},
    "window": {"window": 3},
    "rotary": {"positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "relative": {"positions": "relative"},
    "post": {"block_layout": "post"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "calls",
    [
        [[6, 6]],
        [[1, 1]] * 6,
        [[3, 3], [1, 1], [2, 2]],
        [[4, 2], [1, 1], [1, 1], [0, 2]],
        [[0, 3], [5, 1], [1, 2]],
    ],
    ids=["at once", "one by one", "chunks", "ragged start", "ragged"],
)
def test_cached_decoding_equals_one_pass(
    kind: str, calls: list[list[int]], make_stack: MakeStack, device: torch.device
) -> None:
    stack = make_stack(device, **KINDS[kind])
    sequences = list(torch.randn(2, 6, 16, device=device))
    cache = Cache(N_LAYERS, n_rows=2, capacity=6)
    found = in_pieces(stack, cache, sequences, calls)
    for mine, wanted in zip(found, one_pass(stack, sequences), strict=True):
        close(mine, wanted)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it holds no state
)
@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 4), min_size=n, max_size=n), min_size=1, max_size=5
        )
    ),
    st.integers(1, 5),
    st.sampled_from(list(KINDS)),
)
def test_any_way_to_cut_the_tokens_equals_one_pass(
    make_stack: MakeStack, calls: list[list[int]], capacity: int, kind: str
) -> None:
    """Also where the first room is too small and has to be doubled, several times."""
    n_rows = len(calls[0])
    calls = [*calls, [1] * n_rows]
    stack = make_stack(**KINDS[kind])
    sequences = [torch.randn(sum(column), 16) for column in zip(*calls, strict=True)]
    cache = Cache(N_LAYERS, n_rows, capacity)
    calls = [lengths for lengths in calls if any(lengths)]
    found = in_pieces(stack, cache, sequences, calls)
    for mine, wanted in zip(found, one_pass(stack, sequences), strict=True):
        close(mine, wanted)
    assert cache.lengths == tuple(len(x_TD) for x_TD in sequences)
    assert cache.capacity >= max(cache.lengths)


def test_a_cached_token_is_not_computed_again(make_stack: MakeStack) -> None:
    stack = make_stack()
    cache = Cache(N_LAYERS, n_rows=1, capacity=8)
    x_TD = torch.randn(4, 16)
    feed(stack, cache, [x_TD[:3]])
    before = cache.layers[0].cells["keys"][:, :3].clone()
    (out_1D,) = feed(stack, cache, [x_TD[3:]])
    assert out_1D.shape == (1, 16)
    assert torch.equal(cache.layers[0].cells["keys"][:, :3], before)


def test_room_is_made_once_and_doubled_when_it_was_too_little(make_stack: MakeStack) -> None:
    stack = make_stack()
    cache = Cache(N_LAYERS, n_rows=1, capacity=3)
    x_TD = torch.randn(8, 16)
    (whole,) = one_pass(stack, [x_TD])
    pointers = []
    for row in range(8):
        (out_1D,) = feed(stack, cache, [x_TD[row : row + 1]])
        close(out_1D, whole[row : row + 1])
        pointers.append(cache.layers[0].cells["keys"].data_ptr())
    assert cache.capacity == 12
    assert len(set(pointers)) <= 3  # for 3, for 6 and for 12 rows
    assert pointers[0] == pointers[2]
    assert pointers[3] == pointers[5]


SELECTIONS = {
    "reorder": [2, 0, 1],
    "swap": [1, 0, 2],
    "duplicate": [0, 0, 2],
    "drop the last": [0, 1],
    "drop the first": [1, 2],
    "expand": [0, 0, 1, 1, 2, 2],
    "expand the last": [0, 1, 2, 2, 2],
    "one left": [2],
    "as they are": [0, 1, 2],
}


@pytest.mark.parametrize("rows", SELECTIONS)
@pytest.mark.parametrize("lengths", [[3, 3, 3], [1, 4, 2]], ids=["equal", "ragged"])
@pytest.mark.parametrize("capacity", [2, 8], ids=["little room", "much room"])
def test_selected_rows_continue_as_if_computed_from_scratch(
    rows: str,
    lengths: list[int],
    capacity: int,
    make_stack: MakeStack,
    device: torch.device,
) -> None:
    stack = make_stack(device, positions="rotary")
    sequences = [torch.randn(length, 16, device=device) for length in lengths]
    cache = Cache(N_LAYERS, n_rows=3, capacity=capacity)
    feed(stack, cache, sequences)
    chosen = SELECTIONS[rows]
    cache.select(chosen)
    assert cache.lengths == tuple(lengths[row] for row in chosen)
    more = [torch.randn(2, 16, device=device) for _ in chosen]
    found = feed(stack, cache, more)
    longer = [torch.cat([sequences[row], x]) for row, x in zip(chosen, more, strict=True)]
    for mine, wanted in zip(found, one_pass(stack, longer), strict=True):
        close(mine, wanted[-2:])


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_any_search_equals_computing_its_survivors_from_scratch(
    make_stack: MakeStack, data: st.DataObject
) -> None:
    """Tokens, selections and retreats in any order, as in beam search and speculation."""
    stack = make_stack(positions="alibi")
    sequences = [torch.randn(data.draw(st.integers(1, 3)), 16) for _ in range(2)]
    cache = Cache(N_LAYERS, n_rows=2, capacity=2)
    feed(stack, cache, sequences)
    for _ in range(data.draw(st.integers(1, 4))):
        n_rows = len(sequences)
        rows = data.draw(st.lists(st.integers(0, n_rows - 1), min_size=1, max_size=4))
        cache.select(rows)
        sequences = [sequences[row] for row in rows]
        if data.draw(st.booleans()):
            kept = [data.draw(st.integers(1, len(x_TD))) for x_TD in sequences]
            cache.trim(kept)
            sequences = [x_TD[:n] for x_TD, n in zip(sequences, kept, strict=True)]
        more = [torch.randn(data.draw(st.integers(1, 2)), 16) for _ in sequences]
        found = feed(stack, cache, more)
        sequences = [torch.cat(pair) for pair in zip(sequences, more, strict=True)]
        wanted = one_pass(stack, sequences)
        for mine, theirs, new in zip(found, wanted, more, strict=True):
            close(mine, theirs[-len(new) :])


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2, 2], [0, 1], [2, 1]])
def test_rows_that_do_not_move_are_not_copied(rows: list[int], make_stack: MakeStack) -> None:
    cache = Cache(N_LAYERS, n_rows=3, capacity=8)
    feed(make_stack(), cache, list(torch.randn(3, 4, 16)))
    layer = cache.layers[1]
    pointers = layer.cells["keys"].data_ptr(), layer.cells["values"].data_ptr()
    before = layer.cells["keys"].clone()
    cache.select(rows)
    assert (layer.cells["keys"].data_ptr(), layer.cells["values"].data_ptr()) == pointers
    assert len(layer.cells["keys"]) == len(rows)
    for row, origin in enumerate(rows):
        assert torch.equal(layer.cells["keys"][row, :4], before[origin, :4])


def test_only_the_tokens_of_moved_rows_are_copied(make_stack: MakeStack) -> None:
    """The free cells behind them hold poison: who copies them shows it."""
    cache = Cache(N_LAYERS, n_rows=3, capacity=8)
    feed(make_stack(), cache, list(torch.randn(3, 4, 16)))
    layer = cache.layers[0]
    for row in range(3):
        layer.cells["keys"][row, 4:] = 100.0 + row
    cache.select([1, 1, 0])
    for row in range(3):
        assert (layer.cells["keys"][row, 4:] == 100.0 + row).all()


def test_a_trimmed_guess_is_forgotten(make_stack: MakeStack) -> None:
    stack = make_stack(positions="relative")
    sequences = list(torch.randn(2, 3, 16))
    cache = Cache(N_LAYERS, n_rows=2, capacity=8)
    feed(stack, cache, sequences)
    feed(stack, cache, list(torch.randn(2, 4, 16)))  # a guess
    cache.trim([3, 5])
    cache.trim([3, 3])
    more = list(torch.randn(2, 2, 16))
    found = feed(stack, cache, more)
    longer = [torch.cat(pair) for pair in zip(sequences, more, strict=True)]
    for mine, wanted in zip(found, one_pass(stack, longer), strict=True):
        close(mine, wanted[-2:])
    with pytest.raises(ValueError, match=r"\(5, 5\).*\(5, 6\)"):
        cache.trim([5, 6])


def memory_of(lengths: list[int], device: torch.device | str = "cpu") -> Memory:
    return Memory(torch.randn(sum(lengths), 16, device=device), Layout.of(lengths, device))


def test_with_a_memory_cached_decoding_equals_one_pass(
    make_stack: MakeStack, device: torch.device
) -> None:
    stack = make_stack(device, cross=True, block_layout="post")
    memory = memory_of([3, 5], device)
    sequences = list(torch.randn(2, 4, 16, device=device))
    wanted = one_pass(stack, sequences, memory)
    cache = Cache(N_LAYERS, n_rows=2, capacity=4)
    for row in range(4):
        pieces = [x_TD[row : row + 1] for x_TD in sequences]
        for mine, theirs in zip(feed(stack, cache, pieces, memory), wanted, strict=True):
            close(mine, theirs[row : row + 1])


def test_keys_of_the_memory_are_computed_once(
    make_stack: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, memory = make_stack(cross=True), memory_of([3, 5])
    calls: list[int] = []
    linear = linear_file.linear

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(x is memory.x_MD)
        return linear(x, weight, bias)

    monkeypatch.setattr(linear_file, "linear", counted)
    cache = Cache(N_LAYERS, n_rows=2, capacity=4)
    for _ in range(3):
        feed(stack, cache, list(torch.randn(2, 1, 16)), memory)
    assert sum(calls) == N_LAYERS
    calls.clear()
    for _ in range(3):  # without a cache: every time
        stack(torch.randn(2, 16), Layout.of([1, 1]), memory)
    assert sum(calls) == 3 * N_LAYERS


def test_beams_of_one_source_read_its_keys_through_their_layout(make_stack: MakeStack) -> None:
    stack, memory = make_stack(cross=True), memory_of([3, 5])
    start = list(torch.randn(2, 2, 16))
    cache = Cache(N_LAYERS, n_rows=2, capacity=4)
    feed(stack, cache, start, memory)
    rows = [0, 1, 1]
    cache.select(rows)
    more = list(torch.randn(3, 1, 16))
    found = feed(stack, cache, more, Memory(memory.x_MD, memory.layout.pick(rows)))
    parts = memory.layout.split(memory.x_MD)
    copies = Memory(torch.cat([parts[row] for row in rows]), Layout.of([3, 5, 5]))
    longer = [torch.cat([start[row], x]) for row, x in zip(rows, more, strict=True)]
    for mine, wanted in zip(found, one_pass(stack, longer, copies), strict=True):
        close(mine, wanted[-1:])


def test_when_all_rows_are_done_nothing_is_left_to_compute(make_stack: MakeStack) -> None:
    stack, cache = make_stack(), Cache(N_LAYERS, n_rows=2, capacity=4)
    feed(stack, cache, list(torch.randn(2, 3, 16)))
    cache.select([])
    assert cache.lengths == ()
    for layout in (cache.layout(1), cache.layout([])):
        assert stack(torch.randn(0, 16), layout, cache=cache).shape == (0, 16)


def test_another_number_of_sequences_is_an_error(make_stack: MakeStack) -> None:
    stack, cache = make_stack(), Cache(N_LAYERS, n_rows=2, capacity=4)
    with pytest.raises(ValueError, match=r"\b3\b.*\b2\b"):
        stack(torch.randn(3, 16), Layout.of([1, 1, 1]), cache=cache)


def test_a_cache_of_capacity_zero_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\bcapacity=0\b"):
        Cache(1, n_rows=1, capacity=0)


def test_the_layout_of_equal_steps_is_that_of_a_number_each() -> None:
    cache = Cache(1, n_rows=2, capacity=4)
    cache.advance(Layout.of([3, 1]))
    equal, each = cache.layout(2), cache.layout([2, 2])
    assert equal.positions_N.tolist() == each.positions_N.tolist() == [3, 4, 1, 2]
    assert equal.reach == each.reach == 5
    assert equal.known_lengths() == each.known_lengths()


def test_all_layers_of_a_call_share_the_layout_of_the_keys() -> None:
    cache = Cache(2, n_rows=1, capacity=4)
    new = cache.layout(2)
    k_NGK = torch.randn(2, 1, 4)
    layouts = [layer.append(k_NGK, k_NGK, new)[2] for layer in cache.layers]
    assert layouts[0] is layouts[1]
    cache.advance(new)
    assert cache.layers[0].append(k_NGK, k_NGK, cache.layout(2))[2] is not layouts[0]


def test_a_call_that_was_given_up_leaves_no_trace() -> None:
    """Its rows were written but never counted: the next call writes over them."""
    cache = Cache(1, n_rows=1, capacity=4)
    layer = cache.layers[0]
    layer.append(*torch.randn(2, 2, 1, 4), cache.layout(2))  # and then an exception
    k_NGK, v_NGK = torch.randn(2, 3, 1, 4)
    k_MGK, v_MGK, keys = layer.append(k_NGK, v_NGK, cache.layout(3))
    assert keys.known_lengths() == (3,)
    assert torch.equal(k_MGK[:3], k_NGK)
    assert torch.equal(v_MGK[:3], v_NGK)
