"""Facts that determine the automatic settings: the data, the device, and the run to start from.

They are collected once and passed on, so choosing settings opens no file and queries no device.
Equal facts give equal settings on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.settings.model import AudioSettings, ImageSettings, ModelSettings


@dataclass(frozen=True, kw_only=True)
class DeviceInfo:
    type: str = "cpu"
    free_bytes: int = 0
    """Free GPU memory in bytes."""

    bf16: bool = False
    """Whether the device computes in bfloat16 natively, without emulation."""

    @property
    def is_cpu(self) -> bool:
        return self.type == "cpu"

    @property
    def description(self) -> str:
        return "a CPU" if self.is_cpu else "a GPU"


@dataclass(frozen=True, kw_only=True)
class MediaFormat:
    """Format of images, video or audio: stored in the prepared data, or chosen from a sample of the
    files."""

    height: int = 0
    width: int = 0
    channels: int = 3
    frames: int = 1
    rate: int = 0
    """Sampling rate of audio in Hz."""


@dataclass(frozen=True, kw_only=True)
class ParentRun:
    """Parent of a new run: the run that provides its initial weights, or its teacher."""

    name: str
    task: str
    model: ModelSettings
    imported: bool = False


@dataclass(frozen=True, kw_only=True)
class DatasetStats:
    """Statistics of the prepared data. For media, tokens are patches or frames."""

    n: int
    """Number of training examples."""

    n_tokens: int = 0
    """Number of tokens per epoch as the model reads them; for audio, positions after the
    convolutions."""

    longest: int = 0
    """Length of the longest example in tokens."""

    longest_text: int = 0
    """Length of the longest target text of media (caption or transcript) in tokens."""

    vocab_size: int = 0
    source_vocab_size: int = 0
    """Size of the source vocabulary; 0 if source and target share one vocabulary."""

    labels: tuple[str, ...] = ()
    answer: str = "label"
    """Kind of target: one `label`, several `labels`, or a `number`."""

    counts: tuple[int, ...] = ()
    """Number of training examples with each label."""

    mean: float = 0.0
    std: float = 1.0
    """Standard deviation of numeric targets."""

    shapes: bool = False
    """Whether word shapes (capitalization and digits) are extra inputs, because the tokenizer
    ignores case."""

    pairs: bool = False
    """Whether each example is a pair of texts."""

    front: ImageSettings | AudioSettings | None = None
    """Input settings for which the media were prepared; None for text."""

    stored: MediaFormat = field(default_factory=MediaFormat)
    """Format in which the media are stored."""

    colours: Mapping[str, list[float]] = field(default_factory=dict)
    """`mean` and `std` of each colour channel of the images."""

    parent: ParentRun | None = None
    epoch_steps: int = 0
    """Number of steps per epoch; 0 until batches are formed."""

    @property
    def image(self) -> ImageSettings:
        assert isinstance(self.front, ImageSettings)
        return self.front

    @property
    def audio(self) -> AudioSettings:
        assert isinstance(self.front, AudioSettings)
        return self.front

    def rows(self, front: ImageSettings) -> int:
        """Return the number of patches of one stored image with these input settings."""
        return front.rows_of(self.stored.frames, self.stored.height, self.stored.width)


@dataclass(frozen=True)
class ChosenSetting:
    """An automatically chosen value of a setting, with its reason."""

    value: object
    reason: str


ChosenSettings = Mapping[str, ChosenSetting]
"""Automatically chosen settings by dotted key."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Default settings for one run, for everything that the user left open."""

    settings: ChosenSettings = field(default_factory=dict)
    family: str = ""
    """Default model family."""

    metrics: tuple[str, ...] = ()
    """Metrics that the data allows, the main metric first."""

    amount: str = ""
    """Amount of data as worded in reasons, such as `29,000 pairs`."""

    n_tokens: int = 0
    """Number of tokens per epoch."""

    epochs: int = 1
    least_steps: int = 100
    positions: int = 0
    """Sequence length that the model must support, in tokens."""

    sources: Mapping[str, str] = field(default_factory=dict)
    """Names of the rows of `defaults.toml` that `amount`, `epochs`, `least_steps` and `positions`
    come from."""

    def row_of(self, quantity: str) -> str:
        """Return the name of the row that a quantity comes from, as the end of a reason."""
        return f" [{self.sources[quantity]}]" if quantity in self.sources else ""

    @property
    def model(self) -> ChosenSettings:
        """Chosen settings of the model."""
        return {key: one for key, one in self.settings.items() if key.startswith("model.")}

    @property
    def others(self) -> ChosenSettings:
        """Chosen settings of training, decoding and the task, without those of the model."""
        return {key: one for key, one in self.settings.items() if key not in self.model}
