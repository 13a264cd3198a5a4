"""Model settings of a run that starts from another run: which settings it inherits, and which may
differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.errors import ConfigError, Option
from headway.settings.kept_heads import KeptHeads
from headway.settings.model import (
    FAMILY_SETTINGS,
    AudioEncoderSettings,
    AudioSettings,
    BodySettings,
    ModelSettings,
    StackSettings,
    TextSettings,
    family_of,
)
from headway.settings.task_rows import possible

if TYPE_CHECKING:
    from headway.settings.run import RunSettings

MAY_DIFFER = {"heads", "n_labels", "ngrams", "pooling", "pooler", "tag_transitions", "tie",
              "head_bias", "max_len", "dropout", "attention_dropout", "ff_dropout", "init",
              "embeddings", "tune_embeddings", "ctc"}  # fmt: skip
"""Model settings that may differ from the parent run, because they affect only heads or have no
weights."""

WITH_DECODER = {"encoder": "seq2seq", "image-encoder": "image-seq2seq",
                "audio-encoder": "audio-seq2seq"}  # fmt: skip
"""Encoder-decoder families, keyed by the encoder family to which a decoder is added."""

OF_DECODER = frozenset({"decoder", "vocab_size", "source_vocab_size", "scale_head"})
"""Settings of an encoder-decoder that are not determined by the encoder run from which it
starts."""

WITHOUT_VECTORS: dict[str, Any] = {"embeddings": None, "tune_embeddings": True}
"""Default values of the word-vector settings. They replace those of the parent run, whose
embeddings already contain the vectors."""


def model_from(
    model: ModelSettings,
    needs: Mapping[str, Any],
    asked: Mapping[str, Any],
    run: str,
    grown: ModelSettings | None = None,
) -> ModelSettings:
    """Return the model settings of a run that starts from another: those of the parent, with new
    heads.

    `needs`: model settings that the new task requires (heads and labels). `asked`: model settings
    from the user by name, dotted inside sections (`rope.base`). `grown`: settings of the parent's
    model with a decoder added, or None without a decoder.
    """
    old, model = model, grown or model
    for name in ("preset", "family"):
        if name in asked:
            raise ConfigError(
                f"model.{name} cannot be combined with {Option('start', run)}, because the model "
                f"of that run is used. Remove model.{name}."
            )
    plain = {"heads": ("words",), "pooler": "tanh", "n_labels": 0, "tag_transitions": False,
             "ngrams": 0, **WITHOUT_VECTORS}  # fmt: skip
    known = {field.name for field in fields(model)}
    changes = {**{k: v for k, v in plain.items() if k in known}, **needs, **asked}
    if "heads" not in asked and _keeps_pooler(model, changes):
        changes |= {"pooler": getattr(model, "pooler", None), **asked}
        changes["heads"] = (*changes["heads"], "pooled")
    wrong = [key for key in changes if key.partition(".")[0] not in known]
    if wrong:
        raise ConfigError(
            f"{Option('start', run)}: its model belongs to the {family_of(model)} family, which "
            f"has no setting {wrong[0]!r}. Start from another run, or from scratch."
        )
    new: ModelSettings = with_changes(model, changes)
    check_same(run, old, new, may_grow="vocab_size" not in asked)
    return new


def gets_decoder(old: ModelSettings, family: str) -> bool:
    """Whether a model of this family consists of the parent's encoder and a newly initialized
    decoder."""
    return WITH_DECODER.get(family_of(old)) == family


def with_decoder(encoder: ModelSettings, run: str, room: int = 0) -> ModelSettings:
    """Return the settings of an encoder-decoder with the given encoder and a decoder of half its
    depth. `room`: minimum number of positions of the model."""
    kind = FAMILY_SETTINGS[WITH_DECODER[family_of(encoder)]]
    if getattr(encoder, "share_layers", False) or getattr(encoder, "d_embedding", None):
        raise ConfigError(
            f"{Option('start', run)}: an encoder with shared layers or factorised embeddings "
            "cannot be used in an encoder-decoder. Start from another run, or from scratch."
        )
    if getattr(encoder, "token_dropout_mask", None) is not None:
        raise ConfigError(
            f"{Option('start', run)}: an encoder with ESM's token dropout cannot be used in an "
            "encoder-decoder. Start from another run, or from scratch."
        )
    taken = [field.name for field in fields(BodySettings)]
    taken += [name for name in ("image", "audio") if hasattr(encoder, name)]
    values = {name: getattr(encoder, name) for name in taken}
    values["kept_heads"] = KeptHeads(encoder=encoder.kept_heads.self)
    n_layers = min(encoder.n_layers, max(2, encoder.n_layers // 2))
    values["decoder"] = StackSettings(n_layers=n_layers)
    if encoder.positions == "none":  # media have positions of their own; target tokens need some
        del values["positions"]
    if encoder.positions != "learned":
        values["max_len"] = max(encoder.max_len, room)
    if isinstance(encoder, TextSettings):
        names = ("vocab_size", "embedding_scale", "embedding_norm")
        values |= {name: getattr(encoder, name) for name in names} | {"tie": "target-softmax"}
    return kind(**values)


def _keeps_pooler(model: ModelSettings, changes: Mapping[str, Any]) -> bool:
    """Whether classes are predicted from the output of the parent's pooler, which transforms the
    first token."""
    pooling = changes.get("pooling", getattr(model, "pooling", None))
    has = "pooled" in getattr(model, "heads", ())
    return has and pooling == "first" and "classes" in changes["heads"]


def with_changes(settings: Any, changes: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for key, value in changes.items():
        section, _, rest = key.partition(".")
        before = values.get(section, getattr(settings, section))
        values[section] = with_changes(before, {rest: value}) if is_dataclass(before) else value
        if isinstance(values[section], list):
            values[section] = tuple(values[section])
    return replace(settings, **values)


def check_task(name: str, settings: RunSettings, old: ModelSettings) -> None:
    rows, task = possible(settings), settings.task
    families = list(dict.fromkeys(family for row in rows for family in row.families))
    families += [old for old, new in WITH_DECODER.items() if new in families]
    if family_of(old) not in families:
        raise ConfigError(
            f"the task {task} needs a model of the {' or '.join(families)} family, but {name} "
            f"belongs to the {family_of(old)} family. Start from another run, or from scratch."
        )


def check_same(
    name: str, old: ModelSettings, new: ModelSettings, *, may_grow: bool = False
) -> None:
    """Raise an error if a setting would change the meaning of the parent's weights in the new
    model.

    The old model may be the encoder of a new encoder-decoder. `may_grow`: the new model may have
    more segments, and more tokens at the end of the vocabulary.
    """
    apart: frozenset[str] = frozenset()
    if gets_decoder(old, family_of(new)):
        old, apart = with_decoder(old, name), OF_DECODER | {"kept_heads"}
        if old.kept_heads.encoder != new.kept_heads.encoder:
            apart -= {"kept_heads"}
    if type(old) is not type(new):
        raise ConfigError(
            f"{Option('start', name)}: its model belongs to the {family_of(old)} family, but this "
            f"run needs the {family_of(new)} family. Start from another run, or from scratch."
        )
    kept = [field.name for field in fields(old) if field.name not in MAY_DIFFER | apart]
    words = vocab_size_of(old)
    if "vocab_size" in kept and (not words or (may_grow and vocab_size_of(new) > words)):
        kept.remove("vocab_size")
    if may_grow and getattr(old, "n_segments", 0) < getattr(new, "n_segments", 0):
        kept.remove("n_segments")
    if new.positions == "learned":
        kept.append("max_len")
    different = [key for key in kept if _weighty(old, key) != _weighty(new, key)]
    if not different:
        return
    listed = ", ".join(f"{k}={getattr(old, k)} (this run: {getattr(new, k)})" for k in different)
    way_out = f"Remove model.{different[0]}: the value of {name} is used."
    if different[0] in ("vocab_size", "source_vocab_size"):
        way_out = f"Remove the tokenizer settings: the tokenizer of {name} is used."
    elif different == ["max_len"]:
        way_out = "Remove model.max_len: learned positions cannot be extended."
    raise ConfigError(
        f"{Option('start', name)}: the model of that run has settings that differ from this run: "
        f"{listed}. {way_out}"
    )


def _weighty(model: ModelSettings, key: str) -> Any:
    """Return the value of a setting, without parts that do not affect weights, such as the padding
    of audio."""
    value = getattr(model, key)
    return replace(value, pad_s=0.0) if isinstance(value, AudioSettings) else value


def vocab_size_of(model: ModelSettings) -> int:
    """Return the vocabulary size for which the model has weights; 0 if it neither reads nor writes
    tokens."""
    if isinstance(model, AudioEncoderSettings) and "ctc" not in model.heads:
        return 0
    return int(getattr(model, "vocab_size", 0))
