"""Roles of the special tokens of a foreign tokenizer, from the small configuration files in its
folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from headway.errors import DataError
from headway.tokens.json_limits import MOST_TOKENS, check_number
from headway.tokens.small_files import read_table
from headway.tokens.special_tokens import EOS_NAMES, TokenRoles, find_token

ENCODERS = {
    "bert": ("[CLS]", "[SEP]"),
    "distilbert": ("[CLS]", "[SEP]"),
    "electra": ("[CLS]", "[SEP]"),
    "albert": ("[CLS]", "[SEP]"),
    "esm": ("<cls>", "<eos>"),
    "roberta": ("<s>", "</s>"),
    "xlm-roberta": ("<s>", "</s>"),
    "camembert": ("<s>", "</s>"),
}
TWO_ENDS = ("roberta", "xlm-roberta", "camembert")
TRANSLATORS = ("marian", "bart", "t5", "mt5", "pegasus", "mbart")
QWEN = ("qwen2", "qwen3")
PARTS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True)
class TokenizerHints:
    model_type: str
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    settings: Mapping[str, Any]
    """Content of tokenizer_config.json."""

    names: Mapping[str, str]
    """Special tokens by role name: bos, eos, unk, sep, pad, cls or mask."""

    specials: tuple[str, ...]
    """All tokens that the configuration files declare as special."""

    added: Mapping[str, int]
    """Tokens that are not in the vocabulary file, with their ids."""

    @classmethod
    def read(cls, folder: Path, config: Mapping[str, Any]) -> TokenizerHints:
        settings = read_table(folder / "tokenizer_config.json")
        both = read_table(folder / "special_tokens_map.json") | settings
        names = {part: name for part in PARTS if (name := _text(both.get(f"{part}_token")))}
        more = both.get("additional_special_tokens") or []
        listed = [name for token in more if (name := _text(token))] if type(more) is list else []
        added, special = _added(folder, settings)
        return cls(
            model_type=str(config.get("model_type", "")),
            config=config,
            generation=read_table(folder / "generation_config.json"),
            settings=settings,
            names=names,
            specials=tuple(dict.fromkeys([*names.values(), *listed, *special])),
            added=added,
        )

    def numbers(self, name: str) -> list[int]:
        """Return the token ids that the configuration lists under a name, such as
        `eos_token_id`."""
        inside = self.config.get("decoder")  # image captioners have two models
        own = inside if isinstance(inside, dict) else {}
        for table in (self.generation, self.config, own):
            value = table.get(name)
            values: list[Any] = value if isinstance(value, list) else [value]
            if values and all(type(one) is int for one in values):
                for one in values:
                    if one >= 0:  # some write -1 for none
                        check_number(one, name, "the configuration")
                return values
        return []

    def number(self, name: str) -> int | None:
        """Return the first token id that the configuration lists under a name; None if there is
        none."""
        return next(iter(self.numbers(name)), None)


def _text(token: Any) -> str | None:
    """Return the text of a token, which is stored as a string or as an object with its
    `content`."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) and token else None


def _added(folder: Path, settings: Mapping[str, Any]) -> tuple[dict[str, int], list[str]]:
    found = {t: i for t, i in read_table(folder / "added_tokens.json").items() if type(i) is int}
    special = []
    listed = settings.get("added_tokens_decoder")
    for number, token in (listed if isinstance(listed, dict) else {}).items():
        name = _text(token)
        if name is None or not re.fullmatch("[0-9]{1,9}", str(number)):
            raise DataError(
                f"{folder / 'tokenizer_config.json'}: added_tokens_decoder has an invalid token "
                f"{str(token)[:60]!r} or id {str(number)[:24]!r}."
            )
        found[name] = int(number)
        if not isinstance(token, dict) or token.get("special"):
            special.append(name)
    return found, special


GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Tokenizer classes of `transformers` that use the special tokens in tokenizer.json. Other classes
add those of their model, whatever the file contains."""


class AddedTokens(NamedTuple):
    """Special tokens that a tokenizer adds before and after a text, and between the texts of a
    pair."""

    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    between: tuple[str, ...] = ()


def ends_in_json(inner: tokenizers.Tokenizer) -> AddedTokens:
    """Return the special tokens that the post-processor in tokenizer.json adds to a text or a
    pair."""
    if inner.post_processor is None:
        return AddedTokens()
    known = inner.get_vocab(with_added_tokens=False)
    for text in ("a", "the", *list(known)[:100], ""):
        try:
            made = inner.encode(text, add_special_tokens=True)
            pair = inner.encode(text, text, add_special_tokens=True)
        except BaseException as error:  # a text that it has no tokens for, or the library's panic
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            continue
        own = [i for i, special in enumerate(made.special_tokens_mask) if not special]
        if own or not text:
            first, last = (own[0], own[-1] + 1) if own else (len(made.tokens),) * 2
            return AddedTokens(tuple(made.tokens[:first]), tuple(made.tokens[last:]), _middle(pair))
    return AddedTokens()


def _middle(pair: tokenizers.Encoding) -> tuple[str, ...]:
    """Return the special tokens between the two texts of a pair."""
    own = [i for i, text in enumerate(pair.sequence_ids) if text is not None]
    first = [i for i in own if pair.sequence_ids[i] == 0]
    if not own or len(first) in (0, len(own)):
        return ()
    second = own[own.index(first[-1]) + 1]
    return tuple(pair.tokens[first[-1] + 1 : second])


def _ends(
    hints: TokenizerHints, bos: str, eos: str, in_json: AddedTokens | None, *, pieces: bool
) -> AddedTokens:
    """Return the special tokens that the published tokenizer of a language model puts around a
    text.

    If `in_json` is given, they are those of tokenizer.json. Otherwise `add_bos_token` and
    `add_eos_token` decide. By default there is a start token for SentencePiece and tiktoken files
    (`pieces`), and no end token.
    """
    if in_json is not None:
        return AddedTokens(in_json.before, in_json.behind)
    begins = hints.settings.get("add_bos_token")
    begins = pieces if begins is None else bool(begins)
    return AddedTokens((bos,) * begins, (eos,) * bool(hints.settings.get("add_eos_token")))


def token_roles_of(
    hints: TokenizerHints,
    inner: tokenizers.Tokenizer,
    where: str,
    *,
    in_json: AddedTokens | None = None,
    pieces: bool = False,
) -> TokenRoles:
    """Return the roles of special tokens for the model type.

    `in_json`: the special tokens that tokenizer.json puts around a text. `pieces`: whether the file
    is in the format of SentencePiece or tiktoken.
    """
    kind, names = hints.model_type, hints.names

    def known(name: str | None) -> str | None:
        return name if name is not None and inner.token_to_id(name) is not None else None

    def numbered(name: str) -> str | None:
        number = hints.number(name)
        return None if number is None or number < 0 else inner.id_to_token(number)

    usual = find_token(inner, EOS_NAMES)
    unk, mask = known(names.get("unk")), known(names.get("mask"))
    end = known(names.get("eos"))
    if kind in TRANSLATORS or hints.config.get("is_encoder_decoder"):
        eos = end or numbered("eos_token_id") or known("</s>")
        bos = numbered("decoder_start_token_id") or numbered("pad_token_id") or known("<pad>")
        begin = (known(names.get("bos")) or known("<s>")) if kind == "bart" else None
        return _made(
            where, bos=bos or eos, eos=eos, unk=unk, mask=mask, source_begin=begin,
            target_begin=numbered("forced_bos_token_id"), banned=_banned(hints, inner),
        )  # fmt: skip
    if kind in ENCODERS:
        bos, eos = (known(name) for name in ENCODERS[kind])
        bos, eos = known(names.get("cls")) or bos, known(names.get("sep")) or eos
        n = 2 if kind in TWO_ENDS else 1
        own = in_json if hints.settings.get("tokenizer_class") in GENERIC else None
        rule = {}
        if own is not None and own != AddedTokens((bos or "",), (eos or "",), (eos or "",) * n):
            rule = own._asdict()
        return _made(where, bos=bos, eos=eos, unk=unk, mask=mask, pair_ends=n, **rule)
    eos = numbered("eos_token_id") or end or (None if usual is None else inner.id_to_token(usual))
    if kind == "openai-gpt":  # it has no end token; it never outputs the unknown token
        eos = end or unk or known("<unk>")
    bos = known(names.get("bos")) or (kind != "openai-gpt" and numbered("bos_token_id")) or eos
    before, behind, _ = _ends(hints, bos or "", eos or "", in_json, pieces=pieces)
    others = [inner.id_to_token(i) for i in hints.numbers("eos_token_id")[1:] if i >= 0]
    return _made(
        where, bos=bos, eos=eos, unk=unk, mask=mask, before=before, behind=behind,
        more_ends=tuple(dict.fromkeys(t for t in others if t is not None and t != eos)),
    )  # fmt: skip


def _made(where: str, **parts: Any) -> TokenRoles:
    if parts["eos"] is None or parts["bos"] is None:
        raise DataError(
            f"{where} defines no end token. Add eos_token (or sep_token) to "
            "special_tokens_map.json in the same folder."
        )
    return TokenRoles(**parts)


def _banned(hints: TokenizerHints, inner: tokenizers.Tokenizer) -> tuple[str, ...]:
    """Return the suppressed tokens of the configuration, which outputs never contain. Suppressed
    sequences of several tokens are ignored."""
    found: dict[str, None] = {}
    for table in (hints.generation, hints.config):
        for words in table.get("bad_words_ids") or []:
            words = words if isinstance(words, list) else [words]
            if len(words) == 1 and type(words[0]) is int and 0 <= words[0] < MOST_TOKENS:
                token = inner.id_to_token(words[0])
                if token is not None:
                    found[token] = None
    return tuple(found)
