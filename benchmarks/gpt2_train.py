"""A training step of GPT-2 124M, sequences of 1,024 tokens: headway beside Hugging Face's GPT-2 and
beside plain code of the kind people write by hand.

Same shapes, same tokens, taking turns in one process; bf16, fused AdamW, no dropout, vocabulary
50,304 (50,257 rounded up, which every system likes better). Needs a GPU; `--tiny` tries the code
without one.
"""

from __future__ import annotations

import argparse
import copy
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.machine import alternating, describe, peaks, pick_device, save
from headway.models.build import build_model
from headway.models.parts.front import set_compute_dtype
from headway.nn.layout import Layout, loss_weights
from headway.nn.loss import LabelSmoothing
from headway.settings.model import DecoderSettings
from headway.settings.presets import preset
from headway.training.cuda_graph import GraphedStep

Step = Callable[[], object]


@dataclass(frozen=True)
class Batch:
    inputs_N: Tensor
    labels_N: Tensor


def adamw(model: nn.Module, graphed: bool = False) -> torch.optim.Optimizer:
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=fused, capturable=graphed
    )


def ours(settings: DecoderSettings, tokens_BT: Tensor, *, fast: bool) -> Step:
    device = tokens_BT.device
    model: Any = build_model(settings, device=device)
    if device.type == "cuda":
        set_compute_dtype(model, torch.bfloat16)
    if fast:
        model.stack.compile_blocks()
    optimizer = adamw(model, fast)
    n_sequences, length = tokens_BT.shape[0], tokens_BT.shape[1] - 1
    layout = Layout.fixed(
        [length] * n_sequences,
        n_rows=n_sequences * length,
        n_sequences=n_sequences,
        longest=length,
        device=device,
    )
    inputs_N = tokens_BT[:, :-1].flatten().contiguous()
    labels_N = tokens_BT[:, 1:].flatten().contiguous()
    weights_N = loss_weights([length] * n_sequences, n_sequences * length).to(device)
    plain = LabelSmoothing(1.0, 0.0)

    def step(batch: Batch) -> Tensor:
        x_ND = model(batch.inputs_N, layout)
        loss = model.lm_head.loss(x_ND, batch.labels_N, plain, weights_N)
        (loss.sum / len(labels_N)).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.nll

    batch = Batch(inputs_N, labels_N)
    play = GraphedStep(step, copy.deepcopy(batch)) if fast else step
    return lambda: play(batch)


def hugging_face(settings: DecoderSettings, tokens_BT: Tensor, *, compiled: bool) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=settings.vocab_size, n_positions=settings.max_len, n_embd=settings.d_model,
        n_layer=settings.n_layers, n_head=settings.n_heads, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, attn_implementation="sdpa", use_cache=False,
    )  # fmt: skip
    model: Any = GPT2LMHeadModel(config).to(tokens_BT.device).train()
    call: Any = torch.compile(model) if compiled else model
    return _padded_step(model, lambda x: call(input_ids=x).logits, tokens_BT)


class Plain(nn.Module):
    """GPT-2 as one writes it by hand: fused q, k, v, SDPA, a tied head."""

    def __init__(self, settings: DecoderSettings) -> None:
        super().__init__()
        d = settings.d_model
        self.n_heads = settings.n_heads
        self.tokens = nn.Embedding(settings.vocab_size, d)
        self.positions = nn.Embedding(settings.max_len, d)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm_1": nn.LayerNorm(d),
                    "qkv": nn.Linear(d, 3 * d),
                    "out": nn.Linear(d, d),
                    "norm_2": nn.LayerNorm(d),
                    "up": nn.Linear(d, settings.d_ff),
                    "down": nn.Linear(settings.d_ff, d),
                }
            )
            for _ in range(settings.n_layers)
        )
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, settings.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        place_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.tokens(tokens_BT) + self.positions(place_T)
        for block in self.blocks:
            assert isinstance(block, nn.ModuleDict)
            parts = block["qkv"](block["norm_1"](x_BTD)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in parts)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x_BTD = x_BTD + block["out"](seen.transpose(1, 2).flatten(2))
            wide = F.gelu(block["up"](block["norm_2"](x_BTD)), approximate="tanh")
            x_BTD = x_BTD + block["down"](wide)
        return self.head(self.norm(x_BTD))


