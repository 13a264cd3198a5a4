"""Conversion of BART, Marian and Pegasus from and to `transformers`. They share their layers and
tensor names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, TypedDict

import torch
from torch import Tensor

from headway.interop.convertible import BIASES, check_kind, check_round_trip, their_activation
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import LONGEST, ForeignConfig
from headway.interop.hf.generation import decode_settings
from headway.interop.name_pairs import NamePair, TensorTransform, stacked, weight_and_bias
from headway.nn.positions import sinusoids
from headway.settings.model import Seq2SeqSettings, StackSettings
from headway.settings.run import RunSettings

OFFSET = 2
"""Number of unused positions at the start of BART's table of learned positions."""

NORM_EPS = 1e-5
"""Epsilon of all norms. The configurations of these architectures have no key for it."""

SINUSOIDS = {
    r"(model\.)?(en|de)coder\.embed_positions\.weight": "sinusoids, which headway computes",
}
VERSION = {r"(model\.)?(en|de)coder\.version": "the version of the program that wrote the file"}
SHARED = {r"(model\.)?shared\.weight": "unused: encoder and decoder have separate embeddings"}

ROW = TensorTransform(lambda tensor: tensor[0], lambda tensor: tensor[None])
"""Conversion of `final_logits_bias`, which has an additional leading axis of size 1 in the file."""


@dataclass(frozen=True)
class BartFamily:
    model_type: str
    cls: str
    head: str
    """Suffix of the `transformers` class that generates text."""

    block_layout: Any
    learned: bool
    """Whether positions are learned and the embeddings are followed by a norm. Otherwise positions
    are sinusoids."""

    two_vocabularies: bool = False
    """Whether source and target may have separate vocabularies, as in Marian."""

    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        given = ForeignConfig(config)
        self._refuse(given)
        prefix = "model." if any(name.startswith("model.") for name in names) else ""
        tie = self._tie(given, prefix, names)
        size = given.integer("vocab_size")
        target = given.integer("decoder_vocab_size", size) if self.two_vocabularies else size
        model = Seq2SeqSettings(
            vocab_size=size if tie == "all" else target,
            source_vocab_size=size,
            d_model=given.integer("d_model"),
            **read_sides(given, names),
            max_len=given.integer("max_position_embeddings", 1024, most=LONGEST),
            activation=given.activation("activation_function", "gelu"),
            norm_eps=NORM_EPS,
            block_layout=self.block_layout,
            positions="learned" if self.learned else "sinusoidal-halves",
            attention_bias="qkvo",
            embedding_scale=given.flag("scale_embedding", False),
            embedding_norm=self.learned,
            head_bias="final_logits_bias" in names,
            dropout=given.fraction("dropout", 0.1),
            attention_dropout=given.fraction("attention_dropout", 0.0),
            ff_dropout=given.fraction("activation_dropout", 0.0),
            tie=tie,
        )
        translates = self.two_vocabularies
        decode, notes = decode_settings(config, generation, has_source=True, translates=translates)
        ignored = VERSION if self.learned else VERSION | SINUSOIDS
        return Architecture(
            task="translate",
            model=model,
            pairs=self._pairs(model, prefix, names),
            ignored=ignored | (SHARED if model.tie not in ("all", "source-target") else {}),
            decode=decode,
            notes=notes,
        )

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        ours = settings.model
        check_kind(ours, Seq2SeqSettings, self.cls)
        assert isinstance(ours, Seq2SeqSettings)
        config: dict[str, Any] = {
            "model_type": self.model_type,
            "architectures": [f"{self.cls}{self.head}"],
            "vocab_size": ours.source_vocab,
            "d_model": ours.d_model,
            **foreign_sizes(ours),
            "max_position_embeddings": ours.max_len,
            "activation_function": their_activation(ours.activation),
            "scale_embedding": ours.embedding_scale,
            "dropout": ours.dropout,
            "attention_dropout": ours.attention_dropout,
            "activation_dropout": ours.ff_dropout,
            "tie_word_embeddings": ours.tie == "all",
            "is_encoder_decoder": True,
        }
        if self.two_vocabularies:
            # A Marian file may contain our one shared matrix twice.
            config["share_encoder_decoder_embeddings"] = ours.tie == "all"
            config["tie_word_embeddings"] = ours.tie in ("all", "target-softmax")
            config["decoder_vocab_size"] = ours.vocab_size
        names = [f"model.{n}" for n in range(ours.n_layers + ours.stack("decoder").n_layers)]
        said = self.read(config, [*names, "final_logits_bias"], {})
        free = {"norm_eps"} | ({"tie"} if self.two_vocabularies else set())
        if not self.learned and ours.positions == "sinusoidal":
            free.add("positions")
            said = in_halves(said, ours.d_model)
        check_round_trip(ours, said.model, self.cls, wider=BIASES, free=free)
        return config, said

    def _refuse(self, given: ForeignConfig) -> None:
        name = given.architecture()
        known = (f"{self.cls}{self.head}", f"{self.cls}Model")
        if name is not None and name not in known:
            raise given.error("architectures", f"is not supported; it must be {' or '.join(known)}")
        pre = self.block_layout == "pre"
        given.require("normalize_before", pre, "this model type needs its usual norm placement")
        given.require("add_final_layer_norm", pre, "this model type needs its usual norm placement")

    def _tie(self, given: ForeignConfig, prefix: str, names: Collection[str]) -> Any:
        tied = given.flag("tie_word_embeddings", True)
        shared = True
        if self.two_vocabularies:
            shared = given.flag("share_encoder_decoder_embeddings", True)
        if shared and tied:
            return "all"
        # With a separate softmax, transformers 5 does not share the embeddings of source and
        # target. Files of earlier versions store the same embedding twice.
        apart = f"{prefix}encoder.embed_tokens.weight" in names
        if shared and not apart:
            return "source-target"
        return "target-softmax" if tied else "none"

    def _pairs(self, model: Seq2SeqSettings, prefix: str, names: Collection[str]) -> list[NamePair]:
        pairs = _embeddings(model, prefix, names)
        sides = (("encoder", model.n_layers, "source_front"),
                 ("decoder", model.stack("decoder").n_layers, "target_front"))  # fmt: skip
        for side, n_layers, front in sides:
            if self.learned:
                pairs.append(
                    NamePair(f"{prefix}{side}.embed_positions.weight",
                         f"{front}.positions.table.weight", their_rows=slice(OFFSET, None))
                )  # fmt: skip
                pairs += weight_and_bias(f"{prefix}{side}.layernorm_embedding", f"{front}.norm")
            for n in range(n_layers):
                theirs, ours = f"{prefix}{side}.layers.{n}", f"{side}.blocks.{n}"
                pairs += _layer(theirs, ours, model.d_model, cross=side == "decoder")
            if model.block_layout == "pre":
                pairs += weight_and_bias(f"{prefix}{side}.layer_norm", f"{side}.final_norm")
        if model.head_bias:
            pairs.append(NamePair("final_logits_bias", "head.linear.bias", change=ROW))
        return pairs


