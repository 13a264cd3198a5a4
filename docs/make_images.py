"""Make the images of the documentation.

    .venv/bin/python docs/make_images.py [NAME …]

Each module of `docs/figures/` has a table `FIGURES` of names and of functions from a browser to
pixels. Without names, all images are made. It needs playwright and chromium ($CHROMIUM, or one on
the path). Images are light, at twice the size of the screen, and have 256 colours at most, so that
they stay small.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import figures
import numpy as np
from figures.browser import browsing, put
from numpy.typing import NDArray

Figure = Callable[[Any], NDArray[np.uint8]]


def table() -> dict[str, Figure]:
    """Every image by its name."""
    found: dict[str, Figure] = {}
    for module in pkgutil.iter_modules(figures.__path__, "figures."):
        for name, figure in getattr(import_module(module.name), "FIGURES", {}).items():
            if name in found:
                raise SystemExit(f"two modules of docs/figures make {name}")
            found[name] = figure
    return found


def main(names: list[str]) -> None:
    known = table()
    if missing := sorted(set(names) - set(known)):
        raise SystemExit(f"unknown images: {', '.join(missing)}. Known: {', '.join(known)}")
    with browsing() as browser:
        for name in names or known:
            put(name, known[name](browser))


if __name__ == "__main__":
    main(sys.argv[1:])
