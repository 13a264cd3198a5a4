"""Interventions: changes to a model's computation, such as hidden tokens and disabled attention
heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headway.errors import UserError
from headway.inside.capture.anatomy import Anatomy
from headway.nn.attention.attention import Attention
from headway.nn.layout import Tree


@dataclass(frozen=True)
class Intervention:
    """Change to a model's computation: hidden tokens and disabled attention heads.

    Example:
        >>> from headway.inside import Intervention, load, read
        >>> off = Intervention(disabled_heads=frozenset({("cross", 1, 0)}))
        >>> text = "Ein Hund hat ihr ins Bein gebissen."
        >>> "".join(o.name for o in read(load("tatoeba-de-en"), text, change=off).outputs)
        '▁A▁dog▁benched▁her▁leg.</s>'
    """

    hidden: frozenset[tuple[str, int]] = frozenset()
    """Stream name and position of each hidden token. No other token can attend to it, in any
    layer."""

    disabled_heads: frozenset[tuple[str, int, int]] = frozenset()
    """Kind of attention, layer and index of each head whose output is set to zero. Layers that
    share weights are changed together."""

    def places(self, stream: str) -> list[int]:
        """Return the positions of the hidden tokens of one stream.

        Args:
            stream: Name of the stream.
        """
        return sorted(place for name, place in self.hidden if name == stream)

    def check(self, lengths: dict[str, int]) -> None:
        """Raise an error if a hidden token does not exist in the input.

        Args:
            lengths: Number of tokens of each stream.
        """
        for stream, place in sorted(self.hidden):
            if stream not in lengths:
                raise UserError(
                    f"unknown stream {stream!r}. The streams are: {', '.join(lengths)}."
                )
            if not 0 <= place < lengths[stream]:
                raise UserError(
                    f"cannot hide token {place + 1} of {stream}, which has {lengths[stream]} "
                    "tokens."
                )


NO_INTERVENTION = Intervention()


@contextmanager
def disable_heads(model: nn.Module, change: Intervention) -> Iterator[None]:
    """Context manager that sets the output of the disabled heads to zero, and restores their gates
    afterwards."""
    anatomy, gates = Anatomy.of(model), dict[Attention, Tensor]()
    for kind, layer, head in change.disabled_heads:
        attention = anatomy.head(kind, layer, head)
        if attention not in gates:
            device = next(attention.parameters()).device
            gates[attention] = torch.ones(attention.n_heads, device=device)
        gates[attention][head] = 0.0
    before = {attention: attention.gate_H for attention in gates}
    try:
        for attention, gate_H in gates.items():
            old_H = before[attention]
            attention.gate_H = gate_H if old_H is None else gate_H * old_H
        yield
    finally:
        for attention, gate in before.items():
            attention.gate_H = gate


def hiding_mask(
    n_rows: int, n_columns: int, places: Sequence[list[int]], *, causal: bool, own: bool
) -> Tree:
    """Return an attention mask that hides certain keys, for sequences of equal length.

    `places`: positions of the hidden keys of each sequence. With `own`, a hidden token can still
    attend to itself.
    """
    may_BTS = torch.ones(len(places), n_rows, n_columns, dtype=torch.bool)
    for may_TS, hidden in zip(may_BTS, places, strict=True):
        may_TS[:, hidden] = False
    if own:
        may_BTS |= torch.eye(n_rows, n_columns, dtype=torch.bool)
    if causal:
        may_BTS &= torch.ones(n_rows, n_columns, dtype=torch.bool).tril()
    return Tree(may_BTS, torch.arange(n_columns))
