"""Formats of answers and scores: lines for people, JSON for programs, tables, and HTML.

The JSON keys are the same for all tasks: `file` or `source` for the input, `text` for generated
text, `error` if there is no answer. Numbers are rounded to 6 decimal places, times to milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from typing import Any, cast

import numpy as np

from headway.specs.metrics import Metric
from headway.specs.tasks import Spec
from headway.tasks.answers import (
    Answer,
    AnswerSegment,
    ContinuationAnswer,
    FieldAnswer,
    GapAnswer,
    JsonDict,
    LabelAnswer,
    LabelsAnswer,
    NearestAnswer,
    NumberAnswer,
    SpeakerAnswer,
    TagAnswer,
    TextAnswer,
    TranscriptAnswer,
    VectorAnswer,
    WordAnswer,
)
from headway.tasks.scores import ScoreRow, Scores, Standing

DIGITS = 6
"""Number of decimal places in JSON: fp32 has about seven significant digits."""

MOST_CLASSES = 50
"""Maximum number of classes for which media answers list all probabilities in JSON."""

LISTED = 5
"""Number of most likely classes in JSON, unless another number is requested."""

MOST_ROWS = 50
"""Maximum number of answers in the HTML table of a notebook."""

CELL_STYLE = "text-align:left;white-space:pre-wrap"


@dataclass(frozen=True)
class PrintOptions:
    """Output options for human-readable answers."""

    scores: bool = False
    """Whether to print the score of each answer."""

    numbered: bool = False
    """Whether to print the index of the input before each output, because an input may have several
    outputs."""

    alignments: bool = False
    top: int | None = None
    """How many of the most likely classes to print with their probabilities (top-k). None: only the
    best class, without its probability."""

    form: str = "text"
    """Format of transcripts: `text`, `srt` or `vtt`."""

    streamed: bool = False
    """Whether continuations were already printed during generation."""


def to_json(answer: Answer) -> JsonDict:
    """Return the JSON object of an answer."""
    found: JsonDict = {"error": answer.error} if answer.error else {}
    if answer.place:
        found["file"] = answer.place
    elif answer.source is not None:
        found["source"] = answer.source
    if not answer.error:
        found |= _values(answer)
    return {**found, "silent": True} if answer.silent else found


def to_lines(answer: Answer, show: PrintOptions, number: int) -> str:
    """Return the answer as human-readable lines, one per requested output. `number`: 1-based index
    of the input."""
    return "" if answer.error else _lines(answer, show, number)


@singledispatch
def _values(answer: Answer) -> JsonDict:
    return {"text": answer.text}


@singledispatch
def _lines(answer: Answer, show: PrintOptions, number: int) -> str:
    return answer.text


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(float(value), DIGITS) for value in values]


# -- classes


def _ranked(answer: LabelAnswer | LabelsAnswer) -> list[tuple[str, float]]:
    """Return the most likely classes with their probabilities."""
    order = sorted(range(len(answer.probs)), key=lambda i: -answer.probs[i])
    return [(answer.classes[i], answer.probs[i]) for i in order[: answer.top or LISTED]]


def _pairs(found: Iterable[tuple[str, float]]) -> str:
    return "\t".join(f"{name}\t{value:.4f}" for name, value in found)


def _class_values(answer: LabelAnswer | LabelsAnswer) -> JsonDict:
    found: JsonDict = {}
    if answer.place or answer.top:
        ranked = [(label, round(p, DIGITS)) for label, p in _ranked(answer)]
        found["top"] = [{"label": label, "probability": p} for label, p in ranked]
    if len(answer.classes) <= MOST_CLASSES or not answer.place:
        found["probabilities"] = dict(zip(answer.classes, _rounded(answer.probs), strict=True))
    return found


@_values.register
def _(answer: LabelAnswer) -> JsonDict:
    found: JsonDict = {"label": answer.label}
    if answer.score is not None:
        found["probability"] = round(answer.score, DIGITS)
    found |= _class_values(answer)
    if answer.log_probs:
        found["log_probs"] = dict(zip(answer.classes, _rounded(answer.log_probs), strict=True))
    return found


@_lines.register
def _(answer: LabelAnswer, show: PrintOptions, number: int) -> str:
    if show.top is None and not show.scores:
        return answer.text
    return _pairs(_ranked(answer)[: show.top or 1])


@_values.register
def _(answer: LabelsAnswer) -> JsonDict:
    return {"labels": list(answer.labels), **_class_values(answer)}


@_lines.register
def _(answer: LabelsAnswer, show: PrintOptions, number: int) -> str:
    if show.top is not None:
        return _pairs(_ranked(answer)[: show.top])
    if not show.scores:
        return answer.text
    return _pairs((label, answer.probabilities[label]) for label in answer.labels)


@_values.register
def _(answer: NumberAnswer) -> JsonDict:
    return {"value": float(f"{answer.value:.7g}")}  # any size: decimal places would not do


# -- tags and gaps


@_values.register
def _(answer: TagAnswer) -> JsonDict:
    found: JsonDict = {"words": list(answer.words), "tags": list(answer.tags)}
    if answer.offsets:
        found["offsets"] = [list(one) for one in answer.offsets]
    if answer.marked:
        found["spans"] = [span.facts() for span in answer.spans]
    return found


@_values.register
def _(answer: WordAnswer) -> JsonDict:
    return {"word": answer.word, "tag": answer.text} if answer.word else {}


@_lines.register
def _(answer: WordAnswer, show: PrintOptions, number: int) -> str:
    return f"{answer.word}\t{answer.text}" if answer.word else answer.text


@_values.register
def _(answer: GapAnswer) -> JsonDict:
    gaps = [
        [{"word": guess.word, "probability": round(guess.probability, DIGITS)} for guess in gap]
        for gap in answer.gaps
    ]
    return {"text": answer.text, "gaps": gaps}


@_lines.register
def _(answer: GapAnswer, show: PrintOptions, number: int) -> str:
    """Return the filled text. If several candidates per gap were requested, return one line per
    candidate instead, which begins with the number of its gap if the text has several gaps."""
    if all(len(gap) < 2 for gap in answer.gaps):
        return answer.text
    several = len(answer.gaps) > 1
    return "\n".join(
        (f"{place}\t" if several else "") + f"{guess.word}\t{guess.probability:.4f}"
        for place, gap in enumerate(answer.gaps, 1)
        for guess in gap
    )


# -- generated text


def _output(answer: TextAnswer) -> JsonDict:
    found: JsonDict = {
        "text": answer.text,
        "score": round(answer.ranking_score, DIGITS),
        "log_prob": round(answer.log_prob, DIGITS),
        "tokens": list(answer.tokens),
        "token_log_probs": _rounded(answer.token_log_probs),
        "finished": answer.finished,
    }
    if answer.stopped_by is not None:
        found["stopped_by"] = answer.stopped_by
    if answer.size is not None:
        found["looks"] = list(map(_region, answer.alignment or ()))
    elif answer.alignment is not None:
        found["alignment"] = [list(link) for link in cast(Any, answer.alignment)]
    return found


def _region(link: Any) -> JsonDict:
    """Return the JSON object of the image region that a word of the caption attended to."""
    grid = [[_rounded(line) for line in frame] for frame in link.grid_TYX]
    return {
        "word": link.word, "box": list(link.box), "frames": list(link.frames),
        "share": round(link.share, DIGITS), "grid": grid,
    }  # fmt: skip


@_values.register
def _(answer: TextAnswer) -> JsonDict:
    found: JsonDict = {"text": answer.text}
    if answer.size is not None:
        found["size"] = list(answer.size)
    found["outputs"] = [_output(one) for one in (answer, *answer.others)]
    return found if answer.place else {**found, "parts": answer.parts, "cut": answer.cut}


@_lines.register
def _(answer: TextAnswer, show: PrintOptions, number: int) -> str:
    """Return one line per output text, with tab-separated columns: input number and score if
    requested, the text, and the alignment if requested."""
    return "\n".join(_text_line(one, show, number) for one in (answer, *answer.others))


def _text_line(answer: TextAnswer, show: PrintOptions, number: int) -> str:
    line = [str(number)] if show.numbered else []
    line += [f"{answer.ranking_score:.4f}"] if show.scores else []
    line.append(answer.text)
    if show.alignments or answer.size is not None:
        line.append(" ".join(map(_shown_link, answer.alignment or ())))
    return "\t".join(text.replace("\t", " ") for text in line) if len(line) > 1 else answer.text


def _shown_link(link: Any) -> str:
    """Return the alignment of one word as text.

    Between words it is `0-2`, as in the Pharaoh format. For an image it is `circle:8,16,16,24`: a
    word, and the pixel box (left, top, right, bottom) of its region.
    """
    if isinstance(link, tuple):
        return "{}-{}".format(*link)
    return f"{link.word}:{','.join(map(str, link.box))}"


@_values.register
def _(answer: ContinuationAnswer) -> JsonDict:
    return {"text": answer.text, "outputs": [_output(one) for one in (answer, *answer.others)]}


@_values.register
def _(answer: FieldAnswer) -> JsonDict:
    about = {"document": dict(answer.document), "field": answer.field}
    return {**about, **_values.dispatch(ContinuationAnswer)(answer)}


@_lines.register
def _(answer: ContinuationAnswer, show: PrintOptions, number: int) -> str:
    if show.streamed:
        return ""
    before = (answer.source or "") if answer.prompted else ""
    return "\n".join(
        (f"{one.log_prob:.4f}\t" if show.scores else "") + before + one.text
        for one in (answer, *answer.others)
    )


# -- transcripts


@_values.register
def _(answer: TranscriptAnswer) -> JsonDict:
    words = [
        {
            "word": one.text,
            **_times(one.start, one.end),
            "confidence": round(one.confidence, DIGITS),
        }
        for one in answer.words
    ]
    return {
        "text": answer.text,
        "seconds": round(answer.seconds, 3),
        "log_prob": round(answer.log_prob, DIGITS),
        "words": words,
        "segments": list(map(_segment, answer.segments)),
    }


def _times(start: float, end: float) -> JsonDict:
    return {"start": round(start, 3), "end": round(end, 3)}


def _segment(part: AnswerSegment) -> JsonDict:
    """Return the JSON object of a segment; keys without a value are left out."""
    found: JsonDict = {**_times(part.start, part.end), "text": part.text}
    if part.log_prob is not None:
        found["log_prob"] = round(part.log_prob, DIGITS)
        if part.compression_ratio is not None:
            found["compression_ratio"] = round(part.compression_ratio, DIGITS)
    if part.no_speech_prob is not None:
        found["no_speech_prob"] = round(part.no_speech_prob, DIGITS)
    if part.temperature:
        found["temperature"] = part.temperature
    if part.silent:
        found["silent"] = True
    if part.doubtful:
        found["doubtful"] = True
    if part.tries > 1:
        found["tries"] = part.tries
    return found


@_lines.register
def _(answer: TranscriptAnswer, show: PrintOptions, number: int) -> str:
    if show.form != "text":
        from headway.decode.speech.subtitles import srt, vtt

        return (srt if show.form == "srt" else vtt)(answer.words)
    return f"{answer.log_prob:.4f}\t{answer.text}" if show.scores else answer.text


# -- vectors


@_values.register
def _(answer: VectorAnswer) -> JsonDict:
    return {"vector": _rounded(answer.vector)}


@_lines.register
def _(answer: VectorAnswer, show: PrintOptions, number: int) -> str:
    return json.dumps(_rounded(answer.vector))


@_values.register
def _(answer: NearestAnswer) -> JsonDict:
    near = [{"text": name, "cosine": round(like, DIGITS)} for name, like in answer.near]
    return {"nearest": near}


@_lines.register
def _(answer: NearestAnswer, show: PrintOptions, number: int) -> str:
    return "\n".join(f"{like:.4f}\t{name}" for name, like in answer.near)


@_values.register
def _(answer: SpeakerAnswer) -> JsonDict:
    near = [{"label": name, "cosine": round(like, DIGITS)} for name, like in answer.near]
    if answer.against is None:
        return {**near[0], "top": near}
    found = {"against": answer.against, "cosine": near[0]["cosine"]}
    if answer.threshold is None:
        return found
    return {**found, "same": answer.same, "threshold": round(answer.threshold, DIGITS)}


@_lines.register
def _(answer: SpeakerAnswer, show: PrintOptions, number: int) -> str:
    if answer.against is None:
        return _pairs(answer.near)
    return answer.text if answer.threshold is None else f"{answer.text}\t{answer.cosine:.4f}"


# -- cells of a table


def cell_names(spec: Spec, n_best: int) -> list[str]:
    """Return the column names that the answers of a task may have in a table."""
    scored = spec.is_single_label or spec.writes
    found = ["answer", *["score"] * scored, *["spans"] * spec.is_tagging]
    for rank in range(2, n_best + 1):
        found += [f"answer_{rank}", *[f"score_{rank}"] * scored]
    return [*found, *["error"] * (not spec.is_text)]


def to_cells(answer: Answer, n_best: int = 1) -> JsonDict:
    """Return the table cells of an answer: `answer`, `score` if it has one, and the next-best
    answers."""
    if answer.error:
        return {"answer": None, "error": answer.error}
    found: JsonDict = {"answer": _cell_value(answer)}
    if answer.score is not None:
        found["score"] = round(answer.score, DIGITS)
    if isinstance(answer, TagAnswer) and answer.marked:
        found["spans"] = [span.facts() for span in answer.spans]
    for rank, other in enumerate(answer.others[: n_best - 1], 2):
        found[f"answer_{rank}"] = _cell_value(other)
        if other.score is not None:
            found[f"score_{rank}"] = round(other.score, DIGITS)
    return found


def _cell_value(answer: Answer) -> object:
    if isinstance(answer, LabelsAnswer):
        return list(answer.labels)
    if isinstance(answer, NumberAnswer):
        return answer.value
    if type(answer) is VectorAnswer:
        return answer.vector.tolist()
    return answer.text


# -- HTML


def to_html(answers: Sequence[Answer]) -> str:
    """Return an HTML table of answers for notebooks."""
    shown = answers[:MOST_ROWS]
    names = ["place"] * any(one.place for one in shown)
    names += ["source"] * any(one.source for one in shown)
    names += ["text", *["score"] * any(one.score is not None for one in shown)]
    rows = [[_html_cell(one, name) for name in names] for one in shown]
    table = _html_table(names, rows, f" style={CELL_STYLE!r}")
    left = len(answers) - len(shown)
    return table + (f"<p>… and {left:,} more</p>" if left else "")


def _html_table(head: Sequence[str], rows: Iterable[Sequence[str]], attributes: str = "") -> str:
    """Return an HTML table. The cells are already HTML. `attributes`: HTML attributes of every
    cell."""

    def line(cells: Sequence[str], tag: str) -> str:
        shown = "".join(f"<{tag}{attributes}>{cell}</{tag}>" for cell in cells)
        return f"<tr>{shown}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>"


def _html_cell(answer: Answer, name: str) -> str:
    if name == "score":
        return "" if answer.score is None else f"{answer.score:.4f}"
    if name != "text":
        return escape(str(getattr(answer, name) or ""))
    if answer.error:
        return f'<span style="color:#b00">{escape(answer.error)}</span>'
    notes = "".join(f"<br><small>{escape(note)}</small>" for note in answer.notes)
    return (_shaded(answer) or escape(answer.text)) + notes


def _shaded(answer: Answer) -> str:
    """Return a text as HTML, with less likely tokens in stronger red. It is empty if the
    concatenated tokens differ from the text."""
    if not isinstance(answer, TextAnswer) or len(answer.token_log_probs) < len(answer.tokens):
        return ""
    parts = [token.replace("▁", " ") for token in answer.tokens]
    if "".join(parts).strip() != answer.text.strip():
        return ""
    return "".join(
        f'<span title="{np.exp(log_prob):.3f}" style="background:rgba(214,69,65,'
        f'{0.6 * (1 - np.exp(log_prob)):.2f})">{escape(part)}</span>'
        for part, log_prob in zip(parts, answer.token_log_probs, strict=False)
    )


# -- scores


def score_rows(scores: Scores) -> list[ScoreRow]:
    """Return the rows of the table that `headway evaluate` prints. They contain the number of
    examples, metrics with their intervals, and other results. The main metric of each member of the
    model (neural layers, n-grams) and of each baseline follows."""
    rows = [] if scores.n is None else [(scores.unit, f"{scores.n:,}", "")]
    for name, value in scores.items():
        metric, known = scores.metrics[name], scores.intervals.get(name)
        notes = [metric.interval_text(known) if known else "",
                 scores.remarks.get(name, metric.remark)]  # fmt: skip
        rows.append((metric.label, metric.shown(value), "; ".join(filter(None, notes))))
    rows += scores.details
    for name, method in scores.methods.items():
        # Show the main metric, or the first metric that the baseline has.
        first = next((metric for metric in scores if metric in method.values), "")
        rows.append((name, _score_cell(scores, method.values, first) or "–", method.remark))
    return rows


def score_facts(scores: Scores) -> JsonDict:
    """Return the JSON object of `headway evaluate --json`."""
    found: JsonDict = dict(scores)
    if scores.n is not None:
        found["n"] = scores.n
    if scores.intervals:
        found["intervals"] = {name: list(one) for name, one in scores.intervals.items()}
    found |= scores.own_facts
    if scores.members:
        found["members"] = scores.members
    return {**found, "baselines": scores.baselines}


def scores_html(scores: Scores) -> str:
    """Return an HTML table for notebooks with all metrics of the model, its members and the
    baselines."""
    names = [name for name in scores.metrics if name in scores]
    methods = {"model": scores, **scores.members, **scores.baselines}
    rows = [
        [escape(one) for one in (who, *(_score_cell(scores, values, name) for name in names))]
        for who, values in methods.items()
    ]
    return _html_table(["", *(escape(scores.metrics[name].label) for name in names)], rows)


def _score_cell(scores: Scores, values: Mapping[str, float], name: str) -> str:
    return scores.metrics[name].shown(values[name]) if name in values else ""


def confusion_rows(scores: Scores) -> list[list[str]]:
    """Return the confusion matrix as rows of text, with a header row; empty if there is no
    matrix."""
    found = scores.figures.get("confusion")
    if not found:
        return []
    names = [str(name) for name in found["labels"]]
    counts = zip(names, found["counts"], strict=True)
    return [["true \\ predicted", *names], *([name, *map(str, row)] for name, row in counts)]


def comparison_lines(rows: Sequence[Standing], metric: Metric) -> list[str]:
    """Return the lines that compare the model with its baselines at the end of training."""
    wide = max((len(row.name) for row in rows), default=0)
    values = [f"{row.value:.{metric.digits}f}" for row in rows]
    most = max(map(len, values), default=0)
    known = ", with 95 % intervals" * any(row.range for row in rows)
    lines = [f"validation {metric.axis}{known}:"] if rows else []
    for row, value in zip(rows, values, strict=True):
        between = ""
        if row.range:
            low, high = (f"{one:.{metric.digits}f}" for one in row.range)
            between = f"  ({low} – {high})"
        lines.append(f"  {row.name:<{wide}}  {value:>{most}}{between}")
    return lines
