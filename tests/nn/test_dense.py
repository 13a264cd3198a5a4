"""The `dense` back end against the definition, in every form a batch can take."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.nn.attention import dense
from headway.nn.attention.dense import attend_dense, group_by_length
from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout
from headway.nn.positions import Alibi, Relative

Pair = tuple[Layout, Layout]
Check = Callable[..., None]
HEADS = [(4, 4, 16), (4, 2, 24), (4, 1, 8)]
"""Query heads, key/value heads, width."""


def _same(layout: Layout) -> Pair:
    return layout, layout


LAYOUTS: dict[str, Callable[[torch.device], Pair]] = {
    "equal": lambda d: _same(Layout.of([5, 5, 5], d)),
    "ragged": lambda d: _same(Layout.of([3, 1, 5, 4], d)),
    "some empty": lambda d: _same(Layout.of([3, 0, 5, 0], d)),
    "twins of one layout": lambda d: (Layout.of([3, 5], d), Layout.of([3, 5], d)),
    "cross, more keys": lambda d: (Layout.of([2, 1, 4], d), Layout.of([5, 3, 4], d)),
    "cross, more queries": lambda d: (Layout.of([4, 1, 5], d), Layout.of([2, 3, 1], d)),
    "cross, equal, more queries": lambda d: (Layout.of([4, 4], d), Layout.of([2, 2], d)),
    "cross, equal": lambda d: (Layout.of([2, 2], d), Layout.of([4, 4], d)),
    "cross, equal queries": lambda d: (Layout.of([2, 2], d), Layout.of([3, 4], d)),
    "some without keys": lambda d: (Layout.of([2, 3, 1], d), Layout.of([4, 0, 1], d)),
    "some without queries": lambda d: (Layout.of([2, 0, 1], d), Layout.of([4, 3, 1], d)),
    "one step": lambda d: (Layout.of([1, 1, 1], d), Layout.in_cache([4, 1, 6], 7, d)),
    "one step, equal": lambda d: (Layout.of([1, 1, 1], d), Layout.in_cache([4, 4, 4], 7, d)),
    "steps": lambda d: (Layout.of([2, 2, 2], d), Layout.in_cache([4, 2, 6], 6, d)),
    "steps, one without keys": lambda d: (Layout.of([2, 2], d), Layout.in_cache([0, 3], 4, d)),
    "first steps": lambda d: (Layout.of([3, 3], d), Layout.in_cache([3, 3], 5, d)),
    "ragged steps": lambda d: (Layout.of([1, 3, 2], d), Layout.in_cache([4, 3, 6], 7, d)),
    "picked": lambda d: (Layout.of([2, 1, 3], d), Layout.of([3, 4, 1, 2], d).pick([1, 2, 0])),
    "picked twice": lambda d: (Layout.of([2, 1, 3], d), Layout.of([3, 4], d).pick([1, 0, 1])),
    "picked, one step": lambda d: (Layout.of([1, 1], d), Layout.of([3, 4, 2], d).pick([2, 0])),
    "fixed": lambda d: _same(
        Layout.fixed([3, 1, 4], n_rows=14, n_sequences=7, longest=5, device=d)
    ),
    "fixed, cross": lambda d: (
        Layout.fixed([3, 1, 4], n_rows=11, n_sequences=6, longest=4, device=d),
        Layout.fixed([5, 2, 4], n_rows=16, n_sequences=6, longest=5, device=d),
    ),
    "fixed, keys only": lambda d: (
        Layout.of([2, 2, 2, 0], d),
        Layout.fixed([5, 2, 4], n_rows=13, n_sequences=4, longest=5, device=d),
    ),
}

BIASES: dict[str, Callable[[bool], torch.nn.Module | None]] = {
    "no bias": lambda causal: None,
    "alibi": lambda causal: Alibi(4),
    "relative": lambda causal: Relative(4, 8, 6, causal=causal),
}


TYPED_HEADS = [(torch.float32, HEADS[1]), *((torch.float64, heads) for heads in HEADS)]


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_outputs_and_gradients_equal_the_definition(
    layouts: str, device: torch.device, same_as_explicit: Check
) -> None:
    queries, keys = LAYOUTS[layouts](device)
    for causal, window, bias in product((False, True), (None, 2), BIASES.values()):
        for dtype, heads in TYPED_HEADS:
            part = bias(causal)
            scope = AttentionSpec(
                causal=causal, window=window, bias=part and part.to(device, dtype)
            )
            same_as_explicit(attend_dense, queries, keys, scope, heads, dtype)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int], bool, int | None]:
    """Lengths of queries and keys, and who may see whom."""
    n_sequences = draw(st.integers(1, 5))
    q_lengths = draw(st.lists(st.integers(0, 5), min_size=n_sequences, max_size=n_sequences))
    k_lengths = draw(st.lists(st.integers(0, 9), min_size=n_sequences, max_size=n_sequences))
    return q_lengths, k_lengths, draw(st.booleans()), draw(st.sampled_from([None, 1, 3]))


@settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # it holds no state
)
@given(
    batches(),
    st.sampled_from([(1, 1), (2, 1), (4, 2), (6, 6)]),
    st.integers(1, 9),
    st.sampled_from(list(BIASES)),
    st.sampled_from(["side by side", "in a cache", "picked", "fixed"]),
    st.sampled_from([None, 0.3]),
)
def test_any_batch_equals_the_definition(
    same_as_explicit: Check,
    batch: tuple[list[int], list[int], bool, int | None],
    n_heads: tuple[int, int],
    width: int,
    bias: str,
    form: str,
    scale: float | None,
) -> None:
    from_heads = {"no bias": None, "alibi": Alibi(n_heads[0])}
    q_lengths, k_lengths, causal, window = batch
    part = from_heads.get(bias, Relative(n_heads[0], 8, 6, causal=causal).double())
    scope = AttentionSpec(causal=causal, window=window, bias=part, scale=scale)
    queries, keys = Layout.of(q_lengths), Layout.of(k_lengths)
    if form == "in a cache":
        keys = Layout.in_cache(k_lengths, max(k_lengths) + 1)
    elif form == "picked":
        backwards = list(range(len(k_lengths)))[::-1]
        keys = Layout.of([*k_lengths[::-1], 2]).pick(backwards)
    elif form == "fixed":
        size = {"n_rows": 5 * 9, "n_sequences": 5 + 9}
        queries = Layout.fixed(q_lengths, longest=5, **size)
        keys = Layout.fixed(k_lengths, longest=9, **size)
    same_as_explicit(attend_dense, queries, keys, scope, (*n_heads, width), torch.float64)


@pytest.mark.parametrize("keys", ["the same", "cross", "in a cache"])
def test_equal_lengths_are_viewed_and_not_copied(
    keys: str,
    device: torch.device,
    make_qkv: Callable[..., tuple[Tensor, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Tensor] = []

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        seen.extend((q, k, v))
        return torch.zeros_like(q)

    def fail(*_: object) -> None:
        raise AssertionError("gathered")

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(dense, "_plan", fail)
    queries = Layout.of([3, 3], device)
    of_keys = {
        "the same": queries,
        "cross": Layout.of([4, 4], device),
        "in a cache": Layout.in_cache([4, 6], 8, device),
    }[keys]
    tensors = make_qkv(queries, of_keys, (4, 2, 8), torch.float32)
    attend_dense(*tensors, queries, of_keys, AttentionSpec(causal=True))
    for mine, theirs in zip(tensors, seen, strict=True):
        assert theirs.data_ptr() == mine.data_ptr()
    ragged = Layout.of([3, 2], device)
    with pytest.raises(AssertionError, match="gathered"):  # the test itself can fail
        attend_dense(
            *make_qkv(ragged, ragged, (4, 2, 8), torch.float32), ragged, ragged, AttentionSpec()
        )


@pytest.mark.parametrize(
    ("queries", "keys", "scope", "needs_mask"),
    [
        (Layout.of([3, 3]), None, AttentionSpec(causal=True), False),
        (Layout.of([3, 3]), None, AttentionSpec(), False),
        (Layout.of([3, 2]), None, AttentionSpec(causal=True), False),
        (Layout.of([1, 1]), Layout.in_cache([4, 4], 6), AttentionSpec(causal=True), False),
        (Layout.of([3, 2]), None, AttentionSpec(), True),
        (Layout.of([1, 1]), Layout.in_cache([4, 3], 6), AttentionSpec(causal=True), True),
        (Layout.of([3, 3]), None, AttentionSpec(causal=True, window=2), True),
    ],
)
def test_a_mask_is_made_only_where_one_is_needed(
    queries: Layout,
    keys: Layout | None,
    scope: AttentionSpec,
    needs_mask: bool,
    make_qkv: Callable[..., tuple[Tensor, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    masks: list[Tensor | None] = []

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: Tensor | None) -> Tensor:
        masks.append(options["attn_mask"])
        return torch.zeros_like(q)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    keys = queries if keys is None else keys
    attend_dense(*make_qkv(queries, keys, (2, 2, 8), torch.float32), queries, keys, scope)
    assert [mask is not None for mask in masks] == [needs_mask]


@pytest.mark.parametrize("form", ["ragged", "in a cache"])
def test_rows_that_belong_to_no_sequence_are_not_seen(
    form: str, device: torch.device, make_qkv: Callable[..., tuple[Tensor, ...]]
) -> None:
    queries = Layout.of([2, 2] if form == "in a cache" else [2, 1], device)
    keys = Layout.in_cache([2, 4], 6, device)
    q, k, v = make_qkv(queries, keys, (2, 2, 8), torch.float32)
    before = attend_dense(q, k, v, queries, keys, AttentionSpec(causal=True))
    free = [2, 3, 4, 5, 10, 11]
    k[free], v[free] = 1e4, 1e4
    assert torch.equal(attend_dense(q, k, v, queries, keys, AttentionSpec(causal=True)), before)
    v[0] += 1.0
    assert not torch.equal(attend_dense(q, k, v, queries, keys, AttentionSpec(causal=True)), before)


@pytest.mark.parametrize("lengths", [[3, 3], [3, 2, 5]], ids=["equal", "ragged"])
def test_a_neighbour_with_other_content_changes_nothing_bit_for_bit(
    lengths: list[int], make_qkv: Callable[..., tuple[Tensor, ...]]
) -> None:
    layout = Layout.of(lengths)
    q, k, v = make_qkv(layout, layout, (2, 2, 8), torch.float32)
    before = layout.split(attend_dense(q, k, v, layout, layout, AttentionSpec()))
    for x in (q, k, v):
        x[: lengths[0]].normal_()
    after = layout.split(attend_dense(q, k, v, layout, layout, AttentionSpec()))
    assert not torch.equal(before[0], after[0])
    for mine, still_mine in zip(before[1:], after[1:], strict=True):
        assert torch.equal(mine, still_mine)


LENGTHS = st.lists(st.integers(0, 300), min_size=1, max_size=120)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_groups_hold_every_sequence_once_and_few_empty_cells(data: st.DataObject) -> None:
    q_lengths = data.draw(LENGTHS)
    n = len(q_lengths)
    if data.draw(st.booleans()):
        k_lengths = q_lengths
    else:  # a translation is about as long as its source
        k_lengths = [max(0, q + data.draw(st.integers(-2, 2))) for q in q_lengths]
    groups = group_by_length(q_lengths, k_lengths)
    used = sorted(i for group in groups for i in group)
    assert used == [i for i in range(n) if q_lengths[i] and k_lengths[i]]
    cells = rows = 0
    for group in groups:
        mine = [q_lengths[i] for i in group], [k_lengths[i] for i in group]
        cells += len(group) * (max(mine[0]) + max(mine[1]))
        rows += sum(mine[0]) + sum(mine[1])
    assert cells <= dense.WASTE * rows + 2 * dense.SMALL  # small groups may waste what they like


def test_a_ragged_batch_is_computed_on_little_more_than_its_tokens(
    make_qkv: Callable[..., tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells: list[int] = []

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        cells.append(q.shape[0] * (q.shape[2] + k.shape[2]))
        return torch.zeros_like(q)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    lengths = [1 + (137 * i) % 300 for i in range(120)]  # short and long ones mixed
    layout = Layout.of(lengths)
    attend_dense(
        *make_qkv(layout, layout, (1, 1, 2), torch.float32), layout, layout, AttentionSpec()
    )
    assert 2 * sum(lengths) <= sum(cells) <= 1.25 * 2 * sum(lengths) + dense.SMALL
    assert len(cells) <= 12


def test_many_groups_equal_the_definition(device: torch.device, same_as_explicit: Check) -> None:
    layout = Layout.of([300, 1, 150, 290, 40, 7, 160, 2, 41, 80], device)
    assert len(group_by_length(layout.known_lengths(), layout.known_lengths())) >= 3
    same_as_explicit(attend_dense, layout, layout, AttentionSpec(causal=True), (2, 1, 8))
    same_as_explicit(attend_dense, layout, layout, AttentionSpec(), (2, 1, 8))


def test_a_plan_is_made_once_for_a_pair_of_layouts(
    make_qkv: Callable[..., tuple[Tensor, ...]],
    same_as_explicit: Check,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []

    def counted(*lengths: object) -> object:
        made.append(lengths)
        return group_by_length(*lengths)

    monkeypatch.setattr(dense, "group_by_length", counted)
    queries, keys, others = Layout.of([3, 2]), Layout.of([2, 4]), Layout.of([1, 5])
    for _ in range(3):
        same_as_explicit(attend_dense, queries, queries, AttentionSpec())
        same_as_explicit(attend_dense, queries, keys, AttentionSpec())
        same_as_explicit(attend_dense, queries, others, AttentionSpec())
    assert len(made) == 3


@pytest.mark.parametrize("lengths", [[2, 3], [3, 3]], ids=["ragged", "equal"])
@pytest.mark.parametrize("form", ["causal", "window"])
@pytest.mark.parametrize("bias", BIASES)
def test_queries_before_all_keys_get_zeros_and_finite_gradients(
    lengths: list[int],
    form: str,
    bias: str,
    device: torch.device,
    make_qkv: Callable[..., tuple[Tensor, ...]],
) -> None:
    queries, keys = Layout.of(lengths, device), Layout.of([1, 1], device)
    part = BIASES[bias](False)
    scope = AttentionSpec(causal=True) if form == "causal" else AttentionSpec(window=1)
    scope = AttentionSpec(causal=scope.causal, window=scope.window, bias=part and part.to(device))
    leaves = [x.requires_grad_() for x in make_qkv(queries, keys, (4, 2, 8), torch.float32)]
    out_NHK = attend_dense(*leaves, queries, keys, scope)
    seeing = queries.last_N().tolist()  # only the last query of each stands at its key
    blind = [row for row in range(queries.n_rows) if row not in seeing]
    assert not out_NHK[blind].any()
    assert out_NHK[seeing].all()
    for gradient in torch.autograd.grad(out_NHK.sum(), leaves):
        assert gradient.isfinite().all()


def test_fully_masked_keys_get_no_gradient(
    device: torch.device, make_qkv: Callable[..., tuple[Tensor, ...]]
) -> None:
    queries, keys = Layout.of([2, 1], device), Layout.in_cache([2, 1], 3, device)
    q, k, v = (x.requires_grad_() for x in make_qkv(queries, keys, (2, 2, 8), torch.float32))
    out_NHK = attend_dense(q, k, v, queries, keys, AttentionSpec())
    dk, dv = torch.autograd.grad(out_NHK.square().sum(), (k, v))
    for gradient in (dk, dv):
        assert not gradient[[2, 4, 5]].any()
    assert dv[[0, 1, 3]].any(-1).all()


@pytest.mark.parametrize("lengths", [([2, 1], [0, 0]), ([0, 0], [2, 1]), ([0], [0]), ([], [])])
def test_a_batch_without_visible_keys_gives_zeros(
    lengths: tuple[list[int], list[int]], make_qkv: Callable[..., tuple[Tensor, ...]]
) -> None:
    queries, keys = Layout.of(lengths[0]), Layout.of(lengths[1])
    leaves = [x.requires_grad_() for x in make_qkv(queries, keys, (2, 2, 8), torch.float32)]
    out_NHK = attend_dense(*leaves, queries, keys, AttentionSpec())
    assert out_NHK.shape == leaves[0].shape
    assert not out_NHK.any()
    for gradient in torch.autograd.grad(out_NHK.sum(), leaves, allow_unused=True):
        assert gradient is None or not gradient.any()


def test_sequences_that_share_keys_add_up_their_gradients(
    device: torch.device, same_as_explicit: Check
) -> None:
    queries, keys = Layout.of([2, 3, 1], device), Layout.of([4, 2], device).pick([0, 0, 1])
    same_as_explicit(attend_dense, queries, keys, AttentionSpec())
