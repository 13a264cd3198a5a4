"""The main figure of each experiment of the lab, and the command that runs one."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import lab_pages
import numpy as np
from numpy.typing import NDArray

from headway.lab.catalogue import EXPERIMENTS, ExperimentEntry
from headway.lab.page import write_page

from .browser import View, shot, terminal


def figure(entry: ExperimentEntry, browser: Any) -> NDArray[np.uint8]:
    """The first figure on the page of an experiment, from its stored numbers."""
    kept = lab_pages.results_of(entry)[0]
    with tempfile.TemporaryDirectory() as folder:
        page = write_page(Path(folder), entry, lab_pages.facts_of(entry, kept), kept["found"])
        return shot(browser, page, View(("[data-figure] >> nth=0",), state="tab=lab"))


def command(browser: Any) -> NDArray[np.uint8]:
    with tempfile.TemporaryDirectory() as folder:
        return terminal(
            browser, "headway lab shift", cwd=Path(folder), columns=88, lines=slice(-8, None)
        )


FIGURES = {
    "lab-command": command,
    **{
        f"lab-{name}": partial(figure, entry)
        for name, entry in EXPERIMENTS.items()
        if lab_pages.results_of(entry)
    },
}
