"""The seam: the definition against loops, which back end is taken and why, and dropout in each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.errors import UserError
from headway.nn.attention import attend as attend_file
from headway.nn.attention import varlen
from headway.nn.attention.attend import BACK_ENDS, attend, attend_explicit
from headway.nn.attention.dense import attend_dense
from headway.nn.attention.padded import PaddedLayout
from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout
from headway.nn.positions import Alibi
from tests.nn import flash_twin

MakeQkv = Callable[..., tuple[Tensor, Tensor, Tensor]]


def by_loops(q_THK: Tensor, k_SGK: Tensor, v_SGK: Tensor, scope: AttentionSpec) -> Tensor:
    """Attention of one sequence, a number at a time."""
    n_queries, n_heads, width = q_THK.shape
    n_keys, n_kv_heads, _ = k_SGK.shape
    scale = 1 / math.sqrt(width) if scope.scale is None else scope.scale
    out_THK = torch.zeros_like(q_THK)
    for t in range(n_queries):
        place = n_keys - n_queries + t
        for h in range(n_heads):
            g = h * n_kv_heads // n_heads
            seen = [
                s
                for s in range(n_keys)
                if (not scope.causal or s <= place)
                and (scope.window is None or abs(s - place) < scope.window)
            ]
            if not seen:
                continue
            scores = torch.stack([q_THK[t, h] @ k_SGK[s, g] * scale for s in seen])
            if scope.bias is not None:
                far = torch.tensor([[s - place for s in seen]])
                scores = scores + scope.bias(far)[h, 0]
            weights = scores.exp() / scores.exp().sum()
            for weight, s in zip(weights, seen, strict=True):
                out_THK[t, h] += weight * v_SGK[s, g]
    return out_THK


@pytest.mark.parametrize(
    "scope",
    [
        AttentionSpec(),
        AttentionSpec(causal=True),
        AttentionSpec(window=2),
        AttentionSpec(causal=True, window=2),
        AttentionSpec(bias=Alibi(4).double()),
        AttentionSpec(scale=1.0),
    ],
    ids=["plain", "causal", "window", "causal window", "alibi", "scale"],
)
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_the_definition_equals_attention_by_loops(
    scope: AttentionSpec, n_kv_heads: int, make_qkv: MakeQkv
) -> None:
    queries, keys = Layout.of([2, 0, 3]), Layout.of([4, 2, 3])
    q, k, v = make_qkv(queries, keys, (4, n_kv_heads, 6), torch.float64)
    found = queries.split(attend_explicit(q, k, v, queries, keys, scope)[0])
    parts = zip(queries.split(q), keys.split(k), keys.split(v), strict=True)
    for mine, (q_THK, k_SGK, v_SGK) in zip(found, parts, strict=True):
        wanted = by_loops(q_THK, k_SGK, v_SGK, scope)
        torch.testing.assert_close(mine, wanted, rtol=0.0, atol=1e-10)


def test_the_weights_are_handed_out_and_sum_to_one(make_qkv: MakeQkv, device: torch.device) -> None:
    queries, keys = Layout.of([2, 3], device), Layout.of([4, 3], device)
    q, k, v = make_qkv(queries, keys, (4, 2, 6), torch.float32)
    _, weights = attend_explicit(q, k, v, queries, keys, AttentionSpec(causal=True))
    assert [tuple(w_HTS.shape) for w_HTS in weights] == [(4, 2, 4), (4, 3, 3)]
    for w_HTS in weights:
        torch.testing.assert_close(w_HTS.sum(-1), torch.ones_like(w_HTS[..., 0]))
    assert not weights[1].triu(1).any()  # no later key
    assert weights[1].tril().any()


@pytest.mark.parametrize("back_end", ["dense", "explicit"])
def test_a_query_without_any_key_gets_zeros(
    back_end: str, make_qkv: MakeQkv, device: torch.device
) -> None:
    queries, keys = Layout.of([2, 3], device), Layout.of([0, 3], device)
    leaves = [x.requires_grad_() for x in make_qkv(queries, keys, (2, 2, 8), torch.float32)]
    out_NHK = attend(*leaves, queries, keys, back_end=back_end)
    assert not out_NHK[:2].any()
    assert out_NHK[2:].all()
    for gradient in torch.autograd.grad(out_NHK.sum(), leaves):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "scope", [AttentionSpec(causal=True), AttentionSpec(window=1)], ids=["causal", "window"]
)
def test_the_definition_gives_zeros_to_a_query_that_may_see_no_key(
    scope: AttentionSpec, make_qkv: MakeQkv, same_as_explicit: Callable[..., None]
) -> None:
    queries, keys = Layout.of([3, 2]), Layout.of([1, 2])
    leaves = [x.requires_grad_() for x in make_qkv(queries, keys, (2, 2, 8), torch.float32)]
    out_NHK, weights = attend_explicit(*leaves, queries, keys, scope)
    assert not out_NHK[:2].any()
    assert not weights[0][:, :2].any()
    for gradient in torch.autograd.grad(out_NHK.sum(), leaves):
        assert gradient.isfinite().all()
    same_as_explicit(attend_dense, queries, keys, scope)


def test_the_definition_takes_a_batch_of_no_sequences(make_qkv: MakeQkv) -> None:
    nobody = Layout.of([])
    q, k, v = make_qkv(nobody, nobody, (2, 2, 8), torch.float32)
    assert attend_explicit(q, k, v, nobody, nobody, AttentionSpec())[0].shape == (0, 2, 8)


def test_naming_a_back_end_runs_that_one(make_qkv: MakeQkv, device: torch.device) -> None:
    layout = Layout.of([3, 2], device)
    q, k, v = make_qkv(layout, layout, (4, 2, 8), torch.float32)
    scope = AttentionSpec(causal=True)
    wanted = {
        "dense": attend_dense(q, k, v, layout, layout, scope),
        "explicit": attend_explicit(q, k, v, layout, layout, scope)[0],
    }
    for name, out_NHK in wanted.items():
        assert torch.equal(attend(q, k, v, layout, layout, scope, back_end=name), out_NHK)


def on_cuda(
    width: int = 64, dtype: torch.dtype = torch.bfloat16, requires_grad: bool = False
) -> Any:
    """Looks enough like a tensor on a GPU for the back ends to say whether they would take it."""
    return SimpleNamespace(
        is_cuda=True,
        device=torch.device("cuda"),
        dtype=dtype,
        shape=torch.Size((10, 4, width)),
        requires_grad=requires_grad,
    )


@pytest.fixture
def _with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend_file, "HAS_TRITON", True)


@pytest.fixture
def chosen(_with_triton: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The name of the back end that `attend` takes for a call."""
    for name, back_end in BACK_ENDS.items():
        answer = replace(back_end, run=lambda *_, name=name: name)
        monkeypatch.setitem(BACK_ENDS, name, answer)

    def choice(
        q: Any, queries: Layout, keys: Layout | None = None, scope: AttentionSpec = AttentionSpec()
    ) -> str:
        return attend(q, q, q, queries, queries if keys is None else keys, scope)

    return choice


