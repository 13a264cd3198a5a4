"""All settings of a run. They are loaded from a recipe and `key=value` arguments, and written to
`config.toml`.

The settings that the user gave are stored in addition to the resulting values. When training is
resumed, they show whether the command is unchanged.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headway.errors import ConfigError, DataError, FolderError, one_line, suggest
from headway.settings import effects
from headway.settings.augment import AugmentSettings
from headway.settings.data import FILES, DataSettings, TokenizerSettings, file_name
from headway.settings.decode import DecodeSettings
from headway.settings.load import (
    Locate,
    Place,
    from_dict,
    in_file,
    model_settings,
    no_location,
)
from headway.settings.model import (
    FAMILY_SETTINGS,
    AudioSettings,
    ImageSettings,
    ModelSettings,
    family_of,
)
from headway.settings.overrides import (
    FROM_PYTHON,
    UNKNOWN,
    OriginKind,
    Overrides,
    RunConfigText,
    SettingsFile,
    apply_override,
    as_typed,
    flatten,
)
from headway.settings.start import DistilSettings, LoraSettings, StartSettings
from headway.settings.synonyms import setting_here
from headway.settings.task_rows import possible, spec_of
from headway.settings.toml import (
    add_comment,
    comments_of,
    parse,
    read_text,
    section_toml,
    to_toml,
    toml_value,
)
from headway.settings.train import ResolvedTrain, TrainSettings
from headway.specs.metrics import check_metric
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
from headway.specs.tasks import ALIASES, SECTIONS, SPECS, Spec
from headway.specs.values import setting_types

TASK_SECTIONS = SECTIONS
"""Classes of the settings sections that apply only to the task of the same name."""

SETTINGS: Mapping[str, type[Any]] = ChainMap(
    # Task sections come first, because tasks of other packages are added to this mapping. A
    # ChainMap iterates over its first mapping last.
    TASK_SECTIONS,
    {
        "data": DataSettings,
        "tokenizer": TokenizerSettings,
        "train": TrainSettings,
        "decode": DecodeSettings,
        "start": StartSettings,
        "lora": LoraSettings,
        "distil": DistilSettings,
        "augment": AugmentSettings,
    },
)

FILE_KEYS = tuple(f"data.{name}" for name in FILES)
FORMAT = 2
"""Version of the format of a run's `config.toml`. Files with another version are rejected."""

BESIDE = ("format", "task", "fingerprint", "labels", "asked")
"""Top-level keys of a `config.toml` that are neither sections of settings nor the model."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    task: str
    data: DataSettings = DataSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings | None = None
    """Model settings; None until they are chosen from the data."""

    train: TrainSettings = TrainSettings()
    decode: DecodeSettings = DecodeSettings()
    complete: CompleteSettings = CompleteSettings()
    fill: FillSettings = FillSettings()
    classify: ClassifySettings = ClassifySettings()
    tag: TagSettings = TagSettings()
    embed: EmbedSettings = EmbedSettings()
    caption: CaptionSettings = CaptionSettings()
    transcribe: TranscribeSettings = TranscribeSettings()
    identify: IdentifySettings = IdentifySettings()
    registered: Mapping[str, object] = field(default_factory=dict)
    """Settings sections of tasks that other packages add, by task. They are also available as
    attributes."""

    augment: AugmentSettings = AugmentSettings()
    start: StartSettings = StartSettings()
    lora: LoraSettings = LoraSettings()
    distil: DistilSettings = DistilSettings()
    labels: tuple[str, ...] = ()
    """Names of the classes or tags in the training data; empty for other tasks."""

    fingerprint: str = ""
    """Fingerprint of the prepared data. Training resumes only on data with the same fingerprint."""

    asked: Overrides = field(default_factory=Overrides)
    """Settings that the user gave in a recipe, as arguments, as options or in Python."""

    row: Spec | None = field(default=None, compare=False, repr=False)
    """Row of the task table that fits the data files; None until it is known. It is not stored,
    because the settings of a finished run determine it."""

    files: object = field(default=None, compare=False, repr=False)
    """Cache of the data files (`data.files.DataFiles`), so that a command does not open a file
    again to detect its format. It is not stored."""

    @property
    def parent(self) -> str:
        """Name of the run that provides the model and vocabulary, either the teacher or the start
        run; empty if there is none."""
        return self.distil.teacher or self.start.run

    if not TYPE_CHECKING:  # type checkers should see only the fields

        def __getattr__(self, name: str) -> object:
            if name in TASK_SECTIONS:
                return self.registered.get(name) or TASK_SECTIONS[name]()
            raise AttributeError(f"run settings have no attribute {name!r}")


@dataclass(frozen=True, kw_only=True)
class Resolved(RunSettings):
    """Complete settings of a run, each given by the user, chosen automatically or a default."""

    model: ModelSettings = field()
    train: ResolvedTrain = field()
    why: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Reason for each automatically chosen setting, by dotted key."""


