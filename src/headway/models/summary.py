"""Size of a model: parameters by part, and memory for training and inference.

Everything is counted on PyTorch's meta device, which allocates no memory, so a model of any size
can be summarized on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headway.errors import UserError
from headway.models.build import build_model
from headway.models.decoder import Decoder
from headway.models.parts.audio import AudioFront
from headway.models.parts.vision import ImageFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.block import Layer
from headway.nn.layout import Layout
from headway.settings.model import ModelSettings, Seq2SeqSettings

TRAINING_BYTES = 16
"""Number of bytes per parameter in training: fp32 weight, gradient, and Adam's two moments."""


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Number of parameters of one kind in one child of the model, such as attention in the
    encoder."""

    child: str
    kind: str
    parameters: int
    shared_with: str = ""
    """Part in which a tied weight is counted; empty if the weights of this part are not tied."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """Memory for the activations that a training step keeps for the backward pass, measured by
    running a step."""

    sequences: int
    length: int
    fused_bytes: int
    """Size in bytes with fused attention, which is used on GPUs, and on CPUs without attention
    dropout."""

    written_out_bytes: int
    """Size in bytes if attention weights are stored, as on CPUs with attention dropout."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    parameters: int
    parts: list[ParameterCount]
    activations: Activations
    cache_numbers: int
    """Number of values that the decoding cache stores per target token, over all layers; 0 without
    a decoder."""

    memory_numbers: int
    """Number of values that the decoding cache stores per source token, over all layers; 0 for
    models other than encoder-decoders."""

    @property
    def training_bytes(self) -> int:
        return TRAINING_BYTES * self.parameters

    def facts(self) -> dict[str, object]:
        used = {
            "weights": self.parameters,
            "cache_per_token": self.cache_numbers,
            "cache_per_source_token": self.memory_numbers,
        }
        in_bytes = {
            f"{name}_{kind}": n_bytes * numbers
            for name, numbers in used.items()
            for kind, n_bytes in (("fp32", 4), ("bf16", 2))
        }
        trained = {"training": self.training_bytes, "activations": asdict(self.activations)}
        parts = [asdict(part) for part in self.parts]
        return {"parameters": self.parameters, "parts": parts, "bytes": {**trained, **in_bytes}}


def summarise(settings: ModelSettings, batch_tokens: int) -> Summary:
    model = meta_model(settings)
    return Summary(
        parameters=count_parameters(model),
        parts=parts(model),
        activations=activations(model, settings, batch_tokens),
        cache_numbers=cache_numbers(model),
        memory_numbers=memory_numbers(model),
    )


