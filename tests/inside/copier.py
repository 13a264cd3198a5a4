"""A translator whose weights were written by hand, so that everything about it is known.

It copies its source. The first head of its cross attention looks at the word it copies; the second
looks at the word behind it, a little more firmly, and does nothing with what it sees.
"""

from __future__ import annotations

from pathlib import Path

import torch

from headway.lab.datasets import syllable
from headway.models.build import build_model
from headway.settings.data import TokenizerSettings
from headway.settings.model import Seq2SeqSettings, StackSettings
from headway.settings.run import RunSettings
from headway.tasks.loaded_run import LoadedRun
from headway.tokens.tokenizer import Vocabularies
from headway.tokens.trainer import train_on_texts

SLOTS = 32
"""Half of the width: a number for each token; the other half has one for each position."""


WORDS = [syllable(number) for number in range(20)]


@torch.no_grad()
def copier(folder: Path) -> LoadedRun:
    made = train_on_texts([" ".join(WORDS)] * 2, TokenizerSettings(kind="words"), SLOTS, [])
    vocab = Vocabularies(made, made)
    settings = Seq2SeqSettings(
        vocab_size=made.vocab_size, d_model=2 * SLOTS, n_layers=1, n_heads=2, d_ff=4,
        decoder=StackSettings(n_layers=1), max_len=SLOTS, positions="learned", block_layout="pre",
        embedding_scale=False, dropout=0.0, tie="all",
    )  # fmt: skip
    model = build_model(settings).eval()
    for part, weight in model.named_parameters():
        if "norm" not in part:
            weight.zero_()
    one = torch.eye(SLOTS)
    model.target_front.tokens.weight[:, :SLOTS] = one[: made.vocab_size]
    for front in (model.source_front, model.target_front):
        front.positions.table.weight[:, SLOTS:] = one
    cross = model.decoder.blocks[0].cross
    q, k, v = cross.to_qkv.weight.split(cross.sizes)
    q[:SLOTS, SLOTS:], k[:SLOTS, SLOTS:] = 2 * one, one
    q[SLOTS:, SLOTS:], k[SLOTS:, SLOTS:] = 3 * one.roll(1, 0), one
    v[:SLOTS, :SLOTS] = one
    cross.to_out.weight[:SLOTS, :SLOTS] = one
    return LoadedRun.of(folder, RunSettings(task="translate", model=settings), model, vocab)
