"""Settings of the data files, of filtering, and of tokenization."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.errors import ConfigError, Option
from headway.specs.values import TracksExplicit, check_least, check_values

GIVEN = "given"
"""Folder inside a run folder with the data that was passed in memory."""

INPUTS = ("text", "source", "target", "pairs", "media")
FILES = (*INPUTS, *(f"valid_{name}" for name in INPUTS))
"""Settings of `data` that name files. Each task reads some of them, as declared in `Spec.needs`."""


def file_name(path: str) -> str:
    """Return the file name of an absolute path; relative paths are returned unchanged.

    Absolute folders have no meaning on other machines. Data passed in memory keeps the `given`
    folder of its run.
    """
    whole = Path(path)
    if not whole.is_absolute():
        return path
    return f"{GIVEN}/{whole.name}" if whole.parent.name == GIVEN else whole.name


Normalisation = Literal["nfc", "nfkc", "nfd", "nfkd", "none"]


@dataclass(frozen=True, kw_only=True)
class DataSettings(TracksExplicit):
    """Data files and their columns. Files are aligned (`source` and `target`), contain pairs
    (`pairs`) or texts (`text`), or are images, videos and audio (`media`). `-` reads standard
    input."""

    source: tuple[str, ...] = ()
    """Source files, line-aligned with `target`. Both settings need the same number of files. `-`
    reads standard input."""

    target: tuple[str, ...] = ()
    """Target files, line-aligned with `source`."""

    pairs: tuple[str, ...] = ()
    """TSV or JSONL files that contain both source and target."""

    valid_source: tuple[str, ...] = ()
    """Source files of the validation set, line-aligned with `valid_target`."""

    valid_target: tuple[str, ...] = ()
    """Target files of the validation set, line-aligned with `valid_source`."""

    valid_pairs: tuple[str, ...] = ()
    """TSV or JSONL files of the validation set. Without validation files, a part of the training
    data is held out."""

    valid_size: int = 1000
    """Number of examples held out for validation, at most a tenth of the training data."""

    source_field: str = "source"
    """The source column: the name of a JSONL field, or the number of a TSV column, counted from
    1."""

    target_field: str = "target"
    """The target column: the name of a JSONL field, or the number of a TSV column, counted from
    1."""

    text: tuple[str, ...] = ()
    """Text files: plain text, JSONL, TSV or CSV with labels, or CoNLL columns."""

    valid_text: tuple[str, ...] = ()
    """Text files of the validation set. Without them, a part of the training data is held out."""

    media: tuple[str, ...] = ()
    """Images, videos or audio. Either a folder with one subfolder per class, or TSV, CSV or JSONL
    files with paths and labels or texts, or IDX files."""

    valid_media: tuple[str, ...] = ()
    """Media of the validation set. Without them, a part of the training data is held out."""

    path_field: str = "path"
    """The column with the paths of media files: a field of JSONL or CSV, or the number of a TSV
    column, counted from 1."""

    text_field: str = "text"
    """The text column: a field of JSONL or CSV, or the number of a TSV column, counted from 1."""

    other_field: str = ""
    """The column of the second text when text pairs are classified, or of the second file when
    media come in pairs. Empty: there is none."""

    label_field: str = "label"
    """The label column: a field of JSONL or CSV, or the number of a TSV column, counted from 1."""

    label_separator: str = ","
    """Separator between several labels in one table cell. JSONL lists need no separator."""

    words_field: str = "words"
    """The words of tagged sentences: a JSONL field with a list, or the number of a CoNLL column,
    counted from 1."""

    tags_field: str = "tags"
    """The tags of tagged sentences: a JSONL field with a list, or the number of a CoNLL column.
    Default in CoNLL files: the last column."""

    fields: tuple[str, ...] = ()
    """JSONL fields of structured documents, in their usual order. The last field is the main
    text."""

    unit: Literal["auto", "file", "paragraph", "line"] = "auto"
    """What counts as one document in plain text. `auto`: documents are separated by
    `<|endoftext|>` lines if a file has them; otherwise the whole file is one document."""

    on_long: Literal["split", "error"] = "split"
    """Handling of texts longer than the model's maximum length: `split` cuts them into
    overlapping windows, `error` stops."""

    on_bad_row: Literal["error", "skip"] = "error"
    """Handling of invalid rows (too few columns, broken JSON). `error` stops. `skip` leaves them
    out, counts them and lists them in the run folder."""

    encoding: str = "utf-8"
    """Character encoding of the text files."""

    max_len: int = 256
    """Maximum length in tokens of each side of a training pair. Longer pairs are left out."""

    max_ratio: float = 0.0
    """Maximum ratio of the lengths of a training pair, in tokens. Pairs with a larger ratio are
    left out. 0: no limit."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.text and (self.source or self.pairs):
            raise ConfigError(
                "data.text cannot be combined with data.source or data.pairs. Give only one of "
                "them."
            )
        if self.media and (self.text or self.source or self.pairs):
            raise ConfigError(
                "data.media cannot be combined with text files (data.text, data.source, "
                "data.pairs). Give only one of them."
            )
        if len(set(self.fields)) != len(self.fields):
            raise ConfigError(
                f"data.fields={list(self.fields)} lists a field twice. List each field only once."
            )
        if bool(self.source) != bool(self.target):
            missing = "target" if self.source else "source"
            raise ConfigError(
                f"data.{missing} is missing: source and target files must be given together. If "
                f"one file contains both sides, use {Option('pairs')} instead."
            )
        if len(self.source) != len(self.target):
            raise ConfigError(
                f"data.source has {len(self.source)} files, but data.target has "
                f"{len(self.target)}. Give one target file for each source file, in the same order."
            )
        if bool(self.valid_source) != bool(self.valid_target):
            raise ConfigError(
                f"data.valid_{'target' if self.valid_source else 'source'} is missing: "
                "data.valid_source and data.valid_target must be given together."
            )
        if len(self.valid_source) != len(self.valid_target):
            raise ConfigError(
                f"data.valid_source has {len(self.valid_source)} files, but data.valid_target has "
                f"{len(self.valid_target)}. Give one target file for each source file, in the same "
                "order."
            )
        if self.source and self.pairs:
            raise ConfigError(
                "data.source and data.target cannot be combined with data.pairs. "
                "Use separate files or pairs, not both."
            )
        if self.valid_source and self.valid_pairs:
            raise ConfigError(
                "data.valid_source and data.valid_target cannot be combined with data.valid_pairs. "
                "Use separate files or pairs, not both."
            )
        check_least(self, 1, "max_len", "valid_size")
        if self.max_ratio < 0 or 0 < self.max_ratio < 1:
            raise ConfigError(
                f"data.max_ratio={self.max_ratio:g} must be 0 (no limit) or at least 1."
            )


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(TracksExplicit):
    """Tokenization of text. The tokenizer is trained on the training data unless `file` is set."""

    kind: Literal["bpe", "unigram", "wordpiece", "characters", "words", "bytes"] = "bpe"
    """Tokenizer algorithm. `bpe` and `unigram` work on bytes; `wordpiece` is BERT's."""

    vocab_size: int | None = None
    """Vocabulary size in tokens. None: chosen from the amount of text."""

    joint: bool = True
    """Use one vocabulary for source and target."""

    normalisation: Normalisation = "nfc"
    """Unicode normalization form. `none` leaves text unchanged."""

    lowercase: bool = False
    """Convert text to lower case. BLEU and chrF during training also ignore case."""

    file: str | None = None
    """Path of an existing tokenizer: a `tokenizer.json`, BERT's `vocab.txt`, or a folder with
    GPT-2's two files."""

    def __post_init__(self) -> None:
        check_values(self)
        if self.vocab_size is not None and self.vocab_size < 8:
            raise ConfigError(
                f"tokenizer.vocab_size={self.vocab_size} is too small. Use 8 or more."
            )
