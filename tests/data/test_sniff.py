"""Formats of files and values, and that only one module lists extensions and first bytes."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

import headway
from headway.data import sniff as formats
from headway.data.media.open_item import ItemFormat
from headway.data.named_data import bind_data
from headway.data.sniff import AUDIO, EXTENSIONS, IMAGES, TABLES, Format, sniff
from headway.data.source import media_examples
from headway.settings.data import DataSettings
from headway.specs.needs import LABEL
from headway.tasks.modality import modality_of_file

DATA = Path(headway.__file__).parent / "data"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((f"a{end}", Format.IMAGE) for end in sorted(IMAGES)),
        *((f"a{end.upper()}", Format.AUDIO) for end in sorted(AUDIO)),
        ("a.npy", Format.ARRAY),
        ("train-images-idx3-ubyte.gz", Format.IDX),
        ("a.parquet", Format.PARQUET),
        ("a.jsonl.gz", Format.JSON_LINES),
        ("a.NDJSON", Format.JSON_LINES),
        ("a.csv.zst", Format.DELIMITED),
        ("a.conllu", Format.CONLL),
        ("a.txt", Format.TEXT),
    ],
)
def test_formats_by_name(name: str, form: Format) -> None:
    assert sniff(Path(name)) is form


@pytest.mark.parametrize(
    ("content", "end"),
    [
        (b"\x89PNG\r\n", ".png"),
        (b"RIFF\0\0\0\0WAVE", ".wav"),
        (b"RIFF\0\0\0\0WEBP", ".webp"),
        (b"anything", ""),
    ],
)
def test_media_by_their_first_bytes(content: bytes, end: str) -> None:
    assert formats.extension_of(content) == end


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a.flac", ("audio",)),
        ("a.tiff", ("image", "video")),
        ("a.npy", ("image", "video", "audio")),
        (np.zeros(3), ("audio",)),
        (np.zeros((3, 3)), ("image",)),
        (np.zeros((2, 3, 3, 1)), ("video",)),
        ({"array": [0.0], "sampling_rate": 8000}, ("audio",)),
    ],
)
def test_modalities_of_values(value: object, found: tuple[str, ...]) -> None:
    assert formats.media_types(value) == found


def test_a_folder_is_one_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    assert sniff(tmp_path / "a.csv") is Format.FOLDER


@pytest.mark.parametrize("end", [".pgm", ".ppm", ".pbm"])
def test_folders_of_images_that_are_read_are_recognised(tmp_path: Path, end: str) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        mode = {".ppm": "RGB", ".pbm": "1"}.get(end, "L")
        Image.new(mode, (4, 4)).save(tmp_path / name / f"a{end}")
    _check_folder(tmp_path, "image", end)


@pytest.mark.parametrize("end", [".au", ".aif", ".oga"])
def test_folders_of_audio_that_is_read_are_recognised(tmp_path: Path, end: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    kind = {".oga": "OGG", ".aif": "AIFF"}.get(end, "AU")
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / f"a{end}", np.zeros(800), 8000, format=kind)
    _check_folder(tmp_path, "audio", end)


def _check_folder(folder: Path, what: str, end: str) -> None:
    assert bind_data("classify", str(folder)).files == "media"
    found = modality_of_file(folder, DataSettings())
    assert found == what
    examples = list(media_examples([str(folder)], DataSettings(), found, LABEL))
    assert [one.text("label") for one in examples] == ["cat", "dog"]
    assert all(one.medium.path.endswith(end) for one in examples)
    assert all(one.medium.read(ItemFormat(found, rate=8000)).values.size for one in examples)


def test_one_module_lists_extensions_and_first_bytes() -> None:
    extensions = set().union(*EXTENSIONS.values(), TABLES, formats.CONLL)
    starts = {*formats.MEDIA_STARTS, *formats.FOREIGN, *formats.NOT_TEXT, formats.RIFF,
              formats.GZIP, formats.XZ, formats.ZSTD}  # fmt: skip
    for path in sorted(DATA.rglob("*.py")):
        if path.name == "sniff.py":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        written = {id(one) for name in names for one in name.values}  # names of files to write
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in written:
                assert node.value not in extensions | starts, f"{path}:{node.lineno}"
