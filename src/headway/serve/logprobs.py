"""`logprobs` of OpenAI's routes: tokens, their positions in the text and log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.decode.continuous import BatchMember
from headway.decode.stream import TextStream
from headway.serve.worker import Worker
from headway.tasks.answers import TextAnswer


@dataclass(frozen=True)
class Step:
    """One token as `logprobs` shows it."""

    name: str
    log_prob: float | None
    best: list[tuple[str, float]] | None
    start: int
    end: int
    """Its position in the text: `start` and `end` in characters."""


class Steps:
    """Tokens of one output in order, each returned once, as far as its text was sent."""

    def __init__(self, worker: Worker, member: BatchMember, w: int, before: str | None) -> None:
        """`before`: the prompt, if the text begins with it (`echo`)."""
        self.tokenizer, self.member, self.w = worker.run.tokenizer, member, w
        self.behind = 0 if before is None else len(before)
        self.given = 0
        self.known: list[Step] = []
        prompt = member.prompt
        if before is not None:
            ids = prompt[1:] if prompt[:1] == [self.tokenizer.bos] else prompt
            places, skipped = TextStream(self.tokenizer), len(prompt) - len(ids)
            for at, token in enumerate(ids, skipped):
                log_prob, best = _of_prompt(member, at)
                self.known.append(self._step(token, places, log_prob, best, 0))
        self.n_before = len(self.known)
        self.places = TextStream(self.tokenizer, prompt)

    def until(self, end: int) -> list[Step]:
        """New tokens whose text ends at or before `end`, which does not count the prompt."""
        self._read(len(self.member.log_probs[self.w]))
        n, end = self.given, end + self.behind
        while n < len(self.known) and (
            n < self.n_before or (self.known[n].start < end and self.known[n].end <= end)
        ):
            n += 1
        return self._give(n)

    def rest(self, out: TextAnswer) -> list[Step]:
        """All remaining tokens, without those of the stop string: it is not part of the text."""
        self._read(len(out.tokens))
        n, end = self.n_before + len(out.tokens), self.behind + len(out.text)
        while stopped(out) and n > self.n_before and self.known[n - 1].end > end:
            n -= 1
        return self._give(n)

    def _give(self, n: int) -> list[Step]:
        found, self.given = self.known[self.given : n], max(self.given, n)
        return found

    def _read(self, n: int) -> None:
        member, w = self.member, self.w
        for at in range(len(self.known) - self.n_before, n):
            best = member.top_log_probs[w][at] if member.top else None
            self.known.append(self._step(
                member.tokens[w][at], self.places, member.log_probs[w][at], best, self.behind
            ))  # fmt: skip

    def _step(
        self, token: int, places: TextStream, log_prob: float | None,
        best: Sequence[tuple[int, float]] | None, behind: int,
    ) -> Step:  # fmt: skip
        start = behind + len(places.text)
        places.push(token)
        ids = [one for one, _ in best or ()]
        name, *names = map(_readable, self.tokenizer.tokens([token, *ids]))
        values = [value for _, value in best or ()]
        shown = None if best is None else [*zip(names, values, strict=True)]
        return Step(name, log_prob, shown, start, behind + len(places.text))


def _of_prompt(
    member: BatchMember, at: int
) -> tuple[float | None, list[tuple[int, float]] | None]:  # fmt: skip
    """The log-probability of one prompt token, and the most likely tokens at its position."""
    log_prob = member.prompt_log_probs[at] if at < len(member.prompt_log_probs) else None
    known = 0 < at <= len(member.prompt_top_log_probs)
    return log_prob, member.prompt_top_log_probs[at - 1] if known else None


def of_names(out: TextAnswer, behind: int) -> list[Step]:
    """Steps of an output that was not generated step by step: lengths come from token names."""
    found: list[Step] = []
    for token, log_prob in zip(out.tokens, out.token_log_probs, strict=False):
        name = _readable(token)
        found.append(Step(name, log_prob, None, behind, behind + len(name)))
        behind += len(name)
    return found


def stopped(out: TextAnswer) -> bool:
    """Whether a stop string ended the output."""
    facts = out.to_dict().get("outputs") or [{}]
    return bool(facts[0].get("stopped_by"))


def _readable(token: str) -> str:
    return token.replace("▁", " ")
