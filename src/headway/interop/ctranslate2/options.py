"""Our settings of decoding in the words of CTranslate2, and those it has no words for.

What it has not is refused by name, whoever set it: nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headway.decode.filters import never
from headway.decode.search.hypothesis import Specials
from headway.decode.search.length_penalty import length_penalty
from headway.errors import ConfigError
from headway.settings.decode import DecodeSettings

MAPPED = {
    "beam": "beam_size",
    "n_best": "num_hypotheses",
    "length_penalty": "length_penalty: `power` is its own; outputs of `gnmt` are ranked afterwards",
    "alpha": "length_penalty",
    "coverage": "coverage_penalty",
    "extra_len": "max_decoding_length",
    "max_len": "max_decoding_length, max_length",
    "min_len": "min_decoding_length, min_length",
    "sample": "beam_size=1 with sampling_topk, sampling_topp",
    "temperature": "sampling_temperature",
    "top_k": "sampling_topk",
    "top_p": "sampling_topp",
    "seed": "set_random_seed: the same input in the same order gives the same text",
    "repetition_penalty": "repetition_penalty, before the softmax; a prompt does not count",
    "no_repeat_ngram": "no_repeat_ngram_size; a prompt does not count",
    "unknown": "disable_unk; `copy` by return_attention",
    "stop": "callback, or cut afterwards",
    "batch_tokens": "batches that we make",
}
"""What becomes of each setting. Prefixes are its target_prefix, banned phrases suppress_sequences,
alignments return_attention."""

REFUSED: dict[str, tuple[Any, str]] = {
    "groups": (1, "it has no diverse beam search"),
    "min_p": (0.0, "it cannot cut off unlikely tokens by a share of the best one"),
    "precision": ("fp32", "what weights are held in is decided by `headway export --int8`"),
}
"""What it has not: the value that asks for nothing, and the reason. `diversity` goes with `groups`;
required phrases are refused too."""

AGAIN = (
    "CTranslate2 has no gnmt length penalty: it searches with its own (n^alpha), and what it found "
    "is ranked by gnmt. With decode.length_penalty=power nothing is ranked again."
)


def check_options(settings: DecodeSettings) -> None:
    for name, (nothing, reason) in REFUSED.items():
        value = getattr(settings, name)
        if value != nothing:
            raise ConfigError(
                f"decode.{name}={value} does not go with --engine ctranslate2: {reason}. Set "
                f"decode.{name}={nothing}, or use --engine torch with the run."
            )


def searches(settings: DecodeSettings) -> bool:
    """Whether it is a beam search, in which a length penalty counts."""
    return not settings.sample and settings.beam > 1


def ranks_again(settings: DecodeSettings) -> bool:
    return searches(settings) and settings.length_penalty == "gnmt" and settings.alpha > 0


def power(settings: DecodeSettings) -> float:
    """CTranslate2's length penalty: it divides log P by the number of tokens to this power."""
    return 0.0 if settings.length_penalty == "none" else settings.alpha


def divisors(settings: DecodeSettings, longest: int) -> list[float]:
    """What our penalty divides log P by, for each number of tokens."""
    found: list[float] = length_penalty(settings)(torch.arange(longest + 1)).tolist()
    return found


def search_options(
    settings: DecodeSettings, specials: Specials, tokens: Sequence[str]
) -> dict[str, Any]:
    """For `translate_batch` and `generate_batch` alike; `tokens`: the target vocabulary."""
    width, n_found = 1, 1
    if searches(settings):
        # All that it has finished, for us to rank; without a penalty it stops at the first.
        width, n_found = settings.beam, settings.beam if power(settings) else settings.n_best
    elif settings.sample and settings.top_k != 1:  # else all draws would be the same
        n_found = settings.n_best
    banned = set(never(settings, specials)) - {specials.unk}
    told: dict[str, Any] = {
        "beam_size": width,
        "num_hypotheses": n_found,
        "length_penalty": power(settings),
        "repetition_penalty": settings.repetition_penalty,
        "no_repeat_ngram_size": settings.no_repeat_ngram,
        "disable_unk": specials.unk in never(settings, specials),
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