def _embeddings(model: Seq2SeqSettings, prefix: str, names: Collection[str]) -> list[NamePair]:
    source = NamePair(f"{prefix}encoder.embed_tokens.weight", "source_front.tokens.weight")
    target = NamePair(f"{prefix}decoder.embed_tokens.weight", "target_front.tokens.weight")
    softmax = NamePair("lm_head.weight", "head.linear.weight", tied=model.tie == "target-softmax")
    if model.tie not in ("all", "source-target"):
        return [source, target, softmax]
    shared = [NamePair(f"{prefix}shared.weight", source.ours), target, source]
    if model.tie == "all":
        shared.append(softmax)
        return first_of(shared, names)
    return [*first_of(shared, names), softmax]


def first_of(pairs: list[NamePair], names: Collection[str]) -> list[NamePair]:
    """Return name pairs for one tensor that a file may have under several names. The first name in
    the file is used, and the others may be missing."""
    first = next((pair for pair in pairs if pair.theirs in names), pairs[0])
    others = [pair._replace(tied=True) for pair in pairs if pair is not first]
    return [first._replace(ours=pairs[0].ours), *others]


def _layer(theirs: str, ours: str, width: int, *, cross: bool) -> list[NamePair]:
    pairs: list[NamePair] = []
    kinds = [("self_attn", "attention", "norm_attention")]
    kinds += [("encoder_attn", "cross", "norm_cross")] if cross else []
    for name, part, norm in kinds:
        own = f"{theirs}.{name}"
        projections = [f"{own}.{letter}_proj" for letter in "qkv"]
        pairs += stacked(projections, f"{ours}.{part}.to_qkv", [width] * 3)
        pairs += weight_and_bias(f"{own}.out_proj", f"{ours}.{part}.to_out")
        pairs += weight_and_bias(f"{own}_layer_norm", f"{ours}.{norm}")
    pairs += weight_and_bias(f"{theirs}.fc1", f"{ours}.feed_forward.to_hidden")
    pairs += weight_and_bias(f"{theirs}.fc2", f"{ours}.feed_forward.to_out")
    return [*pairs, *weight_and_bias(f"{theirs}.final_layer_norm", f"{ours}.norm_feed_forward")]