def overrides_of(settings: RunSettings) -> Overrides:
    """Return all settings given by the user, including the non-default values in settings objects
    that were built in Python."""
    found = Overrides() if settings.asked else Overrides({"task": settings.task}, FROM_PYTHON)
    for name in SETTINGS:
        found |= Overrides.from_settings(getattr(settings, name), name)
    if settings.model is not None and not settings.asked.section("model"):
        found |= Overrides({"model.family": family_of(settings.model)}, FROM_PYTHON)
        found |= Overrides.from_settings(settings.model, "model")
        # Vocabulary sizes are determined by the tokenizer of the run, not by the user.
        found = found.without("model.vocab_size", "model.source_vocab_size")
    return settings.asked | found.without(*settings.asked)


def media_settings(settings: RunSettings) -> ImageSettings | AudioSettings | None:
    """Return the input settings of an image, video or audio model; None for text models."""
    found = getattr(settings.model, "image", None) or getattr(settings.model, "audio", None)
    return found if isinstance(found, ImageSettings | AudioSettings) else None


def load_run_settings(
    path: Path | None,
    overrides: Sequence[str],
    given: Mapping[str, Any] | None = None,
    *,
    is_recipe: bool = False,
) -> RunSettings:
    """Return settings loaded from a file, overridden by command-line options, then by `key=value`
    arguments.

    `is_recipe`: all values in the file count as given by the user, even if a run wrote the file.
    """
    text = read_text(path) if path else ""
    values = parse(text, path) if path else {}
    given = given if isinstance(given, Overrides) else Overrides.from_flags(given or {})
    if is_recipe:
        _of_another_machine(values)
        values = {k: v for k, v in values.items() if k not in ("format", "asked", "fingerprint")}
    for key, value in given.items():
        _put(values, key.split("."), value)
    named = Overrides.from_arguments(overrides)
    words = {apply_override(values, word): word for word in overrides}
    words |= {key: as_typed(given, key) for key in given}
    options = {
        key for key in given if given.origin(key).kind in (OriginKind.OPTION, OriginKind.IMPLIED)
    }
    for key, other in (("train.steps", "epochs"), ("train.epochs", "steps")):
        train = values.get("train")
        if key in words and f"train.{other}" not in words and isinstance(train, dict):
            train.pop(other, None)  # the argument replaces the length in the other unit
    locate = in_file(path, text, words, options, whole=not is_recipe) if path else no_location
    settings = run_settings(values, locate)
    if "asked" in values:
        return replace(settings, asked=Overrides(settings.asked, RunConfigText(text)))
    # Later origins have priority, in the same order as for values: recipe, options, arguments.
    places = Overrides(settings.asked, SettingsFile(path.name, text) if path else UNKNOWN)
    for said in (given, named):
        places |= said
    return replace(settings, asked=places.only(settings.asked))


def load_model_settings(path: Path | None, overrides: list[str]) -> ModelSettings:
    """Return the `[model]` section of a file, overridden by arguments such as
    `model.n_layers=4`."""
    text = read_text(path) if path else ""
    values = parse(text, path) if path else {}
    values = {
        name: value for name, value in values.items() if name not in (*SETTINGS, *BESIDE, *ALIASES)
    }
    words = {apply_override(values, word): word for word in overrides}
    locate = in_file(path, text, words) if path else no_location
    for name, value in values.items():
        if name != "model":
            raise ConfigError(f"{locate(name)}{_unknown_at_top(name, value)}")
    return model_settings(values.get("model", {}), "model.", locate)


def _unknown_at_top(name: str, value: object) -> str:
    settings = {"preset", "family"}.union(
        *(setting_types(kind) for kind in FAMILY_SETTINGS.values())
    )
    if name in settings:
        return f"unknown setting {name!r}. Did you mean 'model.{name}'?"
    kind = "section" if isinstance(value, dict) else "setting"
    return f"unknown {kind} {name!r}. Known sections: model."


def _of_another_machine(values: dict[str, Any]) -> None:
    """Remove the number of threads from the settings of a run, in place, if it was chosen
    automatically. The best number depends on the machine and is measured when a run starts."""
    asked, train = values.get("asked"), values.get("train")
    if isinstance(asked, dict) and isinstance(train, dict) and "train.threads" not in asked:
        train.pop("threads", None)


def load_resolved(
    path: Path, overrides: Sequence[str] = (), given: Mapping[str, object] | None = None
) -> Resolved:
    """Return the settings in the `config.toml` of a run, overridden by options and arguments."""
    settings = load_run_settings(path, overrides, given)
    if settings.model is None:
        raise FolderError(f"{path} has no [model] section. Name the folder of a finished run.")
    return _resolved(settings, read_text(path))


