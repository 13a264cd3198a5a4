"""All that golden files know of headway's inside, in one place: who changes a seam mends this.

The rest of the folder goes through the command line and what `tasks.task` and
`tasks.objective` declare.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .integers import fractions

if TYPE_CHECKING:
    from .recipes import Facts

CPU = torch.device("cpu")


def command(*words: str) -> str:
    """What `headway WORDS` prints to standard output, in this process."""
    from headway.cli.main import main

    out, said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    keyboard = sys.stdin
    sys.stdin = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(said):
            code = main(list(words))
    finally:
        sys.stdin = keyboard
    assert code == 0, f"headway {' '.join(words)} ended with {code}: {said.getvalue()}"
    out.flush()
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Made:
    """A run that is ready to be trained, whose weights follow from their names."""

    folder: Path
    settings: Any
    prepared: Any


def make_run(given: dict[str, Any], folder: Path) -> Made:
    """Prepare data, resolve settings, and leave a run folder as training does."""
    from headway.models.build import build_model
    from headway.models.folder import model_weights, save_weights
    from headway.progress import SILENT
    from headway.settings.run import load_run_settings, resolved_toml
    from headway.tasks.task import find_task
    from headway.training.resolve import resolve_run

    settings = load_run_settings(None, [], given)
    kind = find_task(settings)
    prepared = kind.prepare(settings, folder, SILENT)
    settings = resolve_run(settings, prepared, CPU)
    settings = dataclasses.replace(settings, fingerprint=prepared.fingerprint)
    (folder / "config.toml").write_text(resolved_toml(settings), encoding="utf-8")
    if prepared.vocab is not None:
        prepared.save_tokenizer(folder / "tokenizer.json")
    assert settings.model is not None
    model = build_model(settings.model)
    fill_weights(model)
    save_weights(folder, model_weights(model))
    return Made(folder, settings, prepared)


def task_of(made: Made) -> Any:
    from headway.tasks.task import find_task

    return find_task(made.settings).objective(made.settings, made.prepared)


@torch.no_grad()
def fill_weights(model: nn.Module) -> None:
    """Every weight matters, and none comes from torch's generator."""
    for name, weight in model.named_parameters():
        drawn = fractions(name, weight.numel()).reshape(weight.shape)
        if weight.ndim > 1:
            fan_in = weight[0].numel()
            drawn = drawn * (1.0 if "tokens" in name else (3.0 / fan_in) ** 0.5)
        else:
            drawn = 0.25 * drawn + (1.0 if name.endswith("weight") else 0.0)
        weight.copy_(torch.from_numpy(drawn.astype(np.float32)))


