"""Print tables on stdout: aligned on a terminal, plain text in a pipe, and never truncated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from headway.errors import visible

WIDE = 10_000
"""Width in characters of tables that are written to a file or a pipe. It is so large that no cell
is truncated."""


def show_table(headers: Sequence[str], rows: Sequence[Sequence[str]], numbers: set[str]) -> None:
    """Print a table. Columns named in `numbers` are right-aligned.

    A table that is too wide is wrapped by the terminal, because rich would truncate numbers.
    """
    from rich.console import Console  # which is slow to import
    from rich.measure import Measurement
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        side: Literal["left", "right"] = "right" if header in numbers else "left"
        table.add_column(visible(header), justify=side, no_wrap=True)
    for row in rows:
        table.add_row(*map(visible, row))
    console = Console(highlight=False, markup=False)
    wide = console.options.update(max_width=WIDE)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum)
    with console.capture() as captured:
        console.print(table, soft_wrap=True)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
