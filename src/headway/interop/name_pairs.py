"""Convert between foreign tensors and headway's with one table of name pairs for both directions.

Every foreign tensor must have exactly one pair, or be in the list of ignored tensors with a reason.
If tensors were dropped silently, the model would be slightly wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headway.errors import UserError


class TensorTransform(NamedTuple):
    """Conversion of a tensor in an import, and its exact inverse for an export."""

    to_ours: Callable[[Tensor], Tensor]
    to_theirs: Callable[[Tensor], Tensor]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.T if tensor.ndim == 2 else tensor


IDENTITY = TensorTransform(_same, _same)

TRANSPOSED = TensorTransform(_transposed, _transposed)
"""Transposition, for the `Conv1D` layers of GPT and GPT-2, whose matrices are (in, out)."""


class NamePair(NamedTuple):
    """Correspondence of a foreign tensor and a tensor, or a part of one, in headway's model."""

    theirs: str
    ours: str
    """Exact name of headway's tensor, including the layer number."""

    rows: slice | None = None
    """Rows of headway's tensor that the foreign one fills, such as those of q in a joint matrix of
    q, k and v; None for all rows."""

    change: TensorTransform = IDENTITY
    tied: bool = False
    """Whether this is a second name of a tensor that already has a pair.

    The file may lack the second name. If it has both, the tensors must be equal.
    """

    their_rows: slice | None = None
    """Rows of the foreign tensor that are used, as `slice(n, None)`; None for all rows.

    For example, the first two positions of RoBERTa and BART are unused. The first n rows are stored
    with the ignored tensors.
    """

    concat_axis: int | None = None
    """Axis along which the foreign tensor concatenates several of headway's; None if it does not.

    The `change` of each pair selects its part. For example, ViT's position table contains the
    positions of the special tokens and of the patches.
    """


@dataclass(frozen=True)
class ConvertedTensors:
    """Result of converting the tensors of a foreign file."""

    weights: dict[str, Tensor]
    """headway's tensors by name, in fp32."""

    ignored: dict[str, str]
    """Names of foreign tensors that are not used, mapped to the reason."""

    kept: dict[str, Tensor]
    """Ignored tensors and unused rows (`name[:n]`). They are stored so that an export can write
    them again."""


READABLE = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def to_ours(
    theirs: Mapping[str, Tensor],
    pairs: Sequence[NamePair],
    ignored: Mapping[str, str],
    aliases: Mapping[str, str] | None = None,
) -> ConvertedTensors:
    """Convert all foreign tensors to headway's.

    Args:
        theirs: Foreign tensors by name. On the device "meta" only their shapes are converted.
        pairs: Table of name pairs.
        ignored: Regular expressions that match full names of unused tensors, with reasons.
        aliases: Other names of headway's tensors, which tied pairs may use, mapped to the names
            that have a pair.
    """
    reasons = check_names(theirs, pairs, ignored)
    parts: dict[str, list[tuple[NamePair, Tensor]]] = {}
    kept = {name: theirs[name] for name in reasons}
    for pair in (pair for pair in pairs if not pair.tied):
        tensor = theirs[pair.theirs]
        if tensor.dtype not in READABLE:
            raise UserError(
                f"{pair.theirs} has the type {tensor.dtype}, which is not supported for weights. "
                f"Supported: {', '.join(map(str, READABLE))}."
            )
        if pair.their_rows is not None:
            kept[_cut(pair)] = tensor[: pair.their_rows.start].clone()
            tensor = tensor[pair.their_rows]
        parts.setdefault(pair.ours, []).append((pair, _changed(pair, tensor)))
    weights = {ours: _joined(ours, found) for ours, found in parts.items()}
    for pair in (pair for pair in pairs if pair.tied and pair.theirs in theirs):
        ours = (aliases or {}).get(pair.ours, pair.ours)
        _check_tied(pair, theirs[pair.theirs], weights[ours])
    return ConvertedTensors(weights, reasons, kept)


