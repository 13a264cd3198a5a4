"""Pruned models: the numbers of a masked one, the weights of a smaller one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.cuda_graphs import CudaGraphSearcher
from headway.decode.search.searcher import Searcher
from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.interventions import Intervention, disable_heads
from headway.inside.measure.pruning import (
    HeadId,
    all_heads,
    prunable,
    prune_heads,
    remaining_heads,
    removable_groups,
    select_heads,
)
from headway.inside.measure.truth.accuracy import with_fresh_weights
from headway.models.summary import count_parameters
from headway.nn.int8 import quantize_model
from headway.settings.decode import DecodeSettings
from headway.settings.kept_heads import ALL_HEADS
from headway.settings.model import EncoderSettings, Seq2SeqSettings
from tests.models.variants import FAMILIES, VARIANTS, samples, scores, settings_of, tiny

CASES = [(family, variant) for family in FAMILIES for variant in VARIANTS]
BATCH = samples([5, 1, 9, 3])


def some(settings) -> frozenset[HeadId]:
    """About half of all heads, others in every layer."""
    chosen = removable_groups(settings)
    return select_heads(chosen[::2] + chosen[1::2], settings.n_kept_heads // 2 + 1, settings)


@pytest.mark.parametrize(("family", "variant"), CASES)
def test_a_pruned_model_computes_what_the_masked_one_does(family: str, variant: str) -> None:
    settings, model = settings_of(family, variant), tiny(family, variant).double()
    gone = some(settings)
    assert gone
    with torch.no_grad():
        with disable_heads(model, Intervention(disabled_heads=gone)):
            masked = torch.cat(scores(model, BATCH))
        small = prune_heads(model, settings, gone).double()
        torch.testing.assert_close(torch.cat(scores(small, BATCH)), masked, atol=1e-6, rtol=1e-6)
        whole = torch.cat(scores(model, BATCH))
    assert (whole - masked).abs().max() > 1e-3, "these heads matter"
    assert count_parameters(small) < count_parameters(model)


def test_pruning_in_two_turns_is_pruning_at_once() -> None:
    settings, model = settings_of("seq2seq", "t5-like"), tiny("seq2seq", "t5-like")
    first, second = {("decoder", 0, 1), ("cross", 1, 0)}, {("decoder", 0, 1), ("cross", 1, 2)}
    at_once = first | {("decoder", 0, 2), ("cross", 1, 3)}  # by their numbers in the whole model
    once = prune_heads(model, settings, first)
    between = replace(settings, kept_heads=remaining_heads(settings, first))
    twice = prune_heads(once, between, second)
    assert remaining_heads(between, second) == remaining_heads(settings, at_once)
    want = prune_heads(model, settings, at_once).state_dict()
    for name, weight in twice.state_dict().items():
        assert torch.equal(weight, want[name]), name


def test_a_pruned_model_is_where_the_whole_one_is(device: torch.device) -> None:
    settings, model = settings_of("seq2seq", "as-published"), tiny("seq2seq", device=device)
    small = prune_heads(model, settings, some(settings))
    assert {weight.device.type for weight in small.parameters()} == {device.type}


def test_a_fresh_model_is_where_the_run_is() -> None:
    """Not on the CPU, where a batch would not be beside it. Here: where nothing is computed."""
    elsewhere, settings = torch.device("meta"), settings_of("seq2seq", "as-published")
    made: Any = SimpleNamespace(shape=settings, device=elsewhere, with_model=lambda model: model)
    fresh: Any = with_fresh_weights(made)
    assert {weight.device for weight in fresh.parameters()} == {elsewhere}


def test_no_head_taken_out_is_the_same_model() -> None:
    settings, model = settings_of("decoder", "llama-like"), tiny("decoder", "llama-like")
    assert remaining_heads(settings, ()) == ALL_HEADS
    for name, weight in prune_heads(model, settings, ()).state_dict().items():
        assert torch.equal(weight, model.state_dict()[name])


def test_heads_that_share_keys_go_together_and_shared_layers_count_once() -> None:
    grouped = settings_of("decoder", "llama-like")
    assert removable_groups(grouped)[:2] == [
        (("self", 0, 0), ("self", 0, 1)),
        (("self", 0, 2), ("self", 0, 3)),
    ]
    assert prunable(grouped) == 4
    assert len(removable_groups(settings_of("decoder", "parallel-one-key-head"))) == 8
    assert len(all_heads(settings_of("encoder", "albert-like"))) == 4
    assert prunable(settings_of("encoder", "albert-like")) == 3


def test_the_last_head_of_an_attention_is_never_chosen() -> None:
    settings = settings_of("seq2seq", "as-published")
    order = sorted(removable_groups(settings))  # all of one attention first
    gone = select_heads(order, 100, settings)
    assert len(gone) == prunable(settings) == 18
    assert {head[:2] for head in all_heads(settings) if head not in gone} == {
        head[:2] for head in all_heads(settings)
    }


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (("cross", 2, 0), r"\b3\b.*\bcross\b.*\b2\b"),
        (("cross", 0, 4), r"\b5\b.*\bcross\b.*\b4\b"),
        (("self", 0, 0), r"\bself\b.*\bencoder, decoder, cross\b"),
    ],
)
def test_a_head_that_is_not_there_is_named(head: HeadId, said: str) -> None:
    with pytest.raises(UserError, match=said):
        remaining_heads(FAMILIES["seq2seq"], [head])


def test_all_heads_of_an_attention_cannot_go() -> None:
    with pytest.raises(UserError, match=r"\bcross\b.*\b2\b"):
        remaining_heads(FAMILIES["seq2seq"], [("cross", 1, head) for head in range(4)])


@pytest.mark.parametrize("variant", ["as-published", "t5-like", "llama-like", "window-and-alibi"])
def test_a_pruned_translator_searches_as_the_masked_one(variant: str) -> None:
    settings, model = settings_of("seq2seq", variant), tiny("seq2seq", variant)
    gone, sources = some(settings), [list(sample.source) for sample in BATCH]
    decode = DecodeSettings(beam=3, max_len=7, n_best=2)
    specials = SpecialTokens(bos=1, eos=2, unk=3)
    with disable_heads(model, Intervention(disabled_heads=gone)):
        masked = Searcher([model], decode, specials)(sources)
    small = prune_heads(model, settings, gone)
    assert _found(Searcher([small], decode, specials)(sources)) == _found(masked)


@pytest.mark.parametrize("variant", ["as-published", "t5-like", "llama-like", "window-and-alibi"])
@pytest.mark.parametrize("beam", [1, 3])
def test_a_pruned_language_model_continues_as_the_masked_one(variant: str, beam: int) -> None:
    settings, model = settings_of("decoder", variant), tiny("decoder", variant)
    gone, prompts = some(settings), [list(sample.target) for sample in BATCH]
    decode, specials = DecodeSettings(beam=beam, max_len=7), SpecialTokens(bos=1, eos=2, unk=3)
    with disable_heads(model, Intervention(disabled_heads=gone)):
        masked = Searcher([model], decode, specials, 32)(prompts)
    small = prune_heads(model, settings, gone)
    assert _found(Searcher([small], decode, specials, 32)(prompts)) == _found(masked)


@pytest.mark.parametrize("variant", ["as-published", "t5-like", "llama-like"])
def test_a_search_with_fixed_shapes_takes_pruned_models(variant: str) -> None:
    settings = settings_of("seq2seq", variant)
    small = prune_heads(tiny("seq2seq", variant), settings, some(settings))
    sources, specials = [list(sample.source) for sample in BATCH], SpecialTokens(1, 2, 3)
    plain = Searcher([small], DecodeSettings(beam=3, max_len=7), specials)
    fixed = Searcher([small], DecodeSettings(beam=3, max_len=7), specials)
    fixed.graph_searcher = CudaGraphSearcher(small)
    assert _found(fixed(sources)) == _found(plain(sources))


def _found(batches) -> list[list[tuple[list[int], float]]]:
    return [[(one.tokens, pytest.approx(one.log_prob, abs=1e-4)) for one in few] for few in batches]


def test_a_pruned_model_computes_in_eight_bits() -> None:
    settings, model = settings_of("seq2seq", "as-published"), tiny("seq2seq", "as-published")
    small = prune_heads(model, settings, some(settings))
    with torch.no_grad():
        plain = torch.cat(scores(small, BATCH))
        quantize_model(small)
        rounded = torch.cat(scores(small, BATCH))
    assert 0 < (plain - rounded).abs().max() < 0.15 * plain.abs().max()


def test_a_pruned_model_learns() -> None:
    settings, model = (
        settings_of("encoder", "relative-grouped"),
        tiny("encoder", "relative-grouped"),
    )
    small = prune_heads(model, settings, some(settings)).train()
    torch.cat(scores(small, BATCH)).square().mean().backward()
    for attention in Anatomy.of(small).kind("self").layers:
        assert attention.to_qkv.weight.grad is not None
        assert attention.to_qkv.weight.grad.abs().sum() > 0
    assert small.stack.bias.table.weight.grad.abs().sum() > 0


def test_a_copy_of_a_pruned_model_has_a_bias_of_its_own() -> None:
    import copy

    settings, model = settings_of("decoder", "t5-like"), tiny("decoder", "t5-like")
    small = prune_heads(model, settings, some(settings))
    before = torch.cat(scores(small, BATCH)).detach()
    twin = copy.deepcopy(small)
    with torch.no_grad():
        twin.stack.bias.table.weight.normal_(0, 9.0)
    assert torch.equal(torch.cat(scores(small, BATCH)).detach(), before)
    assert not torch.allclose(torch.cat(scores(twin, BATCH)).detach(), before)


def test_the_settings_of_families_determine_what_can_be_pruned() -> None:
    assert list(Seq2SeqSettings().attention_layers) == ["encoder", "decoder", "cross"]
    assert EncoderSettings(share_layers=True).attention_layers == {"self": 1}
