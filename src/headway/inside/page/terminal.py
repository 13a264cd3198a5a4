"""Trace as text for a terminal: attention map, word alignment, beam search and logit lens."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor

from headway.inside.capture.beam_tree import BeamTree, Node
from headway.inside.capture.media import MediaInput
from headway.inside.capture.streams import Reading, TokenStream
from headway.inside.capture.trace import Trace
from headway.inside.measure.alignments import aligning_layer
from headway.inside.measure.lens import WITH_NGRAMS, LogitLens, lens
from headway.inside.measure.maps.map import CAUTION
from headway.inside.measure.ngrams import NgramEffects, ngram_effects
from headway.inside.page.sections.lens import names
from headway.tokens.pieces import SPACE_MARK

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

LABEL = 12
"""Maximum width in terminal columns of a token beside or above a heatmap."""

MOST_ROWS = 40
"""Maximum number of rows of a heatmap, which is about the height of a terminal window."""

RUNNERS_UP = 4
"""Maximum number of finished hypotheses listed for a beam search."""

BESIDE = 4
"""Maximum number of alternatives listed for each step of the best path."""

GRAMS = 6
"""Maximum number of n-grams listed."""


def format_trace(
    found: LookInputs | Trace,
    stream: Any = None,
    *,
    width: int | None = None,
    ink: str | None = None,
) -> str:
    """Return all parts of a trace that a terminal can show, as text.

    `stream`: output stream whose capabilities determine colours and width. `width`: number of
    columns, in place of the stream's. `ink`: style (`colour`, `blocks` or `ascii`), in place of the
    stream's.
    """
    hand = style_for(stream) if ink is None else STYLES[ink]
    room = width_of(stream) if width is None else width
    trace = found if isinstance(found, Trace) else found.trace
    truth = None if isinstance(found, Trace) else found.truth
    run = None if isinstance(found, Trace) else found.run
    parts = [_head(trace, hand, room)]
    if trace.attention:
        parts.append(heatmap(trace, hand, room, truth))
    if "cross" in trace.attention:
        parts.append(alignment(trace, hand, room, truth))
    if trace.beam is not None:
        parts.append(search(trace.beam, hand, room))
    if run is not None and trace.states and trace.reading.outputs:
        seen = lens(run, trace)
        ids = sorted({int(i) for i in seen.top_LRK.unique()})
        words = dict(zip(ids, names(run, ids), strict=True))
        parts.append(layers(seen, words, hand, room))
        labels = run.settings.labels or ("",)
        parts.append(ngrams(ngram_effects(run, trace), labels, hand, room))
    lines = [line.rstrip() for part in parts if part for line in (*part, "")]
    return "\n".join(lines[:-1])


def _title(name: str, rest: str, ink: TerminalStyle, width: int) -> str:
    text = ink.fit(f"{name}  {rest}", width).rstrip()
    return ink.bold(text[: len(name)]) + ink.dim(text[len(name) :])


def _head(trace: Trace, ink: TerminalStyle, width: int) -> list[str]:
    reading, meta = trace.reading, trace.meta
    facts = [str(meta[key]) for key in ("run", "task", "family", "module") if key in meta]
    lines = [ink.bold(ink.fit(ink.safe(f" {ink.dot} ".join(facts)) or "trace", width).rstrip())]
    if reading.writes:
        last = reading.last
        written = zip(last.pieces, last.special, strict=True)
        said = "".join(piece for piece, apart in list(written)[reading.n_given :] if not apart)
    else:
        said = " ".join(output.name for output in reading.outputs)
    for name, text in (("input", reading.text), ("output", said)):
        lines.append(f"{name:6} {ink.fit(ink.safe(text).strip(), width - 7)}")
    return lines


def default_map(trace: Trace, truth: dict[str, Any] | None = None) -> tuple[str, str]:
    """Return the kind of attention and the name of the map that is shown by default.

    For cross-attention, the map is that of the layer that aligns words best, otherwise that of the
    last layer.
    """
    kind = "cross" if "cross" in trace.attention else list(trace.attention)[-1]
    n_layers = len(trace.attention[kind])
    layer = aligning_layer(n_layers, truth)[0] if kind == "cross" else n_layers - 1
    return kind, f"{kind}.{layer}.mean"


def heatmap(
    trace: Trace, ink: TerminalStyle, width: int, truth: dict[str, Any] | None = None
) -> list[str]:
    """Return the lines of an attention heatmap, which is the mean over the heads of a layer. Rows
    are queries, columns are keys."""
    kind, name = default_map(trace, truth)
    layer = int(name.split(".")[1])
    weights_TS = trace.attention[kind][layer].mean(0)
    rows, columns = _sides(trace, kind)
    pooled, cell = _fitted(weights_TS, width - LABEL - 1)
    n_rows = min(len(pooled), MOST_ROWS)
    side = [ink.fit(ink.word(rows[r]), LABEL) for r in range(n_rows)]
    lines = [_title("map", f"{kind} attention, layer {layer + 1}, mean over heads", ink, width)]
    media = trace.reading.media
    if media is not None and len(columns) == media.n_rows:
        size = -(-len(columns) // pooled.shape[1])
        above = ticks(media, size, cell, width - LABEL - 1)
        lines += [" " * (LABEL + 1) + line for line in above]
    elif len(columns) == pooled.shape[1]:
        lines += [" " * (LABEL + 1) + line for line in _upright(columns, cell, ink)]
    else:
        lines.append(f"{'':{LABEL}} {len(columns)} tokens; a cell is the largest of neighbours")
    top = float(weights_TS.max()) or 1.0
    for label, row in zip(side, pooled[:n_rows].tolist(), strict=True):
        lines.append(f"{label} " + "".join(ink.cell(value / top, cell) for value in row))
    if len(pooled) > n_rows:
        lines.append(f"{'':{LABEL}} {len(pooled) - n_rows} rows not shown")
    scale = "".join(ink.cell(share / 4, 2) for share in range(5))
    score = (truth or {}).get("maps", {}).get(name)
    right = "not validated"
    if score is not None:
        right = f"P@1 {score['p1']:.2f} (random {score['random']:.2f})"
    lines.append(f"{'':{LABEL}} 0 {scale} {top:.2f}")
    notes = [f"accuracy: {right}", *wrap(CAUTION, width - LABEL - 1)]
    lines += [ink.dim(f"{'':{LABEL}} {note}") for note in notes]
    return lines


def _sides(trace: Trace, kind: str) -> tuple[list[str], list[str]]:
    """Return the names of the rows and columns of a map. Rows of cross-attention are named by the
    output token, and not by the input token."""
    reading = trace.reading
    asking, asked = reading.last, reading.last
    if kind == "encoder":
        asking = asked = reading.first
    elif kind == "cross":
        asked = reading.first
    rows = pieces_of(reading, asking)
    if kind == "cross" and len(reading.outputs) == len(rows):
        rows = [output.name for output in reading.outputs]
    return rows, pieces_of(reading, asked)


def _fitted(weights_TS: Tensor, room: int) -> tuple[Tensor, int]:
    """Return the map with at most `room` columns, and the width of each column in characters (2 or
    1).

    If even a width of 1 is too wide, neighbouring columns are pooled by their maximum.
    """
    n_columns = weights_TS.shape[1]
    if n_columns <= room:
        return weights_TS, 2 if 2 * n_columns <= room else 1
    size = -(-n_columns // room)
    padded = torch.nn.functional.pad(weights_TS, (0, -n_columns % size))
    return padded.unflatten(1, (-1, size)).amax(2), 1


def _upright(pieces: Sequence[str], cell: int, ink: TerminalStyle) -> list[str]:
    """Return column headings with one token per column, written downwards and aligned at the
    bottom."""
    words = [ink.word(piece) for piece in pieces]
    # A double-width character would shift all columns to its right.
    words = ["".join(c if cell_len(c) == 1 else "?" for c in word) for word in words]
    cut = [w if len(w) <= LABEL else w[: LABEL - len(ink.dots)] + ink.dots for w in words]
    height = max(map(len, cut), default=0)
    rows = zip(*(word.rjust(height) for word in cut), strict=True)
    return ["".join(sign.ljust(cell) for sign in row).rstrip() for row in rows]


def alignment(
    trace: Trace, ink: TerminalStyle, width: int, truth: dict[str, Any] | None = None
) -> list[str]:
    """Return the lines of a table of the target words, each with the source word that it attends to
    most."""
    source, target = trace.reading.first, trace.reading.last
    _, name = default_map(trace, truth)
    weights_TS = trace.attention["cross"][int(name.split(".")[1])].mean(0)
    said, written = _words(target)
    heard, read = _words(source)
    if trace.reading.media is not None:  # each patch or moment counts as a word
        named = zip(pieces_of(trace.reading, source), source.special, strict=True)
        read = [piece for piece, apart in named if not apart]
    said = [*said[1:], -1][: len(weights_TS)]
    if not written or not read:
        return []
    shares_YX = torch.zeros(len(written), len(read))
    for row, word in enumerate(said):
        for column, from_word in enumerate(heard):
            if word >= 0 and from_word >= 0:
                shares_YX[word, from_word] += weights_TS[row, column]
    shares_YX /= torch.tensor([max(1, said.count(word)) for word in range(len(written))])[:, None]
    best = shares_YX.max(1)
    table = [
        [ink.word(word) for word in written],
        [ink.word(read[place]) for place in best.indices.tolist()],
        [f"{share:.2f}" for share in best.values.tolist()],
    ]
    lines = [
        _title("alignment", "the source word that each target word attends to most", ink, width)
    ]
    return lines + _banded(table, ["target", "source", "share"], ink, width)


def _words(stream: TokenStream) -> tuple[list[int], list[str]]:
    """Return the index of the word that each token is part of (-1 for special tokens), and the
    words.

    Punctuation is a separate word, because a full stop attends elsewhere than the word before it.
    """
    numbers: list[int] = []
    words: list[str] = []
    before: tuple[int, bool] | None = None
    for piece, word in zip(stream.pieces, stream.words, strict=True):
        now = (word, any(c.isalnum() for c in piece))
        if word < 0:
            numbers.append(-1)
            continue
        if now != before:
            words.append("")
        words[-1] += piece
        numbers.append(len(words) - 1)
        before = now
    return numbers, words


def _banded(
    table: Sequence[Sequence[str]],
    heads: Sequence[str],
    ink: TerminalStyle,
    width: int,
    most: int = 14,
) -> list[str]:
    """Return the lines of a wide table, split into several tables that fit the width."""
    first = max(map(cell_len, heads)) + 1
    widths = [2 + min(most, max(map(cell_len, column))) for column in zip(*table, strict=True)]
    lines: list[str] = []
    for places in bands(widths, width - first):
        lines += [""] if lines else []
        for head, row in zip(heads, table, strict=True):
            words = (ink.fit(row[place], widths[place] - 2) + "  " for place in places)
            lines.append(ink.dim(ink.fit(head, first)) + "".join(words).rstrip())
    return lines


def search(tree: BeamTree, ink: TerminalStyle, width: int) -> list[str]:
    """Return lines with the finished hypotheses, and the best path with its kept and pruned
    alternatives."""
    lines = [_title("beam", ink.safe(tree.summary), ink, width)]
    ends = sorted((n for n in tree.nodes if n.place), key=lambda n: (n.place or 0, n.group))
    ends = ends or [tree.nodes[number] for number in tree.outputs]
    for node in ends[:RUNNERS_UP]:
        mark = ink.star if node.id == tree.outputs[0] else str(node.place or "")
        text = ink.fit(ink.safe(tree.text(node)), width - 13).rstrip()
        lines.append(f"{mark:>3} {node.score:7.2f}  {text}")
    head = f"{'step':>7} {'':{LABEL}} {'p':>5}  alternatives: + kept, {ink.cross} cut"
    lines.append(ink.dim(ink.fit(head, width).rstrip()))
    for node in tree.path(tree.best):
        prob = f"{torch.tensor(node.token_log_prob).exp().item():.2f}"
        head = f"{node.step:>7} {ink.fit(ink.word(node.piece), LABEL)} {prob:>5}  "
        lines.append(head + ink.fit(_beside(tree, node, ink), width - cell_len(head)).rstrip())
    why = wrap(f"stopped because {ink.safe(tree.stopped)}", width - 8)
    return [*lines, *(f"{'':7} {line}" for line in why)]


def _beside(tree: BeamTree, node: Node, ink: TerminalStyle) -> str:
    others = [tree.nodes[number] for number in tree.children[node.parent] if number != node.id]
    kept = [n for n in others if n.fate not in ("cut", "lost")]
    cut = [n for n in others if n.fate in ("cut", "lost")]
    parts = [f"+{ink.word(n.piece)}" for n in kept[:BESIDE]]
    parts += [f"{ink.cross}{ink.word(n.piece)}" for n in cut[: max(1, BESIDE - len(parts))]]
    reason = f" ({cut[0].why.partition(': ')[2] or cut[0].why})" if cut else ""
    return " ".join(parts) + ink.safe(reason)


def layers(seen: LogitLens, words: dict[int, str], ink: TerminalStyle, width: int) -> list[str]:
    """Return the lines of the logit lens: the prediction at each layer, and the layer from which it
    no longer changes."""
    heads = list(seen.layers)
    if seen.is_vector:
        lines = [_title("logit lens", "similarity of each layer's vector to the last", ink, width)]
        for head, cosine in zip(heads, seen.chosen_LR.mean(1).tolist(), strict=True):
            bar = ink.shades[-1] * round(max(0.0, cosine) * (width - 24))
            lines.append(f"{head:9} cosine {cosine:5.2f} {bar}")
        return lines
    lines = [_title("logit lens", "the prediction at each layer", ink, width)]
    table = [[ink.word(words[int(id)]) for id in top_R.tolist()] for top_R in seen.top_LRK[:, :, 0]]
    table.append([ink.word(output.name) for output in seen.outputs])
    steps = [str(number) for number in range(len(seen.layers))]
    if seen.layers[-1] == WITH_NGRAMS:
        steps[-1] = "n-grams"
    table.append(["-" if layer is None else steps[layer] for layer in seen.decided])
    return lines + _banded(table, [*heads, "output", "decided"], ink, width, most=11)


def ngrams(
    found: Sequence[NgramEffects], labels: Sequence[str], ink: TerminalStyle, width: int
) -> list[str]:
    """Return lines with the predictions of the neural layers and of the n-grams. If there is one
    output, they include its strongest n-grams."""
    if not found:
        return []
    lines = [_title("n-grams", "prediction of each member of the model", ink, width)]
    names = list(found[0].probs)
    table = [
        [f"{ink.word(labels[int(p_C.argmax())])} {p_C.max():.2f}"
         for p_C in (one.probs[name] for one in found)]
        for name in names
    ]  # fmt: skip
    lines += _banded(table, names, ink, width)
    if len(found) == 1:
        top = [f"{ink.word(name)} {effect:+.2f}" for name, effect in found[0].grams[:GRAMS]]
        lines += wrap(ink.safe(f"largest effects: {', '.join(top)}"), width)
    return lines


NOTES = {
    "image": "each column is a patch: row,column",
    "video": "each column is a patch: frame,row,column",
    "audio": "each column is a moment of the recording",
}
EVERY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Possible distances between marks on a time axis in seconds, which are round numbers."""


