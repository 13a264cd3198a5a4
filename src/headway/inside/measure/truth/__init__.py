"""Accuracy of attribution maps: how often they point at the correct position, on inputs for which
it is known.

`measure_accuracy(run, cases)` compares maps and attention heads with chance. The other functions
make test cases.
"""

from headway.inside.measure.truth.accuracy import (
    BestHead,
    MapAccuracy,
    MapScore,
    centre_map,
    diagonal_map,
    measure_accuracy,
    random_map,
)
from headway.inside.measure.truth.cases import (
    AlignedPair,
    Case,
    GroundTruthLink,
    alignment_cases,
    atom_case,
    atom_cases,
    copied_word_cases,
    read_aligned_pairs,
    repeat_cases,
    word_case,
)
from headway.inside.measure.truth.media import (
    SpokenCase,
    boundary_errors,
    even_times,
    measure_times,
    recording_cases,
    scene_cases,
)

__all__ = [
    "AlignedPair",
    "BestHead",
    "Case",
    "GroundTruthLink",
    "MapAccuracy",
    "MapScore",
    "SpokenCase",
    "alignment_cases",
    "atom_case",
    "atom_cases",
    "boundary_errors",
    "centre_map",
    "copied_word_cases",
    "diagonal_map",
    "even_times",
    "measure_accuracy",
    "measure_times",
    "random_map",
    "read_aligned_pairs",
    "recording_cases",
    "repeat_cases",
    "scene_cases",
    "word_case",
]
