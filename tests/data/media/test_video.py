"""Frames of video files are the right ones, upright, and bad files are named errors."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data.media import decoding, image, video
from headway.data.media.image import sampled
from headway.data.media.open_item import ItemFormat, read_media
from headway.data.media.video import decode_video_file
from headway.data.named_data import bind_data
from headway.data.prepare import prepare
from headway.data.schema import MediaSpec
from headway.data.sniff import VIDEO, extension_of
from headway.data.source import Example, media_examples
from headway.errors import DataError, UserError
from headway.settings.data import DataSettings
from headway.settings.run import RunSettings
from headway.settings.vision import ImageSettings
from headway.specs.needs import LABEL, WRITTEN
from headway.tasks.modality import modality_of_file
from tests.facts import naming

av = pytest.importorskip("av", reason="needs av, which is not installed")

HEIGHT, WIDTH, N = 32, 48, 20
CODECS = {
    "a.mp4": "mpeg4", "b.mp4": "libx264", "a.m4v": "mpeg4", "a.mov": "mpeg4", "a.webm": "libvpx",
    "b.webm": "libvpx-vp9", "a.mkv": "libx264", "a.avi": "mpeg4",
}  # fmt: skip
"""Encoders of files of each format."""

LOSS = 8.0
"""Largest mean difference between a decoded frame and its original, of 255."""


def scenes(n: int = N) -> np.ndarray:
    """Frames T Y X C, all different: a grey that grows, and a red corner at the top left."""
    frames = np.empty((n, HEIGHT, WIDTH, 3), np.uint8)
    frames[:] = (np.arange(n) * 250 // n)[:, None, None, None]
    frames[:, :16, :16] = (255, 0, 0)
    return frames


def written(path: Path, frames: np.ndarray | None = None, turned: int = 0, **options: str) -> Path:
    frames = scenes() if frames is None else frames
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(CODECS.get(path.name, CODECS[f"a{path.suffix}"]), rate=10)
        stream.height, stream.width = HEIGHT, WIDTH
        stream.pix_fmt = "yuv420p"
        stream.options = options
        if turned:
            stream.set_display_rotation(turned)
        container.start_encoding()
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        if len(frames):
            container.mux(stream.encode())
    return path


def patched(path: Path, after: bytes, skip: int, layout: str, value: int) -> Path:
    """Overwrite a number of a header, `skip` bytes after a name."""
    content = bytearray(path.read_bytes())
    struct.pack_into(layout, content, content.index(after) + len(after) + skip, value)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("frames", [1, 4, N, 30])
def test_frames_are_evenly_spaced_and_equal_the_originals(
    tmp_path: Path, name: str, frames: int
) -> None:
    path = written(tmp_path / name)
    found = decode_video_file(path, frames)
    assert (found.height, found.width) == (HEIGHT, WIDTH)
    expected = scenes()[sampled(N, frames)].transpose(0, 3, 1, 2)
    assert found.values.shape == expected.shape
    difference = np.abs(found.values.astype(float) - expected).mean((1, 2, 3))
    assert difference.max() < LOSS
    small = read_media(str(path), ItemFormat("video", 1, frames, (8, 8)))
    assert small.values.shape == (frames, 1, 8, 8)
    assert (small.height, small.width) == (HEIGHT, WIDTH)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("b.mp4", {"g": "12", "bf": "3"}),  # with frames that are stored in another order
        ("a.mp4", {"g": "5"}),
        ("a.avi", {"g": "12", "bf": "2"}),
        ("a.webm", {"g": "12", "auto-alt-ref": "1", "lag-in-frames": "16"}),  # hidden frames
        ("b.webm", {"g": "200"}),
    ],
)
def test_long_videos_are_decoded_from_key_frames(
    tmp_path: Path, name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    originals = scenes(120)
    path = written(tmp_path / name, originals, **options)
    found = decode_video_file(path, 5).values
    expected = originals[sampled(120, 5)].transpose(0, 3, 1, 2)
    assert np.abs(found.astype(float) - expected).mean((1, 2, 3)).max() < LOSS
    if int(options["g"]) < 24:  # all frames would not be allowed
        monkeypatch.setattr(video, "MAX_VIDEO_PIXELS", 100 * HEIGHT * WIDTH)
        np.testing.assert_array_equal(decode_video_file(path, 5).values, found)


@pytest.mark.parametrize("turned", [90, -90, 180])
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_videos_are_upright(tmp_path: Path, name: str, turned: int) -> None:
    path = written(tmp_path / name, turned=turned)
    found = decode_video_file(path, 2)
    upright = np.rot90(scenes()[sampled(N, 2)], turned // 90, axes=(1, 2)).transpose(0, 3, 1, 2)
    assert found.values.shape == upright.shape
    assert (found.height, found.width) == upright.shape[2:]
    assert np.abs(found.values.astype(float) - upright).mean() < LOSS


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("part", [0.3, 0.7, 0.98])
def test_truncated_videos_are_named(tmp_path: Path, name: str, part: float) -> None:
    path = written(tmp_path / name)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(DataError, match=naming(path, "truncated")):
        decode_video_file(path, 4)


def test_an_avi_file_with_dropped_frames_is_read(tmp_path: Path) -> None:
    """The header counts the dropped frames, which are stored as empty packets."""
    path, times = tmp_path / "dropped.avi", [0, 1, 2, 7, 8, 15]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv420p"
        for time, pixels in zip(times, scenes(), strict=False):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = time
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames > len(times)
    found = decode_video_file(path, len(times))
    expected = scenes()[: len(times)].transpose(0, 3, 1, 2).astype(float)
    assert np.abs(found.values.astype(float) - expected).mean() < LOSS


def test_what_is_not_a_video_is_named(tmp_path: Path) -> None:
    written(tmp_path / "there.mp4")
    contents = {
        "text.mp4": b"hello world, this is no video\n" * 20,
        "text.webm": b"hello world, this is no video\n" * 20,
        "list.mp4": b"ffconcat version 1.0\nfile there.mp4\n",
        "list.avi": b"#EXTM3U\n#EXTINF:1,\nthere.mp4\n#EXT-X-ENDLIST\n",
        "empty.mp4": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in (*contents, "missing.mp4"):
        with pytest.raises(DataError, match=naming(tmp_path / name)):
            decode_video_file(tmp_path / name, 4)
    with av.open(str(tmp_path / "sound.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        samples = np.zeros((1, 8000), np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(DataError, match=naming(tmp_path / "sound.mkv", "stream")):
        decode_video_file(tmp_path / "sound.mkv", 4)


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.avi"])
def test_a_video_without_frames_is_named(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, scenes(0))
    with pytest.raises(DataError, match=naming(path)):
        decode_video_file(path, 4)


def test_videos_over_the_limits_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, area = written(tmp_path / "b.mp4", g="100", sc_threshold="0"), HEIGHT * WIDTH
    with monkeypatch.context() as patch:
        patch.setattr(image, "MAX_PIXELS", area - 1)
        with pytest.raises(DataError, match=naming(path, "48 × 32", "1,535")):
            decode_video_file(path, 4, size=(8, 8))
    with monkeypatch.context() as patch:
        patch.setattr(image, "MAX_PIXELS", 3 * area)
        with pytest.raises(DataError, match=naming(path, 4, "6,144", "4,608")):
            decode_video_file(path, 4)
        assert decode_video_file(path, 4, size=(8, 8)).values.shape == (4, 3, 8, 8)
    with monkeypatch.context() as patch:
        patch.setattr(video, "MAX_FRAMES", N - 1)
        with pytest.raises(DataError, match=naming(path, N - 1)):
            decode_video_file(path, 4)
    with monkeypatch.context() as patch:
        patch.setattr(video, "MAX_VIDEO_PIXELS", 15 * area)
        with pytest.raises(DataError, match=naming(path, "billion")):
            decode_video_file(path, 4)
        assert decode_video_file(path, 1).values.shape == (1, 3, HEIGHT, WIDTH)


def test_headers_that_lie_are_errors_or_without_effect(tmp_path: Path) -> None:
    """Sizes and numbers of frames in an MP4 file, each replaced by a huge one."""
    count = patched(written(tmp_path / "a.mp4"), b"stsz", 8, ">I", 200_000_000)
    with pytest.raises(DataError, match=naming(count)):
        decode_video_file(count, 4)
    expected = decode_video_file(written(tmp_path / "b.mp4"), 4).values
    length = patched(tmp_path / "b.mp4", b"mvhd", 16, ">I", 4_000_000_000)
    np.testing.assert_array_equal(decode_video_file(length, 4).values, expected)
    expected = decode_video_file(written(tmp_path / "a.mov"), 4).values
    size = patched(tmp_path / "a.mov", b"mp4v", 24, ">I", (60_000 << 16) + 60_000)
    np.testing.assert_array_equal(decode_video_file(size, 4).values, expected)


def test_the_contents_decide_how_a_video_is_read(tmp_path: Path) -> None:
    from PIL import Image

    form = ItemFormat("video", 1, 4)
    first, *others = (Image.new("L", (8, 8), 20 * i) for i in range(8))
    first.save(tmp_path / "a.mp4", format="GIF", save_all=True, append_images=others)
    assert read_media(str(tmp_path / "a.mp4"), form).values[:, 0, 0, 0].tolist() == [
        20, 60, 100, 140,
    ]  # fmt: skip
    for name in CODECS:
        path = written(tmp_path / "files" / name)
        content = path.read_bytes()
        assert extension_of(content) in VIDEO
        renamed = tmp_path / f"{name}.gif"
        renamed.write_bytes(content)
        assert read_media(str(renamed), form).values.shape == (4, 1, HEIGHT, WIDTH)


def test_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.mp4")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UserError, match=naming("av", "`pip install 'headway[video]'`")) as caught:
        decode_video_file(path, 4)
    assert not isinstance(caught.value, DataError)  # it stops, and leaves out no file


def folder_of_videos(folder: Path, n: int = 40) -> Path:
    for i in range(n):
        frames = np.roll(scenes(), i, axis=0)
        written(folder / ("down", "up")[i % 2] / f"{i}{('.mp4', '.webm')[i % 4 == 3]}", frames)
    return folder


def test_folders_and_lists_of_videos_are_recognised(tmp_path: Path) -> None:
    folder = folder_of_videos(tmp_path / "videos", 8)
    paths = sorted(folder.rglob("*.*"))
    manifest = tmp_path / "list.jsonl"
    rows = [{"path": str(path), "label": path.parent.name} for path in paths]
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unnamed = tmp_path / "unnamed.tsv"
    lines = (f"{path}\t{path.parent.name}\n" for path in paths)
    unnamed.write_text("clip\tkind\n" + "".join(lines))
    assert bind_data("classify", str(unnamed)).files == "media"
    for source in (folder, manifest):
        assert bind_data("classify", str(source)).files == "media"
        assert modality_of_file(source, DataSettings()) == "video"
        found = list(media_examples([str(source)], DataSettings(), "video", LABEL))
        assert sorted(one.text("label") for one in found) == ["down"] * 4 + ["up"] * 4
        shapes = {one.medium.read(ItemFormat("video", 3, 2)).values.shape for one in found}
        assert shapes == {(2, 3, HEIGHT, WIDTH)}
    assert modality_of_file(paths[0], DataSettings()) == "video"
    captions = tmp_path / "captions.tsv"
    captions.write_text("path\ttext\n" + "".join(f"{path}\tit moves\n" for path in paths))
    with pytest.raises(DataError, match=naming("captions.tsv", "caption.modality=video")):
        list(media_examples([str(captions)], DataSettings(), "image", WRITTEN))


def test_a_kill_while_videos_are_prepared_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of_videos(tmp_path / "videos")
    settings = RunSettings(task="classify", data=DataSettings(media=(str(folder),)))
    shape = ImageSettings(height=8, width=8, patch=4, frames=4, tubelet=2)
    media = MediaSpec.of("video", shape, LABEL)
    monkeypatch.setattr(decoding, "MOST_ITEMS", 2)
    monkeypatch.setattr(decoding, "RECORD_SECONDS", -1)
    expected = prepare(settings, tmp_path / "whole", media=media)
    assert expected.train.n + expected.valid.n == 40
    opened: list[str] = []
    real = decoding.MediaDecoder._outcome

    def counted(self: Any, one: Example, name: str) -> decoding.DecodeResult:
        opened.append(one.place)
        if len(opened) == 30:
            raise KeyboardInterrupt
        return real(self, one, name)

    monkeypatch.setattr(decoding.MediaDecoder, "_outcome", counted)
    with pytest.raises(KeyboardInterrupt):
        prepare(settings, tmp_path / "run", media=media)
    before = len(opened)
    made = prepare(settings, tmp_path / "run", media=media)
    assert 0 < len(opened) - before < 40
    assert made.fingerprint == expected.fingerprint
    assert made.train.images.equal == (4, 3, 8, 8)
