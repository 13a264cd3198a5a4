"""Overview section: the size of the model, its output, and warnings about its attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.ngrams import ngram_table
from headway.inside.capture.streams import display_piece
from headway.inside.page.sections import PageSection
from headway.settings.model import ImageEncoderSettings
from headway.tasks.loaded_run import LoadedRun

if TYPE_CHECKING:
    from headway.inside.capture.streams import Reading
    from headway.inside.page.look import LookInputs

SINK = 0.6
"""Mean attention weight on a single token above which a head counts as an attention sink."""

EVEN = 0.98
"""Threshold of the entropy relative to that of uniform attention. Above it, attention counts as
uniform."""

SILENT = 0.05
"""Norm of a head's output, relative to the mean of its layer, below which the head counts as
dead."""

CHOICES = 5
"""Number of alternatives listed for each output, which fit on one line."""

BLANK = "∅"
"""Symbol that represents the CTC blank in a page."""

FEWEST = 6
"""Minimum number of visible tokens for which attention weights are informative. Over fewer tokens,
some weight is always large."""


def section(looked: LookInputs) -> PageSection | None:
    return {
        "numbers": _numbers(looked),
        "answer": _answer(looked),
        "warnings": [*_answer_warnings(looked), *_head_warnings(looked)],
    }


def _numbers(looked: LookInputs) -> list[PageSection]:
    """Return key figures of the model and the run; fewer if only a trace is available."""
    trace, run = looked.trace, looked.run
    heads = sum(layer.shape[0] for layers in trace.attention.values() for layer in layers)
    body = "transformer" if run is None else run.shape.body
    made_of = "attention and feed-forward" if body == "transformer" else body
    found: list[tuple[str, int | str, str]] = [
        ("layers", " + ".join(str(len(states) - 1) for states in trace.states.values()) or
         str(max(map(len, trace.attention.values()), default=0)), f"of {made_of}"),
    ]  # fmt: skip
    if heads:
        found.append(("heads", heads, "attention heads in all layers"))
    if run is not None:
        parameters = sum(parameter.numel() for parameter in run.model.parameters())
        widths = dict.fromkeys(x.shape[-1] for of in trace.hidden.values() for x in of)
        neurons = tuple(widths) or run.shape.each("d_ff")
        found.insert(0, ("parameters", parameters, "trained weights"))
        found += [
            ("width", run.shape.d_model, "dimensions of a hidden state"),
            (
                "feed-forward" if body == "transformer" else "neurons",
                neurons[0] if len(neurons) == 1 else " + ".join(map(str, neurons)),
                "neurons per layer",
            ),
            _knows(run, trace.reading),
        ]
        if (table := ngram_table(run.model)) is not None:
            share = f"{float(table.share):.0%}"
            found.append(("n-grams", share, "share of the prediction; the layers have the rest"))
    return [{"name": name, "value": value, "note": note} for name, value, note in found]


def _is_number(run: LoadedRun | None) -> bool:
    return run is not None and run.spec.is_regression


def _knows(run: LoadedRun, reading: Reading) -> tuple[str, int, str]:
    if _is_number(run):
        return "number", 1, "predicted value"
    if reading.labelled and reading.media is not None:
        return "labels", len(run.settings.labels), "classes"
    if run.words is None:
        return "vector", run.shape.d_model, "dimensions of the output"
    assert not isinstance(run.shape, ImageEncoderSettings)  # it has no vocabulary
    return "vocabulary", run.shape.vocab_size, "known tokens"


def _answer(looked: LookInputs) -> PageSection:
    """Return the probability of each output, with its most probable alternatives."""
    trace = looked.trace
    outputs = trace.reading.outputs
    if _is_number(looked.run):
        return {"kind": "number", "size": 1, "said": outputs[0].name}
    if "error" in trace.meta:
        rows = (
            f"{len(outputs):,} of {len(trace.reading.last):,} positions were hidden and "
            "reconstructed"
        )
        error = f"mean squared error {trace.meta['error']:.3g} (predicting the mean: 1)"
        return {"kind": "rebuilt", "size": len(outputs), "said": f"{rows}: {error}."}
    if trace.reading.is_vector or trace.scores_RC is None:
        vector = trace.scores_RC
        length = None if vector is None else float(vector.float().norm())
        return {
            "kind": "vector",
            "size": 0 if vector is None else vector.shape[-1],
            "length": length,
        }
    several = looked.run is not None and looked.run.spec.is_multi_label
    scores_RC = trace.scores_RC.float()
    probs_RC = scores_RC.sigmoid() if several else scores_RC.softmax(-1)
    best = probs_RC.topk(min(CHOICES, probs_RC.shape[-1]), dim=-1)
    items = []
    for row, output in enumerate(outputs):
        rivals = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
        items.append(
            {
                "name": display_piece(output.name),
                "row": output.row,
                "p": float(probs_RC[row, output.id]),
                "choices": [[_name(looked, id), p] for id, p in rivals],
            }
        )
    # Number of outputs that were given in the prompt and not generated.
    given = max(0, trace.reading.n_given - 1) if trace.reading.continues else 0
    return {
        "kind": trace.reading.answers,
        "writes": trace.reading.writes,
        "items": items,
        "given": given,
    }


def _name(looked: LookInputs, id: int) -> str:
    labels = looked.trace.meta.get("labels") or []
    if labels and looked.trace.reading.labelled:
        return str(labels[id])
    if looked.run is None:
        return str(id)
    target = looked.run.vocab.target
    return BLANK if id >= target.vocab_size else display_piece(target.tokens([id])[0])


def _answer_warnings(looked: LookInputs) -> list[PageSection]:
    reading = looked.trace.reading
    found = []
    if not reading.finished and "target" in reading.streams:
        found.append(
            _warning("The output has no end token: it was cut at a limit, or given without one.")
        )
    if looked.run is not None and reading.media is None:
        sides = {"target": looked.run.vocab.target}
        unknown = sum(
            id == sides.get(name, looked.run.vocab.source).unk
            for name, stream in reading.streams.items()
            for id in stream.ids
        )
        if unknown:
            found.append(_warning(f"The text has {_count(unknown, 'unknown token')}."))
    off = looked.trace.meta.get("off") or []
    if off:
        found.append(_warning(f"Heads switched off: {', '.join(map(_counted, off))}."))
    if looked.trace.meta.get("hidden"):
        places = looked.trace.meta["hidden"]
        pieces = [display_piece(reading.streams[name].pieces[at]) for name, at in places]
        found.append(_warning(f"Hidden from the other tokens: {', '.join(pieces)}."))
    return found


def _head_warnings(looked: LookInputs) -> list[PageSection]:
    sinks, evens, silent = [], [], []
    total = 0
    for kind, layers in looked.trace.attention.items():
        columns = _pieces(looked.trace.reading, kind, layers[0].shape[-1])
        for layer, weights_HTS in enumerate(layers):
            name = f"{kind}.{layer}"
            total += len(weights_HTS)
            share_H, place_H = attention_sink(weights_HTS)
            sinks += [
                (f"{name}.{head}", columns[int(place_H[head])], float(share))
                for head, share in enumerate(share_H)
                if share > SINK
            ]
            even_H = evenness(weights_HTS)
            evens += [(f"{name}.{head}", "", float(x)) for head, x in enumerate(even_H) if x > EVEN]
            silent += [
                (f"{name}.{head}", "", float(x))
                for head, x in enumerate(loudness(looked, kind, layer))
                if x < SILENT
            ]
    said = []
    if sinks:
        mean = sum(share for _, _, share in sinks) / len(sinks)
        tokens = sorted({token for _, token, _ in sinks})
        many = (
            f"{len(sinks)} heads of {total} attend"
            if len(sinks) > 1
            else f"1 head of {total} attends"
        )
        share = f"{100 * mean:.0f}\N{NO-BREAK SPACE}%"
        text = f"{many} almost only to one token: {share} of the weight ({', '.join(tokens[:4])})."
        said.append(_warning(text, sinks))
    if evens:
        many = f"{len(evens)} heads spread" if len(evens) > 1 else "1 head spreads"
        said.append(_warning(f"{many} attention evenly over all tokens.", evens))
    if silent:
        text = f"{_count(len(silent), 'dead head')}: the output is close to zero."
        said.append(_warning(text, silent))
    return said


def attention_sink(weights_HTS: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest mean attention weight of each head on one token, and the position of this
    token.

    Only queries that see at least `FEWEST` tokens count. If there are none, weights and positions
    are 0.
    """
    seen_T = (weights_HTS > 0).any(0).sum(-1)
    rows = weights_HTS[:, seen_T >= FEWEST]
    if not rows.shape[0] or not rows.shape[1]:
        nothing = weights_HTS.new_zeros(len(weights_HTS))
        return nothing, nothing.long()
    best = rows.mean(1).max(-1)
    return best.values, best.indices


