"""Every row shows one example after each stage, from its file to a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headway.settings.data import DataSettings
from headway.training.example_stages import TOGETHER, _line, stages_of

from .tiny import Tiny


def test_an_example_is_shown_after_each_stage(tiny: Tiny) -> None:
    task, settings = tiny.task, tiny.run.settings
    found = stages_of(replace(settings, data=in_place(tiny)), task.prepared, task)
    heads = [line[:8].strip() for line in found]
    assert [head for head in heads if head] == ["raw", "opened", "stored", "item", "batch"]
    assert all(line[8:].strip() and "\n" not in line for line in found)
    assert int(stage(found, "batch")[0][8:].split()[0]) <= TOGETHER
    if list(settings.data.media):  # the file is named, and a pair opened whole
        assert "rows.jsonl:" in found[0]
        assert "contract-files" in found[0]
        assert len(stage(found, "opened")) == 1 + bool(settings.data.other_field)
    rows = [int(line[8:].split()[0].replace(",", "")) for line in stage(found, "item")]
    batch = "\n".join(stage(found, "batch"))
    lengths = task.valid_dataset.lengths[0].tolist()
    # What is read twice, to be compared with itself, counts twice.
    assert all(n in (one, 2 * one) for n, one in zip(lengths, rows, strict=False))
    assert all(f"streams[{number}]" in batch for number in range(len(lengths)))


def in_place(tiny: Tiny) -> DataSettings:
    """The run was moved when it was done, and its table with it."""
    data = tiny.run.settings.data
    here = tiny.folder / "given"
    held = {name: tuple(str(here / Path(path).name) for path in getattr(data, name))
            for name in ("text", "pairs", "media")}  # fmt: skip
    return replace(data, **held)


def stage(lines: list[str], name: str) -> list[str]:
    start = next(i for i, line in enumerate(lines) if line.startswith(name))
    end = next((i for i in range(start + 1, len(lines)) if lines[i][0] != " "), len(lines))
    return lines[start:end]


def test_ends_of_lines_are_spelled() -> None:
    assert _line("a\nb\r") == "a\\nb\\r"
