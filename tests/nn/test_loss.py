"""Loss straight from vectors, a chunk of rows at a time, against cross-entropy of all scores."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn import loss as loss_file
from headway.nn.loss import LabelSmoothing, vocabulary_loss

N_ROWS, WIDTH, N_WORDS = 7, 5, 11
EPS = 0.1
PAPER = LabelSmoothing.of(EPS, N_WORDS)
THEIRS = {"paper": EPS * N_WORDS / (N_WORDS - 1), "torch": EPS}
"""The paper spreads the amount over the wrong words, torch over all; the same form otherwise."""


def parts(dtype: torch.dtype = torch.float64, bias: bool = True) -> list[Tensor | None]:
    shapes = [(N_ROWS, WIDTH), (N_WORDS, WIDTH), (N_WORDS,)]
    leaves = [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]
    return leaves if bias else [*leaves[:2], None]


def targets() -> Tensor:
    return torch.randint(N_WORDS, (N_ROWS,))


def gradients(loss: Tensor, leaves: list[Tensor | None]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None]))


def assert_equal(found: list[Tensor], wanted: list[Tensor], atol: float = 1e-10) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.0, atol=atol)


@pytest.fixture(params=[1, 3, 100], ids=["one row", "three rows", "all rows"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows whose scores are held at a time (of fp64 numbers)."""
    n_bytes = request.param * N_WORDS * 8
    monkeypatch.setattr(loss_file, "CHUNK_BYTES", {"cpu": n_bytes, "cuda": n_bytes})
    monkeypatch.setattr(loss_file, "BLOCK_BYTES", 2 * N_WORDS * 8)
    return request.param


