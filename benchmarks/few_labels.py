"""What learning without labels gains where labels are few.

`python -m benchmarks.few_labels NAME --media PATH --test PATH [--task TASK]`. A model first
learns to rebuild hidden parts of all training examples (`headway train fill`), which takes no
labels; then models of the same size learn from a few labels a class, some starting from it and some
from scratch, each for the same number of steps, and are scored on the test set. As many labelled
examples again choose the checkpoint, of either.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import pick_device, save
from examples.made.folder import new_array, write_lines
from headway.cli.main import main as headway
from headway.data.media.open_item import ItemFormat
from headway.data.source import media_examples
from headway.settings.data import DataSettings
from headway.specs.needs import LABEL

ARMS = ("scratch", "frozen", "tuned")
"""From scratch; all but the head fixed as it was without labels; all of it trained further."""


def as_list(paths: Sequence[str], folder: Path, name: str) -> Path:
    """The examples as a JSONL file with paths and labels: images are brought into one stack."""
    if len(paths) == 1 and paths[0].endswith(".jsonl"):
        source = Path(paths[0])
        rows = [json.loads(line) for line in source.read_text().splitlines()]
        for row in rows:
            row["path"] = os.path.relpath(source.parent / row["path"], folder)
    else:
        rows = _stacked(paths, folder, name)
    write_lines(folder / f"{name}.jsonl", rows)
    return folder / f"{name}.jsonl"


def _stacked(paths: Sequence[str], folder: Path, name: str) -> list[dict[str, Any]]:
    items = list(media_examples(paths, DataSettings(), "image", LABEL))
    form = ItemFormat("image")
    shape = _turned(items[0].medium.read(form).values).shape
    rows = []
    with new_array(folder / f"{name}.npy", (len(items), *shape), np.uint8) as stack:
        for i, item in enumerate(items):
            stack[i] = _turned(item.medium.read(form).values)
            rows.append({"path": f"{name}.npy", "index": i, "label": item.text("label")})
    return rows


def _turned(x_TCYX: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(x_TCYX[0].transpose(1, 2, 0))


def few_of(everything: Path, each: int, seed: int) -> tuple[Path, Path]:
    """Lists of `each` examples a class to train on, and as many others to choose by."""
    rows = [json.loads(line) for line in everything.read_text().splitlines()]
    by_label = defaultdict(list)
    for number in np.random.default_rng(seed).permutation(len(rows)):
        by_label[rows[number]["label"]].append(rows[number])
    paths = []
    for name, first in (("few", 0), ("valid", each)):
        chosen = [row for found in by_label.values() for row in found[first : first + each]]
        paths.append(everything.with_name(f"{name}-{each}-{seed}.jsonl"))
        write_lines(paths[-1], chosen)
    return paths[0], paths[1]


def run(*words: str) -> str:
    """What a command prints; it must succeed."""
    print("headway", *words, flush=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = headway([*words])
    if code:
        raise SystemExit(f"`headway {' '.join(words)}` failed with {code}")
    return printed.getvalue()


def learn(options: argparse.Namespace, lists: tuple[Path, Path], arm: str) -> dict[str, Any]:
    """One run on a few labels, and its scores on the test set."""
    folder, out = options.work, options.work / "run"
    shutil.rmtree(out, ignore_errors=True)
    few, valid = lists
    rate = options.rate if arm == "scratch" else options.frozen_rate
    rate = options.tuned_rate if arm == "tuned" else rate
    # A list of rows of an array could be one of texts as well: --media says that it is none.
    words = ["--media", str(few), "--valid-media", str(valid), "--out", str(out)]
    words += [f"train.steps={options.steps}", f"train.lr={rate}", *options.set]
    if arm == "scratch":
        words += options.model
    else:
        words += ["--from", str(folder / "fill"), *options.tuned_set]
        words += ["start.freeze=-1"] if arm == "frozen" else []
    run("train", options.task, *words)
    scores = run("evaluate", str(out), str(folder / "test.jsonl"), "--json")
    found: dict[str, Any] = json.loads(scores)
    return found


def compare(options: argparse.Namespace) -> dict[str, Any]:
    folder = options.work
    folder.mkdir(parents=True, exist_ok=True)
    everything = as_list(options.media, folder, "all")
    as_list(options.test, folder, "test")
    fill = folder / "fill"
    words = ["--media", str(everything), "--out", str(fill), f"train.steps={options.fill_steps}"]
    run("train", "fill", *words, *options.model, *options.fill_set)
    said = json.loads(run("evaluate", str(fill), str(folder / "test.jsonl"), "--json"))
    rows = []
    for each in options.labels:
        for seed in range(options.seeds):
            lists = few_of(everything, each, seed)
            for arm in options.arms:
                accuracy = learn(options, lists, arm)["accuracy"]
                rows.append({"labels": each, "seed": seed, "arm": arm, "accuracy": accuracy})
                print(rows[-1], flush=True)
    table = {
        f"{each} labels a class": {
            arm: _summary([r["accuracy"] for r in rows if (r["labels"], r["arm"]) == (each, arm)])
            for arm in options.arms
        }
        for each in options.labels
    }
    explained = {name: said[name] for name in ("loss", "baselines", "variance_explained")}
    asked = {k: v for k, v in vars(options).items() if k not in ("work", "name")}
    return {"fill": explained, "table": table, "rows": rows, "options": asked}


def _summary(values: list[float]) -> dict[str, float]:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.mean(values), "deviation": spread}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of the result: cifar10, say")
    parser.add_argument("--media", nargs="+", required=True)
    parser.add_argument("--test", nargs="+", required=True)
    parser.add_argument("--task", default="classify", choices=("classify", "identify"))
    parser.add_argument("--labels", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--fill-steps", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=2e-3, help="from scratch")
    parser.add_argument("--tuned-rate", type=float, default=1e-3)
    parser.add_argument("--frozen-rate", type=float, default=5e-3)
    parser.add_argument("--model", nargs="*", default=[], help="model.KEY=VALUE, of all models")
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE, of runs with labels")
    parser.add_argument("--tuned-set", nargs="*", default=[], help="of those that start from fill")
    parser.add_argument("--fill-set", nargs="*", default=[], help="KEY=VALUE, of that without")
    parser.add_argument("--work", type=Path, default=Path("runs/few-labels"))
    options = parser.parse_args(words)
    found = compare(options)
    for labels, arms in found["table"].items():
        for arm, values in arms.items():
            print(f"{labels:>20}  {arm:<8} {values['mean']:6.2f} ± {values['deviation']:.2f}")
    print(save(f"few-labels-{options.name}", pick_device(), found))


if __name__ == "__main__":
    main()
