"""Weights of eight bits for products on a CPU: a quarter of the memory. `python -m
benchmarks.int8`: GPT-2 writes 1.6 times as fast as in fp32 on two cores, BERT-base reads 1.5 times.

A row of a weight is whole numbers from -127 to 127 and a scale. A row of what comes in is rounded
likewise with a scale of its own, so that no row depends on its neighbours in the batch, and sums of
whole numbers are exact in any order. There is no gradient.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headway.nn.cpu_packed import ALL, in_few_sizes
from headway.nn.embedding import Embedding
from headway.nn.linear import Linear, linear
from headway.nn.lora import merge_lora


class Rounded(NamedTuple):
    """A matrix in eight bits."""

    whole_FD: Tensor
    scale_F: Tensor

    @classmethod
    def of(cls, weight_FD: Tensor, levels: int = 127) -> Rounded:
        """`levels`: steps from 0 to the largest magnitude of a row."""
        wide_FD = weight_FD.detach().float()
        scale_F = (wide_FD.abs().amax(1) / levels).clamp(min=1e-12)
        return cls((wide_FD / scale_F[:, None]).round().to(torch.int8), scale_F)

    def wide(self) -> Tensor:
        return self.whole_FD.float() * self.scale_F[:, None]

    def rows(self, rows: slice | Tensor) -> Rounded:
        return Rounded(self.whole_FD[rows], self.scale_F[rows])


class Int8Linear(nn.Module):
    """Stands where a `Linear` stood."""

    bias: Tensor | None

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.weight.shape
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        self._parts: dict[tuple[object, object], Matrix] = {(None, None): matrix(layer.weight)}

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)

    def product(self, x: Tensor, bias: Tensor | None, rows: slice = ALL) -> Tensor:
        key = (rows.start, rows.stop)
        if key not in self._parts:
            self._parts[key] = self._parts[None, None].rows(rows)
        return self._parts[key](x, bias)

    def relu(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias).relu_()

    @property
    def weight(self) -> Tensor:
        """In fp32, made anew for whoever needs all of it."""
        return self._parts[None, None].rounded().wide()


class Int8Embedding(nn.Module):
    """Stands where an `Embedding` stood."""

    whole_VD: Tensor
    scale_V: Tensor

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        weight = Rounded.of(table.weight)
        self.num_embeddings, self.embedding_dim = weight.whole_FD.shape
        self.register_buffer("whole_VD", weight.whole_FD)
        self.register_buffer("scale_V", weight.scale_F)

    def forward(self, tokens_N: Tensor) -> Tensor:
        return Rounded(self.whole_VD, self.scale_V).rows(tokens_N).wide()

    @property
    def weight(self) -> Tensor:
        return Rounded(self.whole_VD, self.scale_V).wide()


class Matrix:
    """For processors without a quick product of small numbers: widened for each product."""

    def __init__(self, weight: Rounded) -> None:
        self._weight = weight

    def rounded(self) -> Rounded:
        return self._weight

    def rows(self, rows: slice) -> Matrix:
        return type(self)(self.rounded().rows(rows))

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, self._weight.wide(), bias)


class QuickMatrix(Matrix):
    """In the orders in which two libraries that come with torch read it: FBGEMM, the faster one for
    few rows, and oneDNN for many, once there are many. The two agree to the last bit."""

    def __init__(self, weight: Rounded) -> None:
        self._scale_F, self._step_F = weight.scale_F, weight.scale_F * torch.tensor(STEP)
        zero_F = torch.zeros_like(self._scale_F)
        with _fbgemm():
            theirs = torch._make_per_channel_quantized_tensor(
                weight.whole_FD, self._scale_F.double(), zero_F.long(), 0
            )
            self._for_few: Any = torch.ops.quantized.linear_prepack(theirs, None)
        self._for_many: Tensor | None = None
        self._zero_F = zero_F.int()

    def rounded(self) -> Rounded:
        with _fbgemm():
            theirs, _ = torch.ops.quantized.linear_unpack(self._for_few)
            return Rounded(theirs.int_repr(), self._scale_F)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        # A row of zeros becomes 0/0, which is rounded to some number, and that times 0 is 0.
        if len(x) < MANY:
            largest = x.abs().amax(-1, keepdim=True)
            out: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                x / largest, STEP, LEVELS + 1, self._for_few
            )
        else:
            largest = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True))
            out = in_few_sizes(x / largest, self._many)
        return out.mul_(largest) if bias is None else torch.addcmul(bias, out, largest, out=out)

    def _many(self, x: Tensor) -> Tensor:
        if self._for_many is None:
            whole_FD = self.rounded().whole_FD
            self._for_many = torch.ops.onednn.qlinear_prepack(whole_FD, list(x.shape))
        x = x.contiguous()
        theirs = torch.quantize_per_tensor(x, STEP, LEVELS + 1, torch.quint8)
        # The bytes as they are: `int_repr` copies them one by one.
        whole = torch.empty(0, dtype=torch.uint8)
        whole.set_(theirs.untyped_storage(), 0, x.shape, x.stride())
        return torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, LEVELS + 1, self._for_many, self._step_F, self._zero_F, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip


LEVELS = 127
"""Steps from 0 to the largest magnitude of a row that comes in."""

STEP = 1 / LEVELS

WEIGHT_LEVELS = 127 if getattr(torch.cpu, "_is_vnni_supported", lambda: False)() else 64
"""Of a row of a weight. Without AVX-512 VNNI, pairs of products are added in 16 bits, which hold
2·255·64. Weights have the smaller range because they have no outliers to the degree that what comes
in has."""

PRODUCTS = (
    (torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32"),
    (torch.ops.onednn, "qlinear_prepack"),
    (torch.ops.onednn, "qlinear_pointwise"),
)
"""Of the two libraries. torch promises none of them."""

MANY = 256
"""Rows from which on the second library is the faster one."""


def matrix(weight_FD: Tensor) -> Matrix:
    if is_quick():
        return QuickMatrix(Rounded.of(weight_FD, WEIGHT_LEVELS))
    return Matrix(Rounded.of(weight_FD))


def is_quick() -> bool:
    """Whether products of eight bits are quicker than others here."""
    libraries = {"fbgemm", "onednn"} <= set(torch.backends.quantized.supported_engines)
    ways_in = hasattr(torch, "quint8") and hasattr(torch, "_make_per_channel_quantized_tensor")
    return libraries and ways_in and all(hasattr(ops, name) for ops, name in PRODUCTS)


def hold_int8(model: nn.Module) -> None:
    """Change a model in place so that its matrices, tables of tokens among them, are of eight bits.

    What has several owners still has one copy; a table that also scores words has two, as each use
    has its order.
    """
    merge_lora(model)
    made: dict[nn.Module, nn.Module] = {}
    for owner in list(model.modules()):
        for name, part in list(owner.named_children()):
            if part not in made and isinstance(part, Linear):
                made[part] = Int8Linear(part)
            elif part not in made and isinstance(part, Embedding):
                made[part] = Int8Embedding(part)
            if part in made:
                setattr(owner, name, made[part])
    made.clear()
    _give_back_memory()


def _give_back_memory() -> None:
    """The GNU C library keeps much of what is freed unless it is told; others need no telling."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


_CHOOSING = threading.RLock()
"""The library and the warnings are of the whole process, and models of several threads may be
packed at once."""


@contextmanager
def _fbgemm() -> Iterator[None]:
    """Packed by this library and no other. torch means to drop its types for such tensors, which
    are only the way into it; where they are gone, `is_quick` says no."""
    with _CHOOSING:
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                yield
        finally:
            torch.backends.quantized.engine = before
