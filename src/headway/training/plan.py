"""What the user left open, chosen from the data, the device and the time there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from headway.config.asked import nested
from headway.config.folder import IMPORTED, load_run, run_folder
from headway.config.load import model_settings
from headway.config.model import ModelSettings, Seq2SeqSettings
from headway.config.presets import PRESETS
from headway.config.run import RunSettings
from headway.config.train import TrainSettings, known
from headway.data.batches import POOL
from headway.data.store import Prepared
from headway.errors import ConfigError
from headway.models.summary import activations, count, outline
from headway.tasks.distil import student_model
from headway.tasks.specs import spec_of
from headway.training.budget import EVALUATIONS, Decision
from headway.training.optim import check_optimizer
from headway.training.start import check_task, model_from

PAPER = {
    "transformer-base": {"batch_tokens": 25_000, "steps": 100_000, "average": 5},
    "transformer-big": {"batch_tokens": 25_000, "steps": 300_000, "average": 20, "keep": 20},
}
"""What belongs to a preset beside its shape."""

EPOCHS = ((20_000, 60), (100_000, 40), (1_000_000, 20))
"""Training pairs up to so many, and epochs for them; 10 beyond."""

MEMORY_SHARE = 0.7
"""Of the device's free memory, for what grows with the batch."""


FINE_TUNING: dict[str, Any] = {
    "optimizer": "adamw", "schedule": "linear", "lr": 3e-4, "clip": 1.0, "weight_decay": 0.01,
}  # fmt: skip
PUBLISHED_RATE = 1e-4, 0.0384
"""The most at which imported weights are trained further, and what is divided by the model's width:
5e-5 for BERT-base. More makes them forget what they know."""


def fine_tuning_rate(run: str, model: ModelSettings) -> float:
    """The peak rate for weights that come from a run, ours or imported."""
    if not (run_folder(run) / IMPORTED).is_file():
        return float(FINE_TUNING["lr"])
    most, at_width = PUBLISHED_RATE
    return min(most, at_width / model.d_model)


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


def resolve(settings: RunSettings, prepared: Prepared, device: torch.device) -> RunSettings:
    """Everything but the number of steps of a budget."""
    n_pairs = len(prepared.train)
    model, chosen = choose_model(settings, prepared, n_pairs, device)
    settings = replace(settings, model=model)
    train = settings.train
    values: dict[str, Any] = {"metric": spec_of(settings).scores[0]}
    values |= PAPER.get(str(settings.asked.get("model.preset")), {})
    if chosen:  # then its training is ours to choose too
        values |= SMALL_DATA_TRAINING
    elif settings.start.run:
        values |= FINE_TUNING | {"lr": fine_tuning_rate(settings.start.run, model)}
    values = {key: value for key, value in values.items() if f"train.{key}" not in settings.asked}
    train = replace(train, **values)
    check_optimizer(train)
    if train.batch_tokens is None:
        train = replace(train, batch_tokens=batch_tokens(n_pairs, device))
    if train.micro_tokens is None:
        train = replace(train, micro_tokens=micro_tokens(model, known(train.batch_tokens), device))
    if train.steps is None:
        per_epoch = max(1, round(target_tokens(prepared) / known(train.batch_tokens)))
        epochs = next((e for most, e in EPOCHS if n_pairs <= most), 10)
        train = replace(train, steps=max(200, epochs * per_epoch))
    return replace(settings, train=with_intervals(with_precision(train, device), EVALUATIONS))


SMALL_DATA_MODEL = {"wiring": "pre", "dropout": 0.1}
SMALL_DATA_TRAINING = {"optimizer": "muon", "schedule": "linear", "lr": 8e-3, "clip": 1.0}
"""Strong defaults where nobody asked for the paper's, found by trying (docs/results.md): after 500
steps they are where the paper's optimiser and wiring are after several thousand."""


