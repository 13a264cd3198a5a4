"""Greedy decoding and sampling, in which hypotheses do not depend on each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from headway.decode.search.job import Hypothesis, Job, TokenChooser, top_k
from headway.decode.steps import DecodingSteps

TokenCallback = Callable[[int, int, int], bool]
"""Callback for new tokens. Arguments: index of the source, index of its hypothesis, and the token.
Returns whether to stop the hypothesis."""


@dataclass(frozen=True)
class Paths:
    """State of greedy decoding or sampling: B sources with W hypotheses each, of at most T
    tokens."""

    tokens_BWT: Tensor
    log_probs_BWT: Tensor
    length_BW: Tensor
    """Number of tokens of each hypothesis, including the end token. It no longer changes once the
    hypothesis has ended."""

    done_BW: Tensor
    limit_B: Tensor

    @classmethod
    def start(cls, limit_B: Tensor, width: int, room: int) -> Paths:
        shape, device = (len(limit_B), width), limit_B.device
        return cls(
            tokens_BWT=torch.zeros(*shape, room, dtype=torch.long, device=device),
            log_probs_BWT=torch.zeros(*shape, room, device=device),
            length_BW=torch.zeros(shape, dtype=torch.long, device=device),
            done_BW=torch.zeros(shape, dtype=torch.bool, device=device),
            limit_B=limit_B,
        )

    @property
    def done_B(self) -> Tensor:
        return self.done_BW.all(1)

    def after(self, token_BW: Tensor, log_prob_BW: Tensor, at_1: Tensor, eos: int) -> Paths:
        """Append one token to each hypothesis. `at_1`: number of tokens before this step, as a
        tensor on the device."""
        length_BW = self.length_BW + ~self.done_BW
        ended_BW = (token_BW == eos) | (length_BW >= self.limit_B[:, None])
        self.tokens_BWT.index_copy_(2, at_1, token_BW[:, :, None])
        self.log_probs_BWT.index_copy_(2, at_1, log_prob_BW[:, :, None])
        return replace(self, length_BW=length_BW, done_BW=self.done_BW | ended_BW)

    def watched(
        self, before: Paths, token_BW: Tensor, sources: Sequence[int], watch: TokenCallback
    ) -> Paths:
        """Call `watch` for the new token of each hypothesis that was not done in `before`. Return
        the state in which the hypotheses that `watch` stops are done."""
        rows = zip(sources, token_BW.tolist(), before.done_BW.tolist(), strict=True)
        stop = [
            [not done[w] and watch(source, w, token) for w, token in enumerate(tokens)]
            for source, tokens, done in rows
        ]
        return replace(self, done_BW=self.done_BW | torch.tensor(stop, device=token_BW.device))

    def keep(self, index_B: Tensor) -> Paths:
        return Paths(**{field.name: getattr(self, field.name)[index_B] for field in fields(self)})

    def cpu(self) -> Paths:
        return Paths(**{field.name: getattr(self, field.name).cpu() for field in fields(self)})

    def hypotheses(self, place: int, job: Job) -> list[Hypothesis]:
        """Return the hypotheses of one source, best first."""
        rows = zip(
            self.length_BW[place].tolist(),
            self.tokens_BWT[place].tolist(),
            self.log_probs_BWT[place].tolist(),
            strict=True,
        )
        found = [hypothesis(tokens[:n], log_probs[:n], job) for n, tokens, log_probs in rows]
        return sorted(found, key=lambda h: -h.score)


def generate_independently(
    steps: DecodingSteps,
    job: Job,
    width: int,
    pick: TokenChooser,
    watch: TokenCallback | None = None,
) -> list[list[Hypothesis]]:
    """Generate `width` hypotheses for each source.

    `pick` chooses the next token in each step. `watch` is called for every new token and may end
    its hypothesis.
    """
    room, device = max(job.limits), steps.device
    sources = list(range(len(job.limits)))
    paths = Paths.start(torch.tensor(job.limits, device=device), width, room)
    last_BW = torch.full((len(sources), width), job.specials.bos, device=device)
    results: list[list[Hypothesis]] = [[] for _ in sources]
    for at in range(room):
        job.between_steps()
        scores_RV = steps.step(last_BW)
        job.logits_processors(scores_RV, paths.tokens_BWT[:, :, :at].flatten(0, 1), sources)
        token_R1 = pick(scores_RV, at, sources)[:, None]
        log_prob_BW = scores_RV.gather(1, token_R1).view_as(last_BW)
        last_BW = token_R1.view_as(last_BW)
        at_1 = torch.tensor([at], device=device)
        before, paths = paths, paths.after(last_BW, log_prob_BW, at_1, job.specials.eos)
        if watch is not None:
            paths = paths.watched(before, last_BW, sources, watch)
        leaving = job.finished_sources(paths.done_B, at, sources)
        if not leaving:
            continue
        gone = paths.keep(torch.tensor(leaving, device=device)).cpu()
        for number, place in enumerate(leaving):
            results[sources[place]] = gone.hypotheses(number, job)
        staying = sorted(set(range(len(sources))) - set(leaving))
        if not staying:
            break
        sources = [sources[place] for place in staying]
        steps.keep(staying)
        index_B = torch.tensor(staying, device=device)
        paths, last_BW = paths.keep(index_B), last_BW[index_B]
    return results


def hypothesis(tokens: list[int], log_probs: list[float], job: Job) -> Hypothesis:
    finished = bool(tokens) and tokens[-1] == job.specials.eos
    log_prob = sum(log_probs)
    divisor = float(job.penalty(torch.tensor(len(tokens))))
    return Hypothesis(
        tokens[:-1] if finished else tokens, log_prob, log_prob / divisor, log_probs, finished
    )


def most_likely(scores_RV: Tensor, at: int, sources: Sequence[int]) -> Tensor:
    """Return the most probable token of each row: the `TokenChooser` of greedy decoding."""
    return top_k(scores_RV, 1)[1].squeeze(1)
