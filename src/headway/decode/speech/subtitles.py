"""Convert words with times to subtitles in SRT and WebVTT format."""

from __future__ import annotations

from collections.abc import Sequence

from headway.decode.speech.word_times import WordTiming

MOST_CHARACTERS = 42
"""Maximum number of characters in a subtitle line, as in the style guides of broadcasters and
Netflix."""

MOST_S = 6.0
"""Maximum duration of a subtitle in seconds: the six-second rule of subtitling."""

PAUSE_S = 0.8
"""Duration of a pause, in seconds, that starts a new subtitle even if the current one is not
full."""


def lines_of(words: Sequence[WordTiming]) -> list[list[WordTiming]]:
    found: list[list[WordTiming]] = []
    for word in words:
        line = found[-1] if found else []
        length = sum(len(other.text) + 1 for other in line) + len(word.text)
        fits = (
            line
            and length <= MOST_CHARACTERS
            and word.end - line[0].start <= MOST_S
            and word.start - line[-1].end < PAUSE_S
        )
        if fits:
            line.append(word)
        else:
            found.append([word])
    return found


def srt(words: Sequence[WordTiming], first: int = 1) -> str:
    """Format subtitles as SRT. `first`: number of the first subtitle."""
    return "\n".join(
        f"{number}\n{_clock(line[0].start, ',')} --> {_clock(line[-1].end, ',')}\n{_text(line)}\n"
        for number, line in enumerate(lines_of(words), first)
    )


def vtt(words: Sequence[WordTiming]) -> str:
    return "WEBVTT\n\n" + "\n".join(
        f"{_clock(line[0].start, '.')} --> {_clock(line[-1].end, '.')}\n{_text(line)}\n"
        for line in lines_of(words)
    )


def _text(line: Sequence[WordTiming]) -> str:
    return " ".join(word.text for word in line)


def _clock(seconds: float, point: str) -> str:
    whole = round(1000 * seconds)
    minutes, thousandths = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{thousandths // 1000:02d}{point}{thousandths % 1000:03d}"
