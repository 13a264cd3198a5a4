"""Settings of the audio families: the input stage, the encoder and the output heads."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from headway.errors import ConfigError
from headway.settings.body import Activation, BlockLayout, BodySettings, InitScheme, PositionKind
from headway.settings.vision import (
    MediaSeq2SeqSettings,
    check_label_heads,
    check_no_added_positions,
)
from headway.specs.values import check_least, check_values


@dataclass(frozen=True, kw_only=True)
class AudioSettings:
    """Audio input: a log-mel spectrogram, then convolutions that convert its frames to input
    vectors, one per position. Defaults: as in Whisper."""

    rate: int = 16_000
    """Sampling rate in Hz. Audio at another rate is resampled."""

    n_fft: int = 400
    """Number of samples per frame: 400 are 25 ms at 16 kHz."""

    hop: int = 160
    """Hop length: number of samples from one frame to the next. 160 are 10 ms at 16 kHz."""

    bands: int = 80
    """Number of mel bands."""

    scale: Literal["whisper", "standard"] = "whisper"
    """Normalization of the log-mel values. `whisper`: clip to 8 (log10 units) below the maximum.
    `standard`: mean 0 and variance 1 in each band."""

    strides: tuple[int, ...] = (1, 2)
    """Strides of the convolutions, each of which is three frames wide. Their product is the number
    of frames per position."""

    positions: Literal["sinusoidal", "whisper", "learned", "none"] = "sinusoidal"
    """Positional encoding over time: `sinusoidal` (2017), sinusoidal with Whisper's frequencies
    (`whisper`), or `learned`."""

    max_rows: int = 1500
    """Maximum length of the input in positions. 1500 are 30 s in Whisper. It limits only learned
    positions."""

    pad_s: float = 0.0
    """Minimum length in seconds: shorter audio is padded with silence. Whisper needs 30."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 1, "rate", "n_fft", "hop", "bands", "max_rows", of="audio.")
        if not self.strides or min(self.strides) < 1:
            raise ConfigError(
                f"audio.strides={list(self.strides)} must contain one or more numbers, each at "
                "least 1."
            )
        if self.hop > self.n_fft:
            raise ConfigError(
                f"audio.hop={self.hop} leaves gaps between frames of audio.n_fft={self.n_fft} "
                f"samples. Use audio.hop={self.n_fft} or less."
            )
        if self.bands > self.n_fft // 2 + 1:
            raise ConfigError(
                f"audio.bands={self.bands} exceeds the {self.n_fft // 2 + 1} frequency bins of "
                f"audio.n_fft={self.n_fft}. Lower audio.bands or raise audio.n_fft."
            )
        check_least(self, 0, "pad_s", of="audio.")

    @property
    def row_seconds(self) -> float:
        """Duration of one position in seconds."""
        return self.hop * prod(self.strides) / self.rate

    @property
    def most_rows(self) -> int | None:
        """Maximum number of positions, or None without a limit."""
        return self.max_rows if self.positions == "learned" else None

    def frames_of(self, n_samples: int) -> int:
        """Return the number of spectrogram frames of a recording after padding; at least one."""
        return max(1, max(n_samples, round(self.pad_s * self.rate)) // self.hop)

    def rows_of(self, n_samples: int) -> int:
        """Return the number of positions that a recording takes in a batch."""
        rows = self.frames_of(n_samples)
        for stride in self.strides:
            rows = -(-rows // stride)
        return rows


@dataclass(frozen=True, kw_only=True)
class AudioEncoderSettings(BodySettings):
    """An audio encoder for classification, speaker identification and CTC transcription."""

    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 4
    d_ff: int = 1024
    activation: Activation = "gelu"
    block_layout: BlockLayout = "pre"
    positions: PositionKind = "none"
    attention_bias: str = "qkvo"
    init: InitScheme = "bert"

    audio: AudioSettings = AudioSettings()
    """Conversion of audio to input vectors."""

    heads: tuple[Literal["classes", "ctc", "rebuild"], ...] = ("classes",)
    """Output heads: `classes` of a recording, symbols by CTC (`ctc`), and reconstruction of masked
    frames (`rebuild`)."""

    pooling: Literal["mean", "first"] = "mean"
    """Pooling of a recording into one vector: the mean of all positions, or the first position."""

    n_labels: int = 10
    """Number of classes, if there is a `classes` head."""

    vocab_size: int = 32
    """Number of CTC symbols, not counting the blank, which comes last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_no_added_positions(self, "audio")
        check_label_heads(self.heads, self.n_labels)
        check_wave_width(self, self.audio)
        check_least(self, 1, "vocab_size")


@dataclass(frozen=True, kw_only=True)
class AudioSeq2SeqSettings(MediaSeq2SeqSettings):
    """A transcription model such as Whisper: an audio encoder and a text decoder."""

    max_len: int = 448
    audio: AudioSettings = AudioSettings()
    """Conversion of audio to input vectors."""

    ctc: bool = False
    """Add a CTC head to the encoder. Its last symbol is the blank."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_wave_width(self, self.audio)


def check_wave_width(settings: BodySettings, audio: AudioSettings) -> None:
    if audio.positions in ("sinusoidal", "whisper") and settings.d_model % 2:
        raise ConfigError(
            f"audio.positions={audio.positions} uses pairs of sine and cosine, so "
            f"d_model={settings.d_model} must be even. Choose an even d_model, or set "
            "audio.positions=none."
        )
    if audio.positions == "whisper" and settings.d_model < 4:
        raise ConfigError(
            f"audio.positions=whisper needs at least two frequencies, but "
            f"d_model={settings.d_model} gives only one. Use d_model=4 or more."
        )
