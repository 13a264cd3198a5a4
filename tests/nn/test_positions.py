"""Positions of every kind, against the formulas of their papers and against transformers."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from headway.errors import UserError
from headway.nn.layout import Layout
from headway.nn.positions import (
    Alibi,
    Grid2d,
    Learned,
    Relative,
    Rotary,
    Sinusoidal,
    alibi_slopes,
    rope_rates,
    sinusoids,
    sinusoids_2d,
)


@pytest.mark.parametrize("width", [4, 16])
def test_sinusoids_are_the_formula_of_the_paper(width: int) -> None:
    table_PD = sinusoids(50, width)
    for pos in range(50):
        for i in range(width // 2):
            angle = pos / 10000 ** (2 * i / width)
            assert table_PD[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table_PD[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_a_shift_of_sinusoids_is_one_linear_map_for_all_positions() -> None:
    """Section 3.5: PE(pos + k) is a linear function of PE(pos); here a rotation of each pair."""
    width, k = 8, 7
    table_PD = sinusoids(100, width).double()
    map_DD = torch.linalg.lstsq(table_PD[:-k], table_PD[k:]).solution
    torch.testing.assert_close(table_PD[:-k] @ map_DD, table_PD[k:], rtol=0.0, atol=1e-5)
    for i in range(width // 2):
        angle = k / 10000 ** (2 * i / width)
        turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        block = map_DD[2 * i : 2 * i + 2, 2 * i : 2 * i + 2]
        torch.testing.assert_close(block, torch.tensor(turn).double(), rtol=0.0, atol=1e-4)


def test_halves_are_the_same_numbers_in_another_order() -> None:
    table_PD, halves_PD = sinusoids(20, 8), sinusoids(20, 8, halves=True)
    assert torch.equal(halves_PD, table_PD[:, [0, 2, 4, 6, 1, 3, 5, 7]])


def test_sinusoids_of_a_far_position_are_still_exact() -> None:
    far_D = sinusoids(100_001, 16)[100_000]
    for i in range(8):
        angle = 100_000 / 10000 ** (2 * i / 16)
        assert far_D[2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert far_D[2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("halves", [False, True])
def test_the_sinusoidal_table_grows_and_stays_the_same_where_it_was(
    halves: bool, device: torch.device
) -> None:
    part = Sinusoidal(8, max_len=4, halves=halves).to(device)
    layout = Layout.of([3, 9], device)
    zeros_ND = torch.zeros(12, 8, device=device)
    table_PD = sinusoids(9, 8, halves=halves).to(device)
    wanted_ND = torch.cat([table_PD[:3], table_PD])
    assert torch.equal(part(zeros_ND, layout), wanted_ND)
    x_ND = torch.randn_like(zeros_ND)
    assert torch.equal(part(x_ND, layout), x_ND + wanted_ND)
    assert part(x_ND.bfloat16(), layout).dtype == torch.bfloat16
    assert not part.state_dict()  # a formula is not saved


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_of_a_cached_sequence_continue_where_it_stopped(
    kind: str, device: torch.device
) -> None:
    part = (Sinusoidal(8, 4) if kind == "sinusoidal" else Learned(8, 16)).to(device)
    x_ND = torch.zeros(7, 8, device=device)
    whole = part(x_ND, Layout.of([7], device))
    first = part(x_ND[:4], Layout.of([4], device))
    rest = part(x_ND[4:], Layout.of([3], device).shifted([4]))
    assert torch.equal(torch.cat([first, rest]), whole)


def test_learned_positions_add_a_row_of_the_table_and_end() -> None:
    part = Learned(8, max_len=5)
    x_ND = torch.randn(7, 8)
    wanted = x_ND + torch.cat([part.table.weight[:2], part.table.weight])
    assert torch.equal(part(x_ND, Layout.of([2, 5])), wanted)
    with pytest.raises(UserError, match=r"6 tokens.*max_len=5"):
        part(torch.zeros(6, 8), Layout.of([6]))
    with pytest.raises(UserError, match="max_len=5"):  # also one token at a time
        part(torch.zeros(1, 8), Layout.of([1]).shifted([5]))


# Images


def test_2d_sinusoids_are_rows_in_one_half_and_columns_in_the_other() -> None:
    code_YXD = sinusoids_2d(3, 5, 8).unflatten(0, (3, 5))
    line_PD = sinusoids(5, 4)
    for y in range(3):
        for x in range(5):
            assert torch.equal(code_YXD[y, x], torch.cat([line_PD[y], line_PD[x]]))
    with pytest.raises(UserError, match=r"\b4\b.*\b6\b"):
        sinusoids_2d(3, 5, 6)


@pytest.mark.parametrize("learned", [False, True])
def test_a_grid_at_its_own_size_is_its_table(learned: bool, device: torch.device) -> None:
    part = Grid2d(8, 3, 5, learned=learned).to(device)
    assert (len(list(part.parameters())) == 1) is learned
    with torch.no_grad():
        part.table_YXD.normal_()
    assert torch.equal(part.code(3, 5), part.table_YXD.flatten(0, 1))
    x_ND = torch.randn(15 + 6, 8, device=device)
    out_ND = part(x_ND, [(3, 5), (2, 3)])
    assert torch.equal(out_ND[:15], x_ND[:15] + part.code(3, 5))
    assert torch.equal(out_ND[15:], x_ND[15:] + part.code(2, 3))


def test_a_learned_grid_is_interpolated_without_turning_it() -> None:
    part = Grid2d(4, 4, 6, learned=True)
    with torch.no_grad():  # a slope along the lines, another along the columns, a constant
        y, x = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
        part.table_YXD.copy_(torch.stack([y, x, torch.ones(4, 6), y + x], -1))
    code_YXD = part.code(8, 12).unflatten(0, (8, 12)).detach()
    lines_YX, columns_YX, ones_YX, sum_YX = code_YXD.unbind(-1)
    torch.testing.assert_close(lines_YX, lines_YX[:, :1].expand(8, 12))
    torch.testing.assert_close(columns_YX, columns_YX[:1].expand(8, 12))
    assert (lines_YX[:, 0].diff() > 0).all()
    assert (columns_YX[0].diff() > 0).all()
    torch.testing.assert_close(ones_YX, torch.ones(8, 12))
    torch.testing.assert_close(sum_YX, lines_YX + columns_YX)
    # The middle stays the middle.
    assert lines_YX[3:5, 0].mean().item() == pytest.approx(1.5, abs=1e-5)
    assert columns_YX[0, 5:7].mean().item() == pytest.approx(2.5, abs=1e-5)
    part.code(8, 12).sum().backward()  # and it can be trained at another size
    assert part.table_YXD.grad is not None


def test_a_sinusoidal_grid_of_another_size_is_recomputed() -> None:
    part = Grid2d(8, 3, 5, learned=False)
    assert torch.equal(part.code(4, 2), sinusoids_2d(4, 2, 8))


# Rotary


def rotary(width: int = 8, max_len: int = 4, **options: object) -> Rotary:
    return Rotary(partial(rope_rates, width, 10_000.0, **options), max_len)


def test_rotary_scores_depend_on_distance_alone(device: torch.device) -> None:
    part = rotary(max_len=64).to(device)
    q, k = torch.randn(2, 1, 1, 8, device=device)
    layout = Layout.of([40], device)
    q_NHK, k_NHK = part(q.expand(40, 1, 8), layout)[:, 0], part(k.expand(40, 1, 8), layout)[:, 0]
    scores_TS = q_NHK @ k_NHK.T
    for distance in (-20, -3, 0, 1, 17):
        diagonal = scores_TS.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert (scores_TS.diagonal(3)[0] - scores_TS.diagonal(0)[0]).abs() > 1e-3


def test_rotary_keeps_lengths_and_leaves_the_first_token_alone(device: torch.device) -> None:
    x_NHK = torch.randn(6, 2, 8, device=device)
    turned = rotary().to(device)(x_NHK, Layout.of([6], device))
    torch.testing.assert_close(turned.norm(dim=-1), x_NHK.norm(dim=-1))
    assert torch.equal(turned[0], x_NHK[0])
    assert not torch.equal(turned[1], x_NHK[1])


def test_the_rotary_table_grows_and_continues_for_a_cache(device: torch.device) -> None:
    short, long = rotary(max_len=2).to(device), rotary(max_len=50).to(device)
    x_NHK = torch.randn(9, 2, 8, device=device)
    layout = Layout.of([2, 7], device).shifted([0, 20])
    assert torch.equal(short(x_NHK, layout), long(x_NHK, layout))
    assert len(short.cos_PI) == 27
    assert not short.state_dict()


def test_rotary_equals_that_of_llama() -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q_NHK, k_NHK = torch.randn(2, 10, 3, 8)
    part = rotary(max_len=16)
    angle_PI = torch.arange(10).double()[:, None] * rope_rates(8, 10_000.0)
    angle_1PK = torch.cat([angle_PI, angle_PI], -1)[None]
    theirs = apply_rotary_pos_emb(
        q_NHK.transpose(0, 1)[None],
        k_NHK.transpose(0, 1)[None],
        angle_1PK.cos().float(),
        angle_1PK.sin().float(),
    )
    for mine, other in zip((q_NHK, k_NHK), theirs, strict=True):
        found = part(mine, Layout.of([10]))
        torch.testing.assert_close(found, other[0].transpose(0, 1), rtol=0.0, atol=1e-6)


def theirs(kind: str, factor: float, max_len: int, seq_len: int | None = None) -> Tensor:
    """The rates of transformers for heads of width 64."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        max_position_embeddings=max_len,
        rope_parameters={
            "rope_type": kind,
            "rope_theta": 500_000.0,
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": max_len,
        },
    )
    return ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len)[0]


