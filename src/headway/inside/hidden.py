"""Pictures and recordings with some of their rows hidden, which are what a model is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from headway.data.batches import Rows, moved
from headway.inside.anatomy import Anatomy
from headway.inside.media import Media
from headway.models.parts.heads import Input
from headway.models.parts.pictures import PictureFront
from headway.models.parts.sounds import Sound, SoundFront
from headway.tasks.hiding import hidden_frames, hidden_patches, without_frames, without_patches
from headway.tasks.opened import Opened
from headway.tasks.rebuild import RebuildGiven, hider_of


def some_hidden(run: Opened, media: Sequence[Media], numbers: Rows) -> RebuildGiven:
    """As the model of a run may see them: of an item always the same is hidden, by its number."""
    front = cast("PictureFront | SoundFront", Anatomy.of(run.model).stacks[0].front)
    hider, device = hider_of(run.settings, 0), next(run.model.parameters()).device
    given, layout = front.collate([one.item for one in media], device)
    if isinstance(given, Sound):
        front = cast(SoundFront, front)
        frames = np.array([front.shape.frames_of(len(one.item)) for one in media], np.int64)
        hidden = moved(hidden_frames(hider, numbers, frames, front.shape, 0), device)
        seen, targets_RE = without_frames(front, given, hidden)
        return RebuildGiven(Input(seen, layout), hidden, targets_RE)
    front = cast(PictureFront, front)
    hidden = moved(hidden_patches(hider, numbers, front.shape, 0, len(media)), device)
    left, targets_RE = without_patches(front, given, hidden)
    return RebuildGiven(Input(left, layout), hidden, targets_RE)
