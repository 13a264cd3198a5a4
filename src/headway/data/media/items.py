"""One way in for everything that pictures, videos and recordings come in: folders with a folder a
class, manifests, IDX files, stacks, single files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

from headway.data.files import STDIN, parts
from headway.data.media.arrays import open_npy
from headway.data.media.folders import FolderSource, folder_source
from headway.data.media.idx import IdxSource, idx_in_folder, is_idx
from headway.data.media.manifest import ManifestSource, is_manifest
from headway.data.media.open_item import UNITS, Form, Part, Shape, What, read_media
from headway.data.media.source import ENDINGS, MediaItem, Source, Target
from headway.errors import DataError
from headway.settings.data import DataSettings

MOST_NAMED = 20
"""Missing files that an error lists."""

CHANNELS = (1, 3, 4)


class MediaItems(Sequence[MediaItem]):
    """The items of several sources, one after another; none is read before it is opened."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.ends = list(accumulate(map(len, sources)))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, i: int, /) -> MediaItem:  # type: ignore[override]
        if not 0 <= i < len(self):
            raise IndexError(f"item {i} of {len(self)}")
        number = bisect_right(self.ends, i)
        before = self.ends[number - 1] if number else 0
        return self.sources[number][i - before]

    def files(self) -> Iterator[tuple[Path, str]]:
        for source in self.sources:
            yield from source.files()


def media_items(
    paths: Sequence[str],
    data: DataSettings,
    what: What,
    shape: Shape,
    *,
    target: Target = "none",
    own_size: bool = False,
) -> MediaItems:
    """The items of all paths in their order. Files that are missing are one error that lists them,
    unless they are left out (`data.bad`).

    Pictures and videos are opened in the size of `shape`, or in their own.
    """
    items = found_items(paths, data, Form.of(what, shape, own_size=own_size), target)
    if data.bad == "error":
        check_there(items)
    return items


def found_items(paths: Sequence[str], data: DataSettings, form: Form, target: Target) -> MediaItems:
    """The same without looking whether the files are there."""
    sources = []
    for path in parts(paths, folders=False):
        try:
            sources.append(_source(path, data, form, target))
        except OSError as error:  # a folder that may not be read, or that links to itself
            raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    return MediaItems(sources)


def check_there(*several: MediaItems) -> None:
    """One error that lists the missing files of all of them."""
    missing: list[str] = []
    n_missing = 0
    for items in several:
        for path, place in items.files():
            if not _is_there(path):
                n_missing += 1
                if len(missing) < MOST_NAMED:
                    missing.append(f"{path} ({place})" if place else str(path))
    if n_missing:
        more = f", and {n_missing - MOST_NAMED:,} more" * (n_missing > MOST_NAMED)
        files = "1 file is missing" if n_missing == 1 else f"{n_missing:,} files are missing"
        raise DataError(
            f"{files}: {', '.join(missing)}{more}. Paths in a manifest are relative to the folder "
            "it lies in."
        )


def _is_there(path: Path) -> bool:
    """A folder may be a video. Devices and pipes are nothing to read media from."""
    try:
        return path.is_file() or path.is_dir()
    except (OSError, ValueError):  # a NUL in the name, or a name that is too long
        return False


def _source(name: str, data: DataSettings, form: Form, target: Target) -> Source:
    path = Path(name)
    if name == STDIN:
        raise DataError(
            "media are not read from standard input. Give a folder or a manifest by its name."
        )
    if not _is_there(path):
        raise DataError(f"there is no file or folder {name}.")
    if target == "other" and not is_manifest(path):
        raise DataError(
            f"{name} is no list, so that nothing says what belongs together. Give a TSV, CSV or "
            f"JSONL file with the columns {data.path_field} and {data.other_field}."
        )
    if path.is_dir():
        idx = idx_in_folder(path) if form.what == "pictures" else None
        return IdxSource(idx, form, target) if idx else folder_source(path, form, target)
    if is_manifest(path):
        return ManifestSource(name, data, form, target)
    if is_idx(path):
        return IdxSource(path, form, target)
    return _single(path, form, target)


def _single(path: Path, form: Form, target: Target) -> Source:
    unit = UNITS[form.what]
    if path.suffix.lower() not in ENDINGS[form.what]:
        known = " ".join(sorted(ENDINGS[form.what]))
        raise DataError(
            f"{path} is nothing that {unit} can be read from by its name: a folder, a manifest "
            f"(.tsv .csv .jsonl), or one of {known}."
        )
    if target != "none":
        raise DataError(
            f"{path} comes without a {target}. Give a folder with a folder a class, or a manifest: "
            f"a TSV, CSV or JSONL file with the columns path and {target}"
            f"{', and index of those of a stack, from 0 on' * (path.suffix.lower() == '.npy')}."
        )
    if path.suffix.lower() == ".npy" and _is_stack(path, form.what):
        return StackSource(path, form)
    return FolderSource([(path, None)], form)


def _is_stack(path: Path, what: What) -> bool:
    shape = open_npy(str(path)).shape
    one = 3 if what == "videos" else 2
    return len(shape) > one + 1 or (len(shape) == one + 1 and shape[-1] not in CHANNELS)


class StackSource:
    """All items of an .npy stack, without labels."""

    def __init__(self, path: Path, form: Form) -> None:
        self.path = path
        self.form = form
        self.n = len(open_npy(str(path)))

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int, /) -> MediaItem:
        read = partial(read_media, str(self.path), self.form, Part(index=i))
        return MediaItem(f"{self.path.name}:{i}", read)

    def files(self) -> Iterator[tuple[Path, str]]:
        yield self.path, ""
