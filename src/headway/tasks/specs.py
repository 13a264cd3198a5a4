"""The tasks, in a table you can see: what each is given, what it answers, how good it can be.

This is the only list of tasks. The command line, the checks of settings, reports, exports and pages
ask it, so that a new task is a row here and a file beside this. Neither torch nor numpy is
imported: `--help` reads it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

from headway.errors import ConfigError, suggest
from headway.settings.body import check_values
from headway.settings.decode import DecodeSettings
from headway.settings.made import Made
from headway.settings.value_types import check_least, check_positive

if TYPE_CHECKING:
    from headway.settings.model import ModelSettings
    from headway.settings.run import RunSettings

Modality = Literal["text", "pictures", "videos", "sounds"]
"""What a model is given."""

Kind = Modality | Literal["words", "label", "labels", "number", "tags"]
"""What a column holds."""

Reads = Literal["documents", "labelled", "tagged", "fields", "texts", "pairs", "media"]
"""In which form examples stand in files; questions are read by the same columns."""

Answers = Literal["text", "label", "labels", "number", "tags", "gaps", "vector"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    name: str
    """As in `metrics.jsonl` and `train.metric`."""

    label: str
    """For people."""

    lower: bool = False
    """Whether less is better."""

    unit: str = ""
    digits: int = 2

    @property
    def most(self) -> float | None:
        """The largest possible value, where there is one: error rates may exceed 100 %."""
        in_percent = self.unit == "%" or self.name in ("bleu", "chrf")
        return 100.0 if in_percent and not self.lower else None

    def shown(self, value: float) -> str:
        return f"{value:.{self.digits}f}" + (f" {self.unit}" if self.unit else "")

    @property
    def axis(self) -> str:
        """The label with its unit, over a column or beside an axis."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def better(self, one: float, other: float) -> bool:
        return one < other if self.lower else one > other


METRICS: dict[str, Metric] = {
    one.name: one
    for one in (
        Metric(name="accuracy", label="accuracy", unit="%"),
        Metric(name="top5", label="top 5", unit="%"),
        Metric(name="micro_f1", label="micro F1", unit="%"),
        Metric(name="f1", label="F1", unit="%"),
        Metric(name="precision", label="precision", unit="%"),
        Metric(name="recall", label="recall", unit="%"),
        Metric(name="mrr", label="MRR", unit="%"),
        Metric(name="exact", label="exact match", unit="%"),
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
        Metric(name="explained", label="explained", unit="%"),
        Metric(name="ppl", label="perplexity", lower=True),
        Metric(name="bits_per_byte", label="bits per byte", lower=True, digits=3),
        Metric(name="loss", label="loss", lower=True, digits=3),
    )
}
"""In the order of reports; a task reports no score that has no record here. `mrr` is the mean
reciprocal rank, `explained` the share of the variance of hidden rows that is rebuilt."""


def named_metric(name: str, better: object) -> Metric:
    return Metric(name=name, label=name, lower=better == "lower", digits=3)


def metrics_asked(asked: Mapping[str, object]) -> dict[str, Metric]:
    """The records of those that a run was given: their names, and which way is better."""
    keys = {key.removeprefix("metrics."): one for key, one in asked.items()
            if key.startswith("metrics.")}  # fmt: skip
    return {name: named_metric(name, better) for name, better in keys.items()}


@dataclass(frozen=True, kw_only=True)
class Need:
    """A column of the data."""

    name: str
    """As `data.NAME_field` calls it, where it can be called otherwise."""

    kinds: frozenset[Kind]
    role: Literal["input", "target"]
    """Targets are what a run is to find out: nobody who asks it has them."""

    optional: bool = False
    also: tuple[str, ...] = ()
    """What others call it, where it is not called as here."""

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
    name="path", kinds=frozenset({"pictures"}), role="input",
    also=("image", "picture", "image_path", "img", "image_name", *_FILES),
)  # fmt: skip
VIDEO = Need(name="path", kinds=frozenset({"videos"}), role="input", also=("video", *_FILES))
AUDIO = Need(
    name="path", kinds=frozenset({"sounds"}), role="input",
    also=("audio", "audio_path", "wav", *_FILES),
)  # fmt: skip
MEDIA: dict[Modality, Need] = {"pictures": IMAGE, "videos": VIDEO, "sounds": AUDIO}
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


