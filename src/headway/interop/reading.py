"""The sentences of a proof, and what our model says of them.

A language model goes on from each sentence greedily and a translator translates it greedily; then
the model reads that text and scores every next token. Where another side, reading the same, has the
same best tokens everywhere, its greedy outputs are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headway.config.decode import DecodeSettings
from headway.config.listed import listed
from headway.config.model import EncoderSettings, Seq2SeqSettings
from headway.decode.hypothesis import Specials
from headway.decode.prompts import PromptSearcher
from headway.decode.search import Searcher
from headway.models.decoder import Decoder
from headway.models.parts.heads import Input
from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout
from headway.tasks.opened import Opened
from headway.tasks.read import asked, readout_of
from headway.text.tokenizer import Tokenizer

NEW_TOKENS = 16
"""How far a language model goes on from a sentence."""

LONGEST_OUTPUT = 48
"""Of a translation."""

SENTENCES = (
    "A dog runs across the wet grass.",
    "Hello!",
    "Once upon a time there was a little girl who lived in a house at the edge of the forest.",
    "Zwei junge Männer spielen im Garten Fußball, während ihre Großmutter zusieht.",
    "The price rose by 3.75 % to 1,204.50 dollars in 2019.",
    "Où est la gare, s'il vous plaît ?",
    "Мама мыла раму, а папа читал газету.",
    "猫が窓のそばで静かに眠っている。",
    "القطة تنام بهدوء بجانب النافذة.",
    'He said: "It\'s not what I expected" (and left).',
    "CC(=O)Oc1ccccc1C(=O)O",
    "tick tick tick tick tick tick tick tick tick tick tick tick tick tick tick tick",
    "naïve café – résumé … 🙂",
    "In the beginning the committee, which had been formed only two weeks earlier and had not yet "
    "agreed on its own rules, decided against the advice of its chairman to open all of its "
    "meetings to the public, to print what was said there word for word, and to answer every "
    "letter that it received within seven days, whoever had written it and whatever it was about.",
    "Is this good or bad?",
    "def f(x): return x ** 2 + 1",
)
"""Short and long, several scripts, digits, signs; some of them are unknown to most vocabularies."""


@dataclass(frozen=True)
class Reading:
    """One sentence as our model reads it, and what it says."""

    tokens: list[int]
    """A text with its special tokens; of a translator the source."""

    target: list[int]
    """What the decoder of a translator reads: the beginning, then our greedy output."""

    segments: list[int]
    """Of an encoder: 1 for the second text of a pair."""

    scores: NDArray[np.float32]
    """A row for each token (words, tags; of a translator each of `target`), or one (classes, a
    vector of the text)."""

    hidden_TD: NDArray[np.float32]
    """Of each token, before the head; of a translator in its decoder."""


def proof_sentences(n: int = 16, more: Sequence[str] = ()) -> list[str]:
    """The user's own first, where there are any, then ours, as many as asked for."""
    own = [line for line in listed(more) if line.strip()]
    return [*own, *SENTENCES[: max(0, n - len(own))]]


