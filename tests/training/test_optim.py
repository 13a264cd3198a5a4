"""Which weights an optimiser moves and how, and that its state survives being saved."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from headway.errors import FolderError
from headway.models.build import build_model
from headway.settings.model import Seq2SeqSettings
from headway.settings.train import TrainSettings
from headway.training.lamb import LEAST_TRUST, Lamb
from headway.training.muon import RMS, Muon, newton_schulz, orthogonal
from headway.training.optim import (
    build_optimizer,
    hidden_matrices,
    load_optimizer_tensors,
    optimizer_tensors,
    parameter_groups,
    set_lr,
)

KINDS = ("adam", "adamw", "muon", "lamb")


def settings_of(optimizer: str, decay: float = 0.0) -> TrainSettings:
    return TrainSettings(optimizer=optimizer, weight_decay=decay)  # type: ignore[arg-type]


def tiny(**changes: object) -> nn.Module:
    values: dict[str, object] = {"vocab_size": 11, "d_model": 8, "n_heads": 2, "d_ff": 12}
    values |= {"n_layers": 1, "max_len": 16}
    return build_model(Seq2SeqSettings(**{**values, **changes}))  # type: ignore[arg-type]


def fill_gradients(model: nn.Module, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=random)
        parameter.grad = drawn.to(parameter.device)


def names(model: nn.Module, parameters: list[Tensor]) -> set[str]:
    by_id = {id(parameter): name for name, parameter in model.named_parameters()}
    return {by_id[id(parameter)] for parameter in parameters}


def test_adamw_decays_matrices_but_no_norms_biases_and_embeddings() -> None:
    model = tiny(tie="target-softmax", positions="learned", attention_bias="qkvo")
    decayed, plain = parameter_groups(model, settings_of("adamw", 0.1))
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    kept = names(model, plain["params"])
    assert all(parameter.ndim == 2 for parameter in decayed["params"])
    assert {
        "source_front.tokens.weight",
        "target_front.tokens.weight",  # which is the softmax too
        "source_front.positions.table.weight",
    } <= kept
    matrices = names(model, decayed["params"])
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in matrices} == {
        "to_qkv",
        "to_out",
        "to_hidden",
    }
    assert kept | matrices == {name for name, _ in model.named_parameters()}


def test_an_untied_softmax_decays_and_is_not_orthogonalised() -> None:
    model = tiny(tie="none")
    hidden, decayed, _ = parameter_groups(model, settings_of("muon", 0.1))
    assert names(model, decayed["params"]) == {"head.linear.weight"}
    assert "head.linear.weight" not in names(model, hidden["params"])


def test_queries_keys_values_and_gates_are_matrices_of_their_own() -> None:
    model = tiny(activation="swiglu", n_kv_heads=1)
    rows = {next(iter(names(model, [p]))): sizes for p, sizes in hidden_matrices(model).items()}
    assert rows["encoder.blocks.0.attention.to_qkv.weight"] == (8, 4, 4)
    assert rows["decoder.blocks.0.cross.to_qkv.weight"] == (8, 4, 4)
    assert rows["encoder.blocks.0.feed_forward.to_hidden.weight"] == (12, 12)
    assert rows["encoder.blocks.0.feed_forward.to_out.weight"] == (8,)


def test_adam_is_the_textbook_formula() -> None:
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, settings_of("adam"), device="cpu")
    set_lr(optimizer, 0.1)
    wanted = model.weight.detach().double()
    m, v = torch.zeros(2, 3).double(), torch.zeros(2, 3).double()
    for step in range(1, 4):
        fill_gradients(model, step)
        assert model.weight.grad is not None
        g = model.weight.grad.double()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        wanted = wanted - 0.1 * (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)).sqrt() + 1e-9)
        optimizer.step()
    torch.testing.assert_close(model.weight.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(8, 8), (4, 16), (16, 4)])
def test_orthogonal_matrices_keep_their_directions(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    (found,) = orthogonal([matrix])
    left, size, right = torch.linalg.svd(found, full_matrices=False)
    assert 0.6 < size.min() < size.max() < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    spectrum = torch.diagonal(u.T @ found @ v.T)  # in the basis of the original it is diagonal
    torch.testing.assert_close(u @ torch.diag(spectrum) @ v, found, rtol=1e-3, atol=1e-3)
    assert found.shape == matrix.shape
    assert left.shape[1] == right.shape[0]


def test_matrices_computed_together_are_those_computed_alone() -> None:
    random = torch.Generator().manual_seed(0)
    shapes = [(4, 8), (8, 4), (8, 8), (4, 8), (1, 6)]
    matrices = [torch.randn(shape, generator=random) for shape in shapes]
    for together, matrix in zip(orthogonal(matrices), matrices, strict=True):
        torch.testing.assert_close(together, orthogonal([matrix])[0], rtol=1e-5, atol=1e-5)


def test_a_gradient_of_zero_moves_nothing() -> None:
    assert not torch.stack(orthogonal([torch.zeros(4, 8)])).any()


def test_muon_is_torchs_own_on_a_single_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which iterates in bf16 only; so does ours here."""
    both = torch.nn.Parameter(torch.randn(6, 10)), torch.nn.Parameter(torch.zeros(6, 10))
    both[1].data.copy_(both[0].data)
    monkeypatch.setattr(
        "headway.training.muon.newton_schulz", lambda x: newton_schulz(x, torch.bfloat16)
    )
    group = {"params": [both[0]], "matrix_rows": [(6,)], "weight_decay": 0.1}
    ours = Muon([group], lr=0.02)
    theirs = torch.optim.Muon([both[1]], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for seed in range(4):
        random = torch.Generator().manual_seed(seed)
        both[0].grad = torch.randn(6, 10, generator=random)
        both[1].grad = both[0].grad.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(both[0], both[1], rtol=0, atol=2e-3)


def test_muons_update_has_the_size_of_adams() -> None:
    """So that one learning rate serves both: see RMS."""
    model = tiny(d_model=32, d_ff=64)
    before = copy.deepcopy(model)
    optimizer = build_optimizer(model, settings_of("muon"), device="cpu")
    set_lr(optimizer, 1e-2)
    fill_gradients(model, 0)
    optimizer.step()
    change = {
        name: (new - old).pow(2).mean().sqrt().item() / 1e-2
        for (name, new), old in zip(model.named_parameters(), before.parameters(), strict=True)
    }
    assert change["encoder.blocks.0.attention.to_qkv.weight"] == pytest.approx(RMS, rel=0.25)
    assert change["encoder.blocks.0.feed_forward.to_out.weight"] == pytest.approx(RMS, rel=0.25)
    assert change["source_front.tokens.weight"] == pytest.approx(1.0, rel=0.01)  # Adam's first


def test_muon_treats_the_parts_of_a_fused_matrix_alone() -> None:
    """A change of the gradient of v does not change what happens to q and k."""
    results = []
    for factor in (1.0, -5.0):
        model = tiny()
        optimizer = build_optimizer(model, settings_of("muon"), device="cpu")
        set_lr(optimizer, 1e-2)
        fill_gradients(model, 0)
        weight = model.get_parameter("encoder.blocks.0.attention.to_qkv.weight")
        assert weight.grad is not None
        weight.grad[16:] *= factor
        optimizer.step()
        results.append(weight.detach())
    assert torch.equal(results[0][:16], results[1][:16])
    assert not torch.equal(results[0][16:], results[1][16:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_shows_in_the_version_of_every_weight(kind: str) -> None:
    """By which a copy of a weight in another order knows that it is out of date."""
    model = tiny()
    optimizer = build_optimizer(model, settings_of(kind), device="cpu")
    fill_gradients(model, 0)
    before = [parameter._version for parameter in model.parameters()]
    optimizer.step()
    after = [parameter._version for parameter in model.parameters()]
    assert all(new > old for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_step_changes_nothing(kind: str) -> None:
    """By a tensor, which a recorded step can read; see `found_inf` in torch's fused Adam."""
    model = tiny()
    optimizer = build_optimizer(
        model, settings_of(kind, 0.0 if kind == "adam" else 0.1), device="cpu", capturable=True
    )
    set_lr(optimizer, 1e-2)
    fill_gradients(model, 0)
    optimizer.step()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    state = {name: value.clone() for name, value in optimizer_tensors(optimizer).items()}
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad[0] = torch.nan
    optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimizer.step()
    for old, parameter in zip(weights, model.parameters(), strict=True):
        assert torch.equal(old, parameter)
    assert all(
        torch.equal(value, state[name]) for name, value in optimizer_tensors(optimizer).items()
    )
    optimizer.found_inf.zero_()  # type: ignore[attr-defined]
    fill_gradients(model, 1)
    optimizer.step()
    changed = zip(weights, model.parameters(), strict=True)
    assert all(new.isfinite().all() and not torch.equal(old, new) for old, new in changed)


def test_a_frozen_weight_stays() -> None:
    for kind in KINDS:
        model = tiny()
        frozen = model.get_parameter("encoder.blocks.0.attention.to_qkv.weight")
        frozen.requires_grad_(False)
        before = frozen.clone()
        optimizer = build_optimizer(model, settings_of(kind), device="cpu")
        set_lr(optimizer, 1e-2)
        fill_gradients(model, 0)
        optimizer.step()
        assert torch.equal(frozen, before)


def trained(
    kind: str, steps: range, tensors: dict[str, Tensor] | None, start: nn.Module
) -> tuple[nn.Module, dict[str, Tensor]]:
    model = copy.deepcopy(start)
    decay = 0.0 if kind == "adam" else 0.1
    optimizer = build_optimizer(model, settings_of(kind, decay), device="cpu")
    if tensors is not None:
        load_optimizer_tensors(optimizer, tensors)
    for step in steps:
        set_lr(optimizer, 1e-3 * (step + 1))
        fill_gradients(model, step)
        optimizer.step()
    state = {name: value.clone() for name, value in optimizer_tensors(optimizer).items()}
    return model, state


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_two_halves_is_the_whole_run_bit_for_bit(kind: str) -> None:
    start = tiny()
    whole, state = trained(kind, range(6), None, start)
    half, kept = trained(kind, range(3), None, start)
    second, state_2 = trained(kind, range(3, 6), kept, half)
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert state.keys() == state_2.keys()
    assert all(torch.equal(state[name], state_2[name]) for name in state)
    assert any(name.endswith(".step") for name in state)


def test_state_is_loaded_in_place() -> None:
    """A recorded step reads from addresses."""
    model = tiny()
    optimizer = build_optimizer(model, settings_of("muon"), device="cpu", capturable=True)
    fill_gradients(model, 0)
    optimizer.step()
    before = {name: value.data_ptr() for name, value in optimizer_tensors(optimizer).items()}
    saved = {name: value.clone() for name, value in optimizer_tensors(optimizer).items()}
    optimizer.step()
    load_optimizer_tensors(optimizer, saved)
    after = optimizer_tensors(optimizer)
    assert {name: value.data_ptr() for name, value in after.items()} == before
    assert all(torch.equal(after[name], saved[name]) for name in saved)


def test_state_of_another_model_is_an_error_and_no_state_is_a_fresh_start() -> None:
    model = tiny()
    optimizer = build_optimizer(model, settings_of("adam"), device="cpu")
    with pytest.raises(FolderError, match=r"'999\.step'"):
        load_optimizer_tensors(optimizer, {"999.step": torch.zeros(())})
    with pytest.raises(FolderError, match=r"'0\.exp_avg'.*\(3,\).*\(11, 8\)"):
        load_optimizer_tensors(optimizer, {"0.exp_avg": torch.zeros(3)})
    fill_gradients(model, 0)
    optimizer.step()
    load_optimizer_tensors(optimizer, {})
    assert not optimizer_tensors(optimizer)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rate_of_a_recordable_optimiser_is_filled_in_place(kind: str) -> None:
    def run(capturable: bool) -> list[Tensor]:
        model = tiny()
        optimizer = build_optimizer(model, settings_of(kind), device="cpu", capturable=capturable)
        rates = [group["lr"] for group in optimizer.param_groups]
        for step in range(3):
            set_lr(optimizer, 1e-3 * (step + 1))
            fill_gradients(model, step)
            optimizer.step()
        if capturable:
            assert all(
                group["lr"] is rate
                for group, rate in zip(optimizer.param_groups, rates, strict=True)
            )
        return [parameter.detach() for parameter in model.parameters()]

    for plain, filled in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(plain, filled, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_two_equal_runs_are_equal_bit_for_bit(kind: str) -> None:
    start = tiny()
    first, second = (trained(kind, range(4), None, start)[0] for _ in range(2))
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_step_follows_the_rate(kind: str) -> None:
    from headway.training.cuda_graph import WARM_UPS

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, n: int) -> None:
        for _ in range(n):
            set_lr(optimizer, 1e-3)
            optimizer.step()

    plain, recorded = tiny().cuda(), tiny().cuda()
    optimizers = []
    for model in (plain, recorded):
        fill_gradients(model, 0)
        optimizers.append(build_optimizer(model, settings_of(kind), device="cuda", capturable=True))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        steps(recorded, optimizers[1], WARM_UPS)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizers[1].step()
    steps(plain, optimizers[0], WARM_UPS)
    for rate in (1e-3, 5e-2):
        set_lr(optimizers[0], rate)
        optimizers[0].step()
        set_lr(optimizers[1], rate)
        graph.replay()
    for a, b in zip(plain.parameters(), recorded.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_lamb_moves_a_matrix_by_a_share_of_its_size_as_worked_out_by_hand() -> None:
    """Gradients 3 and 4, betas 0.5: the first update of Adam is a vector of ones, so a matrix of
    length 5 moves 5/√2 times as far; the second one has m = 3.5/0.75 − … as below."""
    weight, bias = nn.Parameter(torch.tensor([[3.0, 4.0]])), nn.Parameter(torch.tensor([3.0, 4.0]))
    lamb = Lamb([weight, bias], lr=0.1, betas=(0.5, 0.5), eps=0.0, weight_decay=0.0)
    weight.grad, bias.grad = torch.tensor([[3.0, 4.0]]), torch.tensor([3.0, 4.0])
    lamb.step()
    far = 0.1 * 5 / 2**0.5
    torch.testing.assert_close(weight.data, torch.tensor([[3.0 - far, 4.0 - far]]))
    torch.testing.assert_close(bias.data, torch.tensor([2.9, 3.9]))  # as Adam moves it
    before = weight.detach().clone()
    weight.grad, bias.grad = torch.tensor([[-1.0, 0.0]]), None
    lamb.step()
    # Means: m = (3/2)/2 − 1/2 = 1/4 and 1; squares: (9/2)/2 + 1/2 = 11/4 and 4; all over 3/4.
    update = torch.tensor(
        [[(1 / 4 / 0.75) / (11 / 4 / 0.75) ** 0.5, (1 / 0.75) / (4 / 0.75) ** 0.5]]
    )
    share = before.norm() / update.norm()
    torch.testing.assert_close(weight.data, before - 0.1 * share * update)


def test_lamb_trusts_small_matrices_a_little_and_new_ones_as_adam_does() -> None:
    small, zero = nn.Parameter(torch.full((2, 2), 1e-3)), nn.Parameter(torch.zeros(2, 2))
    lamb = Lamb([small, zero], lr=0.1, betas=(0.9, 0.99), eps=0.0, weight_decay=0.0)
    small.grad, zero.grad = torch.ones(2, 2), torch.ones(2, 2)
    lamb.step()
    torch.testing.assert_close(small.data, torch.full((2, 2), 1e-3 - 0.1 * LEAST_TRUST))
    torch.testing.assert_close(zero.data, torch.full((2, 2), -0.1))


def test_lamb_leaves_all_as_it_is_where_a_step_is_skipped() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    lamb = Lamb([weight], lr=0.1, betas=(0.9, 0.99))
    weight.grad = torch.ones(2, 2)
    lamb.step()
    before = {name: x.clone() for name, x in lamb.state[weight].items()} | {
        "weight": weight.clone()
    }
    lamb.found_inf = torch.ones(())  # type: ignore[attr-defined]
    weight.grad = torch.full((2, 2), torch.nan)
    lamb.step()
    for name, x in {**lamb.state[weight], "weight": weight}.items():
        assert torch.equal(x, before[name]), name
