"""Validation of requests. Inputs must be text or bytes, options must be known and in range, and no
value may name a file or a URL."""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from headway.errors import UserError, suggest
from headway.run import Run
from headway.serve.errors import RequestRejected
from headway.serve.limits import Limits
from headway.settings.decode import DecodeSettings
from headway.settings.field_docs import documented
from headway.settings.run import media_settings
from headway.settings.task_rows import spec_of
from headway.specs.options import OPTIONS
from headway.specs.values import setting_types, without_none

OPERATOR_OPTIONS = frozenset({"batch_tokens", "precision", "draft", "nearest", "against"})
"""Options that requests cannot set, because they are for the operator or name a file or a run."""

PHRASE_OPTIONS = {
    "prefix": ("Text that the output must begin with.", "text"),
    "required": ("Phrases that the output must contain.", "texts"),
    "banned": ("Phrases that the output must not contain.", "texts"),
}
MOST_PHRASES, LONGEST_PHRASE = 16, 500
"""Maximum number of phrases that a request may require or ban, and of characters in a phrase. Each
phrase makes every decoding step slower."""

MOST_SHOTS = 64
"""Maximum number of examples in a few-shot request. More would not fit the context of a small
model."""

LONGEST_NAME = 100
"""Maximum number of characters of a file name in answers."""

MOST_VALUES = 10_000
"""Maximum number of values in a JSON body that is larger than `serve.body` (media)."""

SURROGATE_ESCAPES = re.compile(rb"\\u[dD][89a-fA-F]")
"""Pattern of JSON escapes that encode UTF-16 surrogates."""

OptionType = Literal["integer", "number", "boolean", "text", "texts", "choice", "objects"]


@dataclass(frozen=True, kw_only=True)
class OptionSpec:
    """Option that requests to a model may set."""

    name: str
    help: str
    kind: OptionType
    default: Any = None
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        found = {"name": self.name, "help": self.help, "kind": self.kind, "default": self.default}
        if self.low is not None:
            found |= {"low": self.low, "high": self.high}
        return found | ({"choices": list(self.choices)} if self.choices else {})


def option_ranges(limits: Limits) -> dict[str, tuple[float, float]]:
    """Return the minimum and maximum value of each numeric option."""
    tokens = limits.tokens
    return {
        "beam": (1, limits.beams), "n_best": (1, limits.n), "groups": (1, limits.beams),
        "max_len": (1, tokens), "extra_len": (0, tokens), "min_len": (0, tokens),
        "temperature": (0.0001, 100), "top_k": (0, 1_000_000), "top_p": (0.0001, 1),
        "min_p": (0, 1), "length_penalty_alpha": (0, 10), "coverage": (0, 10), "diversity": (0,
        100),
        "repetition_penalty": (0.01, 100), "no_repeat_ngram": (0, 64), "seed": (0, 2**53),
        "top": (1, 1000),
    }  # fmt: skip


def option_specs(run: Run, limits: Limits) -> dict[str, OptionSpec]:
    """Return the options that requests to a run may set, by name. They are declared by its task and
    the decoding settings."""
    hints, said, decode = setting_types(DecodeSettings), documented(DecodeSettings), run.settings
    known = option_ranges(limits)
    found = {}
    for name in run.options():
        if name in OPERATOR_OPTIONS or (name == "field" and not run.settings.data.fields):
            continue
        low, high = known.get(name, (None, None))
        if name in hints:
            kind, choices = _kind(hints[name])
            default = getattr(decode.decode, name)
            text = said.get(name, "")
        elif name in PHRASE_OPTIONS:
            (text, kind), choices, default = PHRASE_OPTIONS[name], (), None  # type: ignore[assignment]
        else:
            option = OPTIONS[name]
            text, default, choices = option.help, None, ()
            kind = "integer" if option.number else "text" if option.takes else "boolean"
            if "|" in option.takes:
                kind, choices = "choice", tuple(option.takes.split("|"))
            if name == "shots":
                kind, text = (
                    "objects",
                    "Few-shot examples before the prompt: objects with string values.",
                )
        found[name] = OptionSpec(
            name=name, help=text, kind=kind, default=list(default) if isinstance(default, tuple)
            else default, low=low, high=high, choices=choices,
        )  # fmt: skip
    return found


