"""Short names of the positions of an image or a recording, for a terminal."""

from __future__ import annotations

from headway.inside.capture.media import MediaInput
from headway.inside.capture.streams import Reading, TokenStream

NOTES = {
    "image": "each column is a patch: row,column",
    "video": "each column is a patch: frame,row,column",
    "audio": "each column is a moment of the recording",
}
EVERY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)


def pieces_of(reading: Reading, stream: TokenStream) -> list[str]:
    """The tokens of a stream; patches are "3,5" (row, column), moments stay "0.24 s"."""
    media = reading.media
    if media is None or media.kind == "audio" or stream != reading.first:
        return list(stream.pieces)
    return [name.replace("·", ",") for name in media.short_names()]


def ticks(media: MediaInput, size: int, cell: int, room: int) -> list[str]:
    """Column headings of a heatmap of media: the first patch of each row, or the seconds. `size` is
    the number of positions per column, `cell` the width of a column."""
    marks = _times(media, size, cell) if media.kind == "audio" else _patches(media)
    line = ""
    for row, name in marks:
        at = row // size * cell
        if (line and at <= len(line)) or at + len(name) > room:
            continue  # no room for this one
        line = line.ljust(at) + name
    kind = "video" if media.grid[0] > 1 else media.kind
    return [NOTES[kind], line]


def _patches(media: MediaInput) -> list[tuple[int, str]]:
    step = media.grid[2]
    names = [name.replace("·", ",") for name in media.short_names()]
    return [(row, names[row]) for row in range(media.extra, media.n_rows, step)]


def _times(media: MediaInput, size: int, cell: int) -> list[tuple[int, str]]:
    """Marks at round seconds, far enough apart for their labels."""
    a_cell = media.row_s * size / cell
    step = next((s for s in EVERY_S if s >= 8 * a_cell), EVERY_S[-1])
    n_marks = int(media.n_rows * media.row_s / step) + 1
    marks = [(round(n * step / media.row_s), f"{n * step:g} s") for n in range(n_marks)]
    return [mark for mark in marks if mark[0] < media.n_rows]
