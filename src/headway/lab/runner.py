"""Run an experiment for one seed after another, and write its verdict and page. Stopped runs can be
resumed."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import __version__
from headway.data import workers
from headway.errors import ConfigError, FolderError, UserError
from headway.lab.catalogue import SEEDS, ExperimentEntry, find
from headway.lab.experiment import Experiment, SeedMeasurements
from headway.lab.page import PAGE, write_page
from headway.lab.verdict import Verdict, capitalised, plain
from headway.lab.workspace import OutOfTime, Workspace, read_json
from headway.progress import Progress, duration
from headway.storage import replace_text

MARK = "experiment.json"
"""File in a results folder that records the experiment, its size (quick or full) and its data."""

NUMBERS = "numbers.json"
VERDICT = "verdict.json"
SEED = "seed.json"
"""File with all measurements of one seed, in the folder of the seed.

Seeds may be measured in parallel, each in a separate folder, and merged into one folder later.
"""


@dataclass(frozen=True)
class Result:
    """Result of an experiment: `verdict`, `answer`, and the folder with all files."""

    folder: Path
    facts: dict[str, Any]
    """Contents of `verdict.json`."""

    @property
    def verdict(self) -> str:
        return str(self.facts["verdict"])

    @property
    def answer(self) -> str:
        return str(self.facts["answer"])

    @property
    def measured(self) -> str:
        return str(self.facts["measured"])

    @property
    def page(self) -> Path:
        return self.folder / PAGE


def run_experiment(
    name: str,
    out: str | os.PathLike[str] | None = None,
    *,
    full: bool = False,
    seeds: int = SEEDS,
    first_seed: int = 1,
    data: str | os.PathLike[str] | None = None,
    device: str = "auto",
    budget_s: float | None = None,
    quiet: bool = False,
) -> Result:
    """Run an experiment and write `verdict.json`, `numbers.json` and a page into `out`.

    The same call resumes a stopped experiment. With more seeds, it measures only the new seeds.

    Args:
        name: Name of the experiment, which `headway lab` lists.
        out: Folder of the results. None: `lab/` followed by the name of the experiment.
        full: Run the large version instead of the quick one.
        seeds: Number of seeds, each with its own data and training runs.
        first_seed: First seed; the others follow. New seeds can confirm an earlier result.
        data: Path of your own data, for experiments that support it. None: the default data.
        device: `"cpu"`, `"cuda"` or `"cuda:1"`; `"auto"` uses a GPU if there is one.
        budget_s: Time limit in seconds, after which the finished seeds are judged.
        quiet: Whether to print nothing.

    Returns:
        Result with `verdict`, `answer` and `measured`, and the `folder` with all files.

    Example:
        print(run_experiment("residuals").verdict)
    """
    entry = find(name)
    if seeds < 1:
        raise ConfigError(
            f"seeds={seeds} must be at least 1. Use 5 or more to detect small effects."
        )
    if first_seed < 1:
        raise ConfigError(f"first_seed={first_seed} must be at least 1.")
    folder = Path(out) if out is not None else default_folder(entry, full)
    source = None if data is None else _data(entry, Path(data))
    progress = Progress(enabled=not quiet)
    _claim(folder, entry, full, source)
    seeds = _n_seeds_to_judge(folder, seeds, first_seed, progress)
    if full:
        _report_duration(entry, device, seeds, progress)
    experiment = entry.load()
    clock = _Clock(folder)
    found: list[SeedMeasurements] = []
    doubts: list[str] = []
    over = ""
    total = seeds * experiment.pieces[full]
    with progress, progress.stage(entry.name, total, "parts") as stage:
        stage.patience = 0.0
        try:
            for seed in range(first_seed - 1, first_seed - 1 + seeds):
                place = folder / f"seed-{seed + 1}"
                bench = Workspace(
                    folder=place, seed=seed, quick=not full, data=source, device=device,
                    progress=progress, stage=stage, doubts=doubts,
                    deadline=None if budget_s is None else clock.begun[0] + budget_s,
                )  # fmt: skip
                found.append(_measure_seed(experiment, bench))
        except OutOfTime:
            over = (
                f"the time budget of {duration(budget_s or 0)} ended after {len(found)} of {seeds} "
                "seeds"
            )
        finally:
            clock.note()
    verdict = _judged(entry, found, doubts, over)
    facts = {
        **_facts(entry, verdict, full, source, clock, device, doubts),
        "seeds": len(found), "first_seed": first_seed,
    }  # fmt: skip
    replace_text(folder / NUMBERS, json.dumps({"seeds": found}, indent=1))
    replace_text(folder / VERDICT, json.dumps(facts, ensure_ascii=False, indent=1))
    write_page(folder, entry, facts, found)
    return Result(folder, facts)


def _measure_seed(experiment: Experiment, bench: Workspace) -> SeedMeasurements:
    """Measure one seed, or load its measurements if they exist.

    A seed whose data is insufficient is measured again, so that the reasons are reported again.
    """
    path = bench.folder / SEED
    if path.is_file():
        for _ in range(experiment.pieces[not bench.quick]):
            bench.done()
        kept: SeedMeasurements = read_json(path)
        return kept
    measured: SeedMeasurements = plain(experiment.measure(bench))
    if not bench.doubts:
        replace_text(path, json.dumps(measured))
    return measured


def default_folder(entry: ExperimentEntry, full: bool, within: Path = Path("lab")) -> Path:
    return within / (f"{entry.name}-full" if full else entry.name)


def _judged(
    entry: ExperimentEntry, found: Sequence[SeedMeasurements], doubts: Sequence[str], over: str
) -> dict[str, Any]:
    """Return the verdict of the experiment as JSON, or the reason why there is none.

    `over`: note that the time budget is used up, else empty. The finished seeds are judged in any
    case.
    """
    if not found:
        return {
            "verdict": "undecided", "effect": None, "controls": [], "more": [], "parts": {},
            "answer": "There is no answer yet.",
            "measured": f"Nothing was measured because {'; '.join([*doubts, over])}.",
            "changes": "More time: repeat the command to resume.",
        }  # fmt: skip
    verdict: Verdict = entry.load().judge(found)
    facts = verdict.as_json()
    if doubts:
        facts["answer"] = "There is no answer: the data are too small."
        facts["measured"] = f"Too little data: {'; '.join(doubts)}. {verdict.measured}"
        facts["verdict"], facts["parts"] = "undecided", {}
    if over:
        facts["measured"] += f" {capitalised(over)}."
    return facts


def _facts(
    entry: ExperimentEntry, verdict: dict[str, Any], full: bool, data: Path | None, clock: _Clock,
    device: str, doubts: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    experiment = entry.load()
    return {
        "experiment": entry.name, "number": entry.number, "question": entry.question,
        **verdict,
        "hypothesis": experiment.hypothesis, "method": list(experiment.method),
        "control": experiment.control,
        "literature": [[one.who, one.says, one.stance_on_finding(verdict["verdict"],
        verdict["parts"])]
                       for one in experiment.literature],
        "size": "full" if full else "quick", "doubts": list(doubts),
        "data": None if data is None else data.name,
        "minutes": round(clock.spent[0] / 60, 2), "cpu_minutes": round(clock.spent[1] / 60, 2),
        "machine": machine(device),
        "versions": versions(), "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def machine(device: str) -> str:
    import torch

    from headway.nn.devices import pick_device

    place = pick_device(device)
    n, name = workers.cores(), platform.processor() or platform.machine()
    cores = f"{n} core{'s' * (n != 1)}, {name}"
    if place.type != "cuda":
        return cores
    return f"{torch.cuda.get_device_name(place)}; {cores}"


def versions() -> dict[str, str]:
    import torch

    found = {"headway": __version__, "torch": torch.__version__}
    return found | {"python": platform.python_version()}


# -- results folder


def _claim(folder: Path, entry: ExperimentEntry, full: bool, data: Path | None) -> None:
    """Mark a new folder as belonging to this experiment. Raise an error if the folder holds
    something else."""
    wanted = {
        "experiment": entry.name, "size": "full" if full else "quick",
        "data": None if data is None else str(data.resolve()),
    }  # fmt: skip
    path = folder / MARK
    # A folder without measurements, for example after a mistyped --data, can be reused.
    if path.is_file() and any(folder.glob("seed-*/*")):
        there = read_json(path)
        if there.get("experiment") != entry.name:
            raise FolderError(
                f"{folder} contains the experiment {there.get('experiment')!r}, not "
                f"{entry.name!r}. Choose another folder for --out."
            )
        for key, word in (("size", "size"), ("data", "data")):
            if there.get(key) != wanted[key]:
                raise FolderError(
                    f"{folder} contains the experiment {entry.name!r} with different {word}: "
                    f"{there.get(key) or 'default'}, not {wanted[key] or 'default'}. Choose "
                    "another folder for --out."
                )
        return
    if folder.is_file():
        raise FolderError(f"{folder} is a file. Choose a folder for --out.")
    if (
        not path.is_file()
        and folder.is_dir()
        and any(not one.name.startswith(".") for one in folder.iterdir())
    ):
        raise FolderError(
            f"{folder} is not empty and contains no lab experiment. Choose another folder for "
            "--out."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(wanted, indent=1))
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error}.") from error


def _data(entry: ExperimentEntry, path: Path) -> Path:
    if not entry.data:
        raise UserError(
            f"the experiment {entry.name!r} generates its own data and does not support --data. "
            "Remove --data."
        )
    if not path.exists():
        raise FolderError(f"--data {path} does not exist. Pass {entry.data}.")
    return path


class _Clock:
    """Wall-clock and CPU time of an experiment, summed over all its sessions."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "spent.json"
        kept = read_json(self.path) if self.path.is_file() else {}
        self.before = float(kept.get("seconds", 0)), float(kept.get("cpu_seconds", 0))
        self.begun = time.monotonic(), time.process_time()
        self.spent = self.before

    def note(self) -> None:
        now = time.monotonic(), time.process_time()
        self.spent = (
            self.before[0] + now[0] - self.begun[0],
            self.before[1] + now[1] - self.begun[1],
        )
        seconds, of_cores = (round(one, 2) for one in self.spent)
        replace_text(self.path, json.dumps({"seconds": seconds, "cpu_seconds": of_cores}))


