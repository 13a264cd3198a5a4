"""Classes of recordings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from headway.config.data import DataSettings
from headway.config.facts import DeviceFacts, Facts, Proposal, because
from headway.config.run import Resolved, RunSettings
from headway.data.media.prepared import prepare_media
from headway.data.store import Prepared, load_prepared
from headway.models.parts.pictures import Pictures
from headway.models.parts.sounds import Sound, SoundFront
from headway.progress import Progress
from headway.tasks.begun import begun_with
from headway.tasks.fronts import item_rows, sound_shape, stored_form
from headway.tasks.intake_sounds import SoundChanges
from headway.tasks.kind import Predictor, Use
from headway.tasks.media_labels import Chosen, LabelTask, label_metrics
from headway.tasks.media_reader import Speeds
from headway.tasks.proposals import media_proposal, stored_front
from headway.tasks.scores import Scores
from headway.tasks.specs import spec_of

STANDARD = {"scale": "standard"}
"""Of the mel front of a model from scratch: neither loudness nor the microphone's colour says who
speaks."""


@dataclass
class HearTask(LabelTask):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.changes = SoundChanges(self.settings.augment)

    def before(self, part: Chosen) -> Speeds | None:
        seed = self.settings.train.seed
        return lambda rows: self.changes.speeds(rows.tolist(), seed, part.epoch)

    def changed(
        self, model: nn.Module, given: Pictures | Sound, targets_BC: Tensor
    ) -> tuple[Pictures | Sound, Tensor]:
        assert isinstance(given, Sound)
        front = model.front
        assert isinstance(front, SoundFront)
        return self.changes(front, given), targets_BC


class Hear:
    def prepare(self, settings: RunSettings, folder: Path, progress: Progress) -> Prepared:
        shape = sound_shape(settings, STANDARD)
        return prepare_media("sounds", settings, folder, progress, target="label", shape=shape)

    def load_prepared(self, folder: Path) -> Prepared:
        return load_prepared(folder)

    def describe(self, prepared: Prepared) -> str:
        return f"{prepared.train.n:,} recordings of {len(prepared.labels)} classes"

    def facts(self, settings: RunSettings, prepared: Prepared) -> Facts:
        stored = stored_form(prepared)
        front = sound_shape(settings, STANDARD, stored)
        rows_N = item_rows(prepared.train.media, front)
        return Facts(
            n=len(rows_N),
            n_tokens=int(rows_N.sum()),
            longest=int(rows_N.max()),
            labels=tuple(prepared.labels),
            front=front,
            stored=stored,
            begun=begun_with(settings),
        )

    def propose(self, settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
        found = recording_proposal(settings, facts, device)
        return found.also(because("what the files hold", "classify", {"what": "sounds"}))

    def check(self, settings: Resolved, prepared: Prepared) -> None: ...

    def task(self, settings: Resolved, prepared: Prepared) -> HearTask:
        return HearTask(prepared, settings)

    def predictor(self, use: Use) -> Predictor:
        from headway.tasks.media_answers import Labeller

        return Labeller.of(use)

    def evaluation(self, use: Use, files: DataSettings) -> Scores:
        from headway.tasks.media_scores import evaluate_labels

        return evaluate_labels(use, files)


def recording_proposal(settings: RunSettings, facts: Facts, device: DeviceFacts) -> Proposal:
    """Of classes of recordings, whoever reads them."""
    return media_proposal(
        settings,
        facts,
        device,
        f"{facts.n:,} recordings",
        n_rows=facts.n_tokens,
        longest=facts.longest,
        epochs=15 if device.is_cpu else 40,
        family="sound-encoder",
        needs={"heads": ("classes",), "n_labels": len(facts.labels)},
        shape={**size_for(device), "dropout": 0.1},
        front=stored_front(facts),
        training={
            "optimizer": "muon", "schedule": "linear", "lr": 4e-3, "weight_decay": 0.05,
            "clip": 1.0, "smoothing": 0.1,
        },
        tuning={"smoothing": 0.1},
        augment={"bands": 2, "band_width": 12, "spans": 2, "span_width": 15},
        metrics=label_metrics(spec_of(settings), len(facts.labels)),
    )  # fmt: skip


def size_for(device: DeviceFacts) -> dict[str, object]:
    """Layers and widths of a model that listens and has little to say."""
    if device.is_cpu:
        return {"n_layers": 4, "d_model": 128, "n_heads": 4, "d_ff": 256}
    return {"n_layers": 6, "d_model": 256, "n_heads": 4, "d_ff": 768}
