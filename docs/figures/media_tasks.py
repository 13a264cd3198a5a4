"""Images of the pages about images, audio, data, training and scores in `docs/tasks`."""

from __future__ import annotations

import base64
import gzip
import html
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import headway
from headway.data.media.audio import read_audio
from headway.data.media.image import read_image
from headway.nn.augment.augment import Augment
from headway.nn.augment.spec_augment import SpecAugment
from headway.nn.mel import log_mel
from headway.settings.augment import AugmentSettings
from headway.settings.folder import SHIPPED
from headway.settings.train import ResolvedTrain, TrainSettings
from headway.training.schedule import AFTER_WARMUP, learning_rate

from .browser import ROOT, View, card, console, output, png, shot, terminal
from .curves import drawn
from .panels import card as nth_card

BLUE, ORANGE, GREEN, PURPLE = "#2a62c9", "#c2571a", "#3a8f4d", "#7a4fb5"
GREY = "#556070"
PAIRS = ROOT / "examples" / "data" / "tatoeba-de-en.tsv.gz"
EXAMPLE_IMAGE = SHIPPED / "shapes" / "example.png"
EXAMPLE_AUDIO = SHIPPED / "digits" / "example.wav"
SEED = 8
"""Seed of the random changes of an image: one at which every kind of change is visible."""


@cache
def folder() -> Path:
    """A working folder with the examples of the repository."""
    place = Path(tempfile.mkdtemp())
    (place / "examples").symlink_to(ROOT / "examples")
    return place


def picture(pixels_YXC: NDArray[Any], width: int, title: str = "") -> str:
    """HTML of an image at this width, with square pixels and a title below it."""
    source = base64.b64encode(png(pixels_YXC.astype(np.uint8))).decode()
    return (
        f'<span style="display: inline-block; margin: 0 10px 8px 0; vertical-align: top; '
        f'text-align: center"><img src="data:image/png;base64,{source}" width="{width}" '
        f'style="image-rendering: pixelated; border-radius: 5px; display: block">'
        f'<code style="font-size: 12px">{html.escape(title)}</code></span>'
    )


# Captions


ATTENDED = "the patches that the decoder attends to when it writes"


def caption_words(browser: Any) -> NDArray[np.uint8]:
    """The example image with its caption, and the attention of each word except "a" and "of"."""
    answer = json.loads(output("headway predict shapes example.png --alignments --json")[-1])
    image_YXC = read_image(EXAMPLE_IMAGE).transpose(1, 2, 0)
    named = [one for one in answer["outputs"][0]["looks"] if one["word"] not in ("a", "of")]
    maps = "".join(
        picture(attended(image_YXC, np.array(one["grid"][0])), 92, one["word"]) for one in named
    )
    return card(
        browser,
        f'<div style="display: flex; gap: 14px; align-items: center">'
        f"{picture(image_YXC, 150, 'example.png')}"
        f'<div><h1>{html.escape(answer["text"])}</h1>'
        f'<p class="note" style="margin: 0 0 8px">{ATTENDED}</p>'
        f"{maps}</div></div>",
        width=800,
    )  # fmt: skip


def attended(image_YXC: NDArray[Any], weights_RC: NDArray[Any]) -> NDArray[Any]:
    """The image, darker where a patch has less attention."""
    patch = len(image_YXC) // len(weights_RC)
    share_YX = np.kron(weights_RC / weights_RC.max(), np.ones((patch, patch)))
    return image_YXC * (0.3 + 0.7 * share_YX[..., None])


# Transcripts


