"""A time budget kept: how many steps, which evaluations, how large an end, decided as time passes.

Nothing here knows torch or a clock of its own: `now` is passed in, and what things cost is told as
it is measured. Every decision is in the run folder (`plan.jsonl`), forced to the disk, before it
takes effect: a run that was killed makes the recorded ones again, step by step, and new ones only
where the record ends.
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
"""In a run whose number of evaluations nobody chose; and before each of them becomes smaller."""

EVALUATION_SHARE = 0.12
"""Of the time, for evaluations and the saves that go with them."""

END_SHARE = 0.06
"""Of the time, for the comparison at the end."""

FEW = 8
"""Validation examples that say something; with fewer there is no evaluation."""

SEARCHED, READ = 4.0, 1.25
"""Times as long as an example of a quick evaluation takes one of the last comparison, about: where
it is searched for with a beam, and where it is read as before."""

SURE = 0.8
"""Of the time that is left, what the comparison at the end is planned for."""

REPORT_S = 1.0
"""For the report and for leaving."""

DRIFT = 0.1
"""Of the steps that are left: a plan that is off by less stays."""

UNTIMED = 50
"""Steps of a first plan where nobody knows what one takes. The first step tells, and then there is
another plan. So few that nobody judges by them whether a model learns."""

STALL = 8.0
"""Times as long as steps took so far: what takes longer counts as so much. Machines become some
times slower; one step that takes a hundred times as long is something that passes."""

PATIENCE = 2.0
"""An evaluation that takes this many times what was planned is broken off."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What holds from a step on, until there is another one."""

    step: int
    """The last step that it says nothing about."""

    steps: int
    """In all."""

    until: int
    """The step of the next evaluation."""

    examples: int
    """Validation examples in it; 0: it is left out."""

    progress: float
    """The share of the learning-rate schedule that lies behind at `step`."""

    look: int = 1
    """Steps from one look at the clock to the next."""

    warmup: int = 0
    """Steps in which the rate climbs, where someone asked for so many: they are those, however many
    there are to be in all, and `progress` counts from there."""

    def progress_at(self, step: int) -> float:
        """The share of the schedule at a later step: even steps to 1 at the last one. The rate
        therefore never jumps, and ends where it should, however often the plan has changed."""
        first = max(self.step, self.warmup)
        if self.steps <= first:
            return self.progress
        way = max(0, step - first) / (self.steps - first)
        return self.progress + way * (1.0 - self.progress)

    def looks(self, step: int) -> bool:
        """Whether the clock is looked at behind this step: the same on all ranks."""
        return step < self.steps and (step % self.look == 0 or step > self.until)


@dataclass(frozen=True, kw_only=True)
class Final:
    """How the candidates for the last word are compared; without examples they are not."""

    examples: int
    careful: bool


class Journal:
    """`plan.jsonl`: decisions that depended on the clock or on the machine's load, one per line.

    Each line has a checksum and is on disk before `add` returns, so that a resumed run repeats the
    decisions of the killed one. Lines after a damaged one are ignored and decided again.
    """

    def __init__(self, path: Path | None, note: Callable[[str], None] = lambda text: None) -> None:
        self.path, self.note = path, note
        self.plans: dict[int, Decision] = {}
        self.evaluations: dict[int, int] = {}
        self.threads: dict[int, int] = {}
        """Number of threads by the step from which on it holds."""

        self.final: Final | None = None
        self.spent_s = 0.0
        """Of the budget, when the last line was written."""

        self.costs: dict[str, float] = {}
        """What was measured until then, in seconds by name."""

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
        except OSError as error:  # as with a checkpoint: training goes on
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
        # The last one lacks its end, or lacks but that: the next would be glued to it.
        torn = good >= len(lines) - 1
        if any(lines[good:]) or good == len(lines):
            if not torn:  # by a kill: it never took effect
                self.note(f"warning: {path} is damaged in line {good + 1}: from there on anew.")
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
    """All of it, on the disk, or nothing: half a line would spoil the next one."""
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
class Wanted:
    """What evaluations would be like if time were no matter."""

    n_quick: int
    """Validation examples of one during training."""

    n_valid: int
    """Of the comparison at the end: all there are."""

    eval_every: int | None = None
    """Steps from one to the next, where someone asked for that."""

    save_every: int | None = None
    warmup: int = 0
    """As in a decision."""

    careful: float = SEARCHED
    """Times as long as a quick example takes one of the comparison at the end."""


