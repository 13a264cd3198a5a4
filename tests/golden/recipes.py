"""What is chosen where nobody says: the settings of all recipes and of plain commands, on a CPU and
on a GPU, from facts about the data that are written down here. No data set is needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import seams
from .compare import plain
from .inputs import WRITERS

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Facts:
    """Of prepared data, as far as anything is chosen by it."""

    n: int
    """Training examples."""

    mean: int = 0
    """Tokens of a text, without special ones; samples of a recording."""

    longest: int = 0
    vocab: int = 0
    labels: tuple[str, ...] = ()
    pairs: bool = False
    """Whether a second text, as long, belongs to each."""

    shape: tuple[int, int, int, int] | None = None
    """Of pictures: frames, channels, height, width."""

    rate: int = 0
    """Of recordings."""

    words: int = 0
    """Tokens of the text that belongs to a picture or a recording; the longest has twice as many.
    """


TEN = tuple("0123456789")
SPANS = ("O", "B-loc", "I-loc", "B-org", "I-org", "B-per", "I-per")
MOODS = ("0", "1")
DIGIT = (1, 1, 28, 28)
SHAKESPEARE = Facts(1, 1_003_854, 1_003_854, 68)
PRETRAINING = Facts(120_000, 27, 400, 6144)
MULTI30K = Facts(29_000, 14, 61, 10_000)
TATOEBA = Facts(165_813, 9, 112, 6000)

RECIPES: dict[str, Facts] = {
    "audiomnist-digits": Facts(24_000, 5200, 8000, labels=TEN, rate=8000),
    "audiomnist-speakers": Facts(
        27_000, 5200, 8000, labels=tuple(f"{n:02}" for n in range(60)), rate=8000
    ),
    "audiomnist-voices": Facts(
        21_600, 5200, 8000, labels=tuple(f"{n:02}" for n in range(48)), rate=8000
    ),
    "cifar10": Facts(49_000, labels=TEN, shape=(1, 3, 32, 32)),
    "debian-detect": Facts(6000, 60, 500, 8192, labels=("machine", "human")),
    "debian-fields": Facts(60_000, 60, 500, 8192),
    "digit-strings": Facts(20_000, 22_000, 50_000, 19, rate=8000, words=24),
    "emoji-captions": Facts(3300, vocab=2100, shape=(1, 3, 32, 32), words=5),
    "entities-pretrain": PRETRAINING,
    "fashion-mnist": Facts(58_000, labels=TEN, shape=DIGIT),
    "mnist": Facts(58_000, labels=TEN, shape=DIGIT),
    "mnist-gpu": Facts(58_000, labels=TEN, shape=DIGIT),
    "moving-actions": Facts(8000, labels=("grows", "left", "right", "turns"), shape=(8, 3, 32, 32)),
    "moving-captions": Facts(8000, vocab=30, shape=(8, 3, 32, 32), words=8),
    "mr": Facts(8530, 24, 70, 8192, labels=MOODS),
    "multi30k-embed": Facts(29_000, 15, 60, 10_000, pairs=True),
    "multi30k-en-de": MULTI30K,
    "multi30k-en-fr": MULTI30K,
    "ruletaker": Facts(70_000, 90, 260, 110, labels=("false", "true"), pairs=True),
    "sentiment-distil": PRETRAINING,
    "sentiment-pretrain": PRETRAINING,
    "shakespeare-laptop": SHAKESPEARE,
    "shakespeare-laptop-muon": SHAKESPEARE,
    "shakespeare-muon": SHAKESPEARE,
    "shakespeare-nanogpt": SHAKESPEARE,
    "shapes-captions": Facts(20_000, vocab=30, shape=(1, 3, 48, 48), words=12),
    "sst2": Facts(6920, 23, 60, 8192, labels=MOODS),
    "stories": Facts(6900, 210, 1100, 2048),
    "tatoeba-de-en": TATOEBA,
    "tatoeba-en-de": TATOEBA,
    "wikiann": Facts(20_000, 12, 60, 8192, labels=SPANS),
    "wnut17": Facts(3394, 24, 60, 8192, labels=SPANS),
}

BEGIN: dict[str, tuple[str, str]] = {
    "debian-detect": ("start.run", "debian-fields"),
    "sentiment-distil": ("distil.teacher", "sentiment-pretrain"),
}
"""Recipes that begin with the run of another recipe, and where that is named."""


@dataclass(frozen=True)
class Plain:
    """A command that asks for little or nothing."""

    task: str
    facts: Facts
    asked: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    """A name of `inputs.WRITERS`, where files are looked at before they are prepared."""


WHITE = {"data.text": ["a.txt"]}
SIDES = {"data.source": ["a"], "data.target": ["b"]}
PLAIN: dict[str, Plain] = {
    "translate": Plain("translate", Facts(9000, 12, 80, 4000), SIDES),
    "translate-large": Plain("translate", Facts(900_000, 30, 127, 16_000), SIDES),
    "translate-paper": Plain(
        "translate", Facts(1_200_000, 30, 127, 32_000), {**SIDES, "model.preset": "transformer-big"}
    ),
    "complete": Plain("complete", Facts(400, 300, 900, 3000), WHITE),
    "complete-large": Plain("complete", Facts(500_000, 800, 9000, 16_000), WHITE),
    "complete-paper": Plain(
        "complete", Facts(500_000, 800, 9000, 16_000), {**WHITE, "model.preset": "gpt2"}
    ),
    "fill": Plain("fill", Facts(4000, 40, 300, 3000), WHITE),
    "fill-large": Plain("fill", Facts(500_000, 200, 9000, 16_000), WHITE),
    "fill-pictures": Plain("fill", Facts(3000, shape=(1, 1, 8, 8)), data="pictures"),
    "fill-sounds": Plain("fill", Facts(3000, 16_000, 80_000, rate=8000), data="speakers"),
    "classify": Plain("classify", Facts(900, 20, 90, 3000, labels=MOODS), WHITE),
    "classify-large": Plain("classify", Facts(300_000, 200, 9000, 8192, labels=TEN), WHITE),
    "classify-decoder": Plain(
        "classify", Facts(900, 20, 90, 3000, labels=MOODS), {**WHITE, "model.family": "decoder"}
    ),
    "tag": Plain("tag", Facts(900, 20, 90, 3000, labels=SPANS), WHITE),
    "tag-large": Plain("tag", Facts(200_000, 30, 200, 8192, labels=TEN),
                       {**WHITE, "tag.crf": True}),
    "embed": Plain("embed", Facts(900, 20, 90, 3000), WHITE),
    "embed-large": Plain(
        "embed", Facts(400_000, 30, 200, 8192, pairs=True), {"data.pairs": ["a.tsv"]}
    ),
    "see": Plain("see", Facts(900, labels=TEN, shape=(1, 1, 8, 8)), data="pictures"),
    "see-large": Plain("see", Facts(400_000, labels=TEN, shape=(1, 1, 96, 96)),
                       data="huge pictures"),
    "see-middle": Plain("see", Facts(20_000, labels=TEN, shape=(1, 1, 32, 32)),
                        data="wide pictures"),
    "watch": Plain("watch", Facts(900, labels=MOODS, shape=(8, 1, 8, 8)), data="videos"),
    "caption": Plain("caption", Facts(900, vocab=300, shape=(1, 3, 8, 8), words=9), data="scenes"),
    "caption-videos": Plain(
        "caption", Facts(90_000, vocab=300, shape=(8, 1, 8, 8), words=9),
        {"caption.what": "videos"}, data="told videos",
    ),
    "transcribe": Plain("transcribe", Facts(900, 16_000, 80_000, 30, rate=8000, words=20),
                        data="speech"),
    "transcribe-large": Plain("transcribe", Facts(90_000, 48_000, 120_000, 30, rate=8000, words=20),
                              data="speech"),
    "transcribe-ctc": Plain("transcribe", Facts(900, 16_000, 80_000, 30, rate=8000, words=20),
                            {"transcribe.ctc": 1.0}, data="speech"),
    "identify": Plain("identify", Facts(900, 16_000, 80_000, labels=TEN, rate=8000),
                      data="speakers"),
}  # fmt: skip


def by_device(resolve: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """All settings on a CPU, and what is another on a GPU."""
    cpu, cuda = (plain(resolve(device)) for device in DEVICES)
    assert isinstance(cpu, dict)
    other = {key: cuda.get(key) for key in cpu | cuda if cuda.get(key) != cpu.get(key)}
    return {"cpu": cpu, "cuda, where it differs": other}


def recipes(root: Path) -> dict[str, Any]:
    assert set(RECIPES) == set(seams.recipe_names()), "a recipe without facts, or without a file"
    found = {}
    with chdir(root):
        for name, facts in RECIPES.items():
            given: dict[str, Any] = {}
            if name in BEGIN:
                key, other = BEGIN[name]
                given[key] = seams.untrained_run(other, RECIPES[other], Path(f"{other}-run"))
            found[name] = by_device(
                lambda device, name=name, given=given, facts=facts: seams.resolved(
                    name, given, facts, device
                )
            )
    return found


def plain_commands(root: Path) -> dict[str, Any]:
    found = {}
    with chdir(root):
        for name, one in PLAIN.items():
            given = {"task": one.task, **one.asked, **(WRITERS[one.data]() if one.data else {})}
            found[name] = by_device(
                lambda device, given=given, facts=one.facts: seams.resolved(
                    None, given, facts, device
                )
            )
    return found


MAKERS: dict[str, Callable[[Path], Any]] = {
    "recipes": recipes,
    "plain-commands": plain_commands,
}
