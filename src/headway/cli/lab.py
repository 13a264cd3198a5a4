"""`headway lab`: small experiments on classic questions about Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.data_arguments import DeviceOption, JsonOption, print_to_stderr
from headway.cli.print_table import show_table
from headway.errors import Stopped, UserError
from headway.lab.catalogue import EXPERIMENTS, SEEDS, ExperimentEntry, find
from headway.progress import duration

if TYPE_CHECKING:
    from headway.lab.runner import Result


def _names() -> list[str]:
    return list(EXPERIMENTS)


def lab(
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPERIMENT", help="Name or number of an experiment. Default: list them.",
            autocompletion=_names,
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Full size, or small (minutes on a CPU).")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Random seeds, one run each.")] = SEEDS,
    first_seed: Annotated[
        int, typer.Option(min=1, help="First seed. New seeds test a result again.")
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Output folder. Default: lab/EXPERIMENT, or lab with --all.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data for the experiments that use real data.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run all that have no verdict; write an index page.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(help="Time limit per experiment: 5m, 2h. The verdict uses finished runs."),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Answer questions about Transformers with experiments.

    Each experiment ends with a verdict, a figure and the results of its controls."""
    if every and experiment is not None:
        raise UserError(
            f"--all cannot be combined with the name of an experiment ({experiment!r}). Give one "
            "of them."
        )
    options: dict[str, Any] = {
        "full": full, "seeds": seeds, "first_seed": first_seed, "device": device,
    }  # fmt: skip
    if budget is not None:
        from headway.training.estimate import seconds

        options["budget_s"] = seconds(budget)
    if every:
        if data is not None:
            raise UserError(
                "--data cannot be combined with --all: each experiment needs different data. Run "
                f"one experiment: `headway lab NAME --data {data}`"
            )
        _all(out or Path("lab"), full, options, as_json)
    elif experiment is None:
        _list(out or Path("lab"), as_json)
    else:
        from headway.lab.runner import run_experiment

        _show(_stoppable(run_experiment, find(experiment).name, out, data=data, **options), as_json)


def _list(folder: Path, as_json: bool) -> None:
    """Print the questions with the run times of their experiments, and the verdicts stored in the
    folder."""
    found = [_experiment_row(folder, entry) for entry in EXPERIMENTS.values()]
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    rows = [
        (str(row["number"]), row["experiment"], row["question"], _minutes(row["quick"]),
         _minutes(row["full"]), _minutes(row["on_gpu"]), row.get("verdict") or "")
        for row in found
    ]  # fmt: skip
    heads = ["", "experiment", "question", "quick", "full", "full, GPU", "found here"]
    show_table(heads, rows, {"", "quick", "full", "full, GPU"})
    print(
        f"\nTimes are for two CPU cores and {SEEDS} seeds. `headway lab NAME` runs one experiment; "
        "`headway lab --all` runs all. To resume after an interruption, repeat the command."
    )


def _minutes(minutes: float | None) -> str:
    return "" if minutes is None else duration(60 * minutes)


def _experiment_row(folder: Path, entry: ExperimentEntry) -> dict[str, Any]:
    """Return the table row of an experiment, with its stored verdict. A verdict from a full run is
    preferred to one from a quick run."""
    row: dict[str, Any] = {
        "experiment": entry.name, "number": entry.number, "question": entry.question,
        "quick": entry.quick, "full": entry.full, "on_gpu": entry.on_gpu, "data": entry.data,
    }  # fmt: skip
    for name in (f"{entry.name}-full", entry.name):
        path = folder / name / "verdict.json"
        if path.is_file():
            try:
                said = json.loads(path.read_text(encoding="utf-8"))
                kept = ("verdict", "answer", "measured", "size", "seeds", "date", "effect")
                return {**row, **{key: said[key] for key in kept}, "page": f"{name}/lab.html"}
            except (ValueError, KeyError, TypeError):
                print_to_stderr(
                    f"{path} is damaged or from an earlier version and was skipped. To create it "
                    f"again: `headway lab {entry.name}`"
                )
    return row


def _all(folder: Path, full: bool, options: dict[str, Any], as_json: bool) -> None:
    from headway.lab.page import write_index
    from headway.lab.runner import default_folder, run_experiment

    failed: dict[str, str] = {}
    for entry in EXPERIMENTS.values():
        place = default_folder(entry, full, folder)
        if _settled(place, options["seeds"], options["first_seed"]):
            continue
        print_to_stderr(f"E{entry.number} {entry.name}: {entry.question}")
        try:
            result = _stoppable(run_experiment, entry.name, place, again="--all", **options)
        except Exception as error:  # the other experiments can still run
            failed[entry.name] = f"{error or type(error).__name__}"
            print_to_stderr(f"  failed: {failed[entry.name]}")
            continue
        print_to_stderr(f"  {result.verdict}: {result.answer}")
        write_index(folder, [_experiment_row(folder, one) for one in EXPERIMENTS.values()])
    found = [_experiment_row(folder, entry) for entry in EXPERIMENTS.values()]
    page = write_index(folder, found)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        rows = [(str(row["number"]), row["experiment"], row.get("verdict") or "",
                 row.get("answer") or "") for row in found]  # fmt: skip
        show_table(["", "experiment", "verdict", "answer"], rows, {""})
        print(f"\n{page}")
    if failed:
        said = "; ".join(f"{name} ({why.rstrip('.')})" for name, why in failed.items())
        raise UserError(
            f"{len(failed)} of {len(found)} experiments failed: {said}. To see the full error of "
            f"one: `headway lab NAME --out {folder}/NAME`"
        )


def _settled(folder: Path, seeds: int, first_seed: int) -> bool:
    path = folder / "verdict.json"
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return int(said["seeds"]) >= seeds and said["first_seed"] == first_seed
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _stoppable(run: Any, name: str, *given: Any, again: str = "", **options: Any) -> Result:
    try:
        result: Result = run(name, *given, **options)
        return result
    except (Stopped, KeyboardInterrupt) as error:
        print_to_stderr(
            f"stopped. To resume, run `headway lab {again or name}` with the same options."
        )
        raise KeyboardInterrupt from error


def _show(result: Result, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.facts, ensure_ascii=False))
        return
    facts = result.facts
    print(f"{facts['question']}\n\n{facts['verdict']}: {facts['answer']}\n{facts['measured']}\n")
    for control in facts["controls"]:
        print(f"control {'passed' if control['passed'] else 'FAILED'}: {control['said']}")
    seeds = f"{facts['seeds']} seed{'s' * (facts['seeds'] != 1)}"
    print(f"{facts['size']}, {seeds}, {facts['minutes']:g} minutes\n{result.page}")