def proof_ids(run: Opened, sentences: Sequence[str]) -> list[list[int]]:
    """The tokens of each, as the task of the run reads them, cut to what the model reads.

    An encoder that knows pairs reads every fourth sentence together with the one before it; one
    that fills gaps gets some.
    """
    tokenizer, longest = run.vocab.source, run.shape.max_len
    ids = tokenizer.encode_batch(list(sentences))
    if isinstance(run.shape, Seq2SeqSettings):
        begin = [] if tokenizer.source_begin is None else [tokenizer.source_begin]
        longest = min(longest, run.settings.data.max_len)
        return [[*begin, *text[: longest - 2], tokenizer.eos] for text in ids]
    if not isinstance(run.shape, EncoderSettings) and run.spec.continues:
        room = max(1, longest - min(NEW_TOKENS, longest // 2) - 1)
        return [tokenizer.as_prompt(text[:room]) for text in ids]
    pairs = bool(run.settings.data.other_field) or getattr(run.shape, "n_segments", 0) > 1
    found = []
    for number, text in enumerate(ids):
        before = ids[number - 1] if pairs and number % 4 == 3 else None
        found.append(_between_ends(tokenizer, text, before, longest))
    return [_with_gaps(run, text) for text in found]


def _between_ends(
    tokenizer: Tokenizer, text: list[int], before: list[int] | None, longest: int
) -> list[int]:
    if before is None:
        return tokenizer.as_text(text[: longest - 2])
    ends = [tokenizer.eos] * tokenizer.pair_ends
    room = max(0, (longest - 2 - len(ends)) // 2)
    return [tokenizer.bos, *before[:room], *ends, *text[:room], tokenizer.eos]


def _with_gaps(run: Opened, tokens: list[int]) -> list[int]:
    mask = run.vocab.source.mask
    if run.spec.answers != "gaps" or mask is None:
        return tokens
    specials = run.vocab.source.specials
    gaps = set(range(2, len(tokens), 7))
    return [mask if i in gaps and t not in specials else t for i, t in enumerate(tokens)]


def segments_of(run: Opened, tokens: Sequence[int]) -> list[int]:
    """1 behind the first end token, for a model that knows segments."""
    if getattr(run.shape, "n_segments", 0) < 2:
        return [0] * len(tokens)
    first = list(tokens).index(run.vocab.source.eos)
    return [int(place > first) for place in range(len(tokens))]


@torch.no_grad()
def our_logits(run: Opened, ids: Sequence[Sequence[int]]) -> list[Reading]:
    """Each by itself: no other sentence can round its numbers differently."""
    texts = [list(tokens) for tokens in ids]
    outputs: list[list[int]] = [[] for _ in texts]
    if isinstance(run.model, Seq2Seq):
        outputs = _translated(run, run.model, texts)
    elif run.spec.continues and isinstance(run.model, Decoder):
        texts = _continued(run, run.model, texts)
    return [read_again(run, *both) for both in zip(texts, outputs, strict=True)]


@torch.no_grad()
def read_again(run: Opened, tokens: list[int], target: list[int]) -> Reading:
    """What the model of a run says of a text, or of a source and what was written so far."""
    segments = segments_of(run, tokens)
    streams = [Input(*_flat(tokens), torch.tensor(segments))]
    if target:
        streams = [Input(*_flat(tokens)), Input(*_flat(target))]
    return read_streams(run, streams, tokens, target, segments)


@torch.no_grad()
def read_streams(
    run: Opened,
    streams: Sequence[Input],
    tokens: list[int],
    target: list[int],
    segments: Sequence[int] = (),
    rows_R: torch.Tensor | None = None,
) -> Reading:
    """What the model of a run says of what it is given; `rows_R`: those of its rows that count."""
    found = asked(run.model).states(*streams)
    read = readout_of(run.settings).of(run.model, *found[:2], rows_R)
    return Reading(tokens, target, list(segments), _array(read.answers()), _array(found.x_ND))


def _specials(run: Opened) -> Specials:
    return Specials.of(run.vocab.target)


def _translated(run: Opened, model: Seq2Seq, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    room = min(LONGEST_OUTPUT, run.shape.max_len - 1)
    settings = DecodeSettings(beam=1, max_len=room, unknown="keep")
    found = Searcher([model], settings, _specials(run))(sources)
    return [[run.vocab.target.bos, *best.tokens] for best, *_ in found]


def _continued(run: Opened, model: Decoder, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    settings = DecodeSettings(beam=1, max_len=NEW_TOKENS, unknown="keep")
    found = PromptSearcher([model], settings, _specials(run), run.shape.max_len)(prompts)
    texts = ([*prompt, *best.tokens] for prompt, (best, *_) in zip(prompts, found, strict=True))
    return [text[: run.shape.max_len] for text in texts]


def _flat(tokens: Sequence[int]) -> tuple[torch.Tensor, Layout]:
    return torch.tensor(tokens), Layout.of([len(tokens)])


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return tensor.float().numpy()
