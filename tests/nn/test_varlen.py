"""The `varlen` back end against the definition: what it asks of torch's flash attention with that
in plain torch in fp32, and torch's own on a GPU in bf16."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headway.nn.attention import varlen as back_end
from headway.nn.attention.attend import attend
from headway.nn.attention.scope import AttentionSpec, allowed_TS
from headway.nn.attention.varlen import attend_varlen, varlen_backward, varlen_forward
from headway.nn.layout import Layout
from headway.training.cuda_graph import GraphedStep
from headway.training.step import ScaledBatch
from tests.nn import flash_twin

Check = Callable[..., None]
MakeQkv = Callable[..., tuple[Tensor, Tensor, Tensor]]
LENGTHS = [1, 17, 128, 129, 300, 64]
SCOPES = {
    "both ways": AttentionSpec(),
    "causal": AttentionSpec(causal=True),
    "window": AttentionSpec(window=20),
    "causal window": AttentionSpec(causal=True, window=20),
    "scaled": AttentionSpec(scale=0.3),
}
RATE = 0.3


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_end, "FORWARD", flash_twin.forward)
    monkeypatch.setattr(back_end, "BACKWARD", flash_twin.backward)


@pytest.mark.parametrize("n_heads", [(2, 2), (4, 1)], ids=["plain", "grouped"])
@pytest.mark.parametrize("scope", SCOPES)
def test_outputs_and_gradients_equal_the_definition(
    scope: str, n_heads: tuple[int, int], twin: None, same_as_explicit: Check
) -> None:
    layout = Layout.of([5, 30, 1])
    same_as_explicit(attend_varlen, layout, layout, SCOPES[scope], (*n_heads, 8))
    queries, keys = Layout.of([1, 2, 4]), Layout.of([3, 25, 4])
    same_as_explicit(attend_varlen, queries, keys, SCOPES[scope], (*n_heads, 8))


@pytest.mark.parametrize("dropout", [0.0, RATE])
def test_its_operators_keep_torchs_contract(dropout: float, twin: None, make_qkv: MakeQkv) -> None:
    layout = Layout.of([2, 3])
    tensors = [x.requires_grad_() for x in make_qkv(layout, layout, (2, 2, 8), torch.float32)]
    options = (layout.bounds, layout.bounds, 3, 3, dropout, 0.25, -1, 0)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(varlen_forward, (*tensors, *options), test_utils=checks[1:])
    with torch.no_grad():
        found = varlen_forward(*tensors, *options)
    state = torch.zeros(2, dtype=torch.uint64)
    given = (torch.randn_like(found[0]), *tensors, *found[:2], *options[:2], state, *options[2:])
    torch.library.opcheck(varlen_backward, given, test_utils=checks)


def test_the_operators_of_this_torch_have_the_expected_signature() -> None:
    """`flash_twin` has the arguments of torch's, by name and in order."""
    for operator, stand_in in (
        (back_end.FORWARD, flash_twin.forward), (back_end.BACKWARD, flash_twin.backward),
    ):  # fmt: skip
        theirs = [argument.name for argument in operator.default._schema.arguments]
        ours = stand_in.__code__.co_varnames[: stand_in.__code__.co_argcount]
        by_name = stand_in.__code__.co_varnames[len(ours) : len(ours) + 3]
        assert len(theirs) >= len(ours) + 3
        assert set(by_name) <= set(theirs[len(ours) :])
        same = {"dropout_p", "is_causal", "max_q", "max_k"} & set(ours)
        assert all(theirs.index(name) == ours.index(name) for name in same)


# On a GPU, in the type it is made for.


def varlen(
    q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout, scope: AttentionSpec
) -> Tensor:
    return attend(q, k, v, queries, keys, scope, back_end="varlen")


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [(4, 4, 64), (4, 1, 64), (4, 2, 80), (3, 3, 24)])
@pytest.mark.parametrize("scope", SCOPES)
def test_it_is_near_the_definition(
    scope: str, heads: tuple[int, int, int], near_explicit: Check
) -> None:
    layout = Layout.of(LENGTHS, "cuda")
    near_explicit(varlen, layout, layout, SCOPES[scope], heads)


