"""Images of the pages about models and weights."""

from __future__ import annotations

import gzip
import html
import io
import json
import re
import statistics
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

import headway
from headway.settings.folder import SHIPPED, TOKENIZER
from headway.tokens.files import load_tokenizer
from headway.tokens.tokenizer import Tokenizer, Vocabularies

from .browser import ROOT, card, console, output
from .curves import BODIES, RESULTS, drawn

PAIRS = ROOT / "examples" / "data" / "tatoeba-de-en.tsv.gz"
GREY, LIGHT, BLUE = "#556070", "#d5dbe5", "#2a62c9"
TINTS = ("#dbe6fb", "#fbe6d4", "#dcf0e0")


def svg(body: str, width: float, height: float) -> str:
    """An SVG image with the arrowhead that `arrow` draws."""
    head = (
        f'<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{GREY}"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'style="font: 13px sans-serif; background: white"><defs>{head}</defs>{body}</svg>'
    )


def arrow(path: str) -> str:
    return (
        f'<path d="{path}" fill="none" stroke="{GREY}" stroke-width="1.3" marker-end="url(#head)"/>'
    )


# Bodies


PATHS = (
    ("transformer", False, range(6), ("every token reads all others", "at once")),
    ("lstm, gru", True, (), ("a state goes from token", "to token")),
    ("convolution", False, range(3, 6), ("a window over neighbours,", "layer upon layer")),
    ("sha-rnn", True, range(6), ("a state, and one head", "of attention")),
)
"""Bodies: name, whether a state goes from token to token, the inputs that the last of six tokens
reads directly, and two lines of text."""


def paths(browser: Any) -> NDArray[np.uint8]:
    """What the last of six tokens reads in one layer of each body."""
    parts = []
    for number, (title, has_state, read, note) in enumerate(PATHS):
        at = 205 * number + 14
        last = at + 32 * 5
        parts.append(f'<text x="{at - 8}" y="16" font-weight="bold">{title}</text>')
        for x in range(at, last + 1, 32):
            fill = BLUE if x == last else LIGHT
            parts.append(f'<circle cx="{x}" cy="120" r="7" fill="{LIGHT}"/>')
            parts.append(f'<circle cx="{x}" cy="44" r="7" fill="{fill}"/>')
            if has_state:
                parts.append(arrow(f"M{x} 111V54"))
                if x < last:
                    parts.append(arrow(f"M{x + 8} 44H{x + 23}"))
        parts += [arrow(f"M{at + 32 * token} 111L{last} 54") for token in read]
        for row, line in enumerate(note):
            parts.append(f'<text x="{at - 8}" y="{150 + 17 * row}" fill="{GREY}">{line}</text>')
    return drawn(svg("".join(parts), 4 * 205, 176), browser)


SETS = (
    ("multi30k", "bleu", "Multi30k, BLEU", 25),
    ("tinyshakespeare", "loss", "Tiny Shakespeare, loss (lower is better)", 2.5),
    ("sst2", "accuracy", "SST-2, accuracy in %", 85),
)
"""Sets of the comparison with equal tokens: name, score, title and the end of the axis."""


def equal_tokens(browser: Any) -> NDArray[np.uint8]:
    """Scores of small models that saw the same number of tokens, one panel per dataset."""
    found = json.loads((RESULTS / "bodies-tokens-cpu.json").read_text("utf-8"))["sets"]
    parts, y = [], 0
    for name, score, title, most in SETS:
        parts.append(f'<text x="0" y="{y + 16}" font-weight="bold">{title}</text>')
        y += 26
        for arm, row in found[name]["rows"].items():
            if "tokens" not in row:
                continue
            every = [row["tokens"], *row["tokens"].get("other_seeds", {}).values()]
            value = statistics.mean(one["scores"][score] for one in every)
            width = 420 * value / most
            colour = BODIES.get(arm.partition(",")[0], "#767f8f")
            digits = 3 if score == "loss" else 1
            parts.append(
                f'<text x="130" y="{y + 13}" text-anchor="end">{arm}</text>'
                f'<rect x="138" y="{y + 1}" width="{width:.1f}" height="15" fill="{colour}"/>'
                f'<text x="{144 + width:.1f}" y="{y + 13}" fill="{GREY}">{value:.{digits}f}</text>'
            )
            y += 19
        y += 16
    return drawn(svg("".join(parts), 640, y), browser)


# Tokenizers

SENTENCE = "She didn't recognise the café-owner's handwriting."
"""A sentence with a contraction, an accent, a hyphen and a rare word."""


