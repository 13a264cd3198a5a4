"""Whether `transformers` says of an exported folder what we say, of pictures and recordings.

They go through its own preparation of pixels and samples.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headway.interop.families import family_named
from headway.interop.folder_files import read_table
from headway.interop.hf.preprocessing import PREPROCESSOR_JSON, with_preprocessing
from headway.interop.hf.quiet import quiet
from headway.interop.importing import filled, take
from headway.interop.proof import Proof, Reading, compared
from headway.interop.proof_media import (
    Item,
    Scores,
    proof_pictures,
    proof_sounds,
    read_item,
    what_is_said,
)
from headway.interop.weights import open_weights
from headway.models.build import build_model
from headway.models.folder import load_weights
from headway.models.parts.vision import PictureFront
from headway.settings.audio import SoundSeq2SeqSettings
from headway.settings.vision import PictureSettings
from headway.tasks.intake import front_of
from headway.tasks.opened import Opened


def prove_media(run: Opened, out: Path) -> Proof:
    """By `transformers` where it is installed, else by reading the folder again ourselves."""
    shape = front_of(run.settings)
    items = proof_pictures(shape) if isinstance(shape, PictureSettings) else proof_sounds(shape)
    ours = [read_item(run, item) for item in items]
    try:
        transformers = importlib.import_module("transformers")
        by = f"transformers {transformers.__version__}"
        with quiet(transformers):
            theirs, notes = _by_transformers(transformers, run, out, items, ours)
    except ImportError:
        by, theirs = "headway", _by_us(run, out, items, ours)
        notes = ["transformers is not installed: the folder was imported again instead"]
    proof = compared("hf", ours, theirs, what=what_is_said(run), by=by, notes=notes)
    units = "tokens" if run.spec.writes else "rows"
    return replace(
        proof, items="recordings" if run.spec.modality == "sounds" else "pictures", units=units
    )


def _by_transformers(
    transformers: Any, run: Opened, out: Path, items: Sequence[Item], ours: Sequence[Reading]
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
    transformers: Any, run: Opened, out: Path
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
    front = run.model.source_front if run.spec.writes else run.model.front
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


def _by_us(run: Opened, out: Path, items: Sequence[Item], ours: Sequence[Reading]) -> list[Scores]:
    config, weights = read_table(out / "config.json"), open_weights(out)
    found = family_named(config["model_type"]).read(config, weights.keys(), {})
    if (out / PREPROCESSOR_JSON).is_file():
        found = with_preprocessing(found, read_table(out / PREPROCESSOR_JSON))
    model: Any = build_model(found.model).eval()
    load_weights(model, filled(take(found, weights), found).weights)
    again = run.with_model(model, replace(run.settings, model=found.model))
    pairs = zip(items, ours, strict=True)
    return [read_item(again, item, reading.target).scores for item, reading in pairs]
