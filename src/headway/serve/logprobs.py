"""Log-probabilities of tokens (`logprobs`) for OpenAI's routes, with the positions of the tokens in
the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.decode.continuous import BatchMember
from headway.decode.stream import TextStream
from headway.serve.worker import InferenceWorker
from headway.tasks.answers import TextAnswer


@dataclass(frozen=True)
class TokenLogprob:
    """Token with its log-probability and its position, as an entry of `logprobs`."""

    token: str
    log_prob: float | None
    top: list[tuple[str, float]] | None
    start: int
    end: int
    """End of the token in the text. `start` and `end` are character positions."""


class OutputLogprobs:
    """Log-probabilities of the tokens of one output, in order. Each token is returned by only one
    call, after its text was sent."""

    def __init__(
        self, worker: InferenceWorker, member: BatchMember, output_index: int, before: str | None
    ) -> None:
        """Prepare the tokens of an output. `before`: prompt that comes first in the text (`echo`);
        None if there is none."""
        self.tokenizer, self.member, self.output_index = worker.run.tokenizer, member, output_index
        self.offset = 0 if before is None else len(before)
        self.n_returned = 0
        self.steps: list[TokenLogprob] = []
        prompt = member.prompt
        if before is not None:
            ids = prompt[1:] if prompt[:1] == [self.tokenizer.bos] else prompt
            places, skipped = TextStream(self.tokenizer), len(prompt) - len(ids)
            for at, token in enumerate(ids, skipped):
                log_prob, best = _prompt_logprob(member, at)
                self.steps.append(self._step(token, places, log_prob, best, 0))
        self.n_prompt = len(self.steps)
        self.text_stream = TextStream(self.tokenizer, prompt)

    def take_until(self, end: int) -> list[TokenLogprob]:
        """Return the new tokens whose text ends at or before position `end` of the output (without
        the prompt)."""
        self._read(len(self.member.log_probs[self.output_index]))
        n, end = self.n_returned, end + self.offset
        while n < len(self.steps) and (
            n < self.n_prompt or (self.steps[n].start < end and self.steps[n].end <= end)
        ):
            n += 1
        return self._take(n)

    def take_rest(self, out: TextAnswer) -> list[TokenLogprob]:
        """Return all remaining tokens, except those of the stop string, which is not part of the
        text."""
        self._read(len(out.tokens))
        n, end = self.n_prompt + len(out.tokens), self.offset + len(out.text)
        while has_stop_string(out) and n > self.n_prompt and self.steps[n - 1].end > end:
            n -= 1
        return self._take(n)

    def _take(self, n: int) -> list[TokenLogprob]:
        found, self.n_returned = self.steps[self.n_returned : n], max(self.n_returned, n)
        return found

    def _read(self, n: int) -> None:
        member, w = self.member, self.output_index
        for at in range(len(self.steps) - self.n_prompt, n):
            best = member.top_log_probs[w][at] if member.top else None
            self.steps.append(self._step(
                member.tokens[w][at], self.text_stream, member.log_probs[w][at], best, self.offset
            ))  # fmt: skip

    def _step(
        self, token: int, places: TextStream, log_prob: float | None,
        best: Sequence[tuple[int, float]] | None, behind: int,
    ) -> TokenLogprob:  # fmt: skip
        start = behind + len(places.text)
        places.push(token)
        ids = [one for one, _ in best or ()]
        name, *names = map(_readable, self.tokenizer.tokens([token, *ids]))
        values = [value for _, value in best or ()]
        shown = None if best is None else [*zip(names, values, strict=True)]
        return TokenLogprob(name, log_prob, shown, start, behind + len(places.text))


def _prompt_logprob(
    member: BatchMember, at: int
) -> tuple[float | None, list[tuple[int, float]] | None]:  # fmt: skip
    """Return the log-probability of a prompt token, and the most likely tokens at its position.
    Each is None if it is not known."""
    log_prob = member.prompt_log_probs[at] if at < len(member.prompt_log_probs) else None
    known = 0 < at <= len(member.prompt_top_log_probs)
    return log_prob, member.prompt_top_log_probs[at - 1] if known else None


def logprobs_by_name(out: TextAnswer, behind: int) -> list[TokenLogprob]:
    """Return the tokens of an output that was not generated step by step.

    Their positions are computed from the lengths of the token names. `behind`: position of the
    first token.
    """
    found: list[TokenLogprob] = []
    for token, log_prob in zip(out.tokens, out.token_log_probs, strict=False):
        name = _readable(token)
        found.append(TokenLogprob(name, log_prob, None, behind, behind + len(name)))
        behind += len(name)
    return found


def has_stop_string(out: TextAnswer) -> bool:
    """Return whether a stop string ended the output."""
    return out.stopped_by is not None


def _readable(token: str) -> str:
    return token.replace("▁", " ")
