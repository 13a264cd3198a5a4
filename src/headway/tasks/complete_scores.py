"""How good a language model is on held-out text: in nats a token, in bits a byte, and how much the
other fields of a document say about its body."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from headway.config.data import DataSettings
from headway.config.run import RunSettings
from headway.data.example import TextKind
from headway.data.store import Columns, load_prepared
from headway.data.streams import USUAL, FieldStream
from headway.data.texts import evaluation_set
from headway.data.windows import Numbers
from headway.errors import DataError
from headway.metrics.language import token_counts, unigram_bits_per_byte
from headway.models.decoder import Decoder
from headway.models.parts.heads import Input
from headway.nn.layout import Layout
from headway.progress import SILENT, Progress
from headway.tasks.language import (
    check_language,
    context_of,
    language_scores,
    likelihood,
    stream,
)
from headway.tasks.losses import PLAIN, word_loss
from headway.tasks.opened import Opened
from headway.tasks.read import EachRow
from headway.tasks.scores import Row, Scores
from headway.tasks.specs import METRICS
from headway.tasks.task import TOKENS

AT_ONCE = 4096
"""Tokens of documents scored together."""


@torch.no_grad()
def evaluate_language(
    opened: Opened,
    settings: RunSettings,
    files: DataSettings,
    progress: Progress = SILENT,
) -> Scores:
    check_language(opened)
    model, tokenizer, device = opened.model, opened.vocab.target, opened.device
    assert isinstance(model, Decoder)
    kind: TextKind = "fields" if files.fields else "documents"
    texts, _ = evaluation_set(kind, replace(settings, data=files), tokenizer, ())
    source = stream(texts, tokenizer, replace(settings, data=files))
    context = settings.complete.context or context_of(opened.settings)
    with progress.stage("reading") as stage:
        total, count, _ = likelihood(model, source, context, device, on_progress=stage.update)
    n_bytes = texts.n_bytes
    values = language_scores(total, count, n_bytes)
    rows: list[Row] = [
        ("documents", f"{texts.n:,}", f"{count:,} tokens, {n_bytes:,} bytes"),
        ("loss", f"{values['loss']:.4f}", f"nats a token, windows of {context:,} tokens"),
        ("perplexity", f"{values['ppl']:.3f}", "a token; depends on the tokenizer"),
    ]
    if not files.fields:
        rows.append(("bits per byte", f"{values['bits_per_byte']:.4f}", ""))
    else:
        assert isinstance(source, FieldStream)
        values = {name: v for name, v in values.items() if name != "bits_per_byte"}
        rows += _body(model, source, context, n_bytes, values)
    baseline, remark = _unigram(opened.folder, texts, tokenizer.vocab_size)
    values |= {} if baseline is None else {"unigram_bits_per_byte": baseline}
    shown = "–" if baseline is None else f"{baseline:.4f}"
    rows.append(("baseline: unigram", shown, remark))
    known = {name: value for name, value in values.items() if name in METRICS}
    trivial = {} if baseline is None else {TOKENS: {"bits_per_byte": baseline}}
    return Scores(known, rows=rows, facts=values, find_baselines=lambda: trivial)


def _unigram(folder: Path, texts: Columns, vocab_size: int) -> tuple[float | None, str]:
    """Bits a byte of a model that knows how frequent tokens are and nothing else."""
    try:
        training = load_prepared(folder).train.body.tokens
    except (DataError, OSError):
        return None, "the run's training data is not there any more"
    counts_V = token_counts(training, vocab_size)
    found = unigram_bits_per_byte(counts_V, texts.body.tokens, texts.n_bytes)
    return found, "bits per byte, from the frequency of tokens alone"


def _body(
    model: Decoder, source: FieldStream, context: int, n_bytes: int, values: dict[str, float]
) -> list[Row]:
    """The likelihood of the last field, given all others and given none."""
    body, rows = source.names[-1], []
    shown = {"alone": [body], "given the other fields": source.names}
    for name, names in shown.items():
        total, count = body_likelihood(model, source, names, context)
        loss, bits = total / max(1, count), total / math.log(2) / max(1, n_bytes)
        key = name.split(" ")[0]
        values |= {f"{body}_{key}_loss": loss, f"{body}_{key}_bits_per_byte": bits}
        remark = f"perplexity a token; {bits:.4f} bits a byte"
        rows.append((f"{body} {name}", f"{math.exp(min(loss, 50.0)):.3f}", remark))
    return rows


def body_likelihood(
    model: Decoder, source: FieldStream, names: Sequence[str], context: int
) -> tuple[float, int]:
    """Minus the log-likelihood of the last field behind the fields of these names, and its tokens,
    the closing mark among them."""
    device = next(model.parameters()).device
    chosen = np.array([name in names for name in source.names])
    present_DF, order_DF = source.choice(USUAL)
    trial = replace(source, _choices={USUAL: (present_DF & chosen, order_DF)})
    open_mark = source.marks[source.names[-1]].open
    total, count = 0.0, 0
    waiting: list[tuple[Numbers, NDArray[np.bool_]]] = []

    def score() -> None:
        nonlocal total, count, waiting
        tokens_N, is_body_N = (np.concatenate(part) for part in zip(*waiting, strict=True))
        lengths = [len(tokens) - 1 for tokens, _ in waiting]
        ends = np.cumsum([length + 1 for length in lengths])
        inside = np.ones(len(tokens_N), np.bool_)
        inside[ends - 1] = False  # the last token of a window is only a label
        behind = np.ones(len(tokens_N), np.bool_)
        behind[np.concatenate([[0], ends[:-1]])] = False
        tokens = torch.from_numpy(tokens_N[inside]).to(device)
        read = EachRow("words").read(model, Input(tokens, Layout.of(lengths, device)))
        weights_N = torch.from_numpy(is_body_N[behind].astype(np.float32)).to(device)
        labels_N = torch.from_numpy(tokens_N[behind]).to(device)
        loss = word_loss(read.weighed(weights_N), labels_N, PLAIN)
        total, count, waiting = total + float(loss.nll), count + int(weights_N.sum()), []

    for number in np.flatnonzero(present_DF[:, -1]):
        tokens = trial.document(USUAL, int(number))
        first_of_body = int(np.flatnonzero(tokens == open_mark)[0]) + 1
        is_body = np.arange(len(tokens)) >= first_of_body
        is_body[-1] = False  # the end of the document says nothing about the body
        for start in range(0, len(tokens) - 1, context):
            piece = slice(start, start + context + 1)
            waiting.append((tokens[piece], is_body[piece]))
        if sum(len(tokens) for tokens, _ in waiting) > AT_ONCE:
            score()
    if waiting:
        score()
    return total, count
