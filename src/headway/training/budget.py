"""Time budget of a run: plans the number of steps and the size of evaluations during training.

This module uses neither PyTorch nor a clock of its own; `now` and all measured durations are passed
in.

Every decision is written to the run folder (`plan.jsonl`) and synced before it takes effect. If the
run is killed and resumed, it repeats the recorded decisions before it makes new ones.
"""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headway.storage import replace_text, sync

PLAN = "plan.jsonl"

EVALUATIONS, FEWEST = 20, 4
"""Maximum and minimum number of evaluations that are planned by default. If the time is too short
even for the minimum, each evaluation uses fewer examples."""

EVALUATION_SHARE = 0.12
"""Fraction of the budget for evaluations and the checkpoints saved with them. It leaves most of the
time for training; twenty evaluations still show the progress of a run."""

END_SHARE = 0.06
"""Fraction of the budget for the final comparison of candidate weights, which uses full
decoding."""

FEW = 8
"""Minimum number of validation examples of an evaluation. If there is no time for that many, the
evaluation is skipped."""

SEARCHED, READ = 4.0, 1.25
"""Approximate cost of an example in the final comparison with beam search, and without it. The unit
is the cost of an example in an evaluation during training."""

SURE = 0.8
"""Fraction of the remaining time that is planned for the final comparison. The rest absorbs errors
of the estimate."""

REPORT_S = 1.0
"""Number of seconds reserved for writing the report and exiting."""

DRIFT = 0.1
"""Minimum relative change of the number of remaining steps for which a new plan replaces the
current one."""

UNTIMED = 50
"""Number of steps in the first plan, if no step was timed. The first step is then timed and a new
plan is made. The number is below `no_learning.LEAST_STEPS`, so that no warning is based on it."""

STALL = 8.0
"""Upper limit of the measured duration of a step, as a multiple of the average of earlier steps. A
machine may become a few times slower, but a step that takes a hundred times as long is a passing
disturbance."""

PATIENCE = 2.0
"""Duration after which an evaluation is aborted, as a multiple of its planned duration."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Plan of a run with a time budget, valid until the next decision."""

    step: int
    """Step after which the plan applies."""

    steps: int
    """Total number of steps."""

    until: int
    """Step at which the next evaluation is due."""

    examples: int
    """Number of validation examples of the next evaluation. 0: the evaluation is skipped."""

    progress: float
    """Fraction of the learning-rate schedule that is completed at `step`."""

    look: int = 1
    """Number of steps between two readings of the clock."""

    warmup: int = 0
    """Number of warm-up steps that the user set; 0 if none were set. It does not depend on the
    total number of steps, and `progress` counts from the end of the warm-up."""

    def progress_at(self, step: int) -> float:
        """Return the fraction of the learning-rate schedule that is completed at a later step.

        It grows linearly to 1 at the last step. The learning rate therefore never jumps, and ends
        at its final value however often the plan changes.
        """
        first = max(self.step, self.warmup)
        if self.steps <= first:
            return self.progress
        way = max(0, step - first) / (self.steps - first)
        return self.progress + way * (1.0 - self.progress)

    def looks(self, step: int) -> bool:
        """Return whether the clock is read after this step. The answer is the same on all ranks."""
        return step < self.steps and (step % self.look == 0 or step > self.until)


@dataclass(frozen=True, kw_only=True)
class Final:
    """Extent of the final comparison of candidate weights."""

    examples: int
    """Number of validation examples per candidate. 0: nothing is compared."""

    careful: bool
    """Whether the full decoding settings are used, such as beam search."""


