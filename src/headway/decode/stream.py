"""Tokens that become text piece by piece, and no piece is taken back."""

from __future__ import annotations

from collections.abc import Sequence

from headway.tokens.tokenizer import Tokenizer

BROKEN = "\ufffd"
"""What bytes decode to that are no character, or not yet."""

HELD = 3
"""At most so many of them may still become a character: it has four bytes at most."""

WINDOW, TAIL = 32, 4
"""Tokens that are decoded together at most, and how many of them stay when it starts anew."""


class TextStream:
    """The text behind a prompt. `push` gives what is certain with each token, `finish` the rest.

    Held back is what may still change: bytes of a character that is not complete, and what may be
    the beginning of a stop string. A stop string ends the text, and is not part of it.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stops: Sequence[str] = ()
    ) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.text = ""
        """All that was given out."""

        self.stopped_by: str | None = None
        self.n_tokens = 0
        """Those pushed until the text was stopped."""

        self._waiting = ""
        # Decoded with what stands before it, a token knows whether there is a space in front.
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
        """No more tokens come."""
        if self.stopped_by is not None:
            return ""
        self._waiting += self.tokenizer.decode(self._ids)[self._done :]
        return self._give(held_back=False)

    def _give(self, *, held_back: bool) -> str:
        found = [(place, stop) for stop in self.stops if (place := self._waiting.find(stop)) >= 0]
        if found:  # the one that is complete first, however the text is cut into tokens
            end, self.stopped_by = min(found, key=lambda pair: (pair[0] + len(pair[1]), pair[0]))
        else:
            end = len(self._waiting) - (self._may_stop() if held_back else 0)
        piece, self._waiting = self._waiting[:end], self._waiting[end:]
        self.text += piece
        return piece

    def _may_stop(self) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        waiting, longest = self._waiting, max(map(len, self.stops), default=1) - 1
        for size in range(min(longest, len(waiting)), 0, -1):
            if any(stop.startswith(waiting[-size:]) for stop in self.stops):
                return size
        return 0
