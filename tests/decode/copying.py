"""A model that has half learned to copy: its outputs differ from source to source, and end."""

from __future__ import annotations

from functools import cache

import torch

from headway.models.build import build_model
from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout
from headway.nn.loss import LabelSmoothing
from headway.settings.model import Seq2SeqSettings

BOS, EOS, UNK = 1, 2, 0
VOCAB = 23
SIZES = Seq2SeqSettings(
    vocab_size=VOCAB, d_model=32, n_layers=1, n_heads=4, d_ff=64, dropout=0.0, max_len=64
)


def sources(n: int, seed: int = 0, longest: int = 8) -> list[list[int]]:
    """Words and the end token, of every length from none to the longest."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (n,), generator=draw).tolist()
    return [[*torch.randint(3, VOCAB, (k,), generator=draw).tolist(), EOS] for k in lengths]


@cache
def copier(steps: int = 80, seed: int = 0) -> Seq2Seq:
    """The more steps, the better it copies.

    Trained in fp64 from numbers with a few bits, it is the same model on every processor: in fp32
    the last bits of the first weights and of sums differ, and training makes them grow.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_model(SIZES).double()
    assert isinstance(model, Seq2Seq)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter * 2**12).round() / 2**12)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for step in range(steps):
        batch = sources(48, seed=1000 * seed + step + 1)
        layout = Layout.of([len(source) for source in batch])
        labels_N = torch.tensor([token for source in batch for token in source])
        inputs_N = torch.tensor([token for source in batch for token in [BOS, *source[:-1]]])
        loss = model.head.loss(
            model(labels_N, layout, inputs_N, layout), labels_N, LabelSmoothing(1.0, 0.0)
        )
        (loss.sum / len(labels_N)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.float().eval()
