"""Effects of a feature on the output: the words that it promotes, and the change of the loss when
it is removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.forward import ReadingBatch, gives_vector
from headway.inside.capture.ngrams import ngram_table
from headway.inside.capture.states import READ_AT_ONCE, Site, edit_states, record_states, stream_of
from headway.inside.measure.ablation import AT_ONCE, BatchOutputs, batch_outputs, losses
from headway.models.parts.output_heads import HiddenStates
from headway.nn.layout import Layout
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.readout import readout_of

if TYPE_CHECKING:
    from headway.inside.capture.examples import Passage
    from headway.inside.measure.features.browse import ActivationContext
    from headway.inside.measure.features.dictionary import FeatureDictionary

REMOVED = 3
"""Number of contexts from which each feature is removed to measure its effect; each needs a forward
pass."""

WORDS = 8
"""Number of words listed per feature and direction (promoted or suppressed), strongest first."""


class FeatureRemoval(NamedTuple):
    factor: int
    site: Site
    context: ActivationContext
    passage: Passage


@torch.no_grad()
def effects(
    run: LoadedRun,
    found: FeatureDictionary,
    texts: Sequence[Passage],
    contexts: Sequence[Sequence[ActivationContext]],
    sites: Sequence[int],
) -> list[dict[str, float] | None]:
    """Remove each feature from its strongest contexts, in its strongest layer, and return the
    effect of each feature.

    An effect has two keys: `nats` is the increase of the loss in these contexts, and `kl` the KL
    divergence between the outputs with and without the feature. The effect is None for a feature
    that is never active.
    """
    jobs = [
        FeatureRemoval(factor, found.sites[sites[factor]], context, texts[context.passage])
        for factor, many in enumerate(contexts)
        for context in many[:REMOVED]
        if stream_of(run.model, found.sites[sites[factor]]) == context.stream
    ]
    sums: dict[int, list[tuple[float, float]]] = defaultdict(list)
    held: list[FeatureRemoval] = []
    for number, job in enumerate(jobs):
        held.append(job)
        size = sum(one.passage.n_tokens for one in held)
        if size >= READ_AT_ONCE or number == len(jobs) - 1:
            for one, value in zip(held, _remove(run, found, held), strict=True):
                sums[one.factor].append(value)
            held = []
    return [_mean(sums[factor]) if factor in sums else None for factor in range(found.n)]


def _mean(values: list[tuple[float, float]]) -> dict[str, float]:
    nats, kl = (sum(part) / len(values) for part in zip(*values, strict=True))
    return {"nats": round(nats, 4), "kl": round(kl, 4)}


def _remove(
    run: LoadedRun, found: FeatureDictionary, jobs: list[FeatureRemoval]
) -> list[tuple[float, float]]:
    batch = ReadingBatch.of(run, [job.passage for job in jobs])
    with record_states(run.model) as states:
        clean = batch_outputs(run, batch)
    parts: dict[Site, tuple[Tensor, Tensor]] = {}
    for site in {job.site for job in jobs}:
        parts[site] = _parts(run, found, batch, jobs, site, states[site])

    def without(site: Site, x_ND: Tensor) -> Tensor | None:
        if site not in parts:
            return None
        rows_R, part_RD = parts[site]
        return x_ND.index_add(0, rows_R, -part_RD.to(x_ND.dtype))

    with edit_states(run.model, without):
        changed = batch_outputs(run, batch)
    before_R, behind_R, kl_R = losses(clean, changed)
    found_values = []
    for number, job in enumerate(jobs):
        rows_R = _read_there(clean, number, job, batch.last)
        grew = (behind_R[rows_R] - before_R[rows_R]).mean() if rows_R.any() else torch.tensor(0.0)
        moved = kl_R[rows_R].mean() if rows_R.any() else torch.tensor(0.0)
        found_values.append((float(grew), float(moved)))
    return found_values


def _parts(
    run: LoadedRun,
    found: FeatureDictionary,
    batch: ReadingBatch,
    jobs: list[FeatureRemoval],
    site: Site,
    x_ND: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return indices of tokens at a site, and the vectors that the features to remove add to these
    tokens."""
    starts = batch.streams[stream_of(run.model, site)].layout.starts_B.tolist()
    rows, factor = [], []
    for number, job in enumerate(jobs):
        fires = [i for i, value in enumerate(job.context.values) if value > 0]
        if job.site == site:
            rows += [starts[number] + job.context.first + i for i in fires]
            factor += [job.factor] * len(fires)
    rows_R = torch.tensor(rows, device=x_ND.device, dtype=torch.long)
    factor_R = torch.tensor(factor, device=x_ND.device, dtype=torch.long)
    code_R = found.codes(x_ND[rows_R], site).gather(1, factor_R[:, None])
    scale = found.scale_S[found.sites.index(site)]
    return rows_R, code_R * found.atoms_AD[factor_R] * scale


