"""Live page of `headway look --serve`: parsing of requests, page data, and the state of the
controls.

JSON from the browser becomes a text, `GenerationOptions` and an `Intervention`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from headway.errors import UserError, suggest
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.beam import has_search
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.media import MediaInput
from headway.inside.capture.reading import NEW_TOKENS, GenerationOptions, Reading
from headway.inside.capture.streams import display_piece
from headway.inside.measure.checkpoints import FINAL, checkpoints_of, label_of, stage_at
from headway.inside.page.look import LookInputs, LookOptions, Page, prepare_look, run_facts
from headway.inside.page.sections import SECTIONS, look_data
from headway.settings.decode import DecodeSettings
from headway.tasks.loaded_run import LoadedRun

MOST_TEXT = 20_000
"""Maximum number of characters in a text. For nearly all models, the limit of the model is
lower."""

MOST_BEAM, MOST_NEW = 32, 512
"""Maximum beam width, and maximum number of new tokens, so that no request occupies the server for
minutes."""


@dataclass(frozen=True, kw_only=True)
class LookRequest:
    """Request from the page. Positions, layers and heads are counted from 0."""

    text: str
    output: str | None = None
    """Output that the model reads instead of generating one; None: the model generates it."""

    force: str = ""
    """Text that the output must begin with."""

    hidden: tuple[tuple[str, int], ...] = ()
    """Stream name and position of each hidden token. No other token can attend to it."""

    off: tuple[str, ...] = ()
    """Names of the disabled heads, such as `cross.2.5`."""

    beam: int | None = None
    length_penalty_alpha: float | None = None
    temperature: float | None = None
    """Temperature for sampling; None: no sampling."""

    seed: int = 1
    new: int = NEW_TOKENS
    checkpoint: str | None = None
    """Label of a checkpoint of the training run; None: the final weights."""

    walk: tuple[str, int, int, int] | None = None
    """Kind of attention, layer, head and position that the walkthrough follows; None: the
    default."""

    maps: bool = False
    """Whether to compute attribution maps, which need about a hundred runs of the model."""

    def ask(self, usual: DecodeSettings) -> GenerationOptions:
        """Convert the request to `GenerationOptions`.

        `usual`: decoding settings for fields that the request leaves empty.
        """
        given: dict[str, Any] = {
            "beam": self.beam,
            "length_penalty_alpha": self.length_penalty_alpha,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if self.temperature is not None:
            given |= {"sample": True, "temperature": self.temperature, "seed": self.seed}
        if self.beam is not None:
            given |= {"n_best": 1, "groups": 1}  # a smaller beam may not allow more
        decode = replace(usual, **given)
        return GenerationOptions(
            output=self.output, prefix=self.force, decode=decode, max_new_tokens=self.new
        )

    def change(self) -> Intervention:
        return Intervention(
            hidden=frozenset(self.hidden), disabled_heads=frozenset(map(head_named, self.off))
        )


def parse(values: Mapping[str, object]) -> LookRequest:
    """Parse and validate a request. Raise `UserError` with a short message for an invalid value."""
    known = {field.name for field in fields(LookRequest)}
    for name in values:
        if name not in known:
            raise UserError(
                f"unknown key {name[:60]!r} in the request.{suggest(name, sorted(known))}"
            )
    if "text" not in values:
        raise UserError("the request has no key 'text'.")
    return LookRequest(**{name: READERS[name](name, value) for name, value in values.items()})


def head_named(name: str) -> tuple[str, int, int]:
    """Parse the name of a head. `cross.2.5` is head 5 of layer 2 of cross-attention, counted from
    0."""
    kind, *numbers = name.split(".")
    if len(numbers) != 2 or not all(re.fullmatch("[0-9]{1,9}", part) for part in numbers):
        raise UserError(
            f"{name[:60]!r} is not the name of a head. Write kind.layer.head, such as cross.0.3."
        )
    return kind, int(numbers[0]), int(numbers[1])


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UserError(f"{name} must be a string, not {value!r:.40}.")
    if len(value) > MOST_TEXT:
        raise UserError(f"{name} has {len(value):,} characters, but the limit is {MOST_TEXT:,}.")
    return value


def _maybe(read: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else read(name, value)


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    def read(name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise UserError(f"{name} must be an integer from {low} to {high:,}, not {value!r:.40}.")
        return value

    return read


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name} must be a number, not {value!r:.40}.")
    if not abs(value) <= sys.float_info.max:  # also false for NaN
        raise UserError(f"{name} must be a finite number.")
    return float(value)


def _yes(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, not {value!r:.40}.")
    return value


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > 10_000:
        raise UserError(f"{name} must be a list of at most 10,000 entries.")
    return value


def _hidden(name: str, value: object) -> tuple[tuple[str, int], ...]:
    found = []
    for entry in _list(name, value):
        stream, place = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if not isinstance(stream, str) or not isinstance(place, int) or isinstance(place, bool):
            raise UserError(
                f'{name} must be a list of pairs such as ["source", 3], but has {entry!r:.40}.'
            )
        found.append((stream, place))
    return tuple(found)


def _walk(name: str, value: object) -> tuple[str, int, int, int]:
    kind, *numbers = _list(name, value) or [None]
    whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
    if not isinstance(kind, str) or len(numbers) != 3 or len(whole) != 3:
        raise UserError(
            f'{name} must be a list of kind, layer, head and row, such as ["cross", 0, 3, 2], '
            f"not {value!r:.40}."
        )
    return kind, whole[0], whole[1], whole[2]


def _heads(name: str, value: object) -> tuple[str, ...]:
    heads = tuple(_text(name, entry) for entry in _list(name, value))
    for head in heads:
        head_named(head)
    return heads


READERS: Mapping[str, Callable[[str, Any], Any]] = {
    "text": _text,
    "output": _maybe(_text),
    "force": _text,
    "hidden": _hidden,
    "off": _heads,
    "beam": _maybe(_whole(1, MOST_BEAM)),
    "length_penalty_alpha": _maybe(_number),
    "temperature": _maybe(_number),
    "seed": _whole(0, 2**31 - 1),
    "new": _whole(1, MOST_NEW),
    "checkpoint": _maybe(_text),
    "walk": _maybe(_walk),
    "maps": _yes,
}
"""Parsing function for the value of each request key."""


SLOW = "saliency"
"""Name of the section that is computed only on request, because it takes longer than all others
together."""

GREEDY = "While tokens are hidden, the output is decoded greedily and the beam setting is ignored."


@dataclass(frozen=True)
class LivePage:
    """Live page of one run.

    `usual`: decoding settings for fields that a request leaves empty.
    """

    run: LoadedRun
    usual: DecodeSettings
    extras: LookOptions
    media: MediaInput | None = None
    """Input image, video or recording; None if the run reads text. Requests cannot choose files."""

    asked: Mapping[str, str] = field(default_factory=dict)
    """URL for further requests (`post`), and values that the browser sends with each request."""

    @classmethod
    def of(
        cls,
        run: LoadedRun,
        ask: GenerationOptions,
        extras: LookOptions,
        media: MediaInput | None = None,
    ) -> LivePage:
        writes = Anatomy.of(run.model).is_pair
        usual = run.settings.decode if writes else DecodeSettings(beam=1)
        corpus = extras.corpus
        if corpus is not None and not isinstance(corpus, Corpus):
            corpus = Corpus.of(corpus, run)  # read once for all requests
        return cls(run, ask.decode or usual, replace(extras, corpus=corpus), media)

    def page(self, request: LookRequest) -> Page:
        run, label = self._at(request.checkpoint), request.checkpoint or FINAL
        extras = self.extras if request.walk is None else replace(self.extras, walk=request.walk)
        read = request.text if self.media is None else self.media
        looked = prepare_look(run, read, request.ask(self.usual), request.change(), extras)
        if label != FINAL:  # both were measured on the final weights
            looked = replace(looked, final=False, truth=None, tuned=None)
        looked = replace(looked, walk=_within(looked))
        shared = {"live": self._strip(request, looked.trace.reading)}
        names = [name for name in SECTIONS if request.maps or name != SLOW]
        return Page(run.folder.name, [look_data(label, looked, names)], shared, run_facts(run))

    def _at(self, label: str | None) -> LoadedRun:
        if label in (None, FINAL):
            return self.run
        paths = {label_of(path): path for path in checkpoints_of(self.run)}
        if label not in paths:
            raise UserError(f"unknown checkpoint {label!r}.{suggest(label, [*paths, FINAL])}")
        return stage_at(self.run, paths[label]).run

    def _strip(self, request: LookRequest, reading: Reading) -> dict[str, Any]:
        """Return the data for the controls (`web/live.js`): the request, the available choices, and
        the defaults of empty fields."""
        plain = asdict(LookRequest(text=""))
        del plain["text"]
        return {
            "request": asdict(request),
            "asked": dict(self.asked),
            "plain": plain,
            "continues": reading.continues,
            "writes": has_search(self.run),
            "media": self.media is not None,
            "usual": {
                "beam": self.usual.beam,
                "length_penalty_alpha": self.usual.length_penalty_alpha,
            },
            "checkpoints": [*map(label_of, checkpoints_of(self.run)), FINAL],
            "given": reading.n_given or len(reading.first),
            "heads": {
                kind.name: [attention.n_heads for attention in kind.layers]
                for kind in Anatomy.of(self.run.model).kinds
            },
            "answer": self._answer(reading),
            "note": GREEDY if request.hidden and has_search(self.run) else "",
        }

    def _answer(self, reading: Reading) -> str:
        """Return the output of the model as plain text; empty for an embedding."""
        if "target" in reading.streams:
            target = self.run.vocab.target
            return target.decode([i for i in reading.last.ids[1:] if i not in target.specials])
        if reading.continues:
            return self.run.vocab.target.decode(reading.last.ids[reading.n_given :])
        return " ".join(display_piece(output.name) for output in reading.outputs if output.id >= 0)


def _within(looked: LookInputs) -> tuple[str, int, int, int] | None:
    """Return the requested position of the walkthrough; None if the new output is too short to
    contain it."""
    if looked.walk is None:
        return None
    kind, *_, row = looked.walk
    weights = looked.trace.attention.get(kind)
    return looked.walk if weights is None or row < weights[0].shape[1] else None


def initial_request(text: str, ask: GenerationOptions, change: Intervention) -> LookRequest:
    """Convert command-line options to the first request of a live page."""
    output = ask.output
    if output is not None and not isinstance(output, str):
        raise UserError("the output of a served page must be a string, not token ids.")
    return LookRequest(
        text=text,
        output=output,
        force=ask.prefix,
        hidden=tuple(sorted(change.hidden)),
        off=tuple(sorted(f"{kind}.{layer}.{head}" for kind, layer, head in change.disabled_heads)),
        new=ask.max_new_tokens,
    )
