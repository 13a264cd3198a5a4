"""The table of tasks: the inputs, outputs, scores, settings and options of each.

This is the only list of tasks. The command line, the checks of settings, reports, exports and pages
read it, so a new task needs one row here and one module in `tasks/`. Neither torch nor numpy is
imported, because `--help` reads this module too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from headway.errors import ConfigError, Option
from headway.specs.metrics import (
    METRICS,
    Metric,
    scored,
)
from headway.specs.needs import (
    AUDIO,
    LABEL,
    MEDIA,
    OTHER,
    SOURCE,
    TAGS,
    TARGET,
    TEXT,
    WORDS,
    WRITTEN,
    MediaModality,
    Modality,
    Need,
    need_for_answer,
)
from headway.specs.options import (
    SCORING,
)
from headway.specs.task_settings import (
    CaptionSettings,
    ClassifySettings,
    CompleteSettings,
    EmbedSettings,
    FillSettings,
    IdentifySettings,
    TagSettings,
    TranscribeSettings,
)

Reads = Literal["documents", "labelled", "tagged", "fields", "texts", "pairs", "media"]
"""Form of the examples in data files. Inputs for prediction have the same columns except the
targets."""


FileSetting = Literal["text", "pairs", "media"]
"""Settings of `data` that take files; for validation they are prefixed with `valid_`."""

OutputKind = Literal["text", "label", "labels", "number", "tags", "gaps", "vector"]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A row of the task table: one task with one kind of data."""

    name: str
    modality: Modality
    objective: str
    """Path of the task's class: `label.ClassifyTask` is in `tasks/label.py`. Classes of other
    packages need their whole path. The module is imported on first use."""

    reads: Reads
    needs: tuple[Need, ...]
    answers: OutputKind
    metrics: tuple[Metric, ...]
    """Metrics that the task reports, the main one first. Some may not apply to the data (`top5`
    with three classes)."""

    families: tuple[str, ...]
    """Model families that the task supports, the default first."""

    heads: tuple[str, ...] = ()
    """Output heads needed in addition to those of the family (a decoder always predicts words)."""

    settings: type | None = None
    """Class of the settings section that is named after the task."""

    options: frozenset[str] = frozenset()
    """Names of the `OPTIONS` that apply when the task predicts."""

    scoring: frozenset[str] = frozenset()
    """Names of the `SCORING` options that apply when the task is evaluated."""

    decode: frozenset[str]
    """Names of the `decode.*` settings that the task uses."""

    continues: bool = False
    """Whether the task generates text that continues its input."""

    pretrained: str = ""
    """Shipped run that training starts from by default, provided that its vocabulary covers the
    texts."""

    compares: bool = False
    """Whether the output vectors measure the similarity of two inputs."""

    scores_ensembles: bool = False
    """Whether several runs can be scored as one ensemble."""

    by_sequence: bool = False
    """Whether a student learns from the teacher's generated text, not from its probabilities."""

    readout_settings: tuple[str, ...] = ()
    """Settings of the task's section that define how outputs are read from a model. A student
    inherits them from its teacher."""

    counts: str
    """Unit of the loss and of the training speed, in the singular."""

    sample: tuple[str, str] = ("source", "reference")
    """Headings for the `source` and `target` of samples in the report."""

    lacks: str
    """What to add to the data if a model is worse than a baseline."""

    starts_from: Literal["", "language", "unlabelled"] = ""
    """Kind of pretrained encoder that helps if a model is worse than a baseline: a language model,
    or one trained on media without labels. Empty: none."""

    truth: Literal["", "pairs", "repeats", "shapes", "moving", "digits"] = ""
    """Kind of data for which the correct attention is known: aligned pairs, text that repeats
    itself, or data made by `examples/make_NAME.py`. Empty: none."""

    example: str = "headway predict {run} < sentences.txt"
    """Example command that predicts with a run."""

    others: tuple[Spec, ...] = ()
    """Rows of the same task for other kinds of data."""

    def remedies(self, *, tuned: bool) -> str:
        """Advice on what most often helps a model that is worse than a baseline. `tuned`: the model
        already started from an encoder."""
        start = Option("start", takes="RUN")
        encoders = {
            "": "",
            "language": f", or a pretrained encoder of the language: {start}, a run of the task "
            "fill or an imported one",
            "unlabelled": f", or an encoder pretrained without labels: {start}, a run of the task "
            "fill",
        }
        return self.lacks + ("" if tuned else encoders[self.starts_from])

    @property
    def rows(self) -> tuple[Spec, ...]:
        """All rows of this task, one for each kind of data."""
        return (self, *self.others)

    @property
    def all_families(self) -> tuple[str, ...]:
        """Model families that the task supports, for all kinds of data."""
        return tuple(dict.fromkeys(family for row in self.rows for family in row.families))

    @property
    def file_options(self) -> str:
        """Alternatives to naming files after the task, as the end of an error message."""
        if self.reads == "pairs":
            return f", or {Option('source', takes='FILE')} {Option('target', takes='FILE')}"
        # A list of paths without labels or texts could be mistaken for text.
        alone = self.reads == "media" and self.answers in ("gaps", "vector")
        return f", or a list of paths with {Option('media', takes='FILE')}" if alone else ""

    @property
    def media(self) -> MediaModality | None:
        """The modality that the task reads; None if it reads text."""
        return None if self.modality == "text" else self.modality

    @property
    def target(self) -> Need | None:
        """The column that the task predicts, if its data has one."""
        return next((need for need in self.needs if need.role == "target"), None)

    @property
    def files(self) -> FileSetting:
        """The setting of `data` that takes the task's files."""
        found: dict[Reads, FileSetting] = {"pairs": "pairs", "media": "media"}
        return found.get(self.reads, "text")

    @property
    def reads_pairs(self) -> bool:
        """Whether the data consists of sources and their translations."""
        return self.reads == "pairs"

    @property
    def reads_sentences(self) -> bool:
        """Whether the data consists of sentences split into words."""
        return self.reads == "tagged"

    @property
    def reads_documents(self) -> bool:
        """Whether the data is running text."""
        return self.reads == "documents"

    @property
    def reads_views(self) -> bool:
        """Whether the data consists of pairs of texts, or of texts that are read twice."""
        return self.reads == "texts"

    @property
    def reads_labelled_texts(self) -> bool:
        return self.reads == "labelled"

    @property
    def writes(self) -> bool:
        """Whether the output is generated text."""
        return self.answers == "text"

    @property
    def is_single_label(self) -> bool:
        """Whether the task predicts exactly one class."""
        return self.answers == "label"

    @property
    def is_multi_label(self) -> bool:
        """Whether the task predicts any number of labels."""
        return self.answers == "labels"

    @property
    def is_regression(self) -> bool:
        return self.answers == "number"

    @property
    def is_tagging(self) -> bool:
        """Whether the task predicts one tag per word."""
        return self.answers == "tags"

    @property
    def fills_masks(self) -> bool:
        """Whether the task predicts masked tokens or masked parts of media."""
        return self.answers == "gaps"

    @property
    def is_embedding(self) -> bool:
        """Whether the output is a vector."""
        return self.answers == "vector"

    @property
    def is_text(self) -> bool:
        """Whether the input is text; otherwise it is images, video or audio."""
        return self.modality == "text"

    @property
    def is_audio(self) -> bool:
        return self.modality == "audio"

    @property
    def is_image(self) -> bool:
        return self.modality == "image"

    @property
    def is_media(self) -> bool:
        """Whether the data consists of folders or lists of media."""
        return self.reads == "media"

    @property
    def reads_lines(self) -> bool:
        """Whether a line of plain text can be an example of the task."""
        return not self.is_media and not self.reads_pairs

    @property
    def in_words(self) -> bool:
        """Whether the outputs are words of a vocabulary."""
        return self.writes or "words" in self.heads

    @property
    def headline(self) -> Metric:
        """First metric that can be compared between vocabularies: not the loss or the perplexity
        per token."""
        return next(one for one in self.metrics if one.name not in ("loss", "ppl"))

    @property
    def labelled(self) -> bool:
        """Whether the outputs are labels or tags of the training data."""
        return self.answers in ("label", "labels", "tags")

    @property
    def has_targets(self) -> bool:
        """Whether outputs are compared with labels, tags or texts in the data."""
        return self.is_single_label or self.is_tagging or self.writes

    @property
    def has_probabilities(self) -> bool:
        """Whether outputs have probabilities. Vectors and reconstructed media have none."""
        return self.answers != "vector" and "rebuild" not in self.heads

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of the task's metrics, the main one first."""
        return tuple(metric.name for metric in self.metrics)


