"""A task and a kind of data from outside the package: is this recording longer than that one?

One row of the table and this file; nothing else knows of either. A duel is a file with two lines,
each the path of a recording beside it. It is opened as one recording, with a pause between the two,
so that everything that reads recordings reads it; and the answer is a label, so that everything
that labels answers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.data.media.image import DecodedMedia
from headway.data.media.open_item import ItemFormat, read_media
from headway.data.media.open_item import register as register_files
from headway.data.store import PreparedData
from headway.errors import DataError
from headway.specs.metrics import scored
from headway.specs.needs import LABEL, Need
from headway.specs.task_settings import LabelSettings
from headway.specs.tasks import Spec
from headway.specs.tasks import register as register_task
from headway.tasks.label import ClassifyTask

ENDING = ".duel"
PAUSE_S = 0.05


def read_duel(path: str, form: ItemFormat) -> DecodedMedia:
    """The kind of data: how one is opened."""
    try:
        names = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error
    names = [name for name in names if name]
    if len(names) != 2:
        raise DataError(f"{path} must name two recordings, one in each line.")
    one, other = (read_media(str(Path(path).parent / name), form).values for name in names)
    samples = np.concatenate([one, np.zeros(int(PAUSE_S * form.rate), one.dtype), other])
    return DecodedMedia(samples, len(samples), 0)


@dataclass(frozen=True)
class Longer(ClassifyTask):
    """The task: what a label has, and of its own only how much there is to learn from."""

    def describe(self, prepared: PreparedData) -> str:
        return f"{prepared.train.n:,} duels"


ROW = Spec(
    name="longer", modality="audio", objective=f"{__name__}.Longer", reads="media",
    needs=(Need(name="path", kinds=frozenset({"audio", "duels"}), role="input"), LABEL),
    answers="label", metrics=scored("accuracy", "f1", "loss", "top5"), families=("audio-encoder",),
    heads=("classes",), settings=LabelSettings, options=frozenset({"with", "scores", "top"}),
    decode=frozenset({"precision"}), scores_ensembles=True, counts="pair", sample=("pair", "label"),
    lacks="more pairs of recordings", example="headway predict {run} two.duel",
)  # fmt: skip


def register() -> None:
    """What importing the package would do."""
    register_task(ROW)
    register_files(ENDING, "audio", read_duel)
