"""The sentences of a proof, and what our model says of them.

A language model goes on from each sentence greedily and a translator translates it greedily; then
the model reads that text and scores every next token. Where another side, reading the same, has the
same best tokens everywhere, its greedy outputs are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from headway.decode.search.hypothesis import Specials
from headway.decode.search.searcher import Searcher
from headway.models.decoder import Decoder
from headway.models.parts.heads import Input
from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout
from headway.settings.decode import DecodeSettings
from headway.settings.listed import listed
from headway.tasks.opened import Opened
from headway.tasks.read import asked, readout_of
from headway.tasks.text_items import TextItem, framed

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

    @property
    def text(self) -> TextItem:
        return TextItem(self.tokens, self.segments)


def proof_sentences(n: int = 16, more: Sequence[str] = ()) -> list[str]:
    """The user's own first, where there are any, then ours, as many as asked for."""
    own = [line for line in listed(more) if line.strip()]
    return [*own, *SENTENCES[: max(0, n - len(own))]]


def proof_texts(run: Opened, sentences: Sequence[str]) -> list[TextItem]:
    """Each as the task of the run reads it, cut to what the model reads.

    An encoder that knows pairs reads every fourth sentence together with the one before it; one
    that fills gaps gets some.
    """
    tokenizer, longest = run.vocab.source, run.shape.max_len
    ids = tokenizer.encode_batch(list(sentences))
    if run.spec.reads == "pairs":
        room = min(longest, run.settings.data.max_len) - 2
        return [TextItem(tokenizer.as_source(text[:room])) for text in ids]
    if run.spec.continues:
        room = max(1, longest - min(NEW_TOKENS, longest // 2) - 1)
        return [TextItem(tokenizer.as_prompt(text[:room])) for text in ids]
    pairs = bool(run.settings.data.other_field) or getattr(run.shape, "n_segments", 0) > 1
    found = []
    for number, text in enumerate(ids):
        if pairs and number % 4 == 3:
            room = max(0, (longest - 2 - tokenizer.pair_ends) // 2)
            found += framed(run, [ids[number - 1][:room]], [text[:room]])
        else:
            found += framed(run, [text[: longest - 2]])
    return [_with_gaps(run, text) for text in found]


def _with_gaps(run: Opened, text: TextItem) -> TextItem:
    mask = run.vocab.source.mask
    if run.spec.answers != "gaps" or mask is None:
        return text
    specials = run.vocab.source.specials
    gaps = set(range(2, len(text.ids), 7))
    hidden = [mask if i in gaps and t not in specials else t for i, t in enumerate(text.ids)]
    return text._replace(ids=hidden)


@torch.no_grad()
def our_logits(run: Opened, texts: Sequence[TextItem]) -> list[Reading]:
    """Each by itself: no other sentence can round its numbers differently."""
    ids = [text.ids for text in texts]
    if run.spec.reads == "pairs":
        return [read_again(run, *both) for both in zip(texts, _translated(run, ids), strict=True)]
    if run.spec.continues:
        texts = [TextItem(tokens) for tokens in _continued(run, ids)]
    return [read_again(run, text, []) for text in texts]


@torch.no_grad()
def read_again(run: Opened, text: TextItem, target: list[int]) -> Reading:
    """What the model of a run says of a text, or of a source and what was written so far."""
    tokens, segments = text.ids, text.segments or [0] * len(text.ids)
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


def _translated(run: Opened, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    room = min(LONGEST_OUTPUT, run.shape.max_len - 1)
    settings = DecodeSettings(beam=1, max_len=room, unknown="keep")
    found = Searcher([cast(Seq2Seq, run.model)], settings, _specials(run))(sources)
    return [[run.vocab.target.bos, *best.tokens] for best, *_ in found]


def _continued(run: Opened, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    settings = DecodeSettings(beam=1, max_len=NEW_TOKENS, unknown="keep")
    model = cast(Decoder, run.model)
    found = Searcher([model], settings, _specials(run), run.shape.max_len)(prompts)
    texts = ([*prompt, *best.tokens] for prompt, (best, *_) in zip(prompts, found, strict=True))
    return [text[: run.shape.max_len] for text in texts]


def _flat(tokens: Sequence[int]) -> tuple[torch.Tensor, Layout]:
    return torch.tensor(tokens), Layout.of([len(tokens)])


def _array(tensor: torch.Tensor) -> NDArray[np.float32]:
    return tensor.float().numpy()