def pieces_of(reading: Reading, stream: TokenStream) -> list[str]:
    """Return the tokens of a stream as short names. Patches are named "3,5" (row, column), audio
    frames "0.24 s"."""
    media = reading.media
    if media is None or media.kind == "audio" or stream != reading.first:
        return list(stream.pieces)
    return [name.replace("·", ",") for name in media.short_names()]


def ticks(media: MediaInput, size: int, cell: int, room: int) -> list[str]:
    """Return column headings for a heatmap of media: the first patch of each row, or times in
    seconds.

    `size`: number of positions per column. `cell`: width of a column in characters. `room`: maximum
    width of the headings.
    """
    marks = _times(media, size, cell) if media.kind == "audio" else _patches(media)
    line = ""
    for row, name in marks:
        at = row // size * cell
        if (line and at <= len(line)) or at + len(name) > room:
            continue  # no room for this one
        line = line.ljust(at) + name
    kind = "video" if media.grid[0] > 1 else media.kind
    return [NOTES[kind], line]


def _patches(media: MediaInput) -> list[tuple[int, str]]:
    step = media.grid[2]
    names = [name.replace("·", ",") for name in media.short_names()]
    return [(row, names[row]) for row in range(media.extra, media.n_rows, step)]


def _times(media: MediaInput, size: int, cell: int) -> list[tuple[int, str]]:
    """Return the position and label of marks at round seconds, which are far enough apart for their
    labels."""
    a_cell = media.row_s * size / cell
    step = next((s for s in EVERY_S if s >= 8 * a_cell), EVERY_S[-1])
    n_marks = int(media.n_rows * media.row_s / step) + 1
    marks = [(round(n * step / media.row_s), f"{n * step:g} s") for n in range(n_marks)]
    return [mark for mark in marks if mark[0] < media.n_rows]


