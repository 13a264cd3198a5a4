"""Output heads of decoders in `transformers`: next token, classes or tags."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headway.errors import UserError
from headway.interop.convertible import label_config
from headway.interop.families import Architecture
from headway.interop.foreign_config import ClassifyAnswer, ForeignConfig
from headway.interop.hf.generation import decode_settings
from headway.interop.name_pairs import NamePair
from headway.settings.model import DecoderSettings
from headway.settings.run import RunSettings
from headway.settings.task_rows import spec_of


@dataclass(frozen=True)
class DecoderHead:
    """Output head of a decoder, with the task and the label names that it implies."""

    task: str
    names: tuple[str, ...] = ()
    layer: str = ""
    """Name of the head's linear layer in the file."""

    answer: ClassifyAnswer = "label"

    @property
    def head(self) -> str:
        return next(iter(spec_of(self.task).heads), "")

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `DecoderSettings` for this head."""
        if not self.head:
            return {"heads": ("words",) if self.generates else ()}
        n_labels = 1 if self.answer == "number" else len(self.names)
        return {"heads": (self.head,), "n_labels": n_labels}

    @property
    def generates(self) -> bool:
        """Whether this head predicts the next token."""
        return spec_of(self.task).writes

    def pairs(self) -> list[NamePair]:
        """Return the name pairs of the head.

        Classifiers in `transformers` have no bias, so the bias of headway's classifier is zero
        after an import.
        """
        if not self.head:
            return []
        ours = f"heads.{self.head}.linear"
        pairs = [NamePair(f"{self.layer}.weight", f"{ours}.weight")]
        if self.head == "tags":
            pairs.append(NamePair(f"{self.layer}.bias", f"{ours}.bias"))
        return pairs

    @property
    def zeros(self) -> tuple[str, ...]:
        """headway's tensors that the file lacks, which are zero after an import."""
        return ("heads.classes.linear.bias",) if self.head == "classes" else ()


def class_config(settings: RunSettings, base: str, words: str) -> dict[str, Any]:
    """Return the class name and the labels of a run for `config.json`."""
    spec = spec_of(settings)
    if "decoder" not in spec.families:
        raise UserError(f"{base} is a decoder and does not support the task {settings.task}.")
    name = {"text": words, "vector": f"{base}Model", "tags": f"{base}ForTokenClassification"}.get(
        spec.answers, f"{base}ForSequenceClassification"
    )
    return {"architectures": [name], **(label_config(settings) if spec.heads else {})}


def decoder_head(
    given: ForeignConfig, words: Collection[str], tags: str = "score", *, has_words: bool = True
) -> DecoderHead:
    """Determine the head of a decoder from its class name.

    Args:
        given: Contents of `config.json`.
        words: Classes that predict the next token. This is also the default if no class is named.
        tags: Name of the linear layer of a token classifier.
        has_words: Whether the file has the output layer. A model without it is used for embeddings.
    """
    name = given.architecture()
    if name is None or name in words:
        return DecoderHead("complete" if has_words else "embed")
    if name.endswith("ForSequenceClassification"):
        answer, labels = given.answer_and_labels()
        return DecoderHead("classify", labels, "score", answer)
    if name.endswith("ForTokenClassification"):
        return DecoderHead("tag", given.labels(), tags)
    known = ", ".join(words)
    raise given.error(
        "architectures",
        f"is not supported; it must be one of {known}, or end in ForSequenceClassification or "
        "ForTokenClassification",
    )


def language_model(
    label: DecoderHead,
    model: DecoderSettings,
    pairs: list[NamePair],
    ignored: dict[str, str],
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> Architecture:
    """Return the architecture of a decoder with this head. Decoding settings are included only if
    it generates text."""
    decode, notes = decode_settings(config, generation, has_source=False)
    if not label.generates:
        decode, notes = {}, ()
    if label.head:
        notes = (
            "headway adds a begin token and an end token to each text; if the model was trained "
            "without them, fine-tune it with `headway train --from`.",
        )
    return Architecture(
        task=label.task,
        model=model,
        pairs=pairs,
        ignored=ignored,
        zeros=label.zeros,
        labels=label.names,
        answer=label.answer,
        decode=decode,
        notes=notes,
    )
