"""Custom parts: a program's own block, positional encoding or attention scope for a model.

This is the only extension point for models beyond the settings. Parts are code, so a run stores
only their name (`model.parts`). To resume, fine-tune or load the run, pass them again.

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
from headway.nn.attention.scope import AttentionSpec
from headway.nn.block import Block
from headway.settings.model import BodySettings, TextSettings


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Custom parts of a model. A part that is None follows the settings.

    Example:
        parts = headway.Parts(name="no-skip", block=NoSkip)
        run = headway.train("complete", "poems/", out="runs/no-skip", parts=parts)
    """

    name: str
    """Name that identifies the parts in a run folder."""

    block: Callable[..., Block] | None = None
    """Function that builds a layer from the arguments of `Block`, for example a subclass of it. It
    replaces `model.block_layout`, which still determines whether the stack ends with a norm."""

    positions: Callable[[TextSettings, int], nn.Module | None] | None = None
    """Function that builds the positional encoding from the settings and the width of the
    embeddings. The module that it returns receives embeddings (N D) and their layout, and returns
    the sum of embeddings and encodings. It replaces the positional encoding of the settings. None
    as its result means no encoding."""

    scope: Callable[[AttentionSpec, str, int], AttentionSpec] | None = None
    """Function that returns the attention scope of a layer (scale, window, bias). Its arguments are
    the default scope, the kind of attention (`self`, `encoder`, `decoder` or `cross`) and the index
    of the layer."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigError(f"Parts(name={self.name!r}): the name must be a non-empty string.")


DEFAULT_PARTS = Parts(name="usual")
REGISTERED: dict[str, Parts] = {}
"""Custom parts registered in this process, by name. A later registration of a name replaces an
earlier one."""


def register_parts(parts: Parts | None, recorded: str | None = None, of: str = "") -> None:
    """Register custom parts under their name, for models that are built from now on. Does nothing
    if `parts` is None.

    `of`: name of a run that is being loaded. `recorded`: name of the parts that it was trained
    with; other parts raise an error.
    """
    if parts is None:
        return
    if not isinstance(parts, Parts):
        raise ConfigError(f"parts={parts!r} must be a `headway.Parts` object.")
    if of and recorded is None:
        raise FolderError(f"{of} was trained without custom parts. Remove the argument parts=.")
    if of and recorded != parts.name:
        raise FolderError(
            f"{of} was trained with the custom parts {recorded!r}, not {parts.name!r}. Pass the "
            f"`headway.Parts` named {recorded!r}."
        )
    REGISTERED[parts.name] = parts


def parts_of(settings: BodySettings) -> Parts:
    """Return the registered parts that the settings name, or the default parts if they name
    none."""
    if settings.parts is None:
        return DEFAULT_PARTS
    if settings.parts not in REGISTERED:
        raise ConfigError(
            f"model.parts={settings.parts!r}: this model uses custom parts, whose code is not "
            f"stored in the run. In Python, pass the `headway.Parts` named {settings.parts!r}: "
            "headway.train(…, parts=…) or headway.load(…, parts=…)."
        )
    return REGISTERED[settings.parts]