SENTENCES, PAGES = Layout.of([20, 128]), Layout.of([20, 129])
GAPPED = Layout.in_cache([1, 2], 3)


@pytest.mark.parametrize(
    ("wanted", "q", "queries", "keys", "scope"),
    [
        ("short", on_cuda(), SENTENCES, None, AttentionSpec(causal=True)),
        ("short", on_cuda(dtype=torch.float16), SENTENCES, None, AttentionSpec(window=3)),
        ("short", on_cuda(), SENTENCES, None, AttentionSpec(dropout=0.1)),
        (
            "short",
            on_cuda(),
            SENTENCES,
            Layout.in_cache([30, 128], 200),
            AttentionSpec(causal=True),
        ),
        ("short", on_cuda(width=16), SENTENCES, None, AttentionSpec()),
        ("short", on_cuda(requires_grad=True), SENTENCES, None, AttentionSpec(causal=True)),
        ("dense", on_cuda(requires_grad=True), SENTENCES, SENTENCES.pick([1, 1]), AttentionSpec()),
        ("short", on_cuda(), Layout.of([64, 64]), None, AttentionSpec()),
        ("grid", on_cuda(), Layout.of([197, 197]), None, AttentionSpec()),
        ("varlen", on_cuda(), Layout.of([197, 197]), None, AttentionSpec(window=9)),
        ("varlen", on_cuda(width=256), Layout.of([197, 197]), None, AttentionSpec()),
        ("varlen", on_cuda(), Layout.of([197, 196]), None, AttentionSpec()),
        ("varlen", on_cuda(), PAGES, None, AttentionSpec(causal=True)),
        ("varlen", on_cuda(), SENTENCES, PAGES, AttentionSpec()),
        ("varlen", on_cuda(), PAGES, SENTENCES, AttentionSpec()),
        ("varlen", on_cuda(width=8), SENTENCES, None, AttentionSpec()),
        ("varlen", on_cuda(width=256), SENTENCES, None, AttentionSpec()),
        ("varlen", on_cuda(), PAGES, None, AttentionSpec(dropout=0.1)),
        ("varlen", on_cuda(), Layout.of([197, 197]), None, AttentionSpec(dropout=0.1)),
        ("dense", on_cuda(width=256), PAGES, None, AttentionSpec(dropout=0.1)),
        ("dense", on_cuda(), SENTENCES, None, AttentionSpec(bias=Alibi(4))),
        ("dense", on_cuda(), PAGES, None, AttentionSpec(bias=Alibi(4))),
        ("dense", on_cuda(), SENTENCES, Layout.in_cache([30, 129], 200), AttentionSpec()),
        ("dense", on_cuda(width=12), SENTENCES, None, AttentionSpec()),
        ("dense", on_cuda(width=264), SENTENCES, None, AttentionSpec()),
        ("dense", on_cuda(dtype=torch.float32), SENTENCES, None, AttentionSpec()),
        ("dense", torch.zeros(1, 4, 64), SENTENCES, None, AttentionSpec()),
        ("dense", torch.zeros(1, 4, 64, dtype=torch.bfloat16), SENTENCES, None, AttentionSpec()),
    ],
)
def test_the_first_back_end_that_can_is_taken(
    wanted: str,
    q: Any,
    queries: Layout,
    keys: Layout | None,
    scope: AttentionSpec,
    chosen: Callable[..., str],
) -> None:
    assert chosen(q, queries, keys, scope) == wanted