ENGLISH = "base-en"
"""Name of the shipped English encoder."""


_CLASSES = scored("accuracy", "f1", "loss", "top5")


_SETS = scored("micro_f1", "f1", "exact_match", "map", "loss")


_NUMBERS = scored("mae", "rmse", "r2", "pearson", "spearman", "loss")


_LABELS = frozenset({"with", "scores", "top"})


_PRECISION = frozenset({"precision"})


_ENDINGS: dict[Modality, str] = {"image": "png", "video": "gif", "audio": "wav"}


DECODING = frozenset({
    "beam", "length_penalty", "length_penalty_alpha", "coverage", "n_best", "extra_len", "max_len",
    "min_len", "sample", "temperature", "top_k", "top_p", "min_p", "seed", "groups", "diversity",
    "repetition_penalty", "no_repeat_ngram", "unknown", "stop", "precision", "batch_tokens",
})  # fmt: skip
"""Names of all `decode.*` settings. A test compares them with `DecodeSettings`; importing that
class here would make the tables depend on the settings."""


_SEARCHED = DECODING - {"stop"}


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
    """Return the row for classification of one kind of media. `one`: its singular noun."""
    return Spec(
        name="classify", modality=modality, objective="label.ClassifyTask", reads="media",
        needs=(MEDIA[modality], LABEL), answers="label", metrics=_CLASSES, families=(family,),
        heads=("classes",), settings=ClassifySettings, options=_LABELS, decode=_PRECISION,
        scores_ensembles=True, counts=one, sample=(one, "label"),
        lacks=f"more {one}s", starts_from="unlabelled",
        truth=truth, example=f"headway predict {{run}} {one}.{_ENDINGS[modality]}",
    )  # fmt: skip


