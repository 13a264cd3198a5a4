"""A kind of column from another package, from a file to what training reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import headway
from headway.data.binding_table import TrainingTables
from headway.data.columns import column
from headway.data.columns.column import (
    KINDS,
    Column,
    Sample,
    StoreFacts,
    StoreTools,
    class_of,
    register,
)
from headway.data.named_data import bind_data
from headway.data.predict_input import describe_columns
from headway.data.prepare import prepare
from headway.data.source import sources
from headway.data.store import PreparedData
from headway.errors import ConfigError, DataError
from headway.settings.run import RunSettings, run_settings
from headway.specs import tasks
from headway.specs.metrics import scored
from headway.specs.needs import TEXT, Need
from headway.specs.tasks import SPECS, Spec
from tests.facts import naming


@dataclass(frozen=True)
class RatingColumn(Column):
    """One to five stars per example."""

    kind: ClassVar[str] = "rating"
    is_counted: ClassVar[bool] = True

    def matches(self, sample: Sample) -> str | None:
        stars = all(str(value).strip("★") in ("", *"12345") for value in sample.values)
        return None if stars else "not all values are from 1 to 5 stars"

    def parse(self, raw: object, where: str) -> int:
        stars = str(raw).count("★") or (int(str(raw)) if str(raw).isdecimal() else 0)
        if not 1 <= stars <= 5:
            raise DataError(f"{where} contains {raw!r}. A rating must be one to five stars.")
        return stars

    def show(self, value: object) -> str:
        return "★" * self.parse(value, self.name)

    def scan(self, value: int) -> Sequence[str]:
        return [str(value)]

    def findings(self, scan: Any, report: Any) -> None:
        if len(scan.labels.counts) == 1:
            report.add("warning", "one-rating", 1, "all ratings are the same.")

    def stores(self, tools: StoreTools) -> dict[str, StoreFacts]:
        return {self.name: {"kind": self.kind, "dtype": "<u1"}}

    def encode(
        self, values: Sequence[int], places: Sequence[str], tools: StoreTools
    ) -> dict[str, Any]:
        return {self.name: np.array(values, "<u1")}


STARS = Need(name="stars", kinds=frozenset({"rating"}), role="target", also=("rating",))
ROW = Spec(
    name="rate", modality="text", objective="my_package.rate.Rate", reads="labelled",
    needs=(TEXT, STARS), answers="number", metrics=scored("mae", "loss"), families=("encoder",),
    decode=frozenset({"precision"}), counts="text", lacks="more rated texts",
)  # fmt: skip


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(RatingColumn)
    tasks.register(ROW)
    yield
    del SPECS[ROW.name], KINDS[RatingColumn.kind]


def rows(n: int = 40) -> list[dict[str, object]]:
    return [{"text": f"text number {i}", "stars": "★" * (1 + i % 5)} for i in range(n)]


def run(path: str | Path, **data: Any) -> RunSettings:
    words = {"kind": "words"}
    return run_settings({"task": "rate", "data": {"text": [str(path)], **data}, "tokenizer": words})


def written(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ratings(found: PreparedData) -> list[int]:
    return sorted([*found.train["stars"].tolist(), *found.valid["stars"].tolist()])


def test_a_foreign_kind_of_column_goes_from_a_file_to_training(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    lines = [f"{row['text']}\t{row['stars']}" for row in rows()]
    path.write_text("\n".join(["text\trating", *lines]), encoding="utf-8")
    found = prepare(run(path), tmp_path / "run")
    assert ratings(found) == sorted([1, 2, 3, 4, 5] * 8)
    assert {one["stars"] for one in found.valid_examples} <= {1, 2, 3, 4, 5}
    tables = TrainingTables.of(run(path), ROW, {})
    assert tables.columns == {"text": "text", "rating": "stars"}
    [line] = [one for one in tables.lines(found.report) if "stars" in one]
    assert line.split() == ["rating", "→", "stars", "rating", "★"]


def test_the_kind_of_column_in_the_guide_goes_from_a_file_to_training(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [code] = [one for one in re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
              if "(Column)" in one]  # fmt: skip
    del KINDS[RatingColumn.kind]
    shown = {**globals(), "headway": headway, "Rows": column.Rows}
    exec(code, shown)  # the code of the guide, which registers its class
    assert KINDS["rating"] is shown["RatingColumn"] is not RatingColumn
    found = prepare(run(written(tmp_path / "a.jsonl", rows())), tmp_path / "run")
    assert ratings(found) == sorted([1, 2, 3, 4, 5] * 8)
    assert shown["STARS"] == STARS


def test_its_values_are_parsed_alike_in_memory(tmp_path: Path) -> None:
    table = [{**row, "stars": 1 + i % 5} for i, row in enumerate(rows())]
    bound = bind_data("rate", table)
    bound.write(tmp_path)
    settings = run(tmp_path / "rows.jsonl", text_field="text")
    assert ratings(prepare(settings, tmp_path / "run")) == sorted([1, 2, 3, 4, 5] * 8)


def test_it_is_bound_without_a_name_that_is_known(tmp_path: Path) -> None:
    table = [{"text": row["text"], "verdict": row["stars"], "n": 9} for row in rows()]
    assert ratings(prepare(run(written(tmp_path / "a.jsonl", table)), tmp_path / "run"))
    other = [{"text": row["text"], "n": 9} for row in rows()]
    with pytest.raises(ConfigError, match=naming("stars")):
        prepare(run(written(tmp_path / "b.jsonl", other)), tmp_path / "other")


def test_its_bad_values_and_findings_are_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [*rows(), {"text": "x", "stars": "six"}])
    with pytest.raises(DataError, match=naming("a.jsonl", 41, "'stars'", "'six'")):
        prepare(run(path), tmp_path / "run")
    left = prepare(run(path, on_bad_row="skip"), tmp_path / "run")
    assert len(ratings(left)) == 40
    assert "one-rating" not in {one.name for one in left.report.findings}
    same = written(tmp_path / "b.jsonl", [{**row, "stars": 3} for row in rows()])
    found = {one.name for one in prepare(run(same), tmp_path / "other").report.findings}
    assert "one-rating" in found


def test_it_is_named_in_the_description_of_an_input_file(tmp_path: Path) -> None:
    [table] = [one.table for one in sources(run(written(tmp_path / "a.jsonl", rows())))[0].tables()]
    binding = {"text": class_of("text")("text"), "stars": RatingColumn("stars")}
    assert (
        describe_columns(table, binding) == "field 'text' is the text; field 'stars' is the stars"
    )


@pytest.mark.parametrize("box", ["1 2 3 4", "1,2,3,4", [1, 2, 3, 4], (1, 2, 3, 4), np.arange(1, 5)])
def test_a_region_is_parsed_alike_from_files_and_from_memory(box: object) -> None:
    assert class_of("region")("box").parse(box, "here") == (1, 2, 3, 4)
    for wrong in ([1, 2, 3], (1, 2, 3, -4), "1 2 3", 4):
        with pytest.raises(DataError, match=naming("here")):
            class_of("region")("box").parse(wrong, "here")


def test_a_kind_is_registered_once() -> None:
    @dataclass(frozen=True)
    class Other(RatingColumn):
        pass

    register(RatingColumn)
    with pytest.raises(DataError, match=naming("'rating'")):
        register(Other)


def test_an_error_tells_why_a_column_does_not_fit(tmp_path: Path) -> None:
    other = [{"text": f"text {i}", "n": 9} for i in range(30)]
    with pytest.raises(ConfigError, match=naming("'n'", 1, 5)):
        prepare(run(written(tmp_path / "b.jsonl", other)), tmp_path / "other")
