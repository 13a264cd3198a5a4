"""HTTP service for any run: `headway.serve.app(runs)` is the ASGI application of `headway serve`.

It builds on the object that `headway.load` returns and has no code for single tasks. Starlette,
uvicorn and python-multipart are installed with `pip install 'headway[serve]'`.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from headway.run import Run
    from headway.serve.keys import Keys
    from headway.serve.limits import Limits

__all__ = ["app"]


def app(
    runs: Run | str | Iterable[Run | str],
    *,
    keys: Keys | None = None,
    limits: Limits | None = None,
    **more: Any,
) -> Starlette:
    """Return the ASGI application, for any ASGI server and for tests.

    Args:
        runs: Loaded runs, or names or folders of runs as for `headway.load`. Requests select a run
            by its name.
        keys: API keys that clients may use. None: no key is needed.
        limits: Limits on the size, cost and duration of requests. None: the defaults of `Limits`.
        **more: `hosts`: allowed Host headers; None: any. `languages`: source and target
            language of each translator, by run name, such as `{"mine": ("de", "en")}`.

    Example:
        from headway.serve import app

        translators = app(["tatoeba-de-en", "tatoeba-en-de"])  # uvicorn MODULE:translators
    """
    from headway.errors import needs

    for module in ("starlette", "python_multipart"):
        needs(module, "serve")
    from headway.run import load
    from headway.serve.application import create_app

    given = [runs] if isinstance(runs, str | PathLike) or hasattr(runs, "opened") else [*runs]
    opened = [load(one) if isinstance(one, str | PathLike) else one for one in given]
    return create_app(opened, keys, limits, **more)  # type: ignore[arg-type]
