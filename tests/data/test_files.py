"""Lines of files: as many as there are line feeds, whatever else is in them."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import subprocess
import sys
import threading
from hashlib import sha256
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.data import files
from headway.data.files import DataFile, DataFiles, count_lines, is_stream, open_lines, spool
from headway.data.sniff import FOREIGN, GZIP, NOT_TEXT, XZ, ZSTD
from headway.errors import ConfigError, DataError
from tests.facts import naming


def put(folder: Path, data: bytes, name: str = "a.txt") -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


unhurried = settings(deadline=None)  # a busy machine is no mistake

CHARACTERS = st.sampled_from("\n\r\u2028\x85\x0b\x0c\0ä😀\ufeff") | st.characters(
    exclude_categories=["Cs"]
)


@unhurried
@given(st.binary(max_size=200))
def test_any_bytes_have_as_many_lines_as_line_feeds(folder: Path, data: bytes) -> None:
    assume(not data.startswith((GZIP, XZ[:5], ZSTD, *FOREIGN, *NOT_TEXT)))
    lines = list(open_lines(put(folder, data), "latin-1"))
    assert len(lines) == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


@unhurried
@given(st.lists(st.text(CHARACTERS), max_size=8))
def test_lines_come_back_as_they_were_written(folder: Path, lines: list[str]) -> None:
    lines = [line.replace("\n", " ") for line in lines]
    path = put(folder, "".join(f"{line}\n" for line in lines).encode())
    wanted = [line.removesuffix("\r") for line in lines]
    if wanted:
        wanted[0] = wanted[0].removeprefix("\ufeff")
    assert list(open_lines(path)) == wanted


@unhurried
@given(st.text(CHARACTERS, max_size=60), st.integers(1, 7))
def test_the_size_of_a_read_does_not_matter(folder: Path, text: str, size: int) -> None:
    path = put(folder, text.encode())
    whole = list(open_lines(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK", size)
        assert list(open_lines(path)) == whole


@pytest.mark.parametrize(
    ("data", "n"),
    [
        (b"", 0),
        (b"a", 1),
        (b"a\n", 1),
        (b"a\nb", 2),
        (b"\n\n", 2),
        (gzip.compress(b"a\n", mtime=0), None),  # not the time of now, which names the test
    ],
)
def test_lines_are_counted_before_they_are_read(tmp_path: Path, data: bytes, n: int | None) -> None:
    assert count_lines(put(tmp_path, data)) == n


@pytest.mark.parametrize("name", ["a.gz", "a.xz", "a.txt"])
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_compressed_files_are_known_by_their_first_bytes(tmp_path: Path, name: str, pack) -> None:  # type: ignore[no-untyped-def]
    path = put(tmp_path, pack("eins\nzwei ä".encode()), name)
    assert list(open_lines(path)) == ["eins", "zwei ä"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-be", "cp1252", "shift_jis", "utf-8-sig"])
def test_other_encodings_are_read_when_named(tmp_path: Path, encoding: str) -> None:
    text = "ein\nzwei\r\n" + ("日本\n" if encoding.startswith(("utf", "sh")) else "€\n")
    path = put(tmp_path, text.encode(encoding))
    assert list(open_lines(path, encoding)) == text.replace("\r", "").split("\n")[:-1]


def test_a_mark_of_byte_order_goes_only_from_the_start(tmp_path: Path) -> None:
    assert list(open_lines(put(tmp_path, "\ufeffa\n\ufeffb".encode()))) == ["a", "\ufeffb"]


@pytest.mark.parametrize("size", [1, 5, 1 << 20])
def test_bytes_that_are_not_utf_8_are_named_with_file_line_and_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(files, "CHUNK", size)
    path = put(tmp_path, "ä\nb\nGr".encode() + b"\xfc\xdfe\n")
    with pytest.raises(DataError, match=naming("a.txt", 3, "0xfc", 7, "encoding=")):
        list(open_lines(path))
    with pytest.raises(DataError, match=naming(2, "0xe2", 3)):  # a character cut short
        list(open_lines(put(tmp_path, b"ab\n\xe2\x82")))


def test_half_a_surrogate_pair_does_not_get_through_any_encoding(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("a.txt", 1, "encoding=")):
        list(open_lines(put(tmp_path, rb"a\ud800b"), "unicode_escape"))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    put(tmp_path, b"", "train.de")
    with pytest.raises(DataError, match=naming("tarin.de", "train.de")):
        list(open_lines(str(tmp_path / "tarin.de")))
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "none")) + r"(?!/)"):
        list(open_lines(str(tmp_path / "none" / "a")))
    with pytest.raises(DataError, match=naming(tmp_path)) as caught:
        list(open_lines(str(tmp_path)))
    assert isinstance(caught.value.__cause__, IsADirectoryError)
    with pytest.raises(DataError, match=naming(repr("a\0b"))):
        list(open_lines("a\0b"))
    with pytest.raises(ConfigError, match=naming("'utf-9'", "latin-1")):
        list(open_lines(str(tmp_path / "train.de"), "utf-9"))
    with pytest.raises(ConfigError, match=naming("'hex'", "latin-1")):
        list(open_lines(str(tmp_path / "train.de"), "hex"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = put(tmp_path, b"a")
    Path(path).chmod(0)
    with pytest.raises(DataError, match=naming(path)) as caught:
        list(open_lines(path))
    assert isinstance(caught.value.__cause__, PermissionError)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_compressed_file_that_is_cut_short_or_damaged_is_named(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    data = pack(os.urandom(20_000).hex().encode())
    for broken in (data[:-20], data[: len(data) // 2], data[:1000] + bytes(50) + data[1050:]):
        with pytest.raises(DataError, match=naming("a.txt")):
            list(open_lines(put(tmp_path, broken)))


def test_a_plain_file_with_a_compressed_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("a.gz", ".gz")):
        list(open_lines(put(tmp_path, b"plain", "a.gz")))
    assert list(open_lines(put(tmp_path, b"", "b.gz"))) == []


def test_a_line_without_end_is_refused_and_never_held(tmp_path: Path) -> None:
    """12 MB of one line, packed: what is held stays near the limit, whatever the line's size."""
    path = put(tmp_path, gzip.compress(b"ok\n" + b"x" * 12_000_000))
    lines = open_lines(path)
    assert next(lines) == "ok"
    with pytest.raises(DataError, match=naming("a.txt", 2, "10,000,000")):
        next(lines)


