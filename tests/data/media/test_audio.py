"""Recordings as they are and as they should not be: each bad file is named, and nothing is held."""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from headway.data.media.audio import (
    audio_info,
    is_silent,
    read_audio,
    read_samples,
    stream_windows,
)
from headway.errors import DataError, UserError
from tests.facts import naming

RATE = 16_000


def tone(seconds: float = 1.0, rate: int = RATE, hertz: float = 300.0) -> NDArray[np.float32]:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype("f4")


def write(path: Path, samples: NDArray[np.float32], rate: int = RATE, **more: str) -> Path:
    soundfile.write(path, samples, rate, **more)
    return path


def cut(path: Path, share: float) -> Path:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def claim_flac(path: Path, n_samples: int) -> Path:
    """Let the header of a FLAC file say that there are so many samples."""
    data = bytearray(path.read_bytes())
    before = int.from_bytes(data[18:26], "big") >> 36 << 36
    data[18:26] = (before | n_samples).to_bytes(8, "big")
    path.write_bytes(data)
    return path


def claim_wav(path: Path, n_bytes: int) -> Path:
    data = bytearray(path.read_bytes())
    place = data.find(b"data") + 4
    data[place : place + 4] = struct.pack("<I", n_bytes)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("ending", "least"), [("wav", 80), ("flac", 80), ("ogg", 15), ("mp3", 15), ("aiff", 80)]
)
def test_formats_are_read_and_brought_to_the_rate(
    tmp_path: Path, ending: str, least: float
) -> None:
    for rate in (RATE, 8_000):
        path = write(tmp_path / f"a.{ending}", tone(rate=rate), rate)
        found = read_audio(path, RATE)
        assert found.dtype == np.float32
        assert abs(len(found) - RATE) <= 1
        error = np.square(found[2000:14000] - tone()[2000:14000]).mean()
        assert 10 * np.log10(np.square(tone()).mean() / error) > min(least, 60)
        assert audio_info(path).rate == rate


def test_channels_become_one_and_what_a_file_holds_counts_not_its_name(tmp_path: Path) -> None:
    both = np.stack([tone(), np.zeros_like(tone())], 1)
    path = write(tmp_path / "stereo.flac", both).rename(tmp_path / "stereo.wav")
    np.testing.assert_allclose(read_audio(path, RATE), tone() / 2, atol=1e-4)


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3"])
def test_a_part_equals_the_same_span_of_the_whole(tmp_path: Path, ending: str) -> None:
    rising = tone(8) * np.linspace(0, 1, 8 * RATE, dtype=np.float32)
    path = write(tmp_path / f"a.{ending}", rising)
    whole = read_audio(path, RATE)
    part = read_audio(path, RATE, 5.25, 5.5)
    np.testing.assert_allclose(part, whole[84_000:88_000], atol=1e-5)
    np.testing.assert_array_equal(read_audio(path, RATE, 7.5, 8.005), whole[120_000:])
    for start, end in ((8.5, 9), (3, 3), (-1, 2), (7, 9), (2, float("nan"))):
        with pytest.raises(DataError, match=naming(path, 8, f"{start:g}", f"{end:g}")):
            read_audio(path, RATE, start, end)


def test_arrays_hold_whole_numbers_or_floats(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, (tone(rate=8000) * 32768).astype(np.int16))
    np.testing.assert_allclose(
        read_audio(path, RATE, npy_rate=8000)[2000:14000], tone()[2000:14000], atol=1e-3
    )
    np.save(path, np.stack([tone(), 2 * tone()]))
    np.testing.assert_array_equal(read_audio(path, RATE, index=1), 2 * tone())
    np.testing.assert_array_equal(read_audio(path, RATE, 0.5, 0.75, index=0), tone()[8000:12000])
    with pytest.raises(DataError, match=naming("a.npy", "(2, 16000)", "index")):
        read_audio(path, RATE)
    with pytest.raises(DataError, match=naming("a.npy", "rate")):
        read_samples(path)
    np.save(path, np.array(["a", "b"]))
    with pytest.raises(DataError, match=naming("a.npy", "<U1")):
        read_audio(path, RATE)
    np.save(path, tone())
    with pytest.raises(DataError, match=r"a\.npy"):
        read_audio(cut(path, 0.5), RATE)


def test_a_file_that_is_not_audio_is_named(tmp_path: Path) -> None:
    for name, data in {
        "text.wav": b"hello " * 100,
        "image.mp3": b"\x89PNG\r\n\x1a\n" + bytes(100),
        "plain.raw": b"abc",
        "zeros.flac": bytes(5000),
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=naming(name, "flac", "aiff")):
            read_audio(tmp_path / name, RATE)
    (tmp_path / "nothing.wav").write_bytes(b"")
    reasons = set()
    for name in ("nothing.wav", "no.wav", "."):
        with pytest.raises(DataError, match=naming(tmp_path / name)) as caught:
            read_audio(tmp_path / name, RATE)
        reasons.add(str(caught.value).replace(str(tmp_path / name), ""))
    assert len(reasons) == 3


