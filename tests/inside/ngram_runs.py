"""Tiny runs whose model has an n-gram member, and in which hiding a token is removing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from headway.models.build import build_model
from headway.models.encoder import Encoder
from headway.models.folder import model_weights, save_weights
from headway.settings.data import DataSettings
from headway.settings.model import EncoderSettings
from headway.settings.run import RunSettings, resolved_toml
from headway.specs.task_settings import ClassifySettings
from headway.tasks.ngram_fit import token_views
from headway.tokens.tokenizer import Vocabularies

from ..interop.padded_runs import LABELS, tokenizer
from ..models.variants import stirred

SHARE = 0.7


def ngram_run(
    folder: Path, task: str, *, mute: bool = False, answer: str = "label", **changes: Any
) -> Path:
    """A run without positions and with mean pooling. `mute`: the layers say nothing.

    `answer`: the kind of answer of a classifier.
    """
    n_labels = 1 if answer == "number" else 3
    words, head = tokenizer(), {"classify": "classes", "tag": "tags"}[task]
    sizes: dict[str, Any] = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48}
    shape: dict[str, Any] = {
        "positions": "none",
        "pooling": "mean",
        "n_segments": 0,
        "dropout": 0.0,
    }
    settings = EncoderSettings(
        **sizes, **(shape | changes), vocab_size=words.vocab_size, heads=(head,),  # type: ignore
        n_labels=n_labels, max_len=30, ngrams=512,
    )  # fmt: skip
    model = stirred(build_model(settings, seed=5))
    assert isinstance(model, Encoder)
    assert model.ngrams is not None
    table = model.ngrams
    table.views_KV.copy_(token_views(words, words.vocab_size))
    draw = torch.Generator().manual_seed(1)
    table.weight_GC.copy_(torch.randn(table.weight_GC.shape, generator=draw))
    table.bias_C.copy_(torch.randn(n_labels, generator=draw))
    table.share.fill_(SHARE)
    if mute:
        for weight in model.heads[head].parameters():
            nn.init.zeros_(weight)
    number = {"mean": 5.0, "std": 2.0} if answer == "number" else {}
    run = RunSettings(
        task=task, model=settings, labels=() if number else LABELS, data=DataSettings(max_len=30),
        **({"classify": ClassifySettings(answer=answer, modality="text", **number)}  # type: ignore
           if answer != "label" else {}),
    )  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(resolved_toml(run))
    Vocabularies(words, words).save(folder / "tokenizer.json")
    save_weights(folder, model_weights(model))
    return folder
