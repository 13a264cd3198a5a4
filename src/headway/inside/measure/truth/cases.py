"""Test cases for attribution maps, which are inputs for which the important positions are known.

Translations have manual alignments, or words that are identical on both sides. Language models copy
tokens from an earlier occurrence in the same text.

In chemical reactions, the reactant atom that each product atom comes from is known. Files have one
reaction per line in SMILES with atom numbers, such as `[CH3:1][OH:2].Cl>>[CH3:1]Cl`. If several
reactant atoms share a number, they are equivalent, and any of them is correct.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from headway.errors import DataError, UserError
from headway.inside.capture.forward import run_reading
from headway.inside.capture.reading import GenerationOptions, read
from headway.inside.capture.streams import Reading, TokenStream, TracedOutput
from headway.inside.measure.alignments import read_pharaoh
from headway.inside.measure.maps import Map
from headway.inside.measure.maps.map import written_words
from headway.tasks.loaded_run import LoadedRun
from headway.tokens.pieces import SPACE_MARK
from headway.tokens.vocabtxt import SMILES_CUTS


@dataclass(frozen=True)
class GroundTruthLink:
    """One part of the output, with the input positions that it comes from."""

    rows: tuple[int, ...]
    """Indices of the outputs in this part, such as the tokens of a word."""

    correct: frozenset[int]
    """Indices of the candidates (`Case.columns`) that are correct."""

    sure: frozenset[int]
    """Indices of the candidates that an alignment must contain (sure links), for the alignment
    error rate; a subset of `correct`."""

    candidates: tuple[int, ...] = ()
    """Indices of the candidates to choose from; empty: all of them."""


@dataclass(frozen=True)
class Case:
    reading: Reading
    stream: str
    """Name of the stream that contains the candidates, such as `source`."""

    columns: tuple[tuple[int, ...], ...]
    """Candidates, each a group of positions that count as one, such as the tokens of a word."""

    links: tuple[GroundTruthLink, ...]
    unit: str = "words"
    """Unit of the links for display: words, tokens or atoms."""

    def candidates(self, link: GroundTruthLink) -> tuple[int, ...]:
        return link.candidates or tuple(range(len(self.columns)))

    def chance(self, link: GroundTruthLink) -> float:
        """Probability that a random candidate of the link is correct."""
        among = self.candidates(link)
        return len(link.correct.intersection(among)) / len(among)

    def with_judged_outputs(self) -> Case:
        """Return the case with only the outputs that are judged, because each output costs time."""
        kept = sorted({row for link in self.links for row in link.rows})
        numbers = {row: number for number, row in enumerate(kept)}
        outputs = tuple(self.reading.outputs[row] for row in kept)
        links = tuple(
            replace(link, rows=tuple(numbers[row] for row in link.rows)) for link in self.links
        )
        return replace(self, reading=replace(self.reading, outputs=outputs), links=links)


MapFunction = Callable[[LoadedRun, Case], list[Map]]


def word_groups(words: tuple[int, ...] | list[int]) -> dict[int, tuple[int, ...]]:
    """Return the positions of each word, by the index of the word."""
    found: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        if word >= 0:
            found.setdefault(word, []).append(place)
    return {word: tuple(places) for word, places in sorted(found.items())}


def word_case(reading: Reading, pairs: list[tuple[int, int]]) -> Case | None:
    """Return a case made from a translation and its word alignment (source, target); None if no
    word is aligned."""
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


SIGNS = ".,;:!?\"'()[]«»„“”‚‘’…–—-"


@dataclass(frozen=True)
class AlignedPair:
    """Source text, its translation and, if known, their word alignment."""

    source: str
    target: str
    links: tuple[tuple[int, int], ...] = ()


def read_aligned_pairs(path: Path) -> list[AlignedPair]:
    """Read lines of source and target, separated by a tab. A third column may hold the alignment,
    such as `0-0 1-2`."""
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
    """Return cases from translations with known word alignments. The model reads the given
    translation."""
    made = (_case(run, pair) for pair in pairs if pair.links)
    return [case for case in made if case is not None]


def _case(run: LoadedRun, pair: AlignedPair) -> Case | None:
    reading = _read(run, pair.source, pair.target)
    return None if reading is None else word_case(reading, list(pair.links))


def copied_word_cases(run: LoadedRun, pairs: Iterable[tuple[str, str]]) -> list[Case]:
    """Return cases from names and numbers that occur exactly once in the source and in the
    translation.

    They need no manual alignment. Only words with a digit or a capital letter count, because other
    identical words may have different meanings (`was`, `die`). Words that begin both sentences do
    not count, because every first word has a capital letter.
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
    """Return the reading of a translation pair; None if a side is empty, or too long for the
    model."""
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
    """Return pairs of word indices (source, target) of names and numbers that occur exactly once on
    each side."""
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