def _kind(hint: Any) -> tuple[OptionType, tuple[str, ...]]:
    if type(None) in get_args(hint):
        hint = without_none(hint)
    if get_origin(hint) is Literal:
        return "choice", get_args(hint)
    if get_origin(hint) is tuple:
        return "texts", ()
    kinds: dict[Any, OptionType] = {int: "integer", float: "number", bool: "boolean", str: "text"}
    return kinds[hint], ()


def checked_options(
    given: Mapping[str, Any], known: Mapping[str, OptionSpec]
) -> dict[str, Any]:  # fmt: skip
    """Return validated options. Each must be known, have the right type and be in range. A value of
    None is the default."""
    found = {}
    for name, value in given.items():
        if name not in known:
            near = suggest(name[:60], known) if known else " This model has no options."
            raise RequestRejected(422, f"unknown option {name[:60]!r}.{near}", param=name[:60])
        if value is not None:
            found[name] = _checked(known[name], value)
    _check_lengths(found, known)
    return found


def _check_lengths(said: Mapping[str, Any], known: Mapping[str, OptionSpec]) -> None:
    """Check that min_len <= max_len. If one of them is missing, the run's default is used."""
    names = [name for name in ("min_len", "max_len") if name in known]
    if len(names) == 2 and any(name in said for name in names):
        least, most = (said.get(name, known[name].default) for name in names)
        if least is not None and most is not None and least > most:
            raise _invalid("min_len", f"at most max_len, which is {most:,}")


def _checked(option: OptionSpec, value: Any) -> Any:
    name = option.name
    if option.kind in ("integer", "number"):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if option.kind == "integer" and not whole:
            raise _invalid(name, "an integer")
        if not whole and not (isinstance(value, float) and math.isfinite(value)):
            raise _invalid(name, "a number")
        low, high = option.low, option.high
        if low is not None and high is not None and not low <= value <= high:
            shown = [f"{x:,}" if isinstance(x, int) else f"{x:g}" for x in (low, high)]
            raise _invalid(name, f"from {shown[0]} to {shown[1]}")
        return value if option.kind == "integer" else float(value)
    if option.kind == "boolean":
        if not isinstance(value, bool):
            raise _invalid(name, "true or false")
        return value
    if option.kind == "choice":
        if value not in option.choices:
            raise _invalid(name, f"one of {', '.join(option.choices)}")
        return value
    if option.kind == "objects":
        return _shots(name, value)
    texts = [value] if isinstance(value, str) else value
    if option.kind == "text" and not isinstance(value, str):
        raise _invalid(name, "a string")
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise _invalid(name, "a list of strings")
    if len(texts) > MOST_PHRASES or any(not 0 < len(one) <= LONGEST_PHRASE for one in texts):
        raise _invalid(name, f"at most {MOST_PHRASES} strings of 1 to {LONGEST_PHRASE} characters")
    return value if option.kind == "text" else texts


def _shots(name: str, value: Any) -> Any:
    ok = isinstance(value, list) and len(value) <= MOST_SHOTS
    if not ok or not all(
        isinstance(one, dict) and all(isinstance(text, str) for text in one.values())
        for one in value
    ):
        raise _invalid(name, f"a list of at most {MOST_SHOTS} objects with string values")
    return value


def _invalid(name: str, must: str) -> RequestRejected:
    return RequestRejected(422, f"{name} must be {must}.", param=name)


def parse_json(body: bytes, field: str = "") -> dict[str, Any]:
    """Parse the body, or one `field` of it, as a JSON object. NaN and unpaired surrogates are
    rejected, because later code does not expect them."""
    what, param = field or "the request body", field or None
    try:
        text = body.decode("utf-8")
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RequestRejected(
            400, f"{what} is not valid JSON ({str(error)[:120]}).", param=param
        ) from error
    if not isinstance(found, dict):
        raise RequestRejected(400, f"{what} must be a JSON object.", param=param)
    try:
        if SURROGATE_ESCAPES.search(body):  # no other way leads to one
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError) as error:
        raise RequestRejected(
            400, f"{what} contains an unpaired surrogate, which is not valid Unicode.", param=param
        ) from error
    return found