SEEN_AS: dict[Modality, Literal["image", "video", "audio"]] = {
    "pictures": "image",
    "videos": "video",
    "sounds": "audio",
}
"""What options and arguments call the column of one."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """What one call may be told, beside settings of decoding."""

    name: str
    help: str
    takes: str = ""
    """What its value is, for people; with `|` between them all choices. Nothing: a switch."""

    number: bool = False
    several: bool = False
    command: bool = False
    """Whether Python has another way: `load` of several, `Answer.score`, `Run.write`,
    `Answers.save`, `Run.choose`."""


OPTIONS: dict[str, Option] = {
    one.name: one
    for one in (
        Option(name="with", help="One more run: an ensemble.", takes="RUN", several=True,
               command=True),
        Option(name="scores", help="Put scores before the text.", command=True),
        Option(name="top", help="How many: likeliest classes, or nearest lines.", takes="N",
               number=True),
        Option(name="alignments", help="Word alignments; of captions where each word looked."),
        Option(name="on_long", help="What becomes of over-long lines.", takes="split|cut|error"),
        Option(name="prefix", help="What each output begins with, by line.", takes="FILE"),
        Option(name="constraints", help='{"required": [...], "banned": [...]} a line.',
               takes="FILE.jsonl"),
        Option(name="stream", help="Show the text while it is written.", command=True),
        Option(name="shots", help="Examples put before every prompt.", takes="FILE.jsonl"),
        Option(name="labels", help="Choose the likeliest of these answers.", takes="A,B,...",
               command=True),
        Option(name="field", help="The field to write, where there are fields.", takes="NAME"),
        Option(name="draft", help="A small model that guesses ahead.", takes="RUN"),
        Option(name="to", help="Where vectors go.", takes="FILE.npy", command=True),
        Option(name="nearest", help="Print the nearest lines of this file.", takes="FILE"),
        Option(name="against", help="Is it who speaks here? Of a list of paths and labels: who is "
               "it?", takes="FILE"),
        Option(name="format", help="Subtitles, or text.", takes="text|srt|vtt", command=True),
    )
}  # fmt: skip
"""Of answers."""

SCORING: dict[str, Option] = {
    one.name: one
    for one in (
        Option(name="hypotheses", help="Score these lines; translate nothing.", takes="FILE"),
        Option(name="against", help="Compare with another run, or with its output.",
               takes="RUN|FILE"),
        Option(name="lowercase", help="Case does not count."),
        Option(name="tokenize", help="sacreBLEU's: 13a, intl, zh, char ... [13a]", takes="NAME"),
        Option(name="tokenised", help="Also Moses-tokenised lower-cased BLEU, as in papers.",
               takes="en|de|fr"),
        Option(name="out", help="Where the translations go.", takes="FILE"),
    )
}  # fmt: skip
"""Of scores."""


@dataclass(frozen=True, kw_only=True)
class CompleteSettings(Made):
    """Continuing text: a causal language model."""

    context: int | None = None
    """Tokens read at a time; longer documents are cut into windows. None: the model's max_len."""

    drop_fields: float = 0.1
    """With data.fields: the share of fields that a document is trained without."""

    def __post_init__(self) -> None:
        check_values(self)
        check_least(self, 2, "context")
        _share("drop_fields", self.drop_fields)


@dataclass(frozen=True, kw_only=True)
class FillSettings(Made):
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
        check_least(self, 2, "context")
        check_least(self, 1, "span")
        for name in ("mask", "random", "keep"):
            _share(name, getattr(self, name))
        if not self.mask:
            raise ConfigError("mask=0 leaves nothing to guess. BERT uses 0.15.")
        if self.random + self.keep > 1:
            raise ConfigError("random and keep are shares of the masked tokens: at most 1 in all.")


@dataclass(frozen=True, kw_only=True)
class LabelSettings(Made):
    """One class for each example."""

    balance: bool = False
    """Weigh examples so that every class counts the same."""