BLUE = 33
"""Number of a blue in the 256-colour palette that is readable on black and on white."""

SPELLED = str.maketrans({"−": "-", "·": "|", "α": "alpha", "…": "..."})
"""ASCII replacement for each special character."""

USUAL_WIDTH = 80
"""Width in columns that is used for files and pipes, as in a classic terminal."""

NARROWEST = 40
"""Minimum width in columns that is assumed. In narrower terminals lines wrap, because a map needs
room for its labels."""


@dataclass(frozen=True)
class TerminalStyle:
    """Characters and colours that a terminal can show."""

    shades: str
    """Characters for the shades of a heatmap, from the lowest value to the highest."""

    is_colour: bool = False
    is_ascii: bool = False
    star: str = "★"
    cross: str = "✗"
    dots: str = "…"
    rule: str = "─"
    dot: str = "·"

    def cell(self, value: float, width: int) -> str:
        """Return a value from 0 to 1 as one or more characters of a heatmap."""
        share = min(max(value, 0.0), 1.0)
        cell = self.shades[round(share * (len(self.shades) - 1))] * width
        return f"\x1b[38;5;{BLUE}m{cell}\x1b[0m" if self.is_colour and cell.strip() else cell

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.is_colour else text

    def dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self.is_colour else text

    def safe(self, text: str) -> str:
        """Return a model's text on a single line, with control characters escaped."""
        text = text.replace(SPACE_MARK, " ")
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        if not self.is_ascii:
            return text
        plain = unicodedata.normalize("NFKD", text.translate(SPELLED))
        kept = "".join(c for c in plain if not unicodedata.combining(c))
        return kept.encode("ascii", "replace").decode()

    def word(self, piece: str) -> str:
        """Return a token as one word; a single space is shown as a visible mark."""
        return self.safe(piece).strip() or ("_" if self.is_ascii else "␣")

    def fit(self, text: str, width: int) -> str:
        """Return a text padded or truncated to exactly `width` columns."""
        if cell_len(text) > width:
            text = set_cell_size(text, max(0, width - len(self.dots))) + self.dots
            text = text if cell_len(text) <= width else self.dots[:width]
        return text + " " * (width - cell_len(text))


