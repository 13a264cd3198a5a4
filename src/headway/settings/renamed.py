"""Earlier names of settings and of their values, with the current ones.

Files, `key=value` arguments, command-line options and Python calls may still use the earlier names.
Each use is reported in one line. Giving a setting by both its earlier and its current name is an
error.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from headway.errors import ConfigError

KEYS = {
    "model.picture": "model.image", "model.sound": "model.audio",
    "model.wiring": "model.block_layout", "model.memory": "model.source_attention",
    "classify.what": "classify.modality", "fill.what": "fill.modality",
    "embed.what": "embed.modality", "caption.what": "caption.modality",
    "data.bad": "data.on_bad_row", "data.long": "data.on_long",
    "train.pool": "train.bucket_steps", "train.recompute": "train.gradient_checkpointing",
    "train.smoothing": "train.label_smoothing",
    "train.smoothing_kind": "train.label_smoothing_kind",
    "decode.alpha": "decode.length_penalty_alpha",
    "model.n_decoder_layers": "model.decoder.n_layers",
    "model.n_decoder_heads": "model.decoder.n_heads",
    "model.n_decoder_kv_heads": "model.decoder.n_kv_heads",
    "model.d_decoder_head": "model.decoder.d_head", "model.d_decoder_ff": "model.decoder.d_ff",
    "model.decoder_activation": "model.decoder.activation",
    "model.decoder_norm_eps": "model.decoder.norm_eps",
}  # fmt: skip
"""Current names of settings and sections, by their earlier names."""

MODALITIES = {"pictures": "image", "videos": "video", "sounds": "audio"}
METRIC_NAMES = {"exact": "exact_match", "explained": "variance_explained"}
"""Current names of metrics, by their earlier names."""

VALUES: Mapping[str, Mapping[str, str]] = {
    "model.preset": {
        "vit-small-pictures": "vit-small-images",
        "picture-encoder-test": "image-encoder-test", "picture-seq2seq-test": "image-seq2seq-test",
        "sound-encoder-test": "audio-encoder-test", "sound-seq2seq-test": "audio-seq2seq-test",
    },
    "model.family": {
        "picture-encoder": "image-encoder", "picture-seq2seq": "image-seq2seq",
        "sound-encoder": "audio-encoder", "sound-seq2seq": "audio-seq2seq",
    },
    "classify.modality": MODALITIES, "fill.modality": MODALITIES,
    "embed.modality": MODALITIES, "caption.modality": MODALITIES,
    "data.on_long": {"windows": "split"}, "train.metric": METRIC_NAMES,
}  # fmt: skip
"""Current values of settings, by their earlier values."""


class RenamedSettingWarning(FutureWarning):
    """Warning about an earlier name of a setting or of a value."""


def current(key: str) -> str:
    """Return the current name of a dotted key: `model.picture.patch` becomes
    `model.image.patch`."""
    names = key.split(".")
    for depth in range(len(names), 0, -1):
        new = KEYS.get(".".join(names[:depth]))
        if new is not None:
            return ".".join([new, *names[depth:]])
    return key


def key_of(word: str) -> str:
    """Return the current name of the setting in a `key=value` argument."""
    return current(word.partition("=")[0].strip())


def current_value(key: str, value: Any) -> Any:
    """Return the current form of a value of a setting. `key`: the current name of the setting."""
    return VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value


def check_together(keys: Iterable[str], where: str = "") -> None:
    """Raise a `ConfigError` if both the earlier and the current name of a setting are given."""
    seen: dict[str, str] = {}
    for key in keys:
        other = seen.setdefault(current(key), key)
        if other != key:
            old, new = (key, other) if current(key) != key else (other, key)
            raise ConfigError(
                f"{where}{old} is the earlier name of {new}, but both are given. Remove {old}."
            )


def _caller() -> int:
    """Return the stack level of the first caller outside this package, for `warnings.warn`."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("headway."):
        frame, level = frame.f_back, level + 1
    return level


def report(keys: Iterable[str], values: Mapping[str, Any], where: str) -> None:
    """Warn about the earlier names among the given keys and values, all in one line.

    `keys`: settings as the user wrote them. `values`: values by current key. `where`: the file or
    argument that contains them, as the start of the line.
    """
    found = [f"{key} is now {current(key)}" for key in keys if current(key) != key]
    found += [
        f"{key}={value} is now {key}={current_value(key, value)}"
        for key, value in values.items()
        if current_value(key, value) != value
    ]
    if found:
        text = f"{where}: {', '.join(found)}. The earlier names still work."
        warnings.warn(text, RenamedSettingWarning, stacklevel=_caller())


def rename(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the tables of a settings file with current names, in the same order. `where`: the
    file, for the warning and for errors."""
    raw = list(_keys(values))
    check_together(raw, f"{where}: ")
    new = _renamed(values, "")
    if isinstance(asked := values.get("asked"), dict):  # its keys are dotted
        check_together(asked, f"{where}: ")
        new["asked"] = {
            (key := current(old)): current_value(key, value) for old, value in asked.items()
        }
    report([key for key in raw if key in KEYS], _leaves(values), where)
    return new


def _renamed(table: dict[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        key = current(f"{where}{name}")
        inner = _renamed(value, f"{key}.") if isinstance(value, dict) else value
        *sections, last = key.removeprefix(where).split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        before = place.get(last)
        if isinstance(before, dict) and isinstance(inner, dict):
            before |= inner  # the section has a setting by its earlier name, too
        else:
            place[last] = current_value(key, inner)
    return found


def _keys(table: dict[str, Any], where: str = "") -> Iterable[str]:
    for name, value in table.items():
        yield f"{where}{name}"
        if isinstance(value, dict) and where + name != "asked":
            yield from _keys(value, f"{where}{name}.")


def _leaves(table: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Return the values of a nested table by dotted key, with current names."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _leaves(value, f"{where}{name}.") if where + name != "asked" else {}
        else:
            found[current(f"{where}{name}")] = value
    return found