@dataclass(frozen=True, kw_only=True)
class ClassifySettings(LabelSettings):
    """Classes of texts, pictures, videos and recordings; several labels of each, or a number."""

    answer: Literal["auto", "label", "labels", "number"] = "auto"
    """What is answered: one label, any number of labels, or a number (regression). `auto`: several
    labels where the files have lists of them, else one."""

    mean: float | None = None
    """Of numbers: what is subtracted before they are learned ..."""

    std: float | None = None
    """... and what they are divided by then; answers are as the data has them. None: the mean and
    the standard deviation of the training data."""

    threshold: float | None = None
    """Smallest probability of a label that is answered, with several labels per example. None: the
    one with the highest micro F1 on the validation data, found at the end of training."""

    what: Literal["auto", "text", "pictures", "videos", "sounds"] = "auto"
    """What is classified. `auto`: text, or of media what their names say."""

    teacher: str = ""
    """Of pictures: a run of the same classes. What it answers teaches the distillation token, as in
    DeiT."""

    def __post_init__(self) -> None:
        check_values(self)
        check_positive(self, "std")
        for name in ("mean", "std"):
            if self.answer != "number" and getattr(self, name) is not None:
                raise ConfigError(
                    f"classify.{name} is of numbers, and classify.answer={self.answer} is not."
                )
        if self.threshold is not None and self.answer in ("label", "number"):
            raise ConfigError(
                f"classify.threshold={self.threshold:g} has no effect with "
                f"classify.answer={self.answer}: it is for several labels per example."
            )
        if self.threshold is not None and not 0.0 < self.threshold < 1.0:
            raise ConfigError(f"classify.threshold={self.threshold:g} must be between 0 and 1.")
        if self.answer in ("labels", "number") and self.balance:
            raise ConfigError(
                f"classify.balance=true weighs examples by their class, and with "
                f"classify.answer={self.answer} they have no class. Leave it out."
            )
        if self.answer in ("labels", "number") and self.teacher:
            raise ConfigError(
                "classify.teacher says one class of each picture. It has no effect with "
                f"classify.answer={self.answer}: use distil.teacher, which compares whatever is "
                "answered."
            )


@dataclass(frozen=True, kw_only=True)
class TagSettings(Made):
    scheme: Literal["auto", "bio", "bioes", "iob1", "plain"] = "auto"
    """How the files mark spans; `plain`: each tag stands for itself, as parts of speech do."""

    crf: bool = False
    """Score sequences of tags, not only single ones."""

    prefix_strip: str = ""
    """What every word of the files begins with and is to be taken off."""

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class EmbedSettings(Made):
    """Vectors of texts, pictures, videos and recordings."""

    what: Literal["auto", "text", "pictures", "videos", "sounds"] = "auto"
    """What becomes vectors. `auto`: text, or of media what their names say."""

    temperature: float = 0.05
    """What similarities are divided by before they compete."""

    normalise: bool = True
    """Vectors of length one."""

    drop_words: float = 0.0
    """With texts alone: the share of its words that each of the two readings of a text lacks."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("drop_words", self.drop_words)
        check_positive(self, "temperature")


@dataclass(frozen=True, kw_only=True)
class CaptionSettings(Made):
    """Pictures and videos in words."""

    what: Literal["pictures", "videos"] = "pictures"
    """What is put into words."""

    hide: float = 0.0
    """The share of its own words that the decoder does not get to read in training: what comes next
    it must then see in the picture, instead of knowing which words follow each other."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("hide", self.hide)


@dataclass(frozen=True, kw_only=True)
class TranscribeSettings(Made):
    """Speech as text."""

    ctc: float = 0.3
    """The weight of CTC, in training and in searching; 0: the decoder alone, 1: CTC alone."""

    def __post_init__(self) -> None:
        check_values(self)
        _share("ctc", self.ctc)


@dataclass(frozen=True, kw_only=True)
class IdentifySettings(LabelSettings):
    """Who speaks."""

    margin: float = 0.0
    """Radians that a recording must be nearer to its speaker than to others (ArcFace). 0: plain
    classes, without angles."""

    scale: float = 30.0
    """What cosines are multiplied by where there is a margin."""

    def __post_init__(self) -> None:
        check_values(self)
        if not 0.0 <= self.margin < 1.5:
            raise ConfigError(f"margin={self.margin:g} must be 0 or more and below 1.5.")
        check_positive(self, "scale")


