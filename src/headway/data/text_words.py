"""Split texts into words as tagged corpora do. Punctuation is separated, and abbreviations are kept
whole.

The tagged sentences of a run determine which characters are separate words, and which words keep
their punctuation. Without tagged sentences, the rules are those of CoNLL and the Penn Treebank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

PUNCTUATION = frozenset(".,;:!?…()[]{}\"“”„«»‘’'`—–¿¡")
"""Characters that are split off at the ends of words. Symbols such as `#`, `@`, `$` and `%` are
not."""

_TITLES = "mr mrs ms dr prof st jr sr gen col sgt capt lt rep sen gov rev hon bros"
_FIRMS = "inc ltd co corp vs etc no dept est fig approx"
_MONTHS = "jan feb mar apr jun jul aug sep sept oct nov dec"
ABBREVIATIONS = frozenset(f"{_TITLES} {_FIRMS} {_MONTHS}".split())
_DOTTED = re.compile(r"(?:[^\W\d_]\.)+")
"""Pattern of abbreviations with a dot after each letter, such as `J.`, `U.S.` and `e.g.`"""

_CLITIC = re.compile(r"(?:['’](?:s|re|ve|ll|d|m)|n['’]t)$", re.IGNORECASE)
_EMOTICON = re.compile(r"[:;=]['’]?-?[()\[\]DPp/\\|]+")
_CHUNK = re.compile(r"\S+")
_RUN = re.compile(r"(.)\1*", re.DOTALL)


class TextWord(NamedTuple):
    """Word of a text, with its position."""

    text: str
    start: int
    """Position of the first character in the text."""

    end: int
    """Position after the last character in the text."""


@dataclass(frozen=True)
class WordRule:
    """Rule that splits texts into words."""

    separate: frozenset[str] = PUNCTUATION
    """Characters that are split off at the ends of words."""

    whole: frozenset[str] = frozenset()
    """Words that keep their punctuation, such as abbreviations."""

    clitics: bool = True
    """Whether clitics such as `'s` and `n't` are separate words."""

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]]) -> WordRule:
        """Return the rule that follows from sentences that are already split into words."""
        counts = Counter(word for words in sentences for word in words)
        if not counts:
            return cls()
        alone, attached = Counter[str](), Counter[str]()
        clitics = 0
        for word, n in counts.items():
            if not any(map(str.isalnum, word)):
                alone.update(dict.fromkeys(word, n))
                continue
            if _is_abbreviation(word):
                continue
            attached.update({char: n for char in {word[0], word[-1]} if char in PUNCTUATION})
            found = _CLITIC.search(word)
            if found:
                clitics += n if found.start() == 0 else -n
        apart = frozenset(char for char in PUNCTUATION if alone[char] >= attached[char])
        rule = cls(apart, frozenset(), clitics >= 0)
        return cls(apart, frozenset(w for w in counts if len(rule.words(w)) > 1), rule.clitics)

    def words(self, text: str) -> list[TextWord]:
        found: list[TextWord] = []
        for chunk in _CHUNK.finditer(text):
            found += self._parts(text, chunk.start(), chunk.end())
        return found

    def _parts(self, text: str, start: int, end: int) -> Iterator[TextWord]:
        """Yield the words in a part of a text without white space, from `start` to `end`."""
        after: list[TextWord] = []
        while start < end and not self._is_whole(text[start:end]):
            if text[start] in self.separate:
                n = _run(text[start:end])
                yield TextWord(text[start : start + n], start, start + n)
                start += n
            elif text[end - 1] in self.separate:
                n = _run(text[start:end][::-1])
                after.append(TextWord(text[end - n : end], end - n, end))
                end -= n
            else:
                break
        word = text[start:end]
        cut = _CLITIC.search(word) if self.clitics and word not in self.whole else None
        if cut is not None and cut.start() > 0:
            yield TextWord(word[: cut.start()], start, start + cut.start())
            start += cut.start()
        if start < end:
            yield TextWord(text[start:end], start, end)
        yield from reversed(after)

    def _is_whole(self, word: str) -> bool:
        if word in self.whole or _EMOTICON.fullmatch(word):
            return True
        clitic = _CLITIC.match(word)
        return _is_abbreviation(word) or (clitic is not None and clitic.end() == len(word))


def _run(text: str) -> int:
    """Return the number of equal dots, dashes or quotes at the start of a text, which form one
    word. For other characters, return 1."""
    found = _RUN.match(text)
    assert found is not None
    return len(found[0]) if text[0] in ".-—–'`" else 1


def _is_abbreviation(word: str) -> bool:
    if not word.endswith("."):
        return False
    if len(word) == 2 and not word[0].isupper():
        return False
    return bool(_DOTTED.fullmatch(word)) or word[:-1].lower() in ABBREVIATIONS