@pytest.mark.gpu
def test_queries_are_the_last_of_more_keys(near_explicit: Check) -> None:
    queries, keys = Layout.of([1, 20, 5], "cuda"), Layout.of([130, 33, 5], "cuda")
    for name in ("both ways", "causal", "causal window"):
        near_explicit(varlen, queries, keys, SCOPES[name])


@pytest.mark.gpu
def test_the_fixed_form_and_sequences_without_keys(near_explicit: Check) -> None:
    sizes = {"n_rows": 1024, "n_sequences": 20, "longest": 300, "device": "cuda"}
    queries = Layout.fixed(LENGTHS, **sizes)
    near_explicit(varlen, queries, queries, AttentionSpec(causal=True))
    keys = Layout.fixed([0, *LENGTHS[:-1]], **sizes)
    near_explicit(varlen, queries, keys, AttentionSpec())


# Dropout on a GPU. With unit vectors as values, what comes out is the weights that dropout left.


def dropped_weights(q: Tensor, k: Tensor, layout: Layout, scope: AttentionSpec) -> Tensor:
    """The weights after dropout (N H S): keys are read out a head's width at a time, each time
    with the same seed and so with the same mask."""
    width, parts = q.shape[-1], []
    for first in range(0, layout.longest, width):
        torch.manual_seed(0)
        place_N1 = layout.positions_N[:, None] - first
        unit_NK = (place_N1 == torch.arange(width, device=q.device)).to(q.dtype)
        v = unit_NK[:, None].expand(q.shape).contiguous()
        parts.append(varlen(q, k, v, layout, layout, scope))
    return torch.cat(parts, -1)[..., : layout.longest].float()


def whole_weights(q: Tensor, k: Tensor, layout: Layout, scope: AttentionSpec) -> list[Tensor]:
    """The softmax of each sequence in fp32 (H T S)."""
    found = []
    for q_THK, k_THK in zip(layout.split(q.float()), layout.split(k.float()), strict=True):
        scores_HTS = torch.einsum("thk,shk->hts", q_THK, k_THK) * q.shape[-1] ** -0.5
        hidden_TS = ~allowed_TS(scope, scores_HTS)
        found.append(scores_HTS.masked_fill(hidden_TS, -math.inf).softmax(-1))
    return found


@pytest.mark.gpu
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_has_its_rate_and_backward_uses_the_mask_of_forward(
    causal: bool, width: int, make_qkv: MakeQkv
) -> None:
    scope, layout = AttentionSpec(causal=causal, dropout=RATE), Layout.of(LENGTHS, "cuda")
    tensors = [x.bfloat16() for x in make_qkv(layout, layout, (4, 4, width), torch.float32)]
    left_NHS = dropped_weights(*tensors[:2], layout, scope)
    assert torch.equal(left_NHS, dropped_weights(*tensors[:2], layout, scope))
    whole = whole_weights(*tensors[:2], layout, scope)
    n = dropped = 0
    masks = []
    for left_THS, weights_HTS in zip(layout.split(left_NHS), whole, strict=True):
        left_HTS = left_THS.transpose(0, 1)[..., : weights_HTS.shape[-1]]
        kept_HTS = left_HTS > 0
        n, dropped = (
            n + int((weights_HTS > 0).sum()),
            dropped + int(((weights_HTS > 0) & ~kept_HTS).sum()),
        )
        wanted_HTS = weights_HTS * kept_HTS / (1 - RATE)
        assert (left_HTS - wanted_HTS).norm() <= 0.01 * wanted_HTS.norm() + 1e-6
        masks.append(kept_HTS / (1 - RATE))
    # The kernel's rate is a multiple of 1/256; the rest is chance.
    assert abs(dropped / n - RATE) < 1 / 256 + 5 * math.sqrt(RATE * (1 - RATE) / n)
    assert not torch.equal(masks[4][0], masks[4][1])  # of two heads

    torch.manual_seed(0)
    leaves = [x.requires_grad_() for x in tensors]
    out = varlen(*leaves, layout, layout, scope)
    dout = torch.randn_like(out)
    found = [out, *torch.autograd.grad(out, leaves, dout)]
    wide = [x.detach().float().requires_grad_() for x in leaves]
    outs = []
    weights = whole_weights(*wide[:2], layout, scope)
    for weights_HTS, keep_HTS, v_THK in zip(weights, masks, layout.split(wide[2]), strict=True):
        outs.append(torch.einsum("hts,shk->thk", weights_HTS * keep_HTS, v_THK))
    wanted = [torch.cat(outs)]
    wanted += torch.autograd.grad(wanted[0], wide, dout.float())
    for name, mine, theirs in zip(("out", "dq", "dk", "dv"), found, wanted, strict=True):
        error = (mine.float() - theirs).norm() / theirs.norm()
        # Another mask would be off by more than a half.
        assert error < 0.02, f"{name}: {error:.4f}"


