"""Which word belongs to which: from any map to Pharaoh's `0-0 1-2` and back, and how far two
alignments differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.decode.align import Pair, align_words, pharaoh
from headway.errors import DataError, UserError
from headway.inside.capture.streams import Reading
from headway.inside.measure.maps.map import Map, written_words

__all__ = ["Pair", "aer", "aligning_layer", "alignment", "pharaoh", "read_pharaoh"]


def alignment(map_: Map, reading: Reading) -> list[Pair]:
    """For every word that was written the word of the source that its pieces weigh most, as
    (source, target); special tokens are no words. Signs of weights are left out."""
    parts = map_.parts()
    if "source" not in parts:
        raise UserError(
            f"the map {map_.name} has no columns for a source, so it gives no alignment."
        )
    source = reading.streams["source"].words
    columns = [place for place, word in enumerate(source) if word >= 0]
    written = written_words(reading)
    rows = [number for number, word in enumerate(written) if word >= 0]
    weights_RS = parts["source"].abs()[rows][:, columns]
    return align_words(weights_RS, [source[c] for c in columns], [written[r] for r in rows])


def aligning_layer(n_layers: int, truth: dict[str, Any] | None) -> tuple[int, str]:
    """The layer whose cross attention, as the mean over its heads, is looked at for what a word is
    about: the one that was right most often where that was measured. Elsewhere it is the last but
    one, since the last may look for the next word already (Garg et al. 2019). And which, in words.
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


def read_pharaoh(line: str, where: str = "the alignment") -> list[Pair]:
    """`0-0 1-2`: pairs of word numbers, source first, counted from 0."""
    pairs = []
    for entry in line.split():
        source, dash, target = entry.partition("-")
        if not (dash and source.isdecimal() and target.isdecimal()):
            raise DataError(f"{where} contains {entry!r}. Pairs look like 0-2: source-target.")
        pairs.append((int(source), int(target)))
    return pairs


def aer(found: Iterable[Pair], sure: Iterable[Pair], possible: Iterable[Pair] = ()) -> float:
    """The alignment error rate of Och and Ney (2003): 0 is perfect, 1 is all wrong.

    What is sure is possible, too. Nothing found where nothing is sure is no error.
    """
    links, certain = set(found), set(sure)
    allowed = certain | set(possible)
    total = len(links) + len(certain)
    return 1 - (len(links & certain) + len(links & allowed)) / total if total else 0.0
