"""A little language model that has learned a few sentences, and its tokenizer of bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from headway.decode.completer import Completer
from headway.models.build import build_model
from headway.models.decoder import Decoder
from headway.models.folder import model_weights, save_weights
from headway.nn.layout import Layout
from headway.nn.loss import LabelSmoothing
from headway.settings.data import TokenizerSettings
from headway.settings.decode import DecodeSettings
from headway.settings.model import DecoderSettings
from headway.settings.run import RunSettings, resolved_toml
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.trainer import train_vocabularies

SENTENCES = [
    "the cat sat on the mat. the dog ran.",
    "a naïve café – “quoted” 日本 text.",
    "one two three four five six.",
    "Text: good\nLabel: up\n\nText: bad\nLabel: down\n\nText: good\nLabel: up",
]


@cache
def tokenizer() -> Tokenizer:
    lines = SENTENCES * 2
    return train_vocabularies(lines, lines, TokenizerSettings(kind="bpe", vocab_size=300), 4).target


def settings() -> DecoderSettings:
    return DecoderSettings(
        vocab_size=tokenizer().vocab_size, d_model=32, n_layers=1, n_heads=4, d_ff=64, dropout=0.0,
        attention_dropout=0.0, max_len=96,
    )  # fmt: skip


def writer(steps: int = 120, seed: int = 0) -> Decoder:
    """The more steps, the better it knows the sentences."""
    return _trained(steps, seed)


@cache
def _trained(steps: int, seed: int) -> Decoder:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_model(settings())
    assert isinstance(model, Decoder)
    inner = tokenizer()
    texts = [[inner.bos, *ids, inner.eos] for ids in inner.encode_batch(SENTENCES)]
    tokens_N = torch.tensor([token for text in texts for token in text[:-1]])
    labels_N = torch.tensor([token for text in texts for token in text[1:]])
    layout = Layout.of([len(text) - 1 for text in texts])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = model.lm_head.loss(model(tokens_N, layout), labels_N, LabelSmoothing(1.0, 0.0))
        (loss.sum / len(labels_N)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def completer(changes: DecodeSettings, steps: int = 120, **more: object) -> Completer:
    return Completer([writer(steps)], tokenizer(), changes, **more)  # type: ignore[arg-type]


def save_run(folder: Path, weights: Decoder | None = None, **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    run = RunSettings(task="complete", model=settings(), decode=DecodeSettings(beam=1, max_len=30))
    (folder / "config.toml").write_text(resolved_toml(replace(run, **changes)))  # type: ignore[arg-type]
    Vocabularies(tokenizer(), tokenizer()).save(folder / "tokenizer.json")
    save_weights(folder, model_weights(weights or writer()))
    return folder
