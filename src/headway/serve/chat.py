"""Convert chat messages to a prompt with the chat template of the run folder.

The template, `chat_template.jinja`, is a file next to the weights. Imported models come with their
own. It is rendered in a separate process (`serve.template`). Only the template can write special
tokens. The text of a message is never converted to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.run import Run
from headway.serve.errors import RequestRejected
from headway.serve.limits import Limits
from headway.settings.folder import CHAT_TEMPLATE
from headway.tokens.chat_tokens import ChatTokenEncoder

ROLES = ("system", "developer", "user", "assistant")
MOST_MESSAGES = 1000
"""Maximum number of messages in a conversation. The number of characters has a separate limit."""

MOST_PER_CHARACTER = 10
"""Maximum number of characters in a prompt, as a multiple of the limit on characters in messages
(`serve.characters`)."""


def has_template(run: Run) -> bool:
    return (run.folder / CHAT_TEMPLATE).is_file()


def checked_messages(given: Any, limits: Limits) -> list[dict[str, str]]:
    """Validate messages and return the role and the text of each. The content of a message may be a
    list of parts, as in OpenAI's API."""
    if not isinstance(given, list) or not 0 < len(given) <= MOST_MESSAGES:
        raise _invalid(f"messages must be a list of 1 to {MOST_MESSAGES:,} messages.")
    found, size = [], 0
    for one in given:
        if not isinstance(one, dict) or one.get("role") not in ROLES:
            raise _invalid(f"each message must have a role ({', '.join(ROLES)}) and a content.")
        parts = one.get("content")
        parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
        if not isinstance(parts, list) or not all(
            isinstance(part, dict) and part.get("type") == "text"
            and isinstance(part.get("text"), str)
            for part in parts
        ):  # fmt: skip
            raise _invalid("the content of a message must be a string or a list of text parts.")
        text = "".join(part["text"] for part in parts)
        size += len(text)
        found.append({"role": one["role"], "content": text})
    if size > limits.characters:
        raise RequestRejected(
            413, f"the messages have {size:,} characters; the limit is {limits.characters:,}.",
            param="messages",
        )  # fmt: skip
    return found


def _chat_tokens(run: Run) -> ChatTokenEncoder:
    found: ChatTokenEncoder = run.opened.cached("marked", lambda: ChatTokenEncoder(run.tokenizer))
    return found


def template_values(run: Run, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return the variables of the chat template. OpenAI's role `developer` becomes `system` if the
    template does not support it."""
    marked, tokenizer = _chat_tokens(run), run.tokenizer
    text = (run.folder / CHAT_TEMPLATE).read_text(encoding="utf-8")
    developer = "developer" if "developer" in text else "system"
    said = [
        {"role": developer if one["role"] == "developer" else one["role"],
         "content": marked.escape(one["content"])}
        for one in messages
    ]  # fmt: skip
    bos, eos = tokenizer.tokens([tokenizer.bos, tokenizer.eos])
    return {"messages": said, "bos_token": bos, "eos_token": eos}


def prompt_ids(run: Run, text: str) -> tuple[int, ...]:
    """Return the token ids of a rendered prompt, which ends where the answer begins."""
    ids = _chat_tokens(run).encode(text)
    if not ids:
        raise _invalid("the chat template renders these messages as an empty prompt.")
    return tuple(ids)


def template_failed(error: Exception) -> RequestRejected:
    return _invalid(f"the chat template cannot render these messages ({error}).")


def _invalid(message: str) -> RequestRejected:
    return RequestRejected(422, message, param="messages")
