"""The models that come with headway: what they answer, what is known of them, what one sees."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

from . import seams
from .compare import plain
from .inputs import lines
from .pieces import condensed, looked

GERMAN = ["Guten Morgen.", "Wo ist der Bahnhof?", "Ich habe gestern ein Buch gelesen."]
ENGLISH = ["Good morning.", "Where is the station?", "I read a book yesterday."]
STORIES = ["Once upon a time", "The little dog was"]

MODELS = ("tatoeba-de-en", "tatoeba-en-de", "stories", "shapes", "digits")
TWIN = "tatoeba-en-de"
"""So like another that its page is left to the slow tests."""

GREEDY = ("decode.sample=false", "decode.beam=1", "decode.max_len=24")


def example(model: str) -> Path:
    """The file that comes with a model."""
    folder = seams.shipped_folder(model)
    return next(path for path in folder.iterdir() if path.stem == "example")


def copied(model: str, root: Path) -> str:
    path = example(model)
    shutil.copy(path, root)
    return path.name


def answers(model: str, root: Path) -> Any:
    with chdir(root):
        if model in ("shapes", "digits"):
            words = [copied(model, root)]
        elif model == "stories":
            words = [*(w for text in STORIES for w in ("--text", text)), *GREEDY]
        else:
            texts = GERMAN if model == "tatoeba-de-en" else ENGLISH
            words = [w for text in texts for w in ("--text", text)]
        if model.startswith("tatoeba"):
            words += ["--n-best", "2", "--alignments"]
        printed = seams.command("predict", model, *words, "--json")
    return [plain(json.loads(line)) for line in printed.splitlines()]


def evaluation(model: str, root: Path) -> Any:
    with chdir(root):
        if model == "stories":
            words = ["--text", *lines("stories.txt", [f"{text} happy." for text in STORIES])]
        elif model.startswith("tatoeba"):
            source, target = GERMAN, ENGLISH
            if model == "tatoeba-en-de":
                source, target = target, source
            words = ["--source", *lines("a.txt", source), "--target", *lines("b.txt", target)]
        else:
            name = copied(model, root)
            text = json.dumps({"path": name, "text": "one two three"})
            words = ["--media", *lines("list.jsonl", [text])]
        printed = seams.command("evaluate", model, *words, "--json")
    return condensed(json.loads(printed), 3)


def info(model: str, root: Path) -> Any:
    return seams.command("info", model).splitlines()


def page(model: str, root: Path) -> Any:
    if model in ("shapes", "digits"):
        with chdir(root):
            words = ["--file", copied(model, root)]
    else:
        text = {"stories": STORIES[0], "tatoeba-en-de": ENGLISH[0]}.get(model, GERMAN[0])
        words = ["--text", text, *(["--new", "4", *GREEDY] if model == "stories" else [])]
    return looked(root, model, *words)


def makers(model: str, slow: bool = False) -> dict[str, Callable[[Path], Any]]:
    found = {"answers": answers, "evaluation": evaluation, "info": info, "page": page}
    if model == TWIN and slow:
        found = {"slow_page": page}
    elif slow:
        found = {}
    elif model == TWIN:
        del found["page"]
    return {name: partial(make, model) for name, make in found.items()}
