"""Data for a detector of generated text, from documents with fields and what a model made of them.

    python examples/detector_data.py ask test.jsonl > ask.jsonl
    headway predict RUN ask.jsonl --json > made.jsonl
    python examples/detector_data.py join test.jsonl made.jsonl > labelled.jsonl

`ask` leaves out the last field; `join` puts every document there twice: as it was written, with the
label `written`, and with the model's last field, labelled `generated`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def rows(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text("utf-8").split("\n") if line]


def main() -> None:
    what, written = sys.argv[1], rows(sys.argv[2])
    if what == "ask":
        for row in written:
            print(json.dumps(dict(list(row.items())[:-1]), ensure_ascii=False))
        return
    for row, made in zip(written, rows(sys.argv[3]), strict=True):
        for label, document in (("written", row), ("generated", made["document"])):
            print(json.dumps({**document, "label": label}, ensure_ascii=False))


if __name__ == "__main__":
    main()
