"""Checks of the settings of a training run, before any data is read."""

from __future__ import annotations

from headway.errors import DATA_ARGUMENT, ConfigError, Option
from headway.settings.folder import load_run, run_folder
from headway.settings.run import RunSettings, check_effect
from headway.settings.task_rows import possible, spec_of
from headway.specs.needs import SOURCE


def check_files(settings: RunSettings) -> None:
    """Raise an error if a task has no training files, before any slow work begins."""
    data, spec = settings.data, spec_of(settings)
    texts = data.text or (data.pairs if SOURCE in spec.needs else ())
    there = {"pairs": data.source or data.pairs, "media": data.media}.get(spec.reads, texts)
    if not there:
        raise ConfigError(
            f"no training data. Give {DATA_ARGUMENT} after the task{spec.file_options}."
        )


def check_training(settings: RunSettings) -> None:
    """Raise an error for settings that are impossible or have no effect, before any data is
    read."""
    from headway.settings.warm_start import check_task

    check_implied(settings)
    check_effect(settings, possible(settings))
    if settings.start.run:
        old = load_run(run_folder(settings.start.run)).model
        assert old is not None
        check_task(settings.start.run, settings, old)


def check_implied(settings: RunSettings) -> None:
    """Raise an error if a run has both a start run and a teacher, or fine-tuning settings without
    weights to fine-tune."""
    start, teacher = settings.start.run, settings.distil.teacher
    if start and teacher:
        raise ConfigError(
            f"{Option('start')} cannot be combined with {Option('teacher')}: a student starts "
            f"from layers of its teacher. Remove {Option('start')}."
        )
    if not spec_of(settings).pretrained or "start.run" in settings.asked:
        check_from_scratch(settings)


def check_from_scratch(settings: RunSettings) -> None:
    """Raise an error for settings about inherited weights if training starts from scratch."""
    start = settings.start
    needs_run = {
        "lora.rank": settings.lora.rank, "start.freeze": start.freeze,
        "start.layer_decay": start.layer_decay != 1.0,
    }  # fmt: skip
    key = next((key for key, is_set in needs_run.items() if is_set), None)
    if key is not None and not start.run:
        raise ConfigError(
            f"{key} needs the weights of another run, but this run starts from scratch. Choose a "
            f"run to start from with {Option('start', takes='RUN')} (`headway models` lists some), "
            f"or remove {key}."
        )
