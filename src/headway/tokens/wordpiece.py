"""Train a WordPiece vocabulary: BPE on letters marked as word-initial or word-internal.

The `tokenizers` trainer numbers word-internal letters in hash-table order, so its result is not
reproducible. Here each letter has two symbols, one at the start of a word and one elsewhere. Plain
BPE is trained on those symbols, and its tokens are mapped back to letters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

INSIDE = "##"
MAX_ALPHABET = 1_000
"""Maximum number of distinct letters, as for BERT. Words with other letters are unknown."""

# Letters are represented by symbols in the two private-use planes of Unicode.
_FIRST, _INNER = 0xF0000, 0x100000


def learn_pieces(counts: Counter[str], size: int, specials: list[str]) -> dict[str, int]:
    """Return a vocabulary of at most `size` tokens, trained on word counts."""
    letters: Counter[str] = Counter()
    for word, n in counts.items():
        for letter in word:
            letters[letter] += n
    most = min(MAX_ALPHABET, max(size // 4, 1))
    kept = sorted(sorted(letters, key=lambda letter: (-letters[letter], letter))[:most])
    numbers = {letter: i for i, letter in enumerate(kept)}
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=specials,
        initial_alphabet=[chr(plane + i) for plane in (_FIRST, _INNER) for i in range(len(kept))],
        show_progress=False,
    )
    learner.train_from_iterator(_lines(counts, numbers), trainer)
    learned = sorted(learner.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    pieces = [name if name in specials else _written(name, kept) for name, _ in learned]
    return {piece: i for i, piece in enumerate(pieces)}


def _lines(counts: Counter[str], numbers: dict[str, int]) -> Iterator[str]:
    """Yield each word as often as it occurs, in lines of limited length."""
    for word in sorted(counts):
        if all(letter in numbers for letter in word):
            first, *inner = (numbers[letter] for letter in word)
            signs = chr(_FIRST + first) + "".join(chr(_INNER + i) for i in inner)
            left = counts[word]
            while left > 0:
                yield " ".join([signs] * min(left, 1_000))
                left -= 1_000


def _written(signs: str, letters: list[str]) -> str:
    codes = [ord(sign) for sign in signs]
    text = "".join(letters[code - (_INNER if code >= _INNER else _FIRST)] for code in codes)
    return INSIDE + text if codes[0] >= _INNER else text
