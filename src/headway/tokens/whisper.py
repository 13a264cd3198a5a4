"""Whisper's special tokens, which its tokenizer files lack, and its suppressed tokens.

The ids of special tokens follow those of GPT-2's vocabulary (English models) or Whisper's own
vocabulary (multilingual models). In the order of ids, they are the end of text, the start of
transcript, the languages, the tasks, "no timestamps", and the timestamps from 0 to 30 seconds in
steps of 20 ms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tokenizers

from headway.errors import DataError
from headway.tokens.json_limits import MOST_TOKENS
from headway.tokens.special_tokens import TokenRoles

END, START, NO_TIMES = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")
DO = "<|transcribe|>"
ALSO = "<|nocaptions|>"
"""Name of the last of the `TASKS` tokens in older files."""

N_TIMES = 1501
"""Number of timestamp tokens: 0.00 to 30.00 seconds in steps of 0.02."""

LANGUAGES: list[str] = re.findall(
    r"\w+",
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th "
    "ur hr bg lt la mi ml cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr "
    "pa si km sn yo so af oc ka be tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt "
    "haw ln ha ba jw su yue",
)
"""Language codes in the order of their token ids. Models before large-v3 lack the last one."""

N_PIECES = {51_864: 50_256, 51_865: 50_257, 51_866: 50_257}
"""Number of text tokens by vocabulary size. Special tokens follow them. The first vocabulary size
is that of English-only models."""

MANY_LANGUAGES = (51_865, 51_866)
"""Vocabulary sizes of the multilingual models, before and since large-v3."""

SIGNS = [*'"#()*+/:;<=>@[\\]^_`{|}~「」『』']
SIGNS += ["<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))",
          "[[", "]]", "{{", "}}", "♪♪", "♪♪♪"]  # fmt: skip
NOTES = "♩♪♫♬♭♮♯"
"""Musical notes, which mark songs in subtitles. Like `SIGNS`, they are never spoken."""


def whisper_specials(n_rows: int) -> dict[str, int]:
    """Return the special tokens and their ids for a model with this vocabulary size. Empty if no
    published model has this size."""
    if n_rows not in N_PIECES:
        return {}
    first = N_PIECES[n_rows]
    n_languages = n_rows - first - N_TIMES - len(TASKS) - 3
    names = [END, START, *(f"<|{code}|>" for code in LANGUAGES[:n_languages]), *TASKS, NO_TIMES]
    names += map(_time, range(N_TIMES))
    return {name: first + place for place, name in enumerate(names)}


def _time(step: int) -> str:
    return f"<|{step * 0.02:.2f}|>"


def whisper_roles(
    inner: tokenizers.Tokenizer, generation: Mapping[str, Any], where: str
) -> TokenRoles:
    """Return the token roles for decoding without timestamps, as in OpenAI's reference
    implementation.

    Values in `generation` (`generation_config.json`) take precedence. No language is forced on a
    multilingual model: it outputs the detected language, then the task, then the text.
    """
    for name in (END, START):
        if inner.token_to_id(name) is None:
            raise DataError(f"{where} does not contain the token {name!r}, which Whisper needs.")
    known = [name for name in (*TASKS, ALSO) if inner.token_to_id(name) is not None]
    roles = TokenRoles(
        bos=START,
        eos=END,
        target_begin=NO_TIMES if inner.token_to_id(NO_TIMES) is not None else None,
        banned=tuple(known),
        unwritten=unspoken_pieces(inner),
        never_first=(*inner.encode(" ", add_special_tokens=False).tokens[:1], END),
    )
    if "suppress_tokens" in generation:
        listed = _numbered(inner, generation["suppress_tokens"])
        special = {token.content for token in inner.get_added_tokens_decoder().values()}
        roles = replace(
            roles,
            banned=tuple(name for name in listed if name in special and name != START),
            unwritten=tuple(name for name in listed if name not in special),
        )
    if generation.get("is_multilingual", inner.get_vocab_size() in MANY_LANGUAGES):
        known = [name for name in roles.banned if name != DO]
        times = [name for name in map(_time, range(N_TIMES)) if inner.token_to_id(name) is not None]
        roles = replace(roles, target_begin=None, banned=(*known, *times))
    if "begin_suppress_tokens" in generation:
        roles = replace(roles, never_first=_numbered(inner, generation["begin_suppress_tokens"]))
    return roles


def unspoken_pieces(inner: tokenizers.Tokenizer) -> tuple[str, ...]:
    """Return the suppressed tokens, which OpenAI's reference implementation never outputs: symbols
    that are a single token, and the first token of each musical note."""
    found: dict[int, str] = {}
    texts = {" -": False, " '": False}
    for sign in (*SIGNS, *NOTES):
        texts |= {sign: sign not in NOTES, f" {sign}": sign not in NOTES}
    for text, whole in texts.items():
        ids = inner.encode(text, add_special_tokens=False).ids
        if len(ids) == 1 or (ids and not whole):
            found[ids[0]] = inner.id_to_token(ids[0]) or ""
    return tuple(found[i] for i in sorted(found))


def _numbered(inner: tokenizers.Tokenizer, ids: Any) -> tuple[str, ...]:
    listed = ids if isinstance(ids, list) else []
    names = (inner.id_to_token(i) for i in listed if type(i) is int and 0 <= i < MOST_TOKENS)
    return tuple(name for name in names if name is not None)


def add_space(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Make a tokenizer put a space before each text, as in Whisper's training data."""
    facts = json.loads(inner.to_str())
    parts = (facts["pre_tokenizer"] or {}).get("pretokenizers") or [facts["pre_tokenizer"]]
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True
    return tokenizers.Tokenizer.from_str(json.dumps(facts))
