"""Any run as an HTTP service: `headway.serve.app(runs)` is the ASGI application of `headway serve`.

It stands on the object that `headway.load` gives and knows no task by its name. Starlette, uvicorn
and python-multipart come with `pip install 'headway[serve]'`.
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
    """The application, for any ASGI server and for tests.

    `runs`: what `headway.load` gives, or what it takes; each is asked for by its name. `keys`: who
    may ask; None: everybody. `limits`: how much. `hosts`: names that requests must be addressed to
    (None: any), `languages`: of translators by their names, as `{"mine": ("de", "en")}`.
    """
    from headway.errors import needs

    for module in ("starlette", "python_multipart"):
        needs(module, "serve")
    from headway.run import load
    from headway.serve.application import make

    given = [runs] if isinstance(runs, str | PathLike) or hasattr(runs, "opened") else [*runs]
    opened = [load(one) if isinstance(one, str | PathLike) else one for one in given]
    return make(opened, keys, limits, **more)  # type: ignore[arg-type]
