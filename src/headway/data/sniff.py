"""Detect the format of a file or value by file extension, first bytes and header rules.

`sniff` returns the format of a file. The other functions answer narrower questions about names,
first lines and values in memory. This module has no heavy imports, so that columns can be bound
without torch.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from headway.errors import DataError

if TYPE_CHECKING:
    from headway.data.columns.column import Column

MediaType = Literal["image", "video", "audio"]
ALL_MEDIA: tuple[MediaType, ...] = ("image", "video", "audio")

IMAGES = frozenset(
    {".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
)
MOVING = frozenset({".gif", ".webp", ".png", ".tif", ".tiff"})
"""File extensions of image formats that can contain several frames."""

DEMUXERS = {
    ".mp4": "mov", ".m4v": "mov", ".mov": "mov", ".webm": "matroska", ".mkv": "matroska",
    ".avi": "avi",
}  # fmt: skip
"""Names of FFmpeg's readers of video files, by file extension."""

VIDEO = frozenset(DEMUXERS)
"""File extensions of video files. They are read by the package `av`."""

AUDIO = frozenset({".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au"})
ARRAY = ".npy"
"""File extension of NumPy arrays. Only the shape of an array shows whether it contains pixels or
samples."""

EXTENSIONS: dict[MediaType, frozenset[str]] = {
    "image": IMAGES | {ARRAY},
    "video": MOVING | VIDEO | {ARRAY},
    "audio": AUDIO,
}
"""File extensions of each modality. `open_item.register` adds the extensions of other packages."""

TAB, COMMA = ".tsv", ".csv"
DELIMITED = frozenset({TAB, COMMA})
JSON_LINES = frozenset({".jsonl", ".ndjson", ".json"})
PARQUET = ".parquet"
TABLES = DELIMITED | JSON_LINES | {PARQUET}
CONLL = frozenset({".conll", ".bio", ".bioes", ".iob", ".iob2", ".iobes"})
"""File extensions of CoNLL files with columns separated by spaces or tabs."""

CONLL_U = ".conllu"
"""File extension of CoNLL-U files. Words are in column 2, parts of speech in column 4. Comments
before sentences are skipped, and so are lines of multiword tokens (`1-2`) and empty nodes
(`1.1`)."""

PLAIN = ".txt"
COMPRESSED = frozenset({".gz", ".xz", ".zst"})

GZIP, XZ, ZSTD = b"\x1f\x8b\x08", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
PARQUET_START = b"PAR1"
OGG, AU, RIFF, WAVE, FORM = b"OggS", b".snd", b"RIFF", b"WAVE", b"FORM"
EBML = b"\x1a\x45\xdf\xa3"
"""First bytes of WebM and Matroska files."""

BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"wide"})
"""Types of the first box of MP4 and QuickTime files, which follow its size in 4 bytes."""

NOT_VIDEO = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"M4A ", b"M4B ")
"""Brands of the first box of images and audio in MP4 files."""

MEDIA_STARTS = {
    b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"BM": ".bmp",
    b"II*\0": ".tif", b"MM\0*": ".tif", b"fLaC": ".flac", OGG: ".ogg", b"ID3": ".mp3",
    FORM: ".aiff", AU: ".au", b"\x93NUMPY": ARRAY,
}  # fmt: skip
"""File extensions of media by the first bytes of a file. Readers use the same bytes to detect
formats, except for .npy."""

FOREIGN = {
    PARQUET_START: ("Parquet", "pandas.read_parquet({path!r}).to_csv({csv!r}, index=False)"),
    b"ARROW1": ("Arrow", "pandas.read_feather({path!r}).to_csv({csv!r}, index=False)"),
}
"""Table formats that are not text, by their first bytes. Each has a name, and a Python call that
converts a file to CSV."""

NOT_TEXT = {
    b"PK\x03\x04": "a ZIP archive or an Excel file. Unpack it, or save the sheet as CSV.",
    b"BZh91AY&SY": "compressed with bzip2, not gzip, xz or zstd. Unpack it: bunzip2 {path}",
    b"%PDF-1": "a PDF. Extract its text: pdftotext {path}",
    b"SQLite format 3": "an SQLite database. Save the table as CSV.",
}
NEVER_TEXT = (b"BZh91AY&SY", b"%PDF-1")
"""First bytes of formats that are never text, even if all following bytes could be."""

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

FASTTEXT = "__label__"
"""Prefix of each label before a text in fastText files."""

DOCUMENT = "-DOCSTART-"
"""Beginning of the line that separates documents in a CoNLL file."""

IsHeader = Callable[[Sequence[str], Sequence[Sequence[str]]], bool]
"""Type of a function that takes the cells of the first line and of the lines after it, and returns
whether the first line is a header."""

NUMBERED = 5
"""Minimum number of rows with numbers or media files below a text, for the text to be taken for a
header."""


