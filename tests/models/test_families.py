"""What holds for every family in every setting: who sees whom, and that a batch is only a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from headway.models.parts.front import set_compute_dtype
from headway.nn.attention.attend import BACK_ENDS, attend
from headway.nn.layout import Layout, loss_weights

from .variants import (
    EVERY,
    FAMILIES,
    VARIANTS,
    VOCAB,
    Sample,
    flat,
    inputs_of,
    loss_of,
    samples,
    scores,
    settings_of,
    tiny,
    vectors,
    word_loss,
)

LENGTHS = [5, 8, 1, 7, 5]

every_family = pytest.mark.parametrize("family", FAMILIES)
every_variant = pytest.mark.parametrize("variant", EVERY)
writers = pytest.mark.parametrize("family", ["seq2seq", "decoder"])


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit on a CPU; on a GPU a kernel may add up in another order."""
    return torch.equal(a, b) if not a.is_cuda else torch.allclose(a, b, rtol=0, atol=1e-5)


def assert_all_close(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], tolerance: float = 1e-5
) -> None:
    """On a GPU, whose products add up in an order that depends on their shape, twice as far."""
    for a, b in zip(ours, theirs, strict=True):
        bound = 2 * tolerance if a.is_cuda else tolerance
        torch.testing.assert_close(a, b, rtol=bound, atol=bound)


def other_token(token: int) -> int:
    return token % (VOCAB - 1) + 1


def with_target_changed(sample: Sample, at: int) -> Sample:
    target = list(sample.target)
    target[at] = other_token(target[at])
    return Sample(sample.source, tuple(target))


@writers
@every_variant
@torch.no_grad()
def test_a_later_token_cannot_change_an_earlier_score(
    family: str, variant: str, device: torch.device
) -> None:
    model, batch = tiny(family, variant, device=device), samples(LENGTHS)
    before = scores(model, batch)
    for at in (3, 6):
        changed = [batch[0], with_target_changed(batch[1], at), *batch[2:]]
        after = scores(model, changed)
        assert same(after[1][:at], before[1][:at])
        assert not torch.allclose(after[1][at], before[1][at], atol=1e-3)  # it can fail


@writers
@torch.no_grad()
def test_a_window_has_its_width_in_every_layer(family: str, device: torch.device) -> None:
    n_layers, window = 2, 3
    model = tiny(family, "window", device=device)
    sample = samples([12])[0]
    before_TV = scores(model, [sample])[0]
    after_TV = scores(model, [with_target_changed(sample, 2)])[0]
    reach = 2 + n_layers * (window - 1)
    moved_T = (after_TV - before_TV).abs().amax(-1) > 1e-4
    assert moved_T.nonzero().flatten().tolist() == list(range(2, reach + 1))


@pytest.mark.parametrize("family", ["seq2seq", "encoder"])
@pytest.mark.parametrize("variant", [name for name in EVERY if "one-way" not in name])
@torch.no_grad()
def test_an_encoder_reads_in_both_directions(
    family: str, variant: str, device: torch.device
) -> None:
    model, tokens = tiny(family, variant, device=device), samples([8])[0].target
    other = (*tokens[:4], other_token(tokens[4]), *tokens[5:])

    def read(text: tuple[int, ...]) -> Tensor:
        inputs = flat([text], device)
        return model(*inputs) if family == "encoder" else model.encode(*inputs).x_MD

    before_TD, after_TD = read(tokens), read(other)
    for neighbour in (3, 4, 5):
        assert not torch.allclose(after_TD[neighbour], before_TD[neighbour], atol=1e-3)


@every_variant
@torch.no_grad()
def test_a_writer_reads_all_of_its_source(variant: str, device: torch.device) -> None:
    model = tiny("seq2seq", variant, device=device)
    sample = samples([4])[0]
    before_TV = scores(model, [sample])[0]
    for at in range(len(sample.source)):
        source = list(sample.source)
        source[at] = other_token(source[at])
        after_TV = scores(model, [Sample(tuple(source), sample.target)])[0]
        assert (after_TV - before_TV).abs().amax(-1).min() > 1e-4  # every row sees it


