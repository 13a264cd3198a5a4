"""Read video files (MP4, WebM and others) through the package `av`, which contains FFmpeg.

Packets are counted first, without decoding. Then only the parts around the requested frames are
decoded, from the key frames before them. Sizes and numbers of frames in headers never decide how
much memory is used. Every problem with a file raises a `DataError` that names the file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from headway.data.media.image import (
    MAX_PIXELS,
    MAX_VIDEO_PIXELS,
    DecodedMedia,
    Size,
    brought,
    check_held,
    check_size,
    file_problem,
    one_if_large,
    sampled,
)
from headway.data.media.pixels import ByteArray, to_frames
from headway.data.sniff import BOXES, DEMUXERS, EBML, RIFF, extension, extension_of
from headway.errors import DataError, UserError, needs

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

MAX_FRAMES = 1_000_000
"""Maximum number of frames of a video, to limit the memory for their times. It is about nine hours
at 30 frames per second."""

MAX_BOXES = 100_000
"""Maximum number of boxes of an MP4 file that are checked. Files have one or two per fragment of
some seconds."""

SEGMENT = b"\x18\x53\x80\x67"
"""Identifier of the element of a Matroska file that contains everything after the header."""


class FrameTimes(NamedTuple):
    """Distinct times of the frames of a video, sorted, in the unit of its stream."""

    all: list[int]
    keys: list[int]
    """Times of the key frames, from which decoding can start."""


def decode_video_file(
    path: str | Path, frames: int, channels: int = 3, size: Size | None = None
) -> DecodedMedia:
    """Return `frames` evenly spaced frames of a video file as T C Y X, upright by the rotation in
    its metadata."""
    with _opened(Path(path)) as (container, stream):
        width, height = stream.codec_context.width, stream.codec_context.height
        check_size(width, height, path)
        times = _times(container, stream, path)
        wanted = [times.all[i] for i in sampled(len(times.all), frames)]
        check_held(len(wanted), height * width, size, path)
        kept: dict[int, ByteArray] = {}
        with one_if_large(height * width):
            for time, frame in _decoded(container, stream, times, sorted(set(wanted)), path):
                check_held(len(wanted), frame.height * frame.width, size, path)
                pixels_YXC = _upright(frame)
                height, width = pixels_YXC.shape[:2]
                kept[time] = brought(to_frames(pixels_YXC[None], channels, str(path)), size)
                if kept[time].shape != kept[wanted[0]].shape:
                    raise DataError(
                        f"{path} has frames of different sizes, such as {width:,} × {height:,} "
                        "pixels. Convert it to a video with one size."
                    )
        return DecodedMedia(np.concatenate([kept[time] for time in wanted]), height, width)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open the first video stream of a file for a `with` block. Every error of FFmpeg on opening or
    in the block becomes a `DataError`."""
    av: Any = needs("av", "video")
    try:
        if (trouble := file_problem(path)) is not None:
            raise DataError(f"{path} {trouble}")
        with path.open("rb") as file:
            start = file.read(64)
            _check_whole(path, file, start)
        # An absolute path cannot be taken for a URL. A fixed demuxer excludes playlists, which
        # could open other files and addresses.
        demuxer = DEMUXERS.get(extension_of(start) or extension(path), "mov")
        limits = {"max_pixels": str(MAX_PIXELS)}
        with av.open(
            str(path.absolute()), format=demuxer, options=limits, metadata_errors="replace"
        ) as container:
            cover = av.stream.Disposition.attached_pic
            moving = (one for one in container.streams.video if not one.disposition & cover)
            stream = next(moving, None)
            if stream is None:
                raise DataError(f"{path} has no video stream, only audio or other data.")
            # Files are decoded in parallel already, and each thread of a decoder holds frames.
            stream.codec_context.thread_count = 1
            stream.codec_context.options = limits
            yield container, stream
    except UserError:
        raise
    except MemoryError as error:
        raise DataError(f"{path} does not fit into memory. Make the video smaller.") from error
    except Exception as error:
        raise DataError(
            f"{path} cannot be read as a video: {getattr(error, 'strerror', None) or error}. It "
            "may be damaged, truncated, or in another format: download it again, convert it to "
            "MP4, or remove it."
        ) from error


