"""Fidelity of a feature dictionary: explained variance and recovered loss on held-out text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.inside.capture.examples import Passage, mask_tokens
from headway.inside.capture.states import Site, batches, edit_states, record_states, stream_of
from headway.inside.measure.ablation import batch_outputs, losses, unit
from headway.tasks.loaded_run import LoadedRun

if TYPE_CHECKING:
    from headway.inside.measure.features.dictionary import FeatureDictionary

MAX_TOKENS = 4_000
"""Maximum number of tokens for the measurement, because every site needs three more forward
passes."""

MASKED = 0.15
"""Fraction of masked tokens for masked language models, as in the training of BERT."""


@torch.no_grad()
def measure_fidelity(
    run: LoadedRun, found: FeatureDictionary, texts: Sequence[Passage]
) -> dict[str, Any]:
    """Measure how well features reconstruct the hidden states, and the loss of the model with
    reconstructed states.

    `explained` is the explained variance and `l0` the number of active features per token, over all
    layers. `layers` has these values for each layer, and four losses: of the unchanged model
    (`loss`), and with the layer's states replaced by reconstructions (`rebuilt`), by their mean
    (`mean`) or by zero (`zero`).

    `recovered` is (zero − rebuilt) / (zero − loss); `recovered_mean` has the mean in place of zero.
    """
    texts = _first(_mask(run, texts, found.settings.seed), MAX_TOKENS)
    sums = [_Sums() for _ in found.sites]
    for batch in batches(run, texts):
        with record_states(run.model) as states:
            clean = batch_outputs(run, batch)
        for number, site in enumerate(found.sites):
            stream = stream_of(run.model, site)
            words_N = batch.ordinary(run, stream)
            x_ND = states[site][words_N]
            code_NA = found.codes(x_ND, site)
            rebuilt_ND = found.reconstruct(code_NA, site)
            own = sums[number]
            own.left += float((x_ND - rebuilt_ND).square().sum() / found.scale_S[number] ** 2)
            middle_D = found.mean_SD[number]
            own.total += float((x_ND - middle_D).square().sum() / found.scale_S[number] ** 2)
            own.active += int((code_NA > 0).sum())
            own.n += len(x_ND)
            others = {"rebuilt": rebuilt_ND, "mean": middle_D, "zero": torch.zeros_like(middle_D)}
            for name, value in others.items():
                with edit_states(run.model, _instead(site, words_N, value)):
                    changed = batch_outputs(run, batch)
                before_R, behind_R, _ = losses(clean, changed)
                own.add("loss", before_R if name == "rebuilt" else None)
                own.add(name, behind_R)
    layers = [own.facts() for own in sums]
    return {
        "explained": round(1 - sum(s.left for s in sums) / sum(s.total for s in sums), 4),
        "l0": round(sum(s.active for s in sums) / sum(s.n for s in sums), 2),
        "recovered": _average(layers, "recovered"),
        "recovered_mean": _average(layers, "recovered_mean"),
        "unit": unit(run),
        "layers": layers,
        "held_out_tokens": sum(text.n_tokens for text in texts),
    }


class _Sums:
    def __init__(self) -> None:
        self.left = self.total = 0.0
        self.active = self.n = 0
        self.losses: dict[str, list[Tensor]] = {}

    def add(self, name: str, values_R: Tensor | None) -> None:
        if values_R is not None:
            self.losses.setdefault(name, []).append(values_R)

    def facts(self) -> dict[str, Any]:
        found = {name: float(torch.cat(parts).mean()) for name, parts in self.losses.items()}
        loss, rebuilt = found["loss"], found["rebuilt"]
        facts: dict[str, Any] = {name: round(value, 4) for name, value in found.items()}
        facts["explained"] = round(1 - self.left / max(self.total, 1e-12), 4)
        facts["l0"] = round(self.active / max(self.n, 1), 2)
        for name, base in (("recovered", "zero"), ("recovered_mean", "mean")):
            lost = found[base] - loss
            facts[name] = round((found[base] - rebuilt) / lost, 4) if lost > 1e-3 else None
        return facts


def _average(layers: list[dict[str, Any]], name: str) -> float | None:
    values = [layer[name] for layer in layers if layer[name] is not None]
    return round(sum(values) / len(values), 4) if values else None


def _instead(
    wanted: Site, words_N: Tensor, value: Tensor
) -> Callable[[Site, Tensor], Tensor | None]:
    def edit(site: Site, x_ND: Tensor) -> Tensor | None:
        if site != wanted:
            return None
        x_ND = x_ND.clone()
        x_ND[words_N] = value.to(x_ND.dtype)
        return x_ND

    return edit


def _mask(run: LoadedRun, texts: Sequence[Passage], seed: int) -> list[Passage]:
    """Return the passages with masked positions for a masked model, whose loss is defined only
    there. Other models: unchanged."""
    if not run.spec.fills_masks:
        return list(texts)
    if texts[0].media is not None:
        return [replace(text, hides=text.line) for text in texts]
    random = torch.Generator().manual_seed(seed)
    found = []
    for text in texts:
        n = len(text.last)
        drawn = torch.rand(n, generator=random) < MASKED
        gaps = [row for row in range(1, n - 1) if drawn[row]]
        if gaps:
            found.append(mask_tokens(run, text, gaps))
    return found or list(texts)


def _first(texts: Sequence[Passage], tokens: int) -> list[Passage]:
    found: list[Passage] = []
    for text in texts:
        if sum(one.n_tokens for one in found) >= tokens:
            break
        found.append(text)
    return found
