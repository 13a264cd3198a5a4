"""The families that listen: how recordings become rows, and what reads them out."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from headway.errors import ConfigError
from headway.settings.body import (
    Activation,
    BodySettings,
    Positions,
    Scheme,
    Wiring,
    check_values,
)
from headway.settings.value_types import check_least
from headway.settings.vision import (
    MediaSeq2SeqSettings,
    check_label_heads,
    check_no_added_positions,
)


@dataclass(frozen=True, kw_only=True)
class SoundSettings:
    """The front: a log-mel picture of a recording, then convolutions that make rows of its frames.
    Defaults: Whisper's."""

    rate: int = 16_000
    """Samples a second; recordings are brought to it."""

    n_fft: int = 400
    """Samples of a frame: 25 ms at 16 kHz."""

    hop: int = 160
    """From one frame to the next: 10 ms."""

    bands: int = 80
    """Mel bands."""

    scale: Literal["whisper", "standard"] = "whisper"
    """Whisper's range of 8 below the loudest, or each band with mean 0 and variance 1."""

    strides: tuple[int, ...] = (1, 2)
    """Of convolutions three frames wide; their product is the frames that a row stands for."""

    positions: Literal["sinusoidal", "whisper", "learned", "none"] = "sinusoidal"
    """Of rows in time: the paper's, with Whisper's rates, or trained."""

    max_rows: int = 1500
    """The longest recording in rows: 30 s in Whisper. Only learned positions end there."""

    pad_s: float = 0.0
    """Shorter recordings are filled up with silence to so many seconds. Whisper needs 30."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 1, "rate", "n_fft", "hop", "bands", "max_rows", of="sound.")
        if not self.strides or min(self.strides) < 1:
            raise ConfigError(
                f"sound.strides={list(self.strides)} must be 1 or more, at least one."
            )
        if self.hop > self.n_fft:
            raise ConfigError(
                f"sound.hop={self.hop} leaves gaps between frames of sound.n_fft={self.n_fft}."
            )
        if self.bands > self.n_fft // 2 + 1:
            raise ConfigError(
                f"sound.bands={self.bands} are more than the {self.n_fft // 2 + 1} frequencies "
                f"that sound.n_fft={self.n_fft} tells apart."
            )
        check_least(self, 0, "pad_s", of="sound.")

    @property
    def row_seconds(self) -> float:
        """The time that a row stands for."""
        return self.hop * prod(self.strides) / self.rate

    @property
    def most_rows(self) -> int | None:
        """Rows that the front has positions for, if there is an end to them."""
        return self.max_rows if self.positions == "learned" else None

    def frames_of(self, n_samples: int) -> int:
        """Frames of a recording, filled up where it is to be; at least one."""
        return max(1, max(n_samples, round(self.pad_s * self.rate)) // self.hop)

    def rows_of(self, n_samples: int) -> int:
        """Rows of the flat batch that a recording becomes."""
        rows = self.frames_of(n_samples)
        for stride in self.strides:
            rows = -(-rows // stride)
        return rows


@dataclass(frozen=True, kw_only=True)
class SoundEncoderSettings(BodySettings):
    """An encoder of recordings: speakers, words of a few, symbols by CTC."""

    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 4
    d_ff: int = 1024
    activation: Activation = "gelu"
    wiring: Wiring = "pre"
    positions: Positions = "none"
    attention_bias: str = "qkvo"
    init: Scheme = "bert"

    sound: SoundSettings = SoundSettings()
    """How recordings become rows."""

    heads: tuple[Literal["classes", "ctc", "rebuild"], ...] = ("classes",)
    """What is read out: classes of recordings, symbols of rows (CTC), hidden frames."""

    pooling: Literal["mean", "first"] = "mean"
    """How a recording becomes one vector: the mean of all rows, or the first."""

    n_labels: int = 10
    """Classes, where there is such a head."""

    vocab_size: int = 32
    """Symbols of CTC beside the blank, which is the last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_no_added_positions(self, "sound")
        check_label_heads(self.heads, self.n_labels)
        check_wave_width(self, self.sound)
        check_least(self, 1, "vocab_size")


@dataclass(frozen=True, kw_only=True)
class SoundSeq2SeqSettings(MediaSeq2SeqSettings):
    """A transcriber: an encoder of recordings and a decoder of words. Whisper is one."""

    max_len: int = 448
    sound: SoundSettings = SoundSettings()
    """How recordings become rows."""

    ctc: bool = False
    """Symbols by CTC, too, read from the encoder; the blank is the last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_wave_width(self, self.sound)


def check_wave_width(settings: BodySettings, sound: SoundSettings) -> None:
    if sound.positions in ("sinusoidal", "whisper") and settings.d_model % 2:
        raise ConfigError(
            f"sinusoidal positions are pairs of sine and cosine, so d_model={settings.d_model} "
            "must be even. Or set sound.positions=none."
        )
    if sound.positions == "whisper" and settings.d_model < 4:
        raise ConfigError(
            f"Whisper's positions go from one rate to another: d_model={settings.d_model} has "
            "room for one. Use 4 or more."
        )