def _n_seeds_to_judge(folder: Path, seeds: int, first_seed: int, progress: Progress) -> int:
    """Return the number of seeds to judge: the requested number, or more if more are already
    measured.

    A verdict over more seeds is never replaced by a verdict over fewer.
    """
    there = 0
    while (folder / f"seed-{first_seed + there}" / SEED).is_file():
        there += 1
    if there > seeds:
        progress.note(
            f"{folder} already has results of {there} seeds. The verdict uses all of them."
        )
    return max(seeds, there)


def _report_duration(entry: ExperimentEntry, device: str, seeds: int, progress: Progress) -> None:
    """Report the expected duration of a full run, if no GPU is available or a GPU would not
    help."""
    from headway.nn.devices import pick_device

    def taking(minutes: float) -> str:
        return f"about {duration(60 * minutes * seeds / SEEDS)}"

    rest = (
        "The run starts now and can be resumed with the same command. Without --full it takes "
        f"{taking(entry.quick)}."
    )
    if entry.on_gpu is None:
        progress.note(
            f"{entry.name} --full takes {taking(entry.full)} on two cores; a GPU does not make it "
            f"faster. {rest}"
        )
    elif pick_device(device).type != "cuda":
        progress.note(
            f"no GPU found: {entry.name} --full takes {taking(entry.full)} on two cores, or "
            f"{taking(entry.on_gpu)} on a GPU. {rest}"
        )
