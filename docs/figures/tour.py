"""Images of `docs/tour.md`: one sentence through the system, with the model tatoeba-de-en."""

from __future__ import annotations

import gzip
import shlex
import subprocess
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import headway
from headway.inside import Trace, load, trace
from headway.nn.layout import Layout
from headway.serve.application import create_app
from headway.serve.server import running
from headway.tasks.loaded_run import LoadedRun

from .browser import ROOT, card
from .life import COLOURS, bar, escape, heat, rows_table, shade, tokens
from .panels import Panel, take
from .panels import card as panel_card
from .serving import translator

MODEL, SENTENCE = "tatoeba-de-en", "Sie probierte ein neues Kleid an."
FILE = ROOT / "examples" / "data" / "tatoeba-de-en.tsv.gz"
BATCH = (SENTENCE, "Er lief.", "Keine Bewegung!")
"""Three sentences of the file."""

LAYER, HEAD, QUERY = 4, 1, "▁an"
"""The head that is drawn number by number, counted from 1, and the token that asks."""

SHOWN = 24
"""Number of dimensions drawn of each vector."""


@dataclass(frozen=True)
class Head:
    """What one head computes for one query: everything in the order of the arithmetic."""

    pieces: tuple[str, ...]
    query_K: Tensor
    keys_SK: Tensor
    scores_S: Tensor
    weights_S: Tensor
    values_SK: Tensor
    answer_K: Tensor
    error: float
    """Largest difference from the attention weights that the model itself computes."""


@cache
def traced() -> tuple[LoadedRun, Trace]:
    run = load(MODEL)
    return run, trace(run, SENTENCE)


def head() -> Head:
    run, seen = traced()
    pieces = seen.reading.streams["source"].pieces
    encoder: Any = run.model.encoder
    block = encoder.blocks[LAYER - 1]
    with torch.no_grad():
        x_ND = block.norm_attention(seen.states["encoder"][LAYER - 1])
        q_ND, k_ND, v_ND = (x_ND @ block.attention.to_qkv.weight.T).chunk(3, dim=1)
    width = q_ND.shape[1] // run.settings.model.n_heads
    part, row = slice((HEAD - 1) * width, HEAD * width), pieces.index(QUERY)
    query_K, keys_SK, values_SK = q_ND[row, part], k_ND[:, part], v_ND[:, part]
    scores_S = keys_SK @ query_K / width**0.5
    weights_S = scores_S.softmax(-1)
    model_S = seen.attention["encoder"][LAYER - 1][HEAD - 1][row]
    return Head(pieces, query_K, keys_SK, scores_S, weights_S, values_SK, weights_S @ values_SK,
                float((weights_S - model_S).abs().max()))  # fmt: skip


