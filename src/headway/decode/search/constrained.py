"""Beam search with required phrases (after Post & Vilar 2018).

Hypotheses are grouped into banks by the number of required tokens that they contain, and every bank
gets a share of the beam. A hypothesis that has begun a phrase therefore does not compete with
hypotheses that have not. The hypothesis with the most required tokens always stays in the beam and
can always continue, so every output contains all phrases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.decode.logits_processors import Phrase
from headway.decode.search.job import Hypothesis, Job, top_k
from headway.decode.steps import DecodingSteps
from headway.errors import ConfigError
from headway.settings.decode import DecodeSettings


@dataclass(frozen=True)
class PhraseProgress:
    """Progress of a hypothesis towards its required phrases."""

    missing: tuple[Phrase, ...]
    tail: Phrase = ()
    """Longest suffix of the hypothesis that is a proper prefix of a missing phrase."""

    @property
    def need(self) -> int:
        """Number of required tokens that are not yet in the hypothesis."""
        return sum(map(len, self.missing)) - len(self.tail)

    @property
    def wanted(self) -> set[int]:
        """Tokens that continue the phrase in progress or start a missing phrase."""
        size = len(self.tail)
        begun = {p[size] for p in self.missing if p[:size] == self.tail}
        return begun | {p[0] for p in self.missing}

    def after(self, token: int) -> PhraseProgress:
        """Return the progress after one more token. A phrase counts once it is complete, and no
        token counts for two phrases."""
        seen = (*self.tail, token)
        for start in range(len(seen)):
            if seen[start:] in self.missing:
                place = self.missing.index(seen[start:])
                return PhraseProgress(self.missing[:place] + self.missing[place + 1 :])
        for start in range(len(seen)):
            if any(phrase[: len(seen) - start] == seen[start:] for phrase in self.missing):
                return replace(self, tail=seen[start:])
        return replace(self, tail=())


@dataclass(frozen=True)
class Branch:
    """Unfinished hypothesis, or a candidate continuation of one."""

    tokens: tuple[int, ...]
    token_log_probs: tuple[float, ...]
    log_prob: float
    progress: PhraseProgress
    parent: int = 0

    def extended(self, parent: int, token: int, log_prob: float, *, eos: int) -> Branch:
        return Branch(
            (*self.tokens, token),
            (*self.token_log_probs, log_prob),
            self.log_prob + log_prob,
            self.progress if token == eos else self.progress.after(token),
            parent,
        )


class ConstrainedBeam:
    """Beam of one source with required phrases."""

    def __init__(self, job: Job, number: int, width: int) -> None:
        wish = job.constraints[number]
        self.job, self.number, self.width = job, number, width
        self.limit, self.prefix = job.limits[number], wish.prefix
        self.alive = [Branch((), (), 0.0, PhraseProgress(wish.required))]
        self.ended: list[Hypothesis] = []
        self.done = False

    def grow(self, free_WV: Tensor, bound_WV: Tensor) -> None:
        """Advance by one step, given log-probabilities before and after the rules are applied."""
        eos, n = self.job.specials.eos, len(self.alive[0].tokens) + 1
        found = list(self._continuations(free_WV, bound_WV))
        new = [self._hypothesis(branch) for branch in found if branch.tokens[-1] == eos]
        self.ended = sorted(self.ended + new, key=lambda h: -h.score)[: self.width]
        alive = self._share(branch for branch in found if branch.tokens[-1] != eos)
        n_best = self.job.settings.n_best
        if not alive:
            self.done = True
            return
        self.alive = alive
        reachable = max(branch.log_prob for branch in alive) / self._divisor(self.limit)
        safe = len(self.ended) >= n_best and self.ended[n_best - 1].score > reachable
        self.done = safe or n >= self.limit

    def _continuations(self, free_WV: Tensor, bound_WV: Tensor) -> Iterator[Branch]:
        """Return the most probable continuations, and all continuations with a required token."""
        eos, n = self.job.specials.eos, len(self.alive[0].tokens)
        values_WC, tokens_WC = top_k(bound_WV, min(2 * self.width, bound_WV.shape[1]))
        rows = zip(self.alive, values_WC.tolist(), tokens_WC.tolist(), strict=False)
        for parent, (branch, values, tokens) in enumerate(rows):
            chosen = dict(zip(tokens, values, strict=True))
            if n >= len(self.prefix):
                wanted = branch.progress.wanted or {eos}
                more = {token: float(bound_WV[parent, token]) for token in wanted}
                # Required tokens are allowed even if a rule forbids them.
                chosen |= {
                    token: value
                    if value > -math.inf or token == eos
                    else float(free_WV[parent, token])
                    for token, value in more.items()
                }
            for token, value in chosen.items():
                if value > -math.inf and not (token == eos and branch.progress.need):
                    yield branch.extended(parent, token, value, eos=eos)

    def _share(self, branches: Iterator[Branch]) -> list[Branch]:
        """Fill the beam in rounds: the best hypothesis of each bank, then the second best of each,
        and so on."""
        banks: dict[int, list[Branch]] = {}
        for branch in sorted(branches, key=lambda branch: -branch.log_prob):
            banks.setdefault(branch.progress.need, []).append(branch)
        turns = [
            (turn, need, branch) for need, bank in banks.items() for turn, branch in enumerate(bank)
        ]
        turns.sort(key=lambda entry: entry[:2])
        return [branch for _, _, branch in turns[: self.width]]

    def _divisor(self, length: int) -> float:
        return float(self.job.penalty(torch.tensor(length)))

    def _hypothesis(self, branch: Branch, *, finished: bool = True) -> Hypothesis:
        score = branch.log_prob / self._divisor(len(branch.tokens))
        tokens = branch.tokens[:-1] if finished else branch.tokens
        values = list(branch.token_log_probs)
        return Hypothesis(list(tokens), branch.log_prob, score, values, finished)

    def result(self) -> list[Hypothesis]:
        """Return the best hypotheses, finished before unfinished ones. If any unfinished hypothesis
        contains all required phrases, those that do not are left out."""
        n_best = self.job.settings.n_best
        whole = [branch for branch in self.alive if not branch.progress.need]
        rest = [self._hypothesis(branch, finished=False) for branch in whole or self.alive]
        return (self.ended + sorted(rest, key=lambda h: -h.score))[:n_best]


MIN_WIDTH = 4
"""Minimum beam width. A narrower beam would force phrases into the output too early."""


def constrained_search(steps: DecodingSteps, job: Job, width: int) -> list[list[Hypothesis]]:
    """Return the best outputs of each source that contain all its required phrases."""
    beams = [ConstrainedBeam(job, number, width) for number in range(len(job.limits))]
    going, device = list(beams), steps.device
    tokens_BW = torch.full((len(beams), width), job.specials.bos, device=device)
    while True:
        job.between_steps()
        free_RV = steps.step(tokens_BW)
        bound_RV = free_RV.clone()
        job.logits_processors(
            bound_RV, _past(going, width, device), [beam.number for beam in going]
        )
        for place, beam in enumerate(going):
            rows = slice(place * width, (place + 1) * width)
            beam.grow(free_RV[rows].cpu(), bound_RV[rows].cpu())
        parents = [_filled([branch.parent for branch in beam.alive], width) for beam in going]
        staying = [place for place, beam in enumerate(going) if not beam.done]
        if not staying:
            return [beam.result() for beam in beams]
        steps.reorder(torch.tensor(parents, device=device))
        if len(staying) < len(going):
            steps.keep(staying)
            going = [going[place] for place in staying]
        tokens_BW = torch.tensor(
            [_filled([branch.tokens[-1] for branch in beam.alive], width) for beam in going],
            device=device,
        )


def _past(beams: Sequence[ConstrainedBeam], width: int, device: torch.device) -> Tensor:
    rows = [
        branch.tokens for beam in beams for branch in (beam.alive + [beam.alive[0]] * width)[:width]
    ]
    return torch.tensor(rows, dtype=torch.long, device=device).view(len(rows), -1)


def _filled(values: list[int], width: int) -> list[int]:
    """Fill unused slots with copies of the first hypothesis, whose results are ignored."""
    return values + values[:1] * (width - len(values))


def check_constrainable(settings: DecodeSettings) -> None:
    for name, asked in {
        "sample=true": settings.sample,
        f"groups={settings.groups}": settings.groups > 1,
        f"coverage={settings.coverage:g}": settings.coverage > 0,
    }.items():
        if asked:
            raise ConfigError(
                f"decode.{name} cannot be combined with required phrases, which need plain beam "
                "search. Remove one of the two."
            )
