"""RuleTaker's questions (Clark et al. 2020) as pairs of texts with a label: rules and facts, the
question, whether it is true, and how many steps of reasoning it takes.

    python examples/ruletaker.py data/ruletaker data/ruletaker-pairs

The files hold dev and test questions only. The dev files of depth 0 to 3 become the training set, a
tenth of their rule bases apart for validation; every depth of the depth-5 test file becomes a test
set of its own, and so does each other test file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path


def questions(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            theory = json.loads(line)
            for question in theory["questions"]:
                yield (
                    number,
                    {
                        "text": theory["context"],
                        "other": question["text"],
                        "label": "true" if question["label"] else "false",
                        "depth": question["meta"]["QDep"],
                    },
                )


def main() -> None:
    source, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    sets: dict[str, list[dict[str, object]]] = {"train": [], "valid": []}
    for depth in (0, 1, 2, 3):
        for number, row in questions(source / f"depth-{depth}" / "dev.jsonl"):
            sets["valid" if number % 10 == 0 else "train"].append(row)
    for depth in (1, 2, 3, 5):
        for _, row in questions(source / f"depth-{depth}" / "test.jsonl"):
            sets.setdefault(f"test-{depth}", []).append(row)
            if depth == 5:
                sets.setdefault(f"test-5-by-{row['depth']}", []).append(row)
    for name, rows in sets.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
        print(f"{name}: {len(rows):,} questions")


if __name__ == "__main__":
    main()
