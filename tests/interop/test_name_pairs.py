"""One table for both ways: every tensor exactly once, nothing lost, nothing guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headway.errors import UserError
from headway.interop.name_pairs import (
    TRANSPOSED,
    ConvertedTensors,
    NamePair,
    TensorTransform,
    stacked,
    to_ours,
    to_theirs,
    weight_and_bias,
)

from ..facts import missing
from .folders import bert_folder
from .theirs import architecture

PAIRS = [
    *stacked(["a.q", "a.k", "a.v"], "x", [4, 2, 2], bias=False),
    NamePair("b.weight", "y.weight", change=TRANSPOSED),
    NamePair("table", "z", their_rows=slice(2, None)),
    NamePair("again", "z2", tied=True),
]
ALIASES = {"z2": "z"}


def tensors() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    return {
        "a.v.weight": some(2, 3),
        "a.q.weight": some(4, 3),
        "b.weight": some(5, 7),
        "table": some(6, 3),
        "mask": torch.ones(3, dtype=torch.bool),
        "a.k.weight": some(2, 3),
    }


def taken(given: dict[str, torch.Tensor]) -> ConvertedTensors:
    return to_ours(given, PAIRS, {"mas.": "a mask"}, ALIASES)


def test_parts_are_joined_turned_and_cut_and_come_back() -> None:
    theirs = tensors()
    found = taken(theirs)
    parts = [theirs[f"a.{name}.weight"] for name in "qkv"]
    assert torch.equal(found.weights["x.weight"], torch.cat(parts))
    assert torch.equal(found.weights["y.weight"], theirs["b.weight"].T)
    assert torch.equal(found.weights["z"], theirs["table"][2:])
    assert found.ignored == {"mask": "a mask"}
    assert torch.equal(found.kept["table[:2]"], theirs["table"][:2])
    ours = found.weights | {"z2": found.weights["z"]}
    back = to_theirs(ours, PAIRS[:-1], found.kept)
    assert set(back) == set(theirs)
    assert all(torch.equal(back[name], theirs[name]) for name in theirs)
    fresh = to_theirs(ours, PAIRS[:-1])["table"]
    assert not fresh[:2].any()
    assert torch.equal(fresh[2:], theirs["table"][2:])


def test_a_missing_and_an_unknown_tensor_are_named() -> None:
    theirs = tensors()
    theirs["a.kk.weight"] = theirs.pop("a.k.weight")
    with pytest.raises(UserError) as caught:
        taken(theirs)
    assert not missing(caught.value, "a.k.weight", "a.kk.weight")
    many = tensors() | {f"more.{i}": torch.ones(1) for i in range(100)}
    with pytest.raises(UserError, match=r"more\.7\n\D*\b92\b"):
        taken(many)


def test_a_tied_tensor_may_be_absent_but_not_another_one() -> None:
    theirs = tensors()
    assert "z" in taken(theirs).weights
    equal = taken({**theirs, "again": theirs["table"][2:]})
    assert torch.equal(equal.weights["z"], theirs["table"][2:])
    for other in (theirs["table"][2:] + 1e-6, theirs["table"][3:]):
        with pytest.raises(UserError, match=r"\bagain\b.*\bz2\b.*\btie_word_embeddings\b"):
            taken({**theirs, "again": other})


def test_shapes_that_do_not_go_together_are_named() -> None:
    with pytest.raises(UserError, match=r"\ba\.k\.weight\b.*\(3, 3\).*\b2\b"):
        taken(tensors() | {"a.k.weight": torch.ones(3, 3)})
    with pytest.raises(UserError, match=r"\ba\.q\.weight \(4, 3\).*\ba\.k\.weight \(2, 4\)"):
        taken(tensors() | {"a.k.weight": torch.ones(2, 4)})
    with pytest.raises(UserError, match=r"\ba\.k\.weight\b.*\(\).*\b2\b"):
        taken(tensors() | {"a.k.weight": torch.tensor(1.0)})


def test_on_the_meta_device_it_finds_out_shapes_alone() -> None:
    meta = {name: tensor.to("meta") for name, tensor in tensors().items()}
    meta["again"] = torch.empty(4, 3, device="meta")
    found = taken(meta)
    assert {name: tuple(tensor.shape) for name, tensor in found.weights.items()} == {
        "x.weight": (8, 3), "y.weight": (7, 5), "z": (4, 3),
    }  # fmt: skip
    assert all(tensor.is_meta for tensor in found.weights.values())


def test_a_table_that_names_a_tensor_twice_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        to_ours({}, [*weight_and_bias("a", "b"), *weight_and_bias("a", "c")], {})


def test_a_layer_left_out_of_a_table_is_an_error(tmp_path: Path) -> None:
    folder, theirs = bert_folder(tmp_path / "bert")
    found = architecture(folder)
    with pytest.raises(UserError, match=r"\bbert\.embeddings\.word_embeddings\.weight\b"):
        to_ours(theirs.state_dict(), found.pairs[5:], found.ignored)


def test_one_of_theirs_may_be_several_of_ours() -> None:
    first = TensorTransform(lambda t: t[0, :1], lambda t: t[None])
    rest = TensorTransform(lambda t: t[0, 1:], lambda t: t[None])
    pairs = [
        NamePair("places", "a", change=first, concat_axis=1),
        NamePair("places", "b", change=rest, concat_axis=1),
    ]
    theirs = {"places": torch.arange(10.0).view(1, 5, 2)}
    taken = to_ours(theirs, pairs, {})
    assert {name: tuple(tensor.shape) for name, tensor in taken.weights.items()} == {
        "a": (1, 2),
        "b": (4, 2),
    }
    assert torch.equal(to_theirs(taken.weights, pairs)["places"], theirs["places"])
    with pytest.raises(UserError, match=r"\bplaces\b"):
        to_ours({}, pairs, {})