@pytest.mark.parametrize("kind", ["linear", "llama3"])
@pytest.mark.filterwarnings("ignore")  # transformers comments on settings that one kind ignores
def test_slowed_rates_equal_those_of_transformers(kind: str) -> None:
    ours = rope_rates(64, 500_000.0, kind, factor=8.0, trained_len=256)
    torch.testing.assert_close(ours.float(), theirs(kind, 8.0, 256), rtol=1e-5, atol=0.0)


@pytest.mark.filterwarnings("ignore")
def test_ntk_rates_are_the_dynamic_ones_of_transformers_at_the_length_they_reach() -> None:
    ours = rope_rates(64, 500_000.0, "ntk", factor=4.0)
    dynamic = theirs("dynamic", 1.0, 256, seq_len=4 * 256)
    torch.testing.assert_close(ours.float(), dynamic, rtol=1e-5, atol=0.0)


def test_ntk_leaves_the_fastest_pair_and_slows_the_slowest_by_the_factor() -> None:
    plain, slowed = rope_rates(64, 10_000.0), rope_rates(64, 10_000.0, "ntk", factor=4.0)
    ratio_I = plain / slowed
    assert ratio_I[0].item() == pytest.approx(1.0)
    assert ratio_I[-1].item() == pytest.approx(4.0)
    assert (ratio_I.diff() > 0).all()


