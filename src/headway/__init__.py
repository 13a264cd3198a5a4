"""Train, use and look inside Transformers of every family.

Importing the package imports nothing else: `headway --help` and settings checks stay quick
because torch is loaded only by the modules that compute.
"""

import os

TYPE_CHECKING = False  # as in typing, which takes longer to import than all the rest
if TYPE_CHECKING:
    from headway.api import check, train
    from headway.data.check_report import Report
    from headway.errors import UserError
    from headway.models.parts.custom import Parts
    from headway.run import Run, available, load
    from headway.tasks.answers import Answer, Answers
    from headway.tasks.scores import Scores

# Threads of OpenMP that wait for each other spin. Where other work holds the cores they spin away
# their own share, and steps and searches become several times slower; asleep at once, they take a
# fifth longer on a quiet machine. So they spin for some microseconds, which is what they wait in a
# step, and then sleep. This is read when torch is loaded; who sets either has it their way.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

__version__ = "0.1.0"

_NAMES = {
    "load": "run", "train": "api", "check": "api", "available": "run", "Run": "run",
    "Answer": "tasks.answers", "Answers": "tasks.answers", "Scores": "tasks.scores",
    "Report": "data.check_report", "UserError": "errors", "Parts": "models.parts.custom",
}  # fmt: skip
"""What the package offers, and the modules that have it: they are imported when it is used."""

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
