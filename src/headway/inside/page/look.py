"""Page of `headway look`: the input is traced once, and each section is computed from the trace."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.errors import FolderError, Option, UserError
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.interventions import NO_INTERVENTION, Intervention
from headway.inside.capture.media import MediaInput, check_input_kind, open_media
from headway.inside.capture.reading import DEFAULT_OPTIONS, GenerationOptions
from headway.inside.capture.trace import Trace, trace
from headway.inside.measure.checkpoints import CheckpointStage, checkpoints_of, stages
from headway.inside.page.compare import check_pair
from headway.inside.page.compare import compare_checkpoints as compare_stages
from headway.inside.page.sections import COMPARISON_SECTIONS, MEDIA_SECTIONS, SECTIONS, look_data
from headway.inside.page.sections import training as training_section
from headway.settings.folder import IMPORTED
from headway.storage import read_json, replace_text
from headway.tasks.loaded_run import LoadedRun, open_plain
from headway.web.html import page_data, page_html
from headway.web.pack import pack

TRUTH = "truth.json"
"""Name of the file in a run folder with the measured accuracy of each attribution map, written by
`headway truth`."""

LIGHT = ("overview", "image", "audio", "attention", "lens")
"""Names of the sections of a look at a checkpoint. Only the look at the final weights has all
sections."""

HEIGHT = 760
"""Height in pixels of a page in a notebook, which is most of a laptop screen."""

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LookOptions:
    """Optional inputs of a page, chosen by the user."""

    corpus: Corpus | str | Path | Sequence[str] | None = None
    """Texts similar to the training data, on which heads are measured and nearest tokens are
    searched. Without it, nearest tokens are not searched."""

    factors: Path | None = None
    """Folder with a dictionary of features, written by `headway factors`."""

    tuned: Path | None = None
    """File of a tuned lens, written by `TunedLens.save`."""

    truth: Path | None = None
    """File with the accuracy of attribution maps, written by `headway truth`. None: the file in the
    run folder, if it exists."""

    walk: tuple[str, int, int, int] | None = None
    """Kind of attention, layer, head and position that the walkthrough follows; None: the
    default."""

    pins: tuple[int, ...] = ()
    """Positions of tokens whose attention is stored exactly. In texts longer than 256 tokens, the
    attention of all other tokens is pooled."""

    slow: bool = False
    """Whether to also compute slow attribution maps."""

    checkpoints: bool | None = None
    """Whether to show the progress of training over the kept checkpoints. None: only if there are
    any."""


@dataclass(frozen=True, kw_only=True)
class LookInputs:
    """Run, trace and options from which the sections of one look are computed."""

    trace: Trace
    run: LoadedRun | None = None
    """Inspected run; None if the trace comes from another program."""

    final: bool = True
    """Whether the run has its final weights, and not those of a checkpoint."""

    ask: GenerationOptions = DEFAULT_OPTIONS
    change: Intervention = NO_INTERVENTION
    corpus: Corpus | None = None
    factors: Path | None = None
    tuned: Path | None = None
    truth: dict[str, Any] | None = None
    walk: tuple[str, int, int, int] | None = None
    pins: tuple[int, ...] = ()
    slow: bool = False


@dataclass(frozen=True)
class Page:
    """HTML page and its data. `html` is one self-contained file."""

    title: str
    looks: list[dict[str, Any]] = field(repr=False)
    shared: dict[str, Any] = field(repr=False)
    run: dict[str, Any] = field(repr=False)

    @cached_property
    def packed(self) -> str:
        """Packed data of the page without the HTML. A live page receives it as an update."""
        return pack(page_data(self.title, self.looks, self.shared, self.run, SECTIONS))

    @cached_property
    def html(self) -> str:
        return page_html(self.title, self.packed, self._panels)

    @property
    def live_html(self) -> str:
        """HTML of a live page.

        It includes panels that later responses may need: for media the beam search, for text all
        panels of a single look.
        """
        panels = self._panels
        media = panels.intersection(MEDIA_SECTIONS)
        panels |= (
            {"beam"} if media else set(SECTIONS).difference(MEDIA_SECTIONS, COMPARISON_SECTIONS)
        )
        return page_html(self.title, self.packed, panels, live=True)

    @property
    def _panels(self) -> set[str]:
        """Names of the JavaScript panels for the sections of this page."""
        found = (self.shared, *(look["sections"] for look in self.looks))
        return {name for part in found for name in part}

    def save(self, path: str | Path) -> None:
        """Write the page as a self-contained HTML file.

        Args:
            path: HTML file to write.
        """
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            replace_text(Path(path), self.html)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}.") from error

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a sandboxed frame, which can run the scripts of the page but
        cannot access the notebook."""
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{HEIGHT}px;border:0" title="{html.escape(self.title)}">'
            "</iframe>"
        )


