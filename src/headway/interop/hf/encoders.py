"""Common code for the import and export of BERT-like encoders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headway.errors import ConfigError, UserError, one_line
from headway.interop.convertible import BIASES, check_round_trip, label_config
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import LABEL, ClassifyAnswer, ForeignConfig
from headway.interop.name_pairs import NamePair, new_names, weight_and_bias, with_old_names
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Model": ("embed", ()),
    "ForMaskedLM": ("fill", ("words",)),
    "ForPreTraining": ("fill", ("words",)),
    "ForSequenceClassification": ("classify", ("classes",)),
    "ForTokenClassification": ("tag", ("tags",)),
}
"""Task and heads for each class of `transformers`. Keys are class names without the
architecture."""

COUNTED = {r"(?:\w+\.)?embeddings\.position_ids": "counts 0, 1, 2 ..."}
"""Pattern of an ignored tensor in files of old versions, with the reason. It contains the position
indices."""


class DetectedNames(NamedTuple):
    """Properties of a model that are detected from its tensor names."""

    prefix: str
    """Prefix of the encoder's tensor names, such as `bert.`. It is empty for a model without
    heads."""

    pooler: bool
    names: Collection[str]


@dataclass(frozen=True)
class HeadPlan:
    """Task, heads and labels of a model."""

    task: str
    heads: tuple[str, ...]
    labels: tuple[str, ...] = ()
    answer: ClassifyAnswer = "label"

    @property
    def n_labels(self) -> int:
        return 1 if self.answer == "number" else len(self.labels)


class EncoderFamily(ABC):
    """Import and export of a BERT-like encoder. Subclasses define the tensor names and the
    configuration keys."""

    class_name: str
    body: str
    """Attribute name of the encoder in a model with heads, such as `bert`."""

    words: str
    """Prefix of the tensor names of the masked language model head."""

    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        prefix = f"{self.body}." if any(n.startswith(f"{self.body}.") for n in names) else ""
        pooler = any(n.startswith(f"{prefix}pooler.") for n in names)
        given = ForeignConfig(config)
        found = self.architecture(given, DetectedNames(prefix, pooler, new_names(names)))
        found = replace(found, pairs=with_old_names(found.pairs, set(names)))
        return as_cross_encoder(found, given)

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        model = settings.model
        if not isinstance(model, EncoderSettings):
            raise UserError(
                f"{self.class_name} needs an encoder, but the model of this run is not an encoder "
                f"(task {settings.task})."
            )
        kind = kind_of(settings)
        config = self.config(model) | {"architectures": [f"{self.class_name}{kind}"]}
        config |= label_config(settings)
        prefix = "" if kind == "Model" else f"{self.body}."
        enough = [f"{prefix}{i}" for i in range(model.n_layers)]
        seen = DetectedNames(prefix, "pooled" in model.heads, names=enough)
        found = self.architecture(ForeignConfig(config), seen)
        said = found.model
        assert isinstance(said, EncoderSettings)
        if "pooled" in said.heads and "pooled" not in model.heads:
            raise UserError(
                f"{self.class_name}{kind} needs a pooler, but this model has none "
                f"(model.heads={list(model.heads)})."
            )
        if set(said.heads) != set(model.heads):
            raise UserError(
                f"{self.class_name}{kind} needs model.heads={list(said.heads)}, but this model has "
                f"model.heads={list(model.heads)}."
            )
        check_round_trip(model, said, self.class_name, wider=BIASES, free=("pooling",))
        return config, found

    @abstractmethod
    def config(self, model: EncoderSettings) -> dict[str, Any]:
        """Return the `config.json` of a model. Raise a `UserError` for unsupported settings."""

    @abstractmethod
    def architecture(self, given: ForeignConfig, seen: DetectedNames) -> Architecture:
        """Return the architecture (model settings and name pairs) that a configuration
        describes."""

    def head_plan(self, given: ForeignConfig, seen: DetectedNames) -> HeadPlan:
        """Determine the task and the heads from the class name, or from the tensors if no class is
        named.

        A pooler in the file is kept even if the class does not use it, because fine-tuning may use
        it. Classification always needs a pooler, so a file without one raises an error.
        """
        name = given.architecture()
        kind = self._guess(given, seen) if name is None else name.removeprefix(self.class_name)
        if kind not in KINDS or name == kind:
            known = ", ".join(self.class_name + kind for kind in KINDS)
            raise given.error("architectures", f"is not supported; it must be one of {known}")
        task, heads = KINDS[kind]
        labels, answer = given.labels() if "tags" in heads else (), LABEL
        if "classes" in heads:
            answer, labels = given.answer_and_labels()
        pooled = seen.pooler or "classes" in heads
        return HeadPlan(task, (*heads, "pooled") if pooled else heads, labels, answer)

    def _guess(self, given: ForeignConfig, seen: DetectedNames) -> str:
        if any("classifier" in name for name in seen.names):
            raise ConfigError(
                f"{given.where}: architectures is missing. Add the class of the model, for example "
                f'"architectures": ["{self.class_name}ForSequenceClassification"].'
            )
        words = any(name.startswith(self.words) for name in seen.names)
        return "ForMaskedLM" if words else "Model"


def refuse_variants(given: ForeignConfig) -> None:
    """Raise an error for unsupported variants of BERT-like encoders, such as decoders."""
    given.require("position_embedding_type", "absolute", "it must be absolute")
    given.require("is_decoder", False, "an encoder has no causal attention")
    given.require("add_cross_attention", False, "an encoder has no cross-attention")
    given.require("pruned_heads", ({}, []), "every layer must have all its heads")


def as_cross_encoder(found: Architecture, given: ForeignConfig) -> Architecture:
    """Return the architecture for text pairs if sentence-transformers saved the model as a
    `CrossEncoder`, otherwise unchanged."""
    own = given.nested("sentence_transformers")
    name = own.get("activation_fn") or given.values.get("sbert_ce_default_activation_function")
    if found.task != "classify" or not (own or name):
        return found
    notes = ["the model is a CrossEncoder: its input is two texts with a tab between them"]
    if found.answer == "number" and isinstance(name, str):
        activation = one_line(name.rpartition(".")[2], "activation_fn")
        notes.append(f"outputs are logits; sentence-transformers applies {activation} to them")
    return replace(found, data={"other_field": "other"}, notes=(*found.notes, *notes))


class HeadNames(NamedTuple):
    """Names of the tensors in the output heads of a BERT-like encoder."""

    pooler: str
    words: str
    before_words: str
    """Prefix of the dense layer and the norm that precede the output layer of the masked language
    model."""


def head_pairs(
    heads: Collection[str], seen: DetectedNames, named: HeadNames, *, tied: bool
) -> tuple[list[NamePair], dict[str, str]]:
    """Return the name pairs of the heads, and the names of ignored tensors with reasons."""
    pairs: list[NamePair] = []
    ignored: dict[str, str] = {}
    if "pooled" in heads:
        pairs += weight_and_bias(f"{seen.prefix}{named.pooler}", "heads.pooled.dense")
    if "words" in heads:
        pairs += weight_and_bias(f"{named.before_words}dense", "heads.words.dense")
        pairs += weight_and_bias(f"{named.before_words}LayerNorm", "heads.words.norm")
        words, ignored = word_pairs(named.words, tied=tied, names=seen.names)
        pairs += words
    for head in {"classes", "tags"} & set(heads):
        pairs += weight_and_bias("classifier", f"heads.{head}.linear")
    return pairs, ignored


def word_pairs(
    head: str, *, tied: bool, names: Collection[str]
) -> tuple[list[NamePair], dict[str, str]]:
    """Return name pairs of the masked language model head, and ignored names with reasons.

    The output matrix may be tied to the embedding. The bias has two names, and a file may have
    either of them.
    """
    ours = "heads.words.words.linear"
    decoder = f"{head}.decoder"
    first, second = f"{head}.bias", f"{decoder}.bias"
    if second in names and (first not in names or not tied):
        first, second = second, first
    pairs = [NamePair(first, f"{ours}.bias")]
    ignored = {}
    if tied:
        pairs.append(NamePair(f"{decoder}.weight", "front.tokens.weight", tied=True))
        pairs.append(NamePair(second, f"{ours}.bias", tied=True))
    else:
        pairs.append(NamePair(f"{decoder}.weight", f"{ours}.weight"))
        ignored[second.replace(".", r"\.")] = "unused: the bias of the decoder is used"
    return pairs, ignored


def kind_of(settings: RunSettings) -> str:
    """Return the suffix of the `transformers` class for the heads of a run, such as
    `ForMaskedLM`."""
    assert isinstance(settings.model, EncoderSettings)
    heads = settings.model.heads
    if "classes" in heads:
        return "ForSequenceClassification"
    if "tags" in heads:
        return "ForTokenClassification"
    if "words" in heads:
        return "ForMaskedLM"
    return "Model"
