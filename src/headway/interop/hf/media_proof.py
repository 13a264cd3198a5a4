"""Whether `transformers` says of an exported folder what we say, of pictures and recordings.

They are made here, of many kinds, and go through its own preparation of pixels and samples.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.config.decode import DecodeSettings
from headway.config.pictures import PictureEncoderSettings, PictureSettings
from headway.config.sounds import SoundSeq2SeqSettings, SoundSettings
from headway.decode.hypothesis import Specials
from headway.decode.search import Searcher
from headway.interop.families import family_named
from headway.interop.files import read_table
from headway.interop.hf.preprocessing import PREPROCESSOR_JSON, with_preprocessing
from headway.interop.hf.quiet import quiet
from headway.interop.importing import filled, take
from headway.interop.proof import Proof, Reading, compared
from headway.interop.run import LoadedRun
from headway.interop.weights import open_weights
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.models.parts.front import Front
from headway.models.parts.pictures import PictureFront
from headway.models.seeing import Viewer
from headway.models.seq2seq import Seq2Seq
from headway.nn.layout import Layout

N_PICTURES = 8
LONGEST_OUTPUT = 24
SECONDS = (0.4, 1.1, 2.5, 6.0)
"""Lengths of recordings, as far as the model listens."""

Scores = NDArray[np.float32]
Item = NDArray[Any]


def prove_media(run: LoadedRun, out: Path) -> Proof:
    """By `transformers` where it is installed, else by reading the folder again ourselves."""
    pictures = isinstance(run.shape, PictureEncoderSettings)
    items = (
        proof_pictures(run.shape.picture) if isinstance(run.shape, PictureEncoderSettings) else []
    )
    if isinstance(run.shape, SoundSeq2SeqSettings):
        items = proof_sounds(run.shape.sound)
    ours = [read_item(run, item) for item in items]
    try:
        transformers = importlib.import_module("transformers")
        by = f"transformers {transformers.__version__}"
        with quiet(transformers):
            theirs, notes = _by_transformers(transformers, run, out, items, ours)
    except ImportError:
        by, theirs = "headway", _by_us(run, out, items, ours)
        notes = ["transformers is not installed: the folder was imported again instead"]
    what = "logits" if not pictures or "classes" in run.shape.heads else "vectors"  # type: ignore[union-attr]
    proof = compared("hf", ours, theirs, what=what, by=by, notes=notes)
    kind = ("pictures", "rows") if pictures else ("recordings", "tokens")
    return replace(proof, items=kind[0], units=kind[1])


def proof_pictures(shape: PictureSettings, n: int = N_PICTURES) -> list[Item]:
    """Noise, ramps, stripes and flat ones, of the size that the model was made for (T C Y X)."""
    draw = np.random.default_rng(7)
    size = (shape.frames, shape.channels, shape.height, shape.width)
    y, x = np.mgrid[: shape.height, : shape.width]
    found: list[Item] = []
    for number in range(n):
        noise = draw.integers(0, 256, size, dtype=np.uint8)
        ramp = (y * (number + 1) * 7 + x * (n - number) * 5) % 256
        flat = draw.integers(0, 256, (1, shape.channels, 1, 1), dtype=np.uint8)
        kinds = (noise, ramp, np.where((x // (number + 2)) % 2, ramp, flat), flat)
        found.append(np.broadcast_to(kinds[number % len(kinds)], size).astype(np.uint8))
    return found


def proof_sounds(shape: SoundSettings) -> list[Item]:
    """Noise and tones that rise, of several lengths, as 16-bit samples."""
    draw = np.random.default_rng(7)
    found: list[Item] = []
    for number, seconds in enumerate(SECONDS):
        longest = shape.pad_s or seconds
        time_S = np.arange(round(min(seconds, longest) * shape.rate)) / shape.rate
        tone_S = np.sin(2 * np.pi * (200 + 150 * number + 400 * time_S) * time_S)
        noise_S = draw.normal(size=len(time_S))
        both_S = 6000 * (tone_S if number % 2 else noise_S / 3) + 300 * noise_S
        found.append(np.clip(both_S, -32768, 32767).astype(np.int16))
    return found


@torch.no_grad()
def read_item(run: LoadedRun, item: Item, target: Sequence[int] | None = None) -> Reading:
    """What our model says of one: its classes or vector, or how it scores `target`, which is its
    own greedy output if none is given."""
    model = run.model
    if isinstance(model, Viewer):
        assert isinstance(model.front, Front)
        given, layout = model.front.collate([item])
        x_ND = model(given, layout)
        said = model.classes if "classes" in model.heads else model.pooled
        rows = [0] * layout.n_rows
        return Reading(rows, [], [], said(x_ND, layout).float().numpy(), x_ND.float().numpy())
    assert isinstance(model, Seq2Seq)
    words = list(_written(run, model, item)) if target is None else list(target)
    assert isinstance(model.source_front, Front)
    given, layout = model.source_front.collate([item])
    x_ND = model(given, layout, torch.tensor(words), Layout.of([len(words)]))
    return Reading([], words, [], model.scores(x_ND).float().numpy(), x_ND.float().numpy())


def _written(run: LoadedRun, model: Seq2Seq, item: Item) -> list[int]:
    settings = DecodeSettings(
        beam=1, max_len=min(LONGEST_OUTPUT, run.shape.max_len - 1), unknown="keep"
    )
    [[best, *_]] = Searcher([model], settings, Specials.of(run.vocab.target))([item])
    return [run.vocab.target.bos, *best.tokens]


def _by_transformers(
    transformers: Any, run: LoadedRun, out: Path, items: Sequence[Item], ours: Sequence[Reading]
) -> tuple[list[Scores], list[str]]:
    named = read_table(out / "config.json")["architectures"][0]
    model, loading = getattr(transformers, named).from_pretrained(
        out, output_loading_info=True, dtype=torch.float32, local_files_only=True
    )
    model.eval()
    notes = [
        f"{named} found {kind.replace('_', ' ')}: {', '.join(sorted(map(str, loading[kind])))}"
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if loading.get(kind)
    ]
    prepare, note = _preparation(transformers, run, out)
    found = []
    with torch.no_grad():
        for item, reading in zip(items, ours, strict=True):
            given = {name: torch.as_tensor(value) for name, value in prepare(item).items()}
            if reading.target:
                given["decoder_input_ids"] = torch.tensor([reading.target])
            said = model(**given)
            logits = said.logits if "logits" in said else said.pooler_output
            found.append((logits[0] if reading.target else logits).float().numpy())
    return found, [*notes, note]


def _preparation(
    transformers: Any, run: LoadedRun, out: Path
) -> tuple[Callable[[Item], dict[str, Any]], str]:
    """Their own way from pixels or samples to what the model reads."""
    said = read_table(out / PREPROCESSOR_JSON) if (out / PREPROCESSOR_JSON).is_file() else {}
    if isinstance(run.shape, SoundSeq2SeqSettings):
        hear = transformers.WhisperFeatureExtractor.from_pretrained(out, local_files_only=True)
        rate = run.shape.sound.rate

        def sound(item: Item) -> dict[str, Any]:
            samples_S = item.astype(np.float32) / 32768.0
            found = hear(samples_S, sampling_rate=rate, return_tensors="np")
            return {"input_features": found["input_features"]}

        return sound, "samples went through its feature extractor"
    assert isinstance(run.model, Viewer)
    front = run.model.front
    assert isinstance(front, PictureFront)
    size = (front.shape.channels, front.shape.height, front.shape.width)
    kind = getattr(transformers, f"{said.get('image_processor_type', '')}Pil", None)
    see = None if kind is None else kind.from_pretrained(out, local_files_only=True)

    def prepared(item: Item) -> Any:
        return see(item[0], return_tensors="np")["pixel_values"] if see is not None else None

    probe = np.zeros((1, *size), np.uint8)
    if see is None or size[0] != 3 or prepared(probe)[0].shape != size:

        def pixels(item: Item) -> dict[str, Any]:
            return {"pixel_values": front.pixels(torch.from_numpy(item))}

        return pixels, "pixels were prepared here"
    return lambda item: {"pixel_values": prepared(item)}, "pixels went through its image processor"


def _by_us(
    run: LoadedRun, out: Path, items: Sequence[Item], ours: Sequence[Reading]
) -> list[Scores]:
    config, weights = read_table(out / "config.json"), open_weights(out)
    found = family_named(config["model_type"]).read(config, weights.keys(), {})
    if (out / PREPROCESSOR_JSON).is_file():
        found = with_preprocessing(found, read_table(out / PREPROCESSOR_JSON))
    model: Any = build_model(found.model).eval()
    load_weights(model, filled(take(found, weights), found).weights)
    again = replace(run, model=model, settings=replace(run.settings, model=found.model))
    pairs = zip(items, ours, strict=True)
    return [read_item(again, item, reading.target).scores for item, reading in pairs]
