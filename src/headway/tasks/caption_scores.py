"""How good captions are: exact match, BLEU, chrF and CIDEr-D, beside what one gets for nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headway.data.media.prepared import evaluation_media
from headway.data.media.store import PictureStore
from headway.data.store import Columns, load_prepared
from headway.decode.sources import Picture
from headway.decode.writer import Writer
from headway.errors import UserError
from headway.metrics.captions import SIGNATURE, match_interval
from headway.metrics.translation import Interval
from headway.progress import OnProgress, Progress
from headway.settings.data import DataSettings
from headway.settings.model import PictureSettings
from headway.tasks.intake import front_of
from headway.tasks.scores import Row, Scores
from headway.tasks.specs import spec_of
from headway.tasks.task import Use
from headway.tasks.thumbnails import data_uri
from headway.tasks.write import commonest
from headway.tasks.write_answers import writer_of
from headway.tasks.write_scores import measured

SHOWN = 24


def by_picture(items: Columns, texts: Sequence[str]) -> tuple[list[int], list[list[str]]]:
    """The row of every picture, once, and all that is written about it: a manifest names a picture
    as often as it has captions."""
    found: dict[int, tuple[int, list[str]]] = {}
    for row, (key, text) in enumerate(zip(items.hashes.tolist(), texts, strict=True)):
        found.setdefault(key, (row, []))[1].append(text)
    return [row for row, _ in found.values()], [written for _, written in found.values()]


def described_pictures(
    pictures: Sequence[Picture],
    references: Sequence[Sequence[str]],
    outputs: Sequence[str],
) -> list[dict[str, str]]:
    """Small pictures for the report: half of them such as were not described as anyone did."""
    triples = list(zip(range(len(outputs)), references, outputs, strict=True))
    wrong = [one for one in triples if one[2] not in one[1]][: SHOWN // 2]
    right = [one for one in triples if one[2] in one[1]][: SHOWN - len(wrong)]
    return [
        {"picture": data_uri(pictures[place]), "target": " │ ".join(texts), "output": output}
        for place, texts, output in [*wrong, *right]
    ]


def evaluate_captions(use: Use, files: DataSettings) -> Scores:
    """Scores on described pictures, beside one caption for all of them."""
    settings = use.settings
    writer = writer_of(use.opened, settings.decode, task="caption")
    shape = front_of(settings)
    assert isinstance(shape, PictureSettings)
    what = settings.caption.what
    given = evaluation_media(
        what, replace(settings, data=files), shape, target="text", progress=use.progress
    )
    pictures = given.items.pictures
    texts = [" ".join(text.split()) for text in given.targets]
    rows, references = by_picture(given.items, texts)
    loss = None
    if writer.models:  # an engine searches and no more
        with use.progress.stage("measuring the loss", len(texts), "captions") as stage:
            loss = _loss(writer, pictures, texts, stage.update)
    outputs = _outputs(writer, [pictures[row] for row in rows], what, use.progress)
    judge = partial(measured, spec_of(settings).scores, references=references,
                    lowercase=settings.tokenizer.lowercase)  # fmt: skip
    values = judge(outputs)
    plain, remark = _usual_caption(use.opened.folder, references)
    usual = judge([plain] * len(outputs))
    interval = match_interval(values["exact"], len(outputs))
    rate = writer.summary.rate
    several = f"{len(texts):,} captions" if len(texts) > len(rows) else ""
    shown: list[Row] = [
        (what, f"{len(rows):,}", several),
        *([] if loss is None else [("loss", f"{loss:.4f}", "nats a token, without smoothing")]),
        ("exact match", f"{values['exact']:.2f}", _range(interval)),
        ("CIDEr-D", f"{values['cider']:.3f}", f"of 10; {SIGNATURE}"),
        ("BLEU", f"{values['bleu']:.2f}", ""),
        ("chrF", f"{values['chrf']:.2f}", ""),
        ("baseline: one for all", f"{usual['exact']:.2f}", remark),
        ("  its CIDEr-D", f"{usual['cider']:.3f}", ""),
        ("speed", f"{rate:,.0f}", "tokens a second"),
    ]
    facts = {
        **values,
        "loss": loss,
        "n": len(rows),
        "captions": len(texts),
        "intervals": {"exact": [interval.low, interval.high]},
        "baseline": {"caption": plain, **usual},
        "tokens_per_s": rate,
    }
    return Scores(
        values if loss is None else {**values, "loss": loss, "ppl": math.exp(loss)},
        rows=shown,
        facts=facts,
        find_baselines=lambda: {"one caption for all": usual},
        find_answers=lambda: (outputs, references),
    )


def _range(interval: Interval) -> str:
    return f"95 %: {interval.low:.2f} – {interval.high:.2f}"


def _outputs(writer: Writer, pictures: Sequence[Any], what: str, progress: Progress) -> list[str]:
    with progress.stage("describing", len(pictures), what) as stage:
        return [found.text for found in writer.write(pictures, on_progress=stage.update)]


def _loss(
    writer: Writer, pictures: PictureStore, texts: Sequence[str], on_progress: OnProgress
) -> float:
    """Nats a token, the end counted."""
    total, count = 0.0, 0
    pairs = ((pictures[row], text) for row, text in enumerate(texts))
    for number, score in enumerate(writer.score(pairs), 1):
        total, count = total - score.log_prob, count + score.n_tokens
        on_progress(number, len(texts))
    return total / max(1, count)


def _usual_caption(folder: Path, references: Sequence[Sequence[str]]) -> tuple[str, str]:
    """The caption that is written most often about the training pictures, or about these."""
    where = "in training"
    try:
        prepared = load_prepared(folder)
    except (UserError, OSError):  # the folder may have been copied without its data
        where, texts = "here", [text for of_one in references for text in of_one]
    else:
        store, tokenizer = prepared.train["text"], prepared.tokenizer
        texts = [tokenizer.decode(store[row].tolist()) for row in range(len(store))]
    text = commonest(texts)
    return text, f"exact match of {text!r}, the most frequent {where}"
