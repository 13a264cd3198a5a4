"""Captions as answers to pictures and videos."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.config.data import DataSettings
from headway.config.model import PictureSettings
from headway.data.media.reading import UNITS
from headway.decode.captioner import Caption, Captioner, Look
from headway.decode.lines import live_windows, windows
from headway.models.seq2seq import Seq2Seq
from headway.tasks.answers import Answer, Facts, Show, TextAnswer, mean_probability
from headway.tasks.intake import front_of
from headway.tasks.kind import Use
from headway.tasks.media_answers import unread
from headway.tasks.media_given import Given, given_media, what_of

FIRST_WINDOW = 16
"""Pictures that are read before the first of them is answered."""


@dataclass
class CaptionPredictor:
    """Files in, captions out."""

    captioner: Captioner
    folder: Path
    shape: PictureSettings
    data: DataSettings
    n_given: int = field(default=0, init=False)
    n_failed: int = field(default=0, init=False)

    @classmethod
    def of(cls, use: Use) -> CaptionPredictor:
        shape = front_of(use.settings)
        assert isinstance(shape, PictureSettings)
        look = bool(use.options.get("alignments"))
        captioner, folder = captioner_of(use, look=look), use.opened.folder
        return cls(captioner, folder, shape, use.settings.data)

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
        for one in window:
            if one.values is None:
                yield unread(one.name, one.error)
            else:
                yield self._answer(one, next(found))

    def _answer(self, given: Given, found: Sequence[Caption]) -> TextAnswer:
        assert given.values is not None
        height, width = given.values.shape[-2:]
        size = [height, width] if self.captioner.look else None
        best, *rest = (
            TextAnswer(
                text=one.text,
                score=mean_probability(one.token_log_probs),
                place=given.name,
                printed=_Printed(given.name, (one,), size),
                tokens=tuple(one.tokens),
                token_log_probs=tuple(one.token_log_probs),
                log_prob=one.log_prob,
                finished=one.finished,
                alignment=None if one.looks is None else tuple(one.looks),
            )
            for one in found
        )
        return replace(best, rest=tuple(rest), printed=_Printed(given.name, found, size))

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
        between=use.between,
    )


@dataclass(frozen=True)
class _Printed:
    name: str
    captions: Sequence[Caption]
    size: list[int] | None
    """Height and width, where words say where they looked."""

    def lines(self, show: Show, number: int) -> str:
        return "\n".join(self._line(one, show, number) for one in self.captions)

    def _line(self, caption: Caption, show: Show, number: int) -> str:
        parts = [str(number)] if show.numbered else []
        parts += [f"{caption.score:.4f}"] if show.scores else []
        parts.append(caption.text.replace("\t", " "))
        if caption.looks is not None:
            parts.append(" ".join(_shown(look) for look in caption.looks))
        return "\t".join(parts)

    def facts(self) -> Facts:
        facts: Facts = {"file": self.name, "caption": self.captions[0].text}
        if self.size is not None:
            facts["size"] = self.size
        facts["outputs"] = [_facts(one) for one in self.captions]
        return facts


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