def _embed(modality: Modality, family: str, one: str) -> Spec:
    """Return the row for embeddings of one kind of media. `one`: its singular noun."""
    return Spec(
        name="embed", modality=modality, objective="contrast.ContrastiveTask", reads="media",
        needs=(MEDIA[modality],), answers="vector", metrics=scored("accuracy", "mrr", "loss"),
        families=(family,), settings=EmbedSettings, readout_settings=("normalise",), compares=True,
        options=frozenset({"to", "nearest", "top"}), decode=_PRECISION, counts="pair",
        lacks=f"more {one}s", starts_from="unlabelled",
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
        decode=DECODING - {"extra_len"},
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
        counts="text", sample=("text", "label"), lacks="more labelled texts",
        starts_from="language",
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
        sample=("sentence", "tags"), lacks="more tagged sentences", starts_from="language",
    ),
    Spec(
        name="embed", modality="text", objective="contrast.ContrastiveTask", reads="texts",
        needs=(TEXT, SOURCE, TARGET), answers="vector", metrics=scored("accuracy", "mrr", "loss"),
        families=("encoder", "decoder"), settings=EmbedSettings, readout_settings=("normalise",),
        compares=True, pretrained=ENGLISH,
        options=frozenset({"to", "nearest", "top"}), decode=_PRECISION, counts="pair",
        lacks="more pairs", starts_from="language",
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
        lacks="more recordings", starts_from="unlabelled",
        example="headway predict {run} recording.wav",
    ),
)  # fmt: skip


SPECS: dict[str, Spec] = {spec.name: spec for spec in _ROWS}


SECTIONS: dict[str, type] = {
    spec.name: spec.settings for spec in _ROWS if spec.settings is not None
}
"""Settings classes of the sections that only one task has, by the name of the task."""


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

    needs: str = ""
    """Setting that must be given together with the alias, or inherited from another run."""


ALIASES: dict[str, Alias] = {
    "detect": Alias(task="classify", needs="data.fields"),
    "distil": Alias(needs="distil.teacher"),
}


def spec_for_answer(row: Spec, answer: str) -> Spec:
    """Return the row of a classification task, adapted to multi-label targets or to regression."""
    if row.answers != "label" or answer not in ("labels", "number"):
        return row
    several = answer == "labels"
    needs = tuple(need_for_answer(one, answer) for one in row.needs)
    return replace(
        row, answers="labels" if several else "number", needs=needs,
        metrics=_SETS if several else _NUMBERS,
        readout_settings=("answer",) if several else ("answer", "mean", "std"),
        options=row.options if several else row.options - {"scores", "top"},
        sample=(row.sample[0], "labels" if several else "number"),
    )  # fmt: skip
