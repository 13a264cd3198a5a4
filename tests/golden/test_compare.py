"""A difference is seen, and said where it is."""

from __future__ import annotations

import numpy as np

from .compare import array_facts, differences
from .integers import fractions, whole_numbers


def test_differences_name_the_place_and_both_values() -> None:
    old = {"a": [1, 2.0], "b": "x", "c": {"d": True}, "gone": 1}
    new = {"a": [1, 2.1], "b": "y", "c": {"d": False}, "new": 1}
    assert list(differences(old, new, "p/s")) == [
        "p/s.a[1]: 2.0 → 2.1",
        "p/s.b: 'x' → 'y'",
        "p/s.c.d: True → False",
        "p/s.gone: 1 → gone",
        "p/s.new: new → 1",
    ]


def test_computed_numbers_may_differ_a_little_and_whole_ones_not() -> None:
    assert not list(differences([1.0, 1e-6], [1.0005, -1e-6]))
    assert list(differences([1000], [1001]))
    assert list(differences([1], [True]))
    assert list(differences([1.0], [1.01]))
    assert list(differences([1, 2], [1]))


def test_facts_of_an_array_tell_values_that_trade_places() -> None:
    x = np.arange(6.0)
    assert list(differences(array_facts(x), array_facts(x[::-1])))
    assert list(differences(array_facts(x), array_facts(x.reshape(2, 3))))
    whole = np.arange(6)
    assert array_facts(whole) == array_facts(whole.astype(np.int32))
    assert array_facts(whole) != array_facts(whole[::-1])


def test_chance_is_the_same_everywhere() -> None:
    assert whole_numbers("a", 2).tolist() == WHOLE
    assert fractions("a", 3).tolist() == fractions("a", 4)[:3].tolist()


WHOLE = [12137942361386574506, 4504528965725572720]