class Format(Enum):
    """Formats of data files, each with its own reader."""

    FOLDER = "folder"
    IMAGE = "image or video"
    AUDIO = "audio"
    ARRAY = "array of pixels or samples"
    IDX = "IDX file of images"
    PARQUET = "Parquet"
    JSON_LINES = "lines of JSON"
    DELIMITED = "delimited text"
    CONLL = "one word per line"
    TEXT = "plain text"

    @property
    def is_table_file(self) -> bool:
        return self in (Format.PARQUET, Format.JSON_LINES, Format.DELIMITED)


def sniff(path: Path) -> Format:
    """Return the format of a file by its name; for a folder, `Format.FOLDER`.

    The name does not show whether plain text has columns. For this, see `is_json_lines`,
    `detect_separator` and `label_format`.
    """
    if path.is_dir():
        return Format.FOLDER
    if is_table_file(path):
        if has_extension(path, PARQUET):
            return Format.PARQUET
        return Format.JSON_LINES if has_extension(path, *JSON_LINES) else Format.DELIMITED
    if is_idx(path):
        return Format.IDX
    if is_audio(path):
        return Format.AUDIO
    if is_array(path):
        return Format.ARRAY
    if is_visual(path):
        return Format.IMAGE
    return Format.CONLL if has_extension(path, *CONLL, CONLL_U) else Format.TEXT


def extension(path: str | PathLike[str]) -> str:
    """Return the last extension of a file name, in lower case."""
    return Path(path).suffix.lower()


def extensions(path: str | PathLike[str]) -> set[str]:
    """Return all extensions of a file name in lower case, such as `.csv` and `.gz` for
    `reviews.csv.gz`."""
    return {one.lower() for one in Path(path).suffixes}


def has_extension(path: str | PathLike[str], *wanted: str) -> bool:
    """Whether one of the last two extensions of a path is among the wanted ones. The last extension
    may be that of a compression format."""
    return bool(set(wanted) & {one.lower() for one in Path(path).suffixes[-2:]})


def is_table_file(path: str | PathLike[str]) -> bool:
    """Whether a file name is that of a table, such as a list of media files."""
    return has_extension(path, *TABLES)


def is_delimited(path: str | PathLike[str]) -> bool:
    return not extensions(path).isdisjoint(DELIMITED)


def is_audio(path: str | PathLike[str]) -> bool:
    return extension(path) in EXTENSIONS["audio"]


def is_visual(path: str | PathLike[str]) -> bool:
    """Whether a file name is that of an image or video. Arrays do not count, because they may also
    contain audio."""
    last = extension(path)
    return last != ARRAY and last in EXTENSIONS["image"] | EXTENSIONS["video"]


def is_video(path: str | PathLike[str]) -> bool:
    """Whether an existing file is a video file by its first bytes or, if they are unknown, by its
    name. Animated images do not count."""
    try:
        with Path(path).open("rb") as file:
            found = extension_of(file.read(64))
    except OSError:  # reported when the file is read
        found = ""
    return (found or extension(path)) in VIDEO


def is_media_file(path: str | PathLike[str]) -> bool:
    """Whether a file name is that of an image, a video, audio, or an array of pixels or samples."""
    return is_audio(path) or is_visual(path) or is_array(path)


def is_array(path: str | PathLike[str]) -> bool:
    return extension(path) == ARRAY


def has_extension_of(path: Path, what: MediaType) -> bool:
    """Whether a file has an extension of a modality and is not hidden."""
    return extension(path) in EXTENSIONS[what] and not path.name.startswith(".")


@lru_cache(maxsize=64)
def is_idx(path: str | Path) -> bool:
    """Whether a file name is that of an IDX file, such as `train-images-idx3-ubyte.gz` of MNIST."""
    name = Path(path).name.lower()
    return name.endswith("ubyte") or ("idx" in name and Path(name).suffix in ("", ".gz", ".idx"))


def check_is_text(path: str | PathLike[str]) -> None:
    """Raise a `DataError` if a file to be read as text has the name of a media file."""
    if is_media_file(path):
        kind = "an audio file" if is_audio(path) else "an image or video"
        kind = "an array" if is_array(path) else kind
        raise DataError(f"{path} has the file extension of {kind}, but a text file is needed.")


def may_hold(path: str | PathLike[str], what: str, walk: Callable[[Path], Iterable[Path]]) -> bool:
    """Whether a path is, by its name, a file of a modality, or a folder that contains such a file
    at any depth. `walk`: function that yields all paths below a folder."""

    is_one = {"audio": is_audio}.get(what, _may_be_pixels)
    if not Path(path).is_dir():
        return is_one(os.fspath(path))
    return any(is_one(one.name) and not one.is_dir() for one in walk(Path(path)))


