"""A training step (forward, backward, optimiser) of an encoder-decoder: headway beside its peers.

The same sentences, taking turns in one process. Throughput counts real target tokens. headway reads
flat batches; the peers read batches sorted by length, which pad least. bf16 on a GPU, else fp32.

Every system runs in the same ways, so that like stands beside like: eager; compiled; and compiled
with its kernels recorded as CUDA graphs. headway compiles its blocks and records the whole step.
Peers, whose batches differ in shape, are compiled as a whole (model and loss) with dynamic shapes,
and `reduce-overhead` records a graph for each shape; or layer by layer, which takes less time. What
fails, or is not ready within `--limit` seconds, is named in the result.

OpenNMT-py and eole are measured where they can be imported. They pin other versions of torch and
much that their models do not need, so they go in a folder of their own:

    pip install --no-deps --target peers OpenNMT-py==3.5.1 eole==0.6.4 pyonmttok configargparse \\
        six pyahocorasick sentencepiece rapidfuzz fasttext-wheel
    pip install --target peers spacy
    PYTHONPATH=peers python -m benchmarks.train_step
"""

from __future__ import annotations

import argparse
import copy
import gc
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as shape_settings

from benchmarks.machine import (
    add_out,
    alternating,
    describe,
    peak_of_child,
    peaks,
    pick_device,
    save,
)
from benchmarks.peers import installed, padded_loss, peer_versions
from benchmarks.sentences import (
    FlatBatch,
    PaddedBatch,
    batches,
    dealt,
    flat_batch,
    padded_batch,
    padded_batches,
    pair_lengths,
    spread_batches,
)
from headway.models.build import build_model
from headway.models.parts.front import set_compute_dtype
from headway.nn.loss import LabelSmoothing
from headway.settings.model import Seq2SeqSettings
from headway.settings.presets import preset
from headway.training.cuda_graph import GraphedStep

BASE = replace(preset("transformer-base"), vocab_size=32_000, max_len=128)
SIZES = {
    "base": BASE,
    "small": replace(BASE, vocab_size=10_000, d_model=256, n_layers=3, n_heads=4, d_ff=1024),
    "toy": replace(BASE, vocab_size=64, d_model=16, n_layers=1, n_heads=2, d_ff=32),
}
Step = Callable[[], object]
Builders = dict[str, Callable[[], Step]]

EAGER, LAYERS, COMPILED, GRAPHED = "eager", "compiled layers", "compiled", "compiled + CUDA graph"
WAYS = (EAGER, LAYERS, COMPILED, GRAPHED)


