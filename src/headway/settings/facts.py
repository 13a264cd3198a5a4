"""What choices rest on, as plain numbers: the data, the device, the run that another begins with.

They are looked up once and handed over, so that choosing opens no file and asks no device, and the
same facts give the same settings anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headway.settings.model import ModelSettings, PictureSettings, SoundSettings


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    type: str = "cpu"
    free_bytes: int = 0
    """Of a GPU's memory."""

    bf16: bool = False
    """Whether it computes in bfloat16, not only pretends to."""

    @property
    def is_cpu(self) -> bool:
        return self.type == "cpu"

    @property
    def shown(self) -> str:
        return "a CPU" if self.is_cpu else "a GPU"


@dataclass(frozen=True, kw_only=True)
class Survey:
    """In which form media are stored, or look as if they had better be."""

    height: int = 0
    width: int = 0
    channels: int = 3
    frames: int = 1
    rate: int = 0
    """Samples a second, of recordings."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The run that another starts from, or learns from."""

    name: str
    task: str
    model: ModelSettings
    imported: bool = False


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Of data that is prepared. Tokens are rows where patches or frames are read."""

    n: int
    """Examples of training."""

    n_tokens: int = 0
    """Of an epoch, as the model reads them; of recordings as `front` cuts them."""

    longest: int = 0
    """Tokens of the longest example."""

    longest_text: int = 0
    """Tokens of the longest text that is to be written about media."""

    vocab_size: int = 0
    source_vocab_size: int = 0
    """Where the source has words of its own."""

    labels: tuple[str, ...] = ()
    answer: str = "label"
    """What is right of an example: one of the labels, several of them (`labels`), a `number`."""

    counts: tuple[int, ...] = ()
    """Examples of training that have each of the labels."""

    mean: float = 0.0
    std: float = 1.0
    """Of the numbers."""

    shapes: bool = False
    """Whether words come with their shapes, since their tokens have no case."""

    pairs: bool = False
    """Whether examples are two texts that belong together."""

    front: PictureSettings | SoundSettings | None = None
    """That media were prepared for."""

    stored: Survey = field(default_factory=Survey)
    """The form that media have now."""

    colours: Mapping[str, list[float]] = field(default_factory=dict)
    """Of pictures, each channel's `mean` and `std`."""

    begun: Origin | None = None
    epoch_steps: int = 0
    """Steps of an epoch, once its batches are cut; 0: not yet."""

    @property
    def picture(self) -> PictureSettings:
        assert isinstance(self.front, PictureSettings)
        return self.front

    @property
    def sound(self) -> SoundSettings:
        assert isinstance(self.front, SoundSettings)
        return self.front

    def rows(self, front: PictureSettings) -> int:
        """Of one stored picture, behind such a front."""
        return front.rows_of(self.stored.frames, self.stored.height, self.stored.width)


@dataclass(frozen=True)
class Choice:
    """A value for a setting that nobody asked for."""

    value: object
    why: str


Choices = Mapping[str, Choice]
"""By dotted keys."""

Values = Mapping[str, object]
"""Settings of one section by their names; which type each must have, its class knows."""


def because(why: str, section: str, values: Values) -> dict[str, Choice]:
    """These settings of a section, for this reason."""
    return {f"{section}.{name}": Choice(value, why) for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What a task wants where nobody says otherwise."""

    needs: Choices = field(default_factory=dict)
    """Settings of the model that follow from the task and its data: its heads, its labels."""

    model: Choices = field(default_factory=dict)
    """Of a model that nobody named: its family, its front, its layers and widths."""

    kept: Choices = field(default_factory=dict)
    """Of a model that comes from another run: what must be otherwise than there."""

    others: Choices = field(default_factory=dict)
    """Settings of training, of decoding, of the task: everything but the model."""

    room: int = 0
    """Tokens that the model must be able to read at once."""

    n_tokens: int = 0
    """Of an epoch."""

    epochs: int = 1
    least_steps: int = 100
    batch_tokens: int = 1024
    amount: str = ""
    """Of data, for reasons: `29,000 pairs`."""

    metrics: tuple[str, ...] = ()
    """Metrics that this data has. The first chooses the checkpoint."""

    why_metric: str = "the task's own"

    instead: str = ""
    """What to try where a model of another family was named."""

    def also(self, *choices: Choices) -> Proposal:
        """With other settings too; the last one holds."""
        others = dict(self.others)
        for one in choices:
            others |= one
        return replace(self, others=others)
