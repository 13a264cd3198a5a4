"""Coloured shapes with smooth edges, drawn with numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, cos, floor, pi, sin

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Box = tuple[int, int, int, int]
"""x0, y0, x1, y1 in pixels; the last column and row are outside."""

COLOURS = {
    "red": (215, 45, 45),
    "green": (45, 165, 65),
    "blue": (45, 80, 225),
    "yellow": (240, 215, 50),
    "purple": (155, 60, 200),
    "orange": (240, 130, 30),
    "cyan": (60, 205, 215),
    "white": (235, 235, 235),
}
SHAPES = ("circle", "square", "triangle", "cross", "star", "diamond", "ring")
ROUND = ("circle", "ring")
"""What looks the same however it is turned."""

JITTER = 15.0
"""How far each channel of a colour strays from the table."""


@dataclass(frozen=True)
class Look:
    """What a thing is called."""

    shape: str
    colour: str

    def __str__(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def phrase(self) -> str:
        return f"{'an' if self.colour[0] in 'aeiou' else 'a'} {self}"


LOOKS = tuple(Look(shape, colour) for shape in SHAPES for colour in COLOURS)


@dataclass(frozen=True)
class Thing:
    """A shape at its place: its middle, the radius of the circle around it and its angle."""

    look: Look
    x: float
    y: float
    radius: float
    angle: float = 0.0
    """Radians, clockwise on the screen."""


def rgb_of(look: Look, rng: np.random.Generator) -> Floats:
    """The colour, a little off, as painters' colours are."""
    exact = np.array(COLOURS[look.colour], np.float32)
    return np.clip(exact + rng.uniform(-JITTER, JITTER, 3), 0, 255).astype(np.float32)


def background(size: int, rng: np.random.Generator) -> Floats:
    """Dark and nearly grey, brighter towards one side, with noise: Y X C from 0 to 255."""
    base_C = rng.uniform(20, 80) + rng.uniform(-12, 12, 3)
    slope_2 = rng.uniform(-20, 20, 2)
    at = np.linspace(-0.5, 0.5, size)
    slant_YX = slope_2[0] * at[:, None] + slope_2[1] * at[None, :]
    noise_YXC = rng.normal(0.0, 4.0, (size, size, 3))
    canvas_YXC = base_C + slant_YX[..., None] + noise_YXC
    return canvas_YXC.astype(np.float32)


def paint(canvas_YXC: Floats, thing: Thing, rgb_C: Floats) -> Box:
    """Draw over what is there. Returns the box around the pixels that are more than half the
    thing's."""
    height, width, _ = canvas_YXC.shape
    x0, x1 = _range(thing.x, thing.radius, width)
    y0, y1 = _range(thing.y, thing.radius, height)
    x_YX, y_YX = np.meshgrid(np.arange(x0, x1) + 0.5, np.arange(y0, y1) + 0.5)
    cover_YX = cover(thing, x_YX, y_YX)[..., None].astype(np.float32)
    part = canvas_YXC[y0:y1, x0:x1]
    canvas_YXC[y0:y1, x0:x1] = part * (1 - cover_YX) + rgb_C * cover_YX
    ys, xs, _ = np.nonzero(cover_YX > 0.5)
    if not len(xs):
        return (x0, y0, x0, y0)
    return (x0 + int(xs.min()), y0 + int(ys.min()), x0 + int(xs.max()) + 1, y0 + int(ys.max()) + 1)


def finished(canvas_YXC: Floats) -> NDArray[np.uint8]:
    return np.clip(np.rint(canvas_YXC), 0, 255).astype(np.uint8)


def cover(thing: Thing, x_YX: NDArray[np.float64], y_YX: NDArray[np.float64]) -> Floats:
    """The share of each pixel that the thing covers, from the distance of its middle to the
    outline."""
    x, y = x_YX - thing.x, y_YX - thing.y
    c, s = cos(thing.angle), sin(thing.angle)
    return np.clip(0.5 - _distance(thing, c * x + s * y, c * y - s * x), 0.0, 1.0)


def _distance(
    thing: Thing, x_YX: NDArray[np.float64], y_YX: NDArray[np.float64]
) -> NDArray[np.float64]:
    """To the outline, negative inside."""
    radius = thing.radius
    if thing.look.shape == "circle":
        return np.hypot(x_YX, y_YX) - radius
    if thing.look.shape == "ring":
        return np.abs(np.hypot(x_YX, y_YX) - 0.8 * radius) - 0.2 * radius
    return _to_polygon(x_YX, y_YX, radius * OUTLINES[thing.look.shape])


def _to_polygon(
    x_YX: NDArray[np.float64], y_YX: NDArray[np.float64], corners_E2: NDArray[np.float64]
) -> NDArray[np.float64]:
    x, y = x_YX[..., None], y_YX[..., None]
    (ax, ay), (bx, by) = corners_E2.T, np.roll(corners_E2, -1, axis=0).T
    ex, ey = bx - ax, by - ay
    share = np.clip(((x - ax) * ex + (y - ay) * ey) / (ex**2 + ey**2), 0.0, 1.0)
    nearest = np.hypot(x - ax - share * ex, y - ay - share * ey).min(-1)
    # Inside if a ray to the right crosses the outline an odd number of times.
    level = (ay > y) != (by > y)
    slope = np.where(ey == 0, 1.0, ey)
    crossed = level & (x < ax + (y - ay) * ex / slope)
    inside = crossed.sum(-1) % 2 == 1
    return np.where(inside, -nearest, nearest)


def _regular(n: int, inner: float | None = None) -> NDArray[np.float64]:
    """Corners on the unit circle, the first on top; `inner`: between them dents at this radius."""
    n_corners = n if inner is None else 2 * n
    angles = np.arange(n_corners) * (2 * pi / n_corners) - pi / 2
    radii = np.ones(n_corners)
    if inner is not None:
        radii[1::2] = inner
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], -1)


def _cross(arm: float = 0.33) -> NDArray[np.float64]:
    quarter = np.array([(arm, -arm), (arm, -1.0), (-arm, -1.0)])
    turned = [quarter @ np.array([(cos(a), sin(a)), (-sin(a), cos(a))])
              for a in (0.0, -pi / 2, -pi, -3 * pi / 2)]  # fmt: skip
    return np.concatenate(turned)


OUTLINES: dict[str, NDArray[np.float64]] = {
    "square": 0.8 * np.array([(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]),
    "triangle": 1.1 * _regular(3),
    "cross": _cross(),
    "star": 1.1 * _regular(5, 0.42),
    # Slim, so that a turned square is never one.
    "diamond": np.array([(0.0, -1.05), (0.6, 0.0), (0.0, 1.05), (-0.6, 0.0)]),
}
REACH = max(float(np.hypot(*corners.T).max()) for corners in OUTLINES.values())
"""The farthest corner of any outline, in radii."""


def _range(middle: float, radius: float, size: int) -> tuple[int, int]:
    reach = REACH * radius + 1
    first, last = max(0, floor(middle - reach)), min(size, ceil(middle + reach))
    return min(first, size), max(last, 0)