ASCII = TerminalStyle(
    " .:-=+*#%@", is_ascii=True, star="*", cross="-", dots="..", rule="-", dot="|"
)
BLOCKS = TerminalStyle(" ░▒▓█")
COLOUR = TerminalStyle(" ░▒▓█", is_colour=True)
STYLES = {"ascii": ASCII, "blocks": BLOCKS, "colour": COLOUR}


def style_for(stream: Any) -> TerminalStyle:
    """Return the style for an output stream: colours if the terminal supports them, blocks if it
    supports only UTF-8, otherwise ASCII."""
    name = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    if name != "utf8":
        return ASCII
    is_terminal = bool(getattr(stream, "isatty", lambda: False)())
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM", "dumb") == "dumb"
    return COLOUR if is_terminal and not plain else BLOCKS


def width_of(stream: Any) -> int:
    """Return the width of the terminal in columns; 80 for a file or a pipe."""
    if not bool(getattr(stream, "isatty", lambda: False)()):
        return USUAL_WIDTH
    return max(NARROWEST, shutil.get_terminal_size((USUAL_WIDTH, 24)).columns)


def bands(widths: Sequence[int], room: int) -> list[range]:
    """Group columns of these widths into as few bands as possible, in order. Each band has at least
    one column."""
    found, first, used = [], 0, 0
    for place, width in enumerate(widths):
        if place > first and used + width > room:
            found.append(range(first, place))
            first, used = place, 0
        used += width
    return [*found, range(first, len(widths))] if widths else []
