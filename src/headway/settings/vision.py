"""Settings of the image and video families: the input stage, the encoder and the output heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.errors import ConfigError
from headway.settings.body import Activation, BlockLayout, BodySettings, InitScheme, PositionKind
from headway.settings.effects import OF_MODEL, ModelFacts
from headway.settings.text import Seq2SeqSettings
from headway.specs.values import check_least, check_values

GRID_STRIDE = 8
"""Distance in pixels between neighbouring positions of the convolutional feature map: three layers
each halve the resolution."""


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """Image and video input: images are cut into patches, videos into tubelets."""

    height: int = 224
    """Height of training images in pixels. Prediction also accepts other sizes."""

    width: int = 224
    """Width of training images in pixels."""

    channels: int = 3
    """Number of colour channels. 3: colour. 1: greyscale."""

    patch: int = 16
    """Side length of a patch in pixels."""

    stride: int | None = None
    """Distance between patches in pixels. None: equal to `patch`, so patches do not overlap."""

    frames: int = 1
    """Number of frames per video. 1: images."""

    tubelet: int = 1
    """Number of consecutive frames that one patch of a video spans."""

    stem: Literal["patches", "conv", "grid"] = "patches"
    """Conversion of pixels to tokens: a linear projection of each patch (`patches`, as in ViT),
    convolutions before that projection (`conv`), or the feature map of a small convolutional
    network (`grid`, as in Show, Attend and Tell)."""

    stem_width: int = 64
    """Number of channels of the first convolution of the stem."""

    stem_layers: int = 2
    """Number of convolutions, with `stem = "conv"`."""

    class_token: bool = True
    """Prepend a class token, as in ViT."""

    distil_token: bool = False
    """Prepend a distillation token that learns from a teacher, as in DeiT."""

    positions: Literal["learned", "sinusoidal", "none"] = "learned"
    """Positional encoding of the patches. It is interpolated for images that differ from `height`
    and `width`."""

    mean: tuple[float, ...] = (0.5,)
    """Mean that is subtracted from pixel values (0 to 1): one number, or one per channel."""

    std: tuple[float, ...] = (0.5,)
    """Standard deviation by which pixel values are divided: one number, or one per channel."""

    def __post_init__(self) -> None:
        check_values(self)
        sizes = ("height", "width", "patch", "frames", "tubelet", "stem_width", "stem_layers")
        check_least(self, 1, *sizes, "stride", of="image.")
        if self.channels not in (1, 3):
            raise ConfigError(
                f"image.channels={self.channels} must be 1 (greyscale) or 3 (colour)."
            )
        if self.frames % self.tubelet:
            raise ConfigError(
                f"image.frames={self.frames} must be a multiple of image.tubelet={self.tubelet}."
            )
        if self.tubelet != 1:
            OF_MODEL.check(
                {"model.image.tubelet": self.tubelet}, ModelFacts(grid=self.stem == "grid")
            )
        if self.distil_token and not self.class_token:
            raise ConfigError(
                "image.distil_token=true needs a class token. Set image.class_token=true too."
            )
        for name in ("mean", "std"):
            if len(getattr(self, name)) not in (1, self.channels):
                raise ConfigError(
                    f"image.{name}={list(getattr(self, name))} must have 1 number, or "
                    f"{self.channels} (one for each channel)."
                )
        if min(self.std) <= 0:
            raise ConfigError(f"image.std={list(self.std)} must contain only positive numbers.")
        if min(self.grid) < 1:
            raise ConfigError(
                f"images of {self.height} × {self.width} pixels are smaller than image.patch="
                f"{self.patch}. Use a smaller patch."
            )

    @property
    def extra(self) -> int:
        """Number of special tokens before the patches."""
        return int(self.class_token) + int(self.distil_token)

    @property
    def step(self) -> int:
        return self.patch if self.stride is None else self.stride

    @property
    def grid(self) -> tuple[int, int, int]:
        """Number of patches of a training image along each axis, as (time, height, width)."""
        return self.grid_of(self.frames, self.height, self.width)

    def grid_of(self, frames: int, height: int, width: int) -> tuple[int, int, int]:
        """Return the number of patches along each axis, as (time, height, width), for an image of
        any size in pixels."""
        time = max(1, frames // self.tubelet)
        if self.stem == "grid":
            return time, -(-height // GRID_STRIDE), -(-width // GRID_STRIDE)
        lines, columns = ((size - self.patch) // self.step + 1 for size in (height, width))
        return time, max(0, lines), max(0, columns)

    def rows_of(self, frames: int, height: int, width: int) -> int:
        """Return the number of tokens that an image takes in a batch."""
        time, lines, columns = self.grid_of(frames, height, width)
        return self.extra + time * lines * columns


@dataclass(frozen=True, kw_only=True)
class ImageEncoderSettings(BodySettings):
    """Image encoders such as ViT and DeiT. Defaults: ViT-B/16."""

    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    activation: Activation = "gelu"
    norm_eps: float = 1e-12
    block_layout: BlockLayout = "pre"
    positions: PositionKind = "none"
    attention_bias: str = "qkvo"
    dropout: float = 0.0
    init: InitScheme = "bert"

    image: ImageSettings = ImageSettings()
    """Conversion of images and videos to input vectors."""

    heads: tuple[Literal["classes", "distilled", "rebuild", "pooled"], ...] = ("classes",)
    """Output heads: `classes`, classes from the distillation token (`distilled`), reconstruction of
    masked patches (`rebuild`), ViT's pooler (`pooled`)."""

    pooling: Literal["first", "mean"] = "first"
    """Input of the classifier: the class token (`first`), or the mean of all tokens (`mean`)."""

    n_labels: int = 1000
    """Number of classes, if there is a `classes` head."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_no_added_positions(self, "image")
        check_label_heads(self.heads, self.n_labels)
        check_grid_width(self, self.image)
        if self.pooling == "first" and not self.image.class_token:
            raise ConfigError(
                "pooling=first needs a class token. Set image.class_token=true, or pooling=mean."
            )
        if "distilled" in self.heads and not self.image.distil_token:
            raise ConfigError(
                "the head 'distilled' needs a distillation token. Set image.distil_token=true."
            )


@dataclass(frozen=True, kw_only=True)
class MediaSeq2SeqSettings(Seq2SeqSettings):
    """Settings of an encoder of images, videos or audio with a text decoder."""

    vocab_size: int = 1000
    d_model: int = 256
    n_layers: int = 4
    n_heads: int = 4
    d_ff: int = 1024
    block_layout: BlockLayout = "pre"
    activation: Activation = "gelu"
    tie: Literal["all", "source-target", "source-softmax", "target-softmax", "none"] = (
        "target-softmax"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_vocab_size is not None or self.tie not in ("target-softmax", "none"):
            raise ConfigError(
                "a model of images or audio has no source vocabulary. Remove source_vocab_size, "
                "and use tie=target-softmax or tie=none."
            )


@dataclass(frozen=True, kw_only=True)
class ImageSeq2SeqSettings(MediaSeq2SeqSettings):
    """A captioning model, consisting of an image or video encoder and a text decoder."""

    max_len: int = 128
    image: ImageSettings = ImageSettings(class_token=False)
    """Conversion of images and videos to input vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_grid_width(self, self.image)


def check_grid_width(settings: BodySettings, image: ImageSettings) -> None:
    if image.positions != "none" and settings.d_model % 4:
        raise ConfigError(
            f"d_model={settings.d_model} must be a multiple of 4, because image.positions="
            f"{image.positions} encodes rows and columns. Try "
            f"d_model={max(4, settings.d_model // 4 * 4)}, or set image.positions=none."
        )


def check_no_added_positions(settings: BodySettings, section: str) -> None:
    """Raise an error for positional encodings that are added to embeddings, because media models
    set them in their input settings."""
    if settings.positions in ("learned", "sinusoidal", "sinusoidal-halves"):
        raise ConfigError(
            f"positions={settings.positions!r} applies only to text. Set {section}.positions "
            "instead, or use positions=none, rotary, alibi or relative."
        )


def check_label_heads(heads: tuple[str, ...], n_labels: int) -> None:
    if len(set(heads)) != len(heads):
        raise ConfigError(f"heads={list(heads)} lists a head twice. List each head only once.")
    if {"classes", "distilled"} & set(heads) and n_labels < 1:
        raise ConfigError(
            f"heads={list(heads)} needs labels, but n_labels={n_labels}. Set n_labels to the "
            "number of classes."
        )
