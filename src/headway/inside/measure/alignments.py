"""Word alignments from attribution maps, the Pharaoh format (`0-0 1-2`), and the alignment error
rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.decode.align import AlignmentLink, align_words, pharaoh
from headway.errors import DataError, UserError
from headway.inside.capture.streams import Reading
from headway.inside.measure.maps.map import Map, written_words

__all__ = ["AlignmentLink", "aer", "aligning_layer", "alignment", "pharaoh", "read_pharaoh"]


def alignment(map_: Map, reading: Reading) -> list[AlignmentLink]:
    """Align each output word with the source word whose tokens have the largest absolute weight for
    it.

    Return pairs of word indices (source, target). Special tokens are left out.
    """
    parts = map_.parts()
    if "source" not in parts:
        raise UserError(
            f"the map {map_.name} has no columns for a source, so no alignment can be "
            "derived from it."
        )
    source = reading.streams["source"].words
    columns = [place for place, word in enumerate(source) if word >= 0]
    written = written_words(reading)
    rows = [number for number, word in enumerate(written) if word >= 0]
    weights_RS = parts["source"].abs()[rows][:, columns]
    return align_words(weights_RS, [source[c] for c in columns], [written[r] for r in rows])


def aligning_layer(n_layers: int, truth: dict[str, Any] | None) -> tuple[int, str]:
    """Return the layer whose cross-attention, averaged over heads, aligns words best, with a
    sentence that explains the choice.

    It is the layer with the highest measured accuracy. Without measurements it is the second to
    last layer, because the last may already attend to the next word (Garg et al. 2019).
    """
    measured = (truth or {}).get("maps", {})
    right = {
        layer: float(measured[name]["p1"])
        for layer in range(n_layers)
        if (name := f"cross.{layer}.mean") in measured
    }
    if right:
        best = max(right, key=right.__getitem__)
        return best, f"layer {best + 1}, which aligns best in measurements"
    names = "the second-to-last layer" if n_layers > 1 else "the only layer"
    return max(0, n_layers - 2), f"{names} (the best layer was not measured)"


def read_pharaoh(line: str, where: str = "the alignment") -> list[AlignmentLink]:
    """Parse word alignments in the Pharaoh format, such as `0-0 1-2`. Return pairs of word indices
    (source, target), counted from 0."""
    pairs = []
    for entry in line.split():
        source, dash, target = entry.partition("-")
        if not (dash and source.isdecimal() and target.isdecimal()):
            raise DataError(
                f"{where}: {entry!r} is not a pair of word numbers. Write source-target, counted "
                "from 0, for example 0-2."
            )
        pairs.append((int(source), int(target)))
    return pairs


def aer(
    found: Iterable[AlignmentLink],
    sure: Iterable[AlignmentLink],
    possible: Iterable[AlignmentLink] = (),
) -> float:
    """Return the alignment error rate of Och and Ney (2003), from 0 (perfect) to 1 (all links
    wrong).

    Sure links also count as possible links. The rate is 0 if there are no sure links and no found
    ones.
    """
    links, certain = set(found), set(sure)
    allowed = certain | set(possible)
    total = len(links) + len(certain)
    return 1 - (len(links & certain) + len(links & allowed)) / total if total else 0.0
