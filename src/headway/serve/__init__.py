"""Any run as an HTTP service: `headway.serve.app(runs)` is the ASGI application of `headway serve`.

It stands on the object that `headway.load` gives and knows no task by its name. Starlette, uvicorn
and python-multipart come with `pip install 'headway[serve]'`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from headway.run import Run
    from headway.serve.keys import Keys
    from headway.serve.limits import Limits

__all__ = ["app"]


def app(
    runs: Run | Iterable[Run],
    *,
    keys: Keys | None = None,
    limits: Limits | None = None,
    **more: Any,
) -> Starlette:
    """The application, for any ASGI server and for tests.

    `runs`: what `headway.load` gives; each is asked for by its name. `keys`: who may ask; None:
    everybody. `limits`: how much. `hosts`: names that requests must be addressed to (None: any),
    `languages`: of translators by their names, as `{"mine": ("de", "en")}`.
    """
    from headway.errors import needs

    for module in ("starlette", "python_multipart"):
        needs(module, "serve")
    from headway.serve.application import make

    return make([runs] if hasattr(runs, "opened") else list(runs), keys, limits, **more)  # type: ignore[list-item]
