"""How time and memory of one step grow with the length of a sequence, body by body."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from benchmarks import bodies_speed, machine
from headway.models.build import build_model
from headway.models.parts.front import set_compute_dtype
from headway.nn.attention import attend
from headway.nn.layout import Layout
from headway.settings.load import model_settings

LENGTHS = tuple(64 << n for n in range(8))
WRITTEN_OUT = "transformer, written out"
ARMS = ("transformer", WRITTEN_OUT, "lstm", "gru", "convolution", "sha-rnn")
"""Written out: all weights of attention are in memory at once, as in the paper; else they are made
a block at a time and forgotten: time still grows by the square, memory by the length."""

ENOUGH_S = 4.0
"""Of measuring one length."""


def of_body(
    arm: str,
    model: Mapping[str, Any],
    lengths: Sequence[int],
    rounds: int,
    device: torch.device,
) -> dict[str, dict[str, float]]:
    """Seconds and bytes of a step on one sequence, by its length."""
    plain = {"positions": "rotary", "attention_dropout": 0.0} if "n_heads" in model else {}
    settings = model_settings(
        {"family": "decoder", "block_layout": "pre", "max_len": max(lengths), "dropout": 0.0,
         **model, **plain}
    )  # fmt: skip
    found = {}
    with written_out() if arm == WRITTEN_OUT else nullcontext():
        for n_tokens in lengths:
            found[str(n_tokens)] = one_length(settings, n_tokens, rounds, device)
    return found


@contextmanager
def written_out() -> Iterator[None]:
    """Attention by its definition, whatever else could do it."""
    others = dict(attend.BACK_ENDS)
    attend.BACK_ENDS.clear()
    attend.BACK_ENDS["explicit"] = others["explicit"]
    try:
        yield
    finally:
        attend.BACK_ENDS.clear()
        attend.BACK_ENDS.update(others)


def one_length(settings: Any, n_tokens: int, rounds: int, device: torch.device) -> dict[str, float]:
    """The median time of a step, and its memory beside the weights: the most that torch held on a
    GPU; on a CPU what is kept for the way back, counted, since a process does not tell."""
    torch.manual_seed(0)
    model = build_model(settings, device=device)
    if device.type == "cuda":
        set_compute_dtype(model, torch.bfloat16)  # as training does
    tokens_N = torch.randint(0, settings.vocab_size, (n_tokens,), device=device)

    def step() -> None:
        x_ND = model(tokens_N, Layout.of([n_tokens], device))
        x_ND.float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    step()
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        used = torch.cuda.max_memory_allocated() - before
    else:
        used = bodies_speed.kept_by(step, model)
    times: list[float] = []
    while len(times) < rounds and (len(times) < 2 or sum(times) < ENOUGH_S):
        machine.synchronize(device)
        begun = time.perf_counter()
        step()
        machine.synchronize(device)
        times.append(time.perf_counter() - begun)
    return {"seconds": statistics.median(times), "bytes": float(used)}
