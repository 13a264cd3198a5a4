"""Physical pruning of attention heads. The smaller model computes the same outputs as the original
model with these heads set to zero."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from headway.errors import UserError, suggest
from headway.inside.capture.anatomy import Anatomy
from headway.models.build import build_model
from headway.models.folder import load_weights, model_weights, save_weights
from headway.models.int8_weights import SCALE, to_int8
from headway.nn.attention.attention import Attention
from headway.settings.folder import TOKENIZER, WEIGHTS, file_in, write_config
from headway.settings.kept_heads import KeptHeads
from headway.settings.model import ModelSettings
from headway.settings.run import resolved_toml
from headway.storage import replace_file
from headway.tasks.loaded_run import LoadedRun

HeadId = tuple[str, int, int]
"""Kind of attention, layer and index of a head. Heads are counted from 0 among the remaining heads
of the layer."""


def name_of(head: HeadId) -> str:
    """Return the name of a head in data files, such as `cross.1.3`; layers and heads are counted
    from 0."""
    return ".".join(map(str, head))


def all_heads(settings: ModelSettings) -> list[HeadId]:
    """Return all attention heads of a model. Heads of layers that share weights are listed once."""
    return [
        (kind, layer, head)
        for kind, n_layers in settings.attention_layers.items()
        for layer in range(n_layers)
        for head in range(len(_numbers(settings, kind, layer)))
    ]


def removable_groups(settings: ModelSettings) -> list[tuple[HeadId, ...]]:
    """Return groups of heads that can only be removed together, because they share keys and values.

    If all heads share a single key-value head, each query head is a group of its own.
    """
    found: list[tuple[HeadId, ...]] = []
    for kind, of_kind in groupby(all_heads(settings), key=itemgetter(0)):
        side, heads = settings.stack(kind), list(of_kind)
        size = 1 if side.kv_heads == 1 else side.n_heads // side.kv_heads
        found += (tuple(heads[first : first + size]) for first in range(0, len(heads), size))
    return found


def remaining_heads(settings: ModelSettings, gone: Collection[HeadId]) -> KeptHeads:
    """Return the heads that remain after pruning.

    Unknown heads are an error. So are attention layers that would lose all their heads.
    """
    known = set(all_heads(settings))
    for head in gone:
        if head not in known:
            raise UserError(_no_head(settings, head))
    kept: dict[str, list[tuple[int, ...]]] = {}
    for kind, n_layers in settings.attention_layers.items():
        for layer in range(n_layers):
            numbers = _numbers(settings, kind, layer)
            left = tuple(n for place, n in enumerate(numbers) if (kind, layer, place) not in gone)
            if not left:
                raise UserError(
                    f"this would remove all heads of {kind} attention in layer {layer + 1}. Every "
                    "attention layer must keep at least one head."
                )
            kept.setdefault(kind, []).append(left)
    whole = {kind: tuple(range(settings.stack(kind).n_heads)) for kind in kept}
    return KeptHeads(
        **{
            kind: tuple(layers) if any(heads != whole[kind] for heads in layers) else None
            for kind, layers in kept.items()
        }
    )


def _numbers(settings: ModelSettings, kind: str, layer: int) -> tuple[int, ...]:
    return settings.kept_heads.of(kind, layer) or tuple(range(settings.stack(kind).n_heads))


def _no_head(settings: ModelSettings, head: HeadId) -> str:
    """Return the error message for an unknown head, which gives the existing kinds, layers or
    heads, counted from 1."""
    kind, layer, number = head
    layers = settings.attention_layers
    gone = f"there is no head {number + 1} in layer {layer + 1} of {kind} attention. "
    if kind not in layers:
        return f"{gone}The kinds of attention are {', '.join(layers)}.{suggest(kind, layers)}"
    if layer >= layers[kind]:
        shared = getattr(settings, "share_layers", False)
        why = " (all layers share their weights)" if shared else ""
        return f"{gone}This attention has layers 1 to {layers[kind]}{why}."
    return f"{gone}That layer has heads 1 to {len(_numbers(settings, kind, layer))}."


def select_heads(
    order: Sequence[tuple[HeadId, ...]], n_heads: int, settings: ModelSettings
) -> frozenset[HeadId]:
    """Return at most `n_heads` heads from the front of `order`, but never all heads of an attention
    layer.

    A group of heads that would break one of these limits is skipped, so the result may have fewer
    heads.
    """
    left: dict[tuple[str, int], int] = {}
    for kind, layer, _ in all_heads(settings):
        left[kind, layer] = left.get((kind, layer), 0) + 1
    gone: list[HeadId] = []
    for unit in order:
        place = unit[0][:2]
        if len(gone) + len(unit) <= n_heads and left[place] > len(unit):
            gone += unit
            left[place] -= len(unit)
    return frozenset(gone)


def prunable(settings: ModelSettings, kind: str | None = None) -> int:
    """Return the maximum number of heads that can be removed, of one kind of attention or (None) of
    all.

    Every attention layer keeps at least one group of heads.
    """
    queue = [unit for unit in removable_groups(settings) if kind in (None, unit[0][0])]
    return len(select_heads(queue, settings.n_kept_heads, settings))


def prune_heads(model: nn.Module, settings: ModelSettings, gone: Iterable[HeadId]) -> nn.Module:
    """Return a new model without these heads, on the same device.

    `settings`: settings of the original model.
    """
    kept = remaining_heads(settings, frozenset(gone))
    small = build_model(replace(settings, kept_heads=kept), device=next(model.parameters()).device)
    names = {part: name for name, part in model.named_modules() if isinstance(part, Attention)}
    weights = model_weights(model)
    for kind in Anatomy.of(model).kinds:
        for layer, attention in enumerate(dict.fromkeys(kind.layers)):
            left = kept.of(kind.name, layer)
            if left is not None:
                numbers = _numbers(settings, kind.name, layer)
                places = [numbers.index(number) for number in left]
                _cut(weights, f"{names[attention]}.", attention, places)
    load_weights(small, weights)
    return small.train(model.training)


def _cut(weights: dict[str, Tensor], where: str, attention: Attention, heads: list[int]) -> None:
    """Remove the weights of all heads except `heads` from one attention layer."""
    sharing, width = attention.n_heads // attention.n_kv_heads, attention.d_head
    groups = list(dict.fromkeys(head // sharing for head in heads))
    chosen = dict(zip("qkv", (heads, groups, groups), strict=True))

    def rows(x: Tensor, kept: list[int]) -> Tensor:
        return x.unflatten(0, (-1, width))[kept].flatten(0, 1)

    for name in ("to_qkv.weight", "to_qkv.bias"):
        if where + name in weights:
            parts = zip(weights[where + name].split(attention.sizes), chosen.values(), strict=True)
            weights[where + name] = torch.cat([rows(part, kept) for part, kept in parts])
    for letter, kept in chosen.items():
        name = f"{where}some_bias.{letter}"
        if name in weights:
            weights[name] = rows(weights[name], kept)
    out = f"{where}to_out.weight"
    weights[out] = rows(weights[out].T, heads).T


def save_pruned(run: LoadedRun, gone: Iterable[HeadId], out: Path, *, compact: bool = True) -> None:
    """Write a run folder with the pruned model, its settings and the tokenizer.

    With `compact`, an int8 run stays int8. The settings are written last, so that a folder with
    settings is complete.
    """
    gone = frozenset(gone)
    small = prune_heads(run.model, run.shape, gone)
    shape = replace(run.shape, kept_heads=remaining_heads(run.shape, gone))
    weights = model_weights(small)
    int8 = compact and _is_int8(file_in(run.folder, WEIGHTS))
    save_weights(out, to_int8(weights) if int8 else weights)
    if run.words is not None:  # image classifiers have no tokenizer
        words = file_in(run.folder, TOKENIZER)
        replace_file(out / TOKENIZER, partial(shutil.copyfile, words))
    write_config(out, resolved_toml(replace(run.settings, model=shape)))


def _is_int8(path: Path) -> bool:
    with safe_open(path, framework="pt") as file:
        return any(name.endswith(SCALE) for name in file.keys())  # noqa: SIM118
