"""Additive attention is its formula, and its weights are those that are looked at."""

from __future__ import annotations

import torch

from headway.nn.attention.additive import AdditiveAttention
from headway.nn.attention.attention import Memory
from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout
from headway.nn.sha_rnn import Boom, SingleHead
from headway.nn.tap import record


def test_it_is_the_formula_of_its_paper() -> None:
    torch.manual_seed(0)
    part = AdditiveAttention(6)
    x_ND, m_MD = torch.randn(5, 6), torch.randn(7, 6)
    queries, keys = Layout.of([2, 3]), Layout.of([4, 3])
    with record(part, "weights") as seen:
        got_ND = part(x_ND, queries, Memory(m_MD, keys))
    each, weights = [], []
    for x_TD, m_SD in zip(queries.split(x_ND), keys.split(m_MD), strict=True):
        hidden = part.to_query(x_TD)[:, None] + part.to_key(m_SD)[None]
        weights.append(part.to_score(hidden.tanh()).squeeze(-1).softmax(-1))
        each.append(part.to_out(weights[-1] @ m_SD))
    torch.testing.assert_close(got_ND, torch.cat(each))
    for got, want in zip(seen["weights"][0], weights, strict=True):
        torch.testing.assert_close(got[0], want)


def test_a_query_without_keys_gets_zeros_and_finite_gradients() -> None:
    part, x_ND = AdditiveAttention(4), torch.randn(3, 4, requires_grad=True)
    memory = Memory(torch.randn(2, 4), Layout.of([2, 0]))
    out_ND = part(x_ND, Layout.of([1, 2]), memory)
    assert torch.equal(out_ND[1:], torch.zeros(2, 4))
    out_ND.sum().backward()
    assert x_ND.grad is not None
    assert bool(x_ND.grad.isfinite().all())


def test_a_single_head_attends_to_rows_scaled_by_gates() -> None:
    torch.manual_seed(0)
    part = SingleHead(4, AttentionSpec(causal=True))
    with torch.no_grad():
        part.key_gate.normal_()
        part.value_gate.normal_()
    x_ND = torch.randn(3, 4)
    keys, values = (x_ND * 2 * gate.sigmoid() for gate in (part.key_gate, part.value_gate))
    scores = part.to_query(x_ND) @ keys.T / 2
    scores = scores.masked_fill(torch.ones(3, 3).triu(1) > 0, -torch.inf)
    torch.testing.assert_close(part(x_ND, Layout.of([3])), scores.softmax(-1) @ values)


def test_a_boom_adds_up_pieces_of_its_width() -> None:
    part, x_ND = Boom(3, 12), torch.randn(2, 3)
    hidden = torch.nn.functional.gelu(part.to_hidden(x_ND))
    torch.testing.assert_close(part(x_ND), sum(hidden[:, i : i + 3] for i in (0, 3, 6, 9)))