def test_without_triton_short_sequences_go_the_way_of_long_ones(
    chosen: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attend_file, "HAS_TRITON", False)
    assert chosen(on_cuda(), SENTENCES) == "varlen"
    with pytest.raises(UserError, match=r"'short'.*\bTriton\b"):
        attend(on_cuda(), on_cuda(), on_cuda(), SENTENCES, SENTENCES, back_end="short")


def test_the_fixed_form_is_short_or_long_by_its_bound(chosen: Callable[..., str]) -> None:
    sizes = {"n_rows": 300, "n_sequences": 9}
    assert chosen(on_cuda(), Layout.fixed([20], longest=100, **sizes)) == "short"
    assert chosen(on_cuda(), Layout.fixed([20], longest=150, **sizes)) == "short"  # a few long ones
    assert chosen(on_cuda(), Layout.fixed([20], longest=1500, **sizes)) == "varlen"
    mostly_long = {"n_rows": 300, "n_sequences": 3}
    assert chosen(on_cuda(), Layout.fixed([20], longest=150, **mostly_long)) == "varlen"


def test_wide_heads_of_the_fixed_form_ask_for_no_lengths(chosen: Callable[..., str]) -> None:
    sizes = {"n_rows": 300, "n_sequences": 9}
    sentences = Layout.fixed([20], longest=100, **sizes)
    pages = Layout.fixed([20], longest=150, **sizes)
    assert chosen(on_cuda(width=312), sentences) == "wide"
    assert chosen(on_cuda(width=136), sentences) == "wide"
    assert chosen(on_cuda(width=256), pages) == "varlen"
    assert chosen(on_cuda(width=256), pages, scope=AttentionSpec(dropout=0.1)) == "wide"
    assert chosen(on_cuda(width=312), pages) == "wide"
    assert chosen(on_cuda(width=312), sentences, GAPPED) == "dense"


