"""How good texts are that a model wrote, by the metrics that a task names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.metrics import translation
from headway.metrics.captions import Frequencies, cider
from headway.metrics.speech import character_errors, word_errors
from headway.metrics.translation import Reference, several


@dataclass(frozen=True)
class Judged:
    outputs: Sequence[str]
    references: Sequence[Reference]
    corpus: Sequence[Reference]
    """In which it is counted how rare words are: all that were written, also about others."""

    lowercase: bool = False

    @property
    def only(self) -> list[str]:
        """References, where there is one for each."""
        return [one for of_one in self.references for one in several(of_one)]


MEASURES: dict[str, Callable[[Judged], float]] = {
    "exact": lambda j: (
        translation.exact_match(j.outputs, j.references, lowercase=j.lowercase).value
    ),
    "bleu": lambda j: translation.bleu(j.outputs, j.references, lowercase=j.lowercase).value,
    "chrf": lambda j: translation.chrf(j.outputs, j.references, lowercase=j.lowercase).value,
    "cider": lambda j: cider(j.outputs, j.references, Frequencies.of(j.corpus)).value,
    "wer": lambda j: 100.0 * word_errors(j.only, j.outputs).rate,
    "cer": lambda j: 100.0 * character_errors(j.only, j.outputs).rate,
}


def measured(
    names: Sequence[str],
    outputs: Sequence[str],
    references: Sequence[Reference],
    corpus: Sequence[Reference] | None = None,
    *,
    lowercase: bool = False,
) -> dict[str, float]:
    """Those of these metrics that are about texts; shares in percent."""
    judged = Judged(outputs, references, references if corpus is None else corpus, lowercase)
    return {name: MEASURES[name](judged) for name in names if name in MEASURES}
