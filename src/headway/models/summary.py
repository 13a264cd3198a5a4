"""What a model is made of and what it costs: parameters by part, memory to train and to use it.

Everything is counted on a model without memory (torch's meta device), so that a model of any size
can be looked at on any machine.
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
from headway.models.parts.audio import SoundFront
from headway.models.parts.vision import PictureFront
from headway.models.seq2seq import Seq2Seq
from headway.nn.block import Layer
from headway.nn.layout import Layout
from headway.settings.model import ModelSettings, Seq2SeqSettings

TRAINING_BYTES = 16
"""A parameter in fp32, its gradient, and Adam's two moments."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Parameters of one kind in one child of the model, such as attention in the encoder."""

    child: str
    kind: str
    parameters: int
    shared_with: str = ""
    """The part that counts a tied weight; it is counted only there."""


@dataclass(frozen=True, kw_only=True)
class Activations:
    """What a training step keeps for the backward pass, measured by running one."""

    sequences: int
    length: int
    fused_bytes: int
    """With attention that keeps no weights, as on GPUs, and on CPUs without attention dropout."""

    written_out_bytes: int
    """With the attention weights kept, as on CPUs with attention dropout."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    parameters: int
    parts: list[Part]
    activations: Activations
    cache_numbers: int
    """Keys and values that decoding keeps for each token, in all layers. 0: no decoder."""

    memory_numbers: int
    """The same for each token of a source. 0: there is none."""

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
    model = outline(settings)
    return Summary(
        parameters=count(model),
        parts=parts(model),
        activations=activations(model, settings, batch_tokens),
        cache_numbers=cache_numbers(model),
        memory_numbers=memory_numbers(model),
    )


def outline(settings: ModelSettings) -> nn.Module:
    """The model without its memory."""
    try:
        return build_model(settings, device="meta")
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        reason = str(error).splitlines()[0]
        raise UserError(f"a model of these sizes is too large to address: {reason}") from error


def count(model: nn.Module) -> int:
    """Parameters; a shared one counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def parts(model: nn.Module) -> list[Part]:
    """In the order of the model. A part that owns nothing is listed when it shares something."""
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
        Part(child=child, kind=kind, parameters=size, shared_with=shared.get((child, kind), ""))
        for (child, kind), size in sizes.items()
    ]


def _part_of(name: str) -> tuple[str, str]:
    """`encoder.blocks.3.attention.to_out.weight` is attention in the encoder."""
    child, *inner = name.split(".")
    kind = inner[2] if inner[0] == "blocks" else inner[0]
    if kind.startswith(("norm_", "final_norm")):
        return child, "norms"
    return child, {"cross": "cross attention", "feed_forward": "feed-forward"}.get(kind, kind)


def activations(model: nn.Module, settings: ModelSettings, batch_tokens: int) -> Activations:
    """Equal sequences, as long as the model takes them, of about `batch_tokens` in all.

    An encoder-decoder gets as many source tokens as target tokens. The word scores are not part
    of it: the loss makes them a chunk at a time and keeps none.
    """
    sequences = math.ceil(batch_tokens / settings.max_len)
    length = batch_tokens // sequences
    layout = Layout.of([length] * sequences, device="meta")
    tokens_N = torch.zeros(layout.n_rows, dtype=torch.long, device="meta")
    inputs: tuple[Any, ...] = (tokens_N, layout)
    front = model.source_front if isinstance(settings, Seq2SeqSettings) else model.front
    if isinstance(front, PictureFront | SoundFront):
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
    """Collect the memory that autograd holds on to, other than the model's own weights."""
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # held, so that no other storage gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


FUSED = "_scaled_dot_product_flash_attention_for_cpu"
"""Not promised by torch. Without it attention is counted as if its weights were kept."""


class _FusedAttention(TorchFunctionMode):
    """Asks for fused attention by its own name: left alone, the meta device writes it out."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        mask = kwargs.get("attn_mask")
        learns_mask = mask is not None and mask.requires_grad  # no fused attention can do that
        fused = getattr(torch.ops.aten, FUSED, None)
        if func is not F.scaled_dot_product_attention or learns_mask or fused is None:
            return func(*args, **kwargs)
        causal, scale = kwargs["is_causal"], kwargs["scale"]
        return fused(*args, 0.0, causal, attn_mask=mask, scale=scale)[0]


def cache_numbers(model: nn.Module) -> int:
    """What decoding keeps of each token, in all layers: keys and values, or states."""
    return sum(block.numbers_kept()[0] for block in _deciding(model))


def memory_numbers(model: nn.Module) -> int:
    """The same for each token of a source."""
    return sum(block.numbers_kept()[1] for block in _deciding(model))


def _deciding(model: nn.Module) -> list[Layer]:
    """The layers that write; none where nothing is written."""
    if isinstance(model, Seq2Seq):
        return list(model.decoder.blocks)  # type: ignore[arg-type]
    return list(model.stack.blocks) if isinstance(model, Decoder) else []  # type: ignore[arg-type]
