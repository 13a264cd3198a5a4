"""Train tokenizers on the texts of a run.

The sub-word kinds bpe and unigram work on bytes, so they cover any text. The space before a word
belongs to its token, and decoding restores the text exactly, with all its spaces. One space is put
before the text, so that a word has the same token at the start as anywhere else. Decoding removes
this space.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from headway.settings.data import TokenizerSettings
from headway.tokens.files import load_tokenizer, load_vocabularies
from headway.tokens.tokenizer import (
    SPECIALS,
    SUBWORD_CUTS,
    UNK,
    WORD_CUTS,
    Tokenizer,
    Vocabularies,
)
from headway.tokens.vocabtxt import bert_normaliser
from headway.tokens.wordpiece import INSIDE, learn_pieces

SAMPLE = 10_000_000
"""Maximum number of characters on which a vocabulary is trained. A larger corpus is thinned
evenly."""

MAX_TEXT = 10_000
"""Maximum number of characters that are used of each text. A word of a million letters would take
hours."""

SHARE_OF_PARTS = 0.6
"""Share of a unigram vocabulary that is learned by the `tokenizers` trainer. The rest is reserved
for whole words that it misses. Chosen by hand, not tuned."""

CHARACTERS_A_PAIR = 120
"""Typical number of characters of a sentence pair, source and target together. It converts the size
of other texts to a number of pairs."""

BYTES = "bytes"
"""Kind of tokenizer whose vocabulary is fixed, so that no texts are read to train it."""

MAX_WORDS = 32_000
"""Default size of a vocabulary of words, including special tokens."""

MAX_CHARACTERS = 8_000
"""Default size of a vocabulary of characters, including special tokens."""


def train_vocabularies(
    sources: Iterable[str], targets: Iterable[str], settings: TokenizerSettings, n_pairs: int
) -> Vocabularies:
    """Train one vocabulary for both sides or one per side, or load the file in the settings.

    `n_pairs`: number of sentence pairs, which determines the size of the vocabulary unless the
    settings do. The same text always gives the same vocabulary.
    """
    if settings.file is not None:
        return load_vocabularies(Path(settings.file))
    if settings.kind == BYTES:
        sources, targets = (), ()
    sample = thin_pairs(zip(sources, targets, strict=True), SAMPLE)
    one, other = ([pair[side] for pair in sample] for side in (0, 1))
    if settings.joint:
        both = train_tokenizer(one + other, settings, n_pairs)
        return Vocabularies(both, both)
    return Vocabularies(
        train_tokenizer(one, settings, n_pairs), train_tokenizer(other, settings, n_pairs)
    )


def train_on_texts(
    texts: Iterable[str],
    settings: TokenizerSettings,
    n_characters: int,
    specials: Sequence[str] = (),
) -> Tokenizer:
    """Train one vocabulary for texts in one language, or load the file in the settings.

    `specials`: special tokens that follow the usual three. If the file lacks some of them, they are
    appended.
    """
    if settings.file is not None:
        return load_tokenizer(Path(settings.file)).with_specials(specials)
    if settings.kind == BYTES:
        texts = ()
    sample = [text for text, _ in thin_pairs(((text, "") for text in texts), SAMPLE)]
    return train_tokenizer(sample, settings, n_characters // CHARACTERS_A_PAIR, specials)


def train_tokenizer(
    lines: list[str], settings: TokenizerSettings, n_pairs: int, specials: Sequence[str] = ()
) -> Tokenizer:
    train = {"bpe": _bpe, "unigram": _unigram, "wordpiece": _wordpiece, "characters": _characters,
             "words": _words, BYTES: _bytes}[settings.kind]  # fmt: skip
    size = settings.vocab_size or choose_size(settings.kind, n_pairs)
    return Tokenizer(train(lines, size, settings, [*SPECIALS, *specials]))


def choose_size(kind: str, n_pairs: int) -> int:
    """Return the default size of a vocabulary for a corpus of `n_pairs` sentence pairs.

    For sub-words it is about 4,000 for 10,000 pairs and grows with the number of pairs to the power
    0.4: about 6,200 for 30,000, 10,000 for 100,000, 19,000 for 500,000, and at most 32,000 (from
    1.8 million). It is rounded to a multiple of 64.
    """
    if kind == "words":
        return MAX_WORDS
    if kind == "characters":
        return MAX_CHARACTERS
    size = 4_000 * (max(n_pairs, 1) / 10_000) ** 0.4
    return min(max(round(size / 64) * 64, 512), 32_000)


def thin_pairs(pairs: Iterable[tuple[str, str]], limit: int) -> list[tuple[str, str]]:
    """Return every k-th pair, where k is the smallest power of two that leaves at most `limit`
    characters.

    The number of pairs need not be known in advance, and memory never holds more than `limit`
    characters.
    """
    kept: list[tuple[str, str]] = []
    step, size = 1, 0
    for number, (source, target) in enumerate(pairs):
        if number % step:
            continue
        pair = source[:MAX_TEXT], target[:MAX_TEXT]
        kept.append(pair)
        size += len(pair[0]) + len(pair[1])
        while size > limit and len(kept) > 1:
            step *= 2
            kept = kept[::2]
            size = sum(len(source) + len(target) for source, target in kept)
    return kept


def _normalisers(settings: TokenizerSettings) -> list[Any]:
    forms = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC, "nfd": normalizers.NFD,
             "nfkd": normalizers.NFKD}  # fmt: skip
    chosen = forms.get(settings.normalisation)
    found: list[Any] = [chosen()] if chosen else []
    return [*found, normalizers.Lowercase()] if settings.lowercase else found


def _parts(
    model: Any, settings: TokenizerSettings, cuts: str | None, *, in_bytes: bool
) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    before: list[Any] = _normalisers(settings)
    pieces: list[Any] = []
    back: list[Any] = [decoders.ByteLevel() if in_bytes else decoders.Fuse()]
    if cuts:
        before.append(normalizers.Prepend(" "))
        pieces.append(pre_tokenizers.Split(Regex(cuts), "isolated"))
        back.append(decoders.Strip(" ", 1, 0))
    if in_bytes:
        pieces.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.normalizer = normalizers.Sequence(before)
    if pieces:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    tokenizer.decoder = decoders.Sequence(back)
    return tokenizer


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _bpe(
    lines: list[str], size: int, settings: TokenizerSettings, specials: list[str]
) -> tokenizers.Tokenizer:
    tokenizer = _parts(models.BPE(), settings, SUBWORD_CUTS, in_bytes=True)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=specials,
        initial_alphabet=_alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def _unigram(
    lines: list[str], size: int, settings: TokenizerSettings, specials: list[str]
) -> tokenizers.Tokenizer:
    """Train a unigram model, and add the frequent whole words that the trainer of `tokenizers`
    misses.

    The trainer takes its candidates from substrings that different words share, whatever their
    frequency. It therefore never learns a word that is not part of another word.
    """
    tokenizer = _parts(models.Unigram(), settings, SUBWORD_CUTS, in_bytes=True)
    least = 256 + len(specials)
    trainer = trainers.UnigramTrainer(
        vocab_size=max(round(SHARE_OF_PARTS * size), least),
        special_tokens=specials,
        unk_token=UNK,
        initial_alphabet=_alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    learned = json.loads(tokenizer.to_str())["model"]["vocab"]
    pieces = _in_order(learned, specials)
    tokenizer.model = models.Unigram(pieces, unk_id=0)
    whole = _missed_words(tokenizer, dict(pieces), _word_counts(tokenizer, lines))
    pieces += sorted(whole[: max(size - len(pieces), 0)], key=lambda item: (-item[1], item[0]))
    tokenizer.model = models.Unigram(pieces, unk_id=0)
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _wordpiece(
    lines: list[str], size: int, settings: TokenizerSettings, specials: list[str]
) -> tokenizers.Tokenizer:
    """Train a tokenizer like BERT's: words and punctuation are separate, and tokens inside a word
    begin with `##`.

    Decoding does not restore the text exactly. Lower-casing removes accents, too.
    """
    frame = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    frame.normalizer = normalizers.Sequence(
        [*_normalisers(replace(settings, lowercase=False)), bert_normaliser(settings.lowercase)]
    )
    frame.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    frame.decoder = decoders.WordPiece()
    pieces = learn_pieces(_word_counts(frame, lines), size, specials)
    frame.model = models.WordPiece(pieces, unk_token=UNK, continuing_subword_prefix=INSIDE)
    frame.add_special_tokens(specials)
    return frame


def _missed_words(
    tokenizer: tokenizers.Tokenizer, scores: dict[str, float], counts: Counter[str]
) -> list[tuple[str, float]]:
    """Return the words that would make the text more likely if they were one token, with scores,
    the best first."""
    words = sorted(counts)
    cut = [[token.value for token in tokenizer.model.tokenize(word)] for word in words]
    n_pieces = sum(counts[word] * len(pieces) for word, pieces in zip(words, cut, strict=True))
    gains: list[tuple[float, str, float]] = []
    for word, pieces in zip(words, cut, strict=True):
        alone = round(math.log(counts[word] / n_pieces), 6)
        gain = counts[word] * (alone - sum(scores[piece] for piece in pieces))
        if len(pieces) > 1 and counts[word] > 1 and gain > 0:
            gains.append((-gain, word, alone))
    return [(word, alone) for _, word, alone in sorted(gains)]


def _in_order(
    learned: list[tuple[str, float | None]], specials: list[str]
) -> list[tuple[str, float]]:
    """Return the tokens of a trained unigram model in a reproducible order, with rounded scores.

    The hash tables of the `tokenizers` trainer change the last digits of its sums from run to run.
    The trainer gives bytes absent from the training text scores below all others, in random order
    (without any text, no scores). This function sorts these bytes and gives them all the same
    score.
    """
    pieces = {piece: -100.0 if score is None else score for piece, score in learned}
    for name in specials:
        pieces.pop(name, None)
    floor = min((score for piece, score in pieces.items() if len(piece) > 1), default=-100.0)
    absent = sorted(piece for piece, score in pieces.items() if score < floor)
    present = {piece: round(score, 6) for piece, score in pieces.items() if score >= floor}
    ordered = sorted(present.items(), key=lambda item: (-item[1], item[0]))
    lowest = round(floor, 6) - 10
    return [(name, 0.0) for name in specials] + ordered + [(piece, lowest) for piece in absent]


def _characters(
    lines: list[str], size: int, settings: TokenizerSettings, specials: list[str]
) -> tokenizers.Tokenizer:
    frame = _parts(models.BPE(), settings, None, in_bytes=False)
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(frame.normalizer.normalize_str(line))
    vocabulary = _ids([*specials, *_most_frequent(counts, size - len(specials))])
    # In a model without merges, every character is a token.
    frame.model = models.BPE(vocabulary, [], unk_token=UNK)
    frame.add_special_tokens(specials)
    return frame


def _words(
    lines: list[str], size: int, settings: TokenizerSettings, specials: list[str]
) -> tokenizers.Tokenizer:
    frame = _parts(models.WordLevel(unk_token=UNK), settings, WORD_CUTS, in_bytes=False)
    counts = _word_counts(frame, lines)
    vocabulary = _ids([*specials, *_most_frequent(counts, size - len(specials))])
    frame.model = models.WordLevel(vocabulary, unk_token=UNK)
    frame.add_special_tokens(specials)
    return frame


def _bytes(
    lines: list[str], size: int, settings: TokenizerSettings, specials: list[str]
) -> tokenizers.Tokenizer:
    model = models.BPE(_ids([*specials, *_alphabet()]), [])
    tokenizer = _parts(model, settings, None, in_bytes=True)
    tokenizer.add_special_tokens(specials)
    return tokenizer


def _word_counts(frame: tokenizers.Tokenizer, lines: list[str]) -> Counter[str]:
    """Count the words into which pre-tokenization splits the lines."""
    between_spaces: Counter[str] = Counter()
    for line in lines:
        between_spaces.update(line.split(" "))
    counts: Counter[str] = Counter()
    for part, n in between_spaces.items():
        text = frame.normalizer.normalize_str(part)
        for piece, _ in frame.pre_tokenizer.pre_tokenize_str(text):
            counts[piece] += n
    return counts


def _ids(pieces: list[str]) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(pieces)}


def _most_frequent(counts: Counter[str], size: int) -> list[str]:
    return sorted(counts, key=lambda piece: (-counts[piece], piece))[:size]
