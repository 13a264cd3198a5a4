"""The pages of docs/lab, made from results of `headway lab`.

    python docs/lab_pages.py [FOLDER]

FOLDER is an output folder of `headway lab --all`: its numbers are copied to docs/lab/results, and
the image of each experiment is drawn again (this needs playwright and chromium). Without a folder
the pages are made from the stored numbers. Verdicts are always judged again, so that they follow
the code.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.lab.catalogue import EXPERIMENTS, ExperimentEntry
from headway.lab.figures import Figure, LineChart
from headway.lab.verdict import Verdict, rounded, spaced

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "lab"
RESULTS = FOLDER / "results"
IMAGES = ROOT / "docs" / "images"
MADE = "<!-- Made by docs/lab_pages.py: change the code. -->\n"
SIGNS = {"supported": "✓ supported", "refuted": "✗ refuted", "undecided": "? undecided",
         "cannot tell": "– cannot tell"}  # fmt: skip
STANCES = {"agrees": "agrees", "disagrees": "disagrees", "open": "undecided here",
           "differs": "different finding", "context": "background"}  # fmt: skip
KEPT = ("size", "seeds", "first_seed", "data", "minutes", "cpu_minutes", "machine", "versions",
        "date")  # fmt: skip
SIZES = ("full", "quick")
"""Sizes of runs, in the order of their weight: a page is about the first one that was run."""

SOURCES = 2
"""Number of publications on a page. All are on `lab.html`."""

ROWS = 1
"""Number of further effects in the table of a page. All of them are on `lab.html`."""

INTRO = """
Each question below comes with a small experiment that you can run on your machine. Most experiments
train small models. Each experiment ends with an answer, figures and control measurements.

![Terminal: headway lab shift prints the question, the verdict, the answer and the measured
numbers](../images/lab-command.png)

## Questions and answers
"""

METHOD = """
## Run an experiment

```sh
headway lab                      # list the questions and their run times
headway lab residuals            # run one by name or number: minutes on two cores
headway lab residuals --full     # larger models and data: hours on a CPU, minutes on a GPU
headway lab --all                # run all experiments and write an index page
```

```py
from headway.lab import run_experiment

result = run_experiment("shift", out="lab/shift")
print(result.verdict, result.answer, result.measured)
```

The output folder (`lab/residuals`, or the folder given with `--out`) contains `verdict.json`,
`numbers.json` and `lab.html`. `lab.html` shows all figures and works offline. To resume a stopped
run, or to add seeds (`--seeds 9`), repeat the command.

## How a verdict is reached

Each page states the claim that was tested. The verdict on this claim is one of the following:

