"""The pages of docs/lab, made from results of `headway lab`.

    python docs/lab_pages.py [FOLDER]

FOLDER is what `headway lab --all` has written: its numbers are kept in docs/lab/results, with
an image of each experiment's first figure (this needs playwright and chromium). Without a folder
the pages are made again from what is kept. Verdicts are judged anew from the numbers, so that they
follow the code.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from headway.lab.catalogue import EXPERIMENTS, ExperimentEntry
from headway.lab.page import write_page
from headway.lab.verdict import Verdict, rounded

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "lab"
RESULTS = FOLDER / "results"
MADE = "<!-- Made by `python docs/lab_pages.py` from docs/lab/results: change the code. -->\n"
SIGNS = {"supported": "✓ supported", "refuted": "✗ refuted", "undecided": "? undecided",
         "cannot tell": "– cannot tell"}  # fmt: skip
STANCES = {"agrees": "agrees", "disagrees": "disagrees", "open": "not decided here",
           "differs": "says something else", "context": "to know"}  # fmt: skip
KEPT = ("size", "seeds", "first_seed", "data", "minutes", "cpu_minutes", "machine", "versions",
        "date")  # fmt: skip
SIZES = ("full", "quick")
"""The first of them that was run is what a page is about."""

INTRO = """
Why are there residual connections? Can attention maps be trusted? Most people who use
Transformers have asked such questions and read an answer; here each is a small experiment that
runs on your own machine and ends in a verdict, with an image and a control.

```sh
headway lab                      # the questions, and how long each takes
headway lab residuals            # run one, by its name or number: minutes on two cores
headway lab residuals --full     # larger models and data; hours on a CPU, minutes on a GPU
headway lab --all                # all of them, and an index page
```

An experiment writes a folder (`lab/residuals`, or `--out`) with `verdict.json` (the verdict,
the effect with its spread over seeds, machine, versions, date), `numbers.json` (all that was
measured) and `lab.html`, one page that works offline. What is stopped goes on by the same
command; `--seeds 9` adds seeds to the usual five, `--first-seed 7` begins at another one;
`--budget 10m` judges the seeds that are measured after ten minutes (with `--all`: of each). In
Python:

```python
from headway.lab import run_experiment

result = run_experiment("shift", out="lab/shift")
print(result.verdict, result.sentence)
```

