"""Evaluation of generated texts by metrics that compare them with references, and baselines.

How the texts are generated, in validation and for a test set, is in `seq2seq.py` and in the modules
of the tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headway.decode.writer import Writer
from headway.metrics import translation
from headway.metrics.captions import DocumentFrequencies, cider
from headway.metrics.language import perplexity
from headway.metrics.speech import character_errors, word_errors
from headway.metrics.translation import CorpusScore, Reference, as_list
from headway.progress import Progress
from headway.settings.data import DataSettings
from headway.tasks.evaluate import Evaluator
from headway.tasks.scores import Range, ScoreRow, Scores
from headway.tasks.seq2seq_dataset import Seq2SeqDataset
from headway.tasks.thumbnails import Thumbnail


@dataclass(frozen=True)
class GeneratedTexts:
    outputs: Sequence[str]
    references: Sequence[Reference]
    corpus: Sequence[Reference]
    """References from which CIDEr computes document frequencies. They are those of the whole set,
    even if only some examples are scored."""

    lowercase: bool = False
    tokenize: str = "13a"
    """Name of BLEU's tokenizer; `13a` is sacreBLEU's default."""

    @property
    def flat_references(self) -> list[str]:
        """References as a flat list, for metrics that take one reference per output."""
        return [one for of_one in self.references for one in as_list(of_one)]


TEXT_METRICS: dict[str, Callable[[GeneratedTexts], CorpusScore]] = {
    "exact_match": lambda j: translation.exact_match(
        j.outputs, j.references, lowercase=j.lowercase
    ),
    "bleu": lambda j: translation.bleu(
        j.outputs, j.references, lowercase=j.lowercase, tokenize=j.tokenize
    ),
    "chrf": lambda j: translation.chrf(j.outputs, j.references, lowercase=j.lowercase),
    "cider": lambda j: cider(j.outputs, j.references, DocumentFrequencies.of(j.corpus)),
    "wer": lambda j: CorpusScore("WER", 100.0 * word_errors(j.flat_references, j.outputs).rate, ""),
    "cer": lambda j: CorpusScore(
        "CER", 100.0 * character_errors(j.flat_references, j.outputs).rate, ""
    ),
}


def text_scores(names: Sequence[str], judged: GeneratedTexts) -> dict[str, CorpusScore]:
    """Return the scores of generated texts by metric name; rates are in percent. Names of metrics
    that do not compare texts are skipped."""
    return {name: TEXT_METRICS[name](judged) for name in names if name in TEXT_METRICS}


def most_common(texts: Iterable[str]) -> str:
    """Return the most frequent text; the first of several that are equally frequent."""
    [(text, _)] = Counter(texts).most_common(1)
    return text


@dataclass(frozen=True)
class EvalSet:
    """Examples on which generated texts are evaluated: sources with their references."""

    sources: Sequence[Any]
    references: Sequence[Reference]
    """References of each source: one text, or several equally correct ones."""

    names: Sequence[str]
    """Names of the sources, for lists of examples."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    """Additional details of the examples, for JSON output."""

    files: DataSettings | None = None
    """Data settings that name the files of a test set; None for the validation set."""

    dataset: Seq2SeqDataset | None = None
    """Tokenized examples, from which the loss is computed; None if only texts are known."""

    def first(self, n: int) -> EvalSet:
        return replace(
            self, sources=self.sources[:n], references=self.references[:n], names=self.names[:n]
        )


@dataclass(frozen=True)
class TextPredictions:
    """Texts generated for the first sources of an evaluation set, with the loss and other
    results."""

    outputs: Sequence[str]
    loss: float | None = None
    """Loss in nats per target token, without label smoothing; None if it is not known."""

    details: Sequence[ScoreRow] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Additional results, such as the decoding speed, for JSON output."""


@dataclass(frozen=True)
class TextEvaluator(Evaluator[EvalSet, TextPredictions]):
    """Base class of evaluators that score generated texts, in validation and on test sets."""

    names: Sequence[str]
    """Names of the metrics to compute."""

    unit: str
    n_samples: int
    """Number of examples that the report shows."""

    lowercase: bool = False
    tokenize: str = "13a"

    def intervals(self, judged: GeneratedTexts) -> Mapping[str, Range]:
        """Return the 95 % confidence intervals by metric."""
        return {}

    def details(
        self, judged: GeneratedTexts, examples: EvalSet
    ) -> tuple[list[ScoreRow], dict[str, Any]]:
        """Return results other than metrics, as table rows and as a JSON-compatible dictionary."""
        return [], {}

    def thumbnails(self, examples: EvalSet, outputs: Sequence[str]) -> dict[str, list[Thumbnail]]:
        return {}

    def judged(self, outputs: Sequence[str], examples: EvalSet) -> GeneratedTexts:
        references = examples.references[: len(outputs)]
        return GeneratedTexts(
            outputs, references, examples.references, self.lowercase, self.tokenize
        )

    def values(self, outputs: Sequence[str], examples: EvalSet) -> dict[str, float]:
        found = text_scores(self.names, self.judged(outputs, examples))
        return {name: score.value for name, score in found.items()}

    def score(self, predictions: TextPredictions, examples: EvalSet, full: bool) -> Scores:
        outputs, loss = predictions.outputs, predictions.loss
        judged = self.judged(outputs, examples)
        found = text_scores(self.names, judged)
        signatures = {name: one.signature for name, one in found.items() if one.signature}
        values = {name: one.value for name, one in found.items()}
        if loss is not None:
            of_loss = {"loss": loss, "ppl": perplexity(loss)}
            values |= {name: one for name, one in of_loss.items() if name in self.names}
        details, facts = self.details(judged, examples) if full else ([], {})
        if signatures:
            facts = {"signatures": signatures, **facts}
        return Scores(
            values, n=len(outputs), unit=self.unit,
            remarks={**signatures, "loss": "nats per target token, without label smoothing"},
            find_intervals=lambda: self.intervals(judged),
            details=[*details, *predictions.details],
            facts={**examples.facts, **facts, **predictions.facts},
            samples=self._samples(examples, outputs),
            figures=self.thumbnails(examples, outputs) if full else {},
            find_answers=lambda: (outputs, judged.references),
        )  # fmt: skip

    def _samples(self, examples: EvalSet, outputs: Sequence[str]) -> list[dict[str, str]]:
        names = examples.names[: self.n_samples]
        return [
            {
                "source": name,
                "target": right if isinstance(right, str) else " │ ".join(right),
                "output": output,
            }
            for name, right, output in zip(names, examples.references, outputs, strict=False)
        ]


def loss_of(
    writer: Writer, pairs: Iterable[tuple[Any, str]], n: int, progress: Progress, unit: str
) -> float | None:
    """Return the loss in nats per token, including end tokens; None with an engine, because engines
    only decode."""
    if not writer.models:
        return None
    total, count = 0.0, 0
    with progress.stage("computing the loss", n, unit) as stage:
        for number, score in enumerate(writer.score(pairs), 1):
            total, count = total - score.log_prob, count + score.n_tokens
            stage.update(number)
    return total / max(1, count)


def texts_of(
    writer: Writer, sources: Sequence[Any], progress: Progress, doing: str, unit: str
) -> list[str]:
    with progress.stage(doing, len(sources), unit) as stage:
        return [found.text for found in writer.write(sources, on_progress=stage.update)]
