"""Captions as answers to pictures and videos."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.config.data import DataSettings
from headway.config.folder import TOKENIZER, file_in, load_run
from headway.config.model import PictureSettings
from headway.config.run import RunSettings
from headway.data.media.reading import UNITS
from headway.decode.captioner import Caption, Captioner, Look
from headway.decode.lines import live_windows, windows
from headway.errors import ConfigError
from headway.models.seq2seq import Seq2Seq
from headway.nn.linear import pack
from headway.tasks.kind import Answer, Use
from headway.tasks.media_given import Given, given_media, what_of
from headway.tasks.media_labels import front_of
from headway.text.tokenizer import Vocabularies

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
    def load(cls, use: Use) -> CaptionPredictor:
        shape = front_of(use.settings)
        assert isinstance(shape, PictureSettings)
        look = bool(use.options.get("alignments"))
        scores = bool(use.options.get("scores"))
        return cls(load_captioner(use, look=look), use.folders[0], shape, use.settings.data, scores)

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


def load_captioner(use: Use, *, look: bool = False) -> Captioner:
    """The models of the runs, which must have the same vocabulary and read pictures of one size."""
    tokenizer, *others = (
        Vocabularies.load(file_in(folder, TOKENIZER)).target for folder in use.folders
    )
    for folder, other in zip(use.folders[1:], others, strict=True):
        if other.to_json() != tokenizer.to_json():
            raise ConfigError(
                f"{folder} has another vocabulary than {use.folders[0]}: models that answer "
                "together must have the same."
            )
        if _form(load_run(folder)) != _form(use.settings):
            raise ConfigError(
                f"{folder} reads pictures in another form than {use.folders[0]}: models that "
                "answer together must read the same number of frames and one size."
            )
    if use.engine is not None:
        shape = front_of(use.settings)
        assert isinstance(shape, PictureSettings)
        return Captioner((), tokenizer, use.settings.decode, look, use.engine, shape)
    models = [model for model in use.models() if isinstance(model, Seq2Seq)]
    for model in models:
        pack(model)  # no one trains these
    return Captioner(models, tokenizer, use.settings.decode, look)


def _form(settings: RunSettings) -> tuple[int, ...]:
    shape = front_of(settings)
    assert isinstance(shape, PictureSettings)
    return shape.frames, shape.channels, shape.height, shape.width


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
