"""The table of tasks: the inputs, outputs, scores, settings and options of each.

This is the only list of tasks. The command line, the checks of settings, reports, exports and pages
read it, so a new task needs one row here and one module in this package. Neither torch nor numpy is
imported, because `--help` reads this module too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from headway.errors import ConfigError, suggest
from headway.settings.body import check_values
from headway.settings.decode import DecodeSettings
from headway.settings.explicit import TracksExplicit
from headway.settings.value_types import check_least, check_positive

if TYPE_CHECKING:
    from headway.settings.model import ModelSettings
    from headway.settings.run import RunSettings

Modality = Literal["text", "image", "video", "audio"]
"""Kind of input that a model reads."""

DataKind = Modality | Literal["words", "label", "labels", "number", "tags"]
"""Kind of values in a column of the data."""

Reads = Literal["documents", "labelled", "tagged", "fields", "texts", "pairs", "media"]
"""Form of the examples in data files. Inputs for prediction use the same columns."""

OutputKind = Literal["text", "label", "labels", "number", "tags", "gaps", "vector"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    """Name in `metrics.jsonl` and for `train.metric`."""

    label: str
    """Name in tables, reports and pages."""

    lower: bool = False
    """Whether lower values are better."""

    unit: str = ""
    digits: int = 2

    @property
    def most(self) -> float | None:
        """The largest possible value, or None: error rates, for example, may exceed 100 %."""
        in_percent = self.unit == "%" or self.name in ("bleu", "chrf")
        return 100.0 if in_percent and not self.lower else None

    def shown(self, value: float) -> str:
        return f"{value:.{self.digits}f}" + (f" {self.unit}" if self.unit else "")

    @property
    def axis(self) -> str:
        """The label with its unit, for table columns and chart axes."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def better(self, one: float, other: float) -> bool:
        return one < other if self.lower else one > other


METRICS: dict[str, Metric] = {
    one.name: one
    for one in (
        Metric(name="accuracy", label="accuracy", unit="%"),
        Metric(name="top5", label="top-5 accuracy", unit="%"),
        Metric(name="micro_f1", label="micro F1", unit="%"),
        Metric(name="f1", label="F1", unit="%"),
        Metric(name="precision", label="precision", unit="%"),
        Metric(name="recall", label="recall", unit="%"),
        Metric(name="mrr", label="MRR", unit="%"),
        Metric(name="exact_match", label="exact match", unit="%"),
        Metric(name="bleu", label="BLEU"),
        Metric(name="chrf", label="chrF"),
        Metric(name="cider", label="CIDEr-D", unit="of 10", digits=3),
        Metric(name="wer", label="WER", lower=True, unit="%"),
        Metric(name="cer", label="CER", lower=True, unit="%"),
        Metric(name="map", label="mean average precision", unit="%"),
        Metric(name="mae", label="MAE", lower=True, digits=4),
        Metric(name="rmse", label="RMSE", lower=True, digits=4),
        Metric(name="r2", label="R²", digits=4),
        Metric(name="pearson", label="Pearson", digits=4),
        Metric(name="spearman", label="Spearman", digits=4),
        Metric(name="variance_explained", label="variance explained", unit="%"),
        Metric(name="ppl", label="perplexity", lower=True),
        Metric(name="bits_per_byte", label="bits per byte", lower=True, digits=3),
        Metric(name="loss", label="loss", lower=True, digits=3),
    )
}
"""All built-in metrics by name, in the order of reports. A task can only report metrics that are
listed here. `mrr` is the mean reciprocal rank. `explained` is the fraction of the variance of
masked parts that the model reconstructs."""


def named_metric(name: str, better: object) -> Metric:
    return Metric(name=name, label=name, lower=better == "lower", digits=3)


def custom_metrics_of(asked: Mapping[str, object]) -> dict[str, Metric]:
    """Custom metrics of a run, from its `metrics.NAME` settings (`lower` or `higher` is better)."""
    keys = {key.removeprefix("metrics."): one for key, one in asked.items()
            if key.startswith("metrics.")}  # fmt: skip
    return {name: named_metric(name, better) for name, better in keys.items()}


