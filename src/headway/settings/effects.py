"""Conditions under which settings and options have an effect.

`EFFECTS` lists the conditions of each setting and option. Loading, resolving and predicting check
the user's settings against them, and `no_effect` creates every error. Settings without a row in the
table always have an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headway.errors import DATA_ARGUMENT, Argument, ConfigError, Option
from headway.settings.data import DataSettings
from headway.settings.train import FLOOR_SCHEDULES
from headway.specs.options import OPTIONS, SCORING
from headway.specs.tasks import DECODING, SECTIONS, SPECS, Spec

if TYPE_CHECKING:
    from headway.settings.body import BodySettings
    from headway.settings.run import RunSettings


class HasPlace(Protocol):
    """Protocol of facts whose `place` names the task or model on which a setting has no effect.
    Errors contain this name."""

    @property
    def place(self) -> str: ...


Facts = TypeVar("Facts", bound=HasPlace)


@dataclass(frozen=True, kw_only=True)
class EffectRule(Generic[Facts]):
    """A row of the effects table: settings, and the condition under which they have an effect."""

    settings: tuple[str, ...]
    """Dotted keys, sections or command-line options (`--top`)."""

    when: Callable[[Facts], bool]
    """Condition under which the settings have an effect. If a fact that it needs is not known yet,
    the condition holds."""

    reason: str | tuple[str | Option | Argument, ...]
    """The condition in words, as the end of a sentence that begins with "applies only". Options and
    arguments in it are spelled as the user would give them."""

    explicit: bool = False
    """Whether setting the default explicitly is an error, too. It is an error if something else
    replaces the setting, so that the default would not hold."""

    @property
    def condition(self) -> str:
        return self.reason if isinstance(self.reason, str) else "".join(map(str, self.reason))


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """Facts that determine whether a training setting has an effect."""

    row: Spec
    media: frozenset[str] = frozenset({"image", "audio"})
    """Kinds of media that the files may contain, as far as is known. Video counts as `image`."""

    section: str = ""
    """Task whose section the settings contain; empty if none."""

    parent: str = ""
    """Run that provides the model and the vocabulary, either the start run or the teacher; empty if
    none."""

    teacher: str = ""
    distils: bool = True
    """Whether the model learns from a teacher. The command names the teacher, even if a recipe does
    not."""

    lora: bool = True
    body: str = ""
    optimizer: str = ""
    schedule: str = ""
    """Learning-rate schedule that the user chose; empty if none."""

    media_files: bool = True
    fields: bool = True
    """Whether documents are divided into fields (`data.fields`)."""

    pairs: bool = False
    """Whether the data contains pairs of texts."""

    answer: str = "auto"
    crf: bool = False
    ctc: float = 0.0
    margin: bool = True

    @property
    def place(self) -> str:
        return on_task(self.row)


@dataclass(frozen=True, kw_only=True)
class BodyFacts:
    """Facts that determine which settings a model type (`model.body`) uses."""

    body: str = "transformer"
    single_head: str | None = "every"
    masked_words: bool = False
    """Whether an encoder has a head for masked tokens, which uses the activation function."""

    @property
    def place(self) -> str:
        return f" with body={self.body!r}"


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts that determine whether a model setting has an effect, apart from the model type."""

    causal: bool = False
    attention: frozenset[str] = frozenset({"self", "encoder", "decoder", "cross"})
    """Kinds of multi-head attention in the model."""

    heads: tuple[str, ...] = ()
    media: bool = False
    """Whether the model reads images or audio. Its number of labels then has a default."""

    positions: str = "none"
    rope_scaling: str = "none"
    word_vectors: bool = False
    grid: bool = False
    """Whether the tokens of an image are positions of a convolutional feature map instead of
    patches."""

    @property
    def place(self) -> str:
        return ""


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """Facts that determine whether an option of `predict` or `evaluate` has an effect."""

    row: Spec
    options: Mapping[str, object] | None = None
    """Options of the call. None: not known yet."""

    fields: bool | None = None
    """Whether the run was trained on documents with fields. None: not known yet."""

    chooses_labels: bool = False
    """Whether the call chooses the most likely of given answers instead of generating text."""

    scoring: bool = False

    @property
    def place(self) -> str:
        return on_task(self.row)