def with_intervals(train: TrainSettings, evaluations: int) -> TrainSettings:
    eval_every = train.eval_every or max(1, -(-known(train.steps) // evaluations))
    return replace(train, eval_every=eval_every, save_every=train.save_every or eval_every)


def with_precision(train: TrainSettings, device: torch.device) -> TrainSettings:
    """And with the order of examples that suits the device."""
    if train.pool is None:
        train = replace(train, pool=POOL if device.type == "cpu" else 1)
    if train.precision != "auto":
        return train
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return replace(train, precision="bf16" if fast else "fp32")


def choose_model(
    settings: RunSettings, prepared: Prepared, n_pairs: int, device: torch.device
) -> tuple[ModelSettings, bool]:
    """The model with the tokenizer's vocabulary, and whether it was chosen here."""
    changes = settings.asked.under("model")
    if name := settings.distil.teacher or settings.start.run:
        old = load_run(run_folder(name)).model
        assert old is not None
        if settings.distil.teacher:
            return student_model(old, settings), False
        check_task(name, settings.task, old)
        return model_from(old, {}, changes, name), False
    vocab = prepared.vocab
    sizes = {"vocab_size": vocab.target.vocab_size, "source_vocab_size": vocab.source.vocab_size}
    for name, size in sizes.items():
        if changes.get(name, size) != size:
            raise ConfigError(
                f"model.{name} follows from the tokenizer here. Set tokenizer.vocab_size instead."
            )
    chosen = settings.model is None
    if chosen:
        changes = {"preset": preset_for(n_pairs, device), **SMALL_DATA_MODEL, **changes}
    changes["vocab_size"] = vocab.target.vocab_size
    if not vocab.joint:
        changes["source_vocab_size"] = vocab.source.vocab_size
        changes.setdefault("tie", "target-softmax")
    need = settings.data.max_len + 1 + settings.decode.extra_len
    preset = PRESETS.get(str(changes.get("preset")))
    if "max_len" not in changes and preset and preset.settings.max_len < need:
        changes["max_len"] = need
    model = model_settings(nested(changes))
    if not isinstance(model, Seq2SeqSettings):
        raise ConfigError(
            f"translation needs a model of the seq2seq family; "
            f"{changes.get('preset') or changes.get('family')} is of another. "
            "Try model.preset=transformer-base."
        )
    return model, chosen


def preset_for(n_pairs: int, device: torch.device) -> str:
    if device.type == "cpu":
        return "transformer-tiny" if n_pairs < 200_000 else "transformer-small"
    if n_pairs < 60_000:
        return "transformer-tiny"
    return "transformer-iwslt" if n_pairs < 1_000_000 else "transformer-base"


def batch_tokens(n_pairs: int, device: torch.device) -> int:
    if device.type == "cpu":
        return 2048 if n_pairs < 100_000 else 4096
    return 8192 if n_pairs < 1_000_000 else 25_000


def target_tokens(prepared: Prepared) -> int:
    """Of one epoch, end tokens included."""
    lengths = prepared.train.target.lengths
    return int(lengths.sum()) + len(lengths)


def micro_tokens(model: ModelSettings, batch_tokens: int, device: torch.device) -> int:
    """As many as the device holds; on a CPU as many as its caches like."""
    if device.type == "cpu":
        return min(batch_tokens, 2048)
    free, _ = torch.cuda.mem_get_info(device)
    tokens = batch_tokens
    while tokens > 512 and _bytes(model, tokens) > MEMORY_SHARE * free:
        tokens = -(-tokens // 2)
    return tokens


def _bytes(model: ModelSettings, tokens: int) -> int:
    shape = outline(model)
    return 16 * count(shape) + activations(shape, model, tokens).fused_bytes


def memory_needed(settings: RunSettings) -> int:
    """Weights, gradients, Adam's moments and what a micro-batch keeps."""
    assert settings.model is not None
    width = 2 if settings.train.precision == "bf16" else 4
    shape = outline(settings.model)
    kept = activations(shape, settings.model, known(settings.train.micro_tokens)).fused_bytes
    return 16 * count(shape) + kept * width // 4


def work_seconds(settings: RunSettings, device: torch.device) -> float:
    """A rough guess of the time in matrix products, from what such a device usually reaches."""
    assert settings.model is not None
    per_token = 6.0 * count(outline(settings.model))  # forward and backward
    tokens = known(settings.train.steps) * known(settings.train.batch_tokens)
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


def with_steps(settings: RunSettings, first: Decision) -> RunSettings:
    """The settings of a run whose budget begins with this plan. The schedule of the learning rate
    is that of so many steps, gone through faster or slower as the plan changes."""
    train = replace(settings.train, steps=first.steps)
    if "train.eval_every" not in settings.asked:
        train = replace(
            train, eval_every=first.until, save_every=settings.asked.get("train.save_every")
        )
    return replace(settings, train=with_intervals(train, EVALUATIONS))


FEW_STEPS = 300
"""With fewer hardly anything is learned: where a budget has no time for so many, and nobody chose
them, steps become smaller, then the model."""

SMALL_BATCH = 512
"""Target tokens below which a step is mostly overhead."""


def smaller_steps(settings: RunSettings, steps: int) -> RunSettings:
    """Where only so many steps fit: smaller ones, and a smaller model where those are still too
    many, if they are ours to choose."""
    train, model = settings.train, settings.model
    assert model is not None
    if steps >= FEW_STEPS:
        return settings
    expected = float(max(1, steps))
    if "train.batch_tokens" not in settings.asked:
        tokens = known(train.batch_tokens)
        while tokens > SMALL_BATCH and expected < FEW_STEPS:
            tokens, expected = max(SMALL_BATCH, tokens // 2), 2 * expected
        train = replace(
            train, batch_tokens=tokens, micro_tokens=min(known(train.micro_tokens), tokens)
        )
    is_ours = not any(key.startswith("model.") for key in settings.asked)
    if is_ours and not settings.start.run and not settings.distil.teacher:
        while model.n_layers > 2 and expected < FEW_STEPS:
            model = replace(model, n_layers=max(2, model.n_layers // 2))
            expected *= 1.5
    return replace(settings, train=train, model=model)
