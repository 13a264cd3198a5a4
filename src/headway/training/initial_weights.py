"""Initial weights of a run, which of them are trained, and their learning rates.

A run may start from layers of a teacher, from the weights of another run, or from word vectors. The
front and the layers of a model are either loaded completely or not at all. Output heads are newly
initialized if the old run lacks them or has other labels, and so is a decoder that is added to an
encoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from headway.errors import ConfigError, Option
from headway.models.parts.text import TextFront
from headway.nn.lora import add_lora, merge_lora
from headway.nn.stack import stacks
from headway.settings.model import family_of
from headway.settings.run import Resolved
from headway.settings.warm_start import check_same, check_task, gets_decoder
from headway.tasks.distil import start_student
from headway.tasks.loaded_run import open_run
from headway.tasks.task import Note
from headway.tokens.word_vectors import embedding_matrix

MASK = "front.mask.weight"
"""Name of the weight with the mask embedding, which only models trained with masking have."""

HEADS = ("head.", "heads.", "ctc.", "ngrams.")
LABEL_HEADS = ("heads.classes.", "heads.distilled.", "heads.tags.", "ngrams.")
OF_DECODER = ("target_front.", "decoder.")
AS_ENCODER = {"source_front.": "front.", "encoder.": "stack.", "ctc.": "heads.ctc."}
"""Prefixes of weight names in an encoder-decoder, mapped to the prefixes of the same weights in an
encoder."""

SEGMENTS = "front.segments.weight"
BY_WORD = ("front.tokens.weight", "head.linear.weight", "head.linear.bias",
           "words.words.linear.weight", "words.words.linear.bias")  # fmt: skip
"""Suffixes of the names of weights with one row per token. A new task may append tokens, so these
weights may grow."""


@dataclass(frozen=True)
class LoadedWeights:
    """Names of the weights that were loaded, newly initialized, or not used."""

    run: str
    loaded: frozenset[str]
    """Names in the new model of the weights that were loaded. A tied weight has several names."""

    initialized: frozenset[str]
    """Names of the weights that were newly initialized, such as output heads, the mask embedding
    and segment embeddings."""

    unused: tuple[str, ...]
    """Names of weights of the old run that were not used."""

    def lines(self) -> list[str]:
        said = [f"starting from {self.run}: {len(self.loaded)} tensors loaded"]
        if self.initialized:
            said[0] += f"; newly initialised: {_heads(sorted(self.initialized))}"
        if self.unused:
            said.append(f"not used: {_heads(self.unused)} ({len(self.unused)} tensors)")
        return said


def start_from(model: nn.Module, settings: Resolved, note: Note) -> LoadedWeights:
    """Load the weights of `start.run` into the model. Raises an error if a weight does not fit."""
    old = open_run(settings.start.run, device="cpu", precision="fp32", words=False)
    check_task(settings.start.run, settings, old.shape)
    check_same(settings.start.run, old.shape, settings.model, may_grow=True)
    same_labels = old.settings.labels == settings.labels
    beside = gets_decoder(old.shape, family_of(settings.model))
    started = copy_weights(model, old.model, settings.start.run, same_labels, decoder=beside)
    for line in started.lines():
        note(line)
    return started


@torch.no_grad()
def copy_weights(
    model: nn.Module, old: nn.Module, name: str, same_labels: bool, *, decoder: bool = False
) -> LoadedWeights:
    """Copy every weight that the two models have in common. Return which weights were loaded, newly
    initialized or not used.

    `same_labels`: whether the label heads have the same meaning. `decoder`: the old model is an
    encoder, and the new one adds a decoder to it.
    """
    theirs = _as_encoder(old) if decoder else dict(old.state_dict())
    may_be_fresh = (*HEADS, *OF_DECODER) if decoder else HEADS
    loaded, fresh, used = set[str](), set[str](), set[str]()
    for names, tensor in _by_tensor(model):
        found = next((n for n in names if n in theirs and _keeps(n, same_labels)), None)
        if found is not None and theirs[found].shape == tensor.shape:
            tensor.copy_(theirs[found])
            loaded.update(names)
            used.update(names)
        elif found is not None and found.endswith(BY_WORD) and _grew(theirs[found], tensor):
            known = theirs[found]
            tensor[: len(known)].copy_(known)
            tensor[len(known) :].copy_(known.mean(0, keepdim=True))  # new tokens start as the mean
            loaded.update(names)
            used.update(names)
        elif names == [SEGMENTS]:
            # The meaning of the segments is new. All of them therefore start as segment 0 of the
            # old model or, if it has no segments, as zeros, so that hidden states do not change.
            known = theirs.get(SEGMENTS)
            tensor.copy_(torch.zeros_like(tensor[0]) if known is None else known[0])
            (fresh if known is None else loaded).update(names)
            used.update(names)
        elif all(n.startswith(may_be_fresh) or n == MASK for n in names):
            fresh.update(names)
        else:
            has = tuple(theirs[found].shape) if found else "none"
            raise ConfigError(
                f"{Option('start', name)}: the tensor {names[0]} has shape {has} in that run, but "
                f"{(*tensor.shape,)} in this model. Remove the model settings (model.*): they are "
                "taken from that run."
            )
    unused = tuple(n for n in theirs if n not in used)
    return LoadedWeights(name, frozenset(loaded), frozenset(fresh), unused)


def trainable(model: nn.Module) -> tuple[int, int]:
    """Return the number of trainable parameters, and the number of all parameters."""
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(n for n, learns in counts if learns), sum(n for n, _ in counts)


def freeze(model: nn.Module, layers: int) -> None:
    """Freeze the front and the first `layers` layers. −1 freezes everything except the heads.

    In an encoder-decoder, the layers are those of the encoder.
    """
    stack_name, stack = stacks(model)[0]
    if layers > len(stack.blocks):
        raise ConfigError(
            f"start.freeze={layers} is too large: the model has {len(stack.blocks)} layers. Use a "
            "smaller number, or -1 to train only the heads."
        )
    front = "source_front." if stack_name == "encoder" else "front."
    kept = (front, *(f"{stack_name}.blocks.{number}." for number in range(layers)))
    for names, parameter in _by_tensor(model):
        in_head = all(name.startswith(HEADS) for name in names)
        if not in_head if layers < 0 else any(name.startswith(kept) for name in names):
            parameter.requires_grad_(False)


def lr_scales(model: nn.Module, layer_decay: float) -> dict[Tensor, float]:
    """Return the learning-rate factor of each weight, for layer-wise decay.

    The factor is 1 for the last layer of a stack. Each layer below has `layer_decay` times the
    factor of the layer above, and the front has that of the lowest layer times the decay. Weights
    that are not listed, such as those of heads, have the factor 1.
    """
    if layer_decay == 1.0:
        return {}
    scales: dict[Tensor, float] = {}
    deepest = 1.0
    for _, stack in stacks(model):
        for below, block in enumerate(reversed(stack.blocks)):
            scales.update(dict.fromkeys(block.parameters(), layer_decay**below))
        deepest = layer_decay ** len(stack.blocks)
        if stack.bias is not None:
            scales.update(dict.fromkeys(stack.bias.parameters(), deepest))
    for name, part in model.named_children():
        if name.endswith("front"):
            scales.update(dict.fromkeys(part.parameters(), deepest))
    return scales


def _as_encoder(old: nn.Module) -> dict[str, Tensor]:
    """Return the weights of an encoder under the names that an encoder-decoder uses. An
    encoder-decoder has no segments, so the embedding of the first segment is added to every token
    embedding."""
    weights = dict(old.state_dict())
    segments = weights.pop(SEGMENTS, None)
    if segments is not None:
        tokens = "front.tokens.weight"
        weights[tokens] = weights[tokens] + segments[0] / cast(TextFront, old.front).scale
    for new, before in AS_ENCODER.items():
        for name in [name for name in weights if name.startswith(before)]:
            weights[new + name.removeprefix(before)] = weights.pop(name)
    return weights


def _grew(old: Tensor, new: Tensor) -> bool:
    return len(new) > len(old) and new.shape[1:] == old.shape[1:]


def _keeps(name: str, same_labels: bool) -> bool:
    return same_labels or not name.startswith(LABEL_HEADS)


def _by_tensor(model: nn.Module) -> list[tuple[list[str], Tensor]]:
    """Return every tensor of the model with all of its names. Tied weights have several."""
    names: dict[Tensor, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(tensor, []).append(name)
    return [(aliases, tensor) for tensor, aliases in names.items()]


def _heads(names: Iterable[str]) -> str:
    """Return readable names of the modules that these weights belong to. For example,
    `heads.classes.linear.weight` belongs to `head classes`."""
    found: dict[str, None] = {}
    for name in names:
        if name.endswith((MASK, SEGMENTS)):
            found["mask embedding" if name.endswith(MASK) else "segments"] = None
            continue
        if name.startswith(OF_DECODER):
            found["decoder"] = None
            continue
        first, second, *_ = name.split(".")
        if first == "ngrams":
            found["n-grams"] = None
            continue
        name = {"head": "words", "ctc": "ctc"}.get(first, second)
        found[f"head {name}" if f"{first}." in HEADS else first] = None
    return ", ".join(found)


def initialize_weights(model: nn.Module, settings: Resolved, prepared: Any, note: Note) -> None:
    """Load the initial weights into a new model. They are layers of a teacher or weights of another
    run, and possibly word vectors."""
    if settings.distil.teacher:
        start_student(model, settings, note)
    elif settings.start.run:
        start_from(model, settings, note)
    vectors = getattr(settings.model, "embeddings", None)
    if vectors is not None:
        _word_vectors(model, vectors, prepared.tokenizer, note)


def set_trainable(model: nn.Module, settings: Resolved) -> None:
    """Freeze the weights that the settings exclude from training, and add LoRA adapters if they are
    configured."""
    if settings.start.freeze:
        freeze(model, settings.start.freeze)
    if settings.lora.rank:
        lora = settings.lora
        add_lora(model, lora.rank, lora.alpha, lora.targets, settings.train.seed)
    if not getattr(settings.model, "tune_embeddings", True):
        for front in _fronts(model):
            front.tokens.weight.requires_grad_(False)


def merge_adapters(model: nn.Module, settings: Resolved) -> nn.Module:
    """Return the model with its LoRA adapters merged into its weights."""
    return merge_lora(model) if settings.lora.rank else model


def _fronts(model: nn.Module) -> list[TextFront]:
    return [part for part in model.modules() if isinstance(part, TextFront)]


@torch.no_grad()
def _word_vectors(model: nn.Module, path: str, tokenizer: Any, note: Note) -> None:
    for front in _fronts(model):
        weight_VD = front.tokens.weight
        std = float(weight_VD.std())
        matrix_VD, covered = embedding_matrix(path, tokenizer, weight_VD.shape[1], std)
        weight_VD.copy_(matrix_VD)
        share = covered / max(1, len(weight_VD))
        note(f"{path}: word vectors for {covered:,} tokens, {share:.0%} of the vocabulary")