@dataclass(frozen=True, kw_only=True)
class RequestFacts:
    """Facts that determine whether an argument of `train` or `check` has an effect."""

    distils: bool
    """Whether the task is `distil`."""

    data: bool
    """Whether training data is given."""

    recipe: bool

    @property
    def place(self) -> str:
        return ""


def on_task(row: Spec) -> str:
    return f" on the task {row.name}" + f" ({row.modality})" * (len(SPECS[row.name].rows) > 1)


def no_effect(
    typed: str, reason: str, place: str = "", *, remove: str = "", where: str = ""
) -> ConfigError:
    """Return the error for a setting or an option without effect.

    `typed`: the setting as the user typed it. `reason`: the condition under which it has an effect.
    `place`: the task or model that does not meet the condition. `remove`: the text to remove, if it
    is not `typed`. `where`: the origin of the setting, as a prefix of the error.
    """
    return ConfigError(
        f"{where}{typed} has no effect{place}: it applies only {reason}. Remove {remove or typed}."
    )


def _model_setting(key: str, value: object) -> str:
    name = key.removeprefix("model.")
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    if isinstance(value, float):
        return f"{name}={value:g}"
    return f"{name}={value!r}" if isinstance(value, int | str) else name


class EffectTable(Generic[Facts]):
    """Effect rules that depend on the same type of facts, indexed by setting."""

    def __init__(self, *rows: EffectRule[Facts]) -> None:
        keys = dict.fromkeys(key for row in rows for key in row.settings)
        self.rows = {key: tuple(row for row in rows if key in row.settings) for key in keys}

    def rows_of(self, key: str) -> Iterator[EffectRule[Facts]]:
        """Yield the rules of a setting and of the sections that contain it."""
        while key:
            yield from self.rows.get(key, ())
            key = key.rpartition(".")[0]

    def missing(
        self, key: str, facts: Facts, *, is_default: bool = False
    ) -> EffectRule[Facts] | None:
        """Return the first rule whose condition does not hold for the setting; None if it has an
        effect. If the value is the default (`is_default`), only `explicit` rules count."""
        rows = (row for row in self.rows_of(key) if row.explicit or not is_default)
        return next((row for row in rows if not row.when(facts)), None)

    def without_effect(self, facts: Facts) -> frozenset[str]:
        """Return the settings in the table that have no effect."""
        return frozenset(key for key in self.rows if self.missing(key, facts))

    def check(
        self,
        values: Mapping[str, Any],
        facts: Facts,
        *,
        is_default: Callable[[str, Any], bool] = lambda key, value: False,
        typed: Callable[[str, Any], str] = _model_setting,
        where: Callable[[str], object] = lambda key: "",
    ) -> None:
        """Raise a `ConfigError` for the first of the given values that has no effect.

        `where`: function from a key to the prefix of its error.
        """
        for key, value in values.items():
            row = self.missing(key, facts, is_default=is_default(key, value))
            if row is not None:
                raise no_effect(
                    typed(key, value), row.condition, facts.place,
                    remove=key.removeprefix("model."), where=f"{where(key)}",
                )  # fmt: skip

    def check_options(self, options: Mapping[str, object], facts: Facts) -> None:
        """Raise a `ConfigError` for the first of the given options that has no effect."""
        for name, value in options.items():
            row = self.missing(word_of(name), facts) if value else None
            if row is not None:
                raise no_effect(f"{Option(name)}", row.condition, facts.place)


def _reading(*forms: str) -> Callable[[RunFacts], bool]:
    return lambda facts: facts.row.reads in forms


def _needing(column: str) -> Callable[[RunFacts], bool]:
    return lambda facts: any(need.name == column for need in facts.row.needs)


def _reads_fields(facts: RunFacts) -> bool:
    """Whether the task reads texts that may be divided into fields."""
    row = facts.row
    labelled = row.continues or "classes" in row.heads
    return labelled and _reading("documents", "labelled", "texts")(facts)


def _reads_long_lines(facts: RunFacts) -> bool:
    """Whether texts longer than the model's maximum length can be split into windows or cut."""
    windows = facts.row.fills_masks and _reading("documents")(facts)
    return windows or _reading("labelled", "tagged", "texts")(facts)


