"""Looking inside changes nothing, ends with its `with`, and concerns one model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from headway.errors import UserError
from headway.nn.attention.attention import Attention
from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout
from headway.nn.stack import Stack
from headway.nn.tap import Tap, record

MakeStack = Callable[..., Stack]
KINDS = ["heads", "hidden", "k", "q", "stream", "v", "weights"]


def is_recording(model: nn.Module) -> bool:
    return any(isinstance(m, Tap) and m.is_recording for m in model.modules())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", ["none", "relative", "rotary"])
def test_looking_does_not_change_the_answer(
    kind: str, positions: str, make_stack: MakeStack, device: torch.device
) -> None:
    stack = make_stack(device, positions=positions)
    x_ND, layout = torch.randn(6, 16, device=device), Layout.of([4, 2], device)
    plain = stack(x_ND, layout)
    with record(stack, kind) as seen:
        watched = stack(x_ND, layout)
    torch.testing.assert_close(watched, plain, rtol=0.0, atol=1e-5)
    assert len(seen) == 2
    if kind != "weights":  # those alone need another way of computing
        assert torch.equal(watched, plain)
    assert torch.equal(stack(x_ND, layout), plain)
    assert not is_recording(stack)


def test_the_weights_of_a_row_sum_to_one_and_make_the_heads(
    make_stack: MakeStack, device: torch.device
) -> None:
    stack = make_stack(device, n_kv_heads=4)
    layout = Layout.of([4, 2], device)
    with record(stack, "weights", "v", "heads") as seen:
        stack(torch.randn(6, 16, device=device), layout)
    for number in range(2):
        (weights,) = seen[f"blocks.{number}.attention.weights"]
        assert [tuple(w_HTS.shape) for w_HTS in weights] == [(4, 4, 4), (4, 2, 2)]
        values = layout.split(seen[f"blocks.{number}.attention.v"][0])
        heads = layout.split(seen[f"blocks.{number}.attention.heads"][0])
        for w_HTS, v_SHK, out_THK in zip(weights, values, heads, strict=True):
            torch.testing.assert_close(w_HTS.sum(-1), torch.ones_like(w_HTS[..., 0]))
            wanted = torch.einsum("hts,shk->thk", w_HTS, v_SHK)
            torch.testing.assert_close(out_THK, wanted, rtol=0.0, atol=1e-5)


def test_an_entry_a_call_in_order(make_stack: MakeStack) -> None:
    stack = make_stack()
    first, second = torch.randn(3, 16), torch.randn(5, 16)
    with record(stack, "blocks.1.stream") as seen:
        a = stack(first, Layout.of([3]))
        b = stack(second, Layout.of([5]))
    assert list(seen) == ["blocks.1.stream"]
    for entry, out_ND in zip(seen["blocks.1.stream"], (a, b), strict=True):
        assert torch.equal(stack.final_norm(entry), out_ND)


def test_what_was_seen_is_a_copy_outside_the_graph(make_stack: MakeStack) -> None:
    stack = make_stack()
    with record(stack, "stream", "weights") as seen:
        stack(torch.randn(3, 16), Layout.of([3]))
    stream_ND, (weights_HTS,) = seen["blocks.0.stream"][0], seen["blocks.0.attention.weights"][0]
    assert not stream_ND.requires_grad
    assert not weights_HTS.requires_grad
    tap, x = Tap(), torch.ones(2)
    with record(nn.ModuleDict({"stream": tap}), "stream") as seen:
        tap(x)
        x.zero_()  # such as a cache that is written again
    assert seen["stream"][0].tolist() == [1.0, 1.0]


def test_an_exception_does_not_leave_the_model_recording(make_stack: MakeStack) -> None:
    stack = make_stack()
    too_wide_ND = torch.randn(3, 17)
    with pytest.raises(RuntimeError, match="17"), record(stack, "weights"):
        stack(too_wide_ND, Layout.of([3]))
    assert not is_recording(stack)


def test_only_this_model_is_affected(make_stack: MakeStack) -> None:
    mine, other = make_stack(), make_stack()
    with record(mine, "stream") as seen:
        assert is_recording(mine)
        assert not is_recording(other)
        other(torch.randn(3, 16), Layout.of([3]))
    assert seen == {"blocks.0.stream": [], "blocks.1.stream": []}


def test_only_requested_taps_are_recorded(make_stack: MakeStack) -> None:
    stack = make_stack()
    with record(stack, "blocks.0.attention.q") as seen:
        recording = [n for n, m in stack.named_modules() if isinstance(m, Tap) and m.is_recording]
        assert recording == ["blocks.0.attention.q"]
        stack(torch.randn(3, 16), Layout.of([3]))
    assert list(seen) == ["blocks.0.attention.q"]


def test_recordings_can_be_nested(make_stack: MakeStack) -> None:
    stack = make_stack()
    x_ND, layout = torch.randn(3, 16), Layout.of([3])
    with record(stack, "blocks.0.stream") as outer:
        with record(stack, "stream") as inner:
            stack(x_ND, layout)
        stack(x_ND, layout)
    assert len(inner["blocks.0.stream"]) == len(inner["blocks.1.stream"]) == 1
    assert len(outer["blocks.0.stream"]) == 1
    assert not is_recording(stack)


def test_an_unknown_name_lists_the_kinds_there_are(make_stack: MakeStack) -> None:
    stack = make_stack()
    with (
        pytest.raises(UserError, match=f"'pattern'.*'streem'.* {', '.join(KINDS)}"),
        record(stack, "pattern", "streem"),
    ):
        pass


def test_gradients_are_kept_on_request(make_stack: MakeStack) -> None:
    stack = make_stack()
    x_ND, layout = torch.randn(6, 16), Layout.of([4, 2])
    with record(stack, "blocks.1.stream", "blocks.0.attention.weights", gradients=True) as seen:
        out_ND = stack(x_ND, layout)
    out_ND.square().sum().backward()
    stream_ND, weights = seen["blocks.1.stream"][0], seen["blocks.0.attention.weights"][0]
    copy_ND = stream_ND.detach().requires_grad_()
    (wanted,) = torch.autograd.grad(stack.final_norm(copy_ND).square().sum(), copy_ND)
    torch.testing.assert_close(stream_ND.grad, wanted)
    assert [tuple(w_HTS.grad.shape) for w_HTS in weights] == [(4, 4, 4), (4, 2, 2)]
    assert weights[0].grad.any()


def test_gradients_of_weights_are_what_a_change_of_a_weight_does() -> None:
    attention = Attention(8, 2, scope=AttentionSpec(causal=True))
    x_ND, layout = torch.randn(3, 8), Layout.of([3])
    with record(attention, "weights", "v", gradients=True) as seen:
        attention(x_ND, layout).sum().backward()
    (weights_HTS,), v_SHK = seen["weights"][0], seen["v"][0]
    # The output is linear in the weights: its slope is the value, sent through `to_out`.
    slope_HK = attention.to_out.weight.sum(0).unflatten(0, (2, 4))
    wanted = torch.einsum("shk,hk->hs", v_SHK, slope_HK)[:, None].expand(2, 3, 3)
    torch.testing.assert_close(weights_HTS.grad, wanted)


def test_asking_for_gradients_without_any_gives_detached_entries(make_stack: MakeStack) -> None:
    stack = make_stack()
    with torch.no_grad(), record(stack, "stream", "weights", gradients=True) as seen:
        stack(torch.randn(3, 16), Layout.of([3]))
    assert not seen["blocks.0.stream"][0].requires_grad
