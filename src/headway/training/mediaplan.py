"""What the user left open in the tasks on pictures, videos and recordings.

Two moments matter. Before the data is prepared, `picture_shape` and `sound_shape` say in which
form it is to be stored: as asked for, as the run that this one starts from has it, or as the first
items suggest. Afterwards `resolve_media` fills in the rest: the model, how it is trained, and how
examples are changed at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.config.asked import nested
from headway.config.load import from_dict, model_settings
from headway.config.model import ModelSettings, PictureSettings, SoundSettings, family_of
from headway.config.presets import PRESETS
from headway.config.run import RunSettings
from headway.data.media.items import media_items
from headway.data.media.manifest import ManifestSource
from headway.data.media.prepared import PreparedMedia
from headway.data.media.reading import UNITS, What
from headway.data.media.sounds import SUFFIXES, sound_info
from headway.data.media.store import PictureStore, SoundStore
from headway.errors import ConfigError, DataError
from headway.tasks.distil import student_model
from headway.tasks.specs import check_metric, spec_of
from headway.training.start import check_task, model_from, n_words
from headway.training.textplan import TextPlan, left_open, model_of, with_training

LOOKED_AT = 32
"""Items whose form is looked at where nobody says which form to bring them to."""

SMALL_PICTURE = 64
"""Pixels of a side up to which pictures keep their own size."""

LARGE_PICTURE = 224
PATCHES = (2, 4, 7, 8, 14, 16, 32)
MOST_CELLS = {"small": 64, "large": 196}
FRAMES = 8
"""Of a video, where nobody says."""

TUBELET = 2

MODERN: dict[str, Any] = {"wiring": "pre", "activation": "gelu", "init": "small"}
"""Of models that nobody named."""


@dataclass(frozen=True, kw_only=True)
class MediaPlan(TextPlan):
    """What a task knows about its data and wants of its model; tokens are rows here (patches, or
    frames behind the front's strides)."""

    n_items: int
    """Pictures, videos or recordings of an epoch."""

    family: str = ""
    """Of a model that nobody named; the usual one of the task where none is said."""

    chosen: dict[str, Any] = field(default_factory=dict)
    """Settings of a model that nobody named: its front, its layers and widths."""

    augment: dict[str, Any] = field(default_factory=dict)
    """How examples are changed, where nobody says."""

    most_items: int = 0
    """Items of a step, where nobody says; 0: from their number and the device."""


def resolve_media(
    settings: RunSettings, prepared: PreparedMedia, device: torch.device, plan: MediaPlan
) -> RunSettings:
    """All settings of a run. What was asked for stays as it was asked for.

    The model gets the vocabulary of the prepared tokenizer, where there is one, and the run gets
    the prepared labels. `plan.model` holds by all means (heads, numbers of labels), `plan.chosen`
    only for a model that nobody named, `plan.training` and `plan.augment` only where left open.
    """
    check_metric(settings.train.metric, settings.task, plan.metrics)
    model, chosen = media_model(settings, prepared, plan)
    augment = replace(settings.augment, **left_open(settings, "augment", plan.augment))
    settings = replace(settings, model=model, augment=augment, labels=tuple(prepared.labels))
    if plan.batch_tokens is None:
        plan = replace(plan, batch_tokens=batch_rows(plan, device))
    return with_training(settings, chosen, device, plan)


def media_model(
    settings: RunSettings, prepared: PreparedMedia, plan: MediaPlan
) -> tuple[ModelSettings, bool]:
    """The model, and whether its shape was chosen here."""
    asked = settings.asked.under("model")
    needs = dict(plan.model)
    if prepared.tokenizer is not None:
        needs["vocab_size"] = prepared.tokenizer.vocab_size
    if settings.distil.teacher:
        return student_model(model_of(settings.distil.teacher), settings), False
    if settings.start.run:
        old = model_of(settings.start.run)
        check_task(settings.start.run, settings.task, old)
        if "vocab_size" in needs:
            needs["vocab_size"] = max(needs["vocab_size"], n_words(old))
        needs["dropout"] = max(old.dropout, plan.least_dropout)
        return model_from(old, needs, asked, settings.start.run), False
    if (
        "vocab_size" in needs
        and asked.get("vocab_size", needs["vocab_size"]) != (needs["vocab_size"])
    ):
        raise ConfigError(
            "model.vocab_size follows from the tokenizer here. Set tokenizer.vocab_size instead."
        )
    chosen = settings.model is None
    families = spec_of(settings.task).all_families
    if chosen:
        family = plan.family or families[0]
        changes = {"family": family, **MODERN, **plan.chosen, **needs, **asked}
    else:
        assert settings.model is not None
        if family_of(settings.model) not in families:
            raise ConfigError(
                f"the task {settings.task} needs a model of the {' or '.join(families)} family; "
                f"{asked.get('preset') or asked.get('family')} is of another."
            )
        changes = {**needs, **asked}
    preset = PRESETS.get(str(changes.get("preset")))
    room = preset.settings.max_len if preset else 0
    if "max_len" not in changes and room < plan.longest:
        changes["max_len"] = plan.longest
    return model_settings(nested(changes)), chosen


def batch_rows(plan: MediaPlan, device: torch.device) -> int:
    """About a hundred steps an epoch, within what a device likes; whole items of the usual size."""
    most = plan.most_items or (128 if device.type == "cpu" else 512)
    n = 16
    while 2 * n <= most and n < plan.n_items / 100:
        n *= 2
    return max(plan.longest, round(n * plan.n_tokens / max(1, plan.n_items)))


def flat_front(front: PictureSettings | SoundSettings) -> dict[str, Any]:
    """The settings of a front as those of a model: `picture.height` and so on."""
    section = "picture" if isinstance(front, PictureSettings) else "sound"
    return {
        f"{section}.{name}": list(value) if isinstance(value, tuple) else value
        for name, value in asdict(front).items()
        if value is not None
    }


def item_rows(
    items: PictureStore | SoundStore, front: PictureSettings | SoundSettings
) -> NDArray[np.int64]:
    """Rows of the flat batch that each stored item becomes."""
    if isinstance(items, SoundStore):
        assert isinstance(front, SoundSettings)
        found = {n: front.rows_of(n) for n in np.unique(items.lengths).tolist()}
        return np.array([found[n] for n in items.lengths.tolist()], dtype=np.int64)
    assert isinstance(front, PictureSettings)
    shapes, place = np.unique(np.asarray(items.shapes), axis=0, return_inverse=True)
    rows = np.array([front.rows_of(t, y, x) for t, _, y, x in shapes.tolist()], dtype=np.int64)
    return rows[place.reshape(-1)]


def picture_shape(
    settings: RunSettings, what: What = "pictures", wants: Mapping[str, Any] | None = None
) -> PictureSettings:
    """The front that pictures (or `videos`) are prepared for. `wants`: what the task needs of it,
    such as no class token; what the user asked for comes before that."""
    known = _known_front(settings, "picture")
    if known is not None:
        assert isinstance(known, PictureSettings)
        return known
    asked = settings.asked.under("model.picture")
    found = _picture_form(_first_pictures(settings, what), what)
    values = {**found, **(wants or {}), **asked}
    if "patch" not in values and values.get("stem") != "grid":
        values["patch"] = patch_of(values["height"], values["width"])
    return from_dict(PictureSettings, values, "model.picture.")


def sound_shape(settings: RunSettings, wants: Mapping[str, Any] | None = None) -> SoundSettings:
    """The front that recordings are prepared for: 16 kHz, or 8 kHz where they have no more."""
    known = _known_front(settings, "sound")
    if known is not None:
        assert isinstance(known, SoundSettings)
        return known
    asked = settings.asked.under("model.sound")
    values: dict[str, Any] = {**(wants or {}), **asked}
    if "rate" not in values:
        rates = _first_rates(settings)
        values["rate"] = 8000 if rates and max(rates) <= 8000 else SoundSettings().rate
    scale = values["rate"] / SoundSettings().rate
    for name in ("n_fft", "hop"):  # 25 and 10 ms at any rate
        values.setdefault(name, max(1, round(scale * getattr(SoundSettings(), name))))
    return from_dict(SoundSettings, values, "model.sound.")


def _known_front(settings: RunSettings, name: str) -> PictureSettings | SoundSettings | None:
    """That of a run or a named model, if there is one."""
    model = model_of(settings.origin) if settings.origin else settings.model
    if model is None:
        return None
    front: PictureSettings | SoundSettings | None = getattr(model, name, None)
    if front is None:
        what = "pictures" if name == "picture" else "recordings"
        raise ConfigError(
            f"the task {settings.task} reads {what}; a model of the {family_of(model)} family "
            "does not."
        )
    return front


def _first_pictures(settings: RunSettings, what: What) -> Iterator[NDArray[np.uint8]]:
    """Some of them, spread over all, as large as they come. The check names those that cannot be
    read; here they are passed over."""
    shape = PictureSettings(frames=FRAMES, tubelet=TUBELET)
    items = media_items(settings.data.media, settings.data, what, shape, own_size=True)
    _check_some(settings, len(items), what)
    for number in range(0, len(items), max(1, len(items) // LOOKED_AT)):
        with suppress(DataError):
            yield items[number].open()


def _first_rates(settings: RunSettings) -> list[int]:
    """Samples a second of some recordings, by their headers, or as a list of arrays says."""
    items = media_items(settings.data.media, settings.data, "sounds", SoundSettings())
    _check_some(settings, len(items), "sounds")
    paths = [path for path, _ in items.files() if path.suffix.lower() in SUFFIXES]
    lists = [source for source in items.sources if isinstance(source, ManifestSource)]
    rates = [row.part.rate for one in lists for row in one.rows[:LOOKED_AT] if row.part.rate]
    for path in paths[:: max(1, len(paths) // LOOKED_AT)]:
        with suppress(DataError):
            rates.append(sound_info(path).rate)
    return rates


def _check_some(settings: RunSettings, n: int, what: What) -> None:
    if not n:
        files = settings.data.media
        raise DataError(f"{', '.join(files)} name{'s' * (len(files) == 1)} no {UNITS[what]}.")


def _picture_form(found: Iterable[NDArray[np.uint8]], what: What) -> dict[str, Any]:
    """Size, colours and frames for pictures such as these."""
    seen = [(*x_TCYX.shape[2:], _is_grey(x_TCYX)) for x_TCYX in found]
    if not seen:
        raise DataError(f"none of the {what} that were looked at can be read.")
    sizes = {(height, width) for height, width, _ in seen}
    shorter = sorted(min(size) for size in sizes)
    height, width = sizes.pop() if len(sizes) == 1 else (shorter[len(shorter) // 2],) * 2
    values: dict[str, Any] = {
        "height": _rounded(height), "width": _rounded(width),
        "channels": 1 if all(grey for *_, grey in seen) else 3,
    }  # fmt: skip
    if what == "videos":
        values |= {"frames": FRAMES, "tubelet": TUBELET}
    return values


def _is_grey(x_TCYX: NDArray[np.uint8]) -> bool:
    return x_TCYX.shape[1] == 1 or bool((x_TCYX == x_TCYX[:, :1]).all())


def _rounded(size: int) -> int:
    """A size that patches fit into: small ones as they are, large ones brought down."""
    if size <= SMALL_PICTURE:
        return max(8, -(-size // 4) * 4)
    return min(LARGE_PICTURE, round(size / 16) * 16)


def patch_of(height: int, width: int) -> int:
    """The finest patches that make no more rows than are worth their time."""
    most = MOST_CELLS["small" if max(height, width) <= SMALL_PICTURE else "large"]
    for patch in PATCHES:
        if height % patch == 0 == width % patch and height * width // patch**2 <= most:
            return patch
    return min(height, width, PATCHES[-1])


def pixel_statistics(store: PictureStore, most: int = 512) -> dict[str, list[float]]:
    """Mean and standard deviation of each channel, of pixels between 0 and 1, as the settings of a
    front have them."""
    rows = np.unique(np.linspace(0, len(store) - 1, min(most, len(store))).astype(np.int64))
    sums = np.zeros((2, store[0].shape[1]))
    count = 0
    for row in rows.tolist():
        x_TCYX = np.asarray(store[row], dtype=np.float64) / 255.0
        sums += np.stack([x_TCYX.sum((0, 2, 3)), (x_TCYX**2).sum((0, 2, 3))])
        count += x_TCYX.size // x_TCYX.shape[1]
    mean_C = sums[0] / count
    std_C = np.sqrt(np.maximum(sums[1] / count - mean_C**2, 0.0))
    return {
        "mean": [round(float(value), 4) for value in mean_C],
        "std": [round(float(max(value, 0.02)), 4) for value in std_C],
    }