def _may_be_pixels(name: str) -> bool:
    return is_visual(name) or is_array(name) or is_idx(name)


def media_types(value: object) -> tuple[MediaType, ...]:
    """Return the modalities that a path or a value in memory may have."""
    if isinstance(value, str | os.PathLike):
        if is_audio(value):
            return ("audio",)
        if extension(value) in VIDEO:
            return ("video",)
        return ("image", "video") if is_visual(value) else ALL_MEDIA
    if isinstance(value, np.ndarray):
        if value.ndim == 3:
            return ("image",) if value.shape[-1] in (1, 3, 4) else ("video",)
        kinds: dict[int, MediaType] = {1: "audio", 2: "image", 4: "video"}
        return (kinds[value.ndim],) if value.ndim in kinds else ALL_MEDIA
    with_rate = isinstance(value, tuple) or (isinstance(value, Mapping) and "array" in value)
    return ("audio",) if with_rate else ALL_MEDIA


def extension_of(content: bytes) -> str:
    """Return the file extension that matches the first bytes of an image, video or audio file;
    empty if they are unknown."""
    if content[:4] == RIFF:
        return {b"WEBP": ".webp", b"AVI ": ".avi"}.get(content[8:12], ".wav")
    if content[:4] == EBML:
        return ".webm" if b"webm" in content[:64] else ".mkv"
    if content[4:8] in BOXES:
        return "" if content[8:12] in NOT_VIDEO else ".mp4"
    return next((end for start, end in MEDIA_STARTS.items() if content.startswith(start)), "")


def is_json_lines(path: str | PathLike[str], first: str, *fields: str) -> bool:
    """Whether a file is JSON Lines, judged by its name or its first line. If `fields` are given,
    the first line must have at least one of them."""
    named = extensions(path)
    if named & JSON_LINES:
        return True
    if named & DELIMITED or not first.lstrip().startswith("{") or "\t" in first:
        return False
    if not fields:
        return True
    try:
        values = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, dict) and any(name.split(".")[0] in values for name in fields)


def detect_separator(
    path: str | PathLike[str], head: Sequence[str], names: Sequence[str], *, ragged: bool = False
) -> str:
    """Return the column separator; empty if the file does not look like a table. `ragged`: whether
    lines may differ in their number of cells, as in sentence pairs; tabs are then preferred to
    commas."""
    named = extensions(path)
    first = head[0] if head else ""
    if COMMA in named:
        tabs = {line.count("\t") for line in head if line.strip()}
        if len(tabs) == 1 and tabs != {0} and (ragged or "," not in first):
            return "\t"
        return ";" if "," not in first and ";" in first else ","
    if TAB in named or "\t" in first:
        return "\t"
    return "," if _is_csv(first, head[1] if len(head) > 1 else "", names) else ""


def _is_csv(first: str, second: str, names: Sequence[str]) -> bool:
    """Whether a file without the extension .csv is CSV. Either its first line must name the
    columns, or its second line must have as many cells as the first. Sentences with commas are
    therefore not taken for a table."""
    if "," not in first:
        return False
    header, cells = (next(csv.reader([line]), []) for line in (first, second))
    named = {cell.strip() for cell in header} >= set(names)
    return named or ("\t" not in second and len(cells) == len(header))


