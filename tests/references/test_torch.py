"""Our blocks and stacks with copied weights are torch's `nn.Transformer…` layers.

Theirs run padded with a mask, ours flat; the padding of theirs is filled with noise that must not
reach a real row. Outputs and the gradients of every weight and of the input agree.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headway.nn.attention.attention import Attention, Memory
from headway.nn.attention.scope import AttentionSpec
from headway.nn.block import Block, PostNorm, PreNorm
from headway.nn.feedforward import FeedForward
from headway.nn.layout import Layout
from headway.nn.norms import LayerNorm
from headway.nn.stack import Stack

D, HEADS, FF, LAYERS = 24, 3, 40, 3
EPS = 1e-5
LENGTHS = [5, 1, 9, 4, 9]
SOURCE_LENGTHS = [2, 7, 3, 8, 1]
TOLERANCE = {torch.float32: (1e-5, 1e-4), torch.float64: (1e-10, 1e-10)}
"""Of outputs and of gradients."""

Pair = tuple[nn.Parameter, nn.Parameter | None]
"""Our weight and theirs. A norm of theirs may have no bias; ours is then zero."""

each_type = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
each_wiring = pytest.mark.parametrize("block_layout", [PostNorm, PreNorm])


def our_block(
    block_layout: type[PostNorm | PreNorm],
    activation: str,
    *,
    bias: bool = True,
    cross: bool = False,
) -> Block:
    def attention(scope: AttentionSpec) -> Attention:
        return Attention(D, HEADS, bias="qkvo" if bias else "", scope=scope)

    return block_layout(
        attention(AttentionSpec(causal=cross)),
        FeedForward(D, FF, activation, bias=bias),
        lambda: LayerNorm(D, EPS),
        cross=attention(AttentionSpec()) if cross else None,
    )


def their_layer(
    cls: type[nn.Module], block_layout: type[Block], activation: str, *, bias: bool = True
) -> nn.Module:
    """Every weight random, also those that start as zero or one."""
    layer = cls(
        D,
        HEADS,
        FF,
        dropout=0.0,
        activation=activation,
        layer_norm_eps=EPS,
        batch_first=True,
        norm_first=block_layout is PreNorm,
        bias=bias,
    )
    return randomised(layer)


def randomised(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, weight.shape[1] ** -0.5)
            else:
                weight.normal_(float(name.endswith("weight")), 0.3)
    return module


def pairs(block: Block, layer: nn.Module) -> list[Pair]:
    both = [
        *attention_pairs(block.attention, layer.self_attn),
        *linear_pairs(block.feed_forward.to_hidden, layer.linear1),
        *linear_pairs(block.feed_forward.to_out, layer.linear2),
        *linear_pairs(block.norm_attention, layer.norm1),
    ]
    if block.cross is None:
        return [*both, *linear_pairs(block.norm_feed_forward, layer.norm2)]
    return [
        *both,
        *attention_pairs(block.cross, layer.multihead_attn),
        *linear_pairs(block.norm_cross, layer.norm2),
        *linear_pairs(block.norm_feed_forward, layer.norm3),
    ]


def attention_pairs(ours: Attention, theirs: nn.MultiheadAttention) -> list[Pair]:
    fused = [(ours.to_qkv.weight, theirs.in_proj_weight)]
    if ours.to_qkv.bias is not None:
        fused.append((ours.to_qkv.bias, theirs.in_proj_bias))
    return [*fused, *linear_pairs(ours.to_out, theirs.out_proj)]


def linear_pairs(ours: nn.Module, theirs: nn.Module) -> list[Pair]:
    both = [(ours.weight, theirs.weight)]
    return both if ours.bias is None else [*both, (ours.bias, theirs.bias)]


def copy_weights(both: list[Pair], *modules: nn.Module) -> None:
    """Each weight of the modules once, so that none keeps its start."""
    assert len({id(ours) for ours, _ in both}) == sum(len(list(m.parameters())) for m in modules)
    with torch.no_grad():
        for ours, theirs in both:
            ours.zero_() if theirs is None else ours.copy_(theirs)


def noisy_grid(x_ND: Tensor, lengths: list[int]) -> Tensor:
    """Rows as a padded batch, with noise where there is no row."""
    grid_BTD = torch.randn(len(lengths), max(lengths), D).to(x_ND)
    for row, x_TD in enumerate(x_ND.split(lengths)):
        grid_BTD[row, : len(x_TD)] = x_TD
    return grid_BTD


def padding(lengths: list[int], device: torch.device) -> Tensor:
    """True where there is no row, which is how torch's masks are."""
    return (
        torch.arange(max(lengths), device=device) >= torch.tensor(lengths, device=device)[:, None]
    )