@pytest.mark.parametrize(
    "scope",
    [
        AttentionSpec(),
        AttentionSpec(causal=True),
        AttentionSpec(window=2),
        AttentionSpec(causal=True, window=2, scale=1.0),
    ],
    ids=["plain", "causal", "window", "causal window"],
)
@pytest.mark.parametrize("n_kv_heads", [2, 1])
def test_wide_heads_on_a_grid_equal_the_definition_forward_and_backward(
    scope: AttentionSpec, n_kv_heads: int, make_qkv: MakeQkv, device: torch.device
) -> None:
    sizes = {"n_sequences": 6, "longest": 5, "device": device}
    queries = Layout.fixed([2, 3, 1], n_rows=9, **sizes)
    keys = Layout.fixed([4, 1, 5], n_rows=10, **sizes)  # none for some, nor for dummy queries
    leaves = [
        x.to(device).requires_grad_()
        for x in make_qkv(queries, keys, (2, n_kv_heads, 130), torch.float64)
    ]
    got = attend(*leaves, queries, keys, scope, back_end="wide")
    want = attend_explicit(*leaves, queries, keys, scope)[0]
    torch.testing.assert_close(got, want)
    weigh = torch.randn_like(got)
    for one, other in zip(
        torch.autograd.grad((got * weigh).sum(), leaves),
        torch.autograd.grad((want * weigh).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("_with_triton")
@pytest.mark.parametrize(
    ("back_end", "q", "keys", "scope", "reason"),
    [
        ("short", torch.zeros(1, 4, 64), SENTENCES, AttentionSpec(), r"\bCUDA\b.*\bcpu\b"),
        ("short", on_cuda(dtype=torch.float32), SENTENCES, AttentionSpec(), "float32"),
        ("short", on_cuda(), PAGES, AttentionSpec(), r"\b129\b"),
        ("short", on_cuda(), SENTENCES, AttentionSpec(bias=Alibi(4)), r"\bbias\b"),
        ("short", on_cuda(requires_grad=True), GAPPED, AttentionSpec(), r"\bgaps\b"),
        ("short", on_cuda(width=8), SENTENCES, AttentionSpec(), r"\b8\b.*\b16\b.*\b128\b"),
        ("grid", on_cuda(), PAGES, AttentionSpec(), r"\bsequence"),
        ("wide", on_cuda(width=312), PAGES, AttentionSpec(), r"\bdense\b"),
        ("padded", torch.zeros(1, 4, 64), PAGES, AttentionSpec(), r"\bpadding\b"),
        ("varlen", torch.zeros(1, 4, 64), PAGES, AttentionSpec(), r"\bCUDA\b.*\bcpu\b"),
        ("varlen", on_cuda(dtype=torch.float64), PAGES, AttentionSpec(), "float64"),
        ("varlen", on_cuda(), GAPPED, AttentionSpec(), r"\bgaps\b"),
        ("varlen", on_cuda(), PAGES.pick([1, 0]), AttentionSpec(), r"\bgaps\b"),
        ("varlen", on_cuda(), PAGES, AttentionSpec(bias=Alibi(4)), r"\bbias\b"),
        (
            "varlen",
            on_cuda(width=256),
            PAGES,
            AttentionSpec(dropout=0.1),
            r"\b256\b.*\b192\b.*dropout",
        ),
        ("varlen", on_cuda(width=20), PAGES, AttentionSpec(), r"\b20\b.*\b8\b.*\b256\b"),
    ],
)
def test_an_unsupported_call_names_the_back_end_and_the_reason(
    back_end: str, q: Any, keys: Layout, scope: AttentionSpec, reason: str
) -> None:
    queries = Layout.of(keys.known_lengths())
    with pytest.raises(UserError, match=f"'{back_end}'.*{reason}"):
        attend(q, q, q, queries, keys, scope, back_end=back_end)


def test_an_unknown_back_end_gets_a_suggestion() -> None:
    layout = Layout.of([1])
    q = torch.zeros(1, 1, 8)
    with pytest.raises(UserError, match=r"'densse'.*'dense'"):
        attend(q, q, q, layout, layout, back_end="densse")
    with pytest.raises(UserError, match=", ".join(BACK_ENDS)):
        attend(q, q, q, layout, layout, back_end="?")


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize(
    "scope",
    [
        AttentionSpec(),
        AttentionSpec(causal=True),
        AttentionSpec(causal=True, window=2),
        AttentionSpec(bias=Alibi(4)),
    ],
    ids=["plain", "causal", "window", "alibi"],
)
@pytest.mark.parametrize("n_kv_heads", [4, 2])
def test_a_grid_with_padding_gives_what_its_real_rows_give_alone(
    scope: AttentionSpec, n_kv_heads: int, left: bool, make_qkv: MakeQkv
) -> None:
    lengths = [3, 5, 1]
    flat = Layout.of(lengths)
    real_BT = torch.arange(5) < torch.tensor(lengths)[:, None]
    real_BT = real_BT.flip(1) if left else real_BT
    grid = PaddedLayout.over(real_BT)
    rows = [x.requires_grad_() for x in make_qkv(flat, flat, (4, n_kv_heads, 8), torch.float32)]
    cells = [torch.full((15, *x.shape[1:]), 7.0) for x in rows]  # what padding holds is not seen
    for cell, x in zip(cells, rows, strict=True):
        cell[real_BT.flatten()] = x
    out_NHK = attend(*cells, grid, grid, scope)[real_BT.flatten()]
    torch.testing.assert_close(out_NHK, attend_explicit(*rows, flat, flat, scope)[0])
    assert all(g.isfinite().all() for g in torch.autograd.grad(out_NHK.sum(), rows))


# Dropout. With the unit vectors as values, what comes out is the weights that dropout left.

RATE = 0.3


@pytest.fixture(params=["explicit", "dense", "dense, ragged", "dense, causal", "short",
                        "varlen", "varlen, causal"])  # fmt: skip
def dropping(
    request: pytest.FixtureRequest, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Layout, AttentionSpec]:
    """A back end, many twins of one sequence, and a scope."""
    name, _, form = request.param.partition(", ")
    scope = AttentionSpec(dropout=RATE, causal=form == "causal")
    if name == "short":
        pytest.importorskip("triton")
        if device.type == "cpu" and torch.cuda.is_available():
            pytest.skip("Triton compiles for the GPU here and interprets nothing")
        from headway.nn.kernels.short_attention import attend_short

        # The interpreter takes a hundredth of a second for a sequence.
        return attend_short, Layout.of([8] * 10, device), scope
    if name == "varlen":
        if device.type == "cuda":
            pytest.skip("it computes in 16 bits there: test_varlen holds it to the same")
        monkeypatch.setattr(varlen, "FORWARD", flash_twin.forward)
        monkeypatch.setattr(varlen, "BACKWARD", flash_twin.backward)
    lengths = [4, *([8] * 100)] if form == "ragged" else [8] * 100
    return BACK_ENDS[name].run, Layout.of(lengths, device), scope


def twins(layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """The same q, k and unit v for every sequence; a shorter one has their beginning."""
    device = layout.starts_B.device
    q, k = torch.randn(2, 8, 2, 16, device=device)
    v = torch.eye(8, 16, device=device)[:, None].expand(-1, 2, -1)
    rows_N = layout.positions_N
    return q[rows_N], k[rows_N], v[rows_N]


def grid(x_NHK: Tensor) -> Tensor:
    """(twins, 8, heads, width), without the one shorter sequence in front."""
    return x_NHK[len(x_NHK) % 8 :].unflatten(0, (-1, 8))


def left_weights(run: Any, layout: Layout, scope: AttentionSpec, seed: int = 0) -> Tensor:
    """(twins, T, H, S) after dropout."""
    torch.manual_seed(1)
    tensors = twins(layout)
    torch.manual_seed(seed)
    return grid(run(*tensors, layout, layout, scope))[..., :8]


def test_dropout_keeps_the_expectation_and_the_rate(
    dropping: tuple[Any, Layout, AttentionSpec],
) -> None:
    run, layout, scope = dropping
    left = left_weights(run, layout, scope)
    whole = left_weights(run, layout, scope.without_dropout())
    real = whole > 0
    share = (left[real] == 0).double().mean().item()
    assert abs(share - RATE) < 5 * math.sqrt(RATE * (1 - RATE) / int(real.sum()))
    kept = left != 0
    torch.testing.assert_close(left[kept], whole[kept] / (1 - RATE), rtol=1e-4, atol=1e-6)
    # The mean of so many draws is off by no more than chance allows, a weight and all together.
    spread = whole[0] * math.sqrt(RATE / (1 - RATE) / len(left))
    assert ((left.mean(0) - whole[0]).abs() <= 5 * spread + 1e-6).all()
    assert (left.mean(0) - whole[0]).sum().abs() <= 5 * spread.square().sum().sqrt()


def test_every_sequence_head_and_call_draws_its_own_mask(
    dropping: tuple[Any, Layout, AttentionSpec],
) -> None:
    run, layout, scope = dropping
    left = left_weights(run, layout, scope) == 0
    assert not torch.equal(left[0], left[1])
    assert not torch.equal(left[:, :, 0], left[:, :, 1])
    assert not torch.equal(left, left_weights(run, layout, scope, seed=5) == 0)
    assert torch.equal(left, left_weights(run, layout, scope) == 0)  # and the seed decides


def test_backward_uses_the_mask_of_forward(dropping: tuple[Any, Layout, AttentionSpec]) -> None:
    """Read the mask out with unit values, then write the same attention down with it."""
    run, layout, scope = dropping
    kept = (left_weights(run, layout, scope) != 0).double() / (1 - RATE)
    torch.manual_seed(1)
    q, k, _ = twins(layout)
    leaves = [x.requires_grad_() for x in (q, k, torch.randn_like(k))]
    dout = torch.randn_like(q)
    torch.manual_seed(0)
    out_NHK = run(*leaves, layout, layout, scope)
    found = [out_NHK, *torch.autograd.grad(out_NHK, leaves, dout)]

    q2, k2, v2 = (grid(x.detach().double()).requires_grad_() for x in leaves)
    scores = torch.einsum("bthk,bshk->bths", q2, k2) / 4
    if scope.causal:
        may_T1S = torch.ones(8, 8, device=q.device).tril().bool()[:, None]
        scores = scores.masked_fill(~may_T1S, -math.inf)
    wanted_out = torch.einsum("bths,bshk->bthk", scores.softmax(-1) * kept, v2)
    gradients = torch.autograd.grad(wanted_out, (q2, k2, v2), grid(dout).double())
    for mine, wanted in zip(found, (wanted_out, *gradients), strict=True):
        torch.testing.assert_close(grid(mine).double(), wanted, rtol=0.0, atol=1e-5)
