"""The `short` kernel against the definition: interpreted in fp32, and in bf16 on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headway.nn.attention.attend import attend
from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout

Check = Callable[..., None]
Attend = Callable[[Tensor, Tensor, Tensor, Layout, Layout, AttentionSpec], Tensor]
MakeQkv = Callable[..., tuple[Tensor, Tensor, Tensor]]


@pytest.fixture
def attend_short(interpreted: torch.device) -> Attend:
    from headway.nn.kernels.short_attention import attend_short

    return attend_short


SCOPES = {
    "both ways": AttentionSpec(),
    "causal": AttentionSpec(causal=True),
    "window": AttentionSpec(window=2),
    "causal window": AttentionSpec(causal=True, window=3),
    "scaled": AttentionSpec(scale=0.3),
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("n_heads", [(2, 2), (4, 2), (4, 1)], ids=["plain", "grouped", "one"])
def test_outputs_and_gradients_equal_the_definition(
    scope: str,
    n_heads: tuple[int, int],
    interpreted: torch.device,
    attend_short: Attend,
    same_as_explicit: Check,
) -> None:
    layout = Layout.of([5, 0, 3], interpreted)
    same_as_explicit(attend_short, layout, layout, SCOPES[scope], (*n_heads, 16))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 64, 65, 127, 128])
def test_lengths_around_the_borders_of_tiles(
    length: int, interpreted: torch.device, attend_short: Attend, same_as_explicit: Check
) -> None:
    layout = Layout.of([length], interpreted)
    for scope in (
        AttentionSpec(),
        AttentionSpec(causal=True),
        AttentionSpec(causal=True, window=20),
    ):
        same_as_explicit(attend_short, layout, layout, scope, (1, 1, 16))


@pytest.mark.parametrize("width", [16, 24, 48, 80, 128])
def test_heads_of_any_width(
    width: int, interpreted: torch.device, attend_short: Attend, same_as_explicit: Check
) -> None:
    layout = Layout.of([3, 17], interpreted)
    same_as_explicit(attend_short, layout, layout, AttentionSpec(causal=True), (2, 1, width))


def test_every_size_of_tile_in_one_batch(
    interpreted: torch.device, attend_short: Attend, same_as_explicit: Check
) -> None:
    layout = Layout.of([2, 70, 16, 17, 33, 128, 1], interpreted)
    same_as_explicit(attend_short, layout, layout, AttentionSpec(causal=True), (1, 1, 16))


def test_few_programs_walk_over_many_sequences(
    interpreted: torch.device,
    attend_short: Attend,
    same_as_explicit: Check,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from headway.nn.kernels import short_attention as short

    monkeypatch.setattr(short, "TILES", tuple(t._replace(programs=1) for t in short.TILES))
    monkeypatch.setattr(short, "processors", lambda device: 3)
    layout = Layout.of([2, 20, 1, 3, 17], interpreted)
    same_as_explicit(attend_short, layout, layout, AttentionSpec(), (4, 2, 16))


LONG_SCOPES = [
    AttentionSpec(),
    AttentionSpec(causal=True),
    AttentionSpec(window=90),
    AttentionSpec(causal=True, window=20),
]


@pytest.mark.parametrize("scope", LONG_SCOPES, ids=["both ways", "causal", "window", "narrow"])
def test_long_sequences_among_short_ones(
    scope: AttentionSpec, interpreted: torch.device, attend_short: Attend, same_as_explicit: Check
) -> None:
    layout = Layout.of([3, 129, 0, 40, 200], interpreted)
    n_heads = 2 if scope == LONG_SCOPES[-1] else 1  # each costs as much again
    same_as_explicit(attend_short, layout, layout, scope, (n_heads, 1, 16))


@pytest.mark.parametrize(
    "lengths",
    [([200, 3], [5, 2]), ([5, 2], [200, 3]), ([150, 2], [0, 3]), ([0, 2], [150, 3])],
    ids=["more queries", "more keys", "no keys", "no queries"],
)
def test_long_sequences_with_keys_of_another_length(
    lengths: tuple[list[int], list[int]],
    interpreted: torch.device,
    attend_short: Attend,
    same_as_explicit: Check,
) -> None:
    queries, keys = (Layout.of(part, interpreted) for part in lengths)
    for scope in (AttentionSpec(), AttentionSpec(causal=True)):
        same_as_explicit(attend_short, queries, keys, scope, (2, 2, 24))


CROSS = {
    "equal": ([2, 5], [2, 5]),
    "more keys": ([2, 1], [20, 3]),
    "more queries": ([20, 3], [2, 1]),
    "no keys": ([2, 3], [0, 4]),
    "no queries": ([0, 3], [2, 4]),
    "neither": ([2, 0], [3, 0]),
    "no keys at all": ([2, 3], [0, 0]),
}


@pytest.mark.parametrize("lengths", CROSS)
def test_keys_of_another_length(
    lengths: str, interpreted: torch.device, attend_short: Attend, same_as_explicit: Check
) -> None:
    queries, keys = (Layout.of(part, interpreted) for part in CROSS[lengths])
    for scope in (AttentionSpec(), AttentionSpec(causal=True)):
        same_as_explicit(attend_short, queries, keys, scope, (3, 1, 16))


def test_cached_keys_with_new_queries_at_their_end(
    interpreted: torch.device, attend_short: Attend, same_as_explicit: Check
) -> None:
    queries, keys = Layout.of([1, 3], interpreted), Layout.of([5, 17], interpreted)
    for scope in (AttentionSpec(causal=True), AttentionSpec(causal=True, window=2)):
        same_as_explicit(attend_short, queries, keys, scope, (2, 1, 16))


@pytest.mark.parametrize("form", ["in a cache", "picked"])
def test_keys_with_gaps_between_them(
    form: str, interpreted: torch.device, attend_short: Attend, make_qkv: MakeQkv
) -> None:
    """Outputs alone: for gradients, `attend` sends these keys to another back end."""
    queries = Layout.of([1, 3], interpreted)
    keys = {
        "in a cache": Layout.in_cache([5, 3], 7, interpreted),
        "picked": Layout.of([4, 1, 5], interpreted).pick([2, 0]),
    }[form]
    q, k, v = make_qkv(queries, keys, (4, 2, 16), torch.float32)
    wanted = attend(q, k, v, queries, keys, AttentionSpec(causal=True), back_end="explicit")
    used = {row for rows in keys.split(torch.arange(keys.n_rows)) for row in rows.tolist()}
    free = [row for row in range(keys.n_rows) if row not in used]
    k[free], v[free] = torch.nan, torch.nan
    found = attend_short(q, k, v, queries, keys, AttentionSpec(causal=True))
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize(
    "scope", [AttentionSpec(), AttentionSpec(causal=True)], ids=["both ways", "causal"]
)
def test_the_fixed_form_with_its_dummies_and_empty_sequences(
    scope: AttentionSpec, interpreted: torch.device, attend_short: Attend, same_as_explicit: Check
) -> None:
    layout = Layout.fixed([3, 5], n_rows=20, n_sequences=6, longest=17, device=interpreted)
    same_as_explicit(attend_short, layout, layout, scope, (2, 1, 16))


@pytest.mark.parametrize(
    "scope", [AttentionSpec(causal=True), AttentionSpec(window=1)], ids=["causal", "window"]
)
def test_queries_that_may_see_no_key_get_zeros_and_finite_gradients(
    scope: AttentionSpec, interpreted: torch.device, attend_short: Attend, make_qkv: MakeQkv
) -> None:
    queries, keys = Layout.of([3], interpreted), Layout.of([1], interpreted)
    leaves = [x.requires_grad_() for x in make_qkv(queries, keys, (2, 1, 16), torch.float32)]
    out_NHK = attend_short(*leaves, queries, keys, scope)
    assert not out_NHK[:2].any()
    assert out_NHK[2].all()
    for gradient in torch.autograd.grad(out_NHK.sum(), leaves):
        assert gradient.isfinite().all()


def test_heads_may_be_views_at_any_stride(interpreted: torch.device, attend_short: Attend) -> None:
    layout = Layout.of([3, 5], interpreted)
    found, wanted = [], []
    qk_NE, v_NE = torch.randn(8, 32 + 64), torch.randn(8, 40)
    dout_NHK = torch.randn(2, 8, 16).transpose(0, 1)
    for run, results in ((attend_short, found), (_explicit, wanted)):
        leaves = [x_NE.clone().requires_grad_() for x_NE in (qk_NE, v_NE)]
        q, k = (x_NE.unflatten(-1, (-1, 16)) for x_NE in leaves[0].split([32, 64], -1))
        k, v = k[:, ::2], leaves[1][:, :32].unflatten(-1, (2, 16))
        assert len({x_NHK.stride() for x_NHK in (q, k, v)}) == 3
        out_NHK = run(q, k, v, layout, layout, AttentionSpec(causal=True))
        results.extend([out_NHK, *torch.autograd.grad(out_NHK, leaves, dout_NHK)])
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=1e-5)


def test_numbers_of_a_head_that_lie_apart_are_put_together_first(
    interpreted: torch.device, attend_short: Attend, make_qkv: MakeQkv
) -> None:
    layout = Layout.of([3, 5], interpreted)
    tensors = make_qkv(layout, layout, (2, 2, 16), torch.float32)
    apart = [x.permute(2, 0, 1).contiguous().permute(1, 2, 0) for x in tensors]
    assert apart[0].stride(-1) != 1
    found = attend_short(*apart, layout, layout, AttentionSpec())
    wanted = attend_short(*tensors, layout, layout, AttentionSpec())
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("joined", [False, True])
def test_its_operators_keep_torchs_contract(
    joined: bool, interpreted: torch.device, make_qkv: MakeQkv
) -> None:
    """What the compiler is told of their results, without running them, is true."""
    from headway.nn.kernels.short_attention import short_backward, short_forward

    queries = Layout.of([2, 1], interpreted)
    keys = queries if joined else Layout.of([3, 2], interpreted)
    tensors = [x.requires_grad_() for x in make_qkv(queries, keys, (4, 2, 16), torch.float32)]
    places = (queries.starts_B, queries.lengths_B, keys.starts_B, keys.lengths_B)
    options = (None, 16, True, 0, 0.25, 0.0, joined)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(short_forward, (*tensors, *places, *options), test_utils=checks)
    dout = torch.randn_like(tensors[0])
    torch.library.opcheck(short_backward, (dout, *tensors, *places, *options), test_utils=checks)


def _explicit(
    q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    return attend(q, k, v, queries, keys, scope, back_end="explicit")


# On a GPU, in the type it is made for.


def _named_short(
    q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    return attend(q, k, v, queries, keys, scope, back_end="short")


LENGTHS = [1, 15, 16, 17, 31, 32, 33, 64, 65, 100, 127, 128, 0, 40]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("scope", "heads"),
    [
        ("both ways", (4, 4, 64)),
        ("causal", (4, 1, 64)),
        ("window", (4, 2, 80)),
        ("causal window", (2, 2, 128)),
        ("scaled", (3, 3, 24)),
    ],
)
def test_in_bf16_it_is_near_the_definition_in_fp32(
    scope: str, heads: tuple[int, int, int], near_explicit: Check
) -> None:
    layout = Layout.of(LENGTHS, "cuda")
    near_explicit(_named_short, layout, layout, SCOPES[scope], heads)


@pytest.mark.gpu
@pytest.mark.parametrize("scope", SCOPES)
def test_in_bf16_long_sequences_among_short_ones_are_near_the_definition(
    scope: str, near_explicit: Check
) -> None:
    layout = Layout.of([*LENGTHS, 300, 129, 513, *[5] * 20], "cuda")
    near_explicit(_named_short, layout, layout, SCOPES[scope], (4, 2, 64))
    queries = Layout.of([3, 300, 40, *[2] * 20], "cuda")
    keys = Layout.of([200, 50, 300, *[2] * 20], "cuda")
    near_explicit(_named_short, queries, keys, SCOPES[scope], (4, 2, 64))


@pytest.mark.gpu
def test_in_bf16_the_fixed_form_and_cross_attention_are_near_the_definition(
    near_explicit: Check,
) -> None:
    sizes = {"n_rows": 1024, "n_sequences": 40, "device": "cuda"}
    queries = Layout.fixed(LENGTHS, longest=128, **sizes)
    keys = Layout.fixed(LENGTHS[::-1], longest=128, **sizes)
    near_explicit(_named_short, queries, queries, AttentionSpec(causal=True))
    near_explicit(_named_short, queries, keys, AttentionSpec())
