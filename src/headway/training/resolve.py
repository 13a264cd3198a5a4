"""Choice of all settings that the user left open, by the same rules for all tasks.

`resolve` is a pure function of facts that are collected beforehand. Settings of the user take
precedence over the table of defaults (`settings/defaults.toml`). Each chosen value is stored with
its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from headway.errors import ConfigError
from headway.models.summary import activations, count_parameters, meta_model
from headway.settings.body import INSTEAD
from headway.settings.defaults import propose
from headway.settings.effects import ignored_by
from headway.settings.facts import (
    ChosenSetting,
    ChosenSettings,
    DatasetStats,
    DeviceInfo,
    Proposal,
)
from headway.settings.load import model_settings
from headway.settings.model import ModelSettings, family_of
from headway.settings.overrides import Overrides, nest
from headway.settings.presets import PRESETS, TESTS
from headway.settings.run import Resolved, RunSettings, check_effect, overrides_of
from headway.settings.task_rows import spec_of
from headway.settings.train import COUNTS, ResolvedTrain, TrainSettings
from headway.settings.warm_start import (
    check_task,
    gets_decoder,
    model_from,
    vocab_size_of,
    with_decoder,
)
from headway.specs.metrics import check_metric
from headway.tasks.distil import student_model
from headway.tasks.modality import decided, decided_for
from headway.tasks.task import make_task
from headway.training.budget import EVALUATIONS

MEMORY_SHARE = 0.7
"""Fraction of a device's free memory that a batch may use, including activations and logits. The
rest allows for fragmentation and for errors of the estimate."""

CPU_TOKENS = 2048
"""Maximum number of target tokens of a micro-batch on a CPU. About this many fit into its
caches."""


def resolve_run(settings: RunSettings, prepared: Any, device: torch.device) -> Resolved:
    """Return all settings of a run on prepared data."""
    settings = decided(settings)
    task, place = make_task(spec_of(settings)), device_info(device)
    facts = task.facts(settings, prepared)
    found = resolve(settings, facts, place)
    if settings.train.epochs is not None:
        # The batches are known now, so choose again the settings that depend on the number of
        # steps.
        n = len(task.objective(found, prepared).epoch(0))
        found = resolve(settings, replace(facts, epoch_steps=n), place)
    task.check(found, prepared)
    return found


def device_info(device: torch.device) -> DeviceInfo:
    if device.type != "cuda":
        return DeviceInfo(type=device.type)
    free, _ = torch.cuda.mem_get_info(device)
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return DeviceInfo(type=device.type, free_bytes=free, bf16=bf16)


def resolve(settings: RunSettings, facts: DatasetStats, device: DeviceInfo) -> Resolved:
    """Choose all settings that the user left open. In a run with a time budget, the number of steps
    remains open."""
    settings = replace(settings, asked=overrides_of(settings))
    if facts.front is not None:
        settings = decided_for(settings, facts.front)
    proposal = propose(spec_of(settings), settings, facts, device)
    check_metric(settings.train.metric, settings.task, proposal.metrics)
    model, of_model = choose_model(settings, facts, proposal)
    values, why = with_choices(settings, proposal.others)
    check_effect(
        settings, [spec_of(settings)], body=model.body, optimizer=values["train"].optimizer,
        chosen={} if model.is_counted else {"train.weight_decay": values["train"].weight_decay},
    )  # fmt: skip
    train, of_training = choose_training(values["train"], facts, device, proposal, model)
    values |= {
        "task": settings.task, "asked": settings.asked, "fingerprint": settings.fingerprint,
        "labels": facts.labels or settings.labels, "model": model, "train": train, "files": None,
        "why": {**of_model, **why, **of_training},
    }  # fmt: skip
    return Resolved(**values)


def with_choices(
    settings: RunSettings, choices: ChosenSettings
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return all sections of the settings with values chosen for open settings, and the reason for
    each choice."""
    values = {one.name: getattr(settings, one.name) for one in fields(settings)}
    open_ = {key: choice for key, choice in choices.items() if is_open(settings, key)}
    for key, choice in open_.items():
        section, _, name = key.partition(".")
        values[section] = replace(values[section], **{name: choice.value})
    return values, {key: choice.reason for key, choice in open_.items()}