def check_value_count(body: bytes) -> None:
    """Reject a large body with many JSON values.

    Media are a few long strings, but parsing millions of values would block the event loop for
    seconds.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise RequestRejected(
            413,
            f"the request body has too many JSON values; the limit for large bodies is "
            f"{MOST_VALUES:,}.",
        )


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a valid JSON value")


@dataclass(frozen=True)
class Upload:
    """File that was uploaded in a form."""

    name: str
    data: bytes


def checked_inputs(run: Run, given: Sequence[Any], limits: Limits) -> list[Any]:
    """Return validated inputs in the form that `run(…)` takes."""
    if not given:
        raise RequestRejected(422, "the request has no input. Send at least one.", param="input")
    if len(given) > limits.inputs:
        raise RequestRejected(
            413,
            f"the request has {len(given):,} inputs; the limit is {limits.inputs:,}. Split the "
            "inputs into several requests.",
            param="input",
        )
    media = media_settings(run.settings) is not None
    return [_medium(run, one, limits) if media else _text(one, limits) for one in given]


def _text(value: Any, limits: Limits, depth: int = 0) -> Any:
    if isinstance(value, str):
        if len(value) > limits.characters:
            raise RequestRejected(
                413,
                f"an input text has {len(value):,} characters; the limit is {limits.characters:,}.",
                param="input",
            )
        return value
    if isinstance(value, dict) and depth == 0:
        total = sum(len(str(one)) for one in value.values())
        if total > limits.characters:
            raise RequestRejected(
                413, f"an input has {total:,} characters; the limit is {limits.characters:,}.",
                param="input",
            )  # fmt: skip
        return {str(key): _text(one, limits, 1) for key, one in value.items()}
    if isinstance(value, list) and depth == 1:
        return [_text(one, limits, 2) for one in value]
    if isinstance(value, int | float) and depth:
        return value
    if value is None and depth:
        return None
    raise RequestRejected(
        422, "each input must be text: a string, or an object with string values.", param="input"
    )


def _medium(run: Run, value: Any, limits: Limits) -> Upload:
    """Return an image, audio or video input as bytes. Paths and URLs are not accepted."""
    name = ""
    if isinstance(value, dict):
        known = [value[key] for key in ("data", "bytes", "image", "video", "audio") if key in value]
        if len(value) != 1 or not known:
            raise _no_medium()
        value = known[0]
    if isinstance(value, Upload):
        data, name = value.data, _shown(value.name)
    elif isinstance(value, str):
        data = _decoded(value)
    else:
        raise _no_medium()
    if not data:
        raise RequestRejected(422, "an input is empty (0 bytes).", param="input")
    if spec_of(run.settings).is_audio:
        check_seconds(data, limits)
    return Upload(name, data)


def _shown(name: str) -> str:
    """Return the name of an uploaded file for use in answers. No file is ever opened by this
    name."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(filter(str.isprintable, last))[:LONGEST_NAME]


def _no_medium() -> RequestRejected:
    return RequestRejected(
        422,
        'each input must be an uploaded file or base64 data ({"data": "…"}). File paths and '
        "URLs are not supported.",
        param="input",
    )


def _decoded(text: str) -> bytes:
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64"):
            raise _no_medium()
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _no_medium() from error


def check_seconds(data: bytes, limits: Limits) -> None:
    """Reject audio that is too long before it is decoded. Unreadable files are not reported here,
    but when they are decoded."""
    import soundfile

    try:
        found = soundfile.info(io.BytesIO(data))
    except (soundfile.SoundFileError, OSError, ValueError, TypeError, RuntimeError):
        return
    if found.samplerate and found.frames / found.samplerate > limits.audio_seconds:
        raise RequestRejected(
            413,
            f"an audio input lasts {found.frames / found.samplerate:,.0f} s; the limit is "
            f"{limits.audio_seconds:g} s.",
            param="input",
        )


def as_rejection(error: UserError) -> RequestRejected:
    """Return the rejection, with status 422, for an error in the inputs or options."""
    return RequestRejected(422, str(error))
