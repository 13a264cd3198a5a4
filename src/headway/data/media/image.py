"""Read image and video files as pixels, upright by their EXIF orientation.

The header is checked before decoding, so that a small file that would decode to gigabytes is
rejected at once. Every problem with a file raises a `DataError` that names the file.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.data.files import DataFiles, natural
from headway.data.media.pixels import ByteArray, resized, to_pixels
from headway.data.sniff import IMAGES, extension
from headway.errors import DataError, UserError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
"""Image formats that are tried, whatever the file extension. Other formats of Pillow start external
programs or are rare."""

MAX_PIXELS = 80_000_000
"""Maximum number of pixels of an image. Cameras produce up to about 50 million; a decompression
bomb has billions."""

MAX_VIDEO_PIXELS = 4_000_000_000
"""Maximum number of pixels in all frames of a video, because frames must be decoded in order. It is
about 1,900 frames in Full HD."""

LARGE = 16_000_000
"""Number of pixels above which images are decoded one at a time. Otherwise, several threads could
fill the memory."""

Size = tuple[int, int]
"""Height and width in pixels."""

_one_large = threading.Lock()


class DecodedMedia(NamedTuple):
    """Decoded contents of a media file, with their original size."""

    values: NDArray[Any]
    """Pixels (T C Y X) or samples."""

    height: int
    """Height in pixels before resizing. For audio, the number of samples."""

    width: int


def n_frames(path: str | Path) -> int:
    """Return the number of frames in an image file."""
    with _opened(path) as image:
        return int(getattr(image, "n_frames", 1))


def read_image(path: str | Path, channels: int = 3, size: Size | None = None) -> ByteArray:
    """Return the pixels of an image, or of the first frame of an animation, as C Y X. The image is
    rotated by its EXIF orientation, composited over white, and resized to `size` if given."""
    return decode_image(path, channels, size).values[0]


def decode_image(path: str | Path, channels: int = 3, size: Size | None = None) -> DecodedMedia:
    """Return an image as T C Y X with one frame, together with its height and width before
    resizing."""
    with _opened(path) as image:
        height, width = image.height, image.width
        if size is not None:
            # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size, which is faster. At least twice
            # the needed size is decoded, for quality.
            image.draft(None, (2 * max(size), 2 * max(size)))
        if _is_turned(image):
            height, width = width, height
        _turn(image)
        pixels_CYX = _pixels(image, channels, path)
        return DecodedMedia(brought(pixels_CYX[None], size), height, width)


def decode_video(
    path: str | Path, frames: int, channels: int = 3, size: Size | None = None
) -> DecodedMedia:
    """Return `frames` evenly spaced frames of an animation or of a folder of images, as T C Y X."""
    if Path(path).is_dir():
        return _from_folder(Path(path), frames, channels, size)
    with _opened(path) as image:
        n_frames = int(getattr(image, "n_frames", 1))
        area = image.width * image.height
        if n_frames * area > MAX_VIDEO_PIXELS:
            raise DataError(
                f"{path} has {n_frames:,} frames of {image.width:,} × {image.height:,} pixels, "
                f"{n_frames * area / 1e9:,.1f} billion in total. The limit is "
                f"{MAX_VIDEO_PIXELS / 1e9:g} billion: make the video smaller or shorter."
            )
        wanted = sampled(n_frames, frames)
        check_held(len(wanted), area, size, path)
        kept: dict[int, ByteArray] = {}
        for number in sorted(set(wanted)):
            image.seek(number)
            check_size(image.width, image.height, path)  # pages of a TIFF have one each
            pixels_CYX = _pixels(image, channels, path)
            kept[number] = brought(pixels_CYX[None], size)
        stacked = np.concatenate([kept[number] for number in wanted])
        return DecodedMedia(stacked, image.height, image.width)


def frame_files(folder: Path, files: DataFiles | None = None) -> list[Path]:
    """Return the image files in a folder, sorted by the numbers in their names, so that `2` comes
    before `10`."""
    entries = folder.iterdir() if files is None else files.entries(folder)
    found = [p for p in entries if extension(p) in IMAGES and p.name[0] != "."]
    return sorted(found, key=lambda path: natural(path.name))


def sampled(n: int, frames: int) -> list[int]:
    """Return the indices of `frames` evenly spaced frames out of `n`: the middle of each of
    `frames` equal parts. If `n` is smaller than `frames`, indices are repeated."""
    return [(2 * i + 1) * n // (2 * frames) for i in range(frames)]


def _from_folder(folder: Path, frames: int, channels: int, size: Size | None) -> DecodedMedia:
    files = frame_files(folder)
    if not files:
        raise DataError(f"{folder} contains no images. A video folder needs one image per frame.")
    wanted = sampled(len(files), frames)
    kept: dict[int, DecodedMedia] = {}
    for number in sorted(set(wanted)):
        one = kept[number] = decode_image(files[number], channels, size)
        check_held(len(set(wanted)), one.height * one.width, size, folder)
        if one.values.shape != kept[min(kept)].values.shape:
            raise DataError(
                f"{files[number]} has {one.width:,} × {one.height:,} pixels, unlike other frames "
                "of the same video. All frames must have the same size."
            )
    first = kept[min(kept)]
    stacked = np.concatenate([kept[number].values for number in wanted])
    return DecodedMedia(stacked, first.height, first.width)


def check_held(frames: int, area: int, size: Size | None, path: str | Path) -> None:
    if size is None and frames * area > MAX_PIXELS:
        raise DataError(
            f"{frames} frames of {path} at their original size have {frames * area:,} pixels. The "
            f"limit is {MAX_PIXELS:,}: make the frames smaller."
        )


@contextmanager
def _opened(path: str | Path) -> Iterator[Image]:
    """Open an image for a `with` block and check its header. Every error on opening or in the block
    becomes a `DataError`, because Pillow raises many types of exceptions for damaged files."""
    pillow = _pillow()
    try:
        if (trouble := file_problem(Path(path))) is not None:
            raise DataError(f"{path} {trouble}")
        with pillow.open(path, formats=FORMATS) as image:
            check_size(image.width, image.height, path)
            with one_if_large(image.width * image.height):
                yield image
    except UserError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise DataError(
            f"{path} decodes to more than the limit of {MAX_PIXELS:,} pixels. Make the image "
            "smaller, or remove it."
        ) from error
    except pillow.UnidentifiedImageError as error:
        known = ", ".join(FORMATS)
        raise DataError(
            f"{path} is not an image in a supported format ({known}), or its header is damaged."
        ) from error
    except MemoryError as error:
        raise DataError(f"{path} does not fit into memory. Make the image smaller.") from error
    except Exception as error:
        raise DataError(
            f"{path} cannot be read: {_error_text(error)}. It may be damaged or truncated: "
            f"download it "
            "again, or remove it."
        ) from error


def one_if_large(area: int) -> AbstractContextManager[Any]:
    """Return a context that only one thread can enter at a time if `area`, a number of pixels, is
    large."""
    return _one_large if area > LARGE else nullcontext()


def file_problem(path: Path) -> str | None:
    if not path.exists():
        return "does not exist."
    if not path.is_file():
        return "is not a file."
    return "is empty: 0 bytes." if path.stat().st_size == 0 else None


def check_size(width: int, height: int, path: str | Path) -> None:
    if width * height > MAX_PIXELS:
        raise DataError(
            f"{path} has {width:,} × {height:,} pixels according to its header. The "
            f"limit is {MAX_PIXELS:,}: make the image smaller, or remove it."
        )
    if not width * height:
        raise DataError(f"{path} has no pixels: its size is {width} × {height}.")


def _pixels(image: Image, channels: int, path: str | Path) -> ByteArray:
    """Return the current frame of a Pillow image as an array C Y X."""
    pillow = _pillow()
    if image.mode == "F":
        raise DataError(f"{path} contains floating-point pixels. Save the image with 8 or 16 bits.")
    if image.mode.startswith("I"):
        values_YX = np.asarray(image)
        if values_YX.min() < 0 or values_YX.max() > 0xFFFF:
            raise DataError(f"{path} contains 32-bit pixels. Save the image with 8 or 16 bits.")
        return to_pixels(values_YX.astype(np.uint16)[:, :, None], channels, str(path))
    mode = "L" if channels == 1 else "RGB"
    if image.has_transparency_data:
        white = pillow.new("RGBA", image.size, "white")
        image = pillow.alpha_composite(white, image.convert("RGBA"))
    values = np.asarray(image if image.mode == mode else image.convert(mode))
    values_YXC = values[:, :, None] if channels == 1 else values
    return np.ascontiguousarray(values_YXC.transpose(2, 0, 1))


def brought(pixels_TCYX: ByteArray, size: Size | None) -> ByteArray:
    return pixels_TCYX if size is None else resized(pixels_TCYX, *size)


_ORIENTATION = 0x0112
"""EXIF tag of the orientation."""

_ON_ITS_SIDE = (5, 6, 7, 8)
"""EXIF orientations in which width and height are swapped."""


def _is_turned(image: Image) -> bool:
    return image.getexif().get(_ORIENTATION) in _ON_ITS_SIDE


def _turn(image: Image) -> None:
    from PIL import ImageOps

    ImageOps.exif_transpose(image, in_place=True)


def _error_text(error: BaseException) -> str:
    return str(error).rstrip(".") or type(error).__name__


@cache
def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError(
            f"Pillow cannot be imported ({error}). To read images, install it: `pip install pillow`"
        ) from error
    # `check_size` reports images that are too large. The warning filter is set once for all
    # threads, because `catch_warnings` around each image would reset the filters of other threads.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return Image
