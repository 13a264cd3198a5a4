"""`compare` finds a difference, names its place, and tolerates rounding."""

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


def test_computed_numbers_have_a_tolerance_and_integers_have_none() -> None:
    assert not list(differences([1.0, 1e-6], [1.0005, -1e-6]))
    assert list(differences([1000], [1001]))
    assert list(differences([1], [True]))
    assert list(differences([1.0], [1.01]))
    assert list(differences([1, 2], [1]))


def test_array_facts_depend_on_order_and_shape() -> None:
    x = np.arange(6.0)
    assert list(differences(array_facts(x), array_facts(x[::-1])))
    assert list(differences(array_facts(x), array_facts(x.reshape(2, 3))))
    whole = np.arange(6)
    assert array_facts(whole) == array_facts(whole.astype(np.int32))
    assert array_facts(whole) != array_facts(whole[::-1])


def test_pseudorandom_numbers_are_the_same_everywhere() -> None:
    assert whole_numbers("a", 2).tolist() == [12137942361386574506, 4504528965725572720]
    assert fractions("a", 3).tolist() == fractions("a", 4)[:3].tolist()