def to_theirs(
    ours: Mapping[str, Tensor], pairs: Iterable[NamePair], kept: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Convert headway's tensors to foreign ones, including tied ones, in the order of the pairs.

    `kept`: tensors that the import did not use, which are written again.
    """
    kept = kept or {}
    theirs: dict[str, Tensor] = {}
    for pair in pairs:
        tensor = ours[pair.ours] if pair.rows is None else ours[pair.ours][pair.rows]
        tensor = pair.change.to_theirs(tensor)
        if pair.their_rows is not None:
            n = pair.their_rows.start
            before = kept.get(_cut(pair), tensor.new_zeros(n, *tensor.shape[1:]))
            tensor = torch.cat([before.to(tensor.dtype), tensor])
        if pair.concat_axis is not None and pair.theirs in theirs:
            tensor = torch.cat([theirs[pair.theirs], tensor], pair.concat_axis)
        theirs[pair.theirs] = tensor.contiguous()
    return theirs | {name: tensor for name, tensor in kept.items() if not name.endswith("]")}


def check_names(
    theirs: Collection[str], pairs: Iterable[NamePair], ignored: Mapping[str, str]
) -> dict[str, str]:
    """Raise an error if tensors are missing or unknown. Return the names of ignored tensors with
    reasons."""
    pairs = list(pairs)
    known = {pair.theirs for pair in pairs}
    whole = [pair.theirs for pair in pairs if pair.concat_axis is None]
    parts = {pair.theirs for pair in pairs if pair.concat_axis is not None}
    assert len(known) == len(whole) + len(parts), "a table names a tensor twice"
    reasons: dict[str, str] = {}
    unknown = []
    for name in theirs:
        if name in known:
            continue
        reason = next((why for what, why in ignored.items() if re.fullmatch(what, name)), None)
        if reason is None:
            unknown.append(name)
        else:
            reasons[name] = reason
    missing = [pair.theirs for pair in pairs if not pair.tied and pair.theirs not in theirs]
    if missing or unknown:
        lines = [*_listed("missing", missing), *_listed("unknown", unknown)]
        raise UserError(
            "the tensors in the file do not match this architecture.\n" + "\n".join(lines)
        )
    return reasons


def _listed(what: str, names: list[str], limit: int = 8) -> list[str]:
    more = [f"  ... and {len(names) - limit} more"] if len(names) > limit else []
    return [f"  {what}: {name}" for name in names[:limit]] + more


def _changed(pair: NamePair, tensor: Tensor) -> Tensor:
    try:
        return pair.change.to_ours(tensor).float()
    except (RuntimeError, IndexError) as error:
        shape = tuple(tensor.shape)
        raise UserError(
            f"{pair.theirs} has the shape {shape}, which does not fit the configuration."
        ) from error


def _joined(ours: str, found: list[tuple[NamePair, Tensor]]) -> Tensor:
    """Return one of headway's tensors, joined from its parts in the order of their rows."""
    if len(found) == 1 and found[0][0].rows is None:
        return found[0][1].contiguous()
    found.sort(key=lambda part: part[0].rows.start if part[0].rows else 0)
    end = 0
    for pair, tensor in found:
        assert pair.rows is not None, f"{ours} has a part without rows"
        assert pair.rows.start == end, f"the parts of {ours} leave a gap"
        end = pair.rows.stop
        if not tensor.ndim or len(tensor) != pair.rows.stop - pair.rows.start:
            raise UserError(
                f"{pair.theirs} has the shape {tuple(tensor.shape)}, but needs "
                f"{pair.rows.stop - pair.rows.start} rows."
            )
    try:
        return torch.cat([tensor for _, tensor in found])
    except RuntimeError as error:
        shapes = ", ".join(f"{pair.theirs} {tuple(tensor.shape)}" for pair, tensor in found)
        raise UserError(f"cannot join tensors with different shapes: {shapes}.") from error


def _check_tied(pair: NamePair, tensor: Tensor, first: Tensor) -> None:
    first = first if pair.rows is None else first[pair.rows]
    again = _changed(pair, tensor)
    if again.shape != first.shape or not (again.is_meta or torch.equal(again, first)):
        raise UserError(
            f"{pair.theirs} is tied to another tensor ({pair.ours}) in the configuration, but the "
            "two differ. If they are not tied, set tie_word_embeddings to false in config.json."
        )


def _cut(pair: NamePair) -> str:
    assert pair.their_rows is not None
    return f"{pair.theirs}[:{pair.their_rows.start}]"


# -- helpers for tables of pairs


OLD_KINDS = {"weight": "gamma", "bias": "beta"}
"""Names of norm tensors in files that were converted from TensorFlow, keyed by the current
names."""


def new_names(names: Collection[str]) -> list[str]:
    """Return the tensor names with old names of norm tensors replaced by current ones."""
    kinds = {old: new for new, old in OLD_KINDS.items()}
    found = []
    for name in names:
        stem, _, kind = name.rpartition(".")
        is_old = kind in kinds and stem.lower().endswith("norm")
        found.append(f"{stem}.{kinds[kind]}" if is_old else name)
    return found


def with_old_names(pairs: Iterable[NamePair], names: Collection[str]) -> list[NamePair]:
    """Return the pairs with the old names of norm tensors if the file uses them."""
    found = []
    for pair in pairs:
        stem, _, kind = pair.theirs.rpartition(".")
        old = f"{stem}.{OLD_KINDS.get(kind, kind)}"
        is_old = pair.theirs not in names and old in names
        found.append(pair._replace(theirs=old) if is_old else pair)
    return found


def weight_and_bias(
    theirs: str, ours: str, change: TensorTransform = IDENTITY, *, bias: bool = True
) -> list[NamePair]:
    """Return the name pairs for the weight and the bias of a layer or norm."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [NamePair(f"{theirs}.{kind}", f"{ours}.{kind}", change=change) for kind in kinds]


def stacked(
    theirs: Sequence[str], ours: str, sizes: Sequence[int], *, bias: bool = True
) -> list[NamePair]:
    """Return the name pairs for foreign layers that headway stores in one layer, joined by rows.

    `sizes`: number of rows of each foreign layer.
    """
    pairs = []
    for kind in ("weight", "bias") if bias else ("weight",):
        start = 0
        for name, size in zip(theirs, sizes, strict=True):
            rows = slice(start, start + size)
            pairs.append(NamePair(f"{name}.{kind}", f"{ours}.{kind}", rows))
            start += size
    return pairs
