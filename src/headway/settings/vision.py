"""The families that look at pictures and videos: how these become rows, and what reads them out."""

from __future__ import annotations

from dataclasses import dataclass
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
from headway.settings.text import Seq2SeqSettings
from headway.settings.value_types import check_least

GRID_STRIDE = 8
"""Pixels between the cells of the convolutional feature grid: three layers halve it each."""


@dataclass(frozen=True, kw_only=True)
class PictureSettings:
    """The front: pictures are cut into patches, videos into tubelets, each of them a row."""

    height: int = 224
    """What pictures are brought to for training; other sizes can be read too."""

    width: int = 224
    """See `height`."""

    channels: int = 3
    """3: colours, 1: grey."""

    patch: int = 16
    """Pixels of a side of a patch."""

    stride: int | None = None
    """From one patch to the next. None: as far as a patch is wide, so that none overlap."""

    frames: int = 1
    """Of a video; 1 is a picture."""

    tubelet: int = 1
    """Frames that one patch of a video spans."""

    stem: Literal["patches", "conv", "grid"] = "patches"
    """What makes rows of pixels: one matrix a patch (ViT), a few convolutions before it, or a
    small convolutional network whose cells are the rows (Show, Attend and Tell)."""

    stem_width: int = 64
    """Channels of the stem's first convolution."""

    stem_layers: int = 2
    """Convolutions of the stem `conv`."""

    class_token: bool = True
    """A first row of its own, that reads the whole picture."""

    distil_token: bool = False
    """A second one, that learns from a teacher, as in DeiT."""

    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    """Of rows on the grid; interpolated for other sizes than `height` and `width`."""

    mean: tuple[float, ...] = (0.5,)
    """Subtracted from pixels between 0 and 1: one number, or one a channel ..."""

    std: tuple[float, ...] = (0.5,)
    """... and what they are divided by then."""

    def __post_init__(self) -> None:
        check_values(self)
        sizes = ("height", "width", "patch", "frames", "tubelet", "stem_width", "stem_layers")
        check_least(self, 1, *sizes, "stride", of="picture.")
        if self.channels not in (1, 3):
            raise ConfigError(f"picture.channels={self.channels} must be 1 (grey) or 3 (colours).")
        if self.frames % self.tubelet:
            raise ConfigError(
                f"picture.frames={self.frames} must be a multiple of "
                f"picture.tubelet={self.tubelet}."
            )
        if self.stem == "grid" and self.tubelet != 1:
            raise ConfigError(
                f"picture.tubelet={self.tubelet} has no effect on picture.stem=grid, whose cells "
                "are of one frame. Use picture.tubelet=1."
            )
        if self.distil_token and not self.class_token:
            raise ConfigError("picture.distil_token stands behind the class token: set that too.")
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                raise ConfigError(f"picture.{name} must have 1 or {self.channels} numbers.")
        if min(self.std) <= 0:
            raise ConfigError(f"picture.std={list(self.std)} must be positive.")
        if min(self.grid) < 1:
            raise ConfigError(
                f"pictures of {self.height} × {self.width} are smaller than a patch "
                f"({self.patch}). Use a smaller picture.patch."
            )

    @property
    def extra(self) -> int:
        """Rows before those of the grid."""
        return int(self.class_token) + int(self.distil_token)

    @property
    def step(self) -> int:
        return self.patch if self.stride is None else self.stride

    @property
    def grid(self) -> tuple[int, int, int]:
        """Rows of a picture of the usual size, by time, height and width."""
        return self.grid_of(self.frames, self.height, self.width)

    def grid_of(self, frames: int, height: int, width: int) -> tuple[int, int, int]:
        """The same for any size, in pixels."""
        time = max(1, frames // self.tubelet)
        if self.stem == "grid":
            return time, -(-height // GRID_STRIDE), -(-width // GRID_STRIDE)
        lines, columns = ((size - self.patch) // self.step + 1 for size in (height, width))
        return time, max(0, lines), max(0, columns)

    def rows_of(self, frames: int, height: int, width: int) -> int:
        """Rows of the flat batch that a picture becomes."""
        time, lines, columns = self.grid_of(frames, height, width)
        return self.extra + time * lines * columns


@dataclass(frozen=True, kw_only=True)
class PictureEncoderSettings(BodySettings):
    """ViT, DeiT and their kin: an encoder of patches. Defaults: ViT-B/16."""

    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    activation: Activation = "gelu"
    norm_eps: float = 1e-12
    wiring: Wiring = "pre"
    positions: Positions = "none"
    attention_bias: str = "qkvo"
    dropout: float = 0.0
    init: Scheme = "bert"

    picture: PictureSettings = PictureSettings()
    """How pictures and videos become rows."""

    heads: tuple[Literal["classes", "distilled", "rebuild", "pooled"], ...] = ("classes",)
    """What is read out: classes, those of the distillation token, hidden patches, ViT's pooler."""

    pooling: Literal["first", "mean"] = "first"
    """What classes are read from: the class token, or the mean of all rows."""

    n_labels: int = 1000
    """Classes, where there is such a head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_no_added_positions(self, "picture")
        check_label_heads(self.heads, self.n_labels)
        check_grid_width(self, self.picture)
        if self.pooling == "first" and not self.picture.class_token:
            raise ConfigError(
                "pooling=first reads the class token, and there is none. Set pooling=mean, or "
                "picture.class_token=true."
            )
        if "distilled" in self.heads and not self.picture.distil_token:
            raise ConfigError(
                "the head 'distilled' reads the distillation token: set picture.distil_token=true."
            )


@dataclass(frozen=True, kw_only=True)
class MediaSeq2SeqSettings(Seq2SeqSettings):
    """An encoder of what has no words and a decoder of words."""

    vocab_size: int = 1000
    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 4
    d_ff: int = 1024
    wiring: Wiring = "pre"
    activation: Activation = "gelu"
    tie: Literal["all", "source-target", "source-softmax", "target-softmax", "none"] = (
        "target-softmax"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_vocab_size is not None or self.tie not in ("target-softmax", "none"):
            raise ConfigError(
                "the source has no words here: leave source_vocab_size out, and use "
                "tie=target-softmax or tie=none."
            )


@dataclass(frozen=True, kw_only=True)
class PictureSeq2SeqSettings(MediaSeq2SeqSettings):
    """A captioner: an encoder of patches and a decoder of words."""

    max_len: int = 128
    picture: PictureSettings = PictureSettings(class_token=False)
    """How pictures and videos become rows."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_grid_width(self, self.picture)


def check_grid_width(settings: BodySettings, picture: PictureSettings) -> None:
    if picture.positions != "none" and settings.d_model % 4:
        raise ConfigError(
            f"positions on a grid are pairs for lines and pairs for columns, so "
            f"d_model={settings.d_model} must be a multiple of 4. Or set picture.positions=none."
        )


def check_no_added_positions(settings: BodySettings, section: str) -> None:
    """Rows get their added positions in the front, by its own setting."""
    if settings.positions in ("learned", "sinusoidal", "sinusoidal-halves"):
        raise ConfigError(
            f"positions={settings.positions!r} are of tokens; rows have {section}.positions. "
            "Here positions can be none, or work inside attention: rotary, alibi, relative."
        )


def check_label_heads(heads: tuple[str, ...], n_labels: int) -> None:
    if len(set(heads)) != len(heads):
        raise ConfigError(f"heads={list(heads)} names a head twice.")
    if {"classes", "distilled"} & set(heads) and n_labels < 1:
        raise ConfigError("a 'classes' head needs n_labels, the number of labels.")
