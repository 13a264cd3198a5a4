"""From a run and a text to one page: all is traced once, then each section takes its part."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.errors import FolderError, UserError
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.interventions import NO_CHANGE, Change
from headway.inside.capture.media import Media, check_given, open_media
from headway.inside.capture.reading import PLAINLY, Ask
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.checkpoints import Stage, checkpoints_of, stages
from headway.inside.page.compare import check_pair
from headway.inside.page.compare import of_stages as compare_stages
from headway.inside.page.sections import OF_MEDIA, OF_SEVERAL, SECTIONS, look_of
from headway.inside.page.sections import training as training_section
from headway.settings.folder import IMPORTED
from headway.storage import read_json, replace_text
from headway.tasks.opened import Opened, open_plain
from headway.web.html import page_data, page_html
from headway.web.pack import pack

TRUTH = "truth.json"
"""In a run folder: how often each map was right where the truth is known; see `truth.py`."""

LIGHT = ("overview", "picture", "sound", "attention", "lens")
"""Sections of a look at a checkpoint; the final weights have all of them."""

HEIGHT = 760
"""Pixels of a page in a notebook."""

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What a page may show besides, from files and choices of the user."""

    corpus: Corpus | str | Path | Sequence[str] | None = None
    """Lines like those that the run was trained on: for head studies and for search."""

    factors: Path | None = None
    """A folder that `headway factors` made."""

    tuned: Path | None = None
    """A lens that was tuned: a file that `Tuned.save` wrote."""

    truth: Path | None = None
    """A file that `headway truth` wrote; None: the one in the run folder."""

    walk: tuple[str, int, int, int] | None = None
    """Kind, layer, head and row of the token that is followed."""

    pins: tuple[int, ...] = ()
    """Rows that are kept exactly in maps of more than 256 tokens."""

    slow: bool = False
    """Also make the maps that take long."""

    checkpoints: bool | None = None
    """Whether the training is shown; None: where the run has kept checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Everything that a section may need."""

    trace: Trace
    run: Opened | None = None
    """None where the trace comes from elsewhere."""

    final: bool = True
    """Whether these are the weights that the run ended with, not those of a checkpoint."""

    ask: Ask = PLAINLY
    change: Change = NO_CHANGE
    corpus: Corpus | None = None
    factors: Path | None = None
    tuned: Path | None = None
    truth: dict[str, Any] | None = None
    walk: tuple[str, int, int, int] | None = None
    pins: tuple[int, ...] = ()
    slow: bool = False