@pytest.mark.parametrize("ending", ["wav", "flac", "mp3", "ogg", "aiff", "au"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
def test_a_file_that_is_cut_short_is_named(tmp_path: Path, ending: str, share: float) -> None:
    path = cut(write(tmp_path / f"a.{ending}", tone(4)), share)
    for read in (lambda: read_audio(path, RATE), lambda: list(stream_windows(path, RATE, 1))):
        with pytest.raises(DataError, match=naming(path)):
            read()


def test_headers_that_lie_take_no_memory(tmp_path: Path) -> None:
    ten_hours = 36_000 * RATE
    wav = claim_wav(write(tmp_path / "a.wav", tone()), 2 * ten_hours)
    flac = claim_flac(write(tmp_path / "a.flac", tone()), ten_hours)
    near = claim_flac(write(tmp_path / "b.flac", tone()), ten_hours // 20)
    expected = {
        wav: "1,152,000,000",
        flac: "10.0 h 60.0 min",
        near: "30.0 min 0 s",
    }
    tracemalloc.start()
    for path, facts in expected.items():
        with pytest.raises(DataError, match=naming(path, facts)):
            read_audio(path, RATE)
    with pytest.raises(DataError, match=naming(flac, "10.0 h", "0 s")):
        list(stream_windows(flac, RATE, 1.0))
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_a_recording_over_the_limit_is_an_error_but_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.flac", tone(30))
    monkeypatch.setattr("headway.data.media.audio.MOST_S", 10.0)
    with pytest.raises(DataError, match=naming(path, "30 s", "10 s", "start", "end")):
        read_audio(path, RATE)
    assert len(read_audio(path, RATE, 5, 15)) == 10 * RATE
    with pytest.raises(DataError, match=naming(path, "10 s", "start", "end")):
        read_audio(claim_flac(path, 0), RATE)  # no length in the header: found out on the way
    assert len(list(stream_windows(path, RATE, 5))) == 6


def test_a_header_without_a_length_is_read(tmp_path: Path) -> None:
    for path in (
        claim_flac(write(tmp_path / "a.flac", tone(3)), 0),
        claim_wav(write(tmp_path / "a.wav", tone(3)), 0xFFFFFFFF),
    ):
        np.testing.assert_allclose(read_audio(path, RATE), tone(3), atol=1e-4)
    assert audio_info(tmp_path / "a.flac").seconds is None


def test_nothing_silence_and_nonsense(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=naming("a.wav", "0 s")):
        read_audio(write(tmp_path / "a.wav", tone(0)), RATE)
    silent = read_audio(write(tmp_path / "a.wav", 0 * tone()), RATE)
    assert is_silent(silent)
    assert not is_silent(tone())
    broken = tone()
    broken[[5, 90]] = np.nan, np.inf
    path = write(tmp_path / "a.wav", broken, subtype="FLOAT")
    with pytest.raises(DataError, match=naming(path, 2, "NaN")):
        read_audio(path, RATE)
    data = bytearray(write(tmp_path / "b.wav", tone()).read_bytes())
    data[24:28] = struct.pack("<I", 500)
    (tmp_path / "b.wav").write_bytes(data)
    with pytest.raises(DataError, match=naming("b.wav", 500, "1,000", "768,000")):
        read_audio(tmp_path / "b.wav", RATE)


@pytest.mark.parametrize("channels", [1, 2])
def test_samples_that_no_microphone_gives_are_named(tmp_path: Path, channels: int) -> None:
    """Their squares, or the sum of two, would be infinite on the way to frames."""
    loud_SC = np.repeat(tone()[:, None], channels, 1)
    loud_SC[100] = 3e38
    path = write(tmp_path / "a.wav", loud_SC, subtype="FLOAT")
    np.save(tmp_path / "a.npy", loud_SC)
    np.save(tmp_path / "wide.npy", loud_SC.astype(np.float64) * 1e200)
    for name, read in (
        ("a.wav", lambda: read_audio(path, RATE)),
        ("a.wav", lambda: list(stream_windows(path, RATE, 1))),
        ("a.npy", lambda: read_audio(tmp_path / "a.npy", RATE)),
    ):
        with pytest.raises(DataError, match=naming(name, "3e+38")):
            read()
    with pytest.raises(DataError, match=naming("wide.npy", "NaN")):
        read_audio(tmp_path / "wide.npy", RATE)
    # Whole numbers that were written as floats are loud, and still audio.
    whole_S = tone() * np.float32(32_768)
    found = read_audio(write(tmp_path / "b.wav", whole_S, subtype="FLOAT"), RATE)
    np.testing.assert_allclose(found, whole_S, rtol=1e-6)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_an_error_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.wav")
    with pytest.raises(DataError, match=naming(tmp_path / "a.wav")):
        read_audio(tmp_path / "a.wav", RATE)


@pytest.mark.parametrize("rate", [RATE, 8_000])
def test_windows_of_a_stream_are_parts_of_the_whole(tmp_path: Path, rate: int) -> None:
    path = write(tmp_path / "a.flac", tone(5.3, hertz=97.3), RATE)
    whole = read_audio(path, rate)
    windows = list(stream_windows(path, rate, 2.0, 0.5))
    assert [start for start, _ in windows] == [0.0, 1.5, 3.0, 4.5]
    for start, samples in windows:
        expected = whole[round(start * rate) :][: 2 * rate]
        np.testing.assert_allclose(samples, expected, atol=1e-5)
    short = list(stream_windows(path, rate, 10.0))
    assert len(short) == 1
    exact = list(stream_windows(path, rate, 2.65, 0.1))
    assert [round(start, 2) for start, _ in exact] == [0, 2.55, 5.1]
    assert len(list(stream_windows(path, rate, 2.65))) == 2  # nothing is left for a third
    with pytest.raises(DataError, match=naming("1 s")):
        list(stream_windows(path, rate, 1.0, 1.0))


def test_a_file_without_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.wav", tone())

    def deny(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(DataError, match=naming(path)) as caught:
        read_audio(path, RATE)
    assert isinstance(caught.value.__cause__, PermissionError)


def test_a_missing_soundfile_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.wav", tone())
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UserError, match=naming("pip", "soundfile")):
        read_audio(path, RATE)
