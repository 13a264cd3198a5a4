"""How much of generated text is copied: the share of its 8-grams of words that training text holds.

    python examples/copied.py data/stories/train.txt written.txt data/stories/test.txt

The same share of text that people wrote and no one trained on says what is usual.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

N_GRAM = 8
WORD = re.compile(r"\w+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)


def n_grams(text: str) -> NDArray[np.uint64]:
    """One number for each run of words, without case and punctuation: 8 bytes a word, and two
    different runs look alike once in 2⁶⁴."""
    words = WORD.findall(text.casefold())
    if len(words) < N_GRAM:
        return np.empty(0, dtype=np.uint64)
    known = {word: bits(word) for word in set(words)}
    words_N = np.array([known[word] for word in words], dtype=np.uint64)
    last = len(words) - N_GRAM + 1
    sums = np.zeros(last, dtype=np.uint64)
    for place in range(N_GRAM):
        sums = sums * FACTOR + words_N[place : place + last]  # modulo 2⁶⁴, as meant
    return sums


def bits(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


def all_n_grams(texts: Iterable[str]) -> NDArray[np.uint64]:
    return np.concatenate([n_grams(text) for text in texts])


def main() -> None:
    training, *others = (Path(name).read_text("utf-8") for name in sys.argv[1:])
    held = np.unique(all_n_grams(training.split("<|endoftext|>")))
    for name, text in zip(sys.argv[2:], others, strict=True):
        found = np.isin(all_n_grams(text.split("<|endoftext|>")), held)
        print(f"{name}: {found.mean() if len(found) else 0:.1%}")


if __name__ == "__main__":
    main()