@dataclass(frozen=True)
class Work:
    """The same sentences in both forms."""

    flat: list[FlatBatch]
    padded: list[PaddedBatch]
    n_targets: int
    n_tokens: int

    @classmethod
    def make(cls, vocab_size: int, device: torch.device, n_tokens: int, n_batches: int) -> Work:
        if device.type == "cuda":
            fixed = n_tokens
            # The fixed-size form has a dummy tail; a little room for it is part of its price.
            flat = batches(pair_lengths(n_batches * n_tokens // 20), n_tokens)[:n_batches]
            same = [pair for batch in flat for pair in batch]
            padded = padded_batches(same, n_tokens)
        else:
            fixed = None
            padded = spread_batches(n_batches, n_tokens)
            same = [pair for batch in padded for pair in batch]
            flat = dealt(same, n_batches)
        return cls(
            flat=[flat_batch(batch, vocab_size, device, fixed) for batch in flat],
            padded=[padded_batch(batch, vocab_size, device) for batch in padded],
            n_targets=sum(target for _, target in same),
            n_tokens=n_tokens,
        )


def optimiser(model: nn.Module, graphed: bool = False) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True, capturable=graphed
    )


def headway_round(settings: Seq2SeqSettings, work: Work, device: torch.device, way: str) -> Step:
    """One pass over all batches."""
    model: Any = build_model(settings, device=device)
    if device.type == "cuda":
        set_compute_dtype(model, torch.bfloat16)
    if way != EAGER:
        model.encoder.compile_blocks()
        model.decoder.compile_blocks()
    adam = optimiser(model, way == GRAPHED)
    smoothing = LabelSmoothing.of(0.1, settings.vocab_size)

    def step(batch: FlatBatch) -> Tensor:
        x_ND = model(batch.source_M, batch.source, batch.target_N, batch.target)
        loss = model.head.loss(x_ND, batch.labels_N, smoothing, batch.weights_N)
        (loss.sum / batch.n_targets).backward()
        adam.step()
        adam.zero_grad()
        return loss.nll

    play = GraphedStep(step, copy.deepcopy(work.flat[0])) if way == GRAPHED else step
    return lambda: [play(batch) for batch in work.flat][-1]


def peer_round(model: Any, work: Work, device: torch.device, way: str) -> Step:
    model.to(device).train()
    adam = optimiser(model)

    def loss_of(batch: PaddedBatch) -> Tensor:
        return padded_loss(model(batch), batch)

    call: Callable[[PaddedBatch], Tensor] = loss_of
    if way == LAYERS:
        for layer in model.layers:
            layer.compile(dynamic=True)
    elif way != EAGER:
        mode = "reduce-overhead" if way == GRAPHED else "default"
        call = torch.compile(loss_of, dynamic=True, mode=mode)

    def step(batch: PaddedBatch) -> None:
        # Otherwise sizes that are equal in the first batch by chance are taken for one size, and
        # everything is compiled again for the batch where they differ.
        shapes = shape_settings.patch(use_duck_shape=False)
        bf16 = torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda")
        with shapes, bf16:
            loss = call(batch)
        loss.backward()
        adam.step()
        adam.zero_grad()

    return lambda: [step(batch) for batch in work.padded]


def systems(
    settings: Seq2SeqSettings, work: Work, device: torch.device, ways: Sequence[str]
) -> Builders:
    """By name, how to build each."""
    found: Builders = {}
    for way in ways:
        if way != LAYERS:  # which is how headway compiles in any case
            found[f"headway {way}"] = lambda way=way: headway_round(settings, work, device, way)
    for name, kind in installed().items():
        for way in ways:
            found[f"{name} {way}"] = lambda kind=kind, way=way: peer_round(
                kind.build(settings), work, device, way
            )
    return found


def flops_per_target(settings: Seq2SeqSettings) -> float:
    """Forward and backward matrix work per target token (as many source tokens), less attention."""
    d, ff = settings.d_model, settings.d_ff
    encoder = settings.n_layers * (4 * d * d + 2 * d * ff)
    decoder = settings.stack("decoder").n_layers * (8 * d * d + 2 * d * ff)
    return 6.0 * (encoder + decoder + d * settings.vocab_size)


@contextmanager
def within(limit_s: int) -> Iterator[None]:
    """TimeoutError in what takes longer."""

    def end(*_: object) -> None:
        raise TimeoutError(f"not ready within {limit_s} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def prepared(
    builders: Builders, device: torch.device, limit_s: int
) -> tuple[dict[str, Step], dict[str, dict[str, Any]], dict[str, str]]:
    """Each system built and run twice: how long that took and the memory it needed at most; and
    why others did not run."""
    steps: dict[str, Step] = {}
    costs: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for name, build in builders.items():
        gc.collect()
        before = 0
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        try:
            with within(limit_s):
                step = build()
                step()
                first = time.perf_counter() - start
                if name.endswith(GRAPHED):
                    step()  # graphs of a peer are recorded when a shape comes a second time
        except Exception as error:  # a peer that does not compile is reported, not hidden
            failed[name] = f"{type(error).__name__}: {str(error)[:300]}"
            print(f"{name}: failed: {failed[name]}", flush=True)
            continue
        peak = torch.cuda.max_memory_allocated() - before if device.type == "cuda" else None
        steps[name] = step
        costs[name] = {"first_round_s": first, "peak_memory_bytes": peak}
        print(f"{name}: ready after {time.perf_counter() - start:.1f} s", flush=True)
    return steps, costs, failed


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--device", help="cpu or cuda; a GPU if there is one")
    parser.add_argument("--tokens", type=int, help="per side and step; 25,088 on a GPU, else 600")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--ways", nargs="+", choices=WAYS, help="all but compiled layers on a GPU, else eager"
    )
    parser.add_argument("--limit", type=int, default=150, help="seconds until a system is ready")
    parser.add_argument("--skip", nargs="*", default=[], help="systems to leave out")
    parser.add_argument(
        "--only",
        help="run this system once and stop, to measure its memory or to fill the compiler's cache",
    )
    add_out(parser)
    args = parser.parse_args(words)
    device = torch.device(args.device) if args.device else pick_device()
    gpu = device.type == "cuda"
    settings = SIZES[args.size]
    n_tokens = args.tokens or (25_088 if gpu else 600)
    n_batches = args.batches
    ways = args.ways or ([EAGER, COMPILED, GRAPHED] if gpu else [EAGER])
    work = Work.make(settings.vocab_size, device, n_tokens, n_batches)
    builders = systems(settings, work, device, ways)
    if args.only:
        _, _, failed = prepared({args.only: builders[args.only]}, device, args.limit)
        if failed:
            raise SystemExit(1)
        return

    builders = {name: build for name, build in builders.items() if name not in args.skip}
    steps, costs, failed = prepared(builders, device, args.limit)
    if device.type == "cpu":
        same = ["--size", args.size, "--tokens", str(n_tokens), "--batches", str(n_batches)]
        for name in steps:
            asked = [*same, "--ways", *ways, "--only", name]
            costs[name]["peak_memory_bytes"] = peak_of_child("benchmarks.train_step", asked)
    ceiling = peaks(device)
    for name, time_s in alternating(steps, device, args.rounds).items():
        rate = work.n_targets / time_s
        share = rate * flops_per_target(settings) / ceiling["tflops"] / 1e12
        costs[name] |= {"target_tokens_per_s": rate, "share_of_matmul_peak": share}
        memory = (costs[name]["peak_memory_bytes"] or 0) / 2**30
        print(f"{name:38s} {rate:11,.0f} target tok/s {share:6.1%} of peak {memory:6.2f} GiB")
    cells = sum(batch.labels_BT.numel() for batch in work.padded)
    about = {"size": args.size, "tokens": n_tokens, "batches": n_batches, "rounds": args.rounds}
    about["peer_padding"] = 1 - work.n_targets / cells
    machine = describe(device)
    machine["versions"] |= peer_versions(costs)
    result = {"machine": machine, "work": about, "peaks": ceiling, "systems": costs}
    result |= {"failed": failed} if failed else {}
    print(save(f"train-step-{args.size}", device, result, args.out))


if __name__ == "__main__":
    main()
