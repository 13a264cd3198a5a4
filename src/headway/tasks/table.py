"""The tasks, in a table you can see. A new one is a file beside this and a line in the table."""

from __future__ import annotations

from importlib import import_module

from headway.tasks.kind import Kind

KINDS = {
    "translate": "Translate",
    "complete": "Complete",
    "fill": "Fill",
    "classify": "Classify",
    "tag": "Tag",
    "embed": "Embed",
    "see": "See",
    "watch": "Watch",
    "caption": "Caption",
    "transcribe": "Transcribe",
    "identify": "Identify",
}


def kind_of(task: str) -> Kind:
    """Imported when it is needed: each brings parts that the others do without."""
    kind: Kind = getattr(import_module(f"headway.tasks.{task}"), KINDS[task])()
    return kind
