"""Conversion of Llama from and to `transformers`, and of its variants: Mistral (sliding window),
Qwen2 (biases on q, k and v) and Qwen3 (norms on q and k)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from headway.errors import UserError
from headway.interop.convertible import GATES, check_kind, check_round_trip
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import LONGEST, ForeignConfig
from headway.interop.hf.lm_heads import DecoderHead, class_config, decoder_head, language_model
from headway.interop.name_pairs import NamePair, stacked, weight_and_bias
from headway.settings.model import DecoderSettings, RopeSettings
from headway.settings.run import RunSettings

IGNORED = {
    r"(.*\.)?rotary_emb\.inv_freq": "the frequencies of rotary positions, which headway computes",
}


WORDS = "lm_head.weight"


@dataclass(frozen=True)
class LlamaFamily:
    model_type: str
    cls: str
    attention_bias: str | None = None
    """Letters of the projections (q, k, v, o) that have a bias. None: the key `attention_bias` of
    the configuration sets it for all of them."""

    qk_norm: bool = False
    window: bool = False
    """Whether `sliding_window` applies to all layers, as in Mistral."""

    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        given = ForeignConfig(config)
        given.require("use_sliding_window", False, "all layers must have the same window")
        tie = given.flag("tie_word_embeddings", False)
        words = (f"{self.cls}ForCausalLM", f"{self.cls}Model")
        label = decoder_head(given, words, has_words=tie or WORDS in names)
        n_heads, d_model = given.integer("num_attention_heads"), given.integer("hidden_size")
        bias = self.attention_bias
        if bias is None:
            bias = "qkvo" * given.flag("attention_bias", False)
        model = DecoderSettings(
            vocab_size=given.integer("vocab_size"),
            d_model=d_model,
            n_layers=given.layers("num_hidden_layers", names),
            n_heads=n_heads,
            n_kv_heads=given.integer("num_key_value_heads", n_heads),
            d_head=given.integer("head_dim", 128 if self.qk_norm else d_model // n_heads),
            d_ff=given.integer("intermediate_size"),
            max_len=given.integer("max_position_embeddings", 2048, most=LONGEST),
            activation=_gate(given),
            norm="rms",
            norm_eps=given.number("rms_norm_eps", 1e-6),
            positions="rotary",
            rope=rope_settings(given),
            window=self._window(given),
            attention_bias=bias,
            ff_bias=given.flag("mlp_bias", False),
            qk_norm=self.qk_norm,
            dropout=0.0,
            attention_dropout=given.fraction("attention_dropout", 0.0),
            tie=tie,
            **label.settings,
        )
        pairs = self._pairs(model, _prefix(names), label)
        return language_model(label, model, pairs, IGNORED, config, generation)

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        ours = settings.model
        check_kind(ours, DecoderSettings, self.cls)
        assert isinstance(ours, DecoderSettings)
        if ours.activation not in GATES:
            raise UserError(
                f"{self.cls} needs a gated activation ({', '.join(GATES)}), but this model has "
                f"model.activation={ours.activation!r}."
            )
        config: dict[str, Any] = {
            "model_type": self.model_type,
            "vocab_size": ours.vocab_size,
            "hidden_size": ours.d_model,
            "num_hidden_layers": ours.n_layers,
            "num_attention_heads": ours.n_heads,
            "num_key_value_heads": ours.kv_heads,
            "head_dim": ours.head_width,
            "intermediate_size": ours.d_ff,
            "max_position_embeddings": ours.max_len,
            "hidden_act": GATES[ours.activation],
            "rms_norm_eps": ours.norm_eps,
            "rope_parameters": rope_parameters(ours),
            "attention_bias": bool(ours.attention_bias),
            "attention_dropout": ours.attention_dropout,
            "mlp_bias": ours.ff_bias,
            "tie_word_embeddings": ours.tie,
            **class_config(settings, self.cls, f"{self.cls}ForCausalLM"),
        }
        if self.window:
            config["sliding_window"] = ours.window
        names = [f"model.layers.{n}" for n in range(ours.n_layers)]
        said = self.read(config, [*names, WORDS] if "words" in ours.heads else names, {})
        check_round_trip(expressible_rope(ours), said.model, self.cls, wider=("attention_bias",))
        return config, said

    def _window(self, given: ForeignConfig) -> int | None:
        if not self.window or given.values.get("sliding_window") is None:
            return None
        return given.integer("sliding_window")

    def _pairs(self, model: DecoderSettings, prefix: str, label: DecoderHead) -> list[NamePair]:
        pairs = [NamePair(f"{prefix}embed_tokens.weight", "front.tokens.weight")]
        width, bias = model.head_width, set(model.attention_bias)
        sizes = [model.n_heads * width, model.kv_heads * width, model.kv_heads * width]
        for n in range(model.n_layers):
            theirs, ours = f"{prefix}layers.{n}", f"stack.blocks.{n}"
            own = f"{theirs}.self_attn"
            projections = [f"{own}.{letter}_proj" for letter in "qkv"]
            pairs += weight_and_bias(
                f"{theirs}.input_layernorm", f"{ours}.norm_attention", bias=False
            )
            pairs += stacked(
                projections, f"{ours}.attention.to_qkv", sizes, bias=set("qkv") <= bias
            )
            pairs += weight_and_bias(f"{own}.o_proj", f"{ours}.attention.to_out", bias="o" in bias)
            if model.qk_norm:
                pairs += weight_and_bias(f"{own}.q_norm", f"{ours}.attention.norm_q", bias=False)
                pairs += weight_and_bias(f"{own}.k_norm", f"{ours}.attention.norm_k", bias=False)
            norm = f"{theirs}.post_attention_layernorm"
            pairs += weight_and_bias(norm, f"{ours}.norm_feed_forward", bias=False)
            gated = [f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj"]
            hidden, ff_bias = f"{ours}.feed_forward.to_hidden", model.ff_bias
            pairs += stacked(gated, hidden, [model.d_ff] * 2, bias=ff_bias)
            down = f"{theirs}.mlp.down_proj"
            pairs += weight_and_bias(down, f"{ours}.feed_forward.to_out", bias=ff_bias)
        pairs.append(NamePair(f"{prefix}norm.weight", "stack.final_norm.weight"))
        if label.generates:
            pairs.append(NamePair(WORDS, "head.linear.weight", tied=model.tie))
        return [*pairs, *label.pairs()]


def _prefix(names: Collection[str]) -> str:
    return "model." if any(name.startswith("model.") for name in names) else ""


def _gate(given: ForeignConfig) -> Any:
    name = given.string("hidden_act", "silu")
    gates = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu"}
    gates |= dict.fromkeys(("gelu_pytorch_tanh", "gelu_new"), "geglu-tanh")
    if name not in gates:
        known = ", ".join(gates)
        raise given.error("hidden_act", f"is not supported; it must be one of {known}")
    return gates[name]


def rope_settings(given: ForeignConfig) -> RopeSettings:
    """Return the RoPE settings from either format: `rope_theta` with `rope_scaling`, or
    `rope_parameters` of transformers 5."""
    new, old = given.nested("rope_parameters"), given.nested("rope_scaling")
    values = ForeignConfig({**old, **new}, f"{given.where}: rope_parameters")
    base = values.number("rope_theta", given.number("rope_theta", 10_000.0), least=1e-9)
    kind = values.string("rope_type", values.string("type", "default"))
    values.require("partial_rotary_factor", 1.0, "headway rotates all dimensions of each head")
    given.require("partial_rotary_factor", 1.0, "headway rotates all dimensions of each head")
    if kind == "default":
        return RopeSettings(base=base)
    if kind == "linear":
        return RopeSettings(base=base, scaling="linear", factor=values.number("factor", least=1.0))
    if kind != "llama3":
        key = "rope_parameters" if new else "rope_scaling"
        raise given.error(
            key, f"has the type {kind!r}; headway supports only default, linear and llama3"
        )
    values.require("low_freq_factor", 1.0, "it must be 1")
    values.require("high_freq_factor", 4.0, "it must be 4")
    return RopeSettings(
        base=base,
        scaling="llama3",
        factor=values.number("factor", least=1.0),
        trained_len=values.integer("original_max_position_embeddings", 8192),
    )


def rope_parameters(model: DecoderSettings) -> dict[str, Any]:
    rope = model.rope
    if rope.scaling == "none":
        return {"rope_type": "default", "rope_theta": rope.base}
    if rope.scaling == "ntk":  # equals a larger base
        base = rope.base * rope.factor ** (model.head_width / (model.head_width - 2))
        return {"rope_type": "default", "rope_theta": base}
    found = {"rope_type": rope.scaling, "rope_theta": rope.base, "factor": rope.factor}
    if rope.scaling == "llama3":
        found |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        found["original_max_position_embeddings"] = rope.trained_len
    return found


def expressible_rope(model: DecoderSettings) -> DecoderSettings:
    """Return the settings with `ntk` scaling replaced by the equivalent larger base, which other
    formats can represent."""
    if model.positions != "rotary" or model.rope.scaling != "ntk":
        return model
    base = rope_parameters(model)["rope_theta"]
    return replace(model, rope=RopeSettings(base=base))


LLAMA = LlamaFamily("llama", "Llama")
MISTRAL = LlamaFamily("mistral", "Mistral", attention_bias="", window=True)
QWEN2 = LlamaFamily("qwen2", "Qwen2", attention_bias="qkv")
QWEN3 = LlamaFamily("qwen3", "Qwen3", qk_norm=True)
