"""Data of a served page: the page for a request, and the state of its controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headway.errors import UserError, suggest
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.beam import has_search
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.media import MediaInput
from headway.inside.capture.reading import GenerationOptions, Reading
from headway.inside.capture.streams import display_piece
from headway.inside.measure.checkpoints import FINAL, checkpoints_of, label_of, stage_at
from headway.inside.page.look import LookInputs, LookOptions, Page, prepare_look, run_facts
from headway.inside.page.sections import SECTIONS, look_data
from headway.inside.page.server_request import LookRequest
from headway.settings.decode import DecodeSettings
from headway.tasks.loaded_run import LoadedRun

SLOW = "saliency"
"""Section that takes longer than all others together; requests must ask for it."""

GREEDY = "While tokens are hidden, the output is decoded greedily and the beam setting is ignored."


@dataclass(frozen=True)
class LivePage:
    """One run that answers requests; `usual` are its decoding settings where a request leaves them
    open."""

    run: LoadedRun
    usual: DecodeSettings
    extras: LookOptions
    media: MediaInput | None = None
    """Input of a run that reads media: requests cannot name files."""

    asked: Mapping[str, str] = field(default_factory=dict)
    """Address for further requests (`post`), and values that are sent with each of them."""

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
        """Data for `web/live.js`: the request, the available choices, and the defaults of empty
        fields."""
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
        """The output of the model as plain text; empty for a vector."""
        if "target" in reading.streams:
            target = self.run.vocab.target
            return target.decode([i for i in reading.last.ids[1:] if i not in target.specials])
        if reading.continues:
            return self.run.vocab.target.decode(reading.last.ids[reading.n_given :])
        return " ".join(display_piece(output.name) for output in reading.outputs if output.id >= 0)


def _within(looked: LookInputs) -> tuple[str, int, int, int] | None:
    """The token to follow; None if the new output is too short to contain it."""
    if looked.walk is None:
        return None
    kind, *_, row = looked.walk
    weights = looked.trace.attention.get(kind)
    return looked.walk if weights is None or row < weights[0].shape[1] else None


def initial_request(text: str, ask: GenerationOptions, change: Intervention) -> LookRequest:
    """Convert the options of the command line to the first request."""
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
