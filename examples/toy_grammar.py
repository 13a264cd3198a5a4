"""Write a made-up pair of languages whose alignment is known: data to train on, and a test file
with the alignment of every word, for `headway truth`.

    python examples/toy_grammar.py toy [grammar|copy|reverse]
    headway train translate --source toy/train.src --target toy/train.tgt \\
        --valid-source toy/valid.src --valid-target toy/valid.tgt --out runs/toy \\
        tokenizer.kind=words model.d_model=64 model.n_layers=2 model.n_heads=4 model.d_ff=256 \\
        train.steps=600 train.batch_tokens=2048
    headway truth runs/toy --pairs toy/test.tsv
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from headway.inside.measure.truth import Known

SIZES = {"train": 8000, "valid": 200, "test": 200}

NOUNS = 40
ADJECTIVES, VERBS, ADVERBS = 20, 20, 10
CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
Words = list[tuple[str, tuple[int, ...]]]
"""Words of the target, each with the numbers of the source words that it comes from."""


def grammar(n: int, seed: int = 1) -> list[Known]:
    """A toy grammar. Source: `the red dog often sees a cat up`; in the target an adjective stands
    behind its noun, the object before its subject, the verb at the end; `the` and `a` melt into the
    noun's ending; a verb with a particle is one word, and an adverb two.

    Nothing of it stands on the diagonal for long, and every word of the target has its origin.
    """
    picks = random.Random(seed)
    return [_sentence(picks) for _ in range(n)]


def _sentence(picks: random.Random) -> Known:
    source: list[str] = []
    subject = _phrase(picks, source)
    adverb: Words = []
    if picks.random() < 0.5:
        number = picks.randrange(ADVERBS)
        adverb = [(f"zu{name(number)}", (len(source),)), (f"zo{name(number)}", (len(source),))]
        source.append(f"adv{name(number)}")
    verb, at = picks.randrange(VERBS), len(source)
    source.append(f"verb{name(verb)}")
    thing = _phrase(picks, source)
    parts = [at]
    if picks.random() < 0.4:
        parts.append(len(source))
        source.append("up")
    ending = "u" if len(parts) > 1 else "a"
    target = [*thing, *subject, *adverb, (f"wer{name(verb)}{ending}", tuple(parts))]
    return _known(source, target)


def _phrase(picks: random.Random, source: list[str]) -> Words:
    """A noun with its article and perhaps an adjective; the source grows by it."""
    first = len(source)
    article = picks.choice(["the", "a"])
    source.append(article)
    adjective: Words = []
    if picks.random() < 0.6:
        number = picks.randrange(ADJECTIVES)
        adjective = [(f"ib{name(number)}", (len(source),))]
        source.append(f"adj{name(number)}")
    noun = picks.randrange(NOUNS)
    ending = "e" if article == "the" else "o"
    made: Words = [(f"kal{name(noun)}{ending}", (first, len(source)))]
    source.append(f"noun{name(noun)}")
    return [*made, *adjective]


def copies(n: int, seed: int = 1, *, turned: bool = False, letters: int = 20) -> list[Known]:
    """Copy what counts and leave out distractors; `turned`: from the last to the first."""
    picks = random.Random(seed)
    made = []
    for _ in range(n):
        source = [f"w{name(picks.randrange(letters))}" for _ in range(picks.randint(3, 8))]
        for _ in range(picks.randint(0, 4)):
            source.insert(picks.randrange(len(source) + 1), f"x{name(picks.randrange(5))}")
        kept: Words = [(word, (i,)) for i, word in enumerate(source) if word[0] == "w"]
        made.append(_known(source, kept[::-1] if turned else kept))
    return made


def name(number: int) -> str:
    """A syllable, so that every tokenizer takes a word for a word: ba, be, bi …"""
    return CONSONANTS[number // len(VOWELS)] + VOWELS[number % len(VOWELS)]


def _known(source: list[str], target: Words) -> Known:
    links = [(origin, place) for place, (_, origins) in enumerate(target) for origin in origins]
    return Known(" ".join(source), " ".join(word for word, _ in target), tuple(links))


def reverses(n: int, seed: int = 1) -> list[Known]:
    return copies(n, seed, turned=True)


TOYS: dict[str, Callable[[int, int], list[Known]]] = {
    "grammar": grammar,
    "copy": copies,
    "reverse": reverses,
}


def write_known(pairs: Iterable[Known], path: Path) -> None:
    """As `headway truth` reads them."""
    lines = [
        "\t".join([pair.source, pair.target, " ".join(f"{s}-{t}" for s, t in pair.links)])
        for pair in pairs
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(folder: str = "toy", language: str = "grammar") -> None:
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for seed, (part, n) in enumerate(SIZES.items(), 1):
        pairs = [pair for pair in TOYS[language](n, seed) if pair.source not in seen]
        seen.update(pair.source for pair in pairs)
        if part == "test":
            write_known(pairs, place / "test.tsv")
            continue
        for side, lines in (("src", [p.source for p in pairs]), ("tgt", [p.target for p in pairs])):
            (place / f"{part}.{side}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{place}: {', '.join(f'{n:,} for {part}' for part, n in SIZES.items())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