BART = BartFamily("bart", "Bart", "ForConditionalGeneration", block_layout="post", learned=True)

MARIAN = BartFamily(
    "marian", "Marian", "MTModel", block_layout="post", learned=False, two_vocabularies=True
)
"""Marian: the Transformer of 2017 with biases in all layers, optionally with two vocabularies."""

PEGASUS = BartFamily(
    "pegasus", "Pegasus", "ForConditionalGeneration", block_layout="pre", learned=False
)
"""Pegasus: like Marian, but pre-norm. Our default translators have this architecture."""


def pegasus_tables(config: Config) -> dict[str, Tensor]:
    """Return the sinusoidal position tables of Pegasus. `transformers` expects them in the file,
    although it could compute them."""
    table_PD = sinusoids(config["max_position_embeddings"], config["d_model"], halves=True)
    return {f"model.{side}.embed_positions.weight": table_PD for side in ("encoder", "decoder")}


KEYS = {"n_layers": "layers", "n_heads": "attention_heads", "d_ff": "ffn_dim"}
"""Key in `config.json` for each setting, without its prefix `encoder_` or `decoder_`."""


class SideSizes(TypedDict):
    n_layers: int
    n_heads: int
    d_ff: int
    decoder: StackSettings


def read_sides(given: ForeignConfig, names: Collection[str]) -> SideSizes:
    """Return the sizes of encoder and decoder.

    If both have the same number of heads or the same feed-forward width, that setting of the
    decoder is None.
    """
    n_heads, d_ff = given.integer("encoder_attention_heads"), given.integer("encoder_ffn_dim")
    decoder_heads = given.integer("decoder_attention_heads", n_heads)
    decoder_ff = given.integer("decoder_ffn_dim", d_ff)
    return {
        "n_layers": given.layers("encoder_layers", names),
        "n_heads": n_heads,
        "d_ff": d_ff,
        "decoder": StackSettings(
            n_layers=given.layers("decoder_layers", names),
            n_heads=None if decoder_heads == n_heads else decoder_heads,
            d_ff=None if decoder_ff == d_ff else decoder_ff,
        ),
    }


def foreign_sizes(ours: Seq2SeqSettings) -> dict[str, int]:
    return {
        f"{kind}_{theirs}": getattr(stack, name)
        for name, theirs in KEYS.items()
        for kind, stack in ours.stacks.items()
    }


READERS = ("tokens.weight", "to_qkv.weight", "to_hidden.weight", "head.linear.weight")
"""Matrices that read from the residual stream. Reordering its dimensions permutes their columns."""

WRITERS = ("to_out.weight", "to_out.bias")
"""Weights that write to the residual stream. Reordering its dimensions permutes their rows, and the
weights of norms."""


def in_halves(found: Architecture, width: int) -> Architecture:
    """Return the architecture with the even dimensions of the residual stream before the odd ones.

    headway's sinusoids alternate sines and cosines, whereas those of Pegasus have all sines first.
    """
    order_D = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    return replace(found, pairs=[_reordered(pair, order_D) for pair in found.pairs])


def _reordered(pair: NamePair, order_D: Tensor) -> NamePair:
    if pair.ours.endswith(READERS):
        axis = 1
    elif pair.ours.endswith(WRITERS) or "norm" in pair.ours:
        axis = 0
    else:
        return pair
    back_D = order_D.argsort()
    return pair._replace(
        change=TensorTransform(
            lambda tensor: pair.change.to_ours(tensor).index_select(axis, back_D),
            lambda tensor: pair.change.to_theirs(tensor.index_select(axis, order_D)),
        )
    )