def _times(container: InputContainer, stream: VideoStream, path: str | Path) -> FrameTimes:
    """Return the times of all frames, from the packets of the stream."""
    found: set[int] = set()
    keys: set[int] = set()
    n = 0
    for packet in container.demux(stream):
        if not packet.size:  # the end
            continue
        n += 1
        if n > MAX_FRAMES:
            raise DataError(
                f"{path} has more than the limit of {MAX_FRAMES:,} frames. Split it into parts."
            )
        if packet.is_discard:  # before the start of an edited video
            continue
        time = _time(packet)
        found.add(time)
        if packet.is_keyframe:
            keys.add(time)
    if not found:
        raise DataError(f"{path} contains no frames.")
    return FrameTimes(sorted(found), sorted(keys))


def _time(one: Any) -> int:
    """Return the time of a packet or frame. Some AVI files have only times of decoding."""
    found = one.dts if one.pts is None else one.pts
    if found is None:
        raise ValueError("its frames have no times")
    return int(found)


def _decoded(
    container: InputContainer, stream: VideoStream, times: FrameTimes, wanted: Sequence[int],
    path: str | Path,
) -> Iterator[tuple[int, VideoFrame]]:  # fmt: skip
    """Yield each wanted time with its frame. If no frame is shown at this time, yield the next one
    or, at the end, the last one."""
    left, pixels = list(wanted), 0
    frame: VideoFrame | None = None
    shown: Iterator[VideoFrame] = iter(())
    while left:
        key = times.keys[max(0, bisect_right(times.keys, left[0]) - 1)] if times.keys else 0
        if frame is None or key > _time(frame):
            container.seek(key, stream=stream, backward=True)
            shown = container.decode(stream)
        for frame in shown:
            check_size(frame.width, frame.height, path)
            pixels += frame.width * frame.height
            if pixels > MAX_VIDEO_PIXELS:
                raise DataError(
                    f"{path} has more than {MAX_VIDEO_PIXELS / 1e9:g} billion pixels that must be "
                    "decoded, which is the limit. Make the video smaller or shorter, or store it "
                    "with more key frames."
                )
            if _time(frame) >= left[0]:
                break
        else:
            break
        while left and left[0] <= _time(frame):
            yield left.pop(0), frame
    if frame is None:
        raise DataError(f"{path} contains no frames that can be decoded.")
    for time in left:
        yield time, frame


def _upright(frame: VideoFrame) -> ByteArray:
    """Return the pixels of a frame as Y X C, rotated by the quarter turns in its metadata."""
    pixels_YXC = frame.to_ndarray(format="rgb24")
    return np.rot90(pixels_YXC, round(frame.rotation / 90) % 4)


def _check_whole(path: Path, file: BinaryIO, start: bytes) -> None:
    """Raise a `DataError` if a file ends before the end that its structure declares. FFmpeg would
    ignore missing data."""
    size = path.stat().st_size
    if start[:4] == RIFF:
        _check_end(path, 8 + int.from_bytes(start[4:8], "little"), size)
    elif start[:4] == EBML:
        place, header = _ebml_size(start[4:12])
        file.seek(4 + place + (header or 0))
        name = file.read(12)
        place, length = _ebml_size(name[4:])
        if name[:4] == SEGMENT and length is not None:
            _check_end(path, file.tell() - len(name) + 4 + place + length, size)
    else:
        _check_boxes(path, file, size)


def _ebml_size(content: bytes) -> tuple[int, int | None]:
    """Return the length of an EBML number in bytes and the number. It is None if all bits are set,
    as in live recordings of unknown size."""
    n = 9 - content[0].bit_length() if content else 9
    value = int.from_bytes(content[:n], "big") & ((1 << 7 * n) - 1)
    return n, None if n > len(content) or value == (1 << 7 * n) - 1 else value


def _check_boxes(path: Path, file: BinaryIO, size: int) -> None:
    place = 0
    for _ in range(MAX_BOXES):
        file.seek(place)
        head = file.read(16)
        length, name = int.from_bytes(head[:4], "big"), head[4:8]
        if length == 1:
            length = int.from_bytes(head[8:], "big")
        if name in BOXES:
            _check_end(path, place + length, size)
        if length < 8:  # a box up to the end of the file, or no box
            break
        place += length


def _check_end(path: Path, end: int, size: int) -> None:
    if end > size:
        raise DataError(
            f"{path} is truncated: it declares {end:,} bytes, but contains only {size:,}. Download "
            "it again, or remove it."
        )
