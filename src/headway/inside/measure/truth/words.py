"""Ground truth of translations: given alignments, and words that are identical on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.errors import DataError, UserError
from headway.inside.capture.reading import GenerationOptions, read
from headway.inside.capture.streams import Reading, TokenStream
from headway.inside.measure.alignments import read_pharaoh
from headway.inside.measure.maps.map import written_words
from headway.inside.measure.truth.case import Case, word_case, word_groups
from headway.tasks.loaded_run import LoadedRun
from headway.tokens.pieces import SPACE_MARK

SIGNS = ".,;:!?\"'()[]«»„“”‚‘’…–—-"


@dataclass(frozen=True)
class AlignedPair:
    """A source, its translation and, if known, their word alignment."""

    source: str
    target: str
    links: tuple[tuple[int, int], ...] = ()


def read_aligned_pairs(path: Path) -> list[AlignedPair]:
    """Read lines of source, tab, target and, optionally, another tab and pairs such as `0-0
    1-2`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}.") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        where = f"line {number} of {path}"
        if len(fields) not in (2, 3):
            raise DataError(
                f"{where}: expected 2 or 3 tab-separated fields, got {len(fields)}. A line needs a "
                "source and its translation, and may have an alignment such as 0-0 1-2 as a "
                "third field."
            )
        links = read_pharaoh(fields[2], where) if len(fields) == 3 else []
        found.append(AlignedPair(fields[0], fields[1], tuple(links)))
    return found


def alignment_cases(run: LoadedRun, pairs: Iterable[AlignedPair]) -> list[Case]:
    """Make cases of pairs with a known alignment. The model reads the given translation."""
    made = (_case(run, pair) for pair in pairs if pair.links)
    return [case for case in made if case is not None]


def _case(run: LoadedRun, pair: AlignedPair) -> Case | None:
    reading = _read(run, pair.source, pair.target)
    return None if reading is None else word_case(reading, list(pair.links))


def copied_word_cases(run: LoadedRun, pairs: Iterable[tuple[str, str]]) -> list[Case]:
    """Make cases of copied names and numbers, which occur once on each side.

    They need no manual alignment. Only words with a digit or a capital letter count, because other
    words may have different meanings (`was`, `die`). Words that begin both sentences do not count,
    because every first word has a capital letter.
    """
    cases = []
    for source, target in pairs:
        if not _common(source.split(), target.split()):
            continue
        reading = _read(run, source, target)
        if reading is None:
            continue
        ours = _words(reading.streams["source"], reading.streams["source"].words)
        theirs = _words(reading.last, reading.last.words)
        if len(theirs) != len(word_groups(written_words(reading))):
            continue
        case = word_case(reading, _common(ours, theirs))
        if case is not None:
            cases.append(case)
    return cases


def _read(run: LoadedRun, source: str, target: str) -> Reading | None:
    """Read a pair; None if it is empty or too long for the model."""
    try:
        return read(run, source, GenerationOptions(output=target)) if target.strip() else None
    except UserError:
        return None


def _words(stream: TokenStream, words: Sequence[int]) -> list[str]:
    return [
        "".join(stream.pieces[place] for place in places).replace(SPACE_MARK, " ").strip()
        for places in word_groups(list(words)).values()
    ]


def _common(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of word numbers of names and numbers that occur once on either side."""
    left, right = ([word.strip(SIGNS) for word in side] for side in (ours, theirs))
    return [
        (i, right.index(word))
        for i, word in enumerate(left)
        if _is_name(word)
        and left.count(word) == 1
        and right.count(word) == 1
        and (i > 0 or right.index(word) > 0)
    ]


def _is_name(word: str) -> bool:
    return any(c.isdigit() for c in word) or (len(word) > 1 and word[0].isupper())
