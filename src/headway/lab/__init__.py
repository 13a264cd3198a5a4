"""Small experiments that answer the classic questions about Transformers on the reader's machine.

    headway lab                 # the questions, and how long each takes
    headway lab residuals       # an answer: a verdict, a picture and a control

From Python: `from headway.lab import run_experiment`, then `run_experiment("residuals")`.
An experiment is one file beside this, which uses `headway.train`, `headway.load` and
`headway.inside`; models that no setting describes get their parts by `headway.Parts`.
"""

from __future__ import annotations

from headway.lab.experiments import EXPERIMENTS, Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headway.lab.conduct import Result, run_experiment

__all__ = ["EXPERIMENTS", "Entry", "Result", "run_experiment"]


def __getattr__(name: str) -> object:
    if name not in ("Result", "run_experiment"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headway.lab import conduct

    return getattr(conduct, name)
