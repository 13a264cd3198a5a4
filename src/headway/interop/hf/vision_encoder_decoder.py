"""Conversion of image captioning models from and to `transformers`: a ViT encoder and a GPT-2
decoder with cross-attention."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from headway.errors import ConfigError, UserError
from headway.interop.convertible import BIASES, check_round_trip
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import ForeignConfig
from headway.interop.hf.generation import decode_settings
from headway.interop.hf.gpt import GPT2
from headway.interop.hf.gpt import IGNORED as OF_GPT2
from headway.interop.hf.vit import HIDDEN, VIT, check_image
from headway.interop.name_pairs import TRANSPOSED, NamePair, weight_and_bias
from headway.settings.model import DecoderSettings, StackSettings
from headway.settings.run import RunSettings
from headway.settings.vision import ImageEncoderSettings, ImageSeq2SeqSettings

T = TypeVar("T")

CLASS = "VisionEncoderDecoderModel"
SIDES = {"encoder": VIT.model_type, "decoder": GPT2.model_type}
READER = {"front.": "source_front.", "stack.": "encoder."}
WRITER = {"front.": "target_front.", "stack.": "decoder."}
"""Prefixes of tensor names in the encoder-decoder, keyed by the prefixes in a model with a single
stack. `READER` is for the encoder, `WRITER` for the decoder."""

IGNORED = {
    **{rf"encoder\.{name}": why for name, why in HIDDEN.items()},
    **OF_GPT2,
    r"(.*\.)?crossattention\.(bias|masked_bias)": "the causal mask, which headway computes",
    r"encoder\.pooler\.dense\.(weight|bias)": "unused: the decoder attends to all patches, not "
    "to ViT's pooled vector",
}


class VisionEncoderDecoderFamily:
    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        given = ForeignConfig(config)
        if given.architecture() not in (None, CLASS):
            raise given.error("architectures", f"is not supported; it must be {CLASS}")
        sees, writes = (_side(given, side, names) for side in SIDES)
        reader, writer = sees.model, writes.model
        assert isinstance(reader, ImageEncoderSettings)
        assert isinstance(writer, DecoderSettings)
        model = _model(reader, writer)
        pairs = [
            *_moved(sees.pairs, "encoder.", READER),
            *_moved(writes.pairs, "decoder.", WRITER),
            *_cross(writer),
        ]
        decode, notes = decode_settings(config, generation, has_source=True)
        return Architecture(
            task="caption",
            model=model,
            pairs=[pair for pair in pairs if not pair.ours.startswith("heads.")],
            ignored=IGNORED,
            decode=decode,
            notes=notes,
        )

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        ours = settings.model
        if not isinstance(ours, ImageSeq2SeqSettings):
            raise UserError(
                f"{CLASS} needs an image captioning model, but the model of this run is of another "
                f"kind (task {settings.task})."
            )
        reader, writer = _reader(ours), _writer(ours)
        config: dict[str, Any] = {
            "model_type": "vision-encoder-decoder",
            "architectures": [CLASS],
            "encoder": VIT.write(RunSettings(task="classify", model=reader))[0],
            "decoder": GPT2.write(RunSettings(task="complete", model=writer))[0]
            | {"add_cross_attention": True, "is_decoder": True},
            "is_encoder_decoder": True,
            "tie_word_embeddings": False,
        }
        names = [f"encoder.encoder.layer.{n}" for n in range(reader.n_layers)]
        names += [f"decoder.transformer.h.{n}" for n in range(writer.n_layers)]
        said = self.read(config, names, {})
        assert isinstance(said.model, ImageSeq2SeqSettings)
        check_image(ours.image, said.model.image, CLASS)
        check_round_trip(ours, said.model, CLASS, wider=BIASES, free={"image"})
        return config, said


def _side(given: ForeignConfig, side: str, names: Collection[str]) -> Architecture:
    """Return the architecture of the encoder or the decoder, read as a separate model."""
    own = {**given.nested(side), "architectures": None, "add_cross_attention": None}
    if own.get("model_type") != SIDES[side]:
        raise given.error(
            side, f"has the model_type {own.get('model_type')!r}; it must be {SIDES[side]!r}"
        )
    inside = [name.removeprefix(f"{side}.") for name in names if name.startswith(f"{side}.")]
    family = VIT if side == "encoder" else GPT2
    try:
        return family.read(own, inside, {})
    except ConfigError as error:
        raise ConfigError(f"{side}: {error}") from error


def _model(reader: ImageEncoderSettings, writer: DecoderSettings) -> ImageSeq2SeqSettings:
    for name in ("d_model", "block_layout", "norm", "attention_bias", "ff_bias", "scale_attention"):
        here, there = getattr(reader, name), getattr(writer, name)
        if here != there:
            raise ConfigError(
                f"config.json: the encoder gives model.{name}={here!r}, but the decoder gives "
                f"{there!r}. headway needs the same value for both."
            )
    return ImageSeq2SeqSettings(
        vocab_size=writer.vocab_size,
        d_model=writer.d_model,
        n_layers=reader.n_layers,
        n_heads=reader.n_heads,
        d_ff=reader.d_ff,
        activation=reader.activation,
        norm_eps=reader.norm_eps,
        decoder=StackSettings(
            n_layers=writer.n_layers,
            n_heads=_other(writer.n_heads, reader.n_heads),
            d_ff=_other(writer.d_ff, reader.d_ff),
            activation=_other(writer.activation, reader.activation),
            norm_eps=_other(writer.norm_eps, reader.norm_eps),
        ),
        max_len=writer.max_len,
        block_layout="pre",
        positions="learned",
        attention_bias=writer.attention_bias,
        embedding_scale=False,
        dropout=writer.dropout,
        attention_dropout=writer.attention_dropout,
        tie="target-softmax" if writer.tie else "none",
        image=reader.image,
    )


def _other(value: T, same: T) -> T | None:
    """Return the value of a decoder setting, or None if the encoder has the same value."""
    return None if value == same else value


def _alone(ours: ImageSeq2SeqSettings, kind: str) -> dict[str, Any]:
    """Return the settings of the encoder or the decoder as a separate model.

    All other settings are compared in the round trip at the end.
    """
    stack = ours.stack(kind)
    both_sides = (
        "d_model",
        "block_layout",
        "norm",
        "attention_bias",
        "dropout",
        "attention_dropout",
    )
    return {name: getattr(ours, name) for name in both_sides} | {
        "n_layers": stack.n_layers,
        "n_heads": stack.n_heads,
        "n_kv_heads": stack.kv_heads,
        "d_head": stack.head_width,
        "d_ff": stack.d_ff,
        "activation": stack.activation,
        "norm_eps": stack.norm_eps,
    }


def _reader(ours: ImageSeq2SeqSettings) -> ImageEncoderSettings:
    return ImageEncoderSettings(
        **_alone(ours, "encoder"),
        image=ours.image,
        heads=("pooled",),
        n_labels=1,
        pooling="first" if ours.image.class_token else "mean",
    )


def _writer(ours: ImageSeq2SeqSettings) -> DecoderSettings:
    return DecoderSettings(
        **_alone(ours, "decoder"),
        vocab_size=ours.vocab_size,
        max_len=ours.max_len,
        positions=ours.positions,
        tie=ours.tie == "target-softmax",
    )


def _moved(pairs: Sequence[NamePair], prefix: str, places: Mapping[str, str]) -> list[NamePair]:
    """Return the name pairs of the encoder or the decoder with their tensor names in the
    encoder-decoder."""
    moved = []
    for pair in pairs:
        start, _, rest = pair.ours.partition(".")
        ours = f"{places.get(f'{start}.', f'{start}.')}{rest}"
        moved.append(pair._replace(theirs=prefix + pair.theirs, ours=ours))
    return moved


def _cross(writer: DecoderSettings) -> list[NamePair]:
    """Return the name pairs for cross-attention. headway stores the queries in one matrix, and the
    keys and values in another."""
    pairs: list[NamePair] = []
    width = writer.d_model
    for n in range(writer.n_layers):
        theirs, ours = f"decoder.transformer.h.{n}", f"decoder.blocks.{n}"
        own, to_qkv = f"{theirs}.crossattention", f"{ours}.cross.to_qkv"
        for name, first, last in (("q_attn", 0, 1), ("c_attn", 1, 3)):
            rows = slice(first * width, last * width)
            pairs += [
                pair._replace(rows=rows)
                for pair in weight_and_bias(f"{own}.{name}", to_qkv, TRANSPOSED)
            ]
        pairs += weight_and_bias(f"{own}.c_proj", f"{ours}.cross.to_out", TRANSPOSED)
        pairs += weight_and_bias(f"{theirs}.ln_cross_attn", f"{ours}.norm_cross")
    return pairs


def unused(config: Config) -> dict[str, Tensor]:
    """Return the tensors of ViT's pooler, which `transformers` expects in the file but does not
    use."""
    width = config["encoder"]["hidden_size"]
    return {
        "encoder.pooler.dense.weight": torch.zeros(width, width),
        "encoder.pooler.dense.bias": torch.zeros(width),
    }


VISION_ENCODER_DECODER = VisionEncoderDecoderFamily()
