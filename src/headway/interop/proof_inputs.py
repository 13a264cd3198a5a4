"""What a proof asks, and what our model says of it, whatever the task.

Texts are sentences of ours and of the user, as the task cuts them; pictures and recordings are made
here, of many kinds. What writes about a source writes greedily, and a language model goes on from a
sentence greedily; then the model reads that text and scores every next token. Where another side,
reading the same, has the same best tokens everywhere, its greedy outputs are the same. What
rebuilds hidden parts has some hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.data.media.open_item import UNITS
from headway.decode.search.hypothesis import Specials
from headway.decode.search.searcher import Searcher
from headway.models.decoder import Decoder
from headway.models.parts.output_heads import Input
from headway.models.seq2seq import Seq2Seq
from headway.nn.devices import CPU
from headway.nn.layout import Layout
from headway.settings.audio import SoundSettings
from headway.settings.decode import DecodeSettings
from headway.settings.listed import listed
from headway.settings.run import media_front
from headway.settings.vision import PictureSettings
from headway.tasks.intake import Cuts, Gone, Hiding, intake_of
from headway.tasks.items import Batch, Draw
from headway.tasks.media_inputs import what_of
from headway.tasks.opened import Opened
from headway.tasks.readout import EachRow, OneVector, as_model, readout_of
from headway.tasks.text_items import TextItem, frame_tokens, tagged_item

NEW_TOKENS = 16
"""How far a language model goes on from a sentence."""

LONGEST_OUTPUT = 48
"""Of a translation; half as much is written about a picture or a recording."""

N_PICTURES = 8
SECONDS = (0.4, 1.1, 2.5, 6.0)
"""Lengths of recordings, as far as the model listens."""

Scores = NDArray[np.float32]
Media = NDArray[Any]
"""Pixels (T C Y X) or samples."""

Item = TextItem | Media

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
    """One item as our model reads it, and what it says."""

    item: Item
    target: list[int]
    """What a decoder beside an encoder reads: the beginning, then our greedy output."""

    scores: Scores
    """A row for each row of the item (words, tags, symbols; of what writes about a source each of
    `target`), or one (classes, a vector of the whole)."""

    hidden_TD: Scores
    """Of each row, before the head; of what writes in its decoder."""

    gone_P: NDArray[np.bool_] | None = None
    """Which parts of a picture or recording were hidden, of a model that rebuilds them."""

    heard: Scores | None = None
    """What CTC beside a decoder hears in each row of the source."""

    @property
    def tokens(self) -> list[int]:
        """A text with its special tokens."""
        return self.item.ids if isinstance(self.item, TextItem) else []

    @property
    def n_read(self) -> int:
        """Tokens, of texts and of what was written, or else rows."""
        return len(self.tokens) + len(self.target) or len(self.hidden_TD)


def proof_sentences(n: int = 16, more: Sequence[str] = ()) -> list[str]:
    """The user's own first, where there are any, then ours, as many as asked for."""
    own = [line for line in listed(more) if line.strip()]
    return [*own, *SENTENCES[: max(0, n - len(own))]]


