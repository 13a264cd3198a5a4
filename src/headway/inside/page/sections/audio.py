"""Page section for a recording: spectrogram and waveform, attention of each word, and word
timestamps."""

from __future__ import annotations

import base64
import io
import wave
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.media import MediaInput
from headway.inside.capture.streams import display_piece
from headway.inside.measure.audio_alignment import (
    AudioAlignment,
    at_pauses,
    by_ctc,
    by_heads,
    ctc_log_probs,
    find_word_timings,
    waveform_of,
)
from headway.inside.measure.maps.map import CAUTION
from headway.inside.measure.media_maps import (
    METHODS,
    all_layer_maps,
    head_weights,
    input_attention_kind,
    word_groups,
)
from headway.inside.page.sections import PageSection
from headway.inside.page.sections.image import first_map, sized
from headway.inside.page.sections.overview import BLANK
from headway.models.parts.audio import AudioFront
from headway.web.pack import PackedArray

if TYPE_CHECKING:
    from headway.inside.page.look import LookInputs

MOST_FRAMES = 1200
"""Maximum number of columns of the spectrogram in a page. If there are more audio frames,
neighbouring frames are averaged."""

WAVE_COLUMNS = 900
"""Maximum number of columns of the waveform, which is about the width of the chart in pixels."""

MOST_AUDIO = 300_000
"""Maximum size in bytes of a recording that is embedded in the page for playing."""

MOST_CELLS = 1_500_000
"""Maximum number of attention weights of all heads in a page. Above it, only the aligning heads and
the mean of each layer are included."""


def section(looked: LookInputs) -> PageSection | None:
    media: MediaInput | None = looked.trace.reading.media
    if media is None or media.kind != "audio":
        return None
    reading = looked.trace.reading
    kind, n = input_attention_kind(reading), media.n_unpadded_rows
    aligned = by_heads(looked.trace)
    logs_SV = None if looked.run is None else ctc_log_probs(looked.run, looked.trace)
    maps: dict[str, Tensor] = {}
    skipped: dict[str, str] = {}
    if reading.outputs:
        maps, skipped = all_layer_maps(looked.run, looked.trace, looked.change, slow=looked.slow)
    return {
        "kind": kind,
        "seconds": media.seconds,
        "row_s": media.row_s,
        "n_rows": n,
        "groups": [
            {**group, "name": display_piece(group["name"])} for group in word_groups(reading)
        ]
        if maps or kind in looked.trace.attention
        else [],
        **(_heard(looked, media) if looked.final else {}),
        **_heads(looked, aligned, n),
        "maps": [
            {
                "key": key,
                "label": METHODS[key].label,
                "how": METHODS[key].how,
                "weights": PackedArray(sized(key, x_RS)[:, :n], "f16"),
            }
            for key, x_RS in maps.items()
        ],
        "skipped": [[label, why] for label, why in skipped.items()],
        "times": _times(looked, aligned, logs_SV),
        "ctc": None if logs_SV is None else _ctc(looked, logs_SV),
        "first": first_map(looked, kind, [*(["aligning"] if aligned else []), *maps], ("mean",)),
        "caution": CAUTION,
    }


def _heads(looked: LookInputs, aligned: AudioAlignment | None, n: int) -> PageSection:
    """Return the attention weights of all heads, and the mean of each layer. If there are too many
    weights, only aligning heads are included."""
    layers = head_weights(looked.run, looked.trace)
    found: PageSection = {
        "aligning": [] if aligned is None else [list(place) for place in aligned.heads],
        "shares": None if aligned is None else aligned.shares,
        "rows": None if aligned is None else [list(pair) for pair in aligned.rows],
        "follows": aligned is not None and aligned.coverage.follows_audio,
        "says": "" if aligned is None else aligned.describe(),
        "means": [PackedArray(x_HRS.mean(0)[:, :n], "f16") for x_HRS in layers],
    }
    if not layers:
        return {**found, "heads": None, "some": {}}
    if sum(x_HRS[:, :, :n].numel() for x_HRS in layers) <= MOST_CELLS:
        return {**found, "heads": [PackedArray(x_HRS[:, :, :n], "f16") for x_HRS in layers]}
    kept = [] if aligned is None else aligned.heads
    some = {
        f"{layer}.{head}": PackedArray(layers[layer][head][:, :n], "f16") for layer, head in kept
    }
    return {**found, "heads": None, "some": some}


