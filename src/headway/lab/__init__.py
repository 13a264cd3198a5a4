"""Small experiments that answer classic questions about Transformers on your own machine.

    headway lab                 # list the questions, and how long each takes
    headway lab residuals       # run one: a verdict, a plot and a control experiment

From Python: `from headway.lab import run_experiment`, then `run_experiment("residuals")`. Each
experiment is one module of this package. It trains with `headway.train` and measures with
`headway.load` and `headway.inside`. Models that no setting describes are built with `headway.Parts`
or from the layers of `headway.nn`.
"""

from __future__ import annotations

from headway.lab.catalogue import EXPERIMENTS, ExperimentEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headway.lab.runner import Result, run_experiment

__all__ = ["EXPERIMENTS", "ExperimentEntry", "Result", "run_experiment"]


def __getattr__(name: str) -> object:
    if name not in ("Result", "run_experiment"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headway.lab import runner

    return getattr(runner, name)