A verdict is **supported** or **refuted** where the whole 95 % interval over seeds (Student's t)
is on one side of what would matter, and the controls came out as they must. Otherwise it is
**undecided**, and the page gives the reason. One seed decides nothing, except about arithmetic.
Quick runs are small: they show what small models on short data do, and no more.

The verdict is **cannot tell** where the task is too easy or too hard to show a difference: an arm
is at the ceiling or the floor of its score (all words right, or no more than by guessing). A large
difference still counts there, because the limit can only have made it smaller. A small one does
not: on a harder task it might be large.

Every number over seeds has a column *detectable*: the smallest distance from a bar that its seeds,
with the spread they had, would find in 80 % of cases. A smaller effect is easily missed. It is
why five seeds are the default: they detect 1.7 standard deviations, three seeds 3.3.

A verdict is about the claim with which a page begins, not about the question: that "Can maps of
attention be trusted?" is refuted means that the claim is, by which other maps point better.

## How far to trust them

Four experiments were changed and run again with five new seeds, 21 to 25. Their
bars were fixed before; seed 1 was used to choose the sizes.

- `roles` and `frequencies` had tasks that were too easy: with up to 9 words nearly every arm had
  100 % of the words right, so nothing was compared. Strings have up to 20 and 16 words now, and
  `roles` takes 800 steps.
- `maps` judged the mean of three maps, on sentences so easy that attention itself was right on 97
  to 100 % of the words. Each map is judged by itself now, and sentences have three clauses.
- `shift` checked the formula of the position code in the lab's own file: it was supported with
  random numbers in place of the code that models use. It judges the code of a model now.

The full runs of `roles`, `frequencies` and `maps` were of the old tasks and have been removed.
**The new tasks have not been run in full.**

All other runs have three seeds, so that small effects were easily missed; the column *detectable*
of their pages shows how small. Their designs were tried on seeds 1 to 3, and some bars and measures
had been moved after a look at the data. They were then fixed, and all was run on seeds 7 to 9,
which had no part in any design and whose numbers were not known. Bars are those that the
literature or our own expectations named before anything was measured; where neither named a number
it is our judgement (10 points in `roles`, a quarter in `order`, a point of chrF in `beam`, 0.05
nats in `optimal`), with seeds 1 to 3 of nine experiments known. So these verdicts are confirmatory,
for small models and minutes on one core. IN_FULL Of sixteen intervals of 95 % one may well miss.

- `beam`: quality is chrF again, and a point of it is the least that counts. It had been a count of
  sentences, since chrF was undecided. With half a point it would be undecided still.
- `optimal`: the claim is that of the LSTM with one head again. It had become that of the best of
  three bodies, which would be supported; it is told beside it, as picked afterwards.
- `roles`: without values of the source words must be guessed (5 points), without queries far fewer
  are right (10 points), and the usual translator must learn (95 %). Ends of texts no longer count
  as words.
- `heads`: 30 % must be free, the least that was expected of such a model, and attention from
  decoder to encoder must be needed most, which was claimed and not judged.
- `residuals`: tokens must become one vector without skips (below 0.001 of their length behind four
  layers) and not with them (above 0.3), which was claimed and not judged.
- `overfitting`: with much text the loss must not turn, which was claimed and not judged.
- `slow-tail`: a rank correlation of −0.2, where a modest one was said to begin, instead of −0.1.
- `order`: a quarter of what a decoder learns is little, instead of a half.
- `frequencies`, `scale`: a difference is one from 0.05 nats on; it was 0.02, and 0.1 for equality.
- `maps`: chance is within 3 standard errors, instead of 3.5.

By the bars of before all verdicts would be the same but that of `optimal`.

The design of `optimal` was changed later, and it was run again on seeds 13 to 15, which nobody had
seen; seeds 1 and 2 were looked at to choose how long copying is learned. What had been called an
LSTM with one head had one in every layer, and was refuted (0.154 nats worse). Now there are four
layers, and no head, one in the second-last layer as in the paper, and one in every layer are apart;
parameters are equal to 3 %, copying is from 20 letters back for three times as many steps, and that
a head in every layer adds little, which was expected beforehand, is judged, too.

`overfitting` was run again on seeds 13 to 15, too, with twenty looks on the way instead of eight:
the large model had turned at the first of them, so where it turns was not known. With eight looks
and seeds 7 to 9 it was supported (1.63 nats); the lowest of more looks is lower by chance as well,
with much text, too, and bars were not moved for it.

Two were mended after they had run, and run again on the same seeds. `parallelism` had timed the
Transformer with dropout of attention, which is slow on a processor, and in five rounds, too few for
its control on a busy machine: it was 0.06 times as fast as the LSTM then, with the control failed.
`overfitting` had stopped with an error before its last training. In full, the control of `shift`
had to be mended: a random table as wide as it has places can be shifted like any other. How others'
findings stand to a claim, and what would change a verdict, was worded with the results in sight.

"""


def main(folder: str = "") -> None:
    if folder:
        collect(Path(folder))
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    for path, listed in ((ROOT / "mkdocs.yml", with_nav), (FOLDER.parent / "index.md", with_list)):
        path.write_text(listed(path.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{len(pages())} pages in {FOLDER.relative_to(ROOT)}\n")


def collect(folder: Path) -> None:
    """Keep the numbers of every experiment that was run, and an image of each."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    taken: dict[str, ExperimentEntry] = {}
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
                taken[entry.name] = entry
    take_images(taken.values())


def take_images(entries: Iterable[ExperimentEntry]) -> None:
    from figures.browser import View, browsing, png, shot

    with browsing() as browser, tempfile.TemporaryDirectory() as scratch:
        for entry in entries:
            for kept in results_of(entry)[:1]:
                page = write_page(Path(scratch), entry, facts_of(entry, kept), kept["found"])
                view = View(("[data-figure] >> nth=0",), state="tab=lab")
                image_of(entry).write_bytes(png(shot(browser, page, view)))


def image_of(entry: ExperimentEntry) -> Path:
    return FOLDER.parent / "images" / f"lab-{entry.name}.png"


def results_of(entry: ExperimentEntry) -> list[dict[str, Any]]:
    """What was kept of an experiment, the full run first."""
    paths = [RESULTS / f"{entry.name}-{size}.json" for size in SIZES]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]


