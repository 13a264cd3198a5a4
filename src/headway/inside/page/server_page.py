"""What a served page shows: the page of a request, and what its strip of controls needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headway.errors import UserError, suggest
from headway.inside.capture.anatomy import Anatomy
from headway.inside.capture.beam import searches
from headway.inside.capture.corpus import Corpus
from headway.inside.capture.interventions import Change
from headway.inside.capture.media import Media
from headway.inside.capture.reading import Ask, Reading
from headway.inside.capture.streams import shown
from headway.inside.measure.checkpoints import FINAL, checkpoints_of, label_of, stage_at
from headway.inside.page.look import Extras, Looked, Page, facts_of, looked_at
from headway.inside.page.sections import SECTIONS, look_of
from headway.inside.page.server_request import Request
from headway.settings.decode import DecodeSettings
from headway.tasks.opened import Opened

SLOW = "saliency"
"""The section that takes longer than all others together; a request has to ask for it."""

GREEDY = "While tokens are hidden, the output is written greedily, whatever the beam."


@dataclass(frozen=True)
class Live:
    """One run that answers requests; `usual` is how it decodes where a request leaves that open."""

    run: Opened
    usual: DecodeSettings
    extras: Extras
    media: Media | None = None
    """What a run of pictures, videos or recordings looks at: requests cannot name files."""

    asked: Mapping[str, str] = field(default_factory=dict)
    """Where the page asks again (`post`), and what it says there besides the request."""

    @classmethod
    def of(cls, run: Opened, ask: Ask, extras: Extras, media: Media | None = None) -> Live:
        writes = Anatomy.of(run.model).is_pair
        usual = run.settings.decode if writes else DecodeSettings(beam=1)
        corpus = extras.corpus
        if corpus is not None and not isinstance(corpus, Corpus):
            corpus = Corpus.of(corpus, run)  # once for all requests
        return cls(run, ask.decode or usual, replace(extras, corpus=corpus), media)

    def page(self, request: Request) -> Page:
        run, label = self._at(request.checkpoint), request.checkpoint or FINAL
        extras = self.extras if request.walk is None else replace(self.extras, walk=request.walk)
        read = request.text if self.media is None else self.media
        looked = looked_at(run, read, request.ask(self.usual), request.change(), extras)
        if label != FINAL:  # what was measured, and what was fitted, is about the final weights
            looked = replace(looked, final=False, truth=None, tuned=None)
        looked = replace(looked, walk=_within(looked))
        shared = {"live": self._strip(request, looked.trace.reading)}
        names = [name for name in SECTIONS if request.maps or name != SLOW]
        return Page(run.folder.name, [look_of(label, looked, names)], shared, facts_of(run))

    def _at(self, label: str | None) -> Opened:
        if label in (None, FINAL):
            return self.run
        paths = {label_of(path): path for path in checkpoints_of(self.run)}
        if label not in paths:
            raise UserError(f"there is no checkpoint {label!r}.{suggest(label, [*paths, FINAL])}")
        return stage_at(self.run, paths[label]).run

    def _strip(self, request: Request, reading: Reading) -> dict[str, Any]:
        """For `web/live.js`: what was asked, what can be asked, and what an empty box means."""
        plain = asdict(Request(text=""))
        del plain["text"]
        return {
            "request": asdict(request),
            "asked": dict(self.asked),
            "plain": plain,
            "continues": reading.continues,
            "writes": searches(self.run),
            "media": self.media is not None,
            "usual": {"beam": self.usual.beam, "alpha": self.usual.alpha},
            "checkpoints": [*map(label_of, checkpoints_of(self.run)), FINAL],
            "given": reading.n_given or len(reading.first),
            "heads": {
                kind.name: [attention.n_heads for attention in kind.layers]
                for kind in Anatomy.of(self.run.model).kinds
            },
            "answer": self._answer(reading),
            "note": GREEDY if request.hidden and searches(self.run) else "",
        }

    def _answer(self, reading: Reading) -> str:
        """What the model says, as plain text; nothing where it says a vector."""
        if "target" in reading.streams:
            target = self.run.vocab.target
            return target.decode([i for i in reading.last.ids[1:] if i not in target.specials])
        if reading.continues:
            return self.run.vocab.target.decode(reading.last.ids[reading.n_given :])
        return " ".join(shown(output.name) for output in reading.outputs if output.id >= 0)


def _within(looked: Looked) -> tuple[str, int, int, int] | None:
    """The token that is followed, unless the new output is too short to have it."""
    if looked.walk is None:
        return None
    kind, *_, row = looked.walk
    weights = looked.trace.attention.get(kind)
    return looked.walk if weights is None or row < weights[0].shape[1] else None


def request_of(text: str, ask: Ask, change: Change) -> Request:
    """What the command line asked for, as the first request."""
    output = ask.output
    if output is not None and not isinstance(output, str):
        raise UserError("a served page takes the output as a text.")
    return Request(
        text=text,
        output=output,
        force=ask.begin,
        hidden=tuple(sorted(change.hidden)),
        off=tuple(sorted(f"{kind}.{layer}.{head}" for kind, layer, head in change.off)),
        new=ask.new,
    )