STAYS_OPEN = {**dict.fromkeys((*COUNTS, "metric")), "precision": "auto"}
"""Values of training settings that mean "choose automatically". A setting with this value is open
even if the user gave it."""


def is_open(settings: RunSettings, key: str) -> bool:
    """Return whether the user left a setting open."""
    name = key.removeprefix("train.")
    stays = key != name and name in STAYS_OPEN
    return key not in settings.asked or (
        stays and getattr(settings.train, name) == STAYS_OPEN[name]
    )


def choose_model(
    settings: RunSettings, facts: DatasetStats, proposal: Proposal
) -> tuple[ModelSettings, dict[str, str]]:
    """Return the model settings, and a reason for each. They come from the start run, from the
    user, or from the task's defaults."""
    asked = settings.asked.section("model")
    begun = facts.parent
    if begun is not None and settings.distil.teacher:
        return student_model(begun, settings), {"model.family": f"the model of {begun.name}"}
    chosen, sizes = proposal.model, _vocabulary(facts)
    needs = _bare(chosen)
    if begun is not None:
        check_task(begun.name, settings, begun.model)
        if facts.vocab_size:
            needs["vocab_size"] = max(vocab_size_of(begun.model), facts.vocab_size)
        reasons = {"model.family": f"the model of {begun.name}"}
        reasons |= _reasons(chosen, settings)
        grown = None
        if gets_decoder(begun.model, proposal.family):
            _check_fresh(settings)
            grown = with_decoder(begun.model, begun.name, proposal.positions)
            reasons["model.family"] = f"the encoder of {begun.name}, and a decoder"
            reasons["model.decoder.n_layers"] = "half the encoder's layers, at least two"
        model = model_from(begun.model, needs, asked, begun.name, grown)
        return model, _without_overrides(reasons, settings)
    for name in ("vocab_size", "source_vocab_size"):
        size = sizes.get(name, facts.vocab_size)
        if size and asked.get(name, size) != size:
            raise ConfigError(
                f"model.{name}={asked[name]} does not match the tokenizer, which has {size} "
                f"tokens. Remove model.{name}, or set tokenizer.vocab_size instead."
            )
    if settings.model is not None:
        families = spec_of(settings.task).all_families
        if family_of(settings.model) not in families:
            named = asked.get("preset") or asked.get("family")
            raise ConfigError(
                f"the task {settings.task} needs a model of the {' or '.join(families)} family; "
                f"{named} belongs to another family.{_suggestion(families)}"
            )
    if asked.get("body", "transformer") != "transformer":
        chosen = _for_body(chosen, asked)
    changes = {**_bare(chosen), **asked, **sizes}
    reasons = _reasons(chosen, settings)
    reasons |= {f"model.{name}": "vocabulary size of the tokenizer" for name in sizes}
    preset = PRESETS.get(str(changes.get("preset")))
    room = preset.settings.max_len if preset else 0
    if "max_len" not in changes and room < proposal.positions:
        changes["max_len"] = proposal.positions
        enough = f"long enough for {proposal.positions:,} tokens"
        reasons["model.max_len"] = f"{enough}{proposal.row_of('positions')}"
    model = model_settings(nest(changes))
    if preset and "model.preset" in reasons:
        why = f"{changes['preset']}, {reasons.pop('model.preset')}"
        shape = Overrides.from_settings(model, "model")
        reasons = {key: why for key in shape if key not in settings.asked} | reasons
    return model, reasons


def _for_body(chosen: ChosenSettings, asked: Mapping[str, Any]) -> ChosenSettings:
    """Adapt the choices of a task to a model that is not a Transformer: drop settings that it
    ignores, and use its own defaults for others."""
    unread, body = ignored_by(asked), asked["body"]
    kept = {}
    for key, choice in chosen.items():
        name = key.removeprefix("model.")
        if name in INSTEAD and not (name == "pooling" and choice.value == "last"):
            choice = ChosenSetting(INSTEAD[name], f"body={body}")
        if name not in unread:
            kept[key] = choice
    return kept


def _check_fresh(settings: RunSettings) -> None:
    """Raise an error for settings with which a newly added decoder would hardly learn."""
    why = "the decoder added to the encoder of {} is untrained, and would hardly learn with {}"
    if settings.lora.rank:
        raise ConfigError(
            why.format(settings.start.run, f"lora.rank={settings.lora.rank}")
            + ". Remove lora.rank. To train fewer weights, freeze layers of the encoder with "
            "start.freeze."
        )
    if settings.start.freeze < 0:
        raise ConfigError(
            why.format(settings.start.run, "start.freeze=-1")
            + ". To freeze only the encoder, set start.freeze to the number of its layers."
        )