def row_card() -> str:
    lines = gzip.decompress(FILE.read_bytes()).decode("utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(SENTENCE))
    shown = [(f"{i + 1:,}", *lines[i].split("\t")) for i in range(at - 2, at + 3)]
    first = [("1", *lines[0].split("\t")), ("…", "", "")]
    head = ("line", "column 1 → source", "column 2 → target")
    return (
        f"<h1>{FILE.name}: tab-separated, no header, {len(lines):,} rows</h1>"
        + rows_table(head, [*first, *shown, ("…", "", "")], followed=SENTENCE)
    )  # fmt: skip


def tokens_card() -> str:
    run, seen = traced()
    assert run.vocab is not None
    stream, vectors_ND = seen.reading.streams["source"], seen.states["encoder"][0]
    size = run.vocab.source.vocab_size
    return (
        f"<h1>“{SENTENCE}”</h1>{tokens(stream.pieces, stream.ids)}"
        f'<p class="note">{len(stream.ids)} tokens of a vocabulary of {size:,}, with their ids</p>'
        f"<h2>{vectors_ND.shape[1]} numbers for each token: the first {2 * SHOWN}</h2>"
        + heat(stream.pieces, vectors_ND[:, : 2 * SHOWN].numpy(), width=10)
    )


def batch_card() -> str:
    run, _ = traced()
    assert run.vocab is not None
    vocab = run.vocab.source
    pieces = [vocab.tokens(vocab.as_source(vocab.encode(text))) for text in BATCH]
    layout = Layout.of([len(one) for one in pieces])
    longest = max(len(one) for one in pieces)
    starts = layout.starts_B.tolist()
    flat = "".join(
        tokens(one, range(start, start + len(one)), COLOURS[number])
        for number, (one, start) in enumerate(zip(pieces, starts, strict=True))
    )
    grid = "".join(
        "<tr>" + "".join(cell(one[i] if i < len(one) else None, COLOURS[number])
                         for i in range(longest)) + "</tr>"
        for number, one in enumerate(pieces)
    )  # fmt: skip
    facts = [("starts_B", str(starts)), ("lengths_B", str(layout.lengths_B.tolist()))]
    return (
        f"<h1>flat: {layout.n_rows} rows</h1>{flat}"
        f"<h2>Layout</h2>{rows_table(('name', 'value'), facts)}"
        f"<h1 style='margin-top: 18px'>padded, for comparison: {len(pieces)} × {longest} = "
        f"{len(pieces) * longest} cells</h1>"
        '<table style="border-collapse: separate; border-spacing: 4px; margin: -4px">'
        f"{grid}</table>"
    )


def cell(piece: str | None, colour: str) -> str:
    style = f"background: {colour}" if piece else "background: #eceff3; color: #9aa4b2"
    return (
        f'<td style="{style}; padding: 2px 6px; border-radius: 5px; text-align: center">'
        f"{escape(piece or 'pad')}</td>"
    )


def head_card() -> str:
    found = head()
    most = float(max(found.keys_SK.abs().max(), found.values_SK.abs().max()))
    rows = "".join(
        f"<tr><td>{escape(piece)}</td><td>{stripe(key_K, most)}</td>"
        f'<td style="text-align: right">{score:.2f}</td>'
        f'<td style="text-align: right">{weight:.3f}</td>'
        f"<td>{bar(float(weight) / 4)}</td><td>{stripe(value_K, most)}</td></tr>"
        for piece, key_K, score, weight, value_K in zip(
            found.pieces, found.keys_SK, found.scores_S, found.weights_S, found.values_SK,
            strict=True,
        )
    )  # fmt: skip
    titles = "".join(
        f'<th style="white-space: nowrap">{one}</th>'
        for one in ("token", "key", "query · key / 8", "weight", "", "value")
    )
    return (
        f"<h1>encoder, layer {LAYER}, head {HEAD}: what “{QUERY.strip('▁')}” looks for</h1>"
        f"<table><tr><td>query of {QUERY}</td><td>{stripe(found.query_K, most)}</td></tr></table>"
        f'<table style="margin-top: 10px"><tr>{titles}</tr>{rows}'
        f'<tr><td colspan="5" style="text-align: right; padding-top: 10px">'
        f'sum of weight × value</td><td style="padding-top: 10px">'
        f"{stripe(found.answer_K, most)}</td></tr></table>"
        f'<p class="note">The first {SHOWN} of 64 numbers of each vector. '
        f"The weights agree with those of the model to {found.error:.0e}.</p>"
    )


def stripe(vector_K: Tensor, most: float) -> str:
    """Return a row of cells; blue numbers are positive, orange ones negative."""
    cells = "".join(
        f'<span style="display: inline-block; width: 7px; height: 16px; background: '
        f'{shade(2 * float(one) / most)}"></span>'
        for one in vector_K[:SHOWN]
    )
    return f'<span style="white-space: nowrap; line-height: 0">{cells}</span>'


def drawn(body: Any, browser: Any) -> NDArray[np.uint8]:
    return card(browser, body())


def served(browser: Any) -> NDArray[np.uint8]:
    """The page of the server, and below it a request from a terminal with its answer."""
    kind = "-H 'Content-Type: application/json'"
    body = f"""-d '{{"q": "{SENTENCE}", "source": "de", "target": "en"}}'"""
    with running(create_app([headway.load(MODEL, device="cpu")])) as url:
        words = shlex.split(f"curl -s {url}/translate {kind} {body}")
        answer = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    typed = f"curl http://127.0.0.1:8080/translate {kind} \\\n    {body}"
    page = translator(browser, SENTENCE)
    red, green, blue = page[0, 0]
    body_style = f"background: rgb({red} {green} {blue}); margin: 0 20px"
    style = f"body {{ {body_style} }} .card {{ max-width: none; width: 860px }}"
    terminal = card(
        browser,
        f'<style>{style}</style><pre><span class="prompt">$</span> {escape(typed)}\n'
        f"{escape(answer)}</pre>",
        kind="terminal", width=900,
    )  # fmt: skip
    return stacked([page, terminal], page[0, 0])


def stacked(images: list[NDArray[np.uint8]], colour: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Put images below each other in the middle, on this colour."""
    most = max(image.shape[1] for image in images)
    rows = []
    for image in images:
        row = np.empty((len(image), most, 3), np.uint8)
        row[:] = colour
        left = (most - image.shape[1]) // 2
        row[:, left : left + image.shape[1]] = image
        rows.append(row)
    return np.concatenate(rows)


def panel(state: str, *parts: str, width: int) -> Any:
    return partial(take, Panel("", MODEL, SENTENCE, state, parts, width=width))


FIGURES = {
    "tour-1-row": partial(drawn, row_card),
    "tour-2-tokens": partial(drawn, tokens_card),
    "tour-3-batch": partial(drawn, batch_card),
    "tour-4-head": partial(drawn, head_card),
    "tour-5-heads": panel(
        f"tab=attention&kind=encoder&layer={LAYER - 1}&head={HEAD - 1}", panel_card(1), width=960
    ),
    "tour-6-beam": panel("tab=beam&beamShow=kept", panel_card(1), width=960),
    "tour-7-look": panel("tab=lens&row=2", "header.page", panel_card(1), width=880),
    "tour-8-serve": served,
}
