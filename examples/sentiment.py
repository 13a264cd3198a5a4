"""Movie-review sentences (Pang and Lee 2005, `rt-polarity.all`) as TSV, split 8:1:1, and text for
masked pre-training from whatever plain English is at hand.

    python examples/sentiment.py data data/sentiment

SST-2's sentences are taken from the same reviews: none that is in its dev or test set, or in the
test set made here, gets into the text for pre-training. That text is lower-cased like SST-2.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

PLAIN = ("wikitext2/wiki.valid.raw", "wikitext2/wiki.test.raw", "multi30k/train.en",
         "news-en-de-10k/src-train.txt", "tatoeba/train.en", "stories/train.txt")  # fmt: skip
WORDS = 120
"""A longer line is cut here: the sentences to come are short."""

IN_DOMAIN = 4
"""How often sentences about movies are repeated beside the others."""


def folded(text: str) -> str:
    return "".join(re.findall(r"[a-z0-9]", text.lower()))


def reviews(path: Path) -> list[tuple[str, str]]:
    """Latin-1, with NEL characters that are no line ends."""
    lines = path.read_bytes().decode("latin-1").split("\n")
    found = [line.strip().split(" ", 1) for line in lines if line.strip()]
    return [(" ".join(text.replace("\x85", " ").split()), label) for label, text in found]


def share(text: str) -> float:
    return int(hashlib.sha256(folded(text).encode()).hexdigest()[:8], 16) / 16**8


def sst(data: Path, name: str) -> list[tuple[str, str]]:
    lines = (data / "sst2" / f"{name}.tsv").read_text("utf-8").split("\n")
    return [(text, label) for text, label in (line.split("\t") for line in lines if line)]


def pretraining(data: Path, known: set[str], about_movies: list[str]) -> list[str]:
    lines = IN_DOMAIN * [text for text in about_movies if folded(text) not in known]
    for name in PLAIN:
        path = data / name
        if not path.is_file():
            print(f"without {path}", file=sys.stderr)
            continue
        for line in path.read_text("utf-8").split("\n"):
            words = line.lower().replace("<|endoftext|>", "").split()
            for first in range(0, len(words), WORDS):
                piece = " ".join(words[first : first + WORDS])
                if len(piece) > 20 and folded(piece) not in known:
                    lines.append(piece)
    return lines


def main() -> None:
    data, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    sets: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for text, label in dict.fromkeys(reviews(data / "mr" / "rt-polarity.all")):
        place = share(text)
        sets["test" if place < 0.1 else "valid" if place < 0.2 else "train"].append((text, label))
    for name, rows in sets.items():
        (folder / f"mr-{name}.tsv").write_text("".join(f"{t}\t{y}\n" for t, y in rows), "utf-8")
        print(f"mr-{name}: {len(rows):,} sentences")
    held_out = [*sst(data, "dev"), *sst(data, "test"), *sets["valid"], *sets["test"]]
    known = {folded(text) for text, _ in held_out}
    movies = [text for text, _ in [*sst(data, "train"), *sets["train"]]]
    lines = pretraining(data, known, movies)
    (folder / "text.txt").write_text("".join(line + "\n" for line in lines), "utf-8")
    print(f"text: {len(lines):,} lines, {sum(map(len, lines)):,} characters")


if __name__ == "__main__":
    main()
