"""Tiny labelled data on which a model can be right, and runs over it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.errors import Stopped
from headway.models.folder import model_weights
from headway.progress import SILENT, Progress
from headway.settings.run import Resolved, RunSettings, load_run_settings
from headway.tasks.task import Task
from headway.training.checkpoint import Checkpoints
from headway.training.distributed import Distributed
from headway.training.log import RunLog
from headway.training.resolve import resolve_run
from headway.training.trainer import Trainer

CPU = torch.device("cpu")
TINY = {"model.n_layers": 1, "model.d_model": 32, "model.n_heads": 2, "model.d_ff": 64}
SHORT = {"train.batch_tokens": 256, "train.micro_tokens": 256, "train.precision": "fp32"}


def sentiments(n: int = 120) -> list[tuple[str, str]]:
    """Texts whose label hangs on one word of theirs."""
    random = np.random.default_rng(5)
    words = ["film", "plot", "the", "a", "actor", "music", "scene", "and", "of", "long"]
    found = []
    for i in range(n):
        label = ("neg", "pos", "so")[i % 3]
        text = list(random.choice(words, random.integers(2, 9)))
        text.insert(random.integers(len(text)), {"neg": "awful", "pos": "great", "so": "ok"}[label])
        found.append((" ".join(text), label))
    return found


def write_tsv(path: Path, rows: list[tuple[str, ...]]) -> str:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def people(n: int = 80) -> list[list[tuple[str, str]]]:
    """Sentences in which names are tagged by a word before them."""
    random = np.random.default_rng(6)
    names = ["Ada", "Lovelace", "Grace", "Hopper", "Alan", "Turing", "Kurt"]
    places = ["Paris", "Rome", "Lagos", "Lima"]
    plain = ["went", "saw", "and", "then", "the", "river", "slowly"]
    found = []
    for _ in range(n):
        sentence = [(str(word), "O") for word in random.choice(plain, random.integers(1, 4))]
        first, last = random.choice(names, 2)
        sentence += [("mister", "O"), (str(first), "B-per"), (str(last), "I-per")]
        sentence += [("in", "O"), (str(random.choice(places)), "B-loc")]
        found.append(sentence)
    return found


def write_conll(path: Path, sentences: list[list[tuple[str, str]]]) -> str:
    text = "\n".join("".join(f"{w}\t{t}\n" for w, t in s) for s in sentences)
    path.write_text(text, encoding="utf-8")
    return str(path)


def settings_of(task: str, text: str, **changes: Any) -> RunSettings:
    given: dict[str, Any] = {"task": task, "data.text": [text], "data.valid_size": 12}
    given |= TINY | SHORT | {key.replace("__", "."): value for key, value in changes.items()}
    return load_run_settings(None, [], given)


def resolved(kind: Task, settings: RunSettings, folder: Path) -> tuple[Resolved, Any]:
    prepared = kind.prepare(settings, folder, SILENT)
    return resolve_run(settings, prepared, CPU), prepared


def trained(
    settings: RunSettings, prepared: Any, folder: Path, stop: Callable[[], bool] = lambda: False
) -> Trainer:
    """The model after all steps, or after as many as there were until a stop."""
    worker = Trainer(settings, prepared, Distributed(), lambda text: None)
    checkpoints = Checkpoints(folder, 3, lambda text: None)
    log = RunLog(folder, Progress(enabled=False))
    loop = worker.loop(checkpoints, log, stop, folder)
    loop.resume()
    try:
        loop.run()
    except Stopped:
        return worker
    worker.model.eval()
    return worker


def same_after_stops(settings: RunSettings, prepared: Any, folder: Path) -> bool:
    """Whether a run that is stopped again and again ends with the weights of one that is not.

    Each part may look for a stop more often than the one before it: an evaluation asks before every
    forward pass, and must fit into one part."""
    whole = trained(settings, prepared, folder / "whole")
    stops = 0
    while True:
        looks = iter(range(3 * (stops + 1)))
        part = trained(settings, prepared, folder / "parts", lambda: next(looks, None) is None)  # noqa: B023
        if not part.model.training:
            break
        stops += 1
    assert stops > 1
    ours, theirs = model_weights(whole.model), model_weights(part.model)
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def entries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
