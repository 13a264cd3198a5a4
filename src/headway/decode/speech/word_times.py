"""Word times from cross-attention, computed with alignment heads and the best monotonic path.

For each word, an alignment head attends to the positions at which the word is spoken, and these
move forward in time. The fraction of its attention on one monotonic path therefore identifies
alignment heads without manual selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.tokens.tokenizer import SPACE_MARK

AnyFloatArray = NDArray[np.floating[Any]]

MOST_HEADS = 6
"""Maximum number of alignment heads. OpenAI lists six for Whisper tiny and medium."""

GOOD_SHARE = 0.7
"""Minimum score of an alignment head, as a fraction of the score of the best head."""

FOLLOWS = 0.5
"""Minimum attention within the words at which heads count as following the audio, on a scale from
chance (0) to all attention (1)."""

MOST_CHANCE = 0.6
"""Maximum chance level at which heads can be judged. For example, if a single word fills the audio,
all attention to the audio is attention to that word."""

SMOOTH = 5
"""Width in positions of the median filter that removes isolated peaks of attention."""


@dataclass(frozen=True)
class WordTiming:
    text: str
    start: float
    end: float
    """End of the word in seconds. `start` and `end` are relative to the start of the audio."""

    confidence: float
    """Geometric mean of the probabilities of the word's tokens."""


def monotone_path(worth_TS: AnyFloatArray) -> NDArray[np.int64]:
    """Assign a token (T) to each position (S) such that the sum of scores on the path is maximal.

    The path starts at the first token and ends at the last. At each position it stays at its token
    or moves to the next one. If there are fewer positions than tokens, some tokens get no position.
    """
    n_tokens, n_rows = worth_TS.shape
    if n_rows < n_tokens:
        return np.arange(n_rows) * n_tokens // max(n_rows, 1)
    best_T = np.full(n_tokens, -np.inf)
    best_T[0] = worth_TS[0, 0]
    came_ST = np.zeros((n_rows, n_tokens), np.bool_)
    """Whether the best path to a token at a position comes from the token before."""
    for row in range(1, n_rows):
        before_T = np.concatenate([[-np.inf], best_T[:-1]])
        came_ST[row] = before_T > best_T
        best_T = np.maximum(before_T, best_T) + worth_TS[:, row]
    path_S = np.empty(n_rows, np.int64)
    token = n_tokens - 1
    for row in range(n_rows - 1, -1, -1):
        path_S[row] = token
        token -= int(came_ST[row, token])
    return path_S


def share_on_path(attention_TS: AnyFloatArray) -> float:
    """Return the fraction of a head's attention that falls on its best monotonic path.

    It is near 1 for a head that follows the audio. It is 1/T for uniform attention, and for
    attention to a single position. Attention to padding counts as off the path.
    """
    if attention_TS.shape[1] < len(attention_TS):
        return 0.0
    path_S = monotone_path(attention_TS)
    on_path = attention_TS[path_S, np.arange(len(path_S))].sum()
    return float(on_path / len(attention_TS))


def alignment_heads(
    examples: Sequence[AnyFloatArray], of_last: int | None = None, most: int = MOST_HEADS
) -> tuple[list[int], list[float]]:
    """Return the indices of alignment heads, best first, and the scores of all heads.

    Each example is the attention of all heads, layer by layer, with shape (heads, tokens including
    the end token, positions). `of_last`: number of heads in the last layer, to which the choice is
    then limited. Many heads in earlier layers attend to the previous word, while heads in the last
    layer attend to the next.
    """
    if not examples:
        return [], []
    shares = np.mean(
        [[share_on_path(attention_TS) for attention_TS in of_heads] for of_heads in examples], 0
    )
    first = 0 if of_last is None else len(shares) - of_last
    order = first + np.argsort(-shares[first:], kind="stable")[:most]
    chosen = [int(h) for h in order if shares[h] >= GOOD_SHARE * shares[order[0]]]
    return chosen, shares.tolist()


def token_rows(attention_HTS: AnyFloatArray) -> list[tuple[int, int]]:
    """Return the range of positions of each token, from the attention of alignment heads.

    The last of the T tokens is the end token, to which the positions after the speech belong.
    """
    mean, std = attention_HTS.mean(1, keepdims=True), attention_HTS.std(1, keepdims=True)
    # Standardize over tokens, so that positions to which all tokens attend have no effect.
    worth_HTS = (attention_HTS - mean) / np.maximum(std, 1e-9)
    worth_TS = _smooth(worth_HTS).mean(0)
    path_S = monotone_path(worth_TS)
    n_tokens = worth_TS.shape[0]
    first = np.searchsorted(path_S, np.arange(n_tokens), side="left")
    last = np.searchsorted(path_S, np.arange(n_tokens), side="right")
    return [(int(a), int(b)) for a, b in zip(first, last, strict=True)]