def _heard(looked: LookInputs, media: MediaInput) -> PageSection:
    """Return the data of the charts: the waveform, the spectrogram, and the recording itself if it
    is short."""
    return {
        "mel": _mel(looked, media),
        "wave": PackedArray(_outline(media), "f16"),
        "audio": _playable(media),
    }


@torch.no_grad()
def _mel(looked: LookInputs, media: MediaInput) -> PackedArray | None:
    """Return the log-mel spectrogram (frames, bands) as the model computes it, without padding;
    None without the model."""
    if looked.run is None:
        return None
    front = Anatomy.of(looked.run.model).stacks[0].front
    assert isinstance(front, AudioFront)
    audio, _ = front.collate([media.item])
    n_frames = max(1, round(media.seconds * media.rate / front.shape.hop))
    mel_AF = front.mel(audio)[:n_frames]
    by = -(-len(mel_AF) // MOST_FRAMES)
    if by > 1:
        mel_AF = F.avg_pool1d(mel_AF.T[None], by, ceil_mode=True)[0].T
    return PackedArray(mel_AF.contiguous(), "u8")


def _outline(media: MediaInput) -> Tensor:
    """Return the outline of the waveform (2, columns): the lowest and the highest sample of each
    column, scaled to -1 … 1."""
    samples = waveform_of(media)
    parts = np.array_split(samples, min(WAVE_COLUMNS, len(samples)))
    loudest = max(float(np.abs(samples).max(initial=0.0)), 1e-9)
    ends = np.array([[part.min() for part in parts], [part.max() for part in parts]])
    return torch.from_numpy(ends / loudest)


def _playable(media: MediaInput) -> str | None:
    """Return the recording as a `data:` URL of a 16-bit WAV file; None if it is too long."""
    if 2 * len(media.item) > MOST_AUDIO:
        return None
    values = np.clip(np.rint(waveform_of(media) * 32767.0), -32768, 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(media.rate)
        out.writeframes(values.tobytes())
    return "data:audio/wav;base64," + base64.b64encode(file.getvalue()).decode()


def _times(
    looked: LookInputs, aligned: AudioAlignment | None, logs_SV: Tensor | None
) -> list[PageSection]:
    """Return the word timestamps by each method. CTC is first if the model has it.

    Each method has its own boundaries, and boundaries that are moved to pauses.
    """
    reading, ways = looked.trace.reading, []
    facts = ((looked.truth or {}).get("facts") or {}).get("times") or {}
    heard = None if logs_SV is None else by_ctc(logs_SV, reading)
    if heard is not None:
        ways.append(("CTC", "the best CTC path through the audio frames", heard))
    if aligned is not None:
        follow = "follow" if aligned.coverage.follows_audio else "come closest to following"
        ways.append(("attention", f"the heads that {follow} the audio", aligned.rows))
    found = []
    for key, how, rows in ways:
        words = find_word_timings(reading, rows, looked.trace.scores_RC)
        assert reading.media is not None
        moved = at_pauses(reading.media, words)
        found.append(
            {
                "key": key,
                "how": how,
                "own_ms": (facts.get("own_ms") or {}).get(key),
                "median_ms": (facts.get("median_ms") or {}).get(key),
                "words": [
                    {"text": own.text, "start": own.start, "end": own.end,
                     "moved": [late.start, late.end], "confidence": own.confidence}
                    for own, late in zip(words, moved, strict=True)
                ],
            }
        )  # fmt: skip
    return found


def _ctc(looked: LookInputs, logs_SV: Tensor) -> PageSection:
    """Return the CTC probabilities over time, of the symbols in the output and of the blank."""
    assert looked.run is not None
    target, blank = looked.run.vocab.target, logs_SV.shape[1] - 1
    outputs = looked.trace.reading.outputs
    ids = list(dict.fromkeys(output.id for output in outputs if output.id not in target.specials))
    names = [display_piece(name) for name in target.tokens(ids)]
    return {
        "names": [*names, BLANK],
        "probabilities": PackedArray(logs_SV[:, [*ids, blank]].exp().T.contiguous(), "f16"),
    }
