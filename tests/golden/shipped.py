"""Answers of the models that are shipped with headway."""

from __future__ import annotations

import json
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

from . import seams
from .compare import plain

GERMAN = ["Guten Morgen.", "Wo ist der Bahnhof?", "Ich habe gestern ein Buch gelesen."]
ENGLISH = ["Good morning.", "Where is the station?", "I read a book yesterday."]
STORIES = ["Once upon a time", "The little dog was"]

MODELS = ("tatoeba-de-en", "tatoeba-en-de", "stories", "shapes", "digits")


def answers(model: str, root: Path) -> Any:
    """What `predict --json` prints for example files or sentences."""
    with chdir(root):
        printed = seams.command("predict", model, *_arguments(model, root), "--json")
    return [plain(json.loads(line)) for line in printed.splitlines()]


def _arguments(model: str, root: Path) -> list[str]:
    if model in ("shapes", "digits"):
        return [_copy_example(model, root)]
    if model == "stories":
        return [*_texts(STORIES), "decode.sample=false", "decode.beam=1", "decode.max_len=24"]
    texts = GERMAN if model == "tatoeba-de-en" else ENGLISH
    return [*_texts(texts), "--n-best", "2", "--alignments"]


def _texts(texts: list[str]) -> list[str]:
    return [word for text in texts for word in ("--text", text)]


def _copy_example(model: str, root: Path) -> str:
    folder = seams.shipped_folder(model)
    path = next(path for path in folder.iterdir() if path.stem == "example")
    shutil.copy(path, root)
    return path.name
