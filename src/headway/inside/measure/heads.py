"""Importance, entropy, attention distance and roles of each attention head.

Importance follows Michel et al. 2019: each head has a gate g = 1, and its importance is the mean
over texts of |dL/dg|. L is the mean loss of a text's outputs in nats (for an embedding: its length
along its own direction). It needs one backward pass per text and no training.

A role describes where a head attends, such as the previous token, the first token or rare words.
Its score is a fraction of attention (or of queries) between 0 and 1. A head has a role if the score
reaches the threshold of the role in `ROLES`, and is at least `LIFT` times the score of uniform
attention over the same tokens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headway.inside.capture.anatomy import Anatomy, AttentionKind, RecordedTaps
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.examples import N_EXAMPLES, examples
from headway.inside.capture.forward import run_reading
from headway.inside.capture.interventions import NO_INTERVENTION, Intervention
from headway.inside.capture.streams import Reading, TokenStream, TracedOutput
from headway.inside.measure.pruning import HeadId
from headway.nn.tap import record
from headway.tasks.loaded_run import LoadedRun

__all__ = ["HeadAnalysis", "HeadMetrics", "heads"]

ALIGNED = 40
"""Number of texts on which the alignment role is measured. It is small because each output needs a
backward pass."""

REPEATS, PERIOD = 8, 24
"""Number of random texts for the induction role, and number of tokens that each text repeats."""


@dataclass(frozen=True)
class HeadMetrics:
    """Measurements of one attention head."""

    kind: str
    layer: int
    head: int
    """Index of the head among the remaining heads of its layer, from 0."""

    number: int
    """Index of the head in its layer before pruning, from 0."""

    importance: float
    """Importance as in Michel et al. 2019: the mean of |dL/dg| over texts, in nats. 0 if it was not
    measured."""

    entropy: float
    """Entropy of the head's attention in nats, averaged over queries."""

    evenness: float
    """Entropy relative to that of uniform attention: 1 for uniform attention, 0 for attention on a
    single token."""

    distance: float
    """Mean distance in tokens between a query and the keys that it attends to; for cross-attention,
    the distance from the diagonal."""

    scores: dict[str, float]
    """Score from 0 to 1 of each role that can be measured for this kind of attention."""

    roles: tuple[str, ...]
    """Roles of the head; the one with the highest score relative to its threshold is first."""

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.layer}.{self.head}"


@dataclass(frozen=True)
class HeadAnalysis:
    """Measurements of all attention heads of a model. `found["cross.0.1"]` returns one head."""

    heads: tuple[HeadMetrics, ...]
    n_texts: int
    n_outputs: int
    loss: float
    """Mean loss of the texts in nats. The importance of heads is computed from its gradients."""

    source: str = ""
    """Description of the origin of the texts, for display."""

    unit: str = "texts"
    """Plural name of the inputs for display, such as "texts" or "images"."""

    def __getitem__(self, name: str) -> HeadMetrics:
        return next(head for head in self.heads if head.name == name)

    def kinds(self) -> list[str]:
        return list(dict.fromkeys(head.kind for head in self.heads))

    def grid(self, kind: str) -> list[list[float]]:
        """Return the importance by layer and head, as nested lists, because layers may have
        different numbers of heads."""
        rows: dict[int, list[float]] = {}
        for head in self.heads:
            if head.kind == kind:
                rows.setdefault(head.layer, []).append(head.importance)
        return list(rows.values())

    def importance(self, *, normalised: bool = False) -> dict[HeadId, float]:
        """Return the importance of each head.

        With `normalised`, the values are divided by the L2 norm over the layer, as in Michel et al.
        2019.
        """
        found = {(h.kind, h.layer, h.head): h.importance for h in self.heads}
        if not normalised:
            return found
        squares: dict[tuple[str, int], float] = {}
        for (kind, layer, _), value in found.items():
            squares[kind, layer] = squares.get((kind, layer), 0.0) + value**2
        return {h: value / max(squares[h[:2]] ** 0.5, 1e-30) for h, value in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return all measurements as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: dict[str, Any]) -> HeadAnalysis:
        heads = tuple(
            HeadMetrics(**{**head, "roles": tuple(head["roles"])}) for head in facts["heads"]
        )
        return cls(**{**facts, "heads": heads})


