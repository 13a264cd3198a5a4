"""Conversion of Whisper from and to `transformers`. OpenAI's own files have the same tensors under
other names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from headway.errors import UserError
from headway.interop.convertible import BIASES, check_round_trip, their_activation
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import LONGEST, ForeignConfig
from headway.interop.hf.bart import foreign_sizes, read_sides
from headway.interop.hf.generation import decode_settings
from headway.interop.name_pairs import NamePair, TensorTransform, weight_and_bias
from headway.settings.audio import AudioSeq2SeqSettings, AudioSettings
from headway.settings.run import RunSettings

NORM_EPS = 1e-5
"""Epsilon of all norms. Whisper's configuration has no key for it."""

WIDE = 3
"""Kernel size of the convolutions, in frames."""

STRIDES = (1, 2)
"""Strides of the two convolutions. The second one halves the number of frames."""

CONVOLUTION = TensorTransform(
    lambda t: t.permute(0, 2, 1).flatten(1),
    lambda t: t.unflatten(1, (WIDE, -1)).permute(0, 2, 1),
)
"""Conversion of convolution weights from (out, in, time) in the file to a matrix over three frames
in headway."""

NOT_FOLLOWED = {"begin_suppress_tokens": None, "suppress_tokens": None, "forced_decoder_ids": None}
"""Ignored keys of the generation configuration. In headway the roles of special tokens have the
same effect."""


@dataclass(frozen=True)
class WhisperNames:
    """Names of tensors in one of the two file formats of Whisper."""

    layer: str
    """Part of a tensor name between the side (encoder or decoder) and the layer number."""

    attention: str
    cross: str
    projections: tuple[str, str, str, str]
    """Names of the query, key, value and output projections."""

    norms: tuple[str, str, str]
    """Names of the norms before self-attention, cross-attention and the feed-forward layer."""

    hidden: tuple[str, str]
    final_norms: tuple[str, str]
    """Names of the final norms of encoder and decoder."""

    words: str
    positions: str


HF = WhisperNames(
    layer="layers",
    attention="self_attn",
    cross="encoder_attn",
    projections=("q_proj", "k_proj", "v_proj", "out_proj"),
    norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    hidden=("fc1", "fc2"),
    final_norms=("layer_norm", "layer_norm"),
    words="embed_tokens.weight",
    positions="embed_positions.weight",
)


class WhisperFamily:
    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        given = ForeignConfig(config)
        self._refuse(given)
        model = whisper_settings(
            vocab_size=given.integer("vocab_size"),
            d_model=given.integer("d_model"),
            **read_sides(given, names),
            max_len=given.integer("max_target_positions", 448, most=LONGEST),
            activation=given.activation("activation_function", "gelu"),
            embedding_scale=False,  # transformers reads `scale_embedding`, but does not use it
            dropout=given.fraction("dropout", 0.0),
            attention_dropout=given.fraction("attention_dropout", 0.0),
            ff_dropout=given.fraction("activation_dropout", 0.0),
            tie="target-softmax" if given.flag("tie_word_embeddings", True) else "none",
            max_rows=given.integer("max_source_positions", 1500, most=LONGEST),
            bands=given.integer("num_mel_bins", 80, most=1024),
        )
        prefix = "model." if any(name.startswith("model.") for name in names) else ""
        pairs = whisper_pairs(model, HF, prefix)
        softmax = NamePair("proj_out.weight", "head.linear.weight", tied=model.tie != "none")
        kept = {key: value for key, value in {**config, **generation}.items()
                if key not in NOT_FOLLOWED}  # fmt: skip
        decode, notes = decode_settings({}, kept, has_source=True)
        return Architecture(
            task="transcribe",
            model=model,
            pairs=[*pairs, softmax],
            decode=decode,
            notes=notes,
        )

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        ours = settings.model
        if not isinstance(ours, AudioSeq2SeqSettings):
            raise UserError(
                "Whisper needs an audio encoder-decoder, but the model of this run is of another "
                f"kind (task {settings.task})."
            )
        config: dict[str, Any] = {
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            "vocab_size": ours.vocab_size,
            "num_mel_bins": ours.audio.bands,
            "d_model": ours.d_model,
            **foreign_sizes(ours),
            "max_source_positions": ours.audio.max_rows,
            "max_target_positions": ours.max_len,
            "activation_function": their_activation(ours.activation),
            "scale_embedding": False,
            "dropout": ours.dropout,
            "attention_dropout": ours.attention_dropout,
            "activation_dropout": ours.ff_dropout,
            "tie_word_embeddings": ours.tie == "target-softmax",
            "is_encoder_decoder": True,
        }
        names = [f"model.{n}" for n in range(ours.n_layers + ours.stack("decoder").n_layers)]
        said = self.read(config, names, {})
        assert isinstance(said.model, AudioSeq2SeqSettings)
        _check_audio(ours.audio, said.model.audio)
        check_round_trip(ours, said.model, "Whisper", wider=BIASES, free={"norm_eps", "audio"})
        return config, said

    def _refuse(self, given: ForeignConfig) -> None:
        name = given.architecture()
        known = ("WhisperForConditionalGeneration", "WhisperModel")
        if name is not None and name not in known:
            raise given.error("architectures", f"is not supported; it must be {' or '.join(known)}")


