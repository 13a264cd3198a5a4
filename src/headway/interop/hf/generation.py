"""Convert between `generation_config.json` and headway's `decode.*` settings. Older folders have
the same keys in `config.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.decode.logits_processors import SpecialTokens
from headway.interop.foreign_config import ForeignConfig
from headway.settings.decode import DecodeSettings
from headway.settings.model import ModelSettings
from headway.tokens.tokenizer import Tokenizer
from headway.tokens.whisper import LANGUAGES, NO_TIMES

SAMPLING = {"temperature": "temperature", "top_p": "top_p", "min_p": "min_p"}
WITHOUT_A_PLACE = {
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "guidance_scale": None,
    "penalty_alpha": None,
}
"""Unsupported keys that change the output, each with the value that has no effect."""

MOST_TOKENS = 1 << 20
"""Maximum allowed token count in a configuration, larger than the context of any model."""

NEW_TOKENS = 256
"""Maximum number of new tokens in an exported configuration if the run does not set one."""

WHISPER_TASKS = ("<|transcribe|>", "<|translate|>")
"""Task tokens of Whisper: `transcribe` writes the spoken language, `translate` writes English."""


def decode_settings(
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    *,
    has_source: bool,
    translates: bool = False,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return `decode.*` settings, and notes on keys that have no equivalent.

    Absent keys have the defaults of `generate`: greedy search, a score divided by the length for
    beam search, and no ban of the unknown token.

    `translates`: whether outputs are about as long as their source. If so, headway's own length
    limit is set as well. Without it, a beam search whose score is divided by the length continues
    much longer without finding a better output.
    """
    given = ForeignConfig({**config, **generation}, "generation_config.json")
    beam = given.integer("num_beams", 1, most=1024)
    found: dict[str, Any] = {"beam": beam, "unknown": "keep"}
    notes = [
        f"{key} = {given.values[key]!r} is ignored: headway does not support it."
        for key, nothing in WITHOUT_A_PLACE.items()
        if given.values.get(key) not in (None, nothing, [])
    ]
    notes += _about_tokens(given, has_source)
    found |= _lengths(given, has_source)
    if has_source and not translates and "max_len" in found:
        found["extra_len"] = found[
            "max_len"
        ]  # the foreign model does not limit the output by the source
    groups = given.integer("num_beam_groups", 1, most=1024)
    if groups > 1:
        found |= {"groups": groups, "diversity": given.number("diversity_penalty", 0.0)}
    if beam > 1:
        found |= _penalty(given, notes)
        if given.values.get("early_stopping") is True:
            notes.append(
                "early_stopping = true is ignored: our beam search stops when no hypothesis can "
                "still win, so it may find a better output than `generate`."
            )
    if given.flag("do_sample", False):
        found |= {"sample": True, "beam": 1, "top_k": given.integer("top_k", 50, least=0)}
        found |= {ours: given.number(key) for key, ours in SAMPLING.items() if key in given.values
                  and given.values[key] is not None}  # fmt: skip
    repetition = given.number("repetition_penalty", 1.0)
    if repetition != 1.0:
        found["repetition_penalty"] = repetition
        notes.append("repetition_penalty applies to log-probabilities here, not to logits.")
    ngram = given.integer("no_repeat_ngram_size", 0, least=0, most=1024)
    if ngram:
        found["no_repeat_ngram"] = ngram
    return found, tuple(notes)


def _about_tokens(given: ForeignConfig, has_source: bool) -> list[str]:
    """Return notes on unsupported end tokens and banned tokens.

    Only language models support several end tokens. Marian bans padding and begin tokens, which
    headway never generates, so they need no note.
    """
    notes = []
    ends = given.values.get("eos_token_id")
    if has_source and isinstance(ends, list) and len(ends) > 1:
        notes.append(
            f"eos_token_id = {ends!r} has several end tokens; here only the first one ends a text."
        )
    keys = ("pad_token_id", "bos_token_id", "decoder_start_token_id")
    free = [given.values.get(key) for key in keys]
    for key in ("bad_words_ids", "suppress_tokens"):
        words = given.values.get(key) or []
        if any(word not in free and word not in [[token] for token in free] for word in words):
            notes.append(f"{key} = {words!r} is ignored: use constraints of predict instead.")
    return notes


