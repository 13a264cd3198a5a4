"""Fill the tables of docs/results from the saved results: `python -m benchmarks.report`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS

FOLDER = Path(__file__).parents[1] / "docs" / "results"
PAGES = (FOLDER / "speed.md", FOLDER / "results.md")
TABLE = re.compile(r"(<!-- results: (?P<name>[\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(result: dict[str, Any]) -> str:
    """A row a system, fastest first; ratios to the fastest that is not headway."""
    systems: dict[str, dict[str, float]] = result["systems"]
    unit = next(key for key in next(iter(systems.values())) if key.endswith("tokens_per_s"))
    best_peer = max(row[unit] for name, row in systems.items() if not name.startswith("headway"))
    lines = [
        f"| system | {unit.replace('_', ' ').replace('per s', '/ s')} | against the best peer "
        "| share of matmul peak | peak memory |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in sorted(systems.items(), key=lambda item: -item[1][unit]):
        memory = row.get("peak_memory_bytes")
        used = f"{memory / 2**30:.2f} GiB" if memory else "–"
        lines.append(
            f"| {name} | {row[unit]:,.0f} | {row[unit] / best_peer:.2f}× "
            f"| {row['share_of_matmul_peak']:.1%} | {used} |"
        )
    return "\n".join(lines) + "\n" + _machine(result)


def run_table(result: dict[str, Any]) -> str:
    """`headway train` beside the bare step: a row a length of sentences."""
    lines = [
        "| sentences | `headway train` | the step alone | ratio | padding | waiting for data |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in result["lengths"].items():
        run = row["train"]
        lines.append(
            f"| {name} | {run['target_tokens_per_s']:,.0f} | "
            f"{row['step']['target_tokens_per_s']:,.0f} | {row['ratio']:.2f}× "
            f"| {run['padding']:.1%} | {run['waited']:.2%} |"
        )
    return "\n".join(lines) + "\n" + _machine(result)


def documents_table(result: dict[str, Any]) -> str:
    """Training on documents: a row per kind of documents, a column per rate of dropout."""
    kinds: dict[str, dict[str, Any]] = result["documents"]
    rates = list(next(iter(kinds.values()))["dropout"])
    lines = [
        "| tokens / s | "
        + " | ".join(f"attention dropout {rate}" for rate in rates)
        + " | ratio |",
        "|---|" + "---:|" * (len(rates) + 1),
    ]
    for kind, row in kinds.items():
        cells = [f"{row['dropout'][rate]['tokens_per_s']:,.0f}" for rate in rates]
        lines.append(f"| {kind} | {' | '.join(cells)} | {row['ratio']:.2f}× |")
    return "\n".join(lines) + "\n" + _machine(result)


def case_table(result: dict[str, Any]) -> str:
    """For benchmarks of several cases: a row a case, a column a system, with ratios to the first
    peer."""
    cases: dict[str, dict[str, dict[str, float]]] = result["cases"]
    names = list(dict.fromkeys(name for rows in cases.values() for name in rows))
    lines = [
        "| tokens / s | " + " | ".join(names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    for case, rows in cases.items():
        base = rows[next(name for name in names[1:] if name in rows)]["tokens_per_s"]
        cells = [
            f"{rows[name]['tokens_per_s']:,.0f} ({rows[name]['tokens_per_s'] / base:.2f}×)"
            if name in rows
            else "–"
            for name in names
        ]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    if "memory_of_gpt2_bytes" in result:
        sizes = (f"{result['memory_of_gpt2_bytes'][name] / 1e6:,.0f} MB" for name in names)
        lines.append("| memory of GPT-2 124M | " + " | ".join(sizes) + " |")
    return "\n".join(lines) + "\n" + _machine(result)


def quality_table(result: dict[str, Any]) -> str:
    """What rounding costs: a row a model."""
    lines = [
        "| model | score | texts | fp32 | int8 | outputs alike |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, row in result["quality"].items():
        digits = 1 if row["score"] == "BLEU" else 4
        alike = f"{row['same']:.1%}" if "same" in row else "–"
        lines.append(
            f"| {name} | {row['score']} | {row['texts']:,} | {row['fp32']:.{digits}f} "
            f"| {row['int8']:.{digits}f} | {alike} |"
        )
    return "\n".join(lines) + "\n"


def images_table(result: dict[str, Any]) -> str:
    """Training and inference of images: a row a system, the fastest first."""
    lines = [
        "| | images / s | against the best peer | share of matmul peak |",
        "|---|---:|---:|---:|",
    ]
    for what in ("training", "inference"):
        systems = {k: row for k, row in result[what]["systems"].items() if "seconds" in row}
        best = max(row["images_per_s"] for name, row in systems.items() if name != "headway")
        for name, row in sorted(systems.items(), key=lambda item: -item[1]["images_per_s"]):
            rate = row["images_per_s"]
            lines.append(
                f"| {what}: {name} | {rate:,.0f} | {rate / best:.2f}× "
                f"| {row['share_of_matmul_peak']:.1%} |"
            )
    return "\n".join(lines) + "\n" + _machine(result)


def heard_table(result: dict[str, Any]) -> str:
    """Seconds of computing for a second of audio, and whose words are those of the reference."""
    lines = [
        "| real-time factor | prompts | a full window | same words, prompts |",
        "|---|---:|---:|---:|",
    ]
    short, full = (result[name]["systems"] for name in ("prompts", "full windows"))
    for name, row in sorted(short.items(), key=lambda item: item[1]["real_time_factor"]):
        lines.append(
            f"| {name} | {row['real_time_factor']:.3f} | {full[name]['real_time_factor']:.3f} "
            f"| {row['same_words_as_transformers']:.0%} |"
        )
    return "\n".join(lines) + "\n" + _machine(result)


def audio_table(result: dict[str, Any]) -> str:
    """How much quicker than real time the parts of the way from a file to frames are."""
    lines = ["| on one core | times real time |", "|---|---:|"]
    rows = {name: row for name, row in result.items() if "times_real_time" in str(row)}
    lines += [f"| {name} | {row['times_real_time']:,.0f} |" for name, row in rows.items()]
    return "\n".join(lines) + "\n" + _machine(result)


def budget_table(result: dict[str, Any]) -> str:
    """Whether budgets were kept: a row a run."""
    lines = [
        "| budget, and other work | time taken | kept | steps |",
        "|---|---:|---|---:|",
    ]
    for name, row in result["runs"].items():
        lines.append(
            f"| {name} | {row['took_s']:.1f} s | {'yes' if row['kept'] else '**no**'} "
            f"| {row['steps']:,} |"
        )
    return "\n".join(lines) + "\n" + _machine(result)


def texts_table(result: dict[str, Any]) -> str:
    """Test accuracy on sets of labelled texts: a row per set, beside baselines."""
    ours: dict[str, dict[str, Any]] = json.loads((RESULTS / "texts-cuda.json").read_text())["sets"]
    lines = [
        "| test set | labels | train, test | majority | bag of words | tf-idf | from base-en |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in result["sets"].items():
        if row["task"] != "classify" or row["score"] != "accuracy" or name not in ours:
            continue
        train, _, test = row["texts"]
        tuned = ours[name]["encoder"]
        lines.append(
            f"| `{name}` | {row['labels']} | {train:,}, {test:,} | {row['majority']:.1f} "
            f"| {row['bag of words']:.1f} | {row['tf-idf']['score']:.1f} "
            f"| **{tuned['mean']:.1f} ± {tuned['deviation']:.1f}** |"
        )
    return "\n".join(lines) + "\n"


UNNAMED = ("triton", "numpy")
"""Libraries whose versions are left out of the pages. All versions are in the results."""


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    versions = ", ".join(
        f"{name} {version}" for name, version in machine["versions"].items() if name not in UNNAMED
    )
    lines = [f"\n{machine['device']}, {versions}; {machine['date']}.\n"]
    for name, reason in result.get("failed", {}).items():
        lines.append(f"\n{name} did not run: {reason.splitlines()[0]}\n")
    return "".join(lines)


def filled(page: str) -> str:
    """The page with every marked place filled from its result."""

    def fill(match: re.Match[str]) -> str:
        result = json.loads((RESULTS / f"{match['name']}.json").read_text())
        kinds = {
            "lengths": run_table,
            "documents": documents_table,
            "cases": case_table,
            "quality": quality_table,
            "inference": images_table,
            "full windows": heard_table,
            "seconds_of_audio": audio_table,
            "runs": budget_table,
            "sets": texts_table,
        }
        made = next((kinds[key] for key in kinds if key in result), table)(result)
        return f"{match[1]}\n{made}\n{match[3]}"

    return TABLE.sub(fill, page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