class Journal:
    """`plan.jsonl`: decisions that depended on the clock or on the machine's load, one per line.

    Each line has a checksum and is on disk before `add` returns. A resumed run can therefore repeat
    the decisions of the killed run. The first damaged line and everything after it are ignored, and
    these decisions are made again.
    """

    def __init__(self, path: Path | None, note: Callable[[str], None] = lambda text: None) -> None:
        self.path, self.note = path, note
        self.plans: dict[int, Decision] = {}
        self.evaluations: dict[int, int] = {}
        self.threads: dict[int, int] = {}
        """Number of threads, keyed by the first step that uses it."""

        self.final: Final | None = None
        self.spent_s = 0.0
        """Seconds of the budget used when the last line of the journal was written."""

        self.costs: dict[str, float] = {}
        """Durations in seconds by name, as measured when the last line of the journal was
        written."""

        if path is not None and path.exists():
            self._read(path)

    @property
    def last_step(self) -> int:
        return max([*self.plans, *self.evaluations], default=-1)

    def add(self, kind: str, elapsed_s: float, **facts: Any) -> None:
        entry = {"kind": kind, **facts, "costs": self.costs, "elapsed_s": round(elapsed_s, 3)}
        self._take(entry)
        if self.path is None:
            return
        body = json.dumps(entry)
        line = json.dumps({**entry, "sum": zlib.crc32(body.encode())}) + "\n"
        try:
            _append(self.path, line)
        except OSError as error:  # training continues, as without a checkpoint
            self.note(f"warning: cannot write {self.path}: {error}")

    def _read(self, path: Path) -> None:
        lines = path.read_bytes().split(b"\n")
        good = 0
        for line in lines:
            entry = _checked(line)
            if entry is None:
                break
            self._take(entry)
            good += 1
        # The last line was cut off or lacks its line feed. A new line must not be appended to it.
        torn = good >= len(lines) - 1
        if any(lines[good:]) or good == len(lines):
            if not torn:  # a line cut off by a kill never took effect
                self.note(
                    f"warning: {path} is damaged in line {good + 1}. This line and all later lines "
                    "are ignored, and the budget is planned again from that point."
                )
            kept = b"".join(line + b"\n" for line in lines[:good])
            replace_text(path, kept.decode())

    def _take(self, entry: dict[str, Any]) -> None:
        facts = {k: v for k, v in entry.items() if k not in ("kind", "costs", "elapsed_s")}
        if entry["kind"] == "plan":
            self.plans[facts["step"]] = Decision(**facts)
        elif entry["kind"] == "evaluation":
            self.evaluations[facts["step"]] = facts["examples"]
        elif entry["kind"] == "threads":
            self.threads[facts["step"]] = facts["threads"]
        elif entry["kind"] == "final":
            self.final = Final(examples=facts["examples"], careful=facts["careful"])
        self.spent_s = max(self.spent_s, entry["elapsed_s"])
        self.costs = entry["costs"]


def _append(path: Path, line: str) -> None:
    """Append a line and sync it to disk. If that fails, restore the file, because half a line would
    damage the next one."""
    is_new = not path.exists()
    before = 0 if is_new else path.stat().st_size
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
        sync(path)
        if is_new:
            sync(path.parent)
    except OSError:
        with suppress(OSError):
            os.truncate(path, before)
        raise


