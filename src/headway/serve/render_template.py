"""Program that renders chat templates under resource limits. `serve.template` starts it as a
process.

It imports nothing from headway, so that it starts quickly and holds no model. For each line of
standard input, a JSON object, it writes one line of JSON.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 512 << 20
"""Maximum size of the address space in bytes."""

CPU_SECONDS = 1
"""Maximum CPU time in seconds per request. If it is exceeded, the kernel kills this process."""

MOST_STEPS = 1_000_000
"""Maximum total length of all `range()` calls in one rendering."""


def set_limits() -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with suppress(OSError):
        os.nice(5)  # requests to models go first


def limit_cpu() -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(
            resource.RLIMIT_CPU, (math.ceil(time.process_time()) + CPU_SECONDS, hard)
        )


class RangeBudget:
    """Replacement for `range` in templates, with a limit on the total length of all calls in a
    rendering."""

    def __init__(self) -> None:
        self.remaining = MOST_STEPS

    def __call__(self, *bounds: int) -> range:
        found = range(*bounds)
        self.remaining -= min(len(found), MOST_STEPS + 1)
        if self.remaining < 0:
            raise OverflowError(f"the range() calls have more than {MOST_STEPS:,} steps")
        return found


def raise_exception(message: str) -> str:
    raise ValueError(message)


def plain_json(value: Any, **more: Any) -> str:
    """Return a value as JSON without HTML escapes. Jinja's own `tojson` filter escapes quotes for
    HTML."""
    return json.dumps(value, ensure_ascii=False, **more)


@lru_cache(1)
def compiled(text: str) -> Template:
    around = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    around.filters["tojson"] = plain_json
    around.globals |= {
        "raise_exception": raise_exception, "add_generation_prompt": True, "tools": None,
        "documents": None, "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }  # fmt: skip
    return around.from_string(text)


def rendered(template: str, values: dict[str, Any], most: int) -> str:
    """Return the rendered template. `most`: maximum number of characters in the result."""
    parts: list[str] = []
    size = 0
    pieces: Iterator[str] = compiled(template).generate(range=RangeBudget(), **values)
    for piece in pieces:
        size += len(piece)
        if size > most:
            raise OverflowError(f"the prompt has more than {most:,} characters")
        parts.append(piece)
    return "".join(parts)


def answer(line: bytes) -> bytes:
    asked = json.loads(line)
    limit_cpu()
    try:
        found = {"text": rendered(asked["template"], asked["values"], asked["most"])}
    except Exception as error:  # a template can raise whatever it likes
        found = {"error": (str(error) or type(error).__name__)[:200]}
    return json.dumps(found).encode() + b"\n"


def main() -> None:
    # Ctrl-C in a terminal reaches this process as well. Ignore it, because the server first
    # finishes its requests and then closes standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_limits()
    out = sys.stdout.buffer
    out.write(b"ready\n")
    out.flush()
    for line in sys.stdin.buffer:
        out.write(answer(line))
        out.flush()


if __name__ == "__main__":
    main()
