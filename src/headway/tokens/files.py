"""Read tokenizer files: those of headway, of the library `tokenizers`, and of other programs.

GPT-2 has a vocabulary (`encoder.json`) and merges (`vocab.bpe`). BERT has a list of tokens
(`vocab.txt`), SentencePiece a `.model`, tiktoken a `.tiktoken`, and llama2.c a `tokenizer.bin`.
Marian has two SentencePiece models with one table of ids. The files do not define how text is split
before it is looked up, so this package contains these rules.
"""

from __future__ import annotations

from pathlib import Path

from headway.errors import DataError
from headway.tokens import bytepairs
from headway.tokens.llama2c import load_llama2c_tokenizer
from headway.tokens.spm import library_tokenizer, read_sentencepiece
from headway.tokens.tokenizer import Tokenizer, Vocabularies
from headway.tokens.vocab_alignment import align_vocabulary
from headway.tokens.vocabtxt import vocab_txt

GPT2_NAMES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
MARIAN_NAMES = ("source.spm", "target.spm", "vocab.json")
OURS, BERT_NAME, LLAMA2C_NAME = "tokenizer.json", "vocab.txt", "tokenizer.bin"
IN_A_FOLDER = [(OURS,), *GPT2_NAMES, MARIAN_NAMES, (BERT_NAME,), (LLAMA2C_NAME,)]
SUFFIXES = (".model", ".tiktoken")
END_OF_TEXT = "<|endoftext|>"


def tokenizer_files(path: Path) -> tuple[Path, ...]:
    """Return the paths of all files of a tokenizer. `path`: one of the files, or their folder."""
    if path.is_dir():
        return _in_folder(path)
    folder = path.parent
    if path.name not in {name for both in GPT2_NAMES for name in both}:
        return (path,)
    for names in GPT2_NAMES:
        files = tuple(folder / name for name in names)
        if path.name in names and all(file.is_file() for file in files):
            return files
    if path.suffix == ".json" and path.is_file():
        return (path,)
    other = next(n for both in GPT2_NAMES for n in both if path.name in both and n != path.name)
    raise DataError(f"{path} needs the file {other} in the same folder.")


def _in_folder(folder: Path) -> tuple[Path, ...]:
    for names in IN_A_FOLDER:
        files = tuple(folder / name for name in names)
        if all(file.is_file() for file in files):
            return files
    found = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
    if len(found) == 1:
        return (found[0],)
    if found:
        names = tuple(file.name for file in found)
        raise DataError(
            f"{folder} has several tokenizers: {', '.join(names)}. Give the path of one file."
        )
    known = " or ".join(" with ".join(names) for names in IN_A_FOLDER)
    raise DataError(
        f"no tokenizer found in {folder}. Supported files: {known}, *.model or *.tiktoken."
    )


def load_vocabularies(path: Path) -> Vocabularies:
    """Load the source and target tokenizers. Most formats contain one tokenizer for both sides.
    Headway's own format may contain two, and Marian's always does."""
    files = tokenizer_files(path)
    if len(files) == 3:
        return Vocabularies(*(_marian_side(side, files[2]) for side in files[:2]))
    if len(files) == 2:
        both = _merging(*files)
    elif files[0].suffix == ".txt":
        both = Tokenizer(vocab_txt(files[0]), str(files[0]))
    elif files[0].suffix == ".bin":
        both = load_llama2c_tokenizer(files[0])
    elif files[0].suffix in (*SUFFIXES, ".spm"):
        both = _pieces(files[0])
    else:
        return Vocabularies.load(files[0])
    return Vocabularies(both, both)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a single tokenizer. A file with two vocabularies is an error."""
    vocab = load_vocabularies(path)
    if not vocab.joint:
        raise DataError(
            f"{path} has two vocabularies, one per language of a translation model. "
            "Use a tokenizer with a single vocabulary."
        )
    return vocab.source


def _merging(vocabulary: Path, merges: Path) -> Tokenizer:
    if bytepairs.ends_words(vocabulary):
        inner = bytepairs.gpt_tokenizer(vocabulary, merges)
    else:
        inner = bytepairs.gpt2_tokenizer(vocabulary, merges)
    inner.add_special_tokens([END_OF_TEXT])
    return Tokenizer(inner, str(vocabulary))


def _pieces(path: Path) -> Tokenizer:
    """Load a tiktoken or SentencePiece file, as detected from its content."""
    if not path.is_file():
        raise DataError(f"the tokenizer file {path} does not exist.")
    if bytepairs.is_tiktoken(path):
        return Tokenizer(bytepairs.tiktoken_tokenizer(path), str(path))
    model = read_sentencepiece(path)
    return Tokenizer(library_tokenizer(model), str(path))


def _marian_side(side: Path, table: Path) -> Tokenizer:
    model = read_sentencepiece(side)
    numbers = bytepairs.read_numbers(table)
    inner = library_tokenizer(model, numbers)
    inner.add_special_tokens([name for name in ("<unk>", "</s>", "<pad>") if name in numbers])
    inner = align_vocabulary(inner, None, str(side))
    return Tokenizer(inner, str(side))
