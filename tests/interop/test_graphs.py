"""Padded batches in plain operations give what the models give for flat ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.decode.align import cross_attention
from headway.interop.graphs.graphs import CROSS, LOGITS, SENTENCE, STATES, Graph, graphs_of
from headway.nn.layout import Layout
from headway.settings.run import RunSettings

from ..models.variants import FAMILIES, VARIANTS, samples, scores, settings_of, tiny, vectors

LENGTHS = [5, 8, 1, 7, 5]
TASKS = {"seq2seq": "translate", "encoder": "fill", "decoder": "complete"}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

either_side = pytest.mark.parametrize("left", [False, True], ids=["right", "left"])


def padded(texts: Sequence[Sequence[int]], left: bool) -> tuple[Tensor, Tensor]:
    longest = max(map(len, texts))
    pads = [[0] * (longest - len(text)) for text in texts]
    rows = zip(pads, texts, strict=True)
    ids = [[*pad, *text] if left else [*text, *pad] for pad, text in rows]
    real = [[0] * (longest - len(t)) + [1] * len(t) for t in texts]
    real_BT = torch.tensor(real)
    return torch.tensor(ids), real_BT if left else real_BT.flip(1)


def graphs(family: str, variant: str, task: str, **more: Any) -> tuple[Any, list[Graph]]:
    model = tiny(family, variant, **more)
    settings = settings_of(family, variant, **more)
    return model, graphs_of(model, RunSettings(task=task, model=settings))


def grown(
    graph: Graph, ids_BT: Tensor, real_BT: Tensor, given: Sequence[Tensor] = ()
) -> dict[str, Tensor]:
    """Half at once, then token by token; logits and attention of all."""
    positions_BT = (real_BT.cumsum(1) - 1).clamp(min=0)
    past = [
        torch.zeros(len(ids_BT), x.shape[1], 0, x.shape[3])
        for name, x in graph.example.items()
        if name.startswith("past")
    ]
    found: list[dict[str, Tensor]] = []
    ends = [0, 4, *range(5, ids_BT.shape[1] + 1)]
    for start, end in pairwise(ends):
        now = slice(start, end)
        outputs = graph.module(
            ids_BT[:, now], real_BT[:, :end], positions_BT[:, now], *given[:1], *past, *given[1:]
        )
        by_name = dict(zip(graph.outputs, outputs, strict=True))
        past = [x for name, x in by_name.items() if name.startswith("present")]
        found.append(by_name)
    names = [name for name in (LOGITS, CROSS) if name in found[0]]
    return {name: torch.cat([step[name] for step in found], 1) for name in names}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", VARIANTS)
@either_side
@torch.no_grad()
def test_every_variant_gives_the_same_scores(family: str, variant: str, left: bool) -> None:
    model, made = graphs(family, variant, TASKS[family])
    batch = samples(LENGTHS)
    ids_BT, real_BT = padded([sample.target for sample in batch], left)
    if family == "encoder":
        states_BTD, logits_BTV = made[0].module(ids_BT, real_BT, torch.zeros_like(ids_BT))
        rows = zip(vectors(model, batch), states_BTD, real_BT, strict=True)
        for mine_TD, padded_TD, real_T in rows:
            torch.testing.assert_close(padded_TD[real_T > 0], mine_TD, **CLOSE)
    elif family == "decoder":
        logits_BTV = grown(made[0], ids_BT, real_BT)[LOGITS]
    else:
        source = padded([sample.source for sample in batch], left)
        _, *cross = made[0].module(*source)
        logits_BTV = grown(made[1], ids_BT, real_BT, [source[1], *cross])[LOGITS]
    for mine_TV, padded_TV, real_T in zip(scores(model, batch), logits_BTV, real_BT, strict=True):
        torch.testing.assert_close(padded_TV[real_T > 0], mine_TV, **CLOSE)


HEADS: list[tuple[str, dict[str, Any]]] = [
    ("encoder", {"heads": ("classes",), "pooling": "mean"}),
    ("encoder", {"heads": ("pooled", "classes")}),
    ("encoder", {"heads": ("pooled", "classes"), "pooler": "relu"}),
    ("encoder", {"heads": ("pooled", "classes"), "pooling": "mean"}),
    ("encoder", {"heads": ("classes",), "pooling": "last"}),
    ("decoder", {"heads": ("classes",)}),
]


@pytest.mark.parametrize(("family", "more"), HEADS)
@either_side
@torch.no_grad()
def test_classes_and_vectors_are_pooled_alike(
    family: str, more: dict[str, Any], left: bool
) -> None:
    model, [graph] = graphs(family, "as-published", "classify", n_labels=3, **more)
    texts = [sample.target for sample in samples(LENGTHS)]
    layout = Layout.of(LENGTHS)
    x_ND = model(torch.tensor([token for text in texts for token in text]), layout)
    found = dict(zip(graph.outputs, graph.module(*padded(texts, left)), strict=True))
    torch.testing.assert_close(found[LOGITS], model.classes(x_ND, layout), **CLOSE)

    settings = RunSettings(
        task="embed", model=settings_of(family, "as-published", n_labels=3, **more)
    )
    [graph] = graphs_of(model, settings)
    found = dict(zip(graph.outputs, graph.module(*padded(texts, left)), strict=True))
    mine_BD = torch.nn.functional.normalize(model.pooled(x_ND, layout), dim=-1)
    torch.testing.assert_close(found[SENTENCE], mine_BD, **CLOSE)


@torch.no_grad()
def test_segments_and_tags_are_read() -> None:
    model, [graph] = graphs("encoder", "as-published", "tag", heads=("tags",), n_labels=4,
                            tag_transitions=True)  # fmt: skip
    texts = [sample.target for sample in samples(LENGTHS)]
    segments_N = torch.arange(sum(LENGTHS)) % 2
    layout = Layout.of(LENGTHS)
    x_ND = model(torch.tensor([token for text in texts for token in text]), layout, segments_N)
    ids_BT, real_BT = padded(texts, left=False)
    segments_BT = torch.zeros_like(ids_BT)
    segments_BT[real_BT > 0] = segments_N
    found = dict(zip(graph.outputs, graph.module(ids_BT, real_BT, segments_BT), strict=True))
    torch.testing.assert_close(found[STATES][real_BT > 0], x_ND, **CLOSE)
    torch.testing.assert_close(found[LOGITS][real_BT > 0], model.tags(x_ND), **CLOSE)
    assert found["transitions"] is model.heads["tags"].transitions


@torch.no_grad()
def test_the_attention_to_the_source_is_that_of_alignments() -> None:
    model, made = graphs("seq2seq", "as-published", "translate", n_layers=3)
    batch = samples(LENGTHS)
    sources, targets = ([list(getattr(s, side)) for s in batch] for side in ("source", "target"))
    source = padded(sources, left=False)
    _, *cross = made[0].module(*source)
    seen_BTS = grown(
        made[1], *padded([[1, *target] for target in targets], False), [source[1], *cross]
    )[CROSS]
    for mine_TS, seen_TS in zip(cross_attention(model, sources, targets, 1), seen_BTS, strict=True):
        n_target, n_source = mine_TS.shape
        torch.testing.assert_close(seen_TS[:n_target, :n_source], mine_TS, **CLOSE)
        assert not seen_TS[:n_target, n_source:].any()


def test_tables_of_positions_reach_beyond_what_was_trained() -> None:
    for variant, reach in {"llama-like": 1024, "window": 1024, "as-published": 32}.items():
        _, [graph] = graphs("decoder", variant, "complete")
        assert graph.max_positions == reach, variant
    _, [graph] = graphs("decoder", "alibi-three-heads", "complete")
    assert graph.max_positions is None
