"""Recurrences on flat batches are torch's own; with a cache they go on where they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.nn.attention.attention import Memory
from headway.nn.cache import Cache
from headway.nn.layout import Layout
from headway.nn.recurrence import LATEST, InitialState, PackedOrder, Recurrence
from headway.nn.stack import Stack
from headway.training.cuda_graph import copy_into

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU}
LENGTHS = [3, 0, 5, 1, 5]

kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@pytest.mark.parametrize("bidirectional", [False, True])
def test_it_is_torchs_layer_with_copied_weights_forward_and_backward(
    kind: str, bidirectional: bool, device: torch.device
) -> None:
    ours = Recurrence(8, kind, bidirectional=bidirectional).double().to(device)
    theirs = KINDS[kind](8, ours.width, bidirectional=bidirectional).double().to(device)
    theirs.load_state_dict(ours.cell.state_dict())
    x_ND = torch.randn(sum(LENGTHS), 8, dtype=torch.double, device=device, requires_grad=True)
    layout = Layout.of(LENGTHS, device)
    got_ND = ours(x_ND, layout)
    each = [theirs(part)[0] for part in layout.split(x_ND) if len(part)]
    want_ND = torch.cat(each)
    torch.testing.assert_close(got_ND, want_ND)
    weigh_ND = torch.randn_like(got_ND)
    got = torch.autograd.grad((got_ND * weigh_ND).sum(), [x_ND, *ours.cell.parameters()])
    want = torch.autograd.grad((want_ND * weigh_ND).sum(), [x_ND, *theirs.parameters()])
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@kinds
@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_fixed_form_equals_torch_and_reads_no_lengths_on_the_host(
    kind: str, bidirectional: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Recurrence(8, kind, bidirectional=bidirectional).double().to(device)
    x_ND = torch.randn(17, 8, dtype=torch.double, device=device, requires_grad=True)
    shape = {"n_rows": 17, "n_sequences": 7, "longest": 6, "device": device}
    layout = Layout.fixed([1, 6], **shape)
    with monkeypatch.context() as patched:
        patched.setattr(Layout, "known_lengths", lambda _: pytest.fail("lengths were read"))
        ours(x_ND, layout)
        copy_into(layout, Layout.fixed([3, 5, 1, 4], **shape))  # as a recorded step is given them
        got_ND = ours(x_ND, layout)
    want_ND = ours(x_ND, Layout.of([3, 5, 1, 4, 4], device))
    torch.testing.assert_close(got_ND, want_ND)
    weigh_ND = torch.randn_like(got_ND)
    leaves = [x_ND, *ours.cell.parameters()]
    got = torch.autograd.grad((got_ND * weigh_ND).sum(), leaves)
    want = torch.autograd.grad((want_ND * weigh_ND).sum(), leaves)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@kinds
def test_the_fixed_form_begins_with_the_last_state_of_a_memory(kind: str) -> None:
    size = Recurrence.state_size(4, lstm=kind == "lstm")
    part = Recurrence(4, kind, first=InitialState(4, size, both_ends=True)).double()
    x_ND, x_MD = torch.randn(2, 8, 4, dtype=torch.double)
    shape = {"n_rows": 8, "n_sequences": 4, "longest": 5}
    fixed = Memory(x_MD, Layout.fixed([4, 1], **shape))
    got_ND = part(x_ND, Layout.fixed([2, 5], **shape), fixed)
    want_ND = part(x_ND[:7], Layout.of([2, 5]), Memory(x_MD[:5], Layout.of([4, 1])))
    torch.testing.assert_close(got_ND[:7], want_ND)


def test_packed_rows_are_first_tokens_then_second_ones() -> None:
    packed = PackedOrder.of_lengths([2, 0, 3], torch.device("cpu"))
    assert packed.sizes.tolist() == [2, 2, 1]
    assert packed.rows_N.tolist() == [2, 0, 3, 1, 4]  # the longest first
    assert packed.place_N[packed.rows_N].tolist() == [0, 1, 2, 3, 4]
    assert packed.order_B.tolist() == [2, 0]


@kinds
@torch.no_grad()
def test_long_texts_are_continued_and_taken_back(kind: str) -> None:
    """Longer than what is worked out one by one, so that both ways to read meet."""
    torch.manual_seed(1)
    part, lengths = Recurrence(6, kind), [LATEST + 9, 3, LATEST]
    texts = [torch.randn(n + 4, 6) for n in lengths]
    whole = [part(text, Layout.of([len(text)])) for text in texts]
    cache = Cache(1, 3, 8)
    layer = cache.layers[0]

    def feed(counts: list[int]) -> list[torch.Tensor]:
        new = [t[a : a + n] for t, a, n in zip(texts, cache.lengths, counts, strict=True)]
        layout = cache.layout(counts)
        found = part(torch.cat(new), layout, None, layer)
        cache.advance(layout)
        return layout.split(found)

    for n, got, want in zip(lengths, feed(lengths), whole, strict=True):
        torch.testing.assert_close(got, want[:n])
    cache.trim([lengths[0] - 5, 2, 1])
    for n, got, want in zip((lengths[0] - 5, 2, 1), feed([9, 5, 2]), whole, strict=True):
        torch.testing.assert_close(got, want[n : n + len(got)])


def test_a_decoder_starts_from_both_final_states_of_a_bidirectional_encoder() -> None:
    first = InitialState(4, 3, both_ends=True)
    x_MD, layout = torch.randn(5, 4), Layout.of([2, 3])
    ends = torch.cat([x_MD[[0, 2]], x_MD[[1, 4]]], dim=1)
    got = first(Memory(x_MD, layout))
    torch.testing.assert_close(got, torch.tanh(first.to_state(ends)))
    one = InitialState(4, 3, both_ends=False)
    got = one(Memory(x_MD, layout))
    torch.testing.assert_close(got, torch.tanh(one.to_state(x_MD[[1, 4]])))


@kinds
def test_gradients_come_back_from_a_model_that_is_not_being_trained(
    kind: str, device: torch.device
) -> None:
    """As who looks into a trained model asks for them; cuDNN has to be told."""
    layer = Recurrence(8, kind).to(device).eval()
    x_ND = torch.randn(7, 8, device=device, requires_grad=True)
    layer(x_ND, Layout.of([4, 3], device)).sum().backward()
    asked_ND = x_ND.grad
    layer.train()
    x_ND.grad = None
    layer(x_ND, Layout.of([4, 3], device)).sum().backward()
    assert x_ND.grad is not None
    assert asked_ND is not None
    torch.testing.assert_close(asked_ND, x_ND.grad)


@pytest.mark.filterwarnings("ignore")  # torch's compiler has warnings of its own
def test_a_compiled_stack_runs_recurrences_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    rnn, layout = Recurrence(8, "gru"), Layout.of([2, 3])
    x_ND = torch.randn(5, 8)
    compiling, read = [], Recurrence.read

    def spy(self: Recurrence, *given: Any) -> tuple[Tensor, Tensor]:
        compiling.append(torch.compiler.is_compiling())
        return read(self, *given)

    monkeypatch.setattr(Recurrence, "read", spy)
    Stack([]).compile_blocks()
    out_ND = torch.compile(rnn, backend="eager")(x_ND, layout)
    assert compiling == [False]
    torch.testing.assert_close(out_ND, rnn(x_ND, layout))
