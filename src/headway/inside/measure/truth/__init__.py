"""Measured accuracy of maps: how often they point at the right place, where that is known.

`measure(run, cases)` compares maps and heads with chance; the other functions make cases.
"""

from headway.inside.measure.truth.atoms import atom_case, atom_maps
from headway.inside.measure.truth.case import Case, Link, word_case
from headway.inside.measure.truth.measure import (
    Best,
    Score,
    Truth,
    centre_map,
    diagonal_map,
    measure,
    random_map,
)
from headway.inside.measure.truth.pointing import Spoken, recordings, scenes
from headway.inside.measure.truth.repeats import repeats
from headway.inside.measure.truth.times import boundary_errors, even_times, measure_times
from headway.inside.measure.truth.words import Known, aligned, copied_words, read_known

__all__ = [
    "Best",
    "Case",
    "Known",
    "Link",
    "Score",
    "Spoken",
    "Truth",
    "aligned",
    "atom_case",
    "atom_maps",
    "boundary_errors",
    "centre_map",
    "copied_words",
    "diagonal_map",
    "even_times",
    "measure",
    "measure_times",
    "random_map",
    "read_known",
    "recordings",
    "repeats",
    "scenes",
    "word_case",
]
