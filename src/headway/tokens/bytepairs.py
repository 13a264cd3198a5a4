"""Byte-pair encoding from the files of GPT (a vocabulary and merges) and of tiktoken (tokens with
merge ranks)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from headway.errors import DataError
from headway.tokens.json_limits import check_number
from headway.tokens.pieces import BYTE_SIGNS, all_merges
from headway.tokens.small_files import read_json, read_text
from headway.tokens.vocab_alignment import align_vocabulary

END_OF_WORD = "</w>"

# Pre-tokenization patterns of published tokenizers. Their files do not contain them.
GPT2_CUTS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_CUTS = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_CUTS = CL100K_CUTS.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K_CUTS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def gpt2_tokenizer(
    vocabulary: Path, merges: Path, *, with_space: bool = False
) -> tokenizers.Tokenizer:
    """Return the byte-level tokenizer of GPT-2. RoBERTa and BART have files in the same format."""
    made = tokenizers.Tokenizer(_merging(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=with_space)
    made.decoder = decoders.ByteLevel()
    return made


def qwen_tokenizer(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of Qwen. Its files are as for GPT-2, but it uses NFC normalization and
    its own pattern."""
    made = gpt2_tokenizer(vocabulary, merges)
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = _byte_cuts(QWEN_CUTS)
    return made


def gpt_tokenizer(vocabulary: Path, merges: Path) -> tokenizers.Tokenizer:
    """Return the tokenizer of the first GPT: lower-cased words, with `</w>` at the end of each."""
    model = _merging(vocabulary, merges, unk_token="<unk>", end_of_word_suffix=END_OF_WORD)
    made = tokenizers.Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    return made


def ends_words(vocabulary: Path) -> bool:
    """Whether the vocabulary is that of the first GPT, which marks the end of a word."""
    return any(piece.endswith(END_OF_WORD) for piece in read_numbers(vocabulary))


def read_numbers(path: Path) -> dict[str, int]:
    """Read a JSON object that maps tokens to their unique ids."""
    pieces = read_json(path)
    if not isinstance(pieces, dict) or not all(type(i) is int and i >= 0 for i in pieces.values()):
        raise DataError(
            f"{path} is not a vocabulary: expected a JSON object that maps pieces to ids."
        )
    for piece, number in pieces.items():
        check_number(number, piece, str(path))
    if len(set(pieces.values())) < len(pieces):
        raise DataError(f"{path} is not a valid vocabulary: two pieces have the same id.")
    return pieces


def _merging(vocabulary: Path, merges: Path, **more: Any) -> models.BPE:
    pieces = read_numbers(vocabulary)
    lines = read_text(merges).split("\n")
    try:
        pairs = [_pair(line) for line in lines if line.strip() and not line.startswith("#version")]
        return models.BPE(pieces, pairs, **more)
    except Exception as error:  # the library raises nothing narrower
        raise DataError(
            f"cannot read a tokenizer from {vocabulary} and {merges}: {error}."
        ) from error


def _pair(line: str) -> tuple[str, str]:
    one, other = line.removesuffix("\r").split(" ")
    return one, other


def is_tiktoken(path: Path) -> bool:
    """Whether the content of a file begins like a tiktoken file: base64, a space, a number, a line
    end."""
    with path.open("rb") as file:
        line = file.readline(4096)
    try:
        token, rank = line.split()
        return bool(base64.b64decode(token, validate=True)) and rank.isdigit()
    except (ValueError, binascii.Error):
        return False


def read_ranks(path: Path) -> dict[bytes, int]:
    """Read the tokens of a tiktoken file with their ids, which are also the merge ranks."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            piece = base64.b64decode(token, validate=True)
            ranks[piece], known = int(rank), piece in ranks
        except ValueError as error:
            raise DataError(
                f"{path}, line {number:,}: expected a piece in base64 and its id, but found "
                f"{line[:40]!r}."
            ) from error
        if known or not piece:
            raise DataError(
                f"{path}, line {number:,}: the piece {token!r} (base64) is empty or occurs twice."
            )
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise DataError(f"{path}: the ids are not consecutive from 0 to {len(ranks) - 1:,}.")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise DataError(f"{path} has no piece for the byte {missing[0]}.")
    return ranks


def tiktoken_tokenizer(path: Path, cuts: str | None = None) -> tokenizers.Tokenizer:
    """Return the tokenizer in a tiktoken file. `cuts`: the pattern of pre-tokenization. None:
    inferred from the size of the vocabulary."""
    ranks = read_ranks(path)
    signs = str.maketrans({chr(byte): sign for byte, sign in BYTE_SIGNS.items()})
    pieces = {
        piece.decode("latin-1").translate(signs): i
        for piece, i in sorted(ranks.items(), key=lambda item: item[1])
    }
    made = tokenizers.Tokenizer(models.BPE(pieces, all_merges(list(pieces)), ignore_merges=True))
    made.pre_tokenizer = _byte_cuts(cuts or cuts_of(len(ranks)))
    made.decoder = decoders.ByteLevel()
    return align_vocabulary(made, None, str(path), tiktoken_specials(len(ranks)))


def _byte_cuts(cuts: str) -> pre_tokenizers.PreTokenizer:
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(cuts), "isolated"), in_bytes])


def cuts_of(n_pieces: int) -> str:
    if n_pieces > 190_000:
        return O200K_CUTS
    return CL100K_CUTS if n_pieces >= 100_000 else GPT2_CUTS


def tiktoken_specials(n_pieces: int) -> Mapping[str, int]:
    """Return the special tokens of a published tiktoken file with their ids, which the file does
    not contain."""
    if n_pieces == 128_000:  # Llama 3
        named = {0: "begin_of_text", 1: "end_of_text", 6: "start_header_id", 7: "end_header_id",
                 9: "eot_id"}  # fmt: skip
        others = [n for n in range(256) if n not in named]
        named |= {n: f"reserved_special_token_{at}" for at, n in enumerate(others)}
        return {f"<|{named[n]}|>": n_pieces + n for n in range(256)}
    if n_pieces == 199_998:
        return {"<|endoftext|>": 199_999, "<|endofprompt|>": 200_018}
    end = {"<|endoftext|>": 100_257 if n_pieces == 100_256 else n_pieces}
    if n_pieces == 100_256:
        names = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
        return {**end, **{n: 100_258 + i for i, n in enumerate(names)}, "<|endofprompt|>": 100_276}
    return end
