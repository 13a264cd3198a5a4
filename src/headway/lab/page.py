"""HTML pages of the lab: one page for each experiment, and an index page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.lab.catalogue import ExperimentEntry
from headway.lab.experiment import SeedMeasurements
from headway.storage import replace_text
from headway.web.html import page_data, page_html
from headway.web.pack import pack

PAGE = "lab.html"
INDEX = "index.html"
PANELS = ("lab", "labnumbers", "labindex")


def write_page(
    folder: Path,
    entry: ExperimentEntry,
    facts: Mapping[str, Any],
    found: Sequence[SeedMeasurements],
) -> Path:
    """Write the page of an experiment: question, method, plots, control, verdict and literature."""
    figures = [one.data() for one in entry.load().figures(found)] if found else []
    sections = {"lab": {**facts, "figures": figures}, "labnumbers": {"rows": _rows(found)}}
    title = f"{entry.question} (headway lab {entry.name})"
    about = {
        "name": entry.question,
        "facts": [f"E{entry.number} {entry.name}", str(facts["size"]), _seeds(facts["seeds"])],
    }
    replace_text(folder / PAGE, _page(title, about, sections))
    return folder / PAGE


def write_index(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the index page. `rows`: contents of each `verdict.json`, with the link to its page
    under the key `page`."""
    about = {"name": "The lab", "facts": [f"{len(rows)} experiments"]}
    replace_text(folder / INDEX, _page("headway lab", about, {"labindex": {"rows": list(rows)}}))
    return folder / INDEX


def _page(title: str, about: Mapping[str, object], sections: Mapping[str, object]) -> str:
    look = {"label": "lab", "streams": {}, "outputs": [], "sections": dict(sections)}
    packed = pack(page_data(title, [look], {}, about, list(sections)))
    return page_html(title, packed, list(sections))


def _seeds(n: int) -> str:
    return f"{n} seed" + "s" * (n != 1)


def _rows(found: Sequence[SeedMeasurements]) -> list[list[Any]]:
    """Return the table rows of all measured numbers: the name of each, and one column per seed."""
    flat = [dict(_flat(one)) for one in found]
    names = dict.fromkeys(name for one in flat for name in one)
    return [[name, *(one.get(name) for one in flat)] for name in names]


def _flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [one for key, inner in value.items()
                for one in _flat(inner, f"{name} · {key}" if name else str(key))]  # fmt: skip
    if isinstance(value, list):
        if len(value) > 12:
            return [(name, f"{len(value)} numbers")]
        return [one for i, inner in enumerate(value) for one in _flat(inner, f"{name} [{i}]")]
    return [(name, value)]
