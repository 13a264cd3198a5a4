"""Captions as answers to pictures and videos."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.config.data import DataSettings
from headway.config.model import PictureSettings
from headway.data.media.reading import UNITS
from headway.decode.captioner import Caption, Captioner, Look
from headway.decode.lines import live_windows, windows
from headway.models.seq2seq import Seq2Seq
from headway.tasks.kind import Answer, Use
from headway.tasks.media_given import Given, given_media, what_of
from headway.tasks.media_labels import front_of

FIRST_WINDOW = 16
"""Pictures that are read before the first of them is answered."""


@dataclass
class CaptionPredictor:
    """Files in, captions out."""

    captioner: Captioner
    folder: Path
    shape: PictureSettings
    data: DataSettings
    scores: bool = False
    n_given: int = field(default=0, init=False)
    n_failed: int = field(default=0, init=False)

    @classmethod
    def of(cls, use: Use) -> CaptionPredictor:
        shape = front_of(use.settings)
        assert isinstance(shape, PictureSettings)
        look = bool(use.options.get("alignments"))
        scores = bool(use.options.get("scores"))
        captioner, folder = captioner_of(use, look=look), use.opened.folder
        return cls(captioner, folder, shape, use.settings.data, scores)

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[Answer]:
        given = given_media(lines, self.folder, self.shape, self.data)
        for window in live_windows(given) if live else windows(given, FIRST_WINDOW):
            yield from self._window(window)

    def _window(self, window: Sequence[Given]) -> Iterator[Answer]:
        pictures: list[Any] = [one.values for one in window if one.values is not None]
        first = self.n_given
        found = iter(self.captioner.captions(pictures, first))
        self.n_given += len(window)
        self.n_failed += len(window) - len(pictures)
        for place, one in enumerate(window, 1):
            if one.values is None:
                yield Answer("", {"file": one.name}, one.error)
            else:
                yield self._answer(first + place, one, next(found))

    def _answer(self, number: int, given: Given, found: Sequence[Caption]) -> Answer:
        assert given.values is not None
        height, width = given.values.shape[-2:]
        facts: dict[str, Any] = {"file": given.name, "caption": found[0].text}
        if self.captioner.look:
            facts["size"] = [height, width]
        facts["outputs"] = [_facts(one) for one in found]
        before = [str(number)] if self.captioner.settings.n_best > 1 else []
        return Answer("\n".join(self._line(one, before) for one in found), facts)

    def _line(self, caption: Caption, before: Sequence[str]) -> str:
        parts = [*before, f"{caption.score:.4f}"] if self.scores else [*before]
        parts.append(caption.text.replace("\t", " "))
        if caption.looks is not None:
            parts.append(" ".join(_shown(look) for look in caption.looks))
        return "\t".join(parts)

    def summary(self) -> str:
        unit, done = UNITS[what_of(self.shape)], self.captioner.summary
        text = f"{self.n_given:,} {unit.removesuffix('s') if self.n_given == 1 else unit}"
        rate = done.tokens / done.seconds if done.seconds else 0.0
        text += f"; {done.tokens:,} tokens, {rate:,.0f} a second"
        if self.n_failed:
            text += f"; {self.n_failed:,} could not be read"
        if done.unfinished:
            text += f"; {done.unfinished:,} stopped by the length limit"
        return text


def captioner_of(use: Use, *, look: bool = False) -> Captioner:
    opened = use.opened
    shape = front_of(use.settings)
    assert isinstance(shape, PictureSettings)
    return Captioner(
        [model for model in opened.writers if isinstance(model, Seq2Seq)],
        opened.vocab.target,
        use.settings.decode,
        look,
        opened.engine,
        None if opened.engine is None else shape,
        opened.recent,
    )


def _shown(look: Look) -> str:
    """`circle:8,16,16,24`: left, top, right and bottom of the patch."""
    return f"{look.word}:{','.join(map(str, look.box))}"


def _facts(caption: Caption) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "text": caption.text,
        "score": round(caption.score, 6),
        "log_prob": round(caption.log_prob, 6),
        "tokens": caption.tokens,
        "token_log_probs": [round(value, 6) for value in caption.token_log_probs],
        "finished": caption.finished,
    }
    if caption.looks is not None:
        facts["looks"] = [
            {
                "word": look.word,
                "box": list(look.box),
                "frames": list(look.frames),
                "share": round(look.share, 4),
                "grid": [[[round(float(x), 4) for x in line] for line in t] for t in look.grid_TYX],
            }
            for look in caption.looks
        ]
    return facts
