"""The truth that is written beside made images and videos is the truth of their pixels."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made.drawing import (
    COLOURS,
    LOOKS,
    SHAPES,
    Look,
    Thing,
    background,
    finished,
    paint,
    rgb_of,
)
from make_moving import MovingSettings, held_combinations, make_moving, possible
from make_shapes import DIRECTIONS, Held, ShapesSettings, make_shapes
from numpy.typing import NDArray

from headway.errors import ConfigError, FolderError
from tests.facts import naming

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"n": 150, "valid": 10, "test": 60}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "shapes"
    assert make_shapes(out, ShapesSettings(**SMALL))
    return out


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "moving"
    assert make_moving(out, MovingSettings(**SMALL))
    return out


def nearest_colours(image_YXC: NDArray[np.uint8]) -> NDArray[np.str_]:
    """Of each pixel the colour of the table that it could be, or nothing."""
    names = np.array([*COLOURS, ""])
    table = np.array(list(COLOURS.values()))
    away = np.abs(image_YXC[:, :, None].astype(int) - table).max(-1)
    return names[np.where(away.min(-1) <= 16, away.argmin(-1), len(table))]


def assert_boxed(image_YXC: NDArray[np.uint8], things: list[dict[str, Any]], text: str) -> None:
    colours = nearest_colours(image_YXC)
    for thing in things:
        colour, shape = thing["name"].split()
        assert [text.split()[word] for word in thing["words"]] == [colour, shape]
        x0, y0, x1, y1 = thing["box"]
        ys, xs = np.nonzero(colours == colour)
        assert 0 <= x0 < x1 <= image_YXC.shape[1]
        assert 0 <= y0 < y1 <= image_YXC.shape[0]
        # Colours of a scene differ, so all of this colour is this thing; rims are blended, and
        # the tip of a star is never a whole pixel.
        slack = 2 if shape in ("circle", "square", "cross") else 4
        assert x0 <= xs.min() <= x0 + slack
        assert x1 - 1 - slack <= xs.max() < x1
        assert y0 <= ys.min() <= y0 + slack
        assert y1 - 1 - slack <= ys.max() < y1


def test_boxes_hold_all_pixels_of_a_colour_and_nothing_more(shapes: Path) -> None:
    images = np.load(shapes / "images.npy")
    for split in ("train", "test-unseen", "test-unseen-things"):
        for row in rows_of(shapes / f"{split}.jsonl")[:60]:
            assert row["path"] == "images.npy"
            assert_boxed(images[row["index"]], row["objects"], row["text"])


def test_captions_state_true_places_and_sizes(shapes: Path) -> None:
    found = set()
    for row in rows_of(shapes / "train.jsonl"):
        first, *others = row["objects"]
        x, y, size = middle_of(first["box"])
        at = first["words"][1] + 1
        for other in others:
            words = row["text"].split()[at : other["words"][0]]
            relation = " ".join(word for word in words if word not in ("a", "an", "and"))
            found.add(relation)
            x2, y2, size2 = middle_of(other["box"])
            if relation == "inside":
                a, b = first["box"], other["box"]
                assert b[0] < a[0] < a[2] < b[2]
                assert b[1] < a[1] < a[3] < b[3]
            else:
                right, down = DIRECTIONS[relation]
                away, aside = (x2 - x, y2 - y) if right else (y2 - y, x2 - x)
                assert away * (right or down) > 1.5 * abs(aside)
                assert size > size2  # the larger one is named first
            at = other["words"][1] + 1
    assert found == {"left of", "right of", "above", "below", "inside"}


def middle_of(box: list[int]) -> tuple[float, float, int]:
    x0, y0, x1, y1 = box
    return (x0 + x1) / 2, (y0 + y1) / 2, max(x1 - x0, y1 - y0)


def combinations_in(row: dict[str, Any]) -> set[str]:
    """`red circle left of`, from the words alone."""
    text, name = row["text"], row["objects"][0]["name"]
    relations = ("left of", "right of", "above", "below", "inside")
    return {f"{name} {relation}" for relation in relations if f" {relation} " in text}


def test_training_shows_nothing_that_is_held_out_and_the_test_nothing_else(shapes: Path) -> None:
    facts = json.loads((shapes / "made.json").read_text())
    unseen, things = set(facts["unseen"]), set(facts["unseen_things"])
    assert len(things) == 4
    for split in ("train", "valid", "test"):
        for row in rows_of(shapes / f"{split}.jsonl"):
            assert not combinations_in(row) & unseen
            assert not things & {thing["name"] for thing in row["objects"]}
    for row in rows_of(shapes / "test-unseen.jsonl"):
        assert combinations_in(row) & unseen
        assert not things & {thing["name"] for thing in row["objects"]}
    for row in rows_of(shapes / "test-unseen-things.jsonl"):
        assert things & {thing["name"] for thing in row["objects"]}


def test_every_part_of_a_held_out_combination_is_shown_elsewhere() -> None:
    for seed in range(5):
        held = Held.of(seed)
        seen = [look for look in LOOKS if look not in held.looks]
        assert {look.shape for look in seen} == set(SHAPES)
        assert {look.colour for look in seen} == set(COLOURS)
        for look, relation in held.combinations:
            others = {(o, relation) for o in seen} - held.combinations
            assert any(o.shape == look.shape for o, _ in others)
            assert any(o.colour == look.colour for o, _ in others)


@pytest.mark.parametrize("kind", ["shapes", "moving"])
def test_the_same_seed_makes_the_same_bytes_and_another_others(kind: str, tmp_path: Path) -> None:
    def make(name: str, seed: int, n: int = 6) -> dict[str, bytes]:
        out = tmp_path / name
        if kind == "shapes":
            make_shapes(out, ShapesSettings(n=n, valid=2, test=2, seed=seed))
        else:
            make_moving(out, MovingSettings(n=n, valid=2, test=2, seed=seed))
        return {path.name: path.read_bytes() for path in out.iterdir()}

    first, again, other = make("a", 0), make("b", 0), make("c", 1)
    assert first == again
    assert all(first[name] != other[name] for name in first)
    longer = make("d", 0, 9)  # more of the same
    assert longer["train.jsonl"].startswith(first["train.jsonl"])


def test_what_was_made_is_kept_and_never_mixed_with_something_else(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "made"
    settings = ShapesSettings(n=3, valid=1, test=1)
    assert make_shapes(out, settings)
    assert not make_shapes(out, settings)
    with pytest.raises(FolderError, match=naming(out, "--out")):
        make_shapes(out, ShapesSettings(n=4, valid=1, test=1))
    with pytest.raises(FolderError, match=naming(tmp_path, "--out")):
        make_shapes(tmp_path, settings)
    assert [path.name for path in out.parent.iterdir()] == ["made"]


def test_videos_show_the_action_of_their_label(moving: Path) -> None:
    videos = np.load(moving / "videos.npy")
    seen = set()
    for row in rows_of(moving / "train.jsonl") + rows_of(moving / "test-unseen.jsonl"):
        video, thing, action = videos[row["index"]], row["objects"][0], row["label"]
        assert f"{thing['name']} {action}" in row["text"]
        seen.add(action)
        boxes = [box for box in thing["boxes"] if box is not None]
        assert (len(boxes) < len(video)) == (action == "blinks")
        for frame, box in list(zip(video, thing["boxes"], strict=True))[::3]:
            if box is not None and box[2] - box[0] > 9:  # smaller ones are all rim
                assert_boxed(frame, [{**thing, "box": box}], row["text"])
        (x, y, size), (x2, y2, size2) = middle_of(boxes[0]), middle_of(boxes[-1])
        if action.startswith("moves"):
            way = {"left": x - x2, "right": x2 - x, "up": y - y2, "down": y2 - y}
            assert way[action.split()[1]] >= 10
        elif action == "bounces":
            heights = [middle_of(box)[1] for box in boxes]
            turns = np.diff(np.sign(np.diff(heights)))
            assert np.count_nonzero(turns) >= 2
        elif action in ("grows", "shrinks"):
            assert (size2 - size) * (1 if action == "grows" else -1) >= 4
        elif action == "turns":
            assert (video[0] != video[3]).any()
            assert abs(x - x2) + abs(y - y2) < 6
        for other in row["objects"][1:]:
            name, (x0, y0, x1, y1) = other["name"], other["box"]
            inside = nearest_colours(video[0])[y0:y1, x0:x1] == name.split()[0]
            assert inside.any() or name.endswith("ring")
    assert len(seen) == 9


def test_actions_that_a_look_never_does_in_training_are_the_unseen_ones(moving: Path) -> None:
    unseen = {f"{look} {action}" for look, action in held_combinations(0)}
    assert sorted(unseen) == json.loads((moving / "made.json").read_text())["unseen"]
    for split, wanted in {
        "train": False,
        "valid": False,
        "test": False,
        "test-unseen": True,
    }.items():
        for row in rows_of(moving / f"{split}.jsonl"):
            assert (f"{row['objects'][0]['name']} {row['label']}" in unseen) == wanted
    assert not possible(Look("ring", "red"), "turns")


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_painted_has_smooth_edges_and_the_right_area(shape: str) -> None:
    """Against counting many points: the share that lies inside."""
    canvas = np.zeros((64, 64, 3), np.float32)
    thing = Thing(Look(shape, "white"), 30.3, 33.1, 16.0, 0.4)
    paint(canvas, thing, np.full(3, 1.0, np.float32))
    fine = np.zeros((512, 512, 3), np.float32)
    large = Thing(thing.look, 8 * thing.x, 8 * thing.y, 8 * thing.radius, thing.angle)
    paint(fine, large, np.full(3, 1.0, np.float32))
    shares = (fine[..., 0] > 0.5).reshape(64, 8, 64, 8).mean((1, 3))
    assert canvas[..., 0].sum() == pytest.approx(shares.sum(), rel=0.01)
    assert np.abs(canvas[..., 0] - shares).mean() < 0.01


def test_a_shape_at_or_beyond_the_edge_is_cropped() -> None:
    rng = np.random.default_rng(0)
    canvas = background(32, rng)
    before = finished(canvas)
    look = Look("star", "red")
    assert paint(canvas, Thing(look, 0.0, 0.0, 6.0), rgb_of(look, rng))[:2] == (0, 0)
    canvas = background(32, np.random.default_rng(0))
    x0, y0, x1, y1 = paint(canvas, Thing(look, -50.0, 80.0, 6.0), rgb_of(look, rng))
    assert (x1 - x0) * (y1 - y0) == 0
    assert (finished(canvas) == before).all()


@pytest.mark.parametrize(
    ("settings", "value"),
    [({"n": 0}, "n=0"), ({"size": 8}, "size=8"), ({"test": -1}, "test=-1")],
)
def test_impossible_numbers_are_named(settings: dict[str, int], value: str) -> None:
    for kind in (ShapesSettings, MovingSettings):
        with pytest.raises(ConfigError, match=value):
            kind(**settings)


def test_a_program_makes_a_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["make_shapes", "--out", str(tmp_path / "s"), "--n", "4", "--valid", "1", "--test", "2"]
    monkeypatch.setattr(sys, "argv", words)
    outputs, times = [], []
    for _ in range(2):
        runpy.run_path(str(EXAMPLES / "make_shapes.py"), run_name="__main__")
        outputs.append(capsys.readouterr().out)
        times.append((tmp_path / "s" / "train.jsonl").stat().st_mtime_ns)
    assert times[0] == times[1]
    assert outputs[0] != outputs[1]
    assert all(str(tmp_path / "s") in out and "train.jsonl" in out for out in outputs)
    monkeypatch.setattr(sys, "argv", [*words, "--seed", "1"])
    with pytest.raises(SystemExit, match=naming(tmp_path / "s", "--out")):
        runpy.run_path(str(EXAMPLES / "make_shapes.py"), run_name="__main__")
