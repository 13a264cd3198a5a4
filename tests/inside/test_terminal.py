"""The view for terminals. Golden files show a trace made by hand; WRITE_GOLDEN=1 renews them."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from rich.cells import cell_len
from rich.text import Text

from headway.inside.capture.beam_tree import BeamTree, Node, StepCounts, TokenCandidate
from headway.inside.capture.streams import Reading, TokenStream, TracedOutput
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.lens import LogitLens
from headway.inside.page.look import LookInputs
from headway.inside.page.terminal import (
    ASCII,
    BLOCKS,
    COLOUR,
    STYLES,
    alignment,
    bands,
    format_trace,
    heatmap,
    layers,
    style_for,
    width_of,
)
from headway.tasks.loaded_run import open_plain

GOLDEN = Path(__file__).parent / "golden"


def stream(name: str, pieces: str, words: tuple[int, ...]) -> TokenStream:
    parts = tuple(pieces.split())
    special = tuple(word < 0 for word in words)
    return TokenStream(name, tuple(range(len(parts))), parts, words, special)


def tree() -> BeamTree:
    """Beam 2: `a bike` wins, `one bike` ends second, `a wheel` is cut, `one wheel` starves."""

    def node(
        id: int, parent: int, piece: str, log_prob: float, why: tuple[str, str], **more: int
    ) -> Node:
        before = nodes[parent].tokens if parent >= 0 else ()
        own = log_prob - (nodes[parent].log_prob if parent >= 0 else 0.0)
        tokens = (*before, id) if parent >= 0 else ()
        step, rank, place = len(tokens), more.get("rank", 1), more.get("place")
        return Node(id, parent, tokens, piece, own, log_prob, log_prob / (step + 1), step, rank, 0,
                    *why, place, (TokenCandidate(1, "▁a", -0.1),))  # fmt: skip

    nodes: list[Node] = []
    rows: list[tuple[int, str, float, tuple[str, str], dict[str, int]]] = [
        (-1, "<s>", 0.0, ("kept", "the beginning"), {}),
        (0, "▁a", -0.4, ("kept", "went on"), {}),
        (0, "▁one", -1.5, ("kept", "went on"), {"rank": 2}),
        (0, "▁der", -4.0, ("cut", "step 1: rank 3 > beam 2"), {"rank": 3}),
        (1, "▁bike", -0.7, ("kept", "went on"), {}),
        (2, "▁bike", -2.0, ("kept", "went on"), {"rank": 2}),
        (1, "▁wheel", -3.0, ("cut", "step 2: rank 3 > beam 2"), {"rank": 3}),
        (4, "</s>", -0.8, ("ended", "1st best of the finished"), {"place": 1}),
        (5, "</s>", -2.5, ("ended", "2nd best of the finished"), {"rank": 2, "place": 2}),
    ]
    for id, (parent, piece, log_prob, why, more) in enumerate(rows):
        nodes.append(node(id, parent, piece, log_prob, why, **more))
    counts = (StepCounts(1, 0, 1, 9, 2, 3, 4, -5.0),)
    return BeamTree(tuple(nodes), counts, (7,), 2, 1, "gnmt", 0.6, 9, "it was safe")


def by_hand() -> Trace:
    source = stream("source", "▁ein ▁Fahr rad \x1b[2J 日本語 </s>", (0, 1, 1, 1, 2, -1))
    target = stream("target", "<s> ▁a ▁bike", (-1, 0, 1))
    reading = Reading(
        text="ein Fahrrad\n日本語",
        task="translate",
        streams={"source": source, "target": target},
        outputs=tuple(TracedOutput(r, r, n) for r, n in enumerate(("▁a", "▁bike", "</s>"))),
    )
    weights_TS = torch.tensor(
        [[0.7, 0.1, 0.0, 0.0, 0.1, 0.1], [0.0, 0.4, 0.3, 0.1, 0.1, 0.1], [0.1] * 5 + [0.5]]
    )
    attention = {
        "encoder": [torch.eye(6)[None]],
        "decoder": [torch.eye(3)[None]],
        "cross": [torch.stack([weights_TS, weights_TS])],
    }
    meta = {"run": "by-hand", "task": "translate", "family": "seq2seq"}
    return Trace(reading, attention, beam=tree(), meta=meta)


def small_lens(n_outputs: int = 3, n_layers: int = 3) -> LogitLens:
    top_LRK = (torch.arange(n_layers)[:, None, None] + torch.arange(n_outputs)[:, None]) % 5
    rank_LR = torch.tensor([[3] * n_outputs] * (n_layers - 1) + [[1] * n_outputs])
    one_LR = torch.ones(n_layers, n_outputs)
    outputs = tuple(TracedOutput(r, (n_layers - 1 + r) % 5, f"▁w{r}") for r in range(n_outputs))
    names = ("input", *(f"layer {number}" for number in range(1, n_layers)))
    return LogitLens(outputs, names, "", torch.zeros(n_outputs, 5), top_LRK, one_LR[:, :, None],
    rank_LR,
                one_LR, one_LR)  # fmt: skip


def check(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.write_text(text + "\n", encoding="utf-8")
    assert text + "\n" == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("ink", STYLES)
def test_the_view_of_a_small_trace(ink: str) -> None:
    text = format_trace(by_hand(), width=64, ink=ink)
    check(f"trace-{ink}", text)
    assert "\x1b[2J" not in text  # what a model writes does not clear the screen


def test_the_lens_of_a_few_words() -> None:
    words = dict(enumerate(["▁he", "▁goes", "▁nach", "Hause", "\n"]))
    lines = [*layers(small_lens(), words, ASCII, 80), "", *layers(small_lens(9), words, BLOCKS, 40)]
    check("lens", "\n".join(line.rstrip() for line in lines))


def test_measured_accuracy_is_shown_with_the_map() -> None:
    truth = {"maps": {"cross.0.mean": {"p1": 0.94, "random": 0.14}}}
    found = format_trace(LookInputs(trace=by_hand(), truth=truth), width=64, ink="blocks")
    assert re.search(r"P@1 0\.94\D*0\.14", found)
    assert "P@1" not in format_trace(by_hand(), width=64, ink="blocks")


def test_a_heatmap_shows_the_weights() -> None:
    rows = heatmap(by_hand(), ASCII, 80)
    [of_a] = [line for line in rows if line.startswith("a ")]
    cells = of_a[13:]
    # 0.7 is the largest weight, 0.1 a seventh of it, on a scale of ten signs.
    assert cells == "@@..    ...."


def test_long_texts_are_folded_into_the_width() -> None:
    pieces = " ".join(f"▁word{n}" for n in range(300))
    text = stream("text", pieces, tuple(range(300)))
    reading = Reading("long", "fill", {"text": text}, ())
    weights = torch.zeros(1, 300, 300)
    weights[0, 0, 299] = 1.0
    rows = heatmap(Trace(reading, {"self": [weights]}), ASCII, 80)
    assert max(map(len, rows)) <= 80
    [hidden] = [int(n) for line in rows for n in re.findall(r"^\D*\b(\d+) rows\D*$", line)]
    assert hidden > 0
    [first] = [line for line in rows if line.startswith("word0 ")]
    assert first.rstrip().endswith("@")


@pytest.mark.parametrize("ink", STYLES)
@pytest.mark.parametrize("width", [40, 80, 132])
def test_no_line_is_wider_than_the_terminal(ink: str, width: int) -> None:
    for found in (by_hand(), translated()):
        for line in format_trace(found, width=width, ink=ink).splitlines():
            assert cell_len(Text.from_ansi(line).plain) <= width
            assert ink != "ascii" or line.isascii()


@cache
def translated() -> LookInputs:
    run = open_plain("tatoeba-de-en")
    return LookInputs(
        run=run, trace=trace(run, "Der Hund läuft nach Hause, weil es spät ist.", beam=True)
    )


def test_a_real_run_shows_all_parts() -> None:
    found = translated()
    text = format_trace(found, width=80, ink="blocks")
    assert found.trace.beam is not None
    assert found.trace.beam.text(found.trace.beam.best) in text
    assert found.trace.beam.summary in text
    for name in ("map", "alignment", "beam", "logit lens"):
        assert any(line.startswith(f"{name}  ") for line in text.splitlines())
    [target, source, *_] = alignment(found.trace, BLOCKS, 200)[1:]
    pairs = dict(zip(target.split()[1:], source.split()[1:], strict=True))
    assert pairs["dog"] == "Hund"


@pytest.mark.parametrize("best", [0, 1])
def test_map_and_alignment_are_of_the_layer_that_was_measured_best(best: int) -> None:
    found = translated()
    own = "cross.0.mean", "cross.1.mean"
    scores = {name: {"p1": 0.9 if n == best else 0.1, "random": 0.0} for n, name in enumerate(own)}
    text = format_trace(replace(found, truth={"maps": scores}), width=200, ink="blocks")
    assert re.search(rf"^map\b.*\bcross\b.*\b{best + 1}\b", text, re.MULTILINE)
    assert "P@1 0.90" in text
    only = replace(found.trace, attention={"cross": [found.trace.attention["cross"][best]]})
    lines = [line.rstrip() for line in alignment(only, BLOCKS, 200)]
    assert "\n".join(lines) in text


@pytest.mark.parametrize(
    ("name", "text"), [("stories", "Once upon a time"), ("tatoeba-en-de", "Yes.")]
)
def test_other_runs_are_shown_too(name: str, text: str) -> None:
    run = open_plain(name)
    found = format_trace(LookInputs(run=run, trace=trace(run, text, beam=True)), io.StringIO())
    assert "beam  k=4" in found
    assert "lens  " in found


class Terminal(io.StringIO):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._name = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._name

    def isatty(self) -> bool:
        return True


def test_the_stream_decides_about_signs_and_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    assert style_for(Terminal("utf-8")) is COLOUR
    assert style_for(Terminal("UTF8")) is COLOUR
    assert style_for(Terminal("iso-8859-1")) is ASCII
    assert style_for(io.StringIO()) is BLOCKS
    assert (width_of(Terminal("utf-8")), width_of(io.StringIO())) == (100, 80)
    monkeypatch.setenv("NO_COLOR", "1")
    assert style_for(Terminal("utf-8")) is BLOCKS


def test_words_are_safe_and_fit() -> None:
    assert BLOCKS.safe("▁a\tb\x1b[31m") == " a\\tb\\x1b[31m"
    assert ASCII.safe("Fähre − α") == "Fahre - alpha"
    assert ASCII.word("日本") == "??"
    assert [cell_len(BLOCKS.fit("日本語の文", n)) for n in range(1, 8)] == list(range(1, 8))
    assert [list(one) for one in bands([5, 5, 5, 20, 3], 11)] == [[0, 1], [2], [3], [4]]
    assert bands([], 9) == []
