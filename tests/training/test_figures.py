"""Tables of the report that come from what a run found at its end."""

from __future__ import annotations

from typing import Any

import pytest

from headway.training.figures import figures

FACTS: dict[str, Any] = {
    "metric": "accuracy",
    "teacher": {"parameters": 11_806_400, "batches_per_s": 2.0, "scores": {"accuracy": 80.25}},
    "student": {"parameters": 6_884_000, "batches_per_s": 3.5, "scores": {"accuracy": 79.5}},
}


def test_a_student_stands_beside_its_teacher() -> None:
    page = figures({"distilled": FACTS})
    for text in ("teacher", "student", "11,806,400", "6,884,000", "3.5", "80.25", "79.5"):
        assert text in page


@pytest.mark.parametrize("damaged", [None, "x", {}, {**FACTS, "student": {}}, {"metric": 1}])
def test_what_is_damaged_is_left_out(damaged: Any) -> None:
    assert "student" not in figures({"distilled": damaged})