def _resolved(settings: RunSettings, text: str) -> Resolved:
    values = {one.name: getattr(settings, one.name) for one in fields(settings)}
    values["train"] = ResolvedTrain.stored(settings.train, spec_of(settings).scores[0])
    comments = comments_of(text)
    why = {
        f"{section}.{name}": comment.removeprefix(CHOSEN)
        for section, found in comments.items()
        for name, comment in found.items()
        if comment.startswith(CHOSEN)
    }
    return Resolved(**values, why=why)


CHOSEN, ASKED = "chosen: ", "asked: "
"""Prefixes of the comments after values in the `config.toml` of a run."""


def run_settings(values: dict[str, Any], locate: Locate = no_location) -> RunSettings:
    values = {key: value for key, value in values.items() if key != "format"}
    asked = values.pop("asked", None)
    sections = SETTINGS
    known = ["task", "model", *sections]
    fingerprint = str(values.pop("fingerprint", ""))
    try:
        labels = tuple(one_line(str(label), "labels") for label in values.pop("labels", ()))
    except DataError as error:
        raise DataError(f"{locate('labels')}{error}") from error
    for name in values:
        if name not in known:
            kind = "section" if isinstance(values[name], dict) else "setting"
            near = _home(name, sections) or suggest(name, known)
            raise ConfigError(f"{locate(name)}unknown {kind} {name!r}.{near}")
    task = values.get("task", "translate")
    if task not in SPECS:
        raise ConfigError(f"{locate('task')}unknown task {task!r}.{suggest(str(task), SPECS)}")
    check_sections(values, task, locate)
    built: dict[str, Any] = {
        name: from_dict(cls, values.get(name, {}), f"{name}.", locate)
        for name, cls in sections.items()
    }
    model = values.get("model", {})
    if isinstance(model, dict) and ("preset" in model or "family" in model):
        built["model"] = model_settings(model, "model.", locate)
    elif model:
        # Without a family, the model settings are completed only when the data is known. Check the
        # given ones now, so that errors appear before the data is read.
        _check_changes(model, SPECS[task].all_families, locate)
    built["asked"] = Overrides(values if asked is None else asked)
    own = {one.name for one in fields(RunSettings)}
    built["registered"] = {name: built.pop(name) for name in TASK_SECTIONS if name not in own}
    settings = RunSettings(task=task, fingerprint=fingerprint, labels=labels, **built)
    if asked is None:  # the settings of a trained run are not checked again
        check_metric(settings.train.metric, task, spec_of(settings).scores, locate)
        check_effect(settings, possible(settings), locate, distils=True)
    return settings


def check_sections(names: Container[str], task: str, locate: Locate = no_location) -> None:
    """Raise an error for a settings section that belongs to another task."""
    for name in TASK_SECTIONS:
        if name in names and name != task:
            raise effects.no_effect(
                f"[{name}]", effects.OF_SECTION.condition,
                effects.RunFacts(row=SPECS[task]).place, where=f"{locate(name)}",
            )  # fmt: skip


TYPED = (OriginKind.SETTING, OriginKind.OPTION, OriginKind.IMPLIED)
"""Kinds of origin whose text is the argument as the user typed it."""


def check_effect(
    settings: RunSettings,
    rows: Sequence[Spec],
    locate: Locate | None = None,
    chosen: Mapping[str, object] | None = None,
    **known: object,
) -> None:
    """Raise an error for settings without effect, among those given by the user and those in
    `chosen`.

    `rows`: the rows of the task table that are still possible. There may be several until the data
    has been read. `known`: further facts, such as the model type.
    """
    asked = settings.asked

    def place(key: str) -> Place:
        """Return the origin of a setting as the prefix of an error. Empty if it is what the user
        typed, because the error already contains it."""
        origin = asked.origin(key)
        return Place(f"{origin.text}: ") if origin.text and origin.kind not in TYPED else Place()

    effects.OF_RUN.check(
        {**(chosen or {}), **asked},
        effects.run_facts(settings, rows, **known),
        is_default=_is_default,
        typed=lambda key, value: as_typed(asked, key) if key in asked else f"{key}={value}",
        where=locate or place,
    )


def _is_default(key: str, value: object) -> bool:
    """Whether a setting has its default value. `value` is in the form that `Overrides` stores."""
    section, _, name = key.partition(".")
    if key == "train.label_smoothing":  # its default depends on the task
        return value == 0.0
    if section not in SETTINGS:
        return False
    return bool(value == flatten({key: getattr(SETTINGS[section](), name)})[key])


