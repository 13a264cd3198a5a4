"""Data for the experiments: artificial languages with known word alignments, and small included
texts."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headway.errors import DataError
from headway.inside.measure.truth import AlignedPair

TEXTS = Path(__file__).parent / "texts"

NOUNS = 40
"""Number of nouns. There are more of them than of other words, because every sentence has at least
two."""

ADJECTIVES, VERBS, ADVERBS = 20, 20, 10
"""Number of words in each word class, at most one per syllable (60). The numbers are small, so that
a tiny model learns all words."""

CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
AlignedWords = list[tuple[str, tuple[int, ...]]]
"""Target words, each with the indices of its aligned source words."""

TextColumns = dict[str, list[str]]
"""Texts by column name: in-memory data for `headway.train`."""


@dataclass(frozen=True)
class PairSplit:
    """Training and validation pairs without a common source sentence."""

    train: list[AlignedPair]
    valid: list[AlignedPair]

    def columns(self) -> tuple[TextColumns, TextColumns]:
        return columns(self.train), columns(self.valid)


def columns(pairs: Sequence[AlignedPair]) -> TextColumns:
    return {"source": [one.source for one in pairs], "target": [one.target for one in pairs]}


def make_pairs(
    make: Callable[[int, int], list[AlignedPair]], n_train: int, n_valid: int, seed: int
) -> PairSplit:
    """Make training and validation pairs with the function `make`, such as `make_pairs(grammar,
    4000, 200, bench.seed)`."""
    valid = _distinct(make(n_valid, 2 * seed + 1), set())
    sources = {pair.source for pair in valid}
    return PairSplit(_distinct(make(n_train, 2 * seed + 2), sources), valid)


def _distinct(pairs: Sequence[AlignedPair], seen: set[str]) -> list[AlignedPair]:
    found = []
    seen = set(seen)
    for pair in pairs:
        if pair.source not in seen:
            seen.add(pair.source)
            found.append(pair)
    return found


# -- artificial languages


def grammar(n: int, seed: int = 1, clauses: int = 1) -> list[AlignedPair]:
    """Generate `n` sentence pairs of a toy grammar in which the alignment of every word is known.

    A source is, for example, `the red dog often sees a cat up`. In the target an adjective follows
    its noun, the object comes before the subject, and the verb is at the end. `the` and `a` become
    noun endings, a verb and its particle become one word, and an adverb becomes two. Alignments are
    therefore rarely diagonal. `clauses`: number of clauses per sentence, which the target has in
    reverse order.
    """
    picks = random.Random(seed)
    return [_joined([_sentence(picks) for _ in range(clauses)]) for _ in range(n)]


def _joined(clauses: Sequence[AlignedPair]) -> AlignedPair:
    """Join clauses into one sentence. The target has the clauses in reverse order."""
    source: list[str] = []
    target: AlignedWords = []
    for clause in clauses:
        first = len(source)
        source += clause.source.split()
        origins: dict[int, list[int]] = {}
        for origin, place in clause.links:
            origins.setdefault(place, []).append(first + origin)
        words = clause.target.split()
        target = [(word, tuple(origins[n])) for n, word in enumerate(words)] + target
    return _known(source, target)


def _sentence(picks: random.Random) -> AlignedPair:
    source: list[str] = []
    subject = _phrase(picks, source)
    adverb: AlignedWords = []
    if picks.random() < 0.5:
        number = picks.randrange(ADVERBS)
        adverb = [
            (f"zu{syllable(number)}", (len(source),)),
            (f"zo{syllable(number)}", (len(source),)),
        ]
        source.append(f"adv{syllable(number)}")
    verb, at = picks.randrange(VERBS), len(source)
    source.append(f"verb{syllable(verb)}")
    thing = _phrase(picks, source)
    parts = [at]
    if picks.random() < 0.4:
        parts.append(len(source))
        source.append("up")
    ending = "u" if len(parts) > 1 else "a"
    target = [*thing, *subject, *adverb, (f"wer{syllable(verb)}{ending}", tuple(parts))]
    return _known(source, target)


def _phrase(picks: random.Random, source: list[str]) -> AlignedWords:
    """Append a noun with its article, and perhaps an adjective, to `source`. Return the target
    words."""
    first = len(source)
    article = picks.choice(["the", "a"])
    source.append(article)
    adjective: AlignedWords = []
    if picks.random() < 0.6:
        number = picks.randrange(ADJECTIVES)
        adjective = [(f"ib{syllable(number)}", (len(source),))]
        source.append(f"adj{syllable(number)}")
    noun = picks.randrange(NOUNS)
    ending = "e" if article == "the" else "o"
    made: AlignedWords = [(f"kal{syllable(noun)}{ending}", (first, len(source)))]
    source.append(f"noun{syllable(noun)}")
    return [*made, *adjective]


def copies(n: int, seed: int = 1, *, turned: bool = False, letters: int = 20) -> list[AlignedPair]:
    """Generate sentence pairs of a copying task, in which distractors must be left out. `turned`:
    whether the target is in reverse order."""
    picks = random.Random(seed)
    made = []
    for _ in range(n):
        source = [f"w{syllable(picks.randrange(letters))}" for _ in range(picks.randint(3, 8))]
        for _ in range(picks.randint(0, 4)):
            source.insert(picks.randrange(len(source) + 1), f"x{syllable(picks.randrange(5))}")
        kept: AlignedWords = [(word, (i,)) for i, word in enumerate(source) if word[0] == "w"]
        made.append(_known(source, kept[::-1] if turned else kept))
    return made


def reverses(n: int, seed: int = 1) -> list[AlignedPair]:
    return copies(n, seed, turned=True)


def strings(
    order: str, low: int, high: int, letters: int = 12
) -> Callable[[int, int], list[AlignedPair]]:
    """Return a function that generates pairs of an artificial language.

    A sentence has `low` to `high` random words. `order` determines the target: the same words
    (`copy`), reversed (`reverse`) or sorted (`sort`).
    """

    def make(n: int, seed: int) -> list[AlignedPair]:
        picks = random.Random(seed)
        made = []
        for _ in range(n):
            numbers = [picks.randrange(letters) for _ in range(picks.randint(low, high))]
            places = list(range(len(numbers)))
            if order == "reverse":
                places.reverse()
            elif order == "sort":
                places.sort(key=lambda place: numbers[place])
            target: AlignedWords = [(f"t{syllable(numbers[place])}", (place,)) for place in places]
            made.append(_known([f"s{syllable(number)}" for number in numbers], target))
        return made

    return make


def syllable(number: int) -> str:
    """Return the syllable with this number (ba, be, bi …). Every tokenizer keeps a word of one
    syllable as one token."""
    return CONSONANTS[number // len(VOWELS)] + VOWELS[number % len(VOWELS)]


def _known(source: list[str], target: AlignedWords) -> AlignedPair:
    links = [(origin, place) for place, (_, origins) in enumerate(target) for origin in origins]
    return AlignedPair(" ".join(source), " ".join(word for word, _ in target), tuple(links))


# -- included texts


@cache
def shakespeare() -> str:
    """Return the included 300 kB of Shakespeare's plays, which are in the public domain."""
    return gzip.decompress((TEXTS / "shakespeare.txt.gz").read_bytes()).decode()