def facts_of(entry: ExperimentEntry, kept: dict[str, Any]) -> dict[str, Any]:
    """As `verdict.json` has them, judged anew."""
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


def in_full() -> str:
    """Which of them were run so, and on which seeds."""
    found = {entry.name: results_of(entry)[0] for entry in EXPERIMENTS.values()
             if results_of(entry) and results_of(entry)[0]["size"] == "full"}  # fmt: skip
    if not found:
        return "None was run in full."
    on: dict[tuple[int, int, str], list[str]] = {}
    for name, one in found.items():
        place = one["machine"].partition(";")[0] if ";" in one["machine"] else "a CPU"
        on.setdefault((one["seeds"], one["first_seed"], place), []).append(f"`{name}`")
    said = "; ".join(
        f"{', '.join(names)} ({n} seeds from {first} on, {place})"
        for (n, first, place), names in on.items()
    )
    return (
        f"Run in full, with bars and measures as they are for the quick ones: {said}. Several ran "
        "side by side there, a core each, and shared the GPU."
    )


def index() -> str:
    lines = [
        MADE,
        "# The lab: questions with a measured answer\n",
        INTRO.strip().replace("IN_FULL", in_full()) + "\n",
        "## Verdicts\n",
        "| | question | verdict | effect | run |",
        "|---|---|---|---|---|",
    ]
    for entry in EXPERIMENTS.values():
        kept = results_of(entry)
        if not kept:
            lines.append(f"| {entry.number} | {entry.question} | not run yet | | |")
            continue
        verdict: Verdict = entry.load().judge(kept[0]["found"])
        signs = SIGNS[verdict.verdict]
        for other in kept[1:]:
            again: Verdict = entry.load().judge(other["found"])
            signs += f" ({other['size']}: {again.verdict})" * (again.verdict != verdict.verdict)
        lines.append(
            f"| {entry.number} | [{entry.question}]({entry.name}.md) | {signs} | "
            f"{verdict.effect.name}: {verdict.effect} | {ran(kept[0])} |"
        )
    lines.append(
        "\nAn effect is a mean over seeds with its 95 % interval in brackets. Models that no "
        "setting describes get their parts through "
        "[one seam](../built/architecture.md#parts-of-ones-own)."
    )
    return "\n".join(lines) + "\n"


def ran(kept: dict[str, Any]) -> str:
    first = kept["first_seed"]
    last = first + kept["seeds"] - 1
    return f"{kept['size']}, seeds {first} to {last}, {kept['cpu_minutes']:.1f} CPU minutes"


