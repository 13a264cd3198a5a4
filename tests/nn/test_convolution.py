"""Convolutions on flat batches are torch's on each sequence, and never leave it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.nn.convolution import Convolution
from headway.nn.layout import Layout
from headway.training.cuda_graph import copy_into

LENGTHS = [4, 1, 6]


def by_torch(part: Convolution, x_TD: Tensor) -> Tensor:
    """One sequence by `conv1d`, padded by hand."""
    width = x_TD.shape[1]
    weight_EDC = part.to_hidden.weight.unflatten(1, (part.kernel, width)).transpose(1, 2)
    reach = (part.kernel - 1) * part.dilation
    sides = (reach, 0) if part.causal else (reach // 2, reach // 2)
    padded = F.pad(x_TD.T[None], sides)
    out_1ET = F.conv1d(padded, weight_EDC, part.to_hidden.bias, dilation=part.dilation)
    return F.glu(out_1ET, dim=1)[0].T


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dilation", [1, 3])
def test_it_is_torchs_on_each_sequence_forward_and_backward(causal: bool, dilation: int) -> None:
    torch.manual_seed(0)
    part = Convolution(6, 3, dilation, causal=causal).double()
    x_ND = torch.randn(sum(LENGTHS), 6, dtype=torch.double, requires_grad=True)
    layout = Layout.of(LENGTHS)
    got_ND = part(x_ND, layout)
    want_ND = torch.cat([by_torch(part, text) for text in layout.split(x_ND)])
    torch.testing.assert_close(got_ND, want_ND)
    weigh_ND = torch.randn_like(got_ND)
    leaves = [x_ND, *part.parameters()]
    got = torch.autograd.grad((got_ND * weigh_ND).sum(), leaves)
    want = torch.autograd.grad((want_ND * weigh_ND).sum(), leaves)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_dummy_rows_of_a_fixed_form_change_nothing() -> None:
    part, x_ND = Convolution(4, 3, causal=False), torch.randn(8, 4)
    fixed = Layout.fixed([3, 2], n_rows=8, n_sequences=4, longest=4)
    plain = part(x_ND[:5], Layout.of([3, 2]))
    torch.testing.assert_close(part(x_ND, fixed)[:5], plain)


def test_a_recorded_step_is_not_left_with_the_lengths_of_the_first_batch() -> None:
    """It is recorded with one layout, whose tensors then change."""
    part, x_ND = Convolution(4, 3, causal=False), torch.randn(8, 4)
    shape = {"n_rows": 8, "n_sequences": 4, "longest": 5}
    layout = Layout.fixed([3, 2], **shape)
    part(x_ND, layout)
    copy_into(layout, Layout.fixed([1, 5], **shape))
    plain = part(x_ND[:6], Layout.of([1, 5]))
    torch.testing.assert_close(part(x_ND, layout)[:6], plain)