def proof_items(run: Opened, sentences: Sequence[str], *, odd: bool = False) -> list[Item]:
    """Of the kind that the model reads. `odd`: of recordings two more, one shorter than a frame and
    one that is silent for the most part."""
    shape = media_front(run.settings)
    if shape is None:
        return [*proof_texts(run, sentences)]
    if isinstance(shape, PictureSettings):
        return [*proof_pictures(shape)]
    sounds = proof_sounds(shape)
    half = np.zeros_like(sounds[1])
    half[: len(half) // 3] = sounds[1][: len(half) // 3]
    return [*sounds, *([sounds[0][: shape.n_fft // 2], half] if odd else [])]


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
    if run.spec.reads == "tagged" and getattr(run.shape, "reads_shapes", False):
        return [tagged_item(run, sentence) for sentence in sentences]
    pairs = bool(run.settings.data.other_field) or getattr(run.shape, "n_segments", 0) > 1
    found = []
    for number, text in enumerate(ids):
        if pairs and number % 4 == 3:
            room = max(0, (longest - 2 - tokenizer.pair_ends) // 2)
            found += frame_tokens(run, [ids[number - 1][:room]], [text[:room]])
        else:
            found += frame_tokens(run, [text[: longest - 2]])
    return [_with_gaps(run, text) for text in found]


def _with_gaps(run: Opened, text: TextItem) -> TextItem:
    mask = run.vocab.source.mask
    if run.spec.answers != "gaps" or mask is None:
        return text
    specials = run.vocab.source.specials
    gaps = set(range(2, len(text.ids), 7))
    hidden = [mask if i in gaps and t not in specials else t for i, t in enumerate(text.ids)]
    return text._replace(ids=hidden)


def proof_pictures(shape: PictureSettings, n: int = N_PICTURES) -> list[Media]:
    """Noise, ramps, stripes and flat ones, of the size that the model was made for (T C Y X)."""
    draw = np.random.default_rng(7)
    size = (shape.frames, shape.channels, shape.height, shape.width)
    y, x = np.mgrid[: shape.height, : shape.width]
    found: list[Media] = []
    for number in range(n):
        noise = draw.integers(0, 256, size, dtype=np.uint8)
        ramp = (y * (number + 1) * 7 + x * (n - number) * 5) % 256
        flat = draw.integers(0, 256, (1, shape.channels, 1, 1), dtype=np.uint8)
        kinds = (noise, ramp, np.where((x // (number + 2)) % 2, ramp, flat), flat)
        found.append(np.broadcast_to(kinds[number % len(kinds)], size).astype(np.uint8))
    return found


def proof_sounds(shape: SoundSettings) -> list[Media]:
    """Noise and tones that rise, of several lengths, as 16-bit samples."""
    draw = np.random.default_rng(7)
    found: list[Media] = []
    for number, seconds in enumerate(SECONDS):
        longest = shape.pad_s or seconds
        if shape.most_rows is not None:
            longest = min(longest, shape.most_rows * shape.row_seconds)
        time_S = np.arange(round(min(seconds, longest) * shape.rate)) / shape.rate
        tone_S = np.sin(2 * np.pi * (200 + 150 * number + 400 * time_S) * time_S)
        noise_S = draw.normal(size=len(time_S))
        both_S = 6000 * (tone_S if number % 2 else noise_S / 3) + 300 * noise_S
        found.append(np.clip(both_S, -32768, 32767).astype(np.int16))
    return found


def read_all(run: Opened, items: Sequence[Item]) -> list[Reading]:
    """Each by itself: no other can round its numbers differently."""
    if run.spec.continues:
        items = _continued(run, [item.ids for item in items if isinstance(item, TextItem)])
    found = []
    for number, (item, target) in enumerate(zip(items, _written(run, items), strict=True)):
        found.append(read_one(run, item, target, _without(run, number, item)))
    return found


@torch.no_grad()
def read_one(
    run: Opened, item: Item, target: Sequence[int] = (), gone: Batch[Gone] | None = None
) -> Reading:
    """What the model of a run says of an item, or of a source and what was written so far.
    `gone`: the item without what is hidden of it."""
    rows_R, gone_P = None, None
    if gone is None:
        streams = [_source(run, item)]
    else:
        [stream], hidden_N = gone.streams, gone.targets.hidden_N
        first = sum(unit.special for unit in _cuts(run, item).units(0))  # no parts of an item
        assert hidden_N is not None
        streams, gone_P = [stream], hidden_N[first:].numpy()
        rows_R = torch.arange(first, stream.layout.n_rows)
    if target:
        streams.append(_flat(target))
    found = as_model(run.model).states(*streams)
    read = readout_of(run.settings).of(run.model, found, rows_R)
    heard = _array(read.more["ctc"].said_RC) if "ctc" in read.more else None
    said = _array(read.answers())
    return Reading(item, list(target), said, _array(found.x_ND), gone_P, heard)


def what_is_said(run: Opened) -> str:
    """What is compared: `proof.compared` has a table of these."""
    readout = readout_of(run.settings)
    numbers = isinstance(readout, OneVector) or readout == EachRow("rebuild")
    return "vectors" if numbers else "logits"


def what_is_read(run: Opened) -> tuple[str, str]:
    """What a proof counts: `Proof.items` and `Proof.units`."""
    shape = media_front(run.settings)
    if shape is None:
        return "sentences", "tokens"
    units = "tokens" if isinstance(run.model, Seq2Seq) else "rows"
    return UNITS[what_of(shape)], units


def _written(run: Opened, items: Sequence[Item]) -> list[list[int]]:
    """What each source becomes, with the beginning before it; nothing where nothing is written."""
    if not isinstance(run.model, Seq2Seq):
        return [[] for _ in items]
    texts = media_front(run.settings) is None
    room = min(LONGEST_OUTPUT if texts else LONGEST_OUTPUT // 2, run.shape.max_len - 1)
    settings = DecodeSettings(beam=1, max_len=room, unknown="keep")
    sources = [item.ids if isinstance(item, TextItem) else item for item in items]
    found = Searcher([run.model], settings, Specials.of(run.vocab.target))(sources)
    return [[run.vocab.target.bos, *best.tokens] for best, *_ in found]


def _continued(run: Opened, prompts: Sequence[Sequence[int]]) -> list[TextItem]:
    assert isinstance(run.model, Decoder)
    settings = DecodeSettings(beam=1, max_len=NEW_TOKENS, unknown="keep")
    specials, most = Specials.of(run.vocab.target), run.shape.max_len
    found = Searcher([run.model], settings, specials, most)(prompts)
    pairs = zip(prompts, found, strict=True)
    return [TextItem([*prompt, *best.tokens][:most]) for prompt, (best, *_) in pairs]


def _without(run: Opened, number: int, item: Item) -> Batch[Gone] | None:
    """An item by this number without what is hidden of it, for a model that rebuilds."""
    if "rebuild" not in getattr(run.shape, "heads", ()):
        return None
    intake = intake_of(run.settings)
    columns = intake.columns([item] * (number + 1))  # what is hidden of one hangs on its number
    items = intake.hide(columns, run.settings.fill).drawn(Draw(0, 0))
    assert isinstance(items, Hiding)
    return items.without(run.model, items.batch(np.array([number]), CPU), training=False)


def _cuts(run: Opened, item: Item) -> Cuts:
    intake = intake_of(run.settings)
    return intake.cut(intake.columns([item]))


def _source(run: Opened, item: Item) -> Input:
    if isinstance(item, TextItem):
        return _flat(item.ids, item.segments or [0] * len(item.ids))
    cuts = _cuts(run, item)
    return cuts.shown(cuts.collate(np.arange(1)))


def _flat(tokens: Sequence[int], segments: Sequence[int] | None = None) -> Input:
    segments_N = None if segments is None else torch.tensor(segments)
    return Input(torch.tensor(tokens), Layout.of([len(tokens)]), segments_N)


def _array(tensor: Tensor) -> Scores:
    return tensor.float().numpy()
