"""Their tensors under our names and back: one table of pairs serves both directions.

Every foreign tensor has exactly one pair, or stands on the list of ignored ones with the reason.
Silent drops would turn into models that are slightly wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headway.errors import UserError


class Change(NamedTuple):
    """What happens to a tensor on its way in, and its exact inverse on the way out."""

    to_ours: Callable[[Tensor], Tensor]
    to_theirs: Callable[[Tensor], Tensor]


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _turned(tensor: Tensor) -> Tensor:
    return tensor.T if tensor.ndim == 2 else tensor


SAME = Change(_same, _same)

TURNED = Change(_turned, _turned)
"""`Conv1D` of GPT and GPT-2 holds its matrix as (in, out)."""


class Pair(NamedTuple):
    """A tensor of theirs and where it is in ours."""

    theirs: str
    ours: str
    """Exact names, layer numbers filled in."""

    rows: slice | None = None
    """The rows of ours that theirs is: q, k and v of one matrix; a gate and a value."""

    change: Change = SAME
    tied: bool = False
    """Another name of a tensor that has a pair already: a file may lack it; if not, it is equal."""

    their_rows: slice | None = None
    """`slice(n, None)`: ours begins at this row of theirs (positions of RoBERTa and BART, whose
    first two are for padding). The rows before are kept beside the ignored tensors."""

    along: int | None = None
    """Theirs is several of ours, one behind the other along this axis of it: each of the pairs
    takes its part by its `change` (the positions of ViT: those of first rows, and the grid)."""


@dataclass(frozen=True)
class Taken:
    """What became of a file's tensors."""

    weights: dict[str, Tensor]
    """Ours, in fp32."""

    ignored: dict[str, str]
    """Names of theirs that have no place here, and why."""

    kept: dict[str, Tensor]
    """Those tensors, and rows without a place (`name[:n]`): an export gives them back."""


READABLE = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def to_ours(
    theirs: Mapping[str, Tensor],
    pairs: Sequence[Pair],
    ignored: Mapping[str, str],
    aliases: Mapping[str, str] | None = None,
) -> Taken:
    """All of their tensors in ours. On tensors of the device "meta" it finds out the shapes alone.

    `ignored`: regular expressions of whole names, and why they are not needed. `aliases`: other
    names that tensors of ours go by, which tied pairs may use, and those that have a pair.
    """
    reasons = check_names(theirs, pairs, ignored)
    parts: dict[str, list[tuple[Pair, Tensor]]] = {}
    kept = {name: theirs[name] for name in reasons}
    for pair in (pair for pair in pairs if not pair.tied):
        tensor = theirs[pair.theirs]
        if tensor.dtype not in READABLE:
            raise UserError(f"{pair.theirs} is of the type {tensor.dtype}: no weights to read.")
        if pair.their_rows is not None:
            kept[_cut(pair)] = tensor[: pair.their_rows.start].clone()
            tensor = tensor[pair.their_rows]
        parts.setdefault(pair.ours, []).append((pair, _changed(pair, tensor)))
    weights = {ours: _joined(ours, found) for ours, found in parts.items()}
    for pair in (pair for pair in pairs if pair.tied and pair.theirs in theirs):
        ours = (aliases or {}).get(pair.ours, pair.ours)
        _check_tied(pair, theirs[pair.theirs], weights[ours])
    return Taken(weights, reasons, kept)