def whisper_settings(*, max_rows: int, bands: int, **sizes: Any) -> AudioSeq2SeqSettings:
    """Return the settings of a Whisper model with these sizes.

    Positions are treated as learned, so that the encoder's rounded sinusoids are read from the
    file.
    """
    audio = AudioSettings(
        bands=bands, positions="learned", max_rows=max_rows, pad_s=window_s(max_rows)
    )
    return AudioSeq2SeqSettings(
        norm_eps=NORM_EPS,
        block_layout="pre",
        positions="learned",
        attention_bias="qvo",
        audio=audio,
        **sizes,
    )


def window_s(max_rows: int) -> float:
    """Return the duration in seconds of the audio that fills `max_rows` encoder positions."""
    usual = AudioSettings(strides=STRIDES)
    return max_rows * usual.row_seconds


def _check_audio(ours: AudioSettings, said: AudioSettings) -> None:
    for key in ("rate", "n_fft", "hop", "scale", "strides", "positions", "pad_s"):
        here, there = getattr(ours, key), getattr(said, key)
        if here != there:
            raise UserError(
                f"Whisper does not support model.audio.{key} = {here!r}, only {there!r}."
            )


def whisper_pairs(model: AudioSeq2SeqSettings, names: WhisperNames, prefix: str) -> list[NamePair]:
    """Return the name pairs of all tensors except the softmax, which is tied to the embedding in
    all published models."""
    pairs: list[NamePair] = []
    for number in range(len(STRIDES)):
        theirs, ours = f"{prefix}encoder.conv{number + 1}", f"source_front.convolutions.{number}"
        pairs.append(NamePair(f"{theirs}.weight", f"{ours}.linear.weight", change=CONVOLUTION))
        pairs.append(NamePair(f"{theirs}.bias", f"{ours}.linear.bias"))
    pairs.append(NamePair(f"{prefix}decoder.{names.words}", "target_front.tokens.weight"))
    sides = (("encoder", model.n_layers, "source_front"),
             ("decoder", model.stack("decoder").n_layers, "target_front"))  # fmt: skip
    for (side, n_layers, front), end in zip(sides, names.final_norms, strict=True):
        positions = f"{prefix}{side}.{names.positions}"
        pairs.append(NamePair(positions, f"{front}.positions.table.weight"))
        for number in range(n_layers):
            layer = f"{prefix}{side}.{names.layer}.{number}"
            pairs += _layer(layer, f"{side}.blocks.{number}", names, model.d_model)
        pairs += weight_and_bias(f"{prefix}{side}.{end}", f"{side}.final_norm")
    return pairs


def _layer(theirs: str, ours: str, names: WhisperNames, width: int) -> list[NamePair]:
    pairs: list[NamePair] = []
    before, before_cross, last = names.norms
    kinds = [(names.attention, "attention", before, "norm_attention")]
    if ours.startswith("decoder"):
        kinds.append((names.cross, "cross", before_cross, "norm_cross"))
    for name, part, norm, our_norm in kinds:
        *own, out = (f"{theirs}.{name}.{letter}" for letter in names.projections)
        attention = f"{ours}.{part}"
        pairs += [
            NamePair(
                f"{place}.weight", f"{attention}.to_qkv.weight", slice(i * width, (i + 1) * width)
            )
            for i, place in enumerate(own)
        ]
        pairs += [NamePair(f"{own[i]}.bias", f"{attention}.some_bias.{'qkv'[i]}") for i in (0, 2)]
        pairs += weight_and_bias(out, f"{attention}.to_out")
        pairs += weight_and_bias(f"{theirs}.{norm}", f"{ours}.{our_norm}")
    pairs += weight_and_bias(f"{theirs}.{names.hidden[0]}", f"{ours}.feed_forward.to_hidden")
    pairs += weight_and_bias(f"{theirs}.{names.hidden[1]}", f"{ours}.feed_forward.to_out")
    return [*pairs, *weight_and_bias(f"{theirs}.{last}", f"{ours}.norm_feed_forward")]


WHISPER = WhisperFamily()
