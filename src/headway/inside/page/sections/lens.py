"""Page section for the logit lens: the most probable predictions at each layer, and the layer from
which the output no longer changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from headway.inside.capture.streams import display_piece
from headway.inside.measure.lens import LogitLens, TunedLens, lens
from headway.inside.page.sections import PageSection
from headway.inside.page.sections.overview import BLANK
from headway.tasks.loaded_run import LoadedRun
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.capture.trace import Trace
    from headway.inside.page.look import LookInputs


def section(looked: LookInputs) -> PageSection | None:
    run, trace = looked.run, looked.trace
    if run is None or not trace.states or not trace.reading.outputs:
        return None
    if run.spec.is_regression:  # a number has no alternatives and no direction
        return None
    plain = lens(run, trace)
    found: PageSection = {
        "how": plain.how,
        "outputs": [_visible(output.name) for output in plain.outputs],
        "reads": _reads(trace),
        "layers": list(plain.layers),
        "n_given": trace.reading.n_given,
    }
    if plain.is_vector:
        if "error" in trace.meta:
            found["what"] = (
                "This model reconstructs hidden parts. 1 means that the reconstruction read after "
                "this layer is the same."
            )
        return {
            **found,
            "cosine": PackedArray(plain.chosen_LR.mean(1), "f32"),
            "words": [],
            "views": [],
        }
    tuned = None if looked.tuned is None else TunedLens.load(looked.tuned)
    lenses = {"plain": plain} | ({} if tuned is None else {"tuned": lens(run, trace, tuned)})
    ids = sorted({int(i) for each in lenses.values() for i in each.top_LRK.unique()})
    found["words"] = [_visible(name) for name in names(run, ids)]
    found["views"] = [_view(name, each, ids) for name, each in lenses.items()]
    if tuned is not None:
        found["fitted"] = {
            "plain": tuned.plain_L.tolist(),
            "tuned": tuned.tuned_L.tolist(),
            "lines": tuned.n_lines,
            "held_out": tuned.n_held_out,
        }
    return found


def names(run: LoadedRun, ids: list[int]) -> list[str]:
    """Return the names of the words or labels that the output head scores."""
    if not ids:  # vectors and reconstructions have no names
        return []
    if run.spec.labelled:
        labels = run.settings.labels
        return [labels[i] if i < len(labels) else str(i) for i in ids]
    target = run.vocab.target
    return [BLANK if i >= target.vocab_size else target.tokens([i])[0] for i in ids]


def _visible(piece: str) -> str:
    """Replace line breaks by visible signs, so that a table cell does not look empty."""
    return display_piece(piece).replace("\n", "⏎")


def _reads(trace: Trace) -> list[str]:
    """Return the input token at the position of each output; empty if an output is read from the
    whole text."""
    pieces = trace.reading.last.pieces
    rows = [output.row for output in trace.reading.outputs]
    return ["" if row is None else _visible(pieces[row]) for row in rows]


def _view(name: str, each: LogitLens, ids: list[int]) -> PageSection:
    place = {id: number for number, id in enumerate(ids)}
    top_LRK: Tensor = each.top_LRK.clone().apply_(lambda id: place[int(id)])
    return {
        "name": name,
        "top": PackedArray(top_LRK, "u16" if len(ids) < 65536 else "i32"),
        "probability": PackedArray(each.probability_LRK, "f32"),
        "rank": PackedArray(each.rank_LR, "i32"),
        "chosen": PackedArray(each.chosen_LR, "f32"),
        "kl": PackedArray(each.kl_LR, "f32"),
        "decided": list(each.decided),
    }
