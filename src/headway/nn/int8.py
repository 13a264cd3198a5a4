"""Int8 weights for inference on a CPU, in a quarter of the memory of fp32.

`python -m benchmarks.int8`: GPT-2 generates 1.6 times as fast as in fp32 on two cores, and
BERT-base encodes 1.5 times as fast. Each row of a weight is stored as integers from −127 to 127 and
a scale. Inputs are quantized in the same way. Each row of the input has its own scale, so that
results do not depend on other examples in the batch. Sums of integers are exact in any order.
Int8 weights have no gradient.
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

from headway.nn.cpu_packed import ALL, in_fixed_sizes
from headway.nn.embedding import Embedding
from headway.nn.linear import Linear, linear
from headway.nn.lora import merge_lora


class QuantizedMatrix(NamedTuple):
    """Int8 matrix with one scale per row."""

    whole_FD: Tensor
    scale_F: Tensor

    @classmethod
    def quantize(cls, weight_FD: Tensor, levels: int = 127) -> QuantizedMatrix:
        """Quantize a weight. `levels`: integer that represents the largest magnitude of a row."""
        wide_FD = weight_FD.detach().float()
        scale_F = (wide_FD.abs().amax(1) / levels).clamp(min=1e-12)
        return cls((wide_FD / scale_F[:, None]).round().to(torch.int8), scale_F)

    def dequantize(self) -> Tensor:
        return self.whole_FD.float() * self.scale_F[:, None]

    def rows(self, rows: slice | Tensor) -> QuantizedMatrix:
        return QuantizedMatrix(self.whole_FD[rows], self.scale_F[rows])


class Int8Linear(nn.Module):
    """Int8 replacement for `Linear`, for inference only."""

    bias: Tensor | None

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = layer.weight.shape
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        self._parts: dict[tuple[object, object], Int8Matrix] = {
            (None, None): int8_matrix(layer.weight)
        }

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
        """Weight in fp32, dequantized on each access."""
        return self._parts[None, None].rounded().dequantize()


class Int8Embedding(nn.Module):
    """Int8 replacement for `Embedding`, for inference only."""

    whole_VD: Tensor
    scale_V: Tensor

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        weight = QuantizedMatrix.quantize(table.weight)
        self.num_embeddings, self.embedding_dim = weight.whole_FD.shape
        self.register_buffer("whole_VD", weight.whole_FD)
        self.register_buffer("scale_V", weight.scale_F)

    def forward(self, tokens_N: Tensor) -> Tensor:
        return QuantizedMatrix(self.whole_VD, self.scale_V).rows(tokens_N).dequantize()

    @property
    def weight(self) -> Tensor:
        return QuantizedMatrix(self.whole_VD, self.scale_V).dequantize()


class Int8Matrix:
    """Int8 matrix for processors without fast int8 products. It is dequantized for each product."""

    def __init__(self, weight: QuantizedMatrix) -> None:
        self._weight = weight

    def rounded(self) -> QuantizedMatrix:
        return self._weight

    def rows(self, rows: slice) -> Int8Matrix:
        return type(self)(self.rounded().rows(rows))

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, self._weight.dequantize(), bias)


class FastInt8Matrix(Int8Matrix):
    """Int8 matrix, packed for FBGEMM and oneDNN, two libraries that PyTorch includes.

    FBGEMM is faster for few rows, oneDNN for many. The copy for oneDNN is made on first use. The
    results of the two libraries are bit-identical.
    """

    def __init__(self, weight: QuantizedMatrix) -> None:
        self._scale_F, self._step_F = weight.scale_F, weight.scale_F * torch.tensor(STEP)
        zero_F = torch.zeros_like(self._scale_F)
        with _fbgemm():
            theirs = torch._make_per_channel_quantized_tensor(
                weight.whole_FD, self._scale_F.double(), zero_F.long(), 0
            )
            self._for_few: Any = torch.ops.quantized.linear_prepack(theirs, None)
        self._for_many: Tensor | None = None
        self._zero_F = zero_F.int()

    def rounded(self) -> QuantizedMatrix:
        with _fbgemm():
            theirs, _ = torch.ops.quantized.linear_unpack(self._for_few)
            return QuantizedMatrix(theirs.int_repr(), self._scale_F)

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        # In a row of zeros, 0/0 is quantized to an arbitrary integer. Multiplying by the scale 0
        # gives 0 again.
        if len(x) < MANY:
            largest = x.abs().amax(-1, keepdim=True)
            out: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                x / largest, STEP, LEVELS + 1, self._for_few
            )
        else:
            largest = torch.maximum(x.amax(-1, keepdim=True), -x.amin(-1, keepdim=True))
            out = in_fixed_sizes(x / largest, self._many)
        return out.mul_(largest) if bias is None else torch.addcmul(bias, out, largest, out=out)

    def _many(self, x: Tensor) -> Tensor:
        if self._for_many is None:
            whole_FD = self.rounded().whole_FD
            self._for_many = torch.ops.onednn.qlinear_prepack(whole_FD, list(x.shape))
        x = x.contiguous()
        theirs = torch.quantize_per_tensor(x, STEP, LEVELS + 1, torch.quint8)
        # Read the bytes in place, because `int_repr` copies them one by one.
        whole = torch.empty(0, dtype=torch.uint8)
        whole.set_(theirs.untyped_storage(), 0, x.shape, x.stride())
        return torch.ops.onednn.qlinear_pointwise(
            whole, 1.0, LEVELS + 1, self._for_many, self._step_F, self._zero_F, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip


LEVELS = 127
"""Integer that represents the largest magnitude of an input row."""

STEP = 1 / LEVELS

WEIGHT_LEVELS = 127 if getattr(torch.cpu, "_is_vnni_supported", lambda: False)() else 64
"""Integer that represents the largest magnitude of a weight row. Without AVX-512 VNNI, pairs of
products are added in 16 bits, which hold at most 2·255·64. The weights get the smaller range
because their outliers are smaller than those of the inputs."""

PRODUCTS = (
    (torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32"),
    (torch.ops.onednn, "qlinear_prepack"),
    (torch.ops.onednn, "qlinear_pointwise"),
)
"""Operators needed from FBGEMM and oneDNN. PyTorch does not guarantee any of them."""

MANY = 256
"""Number of input rows from which oneDNN is faster than FBGEMM."""


def int8_matrix(weight_FD: Tensor) -> Int8Matrix:
    if has_fast_int8():
        return FastInt8Matrix(QuantizedMatrix.quantize(weight_FD, WEIGHT_LEVELS))
    return Int8Matrix(QuantizedMatrix.quantize(weight_FD))


def has_fast_int8() -> bool:
    """Return whether int8 products are faster than fp32 products on this machine."""
    libraries = {"fbgemm", "onednn"} <= set(torch.backends.quantized.supported_engines)
    ways_in = hasattr(torch, "quint8") and hasattr(torch, "_make_per_channel_quantized_tensor")
    return libraries and ways_in and all(hasattr(ops, name) for ops, name in PRODUCTS)


def quantize_model(model: nn.Module) -> None:
    """Convert the linear layers and embeddings of a model to int8 in place.

    A module that is used in several places is converted once. An embedding that is also the output
    projection gets two copies, because embedding lookup and matrix multiplication need different
    memory orders.
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
    _release_memory()


def _release_memory() -> None:
    """Return freed memory to the operating system. The GNU C library would keep most of it."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


_CHOOSING = threading.RLock()
"""Lock for the quantization engine and the warning filters. They are global to the process, and
several threads may pack models at once."""


@contextmanager
def _fbgemm() -> Iterator[None]:
    """Select FBGEMM as the quantization engine inside the `with`.

    PyTorch plans to remove the quantized tensor types, which serve here only as an interface to
    FBGEMM. Without them, `has_fast_int8` returns False.
    """
    with _CHOOSING:
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                yield
        finally:
            torch.backends.quantized.engine = before
