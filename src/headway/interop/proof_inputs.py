"""Inputs of a proof for all tasks, and the model's outputs for them.

Texts are built-in sentences and those of the user, tokenized as for the task. Images and audio of
several kinds are generated.

Models with a decoder first generate text greedily, and language models continue each sentence
greedily. The model then reads this text, and the proof compares the logits of every next token. If
the best tokens agree everywhere, greedy outputs agree too. Models that reconstruct masked parts get
masked inputs.
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
from headway.decode.logits_processors import SpecialTokens
from headway.decode.search.searcher import Searcher
from headway.models.decoder import Decoder
from headway.models.parts.output_heads import ModelInput
from headway.models.seq2seq import Seq2Seq
from headway.nn.devices import CPU
from headway.nn.layout import Layout
from headway.settings.audio import AudioSettings
from headway.settings.decode import DecodeSettings
from headway.settings.listed import ensure_list
from headway.settings.run import media_settings
from headway.settings.vision import ImageSettings
from headway.tasks.dataset import Batch, EpochSeed
from headway.tasks.loaded_run import LoadedRun
from headway.tasks.media_inputs import what_of
from headway.tasks.preprocess.preprocessor import (
    InputDataset,
    MaskedDataset,
    MaskTargets,
    preprocessor_of,
)
from headway.tasks.readout import EachRow, OneVector, as_model, readout_of
from headway.tasks.text_items import TextItem, frame_tokens, tagged_item

NEW_TOKENS = 16
"""Maximum number of tokens that a language model adds to a sentence."""

LONGEST_OUTPUT = 48
"""Maximum number of tokens in a translation. The text for an image or audio may have half as
many."""

N_IMAGES = 8
"""Number of images: two of each of the four kinds that `proof_images` generates."""

SECONDS = (0.4, 1.1, 2.5, 6.0)
"""Durations of the audio clips in seconds. They are cut to the maximum duration of the model."""

Float32Array = NDArray[np.float32]
ProofMedia = NDArray[Any]
"""Pixels (time, channel, height, width) or audio samples."""

Item = TextItem | ProofMedia

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
"""Short and long sentences with several scripts, digits and symbols.

Most vocabularies lack some of their characters, so that unknown tokens are tested, too.
"""


@dataclass(frozen=True)
class ProofCase:
    """One input of a proof, and the model's outputs for it."""

    item: Item
    target: list[int]
    """Decoder input of an encoder-decoder: the start token, then the greedy output. Empty for other
    models."""

    scores: Float32Array
    """Outputs at each position of the input (tokens, tags, CTC symbols) or of `target`.

    Classes and embeddings have a single row.
    """

    hidden_TD: Float32Array
    """Hidden states before the output head: those of the decoder if there is one, otherwise those
    of the encoder."""

    masked_P: NDArray[np.bool_] | None = None
    """Mask of the positions of an image or audio that a model reconstructs; None for other
    models."""

    ctc_scores: Float32Array | None = None
    """Outputs of the CTC head at each position of the source, for a decoder model with such a head;
    otherwise None."""

    @property
    def tokens(self) -> list[int]:
        """Tokens of a text, including special tokens. Empty if the input is not text."""
        return self.item.ids if isinstance(self.item, TextItem) else []

    @property
    def n_positions(self) -> int:
        """Number of tokens of the text and the output, or of positions if the input is not text."""
        return len(self.tokens) + len(self.target) or len(self.hidden_TD)


def proof_sentences(n: int = 16, more: Sequence[str] = ()) -> list[str]:
    """Return the user's sentences, topped up to `n` with built-in ones."""
    own = [line for line in ensure_list(more) if line.strip()]
    return [*own, *SENTENCES[: max(0, n - len(own))]]


