"""The pointing game and the error of word times: closed forms on attention that was planted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.errors import DataError, UserError
from headway.inside.capture.media import MediaInput
from headway.inside.measure.maps.map import Map
from headway.inside.measure.truth import (
    Case,
    MapAccuracy,
    boundary_errors,
    centre_map,
    even_times,
    measure_accuracy,
    measure_times,
    recording_cases,
    scene_cases,
)
from headway.inside.measure.truth import media as timing
from headway.inside.measure.truth.media import boxes_of, right_patches, right_rows
from headway.tasks.loaded_run import LoadedRun

from .media_runs import AUDIO, IMAGE, RATE, VIDEO, media_run
from .test_audio import TIMES, planted


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """Six images of 24 by 32 with two things each, in their own halves."""
    np.save(tmp_path / "images.npy", np.zeros((6, 24, 32, 3), np.uint8))
    lines = []
    for number in range(6):
        things = [
            {"name": "red circle", "words": [1, 2], "box": [0, 0, 8, 24]},
            {"name": "blue square", "words": [6, 7], "box": [24, 8, 32, 16]},
        ]
        text = "a red circle left of a blue square"
        lines.append({"path": "images.npy", "index": number, "text": text,
                      "label": "cat", "objects": things})  # fmt: skip
    path = tmp_path / "scenes.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def pointing_at(place: dict[int, int], name: str = "cross.0.0") -> Any:
    """A maker of one map: each judged output (by its number) points at a patch."""

    def made(run: LoadedRun, case: Case) -> list[Map]:
        weights_RS = torch.zeros(len(case.reading.outputs), len(case.reading.first))
        for row, patch in place.items():
            weights_RS[row, patch] = 1.0
        return [Map.of(name, {case.stream: weights_RS})]

    return made


def test_the_pointing_game_counts_maxima_inside_boxes(shapes: Path) -> None:
    run = media_run("caption")
    cases = scene_cases(run, shapes, 100)
    assert len(cases) == 6
    assert len(cases[0].links) == 4
    # Rows 0 to 2 of column 0 are the first thing, row 1 of column 3 is the second; of 12 patches.
    assert sorted(cases[0].links[0].correct) == [0, 4, 8]
    assert sorted(cases[0].links[2].correct) == [7]
    found = measure_accuracy(run, cases, [], maker=pointing_at({0: 4, 1: 8, 2: 7, 3: 6}))
    assert found.maps["cross.0.0"].p1 == 3 / 4
    assert found.maps["cross.0.0"].random == pytest.approx((2 * 3 / 12 + 2 * 1 / 12) / 4)
    assert found.n == 24
    assert (found.best.name, found.best.p1, found.best.n) == ("cross.0.0", 3 / 4, 12)
    assert 0 <= found.maps["random"].p1 <= 1
    assert found.maps["centre"].p1 == 0.0
    assert "diagonal" not in found.maps


def test_maps_of_a_real_trace_are_judged_and_kept(shapes: Path, tmp_path: Path) -> None:
    run = media_run("caption")
    found = measure_accuracy(run, scene_cases(run, shapes, 3), ["heads", "mean", "rollout"])
    assert {"cross.0.0", "cross.1.3", "cross.1.mean", "rollout", "random", "centre"} <= set(
        found.maps
    )
    found.save(tmp_path / "truth.json")
    assert MapAccuracy.load(tmp_path / "truth.json").maps.keys() == found.maps.keys()


def test_a_label_of_an_object_is_judged_by_its_box(shapes: Path) -> None:
    run = media_run("see")
    assert scene_cases(run, shapes, 9) == []  # two things, and none is called a cat
    lines = [json.loads(line) for line in shapes.read_text().splitlines()]
    lines = [{**line, "objects": [{**line["objects"][1], "name": "cat"}]} for line in lines]
    shapes.write_text("\n".join(map(json.dumps, lines)))
    cases = scene_cases(run, shapes, 9)
    assert sorted(cases[0].links[0].correct) == [7]
    assert cases[0].columns[0] == (1,)  # behind the class token
    assert cases[0].chance(cases[0].links[0]) == 1 / 12
    assert cases[0].reading.outputs[0].name == "cat"


def test_boxes_follow_the_image_to_its_new_size() -> None:
    media = MediaInput.of("x", np.zeros((1, 3, 24, 32), np.uint8), IMAGE)
    # An image of 100 by 100 is cut to its middle 75 rows: y from 12 to 87.
    [box] = boxes_of({"box": [25, 12, 50, 87]}, media, (100, 100), "x")
    assert box == pytest.approx((0.25, 0.0, 0.5, 1.0), abs=0.01)
    assert sorted(right_patches(media, [(0.25, 0.0, 0.5, 1.0)])) == [1, 5, 9]
    # What is smaller than a patch counts where it is.
    assert right_patches(media, [(0.26, 0.01, 0.27, 0.02)]) == {1}
    with pytest.raises(DataError, match=r"\bx\b.*\bbox\b"):
        boxes_of({"box": [1, 2]}, media, (24, 32), "x")


def test_a_moving_object_is_judged_at_its_place_in_each_frame() -> None:
    media = MediaInput.of("x", np.zeros((4, 3, 16, 16), np.uint8), VIDEO)
    left, right = [0, 0, 8, 16], [8, 0, 16, 16]
    thing = {"box": [0, 0, 16, 16], "boxes": [left, left, None, None]}
    boxes = boxes_of(thing, media, (16, 16), "x")
    assert boxes == [(0.0, 0.0, 0.5, 1.0), None]
    assert sorted(right_patches(media, boxes)) == [0, 2]
    assert sorted(right_patches(media, boxes_of({**thing, "boxes": [left, left, right, right]},
                  media, (16, 16), "x"))) == [0, 2, 5, 7]  # fmt: skip


def test_the_baseline_map_of_a_image_is_its_centre() -> None:
    run = media_run("see")
    from headway.inside.capture.reading import read

    from .media_runs import media_for

    reading = read(run, media_for(run))
    row_S = centre_map(Case(reading, "image", (), ())).weights_RS[0]
    assert int(row_S[1:].argmax()) in (5, 6)
    assert float(row_S[0]) == 0.0


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    samples = np.random.default_rng(0).normal(0, 3000, 4 * RATE).astype(np.int16)
    np.save(tmp_path / "all.npy", samples)
    names = ("one", "two", "three")
    words = [
        {"word": name, "start": start, "end": end}
        for name, (start, end) in zip(names, TIMES, strict=True)
    ]
    lines = [{"path": "all.npy", "rate": RATE, "start": n * 0.9, "end": n * 0.9 + 0.9,
              "text": "one two three", "words": words} for n in range(4)]  # fmt: skip
    path = tmp_path / "strings.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_boundary_errors_are_distances_of_both_ends() -> None:
    assert boundary_errors([(0.1, 0.4)], [(0.0, 0.5)]) == pytest.approx([0.1, 0.1])
    loud = np.random.default_rng(0).normal(size=int(0.9 * RATE)).astype(np.float32)
    media = MediaInput.of("x", loud, AUDIO)
    assert even_times(media, 3)[1] == pytest.approx((0.3, 0.6))


def test_word_times_of_planted_attention_are_right_and_even_ones_are_not(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = media_run("transcribe")
    spoken = recording_cases(run, digits, 100)
    assert [len(one.case.links) for one in spoken] == [3] * 4
    assert spoken[0].times == tuple(TIMES)
    media = spoken[0].case.reading.media
    assert right_rows(media, 0.2, 0.5) == set(range(10, 25))

    def traced(run: LoadedRun, reading: Any) -> Any:
        return replace(planted(TIMES, run), reading=reading)

    monkeypatch.setattr(timing, "trace", traced)
    found = measure_times(run, spoken)
    median = found["median_ms"]
    assert set(found["own_ms"]) == {"attention", "evenly"}
    even = boundary_errors(even_times(media, 3), TIMES)
    assert median["evenly"] == pytest.approx(1000 * float(np.median(even)), abs=0.1)
    assert median["attention"] <= 1000 * AUDIO.row_seconds
    assert "CTC" not in median
    [best] = [name for name in median if name.startswith("head")]
    assert best in ("head cross.0.1", "head cross.1.3")
    assert found["words"] == 12


def test_a_recording_is_judged_by_the_rows_of_its_words(digits: Path) -> None:
    run = media_run("transcribe-joint")
    spoken = recording_cases(run, digits, 2)
    cases = [one.case for one in spoken]
    maker = timing.with_aligning(["heads", "rollout"], 1)
    found = measure_accuracy(run, cases, ["heads", "rollout"], maker=maker)
    assert {"aligning", "rollout", "cross.1.3", "diagonal"} <= set(found.maps)
    assert set(measure_times(run, spoken)["median_ms"]) >= {"attention", "CTC", "evenly"}


def test_manifests_without_boxes_or_times_are_an_error(tmp_path: Path, digits: Path) -> None:
    run = media_run("caption")
    np.save(tmp_path / "images.npy", np.zeros((1, 24, 32, 3), np.uint8))
    (tmp_path / "plain.jsonl").write_text('{"path": "images.npy", "index": 0, "text": "a"}\n')
    with pytest.raises(DataError, match=r"/plain\.jsonl.*\b1\b.*objects"):
        scene_cases(run, tmp_path / "plain.jsonl", 9)
    with pytest.raises(UserError, match=r"/plain\.tsv.*JSONL"):
        scene_cases(run, tmp_path / "plain.tsv", 9)
    digits.write_text(digits.read_text().replace('"words"', '"wards"'))
    with pytest.raises(DataError, match=rf"{digits.name}.*\b1\b.*words"):
        recording_cases(media_run("transcribe"), digits, 9)