@dataclass(frozen=True, kw_only=True)
class Need:
    """A data column that a task needs."""

    name: str
    """Name of the column. `data.NAME_field` can set another one."""

    kinds: frozenset[DataKind]
    role: Literal["input", "target"]
    """Targets are what a run predicts, so inputs for prediction do not have them."""

    optional: bool = False
    also: tuple[str, ...] = ()
    """Other names under which the column is recognised."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.also)


TEXT = Need(
    name="text", kinds=frozenset({"text"}), role="input", also=("sentence", "review", "content")
)
OTHER = Need(name="other", kinds=frozenset({"text"}), role="input", optional=True)
SOURCE = Need(name="source", kinds=frozenset({"text"}), role="input")
TARGET = Need(name="target", kinds=frozenset({"text"}), role="target")
WORDS = Need(name="words", kinds=frozenset({"words"}), role="input", also=("tokens",))
TAGS = Need(
    name="tags", kinds=frozenset({"tags"}), role="target", also=("ner_tags", "pos_tags", "labels")
)
_FILES = ("file", "filename", "file_name", "filepath")
IMAGE = Need(
    name="path", kinds=frozenset({"image"}), role="input",
    also=("image", "picture", "image_path", "img", "image_name", *_FILES),
)  # fmt: skip
VIDEO = Need(name="path", kinds=frozenset({"video"}), role="input", also=("video", *_FILES))
AUDIO = Need(
    name="path", kinds=frozenset({"audio"}), role="input",
    also=("audio", "audio_path", "wav", *_FILES),
)  # fmt: skip
MEDIA: dict[Modality, Need] = {"image": IMAGE, "video": VIDEO, "audio": AUDIO}
LABEL = Need(
    name="label", kinds=frozenset({"label"}), role="target",
    also=("class", "category", "speaker", "target", "class_name", "labels"),
)  # fmt: skip
LABELS = Need(
    name="label", kinds=frozenset({"labels"}), role="target",
    also=("labels", "classes", "categories", "tags", "topics"),
)  # fmt: skip
NUMBER = Need(
    name="label", kinds=frozenset({"number"}), role="target",
    also=("number", "score", "value", "rating", "target", "y"),
)  # fmt: skip
WRITTEN = Need(
    name="text", kinds=frozenset({"text"}), role="target",
    also=("caption", "captions", "transcript", "transcription", "sentence", "description"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CallOption:
    """An option of one call, in addition to the decoding settings."""

    name: str
    help: str
    takes: str = ""
    """Placeholder of the value in help texts, or all choices with `|` between them. Empty: the
    option is a switch."""

    number: bool = False
    several: bool = False
    command: bool = False
    """Whether the option exists only on the command line. Python has `load` with several runs,
    `Answer.score`, `Run.write`, `Answers.save` and `Run.choose` instead."""


OPTIONS: dict[str, CallOption] = {
    one.name: one
    for one in (
        CallOption(
            name="with",
            help="Another run to combine with this one in an ensemble.",
            takes="RUN",
            several=True,
            command=True,
        ),
        CallOption(name="scores", help="Print the score of each output.", command=True),
        CallOption(
            name="top",
            help="Number of most likely classes, or of nearest lines, to print.",
            takes="N",
            number=True,
        ),
        CallOption(
            name="alignments",
            help="Print word alignments; for captions, the image region that each word attends to.",
        ),
        CallOption(
            name="on_long",
            help="How to handle lines that are longer than the model reads.",
            takes="split|cut|error",
        ),
        CallOption(
            name="prefix", help="Text that each output must begin with, one per line.", takes="FILE"
        ),
        CallOption(
            name="constraints",
            help="Required and banned phrases, one JSON object per line: "
            '{"required": [...], "banned": [...]}.',
            takes="FILE.jsonl",
        ),
        CallOption(name="stream", help="Print the text while it is generated.", command=True),
        CallOption(
            name="shots", help="Few-shot examples to put before every prompt.", takes="FILE.jsonl"
        ),
        CallOption(
            name="labels",
            help="Choose the most likely of these answers instead of generating text.",
            takes="A,B,...",
            command=True,
        ),
        CallOption(
            name="field", help="The field to generate, for runs with data.fields.", takes="NAME"
        ),
        CallOption(name="draft", help="A smaller model for speculative decoding.", takes="RUN"),
        CallOption(name="to", help="File to write the vectors to.", takes="FILE.npy", command=True),
        CallOption(
            name="nearest",
            help="Print the lines of this file that are nearest to each input.",
            takes="FILE",
        ),
        CallOption(
            name="against",
            help="Verify the speaker against this recording, or identify the "
            "speaker with a list of recordings and labels.",
            takes="FILE",
        ),
        CallOption(
            name="format",
            help="Output format: plain text or subtitles.",
            takes="text|srt|vtt",
            command=True,
        ),
    )
}
"""Options of prediction, by name."""

SCORING: dict[str, CallOption] = {
    one.name: one
    for one in (
        CallOption(
            name="hypotheses",
            help="Score the translations in this file instead of translating.",
            takes="FILE",
        ),
        CallOption(
            name="against",
            help="Compare with another run, or with a file of its output.",
            takes="RUN|FILE",
        ),
        CallOption(name="lowercase", help="Ignore case."),
        CallOption(
            name="tokenize", help="sacreBLEU tokenizer: 13a, intl, zh, char ... [13a]", takes="NAME"
        ),
        CallOption(
            name="tokenised",
            help="Also compute BLEU on lower-cased, Moses-tokenised text, as in papers.",
            takes="en|de|fr",
        ),
        CallOption(name="out", help="File to write the translations to.", takes="FILE"),
    )
}
"""Options of evaluation, by name."""


@dataclass(frozen=True, kw_only=True)
class CompleteSettings(TracksExplicit):
    """Settings for text generation with a causal language model."""

    context: int | None = None
    """Length of a window in tokens; longer documents are cut into windows. None: the model's
    max_len."""

    drop_fields: float = 0.1
    """With data.fields: the probability that a field is left out of a training document."""

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
    """Fraction to mask and predict: of the tokens of text, the patches of images and video, or the
    time steps of audio."""

    whole_words: bool = False
    """Mask all pieces of a word together."""

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
    """Regression: value subtracted from the targets for training. Predictions are in the unit of
    the data. None: the mean of the training data."""

    std: float | None = None
    """Regression: value that the targets are divided by for training, after the mean is
    subtracted. None: the standard deviation of the training data."""

    threshold: float | None = None
    """Multi-label classification: labels with at least this probability are predicted. None: the
    threshold with the highest micro F1 on the validation data, fitted at the end of training."""

    modality: Literal["auto", "text", "image", "video", "audio"] = "auto"
    """Kind of input to classify. `auto`: text, or the kind of media detected from the files."""

    teacher: str = ""
    """Images: a run with the same classes whose predictions train the distillation token, as in
    DeiT."""

    def __post_init__(self) -> None:
        check_values(self)
        check_positive(self, "std")
        for name in ("mean", "std"):
            if self.answer != "number" and getattr(self, name) is not None:
                raise ConfigError(
                    f"classify.{name} applies only to regression (classify.answer=number), not to "
                    f"classify.answer={self.answer}."
                )
        if self.threshold is not None and self.answer in ("label", "number"):
            raise ConfigError(
                f"classify.threshold={self.threshold:g} has no effect with "
                f"classify.answer={self.answer}: it applies only to multi-label classification "
                "(classify.answer=labels)."
            )
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
    speech."""

    crf: bool = False
    """Add a conditional random field (CRF), which scores sequences of tags instead of single
    tags."""

    prefix_strip: str = ""
    """Prefix to remove from each word that begins with it."""

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class EmbedSettings(TracksExplicit):
    """Settings for embeddings of text, images, video and audio."""

    modality: Literal["auto", "text", "image", "video", "audio"] = "auto"
    """Kind of input to embed. `auto`: text, or the kind of media detected from the files."""

    temperature: float = 0.05
    """Temperature of the contrastive loss: similarities are divided by it before the softmax."""

    normalise: bool = True
    """Scale embeddings to length 1."""

    drop_words: float = 0.0
    """Training on texts without pairs: fraction of words dropped at random from each of the two
    views of a text."""

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
    """Weight of CTC in the loss and in decoding. 0: only the decoder; 1: only CTC."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("ctc", self.ctc)


@dataclass(frozen=True, kw_only=True)
class IdentifySettings(LabelSettings):
    """Settings for speaker identification and verification."""

    margin: float = 0.0
    """Additive angular margin of the loss, in radians (ArcFace). 0: ordinary softmax
    classification."""

    scale: float = 30.0
    """Factor that cosines are multiplied by if there is a margin."""

    def __post_init__(self) -> None:
        check_values(self)
        if not 0.0 <= self.margin < 1.5:
            raise ConfigError(f"margin={self.margin:g} must be at least 0 and below 1.5.")
        check_positive(self, "scale")


def _share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}={value:g} must be between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A row of the table: one task with one kind of data."""

    name: str
    modality: Modality
    objective: str
    """Path of the task's class: `label.ClassifyTask` is in `tasks/label.py`. Classes of other
    packages need their whole path. The module is imported on first use."""

    reads: Reads
    needs: tuple[Need, ...]
    answers: OutputKind
    metrics: tuple[Metric, ...]
    """Metrics that it reports, the main one first. The data may exclude some (`top5` with three
    classes)."""

    families: tuple[str, ...]
    """Model families that can do the task, the default first."""

    heads: tuple[str, ...] = ()
    """Output heads needed in addition to those of the family (a decoder always predicts words)."""

    settings: type | None = None
    """Settings class of its section, which is named after the task."""

    options: frozenset[str] = frozenset()
    """Names of the `OPTIONS` that apply to its predictions."""

    scoring: frozenset[str] = frozenset()
    """Names of the `SCORING` options that apply to its evaluations."""

    decode: frozenset[str]
    """Names of the `decode.*` settings that it uses."""

    continues: bool = False
    """Whether it generates text that continues its input."""

    pretrained: str = ""
    """Shipped run that training starts from by default, if its vocabulary covers the texts."""

    compares: bool = False
    """Whether its vectors measure the similarity of two inputs."""

    scores_ensembles: bool = False
    """Whether several runs can be scored as one ensemble."""

    by_sequence: bool = False
    """Whether a student learns from the teacher's generated text, not from its probabilities."""

    readout_settings: tuple[str, ...] = ()
    """Settings of its section that define how outputs are read from a model. A student takes them
    from its teacher."""

    counts: str
    """Unit of the loss and of the training speed, in the singular."""

    sample: tuple[str, str] = ("source", "reference")
    """Headings for the `source` and `target` of samples in the report."""

    lacks: str
    """Most frequent remedies for a model that is worse than a baseline."""

    truth: Literal["", "pairs", "repeats", "shapes", "moving", "digits"] = ""
    """Kind of data for which the correct attention is known: data made by
    `examples/make_NAME.py`, aligned pairs, or text that repeats itself."""

    example: str = "headway predict {run} < sentences.txt"
    """Example command that predicts with a run."""

    others: tuple[Spec, ...] = ()
    """Rows of the task for other kinds of data."""

    @property
    def lacks_data(self) -> str:
        """`lacks` without the advice to start from an encoder, for models that already did."""
        return self.lacks.removesuffix(f", {_PRETRAINED_TEXT}").removesuffix(
            f", {_PRETRAINED_MEDIA}"
        )

    @property
    def rows(self) -> tuple[Spec, ...]:
        """The rows of this task, one for each kind of data."""
        return (self, *self.others)

    @property
    def all_families(self) -> tuple[str, ...]:
        """Model families of the task for all kinds of data."""
        return tuple(dict.fromkeys(family for row in self.rows for family in row.families))

    @property
    def data(self) -> frozenset[str]:
        """Names of the `data.*` settings that it uses, in addition to the data files."""
        found = DATA_OF[self.reads]
        if self.answers == "gaps" and self.reads == "documents":
            found |= {"on_long"}
        if self.answers == "vector" and self.reads == "media":
            found |= {"other_field"}
        if self.answers == "labels":
            found |= {"label_separator"}
        with_fields = self.continues or "classes" in self.heads
        return found if with_fields else found - {"fields"}

    @property
    def file_options(self) -> str:
        """Alternatives to FILES on the command line."""
        if self.reads == "pairs":
            return ", or --source FILE --target FILE"
        # A list of paths that has neither labels nor texts could be text itself.
        alone = self.reads == "media" and self.answers in ("gaps", "vector")
        return ", or a list of paths with --media" if alone else ""

    @property
    def file_arguments(self) -> str:
        """Alternatives to the data argument of `headway.train`."""
        if self.reads == "pairs":
            return ", or source=FILE, target=FILE"
        return ", or media=FILE" if self.file_options else ""

    @property
    def writes(self) -> bool:
        """Whether its output is generated text."""
        return self.answers == "text"

    @property
    def in_words(self) -> bool:
        """Whether its outputs are words of a vocabulary."""
        return self.writes or "words" in self.heads

    @property
    def headline(self) -> Metric:
        """Main metric that can be compared between vocabularies, so not the loss per token."""
        return next(one for one in self.metrics if one.name not in ("loss", "ppl"))

    @property
    def labelled(self) -> bool:
        """Whether its outputs are labels or tags of the training data."""
        return self.answers in ("label", "labels", "tags")

    @property
    def has_probabilities(self) -> bool:
        """Whether its outputs have probabilities: vectors and reconstructed media have none."""
        return self.answers != "vector" and "rebuild" not in self.heads

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of its metrics, the main one first."""
        return tuple(metric.name for metric in self.metrics)


def scored(*names: str) -> tuple[Metric, ...]:
    return tuple(METRICS[name] for name in names)


ENGLISH = "base-en"
"""The shipped English encoder."""

_PRETRAINED_TEXT = (
    "or a pretrained encoder of the language: --from RUN, of the task fill or imported"
)
_PRETRAINED_MEDIA = (
    "or an encoder pretrained without labels: --from RUN, made by headway train fill FILES"
)
_CLASSES = scored("accuracy", "f1", "loss", "top5")
_SETS = scored("micro_f1", "f1", "exact_match", "map", "loss")
_NUMBERS = scored("mae", "rmse", "r2", "pearson", "spearman", "loss")
_LABELS = frozenset({"with", "scores", "top"})
_PRECISION = frozenset({"precision"})
_ENDINGS: dict[Modality, str] = {"image": "png", "video": "gif", "audio": "wav"}
_ALL = frozenset(one.name for one in fields(DecodeSettings))
_SEARCHED = _ALL - {"stop"}
_DATA = frozenset({"valid_size", "encoding"})
DATA_OF: dict[Reads, frozenset[str]] = {
    "pairs": _DATA | {"source_field", "target_field", "on_bad_row", "max_len", "max_ratio"},
    "documents": _DATA | {"text_field", "label_field", "fields", "unit", "on_bad_row"},
    "labelled": _DATA | {"text_field", "other_field", "label_field", "fields", "on_long",
    "on_bad_row"},
    "tagged": _DATA | {"label_field", "words_field", "tags_field", "on_long", "on_bad_row"},
    "texts": _DATA
    | {"source_field", "target_field", "text_field", "label_field", "fields"}
    | {"on_long", "on_bad_row"},
    "media": _DATA | {"path_field", "label_field", "text_field", "on_bad_row"},
}  # fmt: skip
"""Names of the `data.*` settings that each form of data uses, in addition to the data files. A test
trains and runs every task and compares this table with the settings that were read."""


def _fill(modality: Modality, family: str) -> Spec:
    return Spec(
        name="fill", modality=modality, objective="mask.MaskedLMTask", reads="media",
        needs=(MEDIA[modality],), answers="gaps", metrics=scored("loss", "variance_explained"),
        families=(family,), heads=("rebuild",), settings=FillSettings, options=frozenset({"with"}),
        decode=_PRECISION, counts="masked token",
        lacks="more text, images or audio",
    )  # fmt: skip


def _classify(
    modality: Modality, family: str, one: str,
    truth: Literal["", "shapes", "moving"] = "",
) -> Spec:  # fmt: skip
    """The row for classification of one kind of media; `one` is its singular noun."""
    return Spec(
        name="classify", modality=modality, objective="label.ClassifyTask", reads="media",
        needs=(MEDIA[modality], LABEL), answers="label", metrics=_CLASSES, families=(family,),
        heads=("classes",), settings=ClassifySettings, options=_LABELS, decode=_PRECISION,
        scores_ensembles=True, counts=one, sample=(one, "label"),
        lacks=f"more {one}s, {_PRETRAINED_MEDIA}",
        truth=truth, example=f"headway predict {{run}} {one}.{_ENDINGS[modality]}",
    )  # fmt: skip


def _embed(modality: Modality, family: str, one: str) -> Spec:
    """The row for embeddings of one kind of media; `one` is its singular noun."""
    return Spec(
        name="embed", modality=modality, objective="contrast.ContrastiveTask", reads="media",
        needs=(MEDIA[modality],), answers="vector", metrics=scored("accuracy", "mrr", "loss"),
        families=(family,), settings=EmbedSettings, readout_settings=("normalise",), compares=True,
        options=frozenset({"to", "nearest", "top"}), decode=_PRECISION, counts="pair",
        lacks=f"more {one}s, {_PRETRAINED_MEDIA}",
        example=f"headway predict {{run}} {one}.{_ENDINGS[modality]}",
    )  # fmt: skip


def _caption(modality: Modality) -> Spec:
    return Spec(
        name="caption", modality=modality, objective="caption.CaptionTask", reads="media",
        needs=(MEDIA[modality], WRITTEN), answers="text",
        metrics=scored("exact_match", "cider", "bleu", "chrf", "loss", "ppl"),
        families=("image-seq2seq",), settings=CaptionSettings, decode=_SEARCHED,
        options=frozenset({"with", "alignments", "scores"}), scores_ensembles=True, counts="token",
        sample=("image", "caption"), lacks="more images with captions", truth="shapes",
        example=f"headway predict {{run}} {modality}.{_ENDINGS[modality]}",
    )  # fmt: skip


_ROWS = (
    Spec(
        name="translate", modality="text", objective="translate.TranslateTask", reads="pairs",
        needs=(SOURCE, TARGET), answers="text", metrics=scored("bleu", "chrf", "loss", "ppl"),
        families=("seq2seq",), scores_ensembles=True, by_sequence=True, counts="target token",
        truth="pairs", decode=_SEARCHED, scoring=frozenset(SCORING),
        options=frozenset({"with", "alignments", "on_long", "prefix", "constraints", "scores"}),
        lacks="more sentence pairs; headway check lists possible problems in the data",
    ),
    Spec(
        name="complete", modality="text", objective="causal_lm.CausalLMTask", reads="documents",
        needs=(TEXT,), answers="text", metrics=scored("loss", "ppl", "bits_per_byte"),
        families=("decoder",), settings=CompleteSettings, continues=True, counts="token",
        decode=_ALL - {"extra_len"},
        options=frozenset({"stream", "shots", "labels", "field", "draft", "scores"}),
        lacks="more text", truth="repeats",
        example='echo "Once upon a time" | headway predict {run}',
    ),
    Spec(
        name="fill", modality="text", objective="mask.MaskedLMTask", reads="documents",
        needs=(TEXT,),
        answers="gaps", metrics=scored("loss", "ppl", "accuracy"), families=("encoder",),
        heads=("words",), settings=FillSettings, options=frozenset({"with"}),
        decode=frozenset({"n_best", "batch_tokens", "precision"}), counts="masked token",
        lacks="more text, images or audio",
        example='echo "A {mask} in a text." | headway predict {run}',
        others=(
            _fill("image", "image-encoder"), _fill("video", "image-encoder"),
            _fill("audio", "audio-encoder"),
        ),
    ),
    Spec(
        name="classify", modality="text", objective="label.ClassifyTask", reads="labelled",
        needs=(TEXT, OTHER, LABEL), answers="label", metrics=_CLASSES,
        families=("encoder", "decoder"), heads=("classes",), settings=ClassifySettings,
        options=_LABELS, decode=_PRECISION, scores_ensembles=True, pretrained=ENGLISH,
        counts="text", sample=("text", "label"), lacks=f"more labelled texts, {_PRETRAINED_TEXT}",
        example="headway predict {run} < texts.txt",
        others=(
            _classify("image", "image-encoder", "image", "shapes"),
            _classify("video", "image-encoder", "video", "moving"),
            _classify("audio", "audio-encoder", "recording"),
        ),
    ),
    Spec(
        name="tag", modality="text", objective="tags.TaggingTask", reads="tagged", needs=(WORDS,
        TAGS),
        answers="tags", metrics=scored("f1", "accuracy", "precision", "recall", "loss"),
        families=("encoder", "decoder"), heads=("tags",), settings=TagSettings, pretrained=ENGLISH,
        options=frozenset({"with"}), decode=_PRECISION, scores_ensembles=True, counts="word",
        sample=("sentence", "tags"), lacks=f"more tagged sentences, {_PRETRAINED_TEXT}",
    ),
    Spec(
        name="embed", modality="text", objective="contrast.ContrastiveTask", reads="texts",
        needs=(TEXT, SOURCE, TARGET), answers="vector", metrics=scored("accuracy", "mrr", "loss"),
        families=("encoder", "decoder"), settings=EmbedSettings, readout_settings=("normalise",),
        compares=True, pretrained=ENGLISH,
        options=frozenset({"to", "nearest", "top"}), decode=_PRECISION, counts="pair",
        lacks=f"more pairs, {_PRETRAINED_TEXT}",
        others=(
            _embed("image", "image-encoder", "image"),
            _embed("video", "image-encoder", "video"),
            _embed("audio", "audio-encoder", "recording"),
        ),
    ),
    replace(_caption("image"), others=(_caption("video"),)),
    Spec(
        name="transcribe", modality="audio", objective="transcribe.TranscribeTask", reads="media",
        needs=(AUDIO, WRITTEN), answers="text", metrics=scored("wer", "cer", "loss"),
        families=("audio-seq2seq", "audio-encoder"), settings=TranscribeSettings,
        readout_settings=("ctc",),
        options=frozenset({"scores", "format"}), counts="token", decode=_SEARCHED,
        sample=("recording", "transcript"), lacks="more recordings with transcripts",
        truth="digits", example="headway predict {run} recording.wav",
    ),
    Spec(
        name="identify", modality="audio", objective="identify.IdentifyTask", reads="media",
        needs=(AUDIO, LABEL), answers="label", metrics=_CLASSES, families=("audio-encoder",),
        heads=("classes",), settings=IdentifySettings, readout_settings=("margin", "scale"),
        compares=True,
        options=_LABELS | {"to", "against"},
        decode=_PRECISION, scores_ensembles=True, counts="recording", sample=("recording",
        "speaker"),
        lacks=f"more recordings, {_PRETRAINED_MEDIA}",
        example="headway predict {run} recording.wav",
    ),
)  # fmt: skip

SPECS: dict[str, Spec] = {spec.name: spec for spec in _ROWS}
SECTIONS: dict[str, type] = {
    spec.name: spec.settings for spec in _ROWS if spec.settings is not None
}
"""Settings classes of the sections that only one task uses, by the name of the task."""


def register(spec: Spec) -> None:
    """Add a task of another package to the table. Its `objective` must be the whole path of its
    class (`my_package.longer.Longer`)."""
    if spec.name in (*SPECS, *ALIASES):
        raise ConfigError(f"the task name {spec.name!r} is already taken. Choose another name.")
    SPECS[spec.name] = spec
    if spec.settings is not None:
        SECTIONS[spec.name] = spec.settings
    for metric in spec.metrics:
        METRICS.setdefault(metric.name, metric)


@dataclass(frozen=True, kw_only=True)
class Alias:
    """Another name for a task."""

    task: str = ""
    """Name of the task. Empty: the task of the teacher."""

    modality: Modality | None = None
    """Kind of data that the alias implies, if any."""

    needs: str = ""
    """Setting that must be given with the alias, or be inherited from another run."""

    old: bool = False
    """Whether the alias is deprecated."""


ALIASES: dict[str, Alias] = {
    "see": Alias(task="classify", modality="image", old=True),
    "watch": Alias(task="classify", modality="video", old=True),
    "detect": Alias(task="classify", needs="data.fields"),
    "distil": Alias(needs="distil.teacher"),
}


def possible(settings: RunSettings) -> tuple[Spec, ...]:
    """Rows of the task that fit the settings of a run. There is one, unless only the files
    themselves show whether they are images, video or audio."""
    rows = SPECS[settings.task].rows
    if len(rows) == 1:
        return rows
    said = _known_modalities(settings)
    found = tuple(row for row in rows if row.modality in said) or rows
    return tuple(spec_for_answer(row, settings.classify.answer) for row in found)


def spec_for_answer(row: Spec, answer: str) -> Spec:
    """The row of a classification task, adapted to multi-label targets or to numbers."""
    if row.answers != "label" or answer not in ("labels", "number"):
        return row
    several = answer == "labels"
    needs = tuple((LABELS if several else NUMBER) if one is LABEL else one for one in row.needs)
    return replace(
        row, answers="labels" if several else "number", needs=needs,
        metrics=_SETS if several else _NUMBERS,
        readout_settings=("answer",) if several else ("answer", "mean", "std"),
        options=row.options if several else row.options - {"scores", "top"},
        sample=(row.sample[0], "labels" if several else "number"),
    )  # fmt: skip


def _known_modalities(settings: RunSettings) -> set[str]:
    what = getattr(getattr(settings, settings.task), "modality", "auto")
    if what != "auto":
        return {what}
    if settings.model is not None:
        return {front_reads(settings.model)}
    asked = settings.asked
    if any(key.startswith("model.audio.") for key in asked):
        return {"audio"}
    if any(key.startswith("model.image.") for key in asked):
        frames = asked.get("model.image.frames")
        return {"image", "video"} if frames is None else {_moving(frames)}
    return {"image", "video", "audio"} if settings.data.media else {"text"}


def front_reads(model: ModelSettings) -> Modality:
    """Kind of input that the model reads."""
    if hasattr(model, "image"):
        return _moving(model.image.frames)
    return "audio" if hasattr(model, "audio") else "text"


def _moving(frames: int) -> Modality:
    return "video" if frames > 1 else "image"


def spec_of(task: str | RunSettings) -> Spec:
    """The row of a run, or the first row of a task given by its name."""
    if not isinstance(task, str):
        return possible(task)[0]
    alias = ALIASES.get(task)
    if alias is None or not alias.task:
        return SPECS[task]
    rows = SPECS[alias.task].rows
    return next((row for row in rows if row.modality == alias.modality), rows[0])


def check_metric(
    metric: str | None, task: str, names: Sequence[str], locate: Callable[[str], str] | None = None
) -> None:
    """Raise ConfigError if the task has no such metric. `locate` returns the file and line that the
    message begins with."""
    if metric is not None and metric not in names:
        near, where = suggest(metric, names), locate("train.metric") if locate else ""
        raise ConfigError(
            f"{where}train.metric={metric!r} is not a metric of the task {task}.{near}"
        )
