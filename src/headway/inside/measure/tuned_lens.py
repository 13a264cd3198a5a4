"""Tuned lens: an affine map for each layer that predicts the state of the last layer.

The maps are fitted to the predictions of the last layer (Belrose et al. 2023). Each map starts as
the plain logit lens, and stays so if the fit does not help on validation lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headway.errors import DataError, FolderError, UserError
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import mask_tokens
from headway.inside.capture.forward import gives_vector
from headway.inside.capture.media import MediaInput, is_too_long
from headway.inside.capture.reading import GenerationOptions, Reading, read, read_masked
from headway.inside.capture.trace import trace
from headway.models.parts.output_heads import HiddenStates
from headway.nn.layout import Layout
from headway.storage import replace_file
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.readout import Read, readout_of

FEWEST = 20
"""Fewest lines of text from which some can be held out."""

MOST = 2000
"""Most examples of a corpus; more change little."""

STEPS, LOOKS = 320, 16
"""Steps of the fit, and the number of validations."""

ROWS = 128
"""Approximate number of tokens per step."""

RATE = 5e-3
SHRINK = 0.02
"""Weight decay towards the plain lens, relative to a step."""

HIDDEN = 0.15
"""Fraction of the tokens that are masked for a masked language model, if a line has no gap."""


@dataclass(frozen=True)
class TunedLens:
    """Fitted maps: layer l is read as x + x·matrix + shift; the last layer has no map."""

    matrix_LDD: Tensor
    shift_LD: Tensor
    plain_L: Tensor
    """Divergence of the plain lens from the last layer, in nats, on held-out lines; for
    reconstructions the mean squared difference."""

    tuned_L: Tensor
    """Divergence of the tuned lens, measured in the same way."""

    n_lines: int
    n_held_out: int

    def apply(self, layer: int, x_ND: Tensor) -> Tensor:
        return x_ND + x_ND @ self.matrix_LDD[layer] + self.shift_LD[layer]

    def check(self, n_layers: int, width: int) -> None:
        """Raise an error if the lens was fitted for another model."""
        if self.shift_LD.shape != (n_layers, width):
            mine = " × ".join(map(str, self.shift_LD.shape))
            raise UserError(
                f"this tuned lens was fitted for {mine} (layers × width), but the model has "
                f"{n_layers} × {width}. Fit a lens for this run."
            )

    def save(self, path: Path) -> None:
        tensors = {
            "matrix": self.matrix_LDD,
            "shift": self.shift_LD,
            "plain": self.plain_L,
            "tuned": self.tuned_L,
        }
        facts = {"lines": self.n_lines, "held_out": self.n_held_out}
        kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda part: save_file(kept, part, {"lens": json.dumps(facts)}))
        except OSError as error:
            raise FolderError(f"cannot write {path}: {error.strerror}.") from error

    @classmethod
    def load(cls, path: Path) -> TunedLens:
        try:
            with safe_open(path, "pt") as file:
                facts = json.loads(file.metadata()["lens"])
                matrix_LDD, shift_LD, plain_L, tuned_L = map(
                    file.get_tensor, ("matrix", "shift", "plain", "tuned")
                )
            n_layers, width = shift_LD.shape
            shapes = [(n_layers, width, width), (n_layers,), (n_layers,)]
            if [tuple(each.shape) for each in (matrix_LDD, plain_L, tuned_L)] != shapes:
                raise ValueError("the shapes of its tensors do not match")
            counts = int(facts["lines"]), int(facts["held_out"])
            return cls(matrix_LDD, shift_LD, plain_L, tuned_L, *counts)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise FolderError(
                f"cannot read a tuned lens from {path} ({type(error).__name__}: {error}). "
                "To write a tuned lens: `headway.inside.tune(run, lines).save(path)`"
            ) from error


LineStates = Tensor
"""Vectors of one example that the head reads, for each layer (L T D)."""

AffineMaps = tuple[Tensor, Tensor]
"""Matrices and shifts of the maps."""


def tune(run: LoadedRun, lines: Corpus | Sequence[str], seed: int = 0) -> TunedLens:
    """Fit a tuned lens on eight tenths of the lines.

    Another tenth selects the best step for each layer, which may be the plain lens. The last tenth
    is used only for the final measurement.
    """
    if gives_vector(run):
        raise UserError(
            "this run outputs a vector, not words or labels, so a tuned lens cannot be fitted."
        )
    corpus = lines if isinstance(lines, Corpus) else Corpus.of_lines(lines)
    given = corpus.first(MOST).examples
    texts = [one for one in given if isinstance(one, str) or not is_too_long(run, one)]
    if len(texts) < FEWEST:
        what = "lines of text" if corpus.lines else corpus.unit
        raise DataError(
            f"{len(texts)} {what} are too few for a tuned lens: at least {FEWEST} are needed, "
            "and a few hundred are better."
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(texts))
    tenth = max(1, len(texts) // 10)
    read_lines = [_line(run, texts[number], int(number), rng) for number in order]
    read_lines = [line for line in read_lines if line.shape[1]]
    held, choose, fit = read_lines[:tenth], read_lines[tenth : 2 * tenth], read_lines[2 * tenth :]
    found = _fit(run, fit, choose, rng)
    plain_L = _divergence(run, held, None)
    tuned_L = _divergence(run, held, found)
    return TunedLens(*found, plain_L, tuned_L, n_lines=len(texts), n_held_out=tenth)


def _fit(
    run: LoadedRun, fit: list[LineStates], choose: list[LineStates], rng: np.random.Generator
) -> AffineMaps:
    n_layers, _, width = fit[0].shape
    matrix_LDD = torch.zeros(n_layers - 1, width, width, requires_grad=True)
    shift_LD = torch.zeros(n_layers - 1, width, requires_grad=True)
    best = (matrix_LDD.detach().clone(), shift_LD.detach().clone())
    best_L = _divergence(run, choose, None)
    optimiser = torch.optim.AdamW([matrix_LDD, shift_LD], lr=RATE, weight_decay=SHRINK)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for number, batch in enumerate(islice(_endless(fit, rng), STEPS), 1):
        kl_L = _batch_divergence(run, batch, (matrix_LDD, shift_LD)).mean(1)
        matrix_LDD.grad, shift_LD.grad = torch.autograd.grad(kl_L.sum(), [matrix_LDD, shift_LD])
        optimiser.step()
        schedule.step()
        if number % (STEPS // LOOKS):
            continue
        maps = (matrix_LDD.detach(), shift_LD.detach())
        now_L = _divergence(run, choose, maps)
        better = now_L < best_L
        best_L = torch.where(better, now_L, best_L)
        for kept, new in zip(best, maps, strict=True):
            kept[better] = new[better]
    return best


@torch.no_grad()
def _divergence(run: LoadedRun, lines: list[LineStates], maps: AffineMaps | None) -> Tensor:
    """Mean divergence of each layer but the last from the last one, over all outputs of the
    lines."""
    found = [_batch_divergence(run, batch, maps) for batch in _batches(lines)]
    return torch.cat(found, dim=1).mean(1)


def _batch_divergence(run: LoadedRun, batch: list[LineStates], maps: AffineMaps | None) -> Tensor:
    states_LND = torch.cat(batch, dim=1)
    layout = Layout.of([line.shape[1] for line in batch])
    with torch.no_grad():
        last_RC = _read_out(run, states_LND[-1], layout).averaged_logits()
    found = []
    for layer, x_ND in enumerate(states_LND[:-1]):
        read = _read_out(run, _map(x_ND, maps, layer), layout)
        found.append(read.divergence(read.averaged_logits(), last_RC, 1.0))
    return torch.stack(found)


def _map(x_ND: Tensor, maps: AffineMaps | None, layer: int) -> Tensor:
    return x_ND if maps is None else x_ND + x_ND @ maps[0][layer] + maps[1][layer]


def _read_out(run: LoadedRun, x_ND: Tensor, layout: Layout) -> Read:
    """Read outputs from the given states, or from whole examples if the head pools."""
    norm = Anatomy.of(run.model).stacks[-1].stack.final_norm
    x_ND = x_ND if norm is None else norm(x_ND)
    return readout_of(run.settings).of(run.model, HiddenStates(x_ND, layout))


def _endless(lines: list[LineStates], rng: np.random.Generator) -> Iterator[list[LineStates]]:
    while True:
        yield from _batches([lines[number] for number in rng.permutation(len(lines))])


def _batches(lines: list[LineStates]) -> Iterator[list[LineStates]]:
    batch: list[LineStates] = []
    for line in lines:
        batch.append(line)
        if sum(one.shape[1] for one in batch) >= ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _line(
    run: LoadedRun, text: str | MediaInput, number: int, rng: np.random.Generator
) -> LineStates:
    # A language model reads the line and generates nothing; other models decode without a beam.
    gaps = run.spec.fills_masks
    if gaps and not isinstance(text, str):
        reading = read_masked(run, text, number)
    else:
        reading = read(
            run,
            text,
            GenerationOptions(decode=replace(run.settings.decode, beam=1), max_new_tokens=0),
        )
        reading = _with_gaps(reading, run, rng) if gaps else reading
    states = trace(run, reading).states[Anatomy.of(run.model).stacks[-1].name]
    rows = [output.row for output in reading.outputs if output.row is not None]
    states_LTD = torch.stack(states)
    return states_LTD[:, rows] if rows or not reading.outputs else states_LTD


def _with_gaps(reading: Reading, run: LoadedRun, rng: np.random.Generator) -> Reading:
    """Mask some tokens, as in training; a text that has gaps keeps these."""
    tokenizer, text = run.vocab.source, reading.last
    if tokenizer.mask in text.ids:
        return reading
    plain = [row for row, apart in enumerate(text.special) if not apart]
    n_hidden = max(1, round(HIDDEN * len(plain)))
    rows = sorted(int(row) for row in rng.choice(plain, min(n_hidden, len(plain)), replace=False))
    return mask_tokens(run, reading, rows)
