"""Choose tokens of texts to mask and their replacements (BERT, Devlin et al., 2018), and patches of
images or frames of audio to mask and reconstruct.

Every choice is a pure function of the seed, the epoch and the position in the corpus. Choices need
no stored state and do not depend on the composition of batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.specs.task_settings import FillSettings
from headway.tokens.tokenizer import Tokenizer

IntArray = NDArray[np.int64]

STEP = np.uint64(0x9E3779B97F4A7C15)
"""Increment of the SplitMix64 generator: 2⁶⁴ divided by the golden ratio."""

COUNT, CHOICE, FATE, WORD = range(4)
ROWS, SHIFT = range(2)
"""Purposes of random draws, for texts (line above) and for media (this line). Each purpose has its
own sequence of random numbers."""

ITEM = 1 << 24
"""Distance between the counter values of two consecutive media items. No item has this many
positions."""


@dataclass(frozen=True)
class CounterRandom:
    """Counter-based random number generator (SplitMix64), whose numbers can be drawn in any
    order."""

    seed: int
    epoch: int
    """Number of the epoch. -1: validation, whose choices are always the same."""

    def uniform(self, purpose: int, places: IntArray) -> NDArray[np.float64]:
        """Return a uniform random number in [0, 1) for each position. Draws for different purposes
        are independent."""
        key = np.random.SeedSequence([self.seed, self.epoch + 1, purpose])
        x = key.generate_state(1, np.uint64) + (places.astype(np.uint64) + np.uint64(1)) * STEP
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class FlatTexts:
    """Concatenated texts without special tokens. None of the texts is empty."""

    tokens: IntArray
    lengths: IntArray
    places: IntArray
    """Position of each token in the corpus."""


class TokenMasker:
    """Masks a fraction of the tokens of texts (`FillSettings.mask`), at least one token in each
    text."""

    def __init__(self, tokenizer: Tokenizer, settings: FillSettings) -> None:
        assert tokenizer.mask is not None
        self.mask, self.settings, self.tokenizer = tokenizer.mask, settings, tokenizer
        plain = np.setdiff1d(np.arange(tokenizer.vocab_size), list(tokenizer.specials))
        self.replacements = plain if len(plain) else np.array([self.mask])

    def counts(self, lengths: IntArray, first_places: IntArray, draws: CounterRandom) -> IntArray:
        """Return the number of tokens to mask in each text. It is rounded up or down at random, so
        that the average fraction is exact."""
        wanted = self.settings.mask * lengths + draws.uniform(COUNT, first_places)
        return np.clip(wanted.astype(np.int64), 1, lengths)

    def choose(self, texts: FlatTexts, draws: CounterRandom) -> NDArray[np.bool_]:
        """Return whether each token is to be predicted.

        With whole-word masking, words are chosen in random order until the next word would exceed
        the number of tokens to mask. At least one word is chosen.
        """
        first = np.cumsum(texts.lengths) - texts.lengths
        starts = np.ones(len(texts.tokens), np.bool_)
        if self.settings.whole_words:
            starts = self.tokenizer.word_starts(texts.tokens)
            starts[first] = True
        word = np.cumsum(starts) - 1
        sizes = np.bincount(word)
        text_of = np.repeat(np.arange(len(texts.lengths)), texts.lengths)[starts]
        order = np.lexsort((draws.uniform(CHOICE, texts.places[starts]), text_of))
        up_to = np.cumsum(sizes[order])
        words_of = np.bincount(text_of, minlength=len(texts.lengths))
        leads = np.cumsum(words_of) - words_of  # where the words of each text begin, in this order
        done = np.repeat((up_to - sizes[order])[leads], words_of)
        limit = np.repeat(self.counts(texts.lengths, texts.places[first], draws), words_of)
        taken = up_to - done <= limit
        taken[leads] = True
        chosen = np.empty(len(sizes), np.bool_)
        chosen[order] = taken
        return chosen[word]

    def apply(self, texts: FlatTexts, hidden: NDArray[np.bool_], draws: CounterRandom) -> IntArray:
        """Return the input tokens of the model. Most of the `hidden` tokens become the mask token,
        some become a random token, and some are kept, so that the model must predict every token
        well."""
        tokens, places = texts.tokens.copy(), texts.places[hidden]
        fate = draws.uniform(FATE, places)
        random = draws.uniform(WORD, places) * len(self.replacements)
        settings = self.settings
        tokens[hidden] = np.where(
            fate < settings.keep,
            tokens[hidden],
            np.where(
                fate < settings.keep + settings.random,
                self.replacements[random.astype(np.int64)],
                self.mask,
            ),
        )
        return tokens


@dataclass(frozen=True)
class PatchMasker:
    """Chooses the positions of images, videos or audio to mask. Special tokens at the start, such
    as the class token, are never masked."""

    mask: float
    """Fraction of the positions to mask."""

    span: int
    """Size of a masked block: side length in patches, or number of frames of audio."""

    def count(self, n_rows: int) -> int:
        """Return how many of `n_rows` positions to mask. At least one is masked, and at least one
        is kept if there are several."""
        return int(np.clip(round(self.mask * n_rows), 1, max(1, n_rows - 1)))

    def mask_images(
        self, items: IntArray, grid: tuple[int, int, int], draws: CounterRandom
    ) -> IntArray:
        """Return the sorted positions to mask in each image (B H).

        In all frames of a video, the same patches are masked. Otherwise, the model could copy a
        static object from the next frame.
        """
        _, n_lines, n_columns = grid
        line, column = np.divmod(np.arange(n_lines * n_columns), n_columns)
        unit_P = line // self.span * n_columns + column // self.span
        places_BP = items[:, None] * ITEM + unit_P
        keys_BP = draws.uniform(ROWS, places_BP)
        hidden_BH = _first(keys_BP, self.count(len(unit_P)))
        times = np.arange(grid[0]) * len(unit_P)
        return (times[None, :, None] + hidden_BH[:, None, :]).reshape(len(items), -1)

    def mask_audio(self, item: int, n_rows: int, draws: CounterRandom) -> IntArray:
        """Return the sorted positions to mask in one recording."""
        shift = int(draws.uniform(SHIFT, np.array([item]))[0] * self.span)
        unit_P = (np.arange(n_rows) + shift) // self.span
        keys_1P = draws.uniform(ROWS, (item * ITEM + unit_P)[None])
        return _first(keys_1P, self.count(n_rows))[0]


def _first(keys_BP: NDArray[np.float64], n: int) -> IntArray:
    """Return the sorted positions of the `n` smallest keys in each row of the array. Ties go to
    lower positions."""
    return np.sort(np.argsort(keys_BP, axis=1, kind="stable")[:, :n], axis=1)
