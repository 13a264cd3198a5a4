"""The special tokens: what we call them, and what others do."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIALS = [UNK, BOS, EOS]

# What other tokenizers call these three, the likeliest first.
UNK_NAMES = (UNK, "[UNK]", "<|unk|>", "<UNK>", "unk")
BOS_NAMES = (BOS, "[CLS]", "<bos>", "<|startoftext|>", "<|begin_of_text|>", "[BOS]", "<BOS>")
EOS_NAMES = (EOS, "[SEP]", "<eos>", "<|endoftext|>", "<|end_of_text|>", "[EOS]", "<EOS>")
MASK = "<mask>"
MASK_NAMES = (MASK, "[MASK]", "<|mask|>", "<MASK>")


def named(inner: tokenizers.Tokenizer, names: Sequence[str]) -> int | None:
    found = (inner.token_to_id(name) for name in names)
    return next((i for i in found if i is not None), None)


def named_or_new(inner: tokenizers.Tokenizer, names: Sequence[str], instead: int | None) -> int:
    """A token without which we cannot do is added where a foreign tokenizer lacks it."""
    known = named(inner, names)
    known = instead if known is None else known
    if known is not None:
        return known
    inner.add_special_tokens([names[0]])
    return inner.get_vocab(with_added_tokens=True)[names[0]]
