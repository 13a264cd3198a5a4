"""Conversion of T5 from and to `transformers`: version 1.0, version 1.1 (gated, with an untied
softmax), and mT5, which is version 1.1 with another vocabulary."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headway.errors import UserError
from headway.interop.convertible import check_kind, check_round_trip
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import LONGEST, ForeignConfig
from headway.interop.hf.bart import first_of
from headway.interop.hf.generation import decode_settings
from headway.interop.name_pairs import NamePair, stacked, weight_and_bias
from headway.settings.model import RelativeSettings, Seq2SeqSettings, StackSettings
from headway.settings.run import RunSettings

FEED_FORWARD = {
    "relu": "relu",
    "gelu": "gelu",
    "gated-gelu": "geglu-tanh",
    "gated-silu": "swiglu",
    "gated-gelu_new": "geglu-tanh",
}
"""headway's activation function for each value of `feed_forward_proj`."""

IGNORED = {
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": (
        "unused: cross-attention has no relative positions"
    ),
}


@dataclass(frozen=True)
class T5Family:
    model_type: str
    cls: str

    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        given = ForeignConfig(config)
        self._refuse(given)
        n_layers = given.layers("num_layers", names)
        tied = self._tied(given, names)
        model = Seq2SeqSettings(
            vocab_size=given.integer("vocab_size"),
            d_model=given.integer("d_model"),
            n_layers=n_layers,
            decoder=StackSettings(n_layers=given.layers("num_decoder_layers", names, n_layers)),
            n_heads=given.integer("num_heads"),
            d_head=given.integer("d_kv"),
            d_ff=given.integer("d_ff"),
            max_len=given.integer("n_positions", 512, most=LONGEST),
            activation=_activation(given),
            norm="rms",
            norm_eps=given.number("layer_norm_epsilon", 1e-6),
            block_layout="pre",
            positions="relative",
            relative=RelativeSettings(
                buckets=given.integer("relative_attention_num_buckets", 32, most=1 << 16),
                max_distance=given.integer("relative_attention_max_distance", 128),
            ),
            scale_attention=False,
            ff_bias=False,
            embedding_scale=False,
            dropout=given.fraction("dropout_rate", 0.1),
            tie="all" if tied else "source-target",
            scale_head=self._scales(given),
        )
        decode, notes = decode_settings(config, generation, has_source=True)
        return Architecture(
            task="translate",
            model=model,
            pairs=_pairs(model, names),
            ignored=IGNORED,
            decode=decode,
            notes=notes,
        )

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        ours = settings.model
        check_kind(ours, Seq2SeqSettings, self.cls)
        assert isinstance(ours, Seq2SeqSettings)
        forms = {activation: name for name, activation in reversed(FEED_FORWARD.items())}
        if ours.activation not in forms:
            raise UserError(
                f"{self.cls} does not support model.activation={ours.activation!r}. Supported: "
                f"{', '.join(forms)}."
            )
        config: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": [f"{self.cls}ForConditionalGeneration"],
            "vocab_size": ours.vocab_size,
            "d_model": ours.d_model,
            "num_layers": ours.n_layers,
            "num_decoder_layers": ours.stack("decoder").n_layers,
            "num_heads": ours.n_heads,
            "d_kv": ours.head_width,
            "d_ff": ours.d_ff,
            "n_positions": ours.max_len,
            "feed_forward_proj": forms[ours.activation],
            "layer_norm_epsilon": ours.norm_eps,
            "relative_attention_num_buckets": ours.relative.buckets,
            "relative_attention_max_distance": ours.relative.max_distance,
            "dropout_rate": ours.dropout,
            "tie_word_embeddings": ours.tie == "all",
            "scale_decoder_outputs": ours.scale_head,
            "is_encoder_decoder": True,
        }
        names = [f"shared.{n}" for n in range(ours.n_layers + ours.stack("decoder").n_layers)]
        said = self.read(config, names + ["lm_head.weight"] * (ours.tie != "all"), {})
        check_round_trip(ours, said.model, self.cls)
        return config, said

    def _refuse(self, given: ForeignConfig) -> None:
        name = given.architecture()
        known = (f"{self.cls}ForConditionalGeneration", f"{self.cls}WithLMHeadModel",
                 f"{self.cls}Model")  # fmt: skip
        if name is not None and name not in known:
            raise given.error("architectures", f"is not supported; it must be {' or '.join(known)}")

    def _scales(self, given: ForeignConfig) -> bool:
        """Return whether decoder outputs are scaled before the softmax.

        Files of transformers 5 have a key for it. In older files an untied softmax implies version
        1.1, which does not scale.
        """
        if self.model_type != "t5":
            return False
        return given.flag("scale_decoder_outputs", given.flag("tie_word_embeddings", True))

    def _tied(self, given: ForeignConfig, names: Collection[str]) -> bool:
        """Return whether all embeddings are tied.

        Transformers 5 sets the key even for version 1.1, whose file has a separate softmax matrix.
        """
        return "lm_head.weight" not in names or self._scales(given)