def test_llama3_leaves_fast_pairs_slows_slow_ones_and_ramps_between() -> None:
    plain = rope_rates(64, 10_000.0)
    slowed = rope_rates(64, 10_000.0, "llama3", factor=4.0, trained_len=512)
    wave_I = 2 * math.pi / plain
    ratio_I = plain / slowed
    torch.testing.assert_close(ratio_I[wave_I < 128], torch.ones_like(ratio_I[wave_I < 128]))
    slow_I = ratio_I[wave_I > 512]
    torch.testing.assert_close(slow_I, torch.full_like(slow_I, 4.0))
    between_I = ratio_I[(wave_I > 128) & (wave_I < 512)]
    assert len(between_I) > 1
    assert ((between_I > 1) & (between_I < 4)).all()


# In the scores


def test_alibi_slopes_follow_the_published_rule() -> None:
    """Press et al.: a geometric sequence from 2^(-8/n); for 12 heads that of 8, then of 16."""
    assert alibi_slopes(8) == [1 / 2**i for i in range(1, 9)]
    assert alibi_slopes(12) == [*alibi_slopes(8), *alibi_slopes(16)[0::2][:4]]
    assert alibi_slopes(16) == pytest.approx([2 ** (-i / 2) for i in range(1, 17)])
    assert alibi_slopes(1) == [2**-8]
    for n_heads in range(1, 20):
        assert len(alibi_slopes(n_heads)) == len(set(alibi_slopes(n_heads))) == n_heads


def test_alibi_falls_off_with_distance_on_either_side(device: torch.device) -> None:
    distance_TS = torch.tensor([[-2, -1, 0, 3]], device=device)
    bias_HTS = Alibi(8).to(device)(distance_TS)
    assert bias_HTS.shape == (8, 1, 4)
    assert bias_HTS[0, 0].tolist() == [-1.0, -0.5, 0.0, -1.5]
    assert bias_HTS[7, 0].tolist() == [-2 / 256, -1 / 256, 0.0, -3 / 256]
    batch_BHTS = Alibi(8).to(device)(distance_TS.expand(3, 1, 4))
    assert torch.equal(batch_BHTS, bias_HTS.expand(3, 8, 1, 4))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20)])
def test_relative_buckets_equal_those_of_t5(causal: bool, buckets: int, max_distance: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance_TS = torch.arange(-300, 301)[None]
    ours = Relative(2, buckets, max_distance, causal=causal).bucket(distance_TS)
    wanted = T5Attention._relative_position_bucket(
        distance_TS, bidirectional=not causal, num_buckets=buckets, max_distance=max_distance
    )
    assert torch.equal(ours, wanted)


def test_relative_bias_is_the_number_of_the_bucket_for_each_head(device: torch.device) -> None:
    part = Relative(3, 8, 20, causal=False).to(device)
    distance_TS = torch.arange(-4, 5, device=device).unfold(0, 5, 1)
    bias_HTS = part(distance_TS)
    assert bias_HTS.shape == (3, 5, 5)
    bucket_TS = part.bucket(distance_TS)
    for h in range(3):
        assert torch.equal(bias_HTS[h], part.table.weight[:, h][bucket_TS])
    batch_BHTS = part(distance_TS.expand(2, 5, 5))
    assert torch.equal(batch_BHTS, bias_HTS.expand(2, 3, 5, 5))
