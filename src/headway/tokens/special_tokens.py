"""Roles of special tokens, such as the end token, for tokenizers without the usual token names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import tokenizers

from headway.errors import DataError, suggest
from headway.specs.values import describe, fit, setting_types


@dataclass(frozen=True)
class TokenRoles:
    """Special tokens of each role, as text. For a tokenizer without roles, the usual names are
    looked up."""

    bos: str
    """First token of a text or an output. Marian and T5 use `<pad>`, BART uses `</s>`."""

    eos: str
    unk: str | None = None
    """Unknown token. None: the token with a usual name, or the end token if every text can be
    encoded."""

    mask: str | None = None
    begins: bool = True
    """Whether prompts begin with `bos`. Ignored if `before` is set."""

    before: tuple[str, ...] | None = None
    """Tokens that the published tokenizer of a language model puts before every text and prompt;
    often none. None: `bos`."""

    behind: tuple[str, ...] | None = None
    """Tokens that the published tokenizer puts after every text. None: `eos` after a text that is
    classified, tagged or embedded, nothing after a prompt."""

    source_begin: str | None = None
    """First token of a source. BART reads `<s> a </s>`, so it is `<s>`. None: sources are read as
    `a </s>`."""

    target_begin: str | None = None
    """Forced first token of every output (BART). None: no forced token."""

    pair_ends: int = 1
    """Number of end tokens between the two texts of a pair. Models without segment embeddings, such
    as RoBERTa, have two."""

    between: tuple[str, ...] | None = None
    """Tokens between the two texts of a pair, if the published tokenizer of an encoder has its own
    rule. `before` and `behind` then apply to pairs, too. None: `pair_ends` end tokens."""

    banned: tuple[str, ...] = ()
    """Special tokens that outputs never contain, such as Marian's `<pad>`."""

    unwritten: tuple[str, ...] = ()
    """Ordinary tokens that outputs never contain (suppressed tokens), such as Whisper's brackets
    and musical notes."""

    never_first: tuple[str, ...] = ()
    """Tokens that must not come first in an output, after `target_begin`. For Whisper, they are a
    space and the end token."""

    more_ends: tuple[str, ...] = ()
    """Additional tokens that end the output of a language model, such as Llama 3's end of a
    turn."""

    def as_dict(self) -> dict[str, Any]:
        """Return the values that differ from the defaults, for JSON."""
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

# Usual names of the unknown, start and end tokens in other tokenizers, the most likely first.
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
    """Return the id of a required token: that of one of `names`, otherwise `instead`, otherwise
    that of a token added with the first name."""
    known = find_token(inner, names)
    known = instead if known is None else known
    if known is not None:
        return known
    inner.add_special_tokens([names[0]])
    return inner.get_vocab(with_added_tokens=True)[names[0]]