def english(n: int = 8000) -> list[str]:
    """The first English sentences of the examples."""
    with gzip.open(PAIRS, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n").split("\t")[1] for line in islice(lines, n)]


def sentencepiece_of(folder: Path) -> Tokenizer:
    """A unigram model that the library sentencepiece trains in a second."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(english()), model_writer=written, vocab_size=2000,
        model_type="unigram", minloglevel=2,
    )  # fmt: skip
    (folder / "unigram.model").write_bytes(written.getvalue())
    return load_tokenizer(folder / "unigram.model")


def gpt2_of(folder: Path) -> Tokenizer:
    """Byte-level BPE in GPT-2's two files, which the library tokenizers trains in a second."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(english(), vocab_size=2000, show_progress=False,
                                special_tokens=["<|endoftext|>"])  # fmt: skip
    trained.save_model(str(folder))
    return load_tokenizer(folder / "vocab.json")


def shipped(name: str) -> Tokenizer:
    return Vocabularies.load(SHIPPED / name / TOKENIZER).source


def cut(browser: Any) -> NDArray[np.uint8]:
    """One sentence, as four tokenizers cut it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = (
            ("WordPiece, base-en", shipped("base-en")),
            ("BPE, stories", shipped("stories")),
            ("SentencePiece (unigram.model), trained on 8,000 sentences", sentencepiece_of(folder)),
            (
                "Byte-level BPE (vocab.json, merges.txt), trained on 8,000 sentences",
                gpt2_of(folder),
            ),
        )
        parts = [f"<h1>{html.escape(SENTENCE)}</h1>"]
        for title, tokenizer in rows:
            tokens = tokenizer.tokens(tokenizer.encode(SENTENCE))
            parts.append(f"<h2>{html.escape(title)}: {len(tokens)} tokens</h2><div>")
            parts += [
                f'<span class="token" style="background: {TINTS[number % 3]}">'
                f"{html.escape(token)}</span>"
                for number, token in enumerate(tokens)
            ]
            parts.append("</div>")
    return card(browser, "".join(parts))


# base-en

SENTENCES = (
    "The film was wonderful.",
    "I loved this movie.",
    "What a boring movie.",
    "The cat sleeps on the sofa.",
    "A kitten is napping on the couch.",
    "The train to Berlin is late.",
    "My flight was delayed.",
)


def cosines(browser: Any) -> NDArray[np.uint8]:
    """Cosines between the vectors of a few sentences."""
    answers = headway.load("base-en", device="cpu")(list(SENTENCES))
    vectors_BD = np.array([answer.vector for answer in answers])
    vectors_BD /= np.linalg.norm(vectors_BD, axis=1, keepdims=True)
    rows = []
    for sentence, values in zip(SENTENCES, vectors_BD @ vectors_BD.T, strict=True):
        cells = "".join(
            f'<td style="width: 44px; padding: 6px 0; text-align: center; '
            f"background: rgba(42, 98, 201, {max(0.0, value):.3f}); "
            f'color: {"white" if value > 0.6 else "#1b2330"}">{value:.2f}</td>'
            for value in values
        )
        rows.append(f"<tr><td>{html.escape(sentence)}</td>{cells}</tr>")
    return card(browser, f"<table>{''.join(rows)}</table>")


# Imports and exports

PROGRESS = re.compile(r"  \d+s so far$")
"""End of a line that a slow machine prints while it works."""


@cache
def folder() -> Path:
    """The folder in which the commands of the images run."""
    return Path(tempfile.mkdtemp())


def ran(command: str) -> tuple[str, Sequence[str]]:
    """A command and the lines that it printed."""
    lines = [line for line in output(command, cwd=folder()) if not PROGRESS.search(line)]
    return command, [*lines, ""]


@cache
def exported() -> list[tuple[str, Sequence[str]]]:
    return [
        ran("headway export tatoeba-de-en --to hf --out de-en-hf"),
        ran("headway export tatoeba-de-en --to ctranslate2 --int8 --out de-en-ct2"),
    ]


def proofs(browser: Any) -> NDArray[np.uint8]:
    """Two exports with their proofs."""
    return console(browser, exported(), width=800)


def imported(browser: Any) -> NDArray[np.uint8]:
    """A folder of Hugging Face becomes a run, which translates."""
    exported()
    session = [
        ran("headway import de-en-hf --out runs/back"),
        ran('headway predict runs/back --text "Ich habe gestern ein altes Buch gelesen."'),
    ]
    return console(browser, session, width=800)


FIGURES = {
    "base-en-cosines": cosines,
    "export-proof": proofs,
    "import-folder": imported,
    "bodies-paths": paths,
    "bodies-tokens": equal_tokens,
    "tokenizers-cut": cut,
}