def _checked(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        total = entry.pop("sum")
    except (ValueError, AttributeError, KeyError):
        return None
    return entry if zlib.crc32(json.dumps(entry).encode()) == total else None


@dataclass(frozen=True, kw_only=True)
class UnlimitedEvaluations:
    """Evaluations that a run would make without a time budget, from which those with a budget are
    planned."""

    n_quick: int
    """Number of validation examples of an evaluation during training."""

    n_valid: int
    """Number of validation examples of the final comparison: all of them."""

    eval_every: int | None = None
    """Number of steps between evaluations if the user set it; None otherwise."""

    save_every: int | None = None
    warmup: int = 0
    """Number of warm-up steps that the user set; 0 if none were set."""

    careful: float = SEARCHED
    """Cost of an example in the final comparison with full decoding settings, as a multiple of its
    cost in an evaluation during training."""


class Budget:
    """Plans the remaining steps and evaluations of a run from measured durations.

    The budget of `total_s` seconds begins at `started`. Earlier processes of the same run have
    already used `journal.spent_s` seconds of it. Only one rank decides; the other ranks receive its
    decisions.
    """

    def __init__(
        self,
        total_s: float,
        unlimited: UnlimitedEvaluations,
        journal: Journal,
        *,
        started: float,
        now: Callable[[], float] = time.monotonic,
        look: int | None = 1,
    ) -> None:
        """Start the budget.

        `look`: number of steps between readings of the clock. None: about one reading per second,
        for devices that must be synchronized for each reading.
        """
        self.total_s, self.unlimited, self.journal = total_s, unlimited, journal
        self.now, self._look = now, look
        self._started = started - journal.spent_s
        self._replays = journal.final is not None
        self._recorded = dict(journal.evaluations)
        """Number of examples of each evaluation that an earlier process recorded, by step. It is a
        copy, so that evaluations which this process adds to the journal are not repeated."""

        self.step_s = journal.costs.get("step")
        self.example_s = journal.costs.get("example")
        self.save_s = journal.costs.get("save", 0.5)
        self._mark: tuple[float, int] | None = None
        self._warm = self._rough = False
        self._begun: float | None = None
        self._evaluated = self._decided = 0.0

    @property
    def elapsed_s(self) -> float:
        return self.now() - self._started

    @property
    def left_s(self) -> float:
        """Number of seconds left for training, evaluations and the final comparison. Time for the
        report and a small reserve are already subtracted."""
        spare = min(1.0 + 0.01 * self.total_s, 0.05 * self.total_s)
        return self.total_s - spare - REPORT_S - self.elapsed_s

    # Measurements

    def timed(self, step_s: float | None, example_s: float | None) -> None:
        """Set the durations in seconds that a trial measured. None: there was no time to
        measure."""
        self.step_s, self.example_s = step_s, example_s

    def mark(self, step: int) -> None:
        """Start timing at this step, after other work such as an evaluation."""
        self._mark = (self.now(), step)

    def saved(self, seconds: float) -> None:
        self.save_s = seconds

    def evaluated(self, n: int, seconds: float) -> None:
        self.example_s = seconds / max(1, n)
        self._evaluated = self.elapsed_s

    def _record(self, kind: str, **facts: Any) -> None:
        known = {"step": self.step_s, "example": self.example_s, "save": self.save_s}
        self.journal.costs = {k: round(v, 6) for k, v in known.items() if v is not None}
        self.journal.add(kind, self.elapsed_s, **facts)

    def _stepped(self, step: int) -> None:
        if self._mark is None or step <= self._mark[1]:
            return
        seconds, n = self.now() - self._mark[0], step - self._mark[1]
        self._mark = (self.now(), step)
        if self.step_s is None or self._rough:
            self.step_s, self._rough = seconds / n, not self._warm
        elif self._warm:
            # The average is weighted by duration, so that a slowdown of the machine is noticed
            # within a few steps.
            usual = max(0.03 * self.total_s, 3 * self.step_s)
            seconds = min(seconds, STALL * n * self.step_s)
            weight = 1.0 - math.exp(-seconds / usual)
            self.step_s += weight * (seconds / n - self.step_s)
        self._warm = True  # the first step compiles, captures CUDA graphs and allocates

    # Decisions

    def decide(self, step: int, plan: Decision | None) -> Decision | None:
        """Return a new plan after this step, or None if the current plan still applies.

        If an evaluation is due (`plan.until`), call this before the evaluation.
        """
        untimed = self.step_s is None or self._rough
        self._stepped(step)
        if step in self.journal.plans:
            return self.journal.plans[step]
        if step < self.journal.last_step or (plan is not None and self._replays):
            return None
        if plan is not None and self.step_s is None and self.left_s > 0.0:
            return None  # resumed without a recorded duration of a step
        if self._begun is None:
            self._begun = self._evaluated = self.elapsed_s
        new = self._planned(step, plan)
        if plan is not None and not self._has_changed(step, plan, new, untimed):
            if self.elapsed_s - self.journal.spent_s > 0.02 * self.total_s:
                self._record("time")
            return None
        self._decided = self.elapsed_s
        self._record("plan", **asdict(new))
        return new

    def _has_changed(self, step: int, plan: Decision, new: Decision, untimed: bool) -> bool:
        if new.steps <= step:
            return True
        if step == plan.until:
            return False
        if step > plan.until or untimed:
            return True
        off, left = abs(new.steps - plan.steps), plan.steps - step
        recent = self.elapsed_s - self._decided < 0.02 * self.total_s
        return off > max(1.0, (0.5 if recent else DRIFT) * left)

    def _planned(self, step: int, plan: Decision | None) -> Decision:
        number, examples = self._evaluations(plan.examples if plan is not None else 0)
        evaluation_s = examples * (self.example_s or 0.0) + self.save_s
        assert self._begun is not None
        training_s = self.left_s - self._end_s(examples)
        interval_s = max(1e-6, (training_s + self.elapsed_s - self._begun) / number)
        step_s = self.step_s
        if step_s is None and not step:
            left = until = UNTIMED
        elif step_s is None or training_s <= 0.0:
            left = 0 if step else 1
            until = step + left
        else:
            if self.unlimited.save_every is not None:
                step_s += self.save_s / self.unlimited.save_every
            next_s = self._evaluated + interval_s - self.elapsed_s
            if self.unlimited.eval_every is None:
                between = max(0, math.ceil((training_s - next_s) / interval_s - 0.3))
                room_s = training_s - between * evaluation_s
            else:
                room_s = training_s * step_s / (step_s + evaluation_s / self.unlimited.eval_every)
            left = max(0 if step else 1, int(room_s / step_s + 0.5))
            until = step + max(1, round(next_s / step_s))
            if self.unlimited.eval_every is not None:
                every = self.unlimited.eval_every
                until = (step // every + 1) * every
            elif step + left - until < 0.3 * interval_s / step_s:
                until = step + left  # an evaluation shortly before the last one is useless
        steps = step + left
        return Decision(
            step=step, steps=steps, until=min(until, steps), examples=examples,
            progress=0.0 if plan is None else plan.progress_at(step), look=self._looks(),
            warmup=self.unlimited.warmup,
        )  # fmt: skip

    def _looks(self) -> int:
        if self._look is not None:
            return self._look
        return int(min(16.0, max(1.0, 1.0 / max(self.step_s or 1.0, 1e-3))))

    def _evaluations(self, before: int) -> tuple[int, int]:
        """Return the number of evaluations that fit into the budget, including the last one, and
        the number of examples of each."""
        # Use a fraction of the time after training began, because preparation may have taken most
        # of the budget.
        share = EVALUATION_SHARE * max(0.0, self.total_s - (self._begun or 0.0))
        most = self.unlimited.n_quick
        example_s = self.example_s or 0.0
        few = min(FEW, most)
        number = min(EVALUATIONS, max(FEWEST, int(share / (most * example_s + self.save_s))))
        room_s = share / number - self.save_s
        examples = most if example_s == 0.0 else int(min(most, max(0.0, room_s / example_s)))
        if examples < few:
            each_s = few * example_s + self.save_s
            number = max(1, int(share / each_s))
            examples = few if each_s <= 2 * share else 0
        if examples / 2 < before <= examples:
            examples = before  # scores on the same examples can be compared
        return number, examples

    def _end_s(self, examples: int) -> float:
        """Estimated number of seconds needed after the last step, for evaluation, checkpoint,
        comparison and saving the final weights."""
        example_s = self.example_s or 0.0
        careful_s = self.unlimited.careful * example_s
        comparison_s = min(END_SHARE * self.total_s, 2 * careful_s * self.unlimited.n_valid)
        if SURE * comparison_s < 2 * example_s * min(FEW, self.unlimited.n_valid):
            comparison_s = 0.0  # there will be none
        return examples * example_s + 2 * self.save_s + comparison_s

    def evaluation(self, step: int, examples: int) -> tuple[int, float | None]:
        """Return the number of examples for the evaluation at this step, and its deadline. None: no
        deadline, because the evaluation was recorded by an earlier process."""
        if step in self._recorded:
            return self._recorded[step], None
        if step < self.journal.last_step or self._replays:
            return examples, None
        usual_s = PATIENCE * examples * (self.example_s or 0.0) + 0.5
        return examples, self.now() + max(0.0, min(usual_s, self.left_s - self.save_s))

    def aborted(self, step: int, examples: int, seconds: float) -> int:
        """Return the number of examples for another attempt after an aborted evaluation, and record
        it. 0: skip the evaluation."""
        self.example_s = max(self.example_s or 0.0, PATIENCE * seconds / max(1, examples))
        room_s = min(EVALUATION_SHARE * self.total_s, self.left_s - self.save_s)
        fewer = int(min(examples / 4, room_s / PATIENCE / self.example_s))
        fewer = fewer if fewer >= min(FEW, self.unlimited.n_quick) else 0
        self._record("evaluation", step=step, examples=fewer)
        self._evaluated = self.elapsed_s
        return fewer

    def comparisons(self, candidates: int) -> Iterator[tuple[Final, float | None]]:
        """Yield settings for the final comparison of this many candidates, each with its deadline
        (None: no deadline).

        If a comparison passes its deadline, the caller takes the next settings, which are smaller.
        A resumed run begins with the last settings that were recorded.
        """
        final = self.journal.final
        if final is not None:
            yield final, None
        while final is None or final.examples:
            final = self._final(candidates, final)
            self._record("final", **asdict(final))
            yield final, self.now() + max(0.0, self.left_s)

    def _final(self, candidates: int, before: Final | None) -> Final:
        n_valid = self.unlimited.n_valid if before is None else before.examples // 4
        quick_s = self.example_s or 1e-6
        careful_s = self.unlimited.careful * quick_s
        room_s = SURE * self.left_s / max(1, candidates)
        enough = min(self.unlimited.n_valid, 10 * FEW)
        for careful, each_s in ((True, careful_s), (False, quick_s)):
            n = int(max(0.0, min(n_valid, room_s / each_s)))
            if n >= (enough if careful else min(FEW, self.unlimited.n_valid)) and n:
                return Final(examples=n, careful=careful)
        return Final(examples=0, careful=False)
