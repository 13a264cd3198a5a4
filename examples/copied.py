"""How much of generated text is copied: the share of its 8-grams of words that training text holds.

    python examples/copied.py data/stories/train.txt written.txt data/stories/test.txt

The same share of text that people wrote and no one trained on says what is usual.
"""

from __future__ import annotations

import sys
from pathlib import Path

from headway.metrics.language import Copies


def main() -> None:
    training, *others = (Path(name).read_text("utf-8") for name in sys.argv[1:])
    copies = Copies.of(training.split("<|endoftext|>"))
    for name, text in zip(sys.argv[2:], others, strict=True):
        print(f"{name}: {copies.share(text.split('<|endoftext|>')):.1%}")


if __name__ == "__main__":
    main()