def later(n: int, device: torch.device) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).triu(1)


def compare(
    ours: Callable[..., Tensor],
    theirs: Callable[..., Tensor],
    both: list[Pair],
    inputs: list[Tensor],
    dtype: torch.dtype,
) -> None:
    """Both run on their own copy of the inputs; `theirs` gives the real rows."""
    output, gradient = TOLERANCE[dtype]
    mine, other = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    ours_ND, theirs_ND = ours(*mine), theirs(*other)
    assert theirs_ND.std() > 0.5
    torch.testing.assert_close(ours_ND, theirs_ND, atol=output, rtol=0)
    direction_ND = torch.randn_like(ours_ND)
    (ours_ND * direction_ND).sum().backward()
    (theirs_ND * direction_ND).sum().backward()
    weights = [(weight, twin) for weight, twin in both if twin is not None]
    for x, twin in [*zip(mine, other, strict=True), *weights]:
        assert twin.grad.abs().max() > 1e-3
        torch.testing.assert_close(x.grad, twin.grad, atol=gradient, rtol=gradient)


@each_type
@each_wiring
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no-biases"])
def test_a_block_is_torchs_encoder_layer(
    block_layout: type[PostNorm | PreNorm],
    activation: str,
    bias: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    block = our_block(block_layout, activation, bias=bias).to(device, dtype)
    layer = their_layer(nn.TransformerEncoderLayer, block_layout, activation, bias=bias)
    layer.to(device, dtype)
    copy_weights(both := pairs(block, layer), block)
    layout, no_row_BT = Layout.of(LENGTHS, device), padding(LENGTHS, device)

    def theirs(x_ND: Tensor) -> Tensor:
        out_BTD = layer(noisy_grid(x_ND, LENGTHS), src_key_padding_mask=no_row_BT)
        return out_BTD[~no_row_BT]

    x_ND = torch.randn(sum(LENGTHS), D).to(device, dtype)
    compare(lambda x_ND: block(x_ND, layout), theirs, both, [x_ND], dtype)


@each_type
@each_wiring
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no-biases"])
def test_a_block_with_cross_attention_is_torchs_decoder_layer(
    block_layout: type[PostNorm | PreNorm],
    activation: str,
    bias: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    block = our_block(block_layout, activation, bias=bias, cross=True).to(device, dtype)
    layer = their_layer(nn.TransformerDecoderLayer, block_layout, activation, bias=bias)
    layer.to(device, dtype)
    copy_weights(both := pairs(block, layer), block)
    layout, source_layout = Layout.of(LENGTHS, device), Layout.of(SOURCE_LENGTHS, device)
    no_row_BT, no_source_BS = padding(LENGTHS, device), padding(SOURCE_LENGTHS, device)

    def ours(x_ND: Tensor, memory_MD: Tensor) -> Tensor:
        return block(x_ND, layout, Memory(memory_MD, source_layout))

    def theirs(x_ND: Tensor, memory_MD: Tensor) -> Tensor:
        out_BTD = layer(
            noisy_grid(x_ND, LENGTHS),
            noisy_grid(memory_MD, SOURCE_LENGTHS),
            tgt_mask=later(max(LENGTHS), device),
            memory_key_padding_mask=no_source_BS,
        )
        return out_BTD[~no_row_BT]

    inputs = [torch.randn(sum(n), D).to(device, dtype) for n in (LENGTHS, SOURCE_LENGTHS)]
    compare(ours, theirs, both, inputs, dtype)


def stack_pairs(stack: Stack, theirs: nn.TransformerEncoder | nn.TransformerDecoder) -> list[Pair]:
    both = [
        p for b, layer in zip(stack.blocks, theirs.layers, strict=True) for p in pairs(b, layer)
    ]
    if stack.final_norm is not None:
        both += linear_pairs(stack.final_norm, theirs.norm)
    return both


@each_type
@each_wiring
@pytest.mark.parametrize("final_norm", [True, False], ids=["final-norm", "no-final-norm"])
def test_a_stack_is_torchs_encoder(
    block_layout: type[PostNorm | PreNorm],
    final_norm: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    blocks = [our_block(block_layout, "relu") for _ in range(LAYERS)]
    stack = Stack(blocks, LayerNorm(D, EPS) if final_norm else None).to(device, dtype)
    encoder = nn.TransformerEncoder(
        their_layer(nn.TransformerEncoderLayer, block_layout, "relu"),
        LAYERS,
        nn.LayerNorm(D, EPS) if final_norm else None,
        enable_nested_tensor=False,
    )
    randomised(encoder).to(device, dtype)
    copy_weights(both := stack_pairs(stack, encoder), stack)
    layout, no_row_BT = Layout.of(LENGTHS, device), padding(LENGTHS, device)

    def theirs(x_ND: Tensor) -> Tensor:
        out_BTD = encoder(noisy_grid(x_ND, LENGTHS), src_key_padding_mask=no_row_BT)
        return out_BTD[~no_row_BT]

    x_ND = torch.randn(sum(LENGTHS), D).to(device, dtype)
    compare(lambda x_ND: stack(x_ND, layout), theirs, both, [x_ND], dtype)


@each_type
@each_wiring
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")  # we do not use it
def test_two_stacks_are_torchs_transformer(
    block_layout: type[PostNorm | PreNorm],
    activation: str,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Torch's has a final norm in both stacks, whatever the block_layout."""
    reader = Stack([our_block(block_layout, activation) for _ in range(LAYERS)], LayerNorm(D, EPS))
    writer = Stack(
        [our_block(block_layout, activation, cross=True) for _ in range(2)], LayerNorm(D, EPS)
    )
    reader.to(device, dtype), writer.to(device, dtype)
    torchs = nn.Transformer(
        D,
        HEADS,
        num_encoder_layers=LAYERS,
        num_decoder_layers=2,
        dim_feedforward=FF,
        dropout=0.0,
        activation=activation,
        layer_norm_eps=EPS,
        batch_first=True,
        norm_first=block_layout is PreNorm,
    )
    randomised(torchs).to(device, dtype)
    both = [*stack_pairs(reader, torchs.encoder), *stack_pairs(writer, torchs.decoder)]
    copy_weights(both, reader, writer)
    layout, source_layout = Layout.of(LENGTHS, device), Layout.of(SOURCE_LENGTHS, device)
    no_row_BT, no_source_BS = padding(LENGTHS, device), padding(SOURCE_LENGTHS, device)

    def ours(source_MD: Tensor, x_ND: Tensor) -> Tensor:
        memory = Memory(reader(source_MD, source_layout), source_layout)
        return writer(x_ND, layout, memory)

    def theirs(source_MD: Tensor, x_ND: Tensor) -> Tensor:
        out_BTD = torchs(
            noisy_grid(source_MD, SOURCE_LENGTHS),
            noisy_grid(x_ND, LENGTHS),
            tgt_mask=later(max(LENGTHS), device),
            src_key_padding_mask=no_source_BS,
            memory_key_padding_mask=no_source_BS,
        )
        return out_BTD[~no_row_BT]

    inputs = [torch.randn(sum(n), D).to(device, dtype) for n in (SOURCE_LENGTHS, LENGTHS)]
    compare(ours, theirs, both, inputs, dtype)


@each_wiring
def test_the_other_wiring_would_be_seen(block_layout: type[PostNorm | PreNorm]) -> None:
    torch.manual_seed(0)
    layer = their_layer(nn.TransformerEncoderLayer, block_layout, "relu")
    other = our_block(PreNorm if block_layout is PostNorm else PostNorm, "relu")
    copy_weights(both := pairs(other, layer), other)
    x_ND = torch.randn(6, D)
    with pytest.raises(AssertionError, match="not close"):
        compare(
            lambda x_ND: other(x_ND, Layout.of([6])),
            lambda x_ND: layer(x_ND[None])[0],
            both,
            [x_ND],
            torch.float32,
        )
