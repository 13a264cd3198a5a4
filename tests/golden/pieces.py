"""What is kept of a tiny run: one function a piece, from the run to plain JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import seams
from .cells import CELLS, TRAINING, Cell, given_of
from .compare import array_facts, digest, plain
from .inputs import WRITERS

EPOCHS = 3
STEPS = int(TRAINING["train.steps"])
CLOCKS = ("seconds", "tokens_per_s", "stall", "time", "speed", "date")
"""Keys of what differs from time to time."""

TIMED = ("manifest.json", "seen.json")
"""Of prepared data: these know when the files were written."""


@dataclass(frozen=True)
class Tiny:
    """A tiny run in a folder of its own."""

    name: str
    root: Path

    @property
    def cell(self) -> Cell:
        return CELLS[self.name]

    @cached_property
    def made(self) -> seams.Made:
        """From inside `root`: paths of files must be the same everywhere."""
        teacher = ""
        if self.cell.teacher:
            teacher = f"{self.cell.teacher}-run"
            with chdir(self.root):
                other = CELLS[self.cell.teacher]
                data = WRITERS[other.data]()
                seams.make_run(given_of(other, data, ""), Path(teacher))
        with chdir(self.root):
            data = WRITERS[self.cell.data]()
            return seams.make_run(given_of(self.cell, data, teacher), Path("run"))

    @cached_property
    def questions(self) -> list[str]:
        """Files of the data, or a file of lines as `predict` reads them."""
        media = self.made.settings.data.media
        if not media:
            path = self.root / "questions.txt"
            path.write_text("".join(f"{line}\n" for line in self.lines()), encoding="utf-8")
            return ["questions.txt"]
        folder = self.root / media[0]
        if not folder.is_dir():
            lines = folder.read_text(encoding="utf-8").splitlines(keepends=True)[:6]
            (self.root / f"few-{media[0]}").write_text("".join(lines), encoding="utf-8")
            return [f"few-{media[0]}"]
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [str(path.relative_to(self.root)) for path in files[:: len(files) // 6]][:6]

    def lines(self) -> list[str]:
        settings = self.made.settings
        texts = ["the film and the music", "great", "a long scene of the plot awful actor"]
        if self.cell.task == "fill":
            return [f"{text} [MASK] and [MASK]" for text in texts]
        if settings.data.other_field:
            return [f"{text}\t{texts[0]}" for text in texts]
        if settings.data.fields:
            return [json.dumps({"name": text.split()[0], "body": text}) for text in texts]
        if self.cell.task == "tag":
            return ["then mister Ada Turing in Lima", "the river"]
        return [*texts, "unknown wörds, 3!"]


Piece = Callable[[Tiny], Any]


def prepared(tiny: Tiny) -> Any:
    """Every file that preparing left."""
    data = tiny.root / tiny.made.folder / "data"
    files = sorted(p for p in data.rglob("*") if p.is_file() and p.name not in TIMED)
    kept = {str(path.relative_to(data)): digest(path.read_bytes()) for path in files}
    return {"fingerprint": tiny.made.prepared.fingerprint, "files": kept}


def settings(tiny: Tiny) -> Any:
    return plain(seams.settings_facts(tiny.root / tiny.made.folder / "config.toml"))


def batches(tiny: Tiny) -> Any:
    """Of each of the first epochs: the rows of every step and part, and the tensors of all
    batches."""
    task = seams.task_of(tiny.made)
    settings = tiny.made.settings
    micro, name = settings.train.micro_tokens, seams.row_name(settings)
    found = []
    for number in range(EPOCHS):
        rows, tensors = [], dict[str, list[Any]]()
        for step in task.epoch(number):
            parts = task.parts(step, micro)
            counted = [[part.n_targets, part.n_tokens] for part in parts]
            whole = (array.tobytes() for _, array in _whole(name, parts))
            rows.append(f"{counted} {digest(*whole)}")
            for part in parts:
                for leaf, array in seams.batch_leaves(name, task.batch(part, seams.CPU, None)):
                    tensors.setdefault(leaf, []).append(array)
        found.append({"steps": rows, "tensors": {n: _chained(a) for n, a in tensors.items()}})
    return found


def _whole(task: str, parts: list[Any]) -> list[tuple[str, np.ndarray]]:
    """Leaves whose whole numbers have one width, whatever the platform's."""
    found = []
    for name, array in seams.part_leaves(task, parts):
        found.append((name, array.astype("<i8") if array.dtype.kind in "iu" else array))
    return found


def _chained(arrays: list[np.ndarray]) -> Any:
    if all(array.dtype.kind == "U" for array in arrays):
        return digest(*(str(array).encode() for array in arrays))
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    shapes = digest(*(str(array.shape).encode() for array in arrays))
    return {"shapes": shapes, "values": array_facts(flat)}


def loss(tiny: Tiny) -> Any:
    """Of the first batch of the first epoch, without anything by chance."""
    task, loss_of, model = seams.in_training(tiny.made)
    model.train()
    torch.manual_seed(0)
    part = task.parts(task.epoch(0)[0], tiny.made.settings.train.micro_tokens)[0]
    found = loss_of(model, task.batch(part, seams.CPU, None))
    found.sum.backward()
    gradients = {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }
    norm = torch.nn.utils.get_total_norm(list(gradients.values()))
    return {
        "sum": plain(found.sum.item()),
        "nll": plain(found.nll.item()),
        "targets": part.n_targets,
        "gradient norm": plain(norm.item()),
        "without gradient": [n for n, _ in model.named_parameters() if n not in gradients],
    }