def _check_changes(model: dict[str, Any], families: Sequence[str], locate: Locate) -> None:
    """Raise an error for model settings that no family of the task accepts.

    Combinations of heads and widths are checked later, when the rest of the model is chosen.
    """
    errors = []
    decoder = model.get("decoder")
    tables = [model, decoder if isinstance(decoder, dict) else {}]
    groups = [table.get("n_kv_heads") for table in tables]
    shared = lcm(*(n for n in groups if isinstance(n, int) and n > 0))
    loose: dict[str, Any] = {"n_heads": shared, "d_head": 64}
    loose = {key: value for key, value in loose.items() if key not in effects.ignored_by(model)}
    for family in families:
        if family == "image-encoder":
            image = model.get("image")
            distils = isinstance(image, dict) and image.get("distil_token")
            heads = ["classes", "distilled"] if distils else ["classes"]
            loose |= {"pooling": "mean", "heads": heads}
        changed = {"family": family, **loose, **model}
        if isinstance(model.get("image"), dict):
            changed["image"] = _provisional_image(model["image"])
        try:
            model_settings(changed, "model.", locate)
            return
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _provisional_image(asked: dict[str, Any]) -> dict[str, Any]:
    """Return image settings that are compatible with the given ones, for checks before the data
    determines the rest."""
    loose: dict[str, Any] = {}
    patch, tubelet = asked.get("patch", 1), asked.get("tubelet", 1)
    if "height" in asked or "width" in asked or type(patch) is not int or patch > 224:
        loose |= {"height": patch, "width": patch, "patch": 1}
    if type(tubelet) is int:
        loose["frames"] = tubelet
    return {**loose, **asked}


AnyRun = TypeVar("AnyRun", bound=RunSettings)


def with_files(settings: AnyRun, files: DataSettings) -> AnyRun:
    """Return the settings of a run with the files of a test set as its data.

    If a column name differs from the training data, the caller gave it, so the column must exist.
    """
    names = {
        f"data.{one.name}": value
        for one in fields(DataSettings)
        if one.name.endswith("_field")
        and (value := getattr(files, one.name)) != getattr(settings.data, one.name)
    }
    return replace(settings, data=files, asked=settings.asked | Overrides(names))


def without_folders(settings: Resolved) -> Resolved:
    """Return the settings of a finished run, with data files reduced to their names."""
    data = settings.data
    names: dict[str, Any] = {name: tuple(map(file_name, getattr(data, name))) for name in FILES}
    asked = settings.asked.with_names(FILE_KEYS, file_name)
    return replace(settings, data=replace(data, **names), asked=asked)


def resolved_toml(settings: RunSettings) -> str:
    """Return the text of the complete `config.toml` of a run.

    A comment after each value gives the reason for a choice or the origin of a setting. Defaults
    have no comment.
    """
    why = settings.why if isinstance(settings, Resolved) else {}

    def comment(key: str) -> str:
        if key in why:
            return CHOSEN + why[key]
        origin = settings.asked.origin(key).text
        return ASKED + origin if origin else ""

    parts = [f"format = {FORMAT}\ntask = {toml_value(settings.task)}\n"]
    if settings.fingerprint:
        parts.append(f"fingerprint = {toml_value(settings.fingerprint)}\n")
    if settings.labels:
        parts.append(f"labels = {toml_value(settings.labels)}\n")
    if settings.model is not None:
        parts.append(to_toml(settings.model, comment))
    for name, kind in SETTINGS.items():
        values = getattr(settings, name)
        usual = name in ("data", "tokenizer", "train", "decode", settings.task)
        if usual or values != kind():
            parts.append(section_toml(name, values, comment))
    asked = [
        add_comment(f"{toml_value(key)} = {toml_value(value)}", settings.asked.origin(key).text)
        for key, value in settings.asked.items()
    ]
    parts.append(
        "\n".join(
            [
                "# Settings given by the user; all others are defaults or were chosen "
                "automatically.",
                "[asked]",
                *asked,
            ]
        )
        + "\n"
    )
    return "\n".join(parts)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a description of each setting that differs between two commands, with both values."""
    return [
        f"{key}: {_shown(before, key)} before, {_shown(now, key)} now"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, None) != now.get(key, None)
    ]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return toml_value(values[key]) if key in values else "not set"


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for section in path[:-1]:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            return  # an error is raised when the section is read
    values[path[-1]] = value


def _home(name: str, sections: Mapping[str, type]) -> str:
    """Return a suggestion for a setting outside its section, as the end of an error: its full key.
    Empty if the setting is unknown."""
    for section, cls in sections.items():
        if name in {f.name for f in fields(cls)}:
            return f" Did you mean '{section}.{name}'?"
    here = setting_here(name)
    return f" Did you mean '{here}'?" if here else ""
