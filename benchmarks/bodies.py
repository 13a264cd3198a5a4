"""What each body learns, how fast, and how it grows with length: Transformer, LSTM, GRU,
convolution and SHA-RNN on the same data, with as many parameters, in the same loop.

`python -m benchmarks.bodies DATA` where DATA has multi30k/, tinyshakespeare/ and sst2/.

Equal parameters: layers are as many, and the width of a body is the one (a multiple of 8) whose
model comes nearest to the Transformer's number of weights with the vocabulary that is asked for;
the number that each really has is saved too. Once all see as many tokens (`--tokens`), once they
have as many minutes (`--minutes`). What is measured of a run: its score on the test set, tokens a
second in training (the median of the log), tokens a second in decoding (or texts, where nothing is
written), the most memory that training took. Each piece is a process of its own, and one that is
in `--work` already is not made again.

Growth: one sequence of 64 … 8,192 tokens, forward and backward. Memory is the most that the device
held (CUDA), or what is kept for the backward pass, counted (CPU). With one thread on a CPU decoding
and growth are timed by the core, so that others on the machine do not count.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from headway.models.build import build_model
from headway.models.summary import activations, count, outline
from headway.nn.layout import Layout
from headway.settings.load import model_settings, parse_override

LENGTHS = tuple(64 << n for n in range(8))
ARMS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "lstm": {"body": "lstm"},
    "gru": {"body": "gru"},
    "convolution": {"body": "convolution"},
    "sha-rnn": {"body": "sha-rnn"},
    "lstm, additive": {"body": "lstm", "memory": "additive"},
    "lstm, dot": {"body": "lstm", "memory": "dot"},
    "lstm, last": {"body": "lstm", "memory": "last"},
    "gru, additive": {"body": "gru", "memory": "additive"},
    "convolution, dot": {"body": "convolution", "memory": "dot"},
}
"""What a row of the table asks of the model."""


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


TASKS = {
    one.name: one
    for one in (
        Task("multi30k", "translate", "seq2seq", "bleu",
             ("transformer", "lstm, additive", "lstm, dot", "lstm, last", "gru, additive",
              "convolution, dot"),
             8000, {"n_layers": 3, "d_model": 256, "n_heads": 4, "d_ff": 1024},
             {"tokenizer.kind": "bpe", "tokenizer.vocab_size": 8000}),
        Task("tinyshakespeare", "complete", "decoder", "loss",
             ("transformer", "lstm", "gru", "convolution", "sha-rnn"),
             70, {"n_layers": 4, "d_model": 256, "n_heads": 4, "d_ff": 1024},
             {"tokenizer.kind": "characters", "decode.max_len": 200}),
        Task("sst2", "classify", "encoder", "accuracy",
             ("transformer", "lstm", "gru", "convolution"),
             8000, {"n_layers": 2, "d_model": 128, "n_heads": 4, "d_ff": 512},
             {"tokenizer.vocab_size": 8000, "model.ngrams": 0}, 2048),
    )
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="a folder with multi30k, tinyshakespeare and sst2")
    parser.add_argument("--sets", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--bodies", nargs="+", help="some rows of the table, by their beginnings")
    parser.add_argument("--tokens", type=float, default=20e6, help="of equal trainings; 0: none")
    parser.add_argument("--minutes", type=float, default=5.0, help="of equal trainings; 0: none")
    parser.add_argument("--layers", type=int, help="of every model; else those of its set")
    parser.add_argument("--width", type=int, help="of the Transformer; else that of its set")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE, of all trainings")
    parser.add_argument("--examples", type=int, default=0, help="of training and test; 0: all")
    parser.add_argument("--lengths", type=int, nargs="*", default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default=machine.pick_device().type)
    parser.add_argument("--work", type=Path, default=Path("runs/bodies"))
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    parser.add_argument("--name", default="bodies", help="of the result")
    options = parser.parse_args(words)
    if options.piece:
        print(json.dumps(piece(json.loads(options.piece), options)))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    results: dict[str, Any] = {"sets": {}, "growth": {}}
    asked = {"tokens": options.tokens, "minutes": options.minutes, "layers": options.layers,
             "width": options.width, "seed": options.seed, "set": options.set}  # fmt: skip
    for name in options.sets:
        results["sets"][name] = measured(task_of(name, options), options)
        machine.save(options.name, device, {**results, "options": asked})
    if options.lengths:
        results["growth"] = growth(options, device)
    print(machine.save(options.name, device, {**results, "options": asked}))


def task_of(name: str, options: argparse.Namespace) -> Task:
    """The task, with the Transformer that was asked for."""
    task, wide = TASKS[name], options.width
    own = {"n_layers": options.layers} if options.layers else {}
    own |= {"d_model": wide, "d_ff": 4 * wide} if wide else {}
    return replace(task, shape={**task.shape, **own})


def measured(task: Task, options: argparse.Namespace) -> dict[str, Any]:
    """All rows of one set, once by tokens and once by minutes."""
    found: dict[str, Any] = {"task": task.task, "score": task.score, "rows": {}}
    kinds = {"tokens": options.tokens, "minutes": options.minutes}
    for arm in chosen(task.arms, options.bodies):
        found["rows"][arm] = {}
        for kind in (kind for kind, amount in kinds.items() if amount):
            row = kept(task, arm, kind, options)
            found["rows"][arm][kind] = row
            print(line(task, arm, kind, row), flush=True)
    return found


def chosen(arms: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    return [arm for arm in arms if not wanted or any(arm.startswith(one) for one in wanted)]


def kept(task: Task, arm: str, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """One training and what was measured of it, made once."""
    short = arm.replace(", ", "-")
    place = options.work / f"{task.name}-{short}-{kind}-{options.seed}.json"
    if not place.exists():
        what = {"task": task.name, "arm": arm, "kind": kind, "out": str(place.with_suffix(""))}
        given = ("tokens", "minutes", "layers", "width", "seed", "examples", "device", "work")
        own = {name: getattr(options, name) for name in given}
        said = machine.python(
            "-m", "benchmarks.bodies", str(options.data), "--piece", json.dumps(what),
            *(word for name, value in own.items() if value is not None
              for word in (f"--{name}", str(value))),
            "--set", *options.set,
        )  # fmt: skip
        place.write_text(said.strip().splitlines()[-1])
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def piece(what: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Train, score, write: all of one row, in this process."""
    import headway

    task, device = task_of(what["task"], options), torch.device(options.device)
    model = matched(task, what["arm"])
    said: dict[str, Any] = {**task.said, **model, "train.seed": options.seed,
                            "train.batch_tokens": task.tokens}  # fmt: skip
    said |= {".".join(path): value for path, value in map(parse_override, options.set)}
    if what["kind"] == "tokens":
        said["train.steps"] = max(1, round(options.tokens / said["train.batch_tokens"]))
    budget = None if what["kind"] == "tokens" else 60 * options.minutes
    files = files_of(task, options)
    begun = time.perf_counter()
    run = headway.train(
        task.task, out=what["out"], settings=said, device=options.device, budget=budget,
        quiet=True, start="none" if task.task == "classify" else None, **files["train"],
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    memory = peak_bytes(device)
    test = files["test"]
    scores = dict(run.evaluate(**test) if "source" in test else run.evaluate(test["data"]))
    log = [json.loads(row) for row in (Path(what["out"]) / "metrics.jsonl").read_text().split("\n")
           if row]  # fmt: skip
    rates = [row["tokens_per_s"] for row in log if row.get("tokens_per_s")]
    steps = [row["step"] for row in log if row.get("kind") == "train"]
    return {
        "scores": {name: value for name, value in scores.items() if isinstance(value, int | float)},
        "parameters": sum(weight.numel() for weight in run.model.parameters()),
        "d_model": run.settings.model.d_model,
        "seconds": seconds,
        "steps": max(steps, default=0),
        "train_tokens_per_s": statistics.median(rates) if rates else 0.0,
        "train_bytes": memory,
        **decoding(run, task, files, device),
    }


def matched(task: Task, arm: str) -> dict[str, Any]:
    """The settings of a model with about as many weights as the task's Transformer."""
    plain = {f"model.{key}": value for key, value in task.shape.items()}
    own = ARMS[arm]
    if not own:
        return plain
    wanted, widths = size(task, {}), range(32, 2049, 8)
    above = bisect_left(widths, wanted, key=lambda width: size(task, _wide(task, own, width)))
    near = widths[max(0, above - 1) : above + 1]
    best = min(near, key=lambda width: abs(size(task, _wide(task, own, width)) - wanted))
    return {f"model.{key}": value for key, value in _wide(task, own, best).items()}


def _wide(task: Task, own: dict[str, Any], width: int) -> dict[str, Any]:
    found = {**own, "n_layers": task.shape["n_layers"], "d_model": width}
    return {**found, "d_ff": 4 * width} if own["body"] == "sha-rnn" else found


def size(task: Task, model: dict[str, Any]) -> int:
    whole = {"family": task.family, "vocab_size": task.vocabulary, "wiring": "pre",
             **(model or task.shape)}  # fmt: skip
    if task.family == "encoder":
        whole |= {"heads": ["classes"], "n_labels": 2, "n_segments": 0, "positions": "none"}
    elif not model:
        whole["positions"] = "rotary"
    return count(outline(model_settings(whole)))


def files_of(task: Task, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What training and the test read, by the keywords of `headway.train`."""
    data, some = options.data / task.name, options.examples
    if task.task == "translate":
        parts = {"train": "train", "test": "test_2016_flickr"}
        found: dict[str, dict[str, Any]] = {}
        for use, part in parts.items():
            found[use] = {
                side: str(_first(data / f"{part}.{language}", some, options))
                for side, language in (("source", "en"), ("target", "de"))
            }
        return found
    if task.task == "complete":
        text = (data / "input.txt").read_text(encoding="utf-8")
        text = text[: some * 40] if some else text
        cut = len(text) * 9 // 10
        places = {"train": text[:cut], "test": text[cut:]}
        for name, part in places.items():
            _put(options.work / f"{task.name}-{name}-{some}.txt", part)
        return {name: {"data": str(options.work / f"{task.name}-{name}-{some}.txt")}
                for name in places}  # fmt: skip
    train, test = (_first(data / f"{part}.tsv", some, options) for part in ("train", "test"))
    return {"train": {"data": str(train)}, "test": {"data": str(test)}}


def _first(path: Path, lines: int, options: argparse.Namespace) -> Path:
    """The file, or its first lines."""
    if not lines:
        return path
    some = path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]
    return _put(options.work / f"{lines}-{path.name}", "".join(some))


def _put(path: Path, text: str) -> Path:
    if not path.exists():
        path.write_text(text, encoding="utf-8")
    return path


def decoding(
    run: Any, task: Task, files: dict[str, dict[str, Any]], device: torch.device
) -> dict[str, float]:
    """Greedy, all at once; the second time counts."""
    if task.task == "translate":
        lines = Path(files["test"]["source"]).read_text(encoding="utf-8").splitlines()
        asked, options = lines[:256], {"beam": 1}
    elif task.task == "complete":
        text = Path(files["test"]["data"]).read_text(encoding="utf-8")
        asked = [text[i : i + 40] for i in range(0, min(len(text), 64 * 200), 200)]
        options = {"sample": False}
    else:
        lines = Path(files["test"]["data"]).read_text(encoding="utf-8").splitlines()
        asked, options = [row.split("\t")[0] for row in lines[:512]], {}
    run(asked, **options)
    begun = now(device)
    answers = run(asked, **options)
    seconds = now(device) - begun
    if task.task == "classify":
        return {"texts_per_s": len(asked) / seconds}
    written = sum(len(str(answer)) for answer in answers)
    return {"characters_per_s": written / seconds, "texts_per_s": len(asked) / seconds}


def now(device: torch.device) -> float:
    """Seconds, of this process alone where it has one thread."""
    machine.synchronize(device)
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time() if alone else time.perf_counter()


def peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def growth(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Seconds and bytes of a step on one sequence, by its length."""
    task, found = task_of("tinyshakespeare", options), dict[str, Any]()
    for arm in chosen(task.arms, options.bodies):
        model = {key.removeprefix("model."): x for key, x in matched(task, arm).items()}
        longest = max(options.lengths)
        settings = model_settings(
            {"family": "decoder", "vocab_size": task.vocabulary, "wiring": "pre",
             "max_len": longest, "dropout": 0.0, **model,
             **({"positions": "rotary", "attention_dropout": 0.0} if arm == "transformer" else {})}
        )  # fmt: skip
        found[arm] = {str(n): one_step(settings, n, options.rounds, device)
                      for n in options.lengths}  # fmt: skip
        print(arm, {n: f"{one['seconds'] * 1e3:.1f} ms" for n, one in found[arm].items()})
    return found


def one_step(settings: Any, n_tokens: int, rounds: int, device: torch.device) -> dict[str, float]:
    model = build_model(settings, device=device)
    if device.type == "cuda":
        model = model.to(torch.bfloat16)
    tokens_N = torch.randint(0, settings.vocab_size, (n_tokens,), device=device)

    def step() -> None:
        x_ND = model(tokens_N, Layout.of([n_tokens], device))
        x_ND.float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    for _ in range(2):
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(rounds):
        begun = now(device)
        step()
        times.append(now(device) - begun)
    seconds = statistics.median(times)
    if device.type == "cuda":
        return {"seconds": seconds, "bytes": float(torch.cuda.max_memory_allocated())}
    kept = activations(outline(settings), settings, n_tokens)
    return {"seconds": seconds, "bytes": float(kept.fused_bytes)}


def line(task: Task, arm: str, kind: str, row: dict[str, Any]) -> str:
    """A row of the table in the docs."""
    said = row.get("characters_per_s", row["texts_per_s"])
    cells = [task.name, arm, kind, f"{row['parameters'] / 1e6:.2f} M",
             f"{row['scores'].get(task.score, float('nan')):.3f}",
             f"{row['train_tokens_per_s']:,.0f}", f"{said:,.0f}",
             f"{row['train_bytes'] / 2**30:.2f} GiB"]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