def weights(tiny: Tiny) -> Any:
    """After some steps on one thread, from weights that follow from their names; what was logged;
    and the scores of the evaluation at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with chdir(tiny.root):
            found, logged = seams.trained(tiny.made, STEPS, Path("steps"))
    finally:
        torch.set_num_threads(threads)
    return {
        "logged": [condensed(row, 1) for row in logged],
        "weights": {name: array_facts(value.cpu().numpy()) for name, value in found.items()},
    }


def answers(tiny: Tiny) -> Any:
    with chdir(tiny.root):
        files = tiny.questions
        printed = seams.command(
            "predict", str(tiny.made.folder), *files, "--json", *tiny.cell.predict
        )
    return [plain(json.loads(line)) for line in printed.splitlines()]


def evaluation(tiny: Tiny) -> Any:
    data = tiny.made.settings.data
    with chdir(tiny.root):
        if data.media:
            files = ["--media", *data.media]
        elif data.pairs:
            files = ["--pairs", *data.pairs]
        elif data.source:
            files = ["--source", *data.source, "--target", *data.target]
        else:
            files = ["--text", *data.text]
        printed = seams.command("evaluate", str(tiny.made.folder), *files, "--json")
    return condensed(json.loads(printed), 3)


def page(tiny: Tiny) -> Any:
    if tiny.made.settings.data.media:
        with chdir(tiny.root):
            name = tiny.questions[0]
            if name.endswith(".jsonl"):
                row = json.loads(Path(name).read_text(encoding="utf-8").splitlines()[0])
                name = _cut_out(row)
        return looked(tiny.root, str(tiny.made.folder), "--file", name)
    text = tiny.lines()[0]
    if tiny.cell.task == "embed":
        text = tiny.lines()[2]
    return looked(tiny.root, str(tiny.made.folder), "--text", text)


def _cut_out(row: Mapping[str, Any]) -> str:
    """One item of a list as a file of its own."""
    if "index" in row:
        np.save("one.npy", np.load(row["path"])[row["index"]])
        return "one.npy"
    return str(row["path"])


def looked(root: Path, *words: str) -> Any:
    """The page's data and the numbers of a trace."""
    from safetensors.numpy import load_file

    with chdir(root):
        seams.command("look", *words, "--out", "look.html", "--trace", "trace")
        shown = seams.page_data(root / "look.html")
        tensors = load_file(root / "trace/trace.safetensors")
        facts = json.loads((root / "trace/trace.json").read_text(encoding="utf-8"))
    return {
        "page": condensed(shown, 2),
        "trace": condensed(facts, 2),
        "tensors": {name: array_facts(tensors[name]) for name in sorted(tensors)},
    }


def export(tiny: Tiny, to: tuple[str, ...] | None = None) -> Any:
    """Names and shapes of what was written, and the proof."""
    found = {}
    for name in tiny.cell.exports if to is None else to:
        folder = tiny.root / f"as-{name}"
        with chdir(tiny.root):
            seams.command("export", str(tiny.made.folder), "--to", name, "--out", folder.name)
        found[name] = exported(folder)
    return found


def exported(folder: Path) -> Any:
    from safetensors import safe_open

    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file():
            continue
        found[name] = {}
        if path.suffix == ".safetensors":
            with safe_open(path, "np") as file:
                found[name] = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
        elif path.suffix == ".json" and "tokenizer" not in name and "vocab" not in name:
            found[name] = condensed(json.loads(path.read_text(encoding="utf-8")), 2)
    return found


def slow_export(tiny: Tiny) -> Any:
    return export(tiny, tiny.cell.slow_exports)


def condensed(value: Any, depth: int) -> Any:
    """The first levels as they are; of what is deeper, words and whole numbers as one hash and the
    other numbers as their sums."""
    if isinstance(value, dict) and depth:
        return {
            str(key): condensed(item, depth - 1) for key, item in value.items() if key not in CLOCKS
        }
    if not isinstance(value, dict | list | np.ndarray):
        return plain(value)
    if (
        isinstance(value, list)
        and len(value) <= 4
        and not any(isinstance(item, dict | list | np.ndarray) for item in value)
    ):
        return plain(value)
    exact: list[str] = []
    numbers: list[np.ndarray] = []
    _gather(value, exact, numbers)
    found: dict[str, Any] = {"exact": digest(*(word.encode() for word in exact))}
    if numbers:
        found["numbers"] = array_facts(np.concatenate(numbers))
    return found


def _gather(value: Any, exact: list[str], numbers: list[np.ndarray]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            exact.append(str(key))
            _gather(item, exact, numbers)
    elif isinstance(value, list):
        exact.append(f"[{len(value)}")
        for item in value:
            _gather(item, exact, numbers)
    elif isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            exact.append(str(value.shape))
            numbers.append(value.astype(np.float64).reshape(-1))
        else:
            exact.append(str(array_facts(value)))
    elif isinstance(value, float):
        numbers.append(np.array([value]))
    else:
        exact.append(repr(value))


PIECES: dict[str, Piece] = {
    "prepared": prepared, "settings": settings, "batches": batches, "loss": loss,
    "weights": weights, "answers": answers, "evaluation": evaluation, "export": export,
}  # fmt: skip
SLOW_PIECES: dict[str, Piece] = {"slow_export": slow_export}


def pieces_of(name: str, slow: bool = False) -> dict[str, Piece]:
    """Those that a cell has."""
    cell = CELLS[name]
    if slow:
        return SLOW_PIECES if cell.slow_exports else {}
    found = {**PIECES, "page": page} if cell.page else dict(PIECES)
    if not cell.exports:
        del found["export"]
    if not cell.answers:
        del found["answers"]
    return {piece: partial(_inside, make) for piece, make in found.items()}


def _inside(make: Piece, tiny: Tiny) -> Any:
    """From inside the folder of the run: its settings name files and teachers by their paths."""
    with chdir(tiny.root):
        return make(tiny)