def is_over_values(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first line must be a header, because in some column all lines except the first
    contain numbers or media files."""
    whole = [row for row in rows if len(row) == len(cells)]
    if len(whole) < NUMBERED or len(cells) < 2:
        return False
    return any(
        cell and not is_such(cell) and all(is_such(row[i]) for row in whole)
        for i, cell in enumerate(cells)
        for is_such in (is_number, is_media_file)
    )


def is_like_rows(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first line looks like the lines after it, because it has a label or a number in
    the same column. It is then not a header."""
    whole = [row for row in rows if len(row) == len(cells)]
    return any(
        any(row[i].strip() == cell for row in whole)
        or (is_number(cell) and all(is_number(row[i]) for row in whole))
        for i, cell in enumerate(cells)
        if cell and whole
    )


def is_header_for(columns: Sequence[Column], *, commas: bool) -> IsHeader:
    """Return a function that decides whether the first line of a file is a header for these
    columns. `commas`: whether the separator is a comma or semicolon, as in CSV files, which usually
    have a header."""

    def is_header(cells: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
        said = [one.given_name for one in columns if one.is_strict]
        counted = all(map(str.isdecimal, said))
        if said and (not counted or all(name in cells for name in said)):
            return True
        lower = {cell.lower() for cell in cells}
        if commas and not said:
            named = any(lower & {name.lower() for name in one.accepted_names} for one in columns)
            return named or not is_like_rows(cells, rows)
        exact = any(one.name in cells or (one.setting == "path_field" and "path" in cells)
                    for one in columns if not one.is_field)  # fmt: skip
        fields = any(one.name in cells for one in columns if one.is_field)
        needed = [one for one in columns if not one.optional]
        usual = all(lower & {name.lower() for name in one.accepted_names} for one in needed)
        over = is_over_values(cells, rows) or _over_files(cells, rows, columns)
        return exact or fields or bool(needed and usual) or over

    return is_header


def _over_files(
    cells: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[Column]
) -> bool:
    """Whether the first line must be a header, because in the media column, chosen by number, all
    lines except the first name media files."""
    counted = [int(one.given_name) - 1 for one in columns
               if one.is_strict and one.is_media and one.given_name.isdecimal()]  # fmt: skip
    return any(
        bool(below) and not is_media_file(cells[i]) and all(map(is_media_file, below))
        for i in counted
        if 0 <= i < len(cells)
        for below in [[row[i] for row in rows if len(row) == len(cells)]]
    )


def cells_in(line: str, between: str) -> list[str]:
    """Return the cells of a line, without surrounding white space and quotes."""
    return [cell.strip().strip('"') for cell in line.split(between)]


def has_names(cells: Sequence[str], columns: Sequence[Column]) -> bool:
    """Whether the cells of a line include an accepted name of every column."""
    return all(
        one.given_name in cells if one.is_strict else set(cells) & set(one.accepted_names)
        for one in columns
    )


def has_tabs(path: str, head: Sequence[str]) -> bool:
    """Whether every line contains a tab. For a file named .tsv, only the first line is checked."""
    lines = head[:1] if has_extension(path, TAB) else head
    return bool(lines) and all("\t" in line for line in lines)


def is_number(text: object) -> bool:
    try:
        return math.isfinite(float(str(text)))
    except ValueError:
        return False


@dataclass(frozen=True)
class LabelFormat:
    """Format of a file that has a label before each text instead of columns."""

    form: str
    """Description of the format for messages."""

    columns: tuple[str, ...]
    """Names of the columns of the resulting table."""

    row: Callable[[str], dict[str, object]]
    """Function that returns the columns of a line."""


def label_format(head: Sequence[str]) -> LabelFormat | None:
    """Return the format of the labels before texts: `__label__x` (fastText), `LABEL:detail` (TREC),
    or one of a few numbers. None if not all first lines begin with a label."""
    if head and head[0].startswith(FASTTEXT):
        return LabelFormat(f"{FASTTEXT} before each text", ("label", "text"), _fasttext_row)
    if head and all(map(_TREC.match, head)):
        return LabelFormat("LABEL:detail before each text", ("label", "fine", "text"), _trec_row)
    numbers = [found[0] for line in head if (found := _NUMBERED.match(line))]
    few = len(set(numbers)) <= len(numbers) // 2
    if numbers and few and len(numbers) == len(head):
        return LabelFormat("a number before each text", ("label", "text"), _numbered_row)
    return None


def has_labels(head: Sequence[str], labels: Sequence[str]) -> bool:
    """Whether lines begin with labels that the run knows, rather than with words or numbers of
    their texts."""
    how = label_format(head)
    if how is None:
        return False
    found = {str(how.row(line)[name]) for line in head for name in how.columns if name != "text"}
    return head[0].startswith(FASTTEXT) or bool(found & set(labels))


def has_known_tags(path: str, labels: Sequence[str], head: Sequence[str]) -> bool:
    """Whether a file has one word per line, judged by its name, or because every line ends in a tag
    that the run knows. The tag scheme may be another one."""
    if has_extension(path, *CONLL):
        return True
    known = {label.partition("-")[2] or label for label in labels} | set(labels) | {"O"}
    rows = [line.split() for line in head]
    if len({len(row) for row in rows}) > 1 or len(rows[0]) < 2:
        return False
    last = [row[-1] for row in rows]
    # A punctuation mark may be a tag, but it also ends sentences, so at least one tag must have
    # letters.
    words = any(any(map(str.isalpha, tag)) for tag in last)
    return words and all(tag in known or tag.partition("-")[2] in known for tag in last)


_TREC = re.compile(r"[A-Z][A-Z_-]*:\w+ +\S")
_NUMBERED = re.compile(r"-?\d{1,4}(?= +\S)")


def _fasttext_row(line: str) -> dict[str, object]:
    words = line.split(" ")
    n = next((i for i, word in enumerate(words) if not word.startswith(FASTTEXT)), len(words))
    labels = [word.removeprefix(FASTTEXT) for word in words[:n]]
    return {"label": labels if n > 1 else "".join(labels), "text": " ".join(words[n:])}


def _trec_row(line: str) -> dict[str, object]:
    fine, _, text = line.partition(" ")
    return {"label": fine.partition(":")[0], "fine": fine, "text": text.strip()}


def _numbered_row(line: str) -> dict[str, object]:
    label, _, text = line.partition(" ")
    return {"label": label, "text": text.strip()}
