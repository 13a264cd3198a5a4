"""Commands read and print heads as pages do: from 1."""

from __future__ import annotations

import re

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


def test_shown_names_can_be_given_with_dots_or_spaces() -> None:
    for head in all_heads(FAMILIES["seq2seq"]):
        seen = shown(name_of(head))
        assert head_given(seen, "--off") == head
        assert head_given(seen.replace(" ", "."), "--off") == head


@pytest.mark.parametrize("name", ["", "cross", "cross.1", "cross.1.x", "cross.0.1", "1.2.3.4"])
def test_a_wrong_head_name_is_an_error(name: str) -> None:
    with pytest.raises(UserError, match=re.escape(repr(name))):
        head_given(name, "--off")
