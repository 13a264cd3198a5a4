"""Train, use, serve and inspect Transformers of every family.

Importing the package imports no other module, so `headway --help` and the checks of settings stay
fast. Torch is loaded only by the modules that compute with it.
"""

import os

TYPE_CHECKING = False  # as in typing, which takes longer to import than everything else here
if TYPE_CHECKING:
    from headway.api import check, train
    from headway.data.check_report import Report
    from headway.errors import UserError
    from headway.models.parts.custom import Parts
    from headway.run import Run, available, load
    from headway.tasks.answers import Answer, Answers
    from headway.tasks.scores import Scores

# By default, OpenMP threads spin while they wait for each other. If other programs use the CPU,
# spinning makes training steps and decoding several times slower. If threads sleep immediately,
# both are 20 % slower on an idle machine. With this spin count, threads spin for some microseconds,
# the usual wait within a step, and then sleep. OpenMP reads the variable when torch is loaded. A
# value that the user has set is kept.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

__version__ = "0.1.0"

_NAMES = {
    "load": "run", "train": "api", "check": "api", "available": "run", "Run": "run",
    "Answer": "tasks.answers", "Answers": "tasks.answers", "Scores": "tasks.scores",
    "Report": "data.check_report", "UserError": "errors", "Parts": "models.parts.custom",
}  # fmt: skip
"""Modules that define the public names, by name. A module is imported on first use."""

__all__ = [
    "Answer", "Answers", "Parts", "Report", "Run", "Scores", "UserError", "available", "check",
    "load", "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
