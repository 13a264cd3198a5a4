"""Short videos of one shape that does something, sometimes beside one that does not.

python examples/make_moving.py --out moving
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import pi, sin
from pathlib import Path
from typing import Any

import numpy as np
from made.drawing import (
    COLOURS,
    LOOKS,
    REACH,
    ROUND,
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
from make_shapes import named_boxes, room_for
from numpy.typing import NDArray

from headway.errors import ConfigError

ACTIONS = (
    "moves left",
    "moves right",
    "moves up",
    "moves down",
    "grows",
    "shrinks",
    "turns",
    "blinks",
    "bounces",
)
WAYS = {"moves left": (-1, 0), "moves right": (1, 0), "moves up": (0, -1), "moves down": (0, 1)}
HELD_SHARE = 0.12
"""Of the combinations of a look and an action, those that training never shows."""

SPLITS = ("train", "valid", "test", "test-unseen")
VIDEOS = "videos.npy"


@dataclass(frozen=True, kw_only=True)
class MovingSettings:
    n: int = 10_000
    valid: int = 1000
    test: int = 1000
    """Videos in each of the test sets."""

    size: int = 32
    """Rows and columns."""

    frames: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(n=self.n, valid=self.valid, test=self.test)
        check_size(self.size)
        if not 4 <= self.frames <= 64:
            raise ConfigError(f"frames={self.frames} must be from 4 to 64.")


@dataclass(frozen=True)
class Plot:
    look: Look
    action: str
    still: Look | None = None

    @property
    def looks(self) -> tuple[Look, ...]:
        return (self.look,) if self.still is None else (self.look, self.still)

    @property
    def text(self) -> str:
        beside = "" if self.still is None else f" beside {self.still.phrase}"
        return f"{self.look.phrase} {self.action}{beside}"


def possible(look: Look, action: str) -> bool:
    """What is round turns unseen."""
    return action != "turns" or look.shape not in ROUND


def held_combinations(seed: int) -> frozenset[tuple[Look, str]]:
    """What training never shows: the same share of every action."""
    rng = np.random.default_rng((seed, 1))
    chosen = []
    for action in ACTIONS:
        looks = [look for look in LOOKS if possible(look, action)]
        order = rng.permutation(len(looks))[: round(HELD_SHARE * len(looks))]
        chosen += [(looks[i], action) for i in order]
    return frozenset(chosen)


def make_moving(out: Path, settings: MovingSettings) -> bool:
    """False: the same was there already."""
    held = held_combinations(settings.seed)
    facts = {
        "kind": "moving",
        **vars(settings),
        "unseen": sorted(f"{look} {action}" for look, action in held),
    }
    return make_folder(out, facts, lambda folder: _write(folder, settings, held))


def _write(folder: Path, settings: MovingSettings, held: frozenset[tuple[Look, str]]) -> None:
    counts = [settings.n, settings.valid, settings.test, settings.test]
    shape = (sum(counts), settings.frames, settings.size, settings.size, 3)
    with new_array(folder / VIDEOS, shape, np.uint8) as videos:
        first = 0
        for split, count in zip(SPLITS, counts, strict=True):
            rows = _rows(videos[first : first + count], first, split, settings, held)
            write_lines(folder / f"{split}.jsonl", rows)
            first += count


def _rows(
    videos: NDArray[np.uint8],
    first: int,
    split: str,
    settings: MovingSettings,
    held: frozenset[tuple[Look, str]],
) -> Iterator[dict[str, Any]]:
    for number in range(len(videos)):
        rng = np.random.default_rng((settings.seed, 2 + SPLITS.index(split), number))
        plot = draw_plot(rng)
        while ((plot.look, plot.action) in held) != (split == "test-unseen"):
            plot = draw_plot(rng)
        videos[number], boxes = video_of(plot, settings, rng)
        around = [_around(frames) for frames in boxes]
        objects = named_boxes(plot.text, plot.looks, around)
        for thing, frames in zip(objects, boxes, strict=True):
            thing["boxes"] = [None if box is None else list(box) for box in frames]
        yield {
            "path": VIDEOS,
            "index": first + number,
            "text": plot.text,
            "label": plot.action,
            "objects": objects,
        }


def draw_plot(rng: np.random.Generator) -> Plot:
    action = ACTIONS[rng.integers(len(ACTIONS))]
    shapes = [s for s in SHAPES if possible(Look(s, "red"), action)]
    mine, other = (str(colour) for colour in rng.permutation(list(COLOURS))[:2])
    look = Look(shapes[rng.integers(len(shapes))], mine)
    still = Look(SHAPES[rng.integers(len(SHAPES))], other) if rng.random() < 0.5 else None
    return Plot(look, action, still)


def video_of(
    plot: Plot, settings: MovingSettings, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], list[list[Box | None]]]:
    """T Y X C, and the boxes of each thing in every frame; None where it is out of sight."""
    things, still = _placed(plot, settings, rng)
    canvas_YXC = background(settings.size, rng)
    rgb = [rgb_of(look, rng) for look in plot.looks]
    boxes: list[list[Box | None]] = [[] for _ in plot.looks]
    if still is not None:
        boxes[1] = [paint(canvas_YXC, still, rgb[1])] * settings.frames
    frames = []
    for thing in things:
        frame_YXC = canvas_YXC.copy()
        boxes[0].append(None if thing is None else paint(frame_YXC, thing, rgb[0]))
        frames.append(finished(frame_YXC))
    return np.stack(frames), boxes


def _placed(
    plot: Plot, settings: MovingSettings, rng: np.random.Generator
) -> tuple[list[Thing | None], Thing | None]:
    """Tried until all is in sight from the first frame to the last, and nothing overlaps."""
    size = settings.size
    while True:
        course = _course(plot, size, settings.frames, rng)
        shown = [thing for thing in course if thing is not None]
        room = room_for(shown, size)
        if room is None:
            continue
        dx, dy = rng.uniform(room[0], room[2]), rng.uniform(room[1], room[3])
        moved = [None if t is None else replace(t, x=t.x + dx, y=t.y + dy) for t in course]
        if plot.still is None:
            return moved, None
        radius = float(size * rng.uniform(0.11, 0.14))
        low, high = REACH * radius, size - REACH * radius
        x, y = rng.uniform(low, high, 2).tolist()
        still = Thing(plot.still, x, y, radius, rng.uniform(-0.15, 0.15))
        if all(_apart(still, thing) for thing in moved if thing is not None):
            return moved, still


def _course(plot: Plot, size: int, frames: int, rng: np.random.Generator) -> list[Thing | None]:
    """The thing in each frame, from the middle of nowhere; None: out of sight."""
    at = np.linspace(0.0, 1.0, frames)
    start = Thing(plot.look, 0.0, 0.0, size * rng.uniform(0.14, 0.18), rng.uniform(-0.15, 0.15))
    if plot.action in WAYS:
        right, down = WAYS[plot.action]
        far, aside = size * rng.uniform(0.35, 0.55), size * rng.uniform(-0.04, 0.04)
        dx, dy = right * far + abs(down) * aside, down * far + abs(right) * aside
        return [replace(start, x=dx * t, y=dy * t) for t in at]
    if plot.action == "bounces":
        high, times = size * rng.uniform(0.25, 0.4), rng.uniform(1.5, 2.5)
        return [replace(start, y=-high * abs(sin(pi * times * t))) for t in at]
    if plot.action == "turns":
        # Less than half the way to where the shape looks the same, or it would seem to stand.
        angle = rng.choice((-1, 1)) * rng.uniform(0.18, 0.28)
        return [replace(start, angle=start.angle + angle * i) for i in range(frames)]
    if plot.action == "blinks":
        phase = int(rng.integers(4))
        return [start if (i + phase) % 4 < 2 else None for i in range(frames)]
    small, large = size * rng.uniform(0.1, 0.13), size * rng.uniform(0.23, 0.28)
    first, last = (small, large) if plot.action == "grows" else (large, small)
    return [replace(start, radius=first + (last - first) * t) for t in at]


def _apart(a: Thing, b: Thing) -> bool:
    return (a.x - b.x) ** 2 + (a.y - b.y) ** 2 > (REACH * (a.radius + b.radius)) ** 2


def _around(boxes: list[Box | None]) -> Box:
    """The box around a thing's whole course."""
    x0, y0, x1, y1 = zip(*[box for box in boxes if box is not None], strict=True)
    return (min(x0), min(y0), max(x1), max(y1))


if __name__ == "__main__":
    assert __doc__
    program(__doc__, MovingSettings, make_moving)
