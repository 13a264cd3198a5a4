"""Chat templates: how messages become one prompt, where a run folder says how.

The template is a file beside the weights, `chat_template.jinja`, which an import brings along. It
is rendered in a sandbox: it came with the weights, and is not trusted more than they are. Special
tokens are those that the template writes; what people say never becomes one.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from headway.errors import FolderError
from headway.run import Run
from headway.serve.limits import Limits
from headway.serve.problems import Refused
from headway.settings.folder import CHAT_TEMPLATE
from headway.tokens.marked import Marked

ROLES = ("system", "user", "assistant")
MOST_BYTES, MOST_MESSAGES = 200_000, 1000


def has_template(run: Run) -> bool:
    return (run.folder / CHAT_TEMPLATE).is_file()


def checked_messages(given: Any, limits: Limits) -> list[dict[str, str]]:
    """Roles and texts; a text may come in parts, as OpenAI has it."""
    if not isinstance(given, list) or not 0 < len(given) <= MOST_MESSAGES:
        raise _wrong(f"messages must be a list of 1 to {MOST_MESSAGES:,} messages.")
    found, size = [], 0
    for one in given:
        if not isinstance(one, dict) or one.get("role") not in ROLES:
            raise _wrong(f"each message has a role ({', '.join(ROLES)}) and a content.")
        parts = one.get("content")
        parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
        if not isinstance(parts, list) or not all(
            isinstance(part, dict) and part.get("type") == "text"
            and isinstance(part.get("text"), str)
            for part in parts
        ):  # fmt: skip
            raise _wrong("the content of a message must be a text, or a list of parts of text.")
        text = "".join(part["text"] for part in parts)
        size += len(text)
        found.append({"role": one["role"], "content": text})
    if size > limits.characters:
        raise Refused(
            413, f"the messages have {size:,} characters; at most {limits.characters:,} are read.",
            param="messages",
        )  # fmt: skip
    return found


def prompt_of(run: Run, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
    """The tokens of a prompt that ends where the answer begins."""
    path, tokenizer = run.folder / CHAT_TEMPLATE, run.tokenizer
    marked: Marked = run.opened.kept("marked", lambda: Marked(tokenizer))
    said = [{**one, "content": marked.shielded(one["content"])} for one in messages]
    bos, eos = tokenizer.tokens([tokenizer.bos, tokenizer.eos])
    try:
        render = _renderer(path.read_text(encoding="utf-8"))
        ids = marked.encode(render(messages=said, bos_token=bos, eos_token=eos))
    except FolderError:
        raise
    except Exception as error:  # a template can raise whatever it likes
        raise _wrong(
            f"the chat template does not take these messages ({str(error)[:200]})."
        ) from error
    if not ids:
        raise _wrong("the chat template makes nothing of these messages.")
    return tuple(ids)


@lru_cache(8)
def _renderer(text: str) -> Callable[..., str]:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    if len(text) > MOST_BYTES:
        raise FolderError(f"{CHAT_TEMPLATE} has {len(text):,} characters: that is no template.")

    def complain(message: str) -> str:
        raise ValueError(message)

    def plain_json(value: Any, **more: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **more)

    around = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    around.filters["tojson"] = plain_json  # of Jinja's own the quotes are those of HTML
    around.globals |= {
        "raise_exception": complain, "add_generation_prompt": True, "tools": None,
        "documents": None, "strftime_now": lambda form: datetime.datetime.now().strftime(form),
    }  # fmt: skip
    return around.from_string(text).render


def _wrong(message: str) -> Refused:
    return Refused(422, message, param="messages")
