"""What a run takes in time and memory, and how it is fitted into the time there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from headway.errors import ConfigError
from headway.models.summary import activations, count, outline
from headway.settings.run import Resolved
from headway.training.budget import Decision


def seconds(text: str) -> float:
    """`90s`, `10m`, `2h`, `1h30m` as seconds."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text.strip())
    total = sum(
        int(part or 0) * unit
        for part, unit in zip(found.groups(), (3600, 60, 1), strict=True)
    ) if found else 0  # fmt: skip
    if not total:
        raise ConfigError(f"--budget {text!r} is no length of time. Examples: 90s, 10m, 2h, 1h30m.")
    return float(total)


def memory_needed(settings: Resolved) -> int:
    """Weights, gradients, Adam's moments and what a micro-batch keeps."""
    width = 2 if settings.train.precision == "bf16" else 4
    shape = outline(settings.model)
    kept = activations(shape, settings.model, settings.train.micro_tokens).fused_bytes
    return 16 * count(shape) + kept * width // 4


def work_seconds(settings: Resolved, device: torch.device) -> float:
    """A rough guess of the time in matrix products, from what such a device usually reaches."""
    per_token = 6.0 * count(outline(settings.model))  # forward and backward
    tokens = settings.train.steps * settings.train.batch_tokens
    return per_token * tokens / (2e14 if device.type == "cuda" else 1e11)


@dataclass(frozen=True)
class Timing:
    """Measured on a throw-away copy of the model."""

    step_s: float
    example_s: float
    """Of an evaluation."""

    tokens_per_s: float
    examples: int = 0
    """Of an evaluation, as it is planned."""

    long: bool = False
    """Whether it took so long to measure that it should not be done again."""

    @property
    def evaluation_s(self) -> float:
        return self.examples * self.example_s


LONG = 4.0
"""A trial that took so many times what it should have has been enough of one."""


def step_time(
    run_parts: Callable[[Callable[[], bool]], tuple[int, int]], finish: Callable[[], None],
    for_s: float, now: Callable[[], float], agree: Callable[[bool], bool] = bool,
    *, prepares: bool = False,
) -> tuple[float, float]:  # fmt: skip
    """Seconds a step, and tokens a second: of steps for so long, after the first one, in which
    things are allocated. `run_parts` computes the parts of a step until it hears that it is late,
    and says how many tokens these had, and how many all: a long step is judged by some of its
    parts. The first stands for itself where it took very long, unless it `prepares` the others, as
    where kernels are compiled and steps recorded. Ranks that step together have to `agree` on all
    of it."""

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
    """The settings of a run whose budget begins with this plan. The schedule of the learning rate
    is that of so many steps, gone through faster or slower as the plan changes."""
    train = replace(settings.train, steps=first.steps)
    why = {"train.steps": f"what fits into {settings.asked.get('budget', 'the budget')}"}
    if "train.eval_every" not in settings.asked:
        save_every = settings.asked.get("train.save_every") or first.until
        train = replace(train, eval_every=first.until, save_every=save_every)
        why["train.eval_every"] = "as often as the budget has time for"
    return replace(settings, train=train, why={**settings.why, **why})


FEW_STEPS = 300
"""With fewer hardly anything is learned: where a budget has no time for so many, and nobody chose
them, steps become smaller, then the model."""

SMALL_BATCH = 512
"""Target tokens below which a step is mostly overhead."""


def smaller_steps(settings: Resolved, steps: int) -> Resolved:
    """Where only so many steps fit: smaller ones, and a smaller model where those are still too
    many, if they are ours to choose."""
    train, model, why = settings.train, settings.model, dict(settings.why)
    if steps >= FEW_STEPS:
        return settings
    expected = float(max(1, steps))
    little = "so that the budget has time for more steps"
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
