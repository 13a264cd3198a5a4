"""Read folders with one subfolder per class, folders of files, and single files as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from headway.data.columns.column import class_of
from headway.data.files import DataFiles, class_files, class_folders, natural
from headway.data.media.image import frame_files
from headway.data.media.open_item import UNITS, MediaRef, is_broken_link
from headway.data.sniff import MediaType, check_is_text, has_extension_of
from headway.data.table import SAMPLE, RawRow, RowMapping, Table
from headway.errors import DataError, one_line

FILE, FOLDER = "(file)", "(folder)"
SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation", "dev"})
"""Names of folders that are splits of a dataset rather than classes."""


def open_folder(folder: Path, what: MediaType, files: DataFiles, *, labelled: bool) -> Table:
    """Return a table of the media files in a folder. With `labelled`, the folder has one subfolder
    per class. Otherwise, files at any depth are read without labels."""
    classes = [path for path in files.entries(folder) if _is_class(path)]
    classes.sort(key=lambda path: natural(path.name))
    entries: list[tuple[Path, str | None]] = []
    if labelled:
        _check_classes(folder, classes, files)
        names = [(one, one_line(one.name, str(folder)[:200])) for one in classes]
        entries = [(path, name) for one, name in names for path in _below(one, what, files)]
    else:
        frames = class_of(what).is_moving and bool(frame_files(folder, files))
        found = [folder] if frames else _below(folder, what, files)
        entries = [(path, None) for path in found]
    if not entries:
        raise DataError(_nothing(folder, classes, what, files, labelled))
    return open_files(entries, str(folder), what)


def _check_classes(folder: Path, classes: list[Path], files: DataFiles) -> None:
    lost = [p for p in files.entries(folder) if is_broken_link(p) and not p.suffix]
    if lost:
        raise DataError(
            f"{lost[0]} is a broken link to {lost[0].readlink()}, so a class would be missing. "
            "Restore the folder, or remove the link."
        )
    if classes and {p.name.lower() for p in classes} <= SPLITS:
        raise DataError(
            f"{folder} contains the folders {', '.join(p.name for p in classes)}, which are "
            f"splits, not classes. Give them separately: {_splits_hint(classes)}"
        )


def open_text_folder(path: str, encoding: str, files: DataFiles) -> Table:
    """Return a table of a folder of text files with one subfolder per class. Each file is an
    example, and its label is the name of the subfolder."""
    folder = Path(path)
    _check_classes(folder, class_folders(folder, files), files)
    entries = [(file, one_line(label, path[:200])) for file, label in class_files(folder, files)]
    for file, _ in entries:
        check_is_text(file)

    def row(i: int) -> RowMapping:
        file, label = entries[i]
        return {"label": label, "text": "".join(files.file(str(file), encoding).text()).strip("\n")}

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        for i in range(len(entries)):
            values = row(i)
            yield RawRow([values[name] for name in names], i + 1)

    return Table(
        ("label", "text"), [row(i) for i in range(0, len(entries), len(entries) // SAMPLE + 1)],
        read, name=path, form="one folder per class", unit="file", typed=False, n=len(entries),
        named=lambda line: str(entries[line - 1][0]),
    )  # fmt: skip


def open_files(entries: Sequence[tuple[Path, str | None]], name: str, what: MediaType) -> Table:
    """Return a table of media files. `entries`: path and label of each file; the labels may be
    None."""
    labelled = entries[0][1] is not None

    def row(i: int) -> RowMapping:
        path, label = entries[i]
        return {FILE: MediaRef(str(path)), FOLDER: label}

    def read(names: Sequence[str]) -> Iterator[RawRow]:
        return (RawRow([row(i)[name] for name in names], i + 1) for i in range(len(entries)))

    return Table(
        (FILE, FOLDER) if labelled else (FILE,), [row(i) for i in range(min(SAMPLE, len(entries)))],
        read, name=name, form="one folder per class" if labelled else "files",
        unit=UNITS[what].removesuffix("s"), header=False, n=len(entries),
        named=lambda line: str(entries[line - 1][0]),
    )  # fmt: skip


def _splits_hint(splits: list[Path]) -> str:
    """Return commands for a dataset that is split into folders. The test set is used only for the
    final evaluation, because the best checkpoint must not be chosen on it."""
    named = {path.name.lower(): path for path in splits}
    train = next((named[name] for name in ("train", "training") if name in named), None)
    valid, test = (
        next((named[name] for name in names if name in named), None)
        for names in (("valid", "validation", "val", "dev"), ("test", "testing"))
    )
    words = f"headway train TASK {train or '…'}"
    words += f" --valid {valid}" if train and valid else ""
    return f"{words} (and then, to evaluate it: headway evaluate RUN {test})" if test else words


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "__"))


def _below(folder: Path, what: MediaType, files: DataFiles) -> list[Path]:
    """Return the files of a modality at any depth below a folder. For videos, folders of frames are
    included."""
    found: list[Path] = []
    for path in sorted(files.entries(folder), key=lambda p: natural(p.name)):
        if path.is_dir() and path.is_symlink() and folder.resolve().is_relative_to(path.resolve()):
            continue  # a link to a parent folder: a cycle
        if _is_class(path):
            frames = class_of(what).is_moving and bool(frame_files(path, files))
            found += [path] if frames else _below(path, what, files)
        elif has_extension_of(path, what) or (is_broken_link(path) and not path.suffix):
            found.append(path)
    return found


def _nothing(
    folder: Path, classes: list[Path], what: MediaType, files: DataFiles, labelled: bool
) -> str:
    unit = UNITS[what]
    if labelled and not classes and _below(folder, what, files):
        return (
            f"{folder} contains {unit} but no class folders. Put them into one folder per class, "
            "or give a manifest: a TSV, CSV or JSONL file with the columns path and label."
        )
    return f"{folder} and its subfolders contain no {unit} with a supported file ending."