def _suggestion(families: Sequence[str]) -> str:
    """Return a hint for the error about a model of the wrong family, which suggests a preset of the
    task's family."""
    fits = (
        name for name, one in PRESETS.items()
        if family_of(one.settings) == families[0] and one.source != TESTS
    )  # fmt: skip
    name = next(fits, "")
    return f" Try model.preset={name}." if name else ""


def _without_overrides(reasons: dict[str, str], settings: RunSettings) -> dict[str, str]:
    return {key: why for key, why in reasons.items() if key not in settings.asked}


def _bare(choices: ChosenSettings) -> dict[str, object]:
    """Return the values of model settings by their names without the section `model`."""
    return {key.removeprefix("model."): choice.value for key, choice in choices.items()}


def _reasons(choices: ChosenSettings, settings: RunSettings) -> dict[str, str]:
    return {key: choice.reason for key, choice in choices.items() if key not in settings.asked}


def _vocabulary(facts: DatasetStats) -> dict[str, int]:
    found = {"vocab_size": facts.vocab_size, "source_vocab_size": facts.source_vocab_size}
    return {name: size for name, size in found.items() if size}


def choose_training(
    train: TrainSettings, facts: DatasetStats, device: DeviceInfo, proposal: Proposal,
    model: ModelSettings,
) -> tuple[ResolvedTrain, dict[str, str]]:  # fmt: skip
    """Return the training settings and the reasons for chosen values.

    Batches, steps and intervals are chosen in this order, because each choice depends on those
    before it.
    """
    amount, why = proposal.amount, dict[str, str]()

    def choose(name: str, value: object, reason: str) -> None:
        nonlocal train
        changed: Any = {name: value}
        train = replace(train, **changed)
        why[f"train.{name}"] = reason

    assert train.batch_tokens is not None
    if train.micro_tokens is None:
        tokens = micro_tokens(model, train.batch_tokens, device)
        reason = "fits the caches" if device.is_cpu else "fits the memory"
        choose("micro_tokens", tokens, f"{reason} of {device.description}")
    batch = train.batch_tokens
    if train.epochs is not None and facts.epoch_steps:
        steps = max(1, round(train.epochs * facts.epoch_steps))
        reason = f"{train.epochs:g} epochs of {facts.epoch_steps:,} steps"
        train = replace(train, epochs=None)
        choose("steps", steps, reason)
    train = replace(train, epochs=None)
    if train.steps is None:
        per_epoch = max(1, round(proposal.n_tokens / batch))
        steps = proposal.epochs * per_epoch
        reason = f"{proposal.epochs} epochs of {amount}{proposal.row_of('epochs')}"
        if steps < proposal.least_steps:
            row = proposal.row_of("least_steps")
            steps, reason = proposal.least_steps, f"the minimum for small datasets{row}"
        choose("steps", steps, reason)
    if train.eval_every is None:
        steps = train.steps or 1
        every = max(1, -(-steps // EVALUATIONS))
        choose("eval_every", every, f"{-(-steps // every)} evaluations")
    if train.save_every is None:
        choose("save_every", train.eval_every, "with every evaluation")
    found = ResolvedTrain.of(train)
    if model.is_counted:
        found = replace(found, steps=0, eval_every=1, save_every=1)
        why["train.steps"] = "n-grams are counted in one pass"
    return found, why


def micro_tokens(model: ModelSettings, batch_tokens: int, device: DeviceInfo) -> int:
    """Return the largest micro-batch, in tokens, that fits into the memory of a GPU or into the
    caches of a CPU."""
    if device.is_cpu:
        return min(batch_tokens, CPU_TOKENS)
    tokens = batch_tokens
    while tokens > 512 and _bytes(model, tokens) > MEMORY_SHARE * device.free_bytes:
        tokens = -(-tokens // 2)
    return tokens


def _bytes(model: ModelSettings, tokens: int) -> int:
    shape = meta_model(model)
    return 16 * count_parameters(shape) + activations(shape, model, tokens).fused_bytes
