"""A small corpus of two languages, and files made of pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import pytest

WHO = [("Der Hund", "The dog"), ("Ein Mädchen", "A girl"), ("Unser Nachbar", "Our neighbour"),
       ("Die Lehrerin", "The teacher"), ("Jeder Fischer", "Every fisherman")]  # fmt: skip
DOES = [("sieht", "sees"), ("verkauft", "sells"), ("zeichnet", "draws"), ("sucht", "looks for")]
WHAT = [("einen großen Baum", "a big tree"), ("das alte Boot", "the old boat"),
        ("zwei grüne Äpfel", "two green apples"), ("nichts", "nothing"),
        ("den langen Brief über Köln", "the long letter about Cologne")]  # fmt: skip
WHEN = [("heute", "today"), ("am Morgen", "in the morning"), ("jeden Tag", "every day"),
        ("zwischen den Jahren", "between the years")]  # fmt: skip


def sentences() -> list[tuple[str, str]]:
    """400 pairs, German and English, all different."""
    return [
        (f"{a} {b} {d} {c}.", f"{x} {y} {z} {w}.")
        for (a, x), (b, y), (c, z), (d, w) in product(WHO, DOES, WHAT, WHEN)
    ]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Iterable[str]], str]:
    """Put lines into a file of that name, and give its path."""

    def lines_to(name: str, lines: Iterable[str]) -> str:
        path = tmp_path / name
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        return str(path)

    return lines_to
