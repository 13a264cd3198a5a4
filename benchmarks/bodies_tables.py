"""Fill the tables of docs/models/bodies.md with the results of `benchmarks.bodies`.

    python -m benchmarks.bodies_tables

The page has a pair of comments around a table: `<!-- bodies: multi30k -->` and `<!-- end -->`. If a
set was measured on a GPU and on a CPU, the table is the GPU's.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (DOCS / "models/bodies.md",)
TABLE = re.compile(r"(<!-- bodies: (?P<name>[\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
DEVICES = ("cuda", "cpu")
NAMES = {
    "transformer": "Transformer", "lstm": "LSTM", "gru": "GRU", "convolution": "convolution",
    "sha-rnn": "SHA-RNN", "n-grams": "7-grams, counted",
    "counted": "n-grams, counted",
}  # fmt: skip
SCORES = {"bleu": ("BLEU", 1, max), "loss": ("loss", 3, min), "accuracy": ("accuracy", 1, max)}
"""How a score is written, with how many digits, and which one is the best."""

Result = dict[str, Any]


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


def filled(page: str, folder: Path = RESULTS) -> str:
    return TABLE.sub(lambda found: found[1] + table(found["name"], folder) + found[3], page)


def table(name: str, folder: Path) -> str:
    """`multi30k`, or `multi30k tokens-cpu`: of that result alone."""
    what, _, device = name.partition(" ")
    for one in (device,) if device else DEVICES:
        path = folder / f"bodies-{one}.json"
        result = json.loads(path.read_text()) if path.is_file() else {}
        if what in result.get("sets", {}):
            return of_set(result, what)
    return "Not measured yet.\n"


def of_set(result: Result, name: str) -> str:
    found, rows = result["sets"][name], result["sets"][name]["rows"]
    asked = {kind: next((row[kind]["asked"] for row in rows.values()
                         if "asked" in row.get(kind, {})), result["options"][kind])
             for kind in ("tokens", "minutes")}  # fmt: skip
    title, digits, best = SCORES[found["score"]]
    writes = any("characters_per_s" in row.get("speed", {}) for row in found["rows"].values())
    heads = [
        "body", "parameters", f"{title}, equal tokens", f"{title}, equal minutes",
        "steps in those minutes", "training, tokens per second",
        f"decoding, {'characters' if writes else 'texts'} per second", "memory of a step",
    ]  # fmt: skip
    table = [heads]
    rows = rows | counted(found)
    tops = {kind: best((score(row, kind, found["score"]) for row in rows.values()
                        if score(row, kind, found["score"]) is not None), default=None)
            for kind in ("tokens", "minutes")}  # fmt: skip
    for arm, row in rows.items():
        any_kind = row.get("tokens") or row.get("minutes") or {}
        minutes, rates = row.get("minutes", {}), row.get("speed", {})
        size = any_kind.get("parameters")
        cells = [named(arm), f"{size / 1e6:.2f} M" if size else ""]
        for kind, top in tops.items():
            value, several = score(row, kind, found["score"]), of_seeds(row, kind, found["score"])
            text = "" if value is None else f"{value:.{digits}f}"
            text = f"**{text}**" if text and value == top else text
            spread = f" ± {statistics.stdev(several):.{digits}f}" if len(several) > 1 else ""
            cells.append(text + spread)
        written = rates.get("characters_per_s" if writes else "texts_per_s")
        memory = rates.get("step_bytes") or any_kind.get("train_bytes")
        trained = rates.get("train_tokens_per_s")
        if not trained and minutes.get("lanes", 1) == 1:  # it was alone then, too
            trained = minutes.get("train_tokens_per_s")
        cells += [
            f"{minutes['steps']:,}" if "steps" in minutes else "",
            f"{trained:,.0f}" if trained else "",
            f"{written:,.0f}" if written else "",
            f"{memory / 2**20:,.0f} MiB" if memory else "",
        ]
        table.append(cells)
    amounts = {
        "tokens": f"{asked['tokens'] / 1e6:g} M tokens",
        "minutes": f"{60 * asked['minutes']:g} seconds per run, {concurrency(found)}",
    }
    made = ", or ".join(amounts[kind] for kind, top in tops.items() if top is not None)
    most = max(len(of_seeds(row, kind, found["score"])) for row in found["rows"].values()
               for kind in tops)  # fmt: skip
    made += f"; ± the standard deviation of {most} seeds" if most > 1 else "; one seed"
    return f"{marked(table)}\n\n{made}; {where(result)}\n"


def counted(found: Result) -> Result:
    """What n-grams reach that were counted in the same text, as every training of a language model
    compares itself with them: neither tokens nor minutes change it."""
    rows = found["rows"].values()
    kinds = [kind for kind in ("tokens", "minutes") if any(kind in row for row in rows)]
    every = [row[kind]["baselines"]["n-grams"] for kind in kinds for row in rows
             if "n-grams" in row.get(kind, {}).get("baselines", {})]  # fmt: skip
    if not every or "n-grams" in found["rows"]:
        return {}
    return {"counted": {kind: {"scores": every[0]} for kind in kinds}}


def marked(table: list[list[str]]) -> str:
    """As Markdown, without columns that have nothing in them."""
    columns = [column for column in zip(*table, strict=True) if any(column[1:])]
    rows = [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]
    return "\n".join([rows[0], "|---|" + "---:|" * (len(columns) - 1), *rows[1:]])


def concurrency(found: Result) -> str:
    """Describe whether the runs of equal minutes were concurrent. All or none should be."""
    rows = {arm: row["minutes"].get("lanes", 1) for arm, row in found["rows"].items()
            if "minutes" in row}  # fmt: skip
    alone = [named(arm) for arm, lanes in rows.items() if lanes == 1]
    if len(alone) == len(rows):
        return "one run after another"
    if not alone:
        return "all runs in parallel"
    return f"runs in parallel, except for {', '.join(alone)}"


def score(row: Result, kind: str, name: str) -> float | None:
    """The mean over seeds."""
    values = of_seeds(row, kind, name)
    return statistics.mean(values) if values else None


def of_seeds(row: Result, kind: str, name: str) -> list[float]:
    found = row.get(kind, {})
    every = [found, *found.get("other_seeds", {}).values()]
    return [float(one["scores"][name]) for one in every if name in one.get("scores", {})]


def named(arm: str) -> str:
    body, _, how = arm.partition(", ")
    return NAMES[body] + (f", `{how}`" if how else "")


def where(result: Result) -> str:
    machine = result["machine"]
    return f"{machine['device']}, torch {machine['versions']['torch']}, {machine['date']}."


if __name__ == "__main__":
    main()
