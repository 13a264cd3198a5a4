"""Checks of the settings of a training, before any data is read."""

from __future__ import annotations

from dataclasses import fields

from headway.errors import ConfigError, UserError
from headway.settings.decode import DecodeSettings
from headway.settings.folder import load_run, run_folder
from headway.settings.run import RunSettings, overrides_of
from headway.settings.start import DistilSettings, LoraSettings
from headway.settings.task_rows import spec_of
from headway.specs.needs import SOURCE


def check_files(settings: RunSettings) -> None:
    """Reject a task without training files, before anything slow."""
    data, spec = settings.data, spec_of(settings)
    texts = data.text or (data.pairs if SOURCE in spec.needs else ())
    there = {"pairs": data.source or data.pairs, "media": data.media}.get(spec.reads, texts)
    if not there:
        raise ConfigError(
            f"no training data. Give FILES after the task{spec.file_options}.",
            python="no training data. Pass it after the task, as a path, a list of paths or a "
            f"table: headway.train({settings.task!r}, data, out=…){spec.file_arguments}.",
        )


def check_training(settings: RunSettings) -> None:
    """Reject settings that are impossible or have no effect, before any data is read."""
    check_implied(settings)
    from headway.settings.warm_start import check_task

    spec = spec_of(settings)
    for field in fields(DecodeSettings):
        unusual = getattr(settings.decode, field.name) != field.default
        if unusual and field.name not in spec.decode:
            raise UserError(
                f"decode.{field.name} has no effect on a run of the task {spec.name}. Remove "
                f"decode.{field.name}."
            )
    if settings.start.run:
        old = load_run(run_folder(settings.start.run)).model
        assert old is not None
        check_task(settings.start.run, settings, old)


def check_implied(settings: RunSettings) -> None:
    """Reject settings that the start run or the teacher has fixed, or that have no effect without
    one."""
    start, teacher = settings.start.run, settings.distil.teacher
    if start and teacher:
        raise ConfigError(
            "--from cannot be combined with --teacher: a student starts from layers of its "
            "teacher. Remove --from."
        )
    for key in settings.asked:
        if (start or teacher) and key.startswith("tokenizer."):
            raise ConfigError(
                f"{key} has no effect: the vocabulary comes from {start or teacher}. Remove {key}."
            )
    if settings.distil != DistilSettings() and not teacher:
        key = next(key for key in settings.asked if key.startswith("distil."))
        raise ConfigError(
            f"{key} has no effect without a teacher. Give a run as the teacher: headway train "
            "distil --teacher RUN."
        )
    if settings.lora != LoraSettings() and not settings.lora.rank:
        key = next(key for key in overrides_of(settings) if key.startswith("lora."))
        raise ConfigError(f"{key} has no effect without lora.rank. Set lora.rank, or remove {key}.")
    if not spec_of(settings).pretrained or "start.run" in settings.asked:
        check_from_scratch(settings)


def check_from_scratch(settings: RunSettings) -> None:
    """Reject settings about the weights of another run where training starts from scratch."""
    start = settings.start
    needs_run = {
        "lora.rank": settings.lora.rank, "start.freeze": start.freeze,
        "start.layer_decay": start.layer_decay != 1.0,
    }  # fmt: skip
    key = next((key for key, is_set in needs_run.items() if is_set), None)
    if key is not None and not start.run:
        raise ConfigError(
            f"{key} needs the weights of another run, but this run starts from scratch. Choose a "
            f"run to start from with --from RUN (`headway models` lists some), or remove {key}."
        )
