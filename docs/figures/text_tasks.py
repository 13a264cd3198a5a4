"""Images of the pages about tasks on text in `docs/tasks`.

The runs are trained on the sentences and plays of `examples/data` and on drawn shapes: each in one
to five minutes of one core.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache, partial
from operator import floordiv, mod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import headway
from headway.data.store import load_prepared
from headway.decode.search.sample import probabilities
from headway.inside import load
from headway.inside.capture.forward import run_reading
from headway.inside.capture.reading import GenerationOptions, read
from headway.settings.decode import DecodeSettings
from headway.tasks.dataset import Batch
from headway.tasks.task import find_task

from .browser import ROOT, View, card, console, output, png, shot
from .curves import drawn
from .life import COLOURS, bar, escape, log_of, rows_table, shade
from .panels import Panel, take
from .panels import card as nth_card

Pixels = NDArray[np.uint8]
DATA = ROOT / "examples" / "data"
PAIRS = "tatoeba-de-en.tsv.gz"

PREPOSITIONS = ("in", "on", "at", "to", "for", "with")
GAP = "_"
PER_LABEL = 500
FEW = 600
"""Number of sentences to compare a pretrained start with training from scratch, and to validate."""

PEOPLE = "Tom|Mary|John|Picasso|Jackson"
PLACES = (
    "Boston|Japan|London|Tokyo|Australia|Kyoto|America|Paris|Hawaii|Osaka|Rome|Germany|China|"
    "Europe|New York|England|Canada|Spain|Mexico|Hokkaido|France"
)
DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
UNITS = "second|minute|hour|day|week|month|year|night|morning|evening|afternoon|summer|winter"
SPANS = {
    "person": rf"\b(?:{PEOPLE})\b",
    "place": rf"\b(?:{PLACES})\b",
    "time": rf"\b(?:yesterday|today|tomorrow|tonight|(?:last|next|every|this) (?:{UNITS})"
    rf"|on (?:{DAYS})|at \w+ o'clock|(?:a|\w+) (?:{UNITS})s? ago|in \w+ (?:{UNITS})s"
    rf"|in the (?:{UNITS})|all (?:day|night))\b",
}
"""Regular expressions that tag the sentences of the tagger's training."""

WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")

COMMANDS = {
    "translate": f"headway train translate {PAIRS} --out runs/de-en train.steps=600 "
    "train.eval_every=100 decode.beam=1",
    "classify": "headway train classify prepositions.tsv --out runs/prepositions "
    "train.steps=300 train.eval_every=50",
    "tag": "headway train tag names.conll --out runs/names train.eval_every=25",
    "embed": f"headway train embed --pairs {PAIRS} --from none --out runs/pairs train.steps=200 "
    "train.eval_every=50",
    "fill": "headway train fill english.txt --out runs/words data.unit=line train.steps=800 "
    "train.eval_every=200",
    "complete": "headway train complete shakespeare.txt --out runs/bard tokenizer.kind=characters "
    "train.steps=200 train.eval_every=100",
    "fill-images": "headway train fill --media photos/single.jsonl --out runs/filled "
    "fill.mask=0.5 train.steps=4000 train.eval_every=1000",
    "classify-images": "headway train classify photos/single.jsonl --out runs/shapes "
    "classify.modality=image train.steps=600 train.eval_every=100",
    "few": "headway train classify few.tsv --valid rest.tsv --out runs/few model.ngrams=0 "
    "train.steps=120 train.eval_every=20",
    "few-scratch": "headway train classify few.tsv --valid rest.tsv --from none "
    "--out runs/few-scratch model.ngrams=0 train.steps=120 train.eval_every=20",
    "distil": "headway train distil prepositions.tsv --teacher runs/prepositions "
    "--out runs/prepositions-small train.steps=600 train.eval_every=100",
}


@cache
def folder() -> Path:
    """A working folder with the data of all trainings."""
    place = Path(tempfile.mkdtemp())
    write_data(place)
    return place


def write_data(place: Path) -> None:
    shutil.copy(DATA / PAIRS, place)
    with gzip.open(DATA / "tinyshakespeare.txt.gz", "rt", encoding="utf-8") as file:
        (place / "shakespeare.txt").write_text(file.read(), "utf-8")
    sentences = english()
    (place / "english.txt").write_text("".join(f"{one}\n" for one in sentences), "utf-8")
    rows = [f"{text}\t{word}\n" for text, word in without_preposition(sentences)]
    (place / "prepositions.tsv").write_text("".join(rows), "utf-8")
    (place / "few.tsv").write_text("".join(rows[:FEW]), "utf-8")
    (place / "rest.tsv").write_text("".join(rows[FEW : 2 * FEW]), "utf-8")
    write_shapes(place / "photos")
    tagged = "\n".join(conll(one) for one in sentences if has_spans(one))
    (place / "names.conll").write_text(tagged, "utf-8")


