"""Text in which names of special tokens are these tokens, as chat templates write it.

Everywhere else text that spells a special token stays text (`tokenizer.py`); so does what people
say in a chat: `shielded` text has no such name in it.
"""

from __future__ import annotations

import json
import re

from headway.tokens.json_facts import read_exactly
from headway.tokens.tokenizer import Tokenizer

BREAK = "\uffff"
"""Stands in a name that is none. Unicode has no character here, and no text should."""


class Marked:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._size, self._unk = tokenizer.vocab_size, tokenizer.unk
        self._inner = read_exactly(json.loads(tokenizer.library_json()))
        self._inner.encode_special_tokens = False
        names = {self._inner.id_to_token(i) for i in tokenizer.specials}
        known = sorted((re.escape(name) for name in names if name and len(name) > 1), reverse=True)
        self._names = re.compile("|".join(known) or r"(?!)")

    def shielded(self, text: str) -> str:
        """The same to a reader, and without the name of any special token."""
        text = text.replace(BREAK, "")
        return self._names.sub(lambda found: f"{found[0][0]}{BREAK}{found[0][1:]}", text)

    def encode(self, text: str) -> list[int]:
        """As the published tokenizer does it, without the tokens that it puts around a text."""
        found: list[int] = []
        for part in text.split(BREAK):
            found += self._inner.encode(part, add_special_tokens=False).ids
        return [i if i < self._size else self._unk for i in found]
