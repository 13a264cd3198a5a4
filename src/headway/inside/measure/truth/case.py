"""Texts of which it is known where the model has to look."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.inside.capture.streams import Reading
from headway.inside.measure.maps.map import written_words


@dataclass(frozen=True)
class Link:
    """One thing that was written, and the places it was taken from."""

    rows: tuple[int, ...]
    """Numbers of the outputs that write it: the pieces of a word."""

    right: frozenset[int]
    """Numbers of the case's columns any of which is right."""

    sure: frozenset[int]
    """Those that an alignment must have, for the error rate; some of `right`."""

    among: tuple[int, ...] = ()
    """Numbers of the columns that it could have been; none: all of them."""


@dataclass(frozen=True)
class Case:
    reading: Reading
    stream: str
    """Whose tokens are the columns."""

    columns: tuple[tuple[int, ...], ...]
    """The candidates: places that count as one, such as the pieces of a word."""

    links: tuple[Link, ...]
    unit: str = "words"
    """What a link is about: words, tokens or atoms."""

    def candidates(self, link: Link) -> tuple[int, ...]:
        return link.among or tuple(range(len(self.columns)))

    def chance(self, link: Link) -> float:
        """How often a place picked blindly is right."""
        among = self.candidates(link)
        return len(link.right.intersection(among)) / len(among)

    def narrow(self) -> Case:
        """The same with the outputs that are judged alone, which saves time."""
        kept = sorted({row for link in self.links for row in link.rows})
        numbers = {row: number for number, row in enumerate(kept)}
        outputs = tuple(self.reading.outputs[row] for row in kept)
        links = tuple(
            replace(link, rows=tuple(numbers[row] for row in link.rows)) for link in self.links
        )
        return replace(self, reading=replace(self.reading, outputs=outputs), links=links)


def word_groups(words: tuple[int, ...] | list[int]) -> dict[int, tuple[int, ...]]:
    """The places of each word, in order."""
    found: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        if word >= 0:
            found.setdefault(word, []).append(place)
    return {word: tuple(places) for word, places in sorted(found.items())}


def word_case(reading: Reading, pairs: list[tuple[int, int]]) -> Case | None:
    """From an alignment of words (source, target) of a translation; None without any."""
    sources = word_groups(reading.streams["source"].words)
    targets = word_groups(written_words(reading))
    links = []
    for number, rows in targets.items():
        right = frozenset(s for s, t in pairs if t == number and s in sources)
        if right:
            links.append(Link(rows, right, right))
    if not links or list(sources) != list(range(len(sources))):
        return None
    return Case(reading, "source", tuple(sources.values()), tuple(links))