def heads(
    run: LoadedRun,
    texts: Corpus | Sequence[str] | Sequence[Reading] | str,
    *,
    n: int = N_EXAMPLES,
    importance: bool = True,
    change: Intervention = NO_INTERVENTION,
) -> HeadAnalysis:
    """Measure importance, entropy, distance and roles of every head.

    Args:
        run: The run, opened by `load`.
        texts: Texts, readings, a `Corpus`, or the path of a file.
        n: Maximum number of texts.
        importance: Whether to compute the importance, which takes a backward pass per text.
        change: Tokens to hide and heads to disable. A disabled head has importance 0.

    Example:
        >>> from headway.inside import heads, load
        >>> found = heads(load("tatoeba-de-en"), ["Guten Morgen.", "Wo wohnst du?"])
        >>> found["cross.0.0"].roles
        ('alignment',)
    """
    readings, source = _readings(run, texts, n)
    anatomy = Anatomy.of(run.model)
    anatomy.check_by_attention("this study needs")
    kinds = anatomy.kinds
    seen = {(kind.name, layer): _Layer() for kind in kinds for layer in range(len(kind.layers))}
    frequencies = TokenFrequencies(readings)
    total = 0.0
    for number, reading in enumerate(readings):
        passed = _pass(run, reading, change, gradients=importance)
        total += passed.loss
        aligned = _align(run, reading, change) if number < ALIGNED else ([], [])
        for kind in kinds:
            for layer in range(len(kind.layers)):
                one = passed.layers[kind.name, layer]
                seen[kind.name, layer].add(kind, one, reading, frequencies, aligned)
    if run.spec.continues:
        _repeat(run, seen, replace(change, hidden=frozenset()))
    found = [
        fact
        for (kind, layer), one in seen.items()
        for fact in one.facts(kind, layer, run.shape.kept_heads.of(kind, layer))
    ]
    n_outputs = sum(len(reading.outputs) for reading in readings)
    loss = total / len(readings)
    return HeadAnalysis(tuple(found), len(readings), n_outputs, loss, source, readings[0].unit)


def _readings(run: LoadedRun, texts: Any, n: int) -> tuple[list[Reading], str]:
    if isinstance(texts, str):
        texts = [texts]
    if isinstance(texts, Corpus):
        return examples(run, texts, n), texts.name
    if texts and isinstance(texts[0], Reading):
        return list(texts), ""
    return examples(run, Corpus.of_lines(texts), n), "the given texts"


@dataclass(frozen=True)
class _Seen:
    weights_HTS: Tensor
    importance_H: Tensor
    causal: bool


@dataclass(frozen=True)
class _Passed:
    loss: float
    layers: dict[tuple[str, int], _Seen]


def _pass(run: LoadedRun, reading: Reading, change: Intervention, *, gradients: bool) -> _Passed:
    """Run one text forward and backward, and return the measurements of each layer's heads.

    The gradient dL/dg of a head's gate is computed as the sum of output × gradient over the head's
    output. Unlike the gradient of the gate itself, this separates the calls of layers that share
    weights.
    """
    with (
        torch.set_grad_enabled(gradients),
        record(run.model, "weights", "heads", gradients=True) as got,
    ):
        loss = -run_reading(run, reading, change).log_probs_R.mean()
        calls = RecordedTaps(run.model, got)
        outputs: dict[tuple[str, int], tuple[Tensor, Tensor, bool]] = {}
        for kind in Anatomy.of(run.model).kinds:
            for layer, attention in enumerate(kind.layers):
                weights_HTS = calls.next(attention.weights)[0]
                out_NHK = calls.next(attention.heads)
                outputs[kind.name, layer] = (weights_HTS, out_NHK, attention.scope.causal)
        grads: Sequence[Tensor | None] = [None] * len(outputs)
        if gradients:
            outs = [out_NHK for _, out_NHK, _ in outputs.values()]
            grads = torch.autograd.grad(loss, outs, allow_unused=True)
    layers = {}
    for (place, (weights_HTS, out_NHK, causal)), grad in zip(outputs.items(), grads, strict=True):
        worth_H = torch.zeros(len(weights_HTS))
        if grad is not None:
            worth_H = (grad * out_NHK).sum((0, 2)).abs().detach()
        layers[place] = _Seen(weights_HTS.detach(), worth_H, causal)
    return _Passed(float(loss.detach()), layers)


