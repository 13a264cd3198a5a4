"""A whole GPT and its training loop, on the building blocks of `headway.nn` alone.

It learns to write like Shakespeare, one character at a time, in about a minute on two CPU cores:

    python examples/minimal.py

Names of tensors end in their axes: N tokens of all sequences, V the vocabulary, D the model.
"""

from __future__ import annotations

import argparse
import gzip
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

# Imported before torch: its threads then sleep while they wait for each other on busy cores.
import headway  # noqa: F401  # isort: skip
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.nn.attention.attention import Attention
from headway.nn.attention.scope import AttentionSpec
from headway.nn.block import PreNorm
from headway.nn.cache import Cache
from headway.nn.embedding import Embedding
from headway.nn.feedforward import FeedForward
from headway.nn.init import initialise
from headway.nn.layout import Layout
from headway.nn.norms import RMSNorm
from headway.nn.positions import Rotary, rope_rates
from headway.nn.stack import Stack

TEXT = Path(__file__).parent / "data" / "tinyshakespeare.txt.gz"

# The size of the model: 0.4 million parameters. A larger one is better at each step, but has
# time for fewer of them: 2 layers and 1,000 steps beat 4 layers and 500.
D_MODEL = 128
N_HEADS = 4
N_LAYERS = 2
D_FF = 4 * D_MODEL

# The training. Small models learn best with a high learning rate, which needs a warm-up:
# the first gradients come from random weights.
CONTEXT = 128
BATCH = 16
STEPS = 1000
WARMUP = 50
PEAK_LR = 4e-3
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.98)  # 0.999 would remember gradients of longer than this run
CLIP = 1.0


class GPT(nn.Module):
    """Predict the next character at every position of a text."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocab_size, D_MODEL)
        # Without the causal mask, each position would see the very character it should predict.
        scope = AttentionSpec(causal=True)
        # Attention does not see order by itself: rotary positions turn queries and keys, so that
        # their product depends on the distance between two characters.
        rotary = Rotary(partial(rope_rates, D_MODEL // N_HEADS, 10_000.0), max_len=CONTEXT)
        norm = partial(RMSNorm, D_MODEL)
        # Each block adds to its input what its attention and then its feed-forward network find.
        # The norm is inside these branches: the sum itself passes through, and gradients with it.
        blocks = [
            PreNorm(
                Attention(D_MODEL, N_HEADS, scope=scope, rotary=rotary),
                FeedForward(D_MODEL, D_FF, "gelu", bias=False),
                norm,
            )
            for _ in range(N_LAYERS)
        ]
        self.stack = Stack(blocks, final_norm=norm())
        initialise(self, "small")

    def forward(self, tokens_N: Tensor, layout: Layout, cache: Cache | None = None) -> Tensor:
        """Return the logits of the next character after each token."""
        x_ND = self.stack(self.embedding(tokens_N), layout, cache=cache)
        # The output projection is the embedding table again: characters with similar vectors
        # come before similar characters, and both uses train it.
        logits_NV: Tensor = F.linear(x_ND, self.embedding.weight)
        return logits_NV


def windows(text_N: Tensor, starts: list[int]) -> tuple[Tensor, Tensor, Layout]:
    """Return windows of the text as one flat batch: inputs, targets, and where each window is.

    The windows lie side by side in one row of tokens. The layout keeps attention inside each
    of them, so a shorter one at the end of the text needs no padding.
    """
    pieces = [text_N[start : start + CONTEXT + 1] for start in starts]
    inputs_N = torch.cat([piece[:-1] for piece in pieces])
    targets_N = torch.cat([piece[1:] for piece in pieces])
    return inputs_N, targets_N, Layout.of([len(piece) - 1 for piece in pieces])


@torch.inference_mode()
def evaluate(model: GPT, text_N: Tensor) -> float:
    """Return the mean loss per character of a text that is cut into windows, in nats."""
    model.eval()
    starts = list(range(0, len(text_N) - 1, CONTEXT))
    total = 0.0
    for first in range(0, len(starts), BATCH):
        inputs_N, targets_N, layout = windows(text_N, starts[first : first + BATCH])
        total += F.cross_entropy(model(inputs_N, layout), targets_N, reduction="sum").item()
    model.train()
    return total / (len(text_N) - 1)


def learning_rate(step: int, steps: int) -> float:
    """Return the factor of the peak learning rate: a linear rise, then half a cosine to zero.

    Small last steps settle the weights, which large ones keep moving around a minimum.
    """
    rise = min(1.0, (step + 1) / WARMUP)
    return rise * 0.5 * (1 + math.cos(math.pi * step / steps))


def train(model: GPT, text_N: Tensor, steps: int) -> None:
    # Weight decay is for matrices only: the scales of norms would be pulled from one to zero.
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    scales = [weight for weight in model.parameters() if weight.ndim == 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": scales, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_LR, betas=BETAS, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(learning_rate, steps=steps))
    start, recent = time.perf_counter(), []
    for step in range(1, steps + 1):
        # Windows begin anywhere, so that the model meets each character in every place.
        starts = torch.randint(len(text_N) - CONTEXT, (BATCH,)).tolist()
        inputs_N, targets_N, layout = windows(text_N, starts)
        loss = F.cross_entropy(model(inputs_N, layout), targets_N)
        optimizer.zero_grad()
        loss.backward()
        # A rare batch with a huge gradient must not undo what many others taught.
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        recent.append(loss.item())
        if step % 100 == 0 or step == steps:
            mean, seconds = sum(recent) / len(recent), time.perf_counter() - start
            print(f"step {step:4}  training loss {mean:.3f}  {seconds:3.0f} s", flush=True)
            recent.clear()


@torch.inference_mode()
def sample(model: GPT, prompt_N: Tensor, n_new: int, temperature: float = 0.8) -> list[int]:
    """Continue a prompt by drawing each next character from the model's probabilities.

    The cache holds keys and values of all characters so far: only the newest one is computed.
    """
    model.eval()
    cache, tokens_N, text = Cache(N_LAYERS, 1, CONTEXT), prompt_N, prompt_N.tolist()
    for _ in range(n_new):
        if cache.lengths[0] == CONTEXT:
            # Longer distances were never trained: continue from the last half of the context.
            cache, tokens_N = Cache(N_LAYERS, 1, CONTEXT), torch.tensor(text[-CONTEXT // 2 :])
        logits_NV = model(tokens_N, cache.layout(len(tokens_N)), cache)
        # A temperature below one prefers likely characters: fewer spelling mistakes.
        tokens_N = torch.multinomial((logits_NV[-1] / temperature).softmax(-1), 1)
        text.append(int(tokens_N))
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, default=TEXT, help="a text file, or one in gzip")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    opener = gzip.open if options.text.suffix == ".gz" else open
    with opener(options.text, "rt", encoding="utf-8") as file:
        text = file.read()
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    text_N = torch.tensor([number[character] for character in text])
    # The last tenth is for validation. Random windows would overlap with those of the training.
    cut = len(text_N) * 9 // 10

    model = GPT(len(characters))
    n_parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{n_parameters:,} parameters, {cut:,} characters, {len(characters)} different ones")
    train(model, text_N[:cut], options.steps)
    print(f"validation loss {evaluate(model, text_N[cut:]):.3f} nats per character\n")
    written = sample(model, torch.tensor([number["\n"]]), n_new=400)
    print("".join(characters[i] for i in written))


if __name__ == "__main__":
    main()
