"""The `varlen` back end, which needs a GPU, against the definition in fp32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

from headway.nn.attention.attend import attend
from headway.nn.attention.scope import Scope
from headway.nn.layout import Layout

pytestmark = pytest.mark.gpu

Check = Callable[..., None]
LENGTHS = [1, 17, 128, 129, 300, 64]
SCOPES = {
    "both ways": Scope(),
    "causal": Scope(causal=True),
    "window": Scope(window=20),
    "causal window": Scope(causal=True, window=20),
    "scaled": Scope(scale=0.3),
}


def varlen(q: Tensor, k: Tensor, v: Tensor, queries: Layout, keys: Layout, scope: Scope) -> Tensor:
    return attend(q, k, v, queries, keys, scope, back_end="varlen")


@pytest.mark.parametrize("heads", [(4, 4, 64), (4, 1, 64), (4, 2, 80), (3, 3, 24)])
@pytest.mark.parametrize("scope", SCOPES)
def test_it_is_near_the_definition(
    scope: str, heads: tuple[int, int, int], near_explicit: Check
) -> None:
    layout = Layout.of(LENGTHS, "cuda")
    near_explicit(varlen, layout, layout, SCOPES[scope], heads)


def test_queries_are_the_last_of_more_keys(near_explicit: Check) -> None:
    queries, keys = Layout.of([1, 20, 5], "cuda"), Layout.of([130, 33, 5], "cuda")
    for name in ("both ways", "causal", "causal window"):
        near_explicit(varlen, queries, keys, SCOPES[name])


def test_the_fixed_form_and_sequences_without_keys(near_explicit: Check) -> None:
    sizes = {"n_rows": 1024, "n_sequences": 20, "longest": 300, "device": "cuda"}
    queries = Layout.fixed(LENGTHS, **sizes)
    near_explicit(varlen, queries, queries, Scope(causal=True))
    keys = Layout.fixed([0, *LENGTHS[:-1]], **sizes)
    near_explicit(varlen, queries, keys, Scope())
