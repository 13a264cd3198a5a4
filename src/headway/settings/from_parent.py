"""The model of a run that begins with another's: what it takes over, and what may be otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.errors import ConfigError
from headway.settings.kept_heads import KeptHeads
from headway.settings.model import (
    FAMILY_SETTINGS,
    BodySettings,
    ModelSettings,
    SoundEncoderSettings,
    SoundSettings,
    TextSettings,
    family_of,
)
from headway.settings.text import DECODER_KEYS
from headway.tasks.specs import possible

if TYPE_CHECKING:
    from headway.settings.run import RunSettings

MAY_DIFFER = {"heads", "n_labels", "ngrams", "pooling", "pooler", "tag_transitions", "tie",
              "head_bias", "max_len", "dropout", "attention_dropout", "ff_dropout", "init",
              "embeddings", "tune_embeddings", "ctc"}  # fmt: skip
"""Settings of a model that its front and body can do without, or that have no weights there."""

WITH_DECODER = {"encoder": "seq2seq", "picture-encoder": "picture-seq2seq",
                "sound-encoder": "sound-seq2seq"}  # fmt: skip
"""Families of encoders, and those that they become with a decoder."""

OF_DECODER = frozenset(DECODER_KEYS.values()) | {"vocab_size", "source_vocab_size", "scale_head"}
"""Settings of a model that the encoder which it started from says nothing about."""

WITHOUT_VECTORS: dict[str, Any] = {"embeddings": None, "tune_embeddings": True}
"""Word vectors have done their part in the run that started with them."""


def model_from(
    model: ModelSettings,
    needs: Mapping[str, Any],
    asked: Mapping[str, Any],
    run: str,
    grown: ModelSettings | None = None,
) -> ModelSettings:
    """The model of a new run that starts from an old one: the same but for what is read out.

    `needs` is what the new task wants of a model: its heads and labels. `asked` is what the user
    wants, by the names of the model's settings, dotted inside sections (`rope.base`). `grown`: the
    model with what it gets besides, a decoder.
    """
    old, model = model, grown or model
    for name in ("preset", "family"):
        if name in asked:
            raise ConfigError(
                f"model.{name} has no effect beside --from {run}, which has a model. Leave it out."
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
            f"--from {run}: its model is of the {family_of(model)} family, which has no "
            f"{wrong[0]!r}. Start from another run, or from scratch."
        )
    new: ModelSettings = with_changes(model, changes)
    check_same(run, old, new, may_grow="vocab_size" not in asked)
    return new


def gets_decoder(old: ModelSettings, family: str) -> bool:
    """Whether a model of this family is that encoder and a decoder which starts fresh."""
    return WITH_DECODER.get(family_of(old)) == family


def with_decoder(encoder: ModelSettings, run: str, room: int = 0) -> ModelSettings:
    """A model that reads as this encoder does, and writes; its decoder is half as deep. `room`:
    tokens that it must have positions for."""
    kind = FAMILY_SETTINGS[WITH_DECODER[family_of(encoder)]]
    if getattr(encoder, "share_layers", False) or getattr(encoder, "d_embedding", None):
        raise ConfigError(
            f"--from {run}: an encoder whose layers are one and the same, or whose embeddings are "
            "narrower than its layers, cannot be that of a model that writes. Start from another "
            "run, or from scratch."
        )
    if getattr(encoder, "token_dropout_mask", None) is not None:
        raise ConfigError(
            f"--from {run}: an encoder with ESM's token dropout cannot be that of a model that "
            "writes. Start from another run, or from scratch."
        )
    taken = [field.name for field in fields(BodySettings)]
    taken += [name for name in ("picture", "sound") if hasattr(encoder, name)]
    values = {name: getattr(encoder, name) for name in taken}
    values["kept_heads"] = KeptHeads(encoder=encoder.kept_heads.self)
    values["n_decoder_layers"] = min(encoder.n_layers, max(2, encoder.n_layers // 2))
    if encoder.positions == "none":  # rows of media have theirs; words need some
        del values["positions"]
    if encoder.positions != "learned":
        values["max_len"] = max(encoder.max_len, room)
    if isinstance(encoder, TextSettings):
        names = ("vocab_size", "embedding_scale", "embedding_norm")
        values |= {name: getattr(encoder, name) for name in names} | {"tie": "target-softmax"}
    return kind(**values)


def _keeps_pooler(model: ModelSettings, changes: Mapping[str, Any]) -> bool:
    """Classes go on being read behind the pooler of the run, where it reads the first token."""
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
            f"{task} needs a model of the {' or '.join(families)} family; that of {name} "
            f"is of the {family_of(old)} family. Start from another run, or from scratch."
        )


def check_same(
    name: str, old: ModelSettings, new: ModelSettings, *, may_grow: bool = False
) -> None:
    """Refuse a model that would mean something else by the same weights, in words.

    `may_grow`: a task's own tokens may stand behind those of the run, and tokens may be of more
    kinds. An encoder may be one side of
    the new model.
    """
    apart: frozenset[str] = frozenset()
    if gets_decoder(old, family_of(new)):
        old, apart = with_decoder(old, name), OF_DECODER | {"kept_heads"}
        if old.kept_heads.encoder != new.kept_heads.encoder:
            apart -= {"kept_heads"}
    if type(old) is not type(new):
        raise ConfigError(
            f"--from {name}: its model is of the {family_of(old)} family and this run's of the "
            f"{family_of(new)} family. Start from another run, or from scratch."
        )
    kept = [field.name for field in fields(old) if field.name not in MAY_DIFFER | apart]
    words = n_words(old)
    if "vocab_size" in kept and (not words or (may_grow and n_words(new) > words)):
        kept.remove("vocab_size")
    if may_grow and getattr(old, "n_segments", 0) < getattr(new, "n_segments", 0):
        kept.remove("n_segments")
    if new.positions == "learned":
        kept.append("max_len")
    different = [key for key in kept if _weighty(old, key) != _weighty(new, key)]
    if not different:
        return
    listed = ", ".join(f"{k}={getattr(old, k)} there, {getattr(new, k)} here" for k in different)
    way_out = f"Leave model.{different[0]} out: the model is that of the run."
    if different[0] in ("vocab_size", "source_vocab_size"):
        way_out = "A run that starts from another has its tokenizer: leave out the tokenizer's."
    elif different == ["max_len"]:
        way_out = "Learned positions go no further than they were trained; leave max_len out."
    raise ConfigError(f"--from {name} has another model: {listed}. {way_out}")


def _weighty(model: ModelSettings, key: str) -> Any:
    """A setting, without what its weights can do without: silence behind recordings."""
    value = getattr(model, key)
    return replace(value, pad_s=0.0) if isinstance(value, SoundSettings) else value


def n_words(model: ModelSettings) -> int:
    """Words that the model has weights for; 0 where it neither reads nor says any."""
    if isinstance(model, SoundEncoderSettings) and "ctc" not in model.heads:
        return 0
    return int(getattr(model, "vocab_size", 0))