def _has_second_column(facts: RunFacts) -> bool:
    pairs_of_media = facts.row.is_embedding and _reading("media")(facts)
    return pairs_of_media or _reading("labelled")(facts)


def _smooths(facts: RunFacts) -> bool:
    return facts.row.has_probabilities and not facts.row.is_regression


def _keys(section: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{section}.{name}" for name in names)


def word_of(name: str) -> str:
    """Return the option as it is typed: `--n-best` for `n_best`."""
    return f"--{name.replace('_', '-')}"


def _has(facts: CallFacts, name: str) -> bool | None:
    """Whether an option was given; None if that is not known yet."""
    return None if facts.options is None else bool(facts.options.get(name))


def tasks_that(uses: Callable[[Spec], bool]) -> str:
    """Return the names of the tasks whose row meets the condition `uses`, as the end of an
    error."""
    names = []
    for name, spec in SPECS.items():
        kinds = [row.modality for row in spec.rows if uses(row)]
        if kinds:
            names.append(name + f" ({', '.join(kinds)})" * (len(kinds) < len(spec.rows)))
    *some, last = names
    return f"to the tasks {', '.join(some)} and {last}" if some else f"to the task {last}"


AUGMENT_IMAGES = _keys(
    "augment", ("flip", "crop", "rand", "magnitude", "erase", "mixup", "cutmix")
)  # fmt: skip
AUGMENT_AUDIO = _keys(
    "augment", ("bands", "band_width", "spans", "span_width", "speed", "noise", "gain_db")
)
TOKENIZER = _keys(
    "tokenizer", ("kind", "vocab_size", "joint", "normalisation", "lowercase", "file")
)
STEPS = _keys("train", (
    "steps", "epochs", "batch_tokens", "micro_tokens", "bucket_steps", "optimizer", "lr",
    "schedule", "warmup", "cooldown", "floor", "eps", "weight_decay", "clip", "label_smoothing",
    "label_smoothing_kind", "rdrop", "ema", "gradient_checkpointing", "compile", "eval_every",
    "save_every", "patience", "keep", "average", "max_bad_steps",
))  # fmt: skip
"""Settings that are used only if a model is trained by optimizer steps."""

OF_SECTION: EffectRule[RunFacts] = EffectRule(
    settings=tuple(SECTIONS), when=lambda facts: facts.section in ("", facts.row.name),
    reason="to the task of the same name",
)  # fmt: skip

OF_RUN: EffectTable[RunFacts] = EffectTable(
    OF_SECTION,
    # -- data
    EffectRule(
        settings=("data.source_field", "data.target_field"), when=_reading("pairs", "texts"),
        reason="to text that has a source and a target",
    ),
    EffectRule(
        settings=("data.max_len", "data.max_ratio"), when=_reading("pairs"),
        reason="to the task translate",
    ),
    EffectRule(
        settings=("data.text_field",), when=_needing("text"),
        reason="to tasks with a column of texts",
    ),
    EffectRule(
        settings=("data.label_field",),
        when=lambda facts: _needing("label")(facts) or _reads_fields(facts),
        reason="to tasks with a column of labels, and to documents with fields",
    ),
    EffectRule(
        settings=("data.other_field",), when=_has_second_column,
        reason="to text classification and to embeddings of media, which may read pairs",
    ),
    EffectRule(
        settings=("data.words_field", "data.tags_field"), when=_reading("tagged"),
        reason="to the task tag",
    ),
    EffectRule(
        settings=("data.path_field",), when=_reading("media"),
        reason="to images, videos and audio",
    ),
    EffectRule(
        settings=("data.fields",), when=_reads_fields,
        reason="to text generation and text classification",
    ),
    EffectRule(settings=("data.unit",), when=_reading("documents"), reason="to plain text"),
    EffectRule(
        settings=("data.on_long",), when=_reads_long_lines,
        reason="to encoders of text, which read one window at a time",
    ),
    EffectRule(
        settings=("data.on_bad_row",),
        when=lambda facts: facts.fields or not _reading("documents")(facts),
        reason="to tables, because every line of plain text is valid",
    ),
    EffectRule(
        settings=("data.label_separator",), when=lambda facts: facts.row.is_multi_label,
        reason="with classify.answer=labels",
    ),
    EffectRule(
        settings=("data.valid_media",), when=lambda facts: facts.media_files,
        reason="together with data.media",
    ),
    # -- tokenizer
    EffectRule(
        settings=TOKENIZER, when=lambda facts: facts.row.is_text or facts.row.writes,
        reason="to tasks that read or generate text",
    ),
    EffectRule(
        settings=("tokenizer.joint",), when=_reading("pairs"),
        reason="to the task translate, which has a source and a target",
    ),
    EffectRule(
        settings=TOKENIZER, when=lambda facts: not facts.parent, explicit=True,
        reason=(
            "without ", Option("start"), " and ", Option("teacher"),
            ", because the vocabulary is that of the other run",
        ),
    ),
    # -- training
    EffectRule(
        settings=(*STEPS, "budget", "start", "lora", "distil"), explicit=True,
        when=lambda facts: facts.body != "ngram",
        reason="to models other than model.body=ngram, whose n-grams are counted in one pass "
        "over the training text",
    ),
    EffectRule(
        settings=("train.floor",),
        when=lambda facts: facts.schedule in ("", *FLOOR_SCHEDULES),
        reason="with train.schedule=cosine or train.schedule=linear",
    ),
    EffectRule(
        settings=("train.cooldown",), when=lambda facts: facts.schedule in ("", "trapezoid"),
        reason="with train.schedule=trapezoid",
    ),
    EffectRule(
        settings=("train.weight_decay",), when=lambda facts: facts.optimizer != "adam",
        reason="with train.optimizer=adamw, muon or lamb",
    ),
    EffectRule(
        settings=("train.label_smoothing", "train.label_smoothing_kind"), when=_smooths,
        reason="to tasks that predict tokens, tags or classes",
    ),
    EffectRule(
        settings=("train.label_smoothing", "train.label_smoothing_kind"),
        when=lambda facts: not facts.crf,
        reason="without tag.crf=true, which scores whole tag sequences",
    ),
    EffectRule(
        settings=("train.label_smoothing", "train.label_smoothing_kind"),
        when=lambda facts: facts.ctc < 1.0,
        reason="to models with a decoder, not with transcribe.ctc=1",
    ),
    EffectRule(
        settings=("train.label_smoothing_kind",), when=lambda facts: not facts.row.is_multi_label,
        reason="to a single class: each of several labels is smoothed separately",
    ),
    EffectRule(
        settings=("train.rdrop",), when=lambda facts: facts.row.has_probabilities,
        reason="to outputs that have probabilities, not to vectors and reconstructed values",
    ),
    EffectRule(
        settings=("train.rdrop",), when=lambda facts: not facts.teacher or facts.row.by_sequence,
        reason="without a teacher, whose predictions are compared instead",
    ),
    # -- distillation and fine-tuning
    EffectRule(
        settings=("distil",), when=lambda facts: facts.distils,
        reason=("to the task distil, with ", Option("teacher", takes="RUN")),
    ),
    EffectRule(
        settings=("distil.temperature",), when=_smooths,
        reason="to outputs that have probabilities, not to vectors and numbers",
    ),
    EffectRule(
        settings=_keys("distil", ("soft", "hard", "cosine", "between", "temperature")),
        when=lambda facts: not facts.row.by_sequence,
        reason="to students that learn from probabilities, not from generated text",
    ),
    EffectRule(settings=("lora",), when=lambda facts: facts.lora, reason="together with lora.rank"),
    # -- augmentation
    EffectRule(
        settings=("augment",), when=lambda facts: bool(facts.media), explicit=True,
        reason="to images, videos and audio",
    ),
    EffectRule(
        settings=AUGMENT_IMAGES, when=lambda facts: facts.media != {"audio"},
        reason="to images and videos",
    ),
    EffectRule(
        settings=AUGMENT_AUDIO, when=lambda facts: facts.media != {"image"}, reason="to audio"
    ),
    EffectRule(
        settings=("augment",), explicit=True,
        when=lambda facts: not (facts.row.fills_masks and facts.row.is_audio),
        reason="to tasks other than fill with audio, which masks parts of each recording",
    ),
    EffectRule(
        settings=("augment.mixup", "augment.cutmix"),
        when=lambda facts: not (
            facts.row.fills_masks or facts.row.is_embedding or facts.row.writes
        ),
        reason="to tasks with labels, which are mixed as the images are",
    ),
    # -- sections of tasks
    EffectRule(
        settings=("fill.context", "fill.whole_words", "fill.random", "fill.keep"),
        when=lambda facts: facts.row.is_text, reason="to text",
    ),
    EffectRule(
        settings=("fill.span",), when=lambda facts: not facts.row.is_text,
        reason="to images, videos and audio",
    ),
    EffectRule(
        settings=("classify.mean", "classify.std"), when=lambda facts: facts.answer == "number",
        reason="to regression (classify.answer=number)",
    ),
    EffectRule(
        settings=("classify.threshold",), when=lambda facts: facts.answer in ("auto", "labels"),
        reason="to multi-label classification (classify.answer=labels)",
    ),
    EffectRule(
        settings=("classify.teacher",), when=lambda facts: facts.row.is_image,
        reason="to images",
    ),
    EffectRule(
        settings=("embed.drop_words",), when=lambda facts: facts.row.is_text, reason="to text"
    ),
    EffectRule(
        settings=("embed.drop_words",), when=lambda facts: not facts.pairs,
        reason="to text without pairs",
    ),
    EffectRule(
        settings=("identify.scale",), when=lambda facts: facts.margin,
        reason="together with identify.margin",
    ),
    # -- decoding
    *(
        EffectRule(
            settings=(f"decode.{name}",),
            when=partial(lambda name, facts: name in facts.row.decode, name),
            reason=tasks_that(partial(lambda name, row: name in row.decode, name)),
        )
        for name in sorted(DECODING)
    ),
)  # fmt: skip
"""Effect rules of settings that are stored in a run: training, data and decoding."""


def _body(*bodies: str) -> dict[str, Any]:
    """Return the arguments `when` and `reason` of an `EffectRule` that holds for these model
    types."""
    named = " or ".join(f"body={body}" for body in bodies)
    return {"when": lambda facts: facts.body in bodies, "reason": f"with {named}"}


OF_BODY: EffectTable[BodyFacts] = EffectTable(
    EffectRule(
        settings=_keys("model", (
            "n_heads", "n_kv_heads", "d_head", "kept_heads", "rope", "relative", "scale_attention",
            "attention_bias", "ff_bias", "qk_norm", "decoder.n_heads", "decoder.n_kv_heads",
            "decoder.d_head", "decoder.d_ff", "decoder.activation",
        )),
        **_body("transformer"),
    ),
    EffectRule(
        settings=_keys("model", ("d_ff", "window", "attention_dropout", "ff_dropout")),
        **_body("transformer", "sha-rnn"),
    ),
    EffectRule(
        settings=("model.activation",),
        when=lambda facts: facts.body == "transformer" or facts.masked_words,
        reason="with body=transformer and to heads for masked words",
    ),
    EffectRule(
        settings=_keys("model", ("window", "attention_dropout")),
        when=lambda facts: facts.single_head not in ("none", None),
        reason="with attention, which single_head=none removes",
    ),
    EffectRule(settings=("model.bidirectional",), **_body("lstm", "gru")),
    EffectRule(settings=("model.source_attention",), **_body("lstm", "gru", "convolution")),
    EffectRule(settings=("model.kernel", "model.dilation"), **_body("convolution")),
    EffectRule(settings=("model.order",), **_body("ngram")),
    EffectRule(settings=("model.single_head",), **_body("sha-rnn")),
    EffectRule(
        settings=_keys("model", (
            "d_model", "n_layers", "dropout", "norm", "norm_eps", "block_layout", "positions",
            "init", "embedding_scale", "embedding_norm", "head_bias", "embeddings",
            "tune_embeddings", "tie", "pooling", "n_labels", "tag_transitions",
        )),
        **_body("transformer", "lstm", "gru", "convolution", "sha-rnn"),
    ),
)  # fmt: skip
"""Effect rules of settings that only some model types use. Automatic choices drop the settings that
the model type ignores."""

OF_MODEL: EffectTable[ModelFacts] = EffectTable(
    EffectRule(
        settings=("model.bidirectional",), when=lambda facts: not facts.causal,
        reason="to encoders: a decoder reads from left to right",
    ),
    *(
        EffectRule(
            settings=(f"model.kept_heads.{kind}",),
            when=partial(lambda kind, facts: kind in facts.attention, kind),
            reason=f"to models with {kind} attention",
        )
        for kind in ("self", "encoder", "decoder", "cross")
    ),
    EffectRule(
        settings=("model.rope",), when=lambda facts: facts.positions == "rotary",
        reason="with positions=rotary",
    ),
    EffectRule(
        settings=("model.relative",), when=lambda facts: facts.positions == "relative",
        reason="with positions=relative",
    ),
    EffectRule(
        settings=("model.rope.factor",), when=lambda facts: facts.rope_scaling != "none",
        reason="with rope.scaling=linear, ntk or llama3",
    ),
    EffectRule(
        settings=("model.rope.trained_len",), when=lambda facts: facts.rope_scaling == "llama3",
        reason="with rope.scaling=llama3",
    ),
    EffectRule(
        settings=("model.tune_embeddings",), when=lambda facts: facts.word_vectors,
        reason="together with embeddings, a file of word vectors",
    ),
    EffectRule(
        settings=("model.pooler",), when=lambda facts: "pooled" in facts.heads,
        reason="to models with 'pooled' in heads",
    ),
    EffectRule(
        settings=("model.n_labels",),
        when=lambda facts: facts.media or bool({"classes", "tags"} & {*facts.heads}),
        reason="to models with 'classes' or 'tags' in heads",
    ),
    EffectRule(
        settings=("model.tag_transitions",), when=lambda facts: "tags" in facts.heads,
        reason="to models with 'tags' in heads",
    ),
    EffectRule(
        settings=("model.image.tubelet",), when=lambda facts: not facts.grid,
        reason="to patches: the cells of image.stem=grid span one frame",
    ),
)  # fmt: skip
"""Effect rules of model settings that depend on other settings of the model."""

OF_CALL: EffectTable[CallFacts] = EffectTable(
    *(
        EffectRule(
            settings=(word_of(name),),
            when=partial(lambda name, facts: facts.scoring or name in facts.row.options, name),
            reason=tasks_that(partial(lambda name, row: name in row.options, name)),
        )
        for name in OPTIONS
    ),
    *(
        EffectRule(
            settings=(word_of(name),),
            when=partial(lambda name, facts: not facts.scoring or name in facts.row.scoring, name),
            reason=tasks_that(partial(lambda name, row: name in row.scoring, name)),
        )
        for name in SCORING
    ),
    EffectRule(
        settings=("--top",),
        when=lambda facts: not facts.row.is_embedding or _has(facts, "nearest") is not False,
        reason=("together with ", Option("nearest", takes="FILE")),
    ),
    EffectRule(
        settings=("--scores", "--with"),
        when=lambda facts: not (_has(facts, "against") or _has(facts, "to")),
        reason=("without ", Option("against"), " and ", Option("to")),
    ),
    EffectRule(
        settings=("--field",), when=lambda facts: facts.fields is not False,
        reason="to runs that were trained on documents with fields",
    ),
    EffectRule(
        settings=("--shots", "--labels", "--draft"), when=lambda facts: not facts.fields,
        reason="to runs that were trained on documents without fields",
    ),
    EffectRule(
        settings=("--stream", "--draft"), when=lambda facts: not facts.chooses_labels,
        reason="to generated text, not to the choice of a label",
    ),
    EffectRule(
        settings=("--text",), when=lambda facts: facts.row.is_text,
        reason="to runs that read text. For other inputs: headway predict RUN FILE",
    ),
    EffectRule(
        settings=("--sentences",), when=lambda facts: facts.row.is_text,
        reason="to exports of text models: others are compared on generated inputs",
    ),
)  # fmt: skip
"""Effect rules of the options of `predict`, `evaluate` and `export`."""

OF_REQUEST: EffectTable[RequestFacts] = EffectTable(
    EffectRule(
        settings=("--teacher", "distil.teacher"), when=lambda facts: facts.distils,
        reason="to the task distil",
    ),
    EffectRule(
        settings=("--valid",), when=lambda facts: facts.data,
        reason=(
            "together with ", DATA_ARGUMENT, " after the task. If options name the training files, "
            "use ", Option("valid_text"), ", ", Option("valid_source"), " and ",
            Option("valid_target"),
        ),
    ),
    EffectRule(
        settings=("--data",), when=lambda facts: facts.recipe,
        reason=("to the files of a recipe: ", Option("recipe", takes="NAME")),
    ),
)  # fmt: skip
"""Effect rules of the arguments of `train` and `check`."""

TABLES: tuple[EffectTable[Any], ...] = (OF_RUN, OF_BODY, OF_MODEL, OF_CALL, OF_REQUEST)

EFFECTS: Mapping[str, tuple[EffectRule[Any], ...]] = {
    key: tuple(chain.from_iterable(table.rows.get(key, ()) for table in TABLES))
    for key in chain.from_iterable(table.rows for table in TABLES)
}
"""Effect rules of each setting and option. A setting has an effect only if the conditions of all
its rules hold."""


def run_facts(settings: RunSettings, rows: Sequence[Spec], **known: Any) -> RunFacts:
    """Return the facts that determine which settings of a run have an effect.

    `rows`: the rows of the task table that are still possible. `known`: facts that the settings do
    not contain.
    """
    media = {"audio" if row.is_audio else "image" for row in rows if not row.is_text}
    facts: dict[str, Any] = {
        "row": rows[0],
        "media": frozenset(media),
        "parent": settings.parent,
        "teacher": settings.distil.teacher,
        "distils": bool(settings.distil.teacher),
        "lora": settings.lora.rank > 0,
        "optimizer": settings.asked.get("train.optimizer", ""),
        "schedule": settings.asked.get("train.schedule", ""),
        "media_files": bool(settings.data.media),
        "fields": bool(settings.data.fields),
        "answer": settings.classify.answer,
        "crf": settings.tag.crf,
        "ctc": settings.transcribe.ctc,
        "margin": settings.identify.margin > 0,
    }
    return RunFacts(**facts | known)


def data_settings(row: Spec) -> frozenset[str]:
    """Return the names of the `data.*` settings that have an effect for a row of the task table."""
    unread = OF_RUN.without_effect(RunFacts(row=row))
    return frozenset(one.name for one in fields(DataSettings) if f"data.{one.name}" not in unread)


def check_options(facts: CallFacts) -> None:
    """Raise an error for an option of a call that has no effect, given the call's other options."""
    OF_CALL.check_options(facts.options or {}, facts)


def unused_option(name: str, row: Spec) -> ConfigError | None:
    """Return the error for an option of `predict` that has no effect on this task. Return None if
    the option has an effect or is unknown."""
    rule: EffectRule[Any] | None = None
    if name in OPTIONS and not OPTIONS[name].command:
        rule = OF_CALL.missing(word_of(name), CallFacts(row=row))
    elif name in DECODING:
        rule = OF_RUN.missing(f"decode.{name}", RunFacts(row=row))
    return None if rule is None else no_effect(f"{Option(name)}", rule.condition, on_task(row))


def ignored_by(model: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the settings that a model type ignores. `model`: model settings by name,
    whose values may still be text."""
    facts = BodyFacts(
        body=str(model.get("body", "transformer")), single_head=model.get("single_head", "every")
    )
    return frozenset(key.removeprefix("model.") for key in OF_BODY.without_effect(facts))


def check_model(settings: BodySettings) -> None:
    """Raise an error for a model setting that differs from its default and has no effect, given the
    other settings."""
    heads = getattr(settings, "heads", ())
    changed = {
        f"model.{one.name}": getattr(settings, one.name)
        for one in sorted(fields(settings), key=lambda one: one.name)
        if getattr(settings, one.name) != one.default
    }
    own = vars(changed["model.decoder"]) if "model.decoder" in changed else {}
    changed |= {f"model.decoder.{name}": value for name, value in own.items() if value is not None}
    body = BodyFacts(
        body=settings.body, single_head=getattr(settings, "single_head", "every"),
        masked_words="words" in heads and not settings.causal,
    )  # fmt: skip
    OF_BODY.check(changed, body)
    facts = ModelFacts(
        causal=settings.causal, heads=heads, positions=settings.positions,
        media=hasattr(settings, "image") or hasattr(settings, "audio"),
        word_vectors=bool(getattr(settings, "embeddings", None)),
    )  # fmt: skip
    OF_MODEL.check(changed, facts)