@every_family
@every_variant
@torch.no_grad()
def test_other_content_in_a_neighbour_changes_nothing(
    family: str, variant: str, device: torch.device
) -> None:
    model, batch, other = (
        tiny(family, variant, device=device),
        samples(LENGTHS),
        samples(LENGTHS, 1),
    )
    mixed = [batch[0], other[1], batch[2], other[3], batch[4]]
    before, after = scores(model, batch), scores(model, mixed)
    for mine in (0, 2, 4):
        assert same(after[mine], before[mine])
    for neighbour in (1, 3):
        assert not torch.allclose(after[neighbour], before[neighbour], atol=1e-2)  # it can fail


@every_family
@every_variant
@torch.no_grad()
def test_not_a_number_in_a_neighbour_stays_there(
    family: str, variant: str, device: torch.device
) -> None:
    model, batch = tiny(family, variant, device=device), samples(LENGTHS)
    poison = 0  # `samples` draws no such token
    for name, weight in model.named_parameters():
        if "tokens" in name:
            weight[poison] = torch.nan
    poisoned = [Sample((poison,) * len(s.source), (poison,) * len(s.target)) for s in batch]
    mixed = [batch[0], poisoned[1], batch[2], poisoned[3], batch[4]]
    before, after = vectors(model, batch), vectors(model, mixed)
    for mine in (0, 2, 4):
        assert same(after[mine], before[mine])
    for neighbour in (1, 3):
        assert after[neighbour].isnan().all()


@every_family
@every_variant
@torch.no_grad()
def test_a_batch_is_many_single_ones(family: str, variant: str, device: torch.device) -> None:
    model, batch = tiny(family, variant, device=device), samples(LENGTHS)
    assert_all_close(scores(model, batch), [scores(model, [sample])[0] for sample in batch])


@every_family
@every_variant
@torch.no_grad()
def test_another_order_or_company_changes_nothing(
    family: str, variant: str, device: torch.device
) -> None:
    model, batch = tiny(family, variant, device=device), samples(LENGTHS)
    before = scores(model, batch)
    order = [3, 0, 4, 2, 1]
    shuffled = scores(model, [batch[i] for i in order])
    assert_all_close([shuffled[order.index(i)] for i in range(5)], before)
    others = samples([9, 2, 6], seed=2)
    mixed = scores(model, [others[0], batch[1], others[1], batch[3], others[2]])
    assert_all_close([mixed[1], mixed[3]], [before[1], before[3]])


def fixed(sequences: list[tuple[int, ...]], device: torch.device) -> tuple[Tensor, Layout]:
    """Room for 40 tokens and 12 sequences of at most 10, whatever is in it."""
    tokens = [token for sequence in sequences for token in sequence]
    lengths = [len(sequence) for sequence in sequences]
    layout = Layout.fixed(lengths, n_rows=40, n_sequences=12, longest=10, device=device)
    return torch.tensor(tokens + [7] * (40 - len(tokens)), device=device), layout


@every_family
@every_variant
def test_the_fixed_size_form_gives_the_scores_and_gradients_of_the_plain_one(
    family: str, variant: str, device: torch.device
) -> None:
    model, batch = tiny(family, variant, device=device), samples(LENGTHS)
    inputs = fixed([sample.target for sample in batch], device)
    if family == "seq2seq":
        inputs = (*fixed([sample.source for sample in batch], device), *inputs)
    x_ND = model(*inputs)
    bound = max(reordering_error(family, variant, max(LENGTHS), device), 2e-6)
    found_NV = model.scores(x_ND)[: sum(LENGTHS)].detach()
    plain_NV = torch.cat([one.detach() for one in scores(model, batch)])
    assert relative_error(found_NV, plain_NV) < bound
    weights_N = loss_weights(LENGTHS, 40, device)
    loss_of(model, x_ND, inputs[-2], weights_N).backward()
    of_fixed = gradients(model)
    word_loss(model, batch).backward()
    assert relative_error(of_fixed, gradients(model)) < bound


