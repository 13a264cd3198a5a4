"""Measurements of one input at each kept checkpoint of a training run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from headway.errors import FolderError, Option, UserError
from headway.inside.capture.reading import Reading
from headway.inside.capture.trace import Trace, trace
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.nn.lora import merge_tensors
from headway.tasks.history import History, read_history
from headway.tasks.loaded_run import LoadedRun
from headway.training.checkpoint import Checkpoints

FINAL = "final"

Measures = dict[str, dict[str, float]]
"""Measured values, keyed by figure and then by curve within the figure."""


@dataclass(frozen=True)
class CheckpointStage:
    """Copy of a run with the weights of one training step."""

    label: str
    step: int
    run: LoadedRun


def checkpoints_of(run: LoadedRun, *, asked: bool = False) -> list[Path]:
    """Return the folders of a run's kept checkpoints, oldest first.

    With `asked`, raise an error if there are none.
    """
    paths = Checkpoints(run.folder, 1, lambda line: None, owner=False).paths()
    if not paths and asked:
        made = "an imported model" if run.imported else f"{run.folder}"
        raise UserError(
            f"{made} has no checkpoints: it contains no folder checkpoints/step-N. Training keeps "
            "the last train.keep checkpoints, and copies of a run often omit them. Remove "
            f"{Option('checkpoints', True)} to see the final weights."
        )
    return paths


def stages(
    run: LoadedRun, note: Callable[[str], None] = lambda line: None, *, asked: bool = False
) -> Iterator[CheckpointStage]:
    """Yield the run with the weights of each checkpoint, and last with its final weights.

    Only one checkpoint is in memory at a time. Damaged checkpoints are skipped, with a message to
    `note`.
    """
    last_step = 0
    for path in checkpoints_of(run, asked=asked):
        try:
            stage = stage_at(run, path)
        except FolderError as error:
            note(f"warning: {error} The page omits this checkpoint.".replace("\n", " "))
            continue
        last_step = stage.step
        yield stage
    yield CheckpointStage(FINAL, _final_step(run, last_step), run)


def describe_kept(run: LoadedRun) -> str | None:
    """Return the origin of the final weights according to the training log, such as `average of the
    last 5`; None if it is unknown."""
    ended = history(run).end
    said = ended[-1].get("kept") if ended else None
    return said if isinstance(said, str) else None


def _final_step(run: LoadedRun, last: int) -> int:
    """Return the training step of the final weights: the best checkpoint's step if its weights are
    the final ones, otherwise the last step.

    `last`: step to return if there is no training log.
    """
    named = re.search(r"step-(\d+)", describe_kept(run) or "")
    if named:
        return int(named[1])
    ended = history(run).end
    return int(ended[-1]["step"]) if ended else last


def stage_at(run: LoadedRun, checkpoint: Path) -> CheckpointStage:
    """Load the weights of a checkpoint into a new model."""
    weights = merge_tensors(Checkpoints.weights(checkpoint), run.settings.lora.alpha)
    model = build_model(run.shape, device=run.device).eval()
    load_weights(model, weights, f"{checkpoint} does not fit the model of {run.folder}.")
    return CheckpointStage(label_of(checkpoint), _step(checkpoint), run.with_model(model))


def label_of(checkpoint: Path) -> str:
    return f"step {_step(checkpoint):,}"


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def trace_stages(
    run: LoadedRun,
    reading: Reading,
    note: Callable[[str], None] = lambda line: None,
    *,
    asked: bool = False,
) -> list[tuple[str, int, Trace]]:
    """Return the label, training step and trace of each checkpoint. All traces have the input and
    the outputs of `reading`."""
    return [
        (stage.label, stage.step, trace(stage.run, reading))
        for stage in stages(run, note, asked=asked)
    ]


def history(run: LoadedRun) -> History:
    """Return the training log of the run; empty if it is missing."""
    return read_history(run.folder)


def measures(now: Trace, final: Trace) -> Measures:
    """Return the measurements of one checkpoint on this input.

    `final`: trace of the final model on the same input.
    """
    found: Measures = {"loss": _loss(now, final), "entropy": {}, "pattern": {}}
    for kind, layers in now.attention.items():
        weights_HTS = torch.cat([layer.float() for layer in layers])
        found["entropy"][kind] = entropy(weights_HTS)
        name, heads_H = _pattern(kind, weights_HTS)
        found["pattern"][f"{kind}: {name}"] = float(heads_H.max())
    for stack, states in now.states.items():
        figure = found.setdefault(f"residual.{stack}", {})
        likeness = found.setdefault(f"cka.{stack}", {})
        pairs = zip(states, final.states[stack], strict=True)
        for layer, (state_TD, end_TD) in enumerate(pairs):
            name = "input" if layer == 0 else f"layer {layer}"
            figure[name] = rank_residual(state_TD)
            likeness[name] = linear_cka(state_TD, end_TD)
    return {name: values for name, values in found.items() if values}


def entropy(weights_HTS: Tensor) -> float:
    """Return the entropy of attention in nats, averaged over heads and queries. It is 0 if each
    query attends to a single token, and ln S for uniform attention over S tokens."""
    return float(-(weights_HTS * weights_HTS.clamp_min(1e-12).log()).sum(-1).mean())


def previous_H(weights_HTS: Tensor) -> Tensor:
    """Return the mean attention weight of each head on the previous token; zero for a text of one
    token."""
    if weights_HTS.shape[1] < 2:
        return weights_HTS.new_zeros(len(weights_HTS))
    return weights_HTS.diagonal(-1, dim1=1, dim2=2).mean(-1)


def diagonal_H(weights_HTS: Tensor) -> Tensor:
    """Return the mean attention weight of each head on the tokens at most one position from the
    diagonal."""
    _, n_rows, n_columns = weights_HTS.shape
    steps_T = torch.arange(n_rows) * ((n_columns - 1) / max(n_rows - 1, 1))
    near_TS = (torch.arange(n_columns) - steps_T[:, None]).abs() <= 1.0
    return (weights_HTS * near_TS).sum(-1).mean(-1)


def rank_residual(x_TD: Tensor) -> float:
    """Return the relative spread of the token vectors, ‖X − mean‖ / ‖X‖. It is 0 if all tokens have
    the same vector."""
    x_TD = x_TD.double()
    return float((x_TD - x_TD.mean(0)).norm() / x_TD.norm().clamp_min(1e-30))


def linear_cka(x_TD: Tensor, y_TD: Tensor) -> float:
    """Return the linear CKA of two sets of states: a similarity that is invariant to rotation and
    scale, from 0 to 1 (equal up to these)."""
    x_TD, y_TD = x_TD.double() - x_TD.double().mean(0), y_TD.double() - y_TD.double().mean(0)
    # The Gram matrix over tokens is smaller than the one over dimensions.
    x_TT, y_TT = x_TD @ x_TD.T, y_TD @ y_TD.T
    size = x_TT.norm() * y_TT.norm()
    return float((x_TT * y_TT).sum() / size) if size > 0 else 1.0


def _pattern(kind: str, weights_HTS: Tensor) -> tuple[str, Tensor]:
    if kind == "cross":
        return "diagonal", diagonal_H(weights_HTS)
    return "previous token", previous_H(weights_HTS)


def _loss(now: Trace, final: Trace) -> dict[str, float]:
    """Return the mean loss (nats) of this checkpoint on the tokens that the final model outputs.
    For embeddings, return 1 − cosine similarity to the final embedding."""
    ids = torch.tensor([output.id for output in now.reading.outputs])
    if not len(ids) or now.scores_RC is None or final.scores_RC is None:
        return {}
    if (ids < 0).any():
        same = torch.nn.functional.cosine_similarity(now.scores_RC, final.scores_RC, dim=-1)
        return {"1 − cosine with the final vector": float(1.0 - same.mean())}
    logs_RC = now.scores_RC.float().log_softmax(-1)
    return {"these outputs": float(-logs_RC.gather(1, ids[:, None]).mean())}