def _read_there(clean: BatchOutputs, number: int, job: FeatureRemoval, last: str) -> Tensor:
    """Return a boolean mask of the outputs in which the effect of a removal is measured.

    These are the outputs within the context. All outputs of the text count if an output is read
    from the whole text, or if the context is in another stream.
    """
    own_R = clean.owner_R == number
    if job.context.stream != last or (clean.place_R < 0).any():
        return own_R
    end = job.context.first + len(job.context.values)
    return own_R & (clean.place_R >= job.context.first) & (clean.place_R < end)


@torch.no_grad()
def promoted_words(run: LoadedRun, found: FeatureDictionary) -> list[dict[str, Any]]:
    """Return the words (or labels) whose scores each feature raises or lowers most.

    A feature is added with activation 1 to the mean state of the last layer. The result is empty if
    the output head does not read these states.
    """
    part = Anatomy.of(run.model).stacks[-1]
    own = [site for site in found.sites if site[0] == part.name]
    readout = readout_of(run.settings)
    poolers = readout.pools and "pooled" in getattr(run.model, "heads", {})
    if not own or poolers or gives_vector(run) or not run.spec.has_probabilities:
        return [{} for _ in range(found.n)]
    s = found.sites.index(own[-1])

    n_first = getattr(run.model, "n_first", None) or 1
    table = ngram_table(run.model)
    share = 1.0 if table is None else 1.0 - float(table.share)

    def read(x_RD: Tensor) -> Tensor:
        norm = part.stack.final_norm
        x_RD = x_RD if norm is None else norm(x_RD)
        each = Layout.of([len(x_RD)], x_RD.device)
        if readout.pools:  # each row counts as an example
            x_RD = x_RD.repeat_interleave(n_first, 0)
            each = Layout.of([n_first] * (len(x_RD) // n_first), x_RD.device)
        # The scores of the n-gram model are constant here; only the share of the layers in the
        # logits changes.
        return share * readout.of(run.model, HiddenStates(x_RD, each)).averaged_logits()

    middle_1C = read(found.mean_SD[s][None])
    names = _Names(run)
    entries: list[dict[str, Any]] = []
    for atoms_AD in (found.atoms_AD * found.scale_S[s]).split(AT_ONCE):
        gain_AC = read(found.mean_SD[s] + atoms_AD) - middle_1C
        gain_AC -= gain_AC.mean(1, keepdim=True)
        n = min(WORDS, gain_AC.shape[1] // 2)
        for sign, name in ((1, "promotes"), (-1, "suppresses")):
            top = (sign * gain_AC).topk(n, dim=1)
            listed = [
                [[names(c), round(sign * value, 3)] for c, value in zip(ids, values, strict=True)]
                for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
            ]
            if sign == 1:
                entries += [{name: words} for words in listed]
            else:
                for entry, words in zip(entries[-len(listed) :], listed, strict=True):
                    entry[name] = words
    return entries


class _Names:
    """Function that converts ids of words or labels to their names."""

    def __init__(self, run: LoadedRun) -> None:
        self.words = run.vocab.target if run.spec.in_words else None
        self.labels = run.settings.labels

    def __call__(self, number: int) -> str:
        if self.words is not None:
            return self.words.tokens([number])[0]
        return self.labels[number] if number < len(self.labels) else str(number)
