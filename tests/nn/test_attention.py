"""One attention for all: what must be equal, whatever its weights are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headway.nn.attention.attend import attend_explicit
from headway.nn.attention.attention import Attention, Memory
from headway.nn.attention.scope import AttentionSpec
from headway.nn.cache import Cache
from headway.nn.layout import Layout
from headway.nn.norms import RMSNorm
from headway.nn.positions import Alibi, Rotary, rope_rates

Shake = Callable[[nn.Module], nn.Module]


def rotary() -> Rotary:
    return Rotary(lambda: rope_rates(4, 10_000.0), 32)


MAKERS: dict[str, Callable[[], Attention]] = {
    "plain": lambda: Attention(16, 4),
    "causal": lambda: Attention(16, 4, scope=AttentionSpec(causal=True)),
    "grouped": lambda: Attention(16, 4, n_kv_heads=2, bias="qkvo"),
    "wide heads": lambda: Attention(16, 4, d_head=6, bias="o"),
    "window": lambda: Attention(16, 4, scope=AttentionSpec(causal=True, window=2)),
    "rotary": lambda: Attention(16, 4, rotary=rotary(), scope=AttentionSpec(causal=True)),
    "alibi": lambda: Attention(16, 4, scope=AttentionSpec(bias=Alibi(4))),
    "normed": lambda: Attention(16, 4, qk_norm=(RMSNorm(4), RMSNorm(4)), bias="qv"),
}


@pytest.fixture(params=MAKERS)
def attention(request: pytest.FixtureRequest, shake: Shake, device: torch.device) -> Attention:
    made = shake(MAKERS[request.param]()).to(device)
    if isinstance(made.scope.bias, nn.Module):  # a part of the stack, not of its attentions
        made.scope.bias.to(device)
    return made


def close(found: Tensor, wanted: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=atol)


def test_a_flat_batch_equals_each_sequence_alone(
    attention: Attention, device: torch.device
) -> None:
    layout = Layout.of([3, 1, 6, 2], device)
    x_ND = torch.randn(12, 16, device=device)
    together = layout.split(attention(x_ND, layout))
    for mine_ND, out_ND in zip(layout.split(x_ND), together, strict=True):
        close(attention(mine_ND, Layout.of([len(mine_ND)], device)), out_ND)


def test_cross_attention_of_a_flat_batch_equals_each_sequence_alone(
    shake: Shake, device: torch.device
) -> None:
    attention = shake(Attention(16, 4, n_kv_heads=2, bias="qkvo")).to(device)
    layout, memory_layout = Layout.of([3, 1, 2], device), Layout.of([2, 5, 4], device)
    x_ND, memory_MD = torch.randn(6, 16, device=device), torch.randn(11, 16, device=device)
    together = layout.split(attention(x_ND, layout, Memory(memory_MD, memory_layout)))
    pairs = zip(layout.split(x_ND), memory_layout.split(memory_MD), together, strict=True)
    for mine_ND, source_MD, out_ND in pairs:
        memory = Memory(source_MD, Layout.of([len(source_MD)], device))
        close(attention(mine_ND, Layout.of([len(mine_ND)], device), memory), out_ND)


@pytest.mark.parametrize("name", ["causal", "window", "rotary"])
def test_a_later_token_cannot_change_an_earlier_one(name: str, shake: Shake) -> None:
    attention = shake(MAKERS[name]())
    layout = Layout.of([5])
    x_ND = torch.randn(5, 16)
    before = attention(x_ND, layout)
    x_ND[3] += 1.0
    after = attention(x_ND, layout)
    assert torch.equal(before[:3], after[:3])
    assert not torch.equal(before[3], after[3])


def test_a_neighbour_changes_nothing_bit_for_bit(shake: Shake) -> None:
    attention = shake(Attention(16, 4))
    layout = Layout.of([3, 4, 2])
    x_ND = torch.randn(9, 16)
    before = attention(x_ND, layout)
    x_ND[3:7].normal_()
    after = attention(x_ND, layout)
    assert torch.equal(before[:3], after[:3])
    assert torch.equal(before[7:], after[7:])
    assert not torch.equal(before[3:7], after[3:7])


def test_as_many_key_heads_as_heads_are_plain_heads(shake: Shake) -> None:
    plain = shake(Attention(16, 4, bias="qkvo"))
    grouped = Attention(16, 4, n_kv_heads=4, bias="qkvo")
    grouped.load_state_dict(plain.state_dict())
    x_ND, layout = torch.randn(6, 16), Layout.of([4, 2])
    assert torch.equal(plain(x_ND, layout), grouped(x_ND, layout))


@pytest.mark.parametrize("n_kv_heads", [1, 2])
@pytest.mark.parametrize("crossing", [False, True], ids=["self", "cross"])
def test_grouped_heads_are_plain_heads_with_repeated_keys_and_values(
    n_kv_heads: int, crossing: bool, shake: Shake, device: torch.device
) -> None:
    grouped = shake(Attention(16, 4, n_kv_heads=n_kv_heads, bias="qkvo")).to(device)
    plain = Attention(16, 4, bias="qkvo").to(device)

    def repeated(x_E: Tensor) -> Tensor:
        q, k, v = x_E.split(grouped.sizes)
        times = 4 // n_kv_heads
        k, v = (part.unflatten(0, (n_kv_heads, 4)) for part in (k, v))
        k, v = (part.repeat_interleave(times, 0).flatten(0, 1) for part in (k, v))
        return torch.cat([q, k, v])

    with torch.no_grad():
        plain.load_state_dict(
            {
                name: repeated(tensor) if name.startswith("to_qkv") else tensor
                for name, tensor in grouped.state_dict().items()
            }
        )
    layout = Layout.of([4, 2], device)
    x_ND = torch.randn(6, 16, device=device)
    memory_layout = Layout.of([3, 5], device)
    memory = Memory(torch.randn(8, 16, device=device), memory_layout) if crossing else None
    close(grouped(x_ND, layout, memory), plain(x_ND, layout, memory))


@pytest.mark.parametrize("bias", ["", "q", "k", "v", "o", "qv", "kv", "qvo", "qkv", "qkvo"])
@pytest.mark.parametrize("crossing", [False, True], ids=["self", "cross"])
def test_some_biases_are_all_biases_of_which_others_are_zero(
    bias: str, crossing: bool, shake: Shake
) -> None:
    some = shake(Attention(16, 4, n_kv_heads=2, bias=bias))
    full = Attention(16, 4, n_kv_heads=2, bias="qkvo")
    with torch.no_grad():
        full.to_qkv.weight.copy_(some.to_qkv.weight)
        full.to_out.weight.copy_(some.to_out.weight)
        parts = full.to_qkv.bias.split(full.sizes)
        theirs = (
            some.to_qkv.bias.split(some.sizes)
            if some.to_qkv.bias is not None
            else [some.some_bias[n] if n in some.some_bias else torch.zeros(()) for n in "qkv"]
        )
        for name, part, other in zip("qkv", parts, theirs, strict=True):
            part.copy_(other)
            assert bool(part.any()) is (name in bias)
        full.to_out.bias.copy_(some.to_out.bias if "o" in bias else torch.zeros(16))
    n_biases = sum(size for name, size in zip("qkvo", (16, 8, 8, 16), strict=True) if name in bias)
    assert sum(p.numel() for p in some.parameters() if p.ndim == 1) == n_biases
    layout, memory_layout = Layout.of([3, 2]), Layout.of([4, 1])
    x_ND = torch.randn(5, 16)
    memory = Memory(torch.randn(5, 16), memory_layout) if crossing else None
    close(some(x_ND, layout, memory), full(x_ND, layout, memory))


def test_a_memory_that_is_the_input_gives_self_attention(
    shake: Shake, device: torch.device
) -> None:
    norms = RMSNorm(4), RMSNorm(4)
    attention = shake(Attention(16, 4, n_kv_heads=2, bias="qkvo", qk_norm=norms)).to(device)
    layout = Layout.of([4, 2], device)
    x_ND = torch.randn(6, 16, device=device)
    close(attention(x_ND, layout, Memory(x_ND, layout)), attention(x_ND, layout))


@pytest.mark.parametrize("crossing", [False, True], ids=["self", "cross"])
def test_it_equals_projections_and_attention_written_out(crossing: bool, shake: Shake) -> None:
    norm_q, norm_k = shake(RMSNorm(4)), shake(RMSNorm(4))
    part = Rotary(lambda: rope_rates(4, 100.0), 8)
    attention = shake(
        Attention(
            16,
            4,
            n_kv_heads=2,
            bias="qkvo",
            qk_norm=(norm_q, norm_k),
            rotary=part,
            scope=AttentionSpec(causal=not crossing),
        )
    )
    layout, memory_layout = Layout.of([4, 2]), Layout.of([3, 5])
    x_ND, memory_MD = torch.randn(6, 16), torch.randn(8, 16)
    source_MD, keys = (memory_MD, memory_layout) if crossing else (x_ND, layout)
    weights = attention.to_qkv.weight.split([16, 8, 8])
    biases = attention.to_qkv.bias.split([16, 8, 8])
    q = norm_q((x_ND @ weights[0].T + biases[0]).view(6, 4, 4))
    k = norm_k((source_MD @ weights[1].T + biases[1]).view(-1, 2, 4))
    v = (source_MD @ weights[2].T + biases[2]).view(-1, 2, 4)
    if not crossing:  # positions of one sequence mean nothing in another
        q, k = part(q, layout), part(k, layout)
    heads_NHK, _ = attend_explicit(q, k, v, layout, keys, attention.scope)
    wanted = heads_NHK.flatten(1) @ attention.to_out.weight.T + attention.to_out.bias
    memory = Memory(memory_MD, memory_layout) if crossing else None
    close(attention(x_ND, layout, memory), wanted)


def test_a_gate_of_ones_changes_nothing(attention: Attention, device: torch.device) -> None:
    x_ND, layout = torch.randn(6, 16, device=device), Layout.of([4, 2], device)
    without = attention(x_ND, layout)
    attention.gate_H = torch.ones(4, device=device)
    assert torch.equal(attention(x_ND, layout), without)


def test_a_closed_gate_is_a_head_without_its_columns_of_the_output(
    attention: Attention, device: torch.device
) -> None:
    x_ND, layout = torch.randn(6, 16, device=device), Layout.of([4, 2], device)
    open_ND = attention(x_ND, layout)
    attention.gate_H = torch.tensor([1.0, 1.0, 0.0, 1.0], device=device)
    gated = attention(x_ND, layout)
    attention.gate_H = None
    width = attention.d_head
    with torch.no_grad():
        attention.to_out.weight[:, 2 * width : 3 * width] = 0.0
    close(gated, attention(x_ND, layout))
    assert not torch.allclose(gated, open_ND)


def test_the_gradient_of_a_gate_is_what_the_head_adds(shake: Shake) -> None:
    attention = shake(Attention(16, 4))
    x_ND, layout = torch.randn(6, 16), Layout.of([4, 2])
    attention.gate_H = torch.ones(4, requires_grad=True)
    (gradient_H,) = torch.autograd.grad(attention(x_ND, layout).sum(), attention.gate_H)
    with torch.no_grad():
        whole = attention(x_ND, layout).sum()
        for h in range(4):
            attention.gate_H = torch.ones(4).index_fill(0, torch.tensor([h]), 0.0)
            close(whole - attention(x_ND, layout).sum(), gradient_H[h], atol=1e-4)


@pytest.mark.parametrize("name", ["plain", "grouped", "normed"])
def test_without_positions_a_permutation_of_tokens_permutes_the_output(
    name: str, shake: Shake, device: torch.device
) -> None:
    attention = shake(MAKERS[name]()).to(device)
    layout = Layout.of([5, 3], device)
    x_ND = torch.randn(8, 16, device=device)
    order_N = torch.tensor([3, 0, 4, 1, 2, 7, 5, 6], device=device)
    close(attention(x_ND[order_N], layout), attention(x_ND, layout)[order_N])


@pytest.mark.parametrize("name", ["causal", "rotary", "alibi", "window"])
def test_with_positions_it_does_not(name: str, shake: Shake) -> None:
    shaken = shake(MAKERS[name]())
    layout = Layout.of([5])
    x_ND = torch.randn(5, 16)
    order_N = torch.tensor([3, 0, 4, 1, 2])
    assert not torch.allclose(shaken(x_ND[order_N], layout), shaken(x_ND, layout)[order_N])


@pytest.mark.parametrize("width", [4, 64])
def test_the_scale_keeps_the_variance_of_scores_at_one(width: int) -> None:
    """Footnote 4 of the paper: without it the variance is the width of a head."""
    layout = Layout.of([200])
    q, k = torch.randn(2, 200, 1, width)
    for scale, wanted in ((None, 1.0), (1.0, float(width))):
        # log(weight) is the score less a number for each row.
        _, (weights_HTS,) = attend_explicit(q, k, k, layout, layout, AttentionSpec(scale=scale))
        scores_TS = (q[:, 0] @ k[:, 0].T) * AttentionSpec(scale=scale).scale_for(width)
        assert scores_TS.var().item() == pytest.approx(wanted, rel=0.15)
        torch.testing.assert_close(weights_HTS[0], scores_TS.softmax(-1))


def test_attention_dropout_is_on_in_training_and_off_in_use(shake: Shake) -> None:
    attention = shake(Attention(16, 4, scope=AttentionSpec(dropout=0.5)))
    plain = Attention(16, 4)
    plain.load_state_dict(attention.state_dict())
    x_ND, layout = torch.randn(6, 16), Layout.of([4, 2])
    assert not torch.allclose(attention(x_ND, layout), plain(x_ND, layout))
    assert torch.equal(attention.eval()(x_ND, layout), plain(x_ND, layout))


@pytest.mark.parametrize("crossing", [False, True], ids=["self", "cross"])
def test_a_bf16_stream_stays_bf16_and_weights_get_fp32_gradients(
    crossing: bool, shake: Shake, device: torch.device
) -> None:
    attention = shake(Attention(64, 4, n_kv_heads=2, bias="qvo")).to(device)
    layout = Layout.of([4, 2], device)
    x_ND = torch.randn(6, 64, device=device)
    memory = Memory(x_ND, layout) if crossing else None
    narrow = Memory(x_ND.bfloat16(), layout) if crossing else None
    out_ND = attention(x_ND.bfloat16(), layout, narrow)
    assert out_ND.dtype == torch.bfloat16
    wanted = attention(x_ND, layout, memory)
    assert (out_ND.float() - wanted).norm() <= 0.02 * wanted.norm()
    out_ND.sum().backward()
    assert {p.grad.dtype for p in attention.parameters() if p.grad is not None} == {torch.float32}
    assert all(p.grad is not None for p in attention.parameters())


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("lengths", [[2, 2], [3, 1]], ids=["equal", "ragged"])
def test_gradients_pass_the_check_by_finite_differences(
    name: str, lengths: list[int], shake: Shake
) -> None:
    attention = shake(MAKERS[name]()).double()
    layout = Layout.of(lengths)
    x_ND = torch.randn(4, 16, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in attention.named_parameters()]

    def run(x_ND: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(attention, named, (x_ND, layout))

    inputs = (x_ND, *(p.detach().requires_grad_() for p in attention.parameters()))
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def test_cross_keys_are_computed_by_the_first_call_with_a_cache_alone(shake: Shake) -> None:
    attention = shake(Attention(16, 4))
    layout, memory = Layout.of([1, 1]), Memory(torch.randn(5, 16), Layout.of([2, 3]))
    x_ND = torch.randn(2, 16)
    plain = attention(x_ND, layout, memory)
    cache = Cache(1, n_rows=2, capacity=4).layers[0]
    close(attention(x_ND, layout, memory, cache), plain)
    # Another memory would give another answer, so the second call does not look at it.
    other = memory._replace(x_MD=torch.randn_like(memory.x_MD))
    assert not torch.allclose(attention(x_ND, layout, other), plain)
    close(attention(x_ND, layout, other, cache), plain)


def test_beams_share_the_keys_of_their_source_by_its_layout(shake: Shake) -> None:
    attention = shake(Attention(16, 4))
    memory = Memory(torch.randn(5, 16), Layout.of([2, 3]))
    x_ND = torch.randn(4, 16)
    beams = Memory(memory.x_MD, memory.layout.pick([0, 0, 1, 1]))
    found = attention(x_ND, Layout.of([1, 1, 1, 1]), beams)
    copies_MD = torch.cat([memory.x_MD[:2], memory.x_MD[:2], memory.x_MD[2:], memory.x_MD[2:]])
    copied = Memory(copies_MD, Layout.of([2, 2, 3, 3]))
    close(found, attention(x_ND, Layout.of([1, 1, 1, 1]), copied))