def speeches(
    n_train: int, n_valid: int, size: int = 400, text: str | None = None
) -> tuple[TextColumns, TextColumns]:
    """Split Shakespeare, or another text, into passages of `size` characters. The last passages are
    for validation."""
    text = shakespeare() if text is None else text
    pieces = [text[start : start + size] for start in range(0, len(text) - size, size)]
    if len(pieces) < 2 * n_valid:
        raise DataError(
            f"the text has {len(text):,} characters, but at least {2 * n_valid * size:,} are "
            "needed."
        )
    n_train = min(n_train, len(pieces) - n_valid)
    return {"text": pieces[:n_train]}, {"text": pieces[-n_valid:]}


@cache
def tatoeba_pairs() -> tuple[tuple[str, str], ...]:
    """Return the 6,000 included German-English sentence pairs from Tatoeba (CC BY 2.0 FR)."""
    lines = gzip.decompress((TEXTS / "tatoeba-de-en.tsv.gz").read_bytes()).decode().splitlines()
    found = [line.split("\t") for line in lines]
    return tuple((german, english) for german, english in found)


@cache
def test_set_pairs() -> tuple[tuple[str, str], ...]:
    """Return 1,200 sentence pairs from the test set of the included translators."""
    lines = gzip.decompress((TEXTS / "tatoeba-test.tsv.gz").read_bytes()).decode().splitlines()
    found = [line.split("\t") for line in lines]
    return tuple((german, english) for german, english in found)


def translations(n_train: int, n_valid: int) -> tuple[TextColumns, TextColumns]:
    """Return German-English pairs for training and for validation. The validation pairs are from
    the end of the list."""
    pairs = tatoeba_pairs()

    def some(found: Sequence[tuple[str, str]]) -> TextColumns:
        return {"source": [de for de, _ in found], "target": [en for _, en in found]}

    return some(pairs[:n_train]), some(pairs[-n_valid:])


# -- user data


def read_folder(
    path: Path, source: str = "de", target: str = "en"
) -> tuple[TextColumns, TextColumns]:
    """Read training and validation pairs from a folder with `train.de`, `train.en` and `val.de`,
    `val.en` (or `valid`), one sentence per line."""

    def side(part: str, language: str) -> list[str]:
        file = path / f"{part}.{language}"
        try:
            return file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"cannot read {file}: {error}. The folder needs train.{source}, train.{target}, "
                f"val.{source} and val.{target} with one sentence per line."
            ) from error

    def both(part: str) -> TextColumns:
        found = {"source": side(part, source), "target": side(part, target)}
        if len(found["source"]) != len(found["target"]):
            raise DataError(
                f"{path / part}.{source} has {len(found['source']):,} lines, but {part}.{target} "
                f"has {len(found['target']):,}. Each line must be the translation of the same line "
                "in the other file."
            )
        return found

    valid = "valid" if (path / f"valid.{source}").is_file() else "val"
    return both("train"), both(valid)
