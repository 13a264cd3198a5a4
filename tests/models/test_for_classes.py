"""Classes that are read from first rows need no others of the last layer: same scores, same
gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from headway.models.build import build_model
from headway.nn.layout import Layout
from headway.settings.model import EncoderSettings, ImageEncoderSettings, ImageSettings

TEXT = EncoderSettings(
    vocab_size=11, d_model=16, n_layers=2, n_heads=4, d_ff=24, heads=("classes",), n_labels=3,
    attention_dropout=0.0, dropout=0.0, init="small",
)  # fmt: skip
IMAGE = ImageEncoderSettings(
    d_model=16, n_layers=2, n_heads=4, d_ff=24, n_labels=3,
    image=ImageSettings(height=8, width=8, patch=4),
)  # fmt: skip


def batch(model: Any, wanted: Any) -> tuple[Any, Layout]:
    if isinstance(wanted, EncoderSettings):
        layout = Layout.of([4, 1, 6])
        return torch.arange(layout.n_rows) % 11, layout
    draw = np.random.default_rng(0)
    return model.front.collate(
        [draw.integers(0, 256, (1, 3, *size), dtype=np.uint8) for size in ((8, 8), (12, 8))]
    )


CASES = [
    TEXT,
    replace(TEXT, heads=("classes", "pooled")),
    replace(TEXT, block_layout="pre", qk_norm=True),
    replace(TEXT, block_layout="parallel"),
    replace(TEXT, positions="none", n_kv_heads=2),
    IMAGE,
    replace(
        IMAGE,
        heads=("classes", "distilled"),
        image=replace(IMAGE.image, distil_token=True),
    ),
]


@pytest.mark.parametrize("wanted", CASES)
def test_scores_and_gradients_are_those_of_all_rows(wanted: Any) -> None:
    model = build_model(wanted).double()
    torch.manual_seed(1)
    for weight in model.parameters():  # "small" begins with zeros, which would hide everything
        torch.nn.init.normal_(weight, std=0.3)
    model.eval()
    read, layout = batch(model, wanted)
    if not isinstance(wanted, EncoderSettings):
        model.front.dtype = torch.float64
    found = []
    for x_ND, rows in (model.for_classes(read, layout), (model(read, layout), layout)):
        scores_BC = model.classes(x_ND, rows)
        gradients = torch.autograd.grad(scores_BC.square().sum(), [*model.parameters()],
                                        allow_unused=True)  # fmt: skip
        found.append((len(x_ND), scores_BC, gradients))
    (few, short, short_gradients), (many, whole, gradients) = found
    assert few == layout.n_sequences * model.n_first < many
    torch.testing.assert_close(short, whole, atol=1e-10, rtol=1e-10)
    for one, other in zip(short_gradients, gradients, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


OTHERWISE: list[dict[str, Any]] = [
    {"positions": "rotary"}, {"positions": "relative"}, {"positions": "alibi"}, {"window": 2},
    {"pooling": "mean"},
]  # fmt: skip


@pytest.mark.parametrize("change", OTHERWISE)
def test_where_it_would_not_be_the_same_all_rows_are_computed(change: dict[str, Any]) -> None:
    wanted = replace(TEXT, **change)
    model = build_model(wanted).eval()
    read, layout = batch(model, wanted)
    x_ND, rows = model.for_classes(read, layout)
    assert rows is layout
    assert torch.equal(x_ND, model(read, layout))
