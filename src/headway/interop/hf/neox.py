"""Conversion of GPT-NeoX from and to `transformers`: the variant with sequential sub-layers, RoPE,
LayerNorm and no gate.

headway's default decoders have this architecture, so they are exported as GPT-NeoX.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headway.interop.convertible import check_kind, check_round_trip, their_activation
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import LONGEST, ForeignConfig
from headway.interop.hf.llama import expressible_rope, rope_parameters, rope_settings
from headway.interop.hf.lm_heads import DecoderHead, class_config, decoder_head, language_model
from headway.interop.name_pairs import NamePair, TensorTransform, weight_and_bias
from headway.settings.model import DecoderSettings, RopeSettings
from headway.settings.run import RunSettings

IGNORED = {
    r"(.*\.)?attention\.(bias|masked_bias)": "the causal mask, which headway computes",
    r"(.*\.)?rotary_emb\.inv_freq": "the frequencies of rotary positions, which headway computes",
}
NAME = "GPTNeoX"
WORDS = "embed_out.weight"


@dataclass(frozen=True)
class NeoxFamily:
    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        given = ForeignConfig(config)
        if given.flag("use_parallel_residual", True):
            raise given.error(
                "use_parallel_residual",
                "is not supported: headway supports parallel attention and feed-forward layers "
                "only with a shared norm",
            )
        tie, words = (
            given.flag("tie_word_embeddings", False),
            (f"{NAME}ForCausalLM", f"{NAME}Model"),
        )
        label = decoder_head(given, words, tags="classifier", has_words=tie or WORDS in names)
        model = DecoderSettings(
            vocab_size=given.integer("vocab_size"),
            d_model=given.integer("hidden_size"),
            n_layers=given.layers("num_hidden_layers", names),
            n_heads=given.integer("num_attention_heads"),
            d_ff=given.integer("intermediate_size"),
            max_len=given.integer("max_position_embeddings", 2048, most=LONGEST),
            activation=given.activation("hidden_act", "gelu"),
            norm_eps=given.number("layer_norm_eps", 1e-5),
            positions="rotary",
            rope=_rope(given),
            attention_bias="qkvo" * given.flag("attention_bias", True),
            dropout=given.fraction("hidden_dropout", 0.0),
            attention_dropout=given.fraction("attention_dropout", 0.0),
            tie=tie,
            **label.settings,
        )
        prefix = "gpt_neox." if any(name.startswith("gpt_neox.") for name in names) else ""
        pairs = _pairs(model, prefix, label)
        return language_model(label, model, pairs, IGNORED, config, generation)

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        ours = settings.model
        check_kind(ours, DecoderSettings, NAME)
        assert isinstance(ours, DecoderSettings)
        config: dict[str, Any] = {
            "model_type": "gpt_neox",
            "vocab_size": ours.vocab_size,
            "hidden_size": ours.d_model,
            "num_hidden_layers": ours.n_layers,
            "num_attention_heads": ours.n_heads,
            "intermediate_size": ours.d_ff,
            "max_position_embeddings": ours.max_len,
            "hidden_act": their_activation(ours.activation),
            "layer_norm_eps": ours.norm_eps,
            "rope_parameters": {**rope_parameters(ours), "partial_rotary_factor": 1.0},
            "use_parallel_residual": False,
            "attention_bias": bool(ours.attention_bias),
            "hidden_dropout": ours.dropout,
            "attention_dropout": ours.attention_dropout,
            "tie_word_embeddings": ours.tie,
            **class_config(settings, NAME, f"{NAME}ForCausalLM"),
        }
        names = [f"gpt_neox.layers.{n}" for n in range(ours.n_layers)]
        said = self.read(config, [*names, WORDS] if "words" in ours.heads else names, {})
        check_round_trip(
            expressible_rope(ours), said.model, NAME, wider=("attention_bias", "ff_bias")
        )
        return config, said


def _rope(given: ForeignConfig) -> RopeSettings:
    """Return the RoPE settings.

    GPT-NeoX has its own keys for the base and for the fraction of each head's dimensions that is
    rotated.
    """
    table = given.nested("rope_parameters")
    part = table.get("partial_rotary_factor", given.values.get("rotary_pct", 0.25))
    if part != 1:
        key = "rope_parameters" if "partial_rotary_factor" in table else "rotary_pct"
        raise given.error(
            key,
            f"is not supported: headway rotates all dimensions of each head, not only {part}",
        )
    base = given.number("rotary_emb_base", 10_000.0, least=1e-9)
    return rope_settings(ForeignConfig({**given.values, "rope_theta": base}, given.where))


def _pairs(model: DecoderSettings, prefix: str, label: DecoderHead) -> list[NamePair]:
    apart = _by_heads(model.n_heads)
    bias = bool(model.attention_bias)
    pairs = [NamePair(f"{prefix}embed_in.weight", "front.tokens.weight")]
    for n in range(model.n_layers):
        theirs, ours = f"{prefix}layers.{n}", f"stack.blocks.{n}"
        own = f"{theirs}.attention"
        pairs += weight_and_bias(f"{theirs}.input_layernorm", f"{ours}.norm_attention")
        pairs += weight_and_bias(
            f"{own}.query_key_value", f"{ours}.attention.to_qkv", apart, bias=bias
        )
        pairs += weight_and_bias(f"{own}.dense", f"{ours}.attention.to_out", bias=bias)
        pairs += weight_and_bias(f"{theirs}.post_attention_layernorm", f"{ours}.norm_feed_forward")
        pairs += weight_and_bias(f"{theirs}.mlp.dense_h_to_4h", f"{ours}.feed_forward.to_hidden")
        pairs += weight_and_bias(f"{theirs}.mlp.dense_4h_to_h", f"{ours}.feed_forward.to_out")
    pairs += weight_and_bias(f"{prefix}final_layer_norm", "stack.final_norm")
    if label.generates:
        pairs.append(NamePair(WORDS, "head.linear.weight", tied=model.tie))
    return [*pairs, *label.pairs()]


def _by_heads(n_heads: int) -> TensorTransform:
    """Return the conversion between two row orders of the joint matrix.

    GPT-NeoX stores q, k and v of each head together. headway stores all q, then all k, then all v.
    """
    return TensorTransform(
        lambda tensor: tensor.unflatten(0, (n_heads, 3, -1)).transpose(0, 1).flatten(0, 2),
        lambda tensor: tensor.unflatten(0, (3, n_heads, -1)).transpose(0, 1).flatten(0, 2),
    )


NEOX = NeoxFamily()
