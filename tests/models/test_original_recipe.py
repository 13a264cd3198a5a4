""" "transformer-base" means the recipe of 2017 and nothing else: written out here a second time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway.nn.dropout
from headway.models.build import build_model
from headway.models.seq2seq import Seq2Seq
from headway.nn.attention.attention import Attention
from headway.nn.feedforward import FeedForward
from headway.nn.norms import LayerNorm
from headway.settings.model import Seq2SeqSettings
from headway.settings.presets import preset

from .variants import FAMILIES, flat, samples, tiny

D, HEADS, FF, LAYERS, VOCAB = 16, 4, 24, 2, 50
SMALL = {"d_model": D, "n_heads": HEADS, "d_ff": FF, "n_layers": LAYERS, "vocab_size": VOCAB}


def small(**changes: Any) -> Seq2Seq:
    """The recipe in small: every setting but the sizes is the preset's."""
    return build_model(replace(preset("transformer-base"), **SMALL | changes))


@pytest.mark.parametrize("name", ["transformer-base", "transformer-big"])
def test_the_settings_are_those_of_the_paper(name: str) -> None:
    settings = preset(name)
    assert isinstance(settings, Seq2SeqSettings)
    sizes = {
        "transformer-base": (512, 2048, 8, 64, 0.1),
        "transformer-big": (1024, 4096, 16, 64, 0.3),
    }[name]
    assert sizes == (
        settings.d_model,
        settings.d_ff,
        settings.n_heads,
        settings.head_width,
        settings.dropout,
    )
    assert (settings.n_layers, settings.stack("decoder").n_layers, settings.vocab_size) == (
        6,
        6,
        37_000,
    )
    assert (settings.block_layout, settings.norm, settings.norm_eps) == ("post", "layer", 1e-6)
    assert (settings.activation, settings.positions) == ("relu", "sinusoidal")
    assert (settings.attention_bias, settings.ff_bias, settings.head_bias) == ("", True, False)
    assert (settings.tie, settings.embedding_scale, settings.init) == ("all", True, "paper")
    assert (settings.attention_dropout, settings.ff_dropout) == (0.0, 0.0)
    assert (settings.embedding_norm, settings.qk_norm, settings.window) == (False, False, None)
    assert settings.kv_heads == settings.n_heads


@torch.no_grad()
def test_the_model_is_the_papers_formulas(device: torch.device) -> None:
    model = small().to(device).eval()
    for weight in model.parameters():
        if weight.ndim == 1:  # biases and norms away from zero and one, so that they matter
            weight.add_(torch.randn_like(weight), alpha=0.3)
    source_S = torch.randint(VOCAB, (7,), device=device)
    target_T = torch.randint(VOCAB, (5,), device=device)
    ours_TV = model.scores(
        model(*flat([source_S.tolist()], device), *flat([target_T.tolist()], device))
    )
    theirs_TV = paper(dict(model.named_parameters()), source_S, target_T)
    assert theirs_TV.std() > 0.3
    torch.testing.assert_close(ours_TV, theirs_TV, rtol=1e-5, atol=1e-5)


