"""Conversion of `decode.*` settings to options of CTranslate2.

Settings without an equivalent raise an error that names them, unless they have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headway.decode.logits_processors import always_banned
from headway.decode.search.hypothesis import SpecialTokens
from headway.decode.search.job import length_penalty
from headway.errors import ConfigError, Option
from headway.settings.decode import DecodeSettings

MAPPED = {
    "beam": "beam_size",
    "n_best": "num_hypotheses",
    "length_penalty": "length_penalty: `power` is built in; outputs of `gnmt` are re-ranked",
    "length_penalty_alpha": "length_penalty",
    "coverage": "coverage_penalty",
    "extra_len": "max_decoding_length",
    "max_len": "max_decoding_length, max_length",
    "min_len": "min_decoding_length, min_length",
    "sample": "beam_size=1 with sampling_topk, sampling_topp",
    "temperature": "sampling_temperature",
    "top_k": "sampling_topk",
    "top_p": "sampling_topp",
    "seed": "set_random_seed: the same input in the same order gives the same text",
    "repetition_penalty": "repetition_penalty, before the softmax; tokens of a prompt are not "
    "penalised",
    "no_repeat_ngram": "no_repeat_ngram_size; n-grams of a prompt are not counted",
    "unknown": "disable_unk; `copy` uses return_attention",
    "stop": "callback, or cut off afterwards",
    "batch_tokens": "size of the batches that headway makes",
}
"""CTranslate2 options for each setting. Prefixes become `target_prefix`, banned phrases
`suppress_sequences`, and alignments `return_attention`."""

UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "groups": (1, "CTranslate2 has no diverse beam search"),
    "min_p": (
        0.0,
        "CTranslate2 cannot filter tokens by their probability relative to the best one",
    ),
    "precision": ("fp32", "the precision of the weights is set by `headway export --int8`"),
}
"""Settings without an equivalent: the value that has no effect, and the reason. `diversity` only
has an effect with `groups`. Required phrases are not supported either."""

RERANKING_NOTE = (
    "CTranslate2 has no gnmt length penalty: it searches with its own (n^alpha), and its outputs "
    "are re-ranked by gnmt. With decode.length_penalty=power nothing is re-ranked."
)


def check_options(settings: DecodeSettings) -> None:
    for name, (nothing, reason) in UNSUPPORTED.items():
        value = getattr(settings, name)
        if value != nothing:
            raise ConfigError(
                f"decode.{name}={value} is not supported by {Option('engine', 'ctranslate2')}: "
                f"{reason}. Set decode.{name}={nothing}, or use {Option('engine', 'torch')} with "
                "the run."
            )


def searches(settings: DecodeSettings) -> bool:
    """Return whether this is a beam search; only there a length penalty has an effect."""
    return not settings.sample and settings.beam > 1


def reranks(settings: DecodeSettings) -> bool:
    return (
        searches(settings)
        and settings.length_penalty == "gnmt"
        and settings.length_penalty_alpha > 0
    )


def power(settings: DecodeSettings) -> float:
    """Exponent of CTranslate2's length penalty, which divides log P by (number of
    tokens)^exponent."""
    return 0.0 if settings.length_penalty == "none" else settings.length_penalty_alpha


def divisors(settings: DecodeSettings, longest: int) -> list[float]:
    """Divisors of log P in our length penalty, for each number of tokens."""
    found: list[float] = length_penalty(settings)(torch.arange(longest + 1)).tolist()
    return found


def search_options(
    settings: DecodeSettings, specials: SpecialTokens, tokens: Sequence[str]
) -> dict[str, Any]:
    """Options for both `translate_batch` and `generate_batch`. `tokens`: the target vocabulary."""
    width, n_found = 1, 1
    if searches(settings):
        # All finished hypotheses, for re-ranking; without a penalty it stops at the first one.
        width, n_found = settings.beam, settings.beam if power(settings) else settings.n_best
    elif settings.sample and settings.top_k != 1:  # with top_k=1 all samples would be equal
        n_found = settings.n_best
    banned = set(always_banned(settings, specials)) - {specials.unk}
    told: dict[str, Any] = {
        "beam_size": width,
        "num_hypotheses": n_found,
        "length_penalty": power(settings),
        "repetition_penalty": settings.repetition_penalty,
        "no_repeat_ngram_size": settings.no_repeat_ngram,
        "disable_unk": specials.unk in always_banned(settings, specials),
        "suppress_sequences": [[tokens[token]] for token in sorted(banned)],
        "end_token": tokens[specials.eos],
        "return_end_token": True,
        "return_scores": True,
    }
    if settings.sample:
        told |= {
            "sampling_topk": settings.top_k,
            "sampling_topp": settings.top_p,
            "sampling_temperature": settings.temperature,
        }
    return told
