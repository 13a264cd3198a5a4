"""What single tasks can be told, a section each; where a run starts from; LoRA; distillation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.config.body import check_values
from headway.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CompleteSettings:
    """Continuing text: a causal language model."""

    context: int | None = None
    """Tokens read at a time; longer documents are cut into windows. None: the model's max_len."""

    drop_fields: float = 0.1
    """With data.fields: the share of fields that a document is trained without."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.context is not None and self.context < 2:
            raise ConfigError(f"context={self.context} must be at least 2.")
        _share("drop_fields", self.drop_fields)


@dataclass(frozen=True, kw_only=True)
class FillSettings:
    """Filling gaps: a masked language model, or what is hidden of pictures and recordings."""

    context: int | None = None
    """Tokens read at a time; longer documents are cut into windows. None: the model's max_len."""

    mask: float = 0.15
    """The share of tokens that are to be guessed."""

    whole_words: bool = False
    """All pieces of a word are masked together."""

    random: float = 0.1
    """Of the tokens to be guessed, the share replaced by a random one instead of the mask ..."""

    keep: float = 0.1
    """... and the share left as it is."""

    what: Literal["auto", "pictures", "videos", "sounds"] = "auto"
    """Of media: what the files hold. `auto`: as their names say."""

    span: int = 1
    """Of media: rows that are hidden together, a square with so many patches on each side, or so
    many rows of a recording."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.context is not None and self.context < 2:
            raise ConfigError(f"context={self.context} must be at least 2.")
        if self.span < 1:
            raise ConfigError(f"span={self.span} must be at least 1.")
        for name in ("mask", "random", "keep"):
            _share(name, getattr(self, name))
        if not self.mask:
            raise ConfigError("mask=0 leaves nothing to guess. BERT uses 0.15.")
        if self.random + self.keep > 1:
            raise ConfigError("random and keep are shares of the masked tokens: at most 1 in all.")


@dataclass(frozen=True, kw_only=True)
class ClassifySettings:
    balance: bool = False
    """Weigh examples so that every class counts the same."""


@dataclass(frozen=True, kw_only=True)
class TagSettings:
    scheme: Literal["auto", "bio", "bioes", "iob1", "plain"] = "auto"
    """How the files mark spans; `plain`: each tag stands for itself, as parts of speech do."""

    crf: bool = False
    """Score sequences of tags, not only single ones."""

    prefix_strip: str = ""
    """What every word of the files begins with and is to be taken off."""

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class EmbedSettings:
    temperature: float = 0.05
    """What similarities are divided by before they compete."""

    normalise: bool = True
    """Vectors of length one."""

    drop_words: float = 0.0
    """With texts alone: the share of its words that each of the two readings of a text lacks."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("drop_words", self.drop_words)
        if self.temperature <= 0:
            raise ConfigError(f"temperature={self.temperature:g} must be positive.")


@dataclass(frozen=True, kw_only=True)
class SeeSettings:
    """Classes of pictures."""

    balance: bool = False
    """Weigh examples so that every class counts the same."""

    teacher: str = ""
    """A run of the same classes: what it answers teaches the distillation token, as in DeiT."""


@dataclass(frozen=True, kw_only=True)
class WatchSettings:
    """Classes of videos."""

    balance: bool = False
    """Weigh examples so that every class counts the same."""


@dataclass(frozen=True, kw_only=True)
class CaptionSettings:
    """Pictures and videos in words."""

    what: Literal["pictures", "videos"] = "pictures"
    hide: float = 0.0
    """The share of its own words that the decoder does not get to read in training: what comes next
    it must then see in the picture, instead of knowing which words follow each other."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("hide", self.hide)


@dataclass(frozen=True, kw_only=True)
class TranscribeSettings:
    """Speech as text."""

    ctc: float = 0.3
    """The weight of CTC, in training and in searching; 0: the decoder alone, 1: CTC alone."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("ctc", self.ctc)


@dataclass(frozen=True, kw_only=True)
class IdentifySettings:
    """Who speaks."""

    balance: bool = False
    """Weigh examples so that every class counts the same."""

    margin: float = 0.0
    """Radians that a recording must be nearer to its speaker than to others (ArcFace). 0: plain
    classes, without angles."""

    scale: float = 30.0
    """What cosines are multiplied by where there is a margin."""

    def __post_init__(self) -> None:
        check_values(self)
        if not 0.0 <= self.margin < 1.5:
            raise ConfigError(f"margin={self.margin:g} must be 0 or more and below 1.5.")
        if self.scale <= 0:
            raise ConfigError(f"scale={self.scale:g} must be positive.")


@dataclass(frozen=True, kw_only=True)
class StartSettings:
    """Where the weights come from before training: `--from RUN`."""

    run: str = ""
    freeze: int = 0
    """The front and so many of the first layers stay as they are; -1: all but the heads."""

    layer_decay: float = 1.0
    """Each layer learns at this share of the rate of the one above it."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.freeze < -1:
            raise ConfigError(f"freeze={self.freeze} must be -1 (all but the heads), 0 or more.")
        if not 0.0 < self.layer_decay <= 1.0:
            raise ConfigError(f"layer_decay={self.layer_decay:g} must be above 0, at most 1.")
        if not self.run and (self.freeze or self.layer_decay != 1.0):
            raise ConfigError("freeze and layer_decay have no effect without --from RUN.")


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Low-rank changes of frozen weights (Hu et al. 2021); 0: train the weights themselves."""

    rank: int = 0
    alpha: float = 16.0
    targets: Literal["attention", "all"] = "all"
    """Which matrices: those of attention, or those of the feed-forward layers too."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.rank < 0:
            raise ConfigError(f"rank={self.rank} must be 0 (no LoRA) or more.")
        if self.alpha <= 0:
            raise ConfigError(f"alpha={self.alpha:g} must be positive.")


@dataclass(frozen=True, kw_only=True)
class DistilSettings:
    """Learning from a teacher run, as DistilBERT: the weights of the three terms of its loss."""

    teacher: str = ""
    layers: int | None = None
    """Layers of the student. None: half of the teacher's."""

    temperature: float = 2.0
    soft: float = 5.0
    """For agreeing with the teacher's probabilities ..."""

    hard: float = 2.0
    """... for the task itself ..."""

    cosine: float = 1.0
    """... and for last hidden states that point the same way."""

    def __post_init__(self) -> None:
        check_values(self)
        for name in ("soft", "hard", "cosine"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be 0 or more.")
        if self.temperature <= 0:
            raise ConfigError(f"temperature={self.temperature:g} must be positive.")
        if self.layers is not None and self.layers < 1:
            raise ConfigError(f"layers={self.layers} must be at least 1.")


SECTIONS = {
    "complete": CompleteSettings,
    "fill": FillSettings,
    "classify": ClassifySettings,
    "tag": TagSettings,
    "embed": EmbedSettings,
    "see": SeeSettings,
    "watch": WatchSettings,
    "caption": CaptionSettings,
    "transcribe": TranscribeSettings,
    "identify": IdentifySettings,
}
"""The sections that only the task of their name reads."""


def _share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}={value:g} is a share: 0 to 1.")
