"""Table of the lab's experiments: names, questions and run times. To load quickly, this module does
not import torch."""

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
"""Default number of seeds. Five seeds detect an effect in 80 % of cases that three seeds detect in
only 37 % (`verdict.power`)."""


@dataclass(frozen=True, kw_only=True)
class ExperimentEntry:
    name: str
    number: int
    question: str
    """Question that the experiment answers, in plain words."""

    quick: float
    """Duration in minutes of a quick run on two cores with `SEEDS` seeds."""

    full: float
    """Duration in minutes of a full run (`--full`) on two cores with `SEEDS` seeds."""

    on_gpu: float | None = None
    """Duration in minutes of a full run on a GPU. None if a GPU makes it no faster."""

    data: str = ""
    """Description of the files for `--data`; empty if the experiment does not support this
    option."""

    def load(self) -> Experiment:
        """Import the module of the experiment and return its `EXPERIMENT`."""
        module = importlib.import_module(f"headway.lab.{self.name.replace('-', '_')}")
        found: Experiment = module.EXPERIMENT
        return found


EXPERIMENTS: dict[str, ExperimentEntry] = {
    entry.name: entry
    for entry in (
        ExperimentEntry(
            name="residuals", number=1, quick=3, full=150, on_gpu=33, data="a text file",
            question="Why are residual connections a good idea?",
        ),
        ExperimentEntry(
            name="roles", number=2, quick=4, full=100, on_gpu=25,
            question="In cross-attention, why do queries come from the decoder, and keys and "
                "values from the encoder?",
        ),
        ExperimentEntry(
            name="shift", number=3, quick=0.2, full=0.3,
            question="Is shifting a positional encoding a linear map?",
        ),
        ExperimentEntry(
            name="frequencies", number=4, quick=3, full=67, on_gpu=17,
            question="Why does the positional encoding use these frequencies?",
        ),
        ExperimentEntry(
            name="concatenate", number=5, quick=5, full=150, on_gpu=33,
            question="Should positions be added to embeddings or concatenated with them?",
            data="a folder with train.de, train.en, val.de and val.en, such as Multi30k",
        ),
        ExperimentEntry(
            name="slow-tail", number=6, quick=5, full=100, on_gpu=25,
            question="Do embeddings store meaning in the low-frequency dimensions of the "
                "positional encoding?",
            data="a folder with train.de, train.en, val.de and val.en, such as Multi30k",
        ),
        ExperimentEntry(
            name="embeddings", number=7, quick=7, full=100, on_gpu=33,
            question="Can pretrained word vectors be reused?",
            data="a folder with train.de, train.en, val.de and val.en, such as Multi30k",
        ),
        ExperimentEntry(
            name="averaging", number=8, quick=5, full=100, on_gpu=25,
            question="Why are the last checkpoints averaged?",
            data="a folder with train.de, train.en, val.de and val.en, such as Multi30k",
        ),
        ExperimentEntry(
            name="beam", number=9, quick=3, full=50,
            question="What does beam search lose by pruning?",
            data="a folder with train.de, train.en, val.de and val.en",
        ),
        ExperimentEntry(
            name="heads", number=10, quick=5, full=67, on_gpu=25,
            question="How many attention heads are needed?",
            data="a folder with train.de, train.en, val.de and val.en",
        ),
        ExperimentEntry(
            name="optimal", number=11, quick=10, full=333, on_gpu=100, data="a text file",
            question="Is the Transformer the optimal architecture?",
        ),
        ExperimentEntry(
            name="maps", number=12, quick=3, full=50, on_gpu=25,
            question="Can attention maps be trusted?",
        ),
        ExperimentEntry(
            name="parallelism", number=13, quick=2, full=17, on_gpu=5,
            question="How much faster does a Transformer train than a recurrent network?",
        ),
        ExperimentEntry(
            name="overfitting", number=14, quick=7, full=133, on_gpu=25, data="a text file",
            question="When does a model begin to overfit, and what delays it?",
        ),
        ExperimentEntry(
            name="scale", number=15, quick=2, full=83, on_gpu=20,
            question="Why are attention scores divided by the square root of the head width?",
        ),
        ExperimentEntry(
            name="order", number=16, quick=4, full=67, on_gpu=20,
            question="What is lost without positional encodings, task by task?",
        ),
    )
}  # fmt: skip


def find(word: str) -> ExperimentEntry:
    """Return an experiment by its name or its number (`1` or `E1`)."""
    text = word.strip().lower()
    if text in EXPERIMENTS:
        return EXPERIMENTS[text]
    numbered = re.fullmatch(r"e?(\d+)", text)
    for entry in EXPERIMENTS.values():
        if numbered and entry.number == int(numbered[1]):
            return entry
    # Suggest an experiment whose question has this word, before one whose name is spelled
    # similarly.
    asked = [one.name for one in EXPERIMENTS.values() if text in one.question.lower()]
    near = (asked if len(text) > 2 else []) or difflib.get_close_matches(
        text, EXPERIMENTS, n=3, cutoff=0.7
    )
    meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    numbers = [entry.number for entry in EXPERIMENTS.values()]
    raise UserError(
        f"unknown experiment {word!r}.{meant} Choose one of {', '.join(EXPERIMENTS)}, or a number "
        f"from {min(numbers)} to {max(numbers)}. `headway lab` lists all experiments."
    )
