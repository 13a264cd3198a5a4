"""Prediction of translations and captions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from headway.data.files import open_lines
from headway.data.media.open_item import UNITS
from headway.decode.batching import windows
from headway.decode.logits_processors import TextConstraints
from headway.decode.output import AttendedRegion, GenerationResult, Output
from headway.decode.sources import OnLong
from headway.decode.writer import Writer
from headway.errors import DataError, FolderError, Option, UserError, suggest
from headway.models.seq2seq import Seq2Seq
from headway.settings.decode import DecodeSettings
from headway.settings.model import ImageSettings, Seq2SeqSettings, family_of
from headway.settings.run import media_settings
from headway.tasks.answers import Answer, TextAnswer, mean_probability
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.media_answers import FIRST_WINDOW, unreadable_answer
from headway.tasks.media_inputs import LoadedInput, load_media, what_of
from headway.tasks.task import InferenceRequest

LONG = ("split", "cut", "error")


def answer_of(
    outputs: Sequence[Output], kind: type[TextAnswer] = TextAnswer, **common: Any
) -> TextAnswer:
    """Return the answer with the best output; its field `rest` holds the other outputs. `common`:
    fields that all outputs share."""
    best, *rest = (
        kind(
            text=output.text,
            score=mean_probability(output.token_log_probs),
            tokens=tuple(output.tokens),
            token_log_probs=tuple(output.token_log_probs),
            log_prob=output.log_prob,
            ranking_score=output.score,
            finished=output.finished,
            stopped_by=output.stopped_by,
            alignment=_pairs(output),
            **common,
        )
        for output in outputs
    )
    return replace(best, rest=tuple(rest))


def _pairs(output: Output) -> tuple[tuple[int, int], ...] | tuple[AttendedRegion, ...] | None:
    if output.attended_regions is not None:
        return tuple(output.attended_regions)
    return None if output.alignment is None else tuple(output.alignment)


class TranslationPredictor:
    """Predictor of translations, one per input line."""

    def __init__(self, use: InferenceRequest) -> None:
        options = use.options
        self.between = use.between
        on_long: Any = options.get("on_long") or "split"
        if on_long not in LONG:
            raise UserError(
                f"unknown value {on_long!r} for {Option('on_long')}.{suggest(on_long, LONG)}"
            )
        self.writer = writer_of(
            use.opened,
            use.settings.decode,
            on_long=on_long,
            align=bool(options.get("alignments")),
            detail=bool(options.get("scores") or options.get("json")),
        )
        asked: TextConstraints | None = options.get("wish")
        self.wishes = (
            _constraint_lines(options.get("prefix"), options.get("constraints"))
            if asked is None
            else repeat(asked)
        )

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[TextAnswer]:
        for found in self.writer.write(lines, self.wishes, live=live, on_progress=self.between):
            yield translated(found)

    def summary(self) -> str:
        return self.writer.summary.text()


def translated(found: GenerationResult) -> TextAnswer:
    notes = []
    if found.parts > 1:
        notes.append(f"longer than the model reads at once: translated in {found.parts:,} parts")
    if found.cut:
        notes.append("longer than the model reads: the end was cut off")
    return answer_of(
        found.outputs, source=found.source, parts=found.parts, cut=found.cut, notes=tuple(notes)
    )


def writer_of(
    opened: LoadedRun,
    settings: DecodeSettings | None = None,
    *,
    task: str = "translate",
    on_long: OnLong = "split",
    align: bool = False,
    detail: bool = False,
) -> Writer:
    """Return the object that generates text with loaded runs.

    Args:
        opened: Runs of the task; several are an ensemble.
        settings: Decoding settings. None: those of the first run.
        task: Name of the task that the runs must have.
        on_long: Treatment of sources that are too long, such as splitting.
        align: Compute alignments of source and output.
        detail: Compute the log-probability of every token.
    """
    for folder, run in zip(opened.folders, opened.runs, strict=True):
        if run.task != task or not isinstance(run.model, Seq2SeqSettings):
            kind = run.task if run.model is None else f"{family_of(run.model)} model"
            name = {"translate": "translator", "caption": "captioner"}[task]
            raise FolderError(
                f"{folder} contains another kind of model ({kind}), not a {name}. Choose a run of "
                f"the task {task}."
            )
    front = media_settings(opened.settings)
    return Writer(
        [model for model in opened.writers if isinstance(model, Seq2Seq)],
        opened.vocab,
        opened.settings.decode if settings is None else settings,
        max_len=min(run.data.max_len for run in opened.runs) if front is None else None,
        on_long=on_long,
        align=align,
        detail=detail,
        engine=opened.engine,
        image=front if isinstance(front, ImageSettings) else None,
        recent=opened.search_cache,
    )


def _constraint_lines(
    prefix: str | None, constraints: str | None
) -> Iterator[TextConstraints] | None:
    if prefix is None and constraints is None:
        return None
    if constraints is None:
        return (TextConstraints(prefix=line) for line in open_lines(prefix or ""))
    asked = (
        _constraint(line, f"{constraints}, line {number:,}")
        for number, line in enumerate(open_lines(constraints), 1)
    )
    if prefix is None:
        return (TextConstraints(**words) for words in asked)
    both = zip(open_lines(prefix), asked, strict=False)  # `next_constraints` reports too few
    return (TextConstraints(**{"prefix": line, **words}) for line, words in both)


def _constraint(line: str, where: str) -> dict[str, Any]:
    """Parse one line of constraints: a JSON object, or an empty line for no constraints."""
    if not line.strip():
        return {}
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not valid JSON: {error}.") from error
    if not isinstance(found, dict):
        raise DataError(
            f'{where} must be a JSON object such as {{"required": ["a phrase"]}}, not '
            f"{json.dumps(found)[:60]}."
        )
    known = {"prefix": str, "required": list, "banned": list}
    for key, value in found.items():
        if key not in known:
            raise DataError(f"{where}: unknown key {key!r}.{suggest(key, known)}")
        if not isinstance(value, known[key]) or not all(isinstance(text, str) for text in value):
            kind = "a string" if known[key] is str else "a list of strings"
            raise DataError(f"{where}: {key!r} must be {kind}, not {json.dumps(value)}.")
    return {key: tuple(value) if known[key] is list else value for key, value in found.items()}


class CaptionPredictor:
    """Predictor of captions for image and video files."""

    def __init__(self, use: InferenceRequest) -> None:
        self.use, self.n_given, self.n_failed = use, 0, 0
        self.writer = writer_of(
            use.opened, use.settings.decode, task="caption",
            align=bool(use.options.get("alignments")),
        )  # fmt: skip

    @property
    def shape(self) -> ImageSettings:
        return self.use.settings.model.image  # type: ignore[union-attr]

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[Answer]:
        given = load_media(lines, self.use.opened.folder, self.shape, self.use.settings.data)
        for window in windows(given, FIRST_WINDOW, live=live):
            yield from self._window(window)

    def _window(self, window: Sequence[LoadedInput]) -> Iterator[Answer]:
        images = [one.values for one in window if one.values is not None]
        found = iter([*self.writer.write(images, first=self.n_given, on_progress=self.use.between)])
        self.n_given += len(window)
        self.n_failed += len(window) - len(images)
        for one in window:
            if one.values is None:
                yield unreadable_answer(one.name, one.error)
            else:
                yield self._answer(one, next(found).outputs)

    def _answer(self, given: LoadedInput, outputs: Sequence[Output]) -> TextAnswer:
        height, width = given.values.shape[-2:]
        size = (height, width) if self.writer.align else None
        return answer_of(outputs, place=given.name, size=size)

    def summary(self) -> str:
        unit = UNITS[what_of(self.shape)].removesuffix("s")
        return self.writer.summary.text(unit, failed=self.n_failed)
