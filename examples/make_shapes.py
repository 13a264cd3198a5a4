"""Scenes of one to three shapes with a caption and a box for each.

    python examples/make_shapes.py --out shapes

The caption follows from the image: the largest thing is named first and the others are placed
from it (of `inside`, the one that is inside comes first); of two relations, that which stands first
in RELATIONS. So a model that sees everything can be right every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path
from typing import Any

import numpy as np
from made.drawing import (
    COLOURS,
    LOOKS,
    REACH,
    SHAPES,
    Box,
    Look,
    Thing,
    background,
    finished,
    paint,
    rgb_of,
)
from made.folder import (
    check_counts,
    check_size,
    make_folder,
    new_array,
    program,
    write_lines,
)
from numpy.typing import NDArray

RELATIONS = ("left of", "right of", "above", "below", "inside")
DIRECTIONS = {"left of": (1, 0), "right of": (-1, 0), "above": (0, 1), "below": (0, -1)}
"""Where the other thing is, seen from the first one: x to the right, y down."""

HELD_SHARE = 0.12
"""Of the combinations of a look and a relation, those that training never shows."""

HELD_LOOKS = 4
"""Looks that training never shows, though it shows their shapes and their colours."""

SPLITS = ("train", "valid", "test", "test-unseen", "test-unseen-things")
IMAGES = "images.npy"


@dataclass(frozen=True, kw_only=True)
class ShapesSettings:
    n: int = 20_000
    valid: int = 1000
    test: int = 1000
    """Scenes in each of the test sets."""

    size: int = 48
    """Rows and columns."""

    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(n=self.n, valid=self.valid, test=self.test)
        check_size(self.size)


@dataclass(frozen=True)
class Scene:
    """The first look's relations to the others."""

    looks: tuple[Look, ...]
    relations: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        others = zip(self.relations, self.looks[1:], strict=True)
        rest = " and ".join(f"{relation} {look.phrase}" for relation, look in others)
        return f"{self.looks[0].phrase} {rest}".strip()

    @property
    def combinations(self) -> list[tuple[Look, str]]:
        return [(self.looks[0], relation) for relation in self.relations]


@dataclass(frozen=True)
class Held:
    """What is kept from training."""

    looks: frozenset[Look]
    combinations: frozenset[tuple[Look, str]]

    @classmethod
    def of(cls, seed: int) -> Held:
        """Every relation lacks the same number of looks; the looks that are kept away altogether
        have different shapes and colours."""
        rng = np.random.default_rng((seed, 1))
        pairs = zip(rng.permutation(SHAPES), rng.permutation(list(COLOURS)), strict=False)
        looks = frozenset(Look(str(s), str(c)) for s, c in list(pairs)[:HELD_LOOKS])
        usual = [look for look in LOOKS if look not in looks]
        count = round(HELD_SHARE * len(usual))
        chosen = [
            (usual[i], relation)
            for relation in RELATIONS
            for i in rng.permutation(len(usual))[:count]
        ]
        return cls(looks, frozenset(chosen))

    def split_of(self, scene: Scene) -> str:
        if self.looks.intersection(scene.looks):
            return "test-unseen-things"
        if self.combinations.intersection(scene.combinations):
            return "test-unseen"
        return "train"


def make_shapes(out: Path, settings: ShapesSettings) -> bool:
    """False: the same was there already."""
    held = Held.of(settings.seed)
    facts = {
        "kind": "shapes",
        **vars(settings),
        "unseen_things": sorted(str(look) for look in held.looks),
        "unseen": sorted(f"{look} {relation}" for look, relation in held.combinations),
    }
    return make_folder(out, facts, lambda folder: _write(folder, settings, held))


def _write(folder: Path, settings: ShapesSettings, held: Held) -> None:
    counts = [settings.n, settings.valid, *[settings.test] * (len(SPLITS) - 2)]
    shape = (sum(counts), settings.size, settings.size, 3)
    with new_array(folder / IMAGES, shape, np.uint8) as images:
        first = 0
        for split, count in zip(SPLITS, counts, strict=True):
            rows = _rows(images[first : first + count], first, split, settings, held)
            write_lines(folder / f"{split}.jsonl", rows)
            first += count


def _rows(
    images: NDArray[np.uint8], first: int, split: str, settings: ShapesSettings, held: Held
) -> Iterator[dict[str, Any]]:
    wanted = split if split.startswith("test-") else "train"
    for number in range(len(images)):
        rng = np.random.default_rng((settings.seed, 2 + SPLITS.index(split), number))
        scene = draw_scene(rng)
        while held.split_of(scene) != wanted:
            scene = draw_scene(rng)
        images[number], boxes = image_of(scene, settings.size, rng)
        yield {
            "path": IMAGES,
            "index": first + number,
            "text": scene.text,
            "label": str(scene.looks[0]),
            "objects": named_boxes(scene.text, scene.looks, boxes),
        }


