"""The same numbers for TensorBoard, which is an extra: `pip install 'headway[tensorboard]'`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.errors import needs

FOLDER = "tensorboard"


class Board:
    """Writes scalars to RUN/tensorboard. A run that goes on adds to what is there."""

    def __init__(self, folder: Path) -> None:
        needs("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / FOLDER))

    def numbers(self, kind: str, step: int, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.writer.add_scalar(f"{kind}/{name}", value, step)
        self.writer.flush()

    def close(self) -> None:
        """Its thread ends too."""
        self.writer.close()
