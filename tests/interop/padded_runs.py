"""Tiny runs of every task, with random weights that all matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.config.data import DataSettings, TokenizerSettings
from headway.config.decode import DecodeSettings
from headway.config.folder import load_run
from headway.config.run import RunSettings, resolved_toml
from headway.decode.engine import Engine
from headway.models.folder import model_weights, save_weights
from headway.text.tokenizer import Tokenizer, Vocabularies
from headway.text.train import train_on_texts
from headway.train.kind import Use
from headway.train.tasks.table import kind_of

from ..models.variants import settings_of, tiny

WORDS = [f"{c}{v}" for c in "bdfgkmp" for v in "aeiou"]
LINES = ["ba de", "go", "", "fi ko ga mo pu ba ba de", "de de ba", "ka  unknown ke ki ko da", "pe"]
LABELS = ("O", "B-x", "I-x")

FAMILY = {"translate": "seq2seq", "complete": "decoder"}
"""Of a task; the others have encoders."""

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "translate": ("relative-grouped", {}),
    "complete": ("llama-like", {}),
    "fill": ("albert-like", {"heads": ("words",)}),
    "classify": ("as-published", {"heads": ("pooled", "classes"), "n_labels": 3}),
    "tag": ("alibi-three-heads", {"heads": ("tags",), "n_labels": 3, "tag_transitions": True}),
    "embed": ("window", {"heads": ("pooled",), "pooling": "mean"}),
}
"""A variant of the models for each task, and what it needs besides."""


def tokenizer() -> Tokenizer:
    """A word is a token."""
    return train_on_texts([" ".join(WORDS)] * 2, TokenizerSettings(kind="words"), 100, ["[MASK]"])


def tiny_run(folder: Path, task: str, variant: str | None = None, **changes: Any) -> Path:
    """A run folder as training leaves it; `variant`: another than `RUNS` has for the task."""
    words = tokenizer()
    usual, more = RUNS[task]
    variant = usual if variant is None else variant
    more = {"n_layers": 1, "vocab_size": words.vocab_size} | more | changes
    family = FAMILY.get(task, "encoder")
    settings = RunSettings(
        task=task,
        model=settings_of(family, variant, **more),
        labels=LABELS if "n_labels" in more else (),
        data=DataSettings(max_len=30, long="windows"),
        decode=DecodeSettings(beam=2, max_len=12),
    )
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(resolved_toml(settings))
    Vocabularies(words, words).save(folder / "tokenizer.json")
    save_weights(folder, model_weights(tiny(family, variant, **more)))
    return folder


def lines_for(task: str) -> list[str]:
    if task == "fill":
        return ["ba [MASK] de", "[MASK] go", "fi ko ga [MASK] pu [MASK] ba"]
    return [line for line in LINES if line or task != "tag"]


def answers(
    folder: Path,
    lines: list[str],
    engine: Engine | None = None,
    options: dict[str, Any] | None = None,
    **decode: Any,
) -> list[dict[str, Any]]:
    """What `headway predict --json` says, by torch or by another engine."""
    settings = decoding(load_run(folder), **decode)
    use = Use([folder], settings, torch.device("cpu"), options or {}, engine)
    return [answer.facts for answer in kind_of(settings.task).predictor(use).answers(lines)]


def decoding(settings: RunSettings, **changes: Any) -> RunSettings:
    return replace(settings, decode=replace(settings.decode, **changes))


def assert_same_facts(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    """Texts, labels and counts equal; numbers that were computed nearly so."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same_facts(ours[key], theirs[key], tolerance)
    elif isinstance(ours, Sequence) and not isinstance(ours, str):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same_facts(one, other, tolerance)
    elif isinstance(ours, float):
        np.testing.assert_allclose(theirs, ours, rtol=tolerance, atol=tolerance)
    else:
        assert ours == theirs
