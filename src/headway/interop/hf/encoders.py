"""What BERT and its kin have in common: which heads a class has, what is refused, the way out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headway.errors import ConfigError, UserError, one_line
from headway.interop.convertible import BIASES, check_said, label_config
from headway.interop.families import Architecture, Config
from headway.interop.foreign_config import LABEL, Answer, Given
from headway.interop.name_pairs import Pair, both, new_names, with_old_names
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Model": ("embed", ()),
    "ForMaskedLM": ("fill", ("words",)),
    "ForPreTraining": ("fill", ("words",)),
    "ForSequenceClassification": ("classify", ("classes",)),
    "ForTokenClassification": ("tag", ("tags",)),
}
"""The classes of transformers without the name of the architecture: a task and the heads."""

COUNTED = {r"(?:\w+\.)?embeddings\.position_ids": "counts 0, 1, 2 ..."}
"""A buffer that old files carry."""


class Seen(NamedTuple):
    """What the names of the tensors tell."""

    prefix: str
    """Before all names of the body; a body alone has none."""

    pooler: bool
    names: Collection[str]


@dataclass(frozen=True)
class Reading:
    """How a model is read out."""

    task: str
    heads: tuple[str, ...]
    labels: tuple[str, ...] = ()
    answer: Answer = "label"

    @property
    def n_labels(self) -> int:
        return 1 if self.answer == "number" else len(self.labels)


class EncoderFamily(ABC):
    """`read` and `write` of an encoder. A family says where the tensors are and what the keys of
    its configuration are called."""

    class_name: str
    body: str
    """The name of the body among the parts of a model with heads."""

    words: str
    """What names of the masked-word head begin with."""

    def read(self, config: Config, names: Collection[str], generation: Config) -> Architecture:
        prefix = f"{self.body}." if any(n.startswith(f"{self.body}.") for n in names) else ""
        pooler = any(n.startswith(f"{prefix}pooler.") for n in names)
        given = Given(config)
        found = self.architecture(given, Seen(prefix, pooler, new_names(names)))
        found = replace(found, pairs=with_old_names(found.pairs, set(names)))
        return as_cross_encoder(found, given)

    def write(self, settings: RunSettings) -> tuple[dict[str, Any], Architecture]:
        model = settings.model
        if not isinstance(model, EncoderSettings):
            raise UserError(f"{self.class_name} is an encoder, and this run has another model.")
        kind = kind_of(settings)
        config = self.config(model) | {"architectures": [f"{self.class_name}{kind}"]}
        config |= label_config(settings)
        prefix = "" if kind == "Model" else f"{self.body}."
        enough = [f"{prefix}{i}" for i in range(model.n_layers)]
        seen = Seen(prefix, "pooled" in model.heads, names=enough)
        found = self.architecture(Given(config), seen)
        said = found.model
        assert isinstance(said, EncoderSettings)
        if "pooled" in said.heads and "pooled" not in model.heads:
            raise UserError(
                f"{self.class_name}{kind} reads classes behind a pooler, and this model has none "
                f"(model.heads={list(model.heads)})."
            )
        if set(said.heads) != set(model.heads):
            raise UserError(
                f"{self.class_name}{kind} has the heads {said.heads}, not {model.heads}."
            )
        check_said(model, said, self.class_name, wider=BIASES, free=("pooling",))
        return config, found

    @abstractmethod
    def config(self, model: EncoderSettings) -> dict[str, Any]:
        """Their configuration of a model of ours; a `UserError` says what it has no word for."""

    @abstractmethod
    def architecture(self, given: Given, seen: Seen) -> Architecture:
        """The model that a configuration means, and where its tensors are."""

    def reading(self, given: Given, seen: Seen) -> Reading:
        """The task and the heads, by the name of the class, or by the tensors where none is named.

        A pooler in the file is kept even where the class does not use it: training may. Classes are
        always read behind one: a file without it is not whole.
        """
        name = given.architecture()
        kind = self._guess(given, seen) if name is None else name.removeprefix(self.class_name)
        if kind not in KINDS or name == kind:
            known = ", ".join(self.class_name + kind for kind in KINDS)
            raise given.error("architectures", f"is not supported; it may be one of {known}")
        task, heads = KINDS[kind]
        labels, answer = given.labels() if "tags" in heads else (), LABEL
        if "classes" in heads:
            answer, labels = given.classes()
        pooled = seen.pooler or "classes" in heads
        return Reading(task, (*heads, "pooled") if pooled else heads, labels, answer)

    def _guess(self, given: Given, seen: Seen) -> str:
        if any("classifier" in name for name in seen.names):
            raise ConfigError(
                f"{given.where} does not say what the model does. Add for example "
                f'"architectures": ["{self.class_name}ForSequenceClassification"].'
            )
        words = any(name.startswith(self.words) for name in seen.names)
        return "ForMaskedLM" if words else "Model"


def refuse_variants(given: Given) -> None:
    """What these encoders can be that we have no part for."""
    given.only("position_embedding_type", "absolute", "only positions of the input are")
    given.only("is_decoder", False, "it would read in one direction; import it as an encoder")
    given.only("add_cross_attention", False, "an encoder has no memory to attend to")
    given.only("pruned_heads", ({}, []), "every layer must have all its heads")


def as_cross_encoder(found: Architecture, given: Given) -> Architecture:
    """The architecture, reading pairs where sentence-transformers saved it as a `CrossEncoder`."""
    own = given.table("sentence_transformers")
    name = own.get("activation_fn") or given.values.get("sbert_ce_default_activation_function")
    if found.task != "classify" or not (own or name):
        return found
    notes = ["it is a CrossEncoder: it reads two texts with a tab between them"]
    if found.answer == "number" and isinstance(name, str):
        activation = one_line(name.rpartition(".")[2], "activation_fn")
        notes.append(f"answers are logits; sentence-transformers applies {activation} to them")
    return replace(found, data={"other_field": "other"}, notes=(*found.notes, *notes))


class HeadNames(NamedTuple):
    """What the heads of BERT and ALBERT are called."""

    pooler: str
    words: str
    before_words: str
    """What names of the layer and the norm before the words begin with."""


def head_pairs(
    heads: Collection[str], seen: Seen, named: HeadNames, *, tied: bool
) -> tuple[list[Pair], dict[str, str]]:
    """Pairs of the heads that a model has, and what is ignored."""
    pairs: list[Pair] = []
    ignored: dict[str, str] = {}
    if "pooled" in heads:
        pairs += both(f"{seen.prefix}{named.pooler}", "heads.pooled.dense")
    if "words" in heads:
        pairs += both(f"{named.before_words}dense", "heads.words.dense")
        pairs += both(f"{named.before_words}LayerNorm", "heads.words.norm")
        words, ignored = word_pairs(named.words, tied=tied, names=seen.names)
        pairs += words
    for head in {"classes", "tags"} & set(heads):
        pairs += both("classifier", f"heads.{head}.linear")
    return pairs, ignored


def word_pairs(
    head: str, *, tied: bool, names: Collection[str]
) -> tuple[list[Pair], dict[str, str]]:
    """The words of a masked-word head: its decoder may be the embedding, and its bias goes by two
    names, of which a file may have either. Also what is ignored."""
    ours = "heads.words.words.linear"
    decoder = f"{head}.decoder"
    first, second = f"{head}.bias", f"{decoder}.bias"
    if second in names and (first not in names or not tied):
        first, second = second, first
    pairs = [Pair(first, f"{ours}.bias")]
    ignored = {}
    if tied:
        pairs.append(Pair(f"{decoder}.weight", "front.tokens.weight", tied=True))
        pairs.append(Pair(second, f"{ours}.bias", tied=True))
    else:
        pairs.append(Pair(f"{decoder}.weight", f"{ours}.weight"))
        ignored[second.replace(".", r"\.")] = "its decoder has the bias that is used"
    return pairs, ignored


def kind_of(settings: RunSettings) -> str:
    """The class of transformers for the heads of a run."""
    assert isinstance(settings.model, EncoderSettings)
    heads = settings.model.heads
    if "classes" in heads:
        return "ForSequenceClassification"
    if "tags" in heads:
        return "ForTokenClassification"
    if "words" in heads:
        return "ForMaskedLM"
    return "Model"
