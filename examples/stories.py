"""Slices of TinyStories (Eldan and Li 2023) as one corpus: every story once, with capital letters.

    python examples/stories.py data/tinystories data/stories

One slice marks stories by `<|endoftext|>`, in the others a line that follows no blank one begins a
story, and the largest is in lower case. Its capitals are put back by what the other slices show:
sentences begin with one, and so do words that they mostly write with one, and names ("named lily")
within their story. Validation and test stories come from the slices that had capitals all along.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

END = "<|endoftext|>"
WORD = re.compile(r"[A-Za-z]+(?:'[a-z]+)?")
SENTENCE = re.compile(r'(^|[.!?]["”]?\s+["“]?|\n\s*["“]?|[,:]\s+["“])([a-z])')
NAMED = re.compile(r"\b(?:named|called|name is|name was)\s+([a-z]+)")


def marked(text: str) -> Iterator[str]:
    yield from text.split(END)


def by_lines(text: str) -> Iterator[str]:
    story: list[str] = []
    for line in text.split("\n"):
        if line and story and story[-1]:
            yield "\n".join(story)
            story = []
        story.append(line)
    yield "\n".join(story)


def tidy(story: str) -> str:
    story = story.replace("“", '"').replace("”", '"').replace("’", "'").replace("‘", "'")
    lines = [" ".join(line.split()) for line in story.split("\n")]
    return "\n".join(line for line in lines if line)


def key(story: str) -> str:
    return hashlib.sha256("".join(re.findall(r"[a-z]", story.lower())).encode()).hexdigest()


class Capitals:
    """Which words are written with a capital inside sentences."""

    def __init__(self, stories: list[str]) -> None:
        upper: Counter[str] = Counter()
        every: Counter[str] = Counter()
        for story in stories:
            for found in re.finditer(r"[a-z,] ([A-Za-z]+)", story):
                word = found[1]
                every[word.lower()] += 1
                upper[word.lower()] += word[0].isupper()
        self.words = {word for word, n in every.items() if n > 1 and upper[word] > 0.6 * n}

    def __call__(self, story: str) -> str:
        names = {name for name in NAMED.findall(story) if len(name) > 2} - {"the", "his", "her"}
        known = self.words | names | {"i"}

        def cased(found: re.Match[str]) -> str:
            word = found[0]
            return word[0].upper() + word[1:] if word.split("'")[0] in known else word

        story = WORD.sub(cased, story)
        return SENTENCE.sub(lambda found: found[1] + found[2].upper(), story)


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    read = {
        name: [tidy(story) for story in cut((source / name).read_text("utf-8"))]
        for name, cut in {
            "ts_10k.txt": marked, "ts_smallgpt.txt": by_lines, "tinystories_slice.txt": by_lines,
        }.items()
    }  # fmt: skip
    cased = read["ts_10k.txt"] + read["ts_smallgpt.txt"]
    capitals = Capitals(cased)
    sets: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    seen: set[str] = set()
    for story in cased:
        place = int(key(story)[:8], 16) / 16**8
        if len(story) < 100 or key(story) in seen:
            continue
        seen.add(key(story))
        which = "test" if place < 0.03 else "valid" if place < 0.06 else "train"
        sets[which].append(story)
    for story in read["tinystories_slice.txt"]:
        if len(story) >= 100 and key(story) not in seen:
            seen.add(key(story))
            sets["train"].append(capitals(story))
    folder.mkdir(parents=True, exist_ok=True)
    for name, stories in sets.items():
        (folder / f"{name}.txt").write_text(f"\n{END}\n".join(stories) + "\n", "utf-8")
        print(f"{name}: {len(stories):,} stories, {sum(map(len, stories)):,} characters")


if __name__ == "__main__":
    main()