def page(entry: ExperimentEntry) -> str:
    experiment, results = entry.load(), results_of(entry)
    kept = results[0]
    verdict: Verdict = experiment.judge(kept["found"])
    figures = experiment.figures(kept["found"])
    lines = [MADE, f"# {entry.question}\n", f"**{SIGNS[verdict.verdict]}** ({ran(kept)}). "
             f"{verdict.sentence}\n"]  # fmt: skip
    if kept["size"] == "quick":
        lines.append("This is a quick run: small models and little data, on a CPU.\n")
    lines.append(f"What was held to be true: {experiment.hypothesis}\n")
    if image_of(entry).is_file():
        lines.append(f"![{figures[0].title}](../images/{image_of(entry).name})\n")
    lines.append(f"*{figures[0].title}.* {figures[0].hint}\n")
    lines += ["## What was done\n", *(f"{text}\n" for text in experiment.method)]
    lines += ["## The control\n", f"{experiment.control}\n"]
    lines += [f"- {'passed' if one.passed else '**failed**'}: {one.said}"
              for one in verdict.controls]  # fmt: skip
    lines += [
        "\n## The numbers\n",
        "| | mean | 95 % | spread | detectable | |",
        "|---|---:|---|---:|---:|---|",
    ]
    for effect in (verdict.effect, *verdict.more):
        between = "exact" if effect.exact else f"{rounded(effect.low)} to {rounded(effect.high)}"
        spread, least = (
            ("", "") if effect.exact else map(rounded, (effect.spread, effect.detectable))
        )
        lines.append(
            f"| {effect.name} | {rounded(effect.value)} | {between} | {spread} | {least} | "
            f"{effect.unit} |"
        )
    lines.append("")
    for figure in figures:
        hint = [] if figure is figures[0] else [f"{figure.hint}\n"]  # it stands below the image
        lines += [f"### {figure.title}\n", *hint, *table(*figure.table()), ""]
    lines += ["## What would change it\n", f"{verdict.changes}\n", "## What others found\n"]
    lines += [f"- {one.who} ({STANCES[one.stance_on_finding(verdict.verdict, verdict.parts)]}): "
              f"{one.says}"
              for one in experiment.literature]  # fmt: skip
    for other in results[1:]:
        again: Verdict = experiment.judge(other["found"])
        lines += [f"\n## The {other['size']} run\n",
                  f"**{SIGNS[again.verdict]}** ({ran(other)}). {again.sentence}"]  # fmt: skip
    flag = " --full" if kept["size"] == "full" else ""
    flag += f" --first-seed {kept['first_seed']}" if kept["first_seed"] != 1 else ""
    versions = ", ".join(f"{name} {version}" for name, version in kept["versions"].items())
    lines += ["\n## Run it yourself\n", "```sh", f"headway lab {entry.name}{flag}", "```\n",
              f"Measured on {kept['date']} with {versions}, on {kept['machine']}."]  # fmt: skip
    return "\n".join(lines) + "\n"


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    right = [
        bool(rows) and all(isinstance(row[c], int | float | None) for row in rows)
        for c in range(len(columns))
    ]
    marks = ["---:" if one else "---" for one in right]
    return [
        f"| {' | '.join(columns)} |", f"|{'|'.join(marks)}|",
        *(f"| {' | '.join(map(cell, row))} |" for row in rows),
    ]  # fmt: skip


def cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 1 else rounded(value)


def with_nav(text: str) -> str:
    """The navigation with a line for each page."""
    lines = ["  - The lab:", "      - Questions and verdicts: lab/index.md"]
    for entry in EXPERIMENTS.values():
        if results_of(entry):
            name = entry.question.rstrip("?")
            lines.append(f'      - "{entry.number}. {name}": lab/{entry.name}.md')
    block = "\n".join(lines) + "\n"
    if "  - The lab:\n" in text:
        return re.sub(r"  - The lab:\n(?:      - .*\n)*", lambda _: block, text)
    return text.replace("  - Bring and take weights:\n", f"{block}  - Bring and take weights:\n")


def with_list(text: str) -> str:
    """The first page of the documentation with a link to each."""
    lines = ["## The lab\n", "- [Questions and verdicts](lab/index.md): `headway lab`, small "
             "experiments that answer the classic questions on your own machine."]  # fmt: skip
    lines += [f"- [{entry.question}](lab/{entry.name}.md)" for entry in EXPERIMENTS.values()
              if results_of(entry)]  # fmt: skip
    block = "\n".join(lines) + "\n"
    if "\n## The lab\n" in text:
        return re.sub(r"## The lab\n\n(?:- .*\n)*", lambda _: block, text)
    return text.replace("## Bring and take weights\n", f"{block}\n## Bring and take weights\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
