"""Vocabulary files with one token per line, of BERT and of models of chemical formulas or
proteins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from headway.errors import DataError
from headway.tokens.small_files import read_text

PROTEIN_SPECIALS = ("<cls>", "<pad>", "<eos>", "<unk>", "<mask>")
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Pattern that splits a molecule or a reaction in SMILES, as in published models: atoms in brackets,
# atoms of one or two letters, bonds, branches and rings. Other characters are skipped.
SMILES_CUTS = (
    r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$"
    r"|%[0-9]{2}|[0-9]"
)
SMILES_SIGNS = {"C", "(", ")", "=", "[nH]"}
"""Tokens that identify a SMILES vocabulary. Every SMILES vocabulary contains them all, and no
vocabulary of a natural language does."""


def vocab_txt(
    path: Path,
    *,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    chinese: bool = True,
) -> tokenizers.Tokenizer:
    """Return the tokenizer in a vocab.txt.

    `lowercase`: whether text is lower-cased. None: only if the vocabulary has no capital letter.
    `strip_accents`: whether accents are removed. None: as `lowercase`. `chinese`: whether each
    Chinese character is a word.
    """
    pieces = [line.removesuffix("\r") for line in read_text(path).split("\n")]
    if pieces and not pieces[-1]:
        pieces.pop()
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        twice = next(piece for i, piece in enumerate(pieces) if vocabulary[piece] != i)
        raise DataError(f"{path} has the piece {twice!r} twice.")
    if vocabulary.keys() >= {*PROTEIN_SPECIALS}:
        return _letters(vocabulary)
    missing = [name for name in BERT_SPECIALS[1:4] if name not in pieces]
    if missing:
        raise DataError(
            f"{path} is not a BERT vocabulary: it does not contain {', '.join(missing)}. "
            "Use a file with one piece per line."
        )
    if is_smiles(vocabulary):
        made = _smiles(vocabulary)
    else:
        if lowercase is None:
            lowercase = not any(p != p.lower() for p in pieces if not p.startswith("["))
        made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        made.normalizer = bert_normaliser(lowercase, strip_accents, chinese)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
    made.add_special_tokens([name for name in BERT_SPECIALS if name in vocabulary])
    return made


def bert_normaliser(
    lowercase: bool, strip_accents: bool | None = None, chinese: bool = True
) -> Any:
    """Return BERT's normalizer, which also removes control characters.

    `chinese`: whether to put spaces around Chinese characters. `strip_accents`: whether to remove
    accents. None: as `lowercase`.
    """
    return normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=chinese
    )


def is_smiles(vocabulary: dict[str, int]) -> bool:
    """Whether each token of a vocabulary, except for special tokens, is a single SMILES symbol."""
    whole = re.compile(SMILES_CUTS)
    others = [p for p in vocabulary if p not in BERT_SPECIALS and not p.startswith("[unused")]
    return vocabulary.keys() >= SMILES_SIGNS and all(whole.fullmatch(piece) for piece in others)


def _letters(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    """Return the tokenizer of ESM. It finds the letters of a protein anywhere in a text; all other
    text is unknown."""
    known = sorted(vocabulary.keys() - {*PROTEIN_SPECIALS}, key=lambda p: (-len(p), p))
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(map(re.escape, known))), "isolated"),
            pre_tokenizers.WhitespaceSplit(),
        ]
    )
    made.decoder = decoders.Fuse()
    made.add_special_tokens(list(PROTEIN_SPECIALS))
    return made


def _smiles(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(SMILES_CUTS), "removed", invert=True)
    made.decoder = decoders.Fuse()
    return made
