"""E2 with planted truths; and attention whose roles are dealt out otherwise does what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.cuda_graphs import CudaGraphSearcher
from headway.decode.search.searcher import Searcher
from headway.lab.roles import (
    ARMS,
    EXPERIMENT,
    LENGTHS,
    Diagonal,
    OneHead,
    Pooled,
    ValuesFromDecoder,
    in_grid,
)
from headway.models.build import build_model
from headway.models.parts.custom import register_parts
from headway.nn.attention.attention import Attention, Memory
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from headway.settings.model import Seq2SeqSettings

SOURCE, TARGET = Layout.of([3, 5]), Layout.of([4, 2])


def seeds(
    *, standard: float = 0.98, other: float = 0.7, values: float = 0.13, short: float = 0.97,
    noise: float = 0.01,
) -> list[Any]:  # fmt: skip
    made = []
    for i in (-1, 0, 1):
        accuracy = dict.fromkeys(ARMS, other + noise * i) | {
            "standard": standard, "values": values, "one-head": 0.97, "decoder-only": 0.96,
        }  # fmt: skip
        accuracy["values"] += noise * i / 10
        by_length = {arm: {str(n): value for n in LENGTHS} for arm, value in accuracy.items()}
        by_length["pooled"]["3"] = short
        made.append({"accuracy": accuracy, "loss": accuracy, "length": by_length})
    return made


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (seeds(), "supported"),
        (seeds(other=0.97), "refuted"),
        (seeds(noise=0.3, short=0.9), "undecided"),
        (seeds(standard=0.5), "undecided"),
        (seeds(values=0.97), "refuted"),
        (seeds(values=0.3), "refuted"),
        (seeds(standard=0.93), "undecided"),
        (seeds(short=0.2), "undecided"),
        (seeds()[:1], "undecided"),
        (seeds(standard=1.0, other=1.0, values=0.13, noise=0.0), "cannot tell"),
        (seeds(standard=1.0, other=0.97, noise=0.001), "cannot tell"),
        (seeds(standard=1.0, other=0.7), "supported"),
        (seeds(standard=1.0, other=1.0, values=0.85, noise=0.0), "refuted"),
    ],
    ids=[
        "as held",
        "no queries needed",
        "noisy",
        "never learned",
        "no values needed",
        "something of the source is known without its values",
        "not quite learned",
        "broken",
        "one seed",
        "everything is right",
        "the usual one is at its ceiling",
        "the usual one is at its ceiling and the other far below",
        "everything is right without values of the source too",
    ],
)
def test_the_verdict_follows_the_planted_truth(found: list[Any], verdict: str) -> None:
    assert EXPERIMENT.judge(found).verdict == verdict
    assert len(EXPERIMENT.figures(found)[0].data()["bars"]) == len(ARMS)


def test_sources_are_compared_with_the_part_that_they_are_about() -> None:
    verdict = EXPERIMENT.judge(seeds(values=0.4))
    assert verdict.verdict == "refuted"
    assert verdict.parts == {"queries": "supported", "values": "refuted"}
    stances = {
        one.who: one.stance_on_finding(verdict.verdict, verdict.parts)
        for one in EXPERIMENT.literature
    }
    assert stances["You, Sun, Iyyer 2020"] == stances["Bahdanau, Cho, Bengio 2015"] == "agrees"


def crossed(kind: type[Attention], x_MD: torch.Tensor, x_ND: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    attention = kind(8, 2)
    return attention(x_ND, TARGET, Memory(x_MD, SOURCE)).detach()


def test_values_from_the_decoder_carry_only_places_of_the_source_and_no_later_rows() -> None:
    x_MD, x_ND = torch.randn(8, 8), torch.randn(6, 8)
    out = crossed(ValuesFromDecoder, x_MD, x_ND)
    assert out.shape == (6, 8)
    later = x_ND.clone()
    later[3] += 1  # the last row of the first target
    moved = (crossed(ValuesFromDecoder, x_MD, later) - out).abs().amax(1) > 1e-6
    assert not moved[:3].any()
    # Of one row alone there is nothing to choose, whatever the source says.
    assert torch.allclose(crossed(ValuesFromDecoder, x_MD + 1, x_ND)[[0, 4]], out[[0, 4]])


def test_pooled_gives_every_word_of_a_target_the_same() -> None:
    out = crossed(Pooled, torch.randn(8, 8), torch.randn(6, 8))
    assert torch.allclose(out[:4], out[:1].expand(4, -1), atol=1e-6)
    assert not torch.allclose(out[0], out[4])


def test_diagonal_gives_word_t_the_value_of_word_t() -> None:
    x_MD = torch.randn(8, 8)
    out = crossed(Diagonal, x_MD, torch.randn(6, 8))
    other = x_MD.clone()
    other[1] += 1
    moved = (crossed(Diagonal, other, torch.randn(6, 8)) - out).abs().amax(1) > 1e-6
    assert moved.tolist() == [False, True, False, False, False, False]
    assert torch.allclose(out[2], out[3])  # beyond its end: the last


def test_each_arm_has_its_cross_attention() -> None:
    kinds = {"one-head": OneHead, "pooled": Pooled, "diagonal": Diagonal,
             "values": ValuesFromDecoder}  # fmt: skip
    for arm, kind in kinds.items():
        own = ARMS[arm][1]
        assert own is not None
        register_parts(own)
        model: Any = build_model(
            Seq2SeqSettings(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=8,
            block_layout="pre",
                            parts=own.name)
        )  # fmt: skip
        cross = model.decoder.blocks[0].cross
        assert type(cross) is kind
        assert cross.n_heads == (1 if arm == "one-head" else 2)
        assert type(model.encoder.blocks[0].attention) is Attention


def test_sequences_are_rows_of_a_grid() -> None:
    x_NHK = torch.arange(6.0)[:, None, None]
    grid, may = in_grid(x_NHK, TARGET)
    assert grid[..., 0, 0][may].tolist() == [0, 1, 2, 3, 4, 5]
    assert may.sum(1).tolist() == [4, 2]


@pytest.mark.parametrize("kind", [OneHead, Pooled, Diagonal])
def test_the_output_size_does_not_depend_on_the_device(kind: type[Attention]) -> None:
    """Else a GPU could not record a step of a search: it has to wait for the number."""
    source, target = (replace(one, lengths=None) for one in (SOURCE, TARGET))
    with FakeTensorMode(allow_non_fake_inputs=True):
        out = kind(8, 2)(torch.randn(6, 8), target, Memory(torch.randn(8, 8), source))
    assert out.shape == (6, 8)


def test_diagonal_writes_the_same_in_a_search_that_can_be_recorded() -> None:
    own = ARMS["diagonal"][1]
    register_parts(own)
    torch.manual_seed(0)
    model: Any = build_model(
        Seq2SeqSettings(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=8, block_layout="pre",
                        parts="lab-diagonal")
    ).eval()  # fmt: skip
    searcher = Searcher([model], DecodeSettings(beam=1), SpecialTokens(1, 2, 0))
    sources = [[3, 4, 5, 2], [6, 7, 2]]
    want = searcher(sources)
    searcher.graph_searcher = CudaGraphSearcher(model)
    assert [[one.tokens for one in each] for each in searcher(sources)] == [
        [one.tokens for one in each] for each in want
    ]
