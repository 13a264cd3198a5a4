"""Estimates of the time and memory of a run, and settings that fit into a time budget."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from headway.errors import ConfigError, Option
from headway.models.summary import activations, count_parameters, meta_model
from headway.settings.run import Resolved
from headway.training.budget import Decision


def seconds(text: str) -> float:
    """Convert a duration such as `90s`, `10m`, `2h` or `1h30m` to seconds."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text.strip())
    total = sum(
        int(part or 0) * unit
        for part, unit in zip(found.groups(), (3600, 60, 1), strict=True)
    ) if found else 0  # fmt: skip
    if not total:
        raise ConfigError(
            f"{Option('budget', text)} is not a duration. Examples: 90s, 10m, 2h, 1h30m."
        )
    return float(total)


def memory_needed(settings: Resolved) -> int:
    """Return the estimated memory in bytes for weights, gradients, Adam's moments, and the
    activations of a micro-batch."""
    width = 2 if settings.train.precision == "bf16" else 4
    shape = meta_model(settings.model)
    kept = activations(shape, settings.model, settings.train.micro_tokens).fused_bytes
    return 16 * count_parameters(shape) + kept * width // 4


def work_seconds(settings: Resolved, device: torch.device) -> float:
    """Return a rough estimate of the training time in seconds, from the operations of the matrix
    products and the usual speed of this kind of device."""
    per_token = 6.0 * count_parameters(meta_model(settings.model))  # forward and backward
    tokens = settings.train.steps * settings.train.batch_tokens
    return per_token * tokens / (2e14 if device.type == "cuda" else 1e11)


@dataclass(frozen=True)
class Timing:
    """Durations of training and evaluation, measured on a temporary copy of the model."""

    step_s: float
    example_s: float
    """Number of seconds per example in an evaluation."""

    tokens_per_s: float
    examples: int = 0
    """Planned number of examples of an evaluation."""

    long: bool = False
    """Whether the measurement took so long that it must not be repeated."""

    @property
    def evaluation_s(self) -> float:
        return self.examples * self.example_s


LONG = 4.0
"""Maximum duration of a trial, as a multiple of its planned time. A longer trial is neither
extended nor repeated."""


def step_time(
    run_parts: Callable[[Callable[[], bool]], tuple[int, int]], finish: Callable[[], None],
    for_s: float, now: Callable[[], float], agree: Callable[[bool], bool] = bool,
    *, prepares: bool = False,
) -> tuple[float, float]:  # fmt: skip
    """Measure steps for about `for_s` seconds. Return the number of seconds per step and of tokens
    per second.

    `run_parts` computes the micro-batches of a step until its argument, a function, returns true.
    It returns the number of tokens in the computed micro-batches and in the whole step, so that the
    duration of a long step can be extrapolated. The first step allocates memory, so it counts only
    if it took very long. With `prepares` it never counts, because it compiles kernels or captures
    CUDA graphs. `agree` makes each decision the same on all ranks.
    """

    def step() -> tuple[float, int]:
        start = now()
        done, tokens = run_parts(lambda: agree(now() - start > for_s))
        parts_s = now() - start
        finish()
        return parts_s * tokens / done + now() - start - parts_s, tokens

    start = now()
    made = [step()]
    if prepares or not agree(now() - start > LONG * for_s):
        start, made = now(), []
        while agree(not made or now() - start < for_s):
            made.append(step())
    seconds, tokens = (sum(column) for column in zip(*made, strict=True))
    return max(seconds, 1e-9) / len(made), tokens / max(seconds, 1e-9)


def with_steps(settings: Resolved, first: Decision) -> Resolved:
    """Return the settings of a run with a time budget, given its first plan.

    The plan sets the length of the learning-rate schedule. If the plan changes later, the schedule
    progresses faster or slower.
    """
    train = replace(settings.train, steps=first.steps)
    why = {"train.steps": f"what fits into {settings.asked.get('budget', 'the budget')}"}
    if "train.eval_every" not in settings.asked:
        save_every = settings.asked.get("train.save_every") or first.until
        train = replace(train, eval_every=first.until, save_every=save_every)
        why["train.eval_every"] = "as often as the budget allows"
    return replace(settings, train=train, why={**settings.why, **why})


FEW_STEPS = 300
"""Number of steps below which runs hardly learn anything. If a budget is too short for that many,
the batch is made smaller, then the model, unless the user set their sizes."""

SMALL_BATCH = 512
"""Number of target tokens per step below which the overhead of a step dominates its duration."""


def smaller_steps(settings: Resolved, steps: int) -> Resolved:
    """Return settings with smaller steps, and if necessary a smaller model, if fewer than
    `FEW_STEPS` steps fit into the budget. Values that the user set are unchanged."""
    train, model, why = settings.train, settings.model, dict(settings.why)
    if steps >= FEW_STEPS:
        return settings
    expected = float(max(1, steps))
    little = "to fit more steps into the budget"
    if "train.batch_tokens" not in settings.asked:
        tokens = train.batch_tokens
        while tokens > SMALL_BATCH and expected < FEW_STEPS:
            tokens, expected = max(SMALL_BATCH, tokens // 2), 2 * expected
        if tokens != train.batch_tokens:
            why |= {"train.batch_tokens": little, "train.micro_tokens": little}
        train = replace(train, batch_tokens=tokens, micro_tokens=min(train.micro_tokens, tokens))
    is_ours = not any(key.startswith("model.") for key in settings.asked)
    if is_ours and not settings.start.run and not settings.distil.teacher:
        while model.n_layers > 2 and expected < FEW_STEPS:
            model = replace(model, n_layers=max(2, model.n_layers // 2))
            why["model.n_layers"] = little
            expected *= 1.5
    return replace(settings, train=train, model=model, why=why)
