r"""Debian's package records as documents with fields: name, section, summary, description.

    apt-cache pkgnames | sort | xargs apt-cache show --no-all-versions \
        | python examples/debian_records.py data/debian

writes train, valid and test as JSONL. Packages of one source share much of their text, so all
packages of a source go to the same set, and of equal descriptions one is kept. The long texts
are there where apt keeps English descriptions (`Acquire::Languages "en";`, then `apt-get update`).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

SHARES = {"test": 0.03, "valid": 0.03}
LONGEST = 2000
"""Characters of a description; the few longer ones are lists of contents."""


def records(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """The stanzas of a control file; a line that begins with a blank goes on with its field."""
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        line = line.rstrip("\n")
        if not line:
            if found:
                yield found
            found, name = {}, ""
        elif line[0] == " ":
            found[name] += "\n" + line
        else:
            name, _, value = line.partition(":")
            found[name] = value.strip()
    if found:
        yield found


def document(record: dict[str, str]) -> dict[str, str] | None:
    text = record.get("Description-en") or record.get("Description", "")
    summary, _, rest = text.partition("\n")
    lines = [line[1:] for line in rest.split("\n")] if rest else []
    body = "\n".join("" if line.strip() == "." else line.rstrip() for line in lines).strip()
    if not body or len(body) > LONGEST:
        return None
    return {
        "name": record["Package"],
        "section": record.get("Section", ""),
        "summary": summary.strip(),
        "description": body,
    }


def which(record: dict[str, str]) -> str:
    """The set of all packages of a source, by a hash of its name."""
    source = record.get("Source", record["Package"]).split(" ")[0]
    place = int(hashlib.sha256(source.encode()).hexdigest()[:8], 16) / 16**8
    for name, share in SHARES.items():
        if place < share:
            return name
        place -= share
    return "train"


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    counts = dict.fromkeys(["train", *SHARES], 0)
    files = {name: (folder / f"{name}.jsonl").open("w", encoding="utf-8") for name in counts}
    for record in records(sys.stdin):
        found = document(record)
        if found is None or found["description"] in seen:
            continue
        seen.add(found["description"])
        name = which(record)
        counts[name] += 1
        files[name].write(json.dumps(found, ensure_ascii=False) + "\n")
    for file in files.values():
        file.close()
    print(", ".join(f"{name} {n:,}" for name, n in counts.items()))


if __name__ == "__main__":
    main()
