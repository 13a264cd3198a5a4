"""Averages of weights: over checkpoints, or as a moving average during training.

Averaged weights usually score better than each set of weights alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from headway.errors import FolderError, Option
from headway.models.build import build_model
from headway.models.folder import describe_difference, load_weights, model_weights, save_weights
from headway.models.int8_weights import to_int8
from headway.nn.lora import merge_tensors
from headway.settings.folder import (
    CHAT_TEMPLATE,
    CONFIG,
    TOKENIZER,
    file_in,
    load_run,
    load_settings,
)
from headway.storage import replace_file
from headway.training.checkpoint import Checkpoints
from headway.training.snapshot import verify
from headway.training.tensor_lists import add_, differences, scale_


def average(weights: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each tensor over several sets of weights, in the tensor's own type.

    Sums are in fp64, with one set in memory at a time. Tensors that are not floating point, such as
    counters, are taken from the last set.
    """
    sums: dict[str, Tensor] = {}
    last: Mapping[str, Tensor] = {}
    n = 0
    for n, one in enumerate(weights, 1):
        shapes = {name: tuple(tensor.shape) for name, tensor in one.items()}
        if last and shapes != {name: tuple(tensor.shape) for name, tensor in last.items()}:
            before = {name: tuple(tensor.shape) for name, tensor in last.items()}
            raise FolderError(
                f"checkpoint {n} cannot be averaged with the one before it: their models differ.\n"
                f"{describe_difference(before, shapes)}"
            )
        for name, tensor in one.items():
            if tensor.is_floating_point():
                number = tensor.to(torch.float64)
                sums[name] = sums[name].add_(number) if name in sums else number.clone()
        last = one
    if not n:
        raise ValueError("no weights to average")
    return {
        name: (sums[name] / n).to(tensor.dtype) if name in sums else tensor.clone()
        for name, tensor in last.items()
    }


def newest_undamaged(checkpoints: Checkpoints, n: int) -> list[Path]:
    """Return the newest `n` undamaged checkpoints, oldest first. Damaged checkpoints are reported
    and skipped, so there may be fewer."""
    found: list[Path] = []
    for path in reversed(checkpoints.paths()):
        try:
            verify(path)
        except (FolderError, OSError) as error:
            checkpoints.log(f"warning: {error} This checkpoint is left out of the average.")
            continue
        found.insert(0, path)
        if len(found) == n:
            break
    return found


def average_of(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Average the weights of checkpoints. Each checkpoint is verified as it is read."""
    return average(Checkpoints.weights(path) for path in paths)


def average_run(
    run: Path, last: int | None, out: Path, *, int8: bool = False, log: Callable[[str], None]
) -> str:
    """Save a model made from the checkpoints of a run, and return a description of the checkpoints
    used.

    Args:
        run: Run folder.
        last: Number of checkpoints to average, starting from the last. None: use the best
            checkpoint alone.
        out: Folder to save to, which may be the run folder.
        int8: Store the weights in 8 bits.
        log: Called with a line for each damaged checkpoint.
    """
    config = file_in(run, CONFIG)
    if out.resolve() != run.resolve() and (out / CONFIG).exists():
        raise FolderError(f"{out} already contains a model. Choose another {Option('out')}.")
    checkpoints = Checkpoints(run, keep=1, log=log, owner=False)
    paths = _select_checkpoints(checkpoints, run, last)
    model, tensors, lora = build_model(load_settings(run)), average_of(paths), load_run(run).lora
    if lora.rank:
        tensors = merge_tensors(tensors, lora.alpha)
    load_weights(model, tensors, f"the checkpoints do not fit the model of {config}.")
    weights = model_weights(model)
    save_weights(out, to_int8(weights) if int8 else weights)
    if out.resolve() != run.resolve():
        # Copy the settings last, because a folder with settings counts as complete.
        for path in (run / TOKENIZER, run / CHAT_TEMPLATE, config):
            if path.is_file():
                replace_file(out / path.name, partial(shutil.copyfile, path))
    steps = ", ".join(path.name.removeprefix("step-") for path in paths)
    return f"the best checkpoint, step {steps}" if last is None else f"the mean of steps {steps}"


def _select_checkpoints(checkpoints: Checkpoints, run: Path, last: int | None) -> list[Path]:
    if last is None:
        path = checkpoints.best_path()
        if path is None:
            raise FolderError(
                f"{run} has no undamaged best checkpoint. Average the last checkpoints instead: "
                f"{Option('last', takes='N')}."
            )
        return [path]
    paths = newest_undamaged(checkpoints, last)
    if len(paths) < last:
        have = f"{len(paths)} undamaged checkpoint{'s' * (len(paths) != 1)}"
        way_out = (
            f"Use {Option('last', len(paths))}."
            if paths
            else "Train the run first with `headway train`."
        )
        raise FolderError(
            f"{Option('last', last)} needs {last} checkpoints, but {run} has {have}. {way_out}"
        )
    return paths


UPDATES = "updates"


class Ema:
    """Exponential moving average of the weights.

    The update is average ← d · average + (1 − d) · weights, with d = min(decay, (1 + t) / (10 +
    t)), where t counts updates from 1. The small d of the first updates soon removes the random
    initial weights. All operations are in place on the device, so a CUDA graph can contain them.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = dict(model.named_parameters())
        self.averages = {name: w.detach().clone() for name, w in self.weights.items()}
        device = next(iter(self.weights.values())).device
        self.updates = torch.zeros((), device=device)
        self.is_swapped = False

    @torch.no_grad()
    def update(self) -> None:
        """Update the averages. Call this after each optimizer step."""
        assert not self.is_swapped
        self.updates += 1
        share = 1 - ((1 + self.updates) / (10 + self.updates)).clamp(max=self.decay)
        averages = list(self.averages.values())
        change = differences(list(self.weights.values()), averages)
        scale_(change, share)
        add_(averages, change)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Context manager in which the model has the averaged weights. Its own weights are restored
        afterwards, bit for bit."""
        assert not self.is_swapped
        self._exchange()
        self.is_swapped = True
        try:
            yield
        finally:
            self._exchange()
            self.is_swapped = False

    def tensors(self) -> dict[str, Tensor]:
        """Return the state to store in a checkpoint: the averages by weight name, and the number of
        updates."""
        assert not self.is_swapped
        return {**self.averages, UPDATES: self.updates}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore a state that `tensors` returned, in place."""
        own = self.tensors()
        wrong = sorted(
            name
            for name in own.keys() | tensors.keys()
            if name not in own or name not in tensors or own[name].shape != tensors[name].shape
        )
        if wrong:
            raise FolderError(
                "the saved average of the weights does not fit this model: the tensor "
                f"{wrong[0]} and {len(wrong) - 1} others differ."
            )
        for name, tensor in own.items():
            tensor.copy_(tensors[name])

    @torch.no_grad()
    def _exchange(self) -> None:
        """Swap weights and averages in place, so that references to a weight remain valid."""
        for name, weight in self.weights.items():
            kept = weight.detach().clone()
            weight.copy_(self.averages[name])
            self.averages[name].copy_(kept)
