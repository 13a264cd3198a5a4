"""Import published weights: detect the format, check the model, rename its tensors, and write a run
folder.

Errors are detected from the configuration and the file headers, before memory is allocated for
weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from headway import __version__
from headway.errors import ConfigError, Option, UserError
from headway.interop.detect_format import OpenedSource, open_source
from headway.interop.families import Architecture
from headway.interop.folder_files import sha256
from headway.interop.name_pairs import ConvertedTensors, to_ours
from headway.interop.named_tokenizer import chat_template
from headway.interop.weights import LazyWeights
from headway.models.build import build_model
from headway.models.folder import describe_difference, save_weights
from headway.progress import SILENT, Progress
from headway.settings.data import DataSettings
from headway.settings.decode import DecodeSettings
from headway.settings.folder import CHAT_TEMPLATE, IMPORTED, TOKENIZER, write_config
from headway.settings.load import from_dict
from headway.settings.model import DecoderSettings, EncoderSettings, Seq2SeqSettings, family_of
from headway.settings.overrides import Overrides, apply_override
from headway.settings.run import SETTINGS, RunSettings, check_effect, check_sections, resolved_toml
from headway.settings.task_rows import front_reads, possible
from headway.specs.task_settings import ClassifySettings, EmbedSettings, TranscribeSettings
from headway.specs.tasks import SPECS
from headway.storage import check_free, new_folder, replace_text, seal_json
from headway.tokens.tokenizer import Vocabularies
from headway.tokens.vocab_alignment import unused_name

IGNORED = "ignored.safetensors"
"""File with the tensors that headway's model does not use. An export writes them again."""

MAY_CHANGE = ("data.", "decode.", "embed.")

TOKENIZER_FILES = "tokenizer"
"""Folder with the original tokenizer files."""


@dataclass(frozen=True)
class ImportSummary:
    """Result of an import, as reported to the user."""

    folder: Path
    kind: str
    model_type: str
    settings: RunSettings
    n_parameters: int
    used: int
    """Number of tensors in the source that the model uses."""

    ignored: dict[str, str]
    notes: tuple[str, ...]


def import_run(
    source: str | Path,
    out: str | Path,
    *,
    tokenizer: Path | None = None,
    task: str | None = None,
    words: Sequence[str] = (),
    progress: Progress = SILENT,
) -> ImportSummary:
    """Import a published model, and write a run folder atomically.

    Args:
        source: Folder, file or hub id.
        out: Run folder to write.
        tokenizer: File or folder to use instead of the tokenizer next to the weights.
        task: Task of the run; defaults to the task of the published model.
        words: Overrides of data, decoding and embedding settings, such as `data.other_field=other`.
    """
    source, out = str(source), Path(out)
    check_free(out)
    with progress.stage(f"opening {source}"):
        opened = open_source(source, tokenizer, progress.note)
    if task is not None:
        opened = replace(opened, architecture=with_task(opened.architecture, task))
    found = opened.architecture
    settings = with_overrides(run_settings(found), words)
    n_parameters = check_shapes(found, opened.weights)
    vocab = None if opened.vocabularies is None else opened.vocabularies()
    with progress.stage(f"reading {len(opened.weights):,} tensors"):
        taken = with_zeros(convert_tensors(found, opened.weights), found)
    with progress.stage(f"writing {out}"):
        _write(out, opened, taken, settings, vocab)
    used = len(opened.weights) - len(taken.ignored)
    return ImportSummary(
        folder=out,
        kind=opened.kind,
        model_type=opened.model_type,
        settings=settings,
        n_parameters=n_parameters,
        used=used,
        ignored=taken.ignored,
        notes=(*found.notes, *_without_token(vocab)),
    )