@dataclass(frozen=True)
class Page:
    """One page with its data; `html` is all of it in one file."""

    title: str
    looks: list[dict[str, Any]] = field(repr=False)
    shared: dict[str, Any] = field(repr=False)
    run: dict[str, Any] = field(repr=False)

    @cached_property
    def packed(self) -> str:
        """The data alone: what a served page is sent."""
        return pack(page_data(self.title, self.looks, self.shared, self.run, SECTIONS))

    @cached_property
    def html(self) -> str:
        return page_html(self.title, self.packed, self._panels)

    @property
    def live_html(self) -> str:
        """The same for a server that answers it. It may be sent other panels, too, which a later
        answer has: of a text all but those of several looks, of a picture or a recording the
        search."""
        panels = self._panels
        media = panels.intersection(OF_MEDIA)
        panels |= {"beam"} if media else set(SECTIONS).difference(OF_MEDIA, OF_SEVERAL)
        return page_html(self.title, self.packed, panels, live=True)

    @property
    def _panels(self) -> set[str]:
        """Those of the sections that there are."""
        found = (self.shared, *(look["sections"] for look in self.looks))
        return {name for part in found for name in part}

    def save(self, path: str | Path) -> None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            replace_text(Path(path), self.html)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}.") from error

    def _repr_html_(self) -> str:
        """For notebooks: a frame that can run the page's own scripts and do nothing else."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{HEIGHT}px;border:0" title="{html.escape(self.title)}">'
            "</iframe>"
        )


def look(
    run: str | Path | Opened | Trace,
    text: str | Media = "",
    ask: Ask = PLAINLY,
    change: Change = NO_CHANGE,
    *,
    file: str | Path | None = None,
    against: str | Path | Opened | None = None,
    against_text: str | Media | None = None,
    note: Note = lambda line: None,
    **extras: Any,
) -> Page:
    """A page about one text in one run, or about one `file`: a picture, a video or a recording. A
    run's folder or its shipped name will do.

    `against` and `against_text` put another run, or another text (or `open_media` of another
    file), beside it. `extras` are the fields of `Extras`. `note` is told what was left
    out, a line each.
    """
    if isinstance(run, Trace):
        return _of_trace(run)
    own, more = _opened(run), Extras(**extras)
    if file is not None:
        if text:
            raise UserError("give a text or a file to look at, not both.")
        check_given(own, None, file)
        text = open_media(own, file)
    corpus = _corpus(more.corpus, own)
    first = looked_at(own, text, ask, change, replace(more, corpus=corpus))
    looks: list[dict[str, Any]]
    shared: dict[str, Any] = {}
    if against is not None or against_text is not None:
        if more.checkpoints:
            raise UserError("a page compares two looks or shows the training: one of the two.")
        other = own if against is None else _opened(against)
        alone = replace(more, corpus=corpus if against is None else None, factors=None)
        second = looked_at(other, against_text or text, ask, change, alone)
        shared["compare"] = check_pair(first, second)
        labels = _labels(own, other, text, against_text)
        looks = [look_of(labels[0], first), look_of(labels[1], second)]
    else:
        looks, of_training = _along(own, first, more, note)
        shared |= of_training
    return Page(_title(own, text), looks, shared, facts_of(own))


def looked_at(
    run: Opened, text: str | Media, ask: Ask = PLAINLY, change: Change = NO_CHANGE,
    extras: Extras = Extras(),  # noqa: B008 (it is frozen)
) -> Looked:  # fmt: skip
    """One text or file in one run, traced, with the files that sections ask for."""
    found = trace(run, text, ask, change, beam=True)
    longest = max(map(len, found.reading.streams.values()))
    for row in extras.pins:
        if not 0 <= row < longest:
            raise UserError(f"--pin {row + 1}: the longest stream has {longest} tokens.")
    return Looked(
        run=run,
        trace=found,
        ask=ask,
        change=change,
        corpus=_corpus(extras.corpus, run),
        factors=extras.factors,
        tuned=extras.tuned,
        truth=truth_of(run, extras.truth) if change == NO_CHANGE else None,  # of the whole model
        walk=extras.walk,
        pins=extras.pins,
        slow=extras.slow,
    )


def truth_of(run: Opened, path: Path | None = None) -> dict[str, Any] | None:
    """How often the maps of this run were found right, if that was ever measured."""
    place = run.folder / TRUTH if path is None else path
    if path is None and not place.is_file():
        return None
    try:
        found = read_json(place)
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{place} cannot be read: {error}. Make it again: headway truth."
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("maps"), dict):
        raise FolderError(f"{place} is not what `headway truth` writes. Make it again.")
    return found


def facts_of(run: Opened) -> dict[str, Any]:
    """What the header says about a run."""
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    facts = [run.settings.task, *run.shape.size_facts, f"{parameters:,} parameters"]
    if (run.folder / IMPORTED).is_file():
        facts.append("imported")
    return {"name": run.folder.name, "facts": facts}


def _along(
    run: Opened, first: Looked, extras: Extras, note: Note
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The looks of all stages of the training, the final one last, and the sections they share."""
    asked = bool(extras.checkpoints)
    if extras.checkpoints is False or not checkpoints_of(run, asked=asked):
        return [look_of("final", first)], {}
    looks: list[dict[str, Any]] = []
    traces: list[tuple[Stage, Trace]] = []
    for stage in stages(run, note, asked=asked):
        if stage.run is run:
            found, sections = first, None
        else:
            then = trace(stage.run, first.trace.reading, change=first.change)
            # What was measured, and what was fitted, is about the final weights.
            found = replace(first, run=stage.run, trace=then, final=False, truth=None, tuned=None)
            sections = LIGHT
        traces.append((stage, found.trace))
        made = look_of(stage.label, found) if sections is None else look_of(
            stage.label, found, sections
        )  # fmt: skip
        looks.append({**made, "step": stage.step})
    if len(looks) == 1:
        return looks, {}
    return looks, {
        "training": training_section.of_stages(run, traces),
        "compare": compare_stages([(stage.run, found) for stage, found in traces]),
    }


def _of_trace(found: Trace) -> Page:
    """A trace from elsewhere has the panels that need no model."""
    looked = Looked(trace=found)
    title = str(found.meta.get("run", "trace"))
    facts = [str(found.meta[name]) for name in ("task", "family") if name in found.meta]
    return Page(title, [look_of(title, looked)], {}, {"name": title, "facts": facts})


def _opened(run: str | Path | Opened) -> Opened:
    return run if isinstance(run, Opened) else open_plain(run)


def _corpus(given: Any, run: Opened) -> Corpus | None:
    return given if given is None or isinstance(given, Corpus) else Corpus.of(given, run)


def _title(run: Opened, text: str | Media) -> str:
    short = " ".join(_said(text).split())
    return f"{run.folder.name}: {short[:60]}{'…' * (len(short) > 60)}"


def _said(text: str | Media) -> str:
    return text if isinstance(text, str) else text.name


def _labels(
    one: Opened, other: Opened, text: str | Media, other_text: str | Media | None
) -> tuple[str, str]:
    if one.folder.name != other.folder.name:
        return one.folder.name, other.folder.name
    if other_text is None:  # folders of the same name; where they are is nobody's business
        return f"A: {one.folder.name}", f"B: {other.folder.name}"
    return _said(text)[:40], _said(other_text)[:40]
