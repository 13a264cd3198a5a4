"""Diagrams of `docs/built/architecture.md`, from the code itself.

Names and numbers come from the tables and files they describe. If one of them changes so that a
diagram would be wrong, making it fails.
"""

from __future__ import annotations

import ast
import gzip
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import headway
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher, StepsConfig
from headway.decode.steps import DecodingSteps, Seq2SeqSteps
from headway.models.build import FAMILIES, build_model
from headway.models.parts.front import Front
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attend import BACK_ENDS
from headway.nn.attention.scope import AttentionSpec
from headway.nn.layout import Layout
from headway.settings.model import FAMILY_SETTINGS, family_of
from headway.settings.presets import PRESETS, preset
from headway.specs.tasks import SPECS

from .browser import ROOT, card
from .life import COLOURS, escape
from .tour import BATCH, FILE, SENTENCE, traced

PACKAGE = ROOT / "src" / "headway"
WIDE = 1000
"""Width of the widest diagrams in CSS pixels."""

STYLE = """
.card { max-width: none } table.wide td, table.wide th { padding: 3px 10px 3px 0 }
.box { display: inline-block; padding: 3px 9px; border-radius: 6px; margin: 2px 0;
  font: 13px/1.4 system-ui, sans-serif; white-space: nowrap }
.text { background: #dbe6fb } .image { background: #dcf0e0 } .audio { background: #fbe6d4 }
.body { background: #e6e0f5 } .head { background: #eceff3; margin-right: 4px }
.arrow { color: #8390a3; padding: 0 4px; font: 13px system-ui, sans-serif }
td.plain, .note { font-family: system-ui, sans-serif }
.dot { width: 15px; height: 15px; padding: 0 !important; border: 1px solid #eceff3 }
.code { color: #556070; font-size: 12px }
"""


def drawn(body: Callable[[], str], browser: Any, width: int = WIDE) -> NDArray[np.uint8]:
    return card(browser, f"<style>{STYLE}</style>{body()}", width=width)


def box(text: str, kind: str) -> str:
    return f'<span class="box {kind}">{escape(text)}</span>'


ARROW = '<span class="arrow">→</span>'


# The packages


