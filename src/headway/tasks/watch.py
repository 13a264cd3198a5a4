"""Classes of videos: what happens in them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headway.config.run import Resolved
from headway.data.media.reading import What
from headway.data.store import Prepared
from headway.models.parts.pictures import Pictures
from headway.models.parts.sounds import Sound
from headway.tasks.intake_pictures import PictureChanges
from headway.tasks.media_labels import LabelTask
from headway.tasks.see import See


@dataclass
class WatchTask(LabelTask):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.changes = PictureChanges(self.settings.augment)

    def changed(
        self, model: nn.Module, given: Pictures | Sound, targets_BC: Tensor
    ) -> tuple[Pictures | Sound, Tensor]:
        assert isinstance(given, Pictures)
        return self.changes(given, targets_BC)


class Watch(See):
    """As `see`, with rows that are patches of a moment."""

    what: What = "videos"

    def task(self, settings: Resolved, prepared: Prepared) -> LabelTask:
        return WatchTask(prepared, settings)
