"""Encode the output of chat templates, in which names of special tokens become those tokens.

Elsewhere, text that spells a special token stays text (see `tokenizer.py`). The messages of chat
users must stay text, too, so `escape` breaks up names of special tokens in them.
"""

from __future__ import annotations

import json
import re

from headway.tokens.tokenizer import Tokenizer
from headway.tokens.tokenizer_json import build_tokenizer

BREAK = "\uffff"
"""Character inserted into the name of a special token to break it up. Unicode reserves this code
point as a noncharacter, so texts should not contain it."""


class ChatTokenEncoder:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._size, self._unk = tokenizer.vocab_size, tokenizer.unk
        self._inner = build_tokenizer(json.loads(tokenizer.library_json()))
        self._inner.encode_special_tokens = False
        names = {self._inner.id_to_token(i) for i in tokenizer.specials}
        known = sorted((re.escape(name) for name in names if name and len(name) > 1), reverse=True)
        self._names = re.compile("|".join(known) or r"(?!)")

    def escape(self, text: str) -> str:
        """Return a text that looks unchanged but does not spell any special token."""
        text = text.replace(BREAK, "")
        return self._names.sub(lambda found: f"{found[0][0]}{BREAK}{found[0][1:]}", text)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text as the published tokenizer encodes it, without the special
        tokens around it."""
        found: list[int] = []
        for part in text.split(BREAK):
            found += self._inner.encode(part, add_special_tokens=False).ids
        return [i if i < self._size else self._unk for i in found]