def layers() -> list[tuple[tuple[str, ...], str]]:
    """Packages of each layer and what they hold, from the table that a test compares with the
    code."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.partition("## The layers")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", table, re.MULTILINE)
    return [(tuple(re.findall(r"`(\w+)`", names)), holds.replace("`", "")) for names, holds in rows]


def imports(package: str) -> set[str]:
    """Layers that the modules of a layer import."""
    place = PACKAGE / package
    found: set[str] = set()
    for path in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headway."):
                found.add((node.module or "").split(".")[1])
    return found


def layers_card() -> str:
    rows = layers()
    names = [", ".join(one) for one, _ in rows]
    titles = "".join(f'<th class="column" style="padding: 4px 0">{name}</th>' for name in names)
    lines = [f"<tr><th>layer</th><th>holds</th>{titles}</tr>"]
    for at, (packages, holds) in enumerate(rows):
        seen = set().union(*(imports(name) for name in packages))
        dots = "".join(
            f'<td class="dot" style="background: {colour(at, to, bool(seen & set(other)))}"></td>'
            for to, (other, _) in enumerate(rows)
        )
        lines.append(f'<tr><td>{names[at]}</td><td class="plain">{escape(holds)}</td>{dots}</tr>')
    return (
        "<h1>The layers, and which others each one imports: only layers below it</h1>"
        f'<table class="wide">{"".join(lines)}</table>'
    )


def colour(row: int, column: int, imported: bool) -> str:
    if imported and column < row:
        raise SystemExit(f"row {row} of the layers imports row {column}, which is above it")
    return "#d5dbe5" if row == column else "#7fa3e6" if imported else "white"


# Front, body, head

HEADS = {
    "words": "tokens", "pooled": "one vector", "classes": "classes", "tags": "tags",
    "distilled": "classes of a teacher", "rebuild": "masked parts", "ctc": "CTC",
}  # fmt: skip
"""Names of output heads for people."""

EXAMPLES = {
    "seq2seq": ("transformer-base",), "encoder": ("bert-base", "distilbert"),
    "decoder": ("gpt2", "llama-laptop"), "image-encoder": ("vit-base", "deit-small"),
    "image-seq2seq": (), "audio-encoder": (), "audio-seq2seq": ("whisper-base",),
}  # fmt: skip
"""Presets of each family that are shown."""


def families_card() -> str:
    heads = "".join(f"<th>{one}</th>" for one in ("family", "front → body → head", "tasks"))
    rows = "".join(family_row(name) for name in FAMILIES)
    return f'<table class="wide"><tr>{heads}</tr>{rows}</table>'


def family_row(name: str) -> str:
    usual = next(one for one in PRESETS if family_of(preset(one)) == name)
    model: Any = build_model(preset(usual), device="meta")
    shown = EXAMPLES[name]
    assert all(family_of(preset(one)) == name for one in shown)
    if isinstance(model, Seq2Seq):
        has_ctc = hasattr(FAMILY_SETTINGS[name](), "ctc")
        ctc = ARROW + output_heads(["ctc"]) if has_ctc else ""
        path = (
            f"{front(model.source_front)}{ARROW}{box('encoder', 'body')}{ctc}"
            '<span class="arrow">↘ memory</span><br>'
            f"{front(model.target_front)}{ARROW}{box('decoder', 'body')}{ARROW}"
            f"{output_heads(['words'])}"
        )
    else:
        kind = "causal stack" if name == "decoder" else "encoder"
        named = re.findall(r"'(\w+)'", FAMILY_SETTINGS[name].__annotations__["heads"])
        path = f"{front(model.front)}{ARROW}{box(kind, 'body')}{ARROW}{output_heads(named)}"
    tasks = [task for task, spec in SPECS.items() if name in spec.all_families]
    presets = f'<div class="code">{", ".join(shown)}</div>' if shown else ""
    return (
        f"<tr><td>{name}{presets}</td><td>{path}</td>"
        f'<td class="plain" style="max-width: 150px">{", ".join(tasks)}</td></tr>'
    )


def front(part: Any) -> str:
    assert isinstance(part, Front)
    return box(f"{part.reads} front", part.reads)


def output_heads(names: Sequence[str]) -> str:
    return "".join(box(HEADS[name], "head") for name in names)


# Attention over a flat batch


def attention_card() -> str:
    run, _ = traced()
    vocab = run.vocab.source
    lengths = [len(vocab.as_source(vocab.encode(text))) for text in BATCH]
    layout = Layout.of(lengths)
    q_NHK = torch.zeros(layout.n_rows, 4, 64)
    first = ""
    rows = []
    for name, back_end in BACK_ENDS.items():
        reason = back_end.unsupported_reason(q_NHK, q_NHK, layout, layout, AttentionSpec())
        chosen = reason is None and not first
        first = first or (name if reason is None else "")
        text = (
            "<b>computes this call</b>"
            if chosen
            else escape(reason or "supports every call").replace("`", "")
        )
        mark = ' class="followed"' if chosen else ""
        rows.append(f'<tr{mark}><td>{name}</td><td class="plain">{text}</td></tr>')
    return (
        f"<h1>A flat batch of {layout.n_rows} rows, as a layer sees it</h1>"
        f'<table><tr><td style="vertical-align: top; padding-right: 28px">{mask(layout)}'
        '<p class="note" style="max-width: 240px">Rows attend only to rows of their own '
        "sequence. Everything else in a layer treats each row alone.</p></td>"
        '<td style="vertical-align: top"><code>attend(q_NHK, k_MGK, v_MGK, queries, keys, scope)'
        "</code><h2>back ends in their order, for this batch on a CPU</h2>"
        f'<table class="wide">{"".join(rows)}</table></td></tr></table>'
    )


def mask(layout: Layout, size: int = 12) -> str:
    number_N = layout.numbers_N().tolist()
    lines = "".join(
        "<tr>" + "".join(
            f'<td style="padding: 0; width: {size}px; height: {size}px; background: '
            f'{COLOURS[a] if a == b else "#f6f7f9"}; border: 1px solid white"></td>'
            for b in number_N) + "</tr>"
        for a in number_N
    )  # fmt: skip
    return f"<table>{lines}</table>"


# From a command to a finished run

STAGES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("request", "options, recipe and key=value words become settings",
     "training/request.py", ()),
    ("prepare", "bind columns, check, split, train a tokenizer, encode",
     "data/prepare.py", ("data",)),
    ("resolve", "choose what is open: defaults by task, data and device",
     "training/resolve.py", ("config.toml", "tokenizer.json")),
    ("build", "model, objective and optimizer; facts for the report",
     "training/trainer.py", ("card.json",)),
    ("loop", "step, evaluate, save; resume after a kill",
     "training/loop.py", ("checkpoints", "metrics.jsonl")),
    ("choose", "the best checkpoint or the average, and its weights",
     "training/trainer.py", ("model.safetensors",)),
    ("report", "curves, scores and samples", "training/report.py", ("report.html",)),
)  # fmt: skip


def run_card() -> str:
    with tempfile.TemporaryDirectory() as name:
        pairs, folder = Path(name) / "pairs.tsv", Path(name) / "run"
        lines = gzip.decompress(FILE.read_bytes()).decode("utf-8").splitlines(keepends=True)
        pairs.write_text("".join(lines[::10]), "utf-8")
        settings = {"model.preset": "transformer-test", "train.steps": 20}
        headway.train("translate", pairs, out=folder, settings=settings, quiet=True)
        rows = "".join(stage_row(folder, *stage) for stage in STAGES)
        written = {path.name for path in folder.iterdir()}
    named = {name for *_, files in STAGES for name in files}
    if left := sorted(one for one in written - named if not one.startswith(".")):
        raise SystemExit(f"the diagram of a run does not show {', '.join(left)}")
    titles = "".join(f"<th>{one}</th>" for one in ("stage", "", "code", "writes in the run folder"))
    return (
        "<h1>headway train translate pairs.tsv --out runs/mine</h1>"
        f'<table class="wide"><tr>{titles}</tr>{rows}</table>'
    )


def stage_row(folder: Path, name: str, does: str, code: str, files: Sequence[str]) -> str:
    if not (PACKAGE / code).is_file():
        raise SystemExit(f"{code} does not exist")
    made = []
    for file in files:
        path = folder / file
        made.append(f"{file}/" if path.is_dir() else f"{file} ({size(path)})")
    return (
        f'<tr><td>{box(name, "body")}</td><td class="plain">{escape(does)}</td>'
        f'<td class="code">{code}</td><td>{"<br>".join(made)}</td></tr>'
    )


def size(path: Path) -> str:
    n = path.stat().st_size
    return f"{n / 1e3:.0f} kB" if n >= 1000 else f"{n} bytes"


# Hypotheses that share a cache

STEPS = 4
"""Steps of the search that are drawn."""


class Recorded(Seq2SeqSteps):
    """Steps of a search that keep the mask and the tokens of each."""

    seen: list[tuple[torch.Tensor, torch.Tensor]]

    def step(self, tokens_BW: torch.Tensor) -> torch.Tensor:
        scores_RV = super().step(tokens_BW)
        self.seen = [
            *getattr(self, "seen", []),
            (self.may_BWS[0, :, : self.length * self.width].clone(), tokens_BW[0].clone()),
        ]
        return scores_RV


class RecordingSearcher(Searcher):
    recorded: Recorded

    def steps(self, sources: Sequence[Any], begin: StepsConfig) -> DecodingSteps:
        model = self.models[0]
        assert isinstance(model, Seq2Seq)
        self.recorded = Recorded(model, sources, begin.width, begin.capacity)
        return self.recorded


def beam_card() -> str:
    steps = recorded_steps()
    tokenizer = traced()[0].vocab.target
    cells = [tokenizer.tokens([int(one)])[0] for _, tokens_W in steps.seen[:STEPS]
             for one in tokens_W]  # fmt: skip
    may_WS = steps.seen[STEPS - 1][0]
    width = len(may_WS)
    heads = "".join(
        f'<th colspan="{width}" style="text-align: center; border-left: 2px solid white">'
        f"step {step + 1}</th>"
        for step in range(STEPS)
    )
    names = "".join(f'<th class="column">{escape(one)}</th>' for one in cells)
    rows = []
    for number, may_S in enumerate(may_WS.tolist()):
        text = " ".join(piece for piece, may in zip(cells, may_S, strict=True) if may)
        marks = "".join(
            f'<td style="width: 20px; height: 20px; padding: 0; border: 1px solid white; '
            f'background: {"#2a62c9" if may else "#eceff3"}"></td>'
            for may in may_S
        )
        rows.append(f"<tr><td>hypothesis {number + 1}</td>{marks}"
                    f'<td style="padding-left: 14px">{escape(text)}</td></tr>')  # fmt: skip
    return (
        f"<h1>“{SENTENCE}”: the cache of its {width} hypotheses after {STEPS} steps</h1>"
        f"<table><tr><th></th>{heads}<th></th></tr>"
        f'<tr style="vertical-align: bottom"><th></th>{names}<th style="padding-left: 14px">'
        f"keys that it reads</th></tr>{''.join(rows)}</table>"
    )


def recorded_steps() -> Recorded:
    """The steps of a beam search, as `Searcher` runs it."""
    run, _ = traced()
    source, target = run.vocab.source, run.vocab.target
    assert isinstance(run.model, Seq2Seq)
    searcher = RecordingSearcher(
        [run.model], run.settings.decode, SpecialTokens(target.bos, target.eos, target.unk)
    )
    searcher([source.as_source(source.encode(SENTENCE))])
    return searcher.recorded


FIGURES = {
    "architecture-layers": partial(drawn, layers_card),
    "architecture-families": partial(drawn, families_card),
    "architecture-attention": partial(drawn, attention_card),
    "architecture-run": partial(drawn, run_card),
    "architecture-beam": partial(drawn, beam_card),
}
