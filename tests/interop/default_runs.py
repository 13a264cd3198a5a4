"""Runs of every task as `headway train` makes them when nobody says more than where the data is;
only the weights are random."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.config.run import load_run_settings, resolved_toml
from headway.models.build import build_model
from headway.models.folder import model_weights, save_weights
from headway.progress import SILENT
from headway.tasks.table import kind_of
from headway.training.resolve import resolve_run

from ..models.variants import stirred
from ..training.spoken import RATE, write_manifest, write_wav

NOUNS, VERBS = ("dog", "cat", "cow", "hen"), ("ran", "sat", "ate", "hid")
TEXTS = [f"the {a} {b} {c} ." for a in ("big", "old", "wet") for b in NOUNS for c in VERBS]
TASKS = (
    "translate", "complete", "fill", "classify", "tag", "embed", "see", "watch", "caption",
    "caption videos", "identify", "transcribe", "transcribe ctc", "transcribe decoder",
    "fill pictures", "fill videos", "fill sounds",
)  # fmt: skip
"""And of some the ways that one flag chooses."""


def default_run(folder: Path, name: str) -> Path:
    """Prepared and resolved as a training would; not trained."""
    folder.mkdir(parents=True)
    task, _, way = name.partition(" ")
    given: dict[str, Any] = {"task": task, "data.valid_size": 8, **DATA[task](folder, way)}
    settings = load_run_settings(None, [], given)
    kind, device, run = kind_of(settings), torch.device("cpu"), folder / "run"
    run.mkdir()
    prepared = kind.prepare(settings, run, SILENT)
    settings = resolve_run(settings, prepared, device)
    (run / "config.toml").write_text(resolved_toml(settings))
    if prepared.vocab is not None:
        prepared.save_tokenizer(run / "tokenizer.json")
    assert settings.model is not None
    save_weights(run, model_weights(stirred(build_model(settings.model))))
    return run


def _lines(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def _translate(folder: Path, way: str) -> dict[str, Any]:
    source = _lines(folder / "a", TEXTS)
    target = _lines(folder / "b", [text[::-1] for text in TEXTS])
    return {"data.source": [source], "data.target": [target]}


def _text(folder: Path, way: str) -> dict[str, Any]:
    if way:
        return _media(folder, way)
    return {"data.text": [_lines(folder / "a.txt", TEXTS)]}


def _classify(folder: Path, way: str) -> dict[str, Any]:
    lines = [f"{text}\t{text.split()[1]}" for text in TEXTS]
    return {"data.text": [_lines(folder / "a.tsv", ["text\tlabel", *lines])]}


def _tag(folder: Path, way: str) -> dict[str, Any]:
    words = ["\n".join(f"{word} X-{len(word)}" for word in text.split()) for text in TEXTS]
    return {"data.text": [_lines(folder / "a.conll", [f"{one}\n" for one in words])]}


def _embed(folder: Path, way: str) -> dict[str, Any]:
    return {"data.pairs": [_lines(folder / "a.tsv", [f"{text}\t{text[::-1]}" for text in TEXTS])]}


def _media(folder: Path, way: str) -> dict[str, Any]:
    """Pictures of 32 pixels, videos of 8 frames, or recordings, with labels and texts."""
    draw = np.random.default_rng(0)
    lines = []
    if way == "sounds":
        for number in range(24):
            samples = draw.normal(0, 0.1, RATE // 2 + 100 * number).astype(np.float32)
            write_wav(folder / f"{number}.wav", samples)
            lines.append({"path": f"{number}.wav", "label": f"speaker {number % 3}"})
    else:
        size = (24, 8, 32, 32) if way == "videos" else (24, 32, 32, 3)
        np.save(folder / "all.npy", draw.integers(0, 256, size).astype(np.uint8))
        for number in range(24):
            about = {"label": f"class {number % 3}", "text": TEXTS[number]}
            lines.append({"path": "all.npy", "index": number, **about})
    listed = [json.dumps(line) for line in lines]
    found: dict[str, Any] = {"data.media": [_lines(folder / "all.jsonl", listed)]}
    if way == "videos":
        found["model.picture.frames"] = 8
    return found


def _caption(folder: Path, way: str) -> dict[str, Any]:
    found = _media(folder, way or "pictures")
    return {**found, "caption.what": "videos"} if way else found


def _transcribe(folder: Path, way: str) -> dict[str, Any]:
    spoken = [" ".join(letters) for letters in permutations("abcd")]
    found = {"data.media": [write_manifest(folder, "all", spoken)]}
    return found | {"": {}, "ctc": {"transcribe.ctc": 1.0}, "decoder": {"transcribe.ctc": 0.0}}[way]


DATA: dict[str, Callable[[Path, str], dict[str, Any]]] = {
    "translate": _translate,
    "complete": _text,
    "fill": _text,
    "classify": _classify,
    "tag": _tag,
    "embed": _embed,
    "see": lambda folder, _: _media(folder, "pictures"),
    "watch": lambda folder, _: _media(folder, "videos"),
    "caption": _caption,
    "identify": lambda folder, _: _media(folder, "sounds"),
    "transcribe": _transcribe,
}