ARROW = ">>"
PIECE = re.compile(SMILES_CUTS)
ATOM = re.compile(r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\*")
NUMBERED = re.compile(r"\[(?P<atom>[^\]:]+)(?::(?P<number>\d+))?\]")
PLAIN = re.compile(r"(?P<symbol>B|C|N|O|S|P|F|Cl|Br|I|b|c|n|o|s|p)(?P<hydrogens>H\d?)?")
"""Pattern of atoms that SMILES writes without brackets. Aromatic nitrogen with a hydrogen atom
needs brackets."""


def atom_cases(run: LoadedRun, path: Path) -> list[Case]:
    """Return a case for each chemical reaction of a file. The atoms of the reactants are the
    candidates."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}.") from error
    cases = []
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if fields and not line.startswith("#"):
            cases.append(atom_case(run, fields[0], f"line {number} of {path}"))
    return [case for case in cases if case is not None]


def atom_case(run: LoadedRun, reaction: str, where: str = "the reaction") -> Case | None:
    """Return the case of a chemical reaction; None if no product atom has the number of a reactant
    atom."""
    pieces = PIECE.findall(reaction)
    if pieces.count(ARROW) != 1 or "".join(pieces) != reaction:
        raise DataError(
            f"{where} is not a reaction in SMILES notation such as CCO.CBr>>CCOC: {reaction!r}."
        )
    plain = [strip_number(piece) for piece in pieces]
    reading = read(run, "".join(text for text, _ in plain))
    stream = reading.last
    places = [place for place, is_special in enumerate(stream.special) if not is_special]
    if len(places) != len(plain) or not reading.fills_masks:
        raise UserError(
            f"{run.folder.name} cannot be measured on SMILES reactions. Use a run of the "
            "task fill whose tokenizer makes one token per atom."
        )
    arrow = pieces.index(ARROW)
    atoms = [n for n, (text, _) in enumerate(plain) if ATOM.fullmatch(text)]
    before = [n for n in atoms if n < arrow]
    rows = {output.row: number for number, output in enumerate(reading.outputs)}
    links = []
    for n in atoms:
        number = plain[n][1]
        right = frozenset(i for i, m in enumerate(before) if plain[m][1] == number)
        if n > arrow and number is not None and right:
            sure = right if len(right) == 1 else frozenset()
            links.append(GroundTruthLink((rows[places[n]],), right, sure))
    columns = tuple((places[n],) for n in before)
    return Case(reading, "text", columns, tuple(links), "atoms") if links else None


def strip_number(piece: str) -> tuple[str, int | None]:
    """Split a bracket atom into its symbol and its number (None if it has none): `[CH3:7]` becomes
    C and 7.

    Atoms with a charge or chirality keep their brackets.
    """
    found = NUMBERED.fullmatch(piece)
    if found is None:
        return piece, None
    number = None if found["number"] is None else int(found["number"])
    plain = PLAIN.fullmatch(found["atom"])
    bare = plain is not None and not (plain["symbol"] == "n" and plain["hydrogens"])
    if number is not None and plain is not None and bare:
        return plain["symbol"], number
    return f"[{found['atom']}]", number


TEXTS, HALF = 200, 32
"""Maximum number of random texts, and number of tokens that each of them repeats."""


@torch.no_grad()
def repeat_cases(run: LoadedRun, n: int = TEXTS, length: int = HALF, seed: int = 1) -> list[Case]:
    """Return cases of random tokens that are repeated once.

    A model that predicts a token of the second copy correctly has copied it from the first copy.
    Only correct predictions are judged. No token occurs twice in the first copy, so the correct
    position is unique.
    """
    if not run.spec.continues:
        raise UserError(
            "repeated tokens can only be measured for language models (task complete), not for the "
            f"task {run.settings.task}."
        )
    tokenizer = run.vocab.source
    ordinary = [i for i in range(tokenizer.vocab_size) if i not in tokenizer.specials]
    if len(ordinary) < length:
        raise UserError(
            f"the vocabulary has {len(ordinary)} tokens besides special tokens, but sequences of "
            f"{length} different tokens are needed."
        )
    picks, cases = random.Random(seed), []
    for _ in range(n):
        half = picks.sample(ordinary, length)
        ids = [tokenizer.bos, *half, *half]
        names = tokenizer.tokens(ids)
        reading = Reading(
            text=tokenizer.decode(half),
            task=run.settings.task,
            streams={"text": TokenStream.of("text", ids, tokenizer)},
            outputs=tuple(TracedOutput(n - 1, ids[n], names[n]) for n in range(1, len(ids))),
            n_given=len(ids),
        )
        best_R = run_reading(run, reading).scores_RC.argmax(-1)
        copying = [row for row in range(length + 1, 2 * length) if best_R[row] == ids[row + 1]]
        links = tuple(_link(row, length) for row in copying)
        if links:
            columns = tuple((place,) for place in range(len(ids)))
            cases.append(Case(reading, "text", columns, links, "tokens"))
    return cases


def _link(row: int, length: int) -> GroundTruthLink:
    """Return the link of output `row`, which predicts token row + 1. Its correct position is that
    of the same token, `length` positions earlier."""
    right = frozenset({row + 1 - length})
    return GroundTruthLink((row,), right, right, tuple(range(row + 1)))