def _lengths(given: ForeignConfig, has_source: bool) -> dict[str, Any]:
    """Return the limits on the output length as `decode.*` settings.

    `max_length` and `min_length` count the begin token and the prompt, whereas `max_new_tokens`
    does not.
    """
    found: dict[str, Any] = {}
    if given.values.get("max_new_tokens") is not None:
        found["max_len"] = given.integer("max_new_tokens", most=MOST_TOKENS)
    elif has_source and given.values.get("max_length") is not None:
        found["max_len"] = max(1, given.integer("max_length", most=MOST_TOKENS) - 1)
    if given.values.get("min_new_tokens") is not None:
        found["min_len"] = given.integer("min_new_tokens", least=0, most=MOST_TOKENS)
    elif has_source and given.integer("min_length", 0, least=0, most=MOST_TOKENS) > 1:
        found["min_len"] = given.integer("min_length") - 1
    return found


def _penalty(given: ForeignConfig, notes: list[str]) -> dict[str, Any]:
    power = given.number("length_penalty", 1.0, least=-100.0, most=100.0)
    if power < 0:
        notes.append(
            f"length_penalty = {power:g} prefers short outputs, which headway does not "
            "support; it becomes none."
        )
    if power <= 0:
        return {"length_penalty": "none"}
    return {"length_penalty": "power", "length_penalty_alpha": power}


def generation_config(
    decode: DecodeSettings, tokens: Mapping[str, Any], *, longest: int, never: Sequence[int]
) -> dict[str, Any]:
    """Return the `generation_config.json` of a run.

    `transformers` has no equivalent of GNMT's length penalty, so its beam search may choose an
    output of another length.

    Args:
        tokens: Ids of the special tokens, by key of the file.
        longest: Maximum number of tokens of the model.
        never: Ids of tokens that are never generated.
    """
    found: dict[str, Any] = {**tokens, "num_beams": decode.beam, "do_sample": decode.sample}
    found["max_new_tokens"] = min(decode.max_len or NEW_TOKENS, longest - 1)
    if never:
        found["suppress_tokens"] = list(never)
    if decode.min_len:
        found["min_new_tokens"] = decode.min_len
    if decode.no_repeat_ngram:
        found["no_repeat_ngram_size"] = decode.no_repeat_ngram
    if decode.sample:
        found |= {"num_beams": 1, "temperature": decode.temperature, "top_k": decode.top_k}
        found["top_p"] = decode.top_p
        if decode.min_p:
            found["min_p"] = decode.min_p
    elif decode.beam > 1:
        found["length_penalty"] = (
            0.0 if decode.length_penalty == "none" else decode.length_penalty_alpha
        )
    return found


def whisper_generation(words: Tokenizer, model: ModelSettings) -> dict[str, Any]:
    """Return the `generation_config.json` of a speech recognizer: greedy search without timestamps,
    as in headway."""
    specials = SpecialTokens.of(words)
    found: dict[str, Any] = {
        "bos_token_id": words.eos,
        "eos_token_id": words.eos,
        "pad_token_id": words.eos,
        "decoder_start_token_id": words.bos,
        "max_length": model.max_len,
        "is_multilingual": False,
        "return_timestamps": False,
        "suppress_tokens": sorted({words.bos, *specials.banned}),
        "begin_suppress_tokens": list(specials.never_first),
    }
    if specials.target_begin is not None:
        forced = [[1, specials.target_begin]]
        return found | {"no_timestamps_token_id": specials.target_begin,
                        "forced_decoder_ids": forced}  # fmt: skip
    codes = {f"<|{code}|>": words.special(f"<|{code}|>") for code in LANGUAGES}
    spoken = {name: i for name, i in codes.items() if i is not None}
    if spoken and words.special(NO_TIMES) is not None:
        found |= {
            "is_multilingual": True,
            "no_timestamps_token_id": words.special(NO_TIMES),
            "lang_to_id": spoken,
            "task_to_id": {name.strip("<|>"): words.special(name) for name in WHISPER_TASKS},
        }
    return found
