"""Pairs of sentences out of aligned files, columns, or lines of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from headway.config.data import DataSettings
from headway.data.bind import as_said, bind
from headway.data.example import Bound, needs_of
from headway.data.files import is_stream, parts, spool
from headway.data.readers.lines import UnequalCounts, open_aligned
from headway.data.readers.open import open_table
from headway.errors import ConfigError

Pair = tuple[str, str]
"""A source and its target."""

BOTH = ("source", "target")

BLOCK = 4096
BLOCK_CHARACTERS = 2_000_000


@dataclass
class PairFile:
    """One file of pairs, or two aligned ones. Reading it again starts at the top."""

    paths: tuple[str, ...]
    settings: DataSettings

    @cached_property
    def bound(self) -> Bound:
        columns = needs_of("pairs")
        if len(self.paths) == 2:
            table = open_aligned(self.paths, BOTH, self.settings.encoding)
        else:
            columns = list(as_said(columns, self.settings))
            table = open_table(self.paths[0], self.settings, columns)
        return Bound(table, bind(table, columns), True, self.settings.bad)

    @property
    def header(self) -> int:
        """Lines before the first pair."""
        table = self.bound.table
        return int(table.header and not table.typed and len(self.paths) == 1)

    def __iter__(self) -> Iterator[Pair]:
        for example in self.bound:
            yield example.text("source"), example.text("target")


def training_files(settings: DataSettings) -> list[PairFile]:
    return pair_files(settings.source, settings.target, settings.pairs, settings)


def validation_files(settings: DataSettings) -> list[PairFile]:
    files = settings.valid_source, settings.valid_target, settings.valid_pairs
    return pair_files(*files, settings)


def pair_files(
    source: Sequence[str], target: Sequence[str], pairs: Sequence[str], settings: DataSettings
) -> list[PairFile]:
    sources, targets = parts(source), parts(target)
    if len(sources) != len(targets):
        raise ConfigError(f"{len(sources)} source files but {len(targets)} target files.")
    aligned = [PairFile(both, settings) for both in zip(sources, targets, strict=True)]
    return [*aligned, *(PairFile((path,), settings) for path in parts(pairs))]


def read_pairs(
    source: Sequence[str], target: Sequence[str], pairs: Sequence[str], settings: DataSettings
) -> Iterator[Pair]:
    """All pairs in the order of the files. Only a block of each file is in memory."""
    with TemporaryDirectory(prefix="headway-") as folder:
        again = [_again(path, Path(folder)) for path in pairs]
        yield from chain.from_iterable(pair_files(source, target, again, settings))


def _again(path: str, folder: Path) -> str:
    """A file that can be read twice: columns are found before pairs are read."""
    if not is_stream(path):
        return path
    spool(path, folder / "standard-input")
    return str(folder / "standard-input")


def in_blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Pairs by the thousand, fewer where they are long. What comes before an error still comes."""
    block: list[Pair] = []
    size = 0
    try:
        for pair in pairs:
            block.append(pair)
            size += len(pair[0]) + len(pair[1])
            if len(block) >= BLOCK or size >= BLOCK_CHARACTERS:
                yield block
                block, size = [], 0
    except UnequalCounts:
        if block:
            yield block
        raise
    if block:
        yield block