def named_boxes(text: str, looks: tuple[Look, ...], boxes: list[Box]) -> list[dict[str, Any]]:
    """Each thing's name, which words of the text it is, counted from 0, and its box."""
    found: list[dict[str, Any]] = []
    at = 0
    for look, box in zip(looks, boxes, strict=True):
        at = text.index(str(look), at)
        word = text[:at].count(" ")
        found.append({"name": str(look), "words": [word, word + 1], "box": list(box)})
        at += len(str(look))
    return found


def draw_scene(rng: np.random.Generator) -> Scene:
    """What is to be seen, of all that can be."""
    n_things = int(rng.choice(3, p=(0.2, 0.5, 0.3))) + 1
    colours = rng.permutation(list(COLOURS))[:n_things]
    looks = tuple(Look(SHAPES[rng.integers(len(SHAPES))], str(colour)) for colour in colours)
    if n_things == 3:
        two = sorted(rng.permutation(len(DIRECTIONS))[:2])
        return Scene(looks, tuple(RELATIONS[i] for i in two))
    return Scene(looks, (RELATIONS[rng.integers(len(RELATIONS))],) if n_things == 2 else ())


def image_of(
    scene: Scene, size: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], list[Box]]:
    """Y X C, and the box of each thing in the order of the caption."""
    things = place(scene, size, rng)
    canvas_YXC = background(size, rng)
    boxes: list[Box] = [(0, 0, 0, 0)] * len(things)
    for number in sorted(range(len(things)), key=lambda i: -things[i].radius):
        boxes[number] = paint(canvas_YXC, things[number], rgb_of(scene.looks[number], rng))
    return finished(canvas_YXC), boxes


def place(scene: Scene, size: int, rng: np.random.Generator) -> list[Thing]:
    """A place for everything, so that the relations are plain to see; tried until all fits."""
    while True:
        if not scene.relations:
            things = [_thing(scene.looks[0], 0.0, 0.0, size * rng.uniform(0.11, 0.28), rng)]
        elif scene.relations[0] == "inside":
            things = _nested(scene, size, rng)
        else:
            things = _around(scene, size, rng)
        room = room_for(things, size)
        if room is not None and _apart(things, scene):
            x0, y0, x1, y1 = room
            dx, dy = rng.uniform(x0, x1), rng.uniform(y0, y1)
            return [replace(t, x=t.x + dx, y=t.y + dy) for t in things]


def room_for(things: Sequence[Thing], size: int) -> tuple[float, float, float, float] | None:
    """How far things that keep together may go, x0 y0 x1 y1, and still be seen whole."""
    reach = [REACH * t.radius for t in things]
    x0 = max(r - t.x for t, r in zip(things, reach, strict=True))
    y0 = max(r - t.y for t, r in zip(things, reach, strict=True))
    x1 = min(size - r - t.x for t, r in zip(things, reach, strict=True))
    y1 = min(size - r - t.y for t, r in zip(things, reach, strict=True))
    return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None


def _nested(scene: Scene, size: int, rng: np.random.Generator) -> list[Thing]:
    inner, outer = scene.looks
    dx, dy = rng.uniform(-0.02, 0.02, 2) * size
    return [
        _thing(inner, dx, dy, size * rng.uniform(0.1, 0.12), rng),
        _thing(outer, 0.0, 0.0, size * rng.uniform(0.32, 0.38), rng),
    ]


def _around(scene: Scene, size: int, rng: np.random.Generator) -> list[Thing]:
    """The large one in the middle, for now; the others where the relations say."""
    things = [_thing(scene.looks[0], 0.0, 0.0, size * rng.uniform(0.165, 0.2), rng)]
    for look, relation in zip(scene.looks[1:], scene.relations, strict=True):
        radius = size * rng.uniform(0.1, 0.125)
        away = things[0].radius + radius + size * rng.uniform(0.03, 0.2)
        aside = away * rng.uniform(-0.35, 0.35)
        right, down = DIRECTIONS[relation]
        x, y = (right * away, aside) if right else (aside, down * away)
        things.append(_thing(look, x, y, radius, rng))
    return things


def _thing(look: Look, x: float, y: float, radius: float, rng: np.random.Generator) -> Thing:
    return Thing(look, x, y, float(radius), float(rng.uniform(-0.15, 0.15)))


def _apart(things: list[Thing], scene: Scene) -> bool:
    if "inside" in scene.relations:
        return True
    return all(
        hypot(a.x - b.x, a.y - b.y) > REACH * (a.radius + b.radius)
        for i, a in enumerate(things)
        for b in things[:i]
    )


if __name__ == "__main__":
    assert __doc__
    program(__doc__, ShapesSettings, make_shapes)
