"""ViT-B/16: a training step and inference, headway beside Hugging Face's ViT, compiled.

    python -m benchmarks.vit_speed                 # on a GPU, within three minutes
    python -m benchmarks.vit_speed --device cpu --tiny

Same weights at the start, same images (uint8, 224 × 224, on the device; both normalise them),
same loss, AdamW on fp32 weights, bf16 products, no dropout, taking turns in one process; the median
of several rounds. Ours is what `headway train classify` runs: blocks compiled, the step recorded
as a CUDA graph, classes read from the first row alone. Hugging Face's is the best of several ways
to compile it, each with SDPA, autocast and the fused optimiser; inference is in bf16 for both.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.machine import alternating, peaks, pick_device, save
from headway.interop.hf.vit import VIT
from headway.interop.name_pairs import to_theirs
from headway.models.build import build_model
from headway.models.parts.front import set_compute_dtype
from headway.models.parts.vision import ImageBatch
from headway.models.vision import ImageEncoder
from headway.nn.layout import Layout
from headway.settings.run import RunSettings
from headway.settings.train import TrainSettings
from headway.settings.vision import ImageEncoderSettings, ImageSettings
from headway.tasks.objective import TaskLoss
from headway.training.cuda_graph import GraphedStep
from headway.training.distributed import Distributed
from headway.training.optim import build_optimizer
from headway.training.step import Step

Work = Callable[[], object]

MODES = {
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune"},
}
"""Ways of torch.compile."""


@dataclass(frozen=True)
class Batch:
    images: ImageBatch
    labels_B: Tensor


def example(settings: ImageEncoderSettings, n: int, device: torch.device) -> Batch:
    draw = torch.Generator().manual_seed(0)
    size = (n, 1, 3, settings.image.height, settings.image.width)
    x_BTCYX = torch.randint(0, 256, size, dtype=torch.uint8, generator=draw)
    labels_B = torch.randint(settings.n_labels, (n,), generator=draw)
    return Batch(ImageBatch((x_BTCYX.to(device),)), labels_B.to(device))


def our_model(settings: ImageEncoderSettings, device: torch.device, fast: bool) -> Any:
    model: Any = build_model(settings, device=device)
    assert isinstance(model, ImageEncoder)
    if device.type == "cuda":
        set_compute_dtype(model, torch.bfloat16)
    if fast:
        model.stack.compile_blocks()  # type: ignore[operator]
    return model


def fixed_layout(settings: ImageEncoderSettings, n: int, device: torch.device) -> Layout:
    image = settings.image
    rows = image.rows_of(1, image.height, image.width)
    return Layout.of([rows] * n, device=device)


def our_step(settings: ImageEncoderSettings, batch: Batch, *, fast: bool) -> Work:
    """The optimiser step of `headway train`."""
    n, device = len(batch.labels_B), batch.labels_B.device
    model = our_model(settings, device, fast).train()
    layout = fixed_layout(settings, n, device)
    train = TrainSettings(optimizer="adamw", weight_decay=0.05, beta2=0.999, eps=1e-8)
    optimizer = build_optimizer(model, train, device=device, capturable=fast)

    def loss_of(model: Any, given: Batch) -> TaskLoss:
        x_ND, first = model.for_classes(given.images, layout)
        logs_BC = model.classes(x_ND, first).float().log_softmax(-1)
        loss = F.nll_loss(logs_BC, given.labels_B, reduction="sum")
        return TaskLoss(loss, loss.detach())

    step = Step(model, loss_of, optimizer, Distributed(device=device), use_cuda_graph=fast)

    def work() -> None:
        step.add(batch, n)
        step.finish(1e-4)

    return work


def their_model(settings: ImageEncoderSettings, device: torch.device) -> Any:
    """With the weights that ours begins with."""
    from transformers import ViTConfig, ViTForImageClassification

    labels = tuple(f"class {i}" for i in range(settings.n_labels))
    run = RunSettings(task="classify", model=settings, labels=labels)
    config, found = VIT.write(run)
    kind: Any = ViTConfig
    model: Any = ViTForImageClassification(kind(**config, attn_implementation="sdpa"))
    theirs = to_theirs(build_model(settings).state_dict(), found.pairs)
    names = model.state_dict().keys()
    renamed = {_new_name(name) if name not in names else name: t for name, t in theirs.items()}
    model.load_state_dict(renamed)
    return model.to(device)


def _new_name(name: str) -> str:
    """Files keep the names that transformers had before version 5."""
    for old, new in {
        "encoder.layer.": "layers.",
        "attention.attention.query": "attention.q_proj",
        "attention.attention.key": "attention.k_proj",
        "attention.attention.value": "attention.v_proj",
        "attention.output.dense": "attention.o_proj",
        "intermediate.dense": "mlp.fc1",
        "output.dense": "mlp.fc2",
    }.items():
        name = name.replace(old, new)
    return name


def pixels(batch: Batch) -> Tensor:
    return (batch.images.groups[0][:, 0].float() / 255.0 - 0.5) / 0.5


def their_step(
    settings: ImageEncoderSettings, batch: Batch, *, mode: dict[str, Any] | None, lasting: bool
) -> Work:
    """`mode`: None is without compiling; `lasting`: channels last."""
    device = batch.labels_B.device
    model = their_model(settings, device).train()
    if lasting:
        model = model.to(memory_format=torch.channels_last)
    fused = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=fused)

    def loss_of(x_BTCYX: Tensor, labels_B: Tensor) -> Tensor:
        x_BCYX = (x_BTCYX[:, 0].float() / 255.0 - 0.5) / 0.5
        if lasting:
            x_BCYX = x_BCYX.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits_BC = model(pixel_values=x_BCYX).logits
        return F.cross_entropy(logits_BC.float(), labels_B)

    call: Any = loss_of if mode is None else torch.compile(loss_of, **mode)

    def work() -> Tensor:
        loss = call(batch.images.groups[0], batch.labels_B)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return work


@torch.no_grad()
def our_pass(settings: ImageEncoderSettings, batch: Batch, *, fast: bool) -> Work:
    device = batch.labels_B.device
    model = our_model(settings, device, fast).eval()
    if device.type == "cuda":
        model = model.bfloat16()
    layout = fixed_layout(settings, len(batch.labels_B), device)

    @torch.no_grad()
    def step(given: Batch) -> Tensor:
        x_ND, first = model.for_classes(given.images, layout)
        return model.classes(x_ND, first)

    play: Any = GraphedStep(step, batch).replay if fast else lambda: step(batch)
    return play


def their_pass(
    settings: ImageEncoderSettings, batch: Batch, *, mode: dict[str, Any] | None
) -> Work:
    device = batch.labels_B.device
    model = their_model(settings, device).eval()
    if device.type == "cuda":
        model = model.bfloat16()

    def scores(x_BTCYX: Tensor) -> Tensor:
        x_BCYX = (x_BTCYX[:, 0].float() / 255.0 - 0.5) / 0.5
        return model(pixel_values=x_BCYX.to(model.dtype)).logits

    call: Any = scores if mode is None else torch.compile(scores, **mode)

    @torch.no_grad()
    def work() -> Tensor:
        return call(batch.images.groups[0])

    return work


def flops(settings: ImageEncoderSettings) -> float:
    """Of a forward pass of one image: products of weights, and attention."""
    rows = settings.image.rows_of(1, settings.image.height, settings.image.width)
    d = settings.d_model
    weights = settings.n_layers * (4 * d * d + 2 * d * settings.d_ff)
    return 2.0 * rows * weights + 4.0 * settings.n_layers * d * rows * rows


def measure(
    builders: dict[str, Callable[[], Work]], device: torch.device, rounds: int, inner: int
) -> dict[str, dict[str, Any]]:
    """Seconds of one call of each, all of them ready before any is timed."""
    works: dict[str, Work] = {}
    table: dict[str, dict[str, Any]] = {}
    for name, build in builders.items():
        gc.collect()
        start = time.perf_counter()
        try:
            work = build()
            for _ in range(3):
                work()
        except Exception as error:  # what does not run here is reported, not hidden
            print(f"{name}: failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
            table[name] = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
            continue
        works[name] = lambda work=work: [work() for _ in range(inner)]
        table[name] = {"first_s": time.perf_counter() - start}
        print(f"{name}: ready after {table[name]['first_s']:.1f} s", flush=True)
    for name, time_s in alternating(works, device, rounds).items():
        table[name]["seconds"] = time_s / inner
    return table


def difference(settings: ImageEncoderSettings, device: torch.device) -> float:
    """Of the scores of both in fp32, to see that they compute the same thing."""
    few = example(settings, 4, device)
    mine: Any = build_model(settings, device=device).eval()
    with torch.no_grad():
        given, layout = mine.front.collate(list(few.images.groups[0].cpu()), device)
        scores_BC = mine.classes(mine(given, layout), layout)
        theirs_BC = their_model(settings, device).eval()(pixel_values=pixels(few)).logits
    return float((scores_BC - theirs_BC).norm() / theirs_BC.norm())


def report(table: dict[str, dict[str, Any]], n: int, work: float, peak: float) -> float | None:
    """Print a line each; ours over the best of theirs."""
    for name, found in table.items():
        if "seconds" in found:
            rate = n / found["seconds"]
            found |= {"images_per_s": rate, "share_of_matmul_peak": rate * work / peak / 1e12}
            share = found["share_of_matmul_peak"]
            print(f"{name:44s} {rate:9,.0f} images/s {share:6.1%} of peak")
    rates = {name: found.get("images_per_s", 0.0) for name, found in table.items()}
    ours = max((rate for name, rate in rates.items() if name.startswith("headway")), default=0.0)
    theirs = max((rate for name, rate in rates.items() if name.startswith("HF")), default=0.0)
    if not ours or not theirs:
        return None
    print(f"headway is {ours / theirs:.2f} times as fast as the best of HF")
    return ours / theirs


def tiny(settings: ImageEncoderSettings) -> ImageEncoderSettings:
    image = ImageSettings(height=32, width=32, patch=8)
    return replace(settings, d_model=64, n_layers=2, n_heads=2, d_ff=128, n_labels=10,
                   image=image)  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", type=torch.device, default=pick_device())
    parser.add_argument("--images", type=int, default=128, help="of a training step")
    parser.add_argument("--read", type=int, default=256, help="images at a time in inference")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--inner", type=int, default=5, help="calls a round")
    parser.add_argument("--modes", nargs="*", default=["default", "reduce-overhead"],
                        choices=list(MODES), help="max-autotune takes minutes more")  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the code")
    args = parser.parse_args(words)
    device, settings = args.device, ImageEncoderSettings()
    if args.tiny:
        settings, args.images, args.read, args.rounds, args.inner = tiny(settings), 4, 4, 2, 1
    fast = device.type == "cuda"
    modes: dict[str, Any] = {name: MODES[name] for name in args.modes} if fast else {"eager": None}
    torch.set_float32_matmul_precision("high")
    batch, other = (example(settings, n, device) for n in (args.images, args.read))
    training = {"headway": lambda: our_step(settings, batch, fast=fast)} | {
        f"HF {name}{', channels last' if lasting else ''}": (
            lambda mode=mode, lasting=lasting: their_step(
                settings, batch, mode=mode, lasting=lasting
            )
        )
        for name, mode in modes.items()
        for lasting in ((False, True) if name == "default" else (False,))
    }
    reading = {"headway": lambda: our_pass(settings, other, fast=fast)} | {
        f"HF {name}": lambda mode=mode: their_pass(settings, other, mode=mode)
        for name, mode in modes.items()
    }
    ceiling = peaks(device)
    results: dict[str, Any] = {"peaks": ceiling, "difference": difference(settings, device)}
    print(f"scores differ by {results['difference']:.1e} (relative, fp32)")
    for what, builders, n, passes in (
        ("training", training, args.images, 3.0), ("inference", reading, args.read, 1.0)
    ):  # fmt: skip
        print(f"{what}, {n} images at a time", flush=True)
        table = measure(builders, device, args.rounds, args.inner)
        ratio = report(table, n, passes * flops(settings), ceiling["tflops"])
        results[what] = {"image": n, "systems": table, "ratio_to_best": ratio}
        torch.compiler.reset()
    print(save(f"vit-speed{'-tiny' if args.tiny else ''}", device, results))


if __name__ == "__main__":
    main()
