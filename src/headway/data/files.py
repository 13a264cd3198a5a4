"""Stream the lines of text files in bounded memory. Files may be plain, compressed (gzip, xz, zstd)
or standard input.

Only a line feed ends a line, so that aligned files stay aligned whatever characters they contain. A
carriage return before a line feed is removed.
"""

from __future__ import annotations

import codecs
import difflib
import glob
import gzip
import hashlib
import lzma
import os
import re
import shutil
import stat
import sys
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from headway.data.sniff import (
    COMPRESSED,
    FOREIGN,
    GZIP,
    NEVER_TEXT,
    NOT_TEXT,
    PLAIN,
    UTF16,
    XZ,
    ZSTD,
)
from headway.errors import ConfigError, DataError, Option, needs
from headway.settings.listed import ensure_list

MAX_LINE = 10_000_000
"""Maximum number of characters of a line. A longer line is not a sentence, and the file is often
not text."""

CHUNK = 1 << 20
"""Number of bytes read at a time. Larger reads are not faster and take more memory."""

MOST_HEADS = 4
"""Maximum number of files whose first chunks are kept in memory. A command alternates between few
files, such as both sides of training and validation data."""

KEPT = 1 << 23
"""Maximum total number of characters of whole files that a command keeps in memory, so that it need
not read them again. Training a tokenizer needs up to 10 million characters anyway, so this hardly
increases peak memory."""

T = TypeVar("T")

STDIN = "-"


class _Checksum(RawIOBase):
    """Raw stream that computes the size and SHA-256 of everything read through it."""

    def __init__(self, stream: BufferedReader) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = self._stream.readinto(buffer)
        self._digest.update(memoryview(buffer)[:n])
        self._size += n
        return n

    @property
    def identity(self) -> dict[str, Any]:
        return {"size": self._size, "sha256": self._digest.hexdigest()}


class _Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...