@dataclass(frozen=True)
class AttentionCoverage:
    """Mean fractions of a token's cross-attention that fall on the audio positions assigned to the
    token or to its word."""

    on_path: float
    """Mean fraction of a token's attention that falls on the positions of that token."""

    in_words: float
    """Mean fraction of a token's attention that falls on the positions of its word.

    If tokens are single letters, this is more informative than `on_path`, because positions of
    letters within a word mean little.
    """

    chance: float
    """Value of `in_words` for uniform attention."""

    @property
    def is_conclusive(self) -> bool:
        return self.chance <= MOST_CHANCE

    @property
    def follows_audio(self) -> bool:
        return self.is_conclusive and self.in_words - self.chance >= FOLLOWS * (1 - self.chance)


def measure_coverage(
    rows: Sequence[tuple[int, int]], attention_TS: AnyFloatArray, numbers: Sequence[int]
) -> AttentionCoverage:
    """Measure how much attention falls on the assigned positions. `numbers`: index of the word of
    each token, or −1 for tokens outside words."""
    spans: dict[int, tuple[int, int]] = {}
    for number, (first, last) in zip(numbers, rows, strict=True):
        a, b = spans.get(number, (first, last))
        spans[number] = min(a, first), max(b, last)
    inside = [(t, spans[number]) for t, number in enumerate(numbers) if number >= 0]
    n_rows = attention_TS.shape[1]
    on_line = [float(attention_TS[t, a:b].sum()) for t, (a, b) in enumerate(rows)]
    on_words = [float(attention_TS[t, a:b].sum()) for t, (a, b) in inside]
    by_chance = [(b - a) / max(n_rows, 1) for _, (a, b) in inside]
    return AttentionCoverage(
        *(float(np.mean(x)) if x else 0.0 for x in (on_line, on_words, by_chance))
    )


