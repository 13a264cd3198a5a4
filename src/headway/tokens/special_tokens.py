"""Roles of special tokens, for tokenizers without the usual token names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import tokenizers

from headway.errors import DataError, suggest
from headway.specs.values import describe, fit, setting_types


@dataclass(frozen=True)
class TokenRoles:
    """Special tokens of each role, by their text. A tokenizer without roles looks for the usual
    names."""

    bos: str
    """First token of a text or an output (Marian, T5: `<pad>`; BART: `</s>`)."""

    eos: str
    unk: str | None = None
    """Unknown token. None: the token with a usual name, or the end token if no text is unknown."""

    mask: str | None = None
    begins: bool = True
    """Whether prompts begin with `bos`, unless `before` is set."""

    before: tuple[str, ...] | None = None
    """Tokens that the published tokenizer of a language model puts before every text, also before
    prompts; often none. None: `bos`."""

    behind: tuple[str, ...] | None = None
    """Tokens that the published tokenizer puts after every text. None: `eos` after a text that is
    only read, nothing after a prompt."""

    source_begin: str | None = None
    """First token of a source: `<s>` for BART, which reads `<s> a </s>`. None: sources are read as
    `a </s>`."""

    target_begin: str | None = None
    """First token that every output is forced to have (BART)."""

    pair_ends: int = 1
    """Number of end tokens between the two texts of a pair. Two (RoBERTa) are for models without
    segments."""

    between: tuple[str, ...] | None = None
    """Tokens between the two texts of a pair, if the published tokenizer of an encoder has a rule
    of its own. `before` and `behind` then apply to pairs too. None: `pair_ends` end tokens."""

    banned: tuple[str, ...] = ()
    """Special tokens that outputs never contain (Marian: `<pad>`)."""

    unwritten: tuple[str, ...] = ()
    """Pieces of text that outputs never contain (Whisper: brackets, musical notes)."""

    never_first: tuple[str, ...] = ()
    """Tokens that must not come first in an output, after `target_begin` (Whisper: a space, the end
    token)."""

    more_ends: tuple[str, ...] = ()
    """Further tokens that end the output of a language model (Llama 3: the end of a turn)."""

    def as_dict(self) -> dict[str, Any]:
        """Values that differ from the defaults, for JSON."""
        default = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> TokenRoles:
        if not isinstance(values, Mapping):
            raise DataError(f"{where}: roles must be a JSON object, not {values!r}.")
        types, found = setting_types(cls), {}
        for name, value in values.items():
            if name not in types:
                raise DataError(f"{where}: unknown role {name!r}.{suggest(name, types)}")
            try:
                found[name] = fit(value, types[name], quoted=True)
            except ValueError as error:
                needed = describe(types[name])
                raise DataError(
                    f"{where}: the role {name} must be {needed}, not {value!r}."
                ) from error
        missing = [name for name in ("bos", "eos") if name not in found]
        if missing or found.get("pair_ends", 1) < 1:
            raise DataError(
                f"{where}: roles must contain bos and eos, and pair_ends must be at least 1."
            )
        return cls(**found)


UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIALS = [UNK, BOS, EOS]

# Names of these three roles in other tokenizers, the most likely first.
UNK_NAMES = (UNK, "[UNK]", "<|unk|>", "<UNK>", "unk")
BOS_NAMES = (BOS, "[CLS]", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "[BOS]", "<BOS>")
EOS_NAMES = (EOS, "[SEP]", "<eos>", "<|endoftext|>", "<|end_of_text|>", "[EOS]", "<EOS>")
MASK = "<mask>"
MASK_NAMES = (MASK, "[MASK]", "<|mask|>", "<MASK>")


def find_token(inner: tokenizers.Tokenizer, names: Sequence[str]) -> int | None:
    found = (inner.token_to_id(name) for name in names)
    return next((i for i in found if i is not None), None)


def find_or_add_token(
    inner: tokenizers.Tokenizer, names: Sequence[str], instead: int | None
) -> int:
    """Return the id of a required token: one of `names`, otherwise `instead`, otherwise a new
    token."""
    known = find_token(inner, names)
    known = instead if known is None else known
    if known is not None:
        return known
    inner.add_special_tokens([names[0]])
    return inner.get_vocab(with_added_tokens=True)[names[0]]
