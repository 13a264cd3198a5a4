"""Pixels come out as they should be seen, and bad files are named errors."""

from __future__ import annotations

import random
import re
import resource
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headway.data.media import image as media_images
from headway.data.media.image import decode_video, read_image, sampled
from headway.data.media.pixels import resized, to_pixels
from headway.errors import DataError
from tests.facts import missing, naming


def scene(height: int = 24, width: int = 32) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 7, y * 9, (x + y) * 4], -1).astype(np.uint8)


def lying_png(path: Path, width: int, height: int) -> Path:
    """A PNG that says to be so large, and holds a thousand bytes."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [header, b"IDAT" + zlib.compress(b"\0" * 1000), b"IEND"]
    parts = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    return path


@pytest.mark.parametrize("size", [(50_000, 50_000), (10_000, 9_000), (9_000, 9_000)])
def test_a_bomb_is_refused_by_its_header(tmp_path: Path, size: tuple[int, int]) -> None:
    path = lying_png(tmp_path / "bomb.png", *size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=naming(path, "80,000,000")):
        read_image(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize("side", [10_000, 50_000])
def test_pillow_warnings_about_bombs_are_not_shown(tmp_path: Path, side: int) -> None:
    path = lying_png(tmp_path / "bomb.png", side, side)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        media_images._pillow.cache_clear()
        with pytest.raises(DataError) as caught:
            read_image(path)
    media_images._pillow.cache_clear()
    assert not shown
    message = str(caught.value).replace(str(path), "")
    assert not missing(message, "80,000,000")
    assert not re.search(r"\d{5,}", message)  # as Pillow writes large numbers


@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "webp", "bmp", "tiff"])
def test_a_file_that_is_cut_short_is_named(tmp_path: Path, kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    path = tmp_path / f"cut.{kind}"
    Image.fromarray(noise).save(path)
    assert read_image(path).shape == (3, 40, 40)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=rf"cut\.{kind}"):
        read_image(path)


def test_files_that_are_something_else_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("not an image at all, but long enough to look at")
    lying_png(tmp_path / "lies.png", 64, 64)
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "script.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    facts = {"empty.png": "0", "text.png": "PNG JPEG TIFF", "lies.png": "truncated",
             "folder.png": "", "gone.png": "", "script.eps": "PNG JPEG TIFF"}  # fmt: skip
    reasons = set()
    for name, known in facts.items():
        path = tmp_path / name
        with pytest.raises(DataError, match=naming(path, known)) as caught:
            read_image(path)
        reasons.add(str(caught.value).replace(str(path), ""))
    assert len(reasons) == 5  # one for the two files of another kind


def test_damaged_bytes_give_an_image_or_a_named_error(tmp_path: Path) -> None:
    draw = random.Random(3)
    for kind in ("png", "jpg", "gif", "webp", "bmp", "tiff"):
        path = tmp_path / f"bad.{kind}"
        Image.fromarray(scene()).save(path)
        whole = path.read_bytes()
        for _ in range(30):
            bad = bytearray(whole)
            for _ in range(draw.randint(1, 6)):
                bad[draw.randrange(len(bad))] = draw.randrange(256)
            path.write_bytes(bad[: draw.randint(len(bad) // 2, len(bad))])
            message = path.name
            try:
                assert read_image(path, size=(8, 8)).shape == (3, 8, 8)
            except DataError as error:
                message = str(error)
            assert path.name in message


def test_the_format_comes_from_the_content_not_the_name(tmp_path: Path) -> None:
    Image.fromarray(scene()).save(tmp_path / "a.gif", format="PNG")
    np.testing.assert_array_equal(read_image(tmp_path / "a.gif"), scene().transpose(2, 0, 1))


def test_images_are_turned_as_the_camera_was_held(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side
    Image.fromarray(scene()).save(tmp_path / "side.png", exif=exif)
    turned = np.rot90(scene(), -1)
    np.testing.assert_array_equal(read_image(tmp_path / "side.png"), turned.transpose(2, 0, 1))


def test_every_mode_becomes_the_visible_colours(tmp_path: Path) -> None:
    def read(image: Image.Image, name: str, channels: int = 3) -> list[int]:
        image.save(tmp_path / name)
        pixels = read_image(tmp_path / name, channels)
        assert pixels.dtype == np.uint8
        assert pixels.shape == (channels, 2, 2)
        return pixels[:, 0, 0].tolist()

    assert read(Image.new("L", (2, 2), 100), "grey.png") == [100] * 3
    assert read(Image.new("1", (2, 2), 1), "bits.png") == [255] * 3
    assert read(Image.new("LA", (2, 2), (0, 0)), "clear.png") == [255] * 3
    assert read(Image.new("RGBA", (2, 2), (200, 0, 0, 51)), "glass.png") == [244, 204, 204]
    deep = Image.fromarray(np.full((2, 2), 257 * 77, np.uint16))
    assert read(deep, "deep.png") == [77] * 3
    assert read(deep, "deep.tiff", 1) == [77]
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert read(palette, "palette.png") == [10, 20, 30]
    palette.info["transparency"] = 1
    assert read(palette, "palette.gif") == [255] * 3
    assert read(Image.new("RGB", (2, 2), (10, 20, 30)), "colour.png", 1) == [18]
    ink = read(Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "ink.tiff")
    assert ink[0] > 200
    assert max(ink[1:]) < 60
    frames = [Image.new("L", (2, 2), value) for value in (50, 90)]
    frames[0].save(tmp_path / "moves.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "moves.gif")[:, 0, 0].tolist() == [50] * 3
    Image.new("F", (2, 2), 0.5).save(tmp_path / "real.tiff")
    with pytest.raises(DataError, match=naming("real.tiff", 8, 16)):
        read_image(tmp_path / "real.tiff")


def test_arrays_become_the_pixels_that_files_become() -> None:
    rgba = np.array([[[200, 0, 0, 51]]], np.uint8)
    assert to_pixels(rgba, 3, "x")[:, 0, 0].tolist() == [244, 204, 204]
    colours = scene()
    np.testing.assert_array_equal(
        to_pixels(colours, 1, "x")[0], np.asarray(Image.fromarray(colours).convert("L"))
    )
    assert to_pixels(np.full((1, 1, 1), 0.5), 3, "x")[:, 0, 0].tolist() == [128] * 3
    assert to_pixels(np.full((1, 1, 1), 65535, np.uint16), 1, "x").tolist() == [[[255]]]
    for bad in (np.full((1, 1, 1), 1.5), np.full((1, 1, 1), np.nan), np.zeros((1, 1, 3), np.int64),
                np.zeros((1, 1, 2), np.uint8)):  # fmt: skip
        with pytest.raises(DataError, match=r"x\.npy"):
            to_pixels(bad, 3, "x.npy")


def test_resizing_is_pillows_on_the_middle_part(tmp_path: Path) -> None:
    wide = scene(24, 64)
    path = tmp_path / "wide.png"
    Image.fromarray(wide).save(path)
    expected = Image.fromarray(wide).crop((20, 0, 44, 24)).resize((8, 8), Image.Resampling.BILINEAR)
    found = read_image(path, size=(8, 8)).transpose(1, 2, 0).astype(int)
    assert np.abs(found - np.asarray(expected).astype(int)).max() <= 1
    stretched = resized(wide.transpose(2, 0, 1)[None], 8, 8, crop=False)
    assert stretched[0, 0, 0, 0] < found[0, 0, 0]  # the left edge is still there


def test_a_line_of_pixels_does_not_become_a_giant(tmp_path: Path) -> None:
    Image.new("RGB", (60_000, 1), "red").save(tmp_path / "line.png")
    pixels = read_image(tmp_path / "line.png", size=(224, 224))
    assert pixels.shape == (3, 224, 224)
    assert (pixels[0] == 255).all()


def test_frames_are_taken_from_the_middle_of_equal_parts() -> None:
    assert sampled(8, 8) == list(range(8))
    assert sampled(9, 3) == [1, 4, 7]
    assert sampled(2, 4) == [0, 0, 1, 1]
    assert sampled(1, 3) == [0, 0, 0]


@pytest.mark.parametrize("kind", ["gif", "webp", "png", "tiff", "folder"])
def test_videos_come_from_animations_and_folders(tmp_path: Path, kind: str) -> None:
    frames = [Image.new("L", (6, 4), 20 * i) for i in range(12)]
    path = tmp_path / f"video.{kind}"
    if kind == "folder":
        path.mkdir()
        for i, frame in enumerate(frames):
            frame.save(path / f"frame{i}.png")
        (path / "notes.txt").write_text("no frame")
    else:
        lossless = {"lossless": True} if kind == "webp" else {}
        first = frames[0].convert("RGB") if kind == "webp" else frames[0]
        first.save(path, save_all=True, append_images=frames[1:], **lossless)
    pixels = decode_video(path, 4, channels=1).values
    assert pixels.shape == (4, 1, 4, 6)
    assert pixels[:, 0, 0, 0].tolist() == [20, 80, 140, 200]
    assert decode_video(path, 3, size=(2, 2)).values.shape == (3, 3, 2, 2)


def test_videos_that_would_take_hours_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [Image.new("L", (40, 30), 20 * i) for i in range(9)]
    path = tmp_path / "hours.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    monkeypatch.setattr(media_images, "MAX_VIDEO_PIXELS", 9 * 40 * 30 - 1)
    with pytest.raises(DataError, match=naming(path, 9, "40 × 30")):
        decode_video(path, 2)
    monkeypatch.undo()
    monkeypatch.setattr(media_images, "MAX_PIXELS", 2 * 40 * 30)
    with pytest.raises(DataError, match=naming(path, 3, "3,600", "2,400")):
        decode_video(path, 3)
    assert decode_video(path, 3, size=(8, 8)).values.shape == (3, 3, 8, 8)


def test_bad_videos_are_named(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=naming(tmp_path / "none")):
        decode_video(tmp_path / "none", 4)
    frames = [Image.fromarray(scene() + i) for i in range(6)]
    path = tmp_path / "cut.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - len(whole) // 3])
    with pytest.raises(DataError, match=r"cut\.gif"):
        decode_video(path, 6)
    (tmp_path / "mixed").mkdir()
    Image.new("L", (6, 4)).save(tmp_path / "mixed" / "1.png")
    Image.new("L", (4, 4)).save(tmp_path / "mixed" / "2.png")
    with pytest.raises(DataError, match=naming(tmp_path / "mixed" / "2.png", "4 × 4")):
        decode_video(tmp_path / "mixed", 2)
    assert decode_video(tmp_path / "mixed", 2, size=(4, 4)).values.shape == (2, 3, 4, 4)
