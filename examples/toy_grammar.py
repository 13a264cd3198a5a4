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

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from headway.inside.measure.truth import AlignedPair
from headway.lab.datasets import copies, grammar, reverses

SIZES = {"train": 8000, "valid": 200, "test": 200}

TOYS: dict[str, Callable[[int, int], list[AlignedPair]]] = {
    "grammar": grammar,
    "copy": copies,
    "reverse": reverses,
}


def write_known(pairs: Iterable[AlignedPair], path: Path) -> None:
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
