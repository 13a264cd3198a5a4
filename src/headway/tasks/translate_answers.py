"""Translations as answers: what is asked of each line, and how the outputs are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from headway.config.decode import DecodeSettings
from headway.config.model import Seq2SeqSettings, family_of
from headway.data.files import open_lines
from headway.decode.align import pharaoh
from headway.decode.translator import OnLong, Output, TextWish, Translation, Translator
from headway.errors import DataError, FolderError, UserError, suggest
from headway.models.seq2seq import Seq2Seq
from headway.tasks.answers import Facts, Show, TextAnswer, mean_probability
from headway.tasks.kind import Use
from headway.tasks.opened import Opened

LONG = ("split", "cut", "error")


class TranslationPredictor:
    def __init__(self, use: Use) -> None:
        settings, options = use.settings.decode, use.options
        self.between = use.between
        on_long: Any = options.get("on_long") or "split"
        if on_long not in LONG:
            raise UserError(f"--on-long has no choice {on_long!r}.{suggest(on_long, LONG)}")
        self.translator = translator_of(
            use.opened,
            settings,
            on_long=on_long,
            align=bool(options.get("alignments")),
            detail=bool(options.get("scores") or options.get("json")),
        )
        asked: TextWish | None = options.get("wish")
        self.wishes = (
            _wishes(options.get("prefix"), options.get("constraints"))
            if asked is None
            else repeat(asked)
        )

    def answers(self, lines: Iterable[str], live: bool = False) -> Iterator[TextAnswer]:
        between = self.between
        for found in self.translator.translate(lines, self.wishes, live=live, on_progress=between):
            yield answer_of(found)

    def summary(self) -> str:
        return self.translator.summary.text()


def translator_of(
    opened: Opened,
    settings: DecodeSettings | None = None,
    *,
    on_long: OnLong = "split",
    align: bool = False,
    detail: bool = False,
) -> Translator:
    """A translator of opened runs; how they decode is what the first says, if not given."""
    for folder, run in zip(opened.folders, opened.runs, strict=True):
        if run.task != "translate" or not isinstance(run.model, Seq2SeqSettings):
            kind = run.task if run.model is None else f"{family_of(run.model)} model"
            raise FolderError(f"{folder} holds no translator but a {kind}.")
    return Translator(
        [model for model in opened.writers if isinstance(model, Seq2Seq)],
        opened.vocab,
        opened.settings.decode if settings is None else settings,
        max_len=min(run.data.max_len for run in opened.runs),
        on_long=on_long,
        align=align,
        detail=detail,
        engine=opened.engine,
        recent=opened.recent,
    )


def _wishes(prefix: str | None, constraints: str | None) -> Iterator[TextWish] | None:
    if prefix is None and constraints is None:
        return None
    if constraints is None:
        return (TextWish(prefix=line) for line in open_lines(prefix or ""))
    asked = (
        _constraint(line, f"{constraints}, line {number:,}")
        for number, line in enumerate(open_lines(constraints), 1)
    )
    if prefix is None:
        return (TextWish(**words) for words in asked)
    both = zip(open_lines(prefix), asked, strict=False)  # too few are noticed further on
    return (TextWish(**{"prefix": line, **words}) for line, words in both)


def _constraint(line: str, where: str) -> dict[str, Any]:
    """One line of constraints: an object, or an empty line for none."""
    if not line.strip():
        return {}
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where} is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise DataError(f'{where} must be an object such as {{"required": ["a phrase"]}}.')
    known = {"prefix": str, "required": list, "banned": list}
    for key, value in found.items():
        if key not in known:
            raise DataError(f"{where}: unknown key {key!r}.{suggest(key, known)}")
        if not isinstance(value, known[key]) or not all(isinstance(text, str) for text in value):
            kind = "a text" if known[key] is str else "a list of texts"
            raise DataError(f"{where}: {key!r} must be {kind}, not {json.dumps(value)}.")
    return {key: tuple(value) if known[key] is list else value for key, value in found.items()}


def answer_of(found: Translation) -> TextAnswer:
    notes = []
    if found.parts > 1:
        notes.append(f"too long for the model at once: translated in {found.parts:,} parts")
    if found.cut:
        notes.append("too long for the model: its end was left out")
    best, *rest = (
        TextAnswer(
            text=output.text,
            score=mean_probability(output.token_log_probs),
            notes=tuple(notes),
            printed=_Printed(found.source, (output,), found.parts, found.cut),
            source=found.source,
            tokens=tuple(output.tokens),
            token_log_probs=tuple(output.token_log_probs),
            log_prob=output.log_prob,
            finished=output.finished,
            alignment=None if output.alignment is None else tuple(output.alignment),
        )
        for output in found.outputs
    )
    whole = _Printed(found.source, found.outputs, found.parts, found.cut)
    return replace(best, rest=tuple(rest), printed=whole)


@dataclass(frozen=True)
class _Printed:
    source: str
    outputs: Sequence[Output]
    parts: int
    cut: bool

    def lines(self, show: Show, number: int) -> str:
        """A line an output; with scores the score before it, with alignments the pairs behind it.
        With several outputs a line, each has the number of its line in front."""
        return "\n".join(self._line(output, show, number) for output in self.outputs)

    def _line(self, output: Output, show: Show, number: int) -> str:
        line = [str(number)] if show.numbered else []
        line += [f"{output.score:.4f}", output.text] if show.scores else [output.text]
        line += [pharaoh(output.alignment or [])] if show.alignments else []
        return "\t".join(text.replace("\t", " ") for text in line) if len(line) > 1 else line[0]

    def facts(self) -> Facts:
        outputs = [
            {
                "text": output.text,
                "score": output.score,
                "log_prob": output.log_prob,
                "tokens": output.tokens,
                "token_log_probs": output.token_log_probs,
                "finished": output.finished,
                **({} if output.alignment is None else {"alignment": output.alignment}),
            }
            for output in self.outputs
        ]
        return {"source": self.source, "outputs": outputs, "parts": self.parts, "cut": self.cut}
