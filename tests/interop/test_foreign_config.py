"""Foreign configurations: a default for what is absent, an error by name for what cannot be."""

from __future__ import annotations

import re
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.interop.foreign_config import ForeignConfig


@pytest.mark.parametrize("value", [0, -1, 10**9, 2.0, "3", True, [3], float("nan")])
def test_a_whole_number_is_one_of_sensible_size(value: Any) -> None:
    assert ForeignConfig({"n": 3}).integer("n") == 3
    pattern = rf"^config\.json\b.*\bn\b.*{re.escape(repr(value))}.*\b1\b.*\b16777216\b"
    with pytest.raises(ConfigError, match=pattern):
        ForeignConfig({"n": value}).integer("n")


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), 10**400, "0.1", False])
def test_a_number_is_finite_and_within_its_bounds(value: Any) -> None:
    assert ForeignConfig({"x": 1}).number("x") == 1.0
    pattern = rf"^config\.json\b.*\bx\b.*{re.escape(repr(value)[:20])}.*\b0\b.*1e\+09"
    with pytest.raises(ConfigError, match=pattern):
        ForeignConfig({"x": value}).number("x")


@pytest.mark.parametrize("value", [None, 3])
def test_what_is_absent_or_null_has_its_default(value: int | None) -> None:
    given = ForeignConfig({} if value is None else {"n": value})
    assert given.integer("n", 3) == 3
    assert ForeignConfig({"n": None}).integer("n", 3) == 3
    with pytest.raises(ConfigError, match=r"config\.json\b.*\bm\b"):
        given.integer("m")


def test_no_more_layers_than_tensors() -> None:
    given = ForeignConfig({"n": 5, "many": 3000})
    assert given.layers("n", ["a"] * 5) == 5
    with pytest.raises(ConfigError, match=r"config\.json\b.*\bn\b.*\b5\b.*\b4\b"):
        given.layers("n", ["a"] * 4)
    with pytest.raises(ConfigError, match=r"config\.json\b.*\bmany\b.*\b3000\b.*\b1\b.*\b2000\b"):
        given.layers("many", ["a"] * 5000)


def test_only_rejects_other_values_if_the_key_is_there() -> None:
    given = ForeignConfig({"a": 1, "b": {"x": 2}, "c": None})
    given.require("a", 1, "reason")
    given.require("a", (0, 1), "reason")
    given.require("c", 5, "reason")
    given.require("absent", 5, "reason")
    for key, value, allowed in (("a", "1", 2), ("b", r"\{'x': 2\}", {})):
        with pytest.raises(ConfigError, match=rf"config\.json\b.*\b{key}\b.*{value}.*reason"):
            given.require(key, allowed, "reason")


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        ForeignConfig({"n": "x" * 10_000}).integer("n")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("method", "value"),
    [("flag", 1), ("flag", "true"), ("string", 3), ("activation", "mish"), ("activation", 3),
     ("fraction", 1.0), ("nested", [1])],
)  # fmt: skip
def test_other_types_are_an_error(method: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"config\.json\b.*\bkey\b.*{re.escape(repr(value))}"):
        getattr(ForeignConfig({"key": value}), method)("key")
