"""Text for masked pre-training before named entities are tagged: the words of the training files of
WNUT-17 and WikiANN, and whatever plain English is at hand, with its capitals.

    python examples/entities.py data data/entities
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

COLUMNS = ("wnut17/wnut17train.conll", "wikiann-en/en.train")
PLAIN = ("wikitext2/wiki.valid.raw", "wikitext2/wiki.test.raw", "multi30k/train.en",
         "news-en-de-10k/src-train.txt", "tatoeba/train.en", "stories/train.txt")  # fmt: skip
WORDS = 120
REPEATED = 3
"""How often the sentences with entities are repeated beside the others."""


def sentences(path: Path) -> Iterator[str]:
    words: list[str] = []
    for line in [*path.read_text("utf-8").split("\n"), ""]:
        word = line.split("\t")[0].removeprefix("en:").strip()
        if word:
            words.append(word)
        elif words:
            yield " ".join(words)
            words = []


def main() -> None:
    data, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    lines = REPEATED * [line for name in COLUMNS for line in sentences(data / name)]
    for name in PLAIN:
        if not (data / name).is_file():
            print(f"without {data / name}", file=sys.stderr)
            continue
        for line in (data / name).read_text("utf-8").split("\n"):
            words = line.replace("<|endoftext|>", "").split()
            for first in range(0, len(words), WORDS):
                piece = " ".join(words[first : first + WORDS])
                if len(piece) > 20:
                    lines.append(piece)
    (folder / "text.txt").write_text("".join(line + "\n" for line in lines), "utf-8")
    print(f"text: {len(lines):,} lines, {sum(map(len, lines)):,} characters")


if __name__ == "__main__":
    main()
