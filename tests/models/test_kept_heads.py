"""Models without some of their heads: what is left computes as if the others gave nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headway.errors import ConfigError
from headway.models.build import build_model
from headway.models.folder import load_model, save_model
from headway.models.summary import (
    cache_numbers,
    count_parameters,
    memory_numbers,
    meta_model,
    summarise,
)
from headway.nn.attention.attention import Attention
from headway.settings.kept_heads import KeptHeads
from headway.settings.model import (
    DecoderSettings,
    EncoderSettings,
    ModelSettings,
    Seq2SeqSettings,
    StackSettings,
)

from ..facts import missing

SIZES = {"vocab_size": 41, "d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48, "max_len": 32}

BAD = [
    (Seq2SeqSettings, {"self": [[0], [0]]}, ("kept_heads.self", "self attention")),
    (DecoderSettings, {"cross": [[0], [0]]}, ("kept_heads.cross", "cross attention")),
    (DecoderSettings, {"self": [[0]]}, ("kept_heads.self", "1", "2")),
    (DecoderSettings, {"self": [[0], []]}, ("kept_heads.self", "2")),
    (DecoderSettings, {"self": [[0], [4]]}, ("kept_heads.self", "2", "[4]", "0", "3")),
    (DecoderSettings, {"self": [[0], [-1]]}, ("kept_heads.self", "2", "[-1]", "0", "3")),
    (DecoderSettings, {"self": [[0], [2, 1]]}, ("kept_heads.self", "2", "[2, 1]")),
    (DecoderSettings, {"self": [[0], [1, 1]]}, ("kept_heads.self", "2", "[1, 1]")),
]


def test_each_side_has_heads_of_its_own() -> None:
    """The decoder's are those of its attention to itself and to the source."""
    own = StackSettings(n_heads=2, n_layers=1, d_ff=24)
    settings = Seq2SeqSettings(**SIZES, decoder=own)
    assert [(part.n_heads, part.d_head) for part in attentions(settings)] == [
        *[(4, 8)] * 2, *[(2, 16)] * 2,
    ]  # fmt: skip
    kept = KeptHeads(encoder=((3,), (0, 1)), cross=((1,),))
    pruned = replace(settings, kept_heads=kept)
    assert [part.n_heads for part in attentions(pruned)] == [1, 2, 2, 1]
    assert (pruned.n_kept_heads, pruned.n_whole_heads) == (6, 12)
    for kind in ("decoder", "cross"):
        with pytest.raises(ConfigError, match=rf"kept_heads\.{kind}.*\b1\b.*\[2\].*\b0\b.*\b1\b"):
            replace(settings, kept_heads=KeptHeads(**{kind: ((2,),)}))
    assert cache_numbers(meta_model(pruned)) == 2 * 2 * 16
    assert memory_numbers(meta_model(pruned)) == 2 * 1 * 16
    whole, d = Seq2SeqSettings(**SIZES), SIZES["d_model"]
    layer = 8 * d * d + (2 * 48 + 1) * d + 48 + 3 * 2 * d  # of a decoder: two attentions, norms
    fewer = layer + (48 - 24) * (2 * d + 1)
    assert count_parameters(build_model(whole)) - count_parameters(build_model(settings)) == fewer


def test_settings_of_both_sides_apply_to_both() -> None:
    settings = Seq2SeqSettings(**SIZES | {"n_heads": 8, "d_ff": 64}, n_kv_heads=2, d_head=6)
    assert settings.stack("encoder") == settings.stack("decoder") == settings.stack("cross")
    own = replace(settings, decoder=StackSettings(n_heads=4))
    assert own.stack("encoder") == settings.stack("encoder")
    assert own.stack("decoder") == replace(settings.stack("decoder"), n_heads=4)