def transcript(browser: Any) -> NDArray[np.uint8]:
    """The waveform of the example recording, with the time and confidence of each word."""
    heard = headway.load("digits", device="cpu")("example.wav")
    width, height, top = 720, 110, 34
    scale = width / heard.seconds
    parts = [wave(EXAMPLE_AUDIO, width, height, top)]
    for one in heard.words:
        x, wide = one.start * scale, (one.end - one.start) * scale
        middle = x + wide / 2
        parts.append(
            f'<rect x="{x:.1f}" y="{top}" width="{wide:.1f}" height="{height}" '
            f'fill="{BLUE}" opacity="0.14"/>'
            f'<text x="{middle:.1f}" y="16" text-anchor="middle" font-weight="bold">{one.text}'
            f'</text><text x="{middle:.1f}" y="29" text-anchor="middle" fill="{GREY}">'
            f"confidence {one.confidence:.2f}</text>"
        )
    below = top + height
    for second in range(int(heard.seconds) + 1):
        x = second * scale
        parts.append(
            f'<path d="M{x:.1f} {below}v5" stroke="{GREY}"/>'
            f'<text x="{x:.1f}" y="{below + 19}" text-anchor="middle" fill="{GREY}">{second} s'
            f"</text>"
        )
    return drawn(svg("".join(parts), width + 30, below + 26, left=15), browser)


def wave(path: Path, width: int, height: int, top: int) -> str:
    """SVG of a recording: the lowest and the highest sample of each column."""
    samples = read_audio(path, 8000)
    columns = np.array_split(samples / np.abs(samples).max(), width)
    middle, half = top + height / 2, height / 2 - 4
    path_of = "".join(
        f"M{x}.5 {middle - half * one.max():.1f}V{middle - half * one.min() + 0.5:.1f}"
        for x, one in enumerate(columns)
    )
    return f'<path d="{path_of}" stroke="{BLUE}" stroke-width="1"/>'


def svg(body: str, width: int, height: int, *, left: int = 0, top: int = 0) -> str:
    style = "font: 12px sans-serif; background: white"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'style="{style}"><g transform="translate({left} {top})">{body}</g></svg>'
    )


# Tables and their check


def columns(browser: Any) -> NDArray[np.uint8]:
    """How the columns of four tables are found, by `headway.check` itself."""
    parts = [found(rule, names, given) for rule, names, given in RULES]
    grid = '<div style="display: grid; grid-template-columns: auto auto">'
    return card(browser, f"{grid}{''.join(parts)}</div>", width=800)


RULES: tuple[tuple[str, tuple[str, ...], dict[str, str]], ...] = (
    ("1. names you give: --text comment", ("title", "comment", "verdict"),
     {"text": "comment"}),
    ("2. the names of the task", ("id", "text", "label"), {}),
    ("3. common names", ("id", "sentence", "class"), {}),
    ("4. the only column that fits", ("id", "comment", "verdict"), {}),
)  # fmt: skip
FILMS = {
    "title": ("Dune", "Cats", "Jaws", "Heat"),
    "text": ("I would see it again.", "Long and dull.", "It still works.", "A tense, fine film."),
    "label": ("good", "bad", "good", "good"),
}
LIKE = {"sentence": "text", "comment": "text", "class": "label", "verdict": "label"}


def cell(kind: str, row: int) -> str:
    """A label, or a text or title that no other row has."""
    value = FILMS[kind][row % 4]
    return value if kind == "label" or row < 4 else f"{value} {row}"


def found(rule: str, names: Sequence[str], given: dict[str, str]) -> str:
    """HTML of a table with the use of each of its columns above it."""
    rows = [
        {name: n if name == "id" else cell(LIKE.get(name, name), n) for name in names}
        for n in range(80)
    ]
    used = headway.check("classify", rows, **given).columns
    lines = [
        [f'<b style="color: {BLUE}">↓ {used[name]}</b>' if used[name] else "" for name in names],
        [f"<b>{name}</b>" for name in names],
        *([html.escape(str(row[name])) for name in names] for row in rows[:2]),
    ]
    styles = [
        "background: #eef3fd; padding: 2px 14px" if used[name] else "color: #8a93a3"
        for name in names
    ]
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="{style}">{one}</td>' for one, style in zip(line, styles, strict=True)
        )
        + "</tr>"
        for line in lines
    )
    return (
        f'<div style="margin-right: 24px"><h2>{html.escape(rule)}</h2><table>{body}</table></div>'
    )


@cache
def shuffled() -> list[tuple[str, str]]:
    """2,000 sentence pairs in random order."""
    with gzip.open(PAIRS, "rt", encoding="utf-8") as file:
        pairs = [tuple(line.rstrip("\n").split("\t")[:2]) for line in file]
    chosen = np.random.default_rng(1).permutation(len(pairs))[:2000]
    return [(pairs[i][0], pairs[i][1]) for i in chosen]