def open_lines(path: str, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the lines of a file, or of standard input (`-`), without line ends.

    A byte order mark at the start is dropped. Errors are raised as a `DataError` that names the
    file and, if known, the line and byte.
    """
    return lines_of(open_text(path, encoding), display_name(path))


def lines_of(chunks: Iterable[str], name: str) -> Iterator[str]:
    """Yield lines without line ends from chunks of text. `name`: file name for errors."""
    lines = _Lines(name)
    for text in chunks:
        yield from lines.feed(text)
    yield from lines.end()


def open_text(path: str, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the text of a file in chunks, including line ends. Lines may be of any length."""
    with _raw(path) as raw:
        yield from _decoded(raw, path, encoding)


def _decoded(raw: BufferedReader, path: str, encoding: str) -> Iterator[str]:
    decoder = _decoder(encoding)
    name = display_name(path)
    n_bytes, n_lines, started = 0, 0, False
    with _unpacked(raw, path, encoding) as stream:
        at_end = False
        while not at_end:
            chunk = _read(stream, name)
            n_bytes += len(chunk)
            at_end = not chunk
            try:
                text = decoder.decode(chunk, at_end)
                if encoding != "utf-8":
                    text.encode("utf-8")  # some codecs let half a surrogate pair through
            except UnicodeError as error:
                raise _undecodable(error, (name, n_lines, n_bytes), encoding) from error
            if text:
                n_lines += text.count("\n")
                yield text if started else text.removeprefix("\ufeff")
                started = True


class _Room:
    """Number of characters of whole files that may still be kept in memory. All files of a command
    share one instance."""

    def __init__(self, size: int) -> None:
        self.size = size


class DataFile:
    """Text file whose first chunks are kept in memory, so that detecting the format and reading
    need only one opening of the file. After the first complete pass, the whole text is kept if it
    fits in `room`."""

    def __init__(self, path: str, encoding: str = "utf-8", room: _Room | None = None) -> None:
        self.path = path
        self.encoding = encoding
        self._room = room or _Room(0)
        self._whole: list[str] | None = None
        self._first: bytes | None = None
        self._chunks: list[str] = []
        self._is_whole = False
        self._raw: BufferedReader | None = None
        self._rest: Iterator[str] | None = None
        self._identity: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return display_name(self.path)

    @property
    def first_bytes(self) -> bytes:
        """First bytes of the file, before any decompression. Empty for standard input and pipes,
        from which they could not be read a second time."""
        if self._first is None:
            self._first = b"" if is_stream(self.path) else _first_bytes(self._open(), self.path)
        return self._first

    def head(self) -> Iterator[str]:
        """Yield lines from the beginning of the file. Lines that were already read come from
        memory."""
        try:
            yield from lines_of(self.head_text(), self.name)
        except DataError:
            self.close()
            raise

    def head_text(self) -> Iterator[str]:
        """Yield text from the beginning of the file in chunks. Chunks that were already read come
        from memory."""
        at = 0
        while at < len(self._chunks) or self._read_on():
            yield self._chunks[at]
            at += 1

    def lines(self) -> Iterator[str]:
        """Yield all lines of the file."""
        return lines_of(self.text(), self.name)

    def text(self) -> Iterator[str]:
        """Yield the whole text of the file in chunks.

        The first complete pass also computes the checksum, and keeps the text in memory if there is
        room. Otherwise, later passes open the file again.
        """
        if self._whole is not None:
            yield from self._whole
            return
        if self._identity is not None or is_stream(self.path):
            yield from open_text(self.path, self.encoding)
            return
        chunks: list[str] = []
        size = 0
        with _file(self.path) as file:
            checked = _Checksum(file)
            raw: BufferedReader[Any] = BufferedReader(checked)
            for chunk in _decoded(raw, self.path, self.encoding):
                size += len(chunk)
                if size <= self._room.size:
                    chunks.append(chunk)
                else:
                    chunks.clear()
                yield chunk
            while raw.read(CHUNK):  # what a decompressor leaves behind
                pass
            self._identity = checked.identity
        if self._whole is None and size <= self._room.size:
            self._room.size -= size
            self._whole = chunks

    @property
    def identity(self) -> dict[str, Any]:
        """Size and SHA-256 of the file. The file is read to compute them only if no complete pass
        has done so."""
        if self._identity is None:
            with _raw(self.path) as file:
                checked = _Checksum(file)
                buffer = bytearray(CHUNK)
                while checked.readinto(buffer):
                    pass
                self._identity = checked.identity
        return self._identity

    def close(self) -> None:
        """Close the file, but keep its buffered start in memory."""
        if self._raw is not None and self.path != STDIN:
            self._raw.close()
        self._raw = self._rest = None

    def forget(self) -> None:
        """Close the file and free the memory of its buffered start."""
        self.close()
        self._chunks, self._is_whole = [], False

    def _open(self) -> BufferedReader:
        if self._raw is None:
            borrowed = self.path == STDIN
            self._raw = _standard_input() if borrowed else _file(self.path)
        return self._raw

    def _read_on(self) -> bool:
        """Read one more chunk. Return False at the end of the file."""
        if self._is_whole:
            return False
        try:
            if self._rest is None:
                text = _decoded(self._open(), self.path, self.encoding)
                self._rest = islice(text, len(self._chunks), None)
            chunk = next(self._rest, None)
        except BaseException:
            self.close()
            raise
        if chunk is None:
            self._is_whole = True
            self.close()
            return False
        self._chunks.append(chunk)
        return True


class DataFiles:
    """Cache of the files and folders that a command reads. Each file is opened once to detect its
    format, and each folder is listed once."""

    def __init__(self) -> None:
        self._room = _Room(KEPT)
        self._files: dict[tuple[str, str], DataFile] = {}
        self._recent: OrderedDict[tuple[str, str], DataFile] = OrderedDict()
        self._known: dict[Hashable, Any] = {}

    def file(self, path: str, encoding: str = "utf-8") -> DataFile:
        """Return the file at a path. The first chunks of the most recent files stay in memory, and
        so do some whole files."""
        key = (path, encoding)
        if key not in self._files:
            self._files[key] = DataFile(path, encoding, self._room)
        self._recent[key] = self._files[key]
        self._recent.move_to_end(key)
        if len(self._recent) > MOST_HEADS:
            _, oldest = self._recent.popitem(last=False)
            oldest.forget()
        return self._files[key]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make` for this key. `make` is called only the first time; later
        calls return its cached result."""
        if key not in self._known:
            self._known[key] = make()
        found: T = self._known[key]
        return found

    def entries(self, folder: str | Path) -> list[Path]:
        """Return the files and folders in a folder."""
        return self.once(("folder", str(folder)), lambda: list(Path(folder).iterdir()))

    def walk(self, folder: str | Path) -> Iterator[Path]:
        """Yield all files and folders below a folder, at any depth. Links to folders are not
        followed, and unreadable folders are skipped."""
        try:
            entries = self.entries(folder)
        except OSError:
            return
        for path in entries:
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from self.walk(path)


class _Lines:
    """Splits chunks of text into lines."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done = 0
        self.open_parts: list[str] = []
        self.open_size = 0

    def feed(self, text: str) -> list[str]:
        """Return the lines that end in this chunk."""
        first, *others = text.split("\n")
        self._extend(first)
        if not others:
            return []
        # A line within one chunk is never longer than the limit.
        lines = ["".join(self.open_parts), *others[:-1]]
        self.open_parts, self.open_size = [], 0
        self._extend(others[-1])
        self.done += len(lines)
        return [line.removesuffix("\r") for line in lines]

    def end(self) -> list[str]:
        """Return the last line if it does not end in a line feed, otherwise an empty list."""
        return ["".join(self.open_parts).removesuffix("\r")] if self.open_size else []

    def _extend(self, part: str) -> None:
        self.open_size += len(part)
        if part:
            self.open_parts.append(part)
        if self.open_size > MAX_LINE:
            raise DataError(
                f"{self.name}, line {self.done + 1:,} is longer than {MAX_LINE:,} characters. "
                "Is this a text file with one example per line?"
            )


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders the numbers in names by value, so that `2` comes before
    `10`."""
    parts = re.split(r"(\d+)", name)
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in parts]


def parts(
    paths: str | Sequence[str], *, folders: bool = True, files: DataFiles | None = None
) -> list[str]:
    """Return the files that match glob patterns such as `parts/*.tsv.gz`. With `folders`, folders
    are replaced by the files in them."""
    found: list[str] = []
    files = files or DataFiles()
    for path in ensure_list(paths):
        # Unlike the methods of `Path`, these functions return False for a name that is too long.
        there, is_folder = os.path.exists(path), os.path.isdir(path)  # noqa: PTH110, PTH112
        if path != STDIN and not there and glob.has_magic(path):
            some = sorted(glob.glob(path, recursive=True), key=natural)  # noqa: PTH207 (any path)
            some = [one for one in some if not folders or Path(one).is_file()]
            if not some:
                raise DataError(f"no file matches the pattern {path}.")
            found += some
        elif folders and path != STDIN and is_folder:
            some = sorted((one.name for one in files.entries(path) if _is_part(one)), key=natural)
            if is_by_class(path, files):
                found.append(path)
                continue
            if not some:
                raise DataError(
                    f"the folder {path} contains no files. Name a folder with text files."
                )
            found += [str(Path(path) / name) for name in some]
        else:
            found.append(path)
    return found


def class_folders(path: str | Path, files: DataFiles) -> list[Path]:
    """Return the subfolders that contain files directly, sorted by name."""
    inside = [one for one in files.entries(path)
              if one.is_dir() and not one.name.startswith((".", "_"))]  # fmt: skip
    found = [one for one in inside if any(map(_is_part, files.entries(one)))]
    return sorted(found, key=lambda one: natural(one.name))


def class_files(path: str | Path, files: DataFiles) -> list[tuple[Path, str]]:
    """Return the text files in the class folders of a folder, each with the name of its class."""
    return [
        (file, one.name) for one in class_folders(path, files)
        for file in sorted(files.walk(one), key=lambda file: natural(str(file))) if _is_part(file)
    ]  # fmt: skip


def is_by_class(path: str | Path, files: DataFiles) -> bool:
    """Whether a folder has one subfolder of text files per class. If there are also files next to
    the subfolders, at least two subfolders must contain .txt files."""
    if not Path(path).is_dir():
        return False
    classes = class_folders(path, files)
    if not any(map(_is_part, files.entries(path))):
        return bool(classes)
    texts = [one for one in classes if any(file.suffix == PLAIN for file in files.entries(one))]
    return len(texts) > 1


def _is_part(path: Path) -> bool:
    """Whether a path is a data file rather than a hidden file or a marker such as `_SUCCESS`."""
    return path.is_file() and not path.name.startswith((".", "_"))


def display_name(path: str) -> str:
    return "standard input" if path == STDIN else path


def is_stream(path: str) -> bool:
    """Whether a path can be read only once: standard input or a pipe."""
    there = Path(path)
    return path == STDIN or (there.exists() and not there.is_file() and not there.is_dir())


def count_lines(path: str) -> int | None:
    """Return the number of lines for a progress bar; None if it is unknown in advance, as for a
    pipe or a compressed file."""
    with _raw(path) as stream:
        try:
            number = sys.stdin.fileno() if path == STDIN else stream.fileno()
            if not stat.S_ISREG(os.fstat(number).st_mode):
                return None
            at = os.lseek(number, 0, os.SEEK_CUR)
            n, last = 0, b"\n"
            while chunk := os.pread(number, CHUNK, at):  # keeps the position of standard input
                if not n and chunk.startswith((GZIP, XZ, ZSTD)):
                    return None
                n, last, at = n + chunk.count(b"\n"), chunk[-1:], at + len(chunk)
        except (OSError, ValueError, AttributeError):  # no real file; a system without pread
            return None
    return n + (last != b"\n")


def spool(path: str, copy: Path) -> None:
    """Copy standard input or a pipe, which can be read only once, to a file."""
    with _raw(path) as stream, copy.open("wb") as out:
        shutil.copyfileobj(stream, out, CHUNK)


@contextmanager
def _raw(path: str) -> Iterator[BufferedReader]:
    if path == STDIN:
        yield _standard_input()
        return
    with _file(path) as stream:
        yield stream


def _standard_input() -> BufferedReader:
    return BufferedReader(_Borrowed(sys.stdin.buffer))


class _Borrowed(RawIOBase):
    """Standard input in a wrapper. Closing the wrapper does not close standard input."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._stream.readinto1(buffer)  # type: ignore[attr-defined]


def _reject_other_formats(head: bytes, path: str, encoding: str) -> None:
    """Raise a `DataError` for a file in a binary format, detected by first bytes that never occur
    in text."""
    name = display_name(path)
    binary = any(byte < 9 for byte in head)
    for first, (kind, call) in FOREIGN.items():
        if head.startswith(first) and binary:
            csv = f"{Path(name).stem}.csv"
            raise DataError(
                f"{name} is a {kind} file, but a text file is needed. Convert it to CSV: "
                f'python -c "import pandas; {call.format(path=name, csv=csv)}"'
            )
    for first, kind in NOT_TEXT.items():
        if head.startswith(first) and (binary or first in NEVER_TEXT):
            raise DataError(f"{name} is not a text file but {kind.format(path=name)}")
    if head.startswith(UTF16) and codecs.lookup(encoding).name == "utf-8":
        raise DataError(
            f"{name} is encoded in UTF-16. Add the option: {Option('encoding', 'utf-16')}"
        )


def _file(path: str) -> BufferedReader:
    try:
        return Path(path).open("rb")
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}.{_near(path)}") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder, but a text file is needed.") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:  # a NUL in the name
        raise DataError(f"{path!r} is not a valid file name: {error}.") from error


def _near(path: str) -> str:
    folder = Path(path).parent
    if not folder.is_dir():
        return f" There is no folder {folder} either."
    close = difflib.get_close_matches(Path(path).name, [p.name for p in folder.iterdir()], n=1)
    return f" Did you mean {folder / close[0]}?" if close else ""


def _first_bytes(raw: BufferedReader, path: str) -> bytes:
    try:
        return raw.peek(16)
    except OSError as error:
        raise DataError(f"cannot read {display_name(path)}: {error.strerror}.") from error


@contextmanager
def _unpacked(raw: BufferedReader, path: str, encoding: str) -> Iterator[_Readable]:
    """Return a stream of the file, decompressed if its first bytes are those of a compressed
    format. No UTF-8 text starts with these bytes."""
    head = _first_bytes(raw, path)
    suffix = Path(path).suffix
    if head.startswith(GZIP):
        with gzip.GzipFile(fileobj=raw) as unzipped:
            yield unzipped
    elif head.startswith(XZ):
        with lzma.LZMAFile(raw) as unpacked:
            yield unpacked
    elif head.startswith(ZSTD):
        with needs("zstandard", "zstd").ZstdDecompressor().stream_reader(raw) as unpacked:
            yield unpacked
    elif head and suffix in COMPRESSED:
        raise DataError(
            f"{path} is not compressed, though its name ends in {suffix}. Remove {suffix} from "
            "the name."
        )
    else:
        _reject_other_formats(head, path, encoding)
        yield raw


def _read(stream: _Readable, name: str) -> bytes:
    """Read the bytes that are available, without waiting for a full chunk, because a user may be
    typing the input."""
    try:
        return stream.read1(CHUNK)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(
            f"{name} cannot be decompressed: {str(error).rstrip('.')}. "
            "It may be truncated: download or compress it again."
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or error}.") from error


def _decoder(encoding: str) -> codecs.IncrementalDecoder:
    try:
        "".encode(encoding)  # also rejects codecs that are not text encodings, such as "hex"
        return codecs.getincrementaldecoder(encoding)("strict")
    except (LookupError, UnicodeError, ValueError) as error:
        raise ConfigError(
            f"unknown encoding {encoding!r}. Examples: utf-8, latin-1, cp1252, utf-16, gb18030."
        ) from error


def _undecodable(error: UnicodeError, place: tuple[str, int, int], encoding: str) -> DataError:
    name, n_lines, n_bytes = place
    line, what = n_lines + 1, "a byte"
    if isinstance(error, UnicodeDecodeError):
        good = error.object[: error.start].decode(encoding, errors="replace")
        line += good.count("\n")
        offset = n_bytes - len(error.object) + error.start
        what = f"byte 0x{error.object[error.start]:02x} at offset {offset:,}"
    way_out = (
        f"Give the encoding of the file with {Option('encoding')} (latin-1, cp1252, utf-16, …), "
        "or convert it."
    )
    return DataError(f"{name}, line {line:,}: {what} is not valid {encoding.upper()}. {way_out}")
