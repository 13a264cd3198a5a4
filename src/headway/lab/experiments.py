"""The table of experiments: names, questions and times. It needs no torch."""

from __future__ import annotations

import difflib
import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.errors import UserError

if TYPE_CHECKING:
    from headway.lab.experiment import Experiment


SEEDS = 5
"""Three seeds find 37 % of the effects that five find in 80 % of cases (`verdict.power`)."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    name: str
    number: int
    question: str
    """In plain words."""

    quick: float
    """Minutes on two cores with `SEEDS` seeds."""

    full: float
    """The same of `--full`."""

    on_gpu: float | None = None
    """Minutes of `--full` where there is a GPU. None: it gains nothing by one."""

    data: str = ""
    """What `--data` may name; empty: it takes none."""

    def load(self) -> Experiment:
        """The experiment itself, which lies in the module of its name."""
        module = importlib.import_module(f"headway.lab.{self.name.replace('-', '_')}")
        found: Experiment = module.EXPERIMENT
        return found


EXPERIMENTS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="residuals", number=1, quick=3, full=150, on_gpu=33, data="a text file",
            question="Why are residual connections a good idea?",
        ),
        Entry(
            name="roles", number=2, quick=4, full=100, on_gpu=25,
            question="Why do queries come from the decoder, and keys and values from the encoder?",
        ),
        Entry(
            name="shift", number=3, quick=0.2, full=0.3,
            question="Is the shift of the position code linear?",
        ),
        Entry(
            name="frequencies", number=4, quick=3, full=67, on_gpu=17,
            question="Why these frequencies in the position code?",
        ),
        Entry(
            name="concatenate", number=5, quick=5, full=150, on_gpu=33,
            question="Are positions better added to embeddings, or written beside them?",
            data="a folder of train.de, train.en, val.de and val.en, such as Multi30k",
        ),
        Entry(
            name="slow-tail", number=6, quick=5, full=100, on_gpu=25,
            question="Does training keep the slow part of the position code for meaning?",
            data="a folder of train.de, train.en, val.de and val.en, such as Multi30k",
        ),
        Entry(
            name="embeddings", number=7, quick=7, full=100, on_gpu=33,
            question="Can word vectors that were learned elsewhere be reused?",
            data="a folder of train.de, train.en, val.de and val.en, such as Multi30k",
        ),
        Entry(
            name="averaging", number=8, quick=5, full=100, on_gpu=25,
            question="Why are the last checkpoints averaged?",
            data="a folder of train.de, train.en, val.de and val.en, such as Multi30k",
        ),
        Entry(
            name="beam", number=9, quick=3, full=50,
            question="How does beam search prune, and what does it lose?",
            data="a folder with train.de, train.en, val.de and val.en",
        ),
        Entry(
            name="heads", number=10, quick=5, full=67, on_gpu=25,
            question="How many heads are needed?",
            data="a folder with train.de, train.en, val.de and val.en",
        ),
        Entry(
            name="optimal", number=11, quick=10, full=333, on_gpu=100, data="a text file",
            question="Is the Transformer optimal?",
        ),
        Entry(
            name="maps", number=12, quick=3, full=50, on_gpu=25,
            question="Can maps of attention be trusted?",
        ),
        Entry(
            name="parallelism", number=13, quick=2, full=17, on_gpu=5,
            question="How much faster does a Transformer train than a recurrence?",
        ),
        Entry(
            name="overfitting", number=14, quick=7, full=133, on_gpu=25, data="a text file",
            question="When does a model begin to learn by heart, and what puts it off?",
        ),
        Entry(
            name="scale", number=15, quick=2, full=83, on_gpu=20,
            question="Why are scores divided by the root of the head's width?",
        ),
        Entry(
            name="order", number=16, quick=4, full=67, on_gpu=20,
            question="What is lost without positions, task by task?",
        ),
    )
}  # fmt: skip


def find(word: str) -> Entry:
    """By name, by number (`1`) or as the literature of this project counts them (`E1`)."""
    text = word.strip().lower()
    if text in EXPERIMENTS:
        return EXPERIMENTS[text]
    numbered = re.fullmatch(r"e?(\d+)", text)
    for entry in EXPERIMENTS.values():
        if numbered and entry.number == int(numbered[1]):
            return entry
    # A word of a question says more than a name that looks like it; a typing error comes close.
    asked = [one.name for one in EXPERIMENTS.values() if text in one.question.lower()]
    near = (asked if len(text) > 2 else []) or difflib.get_close_matches(
        text, EXPERIMENTS, n=3, cutoff=0.7
    )
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    numbers = [entry.number for entry in EXPERIMENTS.values()]
    raise UserError(
        f"there is no experiment {word!r}.{meant} `headway lab` lists them: "
        f"{', '.join(EXPERIMENTS)}; their numbers go from {min(numbers)} to {max(numbers)}."
    )
