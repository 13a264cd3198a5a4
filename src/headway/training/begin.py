"""What the weights of a run begin with, which of them are trained, and how they end up."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headway.models.parts.text import TextFront
from headway.nn.lora import add_lora, merge_lora
from headway.settings.run import Resolved
from headway.tasks.distil import start_student
from headway.tasks.task import Note
from headway.tokens.word_vectors import embedding_matrix
from headway.training.start import freeze, start_from


def begin(model: nn.Module, settings: Resolved, prepared: Any, note: Note) -> None:
    """Put into a fresh model what it is to start with: a teacher's layers, another run's weights,
    word vectors."""
    if settings.distil.teacher:
        start_student(model, settings, note)
    elif settings.start.run:
        start_from(model, settings, note)
    vectors = getattr(settings.model, "embeddings", None)
    if vectors is not None:
        _word_vectors(model, vectors, prepared.tokenizer, note)


def restrict(model: nn.Module, settings: Resolved) -> None:
    """Leave only those weights trainable that the settings want trained."""
    if settings.start.freeze:
        freeze(model, settings.start.freeze)
    if settings.lora.rank:
        lora = settings.lora
        add_lora(model, lora.rank, lora.alpha, lora.targets, settings.train.seed)
    if not getattr(settings.model, "tune_embeddings", True):
        for front in _fronts(model):
            front.tokens.weight.requires_grad_(False)


def merged(model: nn.Module, settings: Resolved) -> nn.Module:
    """The model as others use it: plain weights."""
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
        note(f"{path}: vectors for {covered:,} tokens, {share:.0%} of the vocabulary")