def proof_items(run: LoadedRun, sentences: Sequence[str], *, odd: bool = False) -> list[Item]:
    """Return inputs of the modality that the model reads.

    `odd`: whether to add two audio clips, one shorter than a frame and one that is mostly silent.
    """
    shape = media_settings(run.settings)
    if shape is None:
        return [*proof_texts(run, sentences)]
    if isinstance(shape, ImageSettings):
        return [*proof_images(shape)]
    audio = proof_audio(shape)
    half = np.zeros_like(audio[1])
    half[: len(half) // 3] = audio[1][: len(half) // 3]
    return [*audio, *([audio[0][: shape.n_fft // 2], half] if odd else [])]


def proof_texts(run: LoadedRun, sentences: Sequence[str]) -> list[TextItem]:
    """Tokenize each sentence as for the run's task, truncated to the maximum length of the model.

    For an encoder that supports pairs, every fourth sentence forms a pair with the one before it.
    For a masked language model, some tokens are masked.
    """
    tokenizer, longest = run.vocab.source, run.shape.max_len
    ids = tokenizer.encode_batch(list(sentences))
    if run.spec.reads_pairs:
        room = min(longest, run.settings.data.max_len) - 2
        return [TextItem(tokenizer.as_source(text[:room])) for text in ids]
    if run.spec.continues:
        room = max(1, longest - min(NEW_TOKENS, longest // 2) - 1)
        return [TextItem(tokenizer.as_prompt(text[:room])) for text in ids]
    if run.spec.reads_sentences and getattr(run.shape, "reads_shapes", False):
        return [tagged_item(run, sentence) for sentence in sentences]
    pairs = bool(run.settings.data.other_field) or getattr(run.shape, "n_segments", 0) > 1
    found = []
    for number, text in enumerate(ids):
        if pairs and number % 4 == 3:
            room = max(0, (longest - 2 - tokenizer.pair_ends) // 2)
            found += frame_tokens(run, [ids[number - 1][:room]], [text[:room]])
        else:
            found += frame_tokens(run, [text[: longest - 2]])
    return [_with_masked_tokens(run, text) for text in found]


def _with_masked_tokens(run: LoadedRun, text: TextItem) -> TextItem:
    mask = run.vocab.source.mask
    if not run.spec.fills_masks or mask is None:
        return text
    specials = run.vocab.source.specials
    gaps = set(range(2, len(text.ids), 7))
    hidden = [mask if i in gaps and t not in specials else t for i, t in enumerate(text.ids)]
    return text._replace(ids=hidden)


def proof_images(shape: ImageSettings, n: int = N_IMAGES) -> list[ProofMedia]:
    """Return generated images (T C Y X) of noise, ramps, stripes and flat colour in the model's
    size."""
    draw = np.random.default_rng(7)
    size = (shape.frames, shape.channels, shape.height, shape.width)
    y, x = np.mgrid[: shape.height, : shape.width]
    found: list[ProofMedia] = []
    for number in range(n):
        noise = draw.integers(0, 256, size, dtype=np.uint8)
        ramp = (y * (number + 1) * 7 + x * (n - number) * 5) % 256
        flat = draw.integers(0, 256, (1, shape.channels, 1, 1), dtype=np.uint8)
        kinds = (noise, ramp, np.where((x // (number + 2)) % 2, ramp, flat), flat)
        found.append(np.broadcast_to(kinds[number % len(kinds)], size).astype(np.uint8))
    return found


def proof_audio(shape: AudioSettings) -> list[ProofMedia]:
    """Return generated noise and rising tones of several durations, as 16-bit samples."""
    draw = np.random.default_rng(7)
    found: list[ProofMedia] = []
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


def compute_cases(run: LoadedRun, items: Sequence[Item]) -> list[ProofCase]:
    """Run the model on each item separately, so that batching does not affect rounding."""
    if run.spec.continues:
        items = _greedy_continuations(
            run, [item.ids for item in items if isinstance(item, TextItem)]
        )
    found = []
    for number, (item, target) in enumerate(zip(items, _greedy_outputs(run, items), strict=True)):
        found.append(compute_case(run, item, target, _masked_batch(run, number, item)))
    return found


@torch.no_grad()
def compute_case(
    run: LoadedRun, item: Item, target: Sequence[int] = (), gone: Batch[MaskTargets] | None = None
) -> ProofCase:
    """Run the model on an item, or on a source and the output so far.

    `gone`: the item with its masked parts removed, for a model that reconstructs them.
    """
    rows_R, gone_P = None, None
    if gone is None:
        streams = [_source(run, item)]
    else:
        [stream], hidden_N = gone.streams, gone.targets.masked_N
        first = sum(
            unit.special for unit in _media_dataset(run, item).describe_positions(0)
        )  # special tokens
        assert hidden_N is not None
        streams, gone_P = [stream], hidden_N[first:].numpy()
        rows_R = torch.arange(first, stream.layout.n_rows)
    if target:
        streams.append(_flat(target))
    found = as_model(run.model).states(*streams)
    read = readout_of(run.settings).of(run.model, found, rows_R)
    heard = _array(read.extra_heads["ctc"].logits_RC) if "ctc" in read.extra_heads else None
    said = _array(read.averaged_logits())
    return ProofCase(item, list(target), said, _array(found.x_ND), gone_P, heard)


def output_name(run: LoadedRun) -> str:
    """Return the name of the compared outputs, which is the `what` of `proof.compared`."""
    readout = readout_of(run.settings)
    numbers = isinstance(readout, OneVector) or readout == EachRow("rebuild")
    return "vectors" if numbers else "logits"


def unit_names(run: LoadedRun) -> tuple[str, str]:
    """Return the plural names for `Proof.items` and `Proof.units`."""
    shape = media_settings(run.settings)
    if shape is None:
        return "sentences", "tokens"
    units = "tokens" if isinstance(run.model, Seq2Seq) else "rows"
    return UNITS[what_of(shape)], units


def _greedy_outputs(run: LoadedRun, items: Sequence[Item]) -> list[list[int]]:
    """Generate the output for each source greedily, beginning with the start token.

    Outputs are empty for models without a decoder.
    """
    if not isinstance(run.model, Seq2Seq):
        return [[] for _ in items]
    texts = media_settings(run.settings) is None
    room = min(LONGEST_OUTPUT if texts else LONGEST_OUTPUT // 2, run.shape.max_len - 1)
    settings = DecodeSettings(beam=1, max_len=room, unknown="keep")
    sources = [item.ids if isinstance(item, TextItem) else item for item in items]
    found = Searcher([run.model], settings, SpecialTokens.of(run.vocab.target))(sources)
    return [[run.vocab.target.bos, *best.tokens] for best, *_ in found]


def _greedy_continuations(run: LoadedRun, prompts: Sequence[Sequence[int]]) -> list[TextItem]:
    assert isinstance(run.model, Decoder)
    settings = DecodeSettings(beam=1, max_len=NEW_TOKENS, unknown="keep")
    specials, most = SpecialTokens.of(run.vocab.target), run.shape.max_len
    found = Searcher([run.model], settings, specials, most)(prompts)
    pairs = zip(prompts, found, strict=True)
    return [TextItem([*prompt, *best.tokens][:most]) for prompt, (best, *_) in pairs]


def _masked_batch(run: LoadedRun, number: int, item: Item) -> Batch[MaskTargets] | None:
    """Return an item with masked parts for a model that reconstructs them, otherwise None."""
    if "rebuild" not in getattr(run.shape, "heads", ()):
        return None
    intake = preprocessor_of(run.settings)
    columns = intake.columns([item] * (number + 1))  # the mask depends on the index of the item
    items = intake.masked_dataset(columns, run.settings.fill).for_epoch(EpochSeed(0, 0))
    assert isinstance(items, MaskedDataset)
    return items.apply_mask(run.model, items.batch(np.array([number]), CPU), training=False)


def _media_dataset(run: LoadedRun, item: Item) -> InputDataset:
    intake = preprocessor_of(run.settings)
    return intake.input_dataset(intake.columns([item]))


def _source(run: LoadedRun, item: Item) -> ModelInput:
    if isinstance(item, TextItem):
        return _flat(item.ids, item.segments or [0] * len(item.ids))
    cuts = _media_dataset(run, item)
    return cuts.to_model_input(cuts.collate(np.arange(1)))


def _flat(tokens: Sequence[int], segments: Sequence[int] | None = None) -> ModelInput:
    segments_N = None if segments is None else torch.tensor(segments)
    return ModelInput(torch.tensor(tokens), Layout.of([len(tokens)]), segments_N)


def _array(tensor: Tensor) -> Float32Array:
    return tensor.float().numpy()