def paper(weights: dict[str, Tensor], source_S: Tensor, target_T: Tensor) -> Tensor:
    """Section 3 of the paper for one pair, with our weights by their names."""
    table_VD = weights["source_front.tokens.weight"]

    def embedded(tokens_T: Tensor) -> Tensor:  # sections 3.4 and 3.5
        code_TD = torch.zeros(len(tokens_T), D)
        for position in range(len(tokens_T)):
            for i in range(D // 2):
                angle = position / 10_000 ** (2 * i / D)
                code_TD[position, 2 * i] = math.sin(angle)
                code_TD[position, 2 * i + 1] = math.cos(angle)
        return table_VD[tokens_T] * math.sqrt(D) + code_TD.to(table_VD)

    def attention(name: str, x_TD: Tensor, memory_SD: Tensor, *, masked: bool) -> Tensor:
        q_DD, k_DD, v_DD = weights[f"{name}.to_qkv.weight"].chunk(3)
        heads = []
        for head in range(HEADS):
            rows = slice(head * D // HEADS, (head + 1) * D // HEADS)
            q_TK, k_SK = x_TD @ q_DD[rows].T, memory_SD @ k_DD[rows].T
            scores_TS = q_TK @ k_SK.T / math.sqrt(D // HEADS)
            if masked:
                hidden_TS = torch.ones_like(scores_TS).triu(1).bool()
                scores_TS = scores_TS.masked_fill(hidden_TS, -math.inf)
            heads.append(scores_TS.softmax(-1) @ (memory_SD @ v_DD[rows].T))
        return torch.cat(heads, -1) @ weights[f"{name}.to_out.weight"].T

    def feed_forward(name: str, x_TD: Tensor) -> Tensor:
        hidden_TF = x_TD @ weights[f"{name}.to_hidden.weight"].T + weights[f"{name}.to_hidden.bias"]
        out_TD = hidden_TF.clamp(min=0) @ weights[f"{name}.to_out.weight"].T
        return out_TD + weights[f"{name}.to_out.bias"]

    def norm(name: str, x_TD: Tensor) -> Tensor:
        centred_TD = x_TD - x_TD.mean(-1, keepdim=True)
        variance_T1 = centred_TD.square().mean(-1, keepdim=True)
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return centred_TD / (variance_T1 + 1e-6).sqrt() * scale + shift

    x_SD = embedded(source_S)
    for at in (f"encoder.blocks.{number}." for number in range(LAYERS)):
        attended_SD = attention(at + "attention", x_SD, x_SD, masked=False)
        x_SD = norm(at + "norm_attention", x_SD + attended_SD)
        x_SD = norm(at + "norm_feed_forward", x_SD + feed_forward(at + "feed_forward", x_SD))
    y_TD = embedded(target_T)
    for at in (f"decoder.blocks.{number}." for number in range(LAYERS)):
        attended_TD = attention(at + "attention", y_TD, y_TD, masked=True)
        y_TD = norm(at + "norm_attention", y_TD + attended_TD)
        attended_TD = attention(at + "cross", y_TD, x_SD, masked=False)
        y_TD = norm(at + "norm_cross", y_TD + attended_TD)
        y_TD = norm(at + "norm_feed_forward", y_TD + feed_forward(at + "feed_forward", y_TD))
    return y_TD @ table_VD.T


def test_the_weights_are_those_of_the_paper_and_no_more() -> None:
    model = build_model(preset("transformer-base"), device="meta")
    attentions = [part for part in model.modules() if isinstance(part, Attention)]
    assert len(attentions) == 6 + 2 * 6
    assert not any("bias" in name for part in attentions for name, _ in part.named_parameters())
    feed_forwards = [part for part in model.modules() if isinstance(part, FeedForward)]
    for part in feed_forwards:
        assert part.to_hidden.bias.shape == (2048,)
        assert part.to_out.bias.shape == (512,)
    norms = [part for part in model.modules() if isinstance(part, LayerNorm)]
    assert len(norms) == 6 * 2 + 6 * 3  # after every sub-layer, and none at the end of a stack
    assert {part.eps for part in norms} == {1e-6}
    assert model.encoder.final_norm is None
    assert model.decoder.final_norm is None
    one = model.source_front.tokens.weight
    assert model.target_front.tokens.weight is one
    assert model.head.linear.weight is one
    assert model.head.linear.bias is None


def test_the_weights_start_as_the_paper_and_its_code_say() -> None:
    model = small(d_model=64, d_ff=128, vocab_size=4000)
    table_VD = model.source_front.tokens.weight
    assert table_VD.std().item() == pytest.approx(64**-0.5, rel=0.02)
    assert table_VD.mean().item() == pytest.approx(0.0, abs=0.001)
    assert table_VD.abs().max() > 3.5 * 64**-0.5  # normal, not uniform
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any()
        elif "norm" in name:
            assert (weight == 1).all()
        elif weight is not table_VD:
            for matrix in weight.chunk(3) if "to_qkv" in name else [weight]:
                bound = math.sqrt(6 / sum(matrix.shape))
                assert matrix.abs().max().item() == pytest.approx(bound, rel=0.01), name
                assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name


class Dropouts:
    """Every value that is dropped: which tensor, at what rate, in the order of the calls."""

    def __init__(self, model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, float]] = []
        self.names: dict[int, str] = {}
        self.kept: list[Tensor] = []  # held, so that no other tensor gets the identity of one
        self.attention_rates: list[float] = []
        for name, part in model.named_modules():
            part.register_forward_hook(self.noting(name))
        fused, plain, ours = F.scaled_dot_product_attention, F.dropout, headway.nn.dropout.keep_mask

        def attention(*args: Any, **kwargs: Any) -> Tensor:
            self.attention_rates.append(kwargs["dropout_p"])
            return fused(*args, **kwargs)

        def dropout(
            x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Tensor:
            if training and p > 0:
                self.seen.append((self.names.get(id(x), "a sum"), p))
            return plain(x, p, training, inplace)

        monkeypatch.setattr(F, "scaled_dot_product_attention", attention)

        def kept(x: Tensor, p: float) -> Tensor:
            self.seen.append((self.names.get(id(x), "a sum"), p))
            return ours(x, p)

        monkeypatch.setattr(F, "dropout", dropout)
        monkeypatch.setattr(headway.nn.dropout, "keep_mask", kept)

    def noting(self, name: str) -> Callable[..., None]:
        def hook(part: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not name.endswith(("hidden", "stream", "heads")):
                self.names[id(output)] = name
                self.kept.append(output)

        return hook


def run(model: nn.Module, device: torch.device) -> Tensor:
    source, target = flat([(3, 4, 5), (6, 7)], device), flat([(1, 2), (8, 9, 3)], device)
    return model(*source, *target)


SUB_LAYERS = [
    *[f"encoder.blocks.{i}.{part}" for i in (0, 1) for part in ("attention", "feed_forward")],
    *[
        f"decoder.blocks.{i}.{part}"
        for i in (0, 1)
        for part in ("attention", "cross", "feed_forward")
    ],
]


def test_dropout_is_on_the_embedding_sums_and_each_sub_layers_output_and_nowhere_else(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small(dropout=0.25).to(device).train()
    seen = Dropouts(model, monkeypatch)
    run(model, device)
    encoder, decoder = SUB_LAYERS[:4], SUB_LAYERS[4:]
    fronts = ["source_front.positions", *encoder, "target_front.positions", *decoder]
    # What is dropped after each front is the sum of embedding and position.
    assert [name.removesuffix(".to_out") for name, _ in seen.seen] == fronts
    assert {rate for _, rate in seen.seen} == {0.25}
    assert seen.attention_rates == [0.0] * 6


@pytest.mark.parametrize("block_layout", ["post", "pre"])
def test_attention_and_feed_forward_have_the_dropout_of_the_settings(
    block_layout: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"attention_dropout": 0.125, "ff_dropout": 0.5, "dropout": 0.25}
    model = small(block_layout=block_layout, **rates).to(device).train()
    seen = Dropouts(model, monkeypatch)
    run(model, device)
    assert seen.attention_rates == [0.125] * 6
    assert [rate for _, rate in seen.seen].count(0.5) == 4  # inside each feed-forward
    assert [rate for _, rate in seen.seen].count(0.25) == 2 + len(SUB_LAYERS)


def test_nothing_is_dropped_in_evaluation(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"attention_dropout": 0.5, "ff_dropout": 0.5, "dropout": 0.5}
    model = small(**rates).to(device).eval()
    seen = Dropouts(model, monkeypatch)
    run(model, device)
    assert seen.seen == []
    assert seen.attention_rates == [0.0] * 6


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "ff_dropout"])
@pytest.mark.parametrize("family", FAMILIES)
def test_evaluation_is_deterministic_and_training_with_dropout_is_not(
    family: str, rate: str, device: torch.device
) -> None:
    model = tiny(family, device=device, **{rate: 0.3})
    tokens = flat([sample.target for sample in samples([6, 4])], device)
    inputs = tokens * (2 if family == "seq2seq" else 1)
    assert torch.equal(model(*inputs), model(*inputs))
    model.train()
    assert not torch.equal(model(*inputs), model(*inputs))
    torch.manual_seed(5)
    first = model(*inputs)
    torch.manual_seed(5)
    assert torch.equal(model(*inputs), first)  # the seed decides


def test_dropout_keeps_the_expectation() -> None:
    """Not only the rate: what stays is scaled up."""
    torch.manual_seed(0)
    front = small(dropout=0.4).source_front
    tokens_N, layout = flat([(3, 4, 5, 6)], "cpu")
    exact_ND = front.eval()(tokens_N, layout)
    front.train()
    mean_ND = torch.stack([front(tokens_N, layout) for _ in range(4000)]).mean(0)
    assert ((mean_ND - exact_ND).norm() / exact_ND.norm()).item() < 0.03
