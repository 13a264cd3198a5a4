"""Ground truth of chemical reactions: which atom of the reactants each product atom comes from.

Files have one reaction per line in SMILES with atom numbers, such as `[CH3:1][OH:2].Cl>>[CH3:1]Cl`.
If several reactant atoms share a number they are equivalent, and any of them is right.
"""

from __future__ import annotations

import re
from pathlib import Path

from headway.errors import DataError, UserError
from headway.inside.capture.reading import read
from headway.inside.measure.truth.case import Case, GroundTruthLink
from headway.tasks.loaded_run import LoadedRun
from headway.tokens.vocabtxt import SMILES_CUTS

ARROW = ">>"
PIECE = re.compile(SMILES_CUTS)
ATOM = re.compile(r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\*")
NUMBERED = re.compile(r"\[(?P<atom>[^\]:]+)(?::(?P<number>\d+))?\]")
PLAIN = re.compile(r"(?P<symbol>B|C|N|O|S|P|F|Cl|Br|I|b|c|n|o|s|p)(?P<hydrogens>H\d?)?")
"""Atoms without brackets, except for a hydrogen on an aromatic nitrogen, which must be written."""


def atom_cases(run: LoadedRun, path: Path) -> list[Case]:
    """Make a case for each reaction of a file; the atoms before the arrow are the candidates."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}.") from error
    cases = []
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if fields and not line.startswith("#"):
            cases.append(atom_case(run, fields[0], f"line {number} of {path}"))
    return [case for case in cases if case is not None]


def atom_case(run: LoadedRun, reaction: str, where: str = "the reaction") -> Case | None:
    """Make a case of a reaction; None if the product shares no number with an atom before the
    arrow."""
    pieces = PIECE.findall(reaction)
    if pieces.count(ARROW) != 1 or "".join(pieces) != reaction:
        raise DataError(
            f"{where} is not a reaction in SMILES notation such as CCO.CBr>>CCOC: {reaction!r}."
        )
    plain = [strip_number(piece) for piece in pieces]
    reading = read(run, "".join(text for text, _ in plain))
    stream = reading.last
    places = [place for place, is_special in enumerate(stream.special) if not is_special]
    if len(places) != len(plain) or not reading.fills_masks:
        raise UserError(
            f"{run.folder.name} cannot be measured on SMILES reactions. Use a run of the "
            "task fill whose tokenizer makes one token per atom."
        )
    arrow = pieces.index(ARROW)
    atoms = [n for n, (text, _) in enumerate(plain) if ATOM.fullmatch(text)]
    before = [n for n in atoms if n < arrow]
    rows = {output.row: number for number, output in enumerate(reading.outputs)}
    links = []
    for n in atoms:
        number = plain[n][1]
        right = frozenset(i for i, m in enumerate(before) if plain[m][1] == number)
        if n > arrow and number is not None and right:
            sure = right if len(right) == 1 else frozenset()
            links.append(GroundTruthLink((rows[places[n]],), right, sure))
    columns = tuple((places[n],) for n in before)
    return Case(reading, "text", columns, tuple(links), "atoms") if links else None


def strip_number(piece: str) -> tuple[str, int | None]:
    """Split a bracket atom and its number: `[CH3:7]` is C and 7. Atoms with a charge or chirality
    keep their brackets."""
    found = NUMBERED.fullmatch(piece)
    if found is None:
        return piece, None
    number = None if found["number"] is None else int(found["number"])
    plain = PLAIN.fullmatch(found["atom"])
    bare = plain is not None and not (plain["symbol"] == "n" and plain["hydrogens"])
    if number is not None and plain is not None and bare:
        return plain["symbol"], number
    return f"[{found['atom']}]", number
