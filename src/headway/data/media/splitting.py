"""Which items are set aside for validation where nobody gives any."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headway.data.check_report import Finding, Report
from headway.data.media.check import absent_labels
from headway.data.media.open_item import UNITS
from headway.data.media.source import names_in
from headway.data.media.survey import Surveyed
from headway.data.split import choose_by_label, choose_rows, draws_of
from headway.data.store import ImpossibleData
from headway.errors import DataError


def split_off(
    seen: Surveyed, good: NDArray[np.int64], size: int, report: Report
) -> NDArray[np.bool_]:
    """Which of the good ones are for validation: equal ones together, about as many of each class
    as it has of all, and never all of a class. The report hears of classes that get none."""
    keys, unit = seen.facts["hash"][good], UNITS[seen.form.what]
    sets = [names_in(seen.targets[row] or "") for row in good.tolist()]
    labels = [names[0] if names else "" for names in sets]
    try:
        if seen.target != "label" or seen.answer == "number":
            others = seen.facts["hash"][good + 1] if seen.target == "other" else keys
            return choose_rows(keys, others, size, unit, "--valid-media")
        # Voices are also compared with each other: one recording of a voice would say nothing.
        each = 2 if seen.form.what == "sounds" else 1
        held_out = choose_by_label(draws_of(keys), labels, max(1, min(size, len(keys) // 10)), each)
        if not held_out.any():
            raise DataError("no class can spare one")
    except DataError as error:
        text = (
            f"no validation {unit} can be split off the {len(good):,} {unit}: they are too few, "
            "or most of them are the same, or the only ones of their class. Give some of their "
            "own (--valid-media)."
        )
        report.findings.append(Finding("error", "no-split", 0, text))
        raise ImpossibleData(report) from error
    chosen = {name for place in np.flatnonzero(held_out).tolist() for name in sets[place]}
    report.findings += absent_labels(chosen, {name for names in sets for name in names})
    return held_out
