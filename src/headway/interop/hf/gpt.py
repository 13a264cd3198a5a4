"""Conversion of GPT-2 and GPT (openai-gpt) from and to `transformers`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headway.errors import UserError
from headway.interop.convertible import BIASES, check_kind, check_round_trip, their_activation
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import ForeignConfig
from headway.interop.hf.lm_heads import DecoderHead, class_config, decoder_head, language_model
from headway.interop.name_pairs import TRANSPOSED, NamePair, weight_and_bias
from headway.settings.model import DecoderSettings
from headway.settings.run import RunSettings

IGNORED = {
    r"(.*\.)?attn\.(bias|masked_bias)": "the causal mask, which headway computes",
    r"multiple_choice_head\..*": "a head for multiple choice, which headway does not support",
}


@dataclass(frozen=True)
class GptFamily:
    """Import and export of GPT and GPT-2, which have the same layers. GPT is post-norm and has no
    final norm."""

    model_type: str
    tokens: str
    positions: str
    cls: str
    """Prefix of the class names in `transformers`."""

    is_first: bool
    """Whether the model is GPT rather than GPT-2."""

    @property
    def words(self) -> tuple[str, ...]:
        """Class names of the language models in `transformers`."""
        return tuple(f"{self.cls}{kind}Model" for kind in ("LMHead", "DoubleHeads", ""))

    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        given = ForeignConfig(config)
        self._refuse(given)
        label = decoder_head(given, self.words, tags="classifier")
        n_embd = given.integer("n_embd")
        model = DecoderSettings(
            vocab_size=given.integer("vocab_size"),
            d_model=n_embd,
            n_layers=given.layers("n_layer", names),
            n_heads=given.integer("n_head"),
            d_ff=4 * n_embd if self.is_first else given.integer("n_inner", 4 * n_embd),
            max_len=given.integer("n_positions", 512 if self.is_first else 1024),
            block_layout="post" if self.is_first else "pre",
            activation=self._activation(given),
            norm_eps=given.number("layer_norm_epsilon", 1e-5),
            dropout=given.fraction("resid_pdrop", 0.1),
            attention_dropout=given.fraction("attn_pdrop", 0.1),
            scale_attention=given.flag("scale_attn_weights", True),
            tie=given.flag("tie_word_embeddings", True),
            **label.settings,
        )
        pairs = self._pairs(model, _prefix(names), label)
        return language_model(label, model, pairs, IGNORED, config, generation)

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        ours = settings.model
        check_kind(ours, DecoderSettings, self.cls)
        assert isinstance(ours, DecoderSettings)
        config: dict[str, Any] = {
            "model_type": self.model_type,
            "vocab_size": ours.vocab_size,
            "n_embd": ours.d_model,
            "n_layer": ours.n_layers,
            "n_head": ours.n_heads,
            "n_positions": ours.max_len,
            "layer_norm_epsilon": ours.norm_eps,
            "resid_pdrop": ours.dropout,
            "embd_pdrop": ours.dropout,
            "attn_pdrop": ours.attention_dropout,
            "tie_word_embeddings": ours.tie,
            **class_config(settings, self.cls, f"{self.cls}LMHeadModel"),
        }
        if self.is_first:
            config["afn"] = _first_activation(ours.activation)
        else:
            config |= {"n_inner": ours.d_ff, "scale_attn_weights": ours.scale_attention}
            config["activation_function"] = their_activation(ours.activation)
        said = self.read(config, [f"transformer.h.{n}" for n in range(ours.n_layers)], {})
        check_round_trip(ours, said.model, self.cls, wider=BIASES)
        return config, said

    def _refuse(self, given: ForeignConfig) -> None:
        given.require(
            "scale_attn_by_inverse_layer_idx",
            False,
            "all layers must scale attention scores equally",
        )
        given.require(
            "reorder_and_upcast_attn", False, "attention has the precision of the other layers"
        )
        given.require("add_cross_attention", False, "a language model has no cross-attention")

    def _activation(self, given: ForeignConfig) -> Any:
        if not self.is_first:
            return given.activation("activation_function", "gelu_new")
        # OpenAIGPT has its own table of activations, where "gelu" means the tanh approximation.
        tanh = given.string("afn", "gelu") == "gelu"
        return "gelu-tanh" if tanh else given.activation("afn")

    def _pairs(self, model: DecoderSettings, prefix: str, label: DecoderHead) -> list[NamePair]:
        pairs = [
            NamePair(f"{prefix}{self.tokens}.weight", "front.tokens.weight"),
            NamePair(f"{prefix}{self.positions}.weight", "front.positions.table.weight"),
        ]
        for n in range(model.n_layers):
            theirs, ours = f"{prefix}h.{n}", f"stack.blocks.{n}"
            pairs += weight_and_bias(f"{theirs}.ln_1", f"{ours}.norm_attention")
            pairs += weight_and_bias(
                f"{theirs}.attn.c_attn", f"{ours}.attention.to_qkv", TRANSPOSED
            )
            pairs += weight_and_bias(
                f"{theirs}.attn.c_proj", f"{ours}.attention.to_out", TRANSPOSED
            )
            pairs += weight_and_bias(f"{theirs}.ln_2", f"{ours}.norm_feed_forward")
            pairs += weight_and_bias(
                f"{theirs}.mlp.c_fc", f"{ours}.feed_forward.to_hidden", TRANSPOSED
            )
            pairs += weight_and_bias(
                f"{theirs}.mlp.c_proj", f"{ours}.feed_forward.to_out", TRANSPOSED
            )
        if not self.is_first:
            pairs += weight_and_bias(f"{prefix}ln_f", "stack.final_norm")
        if label.generates:
            pairs.append(NamePair("lm_head.weight", "head.linear.weight", tied=model.tie))
        return [*pairs, *label.pairs()]


def _prefix(names: Collection[str]) -> str:
    """Return the prefix of the tensor names. Files saved by `transformers` have one, but the
    published files do not."""
    return "transformer." if any(name.startswith("transformer.") for name in names) else ""


def _first_activation(ours: str) -> str:
    """Return the name of an activation in GPT's own table: relu, silu, or gelu, which means the
    tanh approximation."""
    names = {"gelu-tanh": "gelu", "relu": "relu", "silu": "silu"}
    if ours not in names:
        raise UserError(
            f"GPT does not support model.activation={ours!r}. Supported: {', '.join(names)}."
        )
    return names[ours]


GPT2 = GptFamily("gpt2", "wte", "wpe", "GPT2", is_first=False)
GPT = GptFamily("openai-gpt", "tokens_embed", "positions_embed", "OpenAIGPT", is_first=True)
