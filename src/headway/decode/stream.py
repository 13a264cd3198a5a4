"""Streaming detokenization. Text is emitted only once it is final, and ends at stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headway.decode.output import Output
from headway.decode.search.greedy import TokenCallback
from headway.decode.search.job import Hypothesis
from headway.settings.decode import DecodeSettings
from headway.tokens.tokenizer import Tokenizer

BROKEN = "\ufffd"
"""Replacement character, which represents bytes that are not a complete UTF-8 character."""

HELD = 3
"""Maximum number of trailing replacement characters that may still become one character, because
UTF-8 characters have at most four bytes."""

WINDOW, TAIL = 32, 4
"""Maximum number of tokens that are decoded together, and number of tokens that remain after this
limit is exceeded."""


class TextStream:
    """Text that is decoded while it is generated.

    `push` returns the new final text after each token, and `finish` returns the rest. Text that may
    still change is held back, such as incomplete characters and a possible start of a stop string.
    A stop string ends the text and is not part of it.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.text = ""
        """Text emitted so far."""

        self.stopped_by: str | None = None
        self.n_tokens = 0
        """Number of tokens pushed. Tokens after a complete stop string are not counted."""

        self._waiting = ""
        # Earlier tokens are decoded as well, because they determine whether a token starts with a
        # space.
        self._ids = list(prompt[-WINDOW // 2 :])
        self._done = len(tokenizer.decode(self._ids))

    def push(self, token: int) -> str:
        if self.stopped_by is not None:
            return ""
        self.n_tokens += 1
        self._ids.append(token)
        seen = self.tokenizer.decode(self._ids)
        broken = len(seen) - len(seen.rstrip(BROKEN))
        end = max(self._done, len(seen) - min(broken, HELD))
        self._waiting += seen[self._done : end]
        self._done = end
        if len(self._ids) > WINDOW and not broken:
            self._ids = self._ids[-TAIL:]
            self._done = len(self.tokenizer.decode(self._ids))
        return self._give(held_back=True)

    def finish(self) -> str:
        """Return the text that was held back. Call this when no more tokens follow."""
        if self.stopped_by is not None:
            return ""
        self._waiting += self.tokenizer.decode(self._ids)[self._done :]
        return self._give(held_back=False)

    def _give(self, *, held_back: bool) -> str:
        found = [(place, stop) for stop in self.stops if (place := self._waiting.find(stop)) >= 0]
        if found:  # the stop string that is complete first, whatever the tokenization
            end, self.stopped_by = min(found, key=lambda pair: (pair[0] + len(pair[1]), pair[0]))
        else:
            end = len(self._waiting) - (self._may_stop() if held_back else 0)
        piece, self._waiting = self._waiting[:end], self._waiting[end:]
        self.text += piece
        return piece

    def _may_stop(self) -> int:
        """Return the number of trailing characters that may be the start of a stop string."""
        waiting, longest = self._waiting, max(map(len, self.stops), default=1) - 1
        for size in range(min(longest, len(waiting)), 0, -1):
            if any(stop.startswith(waiting[-size:]) for stop in self.stops):
                return size
        return 0


OnToken = Callable[[str], None]
"""Callback for the piece of text that has just become final."""

OnOutputPiece = Callable[[int, str], None]
"""Callback for text streamed from parallel outputs. Arguments: index of the output, and the piece
of its text that has just become final."""


class OutputAssembler:
    """Converts the tokens of a batch to text while they are generated."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: DecodeSettings,
        prompts: Sequence[list[int]],
        end: int,
        on_token: OnToken | None,
        on_piece: OnOutputPiece | None = None,
    ) -> None:
        """Create the assembler of a batch.

        `end`: token that ends an output. `on_piece`: called with each new piece of text of any
        output; supported only for a single prompt.
        """
        self.tokenizer, self.stops, self.prompts = tokenizer, settings.stop, prompts
        self.end, self.on_token, self.on_piece = end, on_token, on_piece
        self.more_ends = frozenset(tokenizer.more_ends) - {end}
        self.streams: dict[tuple[int, int], TextStream] = {}
        # With several outputs or beam search no text is final before the end, so nothing is
        # streamed.
        self.shows = on_token is not None and settings.walks and settings.n_best == 1
        heard = self.shows or on_piece is not None
        watches = settings.walks and (settings.stop or heard or self.more_ends)
        self.watch: TokenCallback | None = self._watch if watches else None

    def _watch(self, place: int, w: int, token: int) -> bool:
        """Receive a token, as a `TokenCallback`."""
        if token == self.end:
            return False
        if token in self.more_ends:
            return True
        if (place, w) not in self.streams:
            self.streams[place, w] = self._stream(place)
        stream = self.streams[place, w]
        piece = stream.push(token)
        self._show(piece)
        if self.on_piece is not None and piece:
            self.on_piece(w, piece)
        return stream.stopped_by is not None

    def flush(self, w: int) -> None:
        """Emit the held-back text of an output of the first prompt, when this output gets no more
        tokens."""
        stream = self.streams.get((0, w))
        if self.on_piece is not None and stream is not None and (piece := stream.finish()):
            self.on_piece(w, piece)

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
        """Truncate a hypothesis at an additional end token, because a beam search may have
        continued after that token."""
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
        if stream.stopped_by is not None:  # a beam search may have continued after it
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
