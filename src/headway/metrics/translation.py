"""BLEU and chrF from sacreBLEU with their signatures, intervals and significance tests.

sacreBLEU is imported on use, so the rest of the library works without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.errors import UserError, suggest
from headway.metrics.interval import Interval
from headway.metrics.moses import tokenise
from headway.settings.listed import ensure_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

SAMPLES = 1000
"""Number of bootstrap samples, the default of sacreBLEU."""

SEED = 12345
"""Random seed of the bootstrap, the default of sacreBLEU."""

N_GRAMS = 4
"""Maximum length of the n-grams of BLEU (Papineni et al. 2002)."""


Reference = str | Sequence[str]
"""One reference of an output, or several alternative references."""


@dataclass(frozen=True)
class CorpusScore:
    """A score and the sacreBLEU signature that makes it comparable."""

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Comparison:
    """Difference between two systems (first minus second) with its 95 % interval, and the p-value
    of the hypothesis that they do not differ."""

    difference: Interval
    p_value: float


def bleu(
    outputs: Sequence[str],
    references: Sequence[Reference],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> CorpusScore:
    """Return corpus BLEU. `tokenize`: name of a sacreBLEU tokenizer (13a, intl, zh, ja-mecab, char,
    none …)."""
    outputs, references = _pairs(outputs, references)
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(lowercase=lowercase, tokenize=_tokenizer(tokenize), force=True)
    value = metric.corpus_score(list(outputs), _streams(references)).score
    return CorpusScore("BLEU", value, str(metric.get_signature()))


def chrf(
    outputs: Sequence[str],
    references: Sequence[Reference],
    *,
    lowercase: bool = False,
    word_order: int = 0,
) -> CorpusScore:
    """Return corpus chrF. The default uses only characters; `word_order=2` gives chrF++."""
    outputs, references = _pairs(outputs, references)
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF(lowercase=lowercase, word_order=word_order)
    value = metric.corpus_score(list(outputs), _streams(references)).score
    return CorpusScore("chrF" + "+" * word_order, value, str(metric.get_signature()))


def tokenised_bleu(
    outputs: Sequence[str], references: Sequence[str], language: str, *, lowercase: bool = True
) -> CorpusScore:
    """Return BLEU on lower-cased tokenized text, only for comparison with papers that report it.

    Outputs and references are normalized and tokenized by headway's Moses rules, then compared word
    by word.
    """
    score = bleu(
        moses(outputs, language, lowercase=lowercase),
        moses(references, language, lowercase=lowercase),
        tokenize="none",
    )
    case = "lc" if lowercase else "mixed"
    signature = score.signature.replace("tok:none", f"tok:moses-{language}")
    signature = signature.replace("case:mixed", f"case:{case}")
    name = "tokenised lower-cased BLEU" if lowercase else "tokenised BLEU"
    return CorpusScore(name, score.value, signature)


def moses(texts: Sequence[str], language: str, *, lowercase: bool) -> list[str]:
    """Normalize and tokenize texts by Moses rules, and join their tokens by spaces."""
    # Lower-case before tokenizing, as published pipelines do, because case decides which periods
    # mark abbreviations.
    cased = [text.lower() for text in texts] if lowercase else texts
    return [" ".join(tokenise(text, language, normalise=True)) for text in cased]


def exact_match(
    outputs: Sequence[str], references: Sequence[Reference], *, lowercase: bool = False
) -> CorpusScore:
    """Return the percentage of outputs that exactly equal their reference, or one of several."""
    outputs, references = _pairs(outputs, references)
    folded = str.lower if lowercase else str
    pairs = zip(outputs, references, strict=True)
    same = sum(folded(output) in map(folded, as_list(these)) for output, these in pairs)
    return CorpusScore("exact match", 100.0 * same / len(outputs), "")


def bleu_interval(
    outputs: Sequence[str],
    references: Sequence[Reference],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> Interval:
    """Return BLEU with its 95 % bootstrap interval over sentences."""
    counts = _counts(outputs, references, lowercase, tokenize)
    return _interval(_bleu_of(counts.sum(0)), _bleu_of(_resampled(counts)))


def compare_bleu(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> Comparison:
    """Compare two systems by a paired bootstrap test, on the same resampled sentences.

    The p-value is two-sided: the probability of a difference this large by chance. It is computed
    from resampled differences shifted to mean zero (Riezler and Maxwell 2005), as in sacreBLEU.
    """
    a = _counts(first, references, lowercase, tokenize)
    b = _counts(second, references, lowercase, tokenize)
    real = float(_bleu_of(a.sum(0)) - _bleu_of(b.sum(0)))
    drawn = _bleu_of(_resampled(a)) - _bleu_of(_resampled(b))
    extreme = np.abs(drawn - drawn.mean()) >= abs(real)
    p_value = (int(extreme.sum()) + 1) / (SAMPLES + 1)
    return Comparison(_interval(real, drawn), p_value)


def _counts(
    outputs: Sequence[str], references: Sequence[Reference], lowercase: bool, tokenize: str
) -> Numbers:
    """Return one row of BLEU statistics per sentence: the numbers of matching n-grams and of all
    n-grams for each order, and the lengths of output and reference."""
    outputs, references = _pairs(outputs, references)
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(
        lowercase=lowercase, tokenize=_tokenizer(tokenize), force=True, effective_order=True
    )
    rows = []
    for output, reference in zip(outputs, references, strict=True):
        score = metric.sentence_score(output, as_list(reference))
        rows.append([*score.counts, *score.totals, score.sys_len, score.ref_len])
    return np.array(rows, dtype=np.float64)


def _resampled(counts: Numbers) -> Numbers:
    """Return sums of the statistics over sentences drawn with replacement, one row per bootstrap
    sample. The seed is fixed, so every system gets the same sentences."""
    random = np.random.default_rng(SEED)
    n = len(counts)
    return np.stack([counts[random.integers(n, size=n)].sum(0) for _ in range(SAMPLES)])


def _bleu_of(sums: Numbers) -> Numbers:
    """Return corpus BLEU from statistics summed over sentences (last axis), smoothed as sacreBLEU
    does by default."""
    matched, total = sums[..., :N_GRAMS], sums[..., N_GRAMS : 2 * N_GRAMS]
    n_output, n_reference = sums[..., -2], sums[..., -1]
    # The k-th order without a match counts as 2^-k matches. An output without any match gets BLEU
    # 0.
    halvings = 2.0 ** np.cumsum(matched == 0, axis=-1)
    smooth = np.where(matched == 0, 1 / halvings, matched)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(total > 0, smooth / total, 0.0)
        brevity = np.minimum(0.0, 1 - n_reference / n_output)
        value = 100 * np.exp(brevity + np.log(precision).mean(-1))
    return np.where(matched.sum(-1) > 0, value, 0.0)


def _interval(value: Numbers | float, drawn: Numbers) -> Interval:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Interval(float(value), float(low), float(high))


def as_list(reference: Reference) -> list[str]:
    return [reference] if isinstance(reference, str) else list(reference)


def _streams(references: Sequence[Reference]) -> list[Sequence[str]]:
    """Transpose references for sacreBLEU: the first reference of every output, then the second, and
    so on. None where an output has no more references."""
    rows: Any = zip_longest(*map(as_list, references))
    return [list(row) for row in rows]


def _pairs(
    outputs: Sequence[str], references: Sequence[Reference]
) -> tuple[Sequence[str], Sequence[Reference]]:
    outputs, references = ensure_list(outputs), ensure_list(references)
    if len(outputs) != len(references):
        raise UserError(
            f"there are {len(outputs):,} outputs but {len(references):,} references. Give one "
            "reference per output."
        )
    if not outputs:
        raise UserError("there are no outputs and no references to score.")
    return outputs, references


def _tokenizer(name: str) -> str:
    from sacrebleu.metrics.bleu import BLEU

    if name not in BLEU.TOKENIZERS:
        raise UserError(
            f"sacreBLEU has no tokenizer named {name!r}.{suggest(name, BLEU.TOKENIZERS)}"
        )
    return name