def _activation(given: ForeignConfig) -> Any:
    name = given.string("feed_forward_proj", "relu")
    if name not in FEED_FORWARD:
        known = ", ".join(FEED_FORWARD)
        raise given.error("feed_forward_proj", f"is not supported; it must be one of {known}")
    return FEED_FORWARD[name]


def _pairs(model: Seq2SeqSettings, names: Collection[str]) -> list[NamePair]:
    shared = [
        NamePair("shared.weight", "source_front.tokens.weight"),
        NamePair("encoder.embed_tokens.weight", "source_front.tokens.weight"),
        NamePair("decoder.embed_tokens.weight", "target_front.tokens.weight"),
    ]
    softmax = NamePair("lm_head.weight", "head.linear.weight", tied=model.tie == "all")
    pairs = first_of(shared, names)
    for side, stack in model.stacks.items():
        table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        pairs.append(NamePair(table, f"{side}.bias.table.weight"))
        for n in range(stack.n_layers):
            pairs += _layer(f"{side}.block.{n}.layer", f"{side}.blocks.{n}", model)
        pairs.append(NamePair(f"{side}.final_layer_norm.weight", f"{side}.final_norm.weight"))
    return [*pairs, softmax]


def _layer(theirs: str, ours: str, model: Seq2SeqSettings) -> list[NamePair]:
    width = model.n_heads * model.head_width
    kinds = [("SelfAttention", "attention", "norm_attention")]
    if ours.startswith("decoder"):
        kinds.append(("EncDecAttention", "cross", "norm_cross"))
    pairs: list[NamePair] = []
    for place, (name, part, norm) in enumerate(kinds):
        own = f"{theirs}.{place}.{name}"
        projections = [f"{own}.{letter}" for letter in "qkv"]
        pairs += stacked(projections, f"{ours}.{part}.to_qkv", [width] * 3, bias=False)
        pairs += weight_and_bias(f"{own}.o", f"{ours}.{part}.to_out", bias=False)
        pairs += weight_and_bias(f"{theirs}.{place}.layer_norm", f"{ours}.{norm}", bias=False)
    last, hidden = f"{theirs}.{len(kinds)}", f"{ours}.feed_forward.to_hidden"
    dense = f"{last}.DenseReluDense"
    if model.activation in ("relu", "gelu"):
        pairs += weight_and_bias(f"{dense}.wi", hidden, bias=False)
    else:
        pairs += stacked([f"{dense}.wi_0", f"{dense}.wi_1"], hidden, [model.d_ff] * 2, bias=False)
    pairs += weight_and_bias(f"{dense}.wo", f"{ours}.feed_forward.to_out", bias=False)
    return [*pairs, *weight_and_bias(f"{last}.layer_norm", f"{ours}.norm_feed_forward", bias=False)]


T5 = T5Family("t5", "T5")
MT5 = T5Family("mt5", "MT5")