@pytest.fixture(params=[1, 8], ids=["any number of words", "a multiple of eight"])
def aligned(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU has it: scores of words that nobody says stand behind the others."""
    monkeypatch.setattr(loss_file, "ALIGNED", {"cpu": request.param})


@pytest.mark.usefixtures("chunk", "aligned")
@pytest.mark.parametrize("kind", THEIRS)
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_it_equals_cross_entropy_with_the_matching_smoothing(kind: str, bias: bool) -> None:
    leaves, targets_N = parts(bias=bias), targets()
    ours = vocabulary_loss(*leaves, targets_N, LabelSmoothing.of(EPS, N_WORDS, kind))
    scores_NV = F.linear(*leaves)
    wanted = F.cross_entropy(scores_NV, targets_N, reduction="sum", label_smoothing=THEIRS[kind])
    nll = F.cross_entropy(scores_NV, targets_N, reduction="sum")
    assert_equal([ours.sum, ours.nll], [wanted, nll])
    assert_equal(gradients(ours.sum * 3, leaves), gradients(wanted * 3, leaves))


@pytest.mark.usefixtures("chunk")
def test_without_smoothing_loss_and_likelihood_are_one() -> None:
    leaves, targets_N = parts(), targets()
    ours = vocabulary_loss(*leaves, targets_N, LabelSmoothing.of(0.0, N_WORDS))
    wanted = F.cross_entropy(F.linear(*leaves), targets_N, reduction="sum")
    assert_equal([ours.sum, ours.nll], [wanted, wanted])
    assert_equal(gradients(ours.sum, leaves), gradients(wanted, leaves))
    assert not ours.nll.requires_grad


def test_the_smoothed_targets_are_a_distribution() -> None:
    for kind in THEIRS:
        right, wrong = LabelSmoothing.of(EPS, N_WORDS, kind)
        assert right + (N_WORDS - 1) * wrong == pytest.approx(1.0, abs=1e-12)
    assert LabelSmoothing.of(EPS, N_WORDS).right == 1 - EPS
    with pytest.raises(ValueError, match=r"'papper'.*'paper'.*'torch'"):
        LabelSmoothing.of(EPS, N_WORDS, "papper")


@pytest.mark.usefixtures("chunk")
def test_a_row_of_weight_zero_is_as_if_it_were_not_there() -> None:
    x_ND, weight_VD, bias_V = parts()
    targets_N, smoothing = targets(), LabelSmoothing.of(EPS, N_WORDS)
    weights_N = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    ours = vocabulary_loss(x_ND, weight_VD, bias_V, targets_N, smoothing, weights_N)
    real_N = weights_N.bool()
    wanted = vocabulary_loss(x_ND[real_N], weight_VD, bias_V, targets_N[real_N], smoothing)
    assert_equal([ours.sum, ours.nll], [wanted.sum, wanted.nll])
    found = gradients(ours.sum, [x_ND, weight_VD, bias_V])
    assert_equal(found, gradients(wanted.sum, [x_ND, weight_VD, bias_V]))
    assert not found[0][~real_N].any()
    assert found[0][real_N].all()


def test_a_row_of_weight_two_counts_twice() -> None:
    x_ND, weight_VD, bias_V = parts()
    targets_N, smoothing = targets(), LabelSmoothing.of(EPS, N_WORDS)
    twice = vocabulary_loss(
        x_ND, weight_VD, bias_V, targets_N, smoothing, torch.full((N_ROWS,), 2.0)
    )
    once = vocabulary_loss(x_ND, weight_VD, bias_V, targets_N, smoothing)
    assert_equal([twice.sum, twice.nll], [2 * once.sum, 2 * once.nll])
    leaves = [x_ND, weight_VD, bias_V]
    assert_equal(gradients(twice.sum, leaves), gradients(2 * once.sum, leaves))


def test_gradients_pass_the_check_by_finite_differences() -> None:
    leaves, targets_N = parts(), targets()
    smoothing = LabelSmoothing.of(EPS, N_WORDS)

    def summed(*tensors: Tensor) -> Tensor:
        return vocabulary_loss(*tensors, targets_N, smoothing).sum

    assert torch.autograd.gradcheck(summed, leaves)


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_what_needs_no_gradient_gets_none(frozen: int) -> None:
    leaves = parts()
    leaves[frozen] = leaves[frozen].detach()
    others = [leaf for i, leaf in enumerate(leaves) if i != frozen]
    targets_N, smoothing = targets(), LabelSmoothing.of(EPS, N_WORDS, "torch")
    ours = vocabulary_loss(*leaves, targets_N, smoothing).sum
    wanted = F.cross_entropy(F.linear(*leaves), targets_N, reduction="sum", label_smoothing=EPS)
    assert_equal(gradients(ours, others), gradients(wanted, others))


def test_it_can_be_measured_without_gradients() -> None:
    leaves, targets_N = parts(), targets()
    with_gradient = vocabulary_loss(*leaves, targets_N, LabelSmoothing.of(EPS, N_WORDS))
    with torch.no_grad():
        without = vocabulary_loss(*leaves, targets_N, LabelSmoothing.of(EPS, N_WORDS))
    assert not without.sum.requires_grad
    assert torch.equal(without.sum, with_gradient.sum)
    assert torch.equal(without.nll, with_gradient.nll)


def test_measuring_makes_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Tensor:
        raise AssertionError("an unneeded gradient was computed")

    monkeypatch.setattr(loss_file, "_product", fail)
    with torch.no_grad():
        vocabulary_loss(*parts(), targets(), LabelSmoothing.of(EPS, N_WORDS))


def test_a_batch_without_rows_has_loss_zero_and_no_gradient() -> None:
    _, weight_VD, bias_V = parts()
    x_ND = torch.empty(0, WIDTH, dtype=torch.float64, requires_grad=True)
    nothing_N = torch.empty(0, dtype=torch.long)
    ours = vocabulary_loss(x_ND, weight_VD, bias_V, nothing_N, LabelSmoothing.of(EPS, N_WORDS))
    assert ours.sum.item() == ours.nll.item() == 0.0
    for gradient in torch.autograd.grad(ours.sum, [x_ND, weight_VD, bias_V], allow_unused=True):
        assert gradient is None or not gradient.any()


@pytest.mark.usefixtures("chunk")
def test_a_bf16_stream_gives_fp32_loss_and_fp32_weight_gradients(device: torch.device) -> None:
    x_ND, weight_VD, bias_V = (leaf.detach().to(device) for leaf in parts(torch.float32))
    leaves = [x_ND.bfloat16(), weight_VD, bias_V]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    targets_N = targets().to(device)
    ours = vocabulary_loss(*leaves, targets_N, LabelSmoothing.of(EPS, N_WORDS, "torch"))
    wide = [x.float() for x in (leaves[0], leaves[1].bfloat16(), leaves[2].bfloat16())]
    wanted = F.cross_entropy(F.linear(*wide), targets_N, reduction="sum", label_smoothing=EPS)
    assert ours.sum.dtype == ours.nll.dtype == torch.float32
    torch.testing.assert_close(ours.sum, wanted, rtol=0.01, atol=0.0)
    found = gradients(ours.sum, leaves)
    assert [g.dtype for g in found] == [torch.bfloat16, torch.float32, torch.float32]
    for mine, theirs in zip(found, gradients(wanted, leaves), strict=True):
        assert (mine - theirs).float().norm() <= 0.02 * theirs.float().norm()


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["fp32", "fp64"]
)
def test_on_every_device_it_equals_cross_entropy(
    dtype: torch.dtype, atol: float, device: torch.device
) -> None:
    leaves = [leaf.detach().to(device).requires_grad_() for leaf in parts(dtype)]
    targets_N = targets().to(device)
    weights_N = torch.tensor([1.0, 0.0, 1.0, 2.0, 1.0, 1.0, 1.0], device=device)
    ours = vocabulary_loss(*leaves, targets_N, LabelSmoothing.of(EPS, N_WORDS, "torch"), weights_N)
    losses_N = F.cross_entropy(F.linear(*leaves), targets_N, reduction="none", label_smoothing=EPS)
    wanted = (losses_N * weights_N).sum()
    torch.testing.assert_close(ours.sum, wanted, rtol=1e-6 if atol > 1e-6 else 0.0, atol=atol)
    assert_equal(gradients(ours.sum, leaves), gradients(wanted, leaves), atol)


def test_a_graph_that_is_kept_gives_the_same_gradients_again() -> None:
    leaves = parts()
    ours = vocabulary_loss(*leaves, targets(), LabelSmoothing.of(EPS, N_WORDS)).sum * 3
    first = [g.clone() for g in torch.autograd.grad(ours, leaves, retain_graph=True)]
    assert_equal(list(torch.autograd.grad(ours, leaves)), first)


@pytest.mark.parametrize(("n_rows", "sizes"), [(7, [3, 3, 1]), (6, [3, 3]), (4, [2, 2]), (0, [])])
def test_chunks_are_few_and_of_one_size(
    n_rows: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_file, "CHUNK_BYTES", {"cpu": 3 * N_WORDS * 4})
    x_ND = torch.zeros(n_rows, WIDTH)
    assert [len(x_ND[rows]) for rows in loss_file._chunks(x_ND, N_WORDS)] == sizes


def test_scores_far_from_zero_lose_nothing() -> None:
    weight_VD = torch.eye(WIDTH, dtype=torch.float32)
    x_ND = torch.tensor([[1e4, 1e4 - 2, 0.0, -1e4, 1e4 - 1]], requires_grad=True)
    ours = vocabulary_loss(x_ND, weight_VD, None, torch.tensor([1]), LabelSmoothing.of(0.0, WIDTH))
    wanted = F.cross_entropy(x_ND.double(), torch.tensor([1]), reduction="sum")
    torch.testing.assert_close(ours.sum.double(), wanted, rtol=0.0, atol=2e-3)
    (found,), (theirs,) = (torch.autograd.grad(loss, [x_ND]) for loss in (ours.sum, wanted))
    torch.testing.assert_close(found, theirs, rtol=0.0, atol=1e-6)
