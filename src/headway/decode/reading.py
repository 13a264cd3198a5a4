"""The texts of a batch while they are written: shown, stopped, and made into outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headway.decode.completion import Output
from headway.decode.search.greedy import Watch
from headway.decode.search.hypothesis import Hypothesis
from headway.decode.stream import TextStream
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer

OnToken = Callable[[str], None]
"""Gets text as it becomes certain."""


class Reading:
    """The outputs of a batch as they are written."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: DecodeSettings,
        prompts: Sequence[list[int]],
        end: int,
        on_token: OnToken | None,
    ) -> None:
        """`end`: the token that ends an output."""
        self.tokenizer, self.stops, self.prompts = tokenizer, settings.stop, prompts
        self.end, self.on_token = end, on_token
        self.more_ends = frozenset(tokenizer.more_ends) - {end}
        walks = settings.sample or settings.beam == 1
        self.streams: dict[tuple[int, int], TextStream] = {}
        # Of several texts at once, or of a search that changes its mind, none can be shown early.
        self.shows = on_token is not None and walks and settings.n_best == 1
        watches = walks and (settings.stop or self.shows or self.more_ends)
        self.watch: Watch | None = self._watch if watches else None

    def _watch(self, place: int, w: int, token: int) -> bool:
        """`Watch`."""
        if token == self.end:
            return False
        if token in self.more_ends:
            return True
        if (place, w) not in self.streams:
            self.streams[place, w] = self._stream(place)
        stream = self.streams[place, w]
        self._show(stream.push(token))
        return stream.stopped_by is not None

    def _show(self, piece: str) -> None:
        if self.shows and piece and self.on_token is not None:
            self.on_token(piece)

    def _stream(self, place: int) -> TextStream:
        return TextStream(self.tokenizer, self.prompts[place], self.stops)

    def outputs(self, found: Sequence[Sequence[Hypothesis]]) -> list[list[Output]]:
        made = []
        for place, hypotheses in enumerate(found):
            outputs = [self._output(place, h) for h in hypotheses]
            if self.shows:
                self._show(outputs[0].text[self._shown(place) :])
            elif self.on_token is not None:
                self.on_token(outputs[0].text)
            made.append(outputs)
        return made

    def _shown(self, place: int) -> int:
        stream = self.streams.get((place, 0))
        return 0 if stream is None else len(stream.text)

    def _ended(self, h: Hypothesis) -> Hypothesis:
        """Without what stands behind another end; a search of several may have gone on there."""
        n = next((i for i, token in enumerate(h.tokens) if token in self.more_ends), None)
        if n is None:
            return h
        log_probs = h.token_log_probs[: n + 1]
        return replace(
            h,
            tokens=h.tokens[:n],
            token_log_probs=log_probs,
            log_prob=sum(log_probs),
            finished=True,
        )

    def _output(self, place: int, h: Hypothesis) -> Output:
        h = self._ended(h)
        stream = self._stream(place)
        for token in h.tokens:
            stream.push(token)
        stream.finish()
        finished = h.finished
        if stream.stopped_by is not None:  # a search of several may have gone on behind it
            n = stream.n_tokens
            log_probs = h.token_log_probs[:n]
            finished = False
            h = replace(h, tokens=h.tokens[:n], token_log_probs=log_probs, log_prob=sum(log_probs))
        return Output(
            text=stream.text,
            score=h.score,
            log_prob=h.log_prob,
            tokens=self.tokenizer.tokens(h.tokens),
            token_log_probs=h.token_log_probs,
            finished=finished,
            stopped_by=stream.stopped_by,
        )
