"""Model size and training settings that each task chooses by default, from little and much data.

`test_choices` has those of `translate`.
"""

from __future__ import annotations

from typing import Any

import pytest

from headway.settings.facts import DatasetStats, DeviceInfo, MediaFormat
from headway.settings.model import AudioSettings, ImageSettings
from headway.settings.run import load_run_settings
from headway.training.resolve import resolve

CPU = DeviceInfo()
GPU = DeviceInfo(type="cuda", free_bytes=130 << 30, bf16=True)
LABELS = ("0", "1")
AUDIO = AudioSettings(rate=8000)


def texts(n: int, tokens: int, longest: int, **more: Any) -> DatasetStats:
    return DatasetStats(n=n, n_tokens=n * tokens, longest=longest, vocab_size=3000, **more)


def images(n: int, size: int, **more: Any) -> DatasetStats:
    front = ImageSettings(height=size, width=size, channels=1, patch=4)
    stored = MediaFormat(height=size, width=size, channels=1)
    return DatasetStats(n=n, front=front, stored=stored, **more)


def recordings(n: int, rows: int, **more: Any) -> DatasetStats:
    return DatasetStats(n=n, n_tokens=n * rows, longest=2 * rows, front=AUDIO,
    stored=MediaFormat(rate=8000),
                 **more)  # fmt: skip


MEDIA = {"data.media": ["files"]}
IMAGES = {"classify.modality": "image"}
WRITTEN: dict[str, Any] = {"longest_text": 20, "vocab_size": 30}
Chosen = tuple[int, int, str, float, int, int]
"""Layers, width, optimizer, learning rate, tokens per batch, steps."""

CASES: list[tuple[str, dict[str, Any], DatasetStats, Chosen, Chosen]] = [
    ("complete", {}, texts(400, 300, 900),
     (4, 128, "muon", 0.008, 2048, 1180), (4, 128, "muon", 0.008, 2048, 1180)),
    ("complete", {}, texts(500_000, 800, 9000),
     (6, 256, "muon", 0.008, 4096, 976_560), (12, 768, "muon", 0.008, 65_536, 61_040)),
    ("fill", {}, texts(4000, 42, 302),
     (4, 128, "muon", 0.008, 2048, 3280), (4, 128, "muon", 0.008, 2048, 3280)),
    ("fill", {}, texts(500_000, 202, 9002),
     (6, 256, "muon", 0.008, 4096, 493_160), (8, 512, "muon", 0.008, 65_536, 30_820)),
    ("fill", MEDIA, images(3000, 8),
     (3, 96, "adamw", 0.0015, 160, 11_280), (6, 192, "adamw", 0.0015, 160, 56_400)),
    ("fill", MEDIA, recordings(3000, 50),
     (4, 128, "adamw", 0.0015, 1600, 11_280), (6, 256, "adamw", 0.0015, 1600, 56_400)),
    ("classify", {}, texts(900, 22, 92, labels=LABELS),
     (2, 128, "muon", 0.004, 1024, 100), (2, 128, "muon", 0.004, 1024, 100)),
    ("classify", {}, texts(300_000, 202, 9002, labels=LABELS),
     (6, 256, "muon", 0.004, 4096, 29_590), (8, 512, "muon", 0.004, 65_536, 1850)),
    ("classify", IMAGES, images(900, 8, labels=LABELS),
     (3, 96, "muon", 0.008, 80, 3360), (6, 192, "muon", 0.004, 80, 16_800)),
    ("classify", IMAGES, images(20_000, 32, labels=LABELS),
     (3, 96, "muon", 0.008, 2176, 3120), (9, 256, "muon", 0.004, 16_640, 7800)),
    ("classify", IMAGES, images(400_000, 96, labels=LABELS),
     (3, 96, "muon", 0.008, 73_856, 15_625), (12, 384, "muon", 0.004, 295_424, 23_430)),
    ("tag", {}, texts(900, 22, 92, labels=LABELS),
     (4, 128, "muon", 0.004, 1024, 190), (4, 128, "muon", 0.004, 1024, 190)),
    ("tag", {}, texts(200_000, 32, 202, labels=LABELS),
     (4, 128, "muon", 0.004, 4096, 7810), (6, 256, "muon", 0.004, 65_536, 490)),
    ("embed", {}, texts(900, 44, 92),
     (4, 128, "muon", 0.004, 5632, 100), (4, 128, "muon", 0.004, 5632, 100)),
    ("embed", {}, texts(400_000, 64, 202, pairs=True),
     (6, 256, "muon", 0.004, 8192, 9375), (8, 512, "muon", 0.004, 65_536, 1173)),
    ("caption", {}, images(900, 8, **WRITTEN),
     (3, 128, "muon", 0.004, 80, 3360), (6, 256, "muon", 0.004, 80, 3360)),
    ("transcribe", {}, recordings(900, 50, **WRITTEN),
     (4, 128, "muon", 0.008, 800, 3360), (4, 128, "muon", 0.008, 800, 3360)),
    ("transcribe", {}, recordings(90_000, 150, **WRITTEN),
     (6, 256, "muon", 0.008, 19_200, 7030), (12, 512, "muon", 0.008, 76_800, 1760)),
    ("identify", {}, recordings(900, 50, labels=LABELS),
     (4, 128, "muon", 0.004, 800, 840), (6, 256, "muon", 0.004, 800, 2240)),
]  # fmt: skip


@pytest.mark.parametrize(("task", "given", "facts", "on_cpu", "on_gpu"), CASES)
def test_a_task_chooses_model_and_training(
    task: str, given: dict[str, Any], facts: DatasetStats, on_cpu: Chosen, on_gpu: Chosen
) -> None:
    for device, expected in ((CPU, on_cpu), (GPU, on_gpu)):
        found = resolve(load_run_settings(None, [], {"task": task, **given}), facts, device)
        model, train = found.model, found.train
        assert (model.n_layers, model.d_model, train.optimizer, train.lr, train.batch_tokens,
                train.steps) == expected  # fmt: skip
        assert train.precision == ("fp32" if device is CPU else "bf16")