def _share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}={value:g} is a share: 0 to 1.")


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A task, with data of one kind."""

    name: str
    modality: Modality
    objective: str
    """Its class: `label.Label` is the one of `tasks/label.py`; of another package the whole path.
    Imported when used."""

    reads: Reads
    needs: tuple[Need, ...]
    answers: Answers
    metrics: tuple[Metric, ...]
    """What it reports, its own first; the data may take some away (`top5` of three classes)."""

    families: tuple[str, ...]
    """Of the models that can do it, the usual one first."""

    heads: tuple[str, ...] = ()
    """Beside those that come with the family: a decoder says words."""

    settings: type | None = None
    """Of its section, which has the task's name."""

    options: frozenset[str] = frozenset()
    """Names of the `OPTIONS` of its answers."""

    scoring: frozenset[str] = frozenset()
    """Names of the `SCORING` options of its scores."""

    decode: frozenset[str]
    """Names of the `decode.*` settings that it reads."""

    continues: bool = False
    """Whether what it writes goes on where its input ends."""

    pretrained: str = ""
    """The shipped run that it starts from by itself, where that knows the words of the texts."""

    compares: bool = False
    """Whether its vectors tell how alike two of what it is given are."""

    together: bool = False
    """Whether several runs can be scored as one ensemble."""

    by_sequence: bool = False
    """Whether a student learns from what its teacher writes, not from its probabilities."""

    read_by: tuple[str, ...] = ()
    """Settings of its section that say how answers are read out of a model: a student has them from
    its teacher."""

    counts: str
    """What the loss is divided by, and speed counted in."""

    sample: tuple[str, str] = ("source", "reference")
    """What stands in a sample of the report as `source` and `target`."""

    lacks: str
    """What it needs most often when it is worse than a baseline."""

    truth: Literal["", "pairs", "repeats", "shapes", "moving", "digits"] = ""
    """Where it is known what there is to look at: in what `examples/make_NAME.py` makes, in
    aligned pairs, or in text that repeats itself."""

    example: str = "headway predict {run} < sentences.txt"
    """A command that asks a run."""

    others: tuple[Spec, ...] = ()
    """The same task with data of other kinds."""

    @property
    def lacks_data(self) -> str:
        """What helps a model that started from an encoder: `lacks` without the advice to do so."""
        return self.lacks.removesuffix(f", {_KNOWS}").removesuffix(f", {_SEEN}")

    @property
    def rows(self) -> tuple[Spec, ...]:
        """One for each kind of data."""
        return (self, *self.others)

    @property
    def all_families(self) -> tuple[str, ...]:
        """With data of any kind."""
        return tuple(dict.fromkeys(family for row in self.rows for family in row.families))

    @property
    def data(self) -> frozenset[str]:
        """Names of the `data.*` settings that it reads, beside those of files."""
        found = DATA_OF[self.reads]
        if self.answers == "gaps" and self.reads == "documents":
            found |= {"long"}
        if self.answers == "vector" and self.reads == "media":
            found |= {"other_field"}
        if self.answers == "labels":
            found |= {"label_separator"}
        with_fields = self.continues or "classes" in self.heads
        return found if with_fields else found - {"fields"}

    @property
    def file_options(self) -> str:
        """What else commands may be given in the place of FILES."""
        if self.reads == "pairs":
            return ", or --source FILE --target FILE"
        # A list of paths that has neither labels nor texts could be text itself.
        alone = self.reads == "media" and self.answers in ("gaps", "vector")
        return ", or a list of paths with --media" if alone else ""

    @property
    def file_arguments(self) -> str:
        """What `headway.train` may be given in the place of data."""
        if self.reads == "pairs":
            return ", or source=FILE, target=FILE"
        return ", or media=FILE" if self.file_options else ""

    @property
    def writes(self) -> bool:
        """Whether it searches for text."""
        return self.answers == "text"

    @property
    def in_words(self) -> bool:
        """Whether its answers are of a vocabulary."""
        return self.writes or "words" in self.heads

    @property
    def headline(self) -> Metric:
        """What runs are compared by, whatever their vocabularies: no loss a token."""
        return next(one for one in self.metrics if one.name not in ("loss", "ppl"))

    @property
    def labelled(self) -> bool:
        """Whether its answers are of those that the training data has."""
        return self.answers in ("label", "labels", "tags")

    @property
    def is_likely(self) -> bool:
        """Whether its answers have probabilities: vectors and what is rebuilt have none."""
        return self.answers != "vector" and "rebuild" not in self.heads

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of its metrics, its own first."""
        return tuple(metric.name for metric in self.metrics)


def scored(*names: str) -> tuple[Metric, ...]:
    return tuple(METRICS[name] for name in names)


ENGLISH = "base-en"
"""The shipped encoder of English."""

_KNOWS = "or an encoder that knows the language already: --from RUN, of the task fill or imported"
_SEEN = "or an encoder that was trained without labels: --from RUN, of headway train fill FILES"
_CLASSES = scored("accuracy", "f1", "loss", "top5")
_SETS = scored("micro_f1", "f1", "exact", "map", "loss")
_NUMBERS = scored("mae", "rmse", "r2", "pearson", "spearman", "loss")
_LABELS = frozenset({"with", "scores", "top"})
_PRECISION = frozenset({"precision"})
_ENDINGS: dict[Modality, str] = {"pictures": "png", "videos": "gif", "sounds": "wav"}
_ALL = frozenset(one.name for one in fields(DecodeSettings))
_SEARCHED = _ALL - {"stop"}
_DATA = frozenset({"valid_size", "encoding"})
DATA_OF: dict[Reads, frozenset[str]] = {
    "pairs": _DATA | {"source_field", "target_field", "bad", "max_len", "max_ratio"},
    "documents": _DATA | {"text_field", "label_field", "fields", "unit", "bad"},
    "labelled": _DATA | {"text_field", "other_field", "label_field", "fields", "long", "bad"},
    "tagged": _DATA | {"label_field", "words_field", "tags_field", "long", "bad"},
    "texts": _DATA
    | {"source_field", "target_field", "text_field", "label_field", "fields"}
    | {"long", "bad"},
    "media": _DATA | {"path_field", "label_field", "text_field", "bad"},
}  # fmt: skip
"""The settings of data that are read of each form, beside the names of files. Measured: a test
trains and asks every task, and compares."""


def _fill(modality: Modality, family: str) -> Spec:
    return Spec(
        name="fill", modality=modality, objective="mask.Mask", reads="media",
        needs=(MEDIA[modality],), answers="gaps", metrics=scored("loss", "explained"),
        families=(family,), heads=("rebuild",), settings=FillSettings, options=frozenset({"with"}),
        decode=_PRECISION, counts="masked token",
        lacks="more text, pictures or recordings",
    )  # fmt: skip


def _classify(
    modality: Modality, family: str, one: str,
    truth: Literal["", "shapes", "moving"] = "",
) -> Spec:  # fmt: skip
    """`one`: what a single one is called."""
    return Spec(
        name="classify", modality=modality, objective="label.Label", reads="media",
        needs=(MEDIA[modality], LABEL), answers="label", metrics=_CLASSES, families=(family,),
        heads=("classes",), settings=ClassifySettings, options=_LABELS, decode=_PRECISION,
        together=True, counts=one, sample=(one, "label"), lacks=f"more {one}s, {_SEEN}",
        truth=truth, example=f"headway predict {{run}} {one}.{_ENDINGS[modality]}",
    )  # fmt: skip


def _embed(modality: Modality, family: str, one: str) -> Spec:
    """`one`: what a single one is called."""
    return Spec(
        name="embed", modality=modality, objective="contrast.Contrast", reads="media",
        needs=(MEDIA[modality],), answers="vector", metrics=scored("accuracy", "mrr", "loss"),
        families=(family,), settings=EmbedSettings, read_by=("normalise",), compares=True,
        options=frozenset({"to", "nearest", "top"}), decode=_PRECISION, counts="pair",
        lacks=f"more {one}s, {_SEEN}",
        example=f"headway predict {{run}} {one}.{_ENDINGS[modality]}",
    )  # fmt: skip


def _caption(modality: Modality) -> Spec:
    return Spec(
        name="caption", modality=modality, objective="caption.Caption", reads="media",
        needs=(MEDIA[modality], WRITTEN), answers="text",
        metrics=scored("exact", "cider", "bleu", "chrf", "loss", "ppl"),
        families=("picture-seq2seq",), settings=CaptionSettings, decode=_SEARCHED,
        options=frozenset({"with", "alignments", "scores"}), together=True, counts="token",
        sample=("picture", "caption"), lacks="more pictures with captions", truth="shapes",
        example=f"headway predict {{run}} {modality.removesuffix('s')}.{_ENDINGS[modality]}",
    )  # fmt: skip


_ROWS = (
    Spec(
        name="translate", modality="text", objective="translate.Translate", reads="pairs",
        needs=(SOURCE, TARGET), answers="text", metrics=scored("bleu", "chrf", "loss", "ppl"),
        families=("seq2seq",), together=True, by_sequence=True, counts="target token",
        truth="pairs", decode=_SEARCHED, scoring=frozenset(SCORING),
        options=frozenset({"with", "alignments", "on_long", "prefix", "constraints", "scores"}),
        lacks="more pairs of sentences; headway check says what may be wrong with them",
    ),
    Spec(
        name="complete", modality="text", objective="continue_.Continue", reads="documents",
        needs=(TEXT,), answers="text", metrics=scored("loss", "ppl", "bits_per_byte"),
        families=("decoder",), settings=CompleteSettings, continues=True, counts="token",
        decode=_ALL - {"extra_len"},
        options=frozenset({"stream", "shots", "labels", "field", "draft", "scores"}),
        lacks="more text", truth="repeats",
        example='echo "Once upon a time" | headway predict {run}',
    ),
    Spec(
        name="fill", modality="text", objective="mask.Mask", reads="documents", needs=(TEXT,),
        answers="gaps", metrics=scored("loss", "ppl", "accuracy"), families=("encoder",),
        heads=("words",), settings=FillSettings, options=frozenset({"with"}),
        decode=frozenset({"n_best", "batch_tokens", "precision"}), counts="masked token",
        lacks="more text, pictures or recordings",
        example='echo "A {mask} in a text." | headway predict {run}',
        others=(
            _fill("pictures", "picture-encoder"), _fill("videos", "picture-encoder"),
            _fill("sounds", "sound-encoder"),
        ),
    ),
    Spec(
        name="classify", modality="text", objective="label.Label", reads="labelled",
        needs=(TEXT, OTHER, LABEL), answers="label", metrics=_CLASSES,
        families=("encoder", "decoder"), heads=("classes",), settings=ClassifySettings,
        options=_LABELS, decode=_PRECISION, together=True, pretrained=ENGLISH,
        counts="text", sample=("text", "label"), lacks=f"more labelled texts, {_KNOWS}",
        example="headway predict {run} < texts.txt",
        others=(
            _classify("pictures", "picture-encoder", "picture", "shapes"),
            _classify("videos", "picture-encoder", "video", "moving"),
            _classify("sounds", "sound-encoder", "recording"),
        ),
    ),
    Spec(
        name="tag", modality="text", objective="tags.Tags", reads="tagged", needs=(WORDS, TAGS),
        answers="tags", metrics=scored("f1", "accuracy", "precision", "recall", "loss"),
        families=("encoder", "decoder"), heads=("tags",), settings=TagSettings, pretrained=ENGLISH,
        options=frozenset({"with"}), decode=_PRECISION, together=True, counts="word",
        sample=("sentence", "tags"), lacks=f"more tagged sentences, {_KNOWS}",
    ),
    Spec(
        name="embed", modality="text", objective="contrast.Contrast", reads="texts",
        needs=(TEXT, SOURCE, TARGET), answers="vector", metrics=scored("accuracy", "mrr", "loss"),
        families=("encoder", "decoder"), settings=EmbedSettings, read_by=("normalise",),
        compares=True, pretrained=ENGLISH,
        options=frozenset({"to", "nearest", "top"}), decode=_PRECISION, counts="pair",
        lacks=f"more pairs, {_KNOWS}",
        others=(
            _embed("pictures", "picture-encoder", "picture"),
            _embed("videos", "picture-encoder", "video"),
            _embed("sounds", "sound-encoder", "recording"),
        ),
    ),
    replace(_caption("pictures"), others=(_caption("videos"),)),
    Spec(
        name="transcribe", modality="sounds", objective="transcribe.Transcribe", reads="media",
        needs=(AUDIO, WRITTEN), answers="text", metrics=scored("wer", "cer", "loss"),
        families=("sound-seq2seq", "sound-encoder"), settings=TranscribeSettings, read_by=("ctc",),
        options=frozenset({"scores", "format"}), counts="token", decode=_SEARCHED,
        sample=("recording", "transcript"), lacks="more recordings with their texts",
        truth="digits", example="headway predict {run} recording.wav",
    ),
    Spec(
        name="identify", modality="sounds", objective="identify.Identify", reads="media",
        needs=(AUDIO, LABEL), answers="label", metrics=_CLASSES, families=("sound-encoder",),
        heads=("classes",), settings=IdentifySettings, read_by=("margin", "scale"), compares=True,
        options=_LABELS | {"to", "against"},
        decode=_PRECISION, together=True, counts="recording", sample=("recording", "speaker"),
        lacks=f"more recordings, {_SEEN}", example="headway predict {run} recording.wav",
    ),
)  # fmt: skip

SPECS: dict[str, Spec] = {spec.name: spec for spec in _ROWS}
SECTIONS: dict[str, type] = {
    spec.name: spec.settings for spec in _ROWS if spec.settings is not None
}
"""Settings that only the task of their name reads."""


def register(spec: Spec) -> None:
    """A task of another package: from now on it is one of the table, for all who ask that. Its
    objective is named by its whole path (`my_package.longer.Longer`)."""
    if spec.name in (*SPECS, *ALIASES):
        raise ConfigError(f"there is a task {spec.name!r} already: register another name.")
    SPECS[spec.name] = spec
    if spec.settings is not None:
        SECTIONS[spec.name] = spec.settings
    for metric in spec.metrics:
        METRICS.setdefault(metric.name, metric)


@dataclass(frozen=True, kw_only=True)
class Alias:
    """Another word for a task."""

    task: str = ""
    """Empty: that of the teacher."""

    what: Modality | None = None
    """The kind of data that it is about, where it is about one."""

    needs: str = ""
    """The setting that must be given with it, or come from another run."""

    old: bool = False
    """Whether people had better use the new word."""


ALIASES: dict[str, Alias] = {
    "see": Alias(task="classify", what="pictures", old=True),
    "watch": Alias(task="classify", what="videos", old=True),
    "detect": Alias(task="classify", needs="data.fields"),
    "distil": Alias(needs="distil.teacher"),
}


def possible(settings: RunSettings) -> tuple[Spec, ...]:
    """The rows of a task that a run may be of, as far as its settings say what data it has: one,
    except where only the files themselves could tell pictures from recordings."""
    rows = SPECS[settings.task].rows
    if len(rows) == 1:
        return rows
    said = _said(settings)
    found = tuple(row for row in rows if row.modality in said) or rows
    return tuple(answering(row, settings.classify.answer) for row in found)


def answering(row: Spec, answer: str) -> Spec:
    """A row whose answers are several labels, or numbers, in the place of one label."""
    if row.answers != "label" or answer not in ("labels", "number"):
        return row
    several = answer == "labels"
    needs = tuple((LABELS if several else NUMBER) if one is LABEL else one for one in row.needs)
    return replace(
        row, answers="labels" if several else "number", needs=needs,
        metrics=_SETS if several else _NUMBERS,
        read_by=("answer",) if several else ("answer", "mean", "std"),
        options=row.options if several else row.options - {"scores", "top"},
        sample=(row.sample[0], "labels" if several else "number"),
    )  # fmt: skip


def _said(settings: RunSettings) -> set[str]:
    what = getattr(getattr(settings, settings.task), "what", "auto")
    if what != "auto":
        return {what}
    if settings.model is not None:
        return {front_reads(settings.model)}
    asked = settings.asked
    if any(key.startswith("model.sound.") for key in asked):
        return {"sounds"}
    if any(key.startswith("model.picture.") for key in asked):
        frames = asked.get("model.picture.frames")
        return {"pictures", "videos"} if frames is None else {_moving(frames)}
    return {"pictures", "videos", "sounds"} if settings.data.media else {"text"}


def front_reads(model: ModelSettings) -> Modality:
    """What a model is made for."""
    if hasattr(model, "picture"):
        return _moving(model.picture.frames)
    return "sounds" if hasattr(model, "sound") else "text"


def _moving(frames: int) -> Modality:
    return "videos" if frames > 1 else "pictures"


def spec_of(task: str | RunSettings) -> Spec:
    """The row of a run; of a task's name the one of its usual data."""
    if not isinstance(task, str):
        return possible(task)[0]
    alias = ALIASES.get(task)
    if alias is None or not alias.task:
        return SPECS[task]
    rows = SPECS[alias.task].rows
    return next((row for row in rows if row.modality == alias.what), rows[0])


def check_metric(
    metric: str | None, task: str, names: Sequence[str], locate: Callable[[str], str] | None = None
) -> None:
    """Refuse what is no score of the task. `locate` begins the message: a file and its line."""
    if metric is not None and metric not in names:
        near, where = suggest(metric, names), locate("train.metric") if locate else ""
        raise ConfigError(f"{where}train.metric={metric!r} is no score of the task {task}.{near}")
