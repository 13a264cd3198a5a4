"""What a model is once it is built: the same for the same seed, and tied weights stay one."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from headway.errors import UserError
from headway.models.build import build_model
from headway.nn.layout import Layout
from headway.settings.load import model_settings
from headway.settings.model import FAMILY_SETTINGS

from .variants import EVERY, FAMILIES, samples, scores, settings_of, tiny

every_family = pytest.mark.parametrize("family", FAMILIES)
every_variant = pytest.mark.parametrize("variant", EVERY)


def sharing(model: nn.Module) -> set[frozenset[str]]:
    """The groups of names that stand for one weight."""
    names: dict[int, set[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), set()).add(name)
    return {frozenset(group) for group in names.values() if len(group) > 1}


SOURCE, TARGET = "source_front.tokens.weight", "target_front.tokens.weight"
SOFTMAX = "head.linear.weight"

TIES = [
    ("seq2seq", "all", {SOURCE, TARGET, SOFTMAX}),
    ("seq2seq", "source-target", {SOURCE, TARGET}),
    ("seq2seq", "source-softmax", {SOURCE, SOFTMAX}),
    ("seq2seq", "target-softmax", {TARGET, SOFTMAX}),
    ("seq2seq", "none", set()),
    ("decoder", True, {"front.tokens.weight", SOFTMAX}),
    ("decoder", False, set()),
    ("encoder", True, {"front.tokens.weight", "heads.words.words.linear.weight"}),
    ("encoder", False, set()),
]


def build(family: str, tie: str | bool) -> nn.Module:
    return build_model(replace(FAMILIES[family], tie=tie), seed=3).eval()


@pytest.mark.parametrize(("family", "tie", "shared"), TIES)
def test_tying_makes_one_weight_of_those_it_names(
    family: str, tie: str | bool, shared: set[str]
) -> None:
    assert sharing(build(family, tie)) == ({frozenset(shared)} if shared else set())


@pytest.mark.parametrize(("family", "tie", "shared"), TIES)
def test_a_copy_is_tied_as_the_original_and_apart_from_it(
    family: str, tie: str | bool, shared: set[str]
) -> None:
    model = build(family, tie)
    twin = copy.deepcopy(model)
    assert sharing(twin) == sharing(model)
    before = scores(model, samples([4, 6]))
    assert all(map(torch.equal, scores(twin, samples([4, 6])), before))
    with torch.no_grad():
        for weight in twin.parameters():
            weight.zero_()
    assert all(map(torch.equal, scores(model, samples([4, 6])), before))


@pytest.mark.parametrize(("family", "tie", "shared"), TIES)
def test_weights_go_out_and_come_back_tied_as_before(
    family: str, tie: str | bool, shared: set[str]
) -> None:
    model, other = build(family, tie), build(family, tie)
    with torch.no_grad():
        for weight in other.parameters():
            weight.normal_()
    other.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    assert sharing(other) == sharing(model)
    assert all(map(torch.equal, scores(other, samples([4, 6])), scores(model, samples([4, 6]))))


@every_family
@every_variant
def test_the_seed_alone_decides_the_weights(family: str, variant: str) -> None:
    settings = settings_of(family, variant)
    torch.manual_seed(1)
    first = build_model(settings, seed=7).state_dict()
    torch.manual_seed(2)  # what others have drawn before plays no part
    second = build_model(settings, seed=7).state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    third = build_model(settings, seed=8).state_dict()
    drawn = [name for name in first if first[name].unique().numel() > 2]
    assert drawn
    assert not any(torch.equal(first[name], third[name]) for name in drawn)


@every_family
@every_variant
def test_a_fresh_model_starts_finite_and_unsure(family: str, variant: str) -> None:
    """Its scores are small numbers: no word is much likelier than another before training."""
    model = build_model(settings_of(family, variant)).eval()
    with torch.no_grad():
        for scores_TV in scores(model, samples([4, 9])):
            assert scores_TV.isfinite().all()
            assert scores_TV.std() < 3


@pytest.mark.gpu
@every_family
def test_the_same_seed_gives_the_same_weights_on_a_gpu(family: str) -> None:
    settings = settings_of(family, "as-published")
    here, there = build_model(settings, seed=7), build_model(settings, device="cuda", seed=7)
    for (name, ours), theirs in zip(here.named_parameters(), there.parameters(), strict=True):
        assert torch.equal(ours, theirs.cpu()), name


@pytest.mark.parametrize("pooling", ["first", "mean"])
@torch.no_grad()
def test_a_text_is_pooled_from_its_own_rows(pooling: str, device: torch.device) -> None:
    heads = {"heads": ("classes",), "n_labels": 3}
    model = tiny("encoder", device=device, pooling=pooling, **heads)
    layout = Layout.of([3, 1, 4], device)
    x_ND = torch.randn(8, 32, device=device)
    texts = x_ND.split([3, 1, 4])
    expected_BD = torch.stack([x[0] if pooling == "first" else x.mean(0) for x in texts])
    torch.testing.assert_close(model.pooled(x_ND, layout), expected_BD)
    assert model.classes(x_ND, layout).shape == (3, 3)
    half_ND = x_ND.bfloat16()
    torch.testing.assert_close(
        model.pooled(half_ND, layout).float(), expected_BD, rtol=0.02, atol=0.02
    )


def test_a_missing_head_is_named_with_the_existing_heads() -> None:
    model = build_model(FAMILIES["encoder"])
    with pytest.raises(UserError, match=r"'tags'.*\bwords\b.*\bpooled\b"):
        model.tags(torch.zeros(1, 32))


class Operators(TorchDispatchMode):
    """Which ones torch was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", FAMILY_SETTINGS)
def test_a_model_without_memory_draws_nothing(family: str) -> None:
    """To draw there, torch imports its compiler, which takes longer than all else."""
    with Operators() as asked:
        build_model(FAMILY_SETTINGS[family](), device="meta")
    assert "empty" in asked.names
    assert not asked.names & {"normal_", "uniform_"}


@pytest.mark.parametrize(
    ("single_head", "layers"),
    [("every", {1: [0], 4: [0, 1, 2, 3]}), ("second-last", {1: [0], 2: [0], 4: [2]}),
     ("none", {4: []})],
)  # fmt: skip
def test_a_sha_rnn_has_its_head_where_the_settings_put_it(
    single_head: str, layers: dict[int, list[int]]
) -> None:
    for n_layers, expected in layers.items():
        # A preset's window goes with the head; on a command line `none` is None.
        settings = model_settings({
            "preset": "sha-rnn", "d_model": 8, "d_ff": 16, "n_layers": n_layers,
            "single_head": None if single_head == "none" else single_head,
        })  # fmt: skip
        model: Any = build_model(settings, seed=0)
        found = [layer for layer, block in enumerate(model.stack.blocks) if block.attention]
        assert found == expected
    # What was saved before there was a choice has one in every layer.
    saved = asdict(settings_of("decoder", "sha-rnn"))
    del saved["single_head"]
    again: Any = build_model(model_settings({"family": "decoder", **saved}), seed=0)
    assert all(block.attention for block in again.stack.blocks)
