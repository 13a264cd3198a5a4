"""Chat templates: how messages become one prompt, where a run folder says how.

The template is a file beside the weights, `chat_template.jinja`, as others have it. It is rendered
in a sandbox: it came with the weights, and is not trusted more than they are.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from headway.errors import FolderError
from headway.run import Run
from headway.serve.problems import Refused

TEMPLATE = "chat_template.jinja"
ROLES = ("system", "user", "assistant")
MOST_BYTES = 200_000


def has_template(run: Run) -> bool:
    return (run.folder / TEMPLATE).is_file()


def prompt_of(run: Run, messages: Any) -> str:
    if not isinstance(messages, list) or not messages or len(messages) > 1000:
        raise Refused(422, "messages must be a list of 1 to 1,000 messages.", param="messages")
    for one in messages:
        if not isinstance(one, dict) or one.get("role") not in ROLES:
            raise Refused(
                422, f"each message has a role ({', '.join(ROLES)}) and a content.",
                param="messages",
            )  # fmt: skip
        if not isinstance(one.get("content"), str):
            raise Refused(422, "the content of a message must be a text.", param="messages")
    path = run.folder / TEMPLATE
    try:
        return str(_template(path, path.stat().st_mtime_ns)(messages))
    except FolderError:
        raise
    except Exception as error:  # a template can raise whatever it likes
        raise Refused(
            422, f"the chat template does not take these messages ({str(error)[:200]}).",
            param="messages",
        ) from error  # fmt: skip


@lru_cache(8)
def _template(path: Path, changed: int) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    text = path.read_text(encoding="utf-8")
    if len(text) > MOST_BYTES:
        raise FolderError(f"{path} is no chat template: it has {len(text):,} characters.")

    def complain(message: str) -> str:
        raise ValueError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(text)
    return lambda messages: made.render(
        messages=messages, add_generation_prompt=True, bos_token="", eos_token="",
        raise_exception=complain,
    )  # fmt: skip