@pytest.mark.parametrize(("family", "kept", "facts"), BAD)
def test_impossible_kept_heads_are_an_error_with_the_layer(
    family: type[ModelSettings], kept: dict[str, list[list[int]]], facts: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        family(**SIZES, kept_heads=KeptHeads(**kept))  # type: ignore[arg-type]
    assert not missing(caught.value, *facts)


def test_heads_that_share_keys_stay_together() -> None:
    with pytest.raises(ConfigError, match=r"kept_heads\.self.*\b2\b.*\[1, 2\].*n_kv_heads=2"):
        DecoderSettings(**SIZES, n_kv_heads=2, kept_heads=KeptHeads(self=((0, 1), (1, 2))))
    one = DecoderSettings(**SIZES, n_kv_heads=1, kept_heads=KeptHeads(self=((0, 3), (1,))))
    shapes = [(part.n_heads, part.n_kv_heads) for part in attentions(one)]
    assert shapes == [(2, 1), (1, 1)]


def test_layers_that_are_one_have_one_list() -> None:
    settings = EncoderSettings(**SIZES, share_layers=True, kept_heads=KeptHeads(self=((1, 3),)))
    assert [part.n_heads for part in attentions(settings)] == [2]
    with pytest.raises(ConfigError, match=r"kept_heads\.self.*\b2\b.*\b1\b"):
        replace(settings, kept_heads=KeptHeads(self=((1, 3), (1, 3))))


@pytest.mark.parametrize("bias", ["", "qkvo", "qv"])
def test_the_number_of_parameters_is_that_of_the_formula(bias: str) -> None:
    whole = Seq2SeqSettings(**SIZES, attention_bias=bias)
    kept = KeptHeads(encoder=((0, 1, 2, 3), (2,)), cross=((1, 3), (0, 1, 2, 3)))
    n_gone, width = 3 + 2, whole.head_width
    a_head = 4 * whole.d_model * width + len(set(bias) & set("qkv")) * width
    whole_count, small_count = (
        count_parameters(build_model(each, device="meta"))
        for each in (whole, replace(whole, kept_heads=kept))
    )
    assert whole_count - small_count == n_gone * a_head


def test_a_model_without_some_heads_is_saved_and_loaded_as_it_is(tmp_path) -> None:
    settings = DecoderSettings(**SIZES, kept_heads=KeptHeads(self=((0, 3), (1,))))
    model = build_model(settings)
    save_model(tmp_path, model, settings)
    assert "[model.kept_heads]\nself = [[0, 3], [1]]" in (tmp_path / "config.toml").read_text()
    loaded = load_model(tmp_path)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name])


def test_settings_of_an_unpruned_model_have_no_kept_heads(tmp_path) -> None:
    settings = DecoderSettings(**SIZES)
    save_model(tmp_path, build_model(settings), settings)
    assert "kept_heads" not in (tmp_path / "config.toml").read_text()


def test_the_cache_of_a_token_has_the_keys_that_are_left() -> None:
    kept = KeptHeads(decoder=((0, 3), (1,)), cross=((0, 1, 2), (1,)))
    settings = Seq2SeqSettings(**SIZES, kept_heads=kept)
    assert cache_numbers(meta_model(settings)) == 2 * 3 * settings.head_width
    assert memory_numbers(meta_model(settings)) == 2 * 4 * settings.head_width
    whole = Seq2SeqSettings(**SIZES)
    assert (
        cache_numbers(meta_model(whole))
        == memory_numbers(meta_model(whole))
        == 2 * 8 * whole.head_width
    )
    assert summarise(settings, 64).activations.fused_bytes > 0


def test_some_layers_of_a_pruned_model_have_the_heads_of_those_layers() -> None:
    kept = KeptHeads(encoder=((0,), (1,), (2,), (3,)), cross=((0, 1), (2,)))
    picks = {"encoder": [0, 2], "decoder": [1], "cross": [1]}
    # A list of one would be that of layers which are one; the layer that is left has it.
    assert kept.of_layers(picks) == KeptHeads(encoder=((0,), (2,)), cross=((2,),))
    assert KeptHeads(self=((1, 3),)).of_layers({"self": [0, 2]}) == KeptHeads(self=((1, 3),))


def attentions(settings: ModelSettings) -> list[Attention]:
    model = build_model(settings, device="meta")
    return [part for part in model.modules() if isinstance(part, Attention)]
