"""Which tokens play which part, where the usual names do not tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import tokenizers

from headway.errors import DataError, suggest
from headway.settings.value_types import describe, fit, setting_types


@dataclass(frozen=True)
class Roles:
    """Tokens by their text. A tokenizer without roles finds its tokens by the usual names."""

    bos: str
    """What a text, or an output, begins with (Marian, T5: `<pad>`; BART: `</s>`)."""

    eos: str
    unk: str | None = None
    """None: the one with a usual name, or the end token where nothing is unknown."""

    mask: str | None = None
    begins: bool = True
    """Prompts begin with `bos`, where `before` does not say more."""

    before: tuple[str, ...] | None = None
    """What the published tokenizer of a language model puts before every text, prompts too: often
    nothing. None: as the task has it, which is `bos`."""

    behind: tuple[str, ...] | None = None
    """The same behind a text. None: `eos` behind a text that is read, nothing behind a prompt."""

    source_begin: str | None = None
    """A source is read as `<s> a </s>` (BART); None: `a </s>`."""

    target_begin: str | None = None
    """The first token of every output, before anything is chosen (BART)."""

    pair_ends: int = 1
    """End tokens between the two texts of a pair; two (RoBERTa) are for models without segments."""

    between: tuple[str, ...] | None = None
    """Tokens between the two texts of a pair, where the published tokenizer of an encoder has a
    rule of its own; `before` and `behind` are then those of pairs, too. None:
    `pair_ends` end tokens."""

    banned: tuple[str, ...] = ()
    """Tokens that no output has (Marian's `<pad>`)."""

    unwritten: tuple[str, ...] = ()
    """Pieces of text that no output has (Whisper: brackets, notes of music)."""

    never_first: tuple[str, ...] = ()
    """Tokens that no output begins with, behind `target_begin` (Whisper: a blank, the end)."""

    more_ends: tuple[str, ...] = ()
    """Other tokens that end what a language model writes (Llama 3: the end of a turn)."""

    def as_dict(self) -> dict[str, Any]:
        """What differs from the defaults, for JSON."""
        default = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> Roles:
        if not isinstance(values, Mapping):
            raise DataError(f"{where}: the roles of tokens are a table, not {values!r}.")
        types, found = setting_types(cls), {}
        for name, value in values.items():
            if name not in types:
                raise DataError(f"{where}: unknown role {name!r}.{suggest(name, types)}")
            try:
                found[name] = fit(value, types[name], quoted=True)
            except ValueError as error:
                needed = describe(types[name])
                raise DataError(
                    f"{where}: the role {name} is {value!r}; it must be {needed}."
                ) from error
        missing = [name for name in ("bos", "eos") if name not in found]
        if missing or found.get("pair_ends", 1) < 1:
            raise DataError(f"{where}: its roles need bos and eos, and a pair_ends of 1 or more.")
        return cls(**found)


UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIALS = [UNK, BOS, EOS]

# What other tokenizers call these three, the likeliest first.
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
    """A token without which we cannot do is added where a foreign tokenizer lacks it."""
    known = find_token(inner, names)
    known = instead if known is None else known
    if known is not None:
        return known
    inner.add_special_tokens([names[0]])
    return inner.get_vocab(with_added_tokens=True)[names[0]]