def look(
    run: str | Path | LoadedRun | Trace,
    text: str | MediaInput = "",
    ask: GenerationOptions = DEFAULT_OPTIONS,
    change: Intervention = NO_INTERVENTION,
    *,
    file: str | Path | None = None,
    against: str | Path | LoadedRun | None = None,
    against_text: str | MediaInput | None = None,
    note: Note = lambda line: None,
    **extras: Any,
) -> Page:
    """Create a look page for one input of a run.

    Args:
        run: Opened run, its folder or name, or a trace.
        text: Text to inspect; ignored if `run` is a trace.
        ask: Generation options, such as a forced output.
        change: Tokens to hide and heads to disable.
        file: Image, video or recording to inspect instead of a text.
        against: Second run to compare with the first.
        against_text: Second text to compare with the first.
        note: Function that receives a message for each part that is left out.
        **extras: Fields of `LookOptions`: corpus, factors, tuned, truth, walk, pins, slow,
            checkpoints.

    Example:
        >>> from headway.inside import look
        >>> look("tatoeba-de-en", "Guten Morgen.").save("look.html")
    """
    if isinstance(run, Trace):
        return _of_trace(run)
    own, more = _opened(run), LookOptions(**extras)
    if file is not None:
        if text:
            raise UserError("give either a text or a file, not both.")
        check_input_kind(own, None, file)
        text = open_media(own, file)
    corpus = _corpus(more.corpus, own)
    first = prepare_look(own, text, ask, change, replace(more, corpus=corpus))
    looks: list[dict[str, Any]]
    shared: dict[str, Any] = {}
    if against is not None or against_text is not None:
        if more.checkpoints:
            raise UserError(
                f"one page can compare two looks ({Option('against')}) or show the training "
                f"({Option('checkpoints', True)}), but not both. Remove one of the options."
            )
        other = own if against is None else _opened(against)
        alone = replace(more, corpus=corpus if against is None else None, factors=None)
        second = prepare_look(other, against_text or text, ask, change, alone)
        shared["compare"] = check_pair(first, second)
        labels = _labels(own, other, text, against_text)
        looks = [look_data(labels[0], first), look_data(labels[1], second)]
    else:
        looks, of_training = _along(own, first, more, note)
        shared |= of_training
    return Page(_title(own, text), looks, shared, run_facts(own))


def prepare_look(
    run: LoadedRun, text: str | MediaInput, ask: GenerationOptions = DEFAULT_OPTIONS,
    change: Intervention = NO_INTERVENTION,
    extras: LookOptions = LookOptions(),  # noqa: B008 (it is frozen)
) -> LookInputs:  # fmt: skip
    """Trace one input in one run, and load the files that the sections need."""
    found = trace(run, text, ask, change, beam=True)
    longest = max(map(len, found.reading.streams.values()))
    for row in extras.pins:
        if not 0 <= row < longest:
            raise UserError(
                f"{Option('pin', row + 1)} is out of range: the longest stream has {longest} "
                "tokens."
            )
    return LookInputs(
        run=run,
        trace=found,
        ask=ask,
        change=change,
        corpus=_corpus(extras.corpus, run),
        factors=extras.factors,
        tuned=extras.tuned,
        # Map accuracies are valid only for the model without interventions, on which they were
        # measured.
        truth=load_map_accuracy(run, extras.truth) if change == NO_INTERVENTION else None,
        walk=extras.walk,
        pins=extras.pins,
        slow=extras.slow,
    )