def meta_model(settings: ModelSettings) -> nn.Module:
    """Build a model on the meta device, which needs no memory."""
    try:
        return build_model(settings, device="meta")
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        reason = str(error).splitlines()[0]
        raise UserError(
            f"a model with these sizes is too large for torch: {reason}. Use smaller sizes."
        ) from error


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters. Shared parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def parts(model: nn.Module) -> list[ParameterCount]:
    """Return the parts of the model in order, including parts whose parameters are all tied to
    others."""
    owner: dict[int, tuple[str, str]] = {}
    sizes: dict[tuple[str, str], int] = {}
    shared: dict[tuple[str, str], str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        part = _part_of(name)
        sizes.setdefault(part, 0)
        if id(parameter) not in owner:
            owner[id(parameter)] = part
            sizes[part] += parameter.numel()
        elif owner[id(parameter)] != part:
            shared[part] = ".".join(owner[id(parameter)])
    return [
        ParameterCount(
            child=child, kind=kind, parameters=size, shared_with=shared.get((child, kind), "")
        )
        for (child, kind), size in sizes.items()
    ]


def _part_of(name: str) -> tuple[str, str]:
    """Return the child module and the kind of a parameter. For example,
    `encoder.blocks.3.attention.to_out.weight` belongs to the child `encoder` and is of the kind
    `attention`."""
    child, *inner = name.split(".")
    kind = inner[2] if inner[0] == "blocks" else inner[0]
    if kind.startswith(("norm_", "final_norm")):
        return child, "norms"
    return child, {"cross": "cross attention", "feed_forward": "feed-forward"}.get(kind, kind)


def activations(model: nn.Module, settings: ModelSettings, batch_tokens: int) -> Activations:
    """Measure the activations of a training step with about `batch_tokens` tokens.

    The tokens form as few sequences of equal length as the maximum length of the model allows. An
    encoder-decoder gets as many source tokens as target tokens. The logits are not included,
    because the loss computes them in chunks and keeps none.
    """
    sequences = math.ceil(batch_tokens / settings.max_len)
    length = batch_tokens // sequences
    layout = Layout.of([length] * sequences, device="meta")
    tokens_N = torch.zeros(layout.n_rows, dtype=torch.long, device="meta")
    inputs: tuple[Any, ...] = (tokens_N, layout)
    front = model.source_front if isinstance(settings, Seq2SeqSettings) else model.front
    if isinstance(front, ImageFront | AudioFront):
        items = front.blanks(batch_tokens)
        read, rows = front.collate(items, "meta")
        sequences, length = len(items), rows.longest
        if isinstance(settings, Seq2SeqSettings):  # as many texts as sources, about as long
            each = min(settings.max_len, length)
            layout = Layout.of([each] * sequences, device="meta")
            tokens_N = torch.zeros(layout.n_rows, dtype=torch.long, device="meta")
            inputs = (read, rows, tokens_N, layout)
        else:
            inputs = (read, rows)
    elif isinstance(settings, Seq2SeqSettings):
        inputs *= 2
    model.train()
    with _kept(model) as written_out:
        model(*inputs)
    with _FusedAttention(), _kept(model) as fused:
        model(*inputs)
    return Activations(
        sequences=sequences,
        length=length,
        fused_bytes=sum(storage.nbytes() for storage in fused.values()),
        written_out_bytes=sum(storage.nbytes() for storage in written_out.values()),
    )


@contextmanager
def _kept(model: nn.Module) -> Iterator[dict[int, torch.UntypedStorage]]:
    """Context manager that collects the tensors, except weights, that autograd keeps for the
    backward pass."""
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # kept alive, so that its address is not reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


FUSED = "_scaled_dot_product_flash_attention_for_cpu"
"""Private PyTorch operator for fused attention on a CPU. In versions without it, memory is
estimated as if attention weights were stored."""


class _FusedAttention(TorchFunctionMode):
    """Context manager that calls the operator of fused attention directly, because PyTorch never
    selects it on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        mask = kwargs.get("attn_mask")
        learns_mask = mask is not None and mask.requires_grad  # fused attention has no such grad
        fused = getattr(torch.ops.aten, FUSED, None)
        if func is not F.scaled_dot_product_attention or learns_mask or fused is None:
            return func(*args, **kwargs)
        causal, scale = kwargs["is_causal"], kwargs["scale"]
        return fused(*args, 0.0, causal, attn_mask=mask, scale=scale)[0]


def cache_numbers(model: nn.Module) -> int:
    """Return the number of values that decoding caches per target token in all layers: keys and
    values, or states."""
    return sum(block.cache_sizes()[0] for block in _decoder_layers(model))


def memory_numbers(model: nn.Module) -> int:
    """Return the number of values that decoding caches per source token in all layers."""
    return sum(block.cache_sizes()[1] for block in _decoder_layers(model))


def _decoder_layers(model: nn.Module) -> list[Layer]:
    """Return the decoder layers; empty for models that do not generate."""
    if isinstance(model, Seq2Seq):
        return list(model.decoder.blocks)  # type: ignore[arg-type]
    return list(model.stack.blocks) if isinstance(model, Decoder) else []  # type: ignore[arg-type]