def gradients(model: nn.Module) -> Tensor:
    """All of them in one vector; taken away from the model. A weight that none reached has none."""
    parts = [
        torch.zeros_like(weight) if weight.grad is None else weight.grad
        for weight in model.parameters()
    ]
    model.zero_grad()
    return torch.cat([part.flatten() for part in parts])


def relative_error(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def reordering_error(family: str, variant: str, n_steps: int, device: torch.device) -> float:
    """Bound on the relative distance of fp32 scores or gradients summed in different orders.

    A CPU adds rows in the same order whatever their number; a GPU has another for every shape. One
    rounding errs by u = 2⁻²⁴ at most, with a standard deviation of u/√3, and k in sequence add up
    like a random walk: u √(k/3). A recurrent layer makes, for each of its steps and in both ways, a
    sum of 2 `d_model` terms: from its input and from its state. Two gradients with independent
    errors differ by √2 times that. Five standard deviations are allowed: hundreds of cases are
    compared, and a GPU may choose another order in every run.
    """
    if device.type == "cpu":
        return 1e-6
    settings = settings_of(family, variant)
    if settings.body not in ("lstm", "gru", "sha-rnn"):
        return 2e-6
    layers = settings.n_layers * (2 if family == "seq2seq" else 1)
    roundings = 2 * layers * n_steps * 2 * settings.d_model
    return 5 * math.sqrt(2 / 3 * roundings) * 2**-24


SPLITS = [[3], [1, 2, 3, 4, 5]]
"""Where a batch of six samples is cut: 2 × 12 tokens, and 6 micro-batches of one sample."""


@every_family
@every_variant
def test_a_step_has_one_gradient_however_its_tokens_are_split(
    family: str, variant: str, device: torch.device
) -> None:
    """The loss is a sum over tokens, divided once by the tokens of the whole step."""
    model, batch = tiny(family, variant, device=device).train(), samples([3, 5, 4, 4, 1, 7])
    (word_loss(model, batch) / 24).backward()
    at_once = gradients(model)
    for cuts in SPLITS:
        for first, end in pairwise([0, *cuts, 6]):
            (word_loss(model, batch[first:end]) / 24).backward()
        bound = reordering_error(family, variant, 7, device)
        assert relative_error(gradients(model), at_once) < bound
    for sample in batch:  # a mean of means is something else
        (word_loss(model, [sample]) / len(sample.target) / len(batch)).backward()
    assert relative_error(gradients(model), at_once) > 1e-2


@every_family
@every_variant
def test_every_weight_has_a_gradient(family: str, variant: str, device: torch.device) -> None:
    """A part that is built but not used would be trained for nothing."""
    model = tiny(family, variant, device=device, **no_pooler(family))
    word_loss(model, samples(LENGTHS)).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().max() > 1e-7, name


def no_pooler(family: str) -> dict[str, tuple[str, ...]]:
    """The loss of words does not reach it."""
    return {"heads": ("words",)} if family == "encoder" else {}


BF16_ERROR = 0.03
"""Of all scores together, as norms. bf16 has 8 bits: one rounding errs by up to 0.004, and a
score sums up a few dozen of them."""


@every_family
@every_variant
@torch.no_grad()
def test_bf16_differs_from_fp32_by_its_rounding_alone(
    family: str, variant: str, device: torch.device
) -> None:
    model, batch = tiny(family, variant, device=device), samples(LENGTHS)
    exact_NV = torch.cat(scores(model, batch))
    set_compute_dtype(model, torch.bfloat16)
    rounded_NV = torch.cat(scores(model, batch))
    assert rounded_NV.dtype == torch.bfloat16
    assert 1e-4 < relative_error(rounded_NV.float(), exact_NV) < BF16_ERROR
    set_compute_dtype(model, None)
    assert torch.equal(torch.cat(scores(model, batch)), exact_NV)


def use_back_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.nn.attention.attention.attend", partial(attend, back_end=name))


@every_family
@every_variant
def test_every_back_end_gives_the_scores_and_gradients_of_the_written_out_one(
    family: str, variant: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = tiny(family, variant, device=device).double(), samples(LENGTHS)
    use_back_end("explicit", monkeypatch)
    expected = [s.detach() for s in scores(model, batch)]
    word_loss(model, batch).backward()
    expected_gradient = gradients(model)
    use_back_end("dense", monkeypatch)
    assert_all_close([s.detach() for s in scores(model, batch)], expected, tolerance=1e-10)
    word_loss(model, batch).backward()
    assert relative_error(gradients(model), expected_gradient) < 1e-10


@pytest.mark.gpu
@every_family
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("back_end", ["short", "varlen"])
@torch.no_grad()
def test_a_gpu_kernel_gives_the_scores_of_the_written_out_one_to_bf16(
    family: str, variant: str, back_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {"d_model": 64, "n_heads": 4, "d_head": 16}
    model, batch = tiny(family, variant, device="cuda", **wide), samples(LENGTHS)
    if settings_of(family, variant).positions in ("alibi", "relative"):
        pytest.skip("the kernels know no position bias")
    use_back_end("explicit", monkeypatch)
    exact_NV = torch.cat(scores(model, batch))
    set_compute_dtype(model, torch.bfloat16)
    use_back_end(back_end, monkeypatch)
    assert relative_error(torch.cat(scores(model, batch)).float(), exact_NV) < BF16_ERROR


def test_a_model_uses_the_back_end_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would compare one with itself."""
    seen = []
    for name, end in BACK_ENDS.items():
        watched = type(end)(
            end.unsupported_reason, lambda *a, end=end, name=name: seen.append(name) or end.run(*a)
        )
        monkeypatch.setitem(BACK_ENDS, name, watched)
    use_back_end("explicit", monkeypatch)
    scores(tiny("seq2seq"), samples(LENGTHS))
    assert set(seen) == {"explicit"}
    assert len(seen) == 2 + 2 * 2  # self-attention in each layer, cross attention in the decoder's
    seen.clear()
    use_back_end("dense", monkeypatch)
    scores(tiny("decoder"), samples(LENGTHS))
    assert seen == ["dense"] * 2


@pytest.mark.parametrize("block_layout", ["post", "pre", "parallel"])
@torch.no_grad()
def test_without_positions_an_encoder_does_not_know_the_order(
    block_layout: str, device: torch.device
) -> None:
    model = tiny("encoder", block_layout=block_layout, positions="none", device=device)
    tokens = samples([9])[0].target
    order = [4, 0, 8, 2, 7, 1, 3, 6, 5]
    model_TV = model.scores(model(*flat([tokens], device)))
    shuffled_TV = model.scores(model(*flat([[tokens[i] for i in order]], device)))
    torch.testing.assert_close(shuffled_TV, model_TV[order], rtol=1e-5, atol=1e-5)
    for positions in ("sinusoidal", "learned", "rotary", "alibi", "relative"):
        model = tiny("encoder", block_layout=block_layout, positions=positions, device=device)
        model_TV = model.scores(model(*flat([tokens], device)))
        shuffled_TV = model.scores(model(*flat([[tokens[i] for i in order]], device)))
        assert not torch.allclose(shuffled_TV, model_TV[order], atol=1e-2), positions


@every_family
@torch.no_grad()
def test_rotary_and_relative_positions_see_distances_alone(
    family: str, device: torch.device
) -> None:
    """The same text behind twenty tokens that no one may see is the same text."""
    for positions in ("rotary", "alibi", "relative", "none"):
        model = tiny(family, positions=positions, device=device)
        inputs = inputs_of(model, samples([6]))
        shifted = [x.shifted([20]) if isinstance(x, Layout) else x for x in inputs]
        torch.testing.assert_close(model(*shifted), model(*inputs), rtol=1e-5, atol=1e-5)
    for positions in ("sinusoidal", "learned"):
        model = tiny(family, positions=positions, device=device)
        inputs = inputs_of(model, samples([6]))
        shifted = [x.shifted([20]) if isinstance(x, Layout) else x for x in inputs]
        assert not torch.allclose(model(*shifted), model(*inputs), atol=1e-2)