def _smooth(worth_HTS: AnyFloatArray) -> AnyFloatArray:
    half = min(SMOOTH // 2, (worth_HTS.shape[2] - 1) // 2)
    if half < 1:
        return worth_HTS
    padded = np.pad(worth_HTS, ((0, 0), (0, 0), (half, half)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1, axis=2)
    found: AnyFloatArray = np.median(windows, axis=-1)
    return found


def make_word_timings(
    texts: Sequence[str],
    pieces: Sequence[str],
    numbers: Sequence[int],
    rows: Sequence[tuple[int, int]],
    log_probs: Sequence[float],
    row_s: float,
) -> list[WordTiming]:
    """Combine tokens into words with times.

    `numbers`: index of the word of each token. `rows`: position range of each token. `row_s`:
    duration of a position in seconds. Tokens that are only spaces do not affect the time of a word.
    """
    found = []
    for number, text in enumerate(texts):
        mine = [place for place, of in enumerate(numbers) if of == number]
        if not mine:
            continue
        logs = [log_probs[place] for place in mine]
        said = [place for place in mine if not is_space(pieces[place])] or mine
        start, end = min(rows[p][0] for p in said), max(rows[p][1] for p in said)
        confidence = float(np.exp(np.mean(logs)))
        found.append(WordTiming(text, start * row_s, end * row_s, min(confidence, 1.0)))
    return found


def is_space(piece: str) -> bool:
    return not piece.replace(SPACE_MARK, " ").strip()


FRAME_S = 0.01
"""Duration in seconds of a frame in which loudness is measured: 10 ms, the hop of the mel
frames."""

QUIET_SHARE = 0.05
"""Maximum loudness of a pause, relative to the loudest frame nearby."""

NEAR_FRAMES = 15
"""Maximum distance, in frames, between a pause and the word boundary predicted by the model."""


CLEAR_SHARE = 0.02
"""Maximum loudness of a clear pause, relative to the loudest frame within a second. A clear pause
has at least two frames."""

DISTANCE = 0.1
"""Cost per frame of distance between a chosen pause and the predicted word boundary.

A pause scores one point per frame of its duration. The cost is small in comparison, because CTC may
place tokens far from the words.
"""

MOST_WORTH = 20
"""Maximum score of a pause, in frames. Longer pauses are not better."""

SHORTEST = 15
"""Minimum duration of a word between two pauses, in frames."""


def loudness(samples: AnyFloatArray, rate: int) -> AnyFloatArray:
    """Return the RMS amplitude of each 10 ms frame."""
    step = max(1, round(FRAME_S * rate))
    n_frames = len(samples) // step
    frames = samples[: n_frames * step].reshape(n_frames, step).astype(np.float32)
    level: AnyFloatArray = np.sqrt((frames**2).mean(1)) if n_frames else np.zeros(0, np.float32)
    return level


def snap_to_pauses(
    words: Sequence[WordTiming], samples: AnyFloatArray, rate: int
) -> list[WordTiming]:
    """Move the boundaries of words to the pauses between them.

    Word times from the model are coarse and may assign a pause to either neighbour, and CTC may
    place tokens far from where they are spoken. If the audio has a clear pause for every boundary,
    words are placed between pauses that are long and near the predicted boundaries. Otherwise each
    boundary moves to the nearest pause, if one is close: the first word ends where the pause
    starts, and the second word starts where it ends. A boundary without a close pause does not
    move.
    """
    level_A = loudness(samples, rate)
    if not words or not len(level_A) or not level_A.max():
        return list(words)
    between = _clear(level_A, words)
    if between is not None:
        starts, ends = [end for _, end in between[:-1]], [start for start, _ in between[1:]]
        return [
            replace(word, start=start * FRAME_S, end=end * FRAME_S)
            for word, start, end in zip(words, starts, ends, strict=True)
        ]
    found = list(words)
    for place in range(len(words) + 1):
        before = words[place - 1] if place else None
        after = words[place] if place < len(words) else None
        pause = _pause(level_A, before, after)
        if pause is None:
            continue
        start, end = (frame * FRAME_S for frame in pause)
        if before is not None:
            found[place - 1] = replace(found[place - 1], end=max(start, found[place - 1].start))
        if after is not None:
            found[place] = replace(after, start=min(end, after.end))
    return found


def _clear(level_A: AnyFloatArray, words: Sequence[WordTiming]) -> list[tuple[int, int]] | None:
    """Return the silence before the first word, a clear pause for each boundary, and the silence
    after the last word, as frame ranges. Return None if there are too few clear pauses."""
    n = len(level_A)
    reach = round(1 / FRAME_S)
    padded = np.pad(level_A, reach)
    near_A = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1).max(-1)
    runs = [(a, b) for a, b in _runs(level_A <= CLEAR_SHARE * near_A) if b - a > 1]
    before = runs[0] if runs and runs[0][0] == 0 else (0, 0)
    behind = runs[-1] if runs and runs[-1][1] == n else (n, n)
    inner = [
        run for run in runs
        if run[0] >= before[1] + SHORTEST and run[1] <= behind[0] - SHORTEST
    ]  # fmt: skip
    borders = [_frame((a.end + b.start) / 2) for a, b in pairwise(words)]
    chosen = _chosen(np.array(inner), borders) if borders else []
    return None if chosen is None else [before, *(inner[place] for place in chosen), behind]


def _chosen(runs_P2: NDArray[np.int64], borders: Sequence[int]) -> list[int] | None:
    """Choose one pause for each boundary, in order, so that the total score is maximal. Return the
    indices of the pauses, or None if there are too few."""
    if len(runs_P2) < len(borders):
        return None
    length_P, middle_P = np.minimum(runs_P2[:, 1] - runs_P2[:, 0], MOST_WORTH), runs_P2.mean(1)
    # For each pause, the number of pauses that end early enough before it to leave room for a word.
    room_P = np.searchsorted(runs_P2[:, 1], runs_P2[:, 0] - SHORTEST, side="right")
    best_P = np.zeros(len(runs_P2))
    came: list[NDArray[np.int64]] = []
    for number, border in enumerate(borders):
        if number:
            # Score of the best choice among the first n pauses, for each n; −∞ for n = 0.
            top = np.concatenate([[-np.inf], np.maximum.accumulate(best_P)])
            is_new = np.concatenate([[False], best_P >= top[1:]])
            at = np.maximum.accumulate(np.where(is_new, np.arange(len(top)), 0)) - 1
            best_P, from_P = top[room_P], at[room_P]
            came.append(from_P)
        best_P = best_P + length_P - DISTANCE * np.abs(middle_P - border)
    place = int(np.argmax(best_P))
    if not np.isfinite(best_P[place]):
        return None
    path = [place]
    for from_P in reversed(came):
        path.append(int(from_P[path[-1]]))
    return path[::-1]


def _pause(
    level_A: AnyFloatArray, before: WordTiming | None, after: WordTiming | None
) -> tuple[int, int] | None:
    """Return the frame range of the pause between two words, or of the silence at the start or end
    of a recording. Return None if there is no pause."""
    first = 0 if before is None else _frame((before.start + before.end) / 2)
    last = len(level_A) if after is None else _frame((after.start + after.end) / 2)
    near = level_A[first:last]
    if len(near) < 3:
        return None
    limit = QUIET_SHARE * float(level_A[max(0, first - 20) : last + 20].max())
    runs = [(first + a, first + b) for a, b in _runs(near <= limit)]
    if before is None:
        return next((run for run in runs if run[0] == 0), None)
    if after is None:
        return next((run for run in runs if run[1] == len(level_A)), None)
    low, high = sorted((_frame(before.end), _frame(after.start)))
    away = {run: max(0, run[0] - high, low - run[1]) for run in runs if run[1] - run[0] > 1}
    if not away:
        return None
    best = min(away, key=lambda run: (away[run], run[0] - run[1]))
    return best if away[best] <= NEAR_FRAMES else None


def _runs(is_quiet: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the start and end of each run of True values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_quiet, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _frame(seconds: float) -> int:
    return round(seconds / FRAME_S)
