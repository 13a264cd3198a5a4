"""Inputs for which the positions that a model should attend to are known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.inside.capture.streams import Reading
from headway.inside.measure.maps.map import written_words


@dataclass(frozen=True)
class GroundTruthLink:
    """A part of the output, and the positions it was taken from."""

    rows: tuple[int, ...]
    """Numbers of its outputs, such as the tokens of a word."""

    correct: frozenset[int]
    """Numbers of the case's columns that count as right."""

    sure: frozenset[int]
    """Columns that an alignment must contain, for the error rate; a subset of `correct`."""

    candidates: tuple[int, ...] = ()
    """Numbers of the candidate columns; empty: all columns."""


@dataclass(frozen=True)
class Case:
    reading: Reading
    stream: str
    """Stream whose tokens are the columns."""

    columns: tuple[tuple[int, ...], ...]
    """Candidates: groups of positions that count as one, such as the tokens of a word."""

    links: tuple[GroundTruthLink, ...]
    unit: str = "words"
    """Unit of a link: words, tokens or atoms."""

    def candidates(self, link: GroundTruthLink) -> tuple[int, ...]:
        return link.candidates or tuple(range(len(self.columns)))

    def chance(self, link: GroundTruthLink) -> float:
        """Probability that a random candidate is right."""
        among = self.candidates(link)
        return len(link.correct.intersection(among)) / len(among)

    def with_judged_outputs(self) -> Case:
        """Keep only the outputs that are judged, which saves time."""
        kept = sorted({row for link in self.links for row in link.rows})
        numbers = {row: number for number, row in enumerate(kept)}
        outputs = tuple(self.reading.outputs[row] for row in kept)
        links = tuple(
            replace(link, rows=tuple(numbers[row] for row in link.rows)) for link in self.links
        )
        return replace(self, reading=replace(self.reading, outputs=outputs), links=links)


def word_groups(words: tuple[int, ...] | list[int]) -> dict[int, tuple[int, ...]]:
    """Positions of each word, in order."""
    found: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        if word >= 0:
            found.setdefault(word, []).append(place)
    return {word: tuple(places) for word, places in sorted(found.items())}


def word_case(reading: Reading, pairs: list[tuple[int, int]]) -> Case | None:
    """Make a case from a word alignment (source, target) of a translation; None without links."""
    sources = word_groups(reading.streams["source"].words)
    targets = word_groups(written_words(reading))
    links = []
    for number, rows in targets.items():
        right = frozenset(s for s, t in pairs if t == number and s in sources)
        if right:
            links.append(GroundTruthLink(rows, right, right))
    if not links or list(sources) != list(range(len(sources))):
        return None
    return Case(reading, "source", tuple(sources.values()), tuple(links))
