"""Pictures and recordings with some of their rows hidden, which are what a model is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from headway.data.batches import Rows
from headway.inside.capture.media import Media
from headway.tasks.intake import Gone, Hiding, intake_of
from headway.tasks.items import Batch, Draw
from headway.tasks.opened import Opened


def some_hidden(run: Opened, media: Sequence[Media], rows: Rows, seed: int) -> Batch[Gone]:
    """Some of these, by their numbers, as the model of a run may see them, and what it is to say.
    The same seed always hides the same."""
    intake, model = intake_of(run.settings), run.model
    columns = intake.columns([one.item for one in media])
    items = intake.hide(columns, run.settings.fill).drawn(Draw(seed, 0))
    assert isinstance(items, Hiding)
    batch = items.batch(rows, next(model.parameters()).device)
    return items.without(model, batch, training=False)