def _without_token(vocab: Vocabularies | None) -> list[str]:
    """Return a note for each vocabulary with fewer tokens than the embedding has rows."""
    if vocab is None:
        return []
    sides = {"": vocab.source}
    if not vocab.joint:
        sides = {"source ": vocab.source, "target ": vocab.target}
    notes = []
    for side, tokenizer in sides.items():
        n = sum(tokenizer.special(unused_name(i)) == i for i in range(tokenizer.vocab_size))
        if n:
            rows = f"{n:,} {side}embeddings have" if n > 1 else f"1 {side}embedding has"
            notes.append(
                f"{rows} no token: the vocabulary of the model is larger than the tokenizer"
            )
    return notes


def with_task(found: Architecture, task: str) -> Architecture:
    """Return the architecture for another task.

    Every encoder and decoder supports the task `embed`. Other tasks need an output head in the
    file.
    """
    if task == found.task:
        return found
    if task not in SPECS:
        raise UserError(f"{Option('task', task)} is unknown. Choose one of {', '.join(SPECS)}.")
    family = family_of(found.model)
    families = SPECS[task].all_families
    if SPECS[task].is_embedding and family in families:
        return replace(found, task=task, labels=(), decode={})
    if family not in families:
        raise UserError(
            f"{Option('task', task)} needs a model of the {' or '.join(families)} family. This "
            f"model is of the {family} family and supports {found.task}. Remove {Option('task')}, "
            "or import another model."
        )
    also = " or embed" if isinstance(found.model, EncoderSettings | DecoderSettings) else ""
    raise UserError(
        f"{Option('task', task)}: this model has no head for {task}. It supports "
        f"{found.task}{also}. Import the model without {Option('task')}, then train a head: "
        f"headway train {task} --from RUN"
    )


def check_shapes(found: Architecture, weights: LazyWeights) -> int:
    """Check that the tensor shapes in a file match its configuration. Return the number of
    parameters.

    Only shapes are compared, so no weights are read.
    """
    try:
        model = build_model(found.model, device="meta")
    except (RuntimeError, OverflowError) as error:
        raise UserError(f"cannot build a model with this configuration: {error}") from error
    taken = with_zeros(convert_tensors(found, weights.on_meta()), found)
    theirs = {name: tuple(tensor.shape) for name, tensor in taken.weights.items()}
    same = aliases(found)
    ours = {
        same.get(name, name): tuple(tensor.shape) for name, tensor in model.state_dict().items()
    }
    if ours != theirs:
        raise UserError(
            "the shapes of the tensors in the file do not match the configuration.\n"
            + describe_difference(ours, theirs)
        )
    return sum(parameter.numel() for parameter in model.parameters())


def convert_tensors(found: Architecture, weights: Mapping[str, Tensor]) -> ConvertedTensors:
    """Return the tensors of a file, converted to headway's names and shapes."""
    return to_ours(weights, found.pairs, found.ignored, aliases(found))


def aliases(found: Architecture) -> dict[str, str]:
    """Map every name of a shared tensor to the one name that the file uses."""
    has = {pair.ours for pair in found.pairs if not pair.tied}
    named: dict[int, list[str]] = {}
    for name, tensor in build_model(found.model, device="meta").state_dict(keep_vars=True).items():
        named.setdefault(id(tensor), []).append(name)
    return {
        name: next((known for known in names if known in has), names[0])
        for names in named.values()
        for name in names
    }


def with_zeros(taken: ConvertedTensors, found: Architecture) -> ConvertedTensors:
    """Return the tensors with zeros for those of headway's that the file lacks."""
    if not found.zeros:
        return taken
    shapes = build_model(found.model, device="meta").state_dict()
    zeros = {name: torch.zeros(shapes[name].shape) for name in found.zeros}
    return replace(taken, weights=taken.weights | zeros)


def run_settings(found: Architecture) -> RunSettings:
    return RunSettings(
        task=found.task,
        model=found.model,
        labels=found.labels,
        decode=DecodeSettings(**found.decode),
        embed=_embed(found),
        classify=_classify(found),
        transcribe=TranscribeSettings(ctc=0.0)
        if SPECS[found.task].writes and SPECS[found.task].is_audio
        else TranscribeSettings(),
        data=_data(found),
    )