def shifted(browser: Any) -> NDArray[np.uint8]:
    """The check of two aligned files, of which one lacks line 701."""
    place = folder()
    german, english = zip(*shuffled(), strict=True)
    (place / "a.de").write_text("".join(f"{one}\n" for one in german), "utf-8")
    kept = [one for number, one in enumerate(english, 1) if number != 701]
    (place / "a.en").write_text("".join(f"{one}\n" for one in kept), "utf-8")
    command = "headway check translate --source a.de --target a.en"
    return console(browser, [(command, output(command, cwd=place, code=2)[:5])], width=800)


# Images, videos and recordings


@cache
def made(kind: str) -> Path:
    """The folder of a few examples of `examples/make_KIND.py`."""
    out = folder() / kind
    program = [sys.executable, f"examples/make_{kind}.py", "--out", kind]
    sizes = ["--n", "12", "--valid", "2", "--test", "2"]
    subprocess.run([*program, *sizes], cwd=folder(), check=True, capture_output=True)
    return out


def lines_of(kind: str) -> list[dict[str, Any]]:
    return [json.loads(one) for one in (made(kind) / "train.jsonl").read_text("utf-8").splitlines()]


def made_examples(browser: Any) -> NDArray[np.uint8]:
    """Scenes and the frames of a video, with their captions."""
    images = np.load(made("shapes") / "images.npy", mmap_mode="r")
    chosen = sorted(lines_of("shapes"), key=lambda one: -len(one["objects"]))[:3]
    scenes = "".join(
        f'<div style="display: inline-block; width: 232px; vertical-align: top">'
        f"{picture(boxed(images[one['index']], one), 192)}"
        f'<div style="width: 200px; font-size: 13px">{words_of(one)}</div></div>'
        for one in chosen
    )
    videos = np.load(made("moving") / "videos.npy", mmap_mode="r")
    video = max(lines_of("moving"), key=lambda one: len(one["text"]))
    frames = "".join(picture(frame, 76) for frame in videos[video["index"]])
    return card(
        browser,
        f"<h1>make_shapes.py</h1>{scenes}<h1 style='margin-top: 14px'>make_moving.py</h1>{frames}"
        f'<div style="font-size: 13px">{words_of(video)} &nbsp; <code>label: {video["label"]}'
        f"</code></div>",
        width=800,
    )


def words_of(example: dict[str, Any]) -> str:
    """The caption, with the words that name an object in its colour."""
    words = example["text"].split()
    for number, one in enumerate(example["objects"]):
        for at in one["words"]:
            words[at] = f'<b style="color: {OBJECTS[number]}">{words[at]}</b>'
    return " ".join(words)


OBJECTS = ("#d0357c", "#1788a8", "#8a7400")
"""Colours of the boxes and names of the objects of a scene."""


def boxed(image_YXC: NDArray[Any], example: dict[str, Any], size: int = 4) -> NDArray[Any]:
    """The image at several times its size, with the box of each object."""
    large_YXC = image_YXC.repeat(size, 0).repeat(size, 1)
    for number, one in enumerate(example["objects"]):
        left, top, right, bottom = (size * side for side in one["box"])
        colour = [int(OBJECTS[number][i : i + 2], 16) for i in (1, 3, 5)]
        sides = (
            ((top, top + 2), (left, right)),
            ((bottom - 2, bottom), (left, right)),
            ((top, bottom), (left, left + 2)),
            ((top, bottom), (right - 2, right)),
        )
        for rows, wide in sides:
            large_YXC[slice(*rows), slice(*wide)] = colour
    return large_YXC


CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("flip=true", {"flip": True}),
    ("crop=6", {"crop": 6}),
    ("rand=2", {"rand": 2}),
    ("erase=0.5", {"erase": 0.5}),
    ("mixup=0.8", {"mixup": 0.8}),
    ("cutmix=1", {"cutmix": 1.0}),
)
DRAWS = 5
"""Number of random draws of a change that are shown."""

OTHER = 3
"""The made scene that mixup and CutMix mix with the example."""