- **supported** or **refuted**: the whole 95 % interval over seeds (Student's t) is on one side of
  the threshold, and all controls passed.
- **undecided**: the interval contains the threshold, only one seed was run, or a control failed.
  More seeds may lead to a verdict unless a control failed.
- **cannot tell**: the task is too easy or too hard to show a difference.

With five seeds, the default, an effect of 1.7 standard deviations is detected in 80 % of cases.
With three seeds, the effect must be 3.3 standard deviations. Quick runs show only how small
models behave on little data.

## Method and its history

Thresholds come from the literature or from expectations that were stated beforehand. Where neither
gave a number, we chose the threshold. Designs were tested on seeds 1 to 3, and some thresholds were
changed after these results were known. Then all designs and thresholds were fixed, and the
experiments were run on unused seeds. With the earlier thresholds, only the verdict of `optimal`
would differ.

`roles`, `frequencies`, `maps`, `shift`, `optimal` and `overfitting` were redesigned later and run
on new seeds. `roles`, `frequencies` and `maps` have had no full run since. Among sixteen 95 %
intervals, one may well miss the true value.
"""


def main(folder: str = "") -> None:
    if folder:
        collect(Path(folder))
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    nav = ROOT / "mkdocs.yml"
    nav.write_text(with_nav(nav.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{len(pages())} pages in {FOLDER.relative_to(ROOT)}\n")


def collect(folder: Path) -> None:
    """Store the numbers of every experiment in the folder and draw its image again."""
    import make_images

    RESULTS.mkdir(parents=True, exist_ok=True)
    taken: dict[str, None] = {}
    for entry in EXPERIMENTS.values():
        for size in SIZES:
            place = folder / (entry.name if size == "quick" else f"{entry.name}-full")
            if (place / "verdict.json").is_file():
                facts = json.loads((place / "verdict.json").read_text(encoding="utf-8"))
                if facts["doubts"]:
                    sys.stdout.write(f"{place} is left out: {'; '.join(facts['doubts'])}\n")
                    continue
                found = json.loads((place / "numbers.json").read_text(encoding="utf-8"))["seeds"]
                kept = {**{key: facts[key] for key in KEPT}, "found": found}
                text = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
                (RESULTS / f"{entry.name}-{size}.json").write_text(text + "\n", encoding="utf-8")
                taken[f"lab-{entry.name}"] = None
    if taken:
        make_images.main(list(taken))


def results_of(entry: ExperimentEntry) -> list[dict[str, Any]]:
    """The stored runs of an experiment, the full one first."""
    paths = [RESULTS / f"{entry.name}-{size}.json" for size in SIZES]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]


def facts_of(entry: ExperimentEntry, kept: dict[str, Any]) -> dict[str, Any]:
    """The contents of `verdict.json`, judged again."""
    experiment = entry.load()
    verdict: Verdict = experiment.judge(kept["found"])
    return {
        "experiment": entry.name, "number": entry.number, "question": entry.question,
        **verdict.as_json(), "hypothesis": experiment.hypothesis,
        "method": list(experiment.method), "control": experiment.control,
        "literature": [[one.who, one.says, one.stance_on_finding(verdict.verdict, verdict.parts)]
                       for one in experiment.literature],
        **{key: kept[key] for key in KEPT},
    }  # fmt: skip


def pages() -> dict[Path, str]:
    """Every page with its text."""
    found = {FOLDER / "index.md": index()}
    for entry in EXPERIMENTS.values():
        if results_of(entry):
            found[FOLDER / f"{entry.name}.md"] = page(entry)
    return found


def index() -> str:
    lines = [
        MADE,
        "# The lab: questions with a measured answer",
        INTRO,
        "| | question | answer | evidence |",
        "|---|---|---|---|",
    ]
    for entry in EXPERIMENTS.values():
        kept = results_of(entry)
        if not kept:
            lines.append(f"| {entry.number} | {entry.question} | not run yet | |")
            continue
        verdict: Verdict = entry.load().judge(kept[0]["found"])
        lines.append(
            f"| {entry.number} | [{entry.question}]({entry.name}.md) | {verdict.answer} | "
            f"{SIGNS[verdict.verdict]}, {evidence(entry, kept[0])} |"
        )
    return "\n".join(lines) + "\n" + METHOD


def evidence(entry: ExperimentEntry, kept: dict[str, Any]) -> str:
    """A link to the numbers, which names the size of the run."""
    return f"[{kept['size']} run, {kept['seeds']} seeds](results/{entry.name}-{kept['size']}.json)"


def page(entry: ExperimentEntry) -> str:
    experiment, results = entry.load(), results_of(entry)
    kept = results[0]
    verdict: Verdict = experiment.judge(kept["found"])
    figure = experiment.figures(kept["found"])[0]
    others = "".join(
        f"; **{SIGNS[experiment.judge(other['found']).verdict]}** by a {evidence(entry, other)}"
        for other in results[1:]
    )
    lines = [
        MADE, f"# {entry.question}\n", f"**{verdict.answer}**\n", f"{verdict.measured}\n",
        f"![{alt(figure)}](../images/lab-{entry.name}.png)\n",
        "## Method\n",
        f"Claim: {experiment.hypothesis}\n",
        f"Verdict: **{SIGNS[verdict.verdict]}** by a {evidence(entry, kept)}{others}.\n",
        *(f"{text}\n" for text in experiment.method),
        "## Control\n", f"{experiment.control}\n",
        *(f"- {'passed' if one.passed else '**failed**'}: {one.said}" for one in verdict.controls),
        "\n## Further numbers\n", *table(["measured", "mean", "95 % interval"], numbers(verdict)),
        "\n## What would change the answer\n", f"{verdict.changes}\n", "## What others found\n",
        *(f"- {one.who} ({STANCES[one.stance_on_finding(verdict.verdict, verdict.parts)]}): "
          f"{one.says}" for one in experiment.literature[:SOURCES]),
    ]  # fmt: skip
    flag = " --full" if kept["size"] == "full" else ""
    flag += f" --seeds {kept['seeds']} --first-seed {kept['first_seed']}"
    lines += ["\n## Run it yourself\n", "```sh", f"headway lab {entry.name}{flag}", "```\n",
              f"This run took {kept['cpu_minutes']:.1f} CPU minutes ({kept['machine']}; "
              f"{kept['date']})."]  # fmt: skip
    return "\n".join(lines) + "\n"


def alt(figure: Figure) -> str:
    """What the image shows: its title and the names of its lines."""
    if isinstance(figure, LineChart):
        return f"{figure.title}: {'; '.join(name for name, _ in figure.series[:3])}"
    return f"Bar chart: {figure.title}"


def numbers(verdict: Verdict) -> list[list[str]]:
    return [
        [one.name, f"{rounded(one.value)}{spaced(one.unit)}",
         "exact" if one.exact else f"{rounded(one.low)} to {rounded(one.high)}"]
        for one in verdict.more[:ROWS]
    ]  # fmt: skip


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(columns)} |", f"|---{'|---:' * (len(columns) - 1)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]  # fmt: skip


def with_nav(text: str) -> str:
    """The navigation with a line for each page."""
    lines = ["  - The lab:", "      - Questions and answers: lab/index.md"]
    for entry in EXPERIMENTS.values():
        if results_of(entry):
            name = entry.question.rstrip("?")
            lines.append(f'      - "{entry.number}. {name}": lab/{entry.name}.md')
    block = "\n".join(lines) + "\n"
    return re.sub(r"  - The lab:\n(?:      - .*\n)*", lambda _: block, text)


if __name__ == "__main__":
    main(*sys.argv[1:])