def evenness(weights_HTS: Tensor) -> Tensor:
    """Return the entropy of attention of each head, relative to uniform attention.

    Only queries that see at least `FEWEST` tokens count.
    """
    seen_T = (weights_HTS > 0).any(0).sum(-1)
    keep_T = seen_T >= FEWEST
    if not bool(keep_T.any()):
        return weights_HTS.new_zeros(len(weights_HTS))
    entropy_HT = torch.special.entr(weights_HTS.float()).sum(-1)[:, keep_T]
    return (entropy_HT / seen_T[keep_T].log()).mean(1)


def loudness(looked: LookInputs, kind: str, layer: int) -> list[float]:
    """Return the mean norm of each head's output, relative to the mean over the heads of its
    layer."""
    if looked.run is None or kind not in looked.trace.values:
        return []
    module = Anatomy.of(looked.run.model).kind(kind).layers[layer]
    weights_HTS = looked.trace.attention[kind][layer].float()
    n_heads = len(weights_HTS)
    if n_heads < 2:
        return []
    values_SGK = looked.trace.values[kind][layer].float()
    values_HSK = values_SGK.repeat_interleave(n_heads // values_SGK.shape[1], 1).transpose(0, 1)
    out_HDK = module.to_out.weight.detach().float().unflatten(1, (n_heads, -1)).transpose(0, 1)
    length_H = (
        torch.einsum("hts,hsk,hdk->htd", weights_HTS, values_HSK, out_HDK).norm(dim=-1).mean(1)
    )
    return [float(x) for x in length_H / length_H.mean().clamp_min(1e-12)]


def _pieces(reading: Reading, kind: str, n: int) -> list[str]:
    stream = reading.streams.get(reading.sides(kind)[1])
    return (
        [str(place) for place in range(n)]
        if stream is None
        else [*map(display_piece, stream.pieces)]
    )


def _warning(text: str, heads: list[tuple[str, str, float]] | None = None) -> PageSection:
    return {"text": text, "heads": [list(head) for head in heads or []]}


def _counted(head: str) -> str:
    """Return the display name of a head, counted from 1: `cross.0.1` becomes cross 1.2."""
    kind, layer, number = head.split(".")
    return f"{kind} {int(layer) + 1}.{int(number) + 1}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
