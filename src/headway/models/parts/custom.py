"""Parts of one's own: what a program puts where a family has its usual block, positions or scope.

This is the one seam for models that no setting describes. Parts are code, so no file holds them: a
run keeps their name (`model.parts`), and whoever trains it further or opens it passes them again.

    from headway import Parts

    class NoSkip(PreNorm):
        def forward(self, x_ND, layout, memory=None, cache=None, n_first=None): ...

    parts = Parts(name="no-skip", block=NoSkip)
    run = headway.train("complete", "poems/", out="runs/no-skip", parts=parts)
    headway.load("runs/no-skip", parts=parts)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from headway.errors import ConfigError, FolderError
from headway.nn.attention.scope import Scope
from headway.nn.block import Block
from headway.settings.model import BodySettings, TextSettings


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is left out is as the settings say."""

    name: str
    """What a run folder calls them."""

    block: Callable[..., Block] | None = None
    """Makes a layer from what `Block` is made from: a subclass of it, for one. Instead of
    `model.wiring`, which still says whether the stack ends with a norm."""

    positions: Callable[[TextSettings, int], nn.Module | None] | None = None
    """From the settings and the width of embeddings to a module that is called with embeddings
    (N D) and their layout, and gives what goes on. Instead of positions that are added."""

    scope: Callable[[Scope, str, int], Scope] | None = None
    """From the scope of an attention, its kind (`self`, `encoder`, `decoder`, `cross`) and the
    number of its layer to the one that it has: another scale, window or bias."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigError(f"Parts(name={self.name!r}): a name for the run folder is needed.")


USUAL = Parts(name="usual")
KNOWN: dict[str, Parts] = {}
"""Those that this process was given, by name; of two with one name the last."""


def know(parts: Parts | None, recorded: str | None = None, of: str = "") -> None:
    """Take parts that a caller passes, for all that is built under their name from now on.

    `of`: the run that they are for, and `recorded` what its settings say."""
    if parts is None:
        return
    if not isinstance(parts, Parts):
        raise ConfigError(f"parts={parts!r}: a `headway.Parts` is needed.")
    if of and recorded is None:
        raise FolderError(f"{of} was trained without parts of its own: leave parts= out.")
    if of and recorded != parts.name:
        raise FolderError(
            f"{of} was trained with the parts {recorded!r}, and these are {parts.name!r}."
        )
    KNOWN[parts.name] = parts


def parts_of(settings: BodySettings) -> Parts:
    """Those that the settings name, which someone must have passed."""
    if settings.parts is None:
        return USUAL
    if settings.parts not in KNOWN:
        raise ConfigError(
            f"model.parts={settings.parts!r}: this model has parts of its own, which are code and "
            "in no file. Pass them from Python: headway.train(…, parts=…) or "
            "headway.load(…, parts=…), where parts is the `headway.Parts` of that name."
        )
    return KNOWN[settings.parts]
