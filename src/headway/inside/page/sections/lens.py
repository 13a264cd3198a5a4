"""What each layer would say, the likeliest five of it, and from where on the answer stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from headway.inside.capture.streams import shown
from headway.inside.measure.lens import Lens, lens
from headway.inside.measure.tuned_lens import Tuned
from headway.inside.page.sections import Section
from headway.inside.page.sections.overview import BLANK
from headway.tasks.opened import Opened
from headway.web.pack import Array

if TYPE_CHECKING:
    from headway.inside.capture.trace import Trace
    from headway.inside.page.look import Looked


def section(looked: Looked) -> Section | None:
    run, trace = looked.run, looked.trace
    if run is None or not trace.states or not trace.reading.outputs:
        return None
    if run.spec.answers == "number":  # which has no rivals, and points nowhere
        return None
    plain = lens(run, trace)
    found: Section = {
        "how": plain.how,
        "outputs": [_visible(output.name) for output in plain.outputs],
        "reads": _reads(trace),
        "layers": list(plain.layers),
        "n_given": trace.reading.n_given,
    }
    if plain.is_vector:
        if "error" in trace.meta:
            found["what"] = "It rebuilds what is hidden. 1: after this layer it would be the same."
        return {**found, "cosine": Array(plain.chosen_LR.mean(1), "f32"), "words": [], "views": []}
    tuned = None if looked.tuned is None else Tuned.load(looked.tuned)
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


def names(run: Opened, ids: list[int]) -> list[str]:
    """Of words or of labels, whatever the run's head scores."""
    if not ids:  # vectors and what is rebuilt have no names, and some runs no words
        return []
    if run.spec.labelled:
        labels = run.settings.labels
        return [labels[i] if i < len(labels) else str(i) for i in ids]
    target = run.vocab.target
    return [BLANK if i >= target.vocab_size else target.tokens([i])[0] for i in ids]


def _visible(piece: str) -> str:
    """A cell must not look empty because its word is the end of a line."""
    return shown(piece).replace("\n", "⏎")


def _reads(trace: Trace) -> list[str]:
    """The token that stands in the row of each output; nothing where all of the text is read."""
    pieces = trace.reading.last.pieces
    rows = [output.row for output in trace.reading.outputs]
    return ["" if row is None else _visible(pieces[row]) for row in rows]


def _view(name: str, each: Lens, ids: list[int]) -> Section:
    place = {id: number for number, id in enumerate(ids)}
    top_LRK: Tensor = each.top_LRK.clone().apply_(lambda id: place[int(id)])
    return {
        "name": name,
        "top": Array(top_LRK, "u16" if len(ids) < 65536 else "i32"),
        "probability": Array(each.probability_LRK, "f32"),
        "rank": Array(each.rank_LR, "i32"),
        "chosen": Array(each.chosen_LR, "f32"),
        "kl": Array(each.kl_LR, "f32"),
        "decided": list(each.decided),
    }
