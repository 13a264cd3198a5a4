"""Commands read and print heads as pages do: from 1."""

from __future__ import annotations

import pytest

from headway.cli.head_names import head_given, shown
from headway.errors import UserError
from headway.inside.measure.pruning import all_heads, name_of
from tests.models.variants import FAMILIES


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("cross.1.3", "cross 2.4"),
        ("self.0.11", "self 1.12"),
        ("cross.1.mean", "cross 2 mean"),
        ("encoder.0.2.norm", "encoder 1.3 norm"),
        ("rollout", "rollout"),
    ],
)
def test_a_name_of_data_is_shown_as_people_count(name: str, seen: str) -> None:
    assert shown(name) == seen


def test_what_is_shown_can_be_given_with_a_dot_or_as_it_stands() -> None:
    for head in all_heads(FAMILIES["seq2seq"]):
        seen = shown(name_of(head))
        assert head_given(seen, "--off") == head
        assert head_given(seen.replace(" ", "."), "--off") == head


@pytest.mark.parametrize("name", ["", "cross", "cross.1", "cross.1.x", "cross.0.1", "1.2.3.4"])
def test_what_is_no_head_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"names no head|counts from 1"):
        head_given(name, "--off")