def write_shapes(place: Path) -> None:
    """Write scenes of shapes, and a table of those with one shape, labelled by its kind."""
    program = [sys.executable, str(ROOT / "examples" / "make_shapes.py"), "--out", str(place)]
    sizes = ["--n", "6000", "--valid", "10", "--test", "10"]
    subprocess.run([*program, *sizes], check=True, capture_output=True)
    lines = (place / "train.jsonl").read_text("utf-8").splitlines()
    rows = [
        {"path": one["path"], "index": one["index"], "label": one["label"].split()[-1]}
        for one in map(json.loads, lines)
        if len(one["objects"]) == 1
    ]
    (place / "single.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows), "utf-8")


def english() -> list[str]:
    """The different English sentences of the pairs."""
    with gzip.open(DATA / PAIRS, "rt", encoding="utf-8") as file:
        return list(dict.fromkeys(line.rstrip("\n").split("\t")[1] for line in file))


def without_preposition(sentences: list[str]) -> list[tuple[str, str]]:
    """Sentences with a gap for their only preposition, and that preposition."""
    found: dict[str, list[str]] = {word: [] for word in PREPOSITIONS}
    for sentence in sentences:
        words = sentence.split(" ")
        used = [word for word in words if word in found]
        if len(used) == 1 and 4 <= len(words) <= 10:
            gapped = " ".join(GAP if word == used[0] else word for word in words)
            found[used[0]].append(gapped)
    drawn = random.Random(1)
    rows = [
        (text, word)
        for word, texts in found.items()
        for text in drawn.sample(texts, min(PER_LABEL, len(texts)))
    ]
    drawn.shuffle(rows)
    return rows


def has_spans(sentence: str) -> bool:
    return any(re.search(SPANS[kind], sentence) for kind in ("place", "time"))


def conll(sentence: str) -> str:
    """A line with a word and its tag for each word."""
    spans = [
        (*match.span(), kind)
        for kind, pattern in SPANS.items()
        for match in re.finditer(pattern, sentence)
    ]
    return "".join(f"{word}\t{tag}\n" for word, tag in tags(sentence, spans))


def tags(sentence: str, spans: list[tuple[int, int, str]]) -> Iterator[tuple[str, str]]:
    for match in WORD.finditer(sentence):
        tag = "O"
        for first, last, kind in spans:
            if first <= match.start() < last:
                tag = f"{'B' if match.start() == first else 'I'}-{kind}"
        yield match[0], tag


@cache
def trained(name: str) -> list[str]:
    """Train a run, once, and return the lines that its command prints."""
    if name == "distil":
        trained("classify")
    return output(COMMANDS[name], cwd=folder())


def report(
    name: str, run: str, tab: str, parts: tuple[str, ...], browser: Any, *, width: int = 820
) -> Pixels:
    """Parts of a tab of the report of a run."""
    trained(name)
    view = View(parts, width, f"tab={tab}")
    return shot(browser, folder() / "runs" / run / "report.html", view)


def ending(name: str, first: str, browser: Any) -> Pixels:
    """The command of a training, and its last lines from the one that matches `first`."""
    lines = [line for line in trained(name) if not line.startswith("done in ")]
    begin = next(i for i, line in enumerate(lines) if re.match(first, line))
    return console(browser, [(COMMANDS[name], ["…", *lines[begin:]])])


# Translate


GERMAN = "Gestern hat mein Vater ein neues Auto gekauft."


def alignment(browser: Any) -> Pixels:
    """A sentence above its translation, with a line for each pair of aligned words."""
    answer = headway.load("tatoeba-de-en", device="cpu")(GERMAN, alignments=True)
    source, target = (answer.source or "").split(), (answer.text or "").split()
    (above, wide), (below, wider) = centres(source), centres(target)
    lines = "".join(
        f'<path d="M{above[i]:.0f} 30L{below[j]:.0f} 92" stroke="#2a62c9" stroke-width="2"/>'
        for i, j in answer.alignment or ()
    )
    words = [(x, 22, word) for x, word in zip(above, source, strict=True)]
    words += [(x, 108, word) for x, word in zip(below, target, strict=True)]
    texts = "".join(
        f'<text x="{x:.0f}" y="{y}" text-anchor="middle">{escape(word)}</text>'
        for x, y, word in words
    )
    style = "font: 16px sans-serif; background: white"
    size = f'width="{max(wide, wider):.0f}" height="124"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{style}">{lines}{texts}</svg>'
    return drawn(svg, browser)


def centres(words: Sequence[str]) -> tuple[list[float], float]:
    """The middle of each word in a line, and the width of the line."""
    found, x = [], 10.0
    for word in words:
        wide = 9.5 * len(word) + 26
        found.append(x + wide / 2)
        x += wide
    return found, x


# Complete


PROMPT = "Lily found a shiny shell on the beach."
TEMPERATURES = (0.3, 0.8, 1.3)


def temperatures(browser: Any) -> Pixels:
    """One prompt, continued at several temperatures."""
    stories = headway.load("stories", device="cpu")
    parts = []
    for temperature in TEMPERATURES:
        options = {"temperature": temperature, "top_p": 1.0, "max_len": 60, "seed": 2}
        answer = stories(PROMPT, **options)
        text = " ".join((answer.text or "").split())
        parts.append(
            f"<h2>temperature {temperature}</h2><div>{PROMPT}"
            f'<span style="background: {COLOURS[0]}"> {escape(text)}</span> …</div>'
        )
    return card(browser, "".join(parts))


# Fill


GAPS = ("I don't [MASK] what to do.", "Are you afraid [MASK] dogs?", "I have to [MASK] home now.")
LIKELIEST = 4
ORIGINALS = 5
"""Number of validation images that are shown."""

WHITE = 1e3
"""A normalised pixel that is white whatever the mean and deviation are."""


def gaps(browser: Any) -> Pixels:
    """Sentences with the most likely words in their gaps."""
    trained("fill")
    run = headway.load(folder() / "runs" / "words", device="cpu")
    cells = []
    for sentence, answer in zip(GAPS, run(list(GAPS), n_best=LIKELIEST), strict=True):
        (gap,) = answer.gaps or ()
        rows = [(escape(one.word), f"{one.probability:.2f}", bar(one.probability)) for one in gap]
        cells.append(f"<div><h2>{escape(sentence)}</h2>{rows_table((), rows, raw=True)}</div>")
    return card(browser, f'<div style="display: flex; gap: 24px">{"".join(cells)}</div>')


def patches(browser: Any) -> Pixels:
    """Validation images: original, what the model sees, and what it reconstructs."""
    trained("fill-images")
    path = folder() / "runs" / "filled"
    run, prepared = load(path), load_prepared(path)
    objective = find_task(run.settings).objective(run.settings, prepared)
    run.model.eval()
    rows = np.arange(ORIGINALS)
    batch = objective.valid_dataset.batch(rows, torch.device("cpu"))
    with torch.inference_mode():
        given = objective.augment(run.model, batch)
        rebuilt_RE = objective.read(run.model, given).logits_RC
    lines = reconstructions(run.model.front, batch, rebuilt_RE)
    body = "".join(
        f"<tr><td>{name}</td>" + "".join(f"<td>{image_tag(one)}</td>" for one in images) + "</tr>"
        for name, images in lines.items()
    )
    return card(browser, f"<table>{body}</table>", width=800)


def reconstructions(
    front: Any, batch: Batch[Any], rebuilt_RE: torch.Tensor
) -> dict[str, NDArray[np.uint8]]:
    """Images with bytes for pixels. As in MAE, a reconstructed patch has the mean and deviation of
    the original, because the model predicts its pixels relative to these."""
    (group,) = batch.streams[0].values.groups
    true_BPE = front.patches(front.pixels(group))
    true_NE, n_patches = true_BPE.flatten(0, 1), true_BPE.shape[1]
    assert batch.rows_R is not None
    image_R, row_R = (f(batch.rows_R, n_patches + front.shape.extra) for f in (floordiv, mod))
    rows_R = image_R * n_patches + row_R - front.shape.extra  # without the class token
    masked_NE, whole_NE = true_NE.clone(), true_NE.clone()
    masked_NE[rows_R] = WHITE
    true_RE = true_NE[rows_R]
    mean_R1 = true_RE.mean(-1, keepdim=True)
    whole_NE[rows_R] = rebuilt_RE * true_RE.std(-1, keepdim=True, correction=0) + mean_R1
    found = {"original": true_NE, "visible": masked_NE, "reconstructed": whole_NE}
    return {name: joined(front, rows_NE, len(group)) for name, rows_NE in found.items()}


def joined(front: Any, rows_NE: torch.Tensor, n_images: int) -> NDArray[np.uint8]:
    """Images of patches, one row for each patch (B Y X C)."""
    _, n_lines, n_columns = front.shape.grid
    size = front.shape.patch
    x_BCYX = (
        rows_NE.view(n_images, n_lines, n_columns, -1, size, size)
        .permute(0, 3, 1, 4, 2, 5)
        .reshape(n_images, -1, n_lines * size, n_columns * size)
    )
    bytes_BCYX = ((x_BCYX * front.std_C11 + front.mean_C11) * 255).clamp(0, 255)
    return bytes_BCYX.permute(0, 2, 3, 1).to(torch.uint8).numpy()


def image_tag(pixels_YXC: NDArray[np.uint8]) -> str:
    source = base64.b64encode(png(pixels_YXC)).decode()
    return (
        f'<img src="data:image/png;base64,{source}" width="96" '
        'style="image-rendering: pixelated; display: block">'
    )


# Tag


TAGGED = (
    "Mary flew from Boston to New York on Monday, and Tom came two weeks ago.",
    "Peter will visit Vienna next month.",
)
TYPES = {"person": COLOURS[0], "place": COLOURS[2], "time": COLOURS[1]}


def spans(browser: Any) -> Pixels:
    """Sentences with the spans that the tagger finds."""
    trained("tag")
    answers = headway.load(folder() / "runs" / "names", device="cpu")(TAGGED)
    lines = []
    for answer in answers:
        text, at, line = answer.source or "", 0, ""
        for span in answer.spans or ():
            line += escape(text[at : span.start]) + (
                f'<span class="token" style="background: {TYPES[span.type]}; margin: 0">'
                f"{escape(span.text)}<small>{span.type}</small></span>"
            )
            at = span.end
        lines.append(f'<p style="margin: 6px 0">{line}{escape(text[at:])}</p>')
    return card(browser, "".join(lines))


# Embed


SENTENCES = (
    "The library opens at nine.", "My brother broke an arm.", "She bakes bread every Sunday.",
    "Our train was two hours late.", "The doctor was very kind.",
)  # fmt: skip
QUERIES = (
    "When can I borrow books?", "We missed the connection at the station.",
    "She had to go to the hospital.",
)  # fmt: skip
FOREIGN = (
    "Ich habe meinen Schlüssel verloren.", "Wo ist der nächste Bahnhof?",
    "Sie kann sehr gut singen.",
)  # fmt: skip


def cosines(browser: Any) -> Pixels:
    """Cosines of queries and sentences as a table of shades."""
    base = headway.load("base-en", device="cpu")
    cosines_QS = base(QUERIES).vectors @ base(SENTENCES).vectors.T
    head = "".join(
        f'<th style="padding: 0 6px 8px; width: 96px; vertical-align: bottom">{escape(one)}</th>'
        for one in SENTENCES
    )
    lines = "".join(
        f"<tr><td>{escape(query)}</td>"
        + "".join(
            f'<td style="background: {shade(float(one))}; text-align: center; padding: 8px">'
            f"{one:.2f}</td>"
            for one in row
        )
        + "</tr>"
        for query, row in zip(QUERIES, cosines_QS, strict=True)
    )
    table = f'<table style="font-size: 13px"><tr><td></td>{head}</tr>{lines}</table>'
    return card(browser, f"<style>td, th {{ font-family: sans-serif !important }}</style>{table}")


def nearest(browser: Any) -> Pixels:
    """German queries with their nearest English sentences."""
    trained("embed")
    run = headway.load(folder() / "runs" / "pairs", device="cpu")
    answers = run(FOREIGN, nearest=folder() / "english.txt")
    rows = [
        (query if place == 0 else "", text, f"{cosine:.2f}")
        for query, answer in zip(FOREIGN, answers, strict=True)
        for place, (text, cosine) in enumerate((answer.near or ())[:3])
    ]
    size = len((folder() / "english.txt").read_text("utf-8").splitlines())
    return card(browser, rows_table(("query", f"nearest of {size:,} sentences", "cosine"), rows))


# Decoding


BIRD = "One day, a bird sat on the"
SHOWN = 9
"""Number of tokens whose probabilities are shown."""

OPTIONS: tuple[dict[str, float], ...] = (
    {"temperature": 1.0}, {"temperature": 0.5}, {"temperature": 1.5},
    {"top_k": 4}, {"top_p": 0.8}, {"min_p": 0.1},
)  # fmt: skip


def sampling(browser: Any) -> Pixels:
    """Probabilities of the next token under options of sampling."""
    run = load("stories")
    seen = read(run, BIRD, GenerationOptions(max_new_tokens=0))
    with torch.no_grad():
        scores_1V = run_reading(run, seen).scores_RC[-1:]
    ids = scores_1V[0].topk(SHOWN).indices.tolist()
    columns_OT = [
        probabilities(scores_1V, DecodeSettings(sample=True, **options))[0, ids]
        for options in OPTIONS
    ]
    vocabulary = run.vocab.source
    rows = [
        (escape(vocabulary.decode([token])), *(cell(float(one[n])) for one in columns_OT))
        for n, token in enumerate(ids)
    ]
    names = ["<br>".join(f"{key}={value:g}" for key, value in one.items()) for one in OPTIONS]
    head = "".join(f'<th style="font: 12px monospace">{one}</th>' for one in ("", *names))
    lines = "".join(
        "<tr>" + "".join(f"<td>{one}</td>" for one in (f"<b>{row[0]}</b>", *row[1:])) + "</tr>"
        for row in rows
    )
    return card(browser, f"<h1>{BIRD} …</h1><table><tr>{head}</tr>{lines}</table>", width=800)


def cell(share: float) -> str:
    """A probability as a number and a bar; nothing for a token that cannot be drawn."""
    if not share:
        return '<span style="color: #b3bcc9">–</span>'
    return (
        f'{share:.2f} <span class="bar" style="width: {max(1, round(60 * share))}px; '
        f'height: 10px"></span>'
    )


BEAM = Panel(
    "decoding-beam", "tatoeba-de-en", "Der Zug hatte zwei Stunden Verspätung.",
    "tab=beam&beamShow=kept", (nth_card(1),), width=900,
)  # fmt: skip


# Fine-tuning


STARTS = {
    "few": ("from base-en", "#1f5fbf"),
    "few-scratch": ("from scratch", "#c2571a"),
}


def starts(browser: Any) -> Pixels:
    """Validation accuracy over the steps of three runs on the same few sentences."""
    lines = {}
    for name, (label, colour) in STARTS.items():
        trained(name)
        log = log_of(folder() / "runs" / name)
        points = [(one["step"], one["accuracy"]) for one in log if one["kind"] == "valid"]
        lines[label] = (colour, points)
    return drawn(accuracy_curves(lines), browser)


def accuracy_curves(
    lines: dict[str, tuple[str, list[tuple[int, float]]]], width: int = 460, height: int = 200
) -> str:
    last = max(step for _, points in lines.values() for step, _ in points)
    top = 10 * (int(max(value for _, points in lines.values() for _, value in points)) // 10 + 1)
    parts = []
    for percent in range(0, top + 1, 20):
        y = height * (1 - percent / top)
        parts.append(f'<path d="M0 {y:.1f}h{width}" stroke="#ddd"/>')
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>')
    for number, (label, (colour, points)) in enumerate(lines.items()):
        line = " ".join(
            f"{width * step / last:.1f},{height * (1 - value / top):.1f}" for step, value in points
        )
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        y = 20 + 22 * number
        parts.append(f'<path d="M{width + 24} {y}h22" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{width + 54}" y="{y + 4}">{label}: {points[-1][1]:.0f} %</text>')
    parts.append(f'<text x="{width}" y="{height + 18}" text-anchor="end">step {last}</text>')
    style = "font: 13px sans-serif; background: white"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 330}" height="{height + 40}" '
        f'style="{style}"><g transform="translate(50 12)">{"".join(parts)}</g></svg>'
    )


FIGURES = {
    "translate-alignment": alignment,
    "translate-curves": partial(report, "translate", "de-en", "curves", (nth_card(1), nth_card(2))),
    "complete-temperatures": temperatures,
    "complete-ngrams": partial(ending, "complete", "validation loss:$"),
    "classify-baselines": partial(ending, "classify", "validation accuracy, %"),
    "classify-confusion": partial(
        report, "classify", "prepositions", "answers", (nth_card(1),), width=600
    ),
    "classify-mistakes": partial(
        report, "classify-images", "shapes", "answers", (nth_card(4),), width=600
    ),
    "fill-gaps": gaps,
    "fill-patches": patches,
    "tag-spans": spans,
    "tag-baselines": partial(ending, "tag", "validation F1, %"),
    "embed-cosines": cosines,
    "embed-nearest": nearest,
    "finetune-starts": starts,
    "finetune-distil": partial(ending, "distil", "validation accuracy, %"),
    "decoding-sampling": sampling,
    "decoding-beam": partial(take, BEAM),
}