def load_map_accuracy(run: LoadedRun, path: Path | None = None) -> dict[str, Any] | None:
    """Return the measured accuracy of this run's attribution maps; None if it was never
    measured."""
    place = run.folder / TRUTH if path is None else path
    if path is None and not place.is_file():
        return None
    try:
        found = read_json(place)
    except (OSError, ValueError) as error:
        raise FolderError(
            f"{place} cannot be read: {error}. To write it again: headway truth {run.folder.name}"
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("maps"), dict):
        raise FolderError(
            f"{place} was not written by `headway truth`. To write it again: headway truth "
            f"{run.folder.name}"
        )
    return found


def run_facts(run: LoadedRun) -> dict[str, Any]:
    """Return the name of a run, and its task, size and origin, for the header of a page."""
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    facts = [run.settings.task, *run.shape.size_facts, f"{parameters:,} parameters"]
    if (run.folder / IMPORTED).is_file():
        facts.append("imported")
    return {"name": run.folder.name, "facts": facts}


def _along(
    run: LoadedRun, first: LookInputs, extras: LookOptions, note: Note
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the looks at all checkpoints of the training run, with the final weights last, and the
    sections that all looks share."""
    asked = bool(extras.checkpoints)
    if extras.checkpoints is False or not checkpoints_of(run, asked=asked):
        return [look_data("final", first)], {}
    looks: list[dict[str, Any]] = []
    traces: list[tuple[CheckpointStage, Trace]] = []
    for stage in stages(run, note, asked=asked):
        if stage.run is run:
            found, sections = first, None
        else:
            then = trace(stage.run, first.trace.reading, change=first.change)
            # Omit map accuracies and tuned lenses, because they were measured on the final weights.
            found = replace(first, run=stage.run, trace=then, final=False, truth=None, tuned=None)
            sections = LIGHT
        traces.append((stage, found.trace))
        made = look_data(stage.label, found) if sections is None else look_data(
            stage.label, found, sections
        )  # fmt: skip
        looks.append({**made, "step": stage.step})
    if len(looks) == 1:
        return looks, {}
    return looks, {
        "training": training_section.training_curves(run, traces),
        "compare": compare_stages([(stage.run, found) for stage, found in traces]),
    }


def _of_trace(found: Trace) -> Page:
    """Return the page of a trace without its run, with the panels that need no model."""
    looked = LookInputs(trace=found)
    title = str(found.meta.get("run", "trace"))
    facts = [str(found.meta[name]) for name in ("task", "family") if name in found.meta]
    return Page(title, [look_data(title, looked)], {}, {"name": title, "facts": facts})


def _opened(run: str | Path | LoadedRun) -> LoadedRun:
    return run if isinstance(run, LoadedRun) else open_plain(run)


def _corpus(given: Any, run: LoadedRun) -> Corpus | None:
    return given if given is None or isinstance(given, Corpus) else Corpus.of(given, run)


def _title(run: LoadedRun, text: str | MediaInput) -> str:
    short = " ".join(_said(text).split())
    return f"{run.folder.name}: {short[:60]}{'…' * (len(short) > 60)}"


def _said(text: str | MediaInput) -> str:
    return text if isinstance(text, str) else text.name


def _labels(
    one: LoadedRun, other: LoadedRun, text: str | MediaInput, other_text: str | MediaInput | None
) -> tuple[str, str]:
    if one.folder.name != other.folder.name:
        return one.folder.name, other.folder.name
    if other_text is None:  # same folder name; a page does not show paths
        return f"A: {one.folder.name}", f"B: {other.folder.name}"
    return _said(text)[:40], _said(other_text)[:40]
