"""Which files are read, what is dropped, and how text becomes tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.errors import ConfigError
from headway.settings.body import check_values
from headway.settings.made import Made
from headway.settings.value_types import check_least

GIVEN = "given"
"""The folder in a run for data that was in memory."""

INPUTS = ("text", "source", "target", "pairs", "media")
FILES = (*INPUTS, *(f"valid_{name}" for name in INPUTS))
"""Settings of data that name files: which of them a task takes is said by what it needs."""


def file_name(path: str) -> str:
    """An absolute path without its folders, which are of no use to others; other paths as they are.
    Data that was in memory keeps the folder in the run that it is in."""
    whole = Path(path)
    if not whole.is_absolute():
        return path
    return f"{GIVEN}/{whole.name}" if whole.parent.name == GIVEN else whole.name


Normalisation = Literal["nfc", "nfkc", "nfd", "nfkd", "none"]


@dataclass(frozen=True, kw_only=True)
class DataSettings(Made):
    """Aligned files (`source` and `target`), files of pairs (`pairs`), or files of texts (`text`);
    `-` is standard input."""

    source: tuple[str, ...] = ()
    """Aligned files, as many of one as of the other; `-` is standard input."""

    target: tuple[str, ...] = ()
    """See `source`."""

    pairs: tuple[str, ...] = ()
    """TSV or JSONL files that hold both sides."""

    valid_source: tuple[str, ...] = ()
    """Aligned files for validation."""

    valid_target: tuple[str, ...] = ()
    """See `valid_source`."""

    valid_pairs: tuple[str, ...] = ()
    """Without any of these three a validation set is split off."""

    valid_size: int = 1000
    """Pairs split off for validation, at most a tenth of all."""

    source_field: str = "source"
    """Of a JSONL line, or the number of a TSV column counted from 1."""

    target_field: str = "target"
    """See `source_field`."""

    text: tuple[str, ...] = ()
    """For the tasks in one language: plain text, JSONL, TSV or CSV with labels, CoNLL columns."""

    valid_text: tuple[str, ...] = ()
    """Without it a part of the text is split off."""

    media: tuple[str, ...] = ()
    """Pictures, videos or recordings: folders with a folder a class, or TSV, CSV or JSONL files of
    paths with labels or texts; IDX files."""

    valid_media: tuple[str, ...] = ()
    """Without it a part of the media is split off."""

    path_field: str = "path"
    """Of a file with paths: where they stand, counted or named as `text_field`."""

    text_field: str = "text"
    """Of a JSONL line or a CSV, or the number of a TSV column counted from 1."""

    other_field: str = ""
    """The second text, where pairs of texts are classified; of a list of media the second of two
    that belong together."""

    label_field: str = "label"
    """The label, named or counted as `text_field`."""

    label_separator: str = ","
    """What stands between several labels in one cell of a table; lists in JSONL need nothing."""

    words_field: str = "words"
    """Of tagged sentences: the list of words, or the number of a CoNLL column."""

    tags_field: str = "tags"
    """Their tags, so too; without a number the last column."""

    fields: tuple[str, ...] = ()
    """JSONL fields that documents consist of, in their usual order; the last is the body."""

    unit: Literal["auto", "file", "paragraph", "line"] = "auto"
    """What one document of plain text is. `auto`: what stands between lines `<|endoftext|>`, where
    a file has them, else the whole file."""

    long: Literal["windows", "error"] = "windows"
    """What becomes of texts longer than the model reads: overlapping windows, or an error."""

    bad: Literal["error", "skip"] = "error"
    """What becomes of lines that are not what they should be (too few columns, no JSON): an error,
    or left out, with a count and a list in the run folder."""

    encoding: str = "utf-8"
    """Of the text files."""

    max_len: int = 256
    """Pairs with more tokens on a side are left out of training."""

    max_ratio: float = 0.0
    """Pairs whose longer side has more than this many times the tokens of the other are left out;
    0 keeps them."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.text and (self.source or self.pairs):
            raise ConfigError("give either files of texts, or files of pairs, not both.")
        if self.media and (self.text or self.source or self.pairs):
            raise ConfigError("give either media or files of texts, not both.")
        if self.valid_media and not self.media:
            raise ConfigError("valid_media has no effect without media.")
        if len(set(self.fields)) != len(self.fields):
            raise ConfigError(f"fields={list(self.fields)} names a field twice.")
        if bool(self.source) != bool(self.target):
            missing = "target" if self.source else "source"
            raise ConfigError(
                f"data.{missing} is missing: source and target files come in pairs. "
                "For one file that holds both sides use --pairs."
            )
        if len(self.source) != len(self.target):
            raise ConfigError(
                f"{len(self.source)} source files but {len(self.target)} target files."
            )
        if bool(self.valid_source) != bool(self.valid_target):
            raise ConfigError("valid_source and valid_target must be given together.")
        if len(self.valid_source) != len(self.valid_target):
            raise ConfigError(
                f"{len(self.valid_source)} validation source files but "
                f"{len(self.valid_target)} target files."
            )
        if self.source and self.pairs:
            raise ConfigError("give either source and target files, or files of pairs, not both.")
        if self.valid_source and self.valid_pairs:
            raise ConfigError(
                "give either valid_source and valid_target, or valid_pairs, not both."
            )
        check_least(self, 1, "max_len", "valid_size")
        if self.max_ratio < 0 or 0 < self.max_ratio < 1:
            raise ConfigError(f"max_ratio={self.max_ratio:g} must be 0 (off), or 1 or more.")


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(Made):
    """How text becomes tokens. Trained on the training pairs unless a file is given."""

    kind: Literal["bpe", "unigram", "wordpiece", "characters", "words", "bytes"] = "bpe"
    """`bpe` and `unigram` are on bytes, `wordpiece` is as in BERT."""

    vocab_size: int | None = None
    """None: chosen from the amount of text."""

    joint: bool = True
    """One vocabulary for both sides."""

    normalisation: Normalisation = "nfc"
    """The Unicode form; `none` leaves text as it is."""

    lowercase: bool = False
    """Lower the case; BLEU and chrF in training then ignore it too."""

    file: str | None = None
    """An existing `tokenizer.json`, BERT's `vocab.txt`, or a folder with GPT-2's two files."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.vocab_size is not None and self.vocab_size < 8:
            raise ConfigError(f"vocab_size={self.vocab_size} is too small; use 8 or more.")
