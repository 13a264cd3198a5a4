"""Write chemical reactions with numbered atoms, put together by the rules of the textbook, so that
nobody and no model had to guess which atom is which.

    python examples/reactions.py reactions.smi
    headway truth RUN --reactions reactions.smi

Parts of molecules are written with a number for each atom; atoms that cannot be told apart have the
same number. A part is joined by its last atom (FIRST) or by its first one (SECOND).
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

FIRST = [
    "[CH3:1][CH2:2][CH2:3]",
    "[CH3:1][CH:2]([CH3:1])[CH2:3]",
    "[CH3:1][O:2][CH2:3][CH2:4]",
    "[CH3:1][O:2][c:3]1[cH:4][cH:5][c:6]([cH:5][cH:4]1)[CH2:7]",
    "[F:1][c:2]1[cH:3][cH:4][cH:5][cH:6][c:7]1[CH2:8]",
    "[N:1]#[C:2][CH2:3][CH2:4]",
    "[CH3:1][C:2](=[O:3])[CH2:4][CH2:5]",
    "[Cl:1][c:2]1[cH:3][n:4][cH:5][cH:6][c:7]1[CH2:8]",
]
SECOND = [
    "[CH2:1][CH2:2][CH2:3][CH3:4]",
    "[CH2:1][CH2:2][O:3][CH2:4][CH3:5]",
    "[CH2:1][c:2]1[cH:3][cH:4][c:5]([Cl:6])[cH:4][cH:3]1",
    "[CH2:1][CH2:2][c:3]1[cH:4][cH:5][cH:6][n:7][cH:8]1",
    "[CH2:1][CH2:2][C:3]#[N:4]",
    "[CH2:1][c:2]1[cH:3][cH:4][cH:5][s:6]1",
    "[CH2:1][CH:2]1[CH2:3][CH2:4][O:5][CH2:4][CH2:3]1",
]
RULES = [
    ("{a}Br", "[OH:90]{b}", "{a}[O:90]{b}"),  # Williamson's ether
    ("{a}[C:91](=[O:92])O", "[OH:90]{b}", "{a}[C:91](=[O:92])[O:90]{b}"),  # Fischer's ester
    ("{a}[C:91](=[O:92])O", "[NH2:90]{b}", "{a}[C:91](=[O:92])[NH:90]{b}"),  # an amide
    ("{a}[C:91](=[O:92])Cl", "[NH2:90]{b}", "{a}[C:91](=[O:92])[NH:90]{b}"),  # from a chloride
    ("{a}Br", "[SH:90]{b}", "{a}[S:90]{b}"),  # a thioether
]
OTHERS = ["", "CN(C)C=O", "C1CCOC1", "ClCCl", "CCN(CC)CC", "O"]
"""Solvents and bases that stand by."""


def main(path: str = "reactions.smi", n: int = 60) -> None:
    picks, made = random.Random(1), set[str]()
    while len(made) < n:
        one, other, product = picks.choice(RULES)
        parts = {"a": picks.choice(FIRST), "b": _moved(picks.choice(SECOND), 30)}
        before = [one.format(**parts), other.format(**parts), picks.choice(OTHERS)]
        picks.shuffle(before)
        made.add(".".join(filter(None, before)) + ">>" + product.format(**parts))
    Path(path).write_text("\n".join(sorted(made)) + "\n", encoding="utf-8")
    print(f"{path}: {n} reactions")


def _moved(part: str, by: int) -> str:
    """Numbers of its own, apart from those of the other part."""
    return re.sub(r":(\d+)\]", lambda found: f":{int(found[1]) + by}]", part)


if __name__ == "__main__":
    main(*sys.argv[1:])