def trained(made: Made, steps: int, folder: Path) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Weights after so many steps from `fill_weights`, and what was logged on the way."""
    from headway.models.folder import model_weights
    from headway.progress import Progress
    from headway.training.checkpoint import Checkpoints
    from headway.training.distributed import Ranks
    from headway.training.log import RunLog
    from headway.training.trainer import Worker

    assert made.settings.train.steps == steps
    worker = Worker(made.settings, made.prepared, Ranks(), None)
    fill_weights(worker.model)
    folder.mkdir()
    log = RunLog(folder, Progress(enabled=False))
    loop = worker.loop(Checkpoints(folder, 1, _unheard), log, _never, folder)
    loop.run()
    logged = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return model_weights(worker.model), [json.loads(line) for line in logged]


def in_training(made: Made) -> tuple[Any, Any, nn.Module]:
    """The task, the loss as the loop has it, with a teacher where there is one, and the model."""
    from headway.training.distributed import Ranks
    from headway.training.trainer import Worker

    worker = Worker(made.settings, made.prepared, Ranks(), None)
    fill_weights(worker.model)
    return worker.objective, worker.loss_of, worker.model


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays and numbers of a batch or of chosen rows, by the names of the fields they are in.
    What is derived and kept beside (`cached_property`) does not count."""
    if isinstance(value, Tensor):
        yield name, value.detach().cpu().numpy()
    elif isinstance(value, np.ndarray | int | float | str | bool):
        yield name, np.asarray(value)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{name}.{field.name}".lstrip("."))
    elif isinstance(value, tuple | list) and all(type(item) is int for item in value):
        yield name, np.asarray(value, dtype=np.int64)
    elif isinstance(value, tuple | list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{name}[{number}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{name}.{key}")
    elif hasattr(value, "__dict__"):
        yield from leaves(vars(value), name)
    else:
        assert value is None, f"{name}: {type(value)}"


MEDIA_LABELS = {
    "streams[0].values": "input.given", "streams[0].layout": "input.layout",
    "targets": "targets.labels_B", "weights_R": "targets.weights_B",
}  # fmt: skip
FORMER: dict[str, dict[str, str]] = {
    "translate": {
        "streams[0].values": "source_M",
        "streams[0].layout": "source",
        "streams[1].values": "target_N",
        "streams[1].layout": "target",
        "targets.said_N": "labels_N",
        "weights_R": "weights_N",
    },
    "caption": {
        "streams[0].values": "seen.given",
        "streams[0].layout": "seen.layout",
        "streams[1].values": "words.read_N",
        "streams[1].layout": "words.layout",
        "targets.said_N": "words.said_N",
        "weights_R": "words.weights_N",
    },
    "transcribe": {
        "streams[0].values": "sound",
        "streams[0].layout": "source",
        "streams[1].values": "target_N",
        "streams[1].layout": "target",
        "targets.said_N": "labels_N",
        "targets.heard_K": "said_K",
        "targets.heard": "said",
    },
    "complete": {"streams[0].values": "tokens_N", "targets": "labels_N", "weights_R": "weights_N"},
    "tag": {
        "streams[0].values": "tokens_N",
        "rows_R": "rows_W",
        "weights_R": "weights_W",
        "targets.": "",
    },
    "classify text": {
        "streams[0].values": "tokens_N",
        "streams[0].segments_N": "segments_N",
        "targets": "labels_B",
        "weights_R": "weights_B",
    },
    "fill text": {"streams[0].values": "tokens_N", "targets.values": "labels_R", "targets.": ""},
    "fill": {
        "streams[0].values": "input.given",
        "streams[0].layout": "input.layout",
        "rows_R": "hidden.rows_R",
        "weights_R": "hidden.weights_R",
        "targets.": "hidden.",
    },
    "embed": {"streams[0].values": "tokens_N", "targets.": ""},
    "classify": MEDIA_LABELS,
    "identify": MEDIA_LABELS,
}
"""What the parts of batches were called when golden files were made; a layout was a layout."""

WITHOUT_EPOCH = ("translate", "caption", "tag", "classify text")
ONE_COUNT = ("complete", "translate")
"""Tasks whose parts did not know their epoch, or had no tokens beside their targets."""


def row_name(settings: Any) -> str:
    """By which the parts of its batches were called."""
    is_text = settings.task in ("classify", "fill") and not settings.data.media
    return f"{settings.task} text" if is_text else str(settings.task)


def batch_leaves(task: str, batch: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of a batch by the names that golden files know them by."""
    former = {"streams[0].layout": "layout", **FORMER.get(task, {})} if task in FORMER else {}
    for name, array in leaves(batch):
        for new, old in former.items():
            if name.startswith(new):
                name = old + name.removeprefix(new)
                break
        yield name, array


def part_leaves(task: str, parts: list[Any]) -> Iterator[tuple[str, Any]]:
    """The rows of parts and their counts, in the order in which golden files know them."""
    for part in parts:
        if task in ONE_COUNT:
            part = dataclasses.replace(part, tokens=None)
        if task in WITHOUT_EPOCH:
            part = dataclasses.replace(part, rows=part.rows.rows)
        yield from leaves(part)


def settings_facts(path: Path) -> dict[str, Any]:
    """A config.toml as dotted keys."""
    return settings_of_text(path.read_text(encoding="utf-8"))


NEW: dict[str, Any] = {
    "data.words_field": "words", "data.tags_field": "tags", "data.label_separator": ",",
}  # fmt: skip
"""Settings that are younger than golden files, with what they mean where nobody says anything:
what was done before there were any."""


def settings_of_text(text: str) -> dict[str, Any]:
    import tomllib

    from headway.settings.run import flat

    values = tomllib.loads(text)
    values.pop("format", None)  # of the file, and no setting
    return {key: one for key, one in flat(values).items() if NEW.get(key, ...) != one}


def page_data(path: Path) -> Any:
    """What a page of `headway look` carries; arrays as numpy has them."""
    from headway.web import pack as packing

    return packing.unpack(path.read_text(encoding="utf-8"))


def _unheard(text: str) -> None: ...


def _never() -> bool:
    return False


def shipped_folder(name: str) -> Path:
    from headway.settings.folder import run_folder

    return run_folder(name)


def recipe_names() -> list[str]:
    from headway.settings.recipes import recipe_names

    return recipe_names()


def resolved(
    recipe: str | None, given: dict[str, Any], facts: Facts, device: str
) -> dict[str, Any]:
    """All settings by dotted keys, of a recipe or of a command without one. A GPU is one with 140
    GB that knows bf16."""
    settings = _resolved(recipe, given, facts, device)
    found = settings_of_text(_toml(settings))
    return {key: value for key, value in found.items() if not key.startswith("asked.")}


def untrained_run(recipe: str, facts: Facts, folder: Path) -> str:
    """A run folder as far as another run that begins with it looks into it before training."""
    settings = _resolved(recipe, {}, facts, "cuda")
    folder.mkdir()
    (folder / "config.toml").write_text(_toml(settings), encoding="utf-8")
    tokenizer = _tokenizer(facts.vocab, settings.data.fields)
    from headway.tokens.tokenizer import Vocabularies

    Vocabularies(tokenizer, tokenizer).save(folder / "tokenizer.json")
    return str(folder)


def _toml(settings: Any) -> str:
    from headway.settings.run import resolved_toml

    return resolved_toml(settings)


def _resolved(recipe: str | None, given: dict[str, Any], facts: Facts, device: str) -> Any:
    from unittest.mock import patch

    from headway.settings.recipes import recipe_path
    from headway.settings.run import load_run_settings
    from headway.training.resolve import resolve_run

    path = recipe_path(recipe) if recipe else None
    settings = load_run_settings(path, [], given, is_recipe=True)
    with (
        patch("torch.cuda.mem_get_info", lambda *_: (130 * 10**9, 140 * 10**9)),
        patch("torch.cuda.is_bf16_supported", lambda **_: True),
        patch("headway.training.resolve._bytes", lambda *_: 10**9),  # all fit, and counting is slow
    ):
        stand_in = _prepared(settings, facts)
        return resolve_run(settings, stand_in, torch.device(device))


def _prepared(settings: Any, facts: Facts) -> Any:
    """Prepared data of which only the facts are true."""
    from headway.data.check_report import Report
    from headway.data.media.store import PictureStore, SoundStore
    from headway.data.store import Columns, Prepared
    from headway.tasks.specs import SEEN_AS
    from headway.tokens.tokenizer import Vocabularies

    fields = settings.data.fields
    words = _tokenizer(facts.vocab, fields) if facts.vocab else None
    report, n = Report(), facts.n
    texts = _texts(n, facts.mean, facts.longest) if facts.mean and not facts.rate else None
    if facts.shape or facts.rate:
        starts = np.zeros(n, np.int64)
        items: Any
        if facts.shape:
            shapes = np.broadcast_to(np.array(facts.shape, np.int64), (n, 4))
            pixels = np.arange(int(np.prod(facts.shape)), dtype=np.uint64) * np.uint64(97)
            items = PictureStore((pixels % np.uint64(251)).astype(np.uint8), starts, shapes)
        else:
            lengths = _lengths(n, facts.mean, facts.longest)
            items = SoundStore(np.zeros(facts.longest, np.int16), starts, lengths, facts.rate)
        said = _texts(n, facts.words, 2 * facts.words) if facts.words else None
        what = "sounds" if facts.rate else "videos" if facts.shape[0] > 1 else "pictures"  # type: ignore[index]
        columns = {SEEN_AS[what]: items} | ({"text": said} if said else {})
        part = Columns(columns, hashes=np.zeros(n, np.uint64))
    elif settings.task == "translate":
        part = Columns({"source": texts, "target": texts})
    elif fields:
        part = Columns(dict.fromkeys(fields, texts), fields=fields)
    else:
        part = Columns({"text": texts} | ({"other": texts} if facts.pairs else {}))
    vocab = Vocabularies(words, words) if words else None
    return Prepared(part, part, vocab, facts.labels, report=report)


def _lengths(n: int, mean: int, longest: int) -> np.ndarray:
    lengths = np.full(n, mean, np.int64)
    lengths[-1] = longest
    return lengths


def _texts(n: int, mean: int, longest: int) -> Any:
    from headway.data.token_store import TokenStore

    lengths = _lengths(n, mean, longest)
    return TokenStore(np.broadcast_to(np.uint16(9), int(lengths.sum())), lengths)


@cache
def _tokenizer(size: int, fields: tuple[str, ...]) -> Any:
    """With so many tokens in all."""
    from headway.data.causal_lm import mark_names
    from headway.settings.data import TokenizerSettings
    from headway.tokens.trainer import train_on_texts

    specials = ["[MASK]", *mark_names(fields)]
    words = " ".join(f"w{number}" for number in range(size))
    return train_on_texts([words] * 2, TokenizerSettings(kind="words"), size, specials)


def reread(folder: Path) -> dict[str, Any]:
    """The settings of a run folder, by dotted keys, as they would be written again."""
    from headway.settings.folder import load_run

    return settings_of_text(_toml(load_run(folder)))
