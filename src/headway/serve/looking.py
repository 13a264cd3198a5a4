"""`/v1/look`: the page of `headway look` about one input, and answers to its changes.

A page is made by a twin of the model on the CPU, one at a time, while answers go on. A picture or a
recording that someone sent is kept for a while under a number that cannot be guessed, so that the
page can be asked again about it.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from headway.errors import UserError
from headway.inside.capture.interventions import Change
from headway.inside.capture.media import Media
from headway.inside.capture.reading import PLAINLY, Ask
from headway.inside.page.look import Extras, Page
from headway.inside.page.server_page import Live, request_of
from headway.inside.page.server_request import Request as LookRequest
from headway.inside.page.server_request import parse
from headway.run import Run
from headway.serve.problems import Refused
from headway.settings.run import media_front

KEPT = 8
"""Media that pages can still be asked about; each is as large as the model reads it."""


class Looks:
    def __init__(self, most: int, ready: Mapping[str, Live] | None = None) -> None:
        """`most`: requests that wait for the one that is computed. `ready`: what was opened to be
        looked into already, by the names of the runs."""
        self.most = most
        self._lives: dict[str, Live] = dict(ready or {})
        self._media: OrderedDict[str, Media] = OrderedDict()
        self._lock = threading.Lock()
        self._works: list[Future[Page]] = []
        self._thread = ThreadPoolExecutor(1, "headway-look")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def waiting(self) -> int:
        """Pages that are being made, or wait for that."""
        self._works = [work for work in self._works if not work.done()]
        return len(self._works)

    def make(
        self, run: Run, values: Mapping[str, Any], data: bytes | None, post: str
    ) -> asyncio.Future[Page]:
        """The page of a request: its keys, and the bytes of a medium where it brings one. `post`:
        where the page asks again."""
        if self.waiting > self.most:
            raise Refused(
                429, "too many pages wait to be made already. Try again soon.", code="queue_full",
                headers={"Retry-After": "2"},
            )  # fmt: skip
        work = self._thread.submit(self._made, run, dict(values), data, post)
        self._works.append(work)
        return asyncio.wrap_future(work)

    def _made(self, run: Run, values: dict[str, Any], data: bytes | None, post: str) -> Page:
        live = self._live(run)
        medium = values.pop("medium", None)
        if media_front(run.settings) is not None and live.media is None:
            medium, found = self._medium(run, data, medium)
            live = replace(live, media=found)
            values.setdefault("text", found.name)
        request: LookRequest = parse(values)
        asked = {"post": post, "model": run.name, **({"medium": medium} if medium else {})}
        return replace(live, asked=asked).page(request)

    def _live(self, run: Run) -> Live:
        with self._lock:
            if run.name not in self._lives:
                with run.opened.lock:
                    twin = run.opened.twin()
                self._lives[run.name] = Live.of(twin, PLAINLY, Extras())
            return self._lives[run.name]

    def _medium(self, run: Run, data: bytes | None, name: object) -> tuple[str, Media]:
        if data is None:
            found = self._media.get(str(name))
            if found is None:
                raise UserError(
                    "what this page is about is not kept any more: send the file once more."
                    if name else "send a file to look at."
                )  # fmt: skip
            return str(name), found
        asked = run.question(data)
        if asked.error is not None:
            raise asked.error
        front = media_front(run.settings)
        assert front is not None
        name, found = secrets.token_urlsafe(24), Media.of("input", asked.question.values, front)
        self._media[name] = found
        while len(self._media) > KEPT:
            self._media.popitem(last=False)
        return name, found


GREETING = "Hello."
"""Where no text is given to begin with."""


def live_page(
    run: Run,
    text: str | Media | None,
    ask: Ask,
    change: Change,
    extras: Extras,
) -> tuple[str, Live]:
    """What `headway look --serve` shows first, and what answers to it."""
    media = text if isinstance(text, Media) else None
    live = Live.of(run.opened.twin(), ask, extras, media)
    first = media.name if media is not None else text or GREETING
    assert isinstance(first, str)
    asked = {"post": "/v1/look", "model": run.name}
    html = replace(live, asked=asked).page(request_of(first, ask, change)).live_html
    return html, live
