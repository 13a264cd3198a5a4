"""What each body learns, how fast, and how it grows with length: Transformer, LSTM, GRU,
convolution, SHA-RNN and n-grams on the same data, with as many parameters, in the same loop.

`python -m benchmarks.bodies DATA` where DATA has multi30k/, tinyshakespeare/ and sst2/.

Equal parameters: layers are as many, and the width of a body is the one (a multiple of 8) whose
model comes nearest to the Transformer's number of weights with the vocabulary that is asked for;
the number that each really has is saved too. N-grams have the counts that they have. The parts:

- `tokens`: all see as many tokens; `minutes`: all have as many minutes, the data being prepared.
  Of each: the score on the test set, steps, and the most memory that steps took, evaluations left
  out: what torch held (CUDA), or by how much the process grew (CPU).
- `speed`: of the finished runs, tokens a second in training and characters (or texts) a second in
  greedy decoding, one after another in one process with nothing beside it; on a CPU also what a
  step keeps in memory, counted.
- `growth`: one sequence of 64 … 8,192 tokens, forward and backward (`bodies_growth.py`).

`--seeds 1 2 3` trains each three times; speeds are those of the first.
`--lanes 5 --cores 2` trains five at a time, each on two cores of its own. On a GPU those of one
set that have equal minutes all run at the same time, so that they have the same device; no other
set's run beside them. A piece is kept in `--work` as soon as it is measured, and not made again;
`--known` takes those of an earlier result. `python -m benchmarks.bodies_tables` makes the tables.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import bodies_growth, bodies_speed, machine
from headway.models.summary import count_parameters, meta_model
from headway.settings.load import model_settings
from headway.settings.overrides import parse_override

ARMS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "lstm": {"body": "lstm"},
    "gru": {"body": "gru"},
    "convolution": {"body": "convolution"},
    "sha-rnn": {"body": "sha-rnn"},
    "n-grams": {"body": "ngram", "order": 7},
    "lstm, additive": {"body": "lstm", "source_attention": "additive"},
    "lstm, dot": {"body": "lstm", "source_attention": "dot"},
    "lstm, last": {"body": "lstm", "source_attention": "last"},
    "gru, additive": {"body": "gru", "source_attention": "additive"},
    "convolution, dot": {"body": "convolution", "source_attention": "dot"},
}
"""What a row of the table asks of the model."""

PARTS = ("minutes", "growth", "tokens", "speed")
"""In the order in which they are made: what needs the device for itself is not beside others."""

GROWTH_SET = "tinyshakespeare"
"""Whose models are measured by length."""


@dataclass(frozen=True)
class Task:
    """A set of data, what is asked there, and the Transformer that the others are measured by."""

    name: str
    task: str
    family: str
    score: str
    arms: tuple[str, ...]
    vocabulary: int
    shape: dict[str, int]
    said: dict[str, Any] = field(default_factory=dict)
    """Settings of all its trainings."""

    tokens: int = 4096
    """Of a step."""


ALIKE = {"train.average": 1, "train.metric": "loss"}
TASKS = {
    one.name: one
    for one in (
        Task("multi30k", "translate", "seq2seq", "bleu",
             ("transformer", "lstm, additive", "lstm, dot", "lstm, last", "gru, additive",
              "convolution, dot"),
             8000, {"n_layers": 3, "d_model": 256, "n_heads": 4, "d_ff": 1024},
             {"tokenizer.kind": "bpe", "tokenizer.vocab_size": 8000}),
        Task("tinyshakespeare", "complete", "decoder", "loss",
             ("transformer", "lstm", "gru", "convolution", "sha-rnn", "n-grams"),
             70, {"n_layers": 4, "d_model": 256, "n_heads": 4, "d_ff": 1024},
             {"tokenizer.kind": "characters", "decode.max_len": 200}),
        Task("sst2", "classify", "encoder", "accuracy",
             ("transformer", "lstm", "gru", "convolution"),
             8000, {"n_layers": 2, "d_model": 128, "n_heads": 4, "d_ff": 512},
             {"tokenizer.vocab_size": 8000, "model.ngrams": 0}, 2048),
    )
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    options = asked(words)
    if options.piece:
        what = json.loads(options.piece)
        print(json.dumps(PIECES[what.pop("part")](what, options)))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    if options.known:
        remember(json.loads(options.known.read_text()), options)
    parts = [part for part in PARTS if part in options.parts]
    parts = [part for part in parts if getattr(options, part, True)]  # 0: none of it
    for name in options.sets if {"tokens", "minutes", "speed"} & {*parts} else ():
        prepared(task_of(name, options), options)
    for part in parts:
        for jobs in STAGES[part](options):
            side_by_side([partial(made, options, *job) for job in jobs], options)
    print(save(options))
    missing = [job[0] for part in parts for jobs in STAGES[part](options) for job in jobs
               if not place(job[0], options).exists()]  # fmt: skip
    if missing:
        raise SystemExit(f"not measured: {', '.join(missing)}. The same command goes on.")


def asked(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="a folder with multi30k, tinyshakespeare and sst2")
    parser.add_argument("--sets", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="what to measure")
    parser.add_argument("--bodies", nargs="+", help="some rows of the table, by their beginnings")
    parser.add_argument("--tokens", type=float, default=20e6, help="of equal trainings; 0: none")
    parser.add_argument("--minutes", type=float, default=5.0, help="of equal trainings; 0: none")
    parser.add_argument("--layers", type=int, help="of every model; else those of its set")
    parser.add_argument("--width", type=int, help="of the Transformer; else that of its set")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="of trainings")
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE, of all trainings")
    parser.add_argument("--examples", type=int, default=0, help="of training and test; 0: all")
    parser.add_argument("--lengths", type=int, nargs="*", default=list(bodies_growth.LENGTHS))
    parser.add_argument("--rounds", type=int, default=5, help="at most, of a length")
    parser.add_argument("--lanes", type=int, default=1, help="trainings side by side")
    parser.add_argument("--cores", type=int, default=2, help="of a training beside others")
    parser.add_argument("--device", default=machine.pick_device().type)
    parser.add_argument("--work", type=Path, default=Path("runs/bodies"))
    parser.add_argument("--known", type=Path, help="a result whose pieces need not be made again")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="bodies", help="of the result")
    return parser.parse_args(words)


# -- which pieces there are, and what is made beside what

Job = tuple[str, dict[str, Any]]
"""The file that it is kept in, or the first of several, and what its process is told."""


def trainings(part: str, options: argparse.Namespace) -> list[list[Job]]:
    """Stages one after another, the pieces of each side by side."""
    sets = [
        [(piece_name(name, arm, part, options, seed),
          {"part": "train", "task": name, "arm": arm, "kind": part, "seed": seed})
         for seed in options.seeds for arm in chosen(TASKS[name].arms, options.bodies)
         # Counted: neither minutes nor seeds change anything.
         if (part == "tokens" and seed == options.seeds[0]) or not ARMS[arm].get("order")]
        for name in options.sets
    ]  # fmt: skip
    apart = part == "minutes" and options.device == "cuda"
    return sets if apart else [[job for jobs in sets for job in jobs]]


def speeds(options: argparse.Namespace) -> list[list[Job]]:
    """All runs of a set in one process, alone."""
    stages = []
    for name in options.sets:
        every = chosen(TASKS[name].arms, options.bodies)
        arms = [arm for arm in every if not there(name, arm, "speed", options)]
        if arms:
            first = piece_name(name, arms[-1], "speed", options)
            stages.append([(first, {"part": "speed", "task": name, "arms": arms})])
    return stages


def grown(options: argparse.Namespace) -> list[list[Job]]:
    """A process for each body, in lanes; on a GPU one for all, alone."""
    if not options.lengths:
        return []
    every = chosen(bodies_growth.ARMS, options.bodies)
    arms = [arm for arm in every if not there("growth", arm, "", options)]
    together = [arms] if options.device == "cuda" else [[arm] for arm in arms]
    jobs = [(piece_name("growth", some[-1], "", options), {"part": "growth", "arms": some})
            for some in together if some]  # fmt: skip
    return [jobs]


STAGES: dict[str, Callable[[argparse.Namespace], list[list[Job]]]] = {
    "minutes": partial(trainings, "minutes"),
    "tokens": partial(trainings, "tokens"),
    "speed": speeds,
    "growth": grown,
}


def side_by_side(jobs: Sequence[Callable[[], object]], options: argparse.Namespace) -> None:
    if options.lanes > 1:
        machine.side_by_side(jobs, options.lanes, options.cores)
    else:
        for job in jobs:
            job()


def chosen(arms: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    return [arm for arm in arms if not wanted or any(arm.startswith(one) for one in wanted)]


def piece_name(
    of: str, arm: str, kind: str, options: argparse.Namespace, seed: int | None = None
) -> str:
    """`seed`: None is the first."""
    last = f"-{seed or options.seeds[0]}" if of != "growth" else ""
    return f"{of}-{arm.replace(', ', '-')}" + (f"-{kind}" if kind else "") + last


def place(name: str, options: argparse.Namespace) -> Path:
    path: Path = options.work / f"{name}.json"
    return path


def there(of: str, arm: str, kind: str, options: argparse.Namespace) -> bool:
    return place(piece_name(of, arm, kind, options), options).exists()


def keep(name: str, value: Any, options: argparse.Namespace) -> None:
    """Whole, or not there."""
    path = place(name, options)
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(value))
    scratch.replace(path)


def made(options: argparse.Namespace, name: str, what: dict[str, Any]) -> None:
    """A piece, in a process of its own, unless it is there."""
    if place(name, options).exists():
        return
    given = ("tokens", "minutes", "layers", "width", "examples", "device", "work", "rounds",
             "lanes", "cores")  # fmt: skip
    own = {key: getattr(options, key) for key in given}
    try:
        said = machine.python(
            "-m", "benchmarks.bodies", str(options.data),
            "--piece", json.dumps({**what, "name": name}),
            *(word for key, value in own.items() if value is not None
              for word in (f"--{key}", str(value))),
            "--seeds", str(what.get("seed", options.seeds[0])),
            "--lengths", *map(str, options.lengths), "--set", *options.set,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:  # the others go on
        print(f"{name} failed:\n{error.stderr[-2000:]}", flush=True)
        return
    print(f"{name}: {said.strip().splitlines()[-1][:400]}", flush=True)
    save(options)


# -- what is measured


def train(what: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Train and score one row, in this process."""
    import headway
    import headway.training.run

    task, device = task_of(what["task"], options), torch.device(options.device)
    torch.zeros(1, device=device)  # neither this nor the import is of the minutes
    said = settings_of(task, what["arm"], options)
    counted = ARMS[what["arm"]].get("order")
    budget = None if what["kind"] == "tokens" else f"{round(60 * options.minutes)}s"
    if budget is None and not counted:
        said["train.steps"] = max(1, round(options.tokens / said["train.batch_tokens"]))
    files = files_of(task, options)
    out = options.work / what["name"]
    data = options.work / f"{task.name}-data"
    if data.is_dir() and not (out / "data").exists():
        shutil.copytree(data, out / "data")
    memory = bodies_speed.Memory(device)
    begun = time.perf_counter()
    run = headway.train(
        task.task, out=out, settings=said, device=options.device, budget=budget, on=memory.heard,
        quiet=True, start="none" if task.task == "classify" else None, **files["train"],
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    test = files["test"]
    scores = run.evaluate(**test) if "source" in test else run.evaluate(test["data"])
    found = {
        "scores": {name: value for name, value in scores.items() if isinstance(value, int | float)},
        "baselines": {name: dict(values) for name, values in scores.baselines.items()},
        "parameters": bodies_speed.numbers(run.model),
        "d_model": run.settings.model.d_model,
        "seconds": seconds,
        "lanes": options.lanes,
        "asked": options.tokens if what["kind"] == "tokens" else options.minutes,
        "steps": memory.step,
        "train_tokens_per_s": memory.rate,
        "train_bytes": memory.most,
    }
    keep(what["name"], found, options)
    return found


def settings_of(task: Task, arm: str, options: argparse.Namespace) -> dict[str, Any]:
    said: dict[str, Any] = {**task.said, **matched(task, arm), "train.seed": options.seeds[0]}
    if not ARMS[arm].get("order"):
        said |= {**ALIKE, "train.batch_tokens": task.tokens}
        if options.device == "cpu" and options.lanes > 1:
            said["train.threads"] = options.cores
    more = {".".join(path): value for path, value in map(parse_override, options.set)}
    if ARMS[arm].get("order"):  # it takes no steps, and refuses what is said of them
        more = {key: value for key, value in more.items() if not key.startswith("train.")}
    return said | more


def speed(what: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Of all runs of a set that are there, one after another."""
    task, found = task_of(what["task"], options), dict[str, Any]()
    test = files_of(task, options)["test"]
    for arm in what["arms"]:
        runs = [options.work / piece_name(task.name, arm, kind, options)
                for kind in ("tokens", "minutes")]  # fmt: skip
        done = [run for run in runs if (run / "model.safetensors").is_file()]
        if done:
            found[arm] = bodies_speed.of_run(done[0], task.task, test, options.device)
            keep(piece_name(task.name, arm, "speed", options), found[arm], options)
    return found


def growth(what: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    task, found = task_of(GROWTH_SET, options), dict[str, Any]()
    for arm in what["arms"]:
        body = arm.partition(",")[0]
        model = {key.removeprefix("model."): x for key, x in matched(task, body).items()}
        found[arm] = bodies_growth.of_body(
            arm, {"vocab_size": task.vocabulary, **model}, options.lengths, options.rounds,
            torch.device(options.device),
        )  # fmt: skip
        keep(piece_name("growth", arm, "", options), found[arm], options)
    return found


PIECES: dict[str, Callable[[dict[str, Any], argparse.Namespace], dict[str, Any]]] = {
    "train": train,
    "speed": speed,
    "growth": growth,
}


# -- the result


def save(options: argparse.Namespace) -> Path:
    """All pieces that are there, as one result."""
    sets: dict[str, Any] = {}
    for name in TASKS:
        task = task_of(name, options)
        rows = {arm: row for arm in task.arms if (row := row_of(name, arm, options))}
        if rows:
            sets[name] = {"task": task.task, "score": task.score, "shape": task.shape, "rows": rows}
    lengths = {arm: json.loads(place(piece_name("growth", arm, "", options), options).read_text())
               for arm in bodies_growth.ARMS if there("growth", arm, "", options)}  # fmt: skip
    said = ("tokens", "minutes", "layers", "width", "seeds", "examples", "set", "lanes", "cores")
    asked = {key: getattr(options, key) for key in said}
    result = {"sets": sets, "growth": lengths, "options": asked}
    return machine.save(options.name, torch.device(options.device), result)


def row_of(name: str, arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the first seed gave, and in it what others did."""
    row: dict[str, Any] = {}
    for kind in ("tokens", "minutes", "speed"):
        paths = {str(seed): place(piece_name(name, arm, kind, options, seed), options)
                 for seed in options.seeds}  # fmt: skip
        found = {seed: json.loads(path.read_text()) for seed, path in paths.items()
                 if path.exists()}  # fmt: skip
        if found:
            row[kind], *_ = found.values()
            others = dict(list(found.items())[1:])
            row[kind] |= {"other_seeds": others} if others else {}
    return row


def remember(result: dict[str, Any], options: argparse.Namespace) -> None:
    """Take the pieces of an earlier result for made."""
    pieces = {piece_name("growth", arm, "", options): x for arm, x in result["growth"].items()}
    for name, found in result["sets"].items():
        for arm, row in found["rows"].items():
            for kind, known in row.items():
                others = known.pop("other_seeds", {})
                for seed, one in ((str(options.seeds[0]), known), *others.items()):
                    pieces[piece_name(name, arm, kind, options, int(seed))] = one
    for name, value in pieces.items():
        if not place(name, options).exists():
            keep(name, value, options)


# -- models of one size


def task_of(name: str, options: argparse.Namespace) -> Task:
    """The task, with the Transformer that was asked for."""
    task, wide = TASKS[name], options.width
    own = {"n_layers": options.layers} if options.layers else {}
    own |= {"d_model": wide, "d_ff": 4 * wide} if wide else {}
    return replace(task, shape={**task.shape, **own})


def matched(task: Task, arm: str) -> dict[str, Any]:
    """The settings of a model with about as many weights as the task's Transformer."""
    plain = {f"model.{key}": value for key, value in task.shape.items()}
    own = ARMS[arm]
    if not own:
        return plain
    if own.get("order"):
        return {f"model.{key}": value for key, value in own.items()}
    wanted, widths = size(task, {}), range(32, 2049, 8)
    above = bisect_left(widths, wanted, key=lambda width: size(task, _wide(task, own, width)))
    near = widths[max(0, above - 1) : above + 1]
    best = min(near, key=lambda width: abs(size(task, _wide(task, own, width)) - wanted))
    return {f"model.{key}": value for key, value in _wide(task, own, best).items()}


def _wide(task: Task, own: dict[str, Any], width: int) -> dict[str, Any]:
    found = {**own, "n_layers": task.shape["n_layers"], "d_model": width}
    return {**found, "d_ff": 4 * width} if own["body"] == "sha-rnn" else found


def size(task: Task, model: dict[str, Any]) -> int:
    whole = {"family": task.family, "vocab_size": task.vocabulary, "block_layout": "pre",
             **(model or task.shape)}  # fmt: skip
    if task.family == "encoder":
        whole |= {"heads": ["classes"], "n_labels": 2, "n_segments": 0, "positions": "none"}
    elif not model:
        whole["positions"] = "rotary"
    return count_parameters(meta_model(model_settings(whole)))


# -- data


def prepared(task: Task, options: argparse.Namespace) -> None:
    """Vocabulary and numbers of a set, made once, so that no training spends its minutes on it."""
    from headway.progress import SILENT
    from headway.settings.overrides import Overrides
    from headway.training.request import TrainRequest
    from headway.training.run import Training

    whole, scratch = options.work / f"{task.name}-data", options.work / f"{task.name}-first"
    if whole.is_dir():
        return
    files = dict(files_of(task, options)["train"])
    request = TrainRequest(
        task=task.task, data=files.pop("data", None), valid=files.pop("valid", None), columns=files,
        overrides=Overrides(settings_of(task, "transformer", options)),
        start="none" if task.task == "classify" else None, out=scratch,
    )  # fmt: skip
    found = request.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    training = Training(
        settings=found.settings, out=scratch, device="cpu", bound_data=found.tables, quiet=True
    )
    training.task.prepare(training.settings, scratch, SILENT)
    (scratch / "data").rename(whole)
    shutil.rmtree(scratch)


def files_of(task: Task, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What training and the test read, by the keywords of `headway.train`."""
    data, some = options.data / task.name, options.examples
    if task.task == "translate":
        found: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
        for side, language in (("source", "en"), ("target", "de")):
            for use, part in (("train", "train"), ("test", "test_2016_flickr")):
                found[use][side] = str(_first(data / f"{part}.{language}", some, options))
            held = data / f"val.{language}"
            if held.exists():
                found["train"][f"valid_{side}"] = str(_first(held, some, options))
        return found
    if task.task == "complete":
        text = (data / "input.txt").read_text(encoding="utf-8")
        text = text[: some * 40] if some else text
        cut = len(text) * 9 // 10
        places = {"train": text[:cut], "test": text[cut:]}
        return {name: {"data": str(_put(options.work / f"{task.name}-{name}-{some}.txt", part))}
                for name, part in places.items()}  # fmt: skip
    train, test = (_first(data / f"{part}.tsv", some, options) for part in ("train", "test"))
    held = data / "dev.tsv"
    valid = {"valid": str(_first(held, some, options))} if held.exists() else {}
    return {"train": {"data": str(train), **valid}, "test": {"data": str(test)}}


def _first(path: Path, lines: int, options: argparse.Namespace) -> Path:
    """The file, or its first lines."""
    if not lines:
        return path
    some = path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]
    return _put(options.work / f"{lines}-{path.name}", "".join(some))


def _put(path: Path, text: str) -> Path:
    if not path.exists():
        scratch = path.with_suffix(".part")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
    return path


if __name__ == "__main__":
    main()