class OneStep:
    """Attention over unit values, so that its output is the weights, and the gradient of the
    values for a fixed gradient of the output. Both can be told from one another's mask."""

    def __init__(self, make_qkv: MakeQkv, causal: bool = True) -> None:
        sizes = {"n_rows": 200, "n_sequences": 12, "longest": 64, "device": "cuda"}
        self.layout = Layout.fixed([64, 1, 17, 40, 33], **sizes)
        shape = (4, 4, 64)
        made = make_qkv(self.layout, self.layout, shape, torch.float32)
        self.q, self.k, _ = (x.bfloat16() for x in made)
        unit_NK = torch.eye(64, device="cuda", dtype=torch.bfloat16)[self.layout.positions_N]
        self.v = unit_NK[:, None].expand(self.q.shape).contiguous()
        self.dout = torch.randn_like(self.q)
        self.scope = AttentionSpec(causal=causal, dropout=RATE)
        self.dv, self.out = torch.zeros_like(self.v), torch.zeros_like(self.q)

    def attended(self, v: Tensor) -> Tensor:
        return varlen(self.q, self.k, v, self.layout, self.layout, self.scope)

    def run(self, call: Callable[[Tensor], Tensor] | None = None) -> None:
        v = self.v.detach().requires_grad_()
        out = (call or self.attended)(v)
        self.out.copy_(out.detach())
        self.dv.copy_(torch.autograd.grad(out, v, self.dout)[0])

    def check(self) -> Tensor:
        """Backward used the weights that forward left; which these are."""
        wanted = []
        for weights_THS, dout_THK in zip(
            self.layout.split(self.out.float()), self.layout.split(self.dout.float()), strict=True
        ):
            weights = weights_THS[..., : len(weights_THS)]
            wanted.append(torch.einsum("ths,thk->shk", weights, dout_THK))
        wanted_NHK = torch.cat(wanted)
        assert (self.dv.float() - wanted_NHK).norm() <= 0.01 * wanted_NHK.norm()
        return self.out != 0


@pytest.mark.gpu
def test_in_a_cuda_graph_every_replay_draws_new_masks_from_the_seed(make_qkv: MakeQkv) -> None:
    step = OneStep(make_qkv)

    def recorded(_: ScaledBatch) -> Tensor:
        step.run()
        return step.out

    play = GraphedStep(recorded, ScaledBatch(None, torch.ones((), device="cuda")))
    masks = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        play.replay()
        masks.append(step.check())
    play.replay()
    again = step.check()
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[2], again)


@pytest.mark.gpu
def test_a_block_computed_twice_draws_the_same_mask(make_qkv: MakeQkv) -> None:
    step = OneStep(make_qkv)
    step.run(lambda v: checkpoint(step.attended, v, use_reentrant=False))
    step.check()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_compiled_dropout_is_the_same(make_qkv: MakeQkv) -> None:
    step = OneStep(make_qkv)
    compiled = torch.compile(step.attended, dynamic=False)
    masks = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        step.run(compiled)
        masks.append(step.check())
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])