class _Layer:
    """Accumulated measurements of the attention heads in one layer."""

    def __init__(self) -> None:
        self.means, self.even = RunningMeans(), RunningMeans()

    def add(
        self,
        kind: AttentionKind,
        seen: _Seen,
        reading: Reading,
        frequencies: TokenFrequencies,
        aligned: tuple[list[int], list[int]],
    ) -> None:
        means, weights_HTS = self.means, seen.weights_HTS
        n_rows, n_columns = weights_HTS.shape[1:]
        means.add("importance", seen.importance_H, 1)
        entropy_HT = -(weights_HTS * weights_HTS.clamp(min=1e-12).log()).sum(-1)
        means.add("entropy", entropy_HT.sum(1), n_rows)
        sees_T = torch.full((n_rows,), float(n_columns))
        if seen.causal:
            sees_T = sees_T.minimum(torch.arange(n_rows) + 1.0)
        most_T = sees_T.log()
        means.add("evenness", entropy_HT[:, most_T > 0].sum(1), float(most_T.sum()))
        # In self-attention, the diagonal is the token itself.
        own_T = torch.arange(n_rows) * (1.0 if kind.name != "cross" else n_columns / n_rows)
        distance_TS = (torch.arange(n_columns) - own_T[:, None]).abs()
        means.add("distance", (weights_HTS * distance_TS).sum((1, 2)), n_rows)
        columns = reading.streams[kind.columns]
        rare = frequencies.rarest(columns)
        add_columns(means, self.even, weights_HTS, columns, rare, causal=seen.causal)
        if kind.name == "cross":
            add_alignment(means, self.even, weights_HTS, *aligned)
        else:
            add_places(means, self.even, weights_HTS, causal=seen.causal)

    def facts(self, kind: str, layer: int, kept: tuple[int, ...] | None) -> list[HeadMetrics]:
        plain = ("importance", "entropy", "evenness", "distance")
        by_name = {name: self.means.of(name) for name in self.means.sums}
        even = {name: float(self.even.of(name)) for name in self.even.sums}  # type: ignore[arg-type]
        found = []
        for head in range(len(self.means.sums["importance"])):
            values = {name: float(x_H[head]) for name, x_H in by_name.items() if x_H is not None}
            scores = {name: value for name, value in values.items() if name not in plain}
            numbers = {name: values.get(name, 0.0) for name in plain}
            roles = roles_of(scores, even)
            number = head if kept is None else kept[head]
            found.append(
                HeadMetrics(kind, layer, head, number, scores=scores, roles=roles, **numbers)
            )
        return found


def _align(run: LoadedRun, reading: Reading, change: Intervention) -> tuple[list[int], list[int]]:
    """Return the position of each output word, and the source token on which it depends most.

    That is the token with the largest |gradient × input| of the word's log-probability, summed over
    the embedding dimensions. Special tokens and punctuation are left out.
    """
    if "source" not in reading.streams:
        return [], []
    encoder = Anatomy.of(run.model).stack("encoder")
    given: list[Tensor] = []
    hook = encoder.front.register_forward_hook(lambda module, x, out: given.append(out))
    try:
        with torch.enable_grad():
            log_probs_R = run_reading(run, reading, change).log_probs_R
            pairs = []
            for number, output in enumerate(reading.outputs):
                if output.row is None or _is_apart(run, output):
                    continue
                (grad,) = torch.autograd.grad(log_probs_R[number], given[0], retain_graph=True)
                worth_S = (grad * given[0]).sum(-1).abs()
                worth_S[torch.tensor(reading.streams["source"].special)] = 0.0
                pairs.append((output.row, int(worth_S.argmax())))
    finally:
        hook.remove()
    return [row for row, _ in pairs], [column for _, column in pairs]


