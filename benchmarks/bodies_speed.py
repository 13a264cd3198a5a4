"""How fast a finished run trains and decodes, and what memory a training takes."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import machine

TRIAL_S = 3.0


class Memory:
    """Hears a training's log: the most memory of its steps, evaluations left out, and its speed."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.before = device, resident()
        self.most, self.step = 0, 0
        self.rates: list[float] = []
        self.clean = True
        """Whether only steps have been since memory was last looked at."""

    @property
    def rate(self) -> float:
        """Tokens a second, the median of the log."""
        return statistics.median(self.rates) if self.rates else 0.0

    def heard(self, row: Mapping[str, Any]) -> None:
        if row.get("kind") == "train":
            self.step = max(self.step, int(row["step"]))
            if row.get("tokens_per_s"):
                self.rates.append(row["tokens_per_s"])
            if self.clean or not self.most:
                self.most = max(self.most, peak(self.device, self.before))
            self.clean = True
        else:
            self.clean = False
        forget_peak(self.device)


def resident() -> int:
    return _status("VmRSS")


def _status(key: str) -> int:
    """Bytes of this process, as Linux tells them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def peak(device: torch.device, before: int) -> int:
    """The most bytes since `forget_peak`: what torch held on a GPU, or more than `before` here."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return max(0, _status("VmHWM") - before)


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):  # then it is the most of all time
        Path("/proc/self/clear_refs").write_text("5")


def numbers(model: nn.Module) -> int:
    """Weights, or what a model that counts has counted."""
    weights = sum(weight.numel() for weight in model.parameters())
    return weights or sum(buffer.numel() for buffer in model.buffers())


def of_run(folder: Path, task: str, test: Mapping[str, str], device: str) -> dict[str, float]:
    """Tokens a second in training, by a trial of its steps, and what it writes in a second."""
    import headway
    from headway.settings.folder import load_run
    from headway.tasks.task import find_task
    from headway.training.distributed import Distributed
    from headway.training.trainer import Trainer

    settings = load_run(folder)
    found = {"train_tokens_per_s": 0.0}
    if settings.train.steps:
        prepared = find_task(settings).load_prepared(folder)
        if device == "cpu":
            found["step_bytes"] = step_bytes(Trainer(settings, prepared, Distributed.start(device)))
        worker = Trainer(settings, prepared, Distributed.start(device), compiled=False)
        found["train_tokens_per_s"] = worker.time(for_s=TRIAL_S).tokens_per_s
        del worker
    gc.collect()
    run = headway.load(folder, device=device)
    return found | decoding(run, task, test, torch.device(device))


def step_bytes(worker: Any) -> float:
    """What a step needs, counted: weights, gradients, what the optimiser keeps, and what the first
    part of a step keeps for the way back. What a process takes is mostly libraries."""
    from headway.training.feed import Cursor, iter_steps, part_tokens
    from headway.training.step import Step

    train, objective, ranks = worker.settings.train, worker.objective, worker.ranks
    rows, _ = next(iter_steps(objective, Cursor()))
    part = objective.parts(rows, part_tokens(train.micro_tokens, train.batch_tokens, ranks))[0]
    batch = objective.batch(part, ranks.device, None)
    step = Step(worker.model, worker.loss_of, worker.optimizer, ranks, clip=train.clip)
    kept = kept_by(lambda: step.add(batch, part.n_targets), worker.model)
    step.finish(1e-5)
    weights = list(worker.model.parameters())
    held = [*weights, *(weight.grad for weight in weights if weight.grad is not None)]
    for state in worker.optimizer.state.values():
        held += [value for value in state.values() if isinstance(value, Tensor)]
    return float(kept + sum(one.nbytes for one in held))


def kept_by(step: Callable[[], object], model: nn.Module) -> int:
    """Bytes that autograd holds on to from forward to backward, without the weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(kept.values())


def decoding(
    run: Any, task: str, test: Mapping[str, str], device: torch.device
) -> dict[str, float]:
    """Greedy, all at once; the better of two times behind a first one."""
    if task == "translate":
        lines = Path(test["source"]).read_text(encoding="utf-8").splitlines()
        asked, options = lines[:256], {"beam": 1}
    elif task == "complete":
        text = Path(test["data"]).read_text(encoding="utf-8")
        asked = [text[i : i + 40] for i in range(0, min(len(text), 64 * 200), 200)]
        options = {"sample": False}
    else:
        lines = Path(test["data"]).read_text(encoding="utf-8").splitlines()
        asked, options = [row.split("\t")[0] for row in lines[:512]], {}
    answers = run(asked, **options)
    seconds = []
    for _ in range(2):
        machine.synchronize(device)
        begun = time.perf_counter()
        answers = run(asked, **options)
        machine.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    rates = {"texts_per_s": len(asked) / min(seconds)}
    if task != "classify":
        rates["characters_per_s"] = sum(len(str(one)) for one in answers) / min(seconds)
    return rates
