"""A live model of Hugging Face's `transformers` as one of ours, by the tables of `headway import`.

Two architectures that are not imported are here with tables of their own, because they show parts
that others lack: BLOOM (ALiBi) and Falcon (attention and feed-forward side by side).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from headway.interop.families import Architecture, family_named
from headway.interop.foreign_config import ACTIVATIONS
from headway.interop.importing import convert_tensors, with_zeros
from headway.interop.name_pairs import IDENTITY, NamePair, TensorTransform, weight_and_bias
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.settings.model import DecoderSettings, ModelSettings, RopeSettings


def converted(theirs: Any) -> nn.Module:
    """Our model with their weights: all of them, and none of ours left out."""
    found = architecture(theirs.config, theirs.state_dict())
    taken = with_zeros(convert_tensors(found, theirs.state_dict()), found)
    ours = build_model(found.model).eval()
    load_weights(ours, taken.weights)
    return ours


def settings_of(config: Any, names: Collection[str] = ()) -> ModelSettings:
    """The settings of a model of theirs. `names`: of tensors, where those tell something."""
    enough = [f"layer.{number}" for number in range(100)]
    return architecture(config, [*names, *enough]).model


def architecture(config: Any, names: Collection[str]) -> Architecture:
    if config.model_type in ("bloom", "falcon"):
        return _bloom(config) if config.model_type == "bloom" else _falcon(config)
    return family_named(config.model_type).read(config.to_dict(), list(names), {})


def _bloom(config: Any) -> Architecture:
    model = DecoderSettings(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        n_layers=config.n_layer,
        n_heads=config.n_head,
        d_ff=4 * config.hidden_size,
        norm_eps=config.layer_norm_epsilon,
        positions="alibi",
        embedding_norm=True,
        dropout=config.hidden_dropout,
        attention_dropout=config.attention_dropout,
        tie=config.tie_word_embeddings,
    )

    def regrouped(tensor: Tensor) -> Tensor:
        """BLOOM has q, k and v of one head side by side; we have all q, then all k, then all v."""
        parts = tensor.unflatten(0, (config.n_head, 3, -1))
        return parts.transpose(0, 1).flatten(0, 2)

    norm = weight_and_bias("transformer.word_embeddings_layernorm", "front.norm")
    pairs = [*norm, *_pairs(model, TensorTransform(regrouped, regrouped))]
    return Architecture(task="complete", model=model, pairs=pairs)


def _falcon(config: Any) -> Architecture:
    model = DecoderSettings(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=1 if config.multi_query else None,
        d_ff=config.ffn_hidden_size,
        max_len=config.max_position_embeddings,
        activation=ACTIVATIONS[config.activation],
        norm_eps=config.layer_norm_epsilon,
        block_layout="parallel",
        positions="rotary",
        rope=RopeSettings(base=config.rope_parameters["rope_theta"]),
        attention_bias="qkvo" * config.bias,
        ff_bias=config.bias,
        dropout=config.hidden_dropout,
        attention_dropout=config.attention_dropout,
        tie=config.tie_word_embeddings,
    )
    return Architecture(task="complete", model=model, pairs=_pairs(model, IDENTITY))


def _pairs(model: DecoderSettings, qkv: TensorTransform) -> list[NamePair]:
    """Both call their parts the same."""
    pairs = [NamePair("transformer.word_embeddings.weight", "front.tokens.weight")]
    biased = model.ff_bias
    for number in range(model.n_layers):
        layer, block = f"transformer.h.{number}", f"stack.blocks.{number}"
        own = f"{layer}.self_attention"
        pairs += weight_and_bias(f"{layer}.input_layernorm", f"{block}.norm_attention")
        pairs += weight_and_bias(
            f"{own}.query_key_value", f"{block}.attention.to_qkv", qkv, bias=biased
        )
        pairs += weight_and_bias(f"{own}.dense", f"{block}.attention.to_out", bias=biased)
        if model.block_layout != "parallel":
            pairs += weight_and_bias(
                f"{layer}.post_attention_layernorm", f"{block}.norm_feed_forward"
            )
        hidden, out = f"{block}.feed_forward.to_hidden", f"{block}.feed_forward.to_out"
        pairs += weight_and_bias(f"{layer}.mlp.dense_h_to_4h", hidden, bias=biased)
        pairs += weight_and_bias(f"{layer}.mlp.dense_4h_to_h", out, bias=biased)
    pairs += weight_and_bias("transformer.ln_f", "stack.final_norm")
    ours = "front.tokens.weight" if model.tie else "head.linear.weight"
    return [*pairs, NamePair("lm_head.weight", ours, tied=model.tie)]
