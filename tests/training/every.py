"""A tiny run of every task of the table, up to its training: to hold all of them to one rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headway.models.build import build_model
from headway.progress import SILENT
from headway.settings.run import RunSettings, load_run_settings
from headway.settings.task_rows import spec_of
from headway.tasks.objective import Objective
from headway.tasks.task import find_task
from headway.training.resolve import resolve_run

from . import captioned, labelled, shown, spoken

CPU = torch.device("cpu")
Files = dict[str, Any]


@dataclass(frozen=True)
class Made:
    settings: RunSettings
    prepared: Any
    task: Objective[Any]
    model: nn.Module


def _lines(folder: Path, name: str, lines: list[str]) -> list[str]:
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [str(folder / name)]


def _texts() -> list[str]:
    return [text for text, _ in labelled.sentiments()]


def _pairs(folder: Path) -> Files:
    """Words that lose their first letter, and some that are the same on both sides."""
    target = [" ".join(w[1:] if w != "the" else w for w in text.split()) for text in _texts()]
    files = {"data.source": _lines(folder, "a", _texts())}
    return files | {"data.target": _lines(folder, "b", target)}


def _text(folder: Path) -> Files:
    return {"data.text": _lines(folder, "text", _texts())}


def _labelled(folder: Path) -> Files:
    return {"data.text": [labelled.write_tsv(folder / "texts.tsv", labelled.sentiments())]}


def _tagged(folder: Path) -> Files:
    return {"data.text": [labelled.write_conll(folder / "tags.conll", labelled.people())]}


def _two_columns(folder: Path) -> Files:
    lines = [f"{text}\t{text[::-1]}" for text in dict.fromkeys(_texts())]
    return {"data.pairs": _lines(folder, "pairs.tsv", lines)}


def _images(folder: Path) -> Files:
    return {"data.media": [shown.write_images(folder / "image")]}


def _patches(folder: Path) -> Files:
    return _images(folder) | {"model.image.patch": 4}


def _videos(folder: Path) -> Files:
    return {"data.media": [shown.write_videos(folder / "video")]}


def _scenes(folder: Path) -> Files:
    folder.mkdir(exist_ok=True)
    small = {"model.decoder.n_layers": 1, "model.image.patch": 4, "tokenizer.kind": "words"}
    return {"data.media": [str(captioned.write_scenes(folder))]} | small


def _speech(folder: Path) -> Files:
    path = spoken.write_manifest(folder, "said", spoken.texts(40, seed=1))
    return {"data.media": [path], "model.decoder.n_layers": 1, "model.audio.bands": 20}


def _speakers(folder: Path) -> Files:
    """Six of them: enough for the right one to be missing among five."""
    pitches = {name: 250.0 * 1.5**n for n, name in enumerate("abcdef")}
    return {"data.media": [shown.write_speakers(folder / "speakers", pitches, n=8)]}


DATA: dict[str, Callable[[Path], Files]] = {
    "translate": _pairs, "complete": _text, "fill": _text, "fill images": _patches,
    "classify": _labelled, "tag": _tagged, "embed": _two_columns,
    "classify images": _images, "classify videos": _videos, "classify audio": _speakers,
    "identify": _speakers, "caption": _scenes, "transcribe": _speech,
}  # fmt: skip
"""By the names of tasks; and what they read, where that is not text."""


def make(name: str, folder: Path, teacher: Path | None = None, **changes: Any) -> Made:
    """Prepared, resolved and built; nothing is trained. A student has its teacher's model."""
    folder.mkdir(parents=True, exist_ok=True)
    task = name.split()[0]
    given: dict[str, Any] = {"task": task, "data.valid_size": 12, "decode.max_len": 12}
    if "max_len" not in spec_of(task).decode:
        del given["decode.max_len"]
    given |= labelled.TINY | labelled.SHORT | DATA[name](folder)
    given |= {key.replace("__", "."): value for key, value in changes.items()}
    if teacher is not None:
        given = {key: x for key, x in given.items() if not key.startswith(("model.", "tokenizer."))}
        given["distil.teacher"] = str(teacher)
    if name == "embed":
        del given["train.micro_tokens"]
    settings = load_run_settings(None, [], given)
    kind = find_task(settings)
    prepared = kind.prepare(settings, folder, SILENT)
    settings = resolve_run(settings, prepared, CPU)
    assert settings.model is not None
    model = build_model(settings.model, seed=1).eval()
    return Made(settings, prepared, kind.objective(settings, prepared), model)