def changed(browser: Any) -> NDArray[np.uint8]:
    """Random draws of each change of an image, by the code of training."""
    stack = np.load(made("shapes") / "images.npy", mmap_mode="r")
    own = read_image(EXAMPLE_IMAGE)
    other = torch.from_numpy(np.array(stack[OTHER]).transpose(2, 0, 1))
    rows = [
        f'<tr><td>unchanged</td><td style="padding: 0">{picture(own.transpose(1, 2, 0), 76)}</td>'
        f"</tr>"
    ]
    for name, settings in CHANGES:
        torch.manual_seed(SEED)
        augment = Augment(AugmentSettings(**settings)).train()
        images = torch.stack([torch.from_numpy(own), other] * DRAWS)[:, None]
        x = augment(images)
        if augment.mixes:
            x = augment.mix(x, torch.eye(2).repeat(DRAWS, 1)).images_BTCYX
        shown = (x[::2, 0] * 255).byte().permute(0, 2, 3, 1).numpy()
        cells = "".join(f'<td style="padding: 0">{picture(one, 76)}</td>' for one in shown)
        rows.append(f'<tr><td style="padding-right: 14px">augment.{name}</td>{cells}</tr>')
    return card(browser, f"<table>{''.join(rows)}</table>", width=900)


def frames(browser: Any) -> NDArray[np.uint8]:
    """A recording, its log-mel frames as the model `digits` reads them, and SpecAugment."""
    settings = headway.load("digits", device="cpu").settings
    front, augment = settings.model.audio, settings.augment
    samples = torch.from_numpy(read_audio(EXAMPLE_AUDIO, front.rate))
    mel_AF = log_mel(samples, rate=front.rate, n_fft=front.n_fft, hop=front.hop,
                     bands=front.bands, scale=front.scale)  # fmt: skip
    torch.manual_seed(SEED)
    hide = SpecAugment(augment.bands, augment.band_width, augment.spans, augment.span_width)
    hidden_AF = hide(mel_AF, torch.zeros(len(mel_AF)), 1)
    width, height = 690, 90
    strip = f'<svg width="{width}" height="{height}">{wave(EXAMPLE_AUDIO, width, height, 0)}</svg>'
    return card(
        browser,
        f"<h2>samples: {len(samples):,} at {front.rate} Hz</h2>{strip}"
        f"<h2>log-mel frames: {len(mel_AF)} × {front.bands} bands</h2>{heat(mel_AF, width)}"
        f"<h2>the same frames in training: augment.bands={augment.bands}, "
        f"augment.spans={augment.spans}</h2>{heat(hidden_AF, width)}",
        width=800,
    )


def heat(mel_AF: torch.Tensor, width: int) -> str:
    """HTML of a spectrogram, low bands at the bottom."""
    levels_YX = mel_AF.T.flip(0).clamp(-2, 2.5).add(2).div(4.5).numpy()
    low, middle, high = (np.array(one) for one in ((18, 22, 60), (42, 98, 201), (255, 224, 130)))
    share = levels_YX[..., None]
    colours = np.where(share < 0.5, low + (middle - low) * 2 * share,
                       middle + (high - middle) * (2 * share - 1))  # fmt: skip
    source = base64.b64encode(png(np.round(colours / 6).astype(np.uint8) * 6)).decode()
    return (
        f'<img src="data:image/png;base64,{source}" style="width: {width}px; height: 120px; '
        f'image-rendering: pixelated; display: block">'
    )


# Training


LANGUAGES = "headway train classify languages.tsv --out runs/language train.steps=100"


@cache
def trained() -> tuple[Path, list[str]]:
    """A short training, which tells German from English sentences, and what it printed."""
    place = folder()
    write_languages(place / "languages.tsv", 0, 3000)
    return place / "runs" / "language", output(LANGUAGES, cwd=place)


def write_languages(path: Path, first: int, last: int) -> None:
    """Write the sentences of these pairs, each with its language."""
    with gzip.open(PAIRS, "rt", encoding="utf-8") as file:
        pairs = [line.rstrip("\n").split("\t")[:2] for line in islice(file, first, last)]
    lines = [f"{german}\tGerman\n{english}\tEnglish\n" for german, english in pairs]
    path.write_text("".join(lines), "utf-8")