def to_theirs(
    ours: Mapping[str, Tensor], pairs: Iterable[Pair], kept: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """All tensors under their names, tied ones too, in the order of the pairs. `kept` are those
    that an import found no place for."""
    kept = kept or {}
    theirs: dict[str, Tensor] = {}
    for pair in pairs:
        tensor = ours[pair.ours] if pair.rows is None else ours[pair.ours][pair.rows]
        tensor = pair.change.to_theirs(tensor)
        if pair.their_rows is not None:
            n = pair.their_rows.start
            before = kept.get(_cut(pair), tensor.new_zeros(n, *tensor.shape[1:]))
            tensor = torch.cat([before.to(tensor.dtype), tensor])
        if pair.along is not None and pair.theirs in theirs:
            tensor = torch.cat([theirs[pair.theirs], tensor], pair.along)
        theirs[pair.theirs] = tensor.contiguous()
    return theirs | {name: tensor for name, tensor in kept.items() if not name.endswith("]")}


def check_names(
    theirs: Collection[str], pairs: Iterable[Pair], ignored: Mapping[str, str]
) -> dict[str, str]:
    """Refuse a file that lacks a tensor or has one without a place. Returns the ignored ones."""
    pairs = list(pairs)
    known = {pair.theirs for pair in pairs}
    whole = [pair.theirs for pair in pairs if pair.along is None]
    parts = {pair.theirs for pair in pairs if pair.along is not None}
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
        lines = [*_listed("missing", missing), *_listed("without a place here", unknown)]
        raise UserError(
            "the tensors in the file are not those of this architecture.\n" + "\n".join(lines)
        )
    return reasons


def _listed(what: str, names: list[str], limit: int = 8) -> list[str]:
    more = [f"  ... and {len(names) - limit} more"] if len(names) > limit else []
    return [f"  {what}: {name}" for name in names[:limit]] + more


def _changed(pair: Pair, tensor: Tensor) -> Tensor:
    try:
        return pair.change.to_ours(tensor).float()
    except (RuntimeError, IndexError) as error:
        shape = tuple(tensor.shape)
        raise UserError(f"{pair.theirs} has the shape {shape}, which does not fit.") from error


def _joined(ours: str, found: list[tuple[Pair, Tensor]]) -> Tensor:
    """The parts of one of our tensors, each in its rows."""
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
                f"{pair.theirs} has the shape {tuple(tensor.shape)}, but "
                f"{pair.rows.stop - pair.rows.start} rows are needed."
            )
    try:
        return torch.cat([tensor for _, tensor in found])
    except RuntimeError as error:
        shapes = ", ".join(f"{pair.theirs} {tuple(tensor.shape)}" for pair, tensor in found)
        raise UserError(f"these tensors do not go together: {shapes}.") from error


def _check_tied(pair: Pair, tensor: Tensor, first: Tensor) -> None:
    first = first if pair.rows is None else first[pair.rows]
    again = _changed(pair, tensor)
    if again.shape != first.shape or not (again.is_meta or torch.equal(again, first)):
        raise UserError(
            f"{pair.theirs} should be one tensor with another ({pair.ours}), but they differ. "
            "The configuration says that they are tied; if not, set tie_word_embeddings to false."
        )


def _cut(pair: Pair) -> str:
    assert pair.their_rows is not None
    return f"{pair.theirs}[:{pair.their_rows.start}]"


# Ways to write tables shortly


OLD_KINDS = {"weight": "gamma", "bias": "beta"}
"""Names of the tensors of a norm in files that were converted from TensorFlow."""


def new_names(names: Collection[str]) -> list[str]:
    """The names of a file's tensors, with those of norms as they are called today."""
    kinds = {old: new for new, old in OLD_KINDS.items()}
    found = []
    for name in names:
        stem, _, kind = name.rpartition(".")
        is_old = kind in kinds and stem.lower().endswith("norm")
        found.append(f"{stem}.{kinds[kind]}" if is_old else name)
    return found


def with_old_names(pairs: Iterable[Pair], names: Collection[str]) -> list[Pair]:
    """The pairs, with norms under their old names where the file has those."""
    found = []
    for pair in pairs:
        stem, _, kind = pair.theirs.rpartition(".")
        old = f"{stem}.{OLD_KINDS.get(kind, kind)}"
        is_old = pair.theirs not in names and old in names
        found.append(pair._replace(theirs=old) if is_old else pair)
    return found


def both(theirs: str, ours: str, change: Change = SAME, *, bias: bool = True) -> list[Pair]:
    """The weight and the bias of a layer or a norm."""
    kinds = ("weight", "bias") if bias else ("weight",)
    return [Pair(f"{theirs}.{kind}", f"{ours}.{kind}", change=change) for kind in kinds]


def stacked(
    theirs: Sequence[str], ours: str, sizes: Sequence[int], *, bias: bool = True
) -> list[Pair]:
    """Layers that are one of ours, one above the other: so many rows each."""
    pairs = []
    for kind in ("weight", "bias") if bias else ("weight",):
        start = 0
        for name, size in zip(theirs, sizes, strict=True):
            rows = slice(start, start + size)
            pairs.append(Pair(f"{name}.{kind}", f"{ours}.{kind}", rows))
            start += size
    return pairs
