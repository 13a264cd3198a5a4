"""Settings sections that belong to one task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.errors import ConfigError
from headway.specs.values import TracksExplicit, check_least, check_positive, check_values


@dataclass(frozen=True, kw_only=True)
class CompleteSettings(TracksExplicit):
    """Settings for text generation with a causal language model."""

    context: int | None = None
    """Length of a window in tokens; longer documents are cut into windows. None: the model's
    max_len."""

    drop_fields: float = 0.1
    """With `data.fields`: probability that a field is left out of a training document."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 2, "context")
        _share("drop_fields", self.drop_fields)


@dataclass(frozen=True, kw_only=True)
class FillSettings(TracksExplicit):
    """Settings for masked prediction: masked language models, and models that reconstruct masked
    parts of images, video or audio."""

    context: int | None = None
    """Length of a window in tokens; longer documents are cut into windows. None: the model's
    max_len."""

    mask: float = 0.15
    """Fraction of the input to mask and predict: of the tokens of text, the patches of images and
    video, or the time steps of audio."""

    whole_words: bool = False
    """Mask all sub-word tokens of a word together (whole-word masking)."""

    random: float = 0.1
    """Fraction of the masked tokens that are replaced by a random token instead of the mask
    token."""

    keep: float = 0.1
    """Fraction of the masked tokens that are left unchanged in the input."""

    modality: Literal["auto", "image", "video", "audio"] = "auto"
    """Kind of media in the files. `auto`: detected from the files."""

    span: int = 1
    """Images, video and audio: size of a masked block, in patches per side of a square or in
    consecutive time steps of audio."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 2, "context")
        check_least(self, 1, "span")
        for name in ("mask", "random", "keep"):
            _share(name, getattr(self, name))
        if not self.mask:
            raise ConfigError(
                "mask=0 leaves nothing to predict. Use a value above 0; BERT uses 0.15."
            )
        if self.random + self.keep > 1:
            raise ConfigError(
                f"random={self.random:g} and keep={self.keep:g} add up to "
                f"{self.random + self.keep:g}. The sum of these fractions of the masked tokens "
                "must be at most 1."
            )


@dataclass(frozen=True, kw_only=True)
class LabelSettings(TracksExplicit):
    """Settings shared by tasks that predict one class per example."""

    balance: bool = False
    """Weight the examples so that every class counts equally in the loss."""


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(LabelSettings):
    """Settings for classification of text, images, video and audio, including multi-label
    classification and regression."""

    answer: Literal["auto", "label", "labels", "number"] = "auto"
    """Kind of target: one label, any number of labels, or a number (regression). `auto`: several
    labels if the files contain lists of labels, otherwise one."""

    mean: float | None = None
    """Regression: value subtracted from the targets in training. Predictions are converted back to
    the unit of the data. None: the mean of the training data."""

    std: float | None = None
    """Regression: value by which the targets are divided in training, after the mean is subtracted.
    None: the standard deviation of the training data."""

    threshold: float | None = None
    """Multi-label classification: minimum probability of a label that is predicted. None: the
    threshold with the highest micro F1 on the validation data, fitted at the end of training."""

    modality: Literal["auto", "text", "image", "video", "audio"] = "auto"
    """Kind of input to classify. `auto`: text, or the kind of media detected from the files."""

    teacher: str = ""
    """Images: name or folder of a run with the same classes. Its predictions train the distillation
    token, as in DeiT. Empty: none."""

    def __post_init__(self) -> None:
        check_values(self)
        check_positive(self, "std")
        if self.threshold is not None and not 0.0 < self.threshold < 1.0:
            raise ConfigError(f"classify.threshold={self.threshold:g} must be between 0 and 1.")
        if self.answer in ("labels", "number") and self.balance:
            raise ConfigError(
                "classify.balance=true needs one class per example and cannot be used with "
                f"classify.answer={self.answer}. Remove classify.balance."
            )
        if self.answer in ("labels", "number") and self.teacher:
            raise ConfigError(
                f"classify.teacher={self.teacher} cannot be used with "
                f"classify.answer={self.answer}: this teacher predicts one class per image. Use "
                "distil.teacher, which works with every kind of target."
            )


@dataclass(frozen=True, kw_only=True)
class TagSettings(TracksExplicit):
    """Settings for tagging the words of sentences."""

    scheme: Literal["auto", "bio", "bioes", "iob1", "plain"] = "auto"
    """Tagging scheme of the files. `plain`: independent tags without spans, such as parts of
    speech. `auto`: detected from the tags."""

    crf: bool = False
    """Add a conditional random field (CRF), which scores sequences of tags instead of single
    tags."""

    prefix_strip: str = ""
    """Prefix to remove from each word that begins with it. Empty: none."""

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class EmbedSettings(TracksExplicit):
    """Settings for embeddings of text, images, video and audio."""

    modality: Literal["auto", "text", "image", "video", "audio"] = "auto"
    """Kind of input to embed. `auto`: text, or the kind of media detected from the files."""

    temperature: float = 0.05
    """Temperature of the contrastive loss. Similarities are divided by it before the softmax."""

    normalise: bool = True
    """Normalize embeddings to length 1."""

    drop_words: float = 0.0
    """Training on texts without pairs: fraction of the words that are dropped at random from each
    of the two copies of a text."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("drop_words", self.drop_words)
        check_positive(self, "temperature")


@dataclass(frozen=True, kw_only=True)
class CaptionSettings(TracksExplicit):
    """Settings for captioning of images and video."""

    modality: Literal["image", "video"] = "image"
    """Kind of input to caption."""

    hide: float = 0.0
    """Fraction of the decoder's input tokens that are masked in training. The decoder then has to
    look at the image instead of predicting each word from the previous ones."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("hide", self.hide)


@dataclass(frozen=True, kw_only=True)
class TranscribeSettings(TracksExplicit):
    """Settings for speech recognition."""

    ctc: float = 0.3
    """Weight of CTC in the loss and in decoding. 0: only the decoder. 1: only CTC."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("ctc", self.ctc)


@dataclass(frozen=True, kw_only=True)
class IdentifySettings(LabelSettings):
    """Settings for speaker identification and verification."""

    margin: float = 0.0
    """Additive angular margin of the loss, in radians (ArcFace). 0: ordinary softmax."""

    scale: float = 30.0
    """Factor by which cosine similarities are multiplied, if there is a margin."""

    def __post_init__(self) -> None:
        check_values(self)
        if not 0.0 <= self.margin < 1.5:
            raise ConfigError(f"margin={self.margin:g} must be at least 0 and below 1.5.")
        check_positive(self, "scale")


def _share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}={value:g} must be between 0 and 1.")
