"""Pictures of the report: shown where they are whole, left out where anything is damaged."""

from __future__ import annotations

from typing import Any

import pytest

from headway.training.figures import figures
from headway.training.gallery import captions, gallery

PNG = "data:image/png;base64,iVBORw0KGgo="
ONE = {"picture": PNG, "true": "<cat>", "said": "dog", "sure": 0.75}
FOUND: dict[str, Any] = {
    "confused": [
        {"true": "<cat>", "said": "dog", "count": 12, "share": 0.06, "examples": [ONE, ONE]}
    ],
    "wrong": [ONE],
    "right": [{**ONE, "said": "<cat>"}],
    "classes": [ONE],
}


def test_what_is_confused_is_shown_with_its_pictures() -> None:
    page = gallery(FOUND)
    assert page.count(PNG) == 4
    assert "12 times, 6.0% of the class" in page
    assert "&lt;cat&gt;" in page
    assert "<cat>" not in page


def test_classes_have_a_picture_beside_their_name() -> None:
    confusion = {"labels": ["<cat>", "dog"], "counts": [[3, 1], [0, 2]]}
    page = figures({"confusion": confusion, "pictures": FOUND})
    assert page.count(PNG) == 4 + 2
    assert "Most often confused" in page


@pytest.mark.parametrize(
    "damaged",
    [
        None, [], "x", {"confused": 3}, {"wrong": [3, {}]}, {"confused": [{"examples": None}]},
        {"wrong": [{**ONE, "picture": "https://example.org/a.png"}]},
        {"wrong": [{**ONE, "picture": PNG + '" onload="x'}]},
        {"confused": [{**FOUND["confused"][0], "count": None}]},
    ],
)  # fmt: skip
def test_what_is_damaged_is_left_out(damaged: Any) -> None:
    assert gallery(damaged) == ""
    assert "img" not in figures({"pictures": damaged})


def test_verification_stands_in_the_report() -> None:
    found = {"eer": 0.0123, "threshold": 0.5, "same": 1200, "other": 34000, "speakers": 5}
    page = figures({"verification": found})
    assert "1.23 %" in page
    assert "34,000" in page
    assert "equal error" not in figures({"verification": {"eer": 1}})


def test_captions_stand_below_their_pictures() -> None:
    described = [
        {"picture": PNG, "target": "a <b> │ a cat", "output": "a cat"},
        {"picture": PNG, "target": "a <b>", "output": "a dog"},
        {"picture": "https://example.org/a.png", "target": "x", "output": "x"},
        None,
    ]
    page = captions(described)
    assert page.count(PNG) == 2
    assert page.count('class="said"') == 1
    assert "people: a &lt;b&gt;" in page
    assert captions(None) == captions([{}]) == ""
    assert PNG in figures({"described": described})