@pytest.mark.slow
def test_a_line_of_a_gigabyte_takes_little_memory(tmp_path: Path) -> None:
    path = put(tmp_path, b"")
    with Path(path).open("wb") as file:
        file.truncate(1 << 30)
    code = f"""
from resource import RUSAGE_SELF, getrusage
from headway.data.files import open_lines
before = getrusage(RUSAGE_SELF).ru_maxrss
try:
    list(open_lines({path!r}))
except Exception as error:
    print(type(error).__name__, (getrusage(RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, megabytes = done.stdout.split()
    assert name == "DataError"
    assert int(megabytes) < 100


def test_standard_input_is_read_as_it_comes_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with open(reader) as stdin, open(writer, "wb", buffering=0) as out:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", stdin)
        lines = open_lines("-")
        out.write("früh\n".encode())
        assert next(lines) == "früh"  # the writer is still there
        out.write(b"late")
        out.close()
        assert list(lines) == ["late"]
        assert not stdin.closed


def test_standard_input_may_be_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.TextIOWrapper(io.BytesIO(gzip.compress(b"a\nb\n")))
    monkeypatch.setattr(sys, "stdin", packed)
    assert list(open_lines("-")) == ["a", "b"]


def test_streams_are_recognised_and_copied(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert is_stream("-")
    assert is_stream(str(pipe))
    assert not is_stream(put(tmp_path, b"x"))
    assert not is_stream(str(tmp_path / "missing"))
    writer = threading.Thread(target=pipe.write_bytes, args=(b"a\nb\n",))
    writer.start()
    spool(str(pipe), tmp_path / "copy")
    writer.join()
    assert list(open_lines(str(tmp_path / "copy"))) == ["a", "b"]


@pytest.mark.parametrize("packed", [False, True])
def test_a_complete_pass_computes_the_checksum_of_the_file(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    text = "".join(f"line {i}\n" for i in range(50_000))
    # Zeros after the last member of a gzip file are padding that the decompressor does not need.
    path.write_bytes(gzip.compress(text.encode()) + bytes(100_000) if packed else text.encode())
    expected = {"size": path.stat().st_size, "sha256": sha256(path.read_bytes()).hexdigest()}
    file = DataFile(str(path))
    assert [next(file.head()), *islice(file.lines(), 2)] == ["line 0", "line 0", "line 1"]
    file.close()
    lines = file.lines()
    assert sum(1 for _ in lines) == 50_000
    path.write_text("other")  # the checksum is that of what was read
    assert file.identity == expected
    assert DataFile(str(path)).identity["size"] == 5


def test_the_beginning_of_a_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i}\n" for i in range(50_000)))
    file = DataFile(str(path))
    assert file.first_bytes.startswith(b"line 0")
    first = list(islice(file.head(), 3))
    file.close()
    path.unlink()
    assert list(islice(file.head(), 3)) == first == ["line 0", "line 1", "line 2"]
    with pytest.raises(DataError, match=r"a\.txt"):
        list(file.head())


def test_each_folder_is_listed_once_for_a_command(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.txt").touch()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    files = DataFiles()
    found = {path.name for path in files.walk(tmp_path)}
    assert found == {"a", "1.txt", "up"}
    (tmp_path / "a" / "2.txt").touch()
    assert {path.name for path in files.walk(tmp_path)} == found
    assert {path.name for path in DataFiles().walk(tmp_path)} == found | {"2.txt"}
