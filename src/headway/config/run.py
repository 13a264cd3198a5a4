"""All settings of a run, from a recipe and `key=value` words, and back to `config.toml`.

What was asked for is kept beside what it came to, so that the same command can be told from
another one when a run is taken up again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from headway.config.asked import Asked, Lines, Noted, flat
from headway.config.augment import AugmentSettings
from headway.config.data import DataSettings, TokenizerSettings
from headway.config.decode import DecodeSettings
from headway.config.elsewhere import setting_here
from headway.config.load import (
    Locate,
    apply_override,
    from_dict,
    in_file,
    model_settings,
    nowhere,
)
from headway.config.metrics import check_metric, metrics_of
from headway.config.model import ModelSettings, PictureSettings, SoundSettings
from headway.config.tasks import (
    SECTIONS,
    CaptionSettings,
    ClassifySettings,
    CompleteSettings,
    DistilSettings,
    EmbedSettings,
    FillSettings,
    IdentifySettings,
    LoraSettings,
    SeeSettings,
    StartSettings,
    TagSettings,
    TranscribeSettings,
    WatchSettings,
)
from headway.config.toml import commented, parse, read_text, section_toml, to_toml, toml_value
from headway.config.train import OF_SCHEDULES, TrainSettings
from headway.errors import ConfigError, DataError, one_line, suggest

TEXT_TASKS = ("translate", "complete", "fill", "classify", "tag", "embed")
MEDIA_TASKS = ("see", "watch", "caption", "transcribe", "identify")
TASKS = (*TEXT_TASKS, *MEDIA_TASKS)
OTHER_WORDS = ("detect", "distil")
"""Also understood by `headway train`: `detect` is `classify` of documents with fields, and `distil`
the task of a teacher."""

SETTINGS: dict[str, type[Any]] = {
    "data": DataSettings,
    "tokenizer": TokenizerSettings,
    "train": TrainSettings,
    "decode": DecodeSettings,
    "start": StartSettings,
    "lora": LoraSettings,
    "distil": DistilSettings,
    "augment": AugmentSettings,
    **SECTIONS,
}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    task: str
    data: DataSettings = DataSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    model: ModelSettings | None = None
    """None until it is chosen from the data."""

    train: TrainSettings = TrainSettings()
    decode: DecodeSettings = DecodeSettings()
    complete: CompleteSettings = CompleteSettings()
    fill: FillSettings = FillSettings()
    classify: ClassifySettings = ClassifySettings()
    tag: TagSettings = TagSettings()
    embed: EmbedSettings = EmbedSettings()
    see: SeeSettings = SeeSettings()
    watch: WatchSettings = WatchSettings()
    caption: CaptionSettings = CaptionSettings()
    transcribe: TranscribeSettings = TranscribeSettings()
    identify: IdentifySettings = IdentifySettings()
    augment: AugmentSettings = AugmentSettings()
    start: StartSettings = StartSettings()
    lora: LoraSettings = LoraSettings()
    distil: DistilSettings = DistilSettings()
    labels: tuple[str, ...] = ()
    """Names of classes or tags, as the training data has them."""

    fingerprint: str = ""
    """Of the data as it was prepared: the run goes on with the same data or not at all."""

    asked: Asked = field(default_factory=Asked)
    """What the user set, in a recipe, by words, by options or in Python."""


def media_front(settings: RunSettings) -> PictureSettings | SoundSettings | None:
    """How images or recordings are read, of a model that looks or listens."""
    found = getattr(settings.model, "picture", None) or getattr(settings.model, "sound", None)
    return found if isinstance(found, PictureSettings | SoundSettings) else None


def load_run_settings(
    path: Path | None,
    overrides: Sequence[str],
    given: Mapping[str, Any] | None = None,
    *,
    is_recipe: bool = False,
) -> RunSettings:
    """A file, changed by what the command's own options gave, changed by `key=value` words.

    `is_recipe`: all of it is asked for, also where a run or a dry run wrote it.
    """
    text = read_text(path) if path else ""
    values = parse(text, path) if path else {}
    given = given if isinstance(given, Asked) else Asked.from_flags(given or {})
    if is_recipe:
        _of_another_machine(values)
        values = {k: v for k, v in values.items() if k not in ("asked", "fingerprint")}
    for key, value in given.items():
        _put(values, key.split("."), value)
    named = Asked.from_words(overrides)
    words = {apply_override(values, word): word for word in overrides}
    words |= {key: f"{key}={value}" for key, value in given.items()}
    for key, other in (("train.steps", "epochs"), ("train.epochs", "steps")):
        train = values.get("train")
        if key in words and f"train.{other}" not in words and isinstance(train, dict):
            train.pop(other, None)  # the word replaces what the file says in the other unit
    settings = run_settings(values, in_file(path, text, words) if path else nowhere)
    if "asked" in values:
        return replace(settings, asked=Asked(settings.asked, Noted(text)))
    # The order is that of the values, in which a recipe comes first.
    places = Asked(settings.asked, Lines(path.name, text) if path else "") | given | named
    return replace(settings, asked=places.only(settings.asked))


def _of_another_machine(values: dict[str, Any]) -> None:
    """Leave out of what a run wrote the threads that it had, unless someone asked for them: how
    many are quick is measured where and when a run begins."""
    asked, train = values.get("asked"), values.get("train")
    if isinstance(asked, dict) and isinstance(train, dict) and "train.threads" not in asked:
        train.pop("threads", None)


def run_settings(values: dict[str, Any], locate: Locate = nowhere) -> RunSettings:
    values = dict(values)
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
    if task not in TASKS:
        raise ConfigError(f"{locate('task')}unknown task {task!r}.{suggest(str(task), TASKS)}")
    for name in SECTIONS:
        if name in values and name != task:
            raise ConfigError(
                f"{locate(name)}the settings of {name!r} have no effect on the task {task!r}."
            )
    data = values.get("data")
    media = task in MEDIA_TASKS or bool(isinstance(data, dict) and data.get("media"))
    if "augment" in values and not media:
        raise ConfigError(
            f"{locate('augment')}the settings of 'augment' change pictures and recordings; the "
            f"task {task!r} reads text."
        )
    built: dict[str, Any] = {
        name: from_dict(cls, values.get(name, {}), f"{name}.", locate)
        for name, cls in sections.items()
    }
    model = values.get("model", {})
    if isinstance(model, dict) and ("preset" in model or "family" in model):
        built["model"] = model_settings(model, "model.", locate)
    elif model:
        # Changes to a model that the data will choose: checked now against a family of the task.
        _check_changes(model, FAMILIES_OF[task], locate)
    if asked is None:  # what a run wrote is left alone: it has been trained
        _check_augment(built["augment"], task, built.get("model"), locate)
        names = metrics_of(task, media=media)
        check_metric(built["train"].metric, task, names, locate)
        _check_effect(RunSettings(task=task, **built, asked=Asked(values)), media, locate)
    built["asked"] = Asked(values if asked is None else asked)
    return RunSettings(task=task, fingerprint=fingerprint, labels=labels, **built)


FAMILIES_OF = {
    "translate": ("seq2seq",),
    "complete": ("decoder",),
    "fill": ("encoder", "picture-encoder", "sound-encoder"),
    "classify": ("encoder", "decoder"),
    "tag": ("encoder", "decoder"),
    "embed": ("encoder", "decoder"),
    "see": ("picture-encoder",),
    "watch": ("picture-encoder",),
    "caption": ("picture-seq2seq",),
    "transcribe": ("sound-seq2seq", "sound-encoder"),
    "identify": ("sound-encoder",),
}
"""The families that can do a task, the usual one first."""


READS = {
    "see": "pictures",
    "watch": "pictures",
    "caption": "pictures",
    "transcribe": "sounds",
    "identify": "sounds",
}
"""What a task is given. Of `fill` the model or the files say it."""


def _check_augment(
    augment: AugmentSettings, task: str, model: ModelSettings | None, locate: Locate
) -> None:
    """Refuse changes of pictures to a task of recordings, and the other way round."""
    reads = READS.get(task)
    if task == "fill" and model is not None:
        kinds = {"picture": "pictures", "sound": "sounds"}
        reads = next((kind for name, kind in kinds.items() if hasattr(model, name)), None)
    wrong = [] if reads is None else augment.without_effect(reads)
    if wrong:
        key = f"augment.{wrong[0]}"
        seen, changed = "pictures", "recordings"
        if reads == "sounds":
            seen, changed = changed, seen
        raise ConfigError(
            f"{locate(key)}{key} changes {changed} and has no effect on the task {task!r} of "
            f"{seen}. Leave it out."
        )


WITH_RDROP = ("translate", "classify")
WITHOUT_WORDS = ("see", "watch", "identify")


def _check_effect(settings: RunSettings, media: bool, locate: Locate) -> None:
    """Refuse settings of training and of the tokenizer that the task would pass over, where they
    are not what they would be anyway."""
    task = settings.task
    rebuilds = task == "fill" and media
    reasons: dict[str, str] = {}
    if task not in WITH_RDROP:
        reasons["train.rdrop"] = f"on the task {task}, only on {' and '.join(WITH_RDROP)}"
    elif task == "classify" and settings.distil.teacher:
        reasons["train.rdrop"] = "on a student, whose answers are compared with its teacher's"
    smoothed = ""
    if task == "embed":
        smoothed = "on the task embed, which has no words or classes to share out"
    elif rebuilds:
        smoothed = "on fill with pictures or recordings, which rebuilds numbers"
    elif task == "tag" and settings.tag.crf:
        smoothed = "with tag.crf=true, which scores whole sentences"
    elif task == "transcribe" and settings.transcribe.ctc == 1.0:
        smoothed = "with transcribe.ctc=1, which has no decoder"
    if smoothed:
        reasons |= {"train.smoothing": smoothed, "train.smoothing_kind": smoothed}
    if task in WITHOUT_WORDS or rebuilds:
        words = [key for key in settings.asked if key.startswith("tokenizer.")]
        reasons |= dict.fromkeys(words, f"on the task {task}, where nothing is written")
    if "train.schedule" in settings.asked:
        reasons |= {
            f"train.{name}": f"with train.schedule={settings.train.schedule}"
            for name, schedules in OF_SCHEDULES.items()
            if settings.train.schedule not in schedules
        }
    if media or (task in ("complete", "fill") and not settings.data.fields):
        reasons["data.bad"] = "here, where no line can be wrong"
    for key, reason in reasons.items():
        value = settings.asked.get(key)
        # That of smoothing is each task's own: none, where it would have no effect.
        usual = 0.0 if key == "train.smoothing" else _default(key)
        if key in settings.asked and value != usual:
            raise ConfigError(f"{locate(key)}{key} has no effect {reason}. Leave it out.")


def _default(key: str) -> Any:
    """Of a dotted key, as `asked` has it."""
    section, _, name = key.partition(".")
    return flat({key: getattr(SETTINGS[section](), name)})[key]


def _check_changes(model: dict[str, Any], families: Sequence[str], locate: Locate) -> None:
    """Refuse what is a setting of none of the families. Which heads and widths go together is seen
    when the rest of the model is chosen."""
    errors = []
    loose: dict[str, Any] = {"n_heads": model.get("n_kv_heads") or 1, "d_head": 64}
    for family in families:
        if family == "picture-encoder":
            picture = model.get("picture")
            distils = isinstance(picture, dict) and picture.get("distil_token")
            heads = ["classes", "distilled"] if distils else ["classes"]
            loose |= {"pooling": "mean", "heads": heads}
        changed = {"family": family, **loose, **model}
        if isinstance(model.get("picture"), dict):
            changed["picture"] = _loose_picture(model["picture"])
        try:
            model_settings(changed, "model.", locate)
            return
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _loose_picture(asked: dict[str, Any]) -> dict[str, Any]:
    """Sizes that go with those asked for, as the pictures themselves will bring them."""
    loose: dict[str, Any] = {}
    patch, tubelet = asked.get("patch", 1), asked.get("tubelet", 1)
    if "height" in asked or "width" in asked or type(patch) is not int or patch > 224:
        loose |= {"height": patch, "width": patch, "patch": 1}
    if type(tubelet) is int:
        loose["frames"] = tubelet
    return {**loose, **asked}


def resolved_toml(settings: RunSettings) -> str:
    """The complete `config.toml` of a run."""
    parts = [f"task = {toml_value(settings.task)}\n"]
    if settings.fingerprint:
        parts.append(f"fingerprint = {toml_value(settings.fingerprint)}\n")
    if settings.labels:
        parts.append(f"labels = {toml_value(settings.labels)}\n")
    if settings.model is not None:
        parts.append(to_toml(settings.model))
    for name, kind in SETTINGS.items():
        values = getattr(settings, name)
        usual = name in ("data", "tokenizer", "train", "decode", settings.task)
        if usual or values != kind():
            parts.append(section_toml(name, values))
    asked = [
        commented(f"{toml_value(key)} = {toml_value(value)}", settings.asked.whence(key))
        for key, value in settings.asked.items()
    ]
    parts.append(
        "\n".join(["# What the command asked for; the rest was chosen.", "[asked]", *asked]) + "\n"
    )
    return "\n".join(parts)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys that two commands do not agree on, each with both values."""
    return [
        f"{key}: {_shown(before, key)} then, {_shown(now, key)} now"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, None) != now.get(key, None)
    ]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return toml_value(values[key]) if key in values else "not set"


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for section in path[:-1]:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            return  # a mistake that is named when the section is read
    values[path[-1]] = value


def _home(name: str, sections: Mapping[str, Any]) -> str:
    """Where a setting that stands outside its section belongs."""
    for section, cls in sections.items():
        if name in {f.name for f in fields(cls)}:
            return f" Did you mean '{section}.{name}'?"
    here = setting_here(name)
    return f" Did you mean '{here}'?" if here else ""
