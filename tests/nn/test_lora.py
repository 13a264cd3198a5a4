"""LoRA: nothing changes when it is added, only it learns, and merging changes nothing either."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headway.models.build import build_model
from headway.models.folder import model_weights
from headway.nn.linear import Linear, packing
from headway.nn.lora import LoraLinear, add_lora, merge_lora, merge_tensors
from tests.models.variants import FAMILIES, samples, scores, settings_of, tiny, word_loss

RANK, ALPHA = 3, 6.0


def outputs(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return torch.cat(scores(model, samples([3, 7, 1])))


def disturbed(model: nn.Module) -> nn.Module:
    """As if it had been trained for a while."""
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_b" in name:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=noise))
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", ["as-published", "llama-like", "some-biases-wide-heads"])
def test_adding_it_changes_no_bit_of_the_output(family: str, variant: str) -> None:
    model = tiny(family, variant)
    before = outputs(model)
    add_lora(model, RANK, ALPHA, "all")
    assert torch.equal(outputs(model), before)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("variant", ["as-published", "post-sinusoidal-relu", "llama-like"])
def test_merging_leaves_plain_layers_with_the_same_output(family: str, variant: str) -> None:
    model = tiny(family, variant)
    names = list(model_weights(model))
    before = outputs(model)
    add_lora(model, RANK, ALPHA, "all")
    with_lora = outputs(disturbed(model))
    assert (with_lora - before).abs().max() > 1e-2
    assert merge_lora(model) is model
    torch.testing.assert_close(outputs(model), with_lora, rtol=1e-5, atol=2e-5)
    assert list(model_weights(model)) == names
    assert not any(isinstance(part, LoraLinear) for part in model.modules())


def test_the_weights_of_a_checkpoint_are_merged_alike() -> None:
    model = tiny("decoder")
    add_lora(model, RANK, ALPHA, "all")
    merged = merge_tensors(model_weights(disturbed(model)), ALPHA)
    merge_lora(model)
    plain = model_weights(model)
    assert sorted(merged) == sorted(plain)
    for name, tensor in plain.items():
        torch.testing.assert_close(merged[name], tensor)


def test_a_merged_layer_gives_the_same_numbers_in_fp64() -> None:
    layer = Linear(8, 6, dtype=torch.float64)
    made = LoraLinear.around(layer, RANK, ALPHA, torch.Generator().manual_seed(0))
    x_ND = torch.randn(5, 8, dtype=torch.float64)
    with torch.no_grad():
        made.lora_b.normal_()
    expected = x_ND @ (layer.weight + ALPHA / RANK * made.lora_b @ made.lora_a).T + layer.bias
    torch.testing.assert_close(made(x_ND), expected)
    torch.testing.assert_close(made.merged()(x_ND), expected.detach(), check_stride=False)


def test_rows_of_the_weight_are_rows_of_the_whole() -> None:
    made = LoraLinear.around(Linear(8, 6), RANK, ALPHA, torch.Generator().manual_seed(0))
    torch.nn.init.normal_(made.lora_b)
    x_ND = torch.randn(5, 8)
    whole = made.product(x_ND, None)
    torch.testing.assert_close(made.product(x_ND, None, slice(2)), whole[:, :2])
    torch.testing.assert_close(made.product(x_ND, None, slice(2, None)), whole[:, 2:])
    torch.testing.assert_close(made.relu(x_ND), made(x_ND).relu())


def test_packed_weights_give_the_same_answers() -> None:
    model = tiny("seq2seq")
    add_lora(model, RANK, ALPHA, "all")
    plain = outputs(disturbed(model))
    with packing([model]):
        torch.testing.assert_close(outputs(model), plain, rtol=1e-5, atol=1e-5)
        merge_lora(model)
        torch.testing.assert_close(outputs(model), plain, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("targets", "per_layer"), [("attention", 2), ("all", 4)])
def test_only_its_matrices_and_the_heads_learn(targets: str, per_layer: int) -> None:
    model = build_model(settings_of("encoder", "as-published", heads=("classes",), n_labels=3))
    add_lora(model, RANK, ALPHA, targets)  # type: ignore[arg-type]
    learns = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert [name for name in learns if "lora" not in name] == [
        "heads.classes.linear.weight", "heads.classes.linear.bias",
    ]  # fmt: skip
    assert len([name for name in learns if "lora" in name]) == 2 * per_layer * 2


def test_every_one_of_its_matrices_gets_a_gradient() -> None:
    model = tiny("seq2seq")
    add_lora(model, RANK, ALPHA, "all")
    word_loss(disturbed(model), samples([4, 6])).backward()
    for name, weight in model.named_parameters():
        learned = weight.grad is not None and bool(weight.grad.abs().max() > 0)
        assert learned == ("lora" in name), name


def test_layers_that_are_frozen_already_get_none() -> None:
    model = tiny("decoder")
    model.stack.blocks[0].requires_grad_(False)
    add_lora(model, RANK, ALPHA, "all")
    names = [name for name, _ in model.named_parameters() if "lora" in name]
    assert names
    assert all(name.startswith("stack.blocks.1.") for name in names)


def test_the_same_seed_gives_the_same_start() -> None:
    firsts = []
    for seed in (1, 1, 2):
        model = tiny("decoder")
        add_lora(model, RANK, ALPHA, "attention", seed)
        firsts.append(model.stack.blocks[0].attention.to_qkv.lora_a.detach())
    assert torch.equal(firsts[0], firsts[1])
    assert not torch.equal(firsts[0], firsts[2])