def with_overrides(settings: RunSettings, words: Sequence[str]) -> RunSettings:
    """Return the settings with overrides of the form `key=value`."""
    for word in words:
        if not word.startswith(MAY_CHANGE):
            raise ConfigError(
                f"{word!r} cannot be set during an import, because the files determine the model. "
                f"Only settings that start with {' or '.join(MAY_CHANGE)} can be set."
            )
    tables: dict[str, Any] = {}
    for word in words:
        apply_override(tables, word)
    check_sections(tables, settings.task)
    changed = {
        name: from_dict(SETTINGS[name], table, f"{name}.", base=getattr(settings, name))
        for name, table in tables.items()
    }
    settings = replace(settings, **changed)
    check_effect(replace(settings, asked=Overrides.from_arguments(words)), possible(settings))
    return settings


def _data(found: Architecture) -> DataSettings:
    """Return the data settings of the imported run.

    Sources may be as long as the model allows, because the source of a summary is a whole text.
    """
    if not isinstance(found.model, Seq2SeqSettings):
        return DataSettings(**found.data)
    return DataSettings(max_len=found.model.max_len)


def _classify(found: Architecture) -> ClassifySettings:
    """Return the classification settings of the imported run, with the modality of the model's
    input."""
    if SPECS[found.task].settings is not ClassifySettings:
        return ClassifySettings()
    answer = "auto" if found.answer == "label" else found.answer
    return ClassifySettings(modality=front_reads(found.model), answer=answer)


def _embed(found: Architecture) -> EmbedSettings:
    """Return the embedding settings of the imported run.

    Embeddings are normalized only if the imported folder requires it.
    """
    if not SPECS[found.task].is_embedding:
        return EmbedSettings()
    return EmbedSettings(**{"normalise": False, **found.embed})


def _write(
    out: Path,
    opened: OpenedSource,
    taken: ConvertedTensors,
    settings: RunSettings,
    vocab: Vocabularies | None,
) -> None:
    with new_folder(out) as beside:
        save_weights(beside, taken.weights)
        if vocab is not None:
            vocab.save(beside / TOKENIZER)
        if taken.kept:
            _save_kept(beside / IGNORED, taken.kept)
        if opened.tokenizer_files:
            (beside / TOKENIZER_FILES).mkdir()
            for path in opened.tokenizer_files:
                shutil.copyfile(path, beside / TOKENIZER_FILES / path.name)
        template = chat_template(opened.tokenizer_files)
        if template is not None and SPECS[settings.task].continues:
            replace_text(beside / CHAT_TEMPLATE, template)
        if opened.sentence is not None:
            opened.sentence.keep(beside)
        facts = json.dumps(_facts(opened, taken), indent=1, ensure_ascii=False)
        replace_text(beside / IMPORTED, seal_json(facts))
        write_config(beside, resolved_toml(settings))


def _save_kept(path: Path, kept: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.contiguous().clone() for name, tensor in kept.items()}, path)
    path.chmod(0o644)  # the library makes it readable only for the owner


def _facts(opened: OpenedSource, taken: ConvertedTensors) -> dict[str, Any]:
    """Return the contents of `import.json`: the origin of the model, and what an export needs to
    restore the original files."""
    entries = opened.weights.entries
    return {
        "kind": opened.kind,
        "name": opened.name,
        "model_type": opened.model_type,
        "architectures": opened.config.get("architectures"),
        "config": opened.config,
        "generation": opened.generation,
        "preprocessor": opened.preprocessor,
        "files": {path.name: sha256(path) for path in opened.weights.files},
        "tensors": {name: str(e.dtype).removeprefix("torch.") for name, e in entries.items()},
        "ignored": taken.ignored,
        "headway": __version__,
    }