def by_hand(settings: DecoderSettings, tokens_BT: Tensor) -> Step:
    model = Plain(settings).to(tokens_BT.device).train()
    call: Any = torch.compile(model) if tokens_BT.is_cuda else model
    return _padded_step(model, call, tokens_BT)


def _padded_step(model: nn.Module, call: Callable[[Tensor], Tensor], tokens_BT: Tensor) -> Step:
    optimizer = adamw(model)
    inputs_BT, labels_BT = tokens_BT[:, :-1].contiguous(), tokens_BT[:, 1:].contiguous()

    def step() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=tokens_BT.is_cuda):
            scores_BTV = call(inputs_BT)
            loss = F.cross_entropy(scores_BTV.flatten(0, 1).float(), labels_BT.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def flops_per_token(settings: DecoderSettings, length: int) -> float:
    """nanoGPT's count: 6 N + 12 L d T, embeddings of positions left out."""
    d, layers = settings.d_model, settings.n_layers
    weights = layers * (4 * d * d + 2 * d * settings.d_ff) + settings.vocab_size * d
    return 6.0 * weights + 12.0 * layers * d * length


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    parser.add_argument("--steps", type=int, default=4, help="steps a round")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the code")
    args = parser.parse_args(words)
    device = torch.device(args.device) if args.device else pick_device()
    usual = preset("gpt2")
    assert isinstance(usual, DecoderSettings)
    settings = replace(usual, vocab_size=50_304, dropout=0.0, attention_dropout=0.0)
    if args.tiny:
        settings = replace(settings, vocab_size=512, d_model=64, n_layers=2, n_heads=2, d_ff=256)
        args.sequences, args.length = 2, 32
    fast = device.type == "cuda"
    torch.manual_seed(0)
    tokens_BT = torch.randint(settings.vocab_size, (args.sequences, args.length + 1), device=device)
    builders: dict[str, Callable[[], Step]] = {
        f"headway{' compiled + CUDA graph' if fast else ''}": lambda: ours(
            settings, tokens_BT, fast=fast
        ),
        **({"headway eager": lambda: ours(settings, tokens_BT, fast=False)} if fast else {}),
        "HF GPT-2 eager": lambda: hugging_face(settings, tokens_BT, compiled=False),
        **(
            {"HF GPT-2 compiled": lambda: hugging_face(settings, tokens_BT, compiled=True)}
            if fast
            else {}
        ),
        f"plain code{' compiled' if fast else ''}": lambda: by_hand(settings, tokens_BT),
    }
    steps: dict[str, Step] = {}
    costs: dict[str, dict[str, Any]] = {}
    for name, build in builders.items():
        gc.collect()
        if fast:
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if fast else 0
        start = time.perf_counter()
        try:
            step = build()
            step()
        except Exception as error:  # what does not run here is reported, not hidden
            print(f"{name}: failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        peak = torch.cuda.max_memory_allocated() - before if fast else None
        costs[name] = {"first_s": time.perf_counter() - start, "peak_memory_bytes": peak}
        steps[name] = lambda step=step: [step() for _ in range(args.steps)]
        print(f"{name}: ready after {costs[name]['first_s']:.1f} s", flush=True)
    ceiling = peaks(device)
    n_tokens = args.steps * args.sequences * args.length
    for name, time_s in alternating(steps, device, args.rounds).items():
        rate = n_tokens / time_s
        share = rate * flops_per_token(settings, args.length) / ceiling["tflops"] / 1e12
        costs[name] |= {"tokens_per_s": rate, "share_of_matmul_peak": share}
        print(f"{name:32s} {rate:11,.0f} tokens/s {share:6.1%} of peak")
    about = {"sequences": args.sequences, "length": args.length, "rounds": args.rounds}
    result = {"machine": describe(device), "work": about, "peaks": ceiling, "systems": costs}
    print(save(f"gpt2-train{'-tiny' if args.tiny else ''}", device, result))


if __name__ == "__main__":
    main()
