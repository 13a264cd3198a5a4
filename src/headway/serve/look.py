"""Route `/v1/look`: the page of `headway look` for one input, and updates when its controls change.

A copy of the model on the CPU computes one page at a time, while the model itself answers requests.
Uploaded media files are kept for a while under ids that cannot be guessed. The page can therefore
request updates without sending the file again.
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
from headway.inside.capture.interventions import Intervention
from headway.inside.capture.media import MediaInput
from headway.inside.capture.reading import DEFAULT_OPTIONS, GenerationOptions
from headway.inside.page.live import LivePage, LookRequest, initial_request, parse
from headway.inside.page.look import LookOptions, Page
from headway.run import Run
from headway.serve.errors import RequestRejected
from headway.settings.run import media_settings

KEPT = 8
"""Maximum number of uploaded files that are kept. Each is stored at the size that the model
reads."""


class LookService:
    def __init__(self, max_waiting: int, ready: Mapping[str, LivePage] | None = None) -> None:
        """Create the service.

        `max_waiting`: maximum number of requests that wait while one is computed. `ready`: models
        that are already opened for inspection, by the name of the run.
        """
        self.max_waiting = max_waiting
        self._lives: dict[str, LivePage] = dict(ready or {})
        self._media: OrderedDict[str, MediaInput] = OrderedDict()
        self._lock = threading.Lock()
        self._futures: list[Future[Page]] = []
        self._thread = ThreadPoolExecutor(1, "headway-look")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def waiting(self) -> int:
        """Number of pages that are being computed or are waiting."""
        self._futures = [work for work in self._futures if not work.done()]
        return len(self._futures)

    def submit(
        self, run: Run, values: Mapping[str, Any], data: bytes | None, post: str
    ) -> asyncio.Future[Page]:
        """Compute the page for a request.

        `data`: content of an uploaded file; None without one. `post`: URL to which the page sends
        its updates.
        """
        if self.waiting > self.max_waiting:
            raise RequestRejected(
                429, "too many requests to /v1/look are waiting. Retry in 2 s.", code="queue_full",
                headers={"Retry-After": "2"},
            )  # fmt: skip
        work = self._thread.submit(self._compute_page, run, dict(values), data, post)
        self._futures.append(work)
        return asyncio.wrap_future(work)

    def _compute_page(
        self, run: Run, values: dict[str, Any], data: bytes | None, post: str
    ) -> Page:
        live = self._live(run)
        medium = values.pop("medium", None)
        if media_settings(run.settings) is not None and live.media is None:
            medium, found = self._medium(run, data, medium)
            live = replace(live, media=found)
            values.setdefault("text", found.name)
        request: LookRequest = parse(values)
        asked = {"post": post, "model": run.name, **({"medium": medium} if medium else {})}
        return replace(live, asked=asked).page(request)

    def _live(self, run: Run) -> LivePage:
        with self._lock:
            if run.name not in self._lives:
                with run.opened.lock:
                    twin = run.opened.inspection_copy()
                self._lives[run.name] = LivePage.of(twin, DEFAULT_OPTIONS, LookOptions())
            return self._lives[run.name]

    def _medium(self, run: Run, data: bytes | None, name: object) -> tuple[str, MediaInput]:
        if data is None:
            found = self._media.get(str(name))
            if found is None:
                raise UserError(
                    "the server no longer holds the file of this page. Upload it again."
                    if name else "this model reads media: upload a file to inspect."
                )  # fmt: skip
            return str(name), found
        asked = run.question(data)
        if asked.error is not None:
            raise asked.error
        front = media_settings(run.settings)
        assert front is not None
        name, found = secrets.token_urlsafe(24), MediaInput.of("input", asked.value.values, front)
        self._media[name] = found
        while len(self._media) > KEPT:
            self._media.popitem(last=False)
        return name, found


DEFAULT_TEXT = "Hello."
"""Input of the first page if no text is given."""


def live_page(
    run: Run,
    text: str | MediaInput | None,
    ask: GenerationOptions,
    change: Intervention,
    extras: LookOptions,
) -> tuple[str, LivePage]:
    """Return the first page of `headway look --serve`, and the object that answers its updates."""
    media = text if isinstance(text, MediaInput) else None
    live = LivePage.of(run.opened.inspection_copy(), ask, extras, media)
    first = media.name if media is not None else text or DEFAULT_TEXT
    assert isinstance(first, str)
    asked = {"post": "/v1/look", "model": run.name}
    html = replace(live, asked=asked).page(initial_request(first, ask, change)).live_html
    return html, live