def progress(browser: Any) -> NDArray[np.uint8]:
    """Some lines of the training, and all lines of its end."""
    _, printed = trained()
    first = next(i for i, line in enumerate(printed) if line.startswith("step 5:"))
    table = next(i for i, line in enumerate(printed) if "with 95 %" in line)
    lines = [*printed[first - 3 : first + 2], "…", *printed[table : table + 6], printed[-1]]
    return console(browser, [(LANGUAGES, lines)], width=860)


def report(tab: str, parts: tuple[str, ...], width: int, browser: Any) -> NDArray[np.uint8]:
    """Cards of a tab of the report of this training."""
    run, _ = trained()
    return shot(browser, run / "report.html", View(parts, width, f"tab={tab}"))


SCHEDULES = {
    "noam": ("noam, inverse-sqrt", BLUE),
    "cosine": ("cosine", GREEN),
    "linear": ("linear", ORANGE),
    "trapezoid": ("trapezoid", PURPLE),
    "constant": ("constant", GREY),
}
"""Schedules that are drawn, with their names and colours. `inverse-sqrt` equals `noam`."""

STEPS, WARMUP, PEAK = 1000, 100, 1e-3


def schedules(browser: Any) -> NDArray[np.uint8]:
    """The learning rate of every schedule over a run."""
    assert set(SCHEDULES) == set(AFTER_WARMUP) - {"inverse-sqrt"}
    width, height = 520, 200
    parts = [f'<path d="M0 0v{height}h{width}" fill="none" stroke="#999"/>']
    for share in (0.25, 0.5, 0.75, 1.0):
        y = height * (1 - share)
        parts.append(f'<path d="M0 {y}h{width}" stroke="#e3e7ee"/>')
        parts.append(
            f'<text x="-6" y="{y + 4}" text-anchor="end" fill="{GREY}">{share * PEAK:g}</text>'
        )
    for step in range(0, STEPS + 1, 200):
        x = width * step / STEPS
        parts.append(
            f'<text x="{x}" y="{height + 17}" text-anchor="middle" fill="{GREY}">{step}</text>'
        )
    parts.append(f'<text x="{width / 2}" y="{height + 35}" text-anchor="middle">step</text>')
    parts.append('<text x="0" y="-10" font-weight="bold">learning rate</text>')
    for number, (name, (title, colour)) in enumerate(SCHEDULES.items()):
        settings = ResolvedTrain.stored(
            TrainSettings(schedule=name, lr=PEAK, warmup=WARMUP, steps=STEPS), metric="loss"
        )
        rate = learning_rate(settings, STEPS, d_model=512)
        points = " ".join(
            f"{width * step / STEPS:.1f},{height * (1 - rate(step) / PEAK):.1f}"
            for step in range(1, STEPS + 1, 3)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.2"/>'
            f'<path d="M{width + 24} {20 + 24 * number}h22" stroke="{colour}" stroke-width="2.5"/>'
            f'<text x="{width + 52}" y="{24 + 24 * number}">{title}</text>'
        )
    return drawn(svg("".join(parts), width + 240, height + 78, left=56, top=32), browser)


# Scores


def scores(browser: Any) -> NDArray[np.uint8]:
    """The scores of this training on sentences that it has not seen."""
    trained()
    place = folder()
    write_languages(place / "test.tsv", 3000, 3500)
    command = "headway evaluate runs/language test.tsv"
    printed = output(command, cwd=place)
    return console(browser, [(command, printed[printed.index("score                 value") :])])


FIGURES = {
    "caption-words": caption_words,
    "transcribe-words": transcript,
    "transcribe-srt": partial(
        terminal, command="headway predict digits example.wav --format srt", width=700
    ),
    "data-columns": columns,
    "data-shift": shifted,
    "media-made": made_examples,
    "media-augment": changed,
    "media-frames": frames,
    "training-progress": progress,
    "training-report": partial(report, "summary", (".top", ".tabs", nth_card(1), nth_card(2)), 960),
    "training-curves": partial(report, "curves", (nth_card(1),), 760),
    "training-schedules": schedules,
    "metrics-scores": scores,
}
