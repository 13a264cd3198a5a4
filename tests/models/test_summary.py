"""Counts are exact sums, and memory predicted without a device is what a real step keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headway.errors import UserError
from headway.models import summary
from headway.models.build import build_model
from headway.models.summary import (
    _kept,
    activations,
    cache_numbers,
    count_parameters,
    meta_model,
    parts,
    summarise,
)
from headway.nn.layout import Layout
from headway.settings.model import ModelSettings
from headway.settings.presets import PRESETS, preset

TINY = ["transformer-test", "encoder-test", "decoder-test", "stories260K"]


@pytest.mark.parametrize("name", PRESETS)
def test_the_parts_add_up_to_the_whole(name: str) -> None:
    model = meta_model(preset(name))
    assert sum(part.parameters for part in parts(model)) == count_parameters(model)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("transformer-base", 63_045_632),
        ("transformer-big", 214_171_648),
        ("gpt2", 124_439_808),
        ("stories260K", 260_032),
    ],
)
def test_a_preset_has_exactly_its_parameters(name: str, parameters: int) -> None:
    assert count_parameters(meta_model(preset(name))) == parameters


def test_a_shared_weight_counts_once_and_names_its_other_part() -> None:
    listed = {
        (part.child, part.kind): part for part in parts(meta_model(preset("transformer-base")))
    }
    assert listed["source_front", "tokens"].parameters == 37_000 * 512
    for shares in (("target_front", "tokens"), ("head", "linear")):
        assert listed[shares].parameters == 0
        assert listed[shares].shared_with == "source_front.tokens"


def test_a_part_that_shares_its_matrix_still_counts_its_own_bias() -> None:
    listed = {(part.child, part.kind): part for part in parts(meta_model(preset("bert-base")))}
    d, words = 768, 30_522
    assert listed["heads", "words"].parameters == d * d + d + 2 * d + words
    assert listed["heads", "words"].shared_with == "front.tokens"


def test_layers_are_split_into_attention_feed_forward_and_norms() -> None:
    listed = {
        (part.child, part.kind): part for part in parts(meta_model(preset("transformer-base")))
    }
    assert listed["decoder", "attention"].parameters == 6 * 4 * 512 * 512
    assert listed["decoder", "cross attention"].parameters == 6 * 4 * 512 * 512
    assert listed["encoder", "feed-forward"].parameters == 6 * (2 * 512 * 2048 + 2048 + 512)
    assert listed["decoder", "norms"].parameters == 6 * 3 * 2 * 512
    pre = {part.kind: part.parameters for part in parts(meta_model(preset("decoder-test")))}
    assert pre["norms"] == (2 * 2 + 1) * 2 * 32  # the final norm is one of them


def kept_by_a_real_step(settings: ModelSettings, lengths: list[int]) -> int:
    model = build_model(settings).train()
    layout = Layout.of(lengths)
    tokens_N = torch.zeros(layout.n_rows, dtype=torch.long)
    with _kept(model) as kept:
        model(*(tokens_N, layout) * (2 if hasattr(model, "encoder") else 1))
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("positions", ["learned", "alibi", "relative"])
def test_activations_counted_without_memory_are_those_of_a_real_step(
    name: str, positions: str
) -> None:
    settings = replace(preset(name), positions=positions, max_len=64, attention_dropout=0.0)
    counted = activations(meta_model(settings), settings, batch_tokens=128)
    assert (counted.sequences, counted.length) == (2, 64)
    assert counted.fused_bytes == kept_by_a_real_step(settings, [64, 64])


@pytest.mark.parametrize("name", TINY)
def test_attention_dropout_on_a_cpu_keeps_the_attention_weights(name: str) -> None:
    settings = replace(preset(name), attention_dropout=0.1)
    counted = activations(meta_model(settings), settings, batch_tokens=60)
    assert counted.written_out_bytes == kept_by_a_real_step(settings, [60])
    assert counted.written_out_bytes > counted.fused_bytes


def test_where_torch_has_no_fused_attention_on_a_cpu_more_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = preset("decoder-test")
    fused = activations(meta_model(settings), settings, 64).fused_bytes
    monkeypatch.setattr(summary, "FUSED", "no_such_attention")
    assert activations(meta_model(settings), settings, 64).fused_bytes > fused


def test_activation_memory_doubles_with_the_batch() -> None:
    settings = preset("decoder-test")
    once = activations(meta_model(settings), settings, batch_tokens=64)
    twice = activations(meta_model(settings), settings, batch_tokens=128)
    assert twice.fused_bytes == 2 * once.fused_bytes


def test_a_batch_is_cut_into_equal_sequences_that_the_model_can_take() -> None:
    settings = preset("decoder-test")
    counted = activations(meta_model(settings), settings, batch_tokens=100)
    assert (counted.sequences, counted.length) == (2, 50)
    assert activations(meta_model(settings), settings, batch_tokens=1).length == 1


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("gpt2", 2 * 12 * 12 * 64),
        ("stories260K", 2 * 5 * 4 * 8),
        ("transformer-base", 2 * 6 * 8 * 64),
        ("bert-base", 0),
    ],
)
def test_a_cache_holds_keys_and_values_of_the_key_value_heads_of_every_decoder_layer(
    name: str, numbers: int
) -> None:
    assert cache_numbers(meta_model(preset(name))) == numbers


def test_a_summary_costs_no_memory_even_for_a_large_model() -> None:
    settings = replace(preset("gpt2-xl"), d_model=25_600, d_ff=102_400)  # 380 thousand million
    summary = summarise(settings, batch_tokens=4096)
    assert summary.parameters > 3e11
    assert summary.training_bytes == 16 * summary.parameters


def test_sizes_too_large_for_any_memory_are_an_error() -> None:
    for vocab_size in (10**16, 10**30):
        with pytest.raises(UserError) as caught:
            meta_model(replace(preset("gpt2"), vocab_size=vocab_size))
        assert "\n" not in str(caught.value)
