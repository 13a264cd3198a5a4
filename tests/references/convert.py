"""Weights of Hugging Face's `transformers` under our names: per format its settings and a table.

Every foreign tensor matches exactly one rule, or stands on the ignore list with the reason. Silent
drops would turn into models that are slightly wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.config.model import (
    DecoderSettings,
    EncoderSettings,
    ModelSettings,
    RelativeSettings,
    RopeSettings,
    Seq2SeqSettings,
)


def same(tensor: Tensor) -> Tensor:
    return tensor


def turned(tensor: Tensor) -> Tensor:
    """`Conv1D` holds its matrix as (in, out)."""
    return tensor.T if tensor.ndim == 2 else tensor


class Rule(NamedTuple):
    """A pattern of a whole name, and ours. `name[1]` is the second block of rows of a fused one."""

    theirs: str
    ours: str
    change: Callable[[Tensor], Tensor] = same


@dataclass(frozen=True, kw_only=True)
class Format:
    settings: Callable[..., ModelSettings]
    """From their configuration; for encoders also the heads, which only their class names tell."""

    rules: Callable[[Any], list[Rule]]
    ignored: dict[str, str] = field(default_factory=dict)
    """A pattern of whole names, and why the tensor is not needed."""


def convert(
    theirs: Mapping[str, Tensor], rules: list[Rule], ignored: dict[str, str]
) -> dict[str, Tensor]:
    """Rename every tensor. Two may come to the same name only if they are equal: a tied weight."""
    parts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in theirs.items():
        fitting = [rule for rule in rules if re.fullmatch(rule.theirs, name)]
        reasons = [reason for pattern, reason in ignored.items() if re.fullmatch(pattern, name)]
        if len(fitting) + len(reasons) != 1:
            raise ValueError(f"{name}: {len(fitting)} rules and {len(reasons)} reasons, not one")
        for rule in fitting:
            ours, block = _block(re.sub(rule.theirs, rule.ours, name))
            blocks, new = parts.setdefault(ours, {}), rule.change(tensor)
            if block in blocks and not torch.equal(blocks[block], new):
                raise ValueError(f"{name}: another tensor is {ours} already, and differs")
            blocks[block] = new
    for ours, blocks in parts.items():
        if sorted(blocks) != list(range(len(blocks))):
            raise ValueError(f"{ours}: of its blocks only {sorted(blocks)} were found")
    return {
        ours: torch.cat([blocks[i] for i in range(len(blocks))]) for ours, blocks in parts.items()
    }


def _block(name: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.*)\[(\d)\]", name)
    return (found[1], int(found[2])) if found else (name, 0)


ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
}


# GPT and GPT-2


def gpt2_settings(config: Any) -> DecoderSettings:
    return DecoderSettings(
        vocab_size=config.vocab_size,
        d_model=config.n_embd,
        n_layers=config.n_layer,
        n_heads=config.n_head,
        d_ff=config.n_inner or 4 * config.n_embd,
        max_len=config.n_positions,
        activation=ACTIVATIONS[config.activation_function],
        norm_eps=config.layer_norm_epsilon,
        dropout=config.resid_pdrop,
        attention_dropout=config.attn_pdrop,
        tie=config.tie_word_embeddings,
    )


def gpt_settings(config: Any) -> DecoderSettings:
    return DecoderSettings(
        vocab_size=config.vocab_size,
        d_model=config.n_embd,
        n_layers=config.n_layer,
        n_heads=config.n_head,
        d_ff=4 * config.n_embd,
        max_len=config.n_positions,
        wiring="post",
        # Its "gelu" is the tanh form: OpenAIGPT looks the name up in a table of its own.
        activation={**ACTIVATIONS, "gelu": "gelu-tanh"}[config.afn],
        norm_eps=config.layer_norm_epsilon,
        dropout=config.resid_pdrop,
        attention_dropout=config.attn_pdrop,
        tie=config.tie_word_embeddings,
    )


def gpt_rules(config: Any) -> list[Rule]:
    layer, block = r"transformer\.h\.(\d+)\.", r"stack.blocks.\1."
    return [
        Rule(r"transformer\.(?:wte|tokens_embed)\.weight", "front.tokens.weight"),
        Rule(r"transformer\.(?:wpe|positions_embed)\.weight", "front.positions.table.weight"),
        Rule(layer + r"ln_1\.(\w+)", block + r"norm_attention.\2"),
        Rule(layer + r"attn\.c_attn\.(\w+)", block + r"attention.to_qkv.\2", turned),
        Rule(layer + r"attn\.c_proj\.(\w+)", block + r"attention.to_out.\2", turned),
        Rule(layer + r"ln_2\.(\w+)", block + r"norm_feed_forward.\2"),
        Rule(layer + r"mlp\.c_fc\.(\w+)", block + r"feed_forward.to_hidden.\2", turned),
        Rule(layer + r"mlp\.c_proj\.(\w+)", block + r"feed_forward.to_out.\2", turned),
        Rule(r"transformer\.ln_f\.(\w+)", r"stack.final_norm.\1"),
        Rule(r"lm_head\.weight", "head.linear.weight"),
    ]


# BERT and DistilBERT


def bert_settings(config: Any, heads: tuple[str, ...] = ("words", "pooled")) -> EncoderSettings:
    return EncoderSettings(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        d_ff=config.intermediate_size,
        max_len=config.max_position_embeddings,
        activation=ACTIVATIONS[config.hidden_act],
        norm_eps=config.layer_norm_eps,
        dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        n_segments=config.type_vocab_size,
        heads=heads,
        n_labels=config.num_labels if {"classes", "tags"} & set(heads) else 0,
        tie=config.tie_word_embeddings,
    )


def bert_rules(config: Any) -> list[Rule]:
    layer, block = r"(?:bert\.)?encoder\.layer\.(\d+)\.", r"stack.blocks.\1."
    labels = "tags" if "Token" in (config.architectures or [""])[0] else "classes"
    return [
        Rule(r"(?:bert\.)?embeddings\.word_embeddings\.weight", "front.tokens.weight"),
        Rule(r"(?:bert\.)?embeddings\.position_embeddings\.weight", "front.positions.table.weight"),
        Rule(r"(?:bert\.)?embeddings\.token_type_embeddings\.weight", "front.segments.weight"),
        Rule(r"(?:bert\.)?embeddings\.LayerNorm\.(\w+)", r"front.norm.\1"),
        Rule(layer + r"attention\.self\.query\.(\w+)", block + r"attention.to_qkv.\2[0]"),
        Rule(layer + r"attention\.self\.key\.(\w+)", block + r"attention.to_qkv.\2[1]"),
        Rule(layer + r"attention\.self\.value\.(\w+)", block + r"attention.to_qkv.\2[2]"),
        Rule(layer + r"attention\.output\.dense\.(\w+)", block + r"attention.to_out.\2"),
        Rule(layer + r"attention\.output\.LayerNorm\.(\w+)", block + r"norm_attention.\2"),
        Rule(layer + r"intermediate\.dense\.(\w+)", block + r"feed_forward.to_hidden.\2"),
        Rule(layer + r"output\.dense\.(\w+)", block + r"feed_forward.to_out.\2"),
        Rule(layer + r"output\.LayerNorm\.(\w+)", block + r"norm_feed_forward.\2"),
        Rule(r"(?:bert\.)?pooler\.dense\.(\w+)", r"heads.pooled.dense.\1"),
        Rule(r"cls\.predictions\.transform\.dense\.(\w+)", r"heads.words.dense.\1"),
        Rule(r"cls\.predictions\.transform\.LayerNorm\.(\w+)", r"heads.words.norm.\1"),
        Rule(r"cls\.predictions\.decoder\.(\w+)", r"heads.words.words.linear.\1"),
        Rule(r"cls\.predictions\.bias", "heads.words.words.linear.bias"),
        Rule(r"classifier\.(\w+)", rf"heads.{labels}.linear.\1"),
    ]


def distilbert_settings(config: Any, heads: tuple[str, ...] = ("words",)) -> EncoderSettings:
    return EncoderSettings(
        vocab_size=config.vocab_size,
        d_model=config.dim,
        n_layers=config.n_layers,
        n_heads=config.n_heads,
        d_ff=config.hidden_dim,
        max_len=config.max_position_embeddings,
        activation=ACTIVATIONS[config.activation],
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        n_segments=0,
        heads=heads,
        tie=config.tie_word_embeddings,
    )


def distilbert_rules(config: Any) -> list[Rule]:
    layer, block = r"distilbert\.transformer\.layer\.(\d+)\.", r"stack.blocks.\1."
    return [
        Rule(r"distilbert\.embeddings\.word_embeddings\.weight", "front.tokens.weight"),
        Rule(
            r"distilbert\.embeddings\.position_embeddings\.weight", "front.positions.table.weight"
        ),
        Rule(r"distilbert\.embeddings\.LayerNorm\.(\w+)", r"front.norm.\1"),
        Rule(layer + r"attention\.q_lin\.(\w+)", block + r"attention.to_qkv.\2[0]"),
        Rule(layer + r"attention\.k_lin\.(\w+)", block + r"attention.to_qkv.\2[1]"),
        Rule(layer + r"attention\.v_lin\.(\w+)", block + r"attention.to_qkv.\2[2]"),
        Rule(layer + r"attention\.out_lin\.(\w+)", block + r"attention.to_out.\2"),
        Rule(layer + r"sa_layer_norm\.(\w+)", block + r"norm_attention.\2"),
        Rule(layer + r"ffn\.lin1\.(\w+)", block + r"feed_forward.to_hidden.\2"),
        Rule(layer + r"ffn\.lin2\.(\w+)", block + r"feed_forward.to_out.\2"),
        Rule(layer + r"output_layer_norm\.(\w+)", block + r"norm_feed_forward.\2"),
        Rule(r"vocab_transform\.(\w+)", r"heads.words.dense.\1"),
        Rule(r"vocab_layer_norm\.(\w+)", r"heads.words.norm.\1"),
        Rule(r"vocab_projector\.(\w+)", r"heads.words.words.linear.\1"),
    ]


# Marian and T5


def marian_settings(config: Any) -> Seq2SeqSettings:
    shared, tied = config.share_encoder_decoder_embeddings, config.tie_word_embeddings
    ties = {(True, True): "all", (False, True): "target-softmax"}
    return Seq2SeqSettings(
        vocab_size=config.decoder_vocab_size,
        source_vocab_size=config.vocab_size,
        d_model=config.d_model,
        n_layers=config.encoder_layers,
        n_decoder_layers=config.decoder_layers,
        n_heads=config.encoder_attention_heads,
        d_ff=config.encoder_ffn_dim,
        max_len=config.max_position_embeddings,
        activation=ACTIVATIONS[config.activation_function],
        norm_eps=1e-5,
        positions="sinusoidal-halves",
        attention_bias="qkvo",
        embedding_scale=config.scale_embedding,
        head_bias=True,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        ff_dropout=config.activation_dropout,
        tie=ties.get((shared, tied), "none"),
    )


def marian_rules(config: Any) -> list[Rule]:
    layer, block = r"model\.(encoder|decoder)\.layers\.(\d+)\.", r"\1.blocks.\2."
    rules = [
        Rule(r"model\.(?:shared|encoder\.embed_tokens)\.weight", "source_front.tokens.weight"),
        Rule(r"model\.decoder\.embed_tokens\.weight", "target_front.tokens.weight"),
        Rule(layer + r"self_attn_layer_norm\.(\w+)", block + r"norm_attention.\3"),
        Rule(layer + r"encoder_attn_layer_norm\.(\w+)", block + r"norm_cross.\3"),
        Rule(layer + r"fc1\.(\w+)", block + r"feed_forward.to_hidden.\3"),
        Rule(layer + r"fc2\.(\w+)", block + r"feed_forward.to_out.\3"),
        Rule(layer + r"final_layer_norm\.(\w+)", block + r"norm_feed_forward.\3"),
        Rule(r"lm_head\.weight", "head.linear.weight"),
        Rule(r"final_logits_bias", "head.linear.bias", lambda tensor: tensor[0]),
    ]
    for theirs, ours in (("self_attn", "attention"), ("encoder_attn", "cross")):
        for number, name in enumerate("qkv"):
            projection = rf"{ours}.to_qkv.\3[{number}]"
            rules.append(Rule(layer + rf"{theirs}\.{name}_proj\.(\w+)", block + projection))
        rules.append(Rule(layer + rf"{theirs}\.out_proj\.(\w+)", block + rf"{ours}.to_out.\3"))
    return rules


def t5_settings(config: Any) -> Seq2SeqSettings:
    buckets, distance = (
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
    )
    return Seq2SeqSettings(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        n_layers=config.num_layers,
        n_decoder_layers=config.num_decoder_layers,
        n_heads=config.num_heads,
        d_head=config.d_kv,
        d_ff=config.d_ff,
        activation=ACTIVATIONS[config.dense_act_fn],
        norm="rms",
        norm_eps=config.layer_norm_epsilon,
        wiring="pre",
        positions="relative",
        relative=RelativeSettings(buckets=buckets, max_distance=distance),
        ff_bias=False,
        embedding_scale=False,
        dropout=config.dropout_rate,
        tie="source-target",  # the softmax is apart, for its scale
    )


def t5_rules(config: Any) -> list[Rule]:
    layer, block = r"(encoder|decoder)\.block\.(\d+)\.layer\.", r"\1.blocks.\2."

    def unscaled(tensor: Tensor) -> Tensor:
        """T5 does not divide scores by √K, so the queries make up for our division."""
        return tensor * config.d_kv**0.5

    def scaled(tensor: Tensor) -> Tensor:
        """Where the softmax is the embedding, T5 (not its 1.1) divides scores by √D."""
        divides = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
        return tensor * config.d_model**-0.5 if divides else tensor

    rules = [
        Rule(r"(?:shared|encoder\.embed_tokens)\.weight", "source_front.tokens.weight"),
        Rule(r"decoder\.embed_tokens\.weight", "target_front.tokens.weight"),
        Rule(r"(encoder|decoder)\.final_layer_norm\.weight", r"\1.final_norm.weight"),
        Rule(layer + r"0\.layer_norm\.weight", block + "norm_attention.weight"),
        Rule(r"(decoder)\.block\.(\d+)\.layer\.1\.layer_norm\.weight", block + "norm_cross.weight"),
        Rule(layer + r"\d\.DenseReluDense\.wi\.weight", block + "feed_forward.to_hidden.weight"),
        Rule(layer + r"\d\.DenseReluDense\.wo\.weight", block + "feed_forward.to_out.weight"),
        Rule(r"(encoder)\.block\.(\d+)\.layer\.1\.layer_norm\.weight", block + FF_NORM),
        Rule(r"(decoder)\.block\.(\d+)\.layer\.2\.layer_norm\.weight", block + FF_NORM),
        Rule(layer + r"0\.SelfAttention\.relative_attention_bias\.weight", r"\1.bias.table.weight"),
        Rule(r"lm_head\.weight", "head.linear.weight", scaled),
    ]
    for theirs, ours in ((r"0\.SelfAttention", "attention"), (r"1\.EncDecAttention", "cross")):
        for number, name in enumerate("qkv"):
            change = unscaled if name == "q" else same
            projection = f"{ours}.to_qkv.weight[{number}]"
            rules.append(Rule(layer + rf"{theirs}\.{name}\.weight", block + projection, change))
        rules.append(Rule(layer + rf"{theirs}\.o\.weight", block + f"{ours}.to_out.weight"))
    return rules


FF_NORM = "norm_feed_forward.weight"


# Llama and those that follow it


def llama_settings(config: Any) -> DecoderSettings:
    """Also Mistral (a window), Qwen2 (biases on q, k and v) and Qwen3 (norms on q and k)."""
    kind = config.model_type
    biases = {"qwen2": "qkv", "mistral": ""}
    rope = config.rope_parameters
    scaling = "none" if rope["rope_type"] == "default" else rope["rope_type"]
    return DecoderSettings(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        d_head=getattr(config, "head_dim", None),
        d_ff=config.intermediate_size,
        max_len=config.max_position_embeddings,
        activation={"silu": "swiglu", "gelu": "geglu"}[config.hidden_act],
        norm="rms",
        norm_eps=config.rms_norm_eps,
        positions="rotary",
        rope=RopeSettings(
            base=rope["rope_theta"],
            scaling=scaling,
            factor=rope.get("factor", 1.0),
            trained_len=rope.get("original_max_position_embeddings", RopeSettings().trained_len),
        ),
        window=config.sliding_window if kind == "mistral" else None,
        attention_bias=biases[kind] if kind in biases else "qkvo" * config.attention_bias,
        ff_bias=getattr(config, "mlp_bias", False),
        qk_norm=kind == "qwen3",
        dropout=0.0,
        attention_dropout=config.attention_dropout,
        tie=config.tie_word_embeddings,
    )


def llama_rules(config: Any) -> list[Rule]:
    layer, block = r"model\.layers\.(\d+)\.", r"stack.blocks.\1."
    return [
        Rule(r"model\.embed_tokens\.weight", "front.tokens.weight"),
        Rule(layer + r"input_layernorm\.weight", block + "norm_attention.weight"),
        Rule(layer + r"self_attn\.q_proj\.(\w+)", block + r"attention.to_qkv.\2[0]"),
        Rule(layer + r"self_attn\.k_proj\.(\w+)", block + r"attention.to_qkv.\2[1]"),
        Rule(layer + r"self_attn\.v_proj\.(\w+)", block + r"attention.to_qkv.\2[2]"),
        Rule(layer + r"self_attn\.([qk])_norm\.weight", block + r"attention.norm_\2.weight"),
        Rule(layer + r"self_attn\.o_proj\.(\w+)", block + r"attention.to_out.\2"),
        Rule(layer + r"post_attention_layernorm\.weight", block + FF_NORM),
        Rule(layer + r"mlp\.gate_proj\.(\w+)", block + r"feed_forward.to_hidden.\2[0]"),
        Rule(layer + r"mlp\.up_proj\.(\w+)", block + r"feed_forward.to_hidden.\2[1]"),
        Rule(layer + r"mlp\.down_proj\.(\w+)", block + r"feed_forward.to_out.\2"),
        Rule(r"model\.norm\.weight", "stack.final_norm.weight"),
        Rule(r"lm_head\.weight", "head.linear.weight"),
    ]


# BLOOM (ALiBi) and Falcon (attention and feed-forward side by side)


def bloom_settings(config: Any) -> DecoderSettings:
    return DecoderSettings(
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


def bloom_rules(config: Any) -> list[Rule]:
    layer, block = r"transformer\.h\.(\d+)\.", r"stack.blocks.\1."

    def regrouped(tensor: Tensor) -> Tensor:
        """BLOOM has q, k and v of one head side by side; we have all q, then all k, then all v."""
        if config.model_type == "falcon":  # it has our order
            return tensor
        parts = tensor.unflatten(0, (config.n_head, 3, -1))
        return parts.transpose(0, 1).flatten(0, 2)

    return [
        Rule(r"transformer\.word_embeddings\.weight", "front.tokens.weight"),
        Rule(r"transformer\.word_embeddings_layernorm\.(\w+)", r"front.norm.\1"),
        Rule(layer + r"input_layernorm\.(\w+)", block + r"norm_attention.\2"),
        Rule(
            layer + r"self_attention\.query_key_value\.(\w+)",
            block + r"attention.to_qkv.\2",
            regrouped,
        ),
        Rule(layer + r"self_attention\.dense\.(\w+)", block + r"attention.to_out.\2"),
        Rule(layer + r"post_attention_layernorm\.(\w+)", block + r"norm_feed_forward.\2"),
        Rule(layer + r"mlp\.dense_h_to_4h\.(\w+)", block + r"feed_forward.to_hidden.\2"),
        Rule(layer + r"mlp\.dense_4h_to_h\.(\w+)", block + r"feed_forward.to_out.\2"),
        Rule(r"transformer\.ln_f\.(\w+)", r"stack.final_norm.\1"),
        Rule(r"lm_head\.weight", "head.linear.weight"),
    ]


def falcon_settings(config: Any) -> DecoderSettings:
    return DecoderSettings(
        vocab_size=config.vocab_size,
        d_model=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=1 if config.multi_query else None,
        d_ff=config.ffn_hidden_size,
        max_len=config.max_position_embeddings,
        activation=ACTIVATIONS[config.activation],
        norm_eps=config.layer_norm_epsilon,
        wiring="parallel",
        positions="rotary",
        rope=RopeSettings(base=config.rope_parameters["rope_theta"]),
        attention_bias="qkvo" * config.bias,
        ff_bias=config.bias,
        dropout=config.hidden_dropout,
        attention_dropout=config.attention_dropout,
        tie=config.tie_word_embeddings,
    )


FORMATS = {
    "gpt2": Format(settings=gpt2_settings, rules=gpt_rules),
    "openai-gpt": Format(settings=gpt_settings, rules=gpt_rules),
    "bert": Format(
        settings=bert_settings,
        rules=bert_rules,
        ignored={r"cls\.seq_relationship\.\w+": "whether two sentences follow each other"},
    ),
    "distilbert": Format(settings=distilbert_settings, rules=distilbert_rules),
    "marian": Format(
        settings=marian_settings,
        rules=marian_rules,
        ignored={r"model\.(?:en|de)coder\.embed_positions\.weight": "sinusoids, which we compute"},
    ),
    "t5": Format(settings=t5_settings, rules=t5_rules),
    "llama": Format(settings=llama_settings, rules=llama_rules),
    "mistral": Format(settings=llama_settings, rules=llama_rules),
    "qwen2": Format(settings=llama_settings, rules=llama_rules),
    "qwen3": Format(settings=llama_settings, rules=llama_rules),
    "bloom": Format(settings=bloom_settings, rules=bloom_rules),
    "falcon": Format(settings=falcon_settings, rules=bloom_rules),
}
"""By `model_type` of their configuration."""