def _is_apart(run: LoadedRun, output: TracedOutput) -> bool:
    return output.id in run.vocab.target.specials or is_punctuation(output.name)


@torch.no_grad()
def _repeat(run: LoadedRun, seen: dict[tuple[str, int], _Layer], change: Intervention) -> None:
    """Measure the induction and duplicate roles on repeated random tokens."""
    tokenizer = run.vocab.target
    random = torch.Generator().manual_seed(0)
    ordinary = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.specials]
    period = min(PERIOD, len(ordinary), (run.shape.max_len - 1) // 2)
    if period < 4:
        return
    for _ in range(REPEATS):  # no token twice in a half, so that its copy is unique
        drawn = torch.randperm(len(ordinary), generator=random)[:period].tolist()
        half = [ordinary[i] for i in drawn]
        ids = tokenizer.as_open_prompt([*half, *half])
        stream = TokenStream(
            "text", tuple(ids), ("",) * len(ids), (-1,) * len(ids), (False,) * len(ids)
        )
        reading = Reading("", run.settings.task, {"text": stream}, (TracedOutput(0, ids[1], ""),))
        for place, one in _pass(run, reading, change, gradients=False).layers.items():
            layer = seen[place]
            add_repeats(layer.means, layer.even, one.weights_HTS, len(ids) - 2 * period, period)


LIFT = 2.0
"""Minimum required ratio of a head's score to that of uniform attention, because in a short text
even uniform attention can reach a threshold."""


@dataclass(frozen=True)
class Role:
    name: str
    threshold: float
    meaning: str
    mark: str
    """Abbreviation of one or two letters, for charts."""


ROLES = {
    role.name: role
    for role in (
        Role("previous", 0.4, "attention on the previous token", "P"),
        Role("next", 0.4, "attention on the next token", "N"),
        Role("self", 0.4, "attention on the token itself", "S"),
        Role("first", 0.4, "attention on the first token (often an attention sink)", "F"),
        Role("ends", 0.4, "attention on end tokens and punctuation", "E"),
        Role("alignment", 0.4, "output tokens whose strongest source token is the one that they "
             "depend on most (gradient × input)", "A"),
        Role("rare", 0.3, "attention on the rarest token of the text", "R"),
        Role("induction", 0.4, "attention on the token after an earlier copy of this token, in "
             "repeated random tokens", "I"),
        Role("duplicate", 0.4, "attention on an earlier copy of this token, in repeated random "
             "tokens", "D"),
    )
}  # fmt: skip
"""Roles of attention heads by name, with their score thresholds and meanings."""


def roles_of(scores: Mapping[str, float], even: Mapping[str, float]) -> tuple[str, ...]:
    """Return the roles of a head, with the highest score relative to its threshold first.

    `even`: scores of uniform attention on the same texts.
    """
    found = [
        (score / ROLES[name].threshold, name)
        for name, score in scores.items()
        if score >= ROLES[name].threshold and score >= LIFT * even.get(name, 0.0)
    ]
    return tuple(name for _, name in sorted(found, reverse=True))


class RunningMeans:
    """Running means of values per head, by name of the measurement."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: Counter[str] = Counter()

    def add(self, name: str, sum_H: Tensor, count: float) -> None:
        if count > 0:
            self.sums[name] = self.sums.get(name, torch.zeros_like(sum_H)) + sum_H
            self.counts[name] += count  # type: ignore[assignment]

    def of(self, name: str) -> Tensor | None:
        return self.sums[name] / self.counts[name] if name in self.sums else None


class TokenFrequencies:
    """Token counts in the measured texts, for finding the rarest token of a text."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self.counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for reading in readings:
            for name, stream in reading.streams.items():
                self.counts[name].update(stream.ids)

    def rarest(self, stream: TokenStream) -> int | None:
        """Return the position of a text's rarest token; None for media, whose positions have no
        token ids.

        Among equally frequent tokens, the one with the higher id counts as rarer.
        """
        places = [
            place
            for place, (piece, apart) in enumerate(zip(stream.pieces, stream.special, strict=True))
            if not apart and not is_punctuation(piece) and stream.ids[place] >= 0
        ]
        counts = self.counts[stream.name]
        if not places:
            return None
        return min(places, key=lambda at: (counts[stream.ids[at]], -stream.ids[at]))


def is_punctuation(piece: str) -> bool:
    return not any(character.isalnum() for character in piece)


def add_places(
    means: RunningMeans, even: RunningMeans, weights_HTS: Tensor, *, causal: bool
) -> None:
    """Add the scores of self-attention on the previous token, the next token, the token itself and
    the first token.

    Only queries for which these four tokens differ are counted.
    """
    n_rows = weights_HTS.shape[1]
    rows_R = torch.arange(min(2, n_rows), n_rows)
    if not causal:
        rows_R = rows_R[:-1]
    if not len(rows_R):
        return
    shares_R = 1.0 / (rows_R + 1.0) if causal else torch.full((len(rows_R),), 1.0 / n_rows)
    columns = {"previous": rows_R - 1, "self": rows_R, "first": torch.zeros_like(rows_R)}
    if not causal:
        columns["next"] = rows_R + 1
    for name, column_R in columns.items():
        means.add(name, weights_HTS[:, rows_R, column_R].sum(1), len(rows_R))
        even.add(name, shares_R.sum()[None], len(rows_R))


def add_columns(
    means: RunningMeans,
    even: RunningMeans,
    weights_HTS: Tensor,
    columns: TokenStream,
    rare: int | None,
    *,
    causal: bool,
) -> None:
    """Add the scores of attention on end tokens and punctuation, and on the rarest token."""
    n_rows, n_columns = weights_HTS.shape[1:]
    ends = [
        place
        for place, (piece, apart) in enumerate(zip(columns.pieces, columns.special, strict=True))
        if place and (apart or is_punctuation(piece))
    ]
    for name, places in (("ends", ends), ("rare", [] if rare is None else [rare])):
        if not places:
            continue
        first = min(places) + 1 if causal else 0  # a row cannot see what comes later
        n_seen = n_rows - first
        if n_seen < 1:
            continue
        chosen = torch.tensor(places)
        means.add(name, weights_HTS[:, first:, chosen].sum((1, 2)), n_seen)
        row_R1 = torch.arange(first, n_rows)[:, None]
        seen_R = (row_R1 + 1).float()[:, 0] if causal else torch.full((n_seen,), float(n_columns))
        there_R = (chosen <= row_R1).sum(1) if causal else torch.full((n_seen,), len(places))
        even.add(name, (there_R / seen_R).sum()[None], n_seen)


def add_alignment(
    means: RunningMeans,
    even: RunningMeans,
    weights_HTS: Tensor,
    rows: Sequence[int],
    columns: Sequence[int],
) -> None:
    """Add the fraction of queries whose strongest key is the correct one."""
    if rows:
        best_HR = weights_HTS[:, torch.tensor(rows)].argmax(-1)
        hits_HR = best_HR == torch.tensor(columns)
        means.add("alignment", hits_HR.float().sum(1), len(rows))
        even.add("alignment", torch.tensor([len(rows) / weights_HTS.shape[2]]), len(rows))


def add_repeats(
    means: RunningMeans, even: RunningMeans, weights_HTS: Tensor, start: int, period: int
) -> None:
    """Add the scores of attention from the second copy of repeated random tokens to the first.

    `start`: position of the first copy. `period`: number of tokens in a copy.
    """
    rows_R = torch.arange(start + period, start + 2 * period - 1)
    means.add("duplicate", weights_HTS[:, rows_R, rows_R - period].sum(1), len(rows_R))
    means.add("induction", weights_HTS[:, rows_R, rows_R - period + 1].sum(1), len(rows_R))
    for name in ("duplicate", "induction"):
        even.add(name, (1.0 / (rows_R + 1.0)).sum()[None], len(rows_R))