class Budget:
    """Told what things take, it says what is to be done in the time that is left.

    `total_s` counts from `started`, plus what an earlier process used up (`journal.spent_s`). Only
    one rank decides; the others hear of it.
    """

    def __init__(
        self,
        total_s: float,
        wanted: Wanted,
        journal: Journal,
        *,
        started: float,
        now: Callable[[], float] = time.monotonic,
        look: int | None = 1,
    ) -> None:
        """`look`: as in a decision; None: about once a second, where each costs a wait."""
        self.total_s, self.wanted, self.journal = total_s, wanted, journal
        self.now, self._look = now, look
        self._started = started - journal.spent_s
        self._replays = journal.final is not None
        self._recorded = dict(journal.evaluations)
        """By an earlier process. What this one writes down it does not do again: it does the rest.
        """

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
        """Until all is to be over but for the report: a little is kept for what nobody foresees."""
        spare = min(1.0 + 0.01 * self.total_s, 0.05 * self.total_s)
        return self.total_s - spare - REPORT_S - self.elapsed_s

    # What is told

    def timed(self, step_s: float | None, example_s: float | None) -> None:
        """What a trial found; None: there was no time for one."""
        self.step_s, self.example_s = step_s, example_s

    def mark(self, step: int) -> None:
        """Steps are timed from here: what lies before was something else."""
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
            # The newest counts by its length: a machine that becomes slow is noticed within steps.
            usual = max(0.03 * self.total_s, 3 * self.step_s)
            seconds = min(seconds, STALL * n * self.step_s)
            weight = 1.0 - math.exp(-seconds / usual)
            self.step_s += weight * (seconds / n - self.step_s)
        self._warm = True  # the very first compiles, records and allocates

    # What is asked

    def decide(self, step: int, plan: Decision | None) -> Decision | None:
        """A new plan behind this step, or None where the old one holds. At `plan.until` that is
        before the evaluation."""
        untimed = self.step_s is None or self._rough
        self._stepped(step)
        if step in self.journal.plans:
            return self.journal.plans[step]
        if step < self.journal.last_step or (plan is not None and self._replays):
            return None
        if plan is not None and self.step_s is None and self.left_s > 0.0:
            return None  # taken up again without a record of what a step takes
        if self._begun is None:
            self._begun = self._evaluated = self.elapsed_s
        new = self._planned(step, plan)
        if plan is not None and not self._is_news(step, plan, new, untimed):
            if self.elapsed_s - self.journal.spent_s > 0.02 * self.total_s:
                self._record("time")
            return None
        self._decided = self.elapsed_s
        self._record("plan", **asdict(new))
        return new

    def _is_news(self, step: int, plan: Decision, new: Decision, untimed: bool) -> bool:
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
            if self.wanted.save_every is not None:
                step_s += self.save_s / self.wanted.save_every
            next_s = self._evaluated + interval_s - self.elapsed_s
            if self.wanted.eval_every is None:
                between = max(0, math.ceil((training_s - next_s) / interval_s - 0.3))
                room_s = training_s - between * evaluation_s
            else:
                room_s = training_s * step_s / (step_s + evaluation_s / self.wanted.eval_every)
            left = max(0 if step else 1, int(room_s / step_s + 0.5))
            until = step + max(1, round(next_s / step_s))
            if self.wanted.eval_every is not None:
                every = self.wanted.eval_every
                until = (step // every + 1) * every
            elif step + left - until < 0.3 * interval_s / step_s:
                until = step + left  # one just before the last would be for nothing
        steps = step + left
        return Decision(
            step=step, steps=steps, until=min(until, steps), examples=examples,
            progress=0.0 if plan is None else plan.progress_at(step), look=self._looks(),
            # Of a run that an earlier version began the progress counts from its beginning.
            warmup=self.wanted.warmup if plan is None else plan.warmup,
        )  # fmt: skip

    def _looks(self) -> int:
        if self._look is not None:
            return self._look
        return int(min(16.0, max(1.0, 1.0 / max(self.step_s or 1.0, 1e-3))))

    def _evaluations(self, before: int) -> tuple[int, int]:
        """How many, the last among them, and of how many examples, within their share."""
        # Of the time since training began: preparing may have taken most of all.
        share = EVALUATION_SHARE * max(0.0, self.total_s - (self._begun or 0.0))
        most = self.wanted.n_quick
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
        """The last evaluation, its checkpoint, the comparison, the weights."""
        example_s = self.example_s or 0.0
        careful_s = self.wanted.careful * example_s
        comparison_s = min(END_SHARE * self.total_s, 2 * careful_s * self.wanted.n_valid)
        if SURE * comparison_s < 2 * example_s * min(FEW, self.wanted.n_valid):
            comparison_s = 0.0  # there will be none
        return examples * example_s + 2 * self.save_s + comparison_s

    def evaluation(self, step: int, examples: int) -> tuple[int, float | None]:
        """Of how many examples that of this step is, and when it is to be broken off."""
        if step in self._recorded:
            return self._recorded[step], None
        if step < self.journal.last_step or self._replays:
            return examples, None
        usual_s = PATIENCE * examples * (self.example_s or 0.0) + 0.5
        return examples, self.now() + max(0.0, min(usual_s, self.left_s - self.save_s))

    def broken_off(self, step: int, examples: int, seconds: float) -> int:
        """The examples for another try, written down; 0: the evaluation is left out."""
        self.example_s = max(self.example_s or 0.0, PATIENCE * seconds / max(1, examples))
        room_s = min(EVALUATION_SHARE * self.total_s, self.left_s - self.save_s)
        fewer = int(min(examples / 4, room_s / PATIENCE / self.example_s))
        fewer = fewer if fewer >= min(FEW, self.wanted.n_quick) else 0
        self._record("evaluation", step=step, examples=fewer)
        self._evaluated = self.elapsed_s
        return fewer

    def comparisons(self, candidates: int) -> Iterator[tuple[Final, float | None]]:
        """Ways to compare so many at the end, each smaller than the one before, and until when.
        One that is recorded is the last that was begun. Iteration goes on where one had no time."""
        final = self.journal.final
        if final is not None:
            yield final, None
        while final is None or final.examples:
            final = self._final(candidates, final)
            self._record("final", **asdict(final))
            yield final, self.now() + max(0.0, self.left_s)

    def _final(self, candidates: int, before: Final | None) -> Final:
        n_valid = self.wanted.n_valid if before is None else before.examples // 4
        quick_s = self.example_s or 1e-6
        careful_s = self.wanted.careful * quick_s
        room_s = SURE * self.left_s / max(1, candidates)
        enough = min(self.wanted.n_valid, 10 * FEW)
        for careful, each_s in ((True, careful_s), (False, quick_s)):
            n = int(max(0.0, min(n_valid, room_s / each_s)))
            if n >= (enough if careful else min(FEW, self.wanted.n_valid)) and n:
                return Final(examples=n, careful=careful)
        return Final(examples=0, careful=False)
